//! Dry runs: what a range holds, before a change of it begins.

use core::ops::ControlFlow;

use tlbkit_addr::{Pages, Vpn};

use super::Gpt;
use super::layout::{Edge, Layout};
use super::node_size::NodeSize;
use super::visit::Span;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Error, Geometry, Holes};

/// What a range holds.
pub(super) struct Census {
    pub(super) pages: usize,
    pub(super) leaves: usize,
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Checks that nothing is mapped in a range.
    #[inline(never)]
    pub(super) unsafe fn check_vacant(&self, span: Span) -> Result<(), Error> {
        let mut outcome = Ok(());
        // SAFETY: the caller is the writer.
        let _ = unsafe {
            self.visit(span, &mut |occupant| {
                outcome = Err(Error::occupied(&occupant));
                ControlFlow::Break(())
            })
        };
        outcome
    }

    /// The dry run of an unmap or protect: counts what is mapped, and finds holes and pages cut by the ends.
    #[inline(never)]
    pub(super) unsafe fn census(&self, pages: Pages, holes: Holes) -> Result<Census, Error> {
        // SAFETY: the caller is the writer.
        unsafe {
            match self.count_base(Self::span(pages)) {
                Some(count) if holes == Holes::Skip || count == pages.len() => {
                    Ok(Census { pages: count, leaves: count })
                }
                _ => self.census_closely(pages, holes),
            }
        }
    }

    /// Counts the base pages that are mapped in a span, leaf by leaf; `None` if there is a larger page. Its path is gone from the
    /// stack when it returns.
    #[inline(never)]
    pub(super) unsafe fn count_base(&self, span: Span) -> Option<usize> {
        let mut count = 0;
        // SAFETY: the caller is the writer.
        let all = unsafe {
            self.sweep_leaves(self.look_root(), span, &mut |leaf, _, part| {
                if leaf.shift > Self::BASE {
                    return ControlFlow::Break(());
                }
                count += self.count_part(leaf, part);
                ControlFlow::Continue(())
            })
        };
        all.is_continue().then_some(count)
    }

    /// Counts the PTEs of a part of a leaf, for the writer.
    #[inline(always)]
    pub(super) unsafe fn count_part(&self, leaf: Edge, part: Span) -> usize {
        let pages = ((part.last - part.first) >> leaf.shift) + 1;
        let is_leaf = |&at: &usize| {
            let at = part.first + (at << leaf.shift);
            // SAFETY: the caller is the writer; the leaf covers the part.
            F::is_leaf(unsafe { self.nodes.read(leaf.node, Self::pte_of(leaf, at)) }, true)
        };
        if !Self::IN_A_ROW {
            return (0..pages).filter(is_leaf).count();
        }
        let first = Self::pte_of(leaf, part.first);
        // SAFETY: as above.
        let is_leaf = |&at: &usize| F::is_leaf(unsafe { self.nodes.read(leaf.node, first + at) }, true);
        (0..pages).filter(is_leaf).count()
    }

    /// As [`census`](Self::census), page by page.
    #[inline(never)]
    pub(super) unsafe fn census_closely(&self, pages: Pages, holes: Holes) -> Result<Census, Error> {
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

    /// Returns what a change of the leaves in `pages`, all of them whole, makes stale.
    pub(super) unsafe fn stale(&self, pages: Pages) -> Pages {
        // SAFETY: the caller is the writer.
        let find = |page: Vpn| unsafe { self.find(page.address(G::BASE).get()) };
        stale::<G, F>(pages, |page| find(page).map(|leaf| leaf.size))
    }
}
