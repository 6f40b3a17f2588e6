//! Mending a table after a change that has unwound.

use super::guard::low;
use super::node::{Node, Writing};
use super::shape::Shape;
use crate::Word as _;
use crate::format::{Format, is_taken};
use crate::nodes::Reclaim as _;

impl<'w, T: Shape> Writing<'w, '_, T> {
    /// Counts the table's entries anew after a change that has unwound, and retires leaves that are empty and nodes with fewer than
    /// two entries. A node to which no slot leads is counted as lost: the change had taken it, or had unlinked it and passed it to
    /// the batch, which has forgotten `forgotten` nodes.
    ///
    /// Costs a walk over the whole table.
    #[cold]
    pub(super) fn mend(mut self, forgotten: usize) {
        let table = self.table();
        let count = |writing: &Self| {
            let now = table.tally().footprint();
            now.nodes + now.leaves + writing.retired()
        };
        let owned = count(&self) + forgotten;
        table.tally().clear();
        let slot = self.root();
        if let Some(old) = slot.read() {
            let new = self.mended(old);
            if new != Some(old) {
                slot.publish(new);
                // SAFETY: only the root slot led to the node.
                unsafe { self.retire(old) };
            }
        }
        table.nodes().held().count_lost(owned.saturating_sub(count(&self)));
    }

    /// Counts the entries of a node and of all nodes below it, and returns what its slots should hold: the node itself, its only entry,
    /// or nothing.
    fn mended(&mut self, old: Node<'w, T>) -> Option<Node<'w, T>> {
        let table = self.table();
        let bytes = T::words(*old) * T::W::BYTES;
        if old.is_leaf() {
            table.tally().leaf(1, bytes);
        } else {
            table.tally().node(1, bytes);
            self.mend_slots(old);
        }
        let (live, least) = if old.is_leaf() {
            let taken =
                old.all_ptes(old.start() & !low(old.top())).filter(|pte| is_taken::<T::F>(pte.read()));
            (taken.count(), 1)
        } else {
            (old.entries(), 2)
        };
        if live < least {
            return if old.is_leaf() { None } else { old.last_entry() };
        }
        old.set_live(live);
        if old.is_leaf() {
            table.tally().ptes(live as isize);
        }
        Some(old)
    }

    /// Mends what the slots of a node lead to.
    fn mend_slots(&mut self, node: Node<'w, T>) {
        // A layout that stores no guards has no base here, and needs none: only the bits below a leaf's top matter.
        let base = node.known_base().unwrap_or(0) & !low(node.top());
        let (mut before, mut after) = (None, None);
        let mut slot = 0;
        while slot < node.slots() {
            let Some(child) = node.child(slot) else {
                slot += 1;
                continue;
            };
            let start = base | slot << node.shift;
            // The slots of both pages lead to a leaf of two pages.
            if before != Some(child) {
                (before, after) = (Some(child), self.mended(child));
                if after != Some(child) {
                    // SAFETY: the slots that lead to the child are neighbours, and are changed below.
                    unsafe { self.retire(child) };
                }
            }
            let here = !node.shares(&child) || T::F::is_leaf(child.pte(start).read(), true);
            let new = after.filter(|_| here);
            let run = node.run(slot, &child);
            slot = run.end;
            if new != Some(child) {
                run.for_each(|slot| node.slot(slot).publish(new));
            }
        }
    }
}
