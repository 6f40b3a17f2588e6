//! Storage that unwinds at a chosen call, and the count-down that it shares with the caller's closures.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit_pagetable::nodes::{NodeAddr, Nodes, Reclaim};

use crate::wrap::forward;

/// A count-down of the calls of a table to its caller's code. The call at its end unwinds.
#[derive(Debug)]
pub struct Trip {
    /// The number of calls that return before the one that unwinds.
    left: AtomicUsize,
    /// The number of calls since the count-down was set.
    calls: AtomicUsize,
}

/// No call unwinds.
const NEVER: usize = usize::MAX;
/// A call has unwound.
const DONE: usize = usize::MAX - 1;

impl Trip {
    /// Returns a count-down that has not begun.
    pub const fn new() -> Self {
        Self { left: AtomicUsize::new(NEVER), calls: AtomicUsize::new(0) }
    }

    /// Makes the next `calls` calls return, and the call after them unwind.
    pub fn set(&self, calls: usize) {
        self.left.store(calls, Ordering::Relaxed);
        self.calls.store(0, Ordering::Relaxed);
    }

    /// Returns the number of calls since the count-down was set.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Ends the count-down, and tells whether a call has unwound.
    pub fn tripped(&self) -> bool {
        self.left.swap(NEVER, Ordering::Relaxed) == DONE
    }

    /// Counts a call.
    ///
    /// # Panics
    ///
    /// If the call is the chosen one. The panic has no message.
    pub fn call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let left = self.left.load(Ordering::Relaxed);
        if !matches!(left, NEVER | DONE) {
            self.left.store(left.checked_sub(1).unwrap_or(DONE), Ordering::Relaxed);
        }
        if left == 0 {
            resume_unwind(Box::new("a call of the table's caller unwinds"));
        }
    }
}

impl Default for Trip {
    fn default() -> Self {
        Self::new()
    }
}

/// Storage whose `take` and `free` count as calls of a [`Trip`]. A call that unwinds changes nothing.
#[derive(Debug)]
pub struct Tripping<N> {
    inner: N,
    trip: Trip,
}

impl<N> Tripping<N> {
    /// Wraps a storage.
    pub const fn new(inner: N) -> Self {
        Self { inner, trip: Trip::new() }
    }

    /// Returns the count-down.
    pub const fn trip(&self) -> &Trip {
        &self.trip
    }

    /// Returns the inner storage.
    pub const fn inner(&self) -> &N {
        &self.inner
    }
}

// SAFETY: it returns the nodes of the inner storage unchanged.
unsafe impl<N: Nodes> Nodes for Tripping<N> {
    type Word = N::Word;
    type Mode = N::Mode;

    fn lowest(&self) -> NodeAddr {
        self.inner.lowest()
    }

    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
        self.trip.call();
        self.inner.take_within(words, last)
    }

    forward!(cells);
    forward!(follow);
    forward!(store);
}

// SAFETY: every result is that of the inner storage; the count-down is atomic, so the wrapper is `Sync` if the inner storage is.
unsafe impl<N: Nodes> Reclaim for Tripping<N> {
    unsafe fn free(&self, node: NodeAddr, clean: bool) {
        self.trip.call();
        // SAFETY: this function's contract holds for the inner storage.
        unsafe { self.inner.free(node, clean) };
    }

    forward!(reclaim);
    forward!(shared);
}
