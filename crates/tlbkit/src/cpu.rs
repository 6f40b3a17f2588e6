//! The state of each CPU, and its call under way: a CPU is inside one call at most.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use tlbkit_addr::Vpn;
use tlbkit_shootdown::CpuHandle;

use crate::block::Handle;
use crate::cpu_set::WORDS;
use crate::runs::UncoveredRuns;
use crate::section::OUTSIDE;
use crate::{Access, Kernel};

/// The number of requests that can wait for a CPU. With one more, the CPU flushes everything instead.
pub(crate) const QUEUE: usize = 8;

/// The CPU is inside a call.
const BUSY: u8 = 0;
/// The CPU is outside any call, and has no [handle](State::handle).
const OFFLINE: u8 = 1;
/// The CPU is outside any call, and has a handle.
const ONLINE: u8 = 2;
/// The CPU is outside any call and ready for the next one; the call before has answered the fault in [`State::retried`] with
/// [`Retry`](crate::Fault::Retry).
const RETRIED: u8 = 3;

/// A CPU's part of an [`Mmu`](crate::Mmu). Each call writes it, so it shares no cache line with another CPU's.
#[repr(align(64))]
pub(crate) struct Cpu<K: Kernel, const CPUS: usize> {
    /// [`BUSY`], [`OFFLINE`], [`ONLINE`] or [`RETRIED`]: one load and one comparison tell whether a call can begin.
    at: AtomicU8,
    /// The [section](crate::section) that the CPU is in, where flushes are broadcast.
    pub(crate) section: AtomicUsize,
    state: UnsafeCell<State<K, CPUS>>,
}

/// The state that a CPU uses inside a call.
pub(crate) struct State<K: Kernel, const CPUS: usize> {
    /// The CPU's handle in the shootdown system, while the CPU is online.
    pub(crate) handle: Option<CpuHandle<'static, QUEUE, WORDS>>,
    /// The address space that the CPU runs.
    pub(crate) runs: Option<Handle<K, CPUS>>,
    /// The root that the CPU has loaded for that address space, if another load of it is all that another activation takes.
    pub(crate) root: Option<usize>,
    /// The kernel's own address space whose global translations the CPU's TLB may hold.
    pub(crate) half: Option<Handle<K, CPUS>>,
    /// The last fault whose answer was [`Retry`](crate::Fault::Retry).
    pub(crate) retried: Option<Retried>,
    /// The frames that the changes of a call have uncovered: none outside of a call.
    pub(crate) uncovered: UncoveredRuns,
}

/// A fault: its page, its access, and the address of the block of the address space. Two that are equal have no change between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retried {
    pub(crate) page: Vpn,
    pub(crate) access: Access,
    pub(crate) space: usize,
    /// How many changes of the address space have been broadcast before.
    pub(crate) broadcasts: usize,
}

// SAFETY: a CPU uses the `state` of its own part only, with interrupts masked: by the promise of `Kernel` no other code of that CPU runs
// between the load of `at` and the store of `BUSY`. So only the code that has stored `BUSY` uses the state; the store that ends
// the call, a release, orders one use after the other. The values in the state may move between threads.
unsafe impl<K: Kernel, const CPUS: usize> Sync for Cpu<K, CPUS> {}

impl<K: Kernel, const CPUS: usize> Cpu<K, CPUS> {
    pub(crate) const fn new() -> Self {
        Self {
            at: AtomicU8::new(OFFLINE),
            section: AtomicUsize::new(OUTSIDE),
            state: UnsafeCell::new(State {
                handle: None,
                runs: None,
                root: None,
                half: None,
                retried: None,
                uncovered: UncoveredRuns::new(),
            }),
        }
    }

    /// Begins a call on this CPU, whose interrupts are masked, unless the CPU is inside another call.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Option<Entered<'_, K, CPUS>> {
        match self.at.load(Ordering::Acquire) {
            BUSY => None,
            OFFLINE => Some(self.entered(OFFLINE, OFFLINE)),
            at => Some(self.entered(at, Self::READY)),
        }
    }

    /// The value of [`at`](Self::at) outside any call of a CPU that can begin one: one of several CPUs then has a handle.
    const READY: u8 = if CPUS == 1 { OFFLINE } else { ONLINE };

    /// Begins a call on this CPU, whose interrupts are masked, unless the CPU is inside another call, or is one of several CPUs and
    /// has no handle.
    #[inline(always)]
    pub(crate) fn enter_online(&self) -> Option<Entered<'_, K, CPUS>> {
        let at = self.at.load(Ordering::Acquire);
        (at >= Self::READY).then(|| self.entered(at, Self::READY))
    }

    #[inline(always)]
    fn entered(&self, at: u8, then: u8) -> Entered<'_, K, CPUS> {
        self.at.store(BUSY, Ordering::Relaxed);
        Entered { cpu: self, at, then }
    }
}

/// A call under way on a CPU, which ends when this is dropped.
pub(crate) struct Entered<'c, K: Kernel, const CPUS: usize> {
    cpu: &'c Cpu<K, CPUS>,
    /// The value of [`Cpu::at`] before the call.
    at: u8,
    /// The value of [`Cpu::at`] after the call.
    then: u8,
}

impl<K: Kernel, const CPUS: usize> Entered<'_, K, CPUS> {
    /// Sets the CPU's handle, or removes it.
    pub(crate) fn set_handle(&mut self, handle: Option<CpuHandle<'static, QUEUE, WORDS>>) {
        self.then = if handle.is_some() { ONLINE } else { OFFLINE };
        self.handle = handle;
    }

    /// Returns the fault that the call before has answered with [`Retry`](crate::Fault::Retry), if that call was the last thing
    /// which this CPU has done here.
    pub(crate) fn just_retried(&self) -> Option<Retried> {
        if self.at == RETRIED { self.retried } else { None }
    }

    /// Records that this call answers `fault` with [`Retry`](crate::Fault::Retry).
    pub(crate) fn retries(&mut self, fault: Retried) {
        self.retried = Some(fault);
        self.then = RETRIED;
    }

    /// Makes the next call find what this one finds by [`just_retried`](Self::just_retried).
    pub(crate) fn pass_on(&mut self) {
        if self.at == RETRIED {
            self.then = RETRIED;
        }
    }

    /// States that this call does not ask for the fault before.
    #[inline(always)]
    pub(crate) fn answers_no_fault(&mut self) {
        self.at = BUSY;
    }

    /// Forgets the fault before, because another CPU may have changed the page since.
    pub(crate) fn forget_retried(&mut self) {
        self.at = BUSY;
        if self.then == RETRIED {
            self.then = Cpu::<K, CPUS>::READY;
        }
    }
}

impl<K: Kernel, const CPUS: usize> Deref for Entered<'_, K, CPUS> {
    type Target = State<K, CPUS>;

    #[inline(always)]
    fn deref(&self) -> &State<K, CPUS> {
        // SAFETY: no other `Entered` of this CPU exists while it is `BUSY`, which it is until this one is dropped.
        unsafe { &*self.cpu.state.get() }
    }
}

impl<K: Kernel, const CPUS: usize> DerefMut for Entered<'_, K, CPUS> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut State<K, CPUS> {
        // SAFETY: no other `Entered` of this CPU exists while it is `BUSY`, and this one is borrowed mutably.
        unsafe { &mut *self.cpu.state.get() }
    }
}

impl<K: Kernel, const CPUS: usize> Drop for Entered<'_, K, CPUS> {
    #[inline(always)]
    fn drop(&mut self) {
        self.cpu.at.store(self.then, Ordering::Release);
    }
}
