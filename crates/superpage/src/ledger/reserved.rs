//! What is populated in reserved memory: the first touches that [`Thrift`](crate::Thrift) looks for.

use tlbkit_addr::Vpn;

use super::Ledger;
use crate::Superpage;
use crate::block::{self, POPULATED};

impl Ledger<'_> {
    /// Returns the level of the regions that memory is reserved for, 0 if it is for none.
    pub(crate) fn reserved(&self) -> usize {
        self.reserved
    }

    /// Counts a page as populated. Returns the level of the largest superpage around it, larger than its mapping, that is
    /// full with it and lies in one reservation.
    pub(crate) fn populate(&mut self, page: Vpn) -> Option<usize> {
        let unit = self.lately.unit(page);
        let index = self.lately.find(unit).or_else(|| self.find(page))?;
        self.populate_at(index, page)
    }

    /// The same in the block at a place.
    #[inline]
    pub(crate) fn populate_at(&mut self, index: usize, page: Vpn) -> Option<usize> {
        let unit = self.lately.unit(page);
        let block = self.blocks.get_mut(index)?;
        let bit = 1 << (unit % block::UNITS);
        if block[POPULATED] & bit != 0 {
            return None;
        }
        block[POPULATED] |= bit;
        let (populated, mapped) = (block[POPULATED], block::mapped(block, unit));
        // What is full has full parts.
        let full = |&level: &usize| !populated & block::within(self.ladder.shift(level), unit) == 0;
        let level = (1..=self.reserved).take_while(full).last()?;
        (self.ladder.shift(level) > mapped).then_some(level)
    }

    /// Tells whether the region around a page is all populated, or has no reservation.
    pub(crate) fn is_full(&mut self, page: Vpn) -> bool {
        let region = block::within(self.ladder.shift(self.reserved), self.ladder.locate(page).unit);
        let Some(block) = self.find(page).and_then(|index| self.blocks.get(index)) else { return true };
        !block[POPULATED] & region == 0
    }

    /// Records that the region around a page has no reservation.
    pub(crate) fn close(&mut self, page: Vpn) {
        let region = block::within(self.ladder.shift(self.reserved), self.ladder.locate(page).unit);
        if let Some(index) = self.find(page)
            && let Some(block) = self.blocks.get_mut(index)
        {
            block[POPULATED] |= region;
        }
    }

    /// Records that the pages of a superpage within one reservation are no longer populated.
    pub(crate) fn depopulate(&mut self, range: Superpage) {
        if let Some((place, level)) = self.ladder.find(range)
            && let Some(index) = self.find(range.first)
            && let Some(block) = self.blocks.get_mut(index)
        {
            block[POPULATED] &= !block::within(self.ladder.shift(level), place.unit);
        }
    }
}
