//! The interface between an address space and its page table, and the kinds of tables that implement it.

use core::fmt;

use tlbkit_addr::{Attr, Pages, PhysAddr, Vpn};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::mpt::{self, Mpt};
use tlbkit_pagetable::nodes::{Direct, Nodes, Pieces};
use tlbkit_pagetable::{
    Error, NodeLocks, PageCursor, PageTurn, Pinned, Radix, Retired, Shared, Table, Uncovered, Word, Writer,
};

use crate::Kernel;
use crate::counted::typed;
use crate::storage::Source;

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
    type Cursor<'c>: PageCursor<'static>;

    /// Returns an empty table, which borrows the part that `lender` lends. With `locks` it has several writers, if such a table can.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    fn empty(
        nodes: &'static N,
        lender: Option<&'static Self>,
        locks: Option<&'static mut NodeLocks>,
    ) -> Result<Self, Error>;

    /// Returns the physical address for the root register. The table itself is at the physical address `at`.
    fn root(&self, at: PhysAddr) -> PhysAddr;

    /// Whether one store can change a page.
    const SLOTS: bool;

    /// Returns the slot of a page, if one store can change the page.
    fn slot<'w>(turn: &'w mut PageTurn<'_, 'static, Self>) -> Option<mpt::Slot<'w, 'static, G, F, N>>;

    /// Returns a cursor at a page.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`].
    fn cursor<'c>(writer: &'c mut Writer<'_, 'static, Self>, page: Vpn) -> Result<Self::Cursor<'c>, Error>;

    /// The part of a table that [`detach`](Self::detach) has taken out.
    type Detached: Detached;

    /// Returns what has nothing to release.
    fn nothing(nodes: &'static N) -> Self::Detached;

    /// Takes the pages of a range out of the table, from the first one on, in one bounded part. Adds to `detached` what waits for the
    /// flush that the writer's obligation asks for, and returns the first page that was not reached.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::Borrowed`] or [`Error::Partial`]: nothing has changed then.
    fn detach(
        writer: &mut Writer<'_, 'static, Self>,
        pages: Pages,
        detached: &mut Self::Detached,
    ) -> Result<Option<Vpn>, Error>;

    /// Empties the entries of `pages`, of which the frames have waited in the table.
    ///
    /// # Safety
    ///
    /// The contract of [`Retired::reclaim`] since the call of [`detach`](Self::detach), which has reached all of `pages`.
    unsafe fn clear_detached(
        writer: &mut Writer<'_, 'static, Self>,
        pages: Pages,
        detached: &mut Self::Detached,
        hand_over: &mut dyn FnMut(Uncovered),
    );

    /// Takes the whole table apart, whose frames the caller does not know. Returns the obligation of earlier changes whose flush was
    /// dropped.
    fn detach_all(self, detached: &mut Self::Detached) -> Retired<'static>;

    /// Returns the first part of `pages` that has a bounded number of entries.
    fn part(&self, pinned: Pinned<'_>, pages: Pages) -> Pages;

    /// Tells whether every page of `pages` that is mapped is a user's.
    fn are_users(writer: &mut Writer<'_, 'static, Self>, pages: Pages) -> bool;

    /// The state of a copy that is made in parts.
    type Copying: fmt::Debug;

    /// Maps in `child` a bounded part of the user's mappings of the table of `writer`, and clears the right to write in both. At first
    /// the child maps nothing but copies of supervisor pages. A frame is [shared](Kernel::share) before the child maps it: if the copy
    /// unwinds, the child releases only frames that were shared. `copying` is `None` for the first part. After each part `writer`'s
    /// changes are flushed. Returns what is still to be done: the first page that was not reached, over which no leaf may extend in the
    /// next part.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]: the frames that the child does not map are no longer shared then.
    fn copy_on_write<K: Kernel>(
        writer: &mut Writer<'_, 'static, Self>,
        child: &mut Writer<'_, 'static, Self>,
        kernel: &K,
        copying: &mut Option<Self::Copying>,
    ) -> Result<Copied, Error>;
}

/// How far a copy has come.
#[derive(Clone, Copy, Debug)]
pub enum Copied {
    /// Nodes for it have been taken, and more are needed.
    Nothing,
    /// The pages before this one are copied.
    Until(Vpn),
    /// All pages are copied.
    All,
}

/// The number of entries and nodes that an address space visits with interrupts masked at most, in the calls that handle a range
/// in bounded parts. Eight thousand entries are 32 MiB of pages of 4 KiB.
pub(crate) const PART: usize = 1 << 13;

/// The number of nodes that a fork takes with interrupts masked at most.
const NODES: usize = 1 << 6;

/// The number of entries whose frames are released with interrupts masked at most.
pub(crate) const RELEASED: usize = 1 << 9;

/// What waits for its release outside of a table.
pub trait Detached: fmt::Debug {
    /// Hands over the frames and marks of about `most` entries, and frees nodes that hold no more. Returns `true` if nothing is left.
    /// A call that `hand_over` has unwound can be repeated.
    ///
    /// # Safety
    ///
    /// The contract of [`Retired::reclaim`] since the part has been taken out of its table.
    unsafe fn release(&mut self, most: usize, hand_over: &mut dyn FnMut(Uncovered)) -> bool;
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word> + 'static> Detached for mpt::Detached<'static, G, F, N> {
    unsafe fn release(&mut self, most: usize, hand_over: &mut dyn FnMut(Uncovered)) -> bool {
        // SAFETY: this function's contract.
        unsafe { self.release(most, hand_over) }
    }
}

/// Tells whether a page with these attributes is a user's. In a format without a bit for [`Attr::USER`] every page is.
pub(crate) fn is_users<F: Format>(attr: Attr) -> bool {
    !F::OPTIONAL.contains(Attr::USER) || attr.contains(Attr::USER)
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
    type Cursor<'c> = mpt::Cursor<'c, 'static, G, F, N>;

    const SLOTS: bool = true;

    #[inline]
    fn empty(
        nodes: &'static N,
        lender: Option<&'static Self>,
        locks: Option<&'static mut NodeLocks>,
    ) -> Result<Self, Error> {
        let table = lender.map_or_else(|| Self::new(nodes), Self::sharing)?;
        Ok(match locks {
            None => table,
            Some(locks) => table.with_locks(locks),
        })
    }

    #[inline]
    fn root(&self, _at: PhysAddr) -> PhysAddr {
        PhysAddr::new(self.root().get())
    }

    #[inline(always)]
    fn slot<'w>(turn: &'w mut PageTurn<'_, 'static, Self>) -> Option<mpt::Slot<'w, 'static, G, F, N>> {
        turn.slot()
    }

    #[inline(always)]
    fn cursor<'c>(writer: &'c mut Writer<'_, 'static, Self>, page: Vpn) -> Result<Self::Cursor<'c>, Error> {
        writer.cursor(page)
    }

    type Detached = mpt::Detached<'static, G, F, N>;

    #[inline]
    fn nothing(nodes: &'static N) -> Self::Detached {
        mpt::Detached::new(nodes)
    }

    #[inline]
    fn detach(
        writer: &mut Writer<'_, 'static, Self>,
        pages: Pages,
        detached: &mut Self::Detached,
    ) -> Result<Option<Vpn>, Error> {
        writer.detach(pages, PART, detached)
    }

    #[inline]
    unsafe fn clear_detached(
        writer: &mut Writer<'_, 'static, Self>,
        pages: Pages,
        detached: &mut Self::Detached,
        hand_over: &mut dyn FnMut(Uncovered),
    ) {
        // SAFETY: this function's contract.
        unsafe { writer.clear_detached(pages, detached, hand_over) };
    }

    #[inline]
    fn detach_all(self, detached: &mut Self::Detached) -> Retired<'static> {
        self.detach_all(detached)
    }

    fn part(&self, pinned: Pinned<'_>, pages: Pages) -> Pages {
        self.part(pinned, pages, PART)
    }

    fn are_users(writer: &mut Writer<'_, 'static, Self>, pages: Pages) -> bool {
        writer.all_have(pages, Attr::USER)
    }

    type Copying = mpt::Copying<'static, G, F, N>;

    #[inline(always)]
    fn copy_on_write<K: Kernel>(
        writer: &mut Writer<'_, 'static, Self>,
        child: &mut Writer<'_, 'static, Self>,
        kernel: &K,
        copying: &mut Option<Self::Copying>,
    ) -> Result<Copied, Error> {
        let copying = match copying {
            Some(copying) => copying,
            None => copying.insert(writer.begin_copy(child)?),
        };
        if !copying.reserve(NODES)? {
            return Ok(Copied::Nothing);
        }
        let share = |run| kernel.share(typed::<K, _>(run));
        let next = writer.copy_part(child, copying, PART, share, |payload| kernel.share_payload(payload))?;
        Ok(next.map_or(Copied::All, Copied::Until))
    }
}
