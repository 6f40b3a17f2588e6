//! The flattened page table (FPT) of Park et al., "Every Walk's a Hit: Making Page Walks Single-Access Cache Hits", ASPLOS 2022.
//!
//! ```text
//!  virtual address   |  index 0  |  index 1  |  index 2  |  index 3  | offset |
//!                     -----------|----------- -----------|-----------
//!   both pairs wide              v                       v
//!   root ------> +--------------------+   +--------------------+
//!                | link, bit 2 set    |-->| leaf               |---> frame
//!                | link, bit 2 clear  |   | leaf               |---> one page of 2 MiB: a leaf in
//!                +---------|----------+   | leaf, the same     |---> each of its slots
//!                          |              +--------------------+
//!   second pair narrow     |    +------+        +------+
//!                          +--->| link |------->| leaf |---> frame
//!                               | leaf |---+    +------+
//!                               +------+   +---> one page of 2 MiB
//! ```
//!
//! The levels of a radix tree are taken in pairs from the last one up (of four: the first two and the last two). A **wide** node has
//! the slots of both levels of a pair, and takes one load of a walk instead of two: with levels of nine bits it has 2^18 words, 2 MiB.
//! Where memory has no such piece, the pair is two levels of **narrow** nodes of 2^9 words. Bit 2 of each link says whether the node
//! that it leads to is wide, and the table's handle says it of the root. So each region of a pair is wide or narrow by itself, and a
//! walk tests nothing but the links that it loads anyway.
//!
//! | from the paper | chosen here |
//! |-|-|
//! | two levels in a node of 2 MiB, of four levels L4 with L3 and L2 with L1, which leaves two loads of four | any number of levels: an odd root stands alone; a merged root has fewer bits if the root's level has |
//! | a bit in the entry above, and one beside the root's address, tells the size of the next node | the bit is one of the link's; no entry tells of three levels merged (1 GiB) |
//! | the operating system decides for each node, and falls back to nodes of 4 KiB | a region is decided when its first page is mapped, and again only after its last page was unmapped: narrow nodes are not copied together later |
//! | a page of 2 MiB takes 512 entries of a merged last node | all of them are stored, changed and cleared one after the other, as in a [multi-level table](tlbkit_pagetable::mpt) whose pages are larger than slots |
//!
//! The paper measures in simulators of cores whose page-walk caches already leave 1.5 memory accesses a walk: flattening makes them
//! 1.0 and programs 2.3 % faster, or 7.1 % with nested paging. The lab has no page-walk cache and counts every load of a walk: half of
//! the ordinary tree's. Memory is 2 MiB for each GiB with a page, and for each of 256 TiB: 18 bytes a page of a program that fills
//! a GiB and 10.5 of one that fills four, where narrow nodes take 8.1 and 8.0 (`tlblab tables FPT FPT0 --workload dense --pages
//! 262144`, or `1048576`).
//!
//! | operation | cost in loads and stores of table words |
//! |-|-|
//! | lookup | one load a wide node, one a narrow one |
//! | map, unmap, protect | a walk for each page, then a load and a store for each slot of the page |
//! | new node | one store and one count; a wide node is 2 MiB that the storage has zeroed |
//! | visit of a range | a walk for each slot, the empty ones included: 2^18 in a wide node that holds one page |
//! | split, join | in a wide last node, a store for each slot; above it one store, and the subtree's nodes |
//!
//! No hardware walks this table and no kernel uses it, so it is here and not in a crate of kernels. A walk of an
//! [`Mpt`](tlbkit_pagetable::mpt::Mpt) of two levels of 18 bits would be the same as one of wide nodes only, but no such `Mpt` exists:
//! its records count fewer than 2^16 slots of a node above the last level.
//! It has no refill handler either: that of `Mpt` for 64-bit MIPS takes at most ten bits a level, because the mask of an index is an
//! immediate of sixteen bits, and one for this table would branch on bit 2 at each pair.

use std::iter;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

use tlbkit_addr::{Attr, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Compact, Format, check_attr, check_change};
use tlbkit_pagetable::nodes::{NodeAddr, Nodes, Stock};
use tlbkit_pagetable::{
    Change, Error, FlushAll, Footprint, Holes, Leaf, Pinned, Radix, Rest, Retired, Right, Space, Table,
    Tally, Uncovered, Word, WriterFlag,
};

use crate::whole::{BASE, STATUS, check_map, check_resize, check_whole, span};

