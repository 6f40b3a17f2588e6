//! The forms of the cache as the machine drives them.

use tlbkit_addr::{Pages, VirtAddr};
use tlbkit_stlb::{AsidTag, Cache, EntryLayout, Integrated, Invalidate, Ptlb, Rank};

use super::{Subject, Tlb};

/// Any per-CPU cache, alone.
pub(crate) struct Alone<C>(pub(crate) C);

/// A prefetch TLB, alone: every miss is a walk.
pub(crate) struct Prefetching<C>(pub(crate) C);

/// Prefetching from the cache itself.
pub(crate) struct Both<C>(pub(crate) C);

macro_rules! invalidate {
    ($([$($generics:tt)*] $subject:ty),+) => {$(
        impl<$($generics)*> Invalidate<L> for $subject {
            fn invalidate_pages(&mut self, space: AsidTag<L>, pages: Pages) {
                self.0.invalidate_pages(space, pages);
            }
            fn invalidate_global(&mut self, pages: Pages) {
                self.0.invalidate_global(pages);
            }
            fn invalidate_space(&mut self, space: AsidTag<L>) {
                self.0.invalidate_space(space);
            }
            fn invalidate_all(&mut self) {
                self.0.invalidate_all();
            }
        }
    )+};
}
invalidate!([L: EntryLayout, C: Invalidate<L>] Alone<C>, [L: EntryLayout, C: Invalidate<L>] Prefetching<C>,
    [L: EntryLayout, C: Invalidate<L>] Both<C>);

impl<L: EntryLayout<Data = u64>, C: Cache<L>> Subject<L> for Alone<C> {
    fn find(&mut self, at: VirtAddr, space: AsidTag<L>) -> Option<u64> {
        self.0.find(at, space).map(|found| found.data)
    }
    fn fill(&mut self, at: VirtAddr, space: AsidTag<L>, data: u64) {
        self.0.fill(at, space, data);
    }
}

impl<L: EntryLayout<Data = u64>, const SLOTS: usize> Subject<L> for Prefetching<Ptlb<'_, L, SLOTS>> {
    fn find(&mut self, _: VirtAddr, _: AsidTag<L>) -> Option<u64> {
        None
    }
    fn fill(&mut self, _: VirtAddr, _: AsidTag<L>, _: u64) {}
    fn record(&mut self, at: VirtAddr, space: AsidTag<L>, tlb: &mut Tlb) {
        self.0.record(at, space, tlb);
    }
    fn prefetch(&mut self, at: VirtAddr, space: AsidTag<L>, tlb: &mut Tlb) -> Option<u64> {
        self.0.prefetch(at, space, tlb)
    }
}

impl<L: EntryLayout<Data = u64>, C: Cache<L>> Subject<L> for Both<Integrated<L, C>> {
    fn find(&mut self, at: VirtAddr, space: AsidTag<L>) -> Option<u64> {
        self.0.find(at, space).map(|found| found.data)
    }
    fn fill(&mut self, at: VirtAddr, space: AsidTag<L>, data: u64) {
        self.0.fill(at, space, data);
    }
    fn record(&mut self, at: VirtAddr, space: AsidTag<L>, tlb: &mut Tlb) {
        self.0.record(at, space, Rank::Lower, tlb);
    }
    fn prefetch(&mut self, at: VirtAddr, space: AsidTag<L>, tlb: &mut Tlb) -> Option<u64> {
        self.0.prefetch(at, space, Rank::Lower, tlb)
    }
}
