//! Visits of the leaves and marks of a range, in ascending order.

use core::ops::ControlFlow;

use tlbkit_addr::{Pages, VirtAddr, Vpn};

use super::Mpt;
use super::shape::Shape;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Entry, Leaf, Radix, Run, Word};

/// A word that is no link, and the place where a visit has found it.
struct Found<W> {
    node: NodeAddr,
    level: usize,
    index: usize,
    word: W,
    /// The first page of its slot.
    first: Vpn,
    /// The number of pages that are left to visit.
    most: usize,
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'_, G, F, N> {
    /// Visits the leaves of `pages` under `node`, in ascending order.
    ///
    /// # Safety
    ///
    /// The caller is pinned or the writer. `node` is a node of `level` that covers all of `pages`.
    pub(super) unsafe fn visit(
        &self,
        node: NodeAddr,
        level: usize,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // SAFETY: by this function's contract the caller is pinned or the writer, and `node` is a node of `level` that covers all
        // of `pages`.
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
    /// The caller is pinned or the writer. `node` is a node of `level` that covers all of `pages`.
    pub(super) unsafe fn visit_entries(
        &self,
        node: NodeAddr,
        level: usize,
        pages: Pages,
        visit: &mut impl FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut found = |found: Found<F::Word>| {
            let Found { level, word, first, .. } = found;
            let at = first.address(G::BASE);
            if F::is_leaf(word, level + 1 == Self::LEVELS) {
                // SAFETY: `visit_words` has found the leaf in a node that is walkable.
                let leaf = unsafe { self.leaf_in(found.node, word, level, at) };
                visit(leaf.at, Entry::Leaf(leaf))?;
                return ControlFlow::Continue(G::SPACE.pages_of(&leaf).last());
            }
            if Self::is_mark(word, level) {
                visit(at, Self::entry(word, level, at))?;
            }
            ControlFlow::Continue(Self::last_of(first, level))
        };
        // SAFETY: by this function's contract the caller is pinned or the writer, and `node` is a node of `level` that covers all
        // of `pages`.
        unsafe { self.visit_words(node, level, pages, &mut found) }
    }

    /// Visits the leaves of `pages` under `node`, in ascending order, as runs of frames: neighbouring last-level entries that map
    /// neighbouring frames with the same attributes are one run.
    ///
    /// # Safety
    ///
    /// The caller is pinned or the writer. `node` is a node of `level` that covers all of `pages`.
    pub(super) unsafe fn visit_runs(
        &self,
        node: NodeAddr,
        level: usize,
        pages: Pages,
        visit: &mut dyn FnMut(Vpn, Run) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut found = |found: Found<F::Word>| {
            let Found { level, word, first, .. } = found;
            let last = level + 1 == Self::LEVELS;
            if !F::is_leaf(word, last) {
                return ControlFlow::Continue(Self::last_of(first, level));
            }
            // SAFETY: `visit_words` has found the leaf in a node that is walkable.
            let leaf = unsafe { self.leaf_in(found.node, word, level, first.address(G::BASE)) };
            let mut run = leaf.run(G::BASE);
            let mut end = G::SPACE.pages_of(&leaf).last();
            if last && !Self::REPLICATED {
                // SAFETY: the leaf's index is within its node, which is of the last level.
                run.len = unsafe { self.like(found.node, found.index, found.most, word) };
                end = Vpn::new(first.get() + (run.len - 1));
            }
            visit(leaf.at.vpn(G::BASE), run)?;
            ControlFlow::Continue(end)
        };
        // SAFETY: by this function's contract the caller is pinned or the writer, and `node` is a node of `level` that covers all
        // of `pages`.
        unsafe { self.visit_words(node, level, pages, &mut found) }
    }

    /// Calls `found` with each word of `pages` under `node` that is neither zero nor a link, in ascending order. `found` returns
    /// the last page that it has handled, and the visit continues after that page.
    ///
    /// # Safety
    ///
    /// The caller is pinned or the writer. `node` is a node of `level` that covers all of `pages`.
    unsafe fn visit_words(
        &self,
        node: NodeAddr,
        level: usize,
        pages: Pages,
        found: &mut impl FnMut(Found<F::Word>) -> ControlFlow<(), Vpn>,
    ) -> ControlFlow<()> {
        let mut at = pages.first();
        loop {
            let first = Vpn::new(at.get() & !(Self::slot_pages(level) - 1));
            let index = Self::index(level, at.address(G::BASE));
            // SAFETY: by this function's contract a walk may read the node, and the place is in it.
            let word = unsafe { self.nodes.follow(node, Self::place(level, index)) };
            let end = if word == F::Word::ZERO {
                // SAFETY: by this function's contract a walk may read the node.
                let empty = unsafe { self.empty_slots(node, level, index, pages.last()) };
                Vpn::new(first.get() + (empty * Self::slot_pages(level) - 1))
            } else if level + 1 < Self::LEVELS
                && F::is_link(word)
                && let end = Self::last_of(first, level)
                && let Some(below) = Pages::new(at, end.min(pages.last()))
            {
                // SAFETY: the link's node is of the next level and covers this slot.
                unsafe { self.visit_words(F::node(word), level + 1, below, found) }?;
                end
            } else {
                let most = pages.last().get() - at.get() + 1;
                found(Found { node, level, index, word, first, most })?
            };
            // The end is inclusive, because the last page of the space has no successor.
            if end >= pages.last() {
                return ControlFlow::Continue(());
            }
            at = Vpn::new(end.get() + 1);
        }
    }

    /// Counts the slots whose words are zero, from the slot `index`, which is one, to the next that is not or to that of `last`.
    ///
    /// # Safety
    ///
    /// The caller is pinned or the writer; `index` is a slot of the node, which is of `level` and covers the page `last`.
    #[inline(always)]
    unsafe fn empty_slots(&self, node: NodeAddr, level: usize, index: usize, last: Vpn) -> usize {
        let last = Self::index(level, last.address(G::BASE));
        let mut next = index + 1;
        // SAFETY: by this function's contract a walk may read the node; `next` is not above `last`, which is a slot.
        while next <= last && unsafe { self.nodes.follow(node, Self::place(level, next)) } == F::Word::ZERO {
            next += 1;
        }
        next - index
    }

    /// Returns the last page of the slot of `level` that begins with the page `first`.
    #[inline(always)]
    fn last_of(first: Vpn, level: usize) -> Vpn {
        Vpn::new(first.get() | (Self::slot_pages(level) - 1))
    }

    /// Counts at most `most` leaves from the slot `index` of a last-level node on: the first, `word`, and those that map the next
    /// frames with the same attributes.
    ///
    /// # Safety
    ///
    /// The caller is pinned or the writer; the node is one of the last level, and `index` is below its number of slots.
    #[inline(always)]
    unsafe fn like(&self, node: NodeAddr, index: usize, most: usize, word: F::Word) -> usize {
        let level = Self::LEVELS - 1;
        let most = most.min(Self::slots(level) - index);
        let (mut count, mut next) = (1, word.advance(F::STEP, 1));
        // SAFETY: by this function's contract the slot `index` is in the node, and `most` does not reach beyond the node.
        while count < most && unsafe { self.nodes.follow(node, Self::place(level, index + count)) } == next {
            (count, next) = (count + 1, next.advance(F::STEP, 1));
        }
        if Self::counts_on(word, count) { count } else { 1 }
    }

    /// Tells whether `count` words, each of which is the one before it plus one [`STEP`](Format::STEP), have consecutive frames.
    /// They do not if the highest frame that an entry can hold comes before the last word.
    #[inline(always)]
    pub(super) fn counts_on(word: F::Word, count: usize) -> bool {
        let frame = |word| F::frame(word, G::BASE).get();
        frame(word).checked_add(count - 1) == Some(frame(word.advance(F::STEP, count - 1)))
    }
}
