//! A cursor: a position in an address space, for page-fault handlers and for changes of one page after another.

use core::fmt;
use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Format as _, change_mark, check_change, mark_of, mark_word};
use tlbkit_pagetable::{
    Change, Entry, Error, FlushAll, Leaf, Mark, PageCursor as _, Pinned, Run, Table as _, Uncovered,
};

use crate::counted::{pfn, typed};
use crate::edit::clears_dirty;
use crate::owned::Owned;
use crate::settle::{Changes, needs_force, status};
use crate::storage::{Format, TableCursor};
use crate::{Access, Fault, FrameOf, Kernel};

/// A page of an address space, from [`Edit::cursor`](crate::Edit::cursor). Several operations at that page and at the next pages
/// share one walk.
///
/// The changes belong to the edit: each is all or nothing, and the edit flushes them. A page that is shared with the kernel's own
/// address space can be looked up, and its faults are resolved; a change returns [`Error::Borrowed`].
///
/// A page-fault handler. [`Edit::fault_cursor`](crate::Edit::fault_cursor) returns no cursor for an address that no page can have:
///
/// ```no_run
/// # use tlbkit::{Access, AddressSpace, Attr, Error, Fault, Kernel, Pfn, VirtAddr, arch};
/// # const RIGHTS: Attr = Attr::READ;
/// # fn fresh() -> Pfn { Pfn::new(1) }
/// # fn is_sole(_frame: Pfn) -> bool { false }
/// # fn copy(of: Pfn) -> Result<Pfn, Error> { Ok(of) }
/// fn on_fault<K: Kernel<Machine = arch::Sv32>>(space: &AddressSpace<K>, at: VirtAddr, access: Access) -> Result<Fault, Error> {
///     space.edit(|edit| {
///         let (fault, cursor) = edit.fault_cursor(at, access)?;
///         if let Some(mut cursor) = cursor {
///             match fault {
///                 Fault::NotMapped => cursor.map(fresh(), RIGHTS)?,
///                 Fault::CopyOnWrite(_) => cursor.unshare(is_sole, copy)?,
///                 // The contents are read after the edit, and then `fill` is called: another CPU does not wait for a disk.
///                 Fault::Swapped(_) => {}
///                 Fault::Retry | Fault::Refused(_) | Fault::NoRight(_) | Fault::Closed(_) | Fault::Guard => {}
///             }
///         }
///         Ok(fault)
///     })
/// }
/// ```
pub struct Cursor<'c, K: Kernel, const CPUS: usize = 1> {
    pub(crate) changes: Changes<'c, K, CPUS>,
    pub(crate) cursor: TableCursor<'c, K>,
}

