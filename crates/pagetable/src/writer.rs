//! The writer of a table that other CPUs walk: of the whole table, of a range, or of one page.

use core::iter;
use core::marker::PhantomData;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};

use crate::node_locks::{Block, NodeLock};
use crate::table::check_ends;
use crate::{
    Change, Entry, Error, FlushAll, Holes, Leaf, Mark, NodeLocks, Part, Pending, Pinned, Rest, Retired,
    Right, Table, Uncovered,
};

/// The right to write a table, or a part of it, without a batch.
///
/// Of those to write one page there is at most one; a [`Writer`] contains one.
#[derive(Debug)]
pub struct Turn<'t, 'n, T: Table<'n> + ?Sized> {
    table: &'t T,
    /// What this right has taken.
    taken: Taken<'t>,
    /// `None`: the whole table.
    part: Option<Part>,
    nodes: PhantomData<&'n ()>,
}

/// What gives a right to write, and is given back at its end.
#[derive(Debug)]
enum Taken<'t> {
    /// Nothing: no other code writes the table.
    Nothing,
    /// The table's flag.
    Flag,
    /// The lock of a last-level node.
    Node(&'t NodeLock),
    /// A place in the list of blocks.
    Block(&'t NodeLocks, usize),
}

impl<'t, 'n, T: Table<'n> + ?Sized> Turn<'t, 'n, T> {
    /// Takes the right to write `table`.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if other code has the right to write a page of it. This function does not wait: the kernel chooses how to wait.
    #[inline(always)]
    pub fn new(table: &'t T) -> Result<Self, Error> {
        Self::over(table, None, &mut || false)
    }

    /// Takes the right to write `pages`, or with `None` all pages. In a table without [locks](Table::node_locks) it is the right to write
    /// the table, and does not wait.
    ///
    /// Waits for writers of single pages that began before: calls `wait` until they have ended, or until it returns `false`. No writer of
    /// a page of the range begins meanwhile, so this ends soon. Costs a compare-and-swap and a walk for a range in one node, otherwise a
    /// load for each of the 32 locks.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if another writer of a range has a page that a change of `pages` may concern: one below the same node. So it does if
    /// `wait` has returned `false`.
    #[inline(always)]
    pub fn over(table: &'t T, pages: Option<Pages>, wait: &mut dyn FnMut() -> bool) -> Result<Self, Error> {
        match table.node_locks() {
            None if table.writer_flag().try_take() => {
                Ok(Self { table, taken: Taken::Flag, part: None, nodes: PhantomData })
            }
            None => Err(Error::Busy),
            Some(locks) => Self::over_block(table, locks, pages, wait),
        }
    }

    /// Tells whether [`over`](Self::over) would have to wait for writers of single pages at most, for as much as is known without the right
    /// to write. It takes nothing, so nobody gives way to it.
    #[cold]
    pub fn may_be_taken(table: &'t T, pages: Option<Pages>) -> bool {
        match table.node_locks() {
            None => table.writer_flag().lock().is_free(),
            Some(locks) => {
                let block = pages.map(|pages| Block::around(pages, 0, |above| table.node_log(above)).0);
                locks.has_place(block.unwrap_or(Block::ALL))
            }
        }
    }

    #[inline(never)]
    fn over_block(
        table: &'t T,
        locks: &'t NodeLocks,
        pages: Option<Pages>,
        wait: &mut dyn FnMut() -> bool,
    ) -> Result<Self, Error> {
        let block = |from| match pages {
            None => (Block::ALL, None),
            Some(pages) => {
                let (block, above) = Block::around(pages, from, |above| table.node_log(above));
                (block, (block != Block::ALL).then_some(Part { pages, above }))
            }
        };
        let mut turn = Self { table, taken: Taken::Nothing, part: None, nodes: PhantomData };
        let (mut held, mut part) = block(0);
        if let Some(wanted @ Part { above: 0, .. }) = part
            && let Some(lock) = locks.try_node(wanted.pages.first(), table.node_log(0))
        {
            turn.taken = Taken::Node(lock);
            // SAFETY: no other code writes a page of the node.
            turn.part = unsafe { table.whole_part(wanted) };
            if turn.part.is_some() {
                lock.begin_edit();
                return Ok(turn);
            }
            // A change of the part concerns nodes above it.
            lock.give_back();
            turn.taken = Taken::Nothing;
            (held, part) = block(1);
        }
        let place = locks.add(held).ok_or(Error::Busy)?;
        // From here on the place is given back if `wait` unwinds.
        turn.taken = Taken::Block(locks, place);
        loop {
            while !locks.is_clear(held) {
                // In the list it would keep writers of other nodes away for as long as the edit takes.
                if !wait() || locks.is_edited(held) {
                    return Err(Error::Busy);
                }
            }
            let Some(wanted) = part else {
                // SAFETY: no other code writes the table.
                unsafe { table.gather_counts() };
                return Ok(turn);
            };
            // SAFETY: no other code writes a page of the block.
            turn.part = unsafe { table.whole_part(wanted) };
            if turn.part.is_some() {
                return Ok(turn);
            }
            (held, part) = block(wanted.above + 1);
            if !locks.widen(place, held) {
                turn.taken = Taken::Nothing;
                return Err(Error::Busy);
            }
        }
    }

    /// Takes the right to write `table` without checking whether it is taken.
    ///
    /// # Safety
    ///
    /// No other code has the right to write a page of it while this value exists.
    #[inline(always)]
    pub unsafe fn sole(table: &'t T) -> Self {
        // SAFETY: this function's contract.
        unsafe { table.gather_counts() };
        Self { table, taken: Taken::Nothing, part: None, nodes: PhantomData }
    }

    /// Returns the table.
    #[inline(always)]
    pub const fn table(&self) -> &'t T {
        self.table
    }
}

