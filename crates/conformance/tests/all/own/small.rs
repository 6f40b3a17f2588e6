use std::iter;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

use tlbkit_addr::{Attr, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Compact, Format, check_attr, check_change};
use tlbkit_pagetable::nodes::{NodeAddr, Nodes, Stock};
use tlbkit_pagetable::{
    Change, Error, FlushAll, Footprint, Half, Holes, Leaf, Pinned, Rest, Retired, Right, Space, Table, Tally,
    Uncovered, Word, WriterFlag,
};

/// Three levels of `BITS` bits each, in which words of the format `Compact` map pages of 4 KiB.
#[derive(Debug)]
pub struct Own<'n, const BITS: u32, N: Nodes<Word = u64>> {
    nodes: &'n N,
    root: NodeAddr,
    flag: WriterFlag,
    /// Counts the table's nodes and leaves.
    tally: Tally,
}

/// The number of the last level, whose words are leaves. Those of the levels above are links.
const LAST: usize = 2;

/// The way of a walk from the root to the word that ends it.
struct Way {
    page: Vpn,
    /// The nodes of the levels up to `level`.
    nodes: [NodeAddr; LAST + 1],
    level: usize,
    word: u64,
}

impl Way {
    fn leaf(&self) -> Option<Leaf> {
        Compact::is_leaf(self.word, true).then(|| Leaf {
            at: self.page.address(PageSize::K4),
            size: PageSize::K4,
            frame: Compact::frame(self.word, PageSize::K4),
            attr: Compact::attr(self.word, true),
        })
    }
}

impl<'n, const BITS: u32, N: Nodes<Word = u64>> Own<'n, BITS, N> {
    const SPACE: Space = Space::new(12 + 3 * BITS, Half::Lower, PageSize::K4, &[PageSize::K4]);
    const SLOTS: usize = 1 << BITS;
    const BYTES: usize = Self::SLOTS * 8;

    /// Returns an empty table with nodes from `nodes`.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] if there is none for the root.
    pub fn new(nodes: &'n N) -> Result<Self, Error> {
        let root = nodes.take(Self::SLOTS).ok_or_else(|| Error::no_memory(1, nodes.held()))?;
        let tally = Tally::default();
        tally.node(1, Self::BYTES);
        Ok(Self { nodes, root, flag: WriterFlag::new(nodes.held()), tally })
    }

    /// Returns how many pages a slot of a level covers.
    const fn units(level: usize) -> usize {
        1 << (BITS as usize * (LAST - level))
    }

    const fn index(level: usize, page: Vpn) -> usize {
        page.get() / Self::units(level) % Self::SLOTS
    }

    /// Walks to a page of the space. The caller is pinned, or the writer.
    fn walk_to(&self, page: Vpn) -> Way {
        let (mut nodes, mut level) = ([self.root; LAST + 1], 0);
        loop {
            // SAFETY: a link leads to a node that is live, or retired and not reclaimed while the caller is pinned.
            let word = unsafe { self.nodes.word(nodes[level], Self::index(level, page)) }.follow();
            if !Compact::is_link(word) {
                return Way { page, nodes, level, word };
            }
            level += 1;
            nodes[level] = Compact::node(word);
        }
    }

    /// Walks to the leaves of a range of the space, in ascending order, past the subtrees that do not exist.
    fn leaves(&self, pages: Pages) -> impl Iterator<Item = (Leaf, Way)> {
        let mut rest = Rest::of(pages);
        iter::from_fn(move || {
            loop {
                let way = self.walk_to(rest.pages()?.first());
                rest.go_past(Vpn::new(way.page.get() | (Self::units(way.level) - 1)));
                if let Some(leaf) = way.leaf() {
                    return Some((leaf, way));
                }
            }
        })
    }

    /// Checks that every page of a range is mapped.
    fn check_mapped(&self, pages: Pages) -> Result<(), Error> {
        let hole = pages.iter().find(|&page| self.walk_to(page).leaf().is_none());
        hole.map_or(Ok(()), |page| Err(Error::NotMapped { at: page.address(PageSize::K4) }))
    }

    /// Returns how many nodes a map of a range needs that do not exist.
    fn missing(&self, pages: Pages) -> usize {
        let (mut rest, mut missing) = (Rest::of(pages), 0);
        while let Some(first) = rest.pages().map(Pages::first) {
            // A node counts where the range enters it: at the first page of the range, or of the node.
            let enters = |level: &usize| first == pages.first() || first.get() % Self::units(level - 1) == 0;
            missing += (self.walk_to(first).level + 1..=LAST).filter(enters).count();
            rest.go_past(Vpn::new(first.get() | (Self::SLOTS - 1)));
        }
        missing
    }

    /// Stores a word of a way's node with one store. Returns how many words of the node are then in use. The caller is the writer.
    fn put(&self, way: &Way, level: usize, word: u64) -> u32 {
        let node = way.nodes[level];
        // SAFETY: the caller is the writer, and the node is one of the table.
        let slot = unsafe { self.nodes.word_mut(node, Self::index(level, way.page)) };
        // SAFETY: the node was taken with so many words.
        let record = unsafe { self.nodes.record(node, Self::SLOTS) };
        let used = record.load(Relaxed) + u32::from(word != 0) - u32::from(slot.read() != 0);
        record.store(used, Relaxed);
        slot.publish(word);
        used
    }

