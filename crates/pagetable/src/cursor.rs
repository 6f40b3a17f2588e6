//! A cursor for tables of any kind.

use core::fmt;
use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr, Vpn};

use crate::{
    Change, Entry, Error, FlushAll, Holes, Leaf, Mark, Pinned, Rest, Retired, Right, Table, Uncovered, Writer,
};

/// A page of a table, from [`Writer::any_cursor`]: the counterpart of [`mpt::Cursor`](crate::mpt::Cursor) for tables that have no
/// cursor of their own. Each call walks from the root.
///
/// A cursor borrows the writer, so that no other code changes the table; its changes go into the writer's batch. Each change is
/// all or nothing. A page that another table lends ([`Table::borrowed`]) looks empty to a cursor.
pub struct AnyCursor<'w, 'n, T: Table<'n> + ?Sized> {
    table: &'w T,
    batch: &'w mut Retired<'n>,
    page: Vpn,
}

impl<'n, T: Table<'n> + ?Sized> Writer<'_, 'n, T> {
    /// Returns a cursor at `page`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`].
    #[inline]
    pub fn any_cursor(&mut self, page: Vpn) -> Result<AnyCursor<'_, 'n, T>, Error> {
        let (table, batch) = self.parts();
        table.space().check_pages(Pages::one(page))?;
        Ok(AnyCursor { table, batch, page })
    }
}

impl<'n, T: Table<'n> + ?Sized> AnyCursor<'_, 'n, T> {
    /// Returns the page that the cursor is at.
    #[inline]
    pub fn page(&self) -> Vpn {
        self.page
    }

    fn at(&self) -> VirtAddr {
        self.page.address(self.table.space().base())
    }

    /// Returns the right to change the table.
    fn right(&mut self) -> Right<'_, 'n> {
        // SAFETY: the cursor borrows the only writer and its batch, which is one of this table. The methods pass the right to the table.
        unsafe { Right::new(self.table.writer_flag(), self.batch) }
    }

    /// Checks that the page is not borrowed.
    #[inline]
    fn check_own(&self) -> Result<(), Error> {
        let borrowed = self.table.borrowed().is_some_and(|borrowed| borrowed.contains(self.page));
        if borrowed { Err(Error::Borrowed { at: self.at() }) } else { Ok(()) }
    }

    /// Returns the leaf that maps the page.
    #[inline]
    pub fn look(&self) -> Option<Leaf> {
        self.check_own().ok()?;
        // SAFETY: the cursor borrows the only writer of the page: no node on the way to it is unlinked during the lookup.
        self.table.lookup(unsafe { Pinned::by(self) }, self.at())
    }

    /// Returns what the entry for the page holds.
    #[inline]
    pub fn entry(&self) -> Entry {
        if self.check_own().is_err() {
            return Entry::Empty;
        }
        // SAFETY: the cursor borrows the only writer of the page: no node on the way to it is unlinked during the lookup.
        self.table.entry(unsafe { Pinned::by(self) }, self.at())
    }

    /// Stores a mark, or nothing, in the entry for the page; see [`Table::mark`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::mark`]; always [`Error::WrongMark`] in tables without marks.
    pub fn mark(&mut self, mark: Option<Mark>) -> Result<Entry, Error> {
        let at = self.at();
        self.table.mark(self.right(), at, mark)
    }

    /// Maps the page, whose mark has this payload, to `frame`; see [`Table::fill`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::fill`].
    pub fn fill(&mut self, payload: u64, frame: Pfn) -> Result<(), Error> {
        let at = self.at();
        self.table.fill(self.right(), at, payload, frame)
    }

    /// Maps the page, as one of the base size, to `frame`; see [`Table::map`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::map`].
    pub fn map(&mut self, frame: Pfn, attr: Attr) -> Result<(), Error> {
        let (page, base) = (Pages::one(self.page), self.table.space().base());
        self.table.map(self.right(), page, frame, base, attr)
    }

    /// Unmaps the whole leaf that maps the page, and returns it. It is dirty if hardware had noted that before the entry was
    /// emptied. The frame belongs to the caller only after the batch's shootdown
    /// has completed.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`] or [`Error::Borrowed`].
    pub fn unmap(&mut self) -> Result<Leaf, Error> {
        self.check_own()?;
        let leaf = self.look().ok_or(Error::NotMapped { at: self.at() })?;
        let (mut attr, mut rest) = (leaf.attr, Rest::of(self.table.space().pages_of(&leaf)));
        while let Some((_, taken)) = self.table.take_next(self.right(), &mut rest)? {
            if matches!(taken, Uncovered::Frames(run) if run.dirty) {
                attr |= Attr::DIRTY;
            }
        }
        Ok(Leaf { attr, ..leaf })
    }

