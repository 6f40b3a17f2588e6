//! Protection of a page or a range: PTEs are changed in place.

use core::ops::ControlFlow;

use tlbkit_addr::Pages;

use super::part::Part;
use super::visit::Visitor;
use super::{Hashed, Sizes};
use crate::format::{Format, change_mark, check_change};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Change, Error, Geometry, Holes, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Implements [`Table::protect`](crate::Table::protect).
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    #[inline]
    pub(super) unsafe fn protect_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        let page = pages.first();
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            if page == pages.last() && G::SPACE.has(page) {
                check_change::<F>(change)?;
                if let Some((spot, place)) = self.find_one(page) {
                    self.nodes.edit(spot.node, place, 1, |word| F::change(word, change, true));
                    self.settle_pairs(spot, 0, Self::block(0, page.address(G::BASE)));
                    batch.touch(change.scope(), pages);
                    return Ok(1);
                }
            }
            self.protect_range(batch, pages, holes, change)
        }
    }

    /// Protects a range, whatever is in it.
    ///
    /// # Safety
    ///
    /// As for [`protect_pages`](Self::protect_pages).
    #[inline(never)]
    unsafe fn protect_range(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        G::SPACE.check_pages(pages)?;
        check_change::<F>(change)?;
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            let census = self.census(pages, holes, true)?;
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
            batch.touch(change.scope(), self.stale(pages));
            Ok(census.pages)
        }
    }

    /// Applies `change` to each mark of a range.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[cold]
    unsafe fn change_marks(&self, pages: Pages, change: Change) {
        // SAFETY: by this function's contract the caller is the only writer; the slots of a part are in its bucket.
        let _ = unsafe {
            self.parts(pages, Visitor::Writer, |part| {
                self.each_taken(part, |slot, _, entry| {
                    if entry.mark().is_some() {
                        let place = Self::place(part.spot, part.block, slot);
                        let old = self.nodes.read(part.spot.node, place);
                        self.nodes.store_relaxed(part.spot.node, place, change_mark::<F>(old, change));
                    }
                    ControlFlow::Continue(())
                })
            })
        };
    }

    /// Applies `change` to each leaf of a range.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - every leaf of `pages` is whole.
    #[inline(always)]
    unsafe fn protect_parts(&self, pages: Pages, change: impl Fn(F::Word) -> F::Word + Copy) {
        if self.is_by_block(pages) {
            let (first, last) = Self::blocks_of(0, pages);
            for block in first..last + 1 {
                // SAFETY: by this function's contract the caller is the only writer.
                unsafe {
                    let Some(spot) = self.seek(self.head(block), Self::tag_of(0, block)) else { continue };
                    if Self::SLOTS == 1 || block > first && block < last {
                        self.protect_part(Self::whole(spot, 0, block), change);
                    } else if let Some(part) = Self::part(spot, 0, block, pages) {
                        self.protect_part(part, change);
                    }
                }
            }
            return;
        }
        // SAFETY: by this function's contract the caller is the only writer.
        let _ = unsafe {
            self.parts(pages, Visitor::Writer, |part| {
                self.protect_part(part, change);
                ControlFlow::Continue(())
            })
        };
    }

    /// Applies `change` to each leaf of a part of a bucket.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `part` is a part of a bucket of the table.
    #[inline(always)]
    unsafe fn protect_part(&self, part: Part, change: impl Fn(F::Word) -> F::Word) {
        let part = Self::known(part);
        let change = |word| if F::is_leaf(word, true) { change(word) } else { word };
        // SAFETY: by this function's contract the caller is the only writer; the slots of a part are in its bucket.
        unsafe {
            if Self::UNITS == 1 {
                let first = Self::place(part.spot, part.block, part.slot);
                self.nodes.edit(part.spot.node, first, part.slots, change);
            } else {
                for slot in part.slot..part.slot + part.slots {
                    self.nodes.edit(part.spot.node, Self::place(part.spot, part.block, slot), 1, &change);
                }
            }
            self.settle_pairs(part.spot, part.grain, part.block);
        }
    }
}