/// The most levels.
const MAX: usize = 8;
/// The bit of a link that says that the node is wide. Nodes are aligned to 8 bytes at least.
const WIDE: u64 = 1 << 2;
/// A flattened table of the levels of `G`, with base pages of 4 KiB, whose levels below the root have one width.
///
/// `HAD` is a model of fragmented memory: of each hundred regions, for so many there is a piece for a wide node. Which, is a function
/// of the region's number. The others have narrow nodes, as have those for which `N` refuses a wide one.
#[derive(Debug)]
pub struct Flat<'n, G: Radix, const HAD: usize, N: Nodes<Word = u64>> {
    nodes: &'n N,
    root: Node,
    flag: WriterFlag,
    /// Counts the table's nodes and entries.
    tally: Tally,
    geometry: PhantomData<fn() -> G>,
}

/// A node: where it is, the level of its slots, and whether it has the slots of the level above in one.
#[derive(Clone, Copy, Debug)]
struct Node {
    at: NodeAddr,
    level: usize,
    wide: bool,
}

impl Node {
    /// Returns the node that a link in this one leads to.
    fn below(self, link: u64) -> Self {
        let wide = link & WIDE != 0;
        Self { at: Compact::node(link & !WIDE), level: self.level + 1 + usize::from(wide), wide }
    }

    fn link(self) -> u64 {
        Compact::link(self.at) | if self.wide { WIDE } else { 0 }
    }
}

/// The way of a walk from the root to the word that ends it.
struct Way {
    page: Vpn,
    nodes: [Node; MAX],
    last: usize,
    word: u64,
}

impl Way {
    fn end(&self) -> Node {
        self.nodes[self.last]
    }

    fn push(&mut self, node: Node) {
        self.last += 1;
        self.nodes[self.last] = node;
    }

    fn leaf(&self) -> Option<Leaf> {
        Compact::is_leaf(self.word, true).then(|| {
            let size = Compact::size(self.word, BASE);
            let at = VirtAddr::new(self.page.address(BASE).get() & !size.mask());
            Leaf { at, size, frame: Compact::frame(self.word, size), attr: Compact::attr(self.word, true) }
        })
    }
}

/// What a larger leaf is split into: words of `span` pages each, from `word` at `first` on.
#[derive(Clone, Copy)]
struct Pieces {
    first: Vpn,
    word: u64,
    span: usize,
}

impl<'n, G: Radix, const HAD: usize, N: Nodes<Word = u64>> Flat<'n, G, HAD, N> {
    const SPACE: Space = Space::of::<G>();
    const LEVELS: usize = {
        let levels = G::WIDTHS.len();
        assert!(
            levels >= 2 && levels <= MAX && G::BASE.shift() == BASE.shift(),
            "two to eight levels, 4 KiB"
        );
        let mut level = 2;
        while level < levels {
            assert!(G::WIDTHS[level] == G::WIDTHS[1], "the levels below the root have one width");
            level += 1;
        }
        levels
    };
    /// The words of nodes below the root: wide ones, and narrow ones.
    const KINDS: &'static [usize; 2] = &[1 << (2 * G::WIDTHS[1]), 1 << G::WIDTHS[1]];

    /// Returns an empty table with nodes from `nodes`.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] if there is none for a narrow root.
    pub fn new(nodes: &'n N) -> Result<Self, Error> {
        let wide = Self::is_had(0, Vpn::new(0)).then(|| nodes.take(1 << (G::WIDTHS[0] + G::WIDTHS[1])));
        let root = match wide.flatten() {
            Some(at) => Node { at, level: 1, wide: true },
            None => {
                let narrow = nodes.take(1 << G::WIDTHS[0]);
                let at = narrow.ok_or_else(|| Error::no_memory(1, nodes.held()))?;
                Node { at, level: 0, wide: false }
            }
        };
        let tally = Tally::default();
        tally.node(1, Self::slots(root) * 8);
        Ok(Self { nodes, root, flag: WriterFlag::new(nodes.held()), tally, geometry: PhantomData })
    }

    /// Returns how many pages a slot of a level covers.
    const fn units(level: usize) -> usize {
        1 << (G::WIDTHS[1] as usize * (Self::LEVELS - 1 - level))
    }

    const fn slots(node: Node) -> usize {
        1 << (G::WIDTHS[node.level] + if node.wide { G::WIDTHS[node.level - 1] } else { 0 })
    }

