//! The numbers of the runs of frames that wait for a later flush. By them a CPU that maps a page knows, without the queue's lock, whether
//! it has to look for the page there. This file is also a module of `tests/loom.rs`.

use crate::sync::{AtomicUsize, Ordering};

/// The runs that wait have the numbers from `first` on, before `next`. Both are stored with the lock of the queue, and loaded with or
/// without it.
pub(crate) struct Numbers {
    first: AtomicUsize,
    next: AtomicUsize,
}

impl Numbers {
    pub(crate) const fn new(first: AtomicUsize, next: AtomicUsize) -> Self {
        Self { first, next }
    }

    /// Returns how many runs wait. With the lock that is exact. Without it the number may be larger by runs that other CPUs take out
    /// and add meanwhile: `next` is loaded after `first`, and so is never less.
    pub(crate) fn len(&self) -> usize {
        let first = self.first.load(Ordering::Acquire);
        self.next().wrapping_sub(first)
    }

    /// Returns the number of the first run that waits.
    pub(crate) fn first(&self) -> usize {
        self.first.load(Ordering::Relaxed)
    }

    /// Returns the number of the next run that will wait: a flush that begins now is one of those before.
    pub(crate) fn next(&self) -> usize {
        self.next.load(Ordering::Relaxed)
    }

    /// Adds runs of an address space, whose `last` becomes the number after them. This CPU has the right to write their pages.
    pub(crate) fn add(&self, runs: usize, last: &AtomicUsize) {
        let next = self.next().wrapping_add(runs);
        self.next.store(next, Ordering::Relaxed);
        last.store(next, Ordering::Relaxed);
    }

    /// Takes the runs before `first` out, whose flush has been executed by every CPU.
    pub(crate) fn take_before(&self, first: usize) {
        self.first.store(first, Ordering::Release);
    }

    /// Tells whether a run of the address space that has `last` may wait. This CPU has the right to write the pages that it asks for. If
    /// not, what it does next comes after the flush.
    ///
    /// After half of all numbers an old number compares as a later one. Then a call searches the queue, or flushes, without need; it
    /// never misses a run that waits.
    #[inline(always)]
    pub(crate) fn is_ahead(&self, last: &AtomicUsize) -> bool {
        last.load(Ordering::Relaxed).wrapping_sub(self.first.load(Ordering::Acquire)).cast_signed() > 0
    }
}
