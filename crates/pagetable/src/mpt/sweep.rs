//! The slots that a range of pages covers, node by node.

use tlbkit_addr::{Pages, Vpn};

use super::Mpt;
use super::path::Path;
use super::shape::Shape;
use crate::format::Format;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Error, Radix, Word};

/// A run of slots of one node that a range of pages covers.
pub(super) struct Part {
    pub(super) path: Path,
    /// The first slot.
    pub(super) index: usize,
    pub(super) slots: usize,
    /// The first page of the first slot.
    pub(super) first: Vpn,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Visits the slots that a range covers, node by node, as [`Part`]s. The visitor may empty them.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the pages are in the space.
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
            // Above the last level the next slot may hold a link, so each slot is a part of its own.
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
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the node is one of `level` in the table, and the slots are in the node.
    #[inline(always)]
    pub(super) unsafe fn any_taken(&self, node: NodeAddr, level: usize, index: usize, slots: usize) -> bool {
        let last = level + 1 == Self::LEVELS;
        // SAFETY: by this function's contract the slots are in the node.
        unsafe {
            // The common case is that all words are zero. The fold checks several words at a time.
            self.fold(node, level, index, slots, F::Word::ZERO, |all, word| all | word) != F::Word::ZERO
                && (0..slots).any(|slot| {
                    let word = self.read(node, Self::place(level, index + slot));
                    F::is_leaf(word, last) || (!last && F::is_link(word)) || Self::is_mark(word, level)
                })
        }
    }

    /// Reads a slot of a part.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the part is one of this table, and `slot` is below its number of slots.
    #[inline(always)]
    pub(super) unsafe fn slot(&self, part: &Part, slot: usize) -> F::Word {
        let level = part.path.level;
        // SAFETY: the slots of a part are in its node.
        unsafe { self.read(part.path.node(level), Self::place(level, part.index + slot)) }
    }
}
