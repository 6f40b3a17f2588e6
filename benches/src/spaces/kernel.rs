//! Address spaces of a kernel that keeps no TLB, as subjects.

use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit::{
    Access, AddressSpace, Asid, Base, CpuSet, Fault, Flush, Kernel, Machine, Mmu, Overdue, Run,
    SupervisorPages, arch,
};
use tlbkit_addr::{Attr, Pages, Pfn, PhysAddr, VirtAddr, Vpn};
use tlbkit_pagetable::nodes::Record;
use tlbkit_pagetable::{Change, Entry, Geometry, Mark};

use super::{RIGHTS, UNTOUCHED, range, writable};
use crate::frames::Frames;
use crate::{Fork, Subject};

/// A kernel on the machine `M` whose CPU masks interrupts by a flag of its own and flushes by address.
///
/// What stands for registers of the CPU is a part of the kernel's value: the address of a static would have to be loaded first in a
/// program that may be loaded anywhere, which no kernel is.
pub struct Host<M> {
    frames: Frames,
    cpu: AtomicUsize,
    /// What the interrupt enable register holds.
    enabled: AtomicUsize,
    machine: PhantomData<fn() -> M>,
}

impl<M> Host<M> {
    const fn new() -> Self {
        Self { frames: Frames, cpu: AtomicUsize::new(0), enabled: AtomicUsize::new(1), machine: PhantomData }
    }
}

static RELEASED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: `Frames` hands out each frame once until it is given back, with memory and a record of its own. There is one thread, no TLB,
// and no CPU walks the table.
unsafe impl<M: Machine<Base = Base<12>>> Kernel for Host<M> {
    type Machine = M;

    #[inline(always)]
    fn cpu(&self) -> usize {
        self.cpu.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn take_frame(&self) -> Option<PhysAddr> {
        self.frames.take()
    }

    #[inline(always)]
    fn give_frame(&self, frame: PhysAddr) {
        self.frames.give(frame);
    }

    #[inline(always)]
    fn take_zeroed_frame(&self) -> Option<PhysAddr> {
        self.frames.take_zeroed()
    }

    #[inline(always)]
    fn give_zeroed_frame(&self, frame: PhysAddr) {
        self.frames.give_zeroed(frame);
    }

    #[inline(always)]
    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        self.frames.pointer(frame.get())
    }

    #[inline(always)]
    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.frames.record(frame)
    }

    #[inline(always)]
    fn release(&self, run: Run) {
        RELEASED.store(RELEASED.load(Ordering::Relaxed).wrapping_add(run.len), Ordering::Relaxed);
    }

    #[inline(always)]
    fn share(&self, run: Run) {
        RELEASED.store(RELEASED.load(Ordering::Relaxed).wrapping_sub(run.len), Ordering::Relaxed);
    }

    // For one page the compiler folds it to what the instruction takes.
    #[inline(always)]
    fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>) {
        match flush.by_address() {
            Some(pages) => {
                for at in pages {
                    black_box((at.get(), asid));
                }
            }
            None => {
                black_box(asid);
            }
        }
    }

    #[inline(always)]
    fn interrupt(&self, cpus: CpuSet) {
        unreachable!("{cpus:?} run nothing")
    }

    fn overdue(&self, what: Overdue) {
        unreachable!("{what:?}, and no other CPU runs")
    }

    #[inline(always)]
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        let before = self.enabled.load(Ordering::Relaxed);
        self.enabled.store(0, Ordering::Relaxed);
        let result = f();
        self.enabled.store(before, Ordering::Relaxed);
        result
    }

    #[inline(always)]
    fn load(&self, root: usize) {
        black_box(root);
    }

    #[inline(always)]
    fn unload(&self) {}
}

/// A machine with so many CPUs: its one MMU, and the name of an address space on it.
pub trait With<const CPUS: usize>: Machine<Base = Base<12>> + Sized {
    const NAME: &'static str;
    fn mmu() -> &'static Mmu<Host<Self>, CPUS>;
}

/// An address space that CPU 0 runs, on a machine of `CPUS` CPUs.
pub struct Space<M: With<CPUS>, const CPUS: usize>(AddressSpace<Host<M>, CPUS>);

