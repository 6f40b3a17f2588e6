//! Address spaces that the CPUs of one kernel run and change at once. A thread is a CPU; where an interrupt reaches a CPU, the thread
//! finds it as soon as it unmasks interrupts.

use std::cell::Cell;
use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use tlbkit::{
    Access, AddressSpace, Asid, Base, CpuSet, Edit, Error, Fault, Flush, Kernel, Machine, Mmu, Overdue, Run,
    arch,
};
use tlbkit_addr::{PhysAddr, VirtAddr};
use tlbkit_pagetable::nodes::{FrameSource as _, Record};

use super::Concurrent;
use super::tables::LockedFrames;
use crate::frames::Frames;
use crate::spaces::{RIGHTS, range};

const CPUS: usize = 4;

/// What a CPU has for itself.
#[repr(align(128))]
struct Cpu {
    interrupted: AtomicBool,
    released: AtomicUsize,
}

static ALL: [Cpu; CPUS] =
    [const { Cpu { interrupted: AtomicBool::new(false), released: AtomicUsize::new(0) } }; CPUS];

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
    static MASKED: Cell<bool> = const { Cell::new(false) };
}

fn this() -> &'static Cpu {
    &ALL[NUMBER.get()]
}

/// A kernel on the machine `M`, whose CPUs are threads.
pub struct Threads<M>(PhantomData<fn() -> M>);

// SAFETY: `Frames` hands out each frame once until it is given back, with memory and a record of its own, to one thread at a time. A
// thread has its own number. There is no TLB, and no CPU walks the table by itself.
unsafe impl<M: OnThreads> Kernel for Threads<M> {
    type Machine = M;

    #[inline(always)]
    fn cpu(&self) -> usize {
        NUMBER.get()
    }

    fn take_frame(&self) -> Option<PhysAddr> {
        LockedFrames.take()
    }

    fn give_frame(&self, frame: PhysAddr) {
        LockedFrames.give(frame);
    }

    fn take_zeroed_frame(&self) -> Option<PhysAddr> {
        LockedFrames.take_zeroed()
    }

    fn give_zeroed_frame(&self, frame: PhysAddr) {
        LockedFrames.give_zeroed(frame);
    }

    #[inline(always)]
    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        Frames.pointer(frame.get())
    }

    #[inline(always)]
    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        Frames.record(frame)
    }

    #[inline(always)]
    fn release(&self, run: Run) {
        let released = &this().released;
        released.store(released.load(Ordering::Relaxed).wrapping_add(run.len), Ordering::Relaxed);
    }

    fn share(&self, run: Run) {
        unreachable!("nothing shares {run:?}")
    }

    #[inline(always)]
    fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>) {
        match flush.by_address() {
            Some(pages) => pages.for_each(|at| _ = black_box((at.get(), asid))),
            None => _ = black_box(asid),
        }
    }

    fn interrupt(&self, cpus: CpuSet) {
        cpus.into_iter().for_each(|cpu| ALL[cpu].interrupted.store(true, Ordering::Release));
    }

    /// The thread of the other CPU may not run for a while.
    fn overdue(&self, _what: Overdue) {
        thread::yield_now();
    }

    const PATIENCE: u32 = 4096;

    #[inline(always)]
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        let before = MASKED.replace(true);
        let result = f();
        MASKED.set(before);
        if !before {
            take_interrupt::<M>();
        }
        result
    }

    fn load(&self, root: usize) {
        black_box(root);
    }

    fn unload(&self) {}
}

/// Serves an interrupt of this CPU, whose interrupts are not masked.
#[inline(always)]
fn take_interrupt<M: OnThreads>() {
    let interrupted = &this().interrupted;
    if interrupted.load(Ordering::Relaxed) {
        interrupted.store(false, Ordering::Relaxed);
        // Another interrupt of this CPU is sent after this one is taken.
        std::sync::atomic::fence(Ordering::SeqCst);
        M::mmu().on_interrupt();
    }
}

/// A machine, whose CPUs are threads.
pub trait OnThreads: Machine<Base = Base<12>> + Sized {
    const NAME: &'static str;
    fn mmu() -> &'static Mmu<Threads<Self>, CPUS>;
}

