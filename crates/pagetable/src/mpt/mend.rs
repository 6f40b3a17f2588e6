//! Repairing a table after a change has unwound.

use tlbkit_addr::FlushScope;

use super::leaf::Decode as _;
use super::node::{NodeMut, Writing};
use super::region;
use super::shape::Shape;
use crate::Radix;
use crate::format::{Format, gone_of};
use crate::nodes::Nodes;

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'_, 'n, G, F, N> {
    /// Counts the table's entries again from its words, after a change has unwound, and retires nodes that are empty. Nodes that
    /// the change had taken from the storage and not linked are counted as lost.
    ///
    /// The writer of a part counts in the part alone; the table's tally then keeps the nodes that are lost, and the PTEs
    /// that the change had not counted yet.
    ///
    /// Costs a walk over the whole table, or over the part's node and those below it.
    #[cold]
    pub(super) fn mend(mut self) {
        let table = self.table();
        if !self.is_whole() {
            let lent = self.is_lent();
            let _ = self.root().mend(lent, false);
            return;
        }
        let owned = table.tally.footprint().nodes;
        let before = self.retired();
        table.tally.clear();
        table.flag.lock().take_counts();
        if let Some(locks) = table.locks {
            locks.take_counts();
        }
        self.root().mend(false, true);
        if let Some(own) = region::<G>() {
            self.touch(FlushScope::Everywhere, own, false);
        }
        let found = table.tally.footprint().nodes + (self.retired() - before);
        table.nodes.held().count_lost(owned.saturating_sub(found));
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeMut<'_, 'n, G, F, N> {
    /// Counts the entries of the node and of all nodes below it, and returns how many of the node's slots are in use. `lent` says that
    /// other tables may borrow the node, `tally` that the table's tally counts anew.
    fn mend(&mut self, lent: bool, tally: bool) -> u32 {
        let (table, level) = (self.table(), self.level());
        if tally {
            table.tally_node(1, level);
        }
        // The loan counts as an entry.
        let mut live = u32::from(lent);
        for index in 0..Self::slots(level) {
            let word = self.read(index).word();
            let is_entry = Self::is_leaf(word, level) || Self::is_link(word, level);
            // The frame of a detachment waits in its entry, which is in use, for `clear_detached`.
            let waits = !is_entry && gone_of::<F>(word).is_some();
            if waits || Self::is_leaf(word, level) || Self::is_mark(word, level) {
                if tally {
                    table.count_ptes(1);
                }
                live += 1;
            } else if Self::is_link(word, level) {
                let lent = level == 0 && table.is_lent(index);
                // A borrowed slot has no child here, and is in use.
                let in_use = self.child(index).is_none_or(|mut below| below.mend(lent, tally) > 0);
                live += u32::from(in_use);
                if !in_use {
                    // SAFETY: nothing is claimed of the node's words.
                    unsafe { self.retire_child(index, false) };
                }
            }
        }
        self.recount(live);
        live
    }
}