macro_rules! spaces {
    ($($space:ident $machine:ident $cpus:literal $name:literal;)*) => { $(
        impl With<$cpus> for arch::$machine {
            const NAME: &'static str = $name;

            fn mmu() -> &'static Mmu<Host<Self>, $cpus> {
                static MMU: Mmu<Host<arch::$machine>, $cpus> = Mmu::new(Host::new());
                &MMU
            }
        }

        pub type $space = Space<arch::$machine, $cpus>;
    )* };
}

spaces! {
    Sv39Space Sv39 1 "AddressSpace Sv39";
    Sv39Space4 Sv39 4 "AddressSpace Sv39, 4 CPUs";
    X86Space X86_64 1 "AddressSpace X86";
    X86Space4 X86_64 4 "AddressSpace X86, 4 CPUs";
}

impl<M: With<CPUS>, const CPUS: usize> Subject for Space<M, CPUS> {
    const NAME: &'static str = M::NAME;
    const BITS: u32 = <M::Geometry as Geometry>::VA_BITS;

    fn new() -> Self {
        let space = AddressSpace::new(M::mmu()).expect("memory");
        space.activate().expect("no call is under way");
        Self(space)
    }

    #[inline(always)]
    fn map(&mut self, vpn: usize, pfn: usize) {
        self.0.map(Pages::one(Vpn::new(vpn)), Pfn::new(pfn), RIGHTS).expect("a free page");
    }

    #[inline(always)]
    fn map_untouched(&mut self, vpn: usize, pfn: usize) {
        self.0.map(Pages::one(Vpn::new(vpn)), Pfn::new(pfn), UNTOUCHED).expect("a free page");
    }

    #[inline(always)]
    fn unmap(&mut self, vpn: usize) {
        assert_eq!(self.0.unmap(Pages::one(Vpn::new(vpn))), Ok(1));
    }

    #[inline(always)]
    fn translate(&self, va: usize) -> Option<usize> {
        self.0.translate(VirtAddr::new(va)).map(|at| at.get())
    }

    fn is_writable(&self, vpn: usize) -> bool {
        self.0.lookup(VirtAddr::new(vpn << 12)).is_some_and(|leaf| leaf.attr.contains(Attr::WRITE))
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

    #[inline(always)]
    fn replace(&mut self, vpn: usize, pfn: usize) {
        self.0.replace(VirtAddr::new(vpn << 12), Pfn::new(pfn), RIGHTS).expect("a mapped page");
    }

    fn destroy(self) {
        self.0.mmu().idle().expect("no call is under way");
    }
}

impl<M: With<CPUS>, const CPUS: usize> Fork for Space<M, CPUS> {
    #[inline(always)]
    fn first_use(&mut self, vpn: usize, pfn: usize) {
        let at = VirtAddr::new(vpn << 12);
        assert_eq!(self.0.fault(at, Access::STORE.by_user()), Ok(Fault::NotMapped));
        self.0.map_with(range(vpn, 1), RIGHTS, |_| Ok(Pfn::new(pfn))).expect("memory");
    }

    #[inline(always)]
    fn fault(&mut self, vpn: usize) -> bool {
        self.0.fault(VirtAddr::new(vpn << 12), Access::STORE.by_user()) == Ok(Fault::Retry)
    }

    #[inline(always)]
    fn fork(&self) -> Self {
        Self(self.0.fork(SupervisorPages::LeftOut).expect("memory"))
    }

    #[inline(always)]
    fn mark(&mut self, vpn: usize) {
        let marked = self.0.mark(VirtAddr::new(vpn << 12), Mark::Guard);
        assert!(marked.is_ok_and(|before| before != Entry::Empty));
    }

    #[inline(always)]
    fn activate(&self) {
        self.0.activate().expect("no call is under way");
    }

    fn unshare(&mut self, vpn: usize, pages: usize) {
        let change = Change { clear: Attr::COPY_ON_WRITE, set: Attr::WRITE };
        assert_eq!(self.0.protect(range(vpn, pages), change), Ok(pages));
    }
}
