//! A table that one CPU uses alone: no pin, no token, no batch in sight.

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, PhysAddr, VirtAddr};

use crate::table::destroy_into;
use crate::{Change, Error, Footprint, Frames, Holes, Leaf, Pinned, Private, Retired, Table};

/// A table and the function that flushes the TLB: changes flush, then free, before they return.
///
/// The table is private to this value, so nobody walks it meanwhile but the hardware whose TLB `flush` flushes.
///
/// ```
/// use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr};
/// use tlbkit_pagetable::nodes::{Chunk, Slab};
/// use tlbkit_pagetable::{Holes, Local, Solo, mpt};
///
/// let mut memory = vec![Chunk::ZERO; 16];
/// let slab = Slab::<u64, Solo>::new(&mut memory, 0)?;
/// let mut flushed = 0;
/// let mut table = Local::new(mpt::Mpt4::new(&slab)?, |_flush| flushed += 1);
///
/// let at = VirtAddr::new(0x7000_0000);
/// let page = Pages::one(at.vpn(PageSize::K4));
/// table.map(page, Pfn::new(3), PageSize::K4, Attr::READ)?;
/// assert_eq!(table.lookup(at).unwrap().frame, Pfn::new(3));
/// table.unmap(page, Holes::Refuse, None)?;
/// assert_eq!(table.lookup(at), None);
/// table.destroy();
/// assert_eq!((flushed, slab.usage().nodes), (2, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Local<'n, T: Table<'n>, F> {
    // First, so that what it owes is counted with the table's own nodes when both are dropped.
    batch: Retired<'n>,
    table: T,
    flush: F,
}

impl<'n, T: Private<'n>, F: FnMut(&Flush)> Local<'n, T, F> {
    /// Wraps `table`. `flush` forgets the translations that it is given before it returns.
    pub fn new(table: T, flush: F) -> Self {
        let mut batch = table.batch();
        // SAFETY: the table is ours alone, and the batch came from it.
        unsafe { batch.take_up() };
        Self { batch, table, flush }
    }
}

impl<'n, T: Table<'n>, F: FnMut(&Flush)> Local<'n, T, F> {
    /// Returns the leaf that maps `at`; see [`Table::lookup`].
    #[inline(always)]
    pub fn lookup(&self, at: VirtAddr) -> Option<Leaf> {
        // SAFETY: the table is private, so the only batch that frees its nodes is this value's, which needs `&mut self`;
        // or it is in solo mode, and no other CPU frees what it borrows during the walk.
        self.table.lookup(unsafe { Pinned::by(self) }, at)
    }

    /// Returns the physical address that `at` is translated to.
    #[inline(always)]
    pub fn translate(&self, at: VirtAddr) -> Option<PhysAddr> {
        // SAFETY: as in `lookup`.
        self.table.translate(unsafe { Pinned::by(self) }, at)
    }

    /// Maps a range; see [`Table::map`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::map`].
    #[inline]
    pub fn map(&mut self, pages: Pages, frame: Pfn, size: PageSize, attr: Attr) -> Result<(), Error> {
        // SAFETY: `&mut self` makes this the only writer, and the batch came from this table; likewise below.
        let done = unsafe { self.table.map(&mut self.batch, pages, frame, size, attr) };
        self.settle();
        done
    }

    /// Unmaps a range; see [`Table::unmap`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::unmap`].
    #[inline]
    pub fn unmap(
        &mut self,
        pages: Pages,
        holes: Holes,
        frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        // SAFETY: as in `map`.
        let done = unsafe { self.table.unmap(&mut self.batch, pages, holes, frames) };
        self.settle();
        done
    }

    /// Changes the attributes of a range; see [`Table::protect`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::protect`].
    #[inline]
    pub fn protect(&mut self, pages: Pages, holes: Holes, change: Change) -> Result<usize, Error> {
        // SAFETY: as in `map`.
        let done = unsafe { self.table.protect(&mut self.batch, pages, holes, change) };
        self.settle();
        done
    }

    /// Replaces the leaf that maps `at`, in one store, flushes, and returns the old one; see [`Table::replace`].
    ///
    /// # Errors
    ///
    /// [`Error::Breaks`] if the hardware wants break before make; else those of [`Table::replace`].
    pub fn replace(&mut self, at: VirtAddr, frame: Pfn, attr: Attr) -> Result<Leaf, Error> {
        if self.table.breaks_frames() {
            return Err(Error::Breaks);
        }
        // SAFETY: the table does not break.
        unsafe { self.replace_breaking(at, frame, attr) }
    }

    /// Replaces the leaf that maps `at`, by way of an empty entry where the hardware wants break before make, flushes, and
    /// returns the old one; see [`Table::replace`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::replace`].
    ///
    /// # Safety
    ///
    /// As for [`Writer::resize_breaking`](crate::Writer::resize_breaking), of the page; the flush is what must not need it.
    pub unsafe fn replace_breaking(&mut self, at: VirtAddr, frame: Pfn, attr: Attr) -> Result<Leaf, Error> {
        // SAFETY: as in `map`, and the caller's promise.
        let old = unsafe { self.table.replace(&mut self.batch, at, frame, attr, &mut self.flush) };
        self.settle();
        old
    }

    /// Splits or promotes the leaves of a range in place; see [`Table::resize`].
    ///
    /// # Errors
    ///
    /// [`Error::Breaks`] if the hardware wants break before make; else those of [`Table::resize`].
    pub fn resize(&mut self, pages: Pages, to: PageSize) -> Result<(), Error> {
        if self.table.breaks() {
            return Err(Error::Breaks);
        }
        // SAFETY: the table does not break.
        unsafe { self.resize_breaking(pages, to) }
    }

    /// Splits or promotes the leaves of a range, by way of empty entries where the hardware wants break before make; see
    /// [`Table::resize`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::resize`].
    ///
    /// # Safety
    ///
    /// As for [`Writer::resize_breaking`](crate::Writer::resize_breaking); the flush is what must not need the pages.
    pub unsafe fn resize_breaking(&mut self, pages: Pages, to: PageSize) -> Result<(), Error> {
        // SAFETY: as in `map`, and the caller's promise.
        let done = unsafe { self.table.resize(&mut self.batch, pages, to, &mut self.flush) };
        self.settle();
        done
    }

    /// Flushes what the last change made stale, then frees what it took out.
    #[inline(always)]
    fn settle(&mut self) {
        if !self.batch.is_empty() {
            (self.flush)(self.batch.flush());
            // SAFETY: nobody walks but this CPU, which does not now, and its TLB has just been flushed.
            unsafe { self.batch.complete() };
        }
    }

    /// Returns what the table takes of its node storage.
    pub fn footprint(&self) -> Footprint {
        self.table.footprint()
    }

    /// Returns the table.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// Takes the table apart, flushes and frees every node.
    pub fn destroy(mut self) {
        let batch = destroy_into(self.table, self.batch);
        (self.flush)(batch.flush());
        // SAFETY: the table is gone, nobody walks it, and the TLB has just been flushed.
        unsafe { batch.reclaim() };
    }
}
