//! A cursor: a position in a table at which several operations share one walk.

use core::fmt;

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr, Vpn};

use super::leaf::Decode as _;
use super::node::{Position, Writing};
use super::shape::Shape;
use super::{Encoded, Mpt, Slot};
use crate::format::{Format, check_change};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Change, Entry, Error, Holes, Leaf, Mark, Radix, Retired, Writer};

/// A page of a multi-level table and the node in which the walk for that page ended, from [`Writer::cursor`].
///
/// A cursor borrows the writer, so that no other code changes the table; the cursor's changes go into the writer's batch. Each
/// change is all or nothing. The cursor walks from the root when it is made, and again when it goes to another node: once in 512
/// pages of a table with 512 entries a node.
///
/// A page that another table [lends](Mpt::lend) looks empty to a cursor, because the lender may free the nodes that map it; a
/// change returns [`Error::Borrowed`]. [`Table::lookup`](crate::Table::lookup) finds what is mapped there.
///
/// ```
/// use tlbkit_addr::{Attr, PageSize, Pfn, VirtAddr, Vpn};
/// use tlbkit_pagetable::nodes::{Chunk, Slab};
/// use tlbkit_pagetable::{Change, Error, Shared, Writer, mpt};
///
/// let mut memory = vec![Chunk::ZERO; 16];
/// let slab = Slab::<u64, Shared>::new(&mut memory, 0)?;
/// let table = mpt::Mpt4::new(&slab)?;
/// let mut writer = Writer::new(&table)?;
/// let mut cursor = writer.cursor(Vpn::new(0x7000))?;
/// assert_eq!(cursor.look(), None);
/// cursor.map(Pfn::new(3), Attr::READ | Attr::WRITE)?;
/// assert!(cursor.step());
/// cursor.map(Pfn::new(9), Attr::READ)?;
///
/// cursor.seek(Vpn::new(0))?;
/// let leaf = cursor.next_mapped(Vpn::new(0xffff)).unwrap();
/// assert_eq!((cursor.page(), leaf.frame), (Vpn::new(0x7000), Pfn::new(3)));
/// cursor.protect(Change::clear(Attr::WRITE))?;
/// assert_eq!(cursor.unmap()?.frame, Pfn::new(3));
/// assert_eq!(cursor.unmap(), Err(Error::NotMapped { at: VirtAddr::new(0x700_0000) }));
/// // Carry this through a shootdown, then reclaim it.
/// let retired = writer.finish();
/// # // SAFETY: no CPU walks the table.
/// # unsafe { retired.reclaim() };
/// # unsafe { tlbkit_pagetable::destroy(table).reclaim() };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cursor<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    /// The node in which the walk for the page ended.
    position: Position<'w, 'n, G, F, N>,
    page: Vpn,
}

