//! A table with marks, which is a multi-level table of this tree but for its planted bugs.

use std::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr};
use tlbkit_pagetable::format::Compact;
use tlbkit_pagetable::geometry::Va39;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::Nodes;
use tlbkit_pagetable::{
    Change, Entry, Error, Footprint, Frames, Holes, Leaf, Mark, Pinned, Retired, Space, Table, WriterFlag,
};

#[derive(Debug)]
pub(crate) struct Marked<'n, N: Nodes<Word = u64>>(Mpt<'n, Va39, Compact, N>);

impl<'n, N: Nodes<Word = u64>> Marked<'n, N> {
    pub(crate) fn new(nodes: &'n N) -> Result<Self, Error> {
        Mpt::new(nodes).map(Self)
    }

    /// Asks whether a page is mapped, and then whether it has a mark.
    fn two_walks(&self, pinned: Pinned<'_>, at: VirtAddr) -> Entry {
        match self.0.lookup(pinned, at) {
            Some(leaf) => Entry::Leaf(leaf),
            None => self.0.entry(pinned, at).mark().into(),
        }
    }

    /// Empties the entry before it gets its mark.
    unsafe fn mark_broken(
        &self,
        batch: &mut Retired<'n>,
        at: VirtAddr,
        mark: Option<Mark>,
    ) -> Result<Entry, Error> {
        // SAFETY: the caller's promise.
        unsafe {
            let was = self.0.mark(batch, at, mark)?;
            self.0.mark(batch, at, None)?;
            self.0.mark(batch, at, mark)?;
            Ok(was)
        }
    }
}

// SAFETY: every answer is that of the table inside.
unsafe impl<'n, N: Nodes<Word = u64>> Table<'n> for Marked<'n, N> {
    fn space(&self) -> Space {
        self.0.space()
    }

    fn lookup(&self, pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf> {
        self.0.lookup(pinned, at)
    }

    fn for_each(
        &self,
        pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.0.for_each(pinned, pages, visit)
    }

    fn payload_bits(&self) -> Option<u32> {
        let bits = self.0.payload_bits();
        planted!(TooManyBits, bits, bits.map(|bits| bits + 1))
    }

    fn entry(&self, pinned: Pinned<'_>, at: VirtAddr) -> Entry {
        planted!(EntryTwice, self.0.entry(pinned, at), self.two_walks(pinned, at))
    }

    fn for_each_entry(
        &self,
        pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.0.for_each_entry(pinned, pages, visit)
    }

    fn footprint(&self) -> Footprint {
        self.0.footprint()
    }

    fn writer_flag(&self) -> &WriterFlag {
        self.0.writer_flag()
    }

    fn batch(&self) -> Retired<'n> {
        self.0.batch()
    }

    unsafe fn map(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise; so below.
        unsafe { self.0.map(batch, pages, frame, size, attr) }
    }

    unsafe fn unmap(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        // SAFETY: as above.
        unsafe { self.0.unmap(batch, pages, holes, frames) }
    }

    unsafe fn protect(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        // SAFETY: as above.
        unsafe { self.0.protect(batch, pages, holes, change) }
    }

    unsafe fn replace(
        &self,
        batch: &mut Retired<'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        known: &mut dyn FnMut(&Flush),
    ) -> Result<Leaf, Error> {
        // SAFETY: as above.
        unsafe { self.0.replace(batch, at, frame, attr, known) }
    }

    fn breaks_frames(&self) -> bool {
        self.0.breaks_frames()
    }

    unsafe fn resize(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        to: PageSize,
        known: &mut dyn FnMut(&Flush),
    ) -> Result<(), Error> {
        // SAFETY: as above.
        unsafe { self.0.resize(batch, pages, to, known) }
    }

    unsafe fn mark(&self, batch: &mut Retired<'n>, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        // SAFETY: as above.
        unsafe { planted!(MarkBroken, self.0.mark(batch, at, mark), self.mark_broken(batch, at, mark)) }
    }

    unsafe fn fill(
        &self,
        batch: &mut Retired<'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
    ) -> Result<Mark, Error> {
        // SAFETY: as above.
        unsafe { self.0.fill(batch, at, frame, attr) }
    }

    fn breaks(&self) -> bool {
        self.0.breaks()
    }

    unsafe fn dismantle(&mut self, batch: &mut Retired<'n>) {
        // SAFETY: as above.
        unsafe { self.0.dismantle(batch) }
    }
}
