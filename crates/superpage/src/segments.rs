//! Memory for counters: a pool of equal chunks, one for each segment that is touched.

use core::fmt;

/// A place in the directory that finds a segment's chunk. Made by the caller with `Default`, used here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// The segment's number plus one; zero is a free place.
    key: usize,
    chunk: u32,
    /// The n-th place also holds the n-th entry of the stack of free chunks.
    free: u32,
}

/// What one segment of bookkeeping takes, for a caller that sizes [`Memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Words of bit maps.
    pub bits: usize,
    /// Counters of 16 bits (a count whose threshold needs more takes two).
    pub counters: usize,
}

impl Footprint {
    /// Places in the directory for one segment: it stays half empty, so that look-ups stay short.
    pub const SLOTS: usize = 2;

    /// Returns the bytes of a segment's bookkeeping, its part of the directory included.
    pub const fn bytes(self) -> usize {
        Self::SLOTS * size_of::<Slot>() + self.bits * size_of::<usize>() + self.counters * size_of::<u16>()
    }
}

/// Memory that the caller hands over: for `n` segments, `n` times what the policy's footprint says of each kind.
/// What it holds does not matter.
#[derive(Debug)]
pub struct Memory<'m> {
    /// [`Footprint::SLOTS`] a segment.
    pub directory: &'m mut [Slot],
    /// [`Footprint::bits`] a segment.
    pub bits: &'m mut [usize],
    /// [`Footprint::counters`] a segment.
    pub counters: &'m mut [u16],
}

/// Segments whose chunks are remembered.
const NEAR: usize = 8;

/// Every chunk is taken: this segment cannot be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// The segments that have been touched, by number.
///
/// The directory is an open-addressed hash table with linear probing; a removal shifts the followers back, so there
/// are no tombstones and a look-up ends at the first free place.
pub(crate) struct Segments<'m> {
    memory: Memory<'m>,
    footprint: Footprint,
    chunks: usize,
    used: usize,
    /// Segments found last, by their lowest bits: misses and evictions come in clusters.
    near: [(usize, usize); NEAR],
}

impl<'m> Segments<'m> {
    pub(crate) fn new(memory: Memory<'m>, footprint: Footprint) -> Self {
        let fit = |have: usize, each: usize| have.checked_div(each).unwrap_or(usize::MAX);
        let chunks = (memory.directory.len() / Footprint::SLOTS)
            .min(fit(memory.bits.len(), footprint.bits))
            .min(fit(memory.counters.len(), footprint.counters))
            .min(u32::MAX as usize);
        let segments = Self { memory, footprint, chunks, used: 0, near: [(0, 0); NEAR] };
        for (n, slot) in segments.memory.directory.iter_mut().enumerate() {
            *slot = Slot { key: 0, chunk: 0, free: n as u32 };
        }
        segments
    }

    /// The place where a search for `key` starts: a multiplicative hash spread over the directory's length.
    #[inline]
    fn home(&self, key: usize) -> usize {
        let hash = (key as u32).wrapping_mul(0x9e37_79b9);
        ((u64::from(hash) * self.memory.directory.len() as u64) >> 32) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 < self.memory.directory.len() { at + 1 } else { 0 }
    }

    /// Returns the chunk of `segment`, if it has one.
    #[inline]
    pub(crate) fn find(&mut self, segment: usize) -> Option<usize> {
        let near = self.near[segment % NEAR];
        if near.0 == segment + 1 { Some(near.1) } else { self.search(segment) }
    }

    fn search(&mut self, segment: usize) -> Option<usize> {
        let key = segment + 1;
        let mut at = self.home(key);
        loop {
            let slot = self.memory.directory.get(at)?;
            if slot.key == key {
                let chunk = slot.chunk as usize;
                self.near[segment % NEAR] = (key, chunk);
                return Some(chunk);
            }
            if slot.key == 0 {
                return None;
            }
            at = self.next(at);
        }
    }

    /// Returns the chunk of `segment` and whether it is new, in which case it is all zero.
    #[inline]
    pub(crate) fn touch(&mut self, segment: usize) -> Result<(usize, bool), Exhausted> {
        match self.find(segment) {
            Some(chunk) => Ok((chunk, false)),
            None => self.insert(segment).map(|chunk| (chunk, true)),
        }
    }

