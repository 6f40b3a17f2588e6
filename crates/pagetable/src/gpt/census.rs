//! Dry runs: the checks and counts of a range before a change of it begins.

use core::ops::ControlFlow;

use tlbkit_addr::{Pages, Vpn};

use super::node::View;
use super::shape::Shape;
use super::visit::{Covering, Leaves, Span};
use crate::dry_run::Census;
use crate::format::{Format, is_taken};
use crate::pairs::stale;
use crate::{Entry, Error, Holes};

impl<T: Shape> View<'_, T> {
    /// Checks that nothing is mapped in a range, and no page has a mark.
    #[inline(never)]
    pub(super) fn check_vacant(self, span: Span) -> Result<(), Error> {
        let mut outcome = Ok(());
        let _ = self.visit_entries(span, &mut |at, occupant| {
            outcome = Err(Error::taken(at, occupant));
            ControlFlow::Break(())
        });
        outcome
    }

    /// Makes the dry run of an unmap or protect: counts the entries of a range, and refuses holes and pages that are only partly in
    /// the range.
    #[inline(never)]
    pub(super) fn census(self, pages: Pages, holes: Holes) -> Result<Census, Error> {
        match self.count_base(T::span(pages)) {
            Some(count) if holes == Holes::Skip || count.pages == pages.len() => Ok(count),
            _ => self.census_closely(pages, holes),
        }
    }

    /// Counts the base pages that are mapped in a span, and the marks, leaf by leaf; `None` if there is a larger page. A function
    /// of its own, to keep its path off the caller's stack.
    #[inline(never)]
    fn count_base(self, span: Span) -> Option<Census> {
        let mut count = Census::default();
        let mut next = Leaves::new(self, span);
        next.enter(self.root());
        while let Some(Covering { leaf, part, .. }) = next.next() {
            if leaf.shift > T::BASE {
                return None;
            }
            let leaves = leaf.count(part, |word| T::F::is_leaf(word, true));
            count.pages += leaves;
            count.leaves += leaves;
            if leaves < part.pages(leaf.shift) {
                count.marks += leaf.count(part, is_taken::<T::F>) - leaves;
            }
        }
        Some(count)
    }

    /// As [`census`](Self::census), page by page.
    #[inline(never)]
    fn census_closely(self, pages: Pages, holes: Holes) -> Result<Census, Error> {
        let mut census = Census::default();
        let mut next = pages.first();
        let mut outcome = Ok(());
        let _ = self.visit_entries(T::span(pages), &mut |_, entry| {
            census.add::<T::G>(entry);
            let Entry::Leaf(leaf) = entry else { return ControlFlow::Continue(()) };
            let whole = T::SPACE.pages_of(&leaf);
            if holes == Holes::Refuse && whole.first() > next {
                outcome = Err(Error::NotMapped { at: next.address(T::PAGE) });
            } else {
                outcome = T::SPACE.check_whole(leaf, pages);
            }
            if outcome.is_err() {
                return ControlFlow::Break(());
            }
            // Past the top of the space there is no next page, and no leaf either.
            next = whole.last().checked_add(1).unwrap_or(whole.last());
            ControlFlow::Continue(())
        });
        outcome?;
        if holes == Holes::Refuse && census.pages < pages.len() {
            return Err(Error::NotMapped { at: next.address(T::PAGE) });
        }
        Ok(census)
    }

    /// Returns the pages whose translations become stale by a change of the leaves in `pages`, all of which are whole.
    pub(super) fn stale(self, pages: Pages) -> Pages {
        let find = |page: Vpn| self.find(page.address(T::PAGE).get());
        stale::<T::G, T::F>(pages, |page| find(page).map(|leaf| leaf.size))
    }
}
