//! The right to write a table, as a value: what a change of a [`Table`](crate::Table) takes.
//!
//! ```text
//!   Writer, Local --------------- Right::new ----> Right ---- Right::batch ----> &mut Retired
//!   the table's only writer          unsafe          |           safe
//!                                                    +-- the change of this table, and of no other
//! ```

use core::{fmt, ptr};

use tlbkit_addr::{Flush, Pages};

use crate::hint::seldom;
use crate::{Error, Pending, Retired, WriterFlag};

/// A part of a table that one of several writers may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The pages.
    pub pages: Pages,
    /// How many levels the node that covers them, and that the writer may store in, is above the last one.
    pub above: usize,
}

impl Part {
    /// Tells whether the part has all of `pages`.
    #[inline]
    pub const fn covers(&self, pages: Pages) -> bool {
        self.pages.first().get() <= pages.first().get() && pages.last().get() <= self.pages.last().get()
    }
}

/// The right to change one table, and the batch that takes over what a change unlinks.
///
/// Only the table's writer makes one: [`Writer`](crate::Writer), or [`Local`](crate::Local); a cursor borrows its writer's. A
/// [`Table`](crate::Table) that is given a right asks by [`batch`](Self::batch) whether it is the right to change *that* table.
pub struct Right<'w, 'n> {
    flag: &'w WriterFlag,
    batch: &'w mut Retired<'n>,
}

impl<'w, 'n> Right<'w, 'n> {
    /// Returns the right to change the table with this flag.
    ///
    /// # Safety
    ///
    /// During `'w` the caller is the only writer of the table whose [flag](crate::Table::writer_flag) this is, or of the batch's part of it
    /// (which [`Writer`](crate::Writer) alone sets). The batch came from that table. The caller passes the right to a method of [`Table`](crate::Table) and to no other code.
    #[inline(always)]
    pub const unsafe fn new(flag: &'w WriterFlag, batch: &'w mut Retired<'n>) -> Self {
        Self { flag, batch }
    }

    /// Returns the same right for a shorter time, for a change that consists of several.
    #[inline(always)]
    pub const fn reborrow(&mut self) -> Right<'_, 'n> {
        Right { flag: self.flag, batch: self.batch }
    }

    /// Returns the obligation for the changes so far.
    #[inline(always)]
    pub(crate) fn pending(&mut self) -> Pending<'_, 'n> {
        Pending::of(self.batch)
    }

    /// Returns the batch, to the table with this flag. The caller is for `'w` the only writer of the table, or of the batch's
    /// [part](Retired::part).
    ///
    /// Costs a comparison, and none where the compiler inlines the change into a call by the table's [`Writer`](crate::Writer).
    ///
    /// # Errors
    ///
    /// [`Error::OtherTable`] if this is the right to change another table.
    #[inline(always)]
    pub fn batch(self, flag: &WriterFlag) -> Result<&'w mut Retired<'n>, Error> {
        if ptr::eq(self.flag, flag) {
            return Ok(self.batch);
        }
        seldom();
        Err(Error::OtherTable)
    }
}

impl fmt::Debug for Right<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Right").field("batch", &self.batch).finish_non_exhaustive()
    }
}

/// The function that has a flush executed on all CPUs before it returns, and whether entries may be empty while it does so: what
/// [`Table::replace`](crate::Table::replace) and [`Table::resize`](crate::Table::resize) take.
pub struct FlushAll<'f> {
    flush: &'f mut dyn FnMut(&Flush),
    may_break: bool,
}

impl FlushAll<'_> {
    /// Returns the function for a change in place: every page of the range is mapped at every moment. A change that the hardware does
    /// not allow in place returns [`Error::Breaks`].
    ///
    /// A [replacement](crate::Table::replace) in place does not call the function.
    #[inline(always)]
    pub fn in_place<'f>(flush: &'f mut dyn FnMut(&Flush)) -> FlushAll<'f> {
        FlushAll { flush, may_break: false }
    }

    /// Returns the function for a change that may empty entries until the function has returned (break-before-make). It does so
    /// where the table [`breaks`](crate::Table::breaks) or [`breaks_frames`](crate::Table::breaks_frames), and nowhere else.
    ///
    /// A user's access to one of the pages then faults, and the fault handler finds nothing mapped: it must wait for the writer
    /// before it treats the fault as an error.
    ///
    /// # Safety
    ///
    /// If the table breaks: nothing that runs on any CPU until the change returns needs the pages of its range to be mapped. They
    /// hold no code, stack or data of the kernel, nothing that `flush` or a fault or interrupt handler touches, and no node of the
    /// table. Pages that only user mode uses are fine.
    #[inline(always)]
    pub unsafe fn breaking<'f>(flush: &'f mut dyn FnMut(&Flush)) -> FlushAll<'f> {
        FlushAll { flush, may_break: true }
    }
}

impl<'f> FlushAll<'f> {
    /// Returns the function, to a change that empties entries if `breaks` is set.
    ///
    /// # Errors
    ///
    /// [`Error::Breaks`] if the change would empty entries and must not.
    #[inline(always)]
    pub fn of(self, breaks: bool) -> Result<&'f mut dyn FnMut(&Flush), Error> {
        if breaks && !self.may_break { Err(Error::Breaks) } else { Ok(self.flush) }
    }
}

impl fmt::Debug for FlushAll<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlushAll").field("may_break", &self.may_break).finish_non_exhaustive()
    }
}
