//! The hashed table as a [`Table`].

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, PhysAddr, VirtAddr, Vpn};

use super::node::{Walk, Writing};
use super::{Hashed, Sizes};
use crate::format::{Format, payload_bits};
use crate::geometry::Checked as _;
use crate::leaf::phys;
use crate::nodes::Nodes;
use crate::{
    Change, Entry, Error, FlushAll, Footprint, Geometry, Holes, Leaf, Mark, NodeLocks, Pinned, Private, Rest,
    Retired, Right, Space, Table, Uncovered, WriterFlag,
};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Returns the right to write this table, if `right` is that.
    ///
    /// # Errors
    ///
    /// [`Error::OtherTable`].
    #[inline(always)]
    pub(super) fn writing<'w>(&'w self, right: Right<'w, 'n>) -> Result<Writing<'w, 'n, G, F, N, S>, Error> {
        let batch = right.batch(&self.flag)?;
        // SAFETY: the holder of the right is this table's only writer, and the batch came from this table.
        Ok(unsafe { Writing::new(self, batch) })
    }
}

/// The binary logarithm of the pages that have one lock: those that a last-level node of most page tables covers.
const LOCK_LOG: u32 = if cfg!(tlbkit_loom) { 1 } else { 9 };

// SAFETY: `batch` returns a batch over the table's storage, and the flag is a field. When a change returns, the nodes that
// it has pushed to the batch are unlinked. `mend` repairs the table after a change that unwinds.
unsafe impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Table<'n>
    for Hashed<'n, G, F, N, S>
{
    fn space(&self) -> Space {
        G::SPACE
    }

    #[inline(always)]
    fn lookup(&self, pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf> {
        if !G::SPACE.holds(at) {
            return None;
        }
        Walk::new(self, pinned).find(at)
    }

    #[inline(always)]
    fn translate(&self, pinned: Pinned<'_>, at: VirtAddr) -> Option<PhysAddr> {
        if !G::SPACE.holds(at) {
            return None;
        }
        let decode = |word, size, at| phys(F::frame(word, size), size, at, G::BASE);
        Walk::new(self, pinned).find_with(at, decode)
    }

    /// Visits every leaf of a range. If the range has more blocks than the table has buckets, the visit reads the buckets
    /// one after the other, and the order is that of their hashes.
    ///
    /// If a writer changes the table during the visit, a leaf may be visited more than once: the visit of a segment starts
    /// again after a change of its chains by growing or shrinking, and the visit of the whole range starts again after a
    /// split or promotion.
    fn for_each(
        &self,
        pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let walk = Walk::new(self, pinned);
        walk.each_half(pages, |pages| walk.each_leaf(pages, &mut *visit))
    }

    fn payload_bits(&self) -> Option<u32> {
        payload_bits::<F>()
    }

    #[inline]
    fn entry(&self, pinned: Pinned<'_>, at: VirtAddr) -> Entry {
        if G::SPACE.holds(at) { Walk::new(self, pinned).find_entry(at) } else { Entry::Empty }
    }

    fn for_each_entry(
        &self,
        pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let walk = Walk::new(self, pinned);
        walk.each_half(pages, |pages| walk.each_entry(pages, &mut *visit))
    }

    fn footprint(&self) -> Footprint {
        self.all_counts()
    }

    fn writer_flag(&self) -> &WriterFlag {
        &self.flag
    }

    #[inline(always)]
    fn node_locks(&self) -> Option<&NodeLocks> {
        self.locks()
    }

    #[inline(always)]
    fn lock_log(&self) -> u32 {
        LOCK_LOG
    }

    unsafe fn gather_counts(&self) {
        if let Some(locks) = self.locks() {
            self.gather(locks);
        }
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
        self.writing(right)?.or_mend(|writing| writing.map_pages(pages, frame, size, attr))
    }

    #[inline]
    fn unmap(&self, right: Right<'_, 'n>, pages: Pages, holes: Holes) -> Result<usize, Error> {
        self.writing(right)?.or_mend(|writing| writing.unmap_pages(pages, holes))
    }

    fn take_next(&self, right: Right<'_, 'n>, rest: &mut Rest) -> Result<Option<(Vpn, Uncovered)>, Error> {
        self.writing(right)?.or_mend(|writing| writing.take_next(rest))
    }

    #[inline]
    fn protect(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        self.writing(right)?.or_mend(|writing| writing.protect_pages(pages, holes, change))
    }

    fn replace(
        &self,
        right: Right<'_, 'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<Leaf, Error> {
        let flush_all_cpus = flush_all_cpus.of(F::BREAK_FRAME)?;
        self.writing(right)?.or_mend(|writing| writing.replace_leaf(at, frame, attr, flush_all_cpus))
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
        let flush_all_cpus = flush_all_cpus.of(F::BREAK)?;
        self.writing(right)?.or_mend(|writing| writing.resize_pages(pages, to, flush_all_cpus))
    }

    fn mark(&self, right: Right<'_, 'n>, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        self.writing(right)?.or_mend(|writing| writing.mark_page(at, mark))
    }

    fn fill(&self, right: Right<'_, 'n>, at: VirtAddr, payload: u64, frame: Pfn) -> Result<(), Error> {
        self.writing(right)?.or_mend(|writing| writing.fill_page(at, payload, frame))
    }

    fn breaks(&self) -> bool {
        F::BREAK
    }

    unsafe fn dismantle(&mut self, batch: &mut Retired<'n>) {
        // SAFETY: by the contract of `Table::dismantle` the caller is the only writer, the batch came from this table, and no code
        // uses the table any more.
        unsafe {
            self.gather_counts();
            Writing::new(self, batch).retire_all();
        }
        self.tally.ptes(-(self.tally.footprint().ptes as isize));
    }
}

// SAFETY: the table has no method that links another table's nodes.
unsafe impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Private<'n>
    for Hashed<'n, G, F, N, S>
{
}