impl<K: Kernel, const CPUS: usize> Cursor<'_, K, CPUS> {
    /// Returns the first address of the page that the cursor is at.
    #[inline]
    pub fn at(&self) -> VirtAddr {
        self.cursor.page().address(self.changes.space.base())
    }

    /// Returns the leaf that maps the page. Costs a load, or a walk for a page that is shared with the kernel's own address space.
    #[inline(always)]
    pub fn look(&self) -> Option<Leaf<FrameOf<K>>> {
        typed::<K, _>(self.leaf())
    }

    /// Returns the leaf that maps the page.
    #[inline(always)]
    pub(crate) fn leaf(&self) -> Option<Leaf> {
        self.cursor.look().or_else(|| self.shared_entry().leaf())
    }

    /// Returns what the entry for the page holds: a leaf, a mark, or nothing. Costs as much as [`look`](Self::look).
    #[inline]
    pub fn entry(&self) -> Entry<FrameOf<K>> {
        let entry = match self.cursor.entry() {
            Entry::Empty => self.shared_entry(),
            entry => entry,
        };
        typed::<K, _>(entry)
    }

    /// Returns what the entry for the page holds if the page is shared with the kernel's own address space.
    #[inline]
    fn shared_entry(&self) -> Entry {
        if self.changes.space.lender_of(self.at()).is_none() {
            return Entry::Empty;
        }
        let _section = self.changes.space.section_of_shared(Pages::one(self.cursor.page()));
        // SAFETY: inside an edit interrupts are masked, and this walk, in a section, serves no shootdown. The kernel's own address space
        // waits for this CPU before it frees a node.
        self.changes.space.table.entry(unsafe { Pinned::by(self) }, self.at())
    }

    /// Stores a mark in the entry for the page, and returns what the entry held before; see [`Edit::mark`](crate::Edit::mark).
    ///
    /// # Errors
    ///
    /// As [`Edit::mark`](crate::Edit::mark).
    pub fn mark(&mut self, mark: Mark) -> Result<Entry<FrameOf<K>>, Error> {
        if let (Mark::Payload(..), Some(leaf)) = (mark, self.cursor.look()) {
            return Err(Error::Occupied { at: leaf.at, size: leaf.size });
        }
        typed::<K, _>(self.store_mark(mark))
    }

    fn store_mark(&mut self, mark: Mark) -> Result<Entry, Error> {
        let page = Pages::one(self.cursor.page());
        self.changes.flush_deferred(page);
        self.changes.make_room(Some(self.cursor.pending()));
        let old = self.cursor.mark(Some(mark))?;
        if let Entry::Leaf(leaf) = &old {
            self.changes.uncover(leaf);
        }
        // A mark may need new nodes, whose absence a CPU may keep.
        self.changes.put_in_force(Some(self.cursor.pending()), page, Attr::USER);
        Ok(old)
    }

    /// Begins to page the page out: no CPU stores to its frame from the end of the edit on; see
    /// [`Edit::freeze`](crate::Edit::freeze).
    ///
    /// # Errors
    ///
    /// As [`Edit::freeze`](crate::Edit::freeze).
    pub fn freeze(&mut self) -> Result<Leaf<FrameOf<K>>, Error> {
        typed::<K, _>(self.freeze_leaf())
    }

    fn freeze_leaf(&mut self) -> Result<Leaf, Error> {
        let leaf = self.small_leaf()?;
        // Refuses a page that `page_out` would refuse.
        mark_word::<Format<K>>(Mark::Payload(0, attr_out(leaf.attr)))?;
        let mut change = Change::clear(leaf.attr.intersection(Attr::DIRTY));
        if leaf.attr.contains(Attr::WRITE) {
            // Hardware may set this bit until the change is made.
            let dirty = Attr::DIRTY.intersection(Format::<K>::OPTIONAL);
            change = Change { clear: Attr::WRITE.union(dirty), set: Attr::COPY_ON_WRITE };
        }
        check_change::<Format<K>>(change)?;
        let run = Run { first: leaf.frame, len: 1, dirty: false };
        let shared = Owned::shared(self.changes.space.mmu.kernel(), Uncovered::Frames(run));
        let mut frozen = leaf;
        if change != Change::default() {
            frozen = self.cursor.protect(change)?;
            *self.changes.cleared |= clears_dirty(change);
        }
        shared.keep();
        Ok(frozen)
    }

    /// Stores a mark with `payload` in place of the leaf that maps the page to `frame`, if no CPU has written the page since it was
    /// [frozen](Self::freeze); see [`Edit::page_out`](crate::Edit::page_out).
    ///
    /// # Errors
    ///
    /// As [`Edit::page_out`](crate::Edit::page_out).
    pub fn page_out(&mut self, frame: FrameOf<K>, payload: u64) -> Result<(), Error> {
        let leaf = self.small_leaf()?;
        if leaf.frame != pfn::<K>(frame) || leaf.attr.intersects(Attr::WRITE.union(Attr::DIRTY)) {
            return Err(Error::Changed { at: self.at() });
        }
        self.store_mark(Mark::Payload(payload, attr_out(leaf.attr))).map(drop)
    }

    /// Returns the leaf that maps the page, which must be a base page of this address space.
    fn small_leaf(&self) -> Result<Leaf, Error> {
        let at = self.at();
        if self.changes.space.lender_of(at).is_some() {
            return Err(Error::Borrowed { at });
        }
        let leaf = self.cursor.look().ok_or(Error::NotMapped { at })?;
        let whole = Error::Partial { at: leaf.at, size: leaf.size };
        if leaf.size == self.changes.space.base() { Ok(leaf) } else { Err(whole) }
    }

    /// Removes the mark of the page and returns it; see [`Edit::unmark`](crate::Edit::unmark).
    ///
    /// # Errors
    ///
    /// [`Error::Borrowed`].
    pub fn unmark(&mut self) -> Result<Option<Mark>, Error> {
        match self.entry() {
            Entry::Mark(_) => Ok(self.cursor.mark(None)?.mark()),
            Entry::Leaf(_) | Entry::Empty => Ok(None),
        }
    }

    /// Maps the page, whose mark has this payload, to `frame`; see [`Edit::fill`](crate::Edit::fill).
    ///
    /// # Errors
    ///
    /// As [`Edit::fill`](crate::Edit::fill).
    pub fn fill(&mut self, payload: u64, frame: FrameOf<K>) -> Result<(), Error> {
        let own = Owned::frame(self.changes.space.mmu.kernel(), frame);
        self.fill_owned(payload, frame, own)
    }

    /// Does what [`fill`](Self::fill) does with `frame`, whose use is `own`.
    pub(crate) fn fill_owned(
        &mut self,
        payload: u64,
        frame: FrameOf<K>,
        own: Owned<'_, K>,
    ) -> Result<(), Error> {
        let page = Pages::one(self.cursor.page());
        self.changes.make_way(Some(self.cursor.pending()), page);
        self.cursor.fill(payload, pfn::<K>(frame))?;
        own.keep();
        let attr = self.cursor.look().map_or(Attr::USER, |leaf| leaf.attr);
        self.changes.put_in_force(Some(self.cursor.pending()), page, attr);
        Ok(())
    }

    /// Maps the page to `frame`.
    ///
    /// # Errors
    ///
    /// As [`Edit::map`](crate::Edit::map).
    pub fn map(&mut self, frame: FrameOf<K>, attr: Attr) -> Result<(), Error> {
        let page = Pages::one(self.cursor.page());
        self.changes.space.check_global(attr, page)?;
        self.changes.make_way(Some(self.cursor.pending()), page);
        self.cursor.map(pfn::<K>(frame), attr)?;
        self.changes.put_in_force(Some(self.cursor.pending()), page, attr);
        Ok(())
    }

    /// Maps the page to the frame that `take` returns; see [`Edit::map_with`](crate::Edit::map_with).
    ///
    /// # Errors
    ///
    /// As [`Edit::map_with`](crate::Edit::map_with).
    pub fn map_with(
        &mut self,
        attr: Attr,
        take: impl FnOnce() -> Result<FrameOf<K>, Error>,
    ) -> Result<(), Error> {
        self.changes.space.check_own(Pages::one(self.cursor.page()))?;
        check_unused(self.at(), self.cursor.entry())?;
        let frame = take()?;
        let own = Owned::frame(self.changes.space.mmu.kernel(), frame);
        self.map(frame, attr)?;
        own.keep();
        Ok(())
    }

    /// Unmaps the whole leaf that maps the page, and returns the leaf as it was before. [`Kernel::release`] gets its frames when
    /// no TLB has a translation to them any more.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`] or [`Error::Borrowed`].
    pub fn unmap(&mut self) -> Result<Leaf<FrameOf<K>>, Error> {
        self.changes.make_room(Some(self.cursor.pending()));
        let leaf = self.cursor.unmap()?;
        self.changes.uncover(&leaf);
        Ok(typed::<K, _>(leaf))
    }

    /// Changes the attributes of the whole leaf that maps the page, or of the page's mark, and returns what the entry held before:
    /// a leaf, or a mark with a payload.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`], [`Error::WrongAttr`] or [`Error::Borrowed`].
    pub fn protect(&mut self, change: Change) -> Result<Entry<FrameOf<K>>, Error> {
        typed::<K, _>(self.protect_entry(change))
    }

    fn protect_entry(&mut self, change: Change) -> Result<Entry, Error> {
        let page = Pages::one(self.cursor.page());
        self.changes.space.check_global(change.set, page)?;
        match self.cursor.protect(change) {
            Ok(leaf) => {
                *self.changes.cleared |= clears_dirty(change);
                if needs_force(change) {
                    self.changes.put_in_force(Some(self.cursor.pending()), page, change.apply(leaf.attr));
                }
                Ok(Entry::Leaf(leaf))
            }
            Err(Error::NotMapped { .. }) => self.protect_mark(change),
            Err(why) => Err(why),
        }
    }

    /// Changes the attributes of the page's mark, and returns the mark as it was before.
    #[cold]
    #[inline(never)]
    fn protect_mark(&mut self, change: Change) -> Result<Entry, Error> {
        let Entry::Mark(mark @ Mark::Payload(..)) = self.cursor.entry() else {
            return Err(Error::NotMapped { at: self.at() });
        };
        check_change::<Format<K>>(change)?;
        let changed = change_mark::<Format<K>>(mark_word::<Format<K>>(mark)?, change);
        self.cursor.mark(mark_of::<Format<K>>(changed))
    }

    /// Maps the page to `frame` instead of the frame that it has, and returns the old leaf of the page; see
    /// [`Edit::replace`](crate::Edit::replace).
    ///
    /// # Errors
    ///
    /// As [`Edit::replace`](crate::Edit::replace).
    pub fn replace(&mut self, frame: FrameOf<K>, attr: Attr) -> Result<Leaf<FrameOf<K>>, Error> {
        let frame = pfn::<K>(frame);
        let whole = self.split(self.changes.space.base())?;
        typed::<K, _>(self.replace_leaf(frame, attr).inspect_err(|_| self.join(whole)))
    }

    /// Gives a copy-on-write page the right to write; see [`Edit::unshare`](crate::Edit::unshare).
    ///
    /// # Errors
    ///
    /// As [`Edit::unshare`](crate::Edit::unshare).
    pub fn unshare(
        &mut self,
        mut is_sole: impl FnMut(FrameOf<K>) -> bool,
        copy: impl FnOnce(FrameOf<K>) -> Result<FrameOf<K>, Error>,
    ) -> Result<(), Error> {
        let mut is_sole = |frame: Pfn| is_sole(typed::<K, _>(frame));
        let (base, at) = (self.changes.space.base(), self.at());
        self.changes.space.check_own(Pages::one(self.cursor.page()))?;
        let rights =
            Change { clear: Attr::COPY_ON_WRITE, set: Attr::WRITE.union(status::<K>(Access::STORE)) };
        let mut whole = None;
        let leaf = loop {
            let copied = |leaf: &Leaf| matches!(Access::STORE.refused(leaf), Some(Fault::CopyOnWrite(_)));
            let Some(leaf) = self.cursor.look().filter(copied) else { return Ok(()) };
            let own = leaf.part(at, base).frame;
            if is_small(leaf, base)
                && is_sole(own)
                && leaf.run(base).frames().all(|frame| frame == own || is_sole(frame))
            {
                return self.protect(rights).map(drop).inspect_err(|_| self.join(whole));
            }
            if leaf.size == base {
                break leaf;
            }
            whole.get_or_insert(leaf);
            self.split_once(leaf, base).inspect_err(|_| self.join(whole))?;
        };
        let copied = copy(typed::<K, _>(leaf.frame)).and_then(|first| {
            let own = Owned::frame(self.changes.space.mmu.kernel(), first);
            self.replace_leaf(pfn::<K>(first), rights.apply(leaf.attr))?;
            own.keep();
            Ok(())
        });
        copied.inspect_err(|_| self.join(whole))
    }

    /// Splits the leaf that maps the page until it is no larger than `to`. Returns the leaf as it was, if it was larger.
    fn split(&mut self, to: PageSize) -> Result<Option<Leaf>, Error> {
        let mut whole = None;
        while let Some(leaf) = self.cursor.look().filter(|leaf| leaf.size > to) {
            whole.get_or_insert(leaf);
            self.split_once(leaf, to).inspect_err(|_| self.join(whole))?;
        }
        Ok(whole)
    }

    /// Splits the leaf that maps the page into leaves of the next smaller size, which is not smaller than `to`.
    fn split_once(&mut self, leaf: Leaf, to: PageSize) -> Result<(), Error> {
        let sizes = self.changes.space.table.space().sizes();
        let smaller = sizes.iter().rev().find(|&&size| size < leaf.size).copied().unwrap_or(to);
        self.resize(leaf, smaller)
    }

    /// Joins the pages into which `whole` was split. This takes no node. If it fails nevertheless, the translations are still those
    /// from before, in smaller pages.
    fn join(&mut self, whole: Option<Leaf>) {
        if let Some(whole) = whole {
            let _ = self.resize(whole, whole.size);
        }
    }

    /// Makes every leaf of the pages of `whole` one of size `to`.
    #[cold]
    #[inline(never)]
    fn resize(&mut self, whole: Leaf, to: PageSize) -> Result<(), Error> {
        let pages = self.changes.space.table.space().pages_of(&whole);
        let (space, call) = (self.changes.space, &mut *self.changes.call);
        let flush = &mut |flush: &Flush| call.shoot(space, flush);
        // The kernel may be using a page that is not a user's: break-before-make would unmap it for a while.
        let may_break = whole.attr.contains(Attr::USER);
        // SAFETY: the pages are a user's.
        let flush = if may_break { unsafe { FlushAll::breaking(flush) } } else { FlushAll::in_place(flush) };
        self.cursor.resize(pages, to, flush)
    }

    /// Replaces the leaf that maps the page by one of the same size.
    #[inline(never)]
    fn replace_leaf(&mut self, frame: Pfn, attr: Attr) -> Result<Leaf, Error> {
        let page = Pages::one(self.cursor.page());
        self.changes.space.check_global(attr, page)?;
        self.changes.make_room(Some(self.cursor.pending()));
        // The kernel may be using a page that is not a user's: break-before-make would unmap it for a while.
        let may_break = self.changes.space.table.breaks_frames()
            && self.leaf().ok_or(Error::NotMapped { at: self.at() })?.attr.contains(Attr::USER);
        let (space, call) = (self.changes.space, &mut *self.changes.call);
        let flush = &mut |flush: &Flush| call.shoot(space, flush);
        // SAFETY: the page is a user's.
        let flush = if may_break { unsafe { FlushAll::breaking(flush) } } else { FlushAll::in_place(flush) };
        let old = self.cursor.replace(frame, attr, flush)?;
        if old.attr.contains(Attr::USER) {
            self.changes.put_in_force(Some(self.cursor.pending()), page, attr);
        }
        self.changes.uncover(&old);
        Ok(old)
    }

    /// Goes to the page of `at`. Costs a walk, unless the page is in the same node.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`]; the cursor has not moved then.
    #[inline]
    pub fn seek(&mut self, at: VirtAddr) -> Result<(), Error> {
        self.cursor.seek(at.vpn(self.changes.space.base()))
    }

    /// Goes to the next page, and tells whether there is one: the last page of each half has no next page.
    #[inline]
    pub fn step(&mut self) -> bool {
        self.cursor.step()
    }

    /// Goes to the first mapped page after the leaf that maps this page (after this page, if it is not mapped) and up to the page
    /// of `last`, and returns the leaf that maps the new page. If there is none, the cursor does not move. The upper half follows
    /// the lower one. The cursor never goes back: if another CPU joins pages that are shared with the kernel's own address space
    /// meanwhile, the leaf may begin before the new page.
    pub fn next_mapped(&mut self, last: VirtAddr) -> Option<Leaf<FrameOf<K>>> {
        let last = last.vpn(self.changes.space.base());
        let both = self.changes.space.lender().is_some();
        typed::<K, _>(if both { self.next_of_both(last) } else { self.cursor.next_mapped(last) })
    }

    /// Does what [`next_mapped`](Self::next_mapped) does in an address space that shares pages, which the table's own cursor
    /// skips.
    fn next_of_both(&mut self, last: Vpn) -> Option<Leaf> {
        let space = self.changes.space.table.space();
        let behind = self.leaf().map_or(self.cursor.page(), |leaf| space.pages_of(&leaf).last());
        let pages = Pages::new(behind.checked_add(1)?, last)?;
        let mut next = None;
        let section = self.changes.space.section_of_shared(pages);
        // With one CPU there is no other writer.
        let visit = (CPUS > 1).then(|| self.changes.space.visit_beside());
        // SAFETY: inside an edit interrupts are masked, and this visit serves no shootdown, and is in a section if it comes to shared pages.
        // The kernel's own address space waits for this CPU before it frees a node, and so do the writers of the other pages.
        let _ = self.changes.space.table.for_each(unsafe { Pinned::by(&*self) }, pages, &mut |leaf| {
            next = Some(leaf);
            ControlFlow::Break(())
        });
        drop((visit, section));
        // Another CPU may have joined pages that are shared: the larger leaf then begins before the page that the cursor has left.
        self.cursor.seek(next?.at.vpn(self.changes.space.base()).max(pages.first())).ok()?;
        next
    }
}

