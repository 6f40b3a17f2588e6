//! Promotion without copying, from reservations.
//!
//! - Talluri and Hill (ASPLOS 1994): at the first touch of an aligned region the kernel reserves contiguous memory for the
//!   whole region, and places every page at its own offset there. So a promotion copies nothing. [`Reservation::partial`] is
//!   for their TLB entry with a valid bit for each part (partial subblock): one entry maps the region from the second
//!   touched page on, and pages that have not been touched stay unallocated, with their valid bits clear.
//! - Navarro et al. (OSDI 2002): several sizes. The policy promotes the largest superpage whose pages are all populated,
//!   step by step as a region fills. When memory is short, the kernel breaks the reservation in which a page was populated
//!   least recently, and frees the part that is not populated.
//! - FreeBSD (`vm_reserv.c`) does the same for one superpage size of each architecture. It breaks the partly populated
//!   reservation that has been unchanged for the longest time.

use tlbkit_addr::{PageSize, Pages, Vpn};

use super::{Action, Miss, Policy, Refusal, Superpage, Tlb};
use crate::population::{MARK, Population};
use crate::{PageSizes, PolicyMemory, SegmentMemory};

/// Promotes reserved regions as they fill, without copying.
///
/// The kernel asks [`reservation`](Self::reservation) where to place a page that it allocates. If the kernel refuses a
/// promotion for lack of memory, the reservation is lost: the policy asks for no promotion in its segment until the segment
/// is unmapped.
#[derive(Debug)]
pub struct Reservation<'m> {
    population: Population<'m>,
    /// The level of the regions that are reserved.
    reserved: usize,
    partial: bool,
    /// The number of first touches so far. A segment's mark is the clock at the last first touch within it.
    clock: u64,
}

/// The mark of a segment whose reservation is broken. The clock never reaches this number.
const BROKEN: u64 = u64::MAX;

impl<'m> Reservation<'m> {
    /// Returns the memory that one segment takes.
    pub fn segment_memory(page_sizes: &PageSizes) -> SegmentMemory {
        Population::segment_memory(page_sizes, MARK)
    }

    /// Makes a policy that reserves whole segments, the largest size, and promotes fully populated superpages.
    pub fn new(page_sizes: PageSizes, memory: PolicyMemory<'m>) -> Self {
        let reserved = page_sizes.top();
        Self { population: Population::new(page_sizes, MARK, memory), reserved, partial: false, clock: 0 }
    }

    /// Makes a policy that reserves 64 KB (or the TLB's next larger size, or else its largest), and maps the region with one
    /// entry as soon as two of its units are populated. The TLB must have a valid bit for each part of such an entry.
    pub fn partial(page_sizes: PageSizes, memory: PolicyMemory<'m>) -> Self {
        let reserved = page_sizes.level_reaching(PageSize::K64).max(1);
        Self { population: Population::new(page_sizes, MARK, memory), reserved, partial: true, clock: 0 }
    }

    /// Returns the region to reserve for `page`. The kernel must place `page` at its own offset within that region.
    pub fn reservation(&self, page: Vpn) -> Option<Superpage> {
        let page_sizes = &self.population.page_sizes;
        page_sizes.superpage(page_sizes.locate(page), self.reserved)
    }

    /// Returns a segment whose reservations the kernel may break, for a kernel that is short of memory: among the segments
    /// that are not fully populated, the one in which a page was populated least recently. The policy promotes nothing more
    /// in this segment; its superpages stay.
    ///
    /// The time is a pass over the touched segments.
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
        let (place, mapped, new) = match self.population.reference(miss.page) {
            Ok(referenced) => referenced,
            Err(answer) => return answer,
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
