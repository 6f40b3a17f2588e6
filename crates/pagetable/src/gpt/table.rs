//! The guarded table as a [`Table`].

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};

use super::Gpt;
use super::layout::Layout;
use super::node::{View, Writing};
use super::node_size::NodeSize;
use super::shape::Shape;
use crate::format::{Format, payload_bits};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{
    Change, Entry, Error, FlushAll, Footprint, Geometry, Holes, Leaf, Mark, Pinned, Private, Rest, Retired,
    Right, Space, Table, Uncovered, WriterFlag, moving,
};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Returns the right to write this table, if `right` is that.
    ///
    /// # Errors
    ///
    /// [`Error::OtherTable`].
    #[inline(always)]
    fn writing<'w>(&'w self, right: Right<'w, 'n>) -> Result<Writing<'w, 'n, Self>, Error> {
        let batch = right.batch(&self.flag)?;
        // SAFETY: the holder of the right is this table's only writer, and the batch came from this table.
        Ok(unsafe { Writing::new(self, batch) })
    }
}

// SAFETY: the batch is over the table's storage, and the flag is a field. When a change returns, the nodes that it pushes
// are unlinked; one that unwinds is mended.
unsafe impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Table<'n>
    for Gpt<'n, G, F, N, L, P>
{
    fn space(&self) -> Space {
        G::SPACE
    }

    #[inline(always)]
    fn lookup(&self, pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf> {
        // A tag of the whole address rejects those that the space does not hold.
        if !Self::TAG_IS_WHOLE && !G::SPACE.holds(at) {
            return None;
        }
        View::pinned(self, pinned).find(at.get())
    }

    fn for_each(
        &self,
        pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for half in G::SPACE.halves().into_iter().flatten() {
            if let Some(pages) = half.intersect(pages) {
                View::pinned(self, pinned).visit(Self::span(pages), visit)?;
            }
        }
        ControlFlow::Continue(())
    }

    fn payload_bits(&self) -> Option<u32> {
        payload_bits::<F>()
    }

    #[inline]
    fn entry(&self, pinned: Pinned<'_>, at: VirtAddr) -> Entry {
        if !Self::TAG_IS_WHOLE && !G::SPACE.holds(at) {
            return Entry::Empty;
        }
        View::pinned(self, pinned).find_entry(at.get())
    }

    fn for_each_entry(
        &self,
        pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for half in G::SPACE.halves().into_iter().flatten() {
            if let Some(pages) = half.intersect(pages) {
                View::pinned(self, pinned)
                    .visit_entries(Self::span(pages), &mut |at, entry| visit(at, entry))?;
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
        self.writing(right)?.or_mend(|writing| writing.map(pages, frame, size, attr))
    }

    #[inline]
    fn unmap(&self, right: Right<'_, 'n>, pages: Pages, holes: Holes) -> Result<usize, Error> {
        self.writing(right)?.or_mend(|writing| writing.unmap(pages, holes))
    }

    fn take_next(&self, right: Right<'_, 'n>, rest: &mut Rest) -> Result<Option<(Vpn, Uncovered)>, Error> {
        self.writing(right)?.or_mend(|writing| writing.take_next(rest))
    }

    fn move_pages(
        &self,
        right: Right<'_, 'n>,
        from: Pages,
        to: Vpn,
        _flush_all_cpus: FlushAll<'_>,
    ) -> Result<usize, Error> {
        moving::one_by_one(self, right, from, to, moving::first_of_ascending)
    }

    #[inline]
    fn protect(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        self.writing(right)?.or_mend(|writing| writing.protect(pages, holes, change))
    }

    fn replace(
        &self,
        right: Right<'_, 'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<Leaf, Error> {
        let writing = self.writing(right)?;
        let flush_all_cpus = flush_all_cpus.of(F::BREAK_FRAME)?;
        // SAFETY: if the format breaks, nothing that runs meanwhile needs the page.
        unsafe { writing.or_mend(|writing| writing.replace(at, frame, attr, flush_all_cpus)) }
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
        let writing = self.writing(right)?;
        let flush_all_cpus = flush_all_cpus.of(F::BREAK)?;
        // SAFETY: if the format breaks, nothing that runs meanwhile needs the pages.
        unsafe { writing.or_mend(|writing| writing.resize(pages, to, flush_all_cpus)) }
    }

    fn mark(&self, right: Right<'_, 'n>, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        self.writing(right)?.or_mend(|writing| writing.mark(at, mark))
    }

    fn fill(&self, right: Right<'_, 'n>, at: VirtAddr, payload: u64, frame: Pfn) -> Result<(), Error> {
        self.writing(right)?.or_mend(|writing| writing.fill(at, payload, frame))
    }

    fn breaks(&self) -> bool {
        F::BREAK
    }

    unsafe fn dismantle(&mut self, batch: &mut Retired<'n>) {
        // SAFETY: by the contract of `Table::dismantle` the caller is the only writer, and the batch came from this
        // table, and the table is not used any more.
        unsafe { Writing::new(self, batch).take_apart() }
    }
}

// SAFETY: the table has no method that links another table's nodes.
unsafe impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Private<'n>
    for Gpt<'n, G, F, N, L, P>
{
}
