//! THRIFT, this project's own policy: APPROX-ONLINE's charges, and reservations so that a promotion need not copy.
//!
//! Half of what APPROX-ONLINE costs is copying. Talluri and Hill (ASPLOS 1994) and Navarro et al. (OSDI 2002) avoid it:
//! the first touch of a region reserves contiguous memory for all of it, and each page is placed at its own offset.
//! Where that fails (the memory is not to be had, or was taken back), they promote nothing. Romer et al. object to
//! reservations that they fail for large superpages, and do without. THRIFT takes from each what it is good at:
//!
//! - A region of 64 KB is reserved at its first touch, and may be refused or broken at any time: the kernel says so by
//!   [`Policy::refused`].
//! - While the reservation stands, whatever is fully populated is promoted at once, to the largest size of up to
//!   64 KB (Navarro et al., FreeBSD): that copies nothing and takes no memory.
//! - What has holes, pages that were never touched, takes memory. APPROX-ONLINE does not look: it promotes for 0.125 R,
//!   a bet on what is used going on to be used, and nothing speaks for that bet where nothing was. So a hole has to be paid
//!   for like an investment of which nothing is known, by charges of its whole R: that is never paid more than twice
//!   (Romer et al., 6.1). Up to 64 KB a superpage is promoted at the holes' share of R, but not before its 0.125 R; a
//!   larger one, where holes come by the region, at R for the holes and 0.125 R for the rest. Without a copy if its
//!   reservation stands.
//! - Everything else is APPROX-ONLINE: the same charges, the same thresholds, copied.
//!
//! So what THRIFT gains over APPROX-ONLINE is what its reservations save, and it gains nothing where the kernel has none to
//! give; what the kernel pays for keeping them is the kernel's to weigh.
//!
//! A promotion without a copy takes no charges off larger superpages: nothing was paid for it. Until one has been done,
//! holes are free: where no reservation succeeds THRIFT *is* APPROX-ONLINE, promotion by promotion. No number in it was
//! tuned; among rules for holes this one was chosen on cc1, sqlite, xz and long-sqlite (`docs/superpage.md`).

use tlbkit_addr::{PageSize, Pages, Vpn};

use super::approx::ApproxOnline;
use super::{Action, Miss, Policy, Refusal, Superpage, Tlb};
use crate::costs::{When, thresholds};
use crate::ledger::{Ledger, reserved};
use crate::{CostError, PageSizes, PolicyMemory, SegmentMemory, Setup};

/// Promotes reserved regions as they fill, and everything else like APPROX-ONLINE, but with a price on holes.
///
/// The kernel asks [`reservation`](Self::reservation) where to place a page that it allocates. A miss costs some
/// instructions more than APPROX-ONLINE's, for a look whether it is the first touch, and 64 KB two bytes more.
#[derive(Debug)]
pub struct Thrift<'m>(ApproxOnline<'m>);

impl<'m> Thrift<'m> {
    /// Returns what one segment takes.
    ///
    /// # Errors
    ///
    /// See [`CostError`].
    pub fn segment_memory(setup: &Setup) -> Result<SegmentMemory, CostError> {
        let counts = thresholds(&setup.page_sizes, setup.costs, setup.costs.prefetch, When::Reaches)?;
        Ledger::segment_memory(&setup.page_sizes, counts, true)
    }

    /// Makes the policy, with memory for as many segments as fit.
    ///
    /// # Errors
    ///
    /// See [`CostError`].
    pub fn new(setup: &Setup, memory: PolicyMemory<'m>) -> Result<Self, CostError> {
        let whole = setup.costs.prefetch.max(1000);
        let prices = thresholds(&setup.page_sizes, setup.costs, whole, When::Reaches)?;
        ApproxOnline::with(setup, Some(prices), memory).map(Self)
    }

    /// Returns the size of the regions that the policy wants reserved: 64 KB, or the TLB's next smaller size, of 16
    /// units at most. `None` if there is no such size.
    pub fn region(page_sizes: &PageSizes) -> Option<PageSize> {
        Some(reserved(page_sizes)).filter(|&level| level > 0).and_then(|level| page_sizes.size(level))
    }

    /// Returns the region to reserve for `page`, where it belongs at its own offset: [`region`](Self::region) says how
    /// large it is. `None` if there is no such size.
    pub fn reservation(&self, page: Vpn) -> Option<Superpage> {
        let page_sizes = self.0.ledger.page_sizes;
        let level = Some(self.0.ledger.reserved()).filter(|&level| level > 0)?;
        page_sizes.superpage(page_sizes.locate(page), level)
    }
}

impl Policy for Thrift<'_> {
    fn on_miss(&mut self, miss: Miss) -> Option<Action> {
        self.0.take::<true, true>(&miss).copied()
    }

    /// Records a promotion. One without a copy takes no charges off larger superpages: they have not been asked to pay.
    fn promoted(&mut self, range: Superpage) {
        let in_place = Action::Promote { range, copy: false };
        if self.0.answered(range) != Some(in_place) {
            return self.0.promoted(range);
        }
        let ledger = &mut self.0.ledger;
        ledger.be_frugal();
        // No wait ends by it: it says nothing of memory.
        if let Some((place, level)) = ledger.page_sizes.find(range) {
            ledger.promote(place, level, Some(0));
        }
    }

    /// Records that what was asked for was not copied, or cannot be one mapping, like APPROX-ONLINE. Otherwise, that a
    /// reservation was not to be had or is broken: from now on its region is up to the charges.
    fn refused(&mut self, range: Superpage, why: Refusal) {
        let copy = Action::Promote { range, copy: true };
        if self.0.answered(range) == Some(copy) || why == Refusal::NotHere {
            return self.0.refused(range, why);
        }
        let ledger = &mut self.0.ledger;
        if ledger.page_sizes.level(range.size).is_some_and(|level| level <= ledger.reserved()) {
            ledger.close(range.first);
        }
    }

    fn demote(&mut self, page: Vpn) -> Option<Superpage> {
        let range = self.0.demote(page)?;
        let ledger = &mut self.0.ledger;
        let level = ledger.page_sizes.level(range.size)?;
        // Its pages lie where they belong, and may be promoted again without copying when they have been used again.
        if level <= ledger.reserved() && !ledger.is_closed(page) {
            ledger.depopulate(range);
        }
        Some(range)
    }

    fn is_active(&self) -> bool {
        self.0.is_active()
    }

    fn evicted(&mut self, tlb: Tlb, page: Vpn) {
        self.0.evicted(tlb, page);
    }

    fn flushed(&mut self, tlb: Tlb) {
        self.0.flushed(tlb);
    }

    fn unmapped(&mut self, pages: Pages) {
        for page in self.0.ledger.cut(pages).into_iter().flatten() {
            self.demote(page);
        }
        self.0.unmapped(pages);
    }
}

#[cfg(test)]
mod tests;
