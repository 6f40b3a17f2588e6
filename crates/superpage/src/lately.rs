//! The blocks that were found last, by page: what spares most misses and evictions the way through the directory.

use tlbkit_addr::Vpn;

use crate::Ladder;
use crate::block;

/// How many are remembered, a power of two: several times what two TLBs of the paper hold, so that what is
/// evicted is there.
const MANY: usize = 1024;
/// No block has this number: a block, and a segment, has two units at least.
const NONE: usize = usize::MAX;

/// A direct-mapped cache from the number of a block in the address space to its place among all blocks.
#[derive(Clone, Debug)]
pub(crate) struct Lately {
    numbers: [usize; MANY],
    places: [u32; MANY],
    /// From pages to blocks; to segments, if they are smaller than blocks.
    to_block: u8,
    to_unit: u8,
    /// Units of a block that are used.
    mask: u8,
}

impl Lately {
    pub(crate) fn new(ladder: &Ladder) -> Self {
        let units = ladder.shift(ladder.top()).min(block::SHIFT);
        let to_unit = ladder.size(0).map_or(0, |unit| unit.shift() - ladder.page().shift());
        Self {
            numbers: [NONE; MANY],
            places: [0; MANY],
            to_block: (to_unit + units) as u8,
            to_unit: to_unit as u8,
            mask: ((1 << units) - 1) as u8,
        }
    }

    /// Returns the number of the page's unit within its block.
    #[inline(always)]
    pub(crate) const fn unit(&self, page: Vpn) -> usize {
        page.get() >> self.to_unit & self.mask as usize
    }

    /// Returns the place of the page's block and the number of its unit there, if it was found lately.
    #[inline(always)]
    pub(crate) const fn find(&self, page: Vpn) -> Option<(usize, usize)> {
        let number = page.get() >> self.to_block;
        let slot = number % MANY;
        if self.numbers[slot] == number { Some((self.places[slot] as usize, self.unit(page))) } else { None }
    }

    /// Remembers where the page's block was found.
    pub(crate) fn found(&mut self, page: Vpn, place: usize) {
        let number = page.get() >> self.to_block;
        if let Ok(place) = u32::try_from(place) {
            (self.numbers[number % MANY], self.places[number % MANY]) = (number, place);
        }
    }

    /// Forgets all.
    pub(crate) fn forget(&mut self) {
        self.numbers = [NONE; MANY];
    }
}
