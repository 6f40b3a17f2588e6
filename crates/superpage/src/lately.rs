//! The blocks that were found last, by page: what spares most misses and evictions the way through the directory.

use tlbkit_addr::Vpn;

use crate::Ladder;
use crate::block;

/// How many are remembered, a power of two: several times what two TLBs of the paper hold, so that what is
/// evicted is there.
const MANY: usize = 1024;
/// No block has this number: it has two units at least.
const NONE: usize = usize::MAX;

/// A direct-mapped cache from the number of a block in the address space to its place among all blocks.
#[derive(Clone, Debug)]
pub(crate) struct Lately {
    numbers: [usize; MANY],
    places: [usize; MANY],
    /// From pages to units.
    to_unit: u8,
    /// Segments are smaller than blocks: nothing is remembered.
    never: bool,
}

impl Lately {
    pub(crate) fn new(ladder: &Ladder) -> Self {
        let to_unit = ladder.size(0).map_or(0, |unit| (unit.shift() - ladder.page().shift()) as u8);
        let never = ladder.shift(ladder.top()) < block::SHIFT;
        Self { numbers: [NONE; MANY], places: [0; MANY], to_unit, never }
    }

    /// Tells whether units are pages.
    pub(crate) const fn is_plain(&self) -> bool {
        self.to_unit == 0
    }

    /// Returns the number of the page's unit in the address space: its lowest bits say which of its block it is, unless
    /// segments are smaller than blocks.
    #[inline(always)]
    pub(crate) const fn unit(&self, page: Vpn) -> usize {
        page.get() >> self.to_unit
    }

    /// Returns the place of a unit's block, if it was found lately.
    #[inline(always)]
    pub(crate) const fn find(&self, unit: usize) -> Option<usize> {
        let number = unit >> block::SHIFT;
        let slot = number % MANY;
        if self.numbers[slot] == number { Some(self.places[slot]) } else { None }
    }

    /// Remembers where a unit's block was found.
    pub(crate) fn found(&mut self, unit: usize, place: usize) {
        let number = unit >> block::SHIFT;
        if !self.never {
            (self.numbers[number % MANY], self.places[number % MANY]) = (number, place);
        }
    }

    /// Forgets all.
    pub(crate) fn forget(&mut self) {
        self.numbers = [NONE; MANY];
    }
}

#[cfg(test)]
mod tests {
    use tlbkit_addr::PageSize;

    use super::*;

    fn lately(shifts: [u32; 2]) -> Lately {
        let sizes = shifts.map(|shift| PageSize::from_shift(shift).unwrap());
        Lately::new(&Ladder::new(PageSize::K4, &sizes).unwrap())
    }

    #[test]
    fn what_was_found_last_is_remembered() {
        let mut lately = lately([12, 23]);
        assert_eq!(lately.find(0), None);
        lately.found(35, 7);
        // All of the block from 32 on, and nothing else.
        assert_eq!([32, 47].map(|unit| lately.find(unit)), [Some(7); 2]);
        assert_eq!([31, 48].map(|unit| lately.find(unit)), [None; 2]);
        // Another block takes its place, one beside it does not.
        lately.found(48, 8);
        lately.found(32 + MANY * block::UNITS, 9);
        assert_eq!([32, 48].map(|unit| lately.find(unit)), [None, Some(8)]);
        lately.forget();
        assert_eq!([48, 32 + MANY * block::UNITS].map(|unit| lately.find(unit)), [None; 2]);
    }

    #[test]
    fn nothing_is_remembered_of_segments_smaller_than_blocks() {
        let mut lately = lately([12, 15]);
        lately.found(3, 7);
        assert_eq!(lately.find(3), None);
    }

    #[test]
    fn units_may_be_pairs_of_pages() {
        for (shift, unit) in [(12, 9), (13, 4)] {
            let lately = lately([shift, 23]);
            assert_eq!(lately.unit(Vpn::new(9)), unit);
            assert_eq!(lately.is_plain(), shift == 12);
        }
    }
}