    const fn index(node: Node, page: Vpn) -> usize {
        page.get() / Self::units(node.level) % Self::slots(node)
    }

    /// Tells whether the level is the first of a pair, and memory has a piece for a wide node there for the region of `page`.
    fn is_had(level: usize, page: Vpn) -> bool {
        let region = if level == 0 { 0 } else { page.get() / Self::units(level - 1) };
        let mixed = (region as u64 * MAX as u64 + level as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (Self::LEVELS - level).is_multiple_of(2) && (mixed % 100) < HAD as u64
    }

    /// Walks to a page of the space. The caller is pinned, or the writer.
    fn walk_to(&self, page: Vpn) -> Way {
        let mut way = Way { page, nodes: [self.root; MAX], last: 0, word: 0 };
        loop {
            let node = way.end();
            // SAFETY: a link leads to a node that is live, or retired and not reclaimed while the caller is pinned.
            way.word = unsafe { self.nodes.word(node.at, Self::index(node, page)) }.follow();
            if !Compact::is_link(way.word) {
                return way;
            }
            way.push(node.below(way.word));
        }
    }

    /// Walks to the leaves of a range of the space, in ascending order, past the subtrees that do not exist.
    fn leaves(&self, pages: Pages) -> impl Iterator<Item = (Leaf, Way)> {
        let mut rest = Rest::of(pages);
        iter::from_fn(move || {
            loop {
                let way = self.walk_to(rest.pages()?.first());
                let Some(leaf) = way.leaf() else {
                    rest.go_past(Vpn::new(way.page.get() | (Self::units(way.end().level) - 1)));
                    continue;
                };
                rest.go_past(Self::SPACE.pages_of(&leaf).last());
                return Some((leaf, way));
            }
        })
    }

    fn check_whole(&self, pages: Pages, holes: Holes) -> Result<usize, Error> {
        check_whole(Self::SPACE, self.leaves(pages).map(|(leaf, _)| leaf), pages, holes)
    }

    /// Returns how many nodes a range lacks for pages of a size, wide ones and narrow ones, if so many wide ones can be had at most:
    /// those of the lowest regions.
    fn missing(&self, pages: Pages, size: PageSize, most: usize) -> [usize; 2] {
        let (mut rest, mut missing, mut wide) = (Rest::of(pages), [0; 2], [false; MAX]);
        while let Some(first) = rest.pages().map(Pages::first) {
            let mut level = self.walk_to(first).end().level + 1;
            while Self::units(level - 1) > span(size) {
                // A node counts where the range enters it: at the first page of the range, or of the node.
                if first == pages.first() || first.get().is_multiple_of(Self::units(level - 1)) {
                    wide[level] = missing[0] < most && Self::is_had(level, first);
                    missing[usize::from(!wide[level])] += 1;
                }
                level += 1 + usize::from(wide[level]);
            }
            rest.go_past(Vpn::new(first.get() | (span(size).max(Self::KINDS[1]) - 1)));
        }
        missing
    }

    /// Takes the nodes that a range lacks for pages of a size: as many wide ones as the storage has, and narrow ones for the rest.
    fn take(&self, pages: Pages, size: PageSize) -> Result<Stock<'n, N, 2>, Error> {
        let take = |most| {
            let missing = self.missing(pages, size, most);
            (missing[0], Stock::take(self.nodes, Self::KINDS, missing))
        };
        let (all, taken) = take(usize::MAX);
        taken.or_else(|refused| (0..all).rev().find_map(|most| take(most).1.ok()).ok_or(refused))
    }

    /// Returns a node from the stock for a level and a page, in the order in which [`missing`](Self::missing) has counted it.
    fn next(&self, stock: &mut Stock<'n, N, 2>, level: usize, page: Vpn) -> Node {
        let wide = Self::is_had(level, page).then(|| stock.next(0)).flatten();
        let at = wide.or_else(|| stock.next(1)).expect("as many nodes as are missing");
        let node = Node { at, level: level + usize::from(wide.is_some()), wide: wide.is_some() };
        self.tally.node(1, Self::slots(node) * 8);
        node
    }

    /// Returns a word of a node, to the writer.
    fn read(&self, node: Node, index: usize) -> u64 {
        // SAFETY: the caller is the writer, and the node is one of the table.
        unsafe { self.nodes.word_mut(node.at, index) }.read()
    }