/// An address space. If `WHOLE` is set, each change is an [`edit`](AddressSpace::edit), which excludes all others.
pub struct Space<M: OnThreads, const WHOLE: bool>(AddressSpace<Threads<M>, CPUS>);

macro_rules! spaces {
    ($($threads:ident $whole:ident $machine:ident $name:literal;)*) => { $(
        impl OnThreads for arch::$machine {
            const NAME: &'static str = $name;

            fn mmu() -> &'static Mmu<Threads<Self>, CPUS> {
                static MMU: Mmu<Threads<arch::$machine>, CPUS> = Mmu::new(Threads(PhantomData));
                &MMU
            }
        }

        pub type $threads = Space<arch::$machine, false>;
        pub type $whole = Space<arch::$machine, true>;
    )* };
}

spaces! {
    X86Threads X86Whole X86_64 "AddressSpace X86";
    Sv39Threads Sv39Whole Sv39 "AddressSpace Sv39";
}

impl<M: OnThreads, const WHOLE: bool> Space<M, WHOLE> {
    fn edit<R>(&self, edit: impl FnOnce(&mut Edit<'_, Threads<M>, CPUS>) -> Result<R, Error>) -> R {
        self.0.edit(edit).expect("a change that succeeds")
    }
}

/// Another thread may have mapped the page: then the access is repeated.
fn is_mapped(mapped: Result<(), Error>) -> Result<(), Error> {
    if matches!(mapped, Err(Error::Occupied { .. })) { Ok(()) } else { mapped }
}

impl<M: OnThreads, const WHOLE: bool> Concurrent for Space<M, WHOLE> {
    const BITS: u32 = <M::Geometry as tlbkit_pagetable::Geometry>::VA_BITS;
    const MOST: usize = CPUS;

    fn name() -> String {
        format!("{}{}", M::NAME, if WHOLE { ", edit" } else { "" })
    }

    fn new() -> Self {
        Self(AddressSpace::new(M::mmu()).expect("memory"))
    }

    fn enter(&self, number: usize) {
        NUMBER.set(number);
        self.0.activate().expect("no call is under way");
    }

    fn leave(&self) {
        M::mmu().idle().expect("no call is under way");
    }

    fn serve(&self) {
        take_interrupt::<M>();
    }

    #[inline(always)]
    fn fault(&self, vpn: usize, pfn: usize) {
        let (at, access) = (VirtAddr::new(vpn << 12), Access::STORE.by_user());
        let frame = |_| Ok(tlbkit_addr::Pfn::new(pfn));
        let answered = if WHOLE {
            self.edit(|edit| match edit.fault(at, access)? {
                Fault::NotMapped => edit.map_with(range(vpn, 1), RIGHTS, frame).map(|()| Fault::Retry),
                other => Ok(other),
            })
        } else {
            match self.0.fault(at, access).expect("no call is under way") {
                Fault::NotMapped => {
                    is_mapped(self.0.map_with(range(vpn, 1), RIGHTS, frame)).expect("memory");
                    Fault::Retry
                }
                other => other,
            }
        };
        assert_eq!(answered, Fault::Retry);
    }

    #[inline(always)]
    fn map(&self, vpn: usize, pfn: usize, pages: usize) {
        let (pages, frame) = (range(vpn, pages), tlbkit_addr::Pfn::new(pfn));
        if WHOLE {
            self.edit(|edit| edit.map(pages, frame, RIGHTS));
        } else {
            self.0.map(pages, frame, RIGHTS).expect("free pages");
        }
    }

    #[inline(always)]
    fn unmap(&self, vpn: usize, pages: usize) {
        let range = range(vpn, pages);
        let unmapped = if WHOLE {
            self.edit(|edit| edit.unmap(range))
        } else {
            self.0.unmap(range).expect("no call is under way")
        };
        assert_eq!(unmapped, pages);
    }

    fn translate(&self, va: usize) -> Option<usize> {
        self.0.translate(VirtAddr::new(va)).map(|at| at.get())
    }

    fn destroy(self) {
        M::mmu().idle().expect("no call is under way");
    }
}
