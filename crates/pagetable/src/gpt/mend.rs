//! Mending a table after a change that has unwound.

use super::Gpt;
use super::guard::low;
use super::layout::{Edge, Layout};
use super::node_size::NodeSize;
use super::slots::Place;
use crate::format::{Format, is_taken};
use crate::nodes::Nodes;
use crate::{Geometry, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Counts the table's entries anew after a change that has unwound, and retires leaves that are empty and nodes with fewer than
    /// two entries. A node to which no slot leads is counted as lost: the change had taken it, or had unlinked it and passed it to
    /// the batch, which has forgotten `forgotten` nodes.
    ///
    /// Costs a walk over the whole table.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[cold]
    pub(super) unsafe fn mend(&self, batch: &mut Retired<'n>, forgotten: usize) {
        let count = |batch: &Retired<'n>| {
            let now = self.tally.footprint();
            now.nodes + now.leaves + batch.nodes()
        };
        let owned = count(batch) + forgotten;
        self.tally.clear();
        // SAFETY: the caller is the writer.
        unsafe {
            let old = self.edge(Place::Root, G::VA_BITS, 0);
            let new = self.mend_edge(batch, old);
            if new != old {
                self.publish(Place::Root, G::VA_BITS, new);
            }
        }
        self.nodes.held().lose(owned.saturating_sub(count(batch)));
    }

    /// Counts the entries of a node and of all nodes below it, and returns the edge that its slot should hold.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and a slot of this table leads to `old`.
    unsafe fn mend_edge(&self, batch: &mut Retired<'n>, old: Edge) -> Edge {
        if old.is_empty() {
            return old;
        }
        self.count_in(old);
        // SAFETY: the caller is the writer; slots are within their nodes.
        unsafe {
            if old.is_leaf() {
                return self.mend_leaf(batch, old);
            }
            // In a layout with guards the edge holds the base. In a layout with tags the base of an edge is zero, and only leaves have
            // a base, in their tags.
            let base = old.base & !low(old.top());
            let (mut before, mut after) = (Edge::EMPTY, Edge::EMPTY);
            let mut slot = 0;
            while slot < old.slots() {
                let start = base | slot << old.shift;
                let child = self.edge(Place::In(old.node, slot), old.shift, start);
                let run = old.run(slot, child);
                slot = run.end;
                if child.is_empty() {
                    continue;
                }
                // The slots of both pages lead to a leaf of two pages.
                if child != before {
                    (before, after) = (child, self.mend_edge(batch, child));
                }
                let here = !old.shares(child) || {
                    let place = Self::pte_of(child, start);
                    F::is_leaf(self.nodes.read(child.node, place), true)
                };
                let new = if here { after } else { Edge::EMPTY };
                if new != child {
                    run.for_each(|slot| self.publish(Place::In(old.node, slot), old.shift, new));
                }
            }
            let live = self.entries(old);
            if live < 2 {
                let only = self.last_entry(old, base);
                self.retire(batch, old);
                return only;
            }
            self.set_live(old, live);
            old
        }
    }

    /// Counts the PTEs of a leaf, and its marks.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and a slot of this table leads to `leaf`.
    unsafe fn mend_leaf(&self, batch: &mut Retired<'n>, leaf: Edge) -> Edge {
        // SAFETY: the caller is the writer; slots are within the leaf.
        unsafe {
            let start = if L::TAGGED { self.tag(leaf.node) } else { leaf.base };
            let base = start & !low(leaf.top());
            let live = (0..leaf.slots())
                .filter(|&slot| {
                    let place = Self::pte_of(leaf, base | slot << leaf.shift);
                    is_taken::<F>(self.nodes.read(leaf.node, place))
                })
                .count();
            if live == 0 {
                self.retire(batch, leaf);
                return Edge::EMPTY;
            }
            self.set_live(leaf, live);
            self.tally.ptes(live as isize);
            leaf
        }
    }
}
