//! Changing a range's rights: a dry run that can fail, then a commit that cannot.

use tlbkit_addr::{Attr, Pages};

use super::Mpt;
use super::shape::Shape;
use crate::format::{Format, check_change};
use crate::geometry::Checked as _;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Change, Error, Holes, Radix, Retired, Word};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// See [`Table::protect`](crate::Table::protect).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table; so for the functions beside it.
    pub(super) unsafe fn protect_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        G::SPACE.check_pages(pages)?;
        self.check_own(pages)?;
        check_change::<F>(change)?;
        // SAFETY: the caller is the writer.
        let census = unsafe { self.census(pages, holes, false) }?;
        if census.pages == 0 {
            return Ok(0);
        }
        // SAFETY: as above.
        batch.touch(change.scope(), unsafe { self.stale(pages) });
        // SAFETY: as above.
        unsafe {
            self.sweep(pages, |part| {
                let level = part.path.level;
                let (node, last) = (part.path.node(level), level + 1 == Self::LEVELS);
                // Where holes are refused there are none.
                let all = holes == Holes::Refuse;
                let changed =
                    |word| if all || F::is_leaf(word, last) { F::change(word, change, last) } else { word };
                if Self::NOTED_BESIDE {
                    for slot in 0..part.slots {
                        self.change_live(node, Self::place(level, part.index + slot), last, change);
                    }
                } else {
                    self.edit(node, level, part.index, part.slots, changed);
                }
                if F::PAIRED && change.set.union(change.clear).contains(Attr::GLOBAL) {
                    // Any slot of the range may have an absent one beside it, not only those at its ends.
                    for slot in 0..part.slots {
                        self.settle_pair(node, level, part.index + slot);
                    }
                }
                Ok(())
            })?;
        }
        Ok(census.pages)
    }

    /// Changes a leaf whose status bits hardware may be setting.
    pub(super) unsafe fn change_live(&self, node: NodeAddr, place: usize, last: bool, change: Change) {
        // SAFETY: the place is in the node, and the caller is the only writer but hardware.
        unsafe {
            let cell = self.cell(node, place);
            let mut old = F::Word::follow(cell);
            while F::is_leaf(old, last) {
                let word = F::change(old, change, last);
                match F::Word::exchange(cell, old, word) {
                    Ok(()) => return self.exchanged(node, place, old, word),
                    Err(now) => old = now,
                }
            }
        }
    }
}
