//! Cursors: places in a table, at which a writer makes one change after another.

use core::fmt;
use core::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};

use crate::{
    Change, Entry, Error, FlushAll, Holes, Leaf, Mark, Pending, Pinned, Rest, Right, Table, Uncovered, Writer,
};

/// A page of a table, at which a writer makes changes: [`mpt::Cursor`](crate::mpt::Cursor) remembers the node of the page, and
/// [`AnyCursor`] is for tables of any kind.
///
/// A cursor borrows the writer, so that no other code changes the table; its changes go into the writer's batch. Each change is
/// all or nothing.
///
/// A page that another table lends ([`Table::borrowed`]) looks empty to a cursor, because the lender may free the nodes that map it;
/// a change returns [`Error::Borrowed`]. [`Table::lookup`] finds what is mapped there.
pub trait PageCursor<'n>: fmt::Debug {
    /// Returns the page that the cursor is at.
    fn page(&self) -> Vpn;

    /// Returns the leaf that maps the page.
    fn look(&self) -> Option<Leaf>;

    /// Returns what the entry for the page holds.
    fn entry(&self) -> Entry;

    /// Stores a mark, or nothing, in the entry for the page, and returns what the entry held before; see [`Table::mark`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::mark`]; always [`Error::WrongMark`] in tables without marks.
    fn mark(&mut self, mark: Option<Mark>) -> Result<Entry, Error>;

    /// Maps the page, whose mark has this payload, to `frame`; see [`Table::fill`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::fill`].
    fn fill(&mut self, payload: u64, frame: Pfn) -> Result<(), Error>;

    /// Maps the page, as one of the base size, to `frame`; see [`Table::map`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::map`].
    fn map(&mut self, frame: Pfn, attr: Attr) -> Result<(), Error>;

    /// Unmaps the whole leaf that maps the page, and returns it with the status bits that hardware set before the store. The
    /// frame belongs to the caller only after the batch's shootdown has completed.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`] or [`Error::Borrowed`].
    fn unmap(&mut self) -> Result<Leaf, Error>;

    /// Changes the attributes of the whole leaf that maps the page, and returns the leaf as it was before.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`], [`Error::WrongAttr`] or [`Error::Borrowed`].
    fn protect(&mut self, change: Change) -> Result<Leaf, Error>;

    /// Replaces the leaf that maps the page, and returns the old leaf; see [`Table::replace`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::replace`].
    fn replace(&mut self, frame: Pfn, attr: Attr, flush_all: FlushAll<'_>) -> Result<Leaf, Error>;

    /// Makes every leaf of `pages` one of size `to`; see [`Table::resize`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::resize`].
    fn resize(&mut self, pages: Pages, to: PageSize, flush_all: FlushAll<'_>) -> Result<(), Error>;

    /// Goes to `page`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`]; the cursor has not moved then.
    fn seek(&mut self, page: Vpn) -> Result<(), Error>;

    /// Goes to the next page, and tells whether there is one. At the last page of the space or of its lower half, returns `false`
    /// and does not move.
    #[inline(always)]
    fn step(&mut self) -> bool {
        self.page().checked_add(1).is_some_and(|next| self.seek(next).is_ok())
    }

    /// Goes to the first mapped page after the leaf that maps this page (after this page, if it is not mapped) and up to `last`,
    /// and returns the leaf that maps the new page. If there is none, the cursor does not move. In a space of two halves, the
    /// upper half follows the lower one.
    fn next_mapped(&mut self, last: Vpn) -> Option<Leaf>;

    /// Returns the obligation for the writer's changes so far, which remains the writer's.
    fn pending(&mut self) -> Pending<'_, 'n>;
}

/// A cursor for tables of any kind, from [`Writer::any_cursor`]. Each call walks from the root.
pub struct AnyCursor<'w, 'n, T: Table<'n> + ?Sized> {
    table: &'w T,
    right: Right<'w, 'n>,
    page: Vpn,
}

impl<'n, T: Table<'n> + ?Sized> Writer<'_, 'n, T> {
    /// Returns a cursor at `page`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`]; [`Error::OutsideRight`] if this is the writer of a part of the table.
    #[inline]
    pub fn any_cursor(&mut self, page: Vpn) -> Result<AnyCursor<'_, 'n, T>, Error> {
        let table = self.table();
        table.space().check_pages(Pages::one(page))?;
        if !self.is_whole() {
            return Err(Error::OutsideRight { at: page.address(table.space().base()) });
        }
        Ok(AnyCursor { table, right: self.right(), page })
    }
}

