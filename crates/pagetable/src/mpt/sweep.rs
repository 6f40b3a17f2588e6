//! Runs of slots: what a range covers, node by node, and what it holds.

use core::ops::ControlFlow;

use tlbkit_addr::{Pages, Vpn};

use super::Mpt;
use super::path::Path;
use super::shape::Shape;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Error, Holes, Leaf, Radix, Word};

/// A run of slots of one node that a range covers.
pub(super) struct Part {
    pub(super) path: Path,
    /// The first slot.
    pub(super) index: usize,
    pub(super) slots: usize,
    /// The first page of the first slot.
    pub(super) first: Vpn,
}

/// What a range holds.
pub(super) struct Census {
    pub(super) pages: usize,
    pub(super) leaves: usize,
    pub(super) marks: usize,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Visits the runs of slots that a range covers, node by node. The visitor may empty them.
    ///
    /// # Safety
    ///
    /// The caller is the only writer; so for the functions beside it.
    #[inline(always)]
    pub(super) unsafe fn sweep(
        &self,
        pages: Pages,
        mut visit: impl FnMut(Part) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut at = pages.first();
        loop {
            let va = at.address(G::BASE);
            // SAFETY: the caller is the writer.
            let path = unsafe { self.path(va, Self::LEVELS - 1) };
            let slot_pages = Self::slot_pages(path.level);
            let first = Vpn::new(at.get() & !(slot_pages - 1));
            // Above the last level the next slot may be of another kind.
            let end = if path.level + 1 == Self::LEVELS {
                self.node_end(path.level, at).min(pages.last())
            } else {
                Vpn::new(at.get() | (slot_pages - 1))
            };
            let slots = (end.get() - first.get()) / slot_pages + 1;
            visit(Part { path, index: Self::index(path.level, va), slots, first })?;
            if end >= pages.last() {
                return Ok(());
            }
            at = Vpn::new(end.get() + 1);
        }
    }

    /// Tells whether a run of slots holds a leaf, a link or a mark.
    #[inline(always)]
    pub(super) unsafe fn any_taken(&self, node: NodeAddr, level: usize, index: usize, slots: usize) -> bool {
        let last = level + 1 == Self::LEVELS;
        // SAFETY: the caller's promise: the slots are in the node.
        unsafe {
            // Nothing but zeroes is the common case, and found a few words at a time.
            self.fold(node, level, index, slots, F::Word::ZERO, |all, word| all | word) != F::Word::ZERO
                && (0..slots).any(|slot| {
                    let word = self.read(node, Self::place(level, index + slot));
                    F::is_leaf(word, last) || (!last && F::is_link(word)) || Self::is_mark(word, level)
                })
        }
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
                self.fold(part.path.nodes[level], level, part.index, part.slots, !F::Word::ZERO, |a, b| {
                    a & b
                });
            if (last || !F::is_link(all)) && F::is_leaf(all, last) {
                part.slots
            } else {
                (0..part.slots).filter(|&slot| F::is_leaf(self.slot(part, slot), last)).count()
            }
        }
    }

    /// Reads a slot of a part.
    #[inline(always)]
    pub(super) unsafe fn slot(&self, part: &Part, slot: usize) -> F::Word {
        let level = part.path.level;
        // SAFETY: the slots of a part are in its node.
        unsafe { self.read(part.path.nodes[level], Self::place(level, part.index + slot)) }
    }

    /// Counts the marks of a part of which so many slots hold leaves.
    #[inline(always)]
    pub(super) unsafe fn marks_beside(&self, part: &Part, leaves: usize) -> usize {
        let level = part.path.level;
        if leaves == part.slots {
            return 0;
        }
        // SAFETY: the slots of a part are in its node.
        unsafe { self.marks(part.path.nodes[level], level, part.index, part.slots) }
    }

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
                    self.check_whole(Self::leaf(word, level, at), pages)?;
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
                    self.check_whole(Self::leaf(word, level, part.first.address(G::BASE)), pages)?;
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

    /// Checks that a leaf does not reach out of a range.
    pub(super) fn check_whole(&self, leaf: Leaf, pages: Pages) -> Result<(), Error> {
        let whole = G::SPACE.pages_of(&leaf);
        if whole.intersect(pages) == Some(whole) { Ok(()) } else { Err(Error::partial(&leaf)) }
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
}
