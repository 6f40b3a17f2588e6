//! Changing the attributes of a range: a dry run that can fail, then a commit that cannot.

use tlbkit_addr::{Attr, Pages};

use super::Mpt;
use super::leaf::Decode as _;
use super::node::Writing;
use super::sweep::NodePart;
use crate::format::{Format, change_mark, check_change};
use crate::nodes::Nodes;
use crate::{Change, Error, Holes, Radix};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'_, 'n, G, F, N> {
    /// See [`Table::protect`](crate::Table::protect).
    #[inline(always)]
    pub(super) fn protect(mut self, pages: Pages, holes: Holes, change: Change) -> Result<usize, Error> {
        if let Some(slot) = self.slot_of(pages)
            && let Some((_, stale)) = slot.protect(change)
        {
            self.flush().add(stale.scope, stale.pages);
            return Ok(1);
        }
        self.protect_range(pages, holes, change)
    }

    /// Changes the attributes of a range of any length.
    #[inline(never)]
    pub(super) fn protect_range(self, pages: Pages, holes: Holes, change: Change) -> Result<usize, Error> {
        self.or_mend(|writing| writing.protect_slots(pages, holes, change))
    }

    fn protect_slots(mut self, pages: Pages, holes: Holes, change: Change) -> Result<usize, Error> {
        self.check(pages)?;
        check_change::<F>(change)?;
        let census = self.census(pages, holes)?;
        if census.marks > 0 {
            self.change_marks(pages, change);
        }
        if census.pages == 0 {
            return Ok(0);
        }
        let stale = self.view().stale(pages);
        self.touch(change.scope(), stale, false);
        // By the census every leaf of the range is whole.
        self.sweep(pages, &mut |part| {
            let last = Self::is_last(part.node.level());
            // If holes are refused, the dry run has found none.
            let all = holes == Holes::Refuse;
            match F::masks(change, last) {
                Some(masks) => part.protect(all, |word| masks.apply(word)),
                None => part.protect(all, |word| changed::<F>(word, change, last)),
            }
            if F::PAIRED && change.set.union(change.clear).contains(Attr::GLOBAL) {
                // Any slot of the range may be paired with an absent one, not only the slots at its ends.
                (0..part.slots).for_each(|slot| part.at(slot).settle_pair());
            }
            Ok(())
        })?;
        Ok(census.pages)
    }

    /// Applies `change` to each mark of a range.
    #[cold]
    fn change_marks(&mut self, pages: Pages, change: Change) {
        let _ = self.sweep(pages, &mut |part| {
            let level = part.node.level();
            for slot in 0..if Self::is_last(level) { part.slots } else { 0 } {
                let old = part.word(slot);
                if Self::is_mark(old, level) {
                    part.at(slot).store_relaxed(change_mark::<F>(old, change));
                }
            }
            Ok(())
        });
    }
}

/// Returns a leaf after a change that is no [mask](Format::masks).
#[cold]
#[inline(never)]
fn changed<F: Format>(leaf: F::Word, change: Change, last: bool) -> F::Word {
    F::change(leaf, change, last)
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodePart<'_, 'n, G, F, N> {
    /// Applies `change` to each leaf of the part. `all` tells that every word of the part is a leaf.
    #[inline(always)]
    fn protect(&self, all: bool, change: impl Fn(F::Word) -> F::Word) {
        if Mpt::<'n, G, F, N>::STATUS_RACES {
            match self.last() {
                Some(places) => places.for_each(|place| place.change_live(&change)),
                None => self.at(0).change_live(&change),
            }
        } else if all {
            self.node.edit(self.index, self.slots, change);
        } else {
            let level = self.node.level();
            let changed = |word| if Self::is_leaf(word, level) { change(word) } else { word };
            self.node.edit(self.index, self.slots, changed);
        }
    }
}
