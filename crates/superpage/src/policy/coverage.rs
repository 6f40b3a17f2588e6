//! Promotion by access coverage: the region of which most pages are in use now comes first.
//!
//! From HawkEye (Panwar, Bansal and Gopinath, ASPLOS 2019): Linux and Ingens promote regions in the order of their addresses,
//! by pages that were touched at any time. HawkEye clears the accessed bits of a region periodically, counts those that are set again (its
//! *access coverage*), averages the counts exponentially, and promotes from the highest of ten buckets.
//!
//! For this policy a page is accessed if it misses. Its average is the mean of the last average and the new count, and it
//! takes the highest average instead of a bucket.

use core::cmp::Reverse;

use tlbkit_addr::{Pages, Vpn};

use super::background::Utilization;
use super::backoff::BackOff;
use super::{Action, Miss, Policy, Refusal, Superpage, Tlb};
use crate::page_sizes::Place;
use crate::population::{Population, count};
use crate::{PageSizes, PolicyMemory, SegmentMemory};

/// log2 of the average of a region all of whose pages miss in every period. In a region of more pages, a few count for nothing.
const ONE: u32 = 15;

/// Returns `1 << ONE` times the share of so many units in a region of `1 << shift`. In 32 bits the product has no room.
const fn share(units: usize, shift: u32) -> usize {
    ((units as u64) << ONE >> shift) as usize
}

/// Promotes, once a period, the region of which most pages have missed lately.
///
/// One miss in a period passes over all touched segments, a bit for each of their units and a counter for each region.
#[derive(Debug)]
pub struct Coverage<'m> {
    /// The units that have missed in this period; each region has a counter, its average.
    population: Population<'m>,
    level: usize,
    utilization: Utilization,
    left: u32,
    back_off: BackOff,
}

impl<'m> Coverage<'m> {
    /// Returns the memory that one segment takes, for regions of this size.
    pub fn segment_memory(page_sizes: &PageSizes, utilization: Utilization) -> SegmentMemory {
        let level = page_sizes.level_reaching(utilization.size).max(1);
        let regions = page_sizes.units_per_segment() >> page_sizes.shift(level);
        Population::segment_memory(page_sizes, regions)
    }

    /// Makes the policy. `percent` is the least average of what is promoted; a page at least must have missed lately. (An
    /// average comes near 100 and does not reach it: with 100 nothing is promoted.) If the TLB lacks the size, the policy uses the next
    /// larger size, or else the largest.
    pub fn new(page_sizes: PageSizes, utilization: Utilization, memory: PolicyMemory<'m>) -> Self {
        let utilization = Utilization { period: utilization.period.max(1), ..utilization };
        let regions = Self::segment_memory(&page_sizes, utilization).counters;
        Self {
            population: Population::new(page_sizes, regions, memory),
            level: page_sizes.level_reaching(utilization.size).max(1),
            utilization,
            left: utilization.period,
            back_off: BackOff::new(),
        }
    }

    /// Ends a period. Returns the region with the highest average that is not promoted, the first of several.
    fn sample(&mut self) -> Option<Place> {
        let (level, shift) = (self.level, self.population.page_sizes.shift(self.level));
        let (units, top) = (self.population.units, self.population.page_sizes.top());
        let least = (u64::from(self.utilization.percent) << ONE).div_ceil(100).max(1);
        let mut best = None;
        self.population.segments.for_each(|segment, bits, averages| {
            for (region, average) in averages.iter_mut().enumerate() {
                let unit = region << shift;
                let now = share(count(bits, unit, shift), shift);
                *average = ((usize::from(*average) + now) / 2) as u16;
                let found = (*average, Reverse((segment, unit)));
                if u64::from(*average) >= least && units.mapped(bits, unit) < level {
                    best = best.max(Some(found));
                }
            }
            units.fill(bits, 0, top, false);
        });
        best.map(|(_, Reverse((segment, unit)))| Place { segment, unit })
    }

    /// Starts the averages of the regions at zero that have any of `pages`, where it has memory for them.
    fn forget(&mut self, pages: Pages) {
        let shift = self.population.page_sizes.shift(self.level);
        for (segment, units) in self.population.page_sizes.edges(pages) {
            if let Some(chunk) = self.population.segments.find(segment) {
                let (_, averages) = self.population.segments.parts(chunk);
                let regions = units.start() >> shift..=units.end() >> shift;
                averages.get_mut(regions).unwrap_or_default().fill(0);
            }
        }
    }
}

impl Policy for Coverage<'_> {
    fn on_miss(&mut self, miss: Miss) -> Option<Action> {
        self.back_off.miss();
        if let Err(answer) = self.population.reference(miss.page) {
            return answer;
        }
        self.left -= 1;
        if self.left > 0 {
            return None;
        }
        self.left = self.utilization.period;
        let place = self.sample().filter(|_| self.back_off.allows(self.level))?;
        Some(Action::Promote { range: self.population.page_sizes.superpage(place, self.level)?, copy: true })
    }

    fn promoted(&mut self, range: Superpage) {
        self.back_off.granted(self.level);
        self.population.promote(range);
    }

    fn refused(&mut self, range: Superpage, why: Refusal) {
        match why {
            Refusal::NoMemory => self.back_off.refused(self.level, self.utilization.period),
            Refusal::NotHere => self.forget(range.pages(self.population.page_sizes.page())),
        }
    }

    fn demote(&mut self, page: Vpn) -> Option<Superpage> {
        self.population.demote(page)
    }

    fn evicted(&mut self, _: Tlb, _: Vpn) {}

    fn flushed(&mut self, _: Tlb) {}

    fn unmapped(&mut self, pages: Pages) {
        self.population.unmapped(pages);
        self.forget(pages);
    }
}

#[cfg(test)]
mod tests {
    use super::{ONE, share};
    use crate::page_sizes::MAX_SPAN;

    /// With words of 32 bits, too.
    #[test]
    fn the_largest_region_has_a_whole_share() {
        let all = 1 << MAX_SPAN;
        assert_eq!(
            [all, all / 2, all / 4, 0].map(|units| share(units, MAX_SPAN)),
            [1 << ONE, 1 << 14, 1 << 13, 0]
        );
    }
}
