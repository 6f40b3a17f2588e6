//! THRIFT, this project's own policy: count less, wait longer, copy less.
//!
//! Where APPROX-ONLINE loses to OFFLINE, it loses by bookkeeping on every miss, by copying superpages that then hardly
//! miss any more, and by copying the same pages again at each size on the way up. Three changes to it:
//!
//! - Only one miss in [`SAMPLE`] is charged, at random distances; on the others the policy records what the TLB holds
//!   and nothing else. A threshold of `n` misses becomes one of `n / SAMPLE` samples.
//! - The threshold is higher, [`SLOWER`] times the setup's, 0.2 R for the paper's 0.125 R: what stays between the two is
//!   never copied, at the price of some misses more of what is.
//! - When a superpage is to be promoted and the one around it stands at [`NEARLY`] of its own threshold or more, the
//!   larger one is promoted at once: it would be in a moment, and would copy everything again.
//!
//! The three numbers were chosen on the traces `cc1`, `sort` and `sqlite`. It copies less than APPROX-ONLINE on every
//! trace tried, and is not always cheaper: `docs/superpage.md` in the repository has the tables.

use tlbkit_addr::{Pages, Vpn};

use super::backoff::BackOff;
use super::gate::Gate;
use super::{Action, Miss, Policy, Superpage, Tlb};
use crate::costs::{When, thresholds};
use crate::ladder::{MAX_LEVELS, Place};
use crate::ledger::{Charged, Ledger};
use crate::{CostError, Footprint, Memory, Setup};

/// Promotes from a sample of the misses, later than APPROX-ONLINE, and to the largest size that is nearly due.
#[derive(Debug)]
pub struct Thrift<'m> {
    ledger: Ledger<'m>,
    gate: Gate,
    back_off: BackOff,
    told: bool,
    /// Misses until the next one that is charged.
    left: u32,
    random: u32,
}

/// Misses for each one that is charged.
const SAMPLE: u32 = 8;
/// Threshold over the setup's, as a fraction.
const SLOWER: (u32, u32) = (8, 5);
/// Share of its threshold at which a larger superpage is taken at once, as a fraction.
const NEARLY: (u64, u64) = (4, 5);

/// The thresholds in samples.
fn counts(setup: &Setup) -> Result<[u32; MAX_LEVELS], CostError> {
    let prefetch = u64::from(setup.costs.prefetch) * u64::from(SLOWER.0) / u64::from(SLOWER.1 * SAMPLE);
    let prefetch = if setup.costs.prefetch == 0 { 0 } else { (prefetch as u32).max(1) };
    thresholds(&setup.ladder, setup.costs, prefetch, When::Reaches)
}

impl<'m> Thrift<'m> {
    /// Returns what one segment takes.
    ///
    /// # Errors
    ///
    /// See [`CostError`].
    pub fn footprint(setup: &Setup) -> Result<Footprint, CostError> {
        Ledger::footprint(&setup.ladder, counts(setup)?)
    }

    /// Makes the policy, with memory for as many segments as fit.
    ///
    /// # Errors
    ///
    /// See [`CostError`].
    pub fn new(setup: &Setup, memory: Memory<'m>) -> Result<Self, CostError> {
        Ok(Self {
            ledger: Ledger::new(setup.ladder, counts(setup)?, setup.eager, setup.tlbs(), memory)?,
            gate: Gate::new(setup.activity),
            back_off: BackOff::new(),
            told: false,
            left: 1,
            random: 1,
        })
    }

    /// Tells whether this miss is of the sample: at random distances from 1 to twice the mean, so that no loop of the
    /// program stays in step with it.
    #[inline]
    fn sampled(&mut self) -> bool {
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.left = 1 + ((u64::from(self.random) * u64::from(2 * SAMPLE - 1)) >> 32) as u32;
        true
    }
}

impl Thrift<'_> {
    /// Returns the level to promote to, from `ready` on: as long as the next one nearly stands at its threshold.
    fn leap(&mut self, place: Place, ready: usize) -> usize {
        let mut level = ready;
        while level < self.ledger.ladder.top() {
            let count = u64::from(self.ledger.count(place, level + 1));
            let threshold = self.ledger.threshold(level + 1);
            if count * NEARLY.1 < u64::from(threshold) * NEARLY.0 || !self.back_off.allows(level + 1) {
                break;
            }
            level += 1;
        }
        level
    }
}

impl Policy for Thrift<'_> {
    #[inline]
    fn on_miss(&mut self, miss: Miss) -> Option<Action> {
        self.back_off.miss();
        let count = self.sampled() & self.gate.active(miss.now);
        let charged = self.ledger.miss(miss.tlb, miss.page, count);
        if let Some(evicted) = miss.evicted {
            self.ledger.evict(miss.tlb, evicted);
        }
        match charged {
            Charged::Nothing => None,
            Charged::Ready(level) => {
                let ladder = self.ledger.ladder;
                let place = ladder.locate(miss.page);
                if !self.back_off.allows(level) {
                    return None;
                }
                let range = ladder.superpage(place, self.leap(place, level))?;
                Some(Action::Promote { range, copy: true })
            }
            Charged::Exhausted if self.told => None,
            Charged::Exhausted => {
                self.told = true;
                Some(Action::OutOfSegments { page: miss.page })
            }
        }
    }

    fn promoted(&mut self, range: Superpage) {
        let Some((place, level)) = self.ledger.ladder.find(range) else { return };
        self.back_off.granted(level);
        let threshold = self.ledger.threshold(level);
        self.ledger.promote(place, level, Some(threshold));
    }

    fn refused(&mut self, range: Superpage) {
        let Some((_, level)) = self.ledger.ladder.find(range) else { return };
        self.back_off.refused(level, self.ledger.threshold(level));
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
