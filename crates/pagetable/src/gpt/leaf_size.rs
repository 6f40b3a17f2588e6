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
//! A region gets one leaf if its pages are [worth](Gpt::worth) it, and loses it when the leaf is [sparse](Gpt::sparse). The two
//! limits are far apart: a page that is mapped and unmapped again and again does not change the leaf each time, and pages that are
//! unmapped one after the other, as most are, leave nothing that is worth a smaller leaf before the last one.

use super::Gpt;
use super::guard::low;
use super::layout::{Edge, Holds, Layout};
use super::node_size::NodeSize;
use super::slots::{Place, leaf_kind};
use crate::format::{Format, is_taken};
use crate::nodes::Nodes;
use crate::{Geometry, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Returns one leaf for all pages under a node that is no larger than a leaf can be, if they are worth a leaf.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `node` is a node of this table that begins at `base`. The
    /// caller publishes the result, if there is one, in its place.
    #[inline(never)]
    pub(super) unsafe fn join(&self, batch: &mut Retired<'n>, node: Edge, base: usize) -> Option<Edge> {
        let width = node.top() - Self::BASE;
        // SAFETY: the caller is the writer; the new leaf is private and covers what the node covers.
        unsafe {
            if !Self::worth(self.pages_below(node), width) {
                return None;
            }
            let new = self.take(Self::words(leaf_kind(width)))?;
            let leaf =
                Edge { node: new, shift: Self::BASE, width, holds: Holds::Ptes, base: Self::base(base) };
            self.count_in(leaf);
            self.store_tag(leaf, base);
            self.move_below(batch, node, leaf);
            Some(leaf)
        }
    }

    /// Counts the pages under a node that have a leaf entry or a mark. The node's region is no larger than that of a leaf can be,
    /// which bounds the recursion.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `node` is a node or leaf of this table.
    unsafe fn pages_below(&self, node: Edge) -> usize {
        // SAFETY: the caller is the writer; slots are within their nodes.
        unsafe {
            if node.is_leaf() {
                return self.live(node);
            }
            (0..node.slots())
                .map(|slot| self.edge(Place::In(node.node, slot), node.shift, 0))
                .map(|child| if child.is_empty() { 0 } else { self.pages_below(child) })
                .sum()
        }
    }

    /// Copies the pages under a node, which is no larger than a leaf can be, to a private leaf, and retires the node with
    /// everything below it.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `node` is a node or leaf of this table. The caller
    /// publishes `leaf`, a new leaf that covers its pages, in its place.
    unsafe fn move_below(&self, batch: &mut Retired<'n>, node: Edge, leaf: Edge) {
        // SAFETY: the caller is the writer, and links the leaf in the node's place; slots are within their nodes.
        unsafe {
            if node.is_leaf() {
                self.copy_leaf(node, self.base_of(node), leaf);
            } else {
                for slot in 0..node.slots() {
                    let child = self.edge(Place::In(node.node, slot), node.shift, 0);
                    if !child.is_empty() {
                        self.move_below(batch, child, leaf);
                    }
                }
            }
            self.retire(batch, node);
        }
    }

    /// Joins all pages below a node that covers `at` to one leaf: the uppermost node whose region is no larger than that of a leaf
    /// can be, and whose pages are worth a leaf.
    ///
    /// After that no further step pays at a node above: no node grows by the bits of a node of such a small region, and halving saves
    /// less above a leaf than above a node ([`tune`](super::tune)).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[inline(never)]
    pub(super) unsafe fn join_path(&self, batch: &mut Retired<'n>, at: usize) {
        // SAFETY: the caller is the writer; slots are within their nodes.
        unsafe {
            let mut place = Place::Root;
            let mut node = self.edge(place, G::VA_BITS, at);
            while !node.is_empty() && !node.is_leaf() {
                if node.top() <= Self::LEAF_TOP
                    && let Some(leaf) = self.join(batch, node, at & !low(node.top()))
                {
                    return self.publish(place, G::VA_BITS, leaf);
                }
                place = Place::In(node.node, node.index(at));
                node = self.edge(place, G::VA_BITS, at);
            }
        }
    }

    /// Returns the edge that replaces the edge to a leaf that has lost PTEs and has `live` left: to a new leaf of the smallest size
    /// if the leaf is [sparse](Self::sparse) and there is memory, and to the leaf itself if not.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `leaf` is a leaf of this table that begins at `base`. The
    /// caller publishes the result in its place.
    #[inline(never)]
    pub(super) unsafe fn shrink(
        &self,
        batch: &mut Retired<'n>,
        leaf: Edge,
        base: usize,
        live: usize,
    ) -> Edge {
        if !Self::sparse(leaf.width, live) {
            return leaf;
        }
        let width = Self::MIN_LEAF_WIDTH;
        // SAFETY: the caller is the writer; the new leaf is private and covers the page, and slots are within their leaves.
        unsafe {
            let pages = (0..leaf.slots()).map(|slot| base | slot << leaf.shift);
            let mut entries = pages.map(|at| (at, self.nodes.read(leaf.node, Self::pte_of(leaf, at))));
            let Some((at, word)) = entries.find(|&(_, word)| is_taken::<F>(word)) else { return leaf };
            let Some(node) = self.take(Self::words(leaf_kind(width))) else { return leaf };
            let start = at & !low(leaf.shift + width);
            let new = Edge { node, shift: leaf.shift, width, holds: Holds::Ptes, base: Self::base(start) };
            self.count_in(new);
            self.store_tag(new, start);
            self.nodes.store_relaxed(node, Self::pte_of(new, at), word);
            self.settle_pair(new, at);
            self.set_live(new, live);
            self.retire(batch, leaf);
            new
        }
    }

    /// Tells whether a leaf of `2^width` PTEs, of which `live` are in use, is too large: one of four or more is in use.
    pub(super) const fn sparse(width: u32, live: usize) -> bool {
        live == 1 && width > 1
    }
}