impl<'n, T: Table<'n> + ?Sized> Drop for Turn<'_, 'n, T> {
    #[inline(always)]
    fn drop(&mut self) {
        match self.taken {
            Taken::Nothing => {}
            Taken::Flag => self.table.writer_flag().give_back(),
            Taken::Node(lock) => lock.end_edit(),
            Taken::Block(locks, place) => locks.remove(place),
        }
    }
}

/// The right to change the entry of one page: see [`mpt::Slot`](crate::mpt::Slot) and [`hpt::Slot`](crate::hpt::Slot).
#[derive(Debug)]
pub struct PageTurn<'t, 'n, T: Table<'n> + ?Sized> {
    table: &'t T,
    page: Vpn,
    /// The [lock](Table::lock_log) of the page, or of a table that has one writer at a time; `None`: no other code writes the table.
    lock: Option<&'t NodeLock>,
    nodes: PhantomData<&'n ()>,
}

impl<'t, 'n, T: Table<'n> + ?Sized> PageTurn<'t, 'n, T> {
    /// Takes the right to change a page. Costs a compare-and-swap, and with [locks](Table::node_locks) a load; with them it pauses at most 16
    /// times while another CPU changes a page of the same node, as long as a change of one page takes.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if other code has the right to write the page, or in a few cases another page.
    #[inline(always)]
    pub fn new(table: &'t T, page: Vpn) -> Result<Self, Error> {
        let lock = match table.node_locks() {
            None => Some(table.writer_flag().lock()).filter(|lock| lock.try_take(Block::ALL)),
            Some(locks) => locks.try_node(page, table.lock_log()),
        };
        if lock.is_none() {
            return Err(Error::Busy);
        }
        Ok(Self { table, page, lock, nodes: PhantomData })
    }

    /// Takes the right to change a page without checking whether it is taken.
    ///
    /// # Safety
    ///
    /// No other code has the right to write a page of the table while this value exists.
    #[inline(always)]
    pub const unsafe fn sole(table: &'t T, page: Vpn) -> Self {
        Self { table, page, lock: None, nodes: PhantomData }
    }

    /// Returns the table.
    #[inline(always)]
    pub const fn table(&self) -> &'t T {
        self.table
    }

    /// Returns the page.
    #[inline(always)]
    pub const fn page(&self) -> Vpn {
        self.page
    }

    /// Returns the lock that gives the right, if there is one.
    #[inline(always)]
    pub(crate) const fn lock(&self) -> Option<&'t NodeLock> {
        self.lock
    }
}

impl<'n, T: Table<'n> + ?Sized> Drop for PageTurn<'_, 'n, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(lock) = self.lock {
            lock.give_back();
        }
    }
}

/// The right to write a table or a part of it, and the batch that collects the writer's changes.
///
/// Of those that may change one page there is at most one. [`finish`](Self::finish) gives the right back and returns the batch: execute the batch's
/// flush on every CPU, then reclaim the batch. If the writer is dropped instead, the flush and the nodes become a debt of the
/// table, which the next writer's batch takes up with its first change. (The next writer is one of the whole table, whatever pages it
/// asks for.)
#[derive(Debug)]
#[must_use = "its changes still need a flush: finish the writer, and pass the batch to a shootdown"]
pub struct Writer<'t, 'n, T: Table<'n> + ?Sized> {
    table: &'t T,
    /// `None` before the first change and the first cursor.
    batch: Option<Retired<'n>>,
    /// The last field, so that it is dropped after the batch: the next writer then finds the batch's debt.
    turn: Turn<'t, 'n, T>,
}

