//! ONLINE (section 7.2): prefetch and capacity charges.

use tlbkit_addr::{Pages, Vpn};

use super::backoff::BackOff;
use super::gate::Gate;
use super::{Action, Miss, Policy, Refusal, Superpage, Tlb};
use crate::capacity::{Capacity, StackEntry};
use crate::costs::{When, thresholds};
use crate::ledger::{Charged, Ledger};
use crate::page_sizes::MAX_LEVELS;
use crate::{CostError, PolicyMemory, SegmentMemory, Setup};

/// Memory for [`Online`].
#[derive(Debug)]
pub struct OnlineMemory<'m> {
    /// For prefetch charges: the first part of [`Online::segment_memory`] says how much.
    pub prefetch: PolicyMemory<'m>,
    /// For capacity charges: the second part of [`Online::segment_memory`] says how much.
    pub capacity: PolicyMemory<'m>,
    /// The LRU stacks of the data TLB and the instruction TLB, of [`Online::stack_len`] entries each.
    pub stacks: [&'m mut [StackEntry]; 2],
}

/// Promotes a superpage when its prefetch charges or its capacity charges exceed their threshold. A promotion lowers the
/// prefetch charges of larger superpages around it by those that it had, and sets all capacity charges to zero.
///
/// No capacity charge is made if it needs more than 65535 entries of one superpage (256 MB of 4 KB pages): that many entries
/// would have to have missed since the last miss of the page.
///
/// A miss costs a walk over the LRU stack; for this reason section 8.2 prefers [`ApproxOnline`](super::ApproxOnline).
#[derive(Debug)]
pub struct Online<'m> {
    ledger: Ledger<'m>,
    capacity: Capacity<'m>,
    gate: Gate,
    back_off: BackOff,
    told: bool,
}

impl<'m> Online<'m> {
    /// Returns the memory that one segment takes for prefetch charges and for capacity charges.
    ///
    /// # Errors
    ///
    /// See [`CostError`].
    pub fn segment_memory(setup: &Setup) -> Result<(SegmentMemory, SegmentMemory), CostError> {
        let (prefetch, capacity) = both(setup)?;
        Ok((
            Ledger::segment_memory(&setup.page_sizes, prefetch, false)?,
            Capacity::segment_memory(&setup.page_sizes, capacity),
        ))
    }

    /// Returns how many entries the LRU stack of a TLB of `size` entries needs.
    pub fn stack_len(setup: &Setup, size: usize) -> usize {
        Capacity::stack_len(&setup.page_sizes, size)
    }

    /// Makes the policy for a data TLB and an instruction TLB of `sizes` entries.
    ///
    /// # Errors
    ///
    /// See [`CostError`].
    pub fn new(setup: &Setup, sizes: [usize; 2], memory: OnlineMemory<'m>) -> Result<Self, CostError> {
        let (prefetch, capacity) = both(setup)?;
        let OnlineMemory { prefetch: ledger, capacity: counts, stacks } = memory;
        Ok(Self {
            ledger: Ledger::new(setup.page_sizes, prefetch, None, setup.tlbs(), ledger)?,
            capacity: Capacity::new(setup.page_sizes, capacity, sizes, counts, stacks),
            gate: Gate::new(setup.activity),
            back_off: BackOff::new(),
            told: false,
        })
    }

    /// Returns the prefetch and the capacity charges of a superpage; each stops one above its threshold. `None` if
    /// the TLB has no such superpage.
    pub fn charges(&mut self, superpage: Superpage) -> Option<(u32, u32)> {
        let prefetch = self.ledger.charged(superpage)?;
        let (place, level) = self.ledger.page_sizes.find(superpage)?;
        Some((prefetch, self.capacity.charged(place, level)))
    }
}

/// The counts, in charges, at which prefetch charges and capacity charges exceed their thresholds, by level.
type Both = ([u32; MAX_LEVELS], [u32; MAX_LEVELS]);

