//! Dry runs: counting what a range holds before a change begins.

use core::ops::ControlFlow;

use tlbkit_addr::{Pages, Vpn};

use super::Mpt;
use super::shape::Shape;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Error, Holes, Radix, Word};

use super::sweep::Part;

/// The number of pages, leaves and marks in a range.
pub(super) struct Census {
    pub(super) pages: usize,
    pub(super) leaves: usize,
    pub(super) marks: usize,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Counts the pages, leaves and marks of a range, as the dry run of an unmap or protect. Returns an error for a page that the
    /// range covers only in part, and for a hole if `holes` refuses holes. Counts marks only if `marks` is set, because that
    /// loads every slot of a part with holes a second time.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the pages are in the space and not borrowed.
    #[inline(always)]
    pub(super) unsafe fn census(&self, pages: Pages, holes: Holes, marks: bool) -> Result<Census, Error> {
        let mut census = Census { pages: 0, leaves: 0, marks: 0 };
        if Self::REPLICATED {
            // A page in several slots can extend over an end of the range within a node.
            for end in [pages.first(), pages.last()] {
                let at = end.address(G::BASE);
                // SAFETY: the caller is the writer.
                let (word, level) = unsafe { self.descend(at, |word, level, _| (word, level)) };
                if F::is_leaf(word, level + 1 == Self::LEVELS) {
                    G::SPACE.check_whole(Self::leaf(word, level, at), pages)?;
                }
            }
        }
        // SAFETY: the caller is the writer.
        let swept = unsafe {
            self.sweep(pages, |part| {
                let level = part.path.level;
                let last = level + 1 == Self::LEVELS;
                let leaves = self.leaves(&part);
                if !last && leaves == 1 {
                    let word = self.slot(&part, 0);
                    G::SPACE.check_whole(Self::leaf(word, level, part.first.address(G::BASE)), pages)?;
                }
                if leaves < part.slots && holes == Holes::Refuse {
                    let hole = (0..part.slots).find(|&slot| !F::is_leaf(self.slot(&part, slot), last));
                    let at = Vpn::new(part.first.get() + hole.unwrap_or(0) * Self::slot_pages(level));
                    return Err(Error::NotMapped { at: at.max(pages.first()).address(G::BASE) });
                }
                census.leaves += leaves;
                census.marks += if marks { self.marks_beside(&part, leaves) } else { 0 };
                census.pages += leaves * Self::slot_pages(level);
                Ok(())
            })
        };
        swept.map(|()| census)
    }

    /// Counts the leaves of a part.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the part is one of this table.
    #[inline(always)]
    pub(super) unsafe fn leaves(&self, part: &Part) -> usize {
        let level = part.path.level;
        let last = level + 1 == Self::LEVELS;
        let count = |leaves: u32, word| leaves + u32::from(F::is_leaf(word, last));
        // SAFETY: the slots of a part are in its node.
        unsafe {
            let node = part.path.node(level);
            // A leaf is recognized by bits that are set, so the AND of all words is a leaf only if every word is one.
            let all = self.fold(node, level, part.index, part.slots, !F::Word::ZERO, |a, b| a & b);
            if (last || !F::is_link(all)) && F::is_leaf(all, last) {
                part.slots
            } else {
                self.fold(node, level, part.index, part.slots, 0, count) as usize
            }
        }
    }

    /// Counts the marks of a part in which `leaves` slots hold leaves.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the part is one of this table.
    #[inline(always)]
    pub(super) unsafe fn marks_beside(&self, part: &Part, leaves: usize) -> usize {
        let level = part.path.level;
        if leaves == part.slots {
            return 0;
        }
        // SAFETY: the slots of a part are in its node.
        unsafe { self.marks(part.path.node(level), level, part.index, part.slots) }
    }

    /// Counts the pages of a range, each once, however many slots it occupies.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the pages are in the space.
    pub(super) unsafe fn distinct(&self, pages: Pages) -> usize {
        let mut leaves = 0;
        // SAFETY: the caller is the writer.
        let _ = unsafe {
            self.visit(self.root, 0, pages, &mut |_| {
                leaves += 1;
                ControlFlow::Continue(())
            })
        };
        leaves
    }

    /// Returns the pages to flush when the leaves of `pages` change. No leaf extends beyond `pages`.
    ///
    /// # Safety
    ///
    /// The caller is pinned or the writer.
    pub(super) unsafe fn stale(&self, pages: Pages) -> Pages {
        // SAFETY: by this function's contract the caller is pinned or the writer.
        stale::<G, F>(pages, |page| unsafe { self.find(page.address(G::BASE)) }.map(|leaf| leaf.size))
    }
}
