//! The trait that all page tables implement.

use core::fmt::Debug;
use core::ops::ControlFlow;

use tlbkit_addr::{Attr, FlushScope, PageSize, Pages, Pfn, PhysAddr, VirtAddr, Vpn};

use crate::node_locks::{Block, NodeLock};
use crate::nodes::Held;
use crate::word::atomics::{AtomicUsize, Ordering};
use crate::{
    Entry, Error, FlushAll, Footprint, Leaf, Mark, NestedMissObserver, NodeLocks, PageRanges, Part, Pinned,
    Rest, Retired, Right, Space, Uncovered, moving,
};

/// A page table: a map from virtual pages to frames. Any number of CPUs read it without a lock while one CPU changes it, or several
/// change parts of it ([`NodeLocks`]).
///
/// A reader needs a [`Pinned`]. A change needs a [`Right`], which a [`Writer`](crate::Writer) has, or a [`Local`](crate::Local)
/// where one CPU does everything; with the right to change another table it returns [`Error::OtherTable`]. Every change is all or
/// nothing over its range of pages, and adds the translations that it makes stale to the [`Retired`] batch of the right.
///
/// `'n` is the lifetime of the node storage. The trait is object-safe; kernels use it with static dispatch.
///
/// # Safety
///
/// [`Writer`](crate::Writer), [`Local`](crate::Local) and [`destroy`] free the nodes that a batch owns, and rely on the table
/// that filled the batch. So an implementation promises:
///
/// - [`batch`](Self::batch) returns an empty batch of this table, over the storage that its nodes come from;
///   [`writer_flag`](Self::writer_flag) returns the same flag on every call, and no other table's.
/// - A change pushes only nodes of this table. When it returns, and when it unwinds, no word of any table leads to a node that
///   the batch owns, and the flush names every page that the change has made stale ([`Retired::change`] and
///   [`Retired::change_late`] ensure that where the caller's code may unwind). A change removes nothing from the batch, and
///   keeps no copy of its nodes elsewhere.
/// - A walk reaches only nodes of this table, by words that lead to live nodes; and for the pages that
///   [`borrowed`](Self::borrowed) names, nodes of the table that lends them.
/// - If it has [`node_locks`](Self::node_locks): a change with a batch of a [part](Retired::part) reads and writes only words of the part's
///   node, of those below it, and of the way to it; [`whole_part`](Self::whole_part) returns a part of which that is true of every change.
/// - If the table is [`Send`], its storage may be used by every thread that the table may be sent to.
///
/// ```compile_fail,E0200
/// # #[derive(Debug)]
/// struct Mine;
/// impl tlbkit_pagetable::Table<'static> for Mine {}
/// ```
pub unsafe trait Table<'n>: Debug {
    /// Returns the addresses and sizes that the table maps.
    fn space(&self) -> Space;

    /// Returns the leaf that maps `at`, if there is one. Never fails: an address that the table cannot map is not
    /// mapped.
    ///
    /// If a writer changes the table at the same time, the result was true at some moment of the call.
    fn lookup(&self, pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf>;

    /// Looks `at` up like a machine that reaches the table through its TLB: `observe` is called for every page of a table in
    /// virtual memory, and never for a table in physical memory.
    fn walk(&self, pinned: Pinned<'_>, at: VirtAddr, observe: &mut dyn NestedMissObserver) -> Option<Leaf> {
        let _ = observe;
        self.lookup(pinned, at)
    }

    /// Returns the physical address that `at` is translated to.
    #[inline]
    fn translate(&self, pinned: Pinned<'_>, at: VirtAddr) -> Option<PhysAddr> {
        let leaf = self.lookup(pinned, at)?;
        Some(leaf.phys(at, self.space().base()))
    }

    /// Visits every leaf that maps a page of `pages`, in no particular order, until `visit` breaks. A leaf that extends beyond
    /// the range is visited too, once. Pages outside of the space have no leaves.
    ///
    /// A concurrent change may or may not be observed. A leaf that does not change is visited; a hashed table that grows or
    /// shrinks during the visit may visit it more than once. In [`Solo`](crate::Solo) mode the table must not change during the
    /// visit: a visitor that edits the table may be called with a leaf that never existed.
    fn for_each(
        &self,
        pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()>;

    /// Returns how many bits a [`Mark::Payload`] may have in this table, or `None` if its format has no bits for marks.
    #[inline]
    fn payload_bits(&self) -> Option<u32> {
        None
    }

    /// Returns what the entry for the page at `at` holds: the leaf that [`lookup`](Self::lookup) finds, a mark, or nothing.
    #[inline]
    fn entry(&self, pinned: Pinned<'_>, at: VirtAddr) -> Entry {
        self.lookup(pinned, at).map_or(Entry::Empty, Entry::Leaf)
    }

    /// Visits every leaf that maps a page of `pages`, and every mark of such a page, with the page's address; otherwise as
    /// [`for_each`](Self::for_each).
    fn for_each_entry(
        &self,
        pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.for_each(pinned, pages, &mut |leaf| visit(leaf.at, Entry::Leaf(leaf)))
    }

    /// Returns the memory that the table takes from its node storage. Costs a few loads.
    fn footprint(&self) -> Footprint;

    /// Returns the pages that another table lends to this one. The lender's writer changes these pages and frees the nodes that
    /// map them. So only a walk with a [`Pinned`] may visit them, and this table's writer does not.
    #[inline]
    fn borrowed(&self) -> Option<&PageRanges> {
        None
    }

    /// Returns the flag that the table's only writer holds, if it has one writer at a time; it also names the table to its storage.
    fn writer_flag(&self) -> &WriterFlag;

    /// Returns the locks by which several writers share the table; `None` if it has one writer at a time. It returns the same on every
    /// call. A table with locks refuses changes of pages that are not in the [part](Retired::part) of their batch
    /// ([`Error::OutsideRight`]), and a change of the part stores in the part's node and in those below it alone.
    #[inline(always)]
    fn node_locks(&self) -> Option<&NodeLocks> {
        None
    }

    /// Returns the binary logarithm of the pages that a node covers, `above` levels above the last one: at least the bits of a page
    /// number if there is no such level. A table with [locks](Self::node_locks) says so.
    #[inline(always)]
    fn node_log(&self, above: usize) -> u32 {
        let _ = above;
        usize::BITS
    }

    /// Returns the binary logarithm of the pages that have one lock, at least 1, in a table with [locks](Self::node_locks): those of a
    /// last-level node, if the table does not say otherwise.
    #[inline(always)]
    fn lock_log(&self) -> u32 {
        self.node_log(0)
    }

    /// Adds what writers of single pages have counted beside their locks to the table's own counts, where a change of the whole table
    /// relies on these.
    ///
    /// # Safety
    ///
    /// No other code writes the table meanwhile.
    #[inline(always)]
    unsafe fn gather_counts(&self) {}

    /// Returns the part with all pages that leaves map of which it has a page, if any change of these pages stores in the part's node and
    /// in those below it alone: there is such a node, it keeps an entry that is not the part's, and no leaf extends beyond it.
    ///
    /// # Safety
    ///
    /// No other code writes the pages of the part's block meanwhile.
    unsafe fn whole_part(&self, part: Part) -> Option<Part> {
        let _ = part;
        None
    }

    /// Returns an empty batch for changes to this table.
    fn batch(&self) -> Retired<'n>;

    /// Maps the range `pages` to the frames from `frame` on, in pages of `size`.
    ///
    /// # Errors
    ///
    /// [`Error::WrongSize`], [`Error::OutOfRange`], [`Error::Misaligned`], [`Error::MisalignedFrame`],
    /// [`Error::FrameTooLarge`], [`Error::WrongAttr`], [`Error::Occupied`], [`Error::Marked`], [`Error::Borrowed`] or
    /// [`Error::NoMemory`].
    fn map(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error>;

    /// Unmaps the range `pages`, and returns how many base pages were mapped there. A mark counts as a hole; where holes are
    /// skipped, marks are removed. The caller knows the frames and payloads, or does not need them: [`take_next`](Self::take_next)
    /// returns them.
    ///
    /// The default is a dry run of lookups and a visit, then calls of `take_next` until nothing is left.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::NotMapped`] (unless `holes` are skipped), [`Error::Borrowed`] or [`Error::Partial`].
    fn unmap(&self, mut right: Right<'_, 'n>, pages: Pages, holes: Holes) -> Result<usize, Error> {
        right.reborrow().batch(self.writer_flag())?;
        let mapped = {
            // SAFETY: only the table's writer has such a right, which is borrowed: no batch of the table is completed meanwhile.
            let pinned = unsafe { Pinned::by(&right) };
            check_ends(self, pinned, pages)?;
            let (space, mut mapped) = (self.space(), 0);
            let _ = self.for_each(pinned, pages, &mut |leaf| {
                mapped += space.pages_of(&leaf).len();
                ControlFlow::Continue(())
            });
            if holes == Holes::Refuse && mapped < pages.len() {
                return Err(first_hole(self, pinned, pages));
            }
            mapped
        };
        let mut rest = Rest::of(pages);
        while self.take_next(right.reborrow(), &mut rest)?.is_some() {}
        Ok(mapped)
    }

    /// Takes the next leaf or mark of a range out of the table, and returns its first page and what it held: of a leaf the frames,
    /// which are dirty if hardware had noted that before the entry was emptied. The neighbours that continue the frames with the same
    /// attributes may be taken out with it. Returns `None` if nothing is left. Marks come with the leaves.
    ///
    /// `rest` becomes what is left of the range. Between the first call and the last, no other call changes the range. The order is
    /// ascending, but hashed tables take the entries of a range that has more blocks than they have buckets in the order of the
    /// buckets.
    ///
    /// An error is returned for the range as a whole, as by `unmap`: no call fails after one that has succeeded, if the leaves at
    /// both ends of the range are whole. [`Writer::drain`](crate::Writer::drain) checks all of this before the first call.
    ///
    /// The frames belong to the caller after the flush that the batch asks for.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::Borrowed`], or [`Error::Partial`] if the leaf extends beyond the range. This call has changed
    /// nothing then.
    fn take_next(&self, right: Right<'_, 'n>, rest: &mut Rest) -> Result<Option<(Vpn, Uncovered)>, Error>;

    /// Moves the leaves and marks of the range `from` to the range of the same length that begins with `to`, and returns how many base
    /// pages were mapped: what `mremap` does. Frames, attributes with the status bits, payloads and holes stay as they are. A page is
    /// found at its old place, at its new place or at neither (or at both, in a table that only software walks), and nowhere
    /// else. A status bit that hardware sets meanwhile is not lost.
    ///
    /// A larger page keeps its size if its new place is aligned to it. Otherwise it becomes pages of the largest size of the table
    /// to which its new place is aligned.
    ///
    /// The two ranges may not overlap: a page whose new place is the old one of another page could not come back if the change failed.
    ///
    /// A multi-level table moves a node as a whole, with everything below it, if the distance of the two places is a multiple of what the
    /// node covers, the node has no other entries, and its new place has no node. Then, as the last step of the change,
    /// `flush_all_cpus` is called with the flush that the move needs: a walker that is on the way to the old place, by a link
    /// that it has loaded or that hardware has cached, still finds the node, and must not find there what a later change stores for the
    /// new place. That flush is complete before the next change of the table; if `flush_all_cpus` unwinds, what has moved stays, and the
    /// caller completes the flush before it changes the table again. In all other cases the batch's flush is enough.
    ///
    /// Until that flush, a TLB may translate the old place. So a frame that a later change takes out of the table belongs to the caller
    /// after the flushes of both changes.
    ///
    /// The default costs a lookup and a map for each leaf, a visit of the range for each gap of 16 pages or more between two
    /// entries, and then what [`take_next`](Self::take_next) costs. If memory is short, it unmaps again what it has mapped, and
    /// leaves the flush for that to the batch.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::Borrowed`], [`Error::Overlap`]; [`Error::Partial`] if a leaf extends beyond `from`;
    /// [`Error::Occupied`] or [`Error::Marked`] with a page that the new place has already; [`Error::WrongSize`] or
    /// [`Error::FrameTooLarge`] if the smaller pages that a larger page becomes cannot be encoded; [`Error::NoMemory`].
    fn move_pages(
        &self,
        right: Right<'_, 'n>,
        from: Pages,
        to: Vpn,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<usize, Error> {
        let _ = flush_all_cpus;
        moving::one_by_one(self, right, from, to, moving::first_of_any)
    }

    /// Changes the attributes of the range `pages`, and returns how many base pages were mapped there: PROT1 and
    /// PROTN of Appel and Li. A mark counts as a hole; where holes are skipped, the attributes that a mark with a payload
    /// [keeps](Mark::KEPT) change, too, and need no flush.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::WrongAttr`], [`Error::NotMapped`] (unless `holes` are skipped),
    /// [`Error::Borrowed`] or [`Error::Partial`].
    fn protect(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error>;

    /// Replaces the leaf that maps `at` by one of the same size that leads to `frame`, in one store. Returns the old leaf, with
    /// the status bits that hardware set in it before that store. No walker finds the page absent; until the flush a walker may
    /// find the old leaf. The new leaf leads to as many frames from `frame` on as the old one: [`resize`](Self::resize) first splits
    /// a leaf of which one page alone gets another frame.
    ///
    /// If the format's [`BREAK_FRAME`](crate::format::Format::BREAK_FRAME) is set, the entry is empty while `flush_all_cpus` is
    /// called.
    ///
    /// A page that occupies several slots is replaced slot by slot.
    ///
    /// # Errors
    ///
    /// [`Error::Breaks`] if the entry must be empty for a while, and `flush_all_cpus` allows no [break](FlushAll::breaking);
    /// [`Error::OutOfRange`], [`Error::NotMapped`], [`Error::Borrowed`], [`Error::MisalignedFrame`], [`Error::FrameTooLarge`] or
    /// [`Error::WrongAttr`].
    fn replace(
        &self,
        right: Right<'_, 'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<Leaf, Error>;

    /// Tells whether [`replace`](Self::replace) empties the entry for a while: its format's
    /// [`BREAK_FRAME`](crate::format::Format::BREAK_FRAME).
    fn breaks_frames(&self) -> bool;

    /// Makes every leaf of the range `pages` one of size `to`: splits larger leaves, and promotes smaller leaves whose frames
    /// are contiguous and aligned and whose rights agree. A larger page is accessed or dirty if one of its parts was; the parts
    /// of a split page keep its status bits.
    ///
    /// Entries change in place, each by one store or exchange, so that every page of the range is mapped at every moment, unless
    /// the hardware requires break-before-make ([`breaks`](Self::breaks)): then the range changes part by part, and the entries
    /// of a part are empty until `flush_all_cpus` has returned.
    ///
    /// The flush names one part of the range and the pages that share TLB entries with it. `flush_all_cpus` is called for each part
    /// that is emptied, and after small pages have become a larger one in place, because hardware may set status bits in the old
    /// entries until the flush. It is not called for a part that is split in place, or promoted with all status bits set.
    ///
    /// # Errors
    ///
    /// [`Error::Breaks`] as for [`replace`](Self::replace); [`Error::WrongSize`], [`Error::OutOfRange`], [`Error::Misaligned`],
    /// [`Error::NotMapped`], [`Error::NotUniform`], [`Error::Partial`], [`Error::Borrowed`] or [`Error::NoMemory`].
    fn resize(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        to: PageSize,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<(), Error>;

    /// Stores a mark, or nothing, in the entry for the page at `at`, with one store. Returns what the entry held before: a leaf
    /// of the base size with the status bits that hardware set before the store, another mark, or nothing. Only a leaf needs a
    /// flush. Its frame belongs to the caller only after the batch's shootdown has completed.
    ///
    /// # Errors
    ///
    /// [`Error::WrongMark`], always for tables without marks; [`Error::WrongAttr`] if a mark cannot keep the attributes;
    /// [`Error::OutOfRange`]; [`Error::Partial`] if a larger page maps it; [`Error::Borrowed`] or [`Error::NoMemory`].
    fn mark(&self, right: Right<'_, 'n>, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        let _ = (right, mark);
        let pages = Pages::one(at.vpn(self.space().base()));
        self.space().check_pages(pages)?;
        Err(Error::WrongMark)
    }

    /// Maps the page at `at`, whose mark has this payload, to `frame`, with one store, and with the attributes that the mark keeps.
    /// The flush is that of a page which is mapped for the first time: no TLB holds a translation of the page.
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] if the mark has another payload, [`Error::NotMapped`] if there is no payload, [`Error::Occupied`] if a
    /// leaf is there; [`Error::OutOfRange`], [`Error::FrameTooLarge`] or [`Error::Borrowed`].
    fn fill(&self, right: Right<'_, 'n>, at: VirtAddr, payload: u64, frame: Pfn) -> Result<(), Error> {
        let _ = (right, payload, frame);
        self.space().check_pages(Pages::one(at.vpn(self.space().base())))?;
        Err(Error::NotMapped { at })
    }

    /// Tells whether [`resize`](Self::resize) empties entries for a while: its format's
    /// [`BREAK`](crate::format::Format::BREAK).
    fn breaks(&self) -> bool;

    /// Dismantles the table: unmaps all pages and retires every node, the root included. Borrowed nodes are not retired.
    ///
    /// # Safety
    ///
    /// The caller is the table's only writer, and `batch` came from this table. The table is not used any more.
    unsafe fn dismantle(&mut self, batch: &mut Retired<'n>);
}

/// A table whose nodes no other CPU frees during a walk. [`Local`](crate::Local) wraps such a table.
///
/// # Safety
///
/// Only a batch of this table frees nodes that its walks reach; or the table is in [`Solo`](crate::Solo) mode, and so is the
/// table that lends it a part.
///
/// ```compile_fail,E0271
/// # use tlbkit_pagetable::nodes::{Chunk, Slab};
/// # use tlbkit_pagetable::{Local, Shared, mpt};
/// # let mut memory = vec![Chunk::ZERO; 16];
/// let slab = Slab::<u64, Shared>::new(&mut memory, 0).unwrap();
/// let kernel = mpt::Mpt4::new(&slab).unwrap();
/// // The kernel's writer may free what the lookups of this table walk.
/// let table = Local::new(mpt::Mpt4::sharing(&kernel).unwrap(), |_flush| ());
/// ```
pub unsafe trait Private<'n>: Table<'n> {}

/// Destroys a table and returns the obligation that owns all its nodes. The obligation's flush covers the whole address space
/// ([`Flush::is_all`](tlbkit_addr::Flush::is_all)) on all CPUs.
///
/// Dropping a table without this leaks its nodes and counts them as lost.
pub fn destroy<'n, T: Table<'n>>(table: T) -> Retired<'n> {
    let batch = table.batch();
    destroy_into(table, batch)
}

/// Destroys a table as [`destroy`] does, and adds its nodes to a batch of the table.
pub(crate) fn destroy_into<'n, T: Table<'n>>(mut table: T, mut batch: Retired<'n>) -> Retired<'n> {
    // SAFETY: this function owns the table and drops it, so no other code uses it.
    unsafe {
        batch.take_up(table.writer_flag());
        table.dismantle(&mut batch);
    }
    batch.touch_all(FlushScope::Everywhere);
    batch.outlive();
    batch
}

/// Checks that a range is in the space, that nothing of it is borrowed, and that no leaf extends beyond it.
pub(crate) fn check_ends<'n>(
    table: &(impl Table<'n> + ?Sized),
    pinned: Pinned<'_>,
    pages: Pages,
) -> Result<(), Error> {
    let space = table.space();
    space.check_pages(pages)?;
    if let Some(borrowed) = table.borrowed().and_then(|borrowed| borrowed.first_in(pages)) {
        return Err(Error::Borrowed { at: borrowed.address(space.base()) });
    }
    for end in [pages.first(), pages.last()] {
        if let Some(leaf) = table.lookup(pinned, end.address(space.base())) {
            space.check_whole(leaf, pages)?;
        }
    }
    Ok(())
}

/// Returns the error for the first page of a range that is not mapped. There is such a page, and no leaf extends beyond the range.
#[cold]
fn first_hole<'n>(table: &(impl Table<'n> + ?Sized), pinned: Pinned<'_>, pages: Pages) -> Error {
    let (space, mut rest) = (table.space(), Rest::of(pages));
    let mut at = pages.first().address(space.base());
    while let Some(leaf) = table.lookup(pinned, at) {
        rest.go_past(space.pages_of(&leaf).last());
        let Some(pages) = rest.pages() else { break };
        at = pages.first().address(space.base());
    }
    Error::NotMapped { at }
}

/// How a change treats pages of its range that are not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// It fails with [`Error::NotMapped`] and changes nothing.
    Refuse,
    /// It skips them.
    Skip,
}

/// A change of attributes: those to clear, then those to set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Attributes that the page loses.
    pub clear: Attr,
    /// Attributes that the page gets.
    pub set: Attr,
}

impl Change {
    /// A page becomes read-only until its frame is copied: the next store is a copy-on-write fault. What fork does to the pages of
    /// both spaces, and what `mprotect` with the right to write does to a page whose frame others may map, too.
    pub const COPY_ON_WRITE: Self = Self { clear: Attr::WRITE, set: Attr::COPY_ON_WRITE };
    /// A page becomes read-only for good: what `mprotect` without the right to write does. To clear [`Attr::WRITE`] alone would not
    /// be enough: a page that fork has made read-only keeps [`Attr::COPY_ON_WRITE`], so the next store would make it writable.
    pub const READ_ONLY: Self = Self::clear(Attr::WRITE.union(Attr::COPY_ON_WRITE));

    /// Returns the change that clears these attributes.
    pub const fn clear(attr: Attr) -> Self {
        Self { clear: attr, set: Attr::empty() }
    }

    /// Returns the change that sets these attributes.
    pub const fn set(attr: Attr) -> Self {
        Self { clear: Attr::empty(), set: attr }
    }

    /// Applies the change to `attr`.
    #[inline(always)]
    pub const fn apply(self, attr: Attr) -> Attr {
        attr.difference(self.clear).union(self.set)
    }

    /// Returns the flush scope of the change: [`FlushScope::of_change`].
    #[inline(always)]
    pub const fn scope(self) -> FlushScope {
        FlushScope::of_change(self.clear.difference(self.set), self.set)
    }
}

/// The flag that a table's only writer holds, and the number by which the node storage knows the table.
#[derive(Debug, Default)]
pub struct WriterFlag {
    /// Is held by the writer of a table that has one at a time.
    lock: NodeLock,
    number: u32,
    /// The number of forgotten debts of the storage ([`Held`]) when the table was made, or when a writer last took up the flush that
    /// they ask for.
    settled: AtomicUsize,
}

impl WriterFlag {
    /// Returns the flag of a new table with nodes from the storage of `held`. If a table uses the flag of
    /// [`default`](Self::default) instead, no writer takes up its dropped obligations.
    pub fn new(held: &Held) -> Self {
        Self { lock: NodeLock::default(), number: held.number(), settled: AtomicUsize::new(held.forgotten()) }
    }

    #[inline(always)]
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    #[inline(always)]
    pub(crate) fn settled(&self) -> usize {
        self.settled.load(Ordering::Relaxed)
    }

    /// Notes that the table's batch flushes everything for the first `forgotten` debts that were forgotten. The caller is the table's
    /// only writer.
    pub(crate) fn settle(&self, forgotten: usize) {
        self.settled.store(forgotten, Ordering::Relaxed);
    }

    /// Takes the flag and tells whether it was free.
    #[inline(always)]
    pub(crate) fn try_take(&self) -> bool {
        self.lock.try_take(Block::ALL)
    }

    /// Returns the lock.
    #[inline(always)]
    pub(crate) const fn lock(&self) -> &NodeLock {
        &self.lock
    }

    #[inline(always)]
    pub(crate) fn give_back(&self) {
        self.lock.give_back();
    }
}
