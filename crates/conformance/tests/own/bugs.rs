//! Planted bugs that need more than a line.

use tlbkit_addr::Pages;
use tlbkit_pagetable::format::{Compact, Format};
use tlbkit_pagetable::geometry::Geometry;
use tlbkit_pagetable::nodes::{NodeAddr, Nodes};
use tlbkit_pagetable::{Error, Retired};

use super::{LEVELS, Own, slots, units};
use crate::LINKED;

/// Forgets what the table of an earlier case has linked.
pub(super) fn forget(root: NodeAddr) {
    if LINKED.get().is_some_and(|(_, other, _)| other == root) {
        LINKED.set(None);
    }
}

impl<'n, G: Geometry, N: Nodes<Word = u64>> Own<'n, G, N> {
    pub(super) fn free_at_once(&self, node: NodeAddr, clean: bool) {
        // SAFETY: there is none: this is the bug.
        unsafe { self.nodes.free(node, clean) };
    }

    pub(super) fn retire_again(&self, batch: &mut Retired<'n>, node: NodeAddr) {
        // SAFETY: there is none: this is the bug.
        unsafe { batch.push(node, true) };
    }

    pub(super) fn again(&self, node: NodeAddr, index: usize) -> u64 {
        // SAFETY: the caller is pinned.
        unsafe { self.nodes.follow(node, index) }
    }

    /// Links an empty node before it is known that the others can be had.
    pub(super) fn link_early(&self, pages: Pages, wanted: usize) -> Result<(), Error> {
        let index = pages.first().get() / units::<G>(0) % slots::<G>();
        if wanted > 1 && self.link(self.root, index).is_none() {
            let node = self.nodes.take(slots::<G>()).ok_or_else(|| Error::no_memory(wanted, self.nodes.held()))?;
            self.publish(self.root, index, Compact::link(node));
            self.live(self.root, 1);
            self.tally.node(1, Self::BYTES);
        }
        Ok(())
    }

    /// Returns a node that another table of the same storage has linked, if one has, else the node.
    pub(super) fn others(&self, node: NodeAddr) -> NodeAddr {
        let storage = std::ptr::from_ref(self.nodes).addr();
        match LINKED.get() {
            Some((place, root, other)) if place == storage && root != self.root => other,
            _ => {
                LINKED.set(Some((storage, self.root, node)));
                node
            }
        }
    }

    /// Zeroes a node that a walker may be in.
    pub(super) fn wipe(&self, node: NodeAddr) {
        (0..slots::<G>()).for_each(|index| self.publish(node, index, 0));
    }

    /// Retires a node that is linked still.
    pub(super) fn retire_first(&self, batch: &mut Retired<'n>, node: NodeAddr, level: usize) {
        if self.live(node, 0) == 0 && level + 1 == LEVELS {
            self.retire(batch, node, true);
        }
    }

    /// Unlinks a node of the last level that is retired already.
    pub(super) fn unlink_late(&self, node: NodeAddr, index: usize, below: NodeAddr, level: usize) -> u32 {
        if level + 2 < LEVELS {
            return self.live(below, 0);
        }
        if (0..slots::<G>()).all(|index| self.word(below, index) == 0) {
            self.publish(node, index, 0);
            self.live(node, -1);
        }
        1
    }
}
