//! What a table takes of memory.

use crate::word::atomics::{AtomicUsize, Ordering};

/// What a table takes of its node storage, counted as nodes come and go.
///
/// Storage overhead (records, rounding, free room) is the storage's to say: see
/// [`Slab::usage`](crate::nodes::Slab::usage).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Nodes that index: tables, guarded nodes, hash buckets.
    pub nodes: usize,
    /// Their bytes.
    pub bytes: usize,
    /// External leaf nodes, which hold nothing but the PTEs of a page or a few. Tables whose leaves stand in the
    /// indexing nodes have none.
    pub leaves: usize,
    /// Their bytes.
    pub leaf_bytes: usize,
    /// Entries that say something of a page: mapped base pages, replicated entries of larger ones, one for each PTE that is
    /// present; and [marks](crate::Mark), one for each.
    pub ptes: usize,
}

impl Footprint {
    /// Returns all bytes, leaves included.
    pub const fn total(&self) -> usize {
        self.bytes + self.leaf_bytes
    }
}

/// The counters behind a [`Footprint`]. One writer changes them, any thread reads them.
#[derive(Debug, Default)]
pub struct Tally {
    nodes: AtomicUsize,
    bytes: AtomicUsize,
    leaves: AtomicUsize,
    leaf_bytes: AtomicUsize,
    ptes: AtomicUsize,
}

/// Adds without a locked instruction: there is one writer.
#[inline(always)]
fn bump(counter: &AtomicUsize, by: isize) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add_signed(by), Ordering::Relaxed);
}

impl Tally {
    /// Counts an indexing node in (`sign` 1) or out (-1).
    #[inline(always)]
    pub fn node(&self, sign: isize, bytes: usize) {
        bump(&self.nodes, sign);
        bump(&self.bytes, sign * bytes as isize);
    }

    /// Counts an external leaf node in (`sign` 1) or out (-1).
    #[inline(always)]
    pub fn leaf(&self, sign: isize, bytes: usize) {
        bump(&self.leaves, sign);
        bump(&self.leaf_bytes, sign * bytes as isize);
    }

    /// Adds `by` to the number of PTEs.
    #[inline(always)]
    pub fn ptes(&self, by: isize) {
        bump(&self.ptes, by);
    }

    /// Returns the bytes of indexing nodes.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Begins to count anew.
    pub fn clear(&self) {
        for counter in [&self.nodes, &self.bytes, &self.leaves, &self.leaf_bytes, &self.ptes] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Returns what was counted.
    pub fn footprint(&self) -> Footprint {
        let read = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        Footprint {
            nodes: read(&self.nodes),
            bytes: read(&self.bytes),
            leaves: read(&self.leaves),
            leaf_bytes: read(&self.leaf_bytes),
            ptes: read(&self.ptes),
        }
    }
}
