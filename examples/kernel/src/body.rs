//! What a process has of memory: its address space, and what each page of its window is meant to be.
//!
//! ```text
//!   page of the window      nothing     reserved              reserved, on disk
//!   leaf in the table       none        none: full of zeros   none: read it
//!                                       a frame               a frame, which the disk has too until it is written
//! ```

use tlbkit::{Access, Attr, Change, Error, Fault, Leaf, PageSize, Pages, Pfn, VirtAddr, Vpn};

use crate::disk::Slot;
use crate::memory::Space;
use crate::report::{Count, REPORT};
use crate::{faults, frames};

/// Where the window begins: 2 MiB before a gigabyte ends, so that its pages are in two nodes of every level.
pub(crate) const WINDOW: usize = (1 << 30) - (2 << 20);
/// How many pages it has.
pub(crate) const PAGES: usize = 1024;
/// The most pages of a message.
pub(crate) const MESSAGE: usize = 8;

/// Why something cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It must not be done.
    Wrong,
    /// There is no memory for it; pages that go to disk may make some.
    NoMemory,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        match error {
            Error::NoMemory { .. } => Self::NoMemory,
            error => panic!("{error}"),
        }
    }
}

/// A page that is reserved.
#[derive(Clone, Copy, Debug)]
struct Page {
    write: bool,
    /// The page of the disk that has what the page holds, if no leaf maps it, or if the leaf has not been written.
    slot: Option<Slot>,
}

impl Page {
    fn attr(self) -> Attr {
        let read = Attr::READ | Attr::USER;
        if self.write { read | Attr::WRITE } else { read }
    }
}

/// A process's memory. Whoever has it exclusively is the one that changes the address space.
pub(crate) struct Body {
    pub(crate) space: Space,
    pages: [Option<Page>; PAGES],
}

/// Pages of the window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    first: usize,
    len: usize,
}

impl Part {
    /// Returns `len` pages from the page at `at` on, at least one.
    pub(crate) fn new(at: usize, len: usize) -> Result<Self, Refused> {
        let first = at.checked_sub(WINDOW).ok_or(Refused::Wrong)?;
        let fits = first % PageSize::K4.bytes() == 0 && len > 0;
        let first = first >> PageSize::K4.shift();
        let fits = fits && len <= PAGES && first <= PAGES - len;
        if fits { Ok(Self { first, len }) } else { Err(Refused::Wrong) }
    }

    fn pages(self) -> Pages {
        Pages::count(vpn(self.first), self.len).unwrap_or(Pages::one(vpn(self.first)))
    }

    fn indices(self) -> core::ops::Range<usize> {
        self.first..self.first + self.len
    }
}

fn vpn(index: usize) -> Vpn {
    VirtAddr::new(WINDOW + (index << PageSize::K4.shift())).vpn(PageSize::K4)
}

fn address(index: usize) -> VirtAddr {
    vpn(index).address(PageSize::K4)
}

impl Body {
    pub(crate) fn new(space: Space) -> Self {
        Self { space, pages: [None; PAGES] }
    }

    fn leaf(&self, index: usize) -> Option<Leaf> {
        self.space.lookup(address(index))
    }

    fn all(&self, part: Part, reserved: bool) -> Result<(), Refused> {
        let fit = self.pages[part.indices()].iter().all(|page| page.is_some() == reserved);
        if fit { Ok(()) } else { Err(Refused::Wrong) }
    }

    /// Lets the disk forget a page that is to be changed here.
    fn forget_slot(&mut self, index: usize) {
        if let Some(page) = &mut self.pages[index]
            && let Some(slot) = page.slot.take()
        {
            slot.release();
        }
    }

    /// Reserves pages, which are full of zeros when they are first used.
    pub(crate) fn reserve(&mut self, part: Part, write: bool) -> Result<(), Refused> {
        self.all(part, false)?;
        self.pages[part.indices()].fill(Some(Page { write, slot: None }));
        Ok(())
    }

    /// Gives up what is reserved of these pages.
    pub(crate) fn unmap(&mut self, part: Part) -> Result<(), Refused> {
        if faults::EARLY_FREE.planted() {
            part.indices()
                .filter_map(|index| self.leaf(index))
                .for_each(|leaf| frames::free_early(leaf.frame));
        }
        self.space.unmap(part.pages())?;
        for index in part.indices() {
            self.forget_slot(index);
            self.pages[index] = None;
        }
        Ok(())
    }

