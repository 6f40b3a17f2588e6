//! APPROX-ONLINE (Romer et al. 1995, section 7.3): prefetch charges alone.

use tlbkit_addr::{Pages, Vpn};

use super::backoff::BackOff;
use super::gate::Gate;
use super::{Action, Miss, Policy, Refusal, Superpage, Tlb};
use crate::costs::{When, thresholds};
use crate::ledger::{Charged, Ledger};
use crate::page_sizes::MAX_LEVELS;
use crate::{CostError, PolicyMemory, SegmentMemory, Setup};

/// Promotes a superpage when its prefetch charges reach their threshold, and then lowers the charges of the larger
/// superpages around it by the threshold.
///
/// It approximates [`Online`](super::Online) by leaving out the capacity charges. Its own counts are not approximate: each is exact
/// when it reaches its threshold.
///
/// From a miss to a promotion:
///
/// 1. The kernel reports the miss: the TLB, the page, and the entry that was evicted.
/// 2. The miss charges every superpage, up to the segment, that contains the page, is larger than the page's mapping, and contains
///    another page whose entry is in the TLB that missed; the evicted entry counts as if it were still there. Such a superpage
///    would have prevented the miss: its one entry would have been loaded before. If [`Setup::activity`] sets a rate of misses,
///    misses at a lower rate charge nothing ([`Activity`](crate::Activity)).
/// 3. The refilled entry joins the resident set of that TLB, and the evicted entry leaves it.
/// 4. The threshold of a superpage is [`Costs::prefetch`](crate::Costs::prefetch) thousandths of R, in [`Setup::PAPER`] 0.125 R,
///    where R is the cost of copying the superpage, in misses. If the count of a superpage that was charged is at its threshold,
///    the policy asks for the smallest such superpage.
/// 5. [`Policy::promoted`] sets the counts of the superpage and its parts to zero, and lowers the counts of all larger superpages
///    around it by the threshold, but not below zero. After [`Refusal::NoMemory`] the policy asks for no superpage of that size or
///    larger during a wait: as many misses as the refused superpage's threshold, and twice as many after each further refusal. A
///    promotion of that size or a larger one ends the wait. After [`Refusal::NotHere`] the count of that one superpage starts at
///    zero again.
/// 6. [`Policy::demote`], [`Policy::unmapped`], [`Policy::evicted`] and [`Policy::flushed`] update the resident sets and the
///    mappings. [`Policy::unmapped`] also frees the counters of the segments that are wholly in its range.
///
/// A miss adds to one charge, that of the smallest superpage that it charges, and counts down until the sums are due; the counts
/// of larger superpages are sums of charges. It costs some 150 instructions (`cargo xtask bookkeeping`). If a count comes
/// near its threshold, the miss also costs a pass over the charges that are deferred below that superpage.
//
// Up to 64 KB the counters are part of a [block](crate::block). For larger superpages the blocks owe charges to a
// [tree](crate::deferred), and pay them before any count can reach its threshold unnoticed.
#[derive(Debug)]
pub struct ApproxOnline<'m> {
    pub(super) ledger: Ledger<'m>,
    gate: Gate,
    back_off: BackOff,
    /// The last action that the policy asked for.
    asked: Option<Action>,
    /// Whether [`Action::OutOfSegments`] has been reported.
    told: bool,
}

impl<'m> ApproxOnline<'m> {
    /// Returns the memory that one segment takes.
    ///
    /// # Errors
    ///
    /// See [`CostError`].
    pub fn segment_memory(setup: &Setup) -> Result<SegmentMemory, CostError> {
        let counts = thresholds(&setup.page_sizes, setup.costs, setup.costs.prefetch, When::Reaches)?;
        Ledger::segment_memory(&setup.page_sizes, counts, false)
    }

    /// Makes the policy, with memory for as many segments as fit.
    ///
    /// # Errors
    ///
    /// See [`CostError`].
    pub fn new(setup: &Setup, memory: PolicyMemory<'m>) -> Result<Self, CostError> {
        Self::with(setup, None, memory)
    }

    /// As [`new`](Self::new), for a policy that wraps this one. With `prices`, the wrapping policy reserves memory at first
    /// touches, and these are the prices, in charges, of superpages whose pages are all untouched, by level.
    pub(super) fn with(
        setup: &Setup,
        prices: Option<[u32; MAX_LEVELS]>,
        memory: PolicyMemory<'m>,
    ) -> Result<Self, CostError> {
        let counts = thresholds(&setup.page_sizes, setup.costs, setup.costs.prefetch, When::Reaches)?;
        let ledger = Ledger::new(setup.page_sizes, counts, prices, setup.tlbs(), memory)?;
        Ok(Self {
            ledger,
            gate: Gate::new(setup.activity),
            back_off: BackOff::new(),
            asked: None,
            told: false,
        })
    }

