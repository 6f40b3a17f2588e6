//! The interface between an address space and its page table, and the kinds of tables that implement it.

use core::fmt;

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, PhysAddr, Vpn};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::mpt::{self, Mpt};
use tlbkit_pagetable::nodes::{Direct, Nodes, Pieces};
use tlbkit_pagetable::{
    AnyCursor, Change, Entry, Error, Leaf, Mark, Radix, Retired, Shared, Table, Turn, Word, Writer,
};

use crate::Kernel;
use crate::has_retired::HasRetired;
use crate::source::Source;

/// The kind of page table of a [`Machine`](crate::Machine)'s address spaces: [`MultiLevel`], or, where software loads the TLB,
/// [`Guarded`](crate::Guarded). No other type can implement this trait.
pub trait TableKind<G: Radix, F: Format>: Sealed + fmt::Debug + 'static {
    /// The node storage, which takes its memory from the kernel's frames.
    #[doc(hidden)]
    type Storage<K: Kernel>: Nodes<Word = F::Word, Mode = Shared> + Sync;
    /// The table.
    #[doc(hidden)]
    type Table<K: Kernel>: SpaceTable<G, F, Self::Storage<K>>;

    /// Returns the node storage.
    #[doc(hidden)]
    fn storage<K: Kernel>(frames: &'static Frames<F, K>) -> &'static Self::Storage<K>;
}

/// Is implemented in this crate alone.
pub trait Sealed {}

/// A kernel's frames as node storage: whole, or cut into small nodes.
pub(crate) type Frames<F, K> = Pieces<<F as Format>::Word, Source<K>>;

/// The table of an address space.
pub trait SpaceTable<G: Radix, F: Format, N: Nodes<Word = F::Word>>:
    Table<'static> + Sized + 'static
{
    /// The table's cursor.
    type Walk<'c>: Walk;

    /// Returns an empty table, which borrows the part that `lender` lends.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    fn new(nodes: &'static N, lender: Option<&'static Self>) -> Result<Self, Error>;

    /// Returns the physical address for the root register. The table itself is at the physical address `at`.
    fn root(&self, at: PhysAddr) -> PhysAddr;

    /// Whether one store can change a page.
    const SLOTS: bool;

    /// Returns the slot of a page, if one store can change the page.
    fn slot<'w>(turn: &'w mut Turn<'_, 'static, Self>, page: Vpn) -> Option<mpt::Slot<'w, 'static, G, F, N>>;

    /// Returns a cursor at a page.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`].
    fn cursor<'c>(writer: &'c mut Writer<'_, 'static, Self>, page: Vpn) -> Result<Self::Walk<'c>, Error>;

    /// Copies the user's mappings of this table into `child`, and clears the right to write in both. The child maps nothing but
    /// copies of supervisor pages. A frame is [shared](Kernel::share) before the child maps it: if the copy unwinds, the child
    /// releases only frames that were shared.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]: the frames that the child does not map are no longer shared then.
    fn copy_on_write<K: Kernel>(
        &self,
        writer: &mut Writer<'_, 'static, Self>,
        child: &mut Writer<'_, 'static, Self>,
        kernel: &K,
    ) -> Result<(), Error>;
}

/// Tells whether a page with these attributes is a user's. In a format without a bit for [`Attr::USER`] every page is.
pub(crate) fn is_users<F: Format>(attr: Attr) -> bool {
    !F::OPTIONAL.contains(Attr::USER) || attr.contains(Attr::USER)
}

