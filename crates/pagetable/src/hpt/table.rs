//! The hashed table as a [`Table`].

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, PhysAddr, VirtAddr};

use super::{Hashed, Sizes};
use crate::format::{Format, payload_bits};
use crate::geometry::Checked as _;
use crate::leaf::phys;
use crate::nodes::Nodes;
use crate::{
    Change, Entry, Error, FlushAll, Footprint, Frames, Geometry, Holes, Leaf, Mark, Pinned, Private, Retired,
    Right, Space, Table, WriterFlag,
};

// SAFETY: `batch` returns a batch over the table's storage, and the flag is a field. When a change returns, the nodes that
// it has pushed to the batch are unlinked. `mend` repairs the table after a change that unwinds.
unsafe impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Table<'n>
    for Hashed<'n, G, F, N, S>
{
    fn space(&self) -> Space {
        G::SPACE
    }

    #[inline(always)]
    fn lookup(&self, _pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf> {
        if !G::SPACE.holds(at) {
            return None;
        }
        // SAFETY: `_pinned` proves that the caller is pinned.
        unsafe { self.find(at) }
    }

    #[inline(always)]
    fn translate(&self, _pinned: Pinned<'_>, at: VirtAddr) -> Option<PhysAddr> {
        if !G::SPACE.holds(at) {
            return None;
        }
        let decode = |word, size, at| phys(F::frame(word, size), size, at, G::BASE);
        // SAFETY: `_pinned` proves that the caller is pinned.
        unsafe { self.find_with(at, decode) }
    }

    /// Visits every leaf of a range. If the range has more blocks than the table has buckets, the visit reads the buckets
    /// one after the other, and the order is that of their hashes.
    ///
    /// If a writer changes the table during the visit, a leaf may be visited more than once: the visit of a segment starts
    /// again after a change of its chains by growing or shrinking, and the visit of the whole range starts again after a
    /// split or promotion.
    fn for_each(
        &self,
        _pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // SAFETY: `_pinned` proves that the caller is pinned, and `each_half` passes pages of one half of the space.
        self.each_half(pages, |pages| unsafe { self.each_leaf(pages, &mut *visit) })
    }

    fn payload_bits(&self) -> Option<u32> {
        payload_bits::<F>()
    }

    #[inline]
    fn entry(&self, _pinned: Pinned<'_>, at: VirtAddr) -> Entry {
        // SAFETY: `_pinned` proves that the caller is pinned.
        if G::SPACE.holds(at) { unsafe { self.find_entry(at) } } else { Entry::Empty }
    }

    fn for_each_entry(
        &self,
        _pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // SAFETY: `_pinned` proves that the caller is pinned, and `each_half` passes pages of one half of the space.
        self.each_half(pages, |pages| unsafe { self.each_entry(pages, &mut *visit) })
    }

    fn footprint(&self) -> Footprint {
        self.tally.footprint()
    }

    fn writer_flag(&self) -> &WriterFlag {
        &self.flag
    }

    fn batch(&self) -> Retired<'n> {
        Retired::of(self.nodes, &self.flag)
    }

    #[inline]
    fn map(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        let batch = right.batch(&self.flag)?;
        // SAFETY: by the contract of `Table::map` the caller is the only writer, and the batch came from this table.
        unsafe {
            batch.change(|batch| self.map_pages(batch, pages, frame, size, attr), |batch| self.mend(batch))
        }
    }

    #[inline]
    fn unmap(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        holes: Holes,
        frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        let batch = right.batch(&self.flag)?;
        // SAFETY: by the contract of `Table::unmap` the caller is the only writer, and the batch came from this table.
        unsafe {
            batch.change(|batch| self.unmap_pages(batch, pages, holes, frames), |batch| self.mend(batch))
        }
    }

    #[inline]
    fn protect(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        let batch = right.batch(&self.flag)?;
        // SAFETY: by the contract of `Table::protect` the caller is the only writer, and the batch came from this table.
        unsafe {
            batch.change(|batch| self.protect_pages(batch, pages, holes, change), |batch| self.mend(batch))
        }
    }

    fn replace(
        &self,
        right: Right<'_, 'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<Leaf, Error> {
        let batch = right.batch(&self.flag)?;
        let flush_all_cpus = flush_all_cpus.of(self.breaks_frames())?;
        // SAFETY: by the contract of `Table::replace` the caller is the only writer, and the batch came from this table;
        // if the format breaks, no code that runs during the break needs the page.
        unsafe {
            batch.change(
                |batch| self.replace_leaf(batch, at, frame, attr, flush_all_cpus),
                |batch| self.mend(batch),
            )
        }
    }

    fn breaks_frames(&self) -> bool {
        F::BREAK_FRAME
    }

    fn resize(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        to: PageSize,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<(), Error> {
        let batch = right.batch(&self.flag)?;
        let flush_all_cpus = flush_all_cpus.of(self.breaks())?;
        // SAFETY: by the contract of `Table::resize` the caller is the only writer, and the batch came from this table;
        // if the table breaks, no code that runs during the break needs the pages.
        unsafe {
            batch
                .change(|batch| self.resize_pages(batch, pages, to, flush_all_cpus), |batch| self.mend(batch))
        }
    }

    fn mark(&self, right: Right<'_, 'n>, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        let batch = right.batch(&self.flag)?;
        // SAFETY: by the contract of `Table::mark` the caller is the only writer, and the batch came from this table.
        unsafe { batch.change(|batch| self.mark_page(batch, at, mark), |batch| self.mend(batch)) }
    }

    fn fill(&self, right: Right<'_, 'n>, at: VirtAddr, payload: u64, frame: Pfn) -> Result<(), Error> {
        let batch = right.batch(&self.flag)?;
        // SAFETY: by the contract of `Table::fill` the caller is the only writer, and the batch came from this table.
        unsafe { batch.change(|batch| self.fill_page(batch, at, payload, frame), |batch| self.mend(batch)) }
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

// SAFETY: the table has no method that links another table's nodes.
unsafe impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Private<'n>
    for Hashed<'n, G, F, N, S>
{
}
