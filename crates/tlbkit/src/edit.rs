//! Several changes of one address space that cost one shootdown.

use core::fmt;
use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, Reach, VirtAddr, Vpn};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::{Change, Error, Frames as _, Holes, Leaf, Pinned, Run, Runs, Table as _, Writer};

use crate::block::Handle;
use crate::here::{Here, RUNS};
use crate::mmu::Table;
use crate::{Access, Fault, Kernel, Machine};

/// The right to change an [`AddressSpace`](crate::AddressSpace), inside of
/// [`AddressSpace::edit`](crate::AddressSpace::edit).
///
/// Each change is all or nothing. What the changes make stale is flushed, on every CPU that may hold it, when the edit
/// ends; or before, if more leaves are unmapped or replaced than a shootdown has room for (16), and then again. The frames and
/// nodes that the changes uncover go back to the kernel after that, and not before.
pub struct Edit<'s, K: Kernel, const CPUS: usize = 1> {
    space: &'s Handle<K, CPUS>,
    here: &'s mut Here<K, CPUS>,
    writer: Writer<'s, 'static, Table<K>>,
    /// The first `used` are runs that the changes have uncovered.
    frames: [Option<Run>; RUNS],
    used: usize,
}

impl<'s, K: Kernel, const CPUS: usize> Edit<'s, K, CPUS> {
    /// Becomes the writer of `space`, and serves shootdowns while another CPU is.
    #[inline]
    pub(crate) fn new(space: &'s Handle<K, CPUS>, here: &'s mut Here<K, CPUS>) -> Self {
        let table: &'s Table<K> = &space.table;
        let writer = loop {
            match Writer::new(table) {
                Ok(writer) => break writer,
                Err(_) => here.serve(),
            }
        };
        Self { space, here, writer, frames: [None; RUNS], used: 0 }
    }

    /// Maps `pages` to the frames from `frame` on, in base pages.
    ///
    /// Costs a walk to each last-level node and a store for each page.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::FrameTooLarge`], [`Error::WrongAttr`] (so for [`Attr::GLOBAL`] in an address
    /// space that is not the [kernel's](crate::AddressSpace::lending)), [`Error::Occupied`], [`Error::Borrowed`] or
    /// [`Error::NoMemory`]; nothing has changed then.
    #[inline]
    pub fn map(&mut self, pages: Pages, frame: Pfn, attr: Attr) -> Result<(), Error> {
        self.map_sized(pages, frame, self.space.base(), attr)
    }

    /// Maps `pages` to the frames from `frame` on, in pages of `size`.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map), and [`Error::WrongSize`], [`Error::Misaligned`] or [`Error::MisalignedFrame`].
    #[inline]
    pub fn map_sized(&mut self, pages: Pages, frame: Pfn, size: PageSize, attr: Attr) -> Result<(), Error> {
        self.space.check_global(attr)?;
        self.writer.map(pages, frame, size, attr)
    }

