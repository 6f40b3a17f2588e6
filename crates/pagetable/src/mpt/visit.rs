//! Visits of the leaves and marks of a range, in ascending order.

use core::ops::ControlFlow;

use tlbkit_addr::{Pages, VirtAddr, Vpn};

use super::leaf::Decode as _;
use super::node::{NodeRef, Seen};
use super::pieces::after;
use super::shape::Shape;
use crate::format::{Format, is_gone};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Entry, Error, Leaf, Radix, Word};

/// Visits of a part of the space that the node covers.
impl<'a, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeRef<'a, 'n, G, F, N> {
    /// Visits the leaves of `pages`, in ascending order.
    pub(super) fn visit(
        self,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.visit_entries(pages, &mut |_, entry| match entry {
            Entry::Leaf(leaf) => visit(leaf),
            Entry::Mark(_) | Entry::Empty => ControlFlow::Continue(()),
        })
    }

    /// Visits the leaves and marks of `pages`, in ascending order.
    #[inline(never)]
    pub(super) fn visit_entries(
        self,
        pages: Pages,
        visit: &mut dyn FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.visit_words(pages, &mut |seen, first: Vpn, _| {
            let (level, at) = (seen.node().level(), first.address(G::BASE));
            if let Some(leaf) = seen.mapped(at) {
                visit(leaf.at, Entry::Leaf(leaf))?;
                return ControlFlow::Continue(G::SPACE.pages_of(&leaf).last());
            }
            if Self::is_mark(seen.word(), level) {
                visit(at, Self::entry(seen.word(), level, at))?;
            }
            ControlFlow::Continue(Self::slot_end(level, first))
        })
    }

    /// Returns the first leaf or mark of `pages`, and its pages. With a leaf of the last level come the neighbours that map the next
    /// frames with the same attributes.
    #[inline(never)]
    pub(super) fn first_entry(self, pages: Pages) -> Option<(Pages, Entry)> {
        let mut found = None;
        let _ = self.visit_words(pages, &mut |seen, first: Vpn, most| {
            let level = seen.node().level();
            let entry = seen.content(first.address(G::BASE));
            found = match entry {
                Entry::Leaf(_) if Self::is_last(level) && !Self::REPLICATED => {
                    Pages::count(first, seen.like(most))
                }
                Entry::Leaf(leaf) => Some(G::SPACE.pages_of(&leaf)),
                Entry::Mark(_) => Some(Pages::one(first)),
                Entry::Empty => return ControlFlow::Continue(Self::slot_end(level, first)),
            }
            .map(|pages| (pages, entry));
            ControlFlow::Break(())
        });
        found
    }

    /// Checks that `pages` have no leaf, no mark, and no frame that waits for its flush.
    ///
    /// # Errors
    ///
    /// [`Error::Occupied`] or [`Error::Marked`] with the first page that has one.
    pub(super) fn check_vacant(self, pages: Pages) -> Result<(), Error> {
        let mut vacant = Ok(());
        let _ = self.visit_words(pages, &mut |seen, first: Vpn, _| {
            let at = first.address(G::BASE);
            let entry = seen.content(at);
            if entry != Entry::Empty || is_gone::<F>(seen.word()) {
                vacant = Err(Error::taken(at, entry));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(Self::slot_end(seen.node().level(), first))
        });
        vacant
    }

    /// Returns the first address in `pages` whose entry holds a frame that waits for its flush; see
    /// [`Writer::detach`](crate::Writer::detach).
    #[cold]
    pub(super) fn first_gone(self, pages: Pages) -> Option<VirtAddr> {
        let mut found = None;
        let _ = self.visit_words(pages, &mut |seen, first: Vpn, _| {
            if is_gone::<F>(seen.word()) {
                found = Some(first.address(G::BASE));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(Self::slot_end(seen.node().level(), first))
        });
        found
    }

    /// Calls `found` with each word of `pages` that is neither zero nor a link, in ascending order, with the first page of its slot
    /// and the number of pages that are left to visit. `found` returns the last page that it has handled, and the visit continues
    /// after that page.
    #[inline(never)]
    fn visit_words(
        self,
        pages: Pages,
        found: &mut dyn FnMut(Seen<'a, 'n, G, F, N>, Vpn, usize) -> ControlFlow<(), Vpn>,
    ) -> ControlFlow<()> {
        let level = self.level();
        let mut rest = Some(pages);
        while let Some(pages) = rest {
            let at = pages.first();
            let first = Vpn::new(at.get() & !(Self::slot_pages(level) - 1));
            let slot_end = Self::slot_end(level, at);
            let seen = self.seen(self.index_of(at.address(G::BASE)));
            let end = if seen.word() == F::Word::ZERO {
                let empty = self.empty_slots(seen.slot(), pages.last());
                Vpn::new(first.get() + (empty * Self::slot_pages(level) - 1))
            } else if Self::is_link(seen.word(), level) {
                // A link that cannot be followed is one to a borrowed part.
                if let Some(node) = seen.link()
                    && let Some(below) = Pages::new(at, slot_end.min(pages.last()))
                {
                    node.visit_words(below, found)?;
                }
                slot_end
            } else {
                found(seen, first, pages.len())?
            };
            rest = after(pages, end);
        }
        ControlFlow::Continue(())
    }

    /// Counts the slots whose words are zero, from the slot `index`, which is one, to the next that is not or to that of `last`, a page
    /// that the node covers.
    #[inline(always)]
    fn empty_slots(self, index: usize, last: Vpn) -> usize {
        let last = self.index_of(last.address(G::BASE));
        let mut next = index + 1;
        while next <= last && self.seen(next).word() == F::Word::ZERO {
            next += 1;
        }
        next - index
    }

    /// Returns the pages to flush when the leaves of `pages` change, none of which extends beyond `pages`.
    pub(super) fn stale(self, pages: Pages) -> Pages {
        stale::<G, F>(pages, |page| self.leaf_for(page).map(|leaf| leaf.size))
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Seen<'_, 'n, G, F, N> {
    /// Counts at most `most` leaves from this slot of a last-level node on: the first, and those that map the next frames with the
    /// same attributes.
    #[inline(always)]
    fn like(self, most: usize) -> usize {
        let most = most.min(Self::slots(self.node().level()) - self.slot());
        let (mut count, mut next) = (1, self.word().advance(F::STEP, 1));
        while count < most && self.node().seen(self.slot() + count).word() == next {
            (count, next) = (count + 1, next.advance(F::STEP, 1));
        }
        if Self::counts_on(self.word(), count) { count } else { 1 }
    }
}
