//! Runs of base pages under one TLB entry, without a larger page in the table: AArch64's contiguous bit, RISC-V's Svnapot.
//!
//! - From Linux's anonymous memory in several sizes (mTHP, 6.8): the first touch of an aligned run allocates and maps all of
//!   its pages, if there is contiguous memory. So nothing is copied, and pages that are never touched take memory, too.
//! - From Linux's `contpte` (AArch64, 6.9): a change of one page *unfolds* its run, whose pages stay where they are. When the
//!   run's last entry is written, Linux looks at all of them, and *folds* the run again if they are contiguous and alike.
//!   Of what a policy is told, the nearest to that write is a miss of the run's last page.

use tlbkit_addr::{PageSize, Pages, Vpn};

use super::{Action, Miss, Policy, Refusal, Superpage, Tlb};
use crate::population::Population;
use crate::{PageSizes, PolicyMemory, SegmentMemory};

/// Asks for a whole run of pages at the first touch of one of them, and folds it again after changes.
///
/// The kernel maps all pages of the run that it is asked for, and refuses if it has no contiguous memory for them, or if a
/// page of the run lies elsewhere. Then the run's pages come one by one, and the policy asks again when all of them are there. It
/// asks at most twice while as many misses as a run has pages meet a run, and never waits: what is refused concerns one run.
#[derive(Debug)]
pub struct Runs<'m> {
    /// A unit is referenced if it is mapped, as far as the policy knows.
    population: Population<'m>,
    level: usize,
}

impl<'m> Runs<'m> {
    /// Returns the memory that one segment takes.
    pub fn segment_memory(page_sizes: &PageSizes) -> SegmentMemory {
        Population::segment_memory(page_sizes, 0)
    }

    /// Makes the policy for runs of one size: 64 KB with base pages of 4 KB on AArch64, and for Svnapot. If the TLB lacks the
    /// size, the policy uses the next larger size, or else the largest.
    pub fn new(page_sizes: PageSizes, size: PageSize, memory: PolicyMemory<'m>) -> Self {
        let level = page_sizes.level_reaching(size).max(1);
        Self { population: Population::new(page_sizes, 0, memory), level }
    }
}

impl Policy for Runs<'_> {
    fn on_miss(&mut self, miss: Miss) -> Option<Action> {
        let (place, mapped, new) = match self.population.reference(miss.page) {
            Ok(referenced) => referenced,
            Err(answer) => return answer,
        };
        if mapped >= self.level {
            return None;
        }
        let all = 1 << self.population.page_sizes.shift(self.level);
        let there = self.population.populated(place, self.level);
        let is_last = place.unit % all == all - 1;
        if !(new && there == 1 || is_last && there == all) {
            return None;
        }
        Some(Action::Promote { range: self.population.page_sizes.superpage(place, self.level)?, copy: false })
    }

    fn promoted(&mut self, range: Superpage) {
        self.population.promote(range);
        self.population.fill(range, true);
    }

    /// Records that the run's pages come one by one; or, if all were there, that they start over.
    fn refused(&mut self, range: Superpage, _: Refusal) {
        let Some((place, level)) = self.population.page_sizes.find(range) else { return };
        if self.population.populated(place, level) == 1 << self.population.page_sizes.shift(level) {
            self.population.start_over(range);
        }
    }

    /// Unfolds a run: its pages stay, and it is folded again when its last page misses.
    fn demote(&mut self, page: Vpn) -> Option<Superpage> {
        self.population.split(page)
    }

    fn evicted(&mut self, _: Tlb, _: Vpn) {}

    fn flushed(&mut self, _: Tlb) {}

    fn unmapped(&mut self, pages: Pages) {
        for page in self.population.cut(pages).into_iter().flatten() {
            self.population.split(page);
        }
        self.population.unmapped(pages);
    }
}
