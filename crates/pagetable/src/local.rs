//! A table that one CPU uses alone: no pin, no token, no batch in sight.

use core::ops::{Deref, DerefMut};

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, PhysAddr, VirtAddr};

use crate::table::destroy_into;
use crate::{Change, Entry, Error, Footprint, Frames, Holes, Leaf, Mark, Pinned, Private, Retired, Table};

/// The TLB, as a [`Local`] flushes it. Every function of a [`Flush`] is one; a kernel's own type has a name.
pub trait Invalidate {
    /// Forgets the translations that `flush` names before it returns.
    fn invalidate(&mut self, flush: &Flush);
}

impl<F: FnMut(&Flush)> Invalidate for F {
    #[inline(always)]
    fn invalidate(&mut self, flush: &Flush) {
        self(flush);
    }
}

/// A value that one CPU uses alone, so that a static may hold it.
///
/// Tables and storage in [`Solo`](crate::Solo) mode are not [`Send`]: nothing keeps two CPUs apart that use them. A
/// kernel with one CPU knows that there is no other.
///
/// ```
/// use std::sync::Mutex;
///
/// use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr};
/// use tlbkit_pagetable::nodes::{Chunk, Slab};
/// use tlbkit_pagetable::{Invalidate, Local, OneCpu, Solo, mpt};
///
/// struct Tlb;
/// impl Invalidate for Tlb {
///     fn invalidate(&mut self, _flush: &Flush) {
///         // The machine's instructions.
///     }
/// }
///
/// type Space = Local<'static, mpt::Mpt4<'static, Slab<'static, u64, Solo>>, Tlb>;
/// static SPACE: Mutex<Option<OneCpu<Space>>> = Mutex::new(None);
///
/// let memory = Box::leak(Box::new([const { Chunk::ZERO }; 16]));
/// let slab = Box::leak(Box::new(Slab::new(memory, 0)?));
/// let space = Local::with(mpt::Mpt4::new(slab)?, Tlb);
/// // SAFETY: this kernel has one CPU, and masks interrupts while it holds the lock.
/// *SPACE.lock().unwrap() = Some(unsafe { OneCpu::new(space) });
///
/// let at = VirtAddr::new(0x7000_0000);
/// if let Some(space) = &mut *SPACE.lock().unwrap() {
///     space.map(Pages::one(at.vpn(PageSize::K4)), Pfn::new(3), PageSize::K4, Attr::READ)?;
///     assert_eq!(space.lookup(at).unwrap().frame, Pfn::new(3));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct OneCpu<T>(T);

// SAFETY: by the promise of `new` there is no other CPU to send it to.
unsafe impl<T> Send for OneCpu<T> {}

impl<T> OneCpu<T> {
    /// Wraps a value.
    ///
    /// # Safety
    ///
    /// One CPU alone uses the value and whatever shares state with it: its node storage, and the other tables there. No
    /// such use begins within another one, as it would in an interrupt handler.
    pub const unsafe fn new(value: T) -> Self {
        Self(value)
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for OneCpu<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for OneCpu<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A table and the function that flushes the TLB: changes flush, then free, before they return.
///
/// The table is private to this value, so no CPU walks it meanwhile but the hardware whose TLB `flush` flushes.
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

// SAFETY: a table that can be sent says that its storage may be used where it is sent to; the rest of the batch is plain
// data.
unsafe impl<'n, T: Table<'n> + Send, F: Send> Send for Local<'n, T, F> {}

impl<'n, T: Private<'n>, F: FnMut(&Flush)> Local<'n, T, F> {
    /// Wraps `table`. `flush` forgets the translations that it is given before it returns.
    pub fn new(table: T, flush: F) -> Self {
        Self::with(table, flush)
    }
}

impl<'n, T: Private<'n>, F: Invalidate> Local<'n, T, F> {
    /// Wraps `table`. As [`new`](Self::new), with a TLB whose type has a name, as a static that holds this must give one.
    pub fn with(table: T, flush: F) -> Self {
        let mut batch = table.batch();
        // SAFETY: the table is ours alone, and the batch came from it.
        unsafe { batch.take_up() };
        Self { batch, table, flush }
    }
}

