//! Protection of a page or a range: PTEs are changed in place.

use core::ops::ControlFlow;

use tlbkit_addr::Pages;

use super::Sizes;
use super::node::{Slots, Writing};
use super::shape::Shape as _;
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
            if let Some(bucket) = self.find_one(page) {
                let at = page.address(G::BASE);
                bucket.page(at).edit(|word| F::change(word, change, true));
                bucket.settle_pairs(0, Self::block(0, at));
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
            self.change_marks(pages, change);
        }
        if census.pages == 0 {
            return Ok(0);
        }
        match F::masks(change, true) {
            Some(masks) => self.protect_parts(pages, move |word| masks.apply(word)),
            None => self.protect_parts(pages, move |word| F::change(word, change, true)),
        }
        let stale = self.stale(pages);
        self.touch(change.scope(), stale);
        Ok(census.pages)
    }

    /// Applies `change` to each mark of a range.
    #[cold]
    fn change_marks(&mut self, pages: Pages, change: Change) {
        let _ = self.parts(pages, Visitor::Writer, |slots| {
            slots.each_taken(|slot, _, entry| {
                if entry.mark().is_some() {
                    let place = slots.place(slot);
                    place.store_relaxed(change_mark::<F>(place.read(), change));
                }
                ControlFlow::Continue(())
            })
        });
    }

    /// Applies `change` to each leaf of a range, all of whose leaves are whole.
    #[inline(always)]
    fn protect_parts(&mut self, pages: Pages, change: impl Fn(F::Word) -> F::Word + Copy) {
        if self.is_by_block(pages) {
            return self.by_block(pages, |slots| slots.protect(change));
        }
        let _ = self.parts(pages, Visitor::Writer, |slots| {
            slots.protect(change);
            ControlFlow::Continue(())
        });
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Slots<'_, 'n, G, F, N, S> {
    /// Applies `change` to each leaf.
    #[inline(always)]
    fn protect(self, change: impl Fn(F::Word) -> F::Word) {
        self.edit(|word| if F::is_leaf(word, true) { change(word) } else { word });
    }
}
