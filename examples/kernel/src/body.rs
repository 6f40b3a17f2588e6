//! What a process has of memory: its address space, and what each page of its window is meant to be.
//!
//! ```text
//!   page of the window      nothing     reserved              reserved, on disk
//!   entry in the table      empty       empty: full of zeros  a payload, the page of the disk
//!                                       a leaf
//! ```
//!
//! The disk may have what a frame holds, too, until that is written; [`frames`] knows.

use spin::RelaxStrategy as _;
use tlbkit::{
    Access, Attr, Change, Edit, Entry, Error, Fault, Leaf, PageSize, Pages, Pfn, Reason, SupervisorPages,
    VirtAddr,
};
use tlbkit_superpage::{Refusal, Superpage};

use crate::disk::Slot;
use crate::growth::{Growth, Miss};
use crate::memory::{Serving, Space, give_back};
use crate::report::{Count, REPORT};
use crate::window::{PAGES, Refused, WINDOW, WindowRange, address, vpn};
use crate::{arch, disk, faults, frames, witness, words};

/// The size of the pages that a program may ask for, if the machine's tables have one beside those that grow.
pub(crate) const LARGE: Option<PageSize> = if cfg!(target_arch = "mips") { None } else { Some(PageSize::M2) };

/// The most pages of a message.
pub(crate) const MESSAGE: usize = 8;

/// A page that is reserved.
#[derive(Clone, Copy, Debug)]
struct Page {
    write: bool,
    /// Whether it has missed in a TLB since the clock's hand was there: the accessed bit of a machine that has none.
    missed: bool,
}

impl Page {
    const fn new(write: bool) -> Self {
        Self { write, missed: false }
    }

    fn attr(self) -> Attr {
        let read = Attr::READ | Attr::USER;
        if self.write { read | Attr::WRITE } else { read }
    }
}

/// A process's memory. Only a thread that has it exclusively changes the address space.
pub(crate) struct Body {
    pub(crate) space: Space,
    growth: Growth,
    pages: [Option<Page>; PAGES],
}

impl Body {
    pub(crate) fn new(space: Space) -> Self {
        Self { space, growth: Growth::new(), pages: [None; PAGES] }
    }

    fn leaf(&self, index: usize) -> Option<Leaf> {
        self.space.lookup(address(index))
    }

    fn all(&self, range: WindowRange, reserved: bool) -> Result<(), Refused> {
        let fit = self.pages[range.indices()].iter().all(|page| page.is_some() == reserved);
        if fit { Ok(()) } else { Err(Refused::Wrong) }
    }

    /// Reserves pages, which are full of zeros when they are first used.
    pub(crate) fn reserve(&mut self, range: WindowRange, write: bool) -> Result<(), Refused> {
        self.all(range, false)?;
        // The pages are mapped when they are first used.
        self.space.flush_deferred(range.pages())?;
        self.pages[range.indices()].fill(Some(Page::new(write)));
        Ok(())
    }

    /// Maps a large page, full of zeros.
    pub(crate) fn reserve_large(&mut self, at: usize) -> Result<(), Refused> {
        let size = LARGE.ok_or(Refused::Wrong)?;
        let range = WindowRange::new(at, size.bytes() >> PageSize::K4.shift())?;
        self.all(range, false)?;
        // The program does without, if no frames are in a row.
        let first = frames::take_run(range.len, size).ok_or(Refused::Wrong)?;
        let frames = || (first.get()..first.get() + range.len).map(Pfn::new);
        frames().for_each(frames::clear);
        let page = Page::new(true);
        let map = |edit: &mut Edit<'_, _, _>| edit.map_sized(range.pages(), first, size, page.attr());
        if let Err(error) = self.space.edit(map) {
            frames().for_each(|frame| frames::release(frame, false));
            return Err(error.into());
        }
        self.pages[range.indices()].fill(Some(page));
        Ok(())
    }

    /// Maps in small pages what is larger among these.
    fn alone(&mut self, range: WindowRange) -> Result<(), Refused> {
        if arch::SIZES.is_empty() && LARGE.is_none() {
            return Ok(());
        }
        for index in range.indices() {
            while let Some(leaf) = self.leaf(index)
                && leaf.size != PageSize::K4
            {
                let first = leaf.at.vpn(PageSize::K4);
                let whole = self.growth.demote(vpn(index)).unwrap_or(Superpage { first, size: leaf.size });
                self.space.resize(whole.pages(PageSize::K4), PageSize::K4)?;
                REPORT.add(Count::Demotions, 1);
            }
        }
        Ok(())
    }

