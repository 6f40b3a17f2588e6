//! ASAP and ASAP-4-64 (section 7.4): promotion by population alone, however often a page misses.

use tlbkit_addr::{PageSize, Pages, Vpn};

use super::backoff::BackOff;
use super::{Action, Miss, Policy, Refusal, Superpage, Tlb};
use crate::population::Population;
use crate::{PageSizes, PolicyMemory, SegmentMemory};

/// Promotes a superpage as soon as all of its units have been referenced; the largest if several are complete.
#[derive(Debug)]
pub struct Asap<'m>(AsSoon<'m>);

/// Promotes to 64 KB as soon as half of the units of that superpage have been referenced, and to no other size.
///
/// On a TLB without 64 KB pages, the size is the next larger one, or else the largest.
#[derive(Debug)]
pub struct Asap464<'m>(AsSoon<'m>);

#[derive(Debug)]
struct AsSoon<'m> {
    population: Population<'m>,
    rule: Rule,
    back_off: BackOff,
}

#[derive(Clone, Copy, Debug)]
enum Rule {
    Full,
    Half { level: usize },
}

impl AsSoon<'_> {
    fn wanted(&mut self, place: crate::page_sizes::Place, mapped: usize) -> usize {
        let page_sizes = self.population.page_sizes;
        match self.rule {
            Rule::Half { level } => {
                let enough = 2 * self.population.populated(place, level) >= 1 << page_sizes.shift(level);
                if enough { level } else { mapped }
            }
            Rule::Full => self.population.full(place, mapped),
        }
    }
}

impl Policy for AsSoon<'_> {
    fn on_miss(&mut self, miss: Miss) -> Option<Action> {
        self.back_off.miss();
        let (place, mapped, _) = match self.population.reference(miss.page) {
            Ok(referenced) => referenced,
            Err(answer) => return answer,
        };
        let level = self.wanted(place, mapped);
        if level <= mapped || !self.back_off.allows(level) {
            return None;
        }
        Some(Action::Promote { range: self.population.page_sizes.superpage(place, level)?, copy: true })
    }

    fn promoted(&mut self, range: Superpage) {
        if let Some(level) = self.population.page_sizes.level(range.size) {
            self.back_off.granted(level);
            self.population.promote(range);
        }
    }

    /// Records a refusal. After [`Refusal::NoMemory`] the policy waits for as many misses as the superpage has units, then
    /// twice as many, and so on.
    fn refused(&mut self, range: Superpage, why: Refusal) {
        let Some(level) = self.population.page_sizes.level(range.size) else { return };
        match why {
            Refusal::NoMemory => self.back_off.refused(level, 1 << self.population.page_sizes.shift(level)),
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
            /// Returns the memory that one segment takes.
            pub fn segment_memory(page_sizes: &PageSizes) -> SegmentMemory {
                Population::segment_memory(page_sizes, 0)
            }

            /// Makes the policy, with memory for as many segments as fit.
            pub fn new(page_sizes: PageSizes, memory: PolicyMemory<'m>) -> Self {
                let rule: fn(&PageSizes) -> Rule = $rule;
                Self(AsSoon {
                    population: Population::new(page_sizes, 0, memory),
                    rule: rule(&page_sizes),
                    back_off: BackOff::new(),
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
as_soon!(Asap464, |page_sizes| Rule::Half { level: page_sizes.level_reaching(PageSize::K64).max(1) });
