//! Dismantling a whole table.

use super::leaf::Decode as _;
use super::node::NodeMut;
use super::shape::Shape;
use crate::format::Format;
use crate::nodes::Nodes;
use crate::{Radix, Word};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeMut<'_, 'n, G, F, N> {
    /// Empties the node and retires all nodes below it. Tells whether all words of the node are zero.
    pub(super) fn take_apart(&mut self) -> bool {
        let (level, mut live) = (self.level(), self.live());
        let mut index = 0;
        // The loop ends when the count of slots in use is 0. The count of a lent node is higher by one for each loan.
        while live > 0 && index < Self::slots(level) {
            let word = self.read(index).word();
            if word != F::Word::ZERO {
                let is_entry = Self::is_leaf(word, level) || Self::is_mark(word, level);
                live -= u32::from(is_entry || Self::is_link(word, level));
                if is_entry {
                    self.table().count_ptes(-1);
                }
                let is_empty = self.child(index).is_some_and(|mut below| below.take_apart());
                // SAFETY: all words of the node are zero if it is empty.
                if !unsafe { self.retire_child(index, is_empty) } {
                    self.at(index).store_relaxed(F::Word::ZERO);
                }
            }
            index += 1;
        }
        // An absent half of a pair is not zero, and may come after the last entry that the count includes.
        (live == 0 || !Self::is_last(level)) && !F::PAIRED
    }
}