    /// Maps in small pages what reaches over an end of these.
    fn cut(&mut self, range: WindowRange) -> Result<(), Refused> {
        self.alone(WindowRange { len: 1, ..range })?;
        self.alone(WindowRange { first: range.first + range.len - 1, len: 1 })
    }

    /// Takes misses of the process's, and makes superpages of what has missed often enough.
    pub(crate) fn hear(&mut self, misses: &[Miss]) {
        let mut misses = misses.iter();
        while let Some(&miss) = misses.next() {
            let index = miss.page.get().wrapping_sub(vpn(0).get());
            if let Some(page) = self.pages.get_mut(index).and_then(Option::as_mut) {
                page.missed = true;
            }
            if let Some(range) = self.growth.miss(miss) {
                let done = self.promote(range);
                self.growth.answer(range, done);
                let count = if done.is_ok() { Count::Promotions } else { Count::Refusals };
                REPORT.add(count, 1);
                // The others have missed before that.
                misses.by_ref().filter_map(|miss| miss.evicted).for_each(|page| self.growth.evicted(page));
            }
        }
    }

    /// Brings the pages of a range together, and maps them by as few TLB entries as the machine can: pages that are reserved
    /// alike and of no other process. Those that were not used are full of zeros then.
    fn promote(&mut self, wanted: Superpage) -> Result<(), Refusal> {
        let pages = wanted.pages(PageSize::K4);
        let first = pages.first().address(PageSize::K4).get();
        let range = WindowRange::new(first, pages.len()).map_err(|_| Refusal::NotHere)?;
        let Some(Page { write, .. }) = self.pages[range.first] else { return Err(Refusal::NotHere) };
        let fits = |index: usize| {
            let is_ours = match self.space.entry(address(index)) {
                Entry::Empty => true,
                Entry::Leaf(leaf) => frames::is_sole(leaf.part(address(index), PageSize::K4).frame),
                Entry::Mark(_) => false,
            };
            is_ours && self.pages[index].is_some_and(|page| page.write == write)
        };
        if !range.indices().all(fits) {
            return Err(Refusal::NotHere);
        }
        let size = arch::page_size(wanted.size);
        let new = frames::take_run(range.len, size).ok_or(Refusal::NoMemory)?;
        let mut new = (0..range.len).map(|offset| Pfn::new(new.get() + offset));
        let done = self.alone(range).and_then(|()| Ok(self.gather(range, size, &mut new)?));
        new.for_each(|frame| frames::release(frame, false));
        // The pages are this process's alone, whichever frames they have.
        let (set, clear) =
            if write { (Attr::WRITE | Attr::DIRTY, Attr::COPY_ON_WRITE) } else { Default::default() };
        let restored = self.space.protect(pages, Change { clear, set });
        assert!(restored.is_ok(), "the entries have room for these attributes");
        REPORT.add(Count::Operations, 1);
        done.map_err(|_| Refusal::NoMemory)
    }

    /// Gives pages new frames with what the old ones hold, then makes them pages of `size`. No thread may write to them
    /// until that has been done: no CPU writes to what another one has still elsewhere.
    fn gather(
        &self,
        range: WindowRange,
        size: PageSize,
        new: &mut impl Iterator<Item = Pfn>,
    ) -> Result<(), Error> {
        let read = Attr::READ | Attr::USER;
        self.space.edit(|edit| {
            edit.protect(range.pages(), Change::clear(Attr::WRITE))?;
            edit.flush();
            for (index, frame) in range.indices().zip(new) {
                let mapped = match self.leaf(index) {
                    Some(leaf) => {
                        words::copy(frames::words(leaf.frame), frames::words(frame));
                        edit.replace(address(index), frame, read)
                    }
                    None => {
                        frames::clear(frame);
                        edit.map(Pages::one(vpn(index)), frame, read)
                    }
                };
                mapped.inspect_err(|_| frames::release(frame, false))?;
            }
            edit.resize(range.pages(), size)
        })
    }