    /// Stores the word of a page with one store. Returns how many words of the node are then in use. The caller is the writer.
    fn put(&self, node: Node, page: Vpn, word: u64) -> u32 {
        // SAFETY: the caller is the writer, and the node is one of the table.
        let slot = unsafe { self.nodes.word_mut(node.at, Self::index(node, page)) };
        // SAFETY: the node was taken with so many words.
        let record = unsafe { self.nodes.record(node.at, Self::slots(node)) };
        let old = slot.read();
        let used = record.load(Relaxed) + u32::from(word != 0) - u32::from(old != 0);
        record.store(used, Relaxed);
        self.tally.ptes(Compact::is_leaf(word, true) as isize - Compact::is_leaf(old, true) as isize);
        slot.publish(word);
        used
    }

    /// Stores the words of all slots of a range in a node. Returns how many words of the node are then in use.
    fn fill(&self, node: Node, pages: Pages, mut word: impl FnMut(Vpn) -> u64) -> u32 {
        let slots = pages.iter().step_by(Self::units(node.level));
        slots.fold(0, |_, page| self.put(node, page, word(page)))
    }

    /// Takes the first leaf of a range out, and the nodes that this leaves empty.
    fn take_first(
        &self,
        batch: &mut Retired<'n>,
        rest: &mut Rest,
    ) -> Result<Option<(Vpn, Uncovered)>, Error> {
        let Some(pages) = rest.pages() else { return Ok(None) };
        Self::SPACE.check_pages(pages)?;
        let Some((leaf, way)) = self.leaves(pages).next() else {
            rest.end();
            return Ok(None);
        };
        let whole = Self::SPACE.pages_of(&leaf);
        if whole.intersect(pages) != Some(whole) {
            return Err(Error::Partial { at: leaf.at, size: leaf.size });
        }
        rest.go_past(whole.last());
        batch.touch(FlushScope::Everywhere, whole);
        let (mut depth, mut used) = (way.last, self.fill(way.end(), whole, |_| 0));
        while used == 0 && depth > 0 {
            depth -= 1;
            used = self.put(way.nodes[depth], way.page, 0);
        }
        // The last store has unlinked the topmost of the empty nodes, and with it those below.
        way.nodes[depth + 1..=way.last].iter().for_each(|&node| self.retire(batch, node, true));
        Ok(Some((whole.first(), Uncovered::Frames(leaf.run(BASE)))))
    }

    /// Pushes a node, which no word leads to, into a batch.
    fn retire(&self, batch: &mut Retired<'n>, node: Node, clean: bool) {
        self.tally.node(-1, Self::slots(node) * 8);
        // SAFETY: the node is the table's, and unlinked.
        unsafe { batch.push(node.at, clean) };
    }

    /// Retires a subtree, which no word leads to. A walker may still be in it: its words stay.
    fn retire_all(&self, batch: &mut Retired<'n>, node: Node) {
        for word in (0..Self::slots(node)).map(|index| self.read(node, index)) {
            if Compact::is_link(word) {
                self.retire_all(batch, node.below(word));
            } else if Compact::is_leaf(word, true) {
                self.tally.ptes(-1);
            }
        }
        self.retire(batch, node, false);
    }

    /// Returns the word of a slot of what a leaf is split into: a leaf, or a link to a subtree, which is complete.
    fn split(&self, stock: &mut Stock<'n, N, 2>, level: usize, page: Vpn, pieces: Pieces) -> u64 {
        if Self::units(level) <= pieces.span {
            let offset = (page.get() - pieces.first.get()) & !(pieces.span - 1);
            return pieces.word.advance(Compact::STEP, offset);
        }
        let node = self.next(stock, level + 1, page);
        let slots = (0..Self::units(level) / Self::units(node.level)).map(|n| n * Self::units(node.level));
        for page in slots.map(|offset| Vpn::new(page.get() + offset)) {
            let word = self.split(stock, node.level, page, pieces);
            self.put(node, page, word);
        }
        node.link()
    }