    /// Maps `pages` to the frames from `frame` on, each part in the largest pages that fit there; among pages that are
    /// [lent](crate::AddressSpace::lending), the largest below a top-level slot.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    pub fn map_linear(&mut self, pages: Pages, frame: Pfn, attr: Attr) -> Result<(), Error> {
        let space = self.space.table.space();
        space.check_frames(frame, pages.len(), space.base())?;
        let block = self.space;
        let sizes = || space.sizes().iter().copied().filter(|&size| block.has_place_for(size, pages));
        self.all_or_nothing(pages, |edit, done| {
            while let Some(rest) = after(pages, *done) {
                let at = Pfn::new(frame.get() + *done);
                let fits = |size: PageSize| {
                    let count = size.pages(space.base()).unwrap_or(1);
                    let aligned =
                        rest.first().is_aligned(size, space.base()) && at.is_aligned(size, space.base());
                    (aligned && rest.len() >= count).then_some((size, count))
                };
                let largest = sizes().rev().find_map(fits);
                let (size, count) = largest.unwrap_or((space.base(), 1));
                // As many of that size as there are before a larger one would fit, or the range ends.
                let next = sizes().find(|&larger| larger > size);
                let until = next
                    .and_then(|larger| larger.pages(space.base()))
                    .map_or(usize::MAX, |larger| larger - (rest.first().get() & (larger - 1)));
                let len = rest.len().min(until) / count * count;
                let part = Pages::count(rest.first(), len).unwrap_or(Pages::one(rest.first()));
                edit.map_sized(part, at, size, attr)?;
                *done += part.len();
            }
            Ok(())
        })
    }

    /// Maps each page of `pages` to the next frame of `frames`.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map), and [`Error::NotMapped`] with the first page that there was no frame for. The frames are
    /// the caller's again, once the edit has ended.
    pub fn map_each(
        &mut self,
        pages: Pages,
        frames: impl IntoIterator<Item = Pfn>,
        attr: Attr,
    ) -> Result<(), Error> {
        let base = self.space.base();
        let mut frames = frames.into_iter();
        self.all_or_nothing(pages, |edit, done| {
            while let Some(rest) = after(pages, *done) {
                let page = rest.first();
                let frame = frames.next().ok_or(Error::NotMapped { at: page.address(base) })?;
                edit.map(Pages::one(page), frame, attr)?;
                *done += 1;
            }
            Ok(())
        })
    }

    /// Runs `map`, which counts the pages from the beginning of `pages` that it has mapped, and unmaps those if it fails.
    fn all_or_nothing(
        &mut self,
        pages: Pages,
        map: impl FnOnce(&mut Self, &mut usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let Some(occupant) = self.first_leaf(pages) {
            return Err(Error::Occupied { occupant });
        }
        let mut done = 0;
        let result = map(self, &mut done);
        if result.is_err()
            && let Some(mapped) = done.checked_sub(1).and_then(|_| Pages::count(pages.first(), done))
        {
            // The frames are the caller's, and stay so: nothing is released.
            self.writer.unmap(mapped, Holes::Skip, None)?;
        }
        result
    }

    /// Unmaps what is mapped in `pages`, and returns how many base pages that was. Larger pages that the ends of the
    /// range cut are split first. The frames go to [`Kernel::release`] when no TLB leads to them any more.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] or [`Error::Borrowed`]; [`Error::NoMemory`] if there is no node to split a page, or
    /// [`Error::Breaks`] on AArch64 if a page to split is not a user's. The mapping is what it was then.
    pub fn unmap(&mut self, pages: Pages) -> Result<usize, Error> {
        self.split_ends(pages)?;
        let mut total = 0;
        let mut rest = Some(pages);
        while let Some(pages) = rest {
            match self.unmap_into_room(pages) {
                Ok(unmapped) => return Ok(total + unmapped),
                Err(Error::NoRoom) if self.used > 0 => self.flush(),
                Err(Error::NoRoom) => {
                    // More leaves than there is room for: as many as there is room for.
                    let part = self.first_leaves(pages);
                    total += self.unmap_into_room(part)?;
                    rest = after(pages, part.len());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }

    fn unmap_into_room(&mut self, pages: Pages) -> Result<usize, Error> {
        let Self { writer, frames, used, .. } = self;
        let mut runs = Runs::new(frames.get_mut(*used..).unwrap_or_default());
        let unmapped = writer.unmap(pages, Holes::Skip, Some(&mut runs))?;
        *used += runs.iter().count();
        Ok(unmapped)
    }

    /// Changes the attributes of what is mapped in `pages`, and returns how many base pages that is. Larger pages that
    /// the ends of the range cut are split first.
    ///
    /// # Errors
    ///
    /// As [`unmap`](Self::unmap), and [`Error::WrongAttr`].
    pub fn protect(&mut self, pages: Pages, change: Change) -> Result<usize, Error> {
        self.space.check_global(change.set)?;
        self.split_ends(pages)?;
        self.writer.protect(pages, Holes::Skip, change)
    }

    /// Changes the attributes of `pages`, which are whole leaves.
    pub(crate) fn protect_leaves(&mut self, pages: Pages, change: Change) -> Result<(), Error> {
        self.writer.protect(pages, Holes::Refuse, change).map(drop)
    }

    /// Splits larger pages that reach over an end of `pages`.
    fn split_ends(&mut self, pages: Pages) -> Result<(), Error> {
        let space = self.space.table.space();
        for end in [pages.first(), pages.last()] {
            while let Some(leaf) = self.find(end.address(space.base()))
                && let whole = space.pages_of(&leaf)
                && whole.intersect(pages) != Some(whole)
                && let Some(&smaller) = space.sizes().iter().rev().find(|&&size| size < leaf.size)
            {
                self.resize(whole, smaller)?;
            }
        }
        Ok(())
    }

    /// Makes every leaf of `pages` one of size `to`: splits larger ones, promotes smaller ones.
    ///
    /// # Errors
    ///
    /// Those of [`Table::resize`](tlbkit_pagetable::Table::resize); [`Error::Breaks`] if the architecture wants the entries
    /// empty for a while (AArch64) and a page is not a user's.
    pub fn resize(&mut self, pages: Pages, to: PageSize) -> Result<(), Error> {
        if self.space.table.breaks() {
            self.may_break(pages)?;
        }
        let (space, here) = (self.space, &mut *self.here);
        // SAFETY: the pages are a user's, if their entries are to be empty for a while.
        unsafe { self.writer.resize_breaking(pages, to, &mut |flush| here.shoot(space, flush, None)) }
    }

    /// Replaces the leaf that maps `at` by one of the same size that leads to `frame`, in one store: no CPU ever finds the
    /// page absent. (On AArch64, which wants it so, the entry is empty in between, and a CPU that faults retries.) The
    /// frame that was there is [released](Kernel::release) after the flush.
    ///
    /// This is how a copy-on-write page gets a frame of its own.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`]; [`Error::OutOfRange`], [`Error::MisalignedFrame`], [`Error::FrameTooLarge`],
    /// [`Error::WrongAttr`] or [`Error::Borrowed`]; [`Error::Breaks`] on AArch64 if the page is not a user's. Nothing has
    /// changed then.
    pub fn replace(&mut self, at: VirtAddr, frame: Pfn, attr: Attr) -> Result<(), Error> {
        self.space.check_global(attr)?;
        if self.used == RUNS {
            self.flush();
        }
        let table = &self.space.table;
        if table.breaks_frames() {
            self.may_break(Pages::one(at.vpn(self.space.base())))?;
        }
        let (space, here, base) = (self.space, &mut *self.here, self.space.base());
        // SAFETY: the page is a user's, if its entry is to be empty for a while.
        let old = unsafe {
            self.writer.replace_breaking(at, frame, attr, &mut |flush| here.shoot(space, flush, None))
        }?;
        let mut runs = Runs::new(self.frames.get_mut(self.used..).unwrap_or_default());
        runs.reserve(1)?;
        runs.push(old.frame, old.size, base, old.attr);
        self.used += 1;
        Ok(())
    }

    /// Tells why an access to `at` by this CPU faulted; see [`AddressSpace::fault`](crate::AddressSpace::fault).
    ///
    /// # Errors
    ///
    /// None today; the status bits of a mapped leaf can be set.
    pub fn fault(&mut self, at: VirtAddr, access: Access) -> Result<Fault, Error> {
        if let Some(lender) = self.space.lender_of(at) {
            // Whoever has the kernel's half changes it, and flushes it of every address space. Nobody waits for this
            // writer there: the kernel's own shares with nobody.
            return Edit::new(lender, self.here).fault(at, access);
        }
        let Some(leaf) = self.find(at) else { return Ok(Fault::NotMapped) };
        if !access.allowed(leaf.attr) {
            let copy = access.stores() && leaf.attr.contains(Attr::COPY_ON_WRITE);
            return Ok(if copy { Fault::CopyOnWrite(leaf) } else { Fault::NoRight(leaf) });
        }
        let pages = self.space.table.space().pages_of(&leaf);
        let missing = status::<K>(access).difference(leaf.attr);
        if !missing.is_empty() {
            self.writer.protect(pages, Holes::Refuse, Change::set(missing))?;
        }
        // The entry that this CPU faulted on, and the links to it: no architecture promises that the fault has evicted them.
        let mut flush = Flush::none();
        flush.add_links(Reach::Local, Pages::one(at.vpn(self.space.base())));
        self.here.flush(self.space, &flush);
        Ok(Fault::Retry)
    }

    /// Flushes what the changes so far made stale, on every CPU that may hold it, and hands back what they uncovered.
    ///
    /// An edit does it at its end. Costs nothing if nothing has changed.
    pub fn flush(&mut self) {
        let Self { space, here, writer, frames, used } = self;
        let Some(pending) = writer.pending() else { return };
        let (flush, nodes) = (pending.flush(), pending.nodes());
        if *used == 0 && nodes == 0 && flush.is_none() {
            return;
        }
        let weak = *used == 0 && nodes == 0 && flush.reach() < Reach::Everywhere;
        if weak || here.is_alone(space) {
            here.flush(space, flush);
            // SAFETY: nothing is to be freed; or no other CPU may hold a translation of the address space or walk its
            // table, and this one has flushed, outside of any walk.
            unsafe { writer.complete() };
            for run in frames.iter_mut().take(core::mem::take(used)).filter_map(Option::take) {
                here.release(run);
            }
        } else {
            *used = 0;
            here.complete(space, writer.take(), core::mem::replace(frames, [None; RUNS]));
        }
    }

    /// Returns the leaf that maps `at`.
    fn find(&self, at: VirtAddr) -> Option<Leaf> {
        // SAFETY: this is the one writer of its own pages, and this CPU serves no shootdown during the walk: so no node is
        // freed, not of the pages that it shares either.
        self.space.table.lookup(unsafe { Pinned::by(self) }, at)
    }

    /// Visits the leaves that map a page of `pages`, in ascending order.
    fn visit(&self, pages: Pages, visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>) -> ControlFlow<()> {
        // SAFETY: as in `find`; `self` is borrowed, so that `visit` changes and serves nothing.
        self.space.table.for_each(unsafe { Pinned::by(self) }, pages, visit)
    }

    /// Refuses to empty entries of pages for a while that the kernel may stand on: those that are not a user's.
    fn may_break(&self, pages: Pages) -> Result<(), Error> {
        let users = self.visit(pages, &mut |leaf| {
            if leaf.attr.contains(Attr::USER) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if users.is_continue() { Ok(()) } else { Err(Error::Breaks) }
    }

    /// Returns a leaf that maps a page of `pages`.
    fn first_leaf(&self, pages: Pages) -> Option<Leaf> {
        let mut found = None;
        let _ = self.visit(pages, &mut |leaf| {
            found = Some(leaf);
            ControlFlow::Break(())
        });
        found
    }

    /// Returns the part at the beginning of `pages` in which there are as many leaves as there is room for.
    fn first_leaves(&self, pages: Pages) -> Pages {
        let (mut leaves, mut end) = (0, pages.first());
        let _ = self.visit(pages, &mut |leaf| {
            leaves += 1;
            end = self.space.table.space().pages_of(&leaf).last();
            if leaves == RUNS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        Pages::new(pages.first(), end).unwrap_or(pages)
    }
}

/// Returns what is left of `pages` behind its first `done`.
fn after(pages: Pages, done: usize) -> Option<Pages> {
    Pages::new(Vpn::new(pages.first().get().checked_add(done)?), pages.last())
}

/// Returns the status bits that the machine's entries have and the access needs.
pub(crate) fn status<K: Kernel>(access: Access) -> Attr {
    access.status().intersection(<<K::Machine as Machine>::Format as Format>::OPTIONAL)
}

impl<K: Kernel, const CPUS: usize> Drop for Edit<'_, K, CPUS> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl<K: Kernel, const CPUS: usize> fmt::Debug for Edit<'_, K, CPUS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Edit")
            .field("space", self.space)
            .field("uncovered", &self.used)
            .finish_non_exhaustive()
    }
}