impl<'n, T: Table<'n> + ?Sized> AnyCursor<'_, 'n, T> {
    fn at(&self) -> VirtAddr {
        self.page.address(self.table.space().base())
    }

    /// Checks that the page is not borrowed.
    #[inline]
    fn check_own(&self) -> Result<(), Error> {
        let borrowed = self.table.borrowed().is_some_and(|borrowed| borrowed.contains(self.page));
        if borrowed { Err(Error::Borrowed { at: self.at() }) } else { Ok(()) }
    }

    /// Returns the leaf that maps the page.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`] or [`Error::Borrowed`].
    fn own_leaf(&self) -> Result<Leaf, Error> {
        self.check_own()?;
        self.look().ok_or(Error::NotMapped { at: self.at() })
    }
}

impl<'n, T: Table<'n> + ?Sized> PageCursor<'n> for AnyCursor<'_, 'n, T> {
    #[inline]
    fn page(&self) -> Vpn {
        self.page
    }

    #[inline]
    fn look(&self) -> Option<Leaf> {
        self.check_own().ok()?;
        // SAFETY: the cursor borrows the only writer of the page: no node on the way to it is unlinked during the lookup.
        self.table.lookup(unsafe { Pinned::by(self) }, self.at())
    }

    #[inline]
    fn entry(&self) -> Entry {
        if self.check_own().is_err() {
            return Entry::Empty;
        }
        // SAFETY: the cursor borrows the only writer of the page: no node on the way to it is unlinked during the lookup.
        self.table.entry(unsafe { Pinned::by(self) }, self.at())
    }

    fn mark(&mut self, mark: Option<Mark>) -> Result<Entry, Error> {
        let at = self.at();
        self.table.mark(self.right.reborrow(), at, mark)
    }

    fn fill(&mut self, payload: u64, frame: Pfn) -> Result<(), Error> {
        let at = self.at();
        self.table.fill(self.right.reborrow(), at, payload, frame)
    }

    fn map(&mut self, frame: Pfn, attr: Attr) -> Result<(), Error> {
        let base = self.table.space().base();
        self.table.map(self.right.reborrow(), Pages::one(self.page), frame, base, attr)
    }

    fn unmap(&mut self) -> Result<Leaf, Error> {
        let leaf = self.own_leaf()?;
        let (mut attr, mut rest) = (leaf.attr, Rest::of(self.table.space().pages_of(&leaf)));
        while let Some((_, taken)) = self.table.take_next(self.right.reborrow(), &mut rest)? {
            if matches!(taken, Uncovered::Frames(run) if run.dirty) {
                attr |= Attr::DIRTY;
            }
        }
        Ok(Leaf { attr, ..leaf })
    }

    fn protect(&mut self, change: Change) -> Result<Leaf, Error> {
        let leaf = self.own_leaf()?;
        let pages = self.table.space().pages_of(&leaf);
        self.table.protect(self.right.reborrow(), pages, Holes::Refuse, change)?;
        Ok(leaf)
    }

    fn replace(&mut self, frame: Pfn, attr: Attr, flush_all: FlushAll<'_>) -> Result<Leaf, Error> {
        let at = self.at();
        self.table.replace(self.right.reborrow(), at, frame, attr, flush_all)
    }

    fn resize(&mut self, pages: Pages, to: PageSize, flush_all: FlushAll<'_>) -> Result<(), Error> {
        self.table.resize(self.right.reborrow(), pages, to, flush_all)
    }

    #[inline]
    fn seek(&mut self, page: Vpn) -> Result<(), Error> {
        self.table.space().check_pages(Pages::one(page))?;
        self.page = page;
        Ok(())
    }

    /// Costs a visit of all leaves up to `last`, because [`Table::for_each`] promises no order.
    fn next_mapped(&mut self, last: Vpn) -> Option<Leaf> {
        let space = self.table.space();
        let behind = self.look().map_or(self.page, |leaf| space.pages_of(&leaf).last());
        let pages = Pages::new(behind.checked_add(1)?, last)?;
        let mut next: Option<Leaf> = None;
        let own = self.table.borrowed().map(|borrowed| borrowed.gaps(pages));
        let whole = if own.is_none() { Some(pages) } else { None };
        for own in own.into_iter().flatten().chain(whole) {
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

    #[inline]
    fn pending(&mut self) -> Pending<'_, 'n> {
        self.right.pending()
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