    /// Gives up what is reserved of these pages.
    pub(crate) fn unmap(&mut self, range: WindowRange) -> Result<(), Refused> {
        self.unmap_by(range, give_back)
    }

    /// Gives up what is reserved of these pages. `unmap` unmaps them.
    fn unmap_by(
        &mut self,
        range: WindowRange,
        unmap: impl FnOnce(&Space, Pages) -> Result<usize, Error>,
    ) -> Result<(), Refused> {
        self.cut(range)?;
        if faults::EARLY_FREE.planted() {
            self.alone(range)?;
            range
                .indices()
                .filter_map(|index| self.leaf(index))
                .for_each(|leaf| frames::free_early(leaf.frame, Serving::relax));
        }
        unmap(&self.space, range.pages())?;
        self.growth.unmapped(range.pages());
        self.pages[range.indices()].fill(None);
        Ok(())
    }

    /// Gives or takes the right to write.
    pub(crate) fn protect(&mut self, range: WindowRange, write: bool) -> Result<(), Refused> {
        self.all(range, true)?;
        self.cut(range)?;
        // A page that others may have, too, gets the right when it is first written.
        let change = if write { Change::COPY_ON_WRITE } else { Change::READ_ONLY };
        witness::lowering(range.pages(), || self.space.protect(range.pages(), change))?;
        self.pages[range.indices()].iter_mut().flatten().for_each(|page| page.write = write);
        Ok(())
    }

    /// Moves pages to others, which are not reserved: one shootdown.
    pub(crate) fn shift(&mut self, from: WindowRange, to: usize) -> Result<(), Refused> {
        let to = WindowRange::new(to, from.len)?;
        self.all(from, true)?;
        self.all(to, false)?;
        self.alone(from)?;
        for (index, target) in from.indices().zip(to.indices()) {
            self.pages[target] = self.pages[index].take();
        }
        let Self { space, pages, .. } = self;
        let moving = || space.move_pages(from.pages(), address(to.first));
        if let Err(error) = witness::lowering(from.pages(), moving) {
            for (index, target) in from.indices().zip(to.indices()) {
                pages[index] = pages[target].take();
            }
            return Err(error.into());
        }
        self.growth.unmapped(from.pages());
        REPORT.add(Count::PagesMoved, from.len);
        Ok(())
    }

    /// Takes pages out, with what they hold: the caller holds the frames.
    pub(crate) fn take_out(&mut self, range: WindowRange) -> Result<heapless::Vec<Pfn, MESSAGE>, Refused> {
        self.all(range, true)?;
        if range.len > MESSAGE {
            return Err(Refused::Wrong);
        }
        self.alone(range)?;
        let mut taken = heapless::Vec::new();
        for index in range.indices() {
            // A frame that is this process's alone.
            let leaf = loop {
                match self.leaf(index) {
                    Some(leaf) if leaf.attr.contains(Attr::WRITE) => break leaf,
                    _ => {
                        if let Some(incoming) = self.fault(address(index), Access::STORE.by_user())? {
                            incoming.read();
                            self.come_in(incoming)?;
                        }
                    }
                }
            };
            let _ = taken.push(leaf.frame);
        }
        taken.iter().for_each(|&frame| frames::share(frame));
        // The frames are another process's from now on.
        self.unmap_by(range, |space, pages| witness::lowering(pages, || space.unmap(pages)))?;
        REPORT.add(Count::PagesMoved, range.len);
        Ok(taken)
    }

    /// Maps frames that the caller holds, and that are the process's then.
    pub(crate) fn put_in(&mut self, at: usize, frames: &[Pfn]) -> Result<(), Refused> {
        let range = WindowRange::new(at, frames.len())?;
        self.all(range, false)?;
        let page = Page::new(true);
        self.space.map_each(range.pages(), frames.iter().copied(), page.attr())?;
        self.pages[range.indices()].fill(Some(page));
        Ok(())
    }