impl<'n, T: Table<'n>, F: Invalidate> Local<'n, T, F> {
    /// Proves that no node that a walk meets is freed while the proof exists.
    #[inline(always)]
    fn pinned(&self) -> Pinned<'_> {
        // SAFETY: the table is `Private`. Either only this value's batch frees the nodes that its walks reach, and that takes
        // `&mut self`; or the table is in solo mode, and no code but the walk runs meanwhile.
        unsafe { Pinned::by(self) }
    }

    /// Returns the leaf that maps `at`; see [`Table::lookup`].
    #[inline(always)]
    pub fn lookup(&self, at: VirtAddr) -> Option<Leaf> {
        self.table.lookup(self.pinned(), at)
    }

    /// Returns the physical address that `at` is translated to.
    #[inline(always)]
    pub fn translate(&self, at: VirtAddr) -> Option<PhysAddr> {
        self.table.translate(self.pinned(), at)
    }

    /// Maps a range; see [`Table::map`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::map`].
    #[inline]
    pub fn map(&mut self, pages: Pages, frame: Pfn, size: PageSize, attr: Attr) -> Result<(), Error> {
        // SAFETY: `&mut self` excludes any other writer, and the batch came from this table.
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
        // SAFETY: `&mut self` excludes any other writer, and the batch came from this table.
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
        // SAFETY: `&mut self` excludes any other writer, and the batch came from this table.
        let done = unsafe { self.table.protect(&mut self.batch, pages, holes, change) };
        self.settle();
        done
    }

    /// Returns what the entry for the page at `at` holds; see [`Table::entry`].
    #[inline]
    pub fn entry(&self, at: VirtAddr) -> Entry {
        self.table.entry(self.pinned(), at)
    }

    /// Puts a mark, or nothing, in the place of what the entry for the page at `at` holds, flushes, and returns that; see
    /// [`Table::mark`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::mark`].
    pub fn mark(&mut self, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        // SAFETY: `&mut self` excludes any other writer, and the batch came from this table.
        let done = unsafe { self.table.mark(&mut self.batch, at, mark) };
        self.settle();
        done
    }

    /// Maps a page that has a mark; see [`Table::fill`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::fill`].
    pub fn fill(&mut self, at: VirtAddr, frame: Pfn, attr: Attr) -> Result<Mark, Error> {
        // SAFETY: `&mut self` excludes any other writer, and the batch came from this table.
        let done = unsafe { self.table.fill(&mut self.batch, at, frame, attr) };
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
        // SAFETY: `&mut self` excludes any other writer, and the batch came from this table. By this function's
        // contract nothing that runs until the call returns needs the page.
        let old = unsafe {
            self.table.replace(&mut self.batch, at, frame, attr, &mut |flush| self.flush.invalidate(flush))
        };
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
        // SAFETY: `&mut self` excludes any other writer, and the batch came from this table. By this function's
        // contract nothing that runs until the call returns needs the pages.
        let done = unsafe {
            self.table.resize(&mut self.batch, pages, to, &mut |flush| self.flush.invalidate(flush))
        };
        self.settle();
        done
    }

    /// Flushes what the last change made stale, then frees what it took out.
    #[inline(always)]
    fn settle(&mut self) {
        if !self.batch.is_empty() {
            self.flush.invalidate(self.batch.flush());
            // SAFETY: no other CPU walks the table, and this one does not now, and its TLB has just been flushed.
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
        self.flush.invalidate(batch.flush());
        // SAFETY: the table is gone, no CPU walks it, and the TLB has just been flushed.
        unsafe { batch.reclaim() };
    }
}