    /// Returns Appendix A's `tlbcount` of a superpage or base page: -1 inside a larger mapping; 1 if its own entry is in the
    /// TLB; otherwise the number of its components with an entry in the TLB. `None` if no TLB entry can have this size.
    pub fn tlbcount(&mut self, tlb: Tlb, superpage: Superpage) -> Option<i32> {
        self.ledger.tlbcount(tlb, superpage)
    }

    /// Returns the prefetch charges of a superpage, which stop at the threshold. `None` if no TLB entry can have
    /// this size. Costs a pass over the charges that are deferred below it.
    pub fn prefetch(&mut self, superpage: Superpage) -> Option<u32> {
        self.ledger.charged(superpage)
    }

    /// Returns the number of segments in use, and the number for which there is memory.
    pub fn segments(&self) -> (usize, usize) {
        self.ledger.segments()
    }
}

impl ApproxOnline<'_> {
    /// Implements [`Policy::on_miss`], for this policy and for one that wraps it.
    pub(super) fn take(&mut self, miss: &Miss) -> Option<Action> {
        self.back_off.miss();
        let active = self.gate.active(miss.now);
        // `populate` comes before the charge, because the prices depend on the populated pages.
        let full = if self.ledger.reserved() > 0 { self.ledger.populate(miss.page) } else { None };
        let charged = self.ledger.miss(miss.tlb, miss.page, active);
        if let Some(evicted) = miss.evicted {
            self.ledger.evict(miss.tlb, evicted);
        }
        match (charged, full) {
            (Charged::Exhausted, _) => self.exhausted(miss.page),
            (_, Some(level)) => self.ask(miss.page, level, true),
            (Charged::Ready(level), None) => self.ask(miss.page, level, false),
            (Charged::Nothing, None) => None,
        }
    }

    /// Returns the last request and marks it as answered, if it is for this range and has not been answered.
    pub(super) fn answered(&mut self, by: Superpage) -> Option<Action> {
        self.asked.take_if(|asked| matches!(asked, Action::Promote { range, .. } if *range == by))
    }

    /// Asks for the superpage of `level` around a page, unless it must wait after a refusal. A fully populated superpage
    /// within a reservation (`full`) needs no copy, and does not wait.
    #[cold]
    fn ask(&mut self, page: Vpn, level: usize, full: bool) -> Option<Action> {
        if !full && !self.back_off.allows(level) {
            return None;
        }
        let page_sizes = self.ledger.page_sizes;
        let range = page_sizes.superpage(page_sizes.locate(page), level)?;
        let copy = !full && (level > self.ledger.reserved() || self.ledger.is_closed(page));
        self.asked = Some(Action::Promote { range, copy });
        self.asked
    }

    /// Reports that a segment has no counters, the first time.
    #[cold]
    fn exhausted(&mut self, page: Vpn) -> Option<Action> {
        let first = !self.told;
        self.told = true;
        first.then(|| *self.asked.insert(Action::OutOfSegments { page }))
    }
}

impl Policy for ApproxOnline<'_> {
    fn on_miss(&mut self, miss: Miss) -> Option<Action> {
        self.take(&miss)
    }

    fn promoted(&mut self, range: Superpage) {
        let Some((place, level)) = self.ledger.page_sizes.find(range) else { return };
        self.back_off.granted(level);
        self.ledger.promote(place, level, Some(self.ledger.threshold(level)));
    }

    fn refused(&mut self, range: Superpage, why: Refusal) {
        let Some((place, level)) = self.ledger.page_sizes.find(range) else { return };
        match why {
            Refusal::NoMemory => self.back_off.refused(level, self.ledger.threshold(level)),
            Refusal::NotHere => self.ledger.start_over(place, level),
        }
    }

    fn demote(&mut self, page: Vpn) -> Option<Superpage> {
        self.ledger.demote(page)
    }

    fn is_active(&self) -> bool {
        self.gate.was_active()
    }

    fn evicted(&mut self, tlb: Tlb, page: Vpn) {
        self.ledger.evict(tlb, page);
    }

    fn flushed(&mut self, tlb: Tlb) {
        self.ledger.flushed(tlb);
    }

    fn unmapped(&mut self, pages: Pages) {
        for page in self.ledger.cut(pages).into_iter().flatten() {
            self.demote(page);
        }
        self.ledger.unmapped(pages);
    }
}

#[cfg(test)]
mod tests;