    /// Resolves a page fault. Returns the page if it is on disk: [`Incoming::read`] comes next, without the process's memory,
    /// and then [`come_in`](Self::come_in).
    pub(crate) fn fault(&mut self, at: VirtAddr, access: Access) -> Result<Option<Incoming>, Refused> {
        let done = match self.space.fault(at, access)? {
            Fault::Retry => Ok(()),
            Fault::NotMapped => self.fetch(at, access),
            Fault::Swapped(slot) => {
                let _ = self.reserved(at, access)?;
                let frame = frames::take().ok_or(Refused::NoMemory)?;
                let slot = Slot::of(slot);
                // Until the page is in, the slot gets no other contents, whoever pages it in and out meanwhile.
                slot.share();
                return Ok(Some(Incoming { at, frame, slot }));
            }
            Fault::CopyOnWrite(_) => self.unshare(at),
            Fault::Refused(reason) => {
                let of_program = matches!(reason, Reason::Alignment);
                REPORT.check(of_program, Count::Failures, || "hardware refuses what the table allows");
                Err(Refused::Wrong)
            }
            Fault::NoRight(_) | Fault::Closed(_) | Fault::Guard => Err(Refused::Wrong),
        };
        done.map(|()| None)
    }

    /// Returns the page that is reserved at an address, if it allows the access.
    fn reserved(&self, at: VirtAddr, access: Access) -> Result<Page, Refused> {
        let index = at.get().wrapping_sub(WINDOW) >> PageSize::K4.shift();
        let page = self.pages.get(index).copied().flatten().filter(|page| access.allowed(page.attr()));
        page.ok_or(Refused::Wrong)
    }

    /// Maps a page that is reserved, full of zeros.
    fn fetch(&mut self, at: VirtAddr, access: Access) -> Result<(), Refused> {
        let page = self.reserved(at, access)?;
        let take = |_| frames::take().ok_or(Error::NoMemory { wanted: 1, pending: 0 });
        self.space.map_with(Pages::one(at.vpn(PageSize::K4)), page.attr(), take)?;
        REPORT.add(Count::Operations, 1);
        Ok(())
    }

    /// Maps a page that was read from disk, unless another thread was faster.
    pub(crate) fn come_in(&mut self, incoming: Incoming) -> Result<(), Refused> {
        let Incoming { at, frame, slot } = incoming;
        let filled = self.space.fill(at, slot.number().into(), frame);
        if filled.is_ok() {
            // What the entry had of the disk, the frame has now.
            frames::keep_slot(frame, slot);
            REPORT.add(Count::PagedIn, 1);
            REPORT.add(Count::Operations, 1);
        }
        slot.release();
        match filled {
            // The thread repeats its access, and finds what is there now.
            Err(Error::Changed { .. } | Error::Occupied { .. } | Error::NotMapped { .. }) => {
                REPORT.add(Count::CameTwice, 1);
                Ok(())
            }
            filled => Ok(filled?),
        }
    }

    /// Gives the process a frame of its own for a page that others may have.
    fn unshare(&mut self, at: VirtAddr) -> Result<(), Refused> {
        REPORT.add(Count::Operations, 1);
        if self.space.lookup(at).is_some_and(|leaf| leaf.size != PageSize::K4) {
            REPORT.add(Count::LargeCopies, 1);
            // Its pages may have other frames from now on.
            let _ = self.growth.demote(at.vpn(PageSize::K4));
        }
        let is_sole = |frame| frames::is_sole(frame) || faults::NO_COW.planted();
        let copy = |frame| frames::take_copy(frame).ok_or(Error::NoMemory { wanted: 1, pending: 0 });
        let page = Pages::one(at.vpn(PageSize::K4));
        witness::lowering(page, || self.space.unshare(at, is_sole, copy))?;
        Ok(())
    }

    /// Returns a copy of the process's memory, whose frames are shared until they are written.
    pub(crate) fn fork(&mut self) -> Result<Self, Refused> {
        let window = WindowRange { first: 0, len: PAGES }.pages();
        let space = witness::lowering(window, || self.space.fork(SupervisorPages::LeftOut))?;
        Ok(Self { space, growth: Growth::new(), pages: self.pages })
    }