/// A cursor of a page table, of either kind.
pub trait Walk: HasRetired + fmt::Debug {
    fn page(&self) -> Vpn;
    fn look(&self) -> Option<Leaf>;
    fn entry(&self) -> Entry;
    fn mark(&mut self, mark: Option<Mark>) -> Result<Entry, Error>;
    fn fill(&mut self, payload: u64, frame: Pfn) -> Result<(), Error>;
    fn map(&mut self, frame: Pfn, attr: Attr) -> Result<(), Error>;
    fn unmap(&mut self) -> Result<Leaf, Error>;
    fn protect(&mut self, change: Change) -> Result<Leaf, Error>;
    /// # Safety
    ///
    /// The contract of [`Writer::replace_breaking`].
    unsafe fn replace_breaking(
        &mut self,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<Leaf, Error>;
    /// # Safety
    ///
    /// The contract of [`Writer::resize_breaking`].
    unsafe fn resize_breaking(
        &mut self,
        pages: Pages,
        to: PageSize,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<(), Error>;
    fn seek(&mut self, page: Vpn) -> Result<(), Error>;
    fn step(&mut self) -> bool;
    fn next_mapped(&mut self, last: Vpn) -> Option<Leaf>;
}

/// Implements [`Walk`] and [`HasRetired`] by a cursor's own methods.
macro_rules! walks {
    ($(($($parameters:tt)*) $cursor:ty;)+) => {$(
        impl<$($parameters)*> Walk for $cursor {
            #[inline(always)]
            fn page(&self) -> Vpn {
                self.page()
            }
            #[inline(always)]
            fn look(&self) -> Option<Leaf> {
                self.look()
            }
            #[inline(always)]
            fn entry(&self) -> Entry {
                self.entry()
            }
            #[inline(always)]
            fn mark(&mut self, mark: Option<Mark>) -> Result<Entry, Error> {
                self.mark(mark)
            }
            #[inline(always)]
            fn fill(&mut self, payload: u64, frame: Pfn) -> Result<(), Error> {
                self.fill(payload, frame)
            }
            #[inline(always)]
            fn map(&mut self, frame: Pfn, attr: Attr) -> Result<(), Error> {
                self.map(frame, attr)
            }
            #[inline(always)]
            fn unmap(&mut self) -> Result<Leaf, Error> {
                self.unmap()
            }
            #[inline(always)]
            fn protect(&mut self, change: Change) -> Result<Leaf, Error> {
                self.protect(change)
            }
            #[inline(always)]
            unsafe fn replace_breaking(
                &mut self,
                frame: Pfn,
                attr: Attr,
                flush_all_cpus: &mut dyn FnMut(&Flush),
            ) -> Result<Leaf, Error> {
                // SAFETY: the contract of `Walk::replace_breaking` is that of `Writer::replace_breaking`, as is that of
                // the cursor's.
                unsafe { self.replace_breaking(frame, attr, flush_all_cpus) }
            }
            unsafe fn resize_breaking(
                &mut self,
                pages: Pages,
                to: PageSize,
                flush_all_cpus: &mut dyn FnMut(&Flush),
            ) -> Result<(), Error> {
                // SAFETY: the contract of `Walk::resize_breaking` is that of `Writer::resize_breaking`, as is that of the
                // cursor's.
                unsafe { self.resize_breaking(pages, to, flush_all_cpus) }
            }
            #[inline(always)]
            fn seek(&mut self, page: Vpn) -> Result<(), Error> {
                self.seek(page)
            }
            #[inline(always)]
            fn step(&mut self) -> bool {
                self.step()
            }
            #[inline(always)]
            fn next_mapped(&mut self, last: Vpn) -> Option<Leaf> {
                self.next_mapped(last)
            }
        }

        impl<$($parameters)*> HasRetired for $cursor {
            #[inline(always)]
            fn pending(&self) -> Option<&Retired<'static>> {
                Some(self.pending())
            }
            #[inline(always)]
            unsafe fn complete(&mut self) {
                // SAFETY: the contract of `HasRetired::complete` is that of `Retired::reclaim`, as is that of the cursor's
                // `complete`.
                unsafe { self.complete() };
            }
            fn take(&mut self) -> Retired<'static> {
                self.take()
            }
            fn merge(&mut self, flush: &Flush) {
                self.merge(flush);
            }
        }
    )+};
}

walks! {
    (G: Radix, F: Format, N: Nodes<Word = F::Word>) mpt::Cursor<'_, 'static, G, F, N>;
    (T: Table<'static>) AnyCursor<'_, 'static, T>;
}

/// A multi-level table ([`tlbkit_pagetable::mpt`]): the table that hardware walks, and the default of
/// [`Mips32`](crate::arch::Mips32).
#[derive(Debug)]
pub struct MultiLevel;

/// Tells whether every node fits a frame, which has the size of a base page.
const fn is_whole<G: Radix, F: Format>() -> bool {
    let mut level = 0;
    while level < G::WIDTHS.len() {
        if F::Word::BYTES << G::WIDTHS[level] > G::BASE.bytes() {
            return false;
        }
        level += 1;
    }
    true
}

impl Sealed for MultiLevel {}

impl<G: Radix, F: Format> TableKind<G, F> for MultiLevel {
    type Storage<K: Kernel> = Direct<F::Word, Shared, Source<K>>;
    type Table<K: Kernel> = Mpt<'static, G, F, Self::Storage<K>>;

    #[inline(always)]
    fn storage<K: Kernel>(frames: &'static Frames<F, K>) -> &'static Self::Storage<K> {
        const { assert!(is_whole::<G, F>(), "each node fits a frame") };
        frames.frames()
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word> + 'static> SpaceTable<G, F, N> for Mpt<'static, G, F, N> {
    type Walk<'c> = mpt::Cursor<'c, 'static, G, F, N>;

    const SLOTS: bool = true;

    #[inline]
    fn new(nodes: &'static N, lender: Option<&'static Self>) -> Result<Self, Error> {
        lender.map_or_else(|| Self::new(nodes), Self::sharing)
    }

    #[inline]
    fn root(&self, _at: PhysAddr) -> PhysAddr {
        PhysAddr::new(self.root().get())
    }

    #[inline(always)]
    fn slot<'w>(turn: &'w mut Turn<'_, 'static, Self>, page: Vpn) -> Option<mpt::Slot<'w, 'static, G, F, N>> {
        turn.slot(page)
    }

    #[inline(always)]
    fn cursor<'c>(writer: &'c mut Writer<'_, 'static, Self>, page: Vpn) -> Result<Self::Walk<'c>, Error> {
        writer.cursor(page)
    }

    #[inline(always)]
    fn copy_on_write<K: Kernel>(
        &self,
        writer: &mut Writer<'_, 'static, Self>,
        child: &mut Writer<'_, 'static, Self>,
        kernel: &K,
    ) -> Result<(), Error> {
        writer.copy_on_write(child, |run| kernel.share(run), |payload| kernel.share_payload(payload))
    }
}
