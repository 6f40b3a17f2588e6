//! The sizes of leaves: crowded leaves join to a larger one, and a leaf whose last page but one goes shrinks to the smallest size.
//!
//! ```text
//!      node                                          leaf
//!        +-----+-----+              join               +---+---+---+---+
//!        |  *  |  *  |         ------------->          | A | B | C | D |
//!        +--|--+--|--+                                 +---+---+---+---+
//!           |     `-> | C | D |
//!           `-------> | A | B |
//! ```
//!
//! A region gets one leaf if its pages are [worth](Shape::worth) it, and loses it when the leaf is [sparse](Writing::sparse). The two
//! limits are far apart: a page that is mapped and unmapped again and again does not change the leaf each time, and pages that are
//! unmapped one after the other, as most are, leave nothing that is worth a smaller leaf before the last one.

use super::guard::low;
use super::node::{Node, Slot, Writing};
use super::shape::Shape;
use crate::format::is_taken;

impl<'w, T: Shape> Writing<'w, '_, T> {
    /// Replaces a node that is no larger than a leaf can be, and begins at `base`, by one leaf for all pages under it, if they are
    /// worth a leaf. Only `slot` leads to the node. Tells whether it has done so.
    #[inline(never)]
    pub(super) fn join(&mut self, slot: Slot<'w, T>, node: Node<'w, T>, base: usize) -> bool {
        let (pages, width) = (node.pages_below(), node.top() - T::BASE);
        if !T::worth(pages, width) {
            return false;
        }
        let Some((leaf, _)) = self.take(base, width, None) else { return false };
        node.copy_below(leaf.node());
        slot.publish(Some(leaf.node()));
        // The pages are in the leaf.
        self.table().tally().ptes(pages as isize);
        // SAFETY: only the slot led to the node, and now it leads to the leaf.
        unsafe { self.discard(node) };
        true
    }

    /// Joins all pages below a node that covers `at` to one leaf: the uppermost node whose region is no larger than that of a leaf
    /// can be, and whose pages are worth a leaf.
    ///
    /// After that no further step pays at a node above: no node grows by the bits of a node of such a small region, and halving saves
    /// less above a leaf than above a node ([`tune`](super::tune)).
    #[inline(never)]
    pub(super) fn join_path(&mut self, at: usize) {
        let mut slot = self.root();
        while let Some(node) = slot.read().filter(|node| !node.is_leaf()) {
            if node.top() <= T::LEAF_TOP && self.join(slot, node, at & !low(node.top())) {
                return;
            }
            slot = node.slot_at(at);
        }
    }

    /// Replaces a leaf that has lost PTEs and has `live` left by a new leaf of the smallest size, if the leaf is
    /// [sparse](Self::sparse) and there is memory. The leaf begins at `base`, and only `slot` leads to it.
    #[inline(never)]
    pub(super) fn shrink(&mut self, slot: Slot<'w, T>, leaf: Node<'w, T>, base: usize, live: usize) {
        if !Self::sparse(leaf.width, live) {
            return;
        }
        let mut entries = leaf.all_ptes(base).map(|pte| (pte.at(), pte.read()));
        let Some((at, word)) = entries.find(|&(_, word)| is_taken::<T::F>(word)) else { return };
        let Some((new, _)) = self.take(at, T::MIN_LEAF_WIDTH, None) else { return };
        new.pte(at).store(word);
        new.set_live(live);
        slot.publish(Some(new.node()));
        // SAFETY: only the slot led to the leaf, and now it leads to the new one.
        unsafe { self.retire(leaf) };
    }

    /// Tells whether a leaf of `2^width` PTEs, of which `live` are in use, is too large: one of four or more is in use.
    pub(super) const fn sparse(width: u32, live: usize) -> bool {
        live == 1 && width > 1
    }
}

impl<T: Shape> Node<'_, T> {
    /// Counts the pages under a node that have a leaf entry or a mark. The node's region is no larger than that of a leaf can be,
    /// which bounds the recursion.
    fn pages_below(self) -> usize {
        if self.is_leaf() {
            return self.live();
        }
        self.children().flatten().map(Self::pages_below).sum()
    }

    /// Copies the pages under a node, which is no larger than a leaf can be, to a new leaf that covers them.
    fn copy_below(self, leaf: Self) {
        if self.is_leaf() {
            self.copy_to(self.start(), leaf);
        } else {
            self.children().flatten().for_each(|child| child.copy_below(leaf));
        }
    }
}
