//! The methods that storage wrappers forward to their inner storage.

/// Writes the methods of [`Nodes`](tlbkit_pagetable::nodes::Nodes) and [`Reclaim`](tlbkit_pagetable::nodes::Reclaim) that a
/// wrapper only forwards, in groups. The wrapper has a field `inner` and returns its nodes unchanged, so the contracts of these
/// methods hold for the inner storage.
#[doc(hidden)]
#[macro_export]
macro_rules! forward {
    (take) => {
        fn lowest(&self) -> $crate::pagetable::nodes::NodeAddr {
            self.inner.lowest()
        }

        fn take_within(&self, words: usize, last: usize) -> Option<$crate::pagetable::nodes::NodeAddr> {
            self.inner.take_within(words, last)
        }

        fn room(&self, words: usize) -> usize {
            self.inner.room(words)
        }
    };
    (cells) => {
        unsafe fn at(
            &self,
            node: $crate::pagetable::nodes::NodeAddr,
        ) -> *const <<Self as $crate::pagetable::nodes::Nodes>::Word as $crate::pagetable::Word>::Cell {
            // SAFETY: this function's contract holds for the inner storage.
            unsafe { self.inner.at(node) }
        }

        unsafe fn record(
            &self,
            node: $crate::pagetable::nodes::NodeAddr,
            words: usize,
        ) -> *const $crate::pagetable::nodes::Record {
            // SAFETY: this function's contract holds for the inner storage.
            unsafe { self.inner.record(node, words) }
        }

        unsafe fn read(&self, node: $crate::pagetable::nodes::NodeAddr, index: usize) -> Self::Word {
            // SAFETY: this function's contract holds for the inner storage.
            unsafe { self.inner.read(node, index) }
        }
    };
    (follow) => {
        unsafe fn follow(&self, node: $crate::pagetable::nodes::NodeAddr, index: usize) -> Self::Word {
            // SAFETY: this function's contract holds for the inner storage.
            unsafe { self.inner.follow(node, index) }
        }
    };
    (store) => {
        unsafe fn publish(&self, node: $crate::pagetable::nodes::NodeAddr, index: usize, word: Self::Word) {
            // SAFETY: this function's contract holds for the inner storage.
            unsafe { self.inner.publish(node, index, word) };
        }

        unsafe fn store_relaxed(
            &self,
            node: $crate::pagetable::nodes::NodeAddr,
            index: usize,
            word: Self::Word,
        ) {
            // SAFETY: this function's contract holds for the inner storage.
            unsafe { self.inner.store_relaxed(node, index, word) };
        }

        fn stored(&self, store: $crate::pagetable::nodes::Store) {
            self.inner.stored(store);
        }
    };
    (free) => {
        unsafe fn free(&self, node: $crate::pagetable::nodes::NodeAddr, clean: bool) {
            // SAFETY: this function's contract holds for the inner storage.
            unsafe { self.inner.free(node, clean) };
        }
    };
    (shared) => {
        fn shared(&self) -> bool {
            self.inner.shared()
        }
    };
    (reclaim) => {
        unsafe fn link(
            &self,
            node: $crate::pagetable::nodes::NodeAddr,
        ) -> *const $crate::pagetable::nodes::Record {
            // SAFETY: this function's contract holds for the inner storage.
            unsafe { self.inner.link(node) }
        }

        fn index_of(&self, node: $crate::pagetable::nodes::NodeAddr) -> u32 {
            self.inner.index_of(node)
        }

        fn node_of(&self, index: u32) -> $crate::pagetable::nodes::NodeAddr {
            self.inner.node_of(index)
        }

        fn held(&self) -> &$crate::pagetable::nodes::Held {
            self.inner.held()
        }
    };
}

pub(crate) use forward;
