//! Several changes of one address space, flushed together: by one shootdown at the end, if it has room for their frames.

use core::fmt;

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::{Change, Entry, Error, FlushAll, Holes, Leaf, Mark, Table as _, Turn, Writer};

use crate::block::Handle;
use crate::counted::{counted, pfn, typed};
use crate::cpu_call::CpuCall;
use crate::owned::Owned;
use crate::settle::{Changes, status};
use crate::storage::{Copying, Table};
use crate::table::{Copied, SpaceTable as _};
use crate::{Access, Cursor, Fault, FrameOf, Kernel, PagesOf};

mod entries;
mod map;
mod moving;
mod protect;
mod resize;
mod unmap;

pub(crate) use entries::Whole;
pub(crate) use protect::clears_dirty;
pub(crate) use unmap::SHORT;

/// The right to change an [`AddressSpace`](crate::AddressSpace), inside [`AddressSpace::edit`](crate::AddressSpace::edit).
///
/// Each change is all or nothing. When the edit ends, every CPU flushes the translations that the changes took away or
/// restricted. A flush takes place earlier if the hardware requires break-before-make, if pages are promoted, if there is no room
/// for the frames, or if the edit has uncovered frames and then answers a [fault](Self::fault) on a page that is
/// [shared](crate::AddressSpace::sharing). The edit's list has room for 16 runs of frames: those of changes of one page, and of a range of at most 8192 pages.
/// If such a range has more runs, or more than about 512 pages are mapped, the edit flushes at once, and the frames that the list has
/// not taken wait in the table's own nodes, whatever their number; so do all frames of a longer range. (Of the larger pages of MIPS32
/// in multi-level tables 8 runs can wait there, and then comes the next flush.) The frames and nodes that the changes uncover go back
/// to the kernel after the flush, never before.
pub struct Edit<'s, K: Kernel, const CPUS: usize = 1> {
    space: &'s Handle<K, CPUS>,
    call: &'s mut CpuCall<K, CPUS>,
    writer: Writer<'s, 'static, Table<K>>,
    /// Whether a change since the last flush has cleared [`Attr::DIRTY`] in a page. Until the flush a CPU may store to the page
    /// without setting it again, so the frames that are uncovered meanwhile count as dirty.
    cleared: bool,
}

