//! Dividing a node: an upper node, with slots of the size that a larger page needs, and lower nodes replace a node of smaller
//! slots.
//!
//! ```text
//!   old node, slots of 2^s bytes        upper node, slots of 2^page bytes
//!   +----+----+----+----+----+----+     +--------+--------+--------+
//!   | A  | B  |    |    | C  |    |     |   *    |  page  |   C    |
//!   +----+----+----+----+----+----+     +--------+--------+--------+
//!                                           `-> +----+----+
//!                                               | A  | B  |   lower node, slots of 2^s bytes
//!                                               +----+----+
//! ```

use super::Gpt;
use super::guard::low;
use super::job::{Gone, Job, New, Supply};
use super::layout::{Edge, Holds, Layout};
use super::node_size::NodeSize;
use super::slots::{Place, inner_kind};
use super::visit::Span;
use crate::Geometry;
use crate::format::Format;
use crate::nodes::Nodes;

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Divides a node whose slots are smaller than the pages to be mapped: takes an upper node with slots of the pages' size, which
    /// are empty for the pages of the span, and lower nodes for the other entries of the old node.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the job's batch came from this table, and `old` is a node of this table that covers the span.
    #[inline(never)]
    pub(super) unsafe fn divide<S: Supply>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        old: Edge,
        span: Span,
    ) -> (Span, New, Gone) {
        let (cut, base) = (job.page, span.first & !low(old.top()));
        // SAFETY: the caller is the writer; the new nodes are private, and slots within their nodes.
        unsafe {
            if job.replaces && span.first == span.last {
                let gone = old.index(span.first)..old.index(span.last | low(cut)) + 1;
                let empty = |slot| self.edge(Place::In(old.node, slot), old.shift, base).is_empty();
                if (0..old.slots()).all(|slot| gone.contains(&slot) || empty(slot)) {
                    // The page replaces everything that the node holds.
                    return (span, New::Below(cut), Gone::Subtree);
                }
            }
            let upper = self.new_node(job.supply, cut, old.top() - cut, base);
            let below = cut - old.shift;
            let mut live = 0;
            for slot in 0..upper.slots() {
                let start = base | slot << cut;
                let group = slot << below..(slot + 1) << below;
                if span.within(start, cut, cut).is_some() {
                    continue;
                }
                let child = self.entry_of_slots(job.supply, old, group, below, start);
                if S::REAL {
                    self.store_edge(upper.node, slot, cut, child);
                }
                live += usize::from(!child.is_empty());
            }
            if S::REAL {
                self.set_live(upper, live);
            }
            (span, New::Open(upper), Gone::Divided)
        }
    }

    /// Returns the one entry that replaces a group of `2^width` slots of a node: a new node with their entries if there are
    /// several, the only entry if there is one, and otherwise an empty one.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, `old` is a node of this table, and the group is `2^width` of its slots, the first of them at
    /// `start`.
    #[inline(never)]
    pub(super) unsafe fn entry_of_slots<S: Supply>(
        &self,
        supply: &mut S,
        old: Edge,
        group: core::ops::Range<usize>,
        width: u32,
        start: usize,
    ) -> Edge {
        let first = group.start;
        // SAFETY: by this function's contract the caller is the writer, and the group is within the node; no walker can reach the
        // new node.
        unsafe {
            let child = |slot: usize| {
                self.edge(Place::In(old.node, slot), old.shift, start | (slot - first) << old.shift)
            };
            let (mut live, mut only) = (0, Edge::EMPTY);
            for slot in group.clone() {
                let child = child(slot);
                if !child.is_empty() && child != only {
                    (live, only) = (live + 1, child);
                }
            }
            if live < 2 {
                return only;
            }
            let node = supply.take(inner_kind(width));
            let new = Edge { node, shift: old.shift, width, holds: Holds::Links, base: Self::base(start) };
            if S::REAL {
                self.count_in(new);
                for slot in group {
                    self.store_edge(node, slot - first, old.shift, child(slot));
                }
                self.set_live(new, live);
            }
            new
        }
    }
}
