//! Changes of the rights of pages, and of their other attributes.

use tlbkit_addr::{Attr, Pages};
use tlbkit_pagetable::format::check_change;
use tlbkit_pagetable::{Change, Error, Holes};

use super::{Edit, after};
use crate::counted::counted;
use crate::rights::change;
use crate::settle::needs_force;
use crate::storage::Table;
use crate::table::{PART, SpaceTable as _};
use crate::{Kernel, Machine, Mapping, PagesOf};

/// Tells whether a change clears [`Attr::DIRTY`].
#[inline(always)]
pub(crate) const fn clears_dirty(change: Change) -> bool {
    change.clear.difference(change.set).contains(Attr::DIRTY)
}

impl<K: Kernel, const CPUS: usize> Edit<'_, K, CPUS> {
    /// Changes the attributes of every page of `pages` that is mapped, and returns how many base pages are mapped. Larger pages
    /// that extend beyond the range are split first. The rights of a page that is [out](Self::page_out) change, too: it has them when
    /// it comes back. It is not counted.
    ///
    /// [`set_rights`](Self::set_rights) does what `mprotect` needs. In an address space that [forks](crate::AddressSpace::fork), a
    /// change that clears [`Attr::WRITE`] alone leaves a page copy-on-write, and one that sets it lets the page write to a frame that
    /// others map.
    ///
    /// # Errors
    ///
    /// As [`unmap`](Self::unmap), and [`Error::WrongAttr`].
    #[inline(never)]
    pub fn protect(&mut self, pages: PagesOf<K>, change: Change) -> Result<usize, Error> {
        self.protect_range(counted::<K>(pages), change)
    }

    /// Does what [`protect`](Self::protect) does, if no page of `pages` is a hole: each one is mapped or marked. (A mark of a guard
    /// page has no rights, and stays as it is.)
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`] with the first hole; otherwise as [`protect`](Self::protect). Nothing has changed then.
    pub fn protect_whole(&mut self, pages: PagesOf<K>, change: Change) -> Result<usize, Error> {
        self.check_whole(counted::<K>(pages))?;
        self.protect(pages, change)
    }

    fn protect_range(&mut self, pages: Pages, change: Change) -> Result<usize, Error> {
        match self.protect_entries(pages, change) {
            Err(Error::Partial { .. }) => {}
            done => return done,
        }
        self.split_before(pages, change)?;
        self.protect_entries(pages, change)
    }

    /// Splits larger pages that extend beyond `pages`, unless a change of `pages` fails anyway.
    fn split_before(&mut self, pages: Pages, change: Change) -> Result<(), Error> {
        self.space.check_global(change.set, pages)?;
        self.space.check_own(pages)?;
        check_change::<<K::Machine as Machine>::Format>(change)?;
        self.split_ends(pages).map(drop)
    }

    /// Changes the attributes of pages which no larger page extends beyond. Otherwise returns [`Error::Partial`].
    #[inline(never)]
    fn protect_entries(&mut self, pages: Pages, change: Change) -> Result<usize, Error> {
        self.space.check_global(change.set, pages)?;
        let mapped = self.writer.protect(pages, Holes::Skip, change)?;
        self.cleared |= clears_dirty(change);
        if CPUS > 1 && needs_force(change) {
            let is_users = self.space.is_kernels() || Table::<K>::are_users(&mut self.writer, pages);
            let (mut changes, writer) = self.parts();
            changes.put_in_force(writer.pending(), pages, if is_users { Attr::USER } else { Attr::empty() });
        }
        Ok(mapped)
    }

    /// Gives every page of `pages` that is mapped the access rights `rights`, of [`Attr::READ`], [`Attr::WRITE`] and
    /// [`Attr::EXEC`], and no others: what `mprotect` does, whatever rights the pages had before. Without rights the pages are
    /// closed (`PROT_NONE`), and keep their frames. Returns how many base pages are mapped.
    ///
    /// The right to write includes the right to read. Where the machine's entries cannot refuse one right without refusing all, it
    /// comes with the others: the right to read on x86-64.
    ///
    /// # Errors
    ///
    /// As [`protect`](Self::protect); [`Error::WrongAttr`] for other attributes, and where the machine's entries cannot express
    /// closed pages or [`Attr::COPY_ON_WRITE`].
    pub fn set_rights(&mut self, pages: PagesOf<K>, mapping: Mapping, rights: Attr) -> Result<usize, Error> {
        self.protect(pages, change::<<K::Machine as Machine>::Format>(mapping, rights)?)
    }

    /// Does what [`set_rights`](Self::set_rights) does, if no page of `pages` is a hole: as `mprotect` does, which returns `ENOMEM`.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`] with the first page that is neither mapped nor marked; otherwise as [`set_rights`](Self::set_rights).
    /// Nothing has changed then.
    pub fn set_rights_whole(
        &mut self,
        pages: PagesOf<K>,
        mapping: Mapping,
        rights: Attr,
    ) -> Result<usize, Error> {
        self.protect_whole(pages, change::<<K::Machine as Machine>::Format>(mapping, rights)?)
    }

    /// Changes the attributes of the first part of `rest`, which has a bounded number of entries. Returns how many base pages of it are
    /// mapped; `rest` becomes the pages after it.
    pub(crate) fn protect_part(&mut self, rest: &mut Option<Pages>, change: Change) -> Result<usize, Error> {
        let Some(pages) = rest.take() else { return Ok(0) };
        if pages.len() <= PART {
            return self.protect_range(pages, change);
        }
        self.split_before(pages, change)?;
        let part = self.part(pages);
        *rest = after(pages, part.len());
        self.protect_entries(part, change)
    }
}
