//! Holders of an obligation: the flush that changes of a table need, and the nodes to free after it.

use tlbkit_addr::Flush;
use tlbkit_pagetable::{Retired, Table, Writer};

/// The holder of an obligation: a writer, or a cursor that has borrowed one.
pub trait HasRetired {
    /// Returns a reference to the obligation, if a change has made one.
    fn pending(&self) -> Option<&Retired<'static>>;

    /// Frees the nodes of the obligation, which stays where it is.
    ///
    /// # Safety
    ///
    /// The contract of [`Retired::reclaim`].
    unsafe fn complete(&mut self);

    /// Takes the obligation: later changes go into another one.
    fn take(&mut self) -> Retired<'static>;

    /// Adds a flush to the obligation.
    fn merge(&mut self, flush: &Flush);
}

impl<T: Table<'static>> HasRetired for Writer<'_, 'static, T> {
    #[inline(always)]
    fn pending(&self) -> Option<&Retired<'static>> {
        self.pending()
    }

    #[inline(always)]
    unsafe fn complete(&mut self) {
        // SAFETY: the contract of `HasRetired::complete` is that of `Retired::reclaim`, as is that of `Writer::complete`.
        unsafe { self.complete() };
    }

    fn take(&mut self) -> Retired<'static> {
        self.take()
    }

    fn merge(&mut self, flush: &Flush) {
        self.merge(flush);
    }
}
