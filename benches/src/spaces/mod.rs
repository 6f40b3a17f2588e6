//! What hardware walks, as subjects: tables on a kernel's frames, and address spaces on top of them.

use std::hint::black_box;
use std::marker::PhantomData;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{self, Format};
use tlbkit_pagetable::geometry::{Va39, Va48};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::Direct;
use tlbkit_pagetable::{
    Change, Error, FlushAll, Geometry as _, Holes, Mode, Pinned, Radix, Retired, Right, Shared, Solo, Table,
    destroy,
};

use crate::Subject;
use crate::frames::Frames;

mod kernel;

pub use kernel::{Sv39Space, Sv39Space4, X86Space, X86Space4};

/// The attributes of a page that nothing has used yet.
const UNTOUCHED: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

/// The attributes of a page that the handler of a store's page fault maps: it is accessed and dirty.
pub(crate) const RIGHTS: Attr = UNTOUCHED.union(Attr::ACCESSED).union(Attr::DIRTY);

fn writable(writable: bool) -> Change {
    if writable { Change::set(Attr::WRITE) } else { Change::clear(Attr::WRITE) }
}

#[inline(always)]
pub(crate) fn range(vpn: usize, pages: usize) -> Pages {
    Pages::count(Vpn::new(vpn), pages).expect("a range")
}

/// A format that hardware walks, with its geometry and its name in each mode.
pub trait Walked: Format<Word = u64> {
    type Geometry: Radix;
    const SOLO: &'static str;
    const SHARED: &'static str;
}

impl Walked for format::Sv39 {
    type Geometry = Va39;
    const SOLO: &'static str = "Sv39 solo";
    const SHARED: &'static str = "Sv39 shared";
}

impl Walked for format::X86 {
    type Geometry = Va48;
    const SOLO: &'static str = "X86 solo";
    const SHARED: &'static str = "X86 shared";
}

type Nodes<M> = Direct<u64, M, Frames>;

type OnFrames<F, M> = Mpt<'static, <F as Walked>::Geometry, F, Nodes<M>>;

/// A table whose nodes are frames.
pub struct Raw<F: Walked, M: Mode> {
    table: OnFrames<F, M>,
    batch: Retired<'static>,
    mode: PhantomData<M>,
}

impl<F: Walked, M: Mode> Raw<F, M> {
    /// Makes a change that succeeds, and what follows it.
    #[inline(always)]
    fn change<R>(&mut self, change: impl FnOnce(&OnFrames<F, M>, Right<'_, 'static>) -> Result<R, Error>) {
        // SAFETY: the only writer, and the table's own batch.
        let right = unsafe { Right::new(self.table.writer_flag(), &mut self.batch) };
        change(&self.table, right).expect("a change that succeeds");
        self.settle();
    }

    /// Stands for the flush, or the completed shootdown.
    #[inline(always)]
    fn settle(&mut self) {
        if !self.batch.is_empty() {
            black_box(self.batch.flush());
            // SAFETY: one thread, which is not walking.
            unsafe { self.batch.complete() };
        }
    }
}

impl<F: Walked, M: Mode> Subject for Raw<F, M> {
    const NAME: &'static str = if M::SHARED { F::SHARED } else { F::SOLO };
    const BITS: u32 = F::Geometry::VA_BITS;

    fn new() -> Self {
        let nodes: &'static Nodes<M> = Box::leak(Box::new(Direct::new(Frames)));
        let table = Mpt::new(nodes).expect("memory for a root");
        let batch = table.batch();
        Self { table, batch, mode: PhantomData }
    }

    #[inline(always)]
    fn map(&mut self, vpn: usize, pfn: usize) {
        let page = Pages::one(Vpn::new(vpn));
        self.change(|table, right| table.map(right, page, Pfn::new(pfn), PageSize::K4, RIGHTS));
    }

    #[inline(always)]
    fn map_untouched(&mut self, vpn: usize, pfn: usize) {
        let page = range(vpn, 1);
        self.change(|table, right| table.map(right, page, Pfn::new(pfn), PageSize::K4, UNTOUCHED));
    }

    #[inline(always)]
    fn unmap(&mut self, vpn: usize) {
        let page = Pages::one(Vpn::new(vpn));
        self.change(|table, right| table.unmap(right, page, Holes::Refuse));
    }

    #[inline(always)]
    fn translate(&self, va: usize) -> Option<usize> {
        // SAFETY: nothing is reclaimed during the call.
        self.table.translate(unsafe { Pinned::by(self) }, VirtAddr::new(va)).map(|pa| pa.get())
    }

    fn is_writable(&self, vpn: usize) -> bool {
        // SAFETY: nothing is reclaimed during the call.
        let leaf = self.table.lookup(unsafe { Pinned::by(self) }, VirtAddr::new(vpn << 12));
        leaf.is_some_and(|leaf| leaf.attr.contains(Attr::WRITE))
    }

    #[inline(always)]
    fn map_range(&mut self, vpn: usize, pfn: usize, pages: usize) {
        self.change(|table, right| table.map(right, range(vpn, pages), Pfn::new(pfn), PageSize::K4, RIGHTS));
    }

    #[inline(always)]
    fn unmap_range(&mut self, vpn: usize, pages: usize) {
        self.change(|table, right| table.unmap(right, range(vpn, pages), Holes::Refuse));
    }

    #[inline(always)]
    fn protect_range(&mut self, vpn: usize, pages: usize, write: bool) {
        self.change(|table, right| table.protect(right, range(vpn, pages), Holes::Refuse, writable(write)));
    }

    #[inline(always)]
    fn replace(&mut self, vpn: usize, pfn: usize) {
        let (at, frame) = (VirtAddr::new(vpn << 12), Pfn::new(pfn));
        self.change(|table, right| table.replace(right, at, frame, RIGHTS, FlushAll::in_place(&mut |_| ())));
    }

    fn destroy(self) {
        // SAFETY: one thread, which is not walking.
        unsafe { destroy(self.table).reclaim() };
    }
}

pub type Sv39Solo = Raw<format::Sv39, Solo>;
pub type Sv39Shared = Raw<format::Sv39, Shared>;
pub type X86Solo = Raw<format::X86, Solo>;
pub type X86Shared = Raw<format::X86, Shared>;