/// What an edit does, and its number of pages if that is its result. A kernel has the code before and after it once, whatever edits it
/// makes.
pub(crate) type Changing<'f, K, const CPUS: usize> =
    dyn FnMut(&mut Edit<'_, K, CPUS>) -> Result<usize, Error> + 'f;

impl<'s, K: Kernel, const CPUS: usize> Edit<'s, K, CPUS> {
    /// Becomes the writer of `space`, with the right `turn`, calls `changes`, then flushes what they have made stale, also if `changes`
    /// unwinds.
    #[inline(always)]
    pub(crate) fn run(
        space: &'s Handle<K, CPUS>,
        call: &'s mut CpuCall<K, CPUS>,
        turn: Turn<'s, 'static, Table<K>>,
        changes: &mut Changing<'_, K, CPUS>,
    ) -> Result<usize, Error> {
        let mut edit = Self { space, call, writer: Writer::of(turn), cleared: false };
        let unwound = Unwound(&mut edit);
        let result = changes(unwound.0);
        unwound.0.flush();
        core::mem::forget(unwound);
        result
    }

    /// Does what [`run`](Self::run) does when it is this CPU's turn to write `pages` of `space`. Until then serves shootdowns.
    #[cold]
    #[inline(never)]
    pub(crate) fn run_in_turn(
        space: &'s Handle<K, CPUS>,
        call: &'s mut CpuCall<K, CPUS>,
        pages: Pages,
        changes: &mut Changing<'_, K, CPUS>,
    ) -> Result<usize, Error> {
        let turn = call.wait_for(space, pages);
        Self::run(space, call, turn, changes)
    }

    /// Returns the address space.
    pub(crate) const fn space(&self) -> &'s Handle<K, CPUS> {
        self.space
    }

    /// Returns a cursor at the page of `at`. A cursor makes several operations at one page, or at one page after another, with
    /// one walk.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`].
    #[inline]
    pub fn cursor(&mut self, at: VirtAddr) -> Result<Cursor<'_, K, CPUS>, Error> {
        self.cursor_at(at.vpn(self.space.base()))
    }

    /// Returns a cursor at a page.
    #[inline(never)]
    fn cursor_at(&mut self, page: Vpn) -> Result<Cursor<'_, K, CPUS>, Error> {
        let (changes, writer) = self.parts();
        let cursor = Table::<K>::cursor(writer, page)?;
        Ok(Cursor { changes, cursor })
    }

    /// Returns what settles changes, and the writer, which has their obligation.
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> (Changes<'_, K, CPUS>, &mut Writer<'s, 'static, Table<K>>) {
        let Self { space, call, writer, cleared } = self;
        (Changes { space, call, cleared }, writer)
    }

    /// Returns the first part of `pages`, none of which is shared. It has a bounded number of entries.
    pub(crate) fn part(&self, pages: Pages) -> Pages {
        self.walk(pages, |pinned| self.space.table.part(pinned, pages))
    }

    /// Maps a part of the user's pages of this address space in `child`, and clears the right to write in both; see
    /// [`SpaceTable::copy_on_write`](crate::table::SpaceTable::copy_on_write). `next` is the page that the part before has returned.
    pub(crate) fn copy_on_write(
        &mut self,
        child: &mut Writer<'_, 'static, Table<K>>,
        copying: &mut Option<Copying<K>>,
        next: Option<Vpn>,
    ) -> Result<Copied, Error> {
        if let Some(next) = next {
            // Another CPU may have joined pages since the part before.
            let mut halves = self.space.table.space().halves().into_iter().flatten();
            let half = halves.find(|half| half.contains(next));
            if let Some(rest) = half.and_then(|half| Pages::new(next, half.last())) {
                self.split_ends(rest)?;
            }
        }
        Table::<K>::copy_on_write(&mut self.writer, child, self.space.mmu.kernel(), copying)
    }

    /// Maps the base page of `at` to `frame` instead of the frame that it has, with one store: no CPU ever finds the page absent.
    /// (AArch64 requires break-before-make: the entry is empty in between, and a CPU that faults retries.) A larger page is split
    /// first. The old frame is [released](Kernel::release) after the flush.
    ///
    /// [`unshare`](Self::unshare) gives a copy-on-write page a frame of its own.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`]; [`Error::OutOfRange`], [`Error::FrameTooLarge`], [`Error::WrongAttr`] or [`Error::Borrowed`];
    /// [`Error::NoMemory`] if there is no node to split a page; [`Error::Breaks`] on AArch64 if the page is not a user's. The
    /// translations have not changed then.
    #[inline(never)]
    pub fn replace(&mut self, at: VirtAddr, frame: FrameOf<K>, attr: Attr) -> Result<(), Error> {
        self.replace_sized(at, frame, self.space.base(), attr)
    }

    /// Maps the page of `size` at `at` to the frames from `frame` on, otherwise as [`replace`](Self::replace). (A page in several
    /// slots is replaced slot by slot.)
    ///
    /// # Errors
    ///
    /// As [`replace`](Self::replace), and [`Error::WrongSize`] or [`Error::MisalignedFrame`]; [`Error::Occupied`] if a smaller
    /// page is mapped at `at`, which [`resize`](Self::resize) can join with its neighbours.
    pub fn replace_sized(
        &mut self,
        at: VirtAddr,
        frame: FrameOf<K>,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        let shape = self.space.table.space();
        let Some(count) =
            shape.sizes().iter().find(|&&known| known == size).and_then(|size| size.pages(shape.base()))
        else {
            return Err(Error::WrongSize { size });
        };
        let page = Pages::one(at.vpn(shape.base()));
        // The check comes before a page is split.
        self.space.check_own(page)?;
        let mut split = [None; 2];
        match self.find(at) {
            Some(leaf) if leaf.size > size => {
                let first = Vpn::new(page.first().get() & !(count - 1));
                split = self.split_ends(Pages::count(first, count).unwrap_or(page))?;
            }
            Some(Leaf { at, size: smaller, .. }) if smaller < size => {
                return Err(Error::Occupied { at, size: smaller });
            }
            _ => {}
        }
        let done = self.replace_leaf(at, pfn::<K>(frame), attr);
        if done.is_err() {
            self.join(split);
        }
        done
    }

    /// Replaces the leaf that maps `at` by one of the same size.
    fn replace_leaf(&mut self, at: VirtAddr, frame: Pfn, attr: Attr) -> Result<(), Error> {
        let page = Pages::one(at.vpn(self.space.base()));
        self.space.check_global(attr, page)?;
        let (mut changes, writer) = self.parts();
        changes.make_room(writer.pending());
        // The kernel may be using a page that is not a user's: break-before-make would unmap it for a while.
        let may_break = self.space.table.breaks_frames()
            && self.find(at).ok_or(Error::NotMapped { at })?.attr.contains(Attr::USER);
        let (space, call) = (self.space, &mut *self.call);
        let flush = &mut |flush: &Flush| call.shoot(space, flush);
        // SAFETY: the page is a user's.
        let flush = if may_break { unsafe { FlushAll::breaking(flush) } } else { FlushAll::in_place(flush) };
        let old = self.writer.replace(at, frame, attr, flush)?;
        let (mut changes, writer) = self.parts();
        if old.attr.contains(Attr::USER) {
            changes.put_in_force(writer.pending(), page, attr);
        }
        changes.uncover(&old);
        Ok(())
    }

    /// Resolves a store to the copy-on-write page of `at` ([`Fault::CopyOnWrite`]): the page may be written afterwards, and no
    /// other mapping of its old frame sees what is written.
    ///
    /// `is_sole` tells whether this page's is the only use of a frame. If so, the page keeps its frame and gets the right to
    /// write. Otherwise `copy` is called with the frame of the page, and returns a new frame, which belongs to the address space
    /// from then on, with the same contents. The old frame is [released](Kernel::release) after the flush. In both cases
    /// [`Attr::ACCESSED`] and [`Attr::DIRTY`] are set, because the store follows.
    ///
    /// A larger leaf gets the right as a whole if it has at most 512 frames and each is only used there. Otherwise it is split, in
    /// steps, and only the base page of `at` is copied. The other pages stay copy-on-write. If an error follows, the pages are
    /// joined again. (If a function panics, they stay split.)
    ///
    /// A page that is not copy-on-write (any more) stays as it is, and neither function is called: repeat the access, whose
    /// fault tells why. So two CPUs may resolve the same fault.
    ///
    /// Both functions run with interrupts masked, and must not call back into an address space, or the [`Mmu`](crate::Mmu) but for
    /// `clear_frame` and `copy_frame`. If a
    /// count of mappings tells whether a frame is used elsewhere, load it with `Acquire`: what other CPUs did with the frame must
    /// come before the next store.
    ///
    /// Costs a walk, and a store and a flush here; or the copy, an exchange and a shootdown. The split of a larger leaf takes a node
    /// for each level.
    ///
    /// # Errors
    ///
    /// The error of `copy`; [`Error::NoMemory`] if there is no node to split a page, before `copy` is called;
    /// [`Error::OutOfRange`] or [`Error::Borrowed`]; [`Error::FrameTooLarge`] if the machine's entries cannot hold the new frame,
    /// which is then [released](Kernel::release); [`Error::Breaks`] on AArch64 if the page is not a user's. The translations have
    /// not changed then.
    pub fn unshare(
        &mut self,
        at: VirtAddr,
        is_sole: impl FnMut(FrameOf<K>) -> bool,
        copy: impl FnOnce(FrameOf<K>) -> Result<FrameOf<K>, Error>,
    ) -> Result<(), Error> {
        self.cursor(at)?.unshare(is_sole, copy)
    }

    /// Stores a mark in the entry for the page of `at`, with one store, and returns what the entry held before. A guard may take the
    /// place of a page: its frame is [released](Kernel::release) after the flush. A payload may not: [`page_out`](Self::page_out)
    /// puts a page out. A payload that the entry held before belongs to the caller.
    ///
    /// A page with a mark is not mapped, and [`map`](Self::map) refuses it; [`fill`](Self::fill) maps a page with a payload.
    ///
    /// # Errors
    ///
    /// [`Error::WrongMark`] if the machine's entries have too few bits for the payload; [`Error::WrongAttr`] if a mark does not
    /// [keep](Mark::KEPT) its attributes; [`Error::Occupied`] if the mark is a payload, and a page is mapped there;
    /// [`Error::Partial`] if a larger page maps `at`, which [`resize`](Self::resize) can split; [`Error::OutOfRange`],
    /// [`Error::Borrowed`] or [`Error::NoMemory`]. Nothing has changed then.
    pub fn mark(&mut self, at: VirtAddr, mark: Mark) -> Result<Entry<FrameOf<K>>, Error> {
        typed::<K, _>(self.mark_at(at, mark))
    }

    #[inline(never)]
    pub(crate) fn mark_at(&mut self, at: VirtAddr, mark: Mark) -> Result<Entry, Error> {
        let page = Pages::one(at.vpn(self.space.base()));
        if matches!(mark, Mark::Payload(..))
            && let Some(leaf) = self.find(at)
        {
            self.space.check_own(page)?;
            return Err(Error::Occupied { at: leaf.at, size: leaf.size });
        }
        let (mut changes, writer) = self.parts();
        changes.flush_deferred(page);
        changes.make_room(writer.pending());
        let old = writer.mark(at, Some(mark))?;
        if let Entry::Leaf(leaf) = &old {
            changes.uncover(leaf);
        }
        // A mark may need new nodes, whose absence a CPU may keep.
        changes.put_in_force(writer.pending(), page, Attr::USER);
        Ok(old)
    }

    /// Stores a mark in the entries of `pages`, none of which may be mapped or marked: guards around a stack, for example. A payload is
    /// that of each page: its holders are as many as the pages. [`unmap`](Self::unmap) removes the marks of a range.
    ///
    /// Costs as much as a [`mark`](Self::mark) of each page, and takes the nodes of the range: one for each 512 pages.
    ///
    /// # Errors
    ///
    /// [`Error::Occupied`] or [`Error::Marked`] if a page is in use; otherwise as [`mark`](Self::mark). Nothing has changed then.
    pub fn mark_pages(&mut self, pages: PagesOf<K>, mark: Mark) -> Result<(), Error> {
        let pages = counted::<K>(pages);
        self.all_or_nothing(pages, &mut |edit, done| {
            for page in pages {
                edit.mark_at(page.address(edit.space.base()), mark)?;
                *done += 1;
            }
            Ok(())
        })
    }

    /// Removes the mark of the page of `at` and returns it. A page without a mark stays as it is.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] or [`Error::Borrowed`].
    pub fn unmark(&mut self, at: VirtAddr) -> Result<Option<Mark>, Error> {
        self.cursor(at)?.unmark()
    }

    /// Begins to page out the base page of `at`: makes it read-only until its frame is copied ([`Change::COPY_ON_WRITE`]) and clean,
    /// and makes the caller one more holder of its frame ([`Kernel::share`]). Returns the leaf as it was before. When the edit has
    /// ended, no CPU stores to the frame: a store of another thread faults, and because the frame has two holders, the page gets a
    /// copy. So the caller writes the frame to its slot, outside of the edit; then calls [`page_out`](Self::page_out), in another
    /// edit; and releases the frame, whatever the result is.
    ///
    /// Until then the page stays mapped, and no entry names the slot. So no CPU can read the slot before it is written.
    ///
    /// This is for private memory. A frame that several address spaces may write (`MAP_SHARED`) is frozen in none of them by this
    /// method: the kernel closes or unmaps it in all of them.
    ///
    /// Costs a walk, a store, and a shootdown if the page could be written or was dirty. If the page had [`Attr::DIRTY`], the result
    /// has it; the entry loses it.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`]; [`Error::Partial`] if a larger page maps `at`, which [`resize`](Self::resize) can split;
    /// [`Error::WrongAttr`] if a mark does not [keep](Mark::KEPT) the page's attributes, as for a page of a device or a global one,
    /// or if the machine's entries have no bit for [`Attr::COPY_ON_WRITE`]; [`Error::OutOfRange`] or [`Error::Borrowed`]. Nothing
    /// has changed then.
    pub fn freeze(&mut self, at: VirtAddr) -> Result<Leaf<FrameOf<K>>, Error> {
        self.cursor(at)?.freeze()
    }

    /// Puts out the page of `at`, which is mapped to `frame` and whose contents `payload` names: a mark takes the place of the leaf,
    /// and keeps the page's rights. The mapping's frame is [released](Kernel::release) after the flush. A page that is copied at the
    /// next store is writable when it comes back, because its frame is its own then.
    ///
    /// The page must be as [`freeze`](Self::freeze) has left it. A page that is read-only and clean anyway, and whose contents are
    /// in a slot already, needs no `freeze`.
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] if the page has another frame, may be written or is dirty: a CPU has stored to it meanwhile, and the slot
    /// holds an older state. [`Error::WrongMark`] if the machine's entries have too few bits for the payload; otherwise those of
    /// [`freeze`](Self::freeze). Nothing has changed then.
    pub fn page_out(&mut self, at: VirtAddr, frame: FrameOf<K>, payload: u64) -> Result<(), Error> {
        self.cursor(at)?.page_out(frame, payload)
    }

    /// Maps the page of `at`, whose mark has this payload, to `frame`, which has the contents that the payload names. The page gets
    /// the attributes that the mark keeps: those that it had when it went out, with the changes of [`protect`](Self::protect) since
    /// then. The payload belongs to the caller from then on.
    ///
    /// A page-fault handler holds the payload, as one more user of it, from the [`Fault::Swapped`] until after this call: while it
    /// reads the contents, another CPU may fill the page and page it out again. If the number could be used for other contents
    /// meanwhile, the entry would name the same number, and this method would map the old contents.
    ///
    /// If the page may be written, the frame must be this page's alone. A kernel that maps one frame for several pages with the
    /// payload first makes them [`Change::COPY_ON_WRITE`], in the same edit.
    ///
    /// # Errors
    ///
    /// After any error the frame is [released](Kernel::release), and nothing has changed. [`Error::Changed`] if the page has
    /// another payload, [`Error::Occupied`] if a page is mapped there, [`Error::NotMapped`] if there is no payload: another CPU was
    /// faster, so the access is repeated. [`Error::OutOfRange`], [`Error::FrameTooLarge`] or [`Error::Borrowed`].
    pub fn fill(&mut self, at: VirtAddr, payload: u64, frame: FrameOf<K>) -> Result<(), Error> {
        let own = Owned::frame(self.space.mmu.kernel(), frame);
        self.fill_owned(at, payload, frame, own)
    }

    /// Does what [`fill`](Self::fill) does with `frame`, whose use is `own`.
    pub(crate) fn fill_owned(
        &mut self,
        at: VirtAddr,
        payload: u64,
        frame: FrameOf<K>,
        own: Owned<'_, K>,
    ) -> Result<(), Error> {
        self.cursor(at)?.fill_owned(payload, frame, own)
    }

    /// Tells why an access to `at` by this CPU faulted; see [`AddressSpace::fault`](crate::AddressSpace::fault).
    ///
    /// # Errors
    ///
    /// [`Error::OutsideRight`] for a page outside of the range of an [`edit_in`](crate::AddressSpace::edit_in).
    #[inline]
    pub fn fault(&mut self, at: VirtAddr, access: Access) -> Result<Fault<FrameOf<K>>, Error> {
        typed::<K, _>(self.fault_at(at, access))
    }

    /// Tells why an access to `at` by this CPU faulted, as [`fault`](Self::fault) does, and returns a cursor at the page, with which
    /// the fault can be resolved by one more walk. An address that no page of the table can have is [`Fault::NotMapped`], as any
    /// other access of a program to nothing, and has no cursor.
    ///
    /// # Errors
    ///
    /// [`Error::OutsideRight`] for a page outside of the range of an [`edit_in`](crate::AddressSpace::edit_in).
    #[expect(clippy::type_complexity, reason = "a pair, whose first part has the machine's frames")]
    #[inline]
    pub fn fault_cursor(
        &mut self,
        at: VirtAddr,
        access: Access,
    ) -> Result<(Fault<FrameOf<K>>, Option<Cursor<'_, K, CPUS>>), Error> {
        let fault = self.fault(at, access)?;
        Ok((fault, self.cursor(at).ok()))
    }

    #[inline(never)]
    pub(crate) fn fault_at(&mut self, at: VirtAddr, access: Access) -> Result<Fault, Error> {
        if let Some(fault) = access.hopeless() {
            return Ok(fault);
        }
        let (page, space) = (at.vpn(self.space.base()), self.space);
        if let Some(lender) = space.lender_of(at) {
            // The kernel's own address space changes its pages, and flushes them in every address space. This cannot deadlock: a
            // writer of the kernel's own address space waits for no other writer, because it borrows no pages.
            let mut answer = Fault::NotMapped;
            // The list of uncovered frames is that of the CPU, and the inner edit ends with the release of the frames in it.
            if !self.call.uncovered().is_empty() {
                self.flush();
            }
            Edit::run_in_turn(lender, self.call, Pages::one(page), &mut |edit| {
                answer = edit.fault_at(at, access)?;
                Ok(0)
            })?;
            return Ok(answer);
        }
        if !self.writer.may_write(Pages::one(page)) {
            return Err(Error::OutsideRight { at: page.address(space.base()) });
        }
        let leaf = match self.walk(Pages::one(page), |pinned| space.table.entry(pinned, at)) {
            Entry::Leaf(leaf) => leaf,
            entry => return Ok(Fault::absent(entry.mark())),
        };
        let pages = space.table.space().pages_of(&leaf);
        // A larger leaf's first frame is that of another page.
        let leaf = leaf.part(page.address(space.base()), space.base());
        if let Some(fault) = access.refused(&leaf) {
            return Ok(fault);
        }
        let missing = status::<K>(access).difference(leaf.attr);
        if !missing.is_empty() {
            self.writer.protect(pages, Holes::Refuse, Change::set(missing))?;
        }
        let refused = self.call.retry(space, page, access, leaf.attr);
        Ok(refused.map_or(Fault::Retry, Fault::Refused))
    }

    /// Flushes the translations that the changes so far made stale, on every CPU that may hold them, and gives the frames and
    /// nodes that the changes uncovered back to the kernel.
    ///
    /// An edit flushes at its end anyway. Costs a few loads if nothing has changed.
    #[inline]
    pub fn flush(&mut self) {
        let (mut changes, writer) = self.parts();
        changes.settle(writer.pending());
    }
}

/// Returns the pages of `pages` after the first `done`.
pub(crate) fn after(pages: Pages, done: usize) -> Option<Pages> {
    Pages::new(Vpn::new(pages.first().get().checked_add(done)?), pages.last())
}

/// A guard that flushes an edit's changes if the edit unwinds: its drop runs only then.
struct Unwound<'e, 's, K: Kernel, const CPUS: usize>(&'e mut Edit<'s, K, CPUS>);

impl<K: Kernel, const CPUS: usize> Drop for Unwound<'_, '_, K, CPUS> {
    #[cold]
    #[inline(never)]
    fn drop(&mut self) {
        self.0.flush();
    }
}

impl<K: Kernel, const CPUS: usize> fmt::Debug for Edit<'_, K, CPUS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Edit").field("space", self.space).finish_non_exhaustive()
    }
}
