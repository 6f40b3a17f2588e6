//! ASAP and ASAP-4-64 (section 7.4): population alone, no matter how often a page misses.

use tlbkit_addr::{PageSize, Pages, Vpn};

use super::backoff::BackOff;
use super::{Action, Miss, Policy, Refusal, Superpage, Tlb};
use crate::population::Population;
use crate::{Footprint, Ladder, Memory};

/// Promotes to the largest superpage all of whose units have been referenced, as soon as there is one.
#[derive(Debug)]
pub struct Asap<'m>(AsSoon<'m>);

/// Promotes to 64 KB as soon as half of the units there have been referenced; no other size.
///
/// On a ladder without 64 KB, to the smallest larger size, or the largest there is.
#[derive(Debug)]
pub struct Asap464<'m>(AsSoon<'m>);

#[derive(Debug)]
struct AsSoon<'m> {
    population: Population<'m>,
    rule: Rule,
    back_off: BackOff,
    told: bool,
}

#[derive(Clone, Copy, Debug)]
enum Rule {
    Full,
    Half { level: usize },
}

impl AsSoon<'_> {
    fn wanted(&mut self, place: crate::ladder::Place, mapped: usize) -> usize {
        let ladder = self.population.ladder;
        match self.rule {
            Rule::Half { level } => {
                let enough = 2 * self.population.populated(place, level) >= 1 << ladder.shift(level);
                if enough { level } else { mapped }
            }
            Rule::Full => self.population.full(place, mapped),
        }
    }
}

impl Policy for AsSoon<'_> {
    fn on_miss(&mut self, miss: Miss) -> Option<Action> {
        self.back_off.miss();
        let Ok((place, mapped, _)) = self.population.reference(miss.page) else {
            let first = !self.told;
            self.told = true;
            return first.then_some(Action::OutOfSegments { page: miss.page });
        };
        let level = self.wanted(place, mapped);
        if level <= mapped || !self.back_off.allows(level) {
            return None;
        }
        Some(Action::Promote { range: self.population.ladder.superpage(place, level)?, copy: true })
    }

    fn promoted(&mut self, range: Superpage) {
        if let Some(level) = self.population.ladder.level(range.size) {
            self.back_off.granted(level);
            self.population.promote(range);
        }
    }

    /// For want of memory, waits for as many misses as the superpage has units, then twice as many, and so on.
    fn refused(&mut self, range: Superpage, why: Refusal) {
        let Some(level) = self.population.ladder.level(range.size) else { return };
        match why {
            Refusal::NoMemory => self.back_off.refused(level, 1 << self.population.ladder.shift(level)),
            Refusal::NotHere => self.population.start_over(range),
        }
    }

    fn demote(&mut self, page: Vpn) -> Option<Superpage> {
        self.population.demote(page)
    }

    fn evicted(&mut self, _: Tlb, _: Vpn) {}

    fn flushed(&mut self, _: Tlb) {}

    fn unmapped(&mut self, pages: Pages) {
        self.population.unmapped(pages);
    }
}

macro_rules! as_soon {
    ($name:ident, $rule:expr) => {
        impl<'m> $name<'m> {
            /// Returns what one segment takes.
            pub fn footprint(ladder: &Ladder) -> Footprint {
                Population::footprint(ladder, false)
            }

            /// Makes the policy, with memory for as many segments as fit.
            pub fn new(ladder: Ladder, memory: Memory<'m>) -> Self {
                let rule: fn(&Ladder) -> Rule = $rule;
                Self(AsSoon {
                    population: Population::new(ladder, false, memory),
                    rule: rule(&ladder),
                    back_off: BackOff::new(),
                    told: false,
                })
            }
        }

        impl Policy for $name<'_> {
            fn on_miss(&mut self, miss: Miss) -> Option<Action> {
                self.0.on_miss(miss)
            }

            fn promoted(&mut self, range: Superpage) {
                self.0.promoted(range);
            }

            fn refused(&mut self, range: Superpage, why: Refusal) {
                self.0.refused(range, why);
            }

            fn demote(&mut self, page: Vpn) -> Option<Superpage> {
                self.0.demote(page)
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
    };
}

as_soon!(Asap, |_| Rule::Full);
as_soon!(Asap464, |ladder| Rule::Half { level: ladder.level_reaching(PageSize::K64).max(1) });
