//! A cache of the blocks that were used most recently, by page: most misses and evictions find their block here and need no
//! lookup in the directory.

use tlbkit_addr::Vpn;

use crate::PageSizes;
use crate::block;

/// Number of entries of the cache, a power of two: several times as many as the paper's two TLBs have, so that the cache
/// usually still has the block of an evicted entry.
const MANY: usize = 1024;
/// The number in an empty entry. No block has this number, because a block has 16 units.
const NONE: usize = usize::MAX;

/// A direct-mapped cache from the number of a block in the address space to its index among all blocks.
#[derive(Clone, Debug)]
pub(crate) struct RecentBlocks {
    numbers: [usize; MANY],
    places: [usize; MANY],
    /// log2 of the pages of a unit.
    to_unit: u8,
    /// Whether segments are smaller than blocks, so that nothing is cached.
    never: bool,
}

impl RecentBlocks {
    pub(crate) fn new(page_sizes: &PageSizes) -> Self {
        let to_unit = page_sizes.size(0).map_or(0, |unit| (unit.shift() - page_sizes.page().shift()) as u8);
        let never = page_sizes.shift(page_sizes.top()) < block::SHIFT;
        Self { numbers: [NONE; MANY], places: [0; MANY], to_unit, never }
    }

    /// Returns the number of the page's unit in the address space. Its lowest bits number the unit within its block, unless
    /// segments are smaller than blocks.
    #[inline(always)]
    pub(crate) const fn unit(&self, page: Vpn) -> usize {
        page.get() >> self.to_unit
    }

    /// Returns the index of a unit's block, if the cache has it.
    #[inline(always)]
    pub(crate) const fn find(&self, unit: usize) -> Option<usize> {
        let number = unit >> block::SHIFT;
        let slot = number % MANY;
        if self.numbers[slot] == number { Some(self.places[slot]) } else { None }
    }

    /// Caches the index of a unit's block.
    pub(crate) fn found(&mut self, unit: usize, place: usize) {
        let number = unit >> block::SHIFT;
        if !self.never {
            (self.numbers[number % MANY], self.places[number % MANY]) = (number, place);
        }
    }

    /// Empties the cache.
    pub(crate) fn forget(&mut self) {
        self.numbers = [NONE; MANY];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::page_sizes;

    fn recent(shifts: [u32; 2]) -> RecentBlocks {
        RecentBlocks::new(&page_sizes(shifts))
    }

    #[test]
    fn what_was_found_last_is_cached() {
        let mut recent = recent([12, 23]);
        assert_eq!(recent.find(0), None);
        recent.found(35, 7);
        // Every unit of the block that starts at 32, and no other.
        assert_eq!([32, 47].map(|unit| recent.find(unit)), [Some(7); 2]);
        assert_eq!([31, 48].map(|unit| recent.find(unit)), [None; 2]);
        // A block with the same index in the cache replaces it; its neighbour does not.
        recent.found(48, 8);
        recent.found(32 + MANY * block::UNITS, 9);
        assert_eq!([32, 48].map(|unit| recent.find(unit)), [None, Some(8)]);
        recent.forget();
        assert_eq!([48, 32 + MANY * block::UNITS].map(|unit| recent.find(unit)), [None; 2]);
    }

    #[test]
    fn segments_smaller_than_blocks_are_not_cached() {
        let mut recent = recent([12, 15]);
        recent.found(3, 7);
        assert_eq!(recent.find(3), None);
    }

    #[test]
    fn units_may_be_pairs_of_pages() {
        for (shift, unit) in [(12, 9), (13, 4)] {
            let recent = recent([shift, 23]);
            assert_eq!(recent.unit(Vpn::new(9)), unit);
        }
    }
}
