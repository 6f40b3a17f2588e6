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
    /// Counts the table's entries anew, from the words that are there, after a change that has unwound. Takes out leaves
    /// that are empty now, and nodes that have lost their choice. Nodes that no word leads to are lost: those that the
    /// change had taken for itself, and of those that it had pushed, `forgotten` by the batch, the ones that it had
    /// unlinked.
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

    /// Counts what is in use of a node and below it, and returns what its slot shall say.
    unsafe fn mend_edge(&self, batch: &mut Retired<'n>, old: Edge) -> Edge {
        if old.is_empty() {
            return old;
        }
        self.count_in(old);
        // SAFETY: the caller is the writer; slots are within their nodes.
        unsafe {
            if old.leaf {
                return self.mend_leaf(batch, old);
            }
            // Where slots have guards these tell addresses; where leaves have tags no other node needs its own.
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
                // A leaf of two pages stands in the slots of both.
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
