//! The forms of the cache as the machine drives them.

use tlbkit_addr::{Pages, VirtAddr};
use tlbkit_stlb::{Cache, Integrated, Invalidate, Layout, Ptlb, Rank, Shared, Space, Ticket};

use super::{Subject, Tlb};

/// Any per-CPU cache, alone.
pub(crate) struct Alone<C>(pub(crate) C);

/// A prefetch TLB, alone: every miss is a walk.
pub(crate) struct Prefetching<C>(pub(crate) C);

/// Prefetching from the cache itself.
pub(crate) struct Both<C>(pub(crate) C);

/// The shared form, on one CPU.
pub(crate) struct OfMany<'a, L: Layout<Tag = u64, Data = u64>, const SETS: usize, const WAYS: usize> {
    cache: Shared<'a, L, SETS, WAYS>,
    ticket: Option<Ticket>,
}

impl<'a, L: Layout<Tag = u64, Data = u64>, const SETS: usize, const WAYS: usize> OfMany<'a, L, SETS, WAYS> {
    pub(crate) const fn new(cache: Shared<'a, L, SETS, WAYS>) -> Self {
        Self { cache, ticket: None }
    }
}

macro_rules! invalidate {
    ($([$($generics:tt)*] $subject:ty),+) => {$(
        impl<$($generics)*> Invalidate<L> for $subject {
            fn invalidate_pages(&mut self, space: Space<L>, pages: Pages) {
                self.0.invalidate_pages(space, pages);
            }
            fn invalidate_global(&mut self, pages: Pages) {
                self.0.invalidate_global(pages);
            }
            fn invalidate_space(&mut self, space: Space<L>) {
                self.0.invalidate_space(space);
            }
            fn invalidate_all(&mut self) {
                self.0.invalidate_all();
            }
        }
    )+};
}
invalidate!([L: Layout, C: Invalidate<L>] Alone<C>, [L: Layout, C: Invalidate<L>] Prefetching<C>,
    [L: Layout, C: Invalidate<L>] Both<C>);

impl<L: Layout<Data = u64>, C: Cache<L>> Subject<L> for Alone<C> {
    fn find(&mut self, at: VirtAddr, space: Space<L>) -> Option<u64> {
        self.0.find(at, space).map(|found| found.data)
    }
    fn fill(&mut self, at: VirtAddr, space: Space<L>, data: u64) {
        self.0.fill(at, space, data);
    }
}

impl<L: Layout<Data = u64>, const SLOTS: usize> Subject<L> for Prefetching<Ptlb<'_, L, SLOTS>> {
    fn find(&mut self, _: VirtAddr, _: Space<L>) -> Option<u64> {
        None
    }
    fn fill(&mut self, _: VirtAddr, _: Space<L>, _: u64) {}
    fn record(&mut self, at: VirtAddr, space: Space<L>, tlb: &mut Tlb) {
        self.0.record(at, space, tlb);
    }
    fn prefetch(&mut self, at: VirtAddr, space: Space<L>, tlb: &mut Tlb) -> Option<u64> {
        self.0.prefetch(at, space, tlb)
    }
}

impl<L: Layout<Data = u64>, C: Cache<L>> Subject<L> for Both<Integrated<L, C>> {
    fn find(&mut self, at: VirtAddr, space: Space<L>) -> Option<u64> {
        self.0.find(at, space).map(|found| found.data)
    }
    fn fill(&mut self, at: VirtAddr, space: Space<L>, data: u64) {
        self.0.fill(at, space, data);
    }
    fn record(&mut self, at: VirtAddr, space: Space<L>, tlb: &mut Tlb) {
        self.0.record(at, space, Rank::Lower, tlb);
    }
    fn prefetch(&mut self, at: VirtAddr, space: Space<L>, tlb: &mut Tlb) -> Option<u64> {
        self.0.prefetch(at, space, Rank::Lower, tlb)
    }
}

impl<L: Layout<Tag = u64, Data = u64>, const SETS: usize, const WAYS: usize> Invalidate<L>
    for OfMany<'_, L, SETS, WAYS>
{
    fn invalidate_pages(&mut self, space: Space<L>, pages: Pages) {
        self.cache.invalidate_pages(space, pages);
    }
    fn invalidate_global(&mut self, pages: Pages) {
        self.cache.invalidate_global(pages);
    }
    fn invalidate_space(&mut self, space: Space<L>) {
        self.cache.invalidate_space(space);
    }
    fn invalidate_all(&mut self) {
        self.cache.invalidate_all();
    }
}

impl<L: Layout<Tag = u64, Data = u64>, const SETS: usize, const WAYS: usize> Subject<L>
    for OfMany<'_, L, SETS, WAYS>
{
    fn find(&mut self, at: VirtAddr, space: Space<L>) -> Option<u64> {
        match self.cache.lookup(at, space) {
            Ok(data) => Some(data),
            Err(ticket) => {
                self.ticket = Some(ticket);
                None
            }
        }
    }
    fn fill(&mut self, at: VirtAddr, space: Space<L>, data: u64) {
        assert!(self.cache.fill(self.ticket.take().unwrap(), at, space, data), "nobody else is there");
    }
}