fn both(setup: &Setup) -> Result<Both, CostError> {
    Ok((
        thresholds(&setup.page_sizes, setup.costs, setup.costs.prefetch, When::Exceeds)?,
        thresholds(&setup.page_sizes, setup.costs, setup.costs.capacity, When::Exceeds)?,
    ))
}

impl Policy for Online<'_> {
    fn on_miss(&mut self, miss: Miss) -> Option<Action> {
        self.back_off.miss();
        let active = self.gate.active(miss.now);
        let tlb = self.ledger.tlb(miss.tlb);
        let at = self.ledger.page_sizes.locate(miss.page);
        let level = self.ledger.mapped(at);
        // The ledger could not record a promotion in a segment for which it has no memory.
        let counted = |segment| self.ledger.counts(segment);
        let for_capacity = if active { self.capacity.charge(tlb, at, level, counted) } else { None };
        let charged = self.ledger.miss(miss.tlb, miss.page, active);
        self.capacity.refill(tlb, at, level);
        if let Some(evicted) = miss.evicted {
            self.evicted(miss.tlb, evicted);
        }
        let for_prefetch = match charged {
            Charged::Nothing => None,
            Charged::Ready(level) => Some((at, level)),
            // A candidate in another segment remains one: a later miss asks for it.
            Charged::Exhausted if !self.told => {
                self.told = true;
                return Some(Action::OutOfSegments { page: miss.page });
            }
            Charged::Exhausted => None,
        };
        // The smaller candidate is promoted; of two that are equally large, the one around the page that missed.
        let (place, level) = match (for_prefetch, for_capacity) {
            (Some(prefetch), Some(capacity)) if capacity.1 < prefetch.1 => capacity,
            (Some(prefetch), _) => prefetch,
            (None, capacity) => capacity?,
        };
        let range = self.ledger.page_sizes.superpage(place, level).filter(|_| self.back_off.allows(level))?;
        Some(Action::Promote { range, copy: true })
    }

    fn promoted(&mut self, range: Superpage) {
        let Some((place, level)) = self.ledger.page_sizes.find(range) else { return };
        if self.ledger.mapped(place) >= level {
            return;
        }
        self.back_off.granted(level);
        self.ledger.promote(place, level, None);
        self.capacity.promote(place, level);
    }

    fn refused(&mut self, range: Superpage, why: Refusal) {
        let Some((place, level)) = self.ledger.page_sizes.find(range) else { return };
        match why {
            Refusal::NoMemory => self.back_off.refused(level, self.ledger.threshold(level)),
            Refusal::NotHere => {
                self.ledger.start_over(place, level);
                self.capacity.start_over(place, level);
            }
        }
    }

    fn demote(&mut self, page: Vpn) -> Option<Superpage> {
        let range = self.ledger.demote(page)?;
        let (place, level) = self.ledger.page_sizes.find(range)?;
        self.capacity.demote(place, level);
        Some(range)
    }

    fn is_active(&self) -> bool {
        self.gate.was_active()
    }

    fn evicted(&mut self, tlb: Tlb, page: Vpn) {
        let place = self.ledger.page_sizes.locate(page);
        let level = self.ledger.mapped(place);
        self.ledger.evict(tlb, page);
        self.capacity.evict(self.ledger.tlb(tlb), place, level);
    }

    fn flushed(&mut self, tlb: Tlb) {
        self.ledger.flushed(tlb);
        self.capacity.flushed(self.ledger.tlb(tlb));
    }

    fn unmapped(&mut self, pages: Pages) {
        for page in self.ledger.cut(pages).into_iter().flatten() {
            self.demote(page);
        }
        let (first, last) =
            (self.ledger.page_sizes.locate(pages.first()), self.ledger.page_sizes.locate(pages.last()));
        self.capacity.unmapped(pages, first, last);
        self.ledger.unmapped(pages);
    }
}
