//! The mode of a table, for one CPU or for several: it selects the stores, the locks and the order of lists.

use core::fmt::Debug;
use core::marker::PhantomData;
use core::ptr;
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
    fn release() {}
}

impl Mode for Shared {
    const SHARED: bool = true;
    type Lock = SpinLock;

    #[inline(always)]
    fn release() {
        atomics::fence(Ordering::Release);
    }
}

/// A cell that holds a word, for the word's only writer: what its mode says of the writer's accesses.
///
/// For `'a` the holder's CPU is the only one that writes the cell and, in [`Solo`] mode, the only one that accesses it. So a plain
/// load is no data race, and in solo mode neither is a plain store. The handle stays on its CPU.
pub(crate) struct CellMut<'a, W: Word, M> {
    cell: &'a W::Cell,
    mode: PhantomData<(M, *const ())>,
}

impl<W: Word, M> Clone for CellMut<'_, W, M> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: Word, M> Copy for CellMut<'_, W, M> {}

impl<'a, W: Word, M: Mode> CellMut<'a, W, M> {
    /// Returns the handle of a cell.
    ///
    /// # Safety
    ///
    /// During `'a` no other CPU writes the cell. In [`Solo`] mode no other CPU accesses it.
    #[inline(always)]
    pub(crate) unsafe fn new(cell: &'a W::Cell) -> Self {
        Self { cell, mode: PhantomData }
    }

    /// Loads the word by a plain load, which the compiler may widen.
    #[inline(always)]
    pub(crate) fn read(self) -> W {
        #[cfg(tlbkit_loom)]
        return W::load_checked(self.cell);
        // SAFETY: a cell has the layout of its word. By the contract of `new` no other CPU writes the cell.
        #[cfg(not(tlbkit_loom))]
        return unsafe { ptr::from_ref(self.cell).cast::<W>().read() };
    }

    /// Stores a word that leads nowhere, or that no walker can reach yet.
    #[inline(always)]
    pub(crate) fn store_relaxed(self, word: W) {
        self.store(word, W::store_relaxed);
    }

    /// Stores a word that leads to a complete node or a frame.
    #[inline(always)]
    pub(crate) fn publish(self, word: W) {
        self.store(word, W::publish);
    }

    /// Stores a word: in shared mode by `atomic`, in solo mode by a plain store, which the compiler may widen.
    #[inline(always)]
    fn store(self, word: W, atomic: impl FnOnce(&W::Cell, W)) {
        if M::SHARED || cfg!(tlbkit_loom) {
            return atomic(self.cell, word);
        }
        // SAFETY: a cell has the layout of its word, and is interior mutable. In solo mode, by the contract of `new`, no other CPU
        // accesses the cell.
        unsafe { ptr::from_ref(self.cell).cast_mut().cast::<W>().write(word) };
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
pub struct NoLock(PhantomData<core::cell::Cell<()>>);

impl Lock for NoLock {
    #[inline(always)]
    fn lock(&self) {}
    #[inline(always)]
    fn unlock(&self) {}
}

/// A test-and-set lock. Its critical sections are a few list operations, so waiters spin.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct SpinLock(
    /// 1 while the lock is taken. RISC-V exchanges a whole word in one instruction.
    atomics::AtomicU32,
    /// Loom lets a loop of exchanges fail for ever, so there this word, which is none of loom's, tells whether the lock is taken. The
    /// exchanges of the other word order the accesses, each of which reads the one before.
    #[cfg(tlbkit_loom)]
    std::sync::atomic::AtomicBool,
);

impl SpinLock {
    /// Returns a lock that is free.
    #[cfg(not(tlbkit_loom))]
    pub(crate) const fn new() -> Self {
        Self(atomics::AtomicU32::new(0))
    }
}

impl Lock for SpinLock {
    #[inline]
    fn lock(&self) {
        #[cfg(tlbkit_loom)]
        while self.1.swap(true, Ordering::Relaxed) {
            loom::thread::yield_now();
        }
        while self.0.swap(1, Ordering::Acquire) != 0 {
            while self.0.load(Ordering::Relaxed) != 0 {
                core::hint::spin_loop();
            }
        }
    }

    #[inline]
    fn unlock(&self) {
        #[cfg(tlbkit_loom)]
        {
            self.0.swap(0, Ordering::Release);
            self.1.store(false, Ordering::Relaxed);
        }
        #[cfg(not(tlbkit_loom))]
        self.0.store(0, Ordering::Release);
    }
}
