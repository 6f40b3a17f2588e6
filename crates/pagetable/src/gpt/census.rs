//! Dry runs: the checks and counts of a range before a change of it begins.

use core::ops::ControlFlow;

use tlbkit_addr::{Pages, Vpn};

use super::Gpt;
use super::layout::{Edge, Layout};
use super::node_size::NodeSize;
use super::visit::Span;
use crate::format::{Format, is_taken};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Entry, Error, Geometry, Holes};

/// The content of a range.
pub(super) struct Census {
    /// The number of base pages that are mapped.
    pub(super) pages: usize,
    /// The number of leaves, of any size.
    pub(super) leaves: usize,
    /// The number of marks.
    pub(super) marks: usize,
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Checks that nothing is mapped in a range, and no page has a mark.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(never)]
    pub(super) unsafe fn check_vacant(&self, span: Span) -> Result<(), Error> {
        let mut outcome = Ok(());
        // SAFETY: the caller is the writer.
        let _ = unsafe {
            self.visit_entries(span, &mut |at, occupant| {
                outcome = Err(Error::taken(at, occupant));
                ControlFlow::Break(())
            })
        };
        outcome
    }

    /// Makes the dry run of an unmap or protect: counts the entries of a range, and refuses holes and pages that are only partly in
    /// the range.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(never)]
    pub(super) unsafe fn census(&self, pages: Pages, holes: Holes) -> Result<Census, Error> {
        // SAFETY: the caller is the writer.
        unsafe {
            match self.count_base(Self::span(pages)) {
                Some(count) if holes == Holes::Skip || count.pages == pages.len() => Ok(count),
                _ => self.census_closely(pages, holes),
            }
        }
    }

    /// Counts the base pages that are mapped in a span, and the marks, leaf by leaf; `None` if there is a larger page. A function
    /// of its own, to keep its path off the caller's stack.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(never)]
    pub(super) unsafe fn count_base(&self, span: Span) -> Option<Census> {
        let mut count = Census { pages: 0, leaves: 0, marks: 0 };
        // SAFETY: the caller is the writer.
        let all = unsafe {
            self.sweep_leaves(self.follow_root(), span, &mut |leaf, _, part| {
                if leaf.shift > Self::BASE {
                    return ControlFlow::Break(());
                }
                let leaves = self.count_part(leaf, part, |word| F::is_leaf(word, true));
                count.pages += leaves;
                count.leaves += leaves;
                if leaves < Self::pages_in(part, leaf.shift) {
                    count.marks += self.count_part(leaf, part, is_taken::<F>) - leaves;
                }
                ControlFlow::Continue(())
            })
        };
        all.is_continue().then_some(count)
    }

    /// Counts the words of a part of a leaf for which the predicate `is_so` returns true.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `leaf` is a leaf of this table that covers the part.
    #[inline(always)]
    pub(super) unsafe fn count_part(&self, leaf: Edge, part: Span, is_so: impl Fn(F::Word) -> bool) -> usize {
        let pages = Self::pages_in(part, leaf.shift);
        let counts = |&at: &usize| {
            let at = part.first + (at << leaf.shift);
            // SAFETY: the caller is the writer; the leaf covers the part.
            is_so(unsafe { self.nodes.read(leaf.node, Self::pte_of(leaf, at)) })
        };
        if !Self::IN_A_ROW {
            return (0..pages).filter(counts).count();
        }
        let first = Self::pte_of(leaf, part.first);
        // SAFETY: the caller is the writer; the leaf covers the part, whose PTEs follow each other in it.
        let counts = |&at: &usize| is_so(unsafe { self.nodes.read(leaf.node, first + at) });
        (0..pages).filter(counts).count()
    }

    /// As [`census`](Self::census), page by page.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(never)]
    pub(super) unsafe fn census_closely(&self, pages: Pages, holes: Holes) -> Result<Census, Error> {
        let mut census = Census { pages: 0, leaves: 0, marks: 0 };
        let mut next = pages.first();
        let mut outcome = Ok(());
        // SAFETY: the caller is the writer.
        let _ = unsafe {
            self.visit_entries(Self::span(pages), &mut |_, entry| {
                let Entry::Leaf(leaf) = entry else {
                    census.marks += 1;
                    return ControlFlow::Continue(());
                };
                let whole = G::SPACE.pages_of(&leaf);
                if holes == Holes::Refuse && whole.first() > next {
                    outcome = Err(Error::NotMapped { at: next.address(G::BASE) });
                } else {
                    outcome = G::SPACE.check_whole(leaf, pages);
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

    /// Returns the pages whose translations become stale by a change of the leaves in `pages`, all of which are whole.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    pub(super) unsafe fn stale(&self, pages: Pages) -> Pages {
        // SAFETY: the caller is the writer.
        let find = |page: Vpn| unsafe { self.find(page.address(G::BASE).get()) };
        stale::<G, F>(pages, |page| find(page).map(|leaf| leaf.size))
    }
}
