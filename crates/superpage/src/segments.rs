//! Memory for counters: a pool of equal chunks, one for each touched segment.

use tlbkit_addr::Pages;

use crate::PageSizes;
use crate::directory::{self, Directory, Exhausted, Slot};

/// The memory that the bookkeeping of one segment takes, for a caller that sizes [`PolicyMemory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentMemory {
    /// Number of words (`usize`) of bitmaps.
    pub bits: usize,
    /// Number of 16-bit counters. What may exceed 16 bits takes two or more.
    pub counters: usize,
}

impl SegmentMemory {
    /// Number of directory slots for one segment.
    pub const SLOTS: usize = directory::SLOTS;

    /// Returns the bytes of a segment's bookkeeping, its part of the directory included.
    pub const fn bytes(self) -> usize {
        Self::SLOTS * size_of::<Slot>() + self.bits * size_of::<usize>() + self.counters * size_of::<u16>()
    }
}

/// Memory that the caller provides to a policy. For `n` segments, each slice has `n` times the length that the policy's
/// `segment_memory` returns. The slices may have any content.
#[derive(Debug)]
pub struct PolicyMemory<'m> {
    /// [`SegmentMemory::SLOTS`] slots for each segment.
    pub directory: &'m mut [Slot],
    /// [`SegmentMemory::bits`] words for each segment.
    pub bits: &'m mut [usize],
    /// [`SegmentMemory::counters`] counters for each segment.
    pub counters: &'m mut [u16],
}

impl SegmentMemory {
    /// Returns for how many segments `memory` is enough.
    pub(crate) fn fits(self, memory: &PolicyMemory<'_>) -> usize {
        let fit = |have: usize, each: usize| have.checked_div(each).unwrap_or(usize::MAX);
        fit(memory.bits.len(), self.bits).min(fit(memory.counters.len(), self.counters))
    }
}

/// A pool whose chunks consist of words of bitmaps and of counters.
#[derive(Debug)]
pub(crate) struct Segments<'m> {
    directory: Directory<'m>,
    bits: &'m mut [usize],
    counters: &'m mut [u16],
    per_segment: SegmentMemory,
}

impl<'m> Segments<'m> {
    pub(crate) fn new(memory: PolicyMemory<'m>, per_segment: SegmentMemory) -> Self {
        let chunks = per_segment.fits(&memory);
        let PolicyMemory { directory, bits, counters } = memory;
        Self { directory: Directory::new(directory, chunks), bits, counters, per_segment }
    }

    /// Returns the chunk of `segment`, if it has one.
    #[inline]
    pub(crate) fn find(&mut self, segment: usize) -> Option<usize> {
        self.directory.near(segment).or_else(|| self.directory.find(segment))
    }

    /// Returns the chunk of `segment`, which gets a chunk of zeros if it has none.
    #[inline]
    pub(crate) fn touch(&mut self, segment: usize) -> Result<usize, Exhausted> {
        match self.directory.near(segment) {
            Some(chunk) => Ok(chunk),
            None => self.touch_far(segment),
        }
    }

    #[inline(never)]
    fn touch_far(&mut self, segment: usize) -> Result<usize, Exhausted> {
        if let Some(chunk) = self.directory.find(segment) {
            return Ok(chunk);
        }
        let chunk = self.directory.insert(segment)?;
        let (bits, counters) = self.parts(chunk);
        bits.fill(0);
        counters.fill(0);
        Ok(chunk)
    }

    /// Returns the bitmaps and counters of a chunk.
    pub(crate) fn parts(&mut self, chunk: usize) -> (&mut [usize], &mut [u16]) {
        let SegmentMemory { bits, counters } = self.per_segment;
        (
            self.bits.get_mut(chunk * bits..(chunk + 1) * bits).unwrap_or_default(),
            self.counters.get_mut(chunk * counters..(chunk + 1) * counters).unwrap_or_default(),
        )
    }

    /// Returns the bitmaps of a chunk.
    #[inline]
    pub(crate) fn bits(&mut self, chunk: usize) -> &mut [usize] {
        let bits = self.per_segment.bits;
        self.bits.get_mut(chunk * bits..(chunk + 1) * bits).unwrap_or_default()
    }

    /// Returns the bitmaps and counters of a chunk for reading.
    pub(crate) fn peek(&self, chunk: usize) -> (&[usize], &[u16]) {
        let SegmentMemory { bits, counters } = self.per_segment;
        (
            self.bits.get(chunk * bits..(chunk + 1) * bits).unwrap_or_default(),
            self.counters.get(chunk * counters..(chunk + 1) * counters).unwrap_or_default(),
        )
    }

    /// Returns every touched segment with its chunk, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.directory.iter()
    }

    /// Shows every touched segment's bitmaps and counters, in no order.
    pub(crate) fn for_each(&mut self, mut each: impl FnMut(usize, &mut [usize], &mut [u16])) {
        let SegmentMemory { bits, counters } = self.per_segment;
        for (segment, chunk) in self.directory.iter() {
            each(
                segment,
                self.bits.get_mut(chunk * bits..(chunk + 1) * bits).unwrap_or_default(),
                self.counters.get_mut(chunk * counters..(chunk + 1) * counters).unwrap_or_default(),
            );
        }
    }

    /// Frees the chunks of the segments that are wholly within `pages`.
    pub(crate) fn unmapped(&mut self, page_sizes: &PageSizes, pages: Pages) {
        self.directory.unmapped(page_sizes, pages);
    }
}
