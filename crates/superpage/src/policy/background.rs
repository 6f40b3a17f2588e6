//! Promotion in the background by utilization, and demotion when memory is short.
//!
//! - From Linux's khugepaged: a scanner that visits regions periodically, and collapses (copies) a region that has at most
//!   `max_ptes_none` untouched pages.
//! - From Ingens (Kwon et al., OSDI 2016): the threshold on utilization (90 %) that keeps memory from bloating, and
//!   promotion apart from the fault path.
//! - From Linux's shrinker of underused huge pages (2024): when memory is short, huge pages with many unused pages are
//!   split. Linux splits those with more zero-filled pages than `max_ptes_none`; this policy splits the one with the fewest
//!   referenced units.
//!
//! Those systems read accessed bits or search for zero-filled pages. For this policy, a unit is used from its first TLB miss
//! on.

use tlbkit_addr::{PageSize, Pages, Vpn};

use super::backoff::BackOff;
use super::{Action, Miss, Policy, Refusal, Superpage, Tlb};
use crate::page_sizes::Place;
use crate::population::Population;
use crate::{PageSizes, PolicyMemory, SegmentMemory};

/// The parameters of a [`Background`] policy, and of [`Coverage`](crate::Coverage).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utilization {
    /// The only size to which the policy promotes.
    pub size: PageSize,
    /// The percentage of a region's units that must have been referenced. One unit is always required.
    pub percent: u32,
    /// The earliest miss, counted from the policy's beginning and again from each request for a promotion, at which the policy
    /// makes a request. From that miss on it checks at every miss until it makes a request. Zero means one.
    pub period: u32,
}

impl Utilization {
    /// The defaults of khugepaged: 2 MB with any page present (`max_ptes_none` is 511), at most one promotion in 4096
    /// misses.
    pub const KHUGEPAGED: Self = Self { size: PageSize::M2, percent: 0, period: 4096 };
    /// The conservative setting of Ingens: 2 MB at 90 %.
    pub const INGENS: Self = Self { size: PageSize::M2, percent: 90, period: 4096 };
    /// HawkEye's order, for [`Coverage`](crate::Coverage): 2 MB, the region in most use first, however few of its pages are.
    pub const HAWKEYE: Self = Self { size: PageSize::M2, percent: 0, period: 4096 };
}

/// Promotes well-used regions to one size, at most one in a period: the region whose page has just missed.
#[derive(Debug)]
pub struct Background<'m> {
    population: Population<'m>,
    level: usize,
    utilization: Utilization,
    left: u32,
    back_off: BackOff,
}

impl<'m> Background<'m> {
    /// Returns the memory that one segment takes.
    pub fn segment_memory(page_sizes: &PageSizes) -> SegmentMemory {
        Population::segment_memory(page_sizes, 0)
    }

    /// Makes the policy. If the TLB lacks the size, the policy uses the next larger size, or else the largest.
    pub fn new(page_sizes: PageSizes, utilization: Utilization, memory: PolicyMemory<'m>) -> Self {
        let utilization = Utilization { period: utilization.period.max(1), ..utilization };
        Self {
            population: Population::new(page_sizes, 0, memory),
            level: page_sizes.level_reaching(utilization.size).max(1),
            utilization,
            left: utilization.period,
            back_off: BackOff::new(),
        }
    }

    /// Tells whether the region around `place` is used enough. The unit at `place` has just been referenced.
    fn wanted(&mut self, place: Place) -> bool {
        let all = 1u64 << self.population.page_sizes.shift(self.level);
        let used = self.population.populated(place, self.level) as u64;
        used * 100 >= all * u64::from(self.utilization.percent)
    }

    /// Splits the superpage with the fewest referenced units, for a kernel that is short of memory, and returns it. The
    /// kernel maps it as base pages and can reclaim the units that were never referenced. Returns `None` if every superpage
    /// is fully referenced.
    ///
    /// The time is a pass over the touched segments.
    pub fn under_pressure(&mut self) -> Option<Superpage> {
        let page_sizes = self.population.page_sizes;
        let all = 1 << page_sizes.shift(self.level);
        let superpages = self.population.superpages(self.level).filter(|&(_, used)| used < all);
        let (place, _) = superpages.min_by_key(|&(_, used)| used)?;
        let range = page_sizes.superpage(place, self.level)?;
        self.population.demote(range.first)
    }
}

impl Policy for Background<'_> {
    fn on_miss(&mut self, miss: Miss) -> Option<Action> {
        self.back_off.miss();
        let (place, mapped, _) = match self.population.reference(miss.page) {
            Ok(referenced) => referenced,
            Err(answer) => return answer,
        };
        self.left = self.left.saturating_sub(1);
        if self.left > 0 || mapped >= self.level || !self.back_off.allows(self.level) || !self.wanted(place) {
            return None;
        }
        self.left = self.utilization.period;
        Some(Action::Promote { range: self.population.page_sizes.superpage(place, self.level)?, copy: true })
    }

    fn promoted(&mut self, range: Superpage) {
        self.back_off.granted(self.level);
        self.population.promote(range);
    }

    fn refused(&mut self, range: Superpage, why: Refusal) {
        match why {
            Refusal::NoMemory => self.back_off.refused(self.level, self.utilization.period),
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
