//! Storage that is watched: what walkers load, and nodes that it refuses on demand.

use std::cell::Cell;

use tlbkit_conformance::forward;
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes, Reclaim, Slab};
use tlbkit_pagetable::{Mode, Word};

/// A slab that counts the loads of walkers, remembers the last, and refuses nodes above a size or beyond a number.
#[derive(Debug)]
pub(crate) struct Watched<'m, W, M: Mode> {
    pub(crate) inner: Slab<'m, W, M>,
    loads: Cell<usize>,
    /// The node and the word that a walker loaded last.
    pub(crate) last: Cell<(NodeAddr, usize)>,
    /// The words of the largest node that can be had.
    pub(crate) most_words: Cell<usize>,
    /// How many more nodes can be had.
    pub(crate) left: Cell<usize>,
}

impl<'m, W: Word, M: Mode> Watched<'m, W, M> {
    pub(crate) fn new(memory: &'m mut [Chunk]) -> Self {
        let inner = Slab::new(memory, 0).unwrap();
        Self {
            inner,
            loads: Cell::new(0),
            last: Cell::new((NodeAddr::new(0), 0)),
            most_words: Cell::new(usize::MAX),
            left: Cell::new(usize::MAX),
        }
    }

    pub(crate) fn loads_of<T>(&self, f: impl FnOnce() -> T) -> (T, usize) {
        self.loads.set(0);
        let result = f();
        (result, self.loads.get())
    }
}

// SAFETY: everything is the slab's.
unsafe impl<W: Word, M: Mode> Nodes for Watched<'_, W, M> {
    type Word = W;
    type Mode = M;

    forward!(cells);

    fn lowest(&self) -> NodeAddr {
        self.inner.lowest()
    }

    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
        if words > self.most_words.get() {
            return None;
        }
        self.left.set(self.left.get().checked_sub(1)?);
        self.inner.take_within(words, last)
    }

    fn room(&self, words: usize) -> usize {
        self.inner.room(words)
    }

    unsafe fn follow(&self, node: NodeAddr, index: usize) -> W {
        self.loads.set(self.loads.get() + 1);
        self.last.set((node, index));
        // SAFETY: the caller's promise, about the slab.
        unsafe { self.inner.follow(node, index) }
    }
}

// SAFETY: everything is the slab's, except that it never is `Sync`.
unsafe impl<W: Word, M: Mode> Reclaim for Watched<'_, W, M> {
    forward!(free);
    forward!(reclaim);

    fn shared(&self) -> bool {
        false
    }
}
