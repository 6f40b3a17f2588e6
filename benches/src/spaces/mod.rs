//! What hardware walks, as subjects: tables on a kernel's frames, and address spaces on top of them.

use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, PhysAddr, VirtAddr, Vpn};
use tlbkit_pagetable::format::{self, Format};
use tlbkit_pagetable::geometry::{Va39, Va48};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Direct, FrameSource, Record};
use tlbkit_pagetable::{
    Change, Error, FlushAll, Geometry as _, Holes, Mode, Pinned, Radix, Retired, Right, Shared, Solo, Table,
    destroy,
};

use crate::Subject;

mod kernel;

pub use kernel::{Sv39Space, Sv39Space4, X86Space, X86Space4};

/// Frames with a free list through them, as [`peers`](crate::peers) have them. Frame 0 is never handed out.
#[derive(Debug)]
pub struct Frames;

/// Bytes of memory, which begins where the linker has put it: a kernel knows its direct map as a constant, too.
const ARENA: usize = 1 << 30;
std::arch::global_asm!(
    ".bss",
    ".balign 4096",
    ".globl tlbkit_benches_arena",
    "tlbkit_benches_arena:",
    ".zero 1073741824",
    ".text"
);
unsafe extern "C" {
    #[link_name = "tlbkit_benches_arena"]
    static MEMORY: u8;
}
static RECORDS: [Record; ARENA / 4096] = [const { Record::new(0) }; ARENA / 4096];
static FRESH: AtomicUsize = AtomicUsize::new(4096);
static FREE: AtomicUsize = AtomicUsize::new(0);
/// Free frames that are zero but for the address of the next one.
static ZEROED: AtomicUsize = AtomicUsize::new(0);

impl Frames {
    #[inline(always)]
    fn pointer(&self, frame: usize) -> *mut u8 {
        (&raw const MEMORY).cast_mut().wrapping_add(frame)
    }

    #[inline]
    fn take_zeroed(&self) -> Option<PhysAddr> {
        let free = ZEROED.load(Ordering::Relaxed);
        if free == 0 {
            return None;
        }
        // SAFETY: a free frame of the arena holds the next one's address.
        ZEROED.store(unsafe { self.pointer(free).cast::<usize>().replace(0) }, Ordering::Relaxed);
        Some(PhysAddr::new(free))
    }

    #[inline]
    fn give_zeroed(&self, frame: PhysAddr) {
        // SAFETY: the frame is of the arena, and no code uses it any more.
        unsafe { self.pointer(frame.get()).cast::<usize>().write(ZEROED.load(Ordering::Relaxed)) };
        ZEROED.store(frame.get(), Ordering::Relaxed);
    }

    #[inline]
    fn take(&self) -> Option<PhysAddr> {
        let free = FREE.load(Ordering::Relaxed);
        if free != 0 {
            // SAFETY: a free frame of the arena holds the next one's address.
            FREE.store(unsafe { self.pointer(free).cast::<usize>().read() }, Ordering::Relaxed);
            return Some(PhysAddr::new(free));
        }
        let fresh = FRESH.load(Ordering::Relaxed);
        FRESH.store(fresh + 4096, Ordering::Relaxed);
        (fresh < ARENA).then_some(PhysAddr::new(fresh))
    }

    #[inline]
    fn give(&self, frame: PhysAddr) {
        // SAFETY: the frame is of the arena, and no code uses it any more.
        unsafe { self.pointer(frame.get()).cast::<usize>().write(FREE.load(Ordering::Relaxed)) };
        FREE.store(frame.get(), Ordering::Relaxed);
    }

    #[inline(always)]
    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        RECORDS.get(frame.get() >> 12)
    }
}

// SAFETY: each frame is handed out once until it is given back, and has its memory and its record. Those that are given back
// zeroed are zero when they are handed out again.
unsafe impl FrameSource for Frames {
    #[inline]
    fn take(&self) -> Option<PhysAddr> {
        self.take()
    }

    #[inline]
    fn give(&self, frame: PhysAddr) {
        self.give(frame);
    }

    #[inline]
    fn take_zeroed(&self) -> Option<PhysAddr> {
        self.take_zeroed()
    }

    #[inline]
    fn give_zeroed(&self, frame: PhysAddr) {
        self.give_zeroed(frame);
    }

    #[inline(always)]
    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        self.pointer(frame.get())
    }

    #[inline(always)]
    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.record(frame)
    }
}

/// The attributes of a page that the handler of a store's page fault maps: it is accessed and dirty.
const RIGHTS: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER).union(Attr::ACCESSED).union(Attr::DIRTY);

fn writable(writable: bool) -> Change {
    if writable { Change::set(Attr::WRITE) } else { Change::clear(Attr::WRITE) }
}

#[inline(always)]
fn range(vpn: usize, pages: usize) -> Pages {
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
