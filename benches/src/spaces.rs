//! What hardware walks, as subjects: tables on a kernel's frames, and address spaces on top of them.

use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit::{Access, AddressSpace, Asid, CpuSet, Fault, Flush, Kernel, Mmu, Run, WalkCache, arch};
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, PhysAddr, VirtAddr, Vpn};
use tlbkit_pagetable::format::{self, Format};
use tlbkit_pagetable::geometry::{Va39, Va48};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Direct, FrameSource, Record};
use tlbkit_pagetable::{
    Change, Geometry as _, Holes, Mode, Pinned, Radix, Retired, Shared, Solo, Table, destroy,
};

use crate::{Fork, Replace, Subject};

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
        // SAFETY: the frame is of the arena, and nobody uses it any more.
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
        // SAFETY: the frame is of the arena, and nobody uses it any more.
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

const RIGHTS: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

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

/// A table whose nodes are frames.
pub struct Raw<F: Walked, M: Mode> {
    table: Mpt<'static, F::Geometry, F, Nodes<M>>,
    batch: Retired<'static>,
    mode: PhantomData<M>,
}

impl<F: Walked, M: Mode> Raw<F, M> {
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
    const HALF: usize = 1 << (F::Geometry::VA_BITS - 13);

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
        // SAFETY: the only writer, and the table's own batch; likewise below.
        unsafe { self.table.map(&mut self.batch, range(vpn, pages), Pfn::new(pfn), PageSize::K4, RIGHTS) }
            .expect("free pages");
        self.settle();
    }

    #[inline(always)]
    fn unmap_range(&mut self, vpn: usize, pages: usize) {
        // SAFETY: as above.
        unsafe { self.table.unmap(&mut self.batch, range(vpn, pages), Holes::Refuse, None) }
            .expect("mapped pages");
        self.settle();
    }

    #[inline(always)]
    fn protect_range(&mut self, vpn: usize, pages: usize, write: bool) {
        // SAFETY: as above.
        unsafe { self.table.protect(&mut self.batch, range(vpn, pages), Holes::Refuse, writable(write)) }
            .expect("mapped pages");
        self.settle();
    }

    fn destroy(self) {
        // SAFETY: one thread, which is not walking.
        unsafe { destroy(self.table).reclaim() };
    }
}

impl<F: Walked, M: Mode> Replace for Raw<F, M> {
    #[inline(always)]
    fn replace(&mut self, vpn: usize, pfn: usize) {
        let (at, frame) = (VirtAddr::new(vpn << 12), Pfn::new(pfn));
        // SAFETY: as above, and nobody needs the page.
        unsafe { self.table.replace(&mut self.batch, at, frame, RIGHTS, &mut |_| ()) }
            .expect("a mapped page");
        self.settle();
    }
}

pub type Sv39Solo = Raw<format::Sv39, Solo>;
pub type Sv39Shared = Raw<format::Sv39, Shared>;
pub type X86Solo = Raw<format::X86, Solo>;
pub type X86Shared = Raw<format::X86, Shared>;

/// A kernel whose CPU masks interrupts by a flag of its own and flushes by address.
pub struct Host(Frames);

static CPU: AtomicUsize = AtomicUsize::new(0);
/// What the interrupt enable register holds.
static ENABLED: AtomicUsize = AtomicUsize::new(1);
static RELEASED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: as for `Frames`. There is one thread, no TLB, and nobody walks.
unsafe impl Kernel for Host {
    type Machine = arch::Sv39;

    #[inline(always)]
    fn cpu(&self) -> usize {
        CPU.load(Ordering::Relaxed)
    }

    #[inline]
    fn take_frame(&self) -> Option<PhysAddr> {
        self.0.take()
    }

    #[inline]
    fn give_frame(&self, frame: PhysAddr) {
        self.0.give(frame);
    }

    #[inline]
    fn take_zeroed_frame(&self) -> Option<PhysAddr> {
        self.0.take_zeroed()
    }

    #[inline]
    fn give_zeroed_frame(&self, frame: PhysAddr) {
        self.0.give_zeroed(frame);
    }

