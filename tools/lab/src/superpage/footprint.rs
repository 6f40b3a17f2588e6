//! What a program touched, and what that comes to in pages of other sizes.

use std::collections::HashMap;

/// Pages of a block of the set.
const BLOCK: u32 = 6;
/// Recently touched blocks whose bits are at hand, so that most references cost one comparison.
const NEAR: usize = 1024;

/// The base pages that were referenced: a set of 64-page blocks.
#[derive(Debug)]
pub(super) struct Footprint {
    blocks: HashMap<usize, u64>,
    near: Vec<(usize, u64)>,
}

impl Default for Footprint {
    fn default() -> Self {
        Self { blocks: HashMap::new(), near: vec![(usize::MAX, 0); NEAR] }
    }
}

impl Footprint {
    #[inline]
    pub(super) fn touch(&mut self, page: usize) {
        let (block, bit) = (page >> BLOCK, 1 << (page & 63));
        let near = &mut self.near[block % NEAR];
        if near.0 != block {
            *near = (block, *self.blocks.entry(block).or_default());
        }
        if near.1 & bit == 0 {
            near.1 |= bit;
            self.blocks.insert(block, near.1);
        }
    }

    /// Returns the number of base pages.
    pub(super) fn pages(&self) -> u64 {
        self.blocks.values().map(|bits| u64::from(bits.count_ones())).sum()
    }

    /// Returns how many base pages of the aligned range of `1 << shift` from `first` on were touched.
    pub(super) fn within(&self, first: usize, shift: u32) -> u64 {
        if shift < BLOCK {
            let bits = self.blocks.get(&(first >> BLOCK)).copied().unwrap_or(0) >> (first & 63);
            return (bits & ((1 << (1 << shift)) - 1)).count_ones().into();
        }
        (first >> BLOCK..=(first >> BLOCK) + ((1 << (shift - BLOCK)) - 1))
            .filter_map(|block| self.blocks.get(&block))
            .map(|bits| u64::from(bits.count_ones()))
            .sum()
    }

    /// Returns how many aligned ranges of `1 << shift` pages were touched.
    pub(super) fn ranges(&self, shift: u32) -> u64 {
        let mut ranges: Vec<usize> = self
            .blocks
            .iter()
            .flat_map(|(&block, &bits)| {
                (0..64).filter(move |at| bits >> at & 1 == 1).map(move |at| (block << BLOCK) | at)
            })
            .map(|page| page >> shift)
            .collect();
        ranges.sort_unstable();
        ranges.dedup();
        ranges.len() as u64
    }
}
