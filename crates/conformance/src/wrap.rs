//! What the storage wrappers pass on to the storage inside them.

/// Writes the methods of [`Nodes`](tlbkit_pagetable::nodes::Nodes) and
/// [`Reclaim`](tlbkit_pagetable::nodes::Reclaim) that a wrapper does not watch, by groups. The wrapper has a field
/// `inner`, whose nodes it hands out as they are: the promises of its callers are about that.
macro_rules! forward {
    (take) => {
        fn lowest(&self) -> NodeAddr {
            self.inner.lowest()
        }

        fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
            self.inner.take_within(words, last)
        }

        fn room(&self, words: usize) -> usize {
            self.inner.room(words)
        }
    };
    (cells) => {
        unsafe fn at(&self, node: NodeAddr) -> *const <N::Word as tlbkit_pagetable::Word>::Cell {
            // SAFETY: the caller's promise, about the storage inside.
            unsafe { self.inner.at(node) }
        }

        unsafe fn record(&self, node: NodeAddr, words: usize) -> *const tlbkit_pagetable::nodes::Record {
            // SAFETY: as above.
            unsafe { self.inner.record(node, words) }
        }

        unsafe fn read(&self, node: NodeAddr, index: usize) -> N::Word {
            // SAFETY: as above.
            unsafe { self.inner.read(node, index) }
        }
    };
    (follow) => {
        unsafe fn follow(&self, node: NodeAddr, index: usize) -> N::Word {
            // SAFETY: the caller's promise, about the storage inside.
            unsafe { self.inner.follow(node, index) }
        }
    };
    (store) => {
        unsafe fn publish(&self, node: NodeAddr, index: usize, word: N::Word) {
            // SAFETY: the caller's promise, about the storage inside.
            unsafe { self.inner.publish(node, index, word) };
        }

        unsafe fn store_relaxed(&self, node: NodeAddr, index: usize, word: N::Word) {
            // SAFETY: as above.
            unsafe { self.inner.store_relaxed(node, index, word) };
        }

        fn stored(&self, store: tlbkit_pagetable::nodes::Store) {
            self.inner.stored(store);
        }
    };
    (free) => {
        unsafe fn free(&self, node: NodeAddr, clean: bool) {
            // SAFETY: the caller's promise, about the storage inside.
            unsafe { self.inner.free(node, clean) };
        }
    };
    (reclaim) => {
        unsafe fn link(&self, node: NodeAddr) -> *const tlbkit_pagetable::nodes::Record {
            // SAFETY: the caller's promise, about the storage inside.
            unsafe { self.inner.link(node) }
        }

        fn index_of(&self, node: NodeAddr) -> u32 {
            self.inner.index_of(node)
        }

        fn node_of(&self, index: u32) -> NodeAddr {
            self.inner.node_of(index)
        }

        fn shared(&self) -> bool {
            self.inner.shared()
        }

        fn held(&self) -> &tlbkit_pagetable::nodes::Held {
            self.inner.held()
        }
    };
}

pub(crate) use forward;