    /// Gives the pages of a range, which has been checked, another size.
    fn resize_range(&self, batch: &mut Retired<'n>, pages: Pages, to: PageSize) -> Result<(), Error> {
        let (mut stock, mut rest) = (self.take(pages, to)?, Rest::of(pages));
        while let Some((leaf, way)) = rest.pages().and_then(|pages| self.leaves(pages).next()) {
            let whole = if leaf.size > to {
                Self::SPACE.pages_of(&leaf)
            } else {
                Pages::count(way.page, span(to)).unwrap_or(pages)
            };
            rest.go_past(whole.last());
            if leaf.size == to {
                continue;
            }
            // The node in whose slots the page is, or will be.
            let depth = (0..way.last).find(|&depth| Self::units(way.nodes[depth].level) <= whole.len());
            let node = way.nodes[depth.unwrap_or(way.last)];
            let status =
                self.leaves(whole).fold(Attr::empty(), |status, (leaf, _)| status | leaf.attr & STATUS);
            let word = Compact::leaf(leaf.frame, to, leaf.attr | status, true)?;
            let pieces = Pieces { first: whole.first(), word, span: span(to) };
            for page in whole.iter().step_by(Self::units(node.level)) {
                let old = self.read(node, Self::index(node, page));
                let word = self.split(&mut stock, node.level, page, pieces);
                self.put(node, page, word);
                if Compact::is_link(old) {
                    self.retire_all(batch, node.below(old));
                }
            }
            batch.touch(FlushScope::Everywhere, whole);
        }
        Ok(())
    }
}

impl<G: Radix, const HAD: usize, N: Nodes<Word = u64>> Drop for Flat<'_, G, HAD, N> {
    fn drop(&mut self) {
        // SAFETY: this is the drop of the table that the flag belongs to.
        unsafe { self.nodes.held().count_dropped_table(&self.flag, self.tally.footprint().nodes) };
    }
}

// SAFETY: the batch is over the table's storage, and the flag a field. A change takes all nodes before its first store, and calls
// nothing that may unwind after it; it pushes each node after the store that unlinks it, and names every page that it changes.
// `Flat` is `Send` only if `&N` is.
unsafe impl<'n, G: Radix, const HAD: usize, N: Nodes<Word = u64>> Table<'n> for Flat<'n, G, HAD, N> {
    fn space(&self) -> Space {
        Self::SPACE
    }

    fn lookup(&self, _pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf> {
        if Self::SPACE.holds(at) { self.walk_to(at.vpn(BASE)).leaf() } else { None }
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
        let mut word = check_map(Self::SPACE, pages, frame, size, attr)?;
        if let Some((Leaf { at, size, .. }, _)) = self.leaves(pages).next() {
            return Err(Error::Occupied { at, size });
        }
        let mut stock = self.take(pages, size)?;
        for page in pages.iter().step_by(span(size)) {
            let mut way = self.walk_to(page);
            while Self::units(way.end().level) > span(size) {
                let node = self.next(&mut stock, way.end().level + 1, page);
                self.put(way.end(), page, node.link());
                way.push(node);
            }
            self.fill(way.end(), Pages::count(page, span(size)).unwrap_or(pages), |_| word);
            word = word.advance(Compact::STEP, span(size));
        }
        Ok(())
    }

    fn take_next(&self, right: Right<'_, 'n>, rest: &mut Rest) -> Result<Option<(Vpn, Uncovered)>, Error> {
        self.take_first(right.batch(&self.flag)?, rest)
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
        let mapped = self.check_whole(pages, holes)?;
        for (leaf, way) in self.leaves(pages) {
            let word = Compact::change(way.word, change, true);
            self.fill(way.end(), Self::SPACE.pages_of(&leaf), |_| word);
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
        let page = at.vpn(BASE);
        Self::SPACE.check_pages(Pages::one(page))?;
        let way = self.walk_to(page);
        let old = way.leaf().ok_or(Error::NotMapped { at })?;
        check_attr::<Compact>(attr)?;
        Self::SPACE.check_frames(frame, span(old.size), old.size)?;
        let word = Compact::leaf(frame, old.size, attr, true)?;
        let whole = Self::SPACE.pages_of(&old);
        self.fill(way.end(), whole, |_| word);
        batch.touch(FlushScope::Everywhere, whole);
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
        let batch = right.batch(&self.flag)?;
        Self::SPACE.check_sized(pages, to)?;
        self.check_whole(pages, Holes::Refuse)?;
        check_resize(self.leaves(pages).map(|(leaf, _)| leaf), to)?;
        self.resize_range(batch, pages, to)
    }

    fn breaks(&self) -> bool {
        Compact::BREAK
    }

    unsafe fn dismantle(&mut self, batch: &mut Retired<'n>) {
        self.retire_all(batch, self.root);
    }
}
