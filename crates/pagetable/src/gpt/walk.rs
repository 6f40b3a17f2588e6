//! The walks. [`find`](View::find), for lookups and for changes of a page that is mapped, calls the layout's walk
//! ([`Layout::seek`](super::Layout)), which follows the links and checks the guards ([`guard`](super::guard)), and reads the PTE.
//! [`walk`](View::walk), for the writer, compares no guards and ends at the slot where a change begins; so does
//! [`walk_along`](View::walk_along), which also ends at a node that does not cover the page.

use super::guard::agree;
use super::node::{Node, Pte, Right, Slot, View};
use super::shape::Shape;
use crate::format::Format;
use crate::{Entry, Leaf};

/// The slot at which the writer's walk for a page ends.
pub(super) struct End<'w, T: Shape> {
    pub(super) slot: Slot<'w, T>,
    /// The slot's contents: nothing, a leaf, or, after [`walk_along`](View::walk_along), a node or leaf that does not cover the page.
    /// A leaf after [`walk`](View::walk) need not cover the page.
    pub(super) held: Option<Node<'w, T>>,
    /// The slot that leads to the node that has `slot`.
    pub(super) before: Slot<'w, T>,
}

impl<'a, T: Shape, R: Right> View<'a, T, R> {
    /// Returns the leaf that maps `at`.
    #[inline(always)]
    pub(super) fn find(self, at: usize) -> Option<Leaf> {
        self.seek(at)?.mapped()
    }

    /// Returns what the entry for the page at `at` holds.
    #[inline(always)]
    pub(super) fn find_entry(self, at: usize) -> Entry {
        self.seek(at).map_or(Entry::Empty, Pte::entry)
    }
}

impl<'w, T: Shape> View<'w, T> {
    /// Walks down by the digits of `key` until a slot is empty or leads to a leaf. Compares no guards.
    #[inline(always)]
    pub(super) fn walk(self, key: usize) -> End<'w, T> {
        self.walk_while(key, |_| true)
    }

    /// Walks down by the digits of `key` until a slot is empty, or leads to a leaf or to a node that does not cover `key`. `near`
    /// is a key that all nodes on the path cover.
    #[inline(always)]
    pub(super) fn walk_along(self, key: usize, near: usize) -> End<'w, T> {
        self.walk_while(key, |node| agree(key, near, node.top()))
    }

    /// Walks down for `key` as long as `covers` holds for the node or leaf that a slot leads to.
    #[inline(always)]
    fn walk_while(self, key: usize, covers: impl Fn(Node<'w, T>) -> bool) -> End<'w, T> {
        let mut slot = self.root();
        let mut before = slot;
        loop {
            // `slot` is the root slot, or a slot for `key` of a node to which `before` leads.
            match slot.read() {
                Some(node) if !node.is_leaf() && covers(node) => (before, slot) = (slot, node.slot_at(key)),
                held => return End { slot, held, before },
            }
        }
    }
}

impl<'a, T: Shape, R: Right> Pte<'a, T, R> {
    /// Returns the leaf entry, if the word is one.
    #[inline(always)]
    pub(super) fn mapped(self) -> Option<Leaf> {
        let word = self.read();
        T::F::is_leaf(word, true).then(|| T::leaf(word, self.leaf().shift, self.at()))
    }

    /// Returns what the word is.
    #[inline(always)]
    pub(super) fn entry(self) -> Entry {
        T::entry(self.read(), self.leaf().shift, self.at())
    }
}
