//! The walks. [`find`](Gpt::find), for lookups and for changes of a page that is mapped, calls the layout's walk
//! ([`Layout::seek`]), which follows the links and checks the guards ([`guard`](super::guard)), and reads the PTE.
//! [`walk`](Gpt::walk), for the writer, compares no guards and ends at the slot where a change begins; so does
//! [`walk_along`](Gpt::walk_along), which also ends at a node that does not cover the page.

use super::Gpt;
use super::guard::agree;
use super::layout::{Edge, Layout};
use super::node_size::NodeSize;
use super::slots::Place;
use crate::format::Format;
use crate::nodes::Nodes;
use crate::{Entry, Geometry, Leaf};

/// The slot at which the writer's walk for a page ends.
pub(super) struct End {
    pub(super) place: Place,
    /// The node that has the slot; empty if that is the root slot.
    pub(super) above: Edge,
    /// The slot's contents: empty, a leaf, or, after [`walk_along`](Gpt::walk_along), a node or leaf that does not cover the page.
    /// A leaf after [`walk`](Gpt::walk) need not cover the page.
    pub(super) edge: Edge,
    /// The slot that leads to `above`, and the node that has that slot.
    pub(super) before: (Place, Edge),
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Returns the leaf that maps `at`.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer.
    #[inline(always)]
    pub(super) unsafe fn find(&self, at: usize) -> Option<Leaf> {
        // SAFETY: by this function's contract the caller is pinned, or the writer; the index is below the leaf's slots.
        unsafe {
            let found = L::seek(self.nodes, &self.root, G::VA_BITS, Self::TAG, at)?;
            let word = self.nodes.follow(found.leaf, Self::pte_at(found.shift, found.index, at));
            F::is_leaf(word, true).then(|| Self::leaf(word, found.shift, at))
        }
    }

    /// Returns what the entry for the page at `at` holds.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer.
    #[inline(always)]
    pub(super) unsafe fn find_entry(&self, at: usize) -> Entry {
        // SAFETY: by this function's contract the caller is pinned, or the writer; the index is below the leaf's slots.
        unsafe {
            let found = L::seek(self.nodes, &self.root, G::VA_BITS, Self::TAG, at);
            found.map_or(Entry::Empty, |found| {
                let word = self.nodes.follow(found.leaf, Self::pte_at(found.shift, found.index, at));
                Self::entry(word, found.shift, at)
            })
        }
    }

    /// Walks down by the digits of `key` until a slot is empty or leads to a leaf. Compares no guards.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(always)]
    pub(super) unsafe fn walk(&self, key: usize) -> End {
        // SAFETY: by this function's contract the caller is the writer.
        unsafe { self.walk_while(key, |_| true) }
    }

    /// Walks down by the digits of `key` until a slot is empty, or leads to a leaf or to a node that does not cover `key`. `near`
    /// is a key that all nodes on the path cover.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(always)]
    pub(super) unsafe fn walk_along(&self, key: usize, near: usize) -> End {
        // SAFETY: by this function's contract the caller is the writer.
        unsafe { self.walk_while(key, |edge| agree(key, near, edge.top())) }
    }

    /// Walks down for `key` as long as `covers` holds for the node or leaf that a slot leads to.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(always)]
    unsafe fn walk_while(&self, key: usize, covers: impl Fn(Edge) -> bool) -> End {
        let (mut place, mut above) = (Place::Root, Edge::EMPTY);
        let mut before = (place, above);
        // SAFETY: by this function's contract the caller is the writer; slots are within their nodes.
        unsafe {
            let mut edge = self.edge(place, G::VA_BITS, key);
            while !edge.is_empty() && !edge.is_leaf() && covers(edge) {
                before = (place, above);
                (place, above) = (Place::In(edge.node, edge.index(key)), edge);
                edge = self.edge(place, above.shift, key);
            }
            End { place, above, edge, before }
        }
    }

    /// Returns the position in its leaf of the PTE that a walk found.
    #[inline(always)]
    pub(super) fn pte_at(shift: u32, index: usize, at: usize) -> usize {
        // A lone half of a pair has the position that it would have beside the other half.
        if Self::ROOM_WIDTH > 0 { Self::pte(index | at >> shift & 1) } else { Self::pte(index) }
    }
}
