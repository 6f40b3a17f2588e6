//! Visits of the leaves and marks of a range, in ascending order.

use core::ops::ControlFlow;

use tlbkit_addr::{Pages, VirtAddr, Vpn};

use super::Mpt;
use super::shape::Shape;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Entry, Leaf, Radix};

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'_, G, F, N> {
    /// Visits the leaves of `pages` under `node`, in ascending order.
    ///
    /// # Safety
    ///
    /// The caller is pinned or the writer; `node` is one of `level` that covers all of `pages`.
    pub(super) unsafe fn visit(
        &self,
        node: NodeAddr,
        level: usize,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // SAFETY: by this function's contract the caller is pinned or the writer; `node` is one of `level` that covers
        // all of `pages`.
        unsafe {
            self.visit_entries(node, level, pages, &mut |_, entry| match entry {
                Entry::Leaf(leaf) => visit(leaf),
                Entry::Mark(_) | Entry::Empty => ControlFlow::Continue(()),
            })
        }
    }

    /// Visits the leaves and marks of `pages` under `node`, in ascending order.
    ///
    /// # Safety
    ///
    /// As for [`visit`](Self::visit).
    pub(super) unsafe fn visit_entries(
        &self,
        node: NodeAddr,
        level: usize,
        pages: Pages,
        visit: &mut impl FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let last = level + 1 == Self::LEVELS;
        let slot = Self::slot_pages(level);
        let mut at = pages.first();
        loop {
            let first = Vpn::new(at.get() & !(slot - 1));
            let mut end = Vpn::new(at.get() | (slot - 1));
            let place = Self::place(level, Self::index(level, at.address(G::BASE)));
            // SAFETY: the node is walkable and the place within it.
            let word = unsafe { self.nodes.follow(node, place) };
            if F::is_leaf(word, last) {
                // SAFETY: as above.
                let leaf = unsafe { self.leaf_in(node, word, level, first.address(G::BASE)) };
                end = G::SPACE.pages_of(&leaf).last();
                visit(leaf.at, Entry::Leaf(leaf))?;
            } else if !last
                && F::is_link(word)
                && let Some(below) = Pages::new(at, end.min(pages.last()))
            {
                // SAFETY: the link's node is of the next level and covers this slot.
                unsafe { self.visit_entries(F::node(word), level + 1, below, visit) }?;
            } else if Self::is_mark(word, level) {
                let at = first.address(G::BASE);
                visit(at, Self::entry(word, level, at))?;
            }
            // Inclusive ends: the last page of the space has no successor.
            if end >= pages.last() {
                return ControlFlow::Continue(());
            }
            at = Vpn::new(end.get() + 1);
        }
    }
}
