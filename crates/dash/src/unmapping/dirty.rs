//! The dirty bit of a page that several spaces share.

use tlbkit_addr::{Asid, Attr, Vpn};

use super::{Dash, DashError, Tables};
use crate::tolerance::Entry;

impl<T: Tables, M, const PENDING: usize, const SHARES: usize> Dash<T, M, PENDING, SHARES> {
    /// `is_dirty(virt_addr)`: tells whether any space that shares the page has written to it.
    ///
    /// # Errors
    ///
    /// [`DashError::NotMapped`].
    pub fn is_dirty(&self, space: Asid, at: Vpn) -> Result<bool, DashError> {
        Ok(self.attr_of_all(space, at)?.contains(Attr::DIRTY))
    }

    /// Returns the union of the attributes that a page has in all spaces that share it.
    fn attr_of_all(&self, space: Asid, at: Vpn) -> Result<Attr, DashError> {
        let entries = self.spaces(space, at).filter_map(|of| self.tables.entry(of, at));
        entries.map(|entry| entry.attr).reduce(Attr::union).ok_or(DashError::NotMapped)
    }

    /// `clear_dirty(virt_addr)`, in all spaces that share the page.
    ///
    /// # Errors
    ///
    /// [`DashError::NotMapped`]; [`DashError::Writable`]; [`DashError::BeingUnmapped`] while a TLB may still hold a writable
    /// entry of the page.
    pub fn clear_dirty(&mut self, space: Asid, at: Vpn) -> Result<(), DashError> {
        if self.attr_of_all(space, at)?.contains(Attr::WRITE) {
            return Err(DashError::Writable);
        }
        if let Some(pending) = self.pending(space, at) {
            return Err(DashError::BeingUnmapped(pending.ticket));
        }
        for of in self.spaces(space, at) {
            if let Some(entry) = self.tables.entry(of, at) {
                let clean = Entry { attr: entry.attr.difference(Attr::DIRTY), ..entry };
                self.tables.exchange(of, at, Some(clean));
            }
        }
        Ok(())
    }
}
