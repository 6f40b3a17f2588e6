//! Protection of a range: PTEs are changed where they are, leaf by leaf.

use tlbkit_addr::Pages;

use super::node::{View, Writing};
use super::shape::Shape;
use super::visit::{Covering, Leaves, Span};
use crate::format::{Format, change_mark, check_change};
use crate::{Change, Error, Holes};

impl<T: Shape> Writing<'_, '_, T> {
    /// See [`Table::protect`](crate::Table::protect).
    pub(super) fn protect(mut self, pages: Pages, holes: Holes, change: Change) -> Result<usize, Error> {
        T::SPACE.check_pages(pages)?;
        check_change::<T::F>(change)?;
        if pages.len() == 1 && self.protect_one(pages, change) {
            return Ok(1);
        }
        let (census, span) = (self.census(pages, holes)?, T::span(pages));
        if census.marks > 0 {
            self.edit_span(span, |word| word, |word| change_mark::<T::F>(word, change));
        }
        if census.pages == 0 {
            return Ok(0);
        }
        match T::F::masks(change, true) {
            Some(masks) => self.edit_span(span, |word| masks.apply(word), |word| word),
            None => self.edit_span(span, |word| T::F::change(word, change, true), |word| word),
        }
        let stale = self.stale(pages);
        self.touch(change.scope(), stale);
        Ok(census.pages)
    }
}

impl<T: Shape> View<'_, T> {
    /// Applies `leaf` to each leaf entry of a span, and `other` to each other entry. A function of its own, to keep its path off
    /// the caller's stack.
    #[inline(never)]
    fn edit_span(self, span: Span, leaf: impl Fn(T::W) -> T::W, other: impl Fn(T::W) -> T::W) {
        let mut leaves = Leaves::new(self, span);
        leaves.enter(self.root());
        while let Some(Covering { leaf: node, part, .. }) = leaves.next() {
            node.edit(part, |word| if T::F::is_leaf(word, true) { leaf(word) } else { other(word) });
        }
    }
}
