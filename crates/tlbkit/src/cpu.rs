//! What each CPU keeps, and the calls that it is in the midst of: one at most.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

use tlbkit_shootdown::CpuHandle;

use crate::Kernel;
use crate::block::Handle;

/// How many requests wait for a CPU before it flushes everything instead.
pub(crate) const QUEUE: usize = 8;

/// A CPU's part of an [`Mmu`](crate::Mmu).
pub(crate) struct Cpu<K: Kernel, const CPUS: usize> {
    /// Whether the CPU is in the midst of a call.
    busy: AtomicBool,
    state: UnsafeCell<State<K, CPUS>>,
}

/// What a CPU uses in the midst of a call.
pub(crate) struct State<K: Kernel, const CPUS: usize> {
    /// The right to be this CPU in the shootdown system, once the CPU is online.
    pub(crate) handle: Option<CpuHandle<'static, QUEUE>>,
    /// The address space that the CPU runs.
    pub(crate) runs: Option<Handle<K, CPUS>>,
    /// The kernel's own address space whose global translations the CPU's TLB may hold.
    pub(crate) half: Option<Handle<K, CPUS>>,
}

// SAFETY: a CPU uses its own part alone, with interrupts masked: by the promise of `Kernel` nothing else of the CPU's comes
// between a look at `busy` and the store that makes it true. So only the code that has made `busy` true uses the state;
// the release of `busy` orders one use after the other. What is in it may move between threads.
unsafe impl<K: Kernel, const CPUS: usize> Sync for Cpu<K, CPUS> {}

impl<K: Kernel, const CPUS: usize> Cpu<K, CPUS> {
    pub(crate) const fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            state: UnsafeCell::new(State { handle: None, runs: None, half: None }),
        }
    }

    /// Begins a call on this CPU, whose interrupts are masked, unless it is in the midst of one.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Option<Entered<'_, K, CPUS>> {
        if self.busy.load(Ordering::Acquire) {
            return None;
        }
        self.busy.store(true, Ordering::Relaxed);
        Some(Entered(self))
    }
}

/// A call under way on a CPU, which ends when this is dropped.
pub(crate) struct Entered<'c, K: Kernel, const CPUS: usize>(&'c Cpu<K, CPUS>);

impl<K: Kernel, const CPUS: usize> Deref for Entered<'_, K, CPUS> {
    type Target = State<K, CPUS>;

    #[inline(always)]
    fn deref(&self) -> &State<K, CPUS> {
        // SAFETY: `busy` was false when this value was made, and is true until it is dropped: there is no other one.
        unsafe { &*self.0.state.get() }
    }
}

impl<K: Kernel, const CPUS: usize> DerefMut for Entered<'_, K, CPUS> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut State<K, CPUS> {
        // SAFETY: as for `deref`, and this value is borrowed mutably.
        unsafe { &mut *self.0.state.get() }
    }
}

impl<K: Kernel, const CPUS: usize> Drop for Entered<'_, K, CPUS> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}
