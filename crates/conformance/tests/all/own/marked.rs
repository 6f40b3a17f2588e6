//! A table with marks, which is a multi-level table of this tree but for its planted bugs.

use std::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::Compact;
use tlbkit_pagetable::geometry::Va39;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::Nodes;
use tlbkit_pagetable::{
    Change, Entry, Error, FlushAll, Footprint, Holes, Leaf, Mark, Pinned, Rest, Retired, Right, Space, Table,
    Tally, Uncovered, WriterFlag,
};

#[derive(Debug)]
pub(crate) struct Marked<'n, N: Nodes<Word = u64>>(Mpt<'n, Va39, Compact, N>, Tally);

impl<'n, N: Nodes<Word = u64>> Marked<'n, N> {
    pub(crate) fn new(nodes: &'n N) -> Result<Self, Error> {
        Mpt::new(nodes).map(|table| Self(table, Tally::default()))
    }

    /// Asks whether a page is mapped, and then whether it has a mark.
    fn two_walks(&self, pinned: Pinned<'_>, at: VirtAddr) -> Entry {
        match self.0.lookup(pinned, at) {
            Some(leaf) => Entry::Leaf(leaf),
            None => self.0.entry(pinned, at).mark().into(),
        }
    }

    /// Counts a mark before it is known that it can be put.
    fn mark_counted(&self, right: Right<'_, 'n>, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        self.1.ptes(1);
        let was = self.0.mark(right, at, mark)?;
        self.1.ptes(-1);
        Ok(was)
    }

    /// Takes a payload of zero for none.
    fn mark_or_none(&self, right: Right<'_, 'n>, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        self.0.mark(right, at, mark.filter(|mark| !matches!(mark, Mark::Payload(0, _))))
    }

    /// Takes the next entry of a range out, and leaves it if it is a mark.
    fn keep_mark(
        &self,
        mut right: Right<'_, 'n>,
        rest: &mut Rest,
    ) -> Result<Option<(Vpn, Uncovered)>, Error> {
        let taken = self.0.take_next(right.reborrow(), rest)?;
        if let Some((page, Uncovered::Mark(mark))) = taken {
            self.0.mark(right, page.address(PageSize::K4), Some(mark))?;
        }
        Ok(taken)
    }

    /// Moves pages, and forgets that they are dirty.
    fn move_clean(
        &self,
        mut right: Right<'_, 'n>,
        from: Pages,
        to: Vpn,
        known: FlushAll<'_>,
    ) -> Result<usize, Error> {
        let moved = self.0.move_pages(right.reborrow(), from, to, known)?;
        if let Some(new) = Pages::count(to, from.len()) {
            self.0.protect(right, new, Holes::Skip, Change::clear(Attr::DIRTY))?;
        }
        Ok(moved)
    }

    /// Moves pages, and loses the last one of a range that ends with a node.
    fn move_short(
        &self,
        mut right: Right<'_, 'n>,
        from: Pages,
        to: Vpn,
        known: FlushAll<'_>,
    ) -> Result<usize, Error> {
        let moved = self.0.move_pages(right.reborrow(), from, to, known)?;
        let last = Vpn::new(to.get() + (from.len() - 1));
        if from.last().get() % 512 == 511 {
            self.0.mark(right, last.address(PageSize::K4), None)?;
        }
        Ok(moved)
    }

    /// Visits entries from the beginning again when it has come to the first mark.
    fn restart(
        &self,
        pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut marks = 0;
        let _ = self.0.for_each_entry(pinned, pages, &mut |_, entry| {
            marks += usize::from(entry.mark().is_some());
            ControlFlow::Continue(())
        });
        let mut leaves_again = |at, entry: Entry| match entry {
            Entry::Leaf(_) if marks > 0 => visit(at, entry),
            _ => ControlFlow::Continue(()),
        };
        self.0.for_each_entry(pinned, pages, &mut leaves_again)?;
        self.0.for_each_entry(pinned, pages, visit)
    }

    /// Empties the entry before it gets its mark.
    fn mark_broken(
        &self,
        mut right: Right<'_, 'n>,
        at: VirtAddr,
        mark: Option<Mark>,
    ) -> Result<Entry, Error> {
        let was = self.0.mark(right.reborrow(), at, mark)?;
        self.0.mark(right.reborrow(), at, None)?;
        self.0.mark(right, at, mark)?;
        Ok(was)
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
        let bits = planted!(TooFewBits, bits, bits.map(|bits| bits - 1));
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
        planted!(EntriesRestart, (), return self.restart(pinned, pages, visit));
        let flow = self.0.for_each_entry(pinned, pages, visit);
        planted!(EntriesLie, flow, ControlFlow::Continue(()))
    }

    fn footprint(&self) -> Footprint {
        let mut footprint = self.0.footprint();
        footprint.ptes += self.1.footprint().ptes;
        footprint
    }

    fn writer_flag(&self) -> &WriterFlag {
        self.0.writer_flag()
    }

    fn batch(&self) -> Retired<'n> {
        self.0.batch()
    }

    fn map(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        self.0.map(right, pages, frame, size, attr)
    }

    fn unmap(&self, right: Right<'_, 'n>, pages: Pages, holes: Holes) -> Result<usize, Error> {
        self.0.unmap(right, pages, holes)
    }

    fn take_next(&self, right: Right<'_, 'n>, rest: &mut Rest) -> Result<Option<(Vpn, Uncovered)>, Error> {
        planted!(MarkKept, (), return self.keep_mark(right, rest));
        self.0.take_next(right, rest)
    }

    fn move_pages(
        &self,
        right: Right<'_, 'n>,
        from: Pages,
        to: Vpn,
        known: FlushAll<'_>,
    ) -> Result<usize, Error> {
        planted!(MovedClean, (), return self.move_clean(right, from, to, known));
        planted!(MovedShort, (), return self.move_short(right, from, to, known));
        self.0.move_pages(right, from, to, known)
    }

    fn protect(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        self.0.protect(right, pages, holes, change)
    }

    fn replace(
        &self,
        right: Right<'_, 'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        known: FlushAll<'_>,
    ) -> Result<Leaf, Error> {
        self.0.replace(right, at, frame, attr, known)
    }

    fn breaks_frames(&self) -> bool {
        self.0.breaks_frames()
    }

    fn resize(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        to: PageSize,
        known: FlushAll<'_>,
    ) -> Result<(), Error> {
        self.0.resize(right, pages, to, known)
    }

    fn mark(&self, right: Right<'_, 'n>, at: VirtAddr, mark: Option<Mark>) -> Result<Entry, Error> {
        planted!(MarkCounted, (), return self.mark_counted(right, at, mark));
        planted!(PayloadZero, (), return self.mark_or_none(right, at, mark));
        planted!(MarkBroken, self.0.mark(right, at, mark), self.mark_broken(right, at, mark))
    }

    fn fill(&self, right: Right<'_, 'n>, at: VirtAddr, payload: u64, frame: Pfn) -> Result<(), Error> {
        self.0.fill(right, at, payload, frame)
    }

    fn breaks(&self) -> bool {
        self.0.breaks()
    }

    unsafe fn dismantle(&mut self, batch: &mut Retired<'n>) {
        // SAFETY: the caller's promise.
        unsafe { self.0.dismantle(batch) }
    }
}