    /// Moves the clock's hand over pages: one that was used since the hand was there last is not used from now on, and
    /// one that was not begins to go to disk. Returns those: [`Outgoing::write`] comes next, without the process's memory. The
    /// caller is the only one that writes to the disk, which has room for all of them.
    pub(crate) fn sweep(&mut self, range: WindowRange) -> Outgoing {
        let mut outgoing = Outgoing { space: self.space.clone(), pages: heapless::Vec::new() };
        if self.alone(range).is_err() {
            return outgoing;
        }
        let is_ours = |&(_, leaf): &(usize, Leaf)| frames::is_sole(leaf.frame);
        let leaves = range.indices().filter_map(|index| Some((index, self.leaf(index)?))).filter(is_ours);
        let (mut used, mut idle) = (heapless::Vec::<_, SWEEP>::new(), heapless::Vec::<_, SWEEP>::new());
        for (index, leaf) in leaves.take(SWEEP) {
            let has_missed = self.pages[index].is_some_and(|page| page.missed);
            let is_used = leaf.attr.contains(Attr::ACCESSED) || has_missed;
            let list = if is_used { &mut used } else { &mut idle };
            let _ = list.push((index, leaf.frame));
        }
        self.pages[range.indices()].iter_mut().flatten().for_each(|page| page.missed = false);
        let swept = self.space.edit(|edit| {
            for &(index, _) in &used {
                edit.protect(Pages::one(vpn(index)), Change::clear(Attr::ACCESSED))?;
            }
            for &(index, frame) in &idle {
                // The leaf says what hardware noted up to that store. From the end of the edit on no CPU stores to the frame.
                let leaf = edit.freeze(address(index))?;
                if leaf.attr.contains(Attr::DIRTY) {
                    frames::note_written(frame);
                }
                let kept =
                    frames::slot(frame).filter(|_| !frames::was_written(frame)).inspect(|slot| slot.share());
                let slot = kept.or_else(Slot::take).ok_or(Error::NoRoom)?;
                let _ = outgoing.pages.push(Leaving { index, frame, slot, is_there: kept.is_some() });
            }
            Ok(())
        });
        assert!(swept.is_ok(), "small pages go out without memory, and the disk has room");
        REPORT.add(Count::Operations, usize::from(!used.is_empty() || !idle.is_empty()));
        outgoing
    }
}

/// A page on its way from disk, which is not mapped yet, with its frame. It holds the slot.
pub(crate) struct Incoming {
    at: VirtAddr,
    frame: Pfn,
    slot: Slot,
}

impl Incoming {
    /// Reads the page into its frame. Threads of the process fault meanwhile, on the same page, too.
    pub(crate) fn read(&self) {
        disk::turn();
        self.slot.read(frames::words(self.frame));
    }
}

/// A page on its way to disk, which is mapped still and cannot be written.
struct Leaving {
    index: usize,
    frame: Pfn,
    slot: Slot,
    /// Whether the disk has what the frame holds.
    is_there: bool,
}

/// Pages on their way to disk.
pub(crate) struct Outgoing {
    space: Space,
    pages: heapless::Vec<Leaving, SWEEP>,
}

impl Outgoing {
    /// Writes the pages to disk. Threads of the process use them meanwhile: one that stores to such a page gets a copy.
    pub(crate) fn write(&self) {
        for Leaving { frame, slot, is_there, .. } in &self.pages {
            if *is_there {
                REPORT.check(
                    slot.is(frames::words(*frame)),
                    Count::Failures,
                    || "a page was written, and its leaf was not dirty",
                );
            } else {
                slot.write(frames::words(*frame));
            }
        }
        disk::turn();
    }

    /// Unmaps the pages that are as they were, and returns how many. The caller has the process's memory, or what another process
    /// has begun in its place.
    pub(crate) fn leave(self) -> usize {
        let mut gone = 0;
        let left = self.space.edit(|edit| {
            for Leaving { index, frame, slot, .. } in &self.pages {
                match edit.page_out(address(*index), *frame, slot.number().into()) {
                    Ok(()) => gone += 1,
                    // It was written, or moved, or unmapped: the slot is of no use.
                    Err(_) => {
                        REPORT.add(Count::StayedIn, 1);
                        slot.release();
                    }
                }
            }
            Ok(())
        });
        assert!(left.is_ok(), "no call is under way");
        self.pages.iter().for_each(|page| frames::release(page.frame, false));
        REPORT.add(Count::PagedOut, gone);
        gone
    }
}

/// How many pages the hand moves over at most at a time.
pub(crate) const SWEEP: usize = 16;
