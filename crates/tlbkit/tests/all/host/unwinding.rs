//! The modelled machine under another name, and with a kernel that unwinds.
#![allow(unreachable_pub, dead_code, reason = "each test uses a part")]

use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit::pagetable::Word;
use tlbkit::pagetable::format::Format;
use tlbkit::{
    Asid, Base, CpuSet, Deferred, Flush, Kernel, Machine, Mmu, Overdue, PhysAddr, Record, Run, Store,
};

use crate::host::{Host, keep};

/// The host as another machine, whose kernel unwinds where it is told to.
pub struct As<M>(pub Host, PhantomData<fn() -> M>, [AtomicUsize; 4], pub Mutex<Vec<Step>>);

pub const SHARE: usize = 0;
pub const RELEASE: usize = 1;
pub const TAKE: usize = 2;
pub const GIVE: usize = 3;

/// A step of a switch, as the kernel makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Load,
    Unload,
    FlushAll,
}

impl<M: Machine<Base = Base<12>>> As<M> {
    /// How far a node's frame is below the host's: entries of 32 bits need nodes in kseg0.
    const BELOW: usize = if <<M::Format as Format>::Word as Word>::BYTES == 4 { 0x7f00_0000 } else { 0 };

    fn frame(frame: PhysAddr) -> PhysAddr {
        PhysAddr::new(frame.get() + Self::BELOW)
    }

    /// Lets the kernel unwind at the `call`-th call of a method from now on, counted from 1; with 0 never.
    pub fn unwinds_at(&self, method: usize, call: usize) {
        self.2[method].store(call, Ordering::Relaxed);
    }

    fn step(&self, step: Step) {
        self.3.lock().unwrap_or_else(|poison| poison.into_inner()).push(step);
    }

    fn count(&self, method: usize) {
        let left = self.2[method].load(Ordering::Relaxed);
        self.2[method].store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 1 {
            resume_unwind(Box::new("the kernel unwinds"));
        }
    }
}

// SAFETY: the host's promises; the machine is told nothing but how many bits a number has, and no CPU walks.
unsafe impl<M: Machine<Base = Base<12>>> Kernel for As<M> {
    type Machine = M;

    fn deferred(&self) -> Option<&Deferred> {
        self.0.deferred()
    }

    fn cpu(&self) -> usize {
        self.0.cpu()
    }
    fn take_frame(&self) -> Option<PhysAddr> {
        self.count(TAKE);
        self.0.take_frame().map(|frame| PhysAddr::new(frame.get() - Self::BELOW))
    }
    fn give_frame(&self, frame: PhysAddr) {
        // The frame is the host's again, and then the kernel unwinds.
        self.0.give_frame(Self::frame(frame));
        self.count(GIVE);
    }
    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        self.0.memory(Self::frame(frame))
    }
    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.0.record(Self::frame(frame))
    }
    fn release(&self, run: Run) {
        self.count(RELEASE);
        self.0.release(run);
    }
    fn release_all(&self, runs: &[Run]) {
        // All of them are the kernel's. One that unwinds at a run loses that run alone.
        for (at, &run) in runs.iter().enumerate() {
            if self.2[RELEASE].load(Ordering::Relaxed) == 1 {
                self.0.release_all(&runs[at + 1..]);
            }
            self.release(run);
        }
    }
    fn share(&self, run: Run) {
        self.count(SHARE);
        self.0.share(run);
    }
    fn release_payload(&self, payload: u64) {
        self.0.release_payload(payload);
    }
    fn share_payload(&self, payload: u64) {
        self.0.share_payload(payload);
    }
    fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>) {
        if flush.is_all() && asid.is_none() {
            self.step(Step::FlushAll);
        }
        self.0.flush(flush, asid);
    }
    fn stored(&self, store: Store) {
        self.0.stored(store);
    }
    fn interrupt(&self, cpus: CpuSet) {
        self.0.interrupt(cpus);
    }
    fn overdue(&self, what: Overdue) {
        self.0.overdue(what);
    }
    fn pause(&self) {
        self.0.pause();
    }
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        self.0.masked(f)
    }
    fn load(&self, root: usize) {
        self.step(Step::Load);
        self.0.load(root);
    }
    fn unload(&self) {
        self.step(Step::Unload);
        self.0.unload();
    }
    fn asid_bits(&self) -> u32 {
        self.0.asid_bits()
    }
}

/// Returns a machine with one CPU and so many frames of memory.
pub fn as_machine<M: Machine<Base = Base<12>>>(frames: usize) -> &'static Mmu<As<M>> {
    as_machines(frames)
}

/// Returns a machine with so many frames of memory.
pub fn as_machines<M: Machine<Base = Base<12>>, const CPUS: usize>(
    frames: usize,
) -> &'static Mmu<As<M>, CPUS> {
    let mmu: &'static Mmu<As<M>, CPUS> = Box::leak(Box::new(Mmu::new(As(
        Host::new(frames, CPUS),
        PhantomData,
        Default::default(),
        Mutex::default(),
    ))));
    keep(Box::new(mmu));
    mmu
}
