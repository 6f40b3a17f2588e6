//! Atomic words: those of `core`, or those of loom under `cfg(tlbkit_loom)`.

#[cfg(all(not(tlbkit_loom), target_has_atomic = "64"))]
use core::sync::atomic::AtomicU64;
#[cfg(not(tlbkit_loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

#[cfg(tlbkit_loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(tlbkit_loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

use crate::Pair;

/// A value that a cache shared by CPUs keeps in atomic words. Each word is read and written separately.
///
/// A read of all words returns a consistent value only if no CPU writes them during the read; the cache checks this.
pub trait Atomic: Copy + Eq {
    /// The words.
    type Cell: core::fmt::Debug;

    /// Returns words that hold the value.
    fn cell(self) -> Self::Cell;

    /// Reads the words, each of them relaxed.
    fn load(cell: &Self::Cell) -> Self;

    /// Writes the words, each of them relaxed.
    fn store(self, cell: &Self::Cell);
}

macro_rules! atomic {
    ($word:ty, $atomic:ty) => {
        impl Atomic for $word {
            type Cell = $atomic;

            #[inline]
            fn cell(self) -> $atomic {
                <$atomic>::new(self)
            }
            #[inline]
            fn load(cell: &$atomic) -> Self {
                cell.load(Ordering::Relaxed)
            }
            #[inline]
            fn store(self, cell: &$atomic) {
                cell.store(self, Ordering::Relaxed);
            }
        }
    };
}

atomic!(u32, AtomicU32);
atomic!(usize, AtomicUsize);
#[cfg(any(tlbkit_loom, target_has_atomic = "64"))]
atomic!(u64, AtomicU64);

impl Atomic for Pair {
    type Cell = [AtomicU32; 3];

    fn cell(self) -> Self::Cell {
        [self.page_mask, self.lo0, self.lo1].map(AtomicU32::new)
    }

    #[inline]
    fn load([page_mask, lo0, lo1]: &Self::Cell) -> Self {
        let load = |word: &AtomicU32| word.load(Ordering::Relaxed);
        Self { page_mask: load(page_mask), lo0: load(lo0), lo1: load(lo1) }
    }

    #[inline]
    fn store(self, [page_mask, lo0, lo1]: &Self::Cell) {
        self.page_mask.store(page_mask);
        self.lo0.store(lo0);
        self.lo1.store(lo1);
    }
}
