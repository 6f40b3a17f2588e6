//! A table that only one CPU uses: calls need no [`Pinned`], no writer and no batch.

use core::iter;
use core::ops::{Deref, DerefMut};

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, PhysAddr, VirtAddr, Vpn};

use crate::node_locks::Block;
use crate::table::{check_ends, destroy_into};
use crate::{
    Change, Entry, Error, FlushAll, Footprint, Holes, Leaf, Mark, Pinned, Private, Rest, Retired, Right,
    Table, Uncovered,
};

/// The flush of the TLB that a [`Local`] needs. Every closure that takes a [`Flush`] implements this trait; a kernel can
/// implement it for a type of its own, which a static can name.
pub trait Invalidate {
    /// Flushes the translations that `flush` names from the TLB before it returns.
    fn invalidate(&mut self, flush: &Flush);
}

impl<F: FnMut(&Flush)> Invalidate for F {
    #[inline(always)]
    fn invalidate(&mut self, flush: &Flush) {
        self(flush);
    }
}

/// A value that only one CPU uses, so that a static may hold it.
///
/// Tables and storage in [`Solo`](crate::Solo) mode are not [`Send`], because nothing synchronizes two CPUs that use them. A
/// kernel for one CPU knows that there is no second CPU.
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

// SAFETY: by the contract of `new` only one CPU uses the value, so it is never sent to another CPU.
unsafe impl<T> Send for OneCpu<T> {}

impl<T> OneCpu<T> {
    /// Wraps a value.
    ///
    /// # Safety
    ///
    /// Only one CPU uses the value and everything that shares state with it: its node storage, and the other tables in that
    /// storage. No such use interrupts another one, as a use in an interrupt handler would.
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

/// A table and the function that flushes the TLB. Each change flushes, then frees nodes, before it returns.
///
/// Only this value uses the table, so the only other walker is the MMU whose TLB `flush` flushes. It is the table's writer:
/// [`Writer::new`](crate::Writer::new) for its [`table`](Self::table) returns [`Error::Busy`].
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
/// table.unmap(page, Holes::Refuse)?;
/// assert_eq!(table.lookup(at), None);
/// table.destroy();
/// assert_eq!((flushed, slab.usage().nodes), (2, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Local<'n, T: Table<'n>, F> {
    // The first field, so that it is dropped before the table and the nodes that it owns are counted with the table's.
    batch: Retired<'n>,
    table: T,
    flush: F,
}

// SAFETY: by the contract of `Table`, the storage of a table that is `Send` may be used on the thread to which the table is sent;
// the rest of the batch is plain data.
unsafe impl<'n, T: Table<'n> + Send, F: Send> Send for Local<'n, T, F> {}

impl<'n, T: Private<'n>, F: FnMut(&Flush)> Local<'n, T, F> {
    /// Wraps `table`. `flush` flushes the translations that it is given from the TLB before it returns.
    pub fn new(table: T, flush: F) -> Self {
        Self::with(table, flush)
    }
}

impl<'n, T: Private<'n>, F: Invalidate> Local<'n, T, F> {
    /// Wraps `table`, as [`new`](Self::new) does, with a `flush` of a type that has a name, so that a static can hold the result.
    pub fn with(table: T, flush: F) -> Self {
        // No other code has the table, so it has no writer, unless one was forgotten. The right is never given back, because the table
        // lives no longer than this value.
        let is_free = match table.node_locks() {
            None => table.writer_flag().try_take(),
            Some(locks) => locks.add(Block::ALL).is_some(),
        };
        // SAFETY: this value is the only writer.
        unsafe { table.gather_counts() };
        let mut batch = table.batch();
        if !is_free {
            // Nobody knows what the forgotten writer has changed.
            batch.touch_all(FlushScope::Everywhere);
        }
        // SAFETY: the table is ours alone, and the batch came from it.
        unsafe { batch.take_up(table.writer_flag()) };
        Self { batch, table, flush }
    }
}

