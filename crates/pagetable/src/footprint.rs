//! The memory that a table takes.

use crate::word::atomics::{AtomicUsize, Ordering};

/// The memory that a table takes from its node storage.
///
/// The storage's overhead (records, rounding, free memory) is not included: see [`Slab::usage`](crate::nodes::Slab::usage).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// The number of indexing nodes: radix nodes, guarded nodes, bucket arrays.
    pub nodes: usize,
    /// The bytes of the indexing nodes.
    pub bytes: usize,
    /// The number of external leaf nodes, which hold only the PTEs of one page or a few. Tables with their leaves in the indexing
    /// nodes have none.
    pub leaves: usize,
    /// The bytes of the external leaf nodes.
    pub leaf_bytes: usize,
    /// The number of PTEs that are present, each replicated entry of a larger page included, plus the number of
    /// [marks](crate::Mark).
    pub ptes: usize,
}

impl Footprint {
    /// Returns the bytes of all nodes, external leaf nodes included.
    pub const fn total(&self) -> usize {
        self.bytes + self.leaf_bytes
    }
}

/// The counters of a [`Footprint`]. Any thread may read them. Only the table's writer changes them; of several writers each
/// adds to them by an atomic addition.
#[derive(Debug, Default)]
pub struct Tally {
    nodes: AtomicUsize,
    bytes: AtomicUsize,
    leaves: AtomicUsize,
    leaf_bytes: AtomicUsize,
    ptes: AtomicUsize,
}

/// Adds to a counter without a locked instruction, because there is only one writer.
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

    /// Does what [`node`](Self::node) does, while other writers may do so.
    pub(crate) fn node_beside(&self, sign: isize, bytes: usize) {
        self.nodes.fetch_add(sign.cast_unsigned(), Ordering::Relaxed);
        self.bytes.fetch_add((sign * bytes as isize).cast_unsigned(), Ordering::Relaxed);
    }

    /// Does what [`ptes`](Self::ptes) does, while other writers may do so.
    #[inline(always)]
    pub(crate) fn ptes_beside(&self, by: isize) {
        self.ptes.fetch_add(by.cast_unsigned(), Ordering::Relaxed);
    }

    /// Returns the number of bytes of the indexing nodes.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sets all counters to 0.
    pub fn clear(&self) {
        for counter in [&self.nodes, &self.bytes, &self.leaves, &self.leaf_bytes, &self.ptes] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the counts.
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
