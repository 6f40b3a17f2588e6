//! LEAP

use tlbkit_addr::{Pages, Vpn};

use super::backoff::BackOff;
use super::gate::Gate;
use super::{Action, Miss, Policy, Superpage, Tlb};
use crate::costs::{When, thresholds};
use crate::ledger::Ledger;
use crate::{CostError, Footprint, Memory, Setup};

/// Experimental.
#[derive(Debug)]
pub struct Leap<'m> {
    ledger: Ledger<'m>,
    gate: Gate,
    back_off: BackOff,
    told: bool,
    alpha: u32,
    budget: u64,
    r_per_kb: u64,
    misses: u64,
    copied: u64,
    extra: u64,
    lower_own: bool,
    hold: u32,
    kb_shift: u32,
}

impl<'m> Leap<'m> {
    /// Returns what one segment takes.
    ///
    /// # Errors
    ///
    /// See [`CostError`].
    pub fn footprint(setup: &Setup) -> Result<Footprint, CostError> {
        let counts = thresholds(&setup.ladder, setup.costs, setup.costs.prefetch, When::Reaches)?;
        Ok(Ledger::footprint(&setup.ladder, counts, setup.eager_level(), setup.tlbs()))
    }

    /// Makes the policy, with memory for as many segments as fit.
    ///
    /// # Errors
    ///
    /// See [`CostError`].
    pub fn new(
        setup: &Setup,
        memory: Memory<'m>,
        alpha: u32,
        budget: u64,
        lower_own: bool,
        hold: u32,
    ) -> Result<Self, CostError> {
        let counts = thresholds(&setup.ladder, setup.costs, setup.costs.prefetch, When::Reaches)?;
        Ok(Self {
            ledger: Ledger::new(setup.ladder, counts, setup.eager_level(), setup.tlbs(), memory),
            gate: Gate::new(setup.activity),
            back_off: BackOff::new(),
            told: false,
            alpha,
            budget,
            lower_own,
            hold,
            r_per_kb: u64::from(setup.costs.r_per_kb),
            misses: 0,
            copied: 0,
            extra: 0,
            kb_shift: 2,
        })
    }
    fn r(&self, level: usize) -> u64 {
        self.r_per_kb << (self.kb_shift + self.ledger.ladder.shift(level))
    }
}

impl Policy for Leap<'_> {
    #[inline]
    fn on_miss(&mut self, miss: Miss) -> Option<Action> {
        self.back_off.miss();
        self.misses += 1;
        let active = self.gate.active(miss.now);
        let charged = self.ledger.miss(miss.tlb, miss.page, active);
        if let Some(evicted) = miss.evicted {
            self.ledger.evict(miss.tlb, evicted);
        }
        match charged {
            Ok(charged) if charged.ready == 0 || !self.back_off.allows(charged.ready) => None,
            Ok(charged) => {
                let mut level = charged.ready;
                let total = self.misses * 13 / 3 + self.copied;
                for up in level + 1..self.ledger.ladder.levels() {
                    let count = u64::from(self.ledger.count(charged.place, up));
                    let extra = self.r(up) - self.r(charged.ready);
                    if count * 1000 < u64::from(self.ledger.thresholds[up]) * u64::from(self.alpha)
                        || (self.extra + extra) * 1000 > total * self.budget
                    {
                        break;
                    }
                    level = up;
                }
                let up = level + 1;
                if self.hold > 0 && up < self.ledger.ladder.levels() {
                    let count = u64::from(self.ledger.count(charged.place, up));
                    if count * 1000 >= u64::from(self.ledger.thresholds[up]) * u64::from(self.hold) {
                        return None;
                    }
                }
                self.extra += self.r(level) - self.r(charged.ready);
                let range = self.ledger.ladder.superpage(charged.place, level)?;
                Some(Action::Promote { range, copy: true })
            }
            Err(_) if self.told => None,
            Err(_) => {
                self.told = true;
                Some(Action::OutOfSegments { page: miss.page })
            }
        }
    }

    fn promoted(&mut self, range: Superpage) {
        let Some((place, level)) = self.ledger.ladder.find(range) else { return };
        self.back_off.granted(level);
        self.copied += self.r(level);
        let threshold = if self.lower_own { None } else { self.ledger.thresholds.get(level).copied() };
        self.ledger.promote(place, level, threshold);
    }

    fn refused(&mut self, range: Superpage) {
        let Some((_, level)) = self.ledger.ladder.find(range) else { return };
        self.back_off.refused(level, self.ledger.thresholds.get(level).copied().unwrap_or(u32::MAX));
    }

    fn demote(&mut self, page: Vpn) -> Option<Superpage> {
        self.ledger.demote(page)
    }

    fn evicted(&mut self, tlb: Tlb, page: Vpn) {
        self.ledger.evict(tlb, page);
    }

    fn flushed(&mut self, tlb: Tlb) {
        self.ledger.flushed(tlb);
    }

    fn unmapped(&mut self, pages: Pages) {
        self.ledger.unmapped(pages);
    }
}
