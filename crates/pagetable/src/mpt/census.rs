//! Dry runs: what a range holds, before a change of it begins.

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

/// What a range holds.
pub(super) struct Census {
    pub(super) pages: usize,
    pub(super) leaves: usize,
    pub(super) marks: usize,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// The dry run of an unmap or protect: counts what is mapped, and finds holes and pages cut by the ends. Counts marks
    /// only where `marks` asks for them: that is a second look at every node with holes.
    #[inline(always)]
    pub(super) unsafe fn census(&self, pages: Pages, holes: Holes, marks: bool) -> Result<Census, Error> {
        let mut census = Census { pages: 0, leaves: 0, marks: 0 };
        if Self::REPLICATED {
            // A page that stands in several slots can be cut within a node.
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
    #[inline(always)]
    pub(super) unsafe fn leaves(&self, part: &Part) -> usize {
        let level = part.path.level;
        let last = level + 1 == Self::LEVELS;
        // SAFETY: the slots of a part are in its node.
        unsafe {
            // Leaves are told by bits that are set, so what all words have in common is a leaf only if all are.
            let all =
                self.fold(part.path.node(level), level, part.index, part.slots, !F::Word::ZERO, |a, b| a & b);
            if (last || !F::is_link(all)) && F::is_leaf(all, last) {
                part.slots
            } else {
                (0..part.slots).filter(|&slot| F::is_leaf(self.slot(part, slot), last)).count()
            }
        }
    }

    /// Counts the marks of a part of which `leaves` slots hold leaves.
    #[inline(always)]
    pub(super) unsafe fn marks_beside(&self, part: &Part, leaves: usize) -> usize {
        let level = part.path.level;
        if leaves == part.slots {
            return 0;
        }
        // SAFETY: the slots of a part are in its node.
        unsafe { self.marks(part.path.node(level), level, part.index, part.slots) }
    }

    /// Counts the pages of a range, each of them once however many slots it stands in.
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

    /// Returns what a change of the leaves in `pages`, all of them whole, makes stale.
    ///
    /// # Safety
    ///
    /// As for [`find`](Self::find).
    pub(super) unsafe fn stale(&self, pages: Pages) -> Pages {
        // SAFETY: the contract of `find` is this function's.
        stale::<G, F>(pages, |page| unsafe { self.find(page.address(G::BASE)) }.map(|leaf| leaf.size))
    }
}
