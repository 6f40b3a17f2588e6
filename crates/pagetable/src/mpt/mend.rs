//! Repairing a table after a change has unwound.

use super::shape::Shape;
use super::{Mpt, region};
use crate::format::Format;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Radix, Retired, Word};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Counts the table's entries again from its words, after a change has unwound, and retires nodes that are empty. Nodes that
    /// the change had taken from the storage and not linked are counted as lost.
    ///
    /// Costs a walk over the whole table.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[cold]
    pub(super) unsafe fn mend(&self, batch: &mut Retired<'n>) {
        let owned = self.tally.footprint().nodes;
        let before = batch.nodes();
        self.tally.clear();
        // SAFETY: the caller is the writer.
        unsafe { self.mend_node(batch, self.root, 0, false) };
        if let Some(own) = region::<G>() {
            batch.touch(tlbkit_addr::FlushScope::Everywhere, own);
        }
        let found = self.tally.footprint().nodes + (batch.nodes() - before);
        self.nodes.held().lose(owned.saturating_sub(found));
    }

    /// Counts the entries of a node and of all nodes below it, and returns how many of the node's slots are in use. `lent` says that
    /// other tables may borrow the node.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `node` is one of `level`.
    unsafe fn mend_node(&self, batch: &mut Retired<'n>, node: NodeAddr, level: usize, lent: bool) -> u32 {
        let last = level + 1 == Self::LEVELS;
        self.tally.node(1, Self::words(level) * F::Word::BYTES);
        // The loan counts as an entry.
        let mut live = u32::from(lent);
        for index in 0..Self::slots(level) {
            let place = Self::place(level, index);
            // SAFETY: the place is in the node, and a link leads to a node of the next level.
            unsafe {
                let word = self.read(node, place);
                if F::is_leaf(word, last) || Self::is_mark(word, level) {
                    self.tally.ptes(1);
                    live += 1;
                } else if last || !F::is_link(word) {
                    continue;
                } else if level == 0 && self.is_borrowed(index)
                    || self.mend_node(batch, F::node(word), level + 1, level == 0 && self.is_lent(index)) > 0
                {
                    live += 1;
                } else {
                    self.store_relaxed(node, place, F::Word::ZERO);
                    self.settle_pair(node, level, index);
                    self.retire(batch, F::node(word), level + 1, false);
                }
            }
        }
        // SAFETY: the node is in the table, and only its writer changes its record.
        unsafe { self.recount(node, level, live) };
        live
    }
}
