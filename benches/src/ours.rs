//! Tables as subjects: whatever implements `Table`. Ours have 48-bit spaces and the compact 64-bit format.

use std::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::geometry::Va48;
use tlbkit_pagetable::nodes::{Chunk, Identity, Slab};
use tlbkit_pagetable::{
    Change, Error, FlushAll, Holes, Mode, Pinned, Retired, Right, Shared, Solo, Table, cpt, destroy, format,
    gpt, hpt, lpt, mpt,
};

use crate::work::half;
use crate::{Iterate, Resize, Subject, arena};

/// Storage for nodes whose addresses are the host's.
pub type Storage<M> = Slab<'static, u64, M, Identity>;

/// A table as a subject.
pub struct Ours<K: Make> {
    table: K::Table,
    batch: Retired<'static>,
}

/// A kind of table: what to call it, the bits of its addresses, and how to make one. It need not be the table, which may be a type
/// of another crate.
pub trait Make: 'static {
    const NAME: &'static str;
    const BITS: u32;
    type Mode: Mode;
    type Table: Table<'static>;
    fn make(nodes: &'static Storage<Self::Mode>) -> Result<Self::Table, Error>;
}

/// Does something with each of these tables.
pub trait Each {
    /// Does it with one of them.
    fn table<S: Subject + Iterate + Resize + 'static>(&mut self);
}

/// Names the tables, and lists them in both modes.
macro_rules! tables {
    ($($name:literal: $table:ident, $make:expr;)*) => {
        $(
            impl Make for $table<Solo> {
                const NAME: &'static str = concat!($name, " solo");
                const BITS: u32 = 48;
                type Mode = Solo;
                type Table = Self;
                fn make(nodes: &'static Storage<Solo>) -> Result<Self, Error> {
                    $make(nodes)
                }
            }

            impl Make for $table<Shared> {
                const NAME: &'static str = concat!($name, " shared");
                const BITS: u32 = 48;
                type Mode = Shared;
                type Table = Self;
                fn make(nodes: &'static Storage<Shared>) -> Result<Self, Error> {
                    $make(nodes)
                }
            }
        )*

        /// Hands each table to `each`, in both modes.
        pub fn each(each: &mut impl Each) {
            $(
                each.table::<Ours<$table<Solo>>>();
                each.table::<Ours<$table<Shared>>>();
            )*
        }
    };
}

type Mpt<M> = mpt::Mpt4<'static, Storage<M>>;
/// In the upper half, of which nothing is mapped here. No MMU translates the array on this host, so a lookup finds it from
/// the root, as a kernel's own does.
type Lpt<M> = lpt::Lpt<'static, Va48, format::Compact, Storage<M>, 0xffff_8000_0000_0000>;
type G16<M> = gpt::Gpt<'static, Va48, format::Compact, Storage<M>, gpt::OneWord, gpt::Fixed<4>>;
type Ga<M> = gpt::Gpt<'static, Va48, format::Compact, Storage<M>, gpt::OneWord, gpt::Adaptive>;
type Hr<M> = hpt::Hr<'static, Storage<M>>;
type Cpt4<M> = cpt::Cpt4<'static, Storage<M>>;
type Cpt8<M> = cpt::Cpt8<'static, Storage<M>>;

tables! {
    "MPT": Mpt, mpt::Mpt4::new;
    "LPT": Lpt, lpt::Lpt::new;
    "G16": G16, gpt::Gpt::new;
    "GA": Ga, gpt::Gpt::new;
    "HR": Hr, hpt::Hr::new;
    "CPT4": Cpt4, cpt::Cpt4::new;
    "CPT8": Cpt8, cpt::Cpt8::new;
}

/// One storage for all tables of a mode on this thread, as a kernel has: 2 GiB, touched as they are used.
pub(crate) fn storage<M: Mode>() -> &'static Storage<M> {
    use std::any::{Any, TypeId};
    use std::cell::RefCell;
    use std::collections::HashMap;
    thread_local! {
        static STORAGES: RefCell<HashMap<TypeId, &'static dyn Any>> = RefCell::default();
    }
    STORAGES.with_borrow_mut(|storages| {
        let storage = *storages.entry(TypeId::of::<M>()).or_insert_with(|| {
            // SAFETY: the arena has room for so many, zeroed chunks are chunks, and it is never freed.
            let memory = unsafe {
                std::slice::from_raw_parts_mut(arena(CHUNKS * size_of::<Chunk>()).cast::<Chunk>(), CHUNKS)
            };
            let slab: Storage<M> = Slab::identity(memory).expect("a slab of that size");
            Box::leak(Box::new(slab))
        });
        storage.downcast_ref().expect("stored under its own type")
    })
}

