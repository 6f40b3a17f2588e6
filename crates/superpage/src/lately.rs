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

    /// Returns the number of the page's unit in the address space: its lowest bits say which of its block it is.
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
