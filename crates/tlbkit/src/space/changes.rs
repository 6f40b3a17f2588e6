//! The changes of an address space, each a call of its own.

use tlbkit_addr::{Attr, PageSize, Pages, VirtAddr};
use tlbkit_pagetable::{Change, Entry, Error, Leaf, Mark};

use super::AddressSpace;
use crate::counted::{counted, pfn, typed};
use crate::cpu_call::{CpuCall, NotReady};
use crate::detached::Detachment;
use crate::edit::Changing;
use crate::once::{Unflushed, encoded};
use crate::owned::Owned;
use crate::rights::change;
use crate::table::PART;
use crate::{Access, Edit, Fault, FrameOf, Kernel, Machine, Mapping, PagesOf};

impl<K: Kernel, const CPUS: usize> AddressSpace<K, CPUS> {
    /// Runs `edit` as the only writer of this address space. When this call returns, every CPU has flushed the translations that
    /// `edit` removed or restricted, with one shootdown or, in the cases that [`Edit`] lists, with several. Another CPU may still
    /// hold a translation that allows less than the new one; its access faults, and [`fault`](Self::fault) returns
    /// [`Fault::Retry`].
    ///
    /// Pages of the kernel are an exception, because the kernel may use them where it cannot resolve a fault: what `edit`
    /// maps without [`Attr::USER`], a right that it adds to such a page, and any change of the kernel's own address space
    /// ([`lending`](Self::lending)) are in force on every CPU when this call returns. For a right, and where a CPU may keep the
    /// absence of a page (RISC-V, MIPS32), that is a shootdown.
    ///
    /// A thread that waits for another CPU's edit may be preempted meanwhile, if interrupts were not masked at the call, and may
    /// continue on another CPU. While `edit` runs, interrupts are masked.
    ///
    /// If `edit` returns an error, the changes that it made before stay. Inside `edit` a change, a visit or a switch of any address
    /// space returns [`Error::Nested`]; [`lookup`](Self::lookup), [`entry`](Self::entry) and [`translate`](Self::translate) work.
    ///
    /// # Errors
    ///
    /// The error that `edit` returns; [`Error::Nested`] inside another edit or visit on this CPU; [`Error::Unflushed`] if the
    /// shootdown was refused, which the promises of [`Kernel`] rule out.
    #[inline]
    pub fn edit<R>(&self, edit: impl FnOnce(&mut Edit<'_, K, CPUS>) -> Result<R, Error>) -> Result<R, Error> {
        self.edit_any(None, edit)
    }

    /// Runs `edit` as the only writer of `pages`, otherwise as [`edit`](Self::edit). Other CPUs change other pages meanwhile: this
    /// call waits for those that change a page of the range, and for no other one if the range is small. Inside `edit` a change of a
    /// page outside of the range returns [`Error::OutsideRight`]. (A larger page belongs to the range as a whole if a part of it
    /// does.)
    ///
    /// The range that is locked is that of a node of the multi-level table: the lowest one that covers `pages` and has an entry
    /// beside theirs. For a page in a region of 2 MiB of which another page is in use that is the region, and the region of 1 GiB for
    /// the first page in it. A [guarded](crate::Guarded) table is locked as a whole. So are all pages while an [`edit`](Self::edit)
    /// or a
    /// [`fork`](Self::fork) runs. Changes of single pages do not hold up one of a range: those that begin after it wait for it. Between
    /// ranges there is no order.
    ///
    /// Every method that takes pages locks these pages alone.
    ///
    /// # Errors
    ///
    /// Those of [`edit`](Self::edit).
    #[inline]
    pub fn edit_in<R>(
        &self,
        pages: PagesOf<K>,
        edit: impl FnOnce(&mut Edit<'_, K, CPUS>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.edit_any(Some(counted::<K>(pages)), edit)
    }

    /// Returns the page of an address, for [`change`](Self::change).
    #[inline(always)]
    fn page_of(&self, at: VirtAddr) -> Option<Pages> {
        Some(Pages::one(at.vpn(self.0.base())))
    }

    #[inline]
    fn edit_any<R>(
        &self,
        pages: Option<Pages>,
        edit: impl FnOnce(&mut Edit<'_, K, CPUS>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let (mut edit, mut result) = (Some(edit), None);
        self.change(pages, &mut |right| {
            // It is called once.
            if let Some(edit) = edit.take() {
                result = Some(edit(right)?);
            }
            Ok(0)
        })?;
        result.ok_or(Error::Nested)
    }

    /// Runs `changes`, which return a number of pages, once: does what [`edit_in`](Self::edit_in) does, or with `None` what
    /// [`edit`](Self::edit) does.
    #[inline(never)]
    pub(crate) fn change(
        &self,
        pages: Option<Pages>,
        changes: &mut Changing<'_, K, CPUS>,
    ) -> Result<usize, Error> {
        let mmu = self.mmu();
        loop {
            let done = mmu.kernel().masked(|| {
                let (mut call, turn) = CpuCall::in_turn(mmu, &self.0, pages)?;
                let result = Edit::run(&self.0, &mut call, turn, &mut *changes);
                Some(call.checked(result))
            });
            match done {
                Some(result) => return result,
                None => CpuCall::ready(mmu, &self.0, pages).map_err(NotReady::error)?,
            }
        }
    }

    /// Maps `pages` to the frames from `frame` on; see [`Edit::map`].
    ///
    /// # Errors
    ///
    /// Those of [`Edit::map`] and [`edit`](Self::edit).
    #[inline]
    pub fn map(&self, pages: PagesOf<K>, frame: FrameOf<K>, attr: Attr) -> Result<(), Error> {
        let range = counted::<K>(pages);
        if is_one(range)
            && let Some(encoded) = encoded(&self.0, range.first(), attr)
        {
            let mut wrong = None;
            self.map_once(range.first(), pfn::<K>(frame), encoded, &mut wrong);
            return told(wrong);
        }
        self.map_more(pages, frame, attr)
    }

    #[inline(never)]
    fn map_more(&self, pages: PagesOf<K>, frame: FrameOf<K>, attr: Attr) -> Result<(), Error> {
        self.change(Some(counted::<K>(pages)), &mut |edit| edit.map(pages, frame, attr).map(|()| 1)).map(drop)
    }

    /// Maps `pages` to the frames from `frame` on, in the largest pages that fit; see [`Edit::map_linear`].
    ///
    /// # Errors
    ///
    /// Those of [`Edit::map_linear`] and [`edit`](Self::edit).
    pub fn map_linear(&self, pages: PagesOf<K>, frame: FrameOf<K>, attr: Attr) -> Result<(), Error> {
        self.change(Some(counted::<K>(pages)), &mut |edit| edit.map_linear(pages, frame, attr).map(|()| 1))
            .map(drop)
    }

    /// Maps each page of `pages` to the next frame of `frames`; see [`Edit::map_each`].
    ///
    /// # Errors
    ///
    /// Those of [`Edit::map_each`] and [`edit`](Self::edit).
    pub fn map_each(
        &self,
        pages: PagesOf<K>,
        frames: impl IntoIterator<Item = FrameOf<K>>,
        attr: Attr,
    ) -> Result<(), Error> {
        self.edit_in(pages, |edit| edit.map_each(pages, frames, attr))
    }

    /// Maps each page of `pages` to the frame that `take` returns for the page's address; see [`Edit::map_with`].
    ///
    /// # Errors
    ///
    /// Those of [`Edit::map_with`] and [`edit`](Self::edit).
    pub fn map_with(
        &self,
        pages: PagesOf<K>,
        attr: Attr,
        mut take: impl FnMut(VirtAddr) -> Result<FrameOf<K>, Error>,
    ) -> Result<(), Error> {
        let (range, mut taken) = (counted::<K>(pages), None);
        if is_one(range)
            && let Some(encoded) = encoded(&self.0, range.first(), attr)
            && self.map_with_once(range.first(), encoded, &mut take, &mut taken)?
        {
            return Ok(());
        }
        let mut taken = taken.map(|frame| (frame, Owned::frame(self.mmu().kernel(), frame)));
        self.edit_in(pages, |edit| {
            edit.map_with(pages, attr, |at| match taken.take() {
                Some((frame, own)) => {
                    own.keep();
                    Ok(frame)
                }
                None => take(at),
            })
        })
    }

    /// Unmaps every mapped page of `pages`; see [`Edit::unmap`]. A range of up to about 8192 nodes and entries costs one shootdown, and
    /// other writers find all of it mapped or none; a longer one is unmapped in [parts](Self#long-calls).
    ///
    /// # Errors
    ///
    /// Those of [`Edit::unmap`] and [`edit`](Self::edit). If another CPU joins pages into one that extends beyond a range
    /// that is unmapped in parts, so that it must be split again: the parts before are unmapped.
    #[inline]
    pub fn unmap(&self, pages: PagesOf<K>) -> Result<usize, Error> {
        let pages = counted::<K>(pages);
        if is_one(pages) && self.unmap_once::<false>(pages.first()).map_err(Unflushed::error)? {
            return Ok(1);
        }
        self.unmap_more(pages)
    }

    #[inline(never)]
    fn unmap_more(&self, pages: Pages) -> Result<usize, Error> {
        let (mut total, mut rest) = (0, Some(pages));
        let mut detached = Detachment::new(self.mmu());
        while rest.is_some() {
            total += self.change(rest, &mut |edit| edit.unmap_part(&mut rest, &mut detached))?;
            detached.release();
        }
        Ok(total + detached.pages())
    }

    /// Unmaps `pages` if no page of them is a hole; see [`Edit::unmap_whole`]. A range of more than 8192 pages is looked through
    /// first, and then unmapped in [parts](Self#long-calls), so that another CPU may make holes in between.
    ///
    /// # Errors
    ///
    /// Those of [`Edit::unmap_whole`] and [`edit`](Self::edit); as for [`unmap`](Self::unmap) if the range is unmapped in parts.
    pub fn unmap_whole(&self, pages: PagesOf<K>) -> Result<usize, Error> {
        if counted::<K>(pages).len() <= PART {
            return self.change(Some(counted::<K>(pages)), &mut |edit| edit.unmap_whole(pages));
        }
        self.check_whole(pages)?;
        self.unmap(pages)
    }

    /// Moves every mapped page and every mark of `from` to the pages from `to` on (`mremap`); see [`Edit::move_pages`]. Costs one
    /// shootdown.
    ///
    /// # Errors
    ///
    /// Those of [`Edit::move_pages`] and [`edit`](Self::edit).
    pub fn move_pages(&self, from: PagesOf<K>, to: VirtAddr) -> Result<usize, Error> {
        self.change(None, &mut |edit| edit.move_pages(from, to))
    }

    /// Changes the attributes of every mapped page of `pages`; see [`Edit::protect`]. A range of more than 8192 pages is changed in
    /// [parts](Self#long-calls).
    ///
    /// # Errors
    ///
    /// Those of [`Edit::protect`] and [`edit`](Self::edit). Nothing has changed then, unless another CPU joins pages at an end of a
    /// range that is changed in parts, so that they must be split again: the parts before have changed.
    #[inline]
    pub fn protect(&self, pages: PagesOf<K>, change: Change) -> Result<usize, Error> {
        let pages = counted::<K>(pages);
        if is_one(pages) && self.protect_once(pages.first(), change).map_err(Unflushed::error)? {
            return Ok(1);
        }
        self.protect_more(pages, change)
    }

    #[inline(never)]
    fn protect_more(&self, pages: Pages, change: Change) -> Result<usize, Error> {
        let (mut total, mut rest) = (0, Some(pages));
        while rest.is_some() {
            total += self.change(rest, &mut |edit| edit.protect_part(&mut rest, change))?;
        }
        Ok(total)
    }

    /// Changes the attributes of `pages` if no page of them is a hole; see [`Edit::protect_whole`]. A range of more than 8192 pages is
    /// looked through first, and then changed in [parts](Self#long-calls), so that another CPU may make holes in between.
    ///
    /// # Errors
    ///
    /// Those of [`Edit::protect_whole`] and [`edit`](Self::edit); as for [`protect`](Self::protect) if the range is changed in parts.
    pub fn protect_whole(&self, pages: PagesOf<K>, change: Change) -> Result<usize, Error> {
        if counted::<K>(pages).len() <= PART {
            return self.change(Some(counted::<K>(pages)), &mut |edit| edit.protect_whole(pages, change));
        }
        self.check_whole(pages)?;
        self.protect(pages, change)
    }

    /// Gives every mapped page of `pages` these access rights and no others; see [`Edit::set_rights`].
    ///
    /// # Errors
    ///
    /// Those of [`Edit::set_rights`] and [`edit`](Self::edit).
    pub fn set_rights(&self, pages: PagesOf<K>, mapping: Mapping, rights: Attr) -> Result<usize, Error> {
        self.protect(pages, change::<<K::Machine as Machine>::Format>(mapping, rights)?)
    }

    /// Gives `pages` these access rights and no others, if no page of them is a hole; see [`Edit::set_rights_whole`], and
    /// [`protect_whole`](Self::protect_whole).
    ///
    /// # Errors
    ///
    /// Those of [`Edit::set_rights_whole`] and [`edit`](Self::edit); as for [`protect`](Self::protect) if the range is changed in
    /// parts.
    pub fn set_rights_whole(
        &self,
        pages: PagesOf<K>,
        mapping: Mapping,
        rights: Attr,
    ) -> Result<usize, Error> {
        self.protect_whole(pages, change::<<K::Machine as Machine>::Format>(mapping, rights)?)
    }

    fn check_whole(&self, pages: PagesOf<K>) -> Result<(), Error> {
        self.0.check_own(counted::<K>(pages))?;
        self.first_hole(pages)?.map_or(Ok(()), |at| Err(Error::NotMapped { at }))
    }

    /// Maps the base page of `at` to another frame; see [`Edit::replace`].
    ///
    /// # Errors
    ///
    /// Those of [`Edit::replace`] and [`edit`](Self::edit).
    #[inline]
    pub fn replace(&self, at: VirtAddr, frame: FrameOf<K>, attr: Attr) -> Result<(), Error> {
        let page = at.vpn(self.0.base());
        let mut wrong = None;
        match encoded(&self.0, page, attr) {
            Some(encoded) => self.replace_once(page, pfn::<K>(frame), encoded, &mut wrong),
            None => self.replace_more(at, frame, attr, &mut wrong),
        }
        told(wrong)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn replace_more(
        &self,
        at: VirtAddr,
        frame: FrameOf<K>,
        attr: Attr,
        wrong: &mut Option<Error>,
    ) {
        *wrong = self.change(self.page_of(at), &mut |edit| edit.replace(at, frame, attr).map(|()| 1)).err();
    }

    /// Replaces the page of `size` at `at`; see [`Edit::replace_sized`].
    ///
    /// # Errors
    ///
    /// Those of [`Edit::replace_sized`] and [`edit`](Self::edit).
    pub fn replace_sized(
        &self,
        at: VirtAddr,
        frame: FrameOf<K>,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        self.change(self.page_of(at), &mut |edit| edit.replace_sized(at, frame, size, attr).map(|()| 1))
            .map(drop)
    }

    /// Resolves a store to the copy-on-write page of `at`: gives the page the right to write, and a frame of its own if its frame
    /// is used elsewhere; see [`Edit::unshare`].
    ///
    /// # Errors
    ///
    /// Those of [`Edit::unshare`] and [`edit`](Self::edit).
    pub fn unshare(
        &self,
        at: VirtAddr,
        is_sole: impl FnMut(FrameOf<K>) -> bool,
        copy: impl FnOnce(FrameOf<K>) -> Result<FrameOf<K>, Error>,
    ) -> Result<(), Error> {
        self.edit_any(self.page_of(at), |edit| edit.unshare(at, is_sole, copy))
    }

    /// Stores a mark in the entry for the page of `at`, and returns what the entry held before; see [`Edit::mark`].
    ///
    /// # Errors
    ///
    /// Those of [`Edit::mark`] and [`edit`](Self::edit).
    pub fn mark(&self, at: VirtAddr, mark: Mark) -> Result<Entry<FrameOf<K>>, Error> {
        let mut before = Entry::Empty;
        if !self.mark_once(at.vpn(self.0.base()), mark, &mut before).map_err(Unflushed::error)? {
            self.change(self.page_of(at), &mut |edit| {
                before = edit.mark_at(at, mark)?;
                Ok(1)
            })?;
        }
        Ok(typed::<K, _>(before))
    }

    /// Stores a mark in the entries of `pages`, none of which is in use; see [`Edit::mark_pages`].
    ///
    /// # Errors
    ///
    /// Those of [`Edit::mark_pages`] and [`edit`](Self::edit).
    pub fn mark_pages(&self, pages: PagesOf<K>, mark: Mark) -> Result<(), Error> {
        self.edit_in(pages, |edit| edit.mark_pages(pages, mark))
    }

    /// Begins to page out the page of `at`; see [`Edit::freeze`].
    ///
    /// # Errors
    ///
    /// Those of [`Edit::freeze`] and [`edit`](Self::edit).
    pub fn freeze(&self, at: VirtAddr) -> Result<Leaf<FrameOf<K>>, Error> {
        self.edit_any(self.page_of(at), |edit| edit.freeze(at))
    }

    /// Puts out the page of `at`, if no CPU has written it since it was frozen; see [`Edit::page_out`].
    ///
    /// # Errors
    ///
    /// Those of [`Edit::page_out`] and [`edit`](Self::edit).
    pub fn page_out(&self, at: VirtAddr, frame: FrameOf<K>, payload: u64) -> Result<(), Error> {
        self.edit_any(self.page_of(at), |edit| edit.page_out(at, frame, payload))
    }

    /// Maps the page of `at`, whose mark has this payload; see [`Edit::fill`].
    ///
    /// # Errors
    ///
    /// Those of [`Edit::fill`] and [`edit`](Self::edit). After any of them `frame` is released.
    pub fn fill(&self, at: VirtAddr, payload: u64, frame: FrameOf<K>) -> Result<(), Error> {
        let own = Owned::frame(self.mmu().kernel(), frame);
        match self.fill_once(at.vpn(self.0.base()), payload, pfn::<K>(frame)) {
            Ok(false) => self.edit_any(self.page_of(at), |edit| edit.fill_owned(at, payload, frame, own)),
            done => {
                own.keep();
                done.map(drop).map_err(Unflushed::error)
            }
        }
    }

    /// Makes every leaf of `pages` one of size `to`; see [`Edit::resize`].
    ///
    /// # Errors
    ///
    /// Those of [`Edit::resize`] and [`edit`](Self::edit).
    pub fn resize(&self, pages: PagesOf<K>, to: PageSize) -> Result<(), Error> {
        self.edit_in(pages, |edit| edit.resize(pages, to))
    }

    /// Tells why an access to `at` by this CPU faulted, and resolves the faults that need no decision of the kernel.
    ///
    /// The answer compares what the machine has reported ([`Access::from_riscv`] and its kind) with what the page's entry allows.
    /// If the entry allows the access, the CPU flushes the page and repeats the access ([`Fault::Retry`]), unless the machine has
    /// reported a reason that no flush removes ([`Fault::Refused`]).
    ///
    /// A fault is answered [`Fault::Refused`], too, if it is the same one as in the call before: the same page, access and address
    /// space, which this CPU runs, and no other call of this CPU in between that may have changed or served anything (a
    /// [`lookup`](Self::lookup) and its like, a repeated [`activate`](Self::activate) and an [`on_interrupt`](crate::Mmu::on_interrupt) without
    /// a request are none). Then no CPU has changed the page since its flush, and the repeat did not help. So call this method
    /// once for each fault; to find out whether a page allows an access, use [`lookup`](Self::lookup) and [`Access::allowed`].
    ///
    /// # Errors
    ///
    /// [`Error::Nested`] inside an edit or a visit on this CPU; [`Error::Unflushed`] as for [`edit`](Self::edit).
    #[inline(never)]
    pub fn fault(&self, at: VirtAddr, access: Access) -> Result<Fault<FrameOf<K>>, Error> {
        if let Some(fault) = access.hopeless() {
            return Ok(typed::<K, _>(fault));
        }
        match self.fault_once(at.vpn(self.0.base()), access) {
            Some(fault) => Ok(typed::<K, _>(fault)),
            None => self.fault_again(at, access),
        }
    }

    #[cold]
    #[inline(never)]
    fn fault_again(&self, at: VirtAddr, access: Access) -> Result<Fault<FrameOf<K>>, Error> {
        self.edit_any(self.page_of(at), |edit| edit.fault(at, access))
    }
}

/// Returns `Err` if `wrong` holds an error. Without an error this moves no value.
#[inline(always)]
fn told(wrong: Option<Error>) -> Result<(), Error> {
    if wrong.is_none() { Ok(()) } else { wrong.map_or(Ok(()), Err) }
}

#[inline(always)]
fn is_one(pages: Pages) -> bool {
    pages.first() == pages.last()
}
