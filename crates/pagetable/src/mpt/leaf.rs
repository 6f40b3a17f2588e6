//! The writer's position in a table: the node and the level at which its walk ended.

use tlbkit_addr::{Pages, VirtAddr};

use super::Mpt;
use super::shape::Shape;
use crate::format::Format;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Leaf, Radix};

/// The node in which the walk for a page ended.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    pub(super) node: NodeAddr,
    pub(super) level: usize,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Walks to the slot for `at`. For a borrowed page the walk ends at the root, because the lender may free the nodes below
    /// while this CPU is not pinned.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `at` is in the space.
    #[inline(always)]
    pub(super) unsafe fn spot(&self, at: VirtAddr) -> Spot {
        if self.check_own(Pages::one(at.vpn(G::BASE))).is_err() {
            return Spot { node: self.root, level: 0 };
        }
        // SAFETY: by this function's contract the caller is the only writer. The page is not borrowed, so no other CPU frees a
        // node on the way.
        unsafe { self.descend(at, |_, level, node| Spot { node, level }) }
    }

    /// Returns the word for `at` and the word's place in the node.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the walk for `at` ends in `spot`.
    #[inline(always)]
    pub(super) unsafe fn word_at(&self, spot: Spot, at: VirtAddr) -> (F::Word, usize) {
        let place = Self::place(spot.level, Self::index(spot.level, at));
        // SAFETY: by this function's contract the walk for `at` ends in the node, so the place is in it.
        (unsafe { self.read(spot.node, place) }, place)
    }

    /// Returns the leaf that maps `at`.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the walk for `at` ends in `spot`.
    #[inline(always)]
    pub(super) unsafe fn leaf_at(&self, spot: Spot, at: VirtAddr) -> Option<Leaf> {
        // SAFETY: by this function's contract the caller is the only writer, and the walk for `at` ends in the spot.
        unsafe {
            let (word, _) = self.word_at(spot, at);
            let is_leaf = F::is_leaf(word, spot.level + 1 == Self::LEVELS);
            is_leaf.then(|| self.leaf_in(spot.node, word, spot.level, at))
        }
    }
}
