//! Dividing a digit: an upper node with slots of the size that a larger page needs, lower ones for what was there.

use super::Gpt;
use super::guard::low;
use super::job::{Gone, Job, New, Supply};
use super::layout::{Edge, Layout};
use super::node_size::NodeSize;
use super::slots::{Place, inner_kind};
use super::visit::Span;
use crate::Geometry;
use crate::format::Format;
use crate::nodes::Nodes;

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Parts the digit of a node whose slots are smaller than the pages to be mapped: an upper node with slots of
    /// that size, empty where the pages will be, and lower ones for what the old node holds.
    #[inline(never)]
    pub(super) unsafe fn divide<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
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

    /// Returns what stands for some slots of a node, `2^width` of them from `start` on, in a slot of their size: a
    /// node of their own if there is more than one entry.
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
        // SAFETY: the caller is the writer; the group is within the node, and the new node private.
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
            let new = Edge { node, shift: old.shift, width, leaf: false, base: Self::base(start) };
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
