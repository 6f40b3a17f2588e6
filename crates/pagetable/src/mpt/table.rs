//! The multi-level table as a [`Table`].

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, PhysAddr, VirtAddr, Vpn};

use super::shape::Shape;
use super::{Encoded, Mpt, Slot};
use crate::format::{Format, payload_bits};
use crate::geometry::Checked as _;
use crate::leaf::phys;
use crate::nodes::Nodes;
use crate::{
    Change, Entry, Error, Footprint, Frames, Holes, Leaf, Mark, Pinned, Private, Radix, Retired, Run, Solo,
    Space, Table, WriterFlag,
};

// SAFETY: the batch is over the table's storage, and the flag is a field. When a change returns, the nodes that it has pushed are
// unlinked. A table whose change unwinds is repaired.
unsafe impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Table<'n> for Mpt<'n, G, F, N> {
    #[inline(always)]
    fn space(&self) -> Space {
        G::SPACE
    }

    #[inline(always)]
    fn lookup(&self, _pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf> {
        // SAFETY: the caller is pinned.
        unsafe { self.find(at) }
    }

    #[inline(always)]
    fn translate(&self, _pinned: Pinned<'_>, at: VirtAddr) -> Option<PhysAddr> {
        let top = Self::top(at.vpn(G::BASE))?;
        // The default implementation decodes a whole leaf. Here the masks of each level are constants.
        // SAFETY: the caller is pinned.
        unsafe {
            self.descend_from(top, at, |word, level, _| {
                if !F::is_leaf(word, level + 1 == Self::LEVELS) {
                    return None;
                }
                let size = if Self::REPLICATED {
                    F::size(word, Self::slot_size(level))
                } else {
                    Self::slot_size(level)
                };
                Some(phys(F::frame(word, size), size, at, G::BASE))
            })
        }
    }

    fn for_each(
        &self,
        _pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for half in G::SPACE.halves().into_iter().flatten() {
            if let Some(pages) = half.intersect(pages) {
                // SAFETY: the caller is pinned, and the pages are in the space.
                unsafe { self.visit(self.root, 0, pages, visit) }?;
            }
        }
        ControlFlow::Continue(())
    }

    fn for_each_run(
        &self,
        _pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(Vpn, Run) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for half in G::SPACE.halves().into_iter().flatten() {
            if let Some(pages) = half.intersect(pages) {
                // SAFETY: the caller is pinned, and the pages are in the space.
                unsafe { self.visit_runs(self.root, 0, pages, visit) }?;
            }
        }
        ControlFlow::Continue(())
    }

    fn payload_bits(&self) -> Option<u32> {
        payload_bits::<F>()
    }

    fn entry(&self, _pinned: Pinned<'_>, at: VirtAddr) -> Entry {
        if !G::SPACE.holds(at) {
            return Entry::Empty;
        }
        // SAFETY: the caller is pinned.
        unsafe { self.descend(at, |word, level, node| self.entry_in(node, word, level, at)) }
    }

    fn for_each_entry(
        &self,
        _pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for half in G::SPACE.halves().into_iter().flatten() {
            if let Some(pages) = half.intersect(pages) {
                // SAFETY: the caller is pinned, and the pages are in the space.
                unsafe { self.visit_entries(self.root, 0, pages, &mut |at, entry| visit(at, entry)) }?;
            }
        }
        ControlFlow::Continue(())
    }

    fn footprint(&self) -> Footprint {
        self.tally.footprint()
    }

    #[inline]
    fn borrowed(&self) -> Option<Pages> {
        self.borrowed
    }

    #[inline(always)]
    fn writer_flag(&self) -> &WriterFlag {
        &self.flag
    }

    #[inline(always)]
    fn batch(&self) -> Retired<'n> {
        Retired::of(self.nodes, &self.flag)
    }

    #[inline]
    unsafe fn map(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        // SAFETY: by the contract of `Table::map` the caller is the only writer, and the batch came from this table.
        unsafe {
            if size == G::BASE
                && let Some(slot) = self.slot_of(pages)
                && let Some(stale) = Encoded::new(attr).and_then(|attr| slot.map(frame, attr))
            {
                stale.add_to(batch);
                return Ok(());
            }
            self.map_slow(batch, pages, frame, size, attr)
        }
    }

    #[inline]
    unsafe fn unmap(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        // SAFETY: by the contract of `Table::unmap` the caller is the only writer, and the batch came from this table.
        unsafe {
            if frames.is_none()
                && let Some(slot) = self.slot_of(pages)
                && let Some((_, stale)) = slot.unmap()
            {
                stale.add_to(batch);
                return Ok(1);
            }
            self.unmap_slow(batch, pages, holes, frames)
        }
    }

    #[inline]
    unsafe fn protect(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        // SAFETY: by the contract of `Table::protect` the caller is the only writer, and the batch came from this table.
        unsafe {
            if let Some(slot) = self.slot_of(pages)
                && let Some((_, stale)) = slot.protect(change)
            {
                stale.add_to(batch);
                return Ok(1);
            }
            self.protect_slow(batch, pages, holes, change)
        }
    }

    #[inline]
    unsafe fn replace(
        &self,
        batch: &mut Retired<'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<Leaf, Error> {
        // SAFETY: by the contract of `Table::replace` the caller is the only writer, and the batch came from this table; if the
        // format breaks, nothing that runs during the call needs the page.
        unsafe {
            if let Some(slot) = self.small_slot(at.vpn(G::BASE))
                && let Some((leaf, stale)) = Encoded::new(attr).and_then(|attr| slot.replace(frame, attr))
            {
                stale.add_to(batch);
                return Ok(leaf);
            }
            self.replace_slow(batch, at, frame, attr, flush_all_cpus)
        }
    }

    unsafe fn mark(&self, batch: &mut Retired<'n>, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        G::SPACE.check_pages(Pages::one(at.vpn(G::BASE)))?;
        // SAFETY: this function's contract, and the page is in the space.
        unsafe { batch.change(|batch| self.mark_page(batch, at, mark), |batch| self.mend(batch)) }
    }

    unsafe fn fill(
        &self,
        batch: &mut Retired<'n>,
        at: VirtAddr,
        payload: u64,
        frame: Pfn,
    ) -> Result<(), Error> {
        G::SPACE.check_pages(Pages::one(at.vpn(G::BASE)))?;
        // SAFETY: this function's contract, and the page is in the space.
        unsafe { self.fill_at(batch, self.spot(at), at, payload, frame) }
    }

    #[inline(always)]
    fn breaks_frames(&self) -> bool {
        F::BREAK_FRAME
    }

    unsafe fn resize(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        to: PageSize,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<(), Error> {
        // SAFETY: by the contract of `Table::resize` the caller is the only writer, and the batch came from this table; if the
        // table breaks, nothing that runs during the call needs the pages.
        unsafe {
            batch
                .change(|batch| self.resize_pages(batch, pages, to, flush_all_cpus), |batch| self.mend(batch))
        }
    }

    fn breaks(&self) -> bool {
        F::BREAK
    }

    unsafe fn dismantle(&mut self, batch: &mut Retired<'n>) {
        // SAFETY: by the contract of `Table::dismantle` the caller is the only writer, and the batch came from this
        // table, and the table is not used any more.
        unsafe { self.take_apart(batch) }
    }
}

// SAFETY: in solo mode no other CPU frees nodes. In shared mode the lender of a borrowed part may free nodes while an unpinned
// CPU walks the borrower, so tables in shared mode do not implement this trait.
unsafe impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word, Mode = Solo>> Private<'n> for Mpt<'n, G, F, N> {}

/// Changes that may affect more than one slot. They are separate functions, so that the change of one slot is small enough to be
/// inlined. If such a change unwinds, the table is repaired.
impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Returns the slot of a page in its last-level node, if `pages` is that page.
    ///
    /// # Safety
    ///
    /// The caller is the only writer as long as the slot exists.
    #[inline(always)]
    unsafe fn slot_of(&self, pages: Pages) -> Option<Slot<'_, 'n, G, F, N>> {
        // SAFETY: by this function's contract the caller is the only writer as long as the slot exists.
        if pages.first() == pages.last() { unsafe { self.small_slot(pages.first()) } } else { None }
    }

    /// Replaces a leaf in any number of slots; see [`Table::replace`].
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table. If the format breaks, nothing that runs until the call
    /// returns needs the page.
    #[inline(never)]
    pub(super) unsafe fn replace_slow(
        &self,
        batch: &mut Retired<'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<Leaf, Error> {
        // SAFETY: by this function's contract the caller is the only writer, and the batch came from this table.
        unsafe {
            batch.change(
                |batch| self.replace_leaf(batch, at, frame, attr, flush_all_cpus),
                |batch| self.mend(batch),
            )
        }
    }

    /// Maps a range of any length; see [`Table::map`].
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[inline(never)]
    pub(super) unsafe fn map_slow(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        // SAFETY: by this function's contract the caller is the only writer, and the batch came from this table.
        unsafe {
            batch.change(|batch| self.map_range(batch, pages, frame, size, attr), |batch| self.mend(batch))
        }
    }

    /// Unmaps a range of any length; see [`Table::unmap`].
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[inline(never)]
    pub(super) unsafe fn unmap_slow(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        // SAFETY: by this function's contract the caller is the only writer, and the batch came from this table.
        unsafe {
            batch.change(|batch| self.unmap_pages(batch, pages, holes, frames), |batch| self.mend(batch))
        }
    }

    /// Changes the attributes of a range of any length; see [`Table::protect`].
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[inline(never)]
    pub(super) unsafe fn protect_slow(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        // SAFETY: by this function's contract the caller is the only writer, and the batch came from this table.
        unsafe {
            batch.change(|batch| self.protect_pages(batch, pages, holes, change), |batch| self.mend(batch))
        }
    }
}
