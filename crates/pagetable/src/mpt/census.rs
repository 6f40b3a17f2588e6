//! Dry runs: counting what a range holds before a change begins.

use tlbkit_addr::{Attr, Pages};

use super::Mpt;
use super::leaf::Decode as _;
use super::node::Writing;
use super::shape::Shape;
use super::sweep::NodePart;
use crate::dry_run::{Census, Leaves as _};
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Change, Error, Holes, Radix, Word, Writer};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'_, 'n, G, F, N> {
    /// Counts the pages and marks of a range, as the dry run of an unmap or protect. Returns an error for a page that the
    /// range covers only in part, and for a hole if `holes` refuses holes. The pages are in the space and not borrowed.
    #[inline(never)]
    pub(super) fn census(&mut self, pages: Pages, holes: Holes) -> Result<Census, Error> {
        let mut census = Census::default();
        if Self::REPLICATED {
            // A page in several slots can extend over an end of the range within a node.
            let root = self.view();
            for end in [pages.first(), pages.last()] {
                let at = end.address(G::BASE);
                if let Some(leaf) = root.leaf_at(at) {
                    G::SPACE.check_whole(leaf, pages)?;
                }
            }
        }
        self.sweep(pages, &mut |part| {
            let level = part.node.level();
            let leaves = part.leaves();
            if !Self::is_last(level) && leaves == 1 {
                G::SPACE.check_whole(Self::leaf(part.word(0), level, part.address(0)), pages)?;
            }
            if leaves < part.slots && holes == Holes::Refuse {
                let hole = (0..part.slots).find(|&slot| !Self::is_leaf(part.word(slot), level));
                let at = part.address(hole.unwrap_or(0)).vpn(G::BASE);
                return Err(Error::NotMapped { at: at.max(pages.first()).address(G::BASE) });
            }
            census.marks += part.marks_beside(leaves);
            census.pages += leaves * Self::slot_pages(level);
            Ok(())
        })?;
        Ok(census)
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writer<'_, 'n, Mpt<'n, G, F, N>> {
    /// Tells whether `pages` are the table's own, and each leaf that maps one of them has all of these attributes. Without a leaf they all
    /// have them.
    ///
    /// Costs a walk for each node that the range has, and some three instructions an entry.
    pub fn all_have(&mut self, pages: Pages, attr: Attr) -> bool {
        let change = Change::set(attr);
        let mut writing = self.writing();
        if writing.check(pages).is_err() {
            return false;
        }
        let mut all = true;
        // What has attributes that a change can give does not change as it gets them.
        let can_change = F::OPTIONAL.difference(F::FIXED).contains(attr);
        let _ = writing.sweep(pages, &mut |part| {
            let masks = F::masks(change, Mpt::<'n, G, F, N>::is_last(part.node.level()));
            all &= match masks.filter(|_| can_change) {
                Some(masks) => part.all_leaves(|word, _| masks.apply(word) == word),
                None => part.all_leaves(|word, last| F::attr(word, last).contains(attr)),
            };
            Ok(())
        });
        all
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodePart<'_, 'n, G, F, N> {
    /// Tells whether something holds of each leaf of the part; it gets the word, and whether the level is the last.
    #[inline(always)]
    fn all_leaves(&self, holds: impl Fn(F::Word, bool) -> bool) -> bool {
        let level = self.node.level();
        let of_one = |all, word| all & (!Self::is_leaf(word, level) | holds(word, Self::is_last(level)));
        self.node.fold(self.index, self.slots, true, of_one)
    }

    /// Counts the leaves of the part.
    #[inline(always)]
    pub(super) fn leaves(&self) -> usize {
        let (node, level) = (&self.node, self.node.level());
        // A leaf is recognized by bits that are set, so the AND of all words is a leaf only if every word is one.
        let all = node.fold(self.index, self.slots, !F::Word::ZERO, |a, b| a & b);
        if !Self::is_link(all, level) && Self::is_leaf(all, level) { self.slots } else { self.count_leaves() }
    }

    #[inline(never)]
    fn count_leaves(&self) -> usize {
        let level = self.node.level();
        let count = |leaves: u32, word| leaves + u32::from(Self::is_leaf(word, level));
        self.node.fold(self.index, self.slots, 0, count) as usize
    }

    /// Counts the marks of the part, in which `leaves` slots hold leaves.
    #[inline(always)]
    pub(super) fn marks_beside(&self, leaves: usize) -> usize {
        if leaves == self.slots { 0 } else { self.marks() }
    }

    fn marks(&self) -> usize {
        let Some(places) = self.last() else { return 0 };
        places.filter(|place| Self::is_mark(place.read(), Self::LEVELS - 1)).count()
    }
}