const CHUNKS: usize = 1 << 19;

const UNTOUCHED: Attr = Attr::READ.union(Attr::WRITE);
const RIGHTS: Attr = UNTOUCHED.union(Attr::ACCESSED).union(Attr::DIRTY);

impl<K: Make> Ours<K> {
    /// Makes a change that succeeds, and what follows it.
    #[inline(always)]
    fn change<R>(&mut self, change: impl FnOnce(&K::Table, Right<'_, 'static>) -> Result<R, Error>) {
        // SAFETY: the only writer, and the table's own batch.
        let right = unsafe { Right::new(self.table.writer_flag(), &mut self.batch) };
        change(&self.table, right).expect("a change that succeeds");
        self.settle();
    }

    /// Stands for the flush, or the completed shootdown, which costs the same whatever the table.
    #[inline(always)]
    fn settle(&mut self) {
        if !self.batch.is_empty() {
            std::hint::black_box(self.batch.flush());
            // SAFETY: one thread, which is not walking.
            unsafe { self.batch.complete() };
        }
    }
}

impl<K: Make> Subject for Ours<K> {
    const NAME: &'static str = K::NAME;
    const BITS: u32 = K::BITS;

    fn new() -> Self {
        let table = K::make(storage::<K::Mode>()).expect("memory for a root");
        let batch = table.batch();
        Self { table, batch }
    }

    #[inline(always)]
    fn map(&mut self, vpn: usize, pfn: usize) {
        let page = Pages::one(Vpn::new(vpn));
        self.change(|table, right| table.map(right, page, Pfn::new(pfn), PageSize::K4, RIGHTS));
    }

    #[inline(always)]
    fn map_untouched(&mut self, vpn: usize, pfn: usize) {
        let page = Pages::one(Vpn::new(vpn));
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
        let pages = Pages::count(Vpn::new(vpn), pages).expect("a range");
        self.change(|table, right| table.map(right, pages, Pfn::new(pfn), PageSize::K4, RIGHTS));
    }

    #[inline(always)]
    fn unmap_range(&mut self, vpn: usize, pages: usize) {
        let pages = Pages::count(Vpn::new(vpn), pages).expect("a range");
        self.change(|table, right| table.unmap(right, pages, Holes::Refuse));
    }

    #[inline(always)]
    fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
        let pages = Pages::count(Vpn::new(vpn), pages).expect("a range");
        let change = if writable { Change::set(Attr::WRITE) } else { Change::clear(Attr::WRITE) };
        self.change(|table, right| table.protect(right, pages, Holes::Refuse, change));
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

impl<K: Make> Iterate for Ours<K> {
    fn count(&self) -> usize {
        let all = Pages::new(Vpn::new(0), Vpn::new(half(K::BITS) - 1)).expect("not empty");
        let mut count = 0;
        // SAFETY: nothing is reclaimed during the call.
        let _ = self.table.for_each(unsafe { Pinned::by(self) }, all, &mut |leaf| {
            count += usize::from(leaf.attr.contains(Attr::READ));
            ControlFlow::Continue(())
        });
        count
    }
}

impl<K: Make> Ours<K> {
    fn resize(&mut self, vpn: usize, to: PageSize) {
        let pages = Pages::count(Vpn::new(vpn), <Self as Resize>::PAGES).expect("a range");
        let mut flush = |stale: &tlbkit_addr::Flush| {
            std::hint::black_box(stale);
        };
        self.change(|table, right| table.resize(right, pages, to, FlushAll::in_place(&mut flush)));
    }
}

impl<K: Make> Resize for Ours<K> {
    const PAGES: usize = 512;

    fn promote(&mut self, vpn: usize) {
        self.resize(vpn, PageSize::M2);
    }

    fn split(&mut self, vpn: usize) {
        self.resize(vpn, PageSize::K4);
    }
}