impl<'t, 'n, T: Table<'n> + ?Sized> Writer<'t, 'n, T> {
    /// Becomes the writer of `table`.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if the table has a writer. This function does not wait: the kernel chooses how to wait.
    #[inline(always)]
    pub fn new(table: &'t T) -> Result<Self, Error> {
        Turn::new(table).map(Self::of)
    }

    /// Becomes the writer of `pages`, and excludes no writer of other pages, where the table has [locks](Table::node_locks) and the range
    /// is small enough: see [`Turn::over`]. A change of another page returns [`Error::OutsideRight`].
    ///
    /// # Errors
    ///
    /// Those of [`Turn::over`].
    pub fn over(table: &'t T, pages: Pages, wait: &mut dyn FnMut() -> bool) -> Result<Self, Error> {
        Turn::over(table, Some(pages), wait).map(Self::of)
    }

    /// Becomes the writer with a right that was taken before.
    #[inline(always)]
    pub const fn of(turn: Turn<'t, 'n, T>) -> Self {
        Self { table: turn.table, batch: None, turn }
    }

    /// Returns the table.
    #[inline(always)]
    pub const fn table(&self) -> &'t T {
        self.table
    }

    /// Tells whether this is the writer of the whole table.
    #[inline(always)]
    pub(crate) const fn is_whole(&self) -> bool {
        self.turn.part.is_none()
    }

    /// Tells whether this is the writer of all of `pages`.
    #[inline(always)]
    pub fn may_write(&self, pages: Pages) -> bool {
        self.turn.part.is_none_or(|part| part.covers(pages))
    }

    /// Returns the table, and the batch, which knows the part that this is the writer of.
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> (&'t T, &mut Retired<'n>) {
        let table = self.table;
        (table, self.batch())
    }

    /// Returns the batch.
    #[inline(always)]
    fn batch(&mut self) -> &mut Retired<'n> {
        match self.batch {
            Some(ref mut batch) => batch,
            ref mut none => begin(none, self.table, self.turn.part.as_ref()),
        }
    }

    /// Returns the right to change the table.
    #[inline(always)]
    pub(crate) fn right(&mut self) -> Right<'_, 'n> {
        let flag = self.table.writer_flag();
        // SAFETY: this is the only writer of the batch's part, and `batch` returns a batch of this table. The methods and cursors pass the
        // right to the table.
        unsafe { Right::new(flag, self.batch()) }
    }

    /// Maps a range; see [`Table::map`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::map`].
    #[inline]
    pub fn map(&mut self, pages: Pages, frame: Pfn, size: PageSize, attr: Attr) -> Result<(), Error> {
        let table = self.table;
        table.map(self.right(), pages, frame, size, attr)
    }

    /// Unmaps a range; see [`Table::unmap`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::unmap`].
    #[inline]
    pub fn unmap(&mut self, pages: Pages, holes: Holes) -> Result<usize, Error> {
        let table = self.table;
        table.unmap(self.right(), pages, holes)
    }

    /// Takes the leaves and marks of a range out of the table, each when the iterator is asked for it: see [`Table::take_next`].
    /// Nothing that can fail is left to the iterator, so a range is taken out up to its end or up to where the caller stops. When the
    /// iterator is dropped or forgotten, the rest of the range stays mapped.
    ///
    /// The frames belong to the caller after the flush that the writer's obligation asks for.
    ///
    /// ```
    /// use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
    /// use tlbkit_pagetable::nodes::{Chunk, Slab};
    /// use tlbkit_pagetable::{Run, Shared, Uncovered, Writer, mpt};
    ///
    /// let mut memory = vec![Chunk::ZERO; 16];
    /// let slab = Slab::<u64, Shared>::new(&mut memory, 0)?;
    /// let table = mpt::Mpt4::new(&slab)?;
    /// let mut writer = Writer::new(&table)?;
    /// let pages = Pages::count(Vpn::new(16), 16).unwrap();
    /// writer.map(pages, Pfn::new(64), PageSize::K4, Attr::READ)?;
    /// let uncovered: Vec<_> = writer.drain(pages)?.collect();
    /// let run = Run { first: Pfn::new(64), len: 16, dirty: false };
    /// assert_eq!(uncovered, [(Vpn::new(16), Uncovered::Frames(run))]);
    /// // Carry this and the frames through a shootdown, then reclaim it.
    /// let retired = writer.finish();
    /// # // SAFETY: no CPU walks the table.
    /// # unsafe { retired.reclaim() };
    /// # unsafe { tlbkit_pagetable::destroy(table).reclaim() };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::Borrowed`], or [`Error::Partial`] if a leaf extends beyond the range. Nothing has changed
    /// then.
    pub fn drain(&mut self, pages: Pages) -> Result<impl Iterator<Item = (Vpn, Uncovered)>, Error> {
        let (table, first) = (self.table, pages.first());
        if !self.may_write(pages) {
            return Err(Error::OutsideRight { at: first.address(table.space().base()) });
        }
        // SAFETY: this is the only writer of the pages, and no batch is completed during the check.
        check_ends(table, unsafe { Pinned::by(self) }, pages)?;
        let mut rest = Rest::of(pages);
        // The check leaves no error.
        Ok(iter::from_fn(move || self.take_next(&mut rest).ok().flatten()))
    }

    /// Takes the next leaf or mark of a range out of the table; see [`Table::take_next`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::take_next`].
    #[inline]
    pub fn take_next(&mut self, rest: &mut Rest) -> Result<Option<(Vpn, Uncovered)>, Error> {
        let table = self.table;
        table.take_next(self.right(), rest)
    }

    /// Moves the leaves and marks of a range to the pages from `to` on; see [`Table::move_pages`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::move_pages`].
    pub fn move_pages(&mut self, from: Pages, to: Vpn, flush_all: FlushAll<'_>) -> Result<usize, Error> {
        let table = self.table;
        table.move_pages(self.right(), from, to, flush_all)
    }

    /// Changes the attributes of a range; see [`Table::protect`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::protect`].
    #[inline]
    pub fn protect(&mut self, pages: Pages, holes: Holes, change: Change) -> Result<usize, Error> {
        let table = self.table;
        table.protect(self.right(), pages, holes, change)
    }

    /// Replaces the leaf that maps `at`; see [`Table::replace`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::replace`].
    #[inline]
    pub fn replace(
        &mut self,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        flush_all: FlushAll<'_>,
    ) -> Result<Leaf, Error> {
        let table = self.table;
        table.replace(self.right(), at, frame, attr, flush_all)
    }

    /// Splits or promotes the leaves of a range; see [`Table::resize`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::resize`].
    pub fn resize(&mut self, pages: Pages, to: PageSize, flush_all: FlushAll<'_>) -> Result<(), Error> {
        let table = self.table;
        table.resize(self.right(), pages, to, flush_all)
    }

    /// Stores a mark, or nothing, in the entry for the page at `at`; see [`Table::mark`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::mark`].
    #[inline]
    pub fn mark(&mut self, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        let table = self.table;
        table.mark(self.right(), at, mark)
    }

    /// Maps a page whose mark has this payload; see [`Table::fill`].
    ///
    /// # Errors
    ///
    /// Those of [`Table::fill`].
    #[inline]
    pub fn fill(&mut self, at: VirtAddr, payload: u64, frame: Pfn) -> Result<(), Error> {
        let table = self.table;
        table.fill(self.right(), at, payload, frame)
    }

    /// Returns the obligation for the changes so far, which remains the writer's, or `None` before the first change
    /// and the first cursor.
    #[inline(always)]
    pub fn pending(&mut self) -> Option<Pending<'_, 'n>> {
        self.batch.as_mut().map(Pending::of)
    }

    /// Gives the right to write back and returns the obligation.
    pub fn finish(mut self) -> Retired<'n> {
        let _ = self.batch();
        let table = self.table;
        self.batch.take().unwrap_or_else(|| table.batch())
    }
}

/// Creates the batch of a writer of `table`, or of a part of it. It is created in place, because it is too large to be moved.
#[inline(never)]
fn begin<'b, 'n, T: Table<'n> + ?Sized>(
    none: &'b mut Option<Retired<'n>>,
    table: &T,
    part: Option<&Part>,
) -> &'b mut Retired<'n> {
    let batch = none.insert(table.batch());
    batch.set_part(part.copied());
    // There is no debt when a part is taken. The pages of a later one are another writer's, and their next writer must find it.
    if part.is_none() {
        // SAFETY: the caller is the only writer, and the batch came from this table.
        unsafe { batch.take_up(table.writer_flag()) };
    }
    batch
}
