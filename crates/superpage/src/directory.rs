//! The segments that have memory for their counters: a hash table from a segment's number to a chunk of the pool.

use tlbkit_addr::Pages;

use crate::PageSizes;

/// A slot of the directory, which maps a segment to its chunk. The caller makes slots with `Default` and hands them over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// The segment's number plus one; zero in a free slot.
    key: usize,
    chunk: u32,
    /// The n-th slot also holds the n-th entry of the stack of free chunks.
    free: u32,
}

/// Number of entries of the cache in front of the table, a power of two.
const NEAR: usize = 16;

/// An empty entry of the cache. No segment has this number, because a segment has at least two units.
const NOWHERE: (usize, usize) = (usize::MAX, 0);

/// Number of slots for each chunk. At least half of the table is empty, which keeps lookups short.
pub(crate) const SLOTS: usize = 2;

/// The error that all chunks are in use, so the segment gets no counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// The touched segments, by number, and the free chunks.
///
/// An open-addressed hash table with linear probing. A removal shifts the entries that follow back, so there are no
/// tombstones, and a lookup ends at the first free slot.
#[derive(Debug)]
pub(crate) struct Directory<'m> {
    slots: &'m mut [Slot],
    chunks: usize,
    used: usize,
    /// A cache of segments and their chunks, by the lowest bits of the segment's number.
    near: [(usize, usize); NEAR],
}

impl<'m> Directory<'m> {
    /// Makes a directory of at most `chunks` chunks.
    pub(crate) fn new(slots: &'m mut [Slot], chunks: usize) -> Self {
        let chunks = (slots.len() / SLOTS).min(chunks).min(u32::MAX as usize);
        for (n, slot) in slots.iter_mut().enumerate() {
            *slot = Slot { key: 0, chunk: 0, free: n as u32 };
        }
        Self { slots, chunks, used: 0, near: [NOWHERE; NEAR] }
    }

    /// Returns the slot where the search for `key` starts: a multiplicative hash, scaled to the table's length.
    #[inline]
    fn home(&self, key: usize) -> usize {
        let hash = (key as u32).wrapping_mul(0x9e37_79b9);
        ((u64::from(hash) * self.slots.len() as u64) >> 32) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 < self.slots.len() { at + 1 } else { 0 }
    }

    /// Returns the chunk of `segment`, if the cache has it.
    #[inline(always)]
    pub(crate) fn near(&self, segment: usize) -> Option<usize> {
        let near = self.near[segment % NEAR];
        (near.0 == segment).then_some(near.1)
    }

    /// Returns the chunk of `segment`, if it has one.
    #[inline(never)]
    pub(crate) fn find(&mut self, segment: usize) -> Option<usize> {
        let key = segment + 1;
        let mut at = self.home(key);
        loop {
            let slot = self.slots.get(at)?;
            if slot.key == key {
                let chunk = slot.chunk as usize;
                self.near[segment % NEAR] = (segment, chunk);
                return Some(chunk);
            }
            if slot.key == 0 {
                return None;
            }
            at = self.next(at);
        }
    }

    /// Assigns a chunk to `segment`, which must have none. The chunk's content is that of the segment that had it before.
    pub(crate) fn insert(&mut self, segment: usize) -> Result<usize, Exhausted> {
        if self.used == self.chunks {
            return Err(Exhausted);
        }
        let chunk = self.slots.get(self.used).ok_or(Exhausted)?.free;
        let mut at = self.home(segment + 1);
        // The loop ends because at least half of the slots are free.
        while self.slots.get(at).is_some_and(|slot| slot.key != 0) {
            at = self.next(at);
        }
        let slot = self.slots.get_mut(at).ok_or(Exhausted)?;
        (slot.key, slot.chunk) = (segment + 1, chunk);
        self.used += 1;
        self.near[segment % NEAR] = (segment, chunk as usize);
        Ok(chunk as usize)
    }

    /// Frees the chunk of `segment`, if it has one.
    pub(crate) fn remove(&mut self, segment: usize) {
        let Some(chunk) = self.find(segment) else { return };
        let key = segment + 1;
        self.near[segment % NEAR] = NOWHERE;
        self.used -= 1;
        let used = self.used;
        if let Some(slot) = self.slots.get_mut(used) {
            slot.free = chunk as u32;
        }
        let mut hole = self.home(key);
        while self.slots.get(hole).is_some_and(|slot| slot.key != key) {
            hole = self.next(hole);
        }
        let mut at = self.next(hole);
        while let Some(&Slot { key, chunk, .. }) = self.slots.get(at)
            && key != 0
        {
            // The entry moves into the hole unless the search for it starts behind the hole.
            let home = self.home(key);
            let behind = if hole < at { hole < home && home <= at } else { hole < home || home <= at };
            if !behind {
                self.set(hole, key, chunk);
                hole = at;
            }
            at = self.next(at);
        }
        self.set(hole, 0, 0);
    }

    fn set(&mut self, at: usize, key: usize, chunk: u32) {
        if let Some(slot) = self.slots.get_mut(at) {
            (slot.key, slot.chunk) = (key, chunk);
        }
    }

    /// Returns every touched segment with its chunk, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.slots.iter().filter(|slot| slot.key != 0).map(|slot| (slot.key - 1, slot.chunk as usize))
    }

    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    pub(crate) const fn capacity(&self) -> usize {
        self.chunks
    }

    /// Frees the chunks of the segments that are wholly within `pages`. The time is one lookup for each segment of the range
    /// or, if fewer segments are in use than the range has, one pass over the table for each segment that is freed.
    pub(crate) fn unmapped(&mut self, page_sizes: &PageSizes, pages: Pages) {
        let (first, last) = (page_sizes.locate(pages.first()), page_sizes.locate(pages.last()));
        let starts =
            page_sizes.superpage(first, page_sizes.top()).is_some_and(|whole| whole.first == pages.first());
        let ends = page_sizes
            .superpage(last, page_sizes.top())
            .is_some_and(|whole| whole.pages(page_sizes.page()).last() == pages.last());
        let Some(from) = first.segment.checked_add(usize::from(!starts)) else { return };
        let Some(to) = last.segment.checked_sub(usize::from(!ends)) else { return };
        if from > to {
            return;
        }
        if to - from < self.used {
            for segment in from..=to {
                self.remove(segment);
            }
            return;
        }
        loop {
            let dead = self.iter().map(|(segment, _)| segment).find(|segment| (from..=to).contains(segment));
            let Some(segment) = dead else { return };
            self.remove(segment);
        }
    }
}

#[cfg(test)]
mod tests;