    #[cold]
    fn insert(&mut self, segment: usize) -> Result<usize, Exhausted> {
        if self.used == self.chunks {
            return Err(Exhausted);
        }
        let chunk = self.memory.directory.get(self.used).ok_or(Exhausted)?.free;
        let mut at = self.home(segment + 1);
        // Ends: at most half of the directory is taken.
        while self.memory.directory.get(at).is_some_and(|slot| slot.key != 0) {
            at = self.next(at);
        }
        let slot = self.memory.directory.get_mut(at).ok_or(Exhausted)?;
        (slot.key, slot.chunk) = (segment + 1, chunk);
        self.used += 1;
        self.near[segment % NEAR] = (segment + 1, chunk as usize);
        let (bits, counters) = self.parts(chunk as usize);
        bits.fill(0);
        counters.fill(0);
        Ok(chunk as usize)
    }

    /// Gives the chunk of `segment` back. Returns whether it had one.
    pub(crate) fn remove(&mut self, segment: usize) -> bool {
        let Some(chunk) = self.find(segment) else { return false };
        let key = segment + 1;
        self.near[segment % NEAR] = (0, 0);
        self.used -= 1;
        let used = self.used;
        if let Some(slot) = self.memory.directory.get_mut(used) {
            slot.free = chunk as u32;
        }
        let mut hole = self.home(key);
        while self.memory.directory.get(hole).is_some_and(|slot| slot.key != key) {
            hole = self.next(hole);
        }
        let mut at = self.next(hole);
        while let Some(&Slot { key, chunk, .. }) = self.memory.directory.get(at)
            && key != 0
        {
            // Moves back unless its own search starts behind the hole.
            let home = self.home(key);
            let behind = if hole < at { hole < home && home <= at } else { hole < home || home <= at };
            if !behind {
                self.set(hole, key, chunk);
                hole = at;
            }
            at = self.next(at);
        }
        self.set(hole, 0, 0);
        true
    }

    fn set(&mut self, at: usize, key: usize, chunk: u32) {
        if let Some(slot) = self.memory.directory.get_mut(at) {
            (slot.key, slot.chunk) = (key, chunk);
        }
    }

    /// Returns the bit maps of a chunk.
    #[inline]
    pub(crate) fn bits(&mut self, chunk: usize) -> &mut [usize] {
        let each = self.footprint.bits;
        self.memory.bits.get_mut(chunk * each..).and_then(|rest| rest.get_mut(..each)).unwrap_or_default()
    }

    /// Returns the bit maps and counters of a chunk.
    #[inline]
    pub(crate) fn parts(&mut self, chunk: usize) -> (&mut [usize], &mut [u16]) {
        let Footprint { bits, counters } = self.footprint;
        (
            self.memory.bits.get_mut(chunk * bits..(chunk + 1) * bits).unwrap_or_default(),
            self.memory.counters.get_mut(chunk * counters..(chunk + 1) * counters).unwrap_or_default(),
        )
    }

    /// Returns the bit maps and counters of a chunk, to read.
    pub(crate) fn peek(&self, chunk: usize) -> (&[usize], &[u16]) {
        let Footprint { bits, counters } = self.footprint;
        (
            self.memory.bits.get(chunk * bits..(chunk + 1) * bits).unwrap_or_default(),
            self.memory.counters.get(chunk * counters..(chunk + 1) * counters).unwrap_or_default(),
        )
    }

    /// Returns every touched segment with its chunk, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.memory
            .directory
            .iter()
            .filter(|slot| slot.key != 0)
            .map(|slot| (slot.key - 1, slot.chunk as usize))
    }

    /// Calls `each` on every touched segment's bit maps and counters.
    pub(crate) fn for_each(&mut self, mut each: impl FnMut(&mut [usize], &mut [u16])) {
        for at in 0..self.memory.directory.len() {
            if let Some(&Slot { key: 1.., chunk, .. }) = self.memory.directory.get(at) {
                let (bits, counters) = self.parts(chunk as usize);
                each(bits, counters);
            }
        }
    }

    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    pub(crate) const fn capacity(&self) -> usize {
        self.chunks
    }
}

impl fmt::Debug for Segments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segments").field("used", &self.used).field("of", &self.chunks).finish_non_exhaustive()
    }
}