    /// Takes the first leaf of a range out, and the nodes that this leaves empty.
    fn take_first(&self, batch: &mut Retired<'n>, rest: &mut Rest) -> Option<(Vpn, Uncovered)> {
        let Some((leaf, way)) = rest.pages().and_then(|pages| self.leaves(pages).next()) else {
            rest.end();
            return None;
        };
        rest.go_past(way.page);
        self.tally.ptes(-1);
        batch.touch(FlushScope::Everywhere, Pages::one(way.page));
        let mut level = LAST;
        while self.put(&way, level, 0) == 0 && level > 0 {
            level -= 1;
        }
        // The last store has unlinked the topmost of the empty nodes, and with it those below.
        way.nodes[level + 1..].iter().for_each(|&node| self.retire(batch, node));
        Some((way.page, Uncovered::Frames(leaf.run(PageSize::K4))))
    }

    /// Pushes an empty node, which no word leads to, into a batch.
    fn retire(&self, batch: &mut Retired<'n>, node: NodeAddr) {
        self.tally.node(-1, Self::BYTES);
        // SAFETY: the node is the table's, and unlinked.
        unsafe { batch.push(node, true) };
    }
}

impl<const BITS: u32, N: Nodes<Word = u64>> Drop for Own<'_, BITS, N> {
    fn drop(&mut self) {
        // SAFETY: this is the drop of the table that the flag belongs to.
        unsafe { self.nodes.held().count_dropped_table(&self.flag, self.tally.footprint().nodes) };
    }
}

// SAFETY: the batch is over the table's storage, and the flag a field. A change takes all nodes before its first store, and calls
// nothing that may unwind after it; it pushes each node after the store that unlinks it, and names every page that it changes.
// `Own` is `Send` only if `&N` is.
unsafe impl<'n, const BITS: u32, N: Nodes<Word = u64>> Table<'n> for Own<'n, BITS, N> {
    fn space(&self) -> Space {
        Self::SPACE
    }

    fn lookup(&self, _pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf> {
        if Self::SPACE.holds(at) { self.walk_to(at.vpn(PageSize::K4)).leaf() } else { None }
    }

    fn for_each(
        &self,
        _pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        Self::SPACE.parts(pages).flat_map(|part| self.leaves(part)).try_for_each(|(leaf, _)| visit(leaf))
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

    fn map(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        right.batch(&self.flag)?;
        Self::SPACE.check_sized(pages, size)?;
        check_attr::<Compact>(attr)?;
        Self::SPACE.check_frames(frame, pages.len(), size)?;
        let mut word = Compact::leaf(frame, size, attr, true)?;
        Compact::leaf(Pfn::new(frame.get() + pages.len() - 1), size, attr, true)?;
        if let Some((Leaf { at, size, .. }, _)) = self.leaves(pages).next() {
            return Err(Error::Occupied { at, size });
        }
        let mut stock = Stock::take(self.nodes, &[Self::SLOTS], [self.missing(pages)])?;
        for page in pages {
            let mut way = self.walk_to(page);
            while way.level < LAST {
                let node = stock.next(0).expect("as many nodes as are missing");
                self.put(&way, way.level, Compact::link(node));
                self.tally.node(1, Self::BYTES);
                way.level += 1;
                way.nodes[way.level] = node;
            }
            self.put(&way, LAST, word);
            self.tally.ptes(1);
            word = word.advance(Compact::STEP, 1);
        }
        Ok(())
    }

    fn take_next(&self, right: Right<'_, 'n>, rest: &mut Rest) -> Result<Option<(Vpn, Uncovered)>, Error> {
        let batch = right.batch(&self.flag)?;
        rest.pages().map_or(Ok(()), |pages| Self::SPACE.check_pages(pages))?;
        Ok(self.take_first(batch, rest))
    }

    fn protect(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        let batch = right.batch(&self.flag)?;
        check_change::<Compact>(change)?;
        Self::SPACE.check_pages(pages)?;
        if holes == Holes::Refuse {
            self.check_mapped(pages)?;
        }
        let mut mapped = 0;
        for (_, way) in self.leaves(pages) {
            self.put(&way, LAST, Compact::change(way.word, change, true));
            mapped += 1;
        }
        if mapped > 0 && change.scope() > FlushScope::Nowhere {
            batch.touch(change.scope(), pages);
        }
        Ok(mapped)
    }

    fn replace(
        &self,
        right: Right<'_, 'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        _flush_all_cpus: FlushAll<'_>,
    ) -> Result<Leaf, Error> {
        let batch = right.batch(&self.flag)?;
        let page = Pages::one(at.vpn(PageSize::K4));
        Self::SPACE.check_pages(page)?;
        let way = self.walk_to(page.first());
        let old = way.leaf().ok_or(Error::NotMapped { at })?;
        check_attr::<Compact>(attr)?;
        Self::SPACE.check_frames(frame, 1, old.size)?;
        self.put(&way, LAST, Compact::leaf(frame, old.size, attr, true)?);
        batch.touch(FlushScope::Everywhere, page);
        Ok(old)
    }

    fn breaks_frames(&self) -> bool {
        Compact::BREAK_FRAME
    }

    fn resize(
        &self,
        right: Right<'_, 'n>,
        pages: Pages,
        to: PageSize,
        _flush_all_cpus: FlushAll<'_>,
    ) -> Result<(), Error> {
        right.batch(&self.flag)?;
        Self::SPACE.check_sized(pages, to)?;
        self.check_mapped(pages)
    }

    fn breaks(&self) -> bool {
        Compact::BREAK
    }

    unsafe fn dismantle(&mut self, batch: &mut Retired<'n>) {
        for half in Self::SPACE.halves().into_iter().flatten() {
            let mut rest = Rest::of(half);
            while self.take_first(batch, &mut rest).is_some() {}
        }
        self.retire(batch, self.root);
    }
}
