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

use core::ops::Range;

use super::guard::low;
use super::job::{Gone, Job, New};
use super::node::{Item, Node, Supply, Writing};
use super::shape::Shape;
use super::visit::Span;

/// A group of `2^width` slots of a node, the first of them at the key `start`.
pub(super) struct Group<'w, T: Shape> {
    node: Node<'w, T>,
    slots: Range<usize>,
    width: u32,
    start: usize,
}

impl<'w, T: Shape> Writing<'w, '_, T> {
    /// Divides a node whose slots are smaller than the pages to be mapped: takes an upper node with slots of the pages' size, which
    /// are empty for the pages of the span, and lower nodes for the other entries of the old node.
    #[inline(never)]
    pub(super) fn divide<const REAL: bool>(
        job: &mut Job<'_, 'w, T, REAL>,
        old: Node<'w, T>,
        span: Span,
    ) -> (Span, New<'w, T, REAL>, Gone) {
        let (cut, base) = (job.page, span.first & !low(old.top()));
        if job.replaces && span.first == span.last {
            let gone = old.index(span.first)..old.index(span.last | low(cut)) + 1;
            if old.children().enumerate().all(|(slot, child)| gone.contains(&slot) || child.is_none()) {
                // The page replaces everything that the node holds.
                return (span, New::Below(cut), Gone::Subtree);
            }
        }
        let upper = job.supply.node(cut, old.top() - cut, base);
        let below = cut - old.shift;
        let mut live = 0;
        for slot in 0..upper.slots() {
            let start = base | slot << cut;
            if span.within(start, cut, cut).is_some() {
                continue;
            }
            let child = Group::new(old, slot, below, start).entry(&mut job.supply);
            live += usize::from(child.is_some());
            if let Some(fresh) = upper.fresh() {
                fresh.store(slot, child.and_then(Item::node));
            }
        }
        if let Some(fresh) = upper.fresh() {
            fresh.set_live(live);
        }
        (span, New::Open(upper), Gone::Divided)
    }
}

impl<'w, T: Shape> Group<'w, T> {
    /// Returns the group with this number of the groups of `2^width` slots.
    pub(super) fn new(node: Node<'w, T>, number: usize, width: u32, start: usize) -> Self {
        Self { node, slots: number << width..(number + 1) << width, width, start }
    }

    /// Returns the one entry that replaces the group: a new node with the entries if there are several, the only entry if there is
    /// one, and otherwise nothing.
    #[inline(never)]
    pub(super) fn entry<const REAL: bool>(
        self,
        supply: &mut Supply<'_, 'w, T, REAL>,
    ) -> Option<Item<'w, T, REAL>> {
        let (mut live, mut only) = (0, None);
        for child in self.slots.clone().filter_map(|slot| self.node.child(slot)) {
            if only != Some(child) {
                (live, only) = (live + 1, Some(child));
            }
        }
        if live < 2 {
            return only.map(Item::of);
        }
        let new = supply.node(self.node.shift, self.width, self.start);
        if let Some(fresh) = new.fresh() {
            for (index, slot) in self.slots.enumerate() {
                fresh.store(index, self.node.child(slot));
            }
            fresh.set_live(live);
        }
        Some(new.item())
    }
}
