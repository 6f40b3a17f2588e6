//! The populated pages of reserved memory: the first touches that [`Thrift`](crate::Thrift) looks for, and the prices of
//! superpages with pages that were never touched.

use tlbkit_addr::Vpn;

use super::{Charged, Ledger, by_shift};
use crate::Superpage;
use crate::block::{self, POPULATED};

impl Ledger<'_> {
    /// Returns the level of the regions for which memory is reserved, or 0 if none is reserved.
    pub(crate) fn reserved(&self) -> usize {
        self.reserved
    }

    /// From now on, untouched pages raise the price of a superpage.
    pub(crate) fn be_frugal(&mut self) {
        if !self.frugal {
            self.frugal = true;
            self.rules.go_on(by_shift(&self.page_sizes, &self.prices));
        }
    }

    /// Marks a page as populated. If the page was not populated, returns the level of the largest superpage around it that
    /// is now fully populated, within one reservation, and larger than the page's mapping.
    pub(crate) fn populate(&mut self, page: Vpn) -> Option<usize> {
        let index = self.find(page)?;
        let unit = self.page_sizes.locate(page).unit;
        let block = self.blocks.get_mut(index)?;
        let bit = 1 << (unit % block::UNITS);
        if block[POPULATED] & bit != 0 {
            return None;
        }
        block[POPULATED] |= bit;
        let (populated, mapped) = (block[POPULATED], block::mapped(block, unit));
        let number = index & self.mask;
        if self.waits
            && let Some(mut segment) = self.segment(index >> self.spread)
        {
            // This page no longer raises the price of the superpages around it, so their counts may have reached it.
            segment.hasten(number);
        }
        if self.closed.get(index)? & bit != 0 {
            return None;
        }
        // A fully populated superpage has fully populated parts, so the search ends at the first that is not.
        let full = |&level: &usize| !populated & block::within(self.page_sizes.shift(level), unit) == 0;
        let level = (1..=self.reserved).take_while(full).last()?;
        (self.page_sizes.shift(level) > mapped).then_some(level)
    }

    /// Tells whether the region around a page has no reservation. No region of a segment without counters has one.
    pub(crate) fn is_closed(&mut self, page: Vpn) -> bool {
        let bit = 1 << (self.page_sizes.locate(page).unit % block::UNITS);
        let Some(index) = self.find(page) else { return true };
        self.closed.get(index).is_none_or(|closed| closed & bit != 0)
    }

    /// Records that the region around a page has no reservation.
    pub(crate) fn close(&mut self, page: Vpn) {
        let region = block::within(self.page_sizes.shift(self.reserved), self.page_sizes.locate(page).unit);
        if let Some(index) = self.find(page)
            && let Some(closed) = self.closed.get_mut(index)
        {
            *closed |= region;
        }
    }

    /// Records that the pages of a superpage within one reservation are no longer populated.
    pub(crate) fn depopulate(&mut self, range: Superpage) {
        if let Some((place, level)) = self.page_sizes.find(range)
            && let Some(index) = self.find(range.first)
            && let Some(block) = self.blocks.get_mut(index)
        {
            block[POPULATED] &= !block::within(self.page_sizes.shift(level), place.unit);
        }
    }

    /// Returns the price of the superpage of `level` around a unit, in charges: its threshold, or more if it has pages that
    /// were never touched.
    ///
    /// Let R be the price of a superpage with no touched page, and h the share of pages that were never touched. The price
    /// of a superpage within a region is the larger of the threshold and h R. The price of a larger superpage, in which
    /// whole regions are untouched, is h R + (1 - h) * threshold.
    fn price(&self, chunk: usize, unit: usize, level: usize) -> u32 {
        let (threshold, price) = (self.threshold(level), self.prices.get(level).copied().unwrap_or(u32::MAX));
        let shift = self.page_sizes.shift(level);
        let holes = |of: u32| ((u64::from(of) * self.holes(chunk, unit, shift)) >> shift) as u32;
        if level <= self.reserved {
            threshold.max(holes(price))
        } else {
            threshold + holes(price - threshold)
        }
    }

    /// Returns the smallest superpage around a unit whose count has reached its price. `shifts` is the set of shifts whose
    /// counts have reached their thresholds. If no count has reached its price, the next check is put off.
    #[inline(never)]
    pub(super) fn smallest_paid(&mut self, shifts: u32, chunk: usize, unit: usize) -> Charged {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        let mut left = shifts;
        while left != 0 {
            let level = self.level(left.trailing_zeros());
            if self.count_in(chunk, unit, level) >= self.price(chunk, unit, level) {
                return Charged::Ready(level);
            }
            left &= left - 1;
        }
        self.put_off(shifts, chunk, unit);
        Charged::Nothing
    }

    /// Puts off the next check of the superpages around a unit whose counts have reached their thresholds but not their
    /// prices. `shifts` is the set of their shifts.
    fn put_off(&mut self, mut shifts: u32, chunk: usize, unit: usize) {
        self.waits |= shifts != 0;
        // The largest first: a quota is limited by that of the node above.
        while shifts >> (block::SHIFT + 1) != 0 {
            let shift = shifts.ilog2();
            shifts ^= 1 << shift;
            let price = self.price(chunk, unit, self.level(shift));
            if let Some(mut segment) = self.segment(chunk) {
                segment.put_off(unit >> block::SHIFT, shift, price);
            }
        }
    }

    /// Puts off the next check of a block's counts until one can reach its threshold or, if it has reached that, its price.
    pub(super) fn rest(&mut self, chunk: usize, number: usize) {
        let Some(block) = self.blocks.get(self.index(chunk, number)) else { return };
        if block::left(block) > 1 {
            return;
        }
        let (first, counts) = (number << block::SHIFT, block::counts(block));
        let mut misses = u32::MAX;
        for level in
            (1..self.page_sizes.levels()).take_while(|&level| self.page_sizes.shift(level) <= block::SHIFT)
        {
            let shift = self.page_sizes.shift(level);
            for unit in (first..first + block::UNITS).step_by(1 << shift) {
                let count = counts.get(block::number(shift, unit)).copied().unwrap_or(0).into();
                let threshold = self.threshold(level);
                let until = if count < threshold { threshold } else { self.price(chunk, unit, level) };
                misses = misses.min(until.saturating_sub(count));
            }
        }
        if let Some(mut segment) = self.segment(chunk) {
            segment.rest(number, misses.min(u16::MAX.into()) as u16);
        }
    }

    /// Returns how many units of the superpage of `1 << shift` units around `unit` were never touched.
    fn holes(&self, chunk: usize, unit: usize, shift: u32) -> u64 {
        let blocks = 1 << shift.saturating_sub(block::SHIFT);
        let first = self.index(chunk, unit >> block::SHIFT & !(blocks - 1));
        let within = block::within(shift, unit);
        let blocks = self.blocks.iter().skip(first).take(blocks);
        blocks.map(|block| u64::from((!block[POPULATED] & within).count_ones())).sum()
    }
}
