//! Maps of a range: all of it, or nothing.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr};
use tlbkit_pagetable::{Error, Holes, Table as _};

use super::{Edit, after};
use crate::counted::{counted, pfn, to_pages, typed};
use crate::cursor::check_unused;
use crate::{FrameOf, Kernel, PagesOf};

impl<K: Kernel, const CPUS: usize> Edit<'_, K, CPUS> {
    /// Maps `pages` to the frames from `frame` on, in base pages.
    ///
    /// Costs a walk to each last-level node and a store for each page. If the pages are the kernel's, on several CPUs of
    /// RISC-V or MIPS32, also a shootdown at the end of the edit ([`AddressSpace::edit`](crate::AddressSpace::edit)).
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::FrameTooLarge`], [`Error::WrongAttr`] (also for [`Attr::GLOBAL`], except in pages that
    /// this address space [lends](crate::AddressSpace::lending)), [`Error::Occupied`], [`Error::Marked`], [`Error::Borrowed`] or
    /// [`Error::NoMemory`]; nothing has changed then.
    pub fn map(&mut self, pages: PagesOf<K>, frame: FrameOf<K>, attr: Attr) -> Result<(), Error> {
        self.map_sized(pages, frame, self.space.base(), attr)
    }

    /// Maps `pages` to the frames from `frame` on, in pages of `size`.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map), and [`Error::WrongSize`], [`Error::Misaligned`] or [`Error::MisalignedFrame`].
    #[inline(never)]
    pub fn map_sized(
        &mut self,
        pages: PagesOf<K>,
        frame: FrameOf<K>,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        let pages = counted::<K>(pages);
        self.space.check_global(attr, pages)?;
        let (mut changes, writer) = self.parts();
        changes.make_way(writer.pending(), pages);
        writer.map(pages, pfn::<K>(frame), size, attr)?;
        changes.put_in_force(writer.pending(), pages, attr);
        Ok(())
    }

    /// Maps `pages` to the frames from `frame` on, each part in the largest pages that fit there; among pages that are
    /// [lent](crate::AddressSpace::lending), the largest below a top-level slot. (One page that is lent decides for all of `pages`.)
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    pub fn map_linear(&mut self, pages: PagesOf<K>, frame: FrameOf<K>, attr: Attr) -> Result<(), Error> {
        let (pages, frame) = (counted::<K>(pages), pfn::<K>(frame));
        let space = self.space.table.space();
        space.check_frames(frame, pages.len(), space.base())?;
        let block = self.space;
        self.all_or_nothing(pages, &mut |edit, done| {
            while let Some(rest) = after(pages, *done) {
                let at = Pfn::new(frame.get() + *done);
                // The largest size that fits, its pages, and how far it is from there to a boundary of the next larger one.
                let (mut size, mut count, mut until) = (space.base(), 1, usize::MAX);
                for &larger in space.sizes().iter().filter(|&&size| block.has_place_for(size, pages)) {
                    let pages = larger.pages(space.base()).unwrap_or(1);
                    let is_aligned = (rest.first().get() | at.get()) & (pages - 1) == 0;
                    if is_aligned && rest.len() >= pages {
                        (size, count, until) = (larger, pages, usize::MAX);
                    } else if until == usize::MAX {
                        until = pages - (rest.first().get() & (pages - 1));
                    }
                }
                let len = rest.len().min(until) / count * count;
                let part = Pages::count(rest.first(), len).unwrap_or(Pages::one(rest.first()));
                edit.map_sized(to_pages::<K>(part), typed::<K, _>(at), size, attr)?;
                *done += part.len();
            }
            Ok(())
        })
    }

    /// Maps each page of `pages` to the next frame of `frames`.
    ///
    /// Costs a walk and a store for each page.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map), and [`Error::NotMapped`] with the first page for which `frames` had no frame. After an error the
    /// caller owns the frames again as soon as the edit has ended. If `frames` panics, the pages that were mapped before stay mapped.
    pub fn map_each(
        &mut self,
        pages: PagesOf<K>,
        frames: impl IntoIterator<Item = FrameOf<K>>,
        attr: Attr,
    ) -> Result<(), Error> {
        let pages = counted::<K>(pages);
        let base = self.space.base();
        let mut frames = frames.into_iter();
        self.all_or_nothing(pages, &mut |edit, done| {
            while let Some(rest) = after(pages, *done) {
                let page = rest.first();
                let frame = frames.next().ok_or(Error::NotMapped { at: page.address(base) })?;
                edit.map(to_pages::<K>(Pages::one(page)), frame, attr)?;
                *done += 1;
            }
            Ok(())
        })
    }

    /// Maps each page of `pages`, one after the other, to the frame that `take` returns for the page's address. The frame belongs
    /// to the address space from then on, so a kernel has no frame to give back: if a page cannot be mapped, its frame is
    /// [released](Kernel::release), and so are those of the pages before it.
    ///
    /// `take` is called for a page that is known to be unused, with interrupts masked, and, but for `Mmu::clear_frame` and `Mmu::copy_frame`, must not call back into the
    /// [`Mmu`](crate::Mmu) or an address space. If it panics, the pages that were mapped before stay mapped.
    ///
    /// Costs a walk and a store for each page.
    ///
    /// # Errors
    ///
    /// The error of `take`; otherwise as [`map`](Self::map). Nothing has changed then.
    pub fn map_with(
        &mut self,
        pages: PagesOf<K>,
        attr: Attr,
        mut take: impl FnMut(VirtAddr) -> Result<FrameOf<K>, Error>,
    ) -> Result<(), Error> {
        let pages = counted::<K>(pages);
        let base = self.space.base();
        if pages.first() != pages.last() {
            // The cursor checks each page, too; here no frame is taken if a later page is in use.
            self.check_unused(pages)?;
        }
        for (done, page) in pages.iter().enumerate() {
            let cursor = self.cursor_at(page);
            let mapped = cursor.and_then(|mut cursor| cursor.map_with(attr, || take(page.address(base))));
            if let Err(why) = mapped {
                if let Some(before) = Pages::count(pages.first(), done) {
                    self.unmap(to_pages::<K>(before))?;
                }
                return Err(why);
            }
        }
        Ok(())
    }

    /// Runs `map` if none of `pages` is in use. It counts the pages from the beginning of `pages` that it has mapped or marked, and those
    /// are unmapped if it fails.
    #[inline(never)]
    pub(super) fn all_or_nothing(
        &mut self,
        pages: Pages,
        map: &mut dyn FnMut(&mut Self, &mut usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.check_unused(pages)?;
        let mut done = 0;
        let result = map(self, &mut done);
        if result.is_err()
            && let Some(mapped) = done.checked_sub(1).and_then(|_| Pages::count(pages.first(), done))
        {
            // The caller keeps the frames and payloads, so none is released.
            self.writer.unmap(mapped, Holes::Skip)?;
        }
        result
    }

    /// Checks that all of `pages` are in range, that none is shared, and that none is mapped or marked.
    pub(super) fn check_unused(&self, pages: Pages) -> Result<(), Error> {
        self.space.check_own(pages)?;
        match self.first_entry(pages) {
            Some((at, entry)) => check_unused(at, entry),
            None => Ok(()),
        }
    }
}
