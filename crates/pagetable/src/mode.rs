//! The mode of a table, for one CPU or for several: it selects the stores, the locks and the order of lists.

use core::fmt::Debug;
use core::sync::atomic::Ordering;

use crate::word::{Word, atomics};

/// The number of CPUs that may walk a table: one ([`Solo`]) or any number ([`Shared`]).
///
/// | | [`Solo`] | [`Shared`] |
/// |-|-|-|
/// | walkers | this CPU, and its MMU | any number of CPUs, and their MMUs |
/// | a writer's stores | plain, the compiler may widen them; atomic, and releasing where they link a node, in a format that hardware walks | atomic |
/// | an edit of an entry in which hardware sets status bits | a load and a store | one exchange |
/// | node storage | no lock | a spin lock |
/// | hashed chains | an entry that is found moves to the front | the order does not change |
/// | retired nodes | free after the local flush | held until the shootdown has completed |
/// | the table is `Sync` | no | yes |
pub trait Mode: Debug + Send + Sync + 'static + sealed::Sealed {
    /// Whether other CPUs may walk the table.
    const SHARED: bool;

    /// The lock that the storage holds while it allocates or frees a node.
    #[doc(hidden)]
    type Lock: Lock;

    /// Reads a word as its only writer: a plain load, because walkers only load.
    ///
    /// # Safety
    ///
    /// `cell` points at a live cell of a node that only the caller writes.
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn read<W: Word>(cell: *const W::Cell) -> W {
        // SAFETY: by this function's contract `cell` is live, and no other CPU writes its node.
        unsafe { W::read_alone(cell) }
    }

    /// Stores a word that leads nowhere, or that no walker can reach yet.
    ///
    /// # Safety
    ///
    /// `cell` points at a live cell of a node that only the caller writes and, in solo mode, only the caller reads.
    #[doc(hidden)]
    unsafe fn store_relaxed<W: Word>(cell: *const W::Cell, word: W);

    /// Stores a word that leads to a complete node or a frame.
    ///
    /// # Safety
    ///
    /// `cell` points at a live cell of a node that only the caller writes and, in solo mode, only the caller reads.
    #[doc(hidden)]
    unsafe fn publish<W: Word>(cell: *const W::Cell, word: W);

    /// Makes all earlier stores visible before any later store.
    #[doc(hidden)]
    fn release();
}

/// One CPU walks and writes the table. Types in this mode are not `Sync`.
#[derive(Clone, Copy, Debug)]
pub struct Solo;

/// One CPU writes while any number of others walk.
#[derive(Clone, Copy, Debug)]
pub struct Shared;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Solo {}
    impl Sealed for super::Shared {}
}

impl Mode for Solo {
    const SHARED: bool = false;
    type Lock = NoLock;

    #[inline(always)]
    unsafe fn store_relaxed<W: Word>(cell: *const W::Cell, word: W) {
        // SAFETY: by this function's contract the cell is live, and only the caller writes and reads it.
        unsafe { W::write_alone(cell, word) }
    }

    #[inline(always)]
    unsafe fn publish<W: Word>(cell: *const W::Cell, word: W) {
        // SAFETY: by this function's contract the cell is live, and only the caller writes and reads it.
        unsafe { W::write_alone(cell, word) }
    }

    #[inline(always)]
    fn release() {}
}

impl Mode for Shared {
    const SHARED: bool = true;
    type Lock = SpinLock;

    #[inline(always)]
    unsafe fn store_relaxed<W: Word>(cell: *const W::Cell, word: W) {
        // SAFETY: by this function's contract the cell is live.
        unsafe { W::store_relaxed(cell, word) }
    }

    #[inline(always)]
    unsafe fn publish<W: Word>(cell: *const W::Cell, word: W) {
        // SAFETY: by this function's contract the cell is live.
        unsafe { W::publish(cell, word) }
    }

    #[inline(always)]
    fn release() {
        atomics::fence(Ordering::Release);
    }
}

/// A lock that the storage takes before it accesses its lists.
#[doc(hidden)]
pub trait Lock: Default + Debug {
    /// Takes the lock.
    fn lock(&self);
    /// Releases the lock. Only the holder may call this.
    fn unlock(&self);
}

/// No lock: the storage is not `Sync`.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct NoLock(core::marker::PhantomData<core::cell::Cell<()>>);

impl Lock for NoLock {
    #[inline(always)]
    fn lock(&self) {}
    #[inline(always)]
    fn unlock(&self) {}
}

/// A test-and-set lock. Its critical sections are a few list operations, so waiters spin.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct SpinLock(atomics::AtomicBool);

impl SpinLock {
    /// Returns a lock that is free.
    #[cfg(not(tlbkit_loom))]
    pub(crate) const fn new() -> Self {
        Self(atomics::AtomicBool::new(false))
    }
}

impl Lock for SpinLock {
    #[inline]
    fn lock(&self) {
        while self.0.swap(true, Ordering::Acquire) {
            #[cfg(tlbkit_loom)]
            loom::thread::yield_now();
            #[cfg(not(tlbkit_loom))]
            while self.0.load(Ordering::Relaxed) {
                core::hint::spin_loop();
            }
        }
    }

    #[inline]
    fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}