    #[inline(always)]
    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        self.0.pointer(frame.get())
    }

    #[inline(always)]
    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.0.record(frame)
    }

    #[inline]
    fn release(&self, run: Run) {
        RELEASED.store(RELEASED.load(Ordering::Relaxed) + run.len, Ordering::Relaxed);
    }

    #[inline]
    fn share(&self, run: Run) {
        RELEASED.store(RELEASED.load(Ordering::Relaxed).wrapping_sub(run.len), Ordering::Relaxed);
    }

    // For one page the compiler folds it to what the instruction takes.
    #[inline(always)]
    fn flush(&self, flush: &Flush, asid: Option<Asid>) {
        match flush.by_address(WalkCache::Whole, 64) {
            Some(pages) => {
                for page in pages {
                    black_box((page.get() << 12, asid));
                }
            }
            None => {
                black_box(asid);
            }
        }
    }

    #[inline]
    fn interrupt(&self, cpus: CpuSet) {
        unreachable!("{cpus:?} run nothing")
    }

    #[inline(always)]
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        let before = ENABLED.load(Ordering::Relaxed);
        ENABLED.store(0, Ordering::Relaxed);
        let result = f();
        ENABLED.store(before, Ordering::Relaxed);
        result
    }

    #[inline]
    fn load(&self, root: usize) {
        black_box(root);
    }

    #[inline]
    fn unload(&self) {}
}

/// An address space that CPU 0 runs, on a machine of `CPUS` CPUs.
pub struct Space<const CPUS: usize>(AddressSpace<Host, CPUS>);

impl<const CPUS: usize> Subject for Space<CPUS> {
    const NAME: &'static str = if CPUS == 1 { "AddressSpace Sv39" } else { "AddressSpace Sv39, 4 CPUs" };
    const HALF: usize = 1 << 26;

    fn new() -> Self {
        let mmu: &'static Mmu<Host, CPUS> = Box::leak(Box::new(Mmu::new(Host(Frames))));
        let space = AddressSpace::new(mmu).expect("memory");
        space.activate().expect("no call is under way");
        Self(space)
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
        self.0.translate(VirtAddr::new(va)).map(|at| at.get())
    }

    #[inline(always)]
    fn map_range(&mut self, vpn: usize, pfn: usize, pages: usize) {
        self.0.map(range(vpn, pages), Pfn::new(pfn), RIGHTS).expect("free pages");
    }

    #[inline(always)]
    fn unmap_range(&mut self, vpn: usize, pages: usize) {
        assert_eq!(self.0.unmap(range(vpn, pages)), Ok(pages));
    }

    #[inline(always)]
    fn protect_range(&mut self, vpn: usize, pages: usize, write: bool) {
        assert_eq!(self.0.protect(range(vpn, pages), writable(write)), Ok(pages));
    }

    fn destroy(self) {
        let mmu = self.0.mmu();
        mmu.idle().expect("no call is under way");
        drop(self.0);
    }
}

impl<const CPUS: usize> Replace for Space<CPUS> {
    #[inline(always)]
    fn replace(&mut self, vpn: usize, pfn: usize) {
        self.0.replace(VirtAddr::new(vpn << 12), Pfn::new(pfn), RIGHTS).expect("a mapped page");
    }
}

impl<const CPUS: usize> Fork for Space<CPUS> {
    #[inline(always)]
    fn empty(&mut self) {
        self.0.edit(|_| Ok(())).expect("nothing fails");
    }

    #[inline(always)]
    fn fault(&mut self, vpn: usize) -> bool {
        self.0.fault(VirtAddr::new(vpn << 12), Access::STORE.by_user()) == Ok(Fault::Retry)
    }

    #[inline(always)]
    fn fork(&self) -> Self {
        Self(self.0.fork().expect("memory"))
    }

    fn unshare(&mut self, vpn: usize, pages: usize) {
        let change = Change { clear: Attr::COPY_ON_WRITE, set: Attr::WRITE };
        assert_eq!(self.0.protect(range(vpn, pages), change), Ok(pages));
    }
}

pub type Space1 = Space<1>;
pub type Space4 = Space<4>;
