//! A cursor: a position in a table at which several operations share one walk.

use core::fmt;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};

use super::leaf::Decode as _;
use super::node::{Position, Writing};
use super::shape::Shape;
use super::{Encoded, Mpt, Slot};
use crate::format::{Format, check_change};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Change, Entry, Error, FlushAll, Holes, Leaf, Mark, PageCursor, Pending, Radix, Writer};

/// A page of a multi-level table and the node in which the walk for that page ended, from [`Writer::cursor`]: a [`PageCursor`].
///
/// The cursor walks from the root when it is made, and again when it goes to another node: once in 512 pages of a table with 512
/// entries a node. The cost of a call is without such a walk:
///
/// | call | cost |
/// |-|-|
/// | [`look`](PageCursor::look), [`entry`](PageCursor::entry) | a load |
/// | [`map`](PageCursor::map) | two loads and two stores; if nodes are missing, as much as [`Table::map`](crate::Table::map) |
/// | [`unmap`](PageCursor::unmap) | two loads and two stores; if a node becomes empty, as much as [`Table::unmap`](crate::Table::unmap) |
/// | [`protect`](PageCursor::protect) | a load and a store, or an exchange in formats whose hardware sets status bits |
/// | [`seek`](PageCursor::seek), [`step`](PageCursor::step) | nothing in the same node, otherwise a walk |
/// | [`next_mapped`](PageCursor::next_mapped) | a load for each slot that it passes; an empty slot above the last level counts as one |
///
/// ```
/// use tlbkit_addr::{Attr, PageSize, Pfn, VirtAddr, Vpn};
/// use tlbkit_pagetable::nodes::{Chunk, Slab};
/// use tlbkit_pagetable::{Change, Error, PageCursor as _, Shared, Writer, mpt};
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
        let writing = self.writing();
        writing.check_part(Pages::one(page))?;
        let mut position = Position::new(writing);
        position.walk(page.address(G::BASE));
        Ok(Cursor { position, page })
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Cursor<'_, 'n, G, F, N> {
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

    /// Unmaps the leaf that maps the page and retires the nodes that become empty, or returns the error.
    #[cold]
    #[inline(never)]
    fn unmap_more(&mut self) -> Result<Leaf, Error> {
        let at = self.at();
        self.position.table().check(Pages::one(self.page))?;
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

    /// Changes the attributes of a leaf in any number of slots, or returns the error.
    #[cold]
    #[inline(never)]
    fn protect_more(&mut self, change: Change) -> Result<Leaf, Error> {
        let at = self.at();
        self.position.table().check(Pages::one(self.page))?;
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
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> PageCursor<'n> for Cursor<'_, 'n, G, F, N> {
    #[inline]
    fn page(&self) -> Vpn {
        self.page
    }

    #[inline(always)]
    fn look(&self) -> Option<Leaf> {
        let node = self.position.view();
        node.read(node.index_of(self.at())).mapped(self.at())
    }

    #[inline]
    fn entry(&self) -> Entry {
        let node = self.position.view();
        node.read(node.index_of(self.at())).content(self.at())
    }

    fn mark(&mut self, mark: Option<Mark>) -> Result<Entry, Error> {
        let at = self.at();
        self.anew(|writing| writing.mark(at, mark))
    }

    fn fill(&mut self, payload: u64, frame: Pfn) -> Result<(), Error> {
        let at = self.at();
        self.position.node().fill_mark(at, payload, frame)
    }

    #[inline(always)]
    fn map(&mut self, frame: Pfn, attr: Attr) -> Result<(), Error> {
        if let Some(slot) = self.small_slot()
            && let Some(stale) = Encoded::new(attr).and_then(|attr| slot.map(frame, attr))
        {
            self.position.flush().add(stale.scope, stale.pages);
            return Ok(());
        }
        let pages = Pages::one(self.page);
        self.anew(|writing| writing.map_range(pages, frame, G::BASE, attr))
    }

    #[inline(always)]
    fn unmap(&mut self) -> Result<Leaf, Error> {
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

    #[inline(always)]
    fn protect(&mut self, change: Change) -> Result<Leaf, Error> {
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

    #[inline(always)]
    fn replace(&mut self, frame: Pfn, attr: Attr, flush_all: FlushAll<'_>) -> Result<Leaf, Error> {
        if !F::BREAK_FRAME
            && let Some(slot) = self.small_slot()
            && let Some(attr) = Encoded::new(attr)
            && let Some((leaf, stale)) = slot.replace(frame, attr, FlushAll::in_place(&mut |_| ()))
        {
            self.position.flush().add(stale.scope, stale.pages);
            return Ok(leaf);
        }
        let at = self.at();
        self.anew(|writing| writing.replace_leaf(at, frame, attr, flush_all))
    }

    fn resize(&mut self, pages: Pages, to: PageSize, flush_all: FlushAll<'_>) -> Result<(), Error> {
        self.anew(|writing| writing.resize(pages, to, flush_all))
    }

    #[inline]
    fn seek(&mut self, page: Vpn) -> Result<(), Error> {
        G::SPACE.check_pages(Pages::one(page))?;
        self.position.check_part(page)?;
        let level = self.position.level();
        let same = Self::node_end(level, page) == Self::node_end(level, self.page);
        self.page = page;
        // Above the last level another slot of the node may hold a link, so the walk continues there.
        if !same || !Self::is_last(level) {
            self.walk();
        }
        Ok(())
    }

    fn next_mapped(&mut self, last: Vpn) -> Option<Leaf> {
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

    #[inline(always)]
    fn pending(&mut self) -> Pending<'_, 'n> {
        self.position.pending()
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
