//! Taking a whole table apart.

use super::Mpt;
use super::shape::Shape;
use crate::format::Format;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Radix, Retired, Word};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Takes the whole table apart.
    pub(super) unsafe fn take_apart(&mut self, batch: &mut Retired<'n>) {
        // SAFETY: no code but the caller uses the table any more.
        unsafe { self.take_node(batch, self.root, 0) };
    }

    /// Empties a node and retires it with everything below.
    unsafe fn take_node(&self, batch: &mut Retired<'n>, node: NodeAddr, level: usize) {
        let last = level + 1 == Self::LEVELS;
        // SAFETY: this function's contract, for this node and those below it.
        unsafe {
            let mut live = self.live(node, level);
            let mut index = 0;
            // The count says when the last entry has been seen. A lent node's is one too many for each loan.
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
            // An absent half of a pair is not zero, and may stand behind the last live entry.
            self.retire(batch, node, level, (live == 0 || !last) && !F::PAIRED);
        }
    }
}
