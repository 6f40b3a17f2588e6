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
//!   64 KB (Navarro et al., FreeBSD): that copies nothing and takes no memory. So is what APPROX-ONLINE would
//!   promote, populated or not, when it would: that copies nothing, and takes the memory that it takes there.
//! - Everything else, larger or without a reservation, is APPROX-ONLINE: the same charges, the same thresholds, copied.
//!
//! A promotion without a copy takes no charges off larger superpages: nothing was paid for it. Where no reservation
//! succeeds THRIFT *is* APPROX-ONLINE, promotion by promotion. No number in it was tuned.

use tlbkit_addr::{Pages, Vpn};

use super::approx::ApproxOnline;
use super::{Action, Miss, Policy, Superpage, Tlb};
use crate::{CostError, Footprint, Memory, Setup};

/// Promotes reserved regions as they fill, and everything else like APPROX-ONLINE.
///
/// The kernel asks [`reservation`](Self::reservation) where to place a page that it allocates. A miss costs some
/// instructions more than APPROX-ONLINE's, for a look whether it is the first touch, and no memory.
#[derive(Debug)]
pub struct Thrift<'m>(ApproxOnline<'m>);

impl<'m> Thrift<'m> {
    /// Returns what one segment takes.
    ///
    /// # Errors
    ///
    /// See [`CostError`].
    pub fn footprint(setup: &Setup) -> Result<Footprint, CostError> {
        ApproxOnline::footprint(setup)
    }

    /// Makes the policy, with memory for as many segments as fit.
    ///
    /// # Errors
    ///
    /// See [`CostError`].
    pub fn new(setup: &Setup, memory: Memory<'m>) -> Result<Self, CostError> {
        ApproxOnline::with(setup, true, memory).map(Self)
    }

    /// Returns the region to reserve for `page`, where it belongs at its own offset: 64 KB, or the ladder's next smaller
    /// size, of 16 units at most. `None` if there is no such size.
    pub fn reservation(&self, page: Vpn) -> Option<Superpage> {
        let ladder = self.0.ledger.ladder;
        let level = Some(self.0.ledger.reserved()).filter(|&level| level > 0)?;
        ladder.superpage(ladder.locate(page), level)
    }
}

impl Policy for Thrift<'_> {
    fn on_miss(&mut self, miss: Miss) -> Option<Action> {
        self.0.take::<true, true>(&miss).copied()
    }

    /// Records a promotion. One without a copy takes no charges off larger superpages: they have not been asked to pay.
    fn promoted(&mut self, range: Superpage) {
        let less = if self.0.in_place() { Some(0) } else { None };
        self.0.promote(range, less);
    }

    /// Records that a reservation was not to be had, or is broken, if one stands there: it is up to the charges from
    /// now on. Otherwise like APPROX-ONLINE.
    fn refused(&mut self, range: Superpage) {
        let (in_place, ledger) = (self.0.in_place(), &mut self.0.ledger);
        let may_be_reserved = ledger.ladder.level(range.size).is_some_and(|level| level <= ledger.reserved());
        if may_be_reserved && (in_place || !ledger.is_full(range.first)) {
            ledger.close(range.first);
        } else {
            self.0.refused(range);
        }
    }

    fn demote(&mut self, page: Vpn) -> Option<Superpage> {
        let range = self.0.demote(page)?;
        let ledger = &mut self.0.ledger;
        let level = ledger.ladder.level(range.size)?;
        // Its pages lie where they belong, and may be promoted again without copying when they have been used again.
        // What is part of a full region has no reservation, or it would have been promoted whole.
        if level == ledger.reserved() || level < ledger.reserved() && !ledger.is_full(page) {
            ledger.depopulate(range);
        }
        Some(range)
    }

    fn evicted(&mut self, tlb: Tlb, page: Vpn) {
        self.0.evicted(tlb, page);
    }

    fn flushed(&mut self, tlb: Tlb) {
        self.0.flushed(tlb);
    }

    fn unmapped(&mut self, pages: Pages) {
        self.0.unmapped(pages);
    }
}
