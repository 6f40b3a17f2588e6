//! Protection of a page or a range: PTEs are changed in place.

use core::ops::ControlFlow;

use tlbkit_addr::Pages;

use super::Sizes;
use super::node::Writing;
use super::visit::Visitor;
use crate::format::{Format, change_mark, check_change};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Change, Error, Geometry, Holes};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Implements [`Table::protect`](crate::Table::protect).
    #[inline]
    pub(super) fn protect_pages(
        mut self,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        let page = pages.first();
        if page == pages.last() && G::SPACE.has(page) {
            check_change::<F>(change)?;
            let at = page.address(G::BASE);
            if let Some(bucket) = self.find_one(at) {
                bucket.edit(at, |word| F::change(word, change, true));
                self.touch(change.scope(), pages);
                return Ok(1);
            }
        }
        self.protect_range(pages, holes, change)
    }

    /// Protects a range, whatever is in it.
    #[inline(never)]
    fn protect_range(mut self, pages: Pages, holes: Holes, change: Change) -> Result<usize, Error> {
        G::SPACE.check_pages(pages)?;
        check_change::<F>(change)?;
        let census = self.again().census(pages, holes)?;
        if census.marks > 0 {
            self.edit(pages, |word| word, |word| change_mark::<F>(word, change));
        }
        if census.pages == 0 {
            return Ok(0);
        }
        match F::masks(change, true) {
            Some(masks) => self.edit(pages, |word| masks.apply(word), |word| word),
            None => self.edit(pages, |word| F::change(word, change, true), |word| word),
        }
        let stale = self.stale(pages);
        self.touch(change.scope(), stale);
        Ok(census.pages)
    }

    /// Applies `leaf` to each leaf of a range, all of whose leaves are whole, and `other` to each other entry.
    #[inline(always)]
    fn edit(&mut self, pages: Pages, leaf: impl Fn(F::Word) -> F::Word, other: impl Fn(F::Word) -> F::Word) {
        let change = |word| if F::is_leaf(word, true) { leaf(word) } else { other(word) };
        if self.is_by_block(pages) {
            return self.by_block(pages, |slots| slots.edit(change));
        }
        let _ = self.parts(pages, Visitor::Writer, |slots| {
            slots.edit(change);
            ControlFlow::Continue(())
        });
    }
}