impl<'n, T: Table<'n>, F: Invalidate> Local<'n, T, F> {
    /// Proves that no node that a walk meets is freed while the proof exists.
    #[inline(always)]
    fn pinned(&self) -> Pinned<'_> {
        // SAFETY: the table is `Private`. Either only this value's batch frees the nodes that its walks reach, and that takes
        // `&mut self`; or the table is in solo mode, and no other code runs during the walk.
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
        self.change(|table, right, _| table.map(right, pages, frame, size, attr))
    }

    /// Unmaps a range; see [`Table::unmap`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::unmap`].
    #[inline]
    pub fn unmap(&mut self, pages: Pages, holes: Holes) -> Result<usize, Error> {
        self.change(|table, right, _| table.unmap(right, pages, holes))
    }

    /// Takes the leaves and marks of a range out of the table, each when the iterator is asked for it; see
    /// [`Writer::drain`](crate::Writer::drain). Before the iterator returns frames, it has flushed, so they belong to the caller at
    /// once, whatever becomes of the iterator. If the flush unwinds, the next call flushes again and returns them.
    ///
    /// # Errors
    ///
    /// Those of [`Writer::drain`](crate::Writer::drain).
    pub fn drain(&mut self, pages: Pages) -> Result<impl Iterator<Item = (Vpn, Uncovered)>, Error> {
        check_ends(&self.table, self.pinned(), pages)?;
        let (mut rest, mut taken) = (Rest::of(pages), None);
        Ok(iter::from_fn(move || {
            // What waits for a flush that has unwound comes next, after that flush.
            self.change(|table, right, _| {
                if taken.is_none() {
                    // The check leaves no error.
                    taken = table.take_next(right, &mut rest).ok().flatten();
                }
            });
            taken.take()
        }))
    }

    /// Moves the leaves and marks of a range to the pages from `to` on, and flushes; see [`Table::move_pages`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::move_pages`].
    pub fn move_pages(&mut self, from: Pages, to: Vpn) -> Result<usize, Error> {
        // The flush of every change follows as soon as this one is made, and names all that this flush does.
        let flushed_next = &mut |_: &Flush| ();
        self.change(|table, right, _| table.move_pages(right, from, to, FlushAll::in_place(flushed_next)))
    }

    /// Changes the attributes of a range; see [`Table::protect`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::protect`].
    #[inline]
    pub fn protect(&mut self, pages: Pages, holes: Holes, change: Change) -> Result<usize, Error> {
        self.change(|table, right, _| table.protect(right, pages, holes, change))
    }

    /// Returns what the entry for the page at `at` holds; see [`Table::entry`].
    #[inline]
    pub fn entry(&self, at: VirtAddr) -> Entry {
        self.table.entry(self.pinned(), at)
    }

    /// Stores a mark, or nothing, in the entry for the page at `at`, flushes, and returns what the entry held before; see
    /// [`Table::mark`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::mark`].
    pub fn mark(&mut self, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        self.change(|table, right, _| table.mark(right, at, mark))
    }

    /// Maps a page whose mark has this payload; see [`Table::fill`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::fill`].
    pub fn fill(&mut self, at: VirtAddr, payload: u64, frame: Pfn) -> Result<(), Error> {
        self.change(|table, right, _| table.fill(right, at, payload, frame))
    }

    /// Replaces the leaf that maps `at`, flushes, and returns the old leaf; see [`Table::replace`]. `with` makes the argument of
    /// [`Table::replace`] from this value's flush function: it is [`FlushAll::in_place`], or a closure that calls
    /// [`FlushAll::breaking`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::replace`].
    pub fn replace(
        &mut self,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        with: impl for<'f> FnOnce(&'f mut dyn FnMut(&Flush)) -> FlushAll<'f>,
    ) -> Result<Leaf, Error> {
        self.change(|table, right, flush| {
            table.replace(right, at, frame, attr, with(&mut |stale| flush.invalidate(stale)))
        })
    }

    /// Splits or promotes the leaves of a range; see [`Table::resize`], and [`replace`](Self::replace) for `with`.
    ///
    /// # Errors
    ///
    /// Those of [`Table::resize`].
    pub fn resize(
        &mut self,
        pages: Pages,
        to: PageSize,
        with: impl for<'f> FnOnce(&'f mut dyn FnMut(&Flush)) -> FlushAll<'f>,
    ) -> Result<(), Error> {
        self.change(|table, right, flush| {
            table.resize(right, pages, to, with(&mut |stale| flush.invalidate(stale)))
        })
    }

    /// Calls `change` with the table, the right to change it and the flush function, then flushes and frees nodes.
    #[inline(always)]
    pub(crate) fn change<R>(&mut self, change: impl FnOnce(&T, Right<'_, 'n>, &mut F) -> R) -> R {
        // SAFETY: `&mut self` excludes any other writer, and the batch came from this table. The callers pass the right to the table.
        let right = unsafe { Right::new(self.table.writer_flag(), &mut self.batch) };
        let done = change(&self.table, right, &mut self.flush);
        self.settle();
        done
    }

    /// Flushes the translations that the last change made stale, then frees the nodes that it retired.
    #[inline(always)]
    fn settle(&mut self) {
        if !self.batch.is_empty() {
            self.flush.invalidate(self.batch.flush());
            // SAFETY: no other CPU walks the table. This CPU is in no walk, and its TLB has just been flushed.
            unsafe { self.batch.complete() };
        }
    }

    /// Returns the memory that the table takes from its node storage.
    pub fn footprint(&self) -> Footprint {
        self.table.footprint()
    }

    /// Returns the table.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// Destroys the table: flushes the TLB, and frees every node.
    pub fn destroy(mut self) {
        let batch = destroy_into(self.table, self.batch);
        self.flush.invalidate(batch.flush());
        // SAFETY: the table is gone, no CPU walks it, and the TLB has just been flushed.
        unsafe { batch.reclaim() };
    }
}