impl<'t, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writer<'t, 'n, Mpt<'n, G, F, N>> {
    /// Returns a cursor at `page`.
    ///
    /// Costs a walk.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`].
    #[inline(always)]
    pub fn cursor(&mut self, page: Vpn) -> Result<Cursor<'_, 'n, G, F, N>, Error> {
        G::SPACE.check_pages(Pages::one(page))?;
        let mut position = Position::new(self.writing());
        position.walk(page.address(G::BASE));
        Ok(Cursor { position, page })
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Cursor<'_, 'n, G, F, N> {
    /// Returns the page that the cursor is at.
    #[inline]
    pub fn page(&self) -> Vpn {
        self.page
    }

    #[inline(always)]
    fn at(&self) -> VirtAddr {
        self.page.address(G::BASE)
    }

    /// Makes a change that may link or unlink nodes, then walks to the page again. The walk also happens if the change unwinds.
    #[cold]
    #[inline(never)]
    fn anew<T>(&mut self, change: impl FnOnce(Writing<'_, 'n, G, F, N>) -> T) -> T {
        let anew = Anew(self);
        change(anew.0.position.writing())
    }

    /// Walks to the page again.
    #[cold]
    fn walk(&mut self) {
        self.position.walk(self.page.address(G::BASE));
    }

    /// Returns the leaf that maps the page. Costs a load.
    #[inline(always)]
    pub fn look(&self) -> Option<Leaf> {
        let node = self.position.view();
        node.read(node.index_of(self.at())).mapped(self.at())
    }

    /// Returns what the entry for the page holds. Costs a load.
    #[inline]
    pub fn entry(&self) -> Entry {
        let node = self.position.view();
        node.read(node.index_of(self.at())).content(self.at())
    }

    /// Stores a mark, or nothing, in the entry for the page, and returns what the entry held before; see
    /// [`Table::mark`](crate::Table::mark).
    ///
    /// # Errors
    ///
    /// [`Error::WrongMark`], [`Error::WrongAttr`], [`Error::Partial`], [`Error::Borrowed`] or [`Error::NoMemory`].
    pub fn mark(&mut self, mark: Option<Mark>) -> Result<Entry, Error> {
        let at = self.at();
        self.anew(|writing| writing.mark(at, mark))
    }

    /// Maps the page, whose mark has this payload, to `frame`; see [`Table::fill`](crate::Table::fill).
    ///
    /// # Errors
    ///
    /// [`Error::Changed`], [`Error::NotMapped`], [`Error::Occupied`], [`Error::FrameTooLarge`] or [`Error::Borrowed`].
    pub fn fill(&mut self, payload: u64, frame: Pfn) -> Result<(), Error> {
        let at = self.at();
        self.position.node().fill_mark(at, payload, frame)
    }

    /// Maps the page, as one of the base size, to `frame`.
    ///
    /// Costs two loads and two stores. If nodes are missing, costs as much as [`Table::map`](crate::Table::map).
    ///
    /// # Errors
    ///
    /// [`Error::FrameTooLarge`], [`Error::WrongAttr`], [`Error::Occupied`], [`Error::Borrowed`] or [`Error::NoMemory`].
    #[inline(always)]
    pub fn map(&mut self, frame: Pfn, attr: Attr) -> Result<(), Error> {
        if let Some(slot) = self.small_slot()
            && let Some(stale) = Encoded::new(attr).and_then(|attr| slot.map(frame, attr))
        {
            self.position.flush().add(stale.scope, stale.pages);
            return Ok(());
        }
        let pages = Pages::one(self.page);
        self.anew(|writing| writing.map_range(pages, frame, G::BASE, attr))
    }

    /// Unmaps the whole leaf that maps the page, and returns it with the status bits that hardware set before the store. The
    /// frame belongs to the caller only after the batch's shootdown has completed.
    ///
    /// Costs two loads and two stores. If the change empties a node, costs as much as [`Table::unmap`](crate::Table::unmap).
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`] or [`Error::Borrowed`].
    #[inline(always)]
    pub fn unmap(&mut self) -> Result<Leaf, Error> {
        let done = match self.small_slot() {
            Some(slot) => slot.unmap(),
            None => self.upper_slot().and_then(Slot::unmap),
        };
        match done {
            Some((leaf, stale)) => {
                self.position.flush().add(stale.scope, stale.pages);
                Ok(leaf)
            }
            None => self.unmap_more(),
        }
    }

    /// Unmaps the leaf that maps the page and retires the nodes that become empty, or returns the error.
    #[cold]
    #[inline(never)]
    fn unmap_more(&mut self) -> Result<Leaf, Error> {
        let at = self.at();
        self.position.table().check_own(Pages::one(self.page))?;
        let leaf = self.look().ok_or(Error::NotMapped { at })?;
        let attr = self.anew(|writing| writing.take(G::SPACE.pages_of(&leaf), leaf.attr));
        Ok(Leaf { attr, ..leaf })
    }

    /// Returns the slot of the page, if the walk ended at the last level.
    #[inline(always)]
    fn small_slot(&self) -> Option<Slot<'_, 'n, G, F, N>> {
        self.position.last_place(self.at()).map(|place| Slot::new(place, self.page))
    }

    /// Returns the slot of the page, if the walk ended at another level.
    #[cold]
    fn upper_slot(&self) -> Option<Slot<'_, 'n, G, F, N>> {
        let last = Self::is_last(self.position.level());
        if last { None } else { Some(Slot::new(self.position.place(self.at()), self.page)) }
    }

    /// Changes the attributes of the whole leaf that maps the page, and returns the leaf as it was before.
    ///
    /// Costs a load and a store, or an exchange in formats whose hardware sets status bits.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`], [`Error::WrongAttr`] or [`Error::Borrowed`].
    #[inline(always)]
    pub fn protect(&mut self, change: Change) -> Result<Leaf, Error> {
        let done = match self.small_slot() {
            Some(slot) => slot.protect(change),
            None => self.upper_slot().and_then(|slot| slot.protect(change)),
        };
        match done {
            Some((leaf, stale)) => {
                self.position.flush().add(stale.scope, stale.pages);
                Ok(leaf)
            }
            None => self.protect_more(change),
        }
    }

    /// Changes the attributes of a leaf in any number of slots, or returns the error.
    #[cold]
    #[inline(never)]
    fn protect_more(&mut self, change: Change) -> Result<Leaf, Error> {
        let at = self.at();
        self.position.table().check_own(Pages::one(self.page))?;
        check_change::<F>(change)?;
        let leaf = self.look().ok_or(Error::NotMapped { at })?;
        let pages = G::SPACE.pages_of(&leaf);
        if Self::RUNS {
            return Ok(self.position.node().protect_run(leaf, change));
        }
        // Hardware sets no status bits in this format's leaves of several slots.
        self.anew(|writing| writing.protect_range(pages, Holes::Refuse, change))?;
        Ok(leaf)
    }

    /// Replaces the leaf that maps the page with one store, and returns the old leaf; see
    /// [`Table::replace`](crate::Table::replace).
    ///
    /// # Errors
    ///
    /// [`Error::Breaks`] if the hardware requires break-before-make; [`Error::NotMapped`], [`Error::MisalignedFrame`],
    /// [`Error::FrameTooLarge`], [`Error::WrongAttr`] or [`Error::Borrowed`].
    #[inline]
    pub fn replace(&mut self, frame: Pfn, attr: Attr) -> Result<Leaf, Error> {
        if F::BREAK_FRAME {
            return Err(Error::Breaks);
        }
        // SAFETY: the format does not break.
        unsafe { self.replace_breaking(frame, attr, &mut |_| ()) }
    }

    /// Replaces the leaf that maps the page; where the hardware requires break-before-make, the entry is empty in between. See
    /// [`Table::replace`](crate::Table::replace).
    ///
    /// # Errors
    ///
    /// Those of [`replace`](Self::replace), except [`Error::Breaks`].
    ///
    /// # Safety
    ///
    /// As for [`Writer::replace_breaking`].
    #[inline(always)]
    pub unsafe fn replace_breaking(
        &mut self,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<Leaf, Error> {
        if let Some(slot) = self.small_slot()
            && let Some((leaf, stale)) = Encoded::new(attr).and_then(|attr| slot.replace(frame, attr))
        {
            self.position.flush().add(stale.scope, stale.pages);
            return Ok(leaf);
        }
        let at = self.at();
        // SAFETY: the contract of `Writer::replace_breaking` is this function's.
        self.anew(|writing| unsafe { writing.replace_leaf(at, frame, attr, flush_all_cpus) })
    }

    /// Makes every leaf of `pages` one of size `to`; see [`Table::resize`](crate::Table::resize).
    ///
    /// # Errors
    ///
    /// Those of [`Table::resize`](crate::Table::resize).
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
        // SAFETY: the contract of `Writer::resize_breaking` is this function's.
        self.anew(|writing| unsafe { writing.resize(pages, to, flush_all_cpus) })
    }

    /// Goes to `page`. Costs a walk, unless the page is in the same node.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`]; the cursor has not moved then.
    #[inline]
    pub fn seek(&mut self, page: Vpn) -> Result<(), Error> {
        G::SPACE.check_pages(Pages::one(page))?;
        let level = self.position.level();
        let same = Self::node_end(level, page) == Self::node_end(level, self.page);
        self.page = page;
        // Above the last level another slot of the node may hold a link, so the walk continues there.
        if !same || !Self::is_last(level) {
            self.walk();
        }
        Ok(())
    }

    /// Goes to the next page, and tells whether there is one. At the last page of the space or of its lower half, returns `false`
    /// and does not move.
    #[inline]
    pub fn step(&mut self) -> bool {
        self.page.checked_add(1).is_some_and(|next| self.seek(next).is_ok())
    }

    /// Goes to the first mapped page after the leaf that maps this page (after this page, if it is not mapped) and up to `last`,
    /// and returns the leaf that maps the new page. If there is none, the cursor does not move. In a space of two halves, the
    /// upper half follows the lower one.
    ///
    /// Costs one load for each slot that it passes. An empty slot above the last level counts as one, whatever it covers.
    pub fn next_mapped(&mut self, last: Vpn) -> Option<Leaf> {
        let page = self.page;
        let mut from = match self.look() {
            Some(leaf) => G::SPACE.pages_of(&leaf).last(),
            None => self.end(),
        };
        loop {
            let next = from.checked_add(1).map(Self::over_hole).filter(|&next| next <= last);
            if next.is_none_or(|next| self.seek(next).is_err()) {
                self.page = page;
                self.walk();
                return None;
            }
            if let Some(leaf) = self.look() {
                return Some(leaf);
            }
            from = self.end();
        }
    }

    /// Returns the first page of the upper half for the page that follows the lower half; any other page as it is.
    fn over_hole(page: Vpn) -> Vpn {
        match G::SPACE.halves() {
            [Some(low), Some(high)] if low.last().checked_add(1) == Some(page) => high.first(),
            _ => page,
        }
    }

    /// Returns the last page that the cursor's slot covers.
    fn end(&self) -> Vpn {
        Self::slot_end(self.position.level(), self.page)
    }

    /// Returns a reference to the obligation for the writer's changes so far.
    #[inline]
    pub fn pending(&self) -> &Retired<'n> {
        self.position.pending()
    }

    /// Adds a flush to the obligation for the changes so far: one that the caller needs, and the table does not.
    pub fn merge(&mut self, flush: &Flush) {
        self.position.flush().merge(flush);
    }

    /// Frees the nodes of the obligation for the changes so far.
    ///
    /// # Safety
    ///
    /// As for [`Retired::reclaim`].
    #[inline]
    pub unsafe fn complete(&mut self) {
        // SAFETY: the contract of `Retired::reclaim` is this function's.
        unsafe { self.position.complete() };
    }

    /// Returns the obligation for the changes so far. Later changes go into another batch.
    pub fn take(&mut self) -> Retired<'n> {
        self.position.take()
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> fmt::Debug for Cursor<'_, '_, G, F, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor").field("page", &self.page).field("leaf", &self.look()).finish_non_exhaustive()
    }
}

/// A guard that makes the cursor walk to its page again when the guard is dropped.
struct Anew<'c, 'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>>(&'c mut Cursor<'w, 'n, G, F, N>);

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Drop for Anew<'_, '_, '_, G, F, N> {
    fn drop(&mut self) {
        self.0.walk();
    }
}