    /// Changes the attributes of the whole leaf that maps the page, and returns the leaf as it was before.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`], [`Error::WrongAttr`] or [`Error::Borrowed`].
    pub fn protect(&mut self, change: Change) -> Result<Leaf, Error> {
        self.check_own()?;
        let leaf = self.look().ok_or(Error::NotMapped { at: self.at() })?;
        let pages = self.table.space().pages_of(&leaf);
        self.table.protect(self.right(), pages, Holes::Refuse, change)?;
        Ok(leaf)
    }

    /// Replaces the leaf that maps the page; see [`Table::replace`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::replace`].
    ///
    /// # Safety
    ///
    /// As for [`Writer::replace_breaking`].
    pub unsafe fn replace_breaking(
        &mut self,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<Leaf, Error> {
        let at = self.at();
        // SAFETY: by this function's contract nothing that runs until the call returns needs the page.
        let flush_all_cpus = unsafe { FlushAll::breaking(flush_all_cpus) };
        self.table.replace(self.right(), at, frame, attr, flush_all_cpus)
    }

    /// Makes every leaf of `pages` one of size `to`; see [`Table::resize`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::resize`].
    ///
    /// # Safety
    ///
    /// As for [`Writer::resize_breaking`].
    pub unsafe fn resize_breaking(
        &mut self,
        pages: Pages,
        to: PageSize,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<(), Error> {
        // SAFETY: by this function's contract nothing that runs until the call returns needs the pages.
        let flush_all_cpus = unsafe { FlushAll::breaking(flush_all_cpus) };
        self.table.resize(self.right(), pages, to, flush_all_cpus)
    }

    /// Goes to `page`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`]; the cursor has not moved then.
    #[inline]
    pub fn seek(&mut self, page: Vpn) -> Result<(), Error> {
        self.table.space().check_pages(Pages::one(page))?;
        self.page = page;
        Ok(())
    }

    /// Goes to the next page, and tells whether there is one, as [`mpt::Cursor::step`](crate::mpt::Cursor::step) does.
    #[inline]
    pub fn step(&mut self) -> bool {
        self.page.checked_add(1).is_some_and(|next| self.seek(next).is_ok())
    }

    /// Goes to the first mapped page after the leaf that maps this page (after this page, if it is not mapped) and up to `last`,
    /// and returns the leaf that maps the new page. If there is none, the cursor does not move.
    ///
    /// Costs a visit of all leaves up to `last`, because [`Table::for_each`] promises no order.
    pub fn next_mapped(&mut self, last: Vpn) -> Option<Leaf> {
        let space = self.table.space();
        let behind = self.look().map_or(self.page, |leaf| space.pages_of(&leaf).last());
        let pages = Pages::new(behind.checked_add(1)?, last)?;
        let mut next: Option<Leaf> = None;
        for own in without(pages, self.table.borrowed()).into_iter().flatten() {
            // SAFETY: the cursor borrows the only writer of these pages: no node on the way to them is unlinked during the visit.
            let _ = self.table.for_each(unsafe { Pinned::by(self) }, own, &mut |leaf| {
                next = next.filter(|next| next.at < leaf.at).or(Some(leaf));
                ControlFlow::Continue(())
            });
        }
        let next = next?;
        self.page = next.at.vpn(space.base());
        Some(next)
    }

    /// Returns a reference to the obligation for the writer's changes so far.
    #[inline]
    pub fn pending(&self) -> &Retired<'n> {
        self.batch
    }

    /// Adds a flush to the obligation for the changes so far: one that the caller needs, and the table does not.
    pub fn merge(&mut self, flush: &Flush) {
        self.batch.merge(flush);
    }

    /// Frees the nodes of the obligation for the changes so far.
    ///
    /// # Safety
    ///
    /// As for [`Retired::reclaim`].
    pub unsafe fn complete(&mut self) {
        // SAFETY: the contract of `Retired::reclaim` is this function's.
        unsafe { self.batch.complete() };
    }

    /// Returns the obligation for the changes so far: later changes go into another batch.
    pub fn take(&mut self) -> Retired<'n> {
        core::mem::replace(self.batch, self.table.batch())
    }
}

impl<'n, T: Table<'n> + ?Sized> fmt::Debug for AnyCursor<'_, 'n, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyCursor")
            .field("page", &self.page)
            .field("leaf", &self.look())
            .finish_non_exhaustive()
    }
}

/// Returns the parts of `pages` before and after `hole`.
pub(crate) fn without(pages: Pages, hole: Option<Pages>) -> [Option<Pages>; 2] {
    let Some(hole) = hole.and_then(|hole| hole.intersect(pages)) else { return [Some(pages), None] };
    [
        hole.first().checked_sub(1).and_then(|last| Pages::new(pages.first(), last)),
        hole.last().checked_add(1).and_then(|first| Pages::new(first, pages.last())),
    ]
}
