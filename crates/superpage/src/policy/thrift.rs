//! THRIFT, this project's own policy: APPROX-ONLINE's charges, and reservations so that a promotion need not copy.
//!
//! Half of the cost of APPROX-ONLINE is copying. Talluri and Hill (ASPLOS 1994) and Navarro et al. (OSDI 2002) avoid the
//! copy: at the first touch of a region the kernel reserves contiguous memory for the whole region, and places each page at
//! its own offset. If there is no contiguous memory, or the kernel takes the reservation back, they promote nothing. Romer
//! et al. use no reservations, because these fail for large superpages. THRIFT combines both:
//!
//! - The kernel reserves a region of 64 KB at its first touch. It may be unable to, or break the reservation at any time; it
//!   reports that with [`Policy::refused`].
//! - While a region has its reservation, a fully populated superpage in it is promoted at once, up to 64 KB (Navarro et al.,
//!   FreeBSD). This copies nothing and takes no memory.
//! - A superpage with *holes*, pages that were never touched, takes additional memory. APPROX-ONLINE ignores this: it
//!   promotes at 0.125 R, on the assumption that pages in use stay in use. That assumption does not apply to a hole. So
//!   holes raise the price of a superpage towards R: an algorithm that promotes at R never costs more than twice the optimum
//!   (Romer et al., 6.1). Let h be the share of holes. Up to 64 KB the price is the larger of h R and 0.125 R. Above 64 KB,
//!   where holes are whole regions, the price is h R + (1 - h) 0.125 R. There is no copy if the superpage has its
//!   reservation.
//! - Everything else is APPROX-ONLINE: the same charges, the same thresholds, and copies.
//!
//! So THRIFT gains over APPROX-ONLINE only by its reservations, and gains nothing if the kernel can make none. The kernel
//! has to weigh the memory that reservations hold.
//!
//! A promotion without a copy does not lower the charges of larger superpages, because it cost nothing. Until the first
//! promotion without a copy, holes raise no price: if no reservation succeeds, THRIFT makes the same promotions as
//! APPROX-ONLINE. No number in THRIFT was tuned; among several rules for holes this one was chosen on the traces cc1,
//! sqlite, xz and long-sqlite (`docs/superpage.md`).

use tlbkit_addr::{PageSize, Pages, Vpn};

use super::approx::ApproxOnline;
use super::{Action, Miss, Policy, Refusal, Superpage, Tlb};
use crate::costs::{When, thresholds};
use crate::ledger::{Ledger, reserved};
use crate::{CostError, PageSizes, PolicyMemory, SegmentMemory, Setup};

/// Promotes reserved regions without a copy as they fill, and other superpages like APPROX-ONLINE, at a higher count if they
/// have untouched pages.
///
/// The kernel asks [`reservation`](Self::reservation) where to place a page that it allocates. A miss costs some
/// instructions more than with APPROX-ONLINE, to check for a first touch (`cargo xtask bookkeeping`), and each block of 16
/// units takes two bytes more.
#[derive(Debug)]
pub struct Thrift<'m>(ApproxOnline<'m>);

impl<'m> Thrift<'m> {
    /// Returns the memory that one segment takes.
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

    /// Returns the size of the regions that the kernel should reserve: 64 KB or the TLB's next smaller size, and at most 16
    /// units. Returns `None` if there is no such size.
    pub fn region(page_sizes: &PageSizes) -> Option<PageSize> {
        Some(reserved(page_sizes)).filter(|&level| level > 0).and_then(|level| page_sizes.size(level))
    }

    /// Returns the region to reserve for `page`, of the size [`region`](Self::region). The kernel must place `page` at its
    /// own offset within that region. Returns `None` if there is no such size.
    pub fn reservation(&self, page: Vpn) -> Option<Superpage> {
        let page_sizes = self.0.ledger.page_sizes;
        let level = Some(self.0.ledger.reserved()).filter(|&level| level > 0)?;
        page_sizes.superpage(page_sizes.locate(page), level)
    }
}

impl Policy for Thrift<'_> {
    fn on_miss(&mut self, miss: Miss) -> Option<Action> {
        self.0.take(&miss)
    }

    /// Records a promotion. A promotion without a copy does not lower the charges of larger superpages, because it cost
    /// nothing.
    fn promoted(&mut self, range: Superpage) {
        let in_place = Action::Promote { range, copy: false };
        if self.0.answered(range) != Some(in_place) {
            return self.0.promoted(range);
        }
        let ledger = &mut self.0.ledger;
        ledger.be_frugal();
        // The promotion ends no wait, because it does not show that contiguous memory is available.
        if let Some((place, level)) = ledger.page_sizes.find(range) {
            ledger.promote(place, level, Some(0));
        }
    }

    /// Records a refusal. A refusal of a promotion with a copy, or of a range that cannot be one mapping, has the effect
    /// that it has for APPROX-ONLINE. Any other refusal means that the kernel could not make the region's reservation, or
    /// has broken it: from now on only charges decide about promotions in this region.
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
        // The pages are still at their offsets in the reservation, so they can be promoted again without a copy once all of
        // them have been touched again.
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
