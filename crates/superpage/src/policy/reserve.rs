//! Promotion without copying, from reservations.
//!
//! - Talluri and Hill (ASPLOS 1994): at the first touch of an aligned region reserve contiguous memory for all of it,
//!   and place every page at its own offset there; a promotion then moves nothing. Their entry with valid bits for its
//!   parts (the partial subblock) is [`Reservation::partial`]: it maps the region from its second page on, and what
//!   has not been touched stays unallocated behind its valid bit.
//! - Navarro et al. (OSDI 2002): several sizes; a region is promoted to the largest size all of whose pages are
//!   populated, step by step as it fills. Reservations may be taken back: under pressure the one that was added to
//!   least recently is broken up, and what it holds in vain goes back.
//! - FreeBSD (`vm_reserv.c`) has the same for one large size an architecture, and breaks the partly populated
//!   reservation that has been unchanged for longest.

use tlbkit_addr::{PageSize, Pages, Vpn};

use super::{Action, Miss, Policy, Refusal, Superpage, Tlb};
use crate::population::Population;
use crate::{PageSizes, PolicyMemory, SegmentMemory};

/// Promotes reserved regions as they fill, without copying.
///
/// The kernel asks [`reservation`](Self::reservation) where to place a page that it allocates. A promotion that it
/// refuses for want of memory has lost its reservation: nothing in its segment is asked for again until it is unmapped.
#[derive(Debug)]
pub struct Reservation<'m> {
    population: Population<'m>,
    /// The level that is reserved.
    reserved: usize,
    partial: bool,
    /// First touches so far, by which segments are marked.
    clock: u64,
    told: bool,
}

/// A segment's mark: its reservation is broken. The clock does not come to it in the age of the universe.
const BROKEN: u64 = u64::MAX;

impl<'m> Reservation<'m> {
    /// Returns what one segment takes.
    pub fn segment_memory(page_sizes: &PageSizes) -> SegmentMemory {
        Population::segment_memory(page_sizes, true)
    }

    /// Makes a policy that reserves segments, the largest size, and promotes what is fully populated.
    pub fn new(page_sizes: PageSizes, memory: PolicyMemory<'m>) -> Self {
        let reserved = page_sizes.top();
        Self {
            population: Population::new(page_sizes, true, memory),
            reserved,
            partial: false,
            clock: 0,
            told: false,
        }
    }

    /// Makes a policy that reserves 64 KB (or the TLB's next larger size) and maps it with one entry as soon as
    /// two of its units are populated. The TLB must have a valid bit for each part of such an entry.
    pub fn partial(page_sizes: PageSizes, memory: PolicyMemory<'m>) -> Self {
        let reserved = page_sizes.level_reaching(PageSize::K64).max(1);
        Self {
            population: Population::new(page_sizes, true, memory),
            reserved,
            partial: true,
            clock: 0,
            told: false,
        }
    }

    /// Returns the region to reserve for `page`: it belongs at its own offset there.
    pub fn reservation(&self, page: Vpn) -> Option<Superpage> {
        let page_sizes = &self.population.page_sizes;
        page_sizes.superpage(page_sizes.locate(page), self.reserved)
    }

    /// Memory is short: returns the segment that was populated least recently among those that are not full, whose
    /// reservations the kernel may now break up. It will not be promoted further; superpages that it has stay.
    ///
    /// Costs a pass over the touched segments.
    pub fn under_pressure(&mut self) -> Option<Superpage> {
        let page_sizes = self.population.page_sizes;
        let oldest = self
            .population
            .marks()
            .filter(|&(_, mark, populated)| mark != BROKEN && populated < page_sizes.units_per_segment())
            .min_by_key(|&(_, mark, _)| mark)?
            .0;
        let place = crate::page_sizes::Place { segment: oldest, unit: 0 };
        self.population.mark(place, BROKEN);
        page_sizes.superpage(place, page_sizes.top())
    }
}

impl Policy for Reservation<'_> {
    fn on_miss(&mut self, miss: Miss) -> Option<Action> {
        let Ok((place, mapped, new)) = self.population.reference(miss.page) else {
            let first = !self.told;
            self.told = true;
            return first.then_some(Action::OutOfSegments { page: miss.page });
        };
        if !new || self.population.mark_of(place) == BROKEN {
            return None;
        }
        self.clock += 1;
        self.population.mark(place, self.clock);
        let page_sizes = self.population.page_sizes;
        let level = if self.partial {
            if self.population.populated(place, self.reserved) > 1 { self.reserved } else { 0 }
        } else {
            self.population.full(place, mapped)
        };
        if level <= mapped {
            return None;
        }
        Some(Action::Promote { range: page_sizes.superpage(place, level)?, copy: false })
    }

    fn promoted(&mut self, range: Superpage) {
        self.population.promote(range);
    }

    fn refused(&mut self, range: Superpage, why: Refusal) {
        let Some((place, _)) = self.population.page_sizes.find(range) else { return };
        match why {
            Refusal::NoMemory => self.population.mark(place, BROKEN),
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
