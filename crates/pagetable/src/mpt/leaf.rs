//! Where a walk of the writer has ended.

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
    /// Walks to the slot for `at`. For a borrowed page the walk ends at the root: the lender may free the nodes below while this
    /// CPU is not pinned.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `at` is in the space; so for the functions beside it, and a spot is the one for `at`
    /// in the table as it is.
    #[inline(always)]
    pub(super) unsafe fn spot(&self, at: VirtAddr) -> Spot {
        if self.check_own(Pages::one(at.vpn(G::BASE))).is_err() {
            return Spot { node: self.root, level: 0 };
        }
        // SAFETY: by this function's contract the caller is the only writer, and the page is not a lender's: so no other CPU
        // frees a node on the way.
        unsafe { self.descend(at, |_, level, node| Spot { node, level }) }
    }

    /// Returns the word for `at` and its place in the node.
    #[inline(always)]
    pub(super) unsafe fn word_at(&self, spot: Spot, at: VirtAddr) -> (F::Word, usize) {
        let place = Self::place(spot.level, Self::index(spot.level, at));
        // SAFETY: the place is in the node.
        (unsafe { self.read(spot.node, place) }, place)
    }

    /// Returns the leaf that maps `at`.
    #[inline(always)]
    pub(super) unsafe fn leaf_at(&self, spot: Spot, at: VirtAddr) -> Option<Leaf> {
        // SAFETY: by the contract of `spot`, which is this function's too, the caller is the only writer, and the walk for
        // `at` ends in the spot.
        unsafe {
            let (word, _) = self.word_at(spot, at);
            let is_leaf = F::is_leaf(word, spot.level + 1 == Self::LEVELS);
            is_leaf.then(|| self.leaf_in(spot.node, word, spot.level, at))
        }
    }
}
