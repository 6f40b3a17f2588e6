//! Storage that fails when it is told to.

use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit_pagetable::nodes::{NodeAddr, Nodes, Reclaim};

use crate::wrap::forward;

/// Storage that refuses one chosen allocation, or all beyond a limit, and counts the nodes that are taken.
///
/// ```
/// use tlbkit_conformance::Failing;
/// use tlbkit_pagetable::nodes::{Chunk, Nodes, Reclaim, Slab};
/// use tlbkit_pagetable::Solo;
///
/// let mut memory = vec![Chunk::ZERO; 4];
/// let nodes = Failing::new(Slab::<u64, Solo>::new(&mut memory, 0)?);
/// nodes.fail_at(1);
/// let node = nodes.take(2).unwrap();
/// assert_eq!(nodes.take(2), None);
/// assert!(nodes.failed() && nodes.out() == 1);
/// // SAFETY: no other code knows the node, and nothing was written to it.
/// unsafe { nodes.free(node, true) };
/// assert_eq!(nodes.out(), 0);
/// # Ok::<(), tlbkit_pagetable::nodes::SlabError>(())
/// ```
#[derive(Debug)]
pub struct Failing<N> {
    inner: N,
    /// The number of takes that succeed before the one that fails.
    left: AtomicUsize,
    out: AtomicUsize,
    limit: AtomicUsize,
}

/// No failure is planned.
const NEVER: usize = usize::MAX;
/// The planned failure has happened.
const DONE: usize = usize::MAX - 1;

impl<N> Failing<N> {
    /// Wraps a storage. No take fails until [`fail_at`](Self::fail_at) is called.
    pub const fn new(inner: N) -> Self {
        Self {
            inner,
            left: AtomicUsize::new(NEVER),
            out: AtomicUsize::new(0),
            limit: AtomicUsize::new(usize::MAX),
        }
    }

    /// Lets `takes` nodes be taken from now on, and refuses the next one. Those after it succeed again.
    pub fn fail_at(&self, takes: usize) {
        self.left.store(takes, Ordering::Relaxed);
    }

    /// Cancels the planned failure, and tells whether it has happened.
    pub fn failed(&self) -> bool {
        self.left.swap(NEVER, Ordering::Relaxed) == DONE
    }

    /// Refuses a take while `nodes` nodes are taken, as memory of a fixed size does.
    pub fn limit(&self, nodes: usize) {
        self.limit.store(nodes, Ordering::Relaxed);
    }

    /// Returns the number of nodes that are taken and not freed.
    pub fn out(&self) -> usize {
        self.out.load(Ordering::Relaxed)
    }

    /// Returns the inner storage.
    pub const fn inner(&self) -> &N {
        &self.inner
    }
}

// SAFETY: it returns the nodes of the inner storage unchanged.
unsafe impl<N: Nodes> Nodes for Failing<N> {
    type Word = N::Word;
    type Mode = N::Mode;

    fn lowest(&self) -> NodeAddr {
        self.inner.lowest()
    }

    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
        // A property runs in one thread, so a load and a store are enough.
        let left = self.left.load(Ordering::Relaxed);
        if !matches!(left, NEVER | DONE) {
            self.left.store(left.checked_sub(1).unwrap_or(DONE), Ordering::Relaxed);
        }
        if left == 0 || self.out() >= self.limit.load(Ordering::Relaxed) {
            return None;
        }
        let node = self.inner.take_within(words, last)?;
        self.out.fetch_add(1, Ordering::Relaxed);
        Some(node)
    }

    fn room(&self, words: usize) -> usize {
        self.inner.room(words)
    }

    forward!(cells);
    forward!(follow);
    forward!(store);
}

// SAFETY: every result is that of the inner storage; the counters are atomic, so the wrapper is `Sync` if the inner storage is.
unsafe impl<N: Nodes> Reclaim for Failing<N> {
    unsafe fn free(&self, node: NodeAddr, clean: bool) {
        // SAFETY: this function's contract holds for the inner storage.
        unsafe { self.inner.free(node, clean) };
        // The count comes after the call, because the inner storage may unwind.
        self.out.fetch_sub(1, Ordering::Relaxed);
    }

    forward!(reclaim);
    forward!(shared);
}
