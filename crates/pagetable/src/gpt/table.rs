//! The guarded table as a [`Table`].

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr};

use super::Gpt;
use super::layout::Layout;
use super::node_size::NodeSize;
use crate::format::{Format, payload_bits};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{
    Change, Entry, Error, FlushAll, Footprint, Frames, Geometry, Holes, Leaf, Mark, Pinned, Private, Retired,
    Right, Space, Table, WriterFlag,
};

// SAFETY: the batch is over the table's storage, and the flag is a field. When a change returns, the nodes that it pushes
// are unlinked; one that unwinds is mended.
unsafe impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Table<'n>
    for Gpt<'n, G, F, N, L, P>
{
    fn space(&self) -> Space {
        G::SPACE
    }

    #[inline(always)]
    fn lookup(&self, _pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf> {
        // A tag of the whole address rejects those that the space does not hold.
        if !Self::TAG_IS_WHOLE && !G::SPACE.holds(at) {
            return None;
        }
        // SAFETY: the caller is pinned.
        unsafe { self.find(at.get()) }
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
                unsafe { self.visit(Self::span(pages), visit) }?;
            }
        }
        ControlFlow::Continue(())
    }

    fn payload_bits(&self) -> Option<u32> {
        payload_bits::<F>()
    }

    #[inline]
    fn entry(&self, _pinned: Pinned<'_>, at: VirtAddr) -> Entry {
        if !Self::TAG_IS_WHOLE && !G::SPACE.holds(at) {
            return Entry::Empty;
        }
        // SAFETY: the caller is pinned.
        unsafe { self.find_entry(at.get()) }
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
                unsafe { self.visit_entries(Self::span(pages), &mut |at, entry| visit(at, entry)) }?;
            }
        }
        ControlFlow::Continue(())
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
            batch.change_late(
                |batch| self.map_pages(batch, pages, frame, size, attr),
                |batch, forgotten| self.mend(batch, forgotten),
            )
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
            batch.change_late(
                |batch| self.unmap_pages(batch, pages, holes, frames),
                |batch, forgotten| self.mend(batch, forgotten),
            )
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
            batch.change_late(
                |batch| self.protect_pages(batch, pages, holes, change),
                |batch, forgotten| self.mend(batch, forgotten),
            )
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
        // if the format breaks, nothing that runs meanwhile needs the page.
        unsafe {
            batch.change_late(
                |batch| self.replace_leaf(batch, at, frame, attr, flush_all_cpus),
                |batch, forgotten| self.mend(batch, forgotten),
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
        // if the table breaks, nothing that runs meanwhile needs the pages.
        unsafe {
            batch.change_late(
                |batch| self.resize_pages(batch, pages, to, flush_all_cpus),
                |batch, forgotten| self.mend(batch, forgotten),
            )
        }
    }

    fn mark(&self, right: Right<'_, 'n>, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        let batch = right.batch(&self.flag)?;
        // SAFETY: by the contract of `Table::mark` the caller is the only writer, and the batch came from this table.
        unsafe {
            batch.change_late(
                |batch| self.mark_page(batch, at, mark),
                |batch, forgotten| self.mend(batch, forgotten),
            )
        }
    }

    fn fill(&self, right: Right<'_, 'n>, at: VirtAddr, payload: u64, frame: Pfn) -> Result<(), Error> {
        let batch = right.batch(&self.flag)?;
        // SAFETY: by the contract of `Table::fill` the caller is the only writer, and the batch came from this table.
        unsafe {
            batch.change_late(
                |batch| self.fill_page(batch, at, payload, frame),
                |batch, forgotten| self.mend(batch, forgotten),
            )
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

// SAFETY: the table has no method that links another table's nodes.
unsafe impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Private<'n>
    for Gpt<'n, G, F, N, L, P>
{
}