/// Returns an error unless the entry for the page at `at` is empty.
pub(crate) fn check_unused(at: VirtAddr, entry: Entry) -> Result<(), Error> {
    match entry {
        Entry::Empty => Ok(()),
        Entry::Leaf(leaf) => Err(Error::Occupied { at: leaf.at, size: leaf.size }),
        Entry::Mark(_) => Err(Error::Marked { at }),
    }
}

/// Tells whether a leaf has few enough frames that the kernel is asked about each of them.
fn is_small(leaf: Leaf, base: PageSize) -> bool {
    leaf.size.pages(base).is_some_and(|pages| pages <= ASKED)
}

/// The most frames of a leaf about which the kernel is asked in one call, with interrupts masked: those of 2 MiB.
const ASKED: usize = 512;

/// Returns the attributes that a page with `attr` has when it comes back. Then its frame is its own, so a page that is copied at
/// the next store may be written. A closed page stays closed.
const fn attr_out(attr: Attr) -> Attr {
    let attr = attr.difference(Attr::ACCESSED.union(Attr::DIRTY));
    if attr.contains(Attr::COPY_ON_WRITE) && attr.intersects(Attr::READ.union(Attr::EXEC)) {
        attr.difference(Attr::COPY_ON_WRITE).union(Attr::WRITE)
    } else {
        attr
    }
}

impl<K: Kernel, const CPUS: usize> fmt::Debug for Cursor<'_, K, CPUS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cursor.fmt(f)
    }
}
