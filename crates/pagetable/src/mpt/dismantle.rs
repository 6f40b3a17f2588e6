//! Dismantling a whole table.

use super::Mpt;
use super::shape::Shape;
use crate::format::Format;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Radix, Retired, Word};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Retires every node of the table, the root included.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and no code uses the table afterwards.
    pub(super) unsafe fn take_apart(&mut self, batch: &mut Retired<'n>) {
        // SAFETY: no code but the caller uses the table any more.
        unsafe { self.take_node(batch, self.root, 0) };
    }

    /// Empties a node and retires it with every node below it.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, no code uses the table afterwards, and `node` is one of
    /// `level`.
    unsafe fn take_node(&self, batch: &mut Retired<'n>, node: NodeAddr, level: usize) {
        let last = level + 1 == Self::LEVELS;
        // SAFETY: by this function's contract the caller is the only writer, and the node is one of `level`. So a link in it
        // leads to a node of the next level.
        unsafe {
            let mut live = self.live(node, level);
            let mut index = 0;
            // The loop ends when the count of slots in use is 0. The count of a lent node is higher by one for each loan.
            while live > 0 && index < Self::slots(level) {
                let place = Self::place(level, index);
                let word = self.read(node, place);
                if word != F::Word::ZERO {
                    self.store_relaxed(node, place, F::Word::ZERO);
                    let link = !last && F::is_link(word);
                    if link && !(level == 0 && self.is_borrowed(index)) {
                        self.take_node(batch, F::node(word), level + 1);
                    }
                    let entry = F::is_leaf(word, last) || Self::is_mark(word, level);
                    if entry {
                        self.tally.ptes(-1);
                    }
                    live -= u32::from(link || entry);
                }
                index += 1;
            }
            // An absent half of a pair is not zero, and may come after the last entry that the count includes.
            self.retire(batch, node, level, (live == 0 || !last) && !F::PAIRED);
        }
    }
}
