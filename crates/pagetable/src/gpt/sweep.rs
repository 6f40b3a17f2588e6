//! Going over the leaves of a range, in ascending order: what `for_each`, dry runs and `protect` share.

use core::ops::{ControlFlow, Range};

use tlbkit_addr::{Pages, Vpn};

use super::bits::low;
use super::layout::{Edge, Layout};
use super::policy::Policy;
use super::{Gpt, MAX_WIDTH};
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Error, Geometry, Holes, Leaf};

/// Keys of pages, both ends included: each is that of the page's first byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) first: usize,
    pub(super) last: usize,
}

impl Span {
    /// Returns the part of the span within the `2^bits` bytes from `base` on, for pages of `2^page` bytes.
    #[inline(always)]
    pub(super) fn within(self, base: usize, bits: u32, page: u32) -> Option<Self> {
        let first = self.first.max(base);
        let last = self.last.min((base + low(bits)) & !low(page));
        (first <= last).then_some(Self { first, last })
    }
}

/// What a range holds.
pub(super) struct Census {
    pub(super) pages: usize,
    pub(super) leaves: usize,
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: Policy> Gpt<'n, G, F, N, L, P> {
    /// Returns the keys of a range of pages.
    #[inline(always)]
    pub(super) fn span(pages: Pages) -> Span {
        let key = |page: Vpn| Self::key(page.address(G::BASE).get());
        Span { first: key(pages.first()), last: key(pages.last()) }
    }

    /// Visits the PTEs between the ends of a span, mapped ones alone, with their leaf, in ascending order.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer.
    #[inline(always)]
    pub(super) unsafe fn sweep(
        &self,
        span: Span,
        visit: &mut impl FnMut(Edge, usize, F::Word) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // SAFETY: the caller's promise.
        unsafe {
            let root = self.look_root();
            self.sweep_from(root, span, visit)
        }
    }

    /// As [`sweep`](Self::sweep), of a subtree.
    pub(super) unsafe fn sweep_from(
        &self,
        edge: Edge,
        span: Span,
        visit: &mut impl FnMut(Edge, usize, F::Word) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if edge.is_empty() {
            return ControlFlow::Continue(());
        }
        // SAFETY: the caller's promise; the slots are within the node.
        unsafe {
            let Some(near) = self.nearest(edge, span.first) else { return ControlFlow::Continue(()) };
            let base = near & !low(edge.top());
            // A page that reaches over the span's ends belongs to it: its own slot is what counts.
            let Some(part) = span.within(base, edge.top(), 0) else { return ControlFlow::Continue(()) };
            let (mut slot, last) = (edge.index(part.first), edge.index(part.last));
            while slot <= last {
                let at = base | slot << edge.shift;
                if edge.leaf {
                    let word = self.nodes.follow(edge.node, Self::pte_of(edge, at));
                    if F::is_leaf(word, true) {
                        visit(edge, at, word)?;
                    }
                    slot += 1;
                } else {
                    let child = self.look(edge.node, slot, edge.shift, at);
                    let run = edge.run(slot, child);
                    if let Some(part) = Self::part_of_run(edge, &run, base, part, child) {
                        self.sweep_from(child, part, visit)?;
                    }
                    slot = run.end;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns the part of a span that a child covers by way of a run of slots: of a leaf that stands there, the one
    /// page.
    pub(super) fn part_of_run(
        node: Edge,
        run: &Range<usize>,
        base: usize,
        span: Span,
        child: Edge,
    ) -> Option<Span> {
        if node.shares(child) {
            span.within(base + (run.start << node.shift), child.shift, 0)
        } else {
            Some(span)
        }
    }

    /// Visits the leaves that map pages of a range.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer.
    pub(super) unsafe fn visit(
        &self,
        span: Span,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // SAFETY: the caller's promise.
        unsafe { self.sweep(span, &mut |edge, at, word| visit(Self::leaf(word, edge.shift, at))) }
    }

    /// Returns the leaf that maps `at`.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer.
    #[inline(always)]
    pub(super) unsafe fn find(&self, at: usize) -> Option<Leaf> {
        // SAFETY: the caller's promise; the index is below the leaf's slots.
        unsafe {
            let found = L::seek(self.nodes, &self.root, G::VA_BITS, Self::TAG, at)?;
            let word = self.nodes.follow(found.leaf, Self::pte_at(found.shift, found.index, at));
            F::is_leaf(word, true).then(|| Self::leaf(word, found.shift, at))
        }
    }

    /// Returns where in its leaf the PTE is that a walk found.
    #[inline(always)]
    pub(super) fn pte_at(shift: u32, index: usize, at: usize) -> usize {
        // A lone half of a pair stands where it would beside the other.
        if Self::ROOM > 0 { Self::pte(index | at >> shift & 1) } else { Self::pte(index) }
    }

    /// Checks that nothing is mapped in a range.
    pub(super) unsafe fn check_vacant(&self, span: Span) -> Result<(), Error> {
        let mut outcome = Ok(());
        // SAFETY: the caller is the writer.
        let _ = unsafe {
            self.visit(span, &mut |occupant| {
                outcome = Err(Error::Occupied { occupant });
                ControlFlow::Break(())
            })
        };
        outcome
    }

    /// The dry run of an unmap or protect: counts what is mapped, and finds holes and pages cut by the ends.
    pub(super) unsafe fn census(&self, pages: Pages, holes: Holes) -> Result<Census, Error> {
        let mut census = Census { pages: 0, leaves: 0 };
        let mut next = pages.first();
        let mut outcome = Ok(());
        // SAFETY: the caller is the writer.
        let _ = unsafe {
            self.visit(Self::span(pages), &mut |leaf| {
                let whole = G::SPACE.pages_of(&leaf);
                if holes == Holes::Refuse && whole.first() > next {
                    outcome = Err(Error::NotMapped { at: next.address(G::BASE) });
                } else {
                    outcome = Self::check_whole(leaf, pages);
                }
                if outcome.is_err() {
                    return ControlFlow::Break(());
                }
                census.pages += whole.len();
                census.leaves += 1;
                // Past the top of the space there is no next page, and no leaf either.
                next = whole.last().checked_add(1).unwrap_or(whole.last());
                ControlFlow::Continue(())
            })
        };
        outcome?;
        if holes == Holes::Refuse && census.pages < pages.len() {
            return Err(Error::NotMapped { at: next.address(G::BASE) });
        }
        Ok(census)
    }

    /// Checks that a leaf does not reach out of a range.
    pub(super) fn check_whole(leaf: Leaf, pages: Pages) -> Result<(), Error> {
        let whole = G::SPACE.pages_of(&leaf);
        if whole.intersect(pages) == Some(whole) { Ok(()) } else { Err(Error::Partial { occupant: leaf }) }
    }

    /// Counts the indexing nodes of a subtree by size.
    ///
    /// # Safety
    ///
    /// The caller is pinned.
    pub(super) unsafe fn count_sizes(&self, edge: Edge, sizes: &mut [usize; MAX_WIDTH + 1]) {
        if edge.is_empty() || edge.leaf {
            return;
        }
        if let Some(count) = sizes.get_mut(edge.width as usize) {
            *count += 1;
        }
        for slot in 0..edge.slots() {
            // SAFETY: the caller's promise; the slot is within the node.
            unsafe { self.count_sizes(self.look(edge.node, slot, edge.shift, 0), sizes) };
        }
    }
}
