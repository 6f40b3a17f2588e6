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
//! So it never copies more than APPROX-ONLINE nor promotes what costs more memory, and where no reservation succeeds it
//! *is* APPROX-ONLINE, promotion by promotion. No number in it was tuned.

use tlbkit_addr::{PageSize, Pages, Vpn};

use super::approx::ApproxOnline;
use super::{Action, Miss, Policy, Superpage, Tlb};
use crate::ladder::Place;
use crate::population::Population;
use crate::{CostError, Footprint, Ladder, Memory, Setup};

/// Memory for [`Thrift`], by [`Thrift::footprint`].
#[derive(Debug)]
pub struct ThriftMemory<'m> {
    /// For prefetch charges: its first part.
    pub charges: Memory<'m>,
    /// For what is populated: its second part.
    pub population: Memory<'m>,
}

/// Promotes reserved regions as they fill, and everything else like APPROX-ONLINE.
///
/// The kernel asks [`reservation`](Self::reservation) where to place a page that it allocates.
#[derive(Debug)]
pub struct Thrift<'m> {
    approx: ApproxOnline<'m>,
    /// What is populated. Regions without a reservation count as full and mapped whole: nothing is to be done there.
    population: Population<'m>,
    /// The level that is reserved.
    reserved: usize,
}

impl<'m> Thrift<'m> {
    /// Returns what one segment takes for charges and for its population.
    ///
    /// # Errors
    ///
    /// See [`CostError`].
    pub fn footprint(setup: &Setup) -> Result<(Footprint, Footprint), CostError> {
        Ok((ApproxOnline::footprint(setup)?, Population::footprint(&setup.ladder, 0)))
    }

    /// Makes the policy, with memory for as many segments as fit.
    ///
    /// # Errors
    ///
    /// See [`CostError`].
    pub fn new(setup: &Setup, memory: ThriftMemory<'m>) -> Result<Self, CostError> {
        Ok(Self {
            approx: ApproxOnline::new(setup, memory.charges)?,
            population: Population::new(setup.ladder, 0, memory.population),
            reserved: Self::reserved(&setup.ladder),
        })
    }

    fn reserved(ladder: &Ladder) -> usize {
        ladder.level_reaching(PageSize::K64).max(1)
    }

    /// Returns the region to reserve for `page`, 64 KB or the ladder's next larger size: it belongs at its own offset
    /// there.
    pub fn reservation(&self, page: Vpn) -> Option<Superpage> {
        let ladder = self.population.ladder;
        ladder.superpage(ladder.locate(page), self.reserved)
    }

    /// Returns the largest level of up to the reserved one all of whose units are populated.
    fn full(&mut self, place: Place, mapped: usize) -> usize {
        self.population.full(place, mapped).min(self.reserved)
    }

    fn is_reserved(&mut self, place: Place) -> bool {
        self.population.mapped(place) < self.reserved
    }

    /// What is to be done after a first touch that filled a superpage, or where APPROX-ONLINE asked for something.
    #[inline(never)]
    fn decide(&mut self, place: Place, fills: bool, asked: Option<Action>) -> Option<Action> {
        let mapped = self.population.mapped(place);
        if mapped >= self.reserved {
            return asked;
        }
        let ladder = self.population.ladder;
        let full = if fills { self.full(place, mapped) } else { mapped };
        if full > mapped {
            return Some(Action::Promote { range: ladder.superpage(place, full)?, copy: false });
        }
        let Some(Action::Promote { range, .. }) = asked else { return asked };
        let copy = ladder.level(range.size) > Some(self.reserved);
        Some(Action::Promote { range, copy })
    }
}

impl Policy for Thrift<'_> {
    fn on_miss(&mut self, miss: Miss) -> Option<Action> {
        let asked = self.approx.take(&miss);
        let place = self.population.ladder.locate(miss.page);
        let Ok(fills) = self.population.fills(place) else { return asked };
        match asked {
            None if !fills => None,
            Some(Action::OutOfSegments { .. }) => asked,
            _ => self.decide(place, fills, asked),
        }
    }

    fn promoted(&mut self, range: Superpage) {
        self.approx.promoted_early(range);
        self.population.promote(range);
    }

    /// Records that a reservation was not to be had, or is broken, if one stands there: it is up to the charges from
    /// now on. Otherwise like APPROX-ONLINE.
    fn refused(&mut self, range: Superpage) {
        let ladder = self.population.ladder;
        let Some((place, level)) = ladder.find(range) else { return };
        if level > self.reserved || !self.is_reserved(place) {
            self.approx.refused(range);
        } else {
            self.population.close(place, self.reserved);
        }
    }

    fn demote(&mut self, page: Vpn) -> Option<Superpage> {
        let range = self.approx.demote(page)?;
        let (place, level) = self.population.ladder.find(range)?;
        // Its pages lie where they belong, and may be promoted again without copying when they have been used again.
        if self.population.mapped(place) == level {
            self.population.demote(page);
        }
        Some(range)
    }

    fn evicted(&mut self, tlb: Tlb, page: Vpn) {
        self.approx.evicted(tlb, page);
    }

    fn flushed(&mut self, tlb: Tlb) {
        self.approx.flushed(tlb);
    }

    fn unmapped(&mut self, pages: Pages) {
        self.approx.unmapped(pages);
        self.population.unmapped(pages);
    }
}
