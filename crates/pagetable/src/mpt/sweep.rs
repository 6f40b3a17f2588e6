//! The slots that a range of pages covers, node by node.

use tlbkit_addr::{Pages, VirtAddr, Vpn};

use super::leaf::Decode as _;
use super::node::{NodeMut, Place, Writing};
use super::pieces::after;
use super::shape::Shape;
use crate::format::{Format, is_gone};
use crate::nodes::Nodes;
use crate::{Error, Radix, Word};

/// A run of slots of one node that a range of pages covers.
pub(super) struct NodePart<'p, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    pub(super) node: NodeMut<'p, 'n, G, F, N>,
    /// The first slot.
    pub(super) index: usize,
    /// One above the last level, where the next slot may hold a link.
    pub(super) slots: usize,
    /// The first page of the first slot.
    pub(super) first: Vpn,
    /// Whether the visitor has emptied the node.
    pub(super) emptied: bool,
}

/// What [`Writing::sweep`] calls for each part.
type Visitor<'v, 'n, G, F, N> = dyn FnMut(&mut NodePart<'_, 'n, G, F, N>) -> Result<(), Error> + 'v;

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'_, 'n, G, F, N> {
    /// Visits the slots that a range of the space covers, node by node, as [`NodePart`]s. The visitor may empty them: then the nodes that
    /// have become empty are retired.
    #[inline(never)]
    pub(super) fn sweep(&mut self, pages: Pages, visit: &mut Visitor<'_, 'n, G, F, N>) -> Result<(), Error> {
        let mut rest = Some(pages);
        while let Some(pages) = rest {
            let at = pages.first();
            let va = at.address(G::BASE);
            let node = self.node_for(va, Self::LEVELS - 1);
            let level = node.level();
            let index = node.index_of(va);
            // Above the last level the next slot may hold a link, so each slot is a part of its own.
            let (first, end, slots) = if Self::is_last(level) {
                let end = Self::node_end(Self::LEVELS - 1, at).min(pages.last());
                (at, end, end.get() - at.get() + 1)
            } else {
                let end = Self::slot_end(level, at);
                (Vpn::new(at.get() & !(Self::slot_pages(level) - 1)), end, 1)
            };
            let mut part = NodePart { node, index, slots, first, emptied: false };
            visit(&mut part)?;
            if part.emptied {
                self.root().prune(level, va);
            }
            rest = after(pages, end);
        }
        Ok(())
    }
}

impl<'p, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodePart<'p, 'n, G, F, N> {
    /// Returns a slot of the part.
    #[inline(always)]
    pub(super) fn at(&self, slot: usize) -> Place<'_, 'n, G, F, N> {
        self.node.at(self.index + slot)
    }

    /// Returns the slots, if the part is one of the last level.
    #[inline(always)]
    pub(super) fn last(
        &self,
    ) -> Option<impl Iterator<Item = Place<'_, 'n, G, F, N>> + use<'_, 'p, 'n, G, F, N>> {
        Some(self.node.last()?.slots(self.index, self.slots))
    }

    /// Returns the word in a slot of the part.
    #[inline(always)]
    pub(super) fn word(&self, slot: usize) -> F::Word {
        self.node.read(self.index + slot).word()
    }

    /// Returns the address of a slot of the part.
    #[inline(always)]
    pub(super) fn address(&self, slot: usize) -> VirtAddr {
        Vpn::new(self.first.get() + slot * Self::slot_pages(self.node.level())).address(G::BASE)
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeMut<'_, 'n, G, F, N> {
    /// Tells whether a run of slots holds a leaf, a link, a mark, or a frame that waits for its flush.
    #[inline(never)]
    pub(super) fn any_taken(&self, index: usize, slots: usize) -> bool {
        let level = self.level();
        // The common case is that all words are zero. The fold checks several words at a time.
        (!Self::is_last(level)
            || self.fold(index, slots, F::Word::ZERO, |all, word| all | word) != F::Word::ZERO)
            && (index..index + slots).map(|index| self.read(index).word()).any(|word| {
                Self::is_leaf(word, level)
                    || Self::is_link(word, level)
                    || Self::is_mark(word, level)
                    || is_gone::<F>(word)
            })
    }
}