    /// Gives or takes the right to write.
    pub(crate) fn protect(&mut self, part: Part, write: bool) -> Result<(), Refused> {
        self.all(part, true)?;
        // A page that others may have, too, gets the right when it is first written.
        let shared = Change { clear: Attr::WRITE, set: Attr::COPY_ON_WRITE };
        let never = Change::clear(Attr::WRITE | Attr::COPY_ON_WRITE);
        self.space.protect(part.pages(), if write { shared } else { never })?;
        self.pages[part.indices()].iter_mut().flatten().for_each(|page| page.write = write);
        Ok(())
    }

    /// Moves pages to others, which are not reserved: one shootdown.
    pub(crate) fn shift(&mut self, from: Part, to: usize) -> Result<(), Refused> {
        let to = Part::new(to, from.len)?;
        self.all(from, true)?;
        self.all(to, false)?;
        for (index, target) in from.indices().zip(to.indices()) {
            // What the disk has must not be kept: a store by another thread is noted in a leaf that goes.
            if self.leaf(index).is_some() {
                self.forget_slot(index);
            }
            self.pages[target] = self.pages[index].take();
        }
        let Self { space, pages } = self;
        let moved = space.edit(|edit| {
            for (index, target) in from.indices().zip(to.indices()) {
                let Some(leaf) = space.lookup(address(index)) else { continue };
                frames::share(leaf.frame);
                if let Err(error) = edit.map(Pages::one(vpn(target)), leaf.frame, leaf.attr) {
                    frames::release(leaf.frame, false);
                    edit.unmap(to.pages())?;
                    return Err(error);
                }
            }
            edit.unmap(from.pages())
        });
        if let Err(error) = moved {
            for (index, target) in from.indices().zip(to.indices()) {
                pages[index] = pages[target].take();
            }
            return Err(error.into());
        }
        REPORT.add(Count::PagesMoved, from.len);
        Ok(())
    }

    /// Takes pages out, with what they hold: the caller holds the frames.
    pub(crate) fn take_out(&mut self, part: Part) -> Result<heapless::Vec<Pfn, MESSAGE>, Refused> {
        self.all(part, true)?;
        if part.len > MESSAGE {
            return Err(Refused::Wrong);
        }
        let mut taken = heapless::Vec::new();
        for index in part.indices() {
            // A frame that is this process's alone.
            let leaf = loop {
                match self.leaf(index) {
                    Some(leaf) if leaf.attr.contains(Attr::WRITE) => break leaf,
                    _ => self.fault(address(index), Access::STORE.by_user())?,
                }
            };
            let _ = taken.push(leaf.frame);
        }
        taken.iter().for_each(|&frame| frames::share(frame));
        self.unmap(part)?;
        REPORT.add(Count::PagesMoved, part.len);
        Ok(taken)
    }

    /// Maps frames that the caller holds, and that are the process's then.
    pub(crate) fn put_in(&mut self, at: usize, frames: &[Pfn]) -> Result<(), Refused> {
        let part = Part::new(at, frames.len())?;
        self.all(part, false)?;
        let page = Page { write: true, slot: None };
        self.space.map_each(part.pages(), frames.iter().copied(), page.attr())?;
        self.pages[part.indices()].fill(Some(page));
        Ok(())
    }

    /// Resolves a page fault.
    pub(crate) fn fault(&mut self, at: VirtAddr, access: Access) -> Result<(), Refused> {
        match self.space.fault(at, access)? {
            Fault::Retry => Ok(()),
            Fault::NotMapped => self.fetch(at, access),
            Fault::CopyOnWrite(leaf) => self.unshare(at, leaf),
            Fault::NoRight(_) => Err(Refused::Wrong),
        }
    }

    /// Maps a page that is reserved: with what the disk has of it, or full of zeros.
    fn fetch(&mut self, at: VirtAddr, access: Access) -> Result<(), Refused> {
        let index = at.get().wrapping_sub(WINDOW) >> PageSize::K4.shift();
        let page = self.pages.get(index).copied().flatten().filter(|page| access.allowed(page.attr()));
        let page = page.ok_or(Refused::Wrong)?;
        let frame = frames::take().ok_or(Refused::NoMemory)?;
        if let Some(slot) = page.slot {
            slot.read(frame);
            REPORT.add(Count::PagedIn, 1);
        }
        if let Err(error) = self.space.map(Pages::one(vpn(index)), frame, page.attr()) {
            frames::release(frame, false);
            return Err(error.into());
        }
        REPORT.add(Count::Operations, 1);
        Ok(())
    }

