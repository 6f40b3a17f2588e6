//! The multi-level table as a [`Table`].

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, PhysAddr, VirtAddr, Vpn};

use super::Mpt;
use super::leaf::Decode as _;
use super::node::{NodeRef, Writing};
use super::shape::Shape;
use crate::format::{Format, payload_bits};
use crate::geometry::Checked as _;
use crate::leaf::phys;
use crate::node_locks::Count;
use crate::nodes::Nodes;
use crate::{
    Change, Entry, Error, FlushAll, Footprint, Holes, Leaf, Mark, NodeLocks, PageRanges, Part, Pinned,
    Private, Radix, Rest, Retired, Right, Solo, Space, Table, Uncovered, WriterFlag,
};

// SAFETY: the batch is over the table's storage, and the flag is a field. When a change returns, the nodes that it has pushed are
// unlinked. A table whose change unwinds is repaired.
unsafe impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Table<'n> for Mpt<'n, G, F, N> {
    #[inline(always)]
    fn space(&self) -> Space {
        G::SPACE
    }

    #[inline(always)]
    fn lookup(&self, pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf> {
        NodeRef::root(self, pinned).find(at)
    }

    #[inline(always)]
    fn translate(&self, pinned: Pinned<'_>, at: VirtAddr) -> Option<PhysAddr> {
        let top = Self::top(at.vpn(G::BASE))?;
        // The default implementation decodes a whole leaf. Here the masks of each level are constants.
        NodeRef::root(self, pinned).look_up(top, at, NodeRef::seen, |word, level, _| {
            if !Self::has_leaves(level) || !Self::is_leaf(word, level) {
                return None;
            }
            let slot = Self::slot_size(level);
            let size = if Self::REPLICATED { F::size(word, slot) } else { slot };
            Some(phys(F::frame(word, size), size, at, G::BASE))
        })
    }

    fn for_each(
        &self,
        pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let root = NodeRef::root(self, pinned);
        G::SPACE.parts(pages).try_for_each(|pages| root.visit(pages, visit))
    }

    fn payload_bits(&self) -> Option<u32> {
        payload_bits::<F>()
    }

    fn entry(&self, pinned: Pinned<'_>, at: VirtAddr) -> Entry {
        if !G::SPACE.holds(at) {
            return Entry::Empty;
        }
        NodeRef::root(self, pinned).descend(Self::index(0, at), at, NodeRef::seen, |seen| seen.content(at))
    }

    fn for_each_entry(
        &self,
        pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let root = NodeRef::root(self, pinned);
        G::SPACE.parts(pages).try_for_each(|pages| root.visit_entries(pages, visit))
    }

    fn footprint(&self) -> Footprint {
        let all = self.tally.footprint();
        let by_pages = self
            .locks
            .map_or(0, |locks| locks.sum(Count::Ptes))
            .wrapping_add(self.flag.lock().counted(Count::Ptes));
        // What is counted in between may be in one of the two alone.
        let ptes = all.ptes.wrapping_add_signed(by_pages).cast_signed().max(0);
        Footprint { ptes: ptes.cast_unsigned(), ..all }
    }

    #[inline]
    fn borrowed(&self) -> Option<&PageRanges> {
        self.borrowed.map(|borrowed| borrowed.pages)
    }

    #[inline(always)]
    fn writer_flag(&self) -> &WriterFlag {
        &self.flag
    }

    #[inline(always)]
    fn node_locks(&self) -> Option<&NodeLocks> {
        self.locks
    }

    #[inline(always)]
    fn node_log(&self, above: usize) -> u32 {
        match (Self::LEVELS - 1).checked_sub(above) {
            None | Some(0) => usize::BITS,
            Some(level) => (Self::slots(level) * Self::slot_pages(level)).ilog2(),
        }
    }

    unsafe fn whole_part(&self, part: Part) -> Option<Part> {
        // SAFETY: this function's contract.
        unsafe { self.find_part(part) }
    }

    #[inline(always)]
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
        Writing::of(self, right)?.map(pages, frame, size, attr)
    }

    #[inline]
    fn unmap(&self, right: Right<'_, 'n>, pages: Pages, holes: Holes) -> Result<usize, Error> {
        Writing::of(self, right)?.unmap(pages, holes)
    }

    fn take_next(&self, right: Right<'_, 'n>, rest: &mut Rest) -> Result<Option<(Vpn, Uncovered)>, Error> {
        Writing::of(self, right)?.take_next(rest)
    }

    fn move_pages(
        &self,
        right: Right<'_, 'n>,
        from: Pages,
        to: Vpn,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<usize, Error> {
        Writing::of(self, right)?.move_pages(from, to, flush_all_cpus)
    }

    #[inline]
    fn protect(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        Writing::of(self, right)?.protect(pages, holes, change)
    }

    #[inline]
    fn replace(
        &self,
        right: Right<'_, 'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: FlushAll<'_>,
    ) -> Result<Leaf, Error> {
        Writing::of(self, right)?.replace(at, frame, attr, flush_all_cpus)
    }

    fn mark(&self, right: Right<'_, 'n>, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        Writing::of(self, right)?.mark(at, mark)
    }

    fn fill(&self, right: Right<'_, 'n>, at: VirtAddr, payload: u64, frame: Pfn) -> Result<(), Error> {
        Writing::of(self, right)?.fill(at, payload, frame)
    }

    #[inline(always)]
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
        Writing::of(self, right)?.resize(pages, to, flush_all_cpus)
    }

    fn breaks(&self) -> bool {
        F::BREAK
    }

    unsafe fn dismantle(&mut self, batch: &mut Retired<'n>) {
        // No table borrows a part of this one any more.
        self.lent = None;
        // SAFETY: by the contract of `Table::dismantle` the caller is the only writer, and the batch came from this table.
        let mut writing = unsafe { Writing::new(self, batch) };
        let is_empty = writing.root().take_apart();
        // SAFETY: no code uses the table any more, and all words of the root are zero if it is empty.
        unsafe { writing.retire_root(is_empty) };
    }
}

// SAFETY: in solo mode no other CPU frees nodes. In shared mode the lender of a borrowed part may free nodes while an unpinned
// CPU walks the borrower, so tables in shared mode do not implement this trait.
unsafe impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word, Mode = Solo>> Private<'n> for Mpt<'n, G, F, N> {}
