//! Changing the attributes of a range: a dry run that can fail, then a commit that cannot.

use tlbkit_addr::{Attr, Pages};

use super::Mpt;
use super::shape::Shape;
use super::sweep::Part;
use crate::format::{Format, change_mark, check_change};
use crate::geometry::Checked as _;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Change, Error, Holes, Radix, Retired, Word};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// See [`Table::protect`](crate::Table::protect).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
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
        let census = unsafe { self.census(pages, holes, true) }?;
        if census.marks > 0 {
            // SAFETY: the caller is the writer.
            unsafe { self.change_marks(pages, change) };
        }
        if census.pages == 0 {
            return Ok(0);
        }
        // SAFETY: the caller is the writer.
        batch.touch(change.scope(), unsafe { self.stale(pages) });
        // SAFETY: the caller is the writer; by the census every leaf of the range is whole.
        unsafe {
            self.sweep(pages, |part| {
                let last = part.path.level + 1 == Self::LEVELS;
                // If holes are refused, the dry run has found none.
                let all = holes == Holes::Refuse;
                match F::masks(change, last) {
                    Some(masks) => self.protect_part(&part, all, |word| masks.apply(word)),
                    None => self.protect_part(&part, all, |word| F::change(word, change, last)),
                }
                if F::PAIRED && change.set.union(change.clear).contains(Attr::GLOBAL) {
                    // Any slot of the range may be paired with an absent one, not only the slots at its ends.
                    let Part { index, slots, .. } = part;
                    for slot in index..index + slots {
                        self.settle_pair(part.path.node(part.path.level), part.path.level, slot);
                    }
                }
                Ok(())
            })?;
        }
        Ok(census.pages)
    }

    /// Applies `change` to each mark of a range.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the pages are in the space.
    #[cold]
    unsafe fn change_marks(&self, pages: Pages, change: Change) {
        // SAFETY: the caller is the writer; the slots of a part are in its node.
        let _ = unsafe {
            self.sweep(pages, |part| {
                let level = part.path.level;
                for slot in 0..if level + 1 == Self::LEVELS { part.slots } else { 0 } {
                    let old = self.slot(&part, slot);
                    if Self::is_mark(old, level) {
                        let place = Self::place(level, part.index + slot);
                        self.store_relaxed(part.path.node(level), place, change_mark::<F>(old, change));
                    }
                }
                Ok(())
            })
        };
    }

    /// Applies `change` to each leaf of a part. `all` tells that every word of the part is a leaf.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the part is one of this table. If `all` is set, each of its slots holds a leaf.
    #[inline(always)]
    unsafe fn protect_part(&self, part: &Part, all: bool, change: impl Fn(F::Word) -> F::Word) {
        let level = part.path.level;
        let (node, last) = (part.path.node(level), level + 1 == Self::LEVELS);
        // SAFETY: the slots of a part are in its node, and the caller is the only writer but hardware.
        unsafe {
            if Self::STATUS_RACES {
                for slot in part.index..part.index + part.slots {
                    self.change_live(node, Self::place(level, slot), last, &change);
                }
            } else {
                let changed = |word| if all || F::is_leaf(word, last) { change(word) } else { word };
                self.edit(node, level, part.index, part.slots, changed);
            }
        }
    }

    /// Applies `change` to the word at a place if it is a leaf, and keeps the status bits that hardware sets at the same time.
    ///
    /// # Safety
    ///
    /// The caller is the only writer but hardware, and the place is in the node, which is in the table.
    #[inline(always)]
    pub(super) unsafe fn change_live(
        &self,
        node: NodeAddr,
        place: usize,
        last: bool,
        change: impl Fn(F::Word) -> F::Word,
    ) {
        // SAFETY: the place is in the node, and the caller is the only writer but hardware.
        unsafe {
            let cell = self.cell(node, place);
            let mut old = F::Word::follow(cell);
            while F::is_leaf(old, last) {
                let word = change(old);
                if F::has_all_status(old) {
                    self.swap_leaf(node, place, old, word);
                    return;
                }
                match F::Word::exchange(cell, old, word) {
                    Ok(()) => return self.exchanged(node, place, old, word),
                    Err(now) => old = now,
                }
            }
        }
    }
}