    /// Gives the process a frame of its own for a page that others may have.
    fn unshare(&mut self, at: VirtAddr, leaf: Leaf) -> Result<(), Refused> {
        let page = Pages::one(at.vpn(PageSize::K4));
        REPORT.add(Count::Operations, 1);
        if frames::is_sole(leaf.frame) || faults::NO_COW.planted() {
            self.space.protect(page, Change { clear: Attr::COPY_ON_WRITE, set: Attr::WRITE })?;
            return Ok(());
        }
        let copy = frames::take_copy(leaf.frame).ok_or(Refused::NoMemory)?;
        self.space.replace(at, copy, Attr::READ | Attr::WRITE | Attr::USER)?;
        let index = at.get().wrapping_sub(WINDOW) >> PageSize::K4.shift();
        if index < PAGES {
            self.forget_slot(index);
        }
        Ok(())
    }

    /// Returns a copy of the process's memory, whose frames are shared until they are written.
    pub(crate) fn fork(&mut self) -> Result<Self, Refused> {
        let space = self.space.fork()?;
        for index in 0..PAGES {
            if self.pages[index].is_some_and(|page| page.slot.is_some()) && self.leaf(index).is_some() {
                // In a copy no leaf says whether the page was written since the disk had it.
                self.forget_slot(index);
            }
        }
        self.pages.iter().flatten().filter_map(|page| page.slot).for_each(Slot::share);
        Ok(Self { space, pages: self.pages })
    }

    /// Moves the clock's hand over pages: one that was used since the hand was there last is not used from now on, and
    /// one that was not goes to disk. Returns how many went. The caller is the only one that writes to the disk, which
    /// has room for all of them.
    pub(crate) fn sweep(&mut self, part: Part) -> usize {
        let is_ours = |&(_, leaf): &(usize, Leaf)| frames::is_sole(leaf.frame);
        let leaves = part.indices().filter_map(|index| Some((index, self.leaf(index)?))).filter(is_ours);
        let (mut used, mut idle) = (heapless::Vec::<_, SWEEP>::new(), heapless::Vec::<_, SWEEP>::new());
        for (index, leaf) in leaves.take(SWEEP) {
            let list = if leaf.attr.contains(Attr::ACCESSED) { &mut used } else { &mut idle };
            let _ = list.push((index, leaf.frame));
        }
        // The frames are held until the disk has them; nobody stores to them once the edit has ended.
        idle.iter().for_each(|&(_, frame)| frames::share(frame));
        let swept = self.space.edit(|edit| {
            for &(index, _) in &used {
                edit.protect(Pages::one(vpn(index)), Change::clear(Attr::ACCESSED))?;
            }
            for &(index, _) in &idle {
                edit.unmap(Pages::one(vpn(index)))?;
            }
            Ok(())
        });
        assert!(swept.is_ok(), "small pages are cleared and unmapped without memory");
        for &(index, frame) in &idle {
            let kept = self.pages[index].and_then(|page| page.slot);
            if let Some(slot) = kept.filter(|_| !frames::was_written(frame)) {
                REPORT.check(
                    slot.is(frame),
                    Count::Failures,
                    || "a page was written, and its leaf was not dirty",
                );
            } else {
                self.forget_slot(index);
                let slot = Slot::write(frame);
                assert!(slot.is_some(), "the disk is full");
                if let Some(page) = &mut self.pages[index] {
                    page.slot = slot;
                }
            }
            frames::release(frame, false);
        }
        REPORT.add(Count::PagedOut, idle.len());
        REPORT.add(Count::Operations, usize::from(!used.is_empty() || !idle.is_empty()));
        idle.len()
    }
}

/// How many pages the hand moves over at most at a time.
pub(crate) const SWEEP: usize = 16;

impl Drop for Body {
    fn drop(&mut self) {
        self.pages.iter().flatten().filter_map(|page| page.slot).for_each(Slot::release);
    }
}
