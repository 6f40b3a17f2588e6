//! Counters of a cache's events.

use core::cell::Cell;
use core::fmt;

/// The events that a cache reports. Each method does nothing by default, so `()` counts nothing, and needs no memory and no
/// instruction.
pub trait Count: Default + fmt::Debug {
    /// A lookup found its entry.
    #[inline]
    fn hit(&self) {}
    /// A lookup did not find its entry.
    #[inline]
    fn miss(&self) {}
    /// A fill evicted another entry.
    #[inline]
    fn conflict(&self) {}
    /// An entry was returned for a load into the TLB before its use.
    #[inline]
    fn prefetched(&self) {}
    /// An entry that was loaded before its use was used. The caller reports this, because only its TLB knows.
    #[inline]
    fn prefetch_used(&self) {}
}

impl Count for () {}

/// Counts all events, for a cache of one CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    hits: Cell<u64>,
    misses: Cell<u64>,
    conflicts: Cell<u64>,
    prefetched: Cell<u64>,
    prefetches_used: Cell<u64>,
}

impl Counters {
    /// Returns how many lookups found their entry.
    pub fn hits(&self) -> u64 {
        self.hits.get()
    }

    /// Returns how many lookups did not find their entry.
    pub fn misses(&self) -> u64 {
        self.misses.get()
    }

    /// Returns how many fills evicted another entry.
    pub fn conflicts(&self) -> u64 {
        self.conflicts.get()
    }

    /// Returns how many entries were returned for a load into the TLB before their use.
    pub fn prefetched(&self) -> u64 {
        self.prefetched.get()
    }

    /// Returns how many of the [`prefetched`](Self::prefetched) entries the caller has reported as used.
    pub fn prefetches_used(&self) -> u64 {
        self.prefetches_used.get()
    }
}

/// Adds one to a counter.
fn bump(counter: &Cell<u64>) {
    counter.set(counter.get().wrapping_add(1));
}

impl Count for Counters {
    fn hit(&self) {
        bump(&self.hits);
    }
    fn miss(&self) {
        bump(&self.misses);
    }
    fn conflict(&self) {
        bump(&self.conflicts);
    }
    fn prefetched(&self) {
        bump(&self.prefetched);
    }
    fn prefetch_used(&self) {
        bump(&self.prefetches_used);
    }
}
