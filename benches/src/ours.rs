//! Our tables as subjects: 48-bit spaces, the compact 64-bit format.

use std::marker::PhantomData;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Change, Error, Holes, Pinned, Retired, Shared, Solo, Table, destroy, mpt};

use crate::Subject;

type Storage<M> = Slab<'static, u64, M>;

/// A table on a storage of its own, which goes with it.
pub struct Ours<T, M: tlbkit_pagetable::Mode> {
    table: T,
    batch: Retired<'static>,
    mode: PhantomData<M>,
}

/// How to make a table and what to call it.
pub trait Make<M: tlbkit_pagetable::Mode>: Table<'static> + Sized {
    const NAME: &'static str;
    fn make(nodes: &'static Storage<M>) -> Result<Self, Error>;
}

impl Make<Solo> for mpt::Mpt4<'static, Storage<Solo>> {
    const NAME: &'static str = "MPT solo";
    fn make(nodes: &'static Storage<Solo>) -> Result<Self, Error> {
        Self::new(nodes)
    }
}

impl Make<Shared> for mpt::Mpt4<'static, Storage<Shared>> {
    const NAME: &'static str = "MPT shared";
    fn make(nodes: &'static Storage<Shared>) -> Result<Self, Error> {
        Self::new(nodes)
    }
}

/// One storage for all tables of a mode on this thread, as a kernel has: 2 GiB, touched as they are used.
fn storage<M: tlbkit_pagetable::Mode>() -> &'static Storage<M> {
    use std::any::{Any, TypeId};
    use std::cell::RefCell;
    use std::collections::HashMap;
    thread_local! {
        static STORAGES: RefCell<HashMap<TypeId, &'static dyn Any>> = RefCell::default();
    }
    STORAGES.with_borrow_mut(|storages| {
        let storage = *storages.entry(TypeId::of::<M>()).or_insert_with(|| {
            let layout = std::alloc::Layout::array::<Chunk>(CHUNKS).expect("a layout");
            // SAFETY: the layout is not empty, zeroed chunks are chunks, and the memory is never freed.
            let memory = unsafe {
                let start = std::alloc::alloc_zeroed(layout).cast::<Chunk>();
                assert!(!start.is_null(), "no memory for the storage");
                std::slice::from_raw_parts_mut(start, CHUNKS)
            };
            let slab: Storage<M> = Slab::new(memory, 0).expect("a slab of that size");
            Box::leak(Box::new(slab))
        });
        storage.downcast_ref().expect("stored under its own type")
    })
}

const CHUNKS: usize = 1 << 19;

const RIGHTS: Attr = Attr::READ.union(Attr::WRITE);

impl<M: tlbkit_pagetable::Mode, T: Make<M>> Ours<T, M> {
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

impl<M: tlbkit_pagetable::Mode, T: Make<M>> Subject for Ours<T, M> {
    const NAME: &'static str = T::NAME;

    fn new() -> Self {
        let table = T::make(storage::<M>()).expect("memory for a root");
        let batch = table.batch();
        Self { table, batch, mode: PhantomData }
    }

    #[inline(always)]
    fn map(&mut self, vpn: usize, pfn: usize) {
        self.map_range(vpn, pfn, 1);
    }

    #[inline(always)]
    fn unmap(&mut self, vpn: usize) {
        self.unmap_range(vpn, 1);
    }

    #[inline(always)]
    fn translate(&self, va: usize) -> Option<usize> {
        // SAFETY: nothing is reclaimed during the call.
        self.table.translate(unsafe { Pinned::by(self) }, VirtAddr::new(va)).map(|pa| pa.get())
    }

    #[inline(always)]
    fn map_range(&mut self, vpn: usize, pfn: usize, pages: usize) {
        let pages = Pages::count(Vpn::new(vpn), pages).expect("a range");
        // SAFETY: the only writer, and the table's own batch; likewise below.
        unsafe { self.table.map(&mut self.batch, pages, Pfn::new(pfn), PageSize::K4, RIGHTS) }
            .expect("free pages");
        self.settle();
    }

    #[inline(always)]
    fn unmap_range(&mut self, vpn: usize, pages: usize) {
        let pages = Pages::count(Vpn::new(vpn), pages).expect("a range");
        // SAFETY: as above.
        unsafe { self.table.unmap(&mut self.batch, pages, Holes::Refuse, None) }.expect("mapped pages");
        self.settle();
    }

    #[inline(always)]
    fn protect_range(&mut self, vpn: usize, pages: usize, writable: bool) {
        let pages = Pages::count(Vpn::new(vpn), pages).expect("a range");
        let change = if writable { Change::set(Attr::WRITE) } else { Change::clear(Attr::WRITE) };
        // SAFETY: as above.
        unsafe { self.table.protect(&mut self.batch, pages, Holes::Refuse, change) }.expect("mapped pages");
        self.settle();
    }

    fn destroy(self) {
        // SAFETY: one thread, which is not walking.
        unsafe { destroy(self.table).reclaim() };
    }
}

pub type MptSolo = Ours<mpt::Mpt4<'static, Storage<Solo>>, Solo>;
pub type MptShared = Ours<mpt::Mpt4<'static, Storage<Shared>>, Shared>;
