//! A table with pages of three sizes, in which bugs are planted.

use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

use tlbkit_addr::{Attr, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Compact, Format, check_attr, check_change};
use tlbkit_pagetable::geometry::Geometry;
use tlbkit_pagetable::nodes::{NodeAddr, Nodes, Stock};
use tlbkit_pagetable::{
    Change, Error, FlushAll, Footprint, Holes, Leaf, Pinned, Rest, Retired, Right, Space, Table, Tally,
    Uncovered, Word, WriterFlag,
};

/// Three levels of as many bits each, of nine for `Va39`; each entry a word of the format `Compact`.
#[derive(Debug)]
pub(crate) struct Own<'n, G, N: Nodes<Word = u64>> {
    nodes: &'n N,
    root: NodeAddr,
    flag: WriterFlag,
    /// Nodes in the table, and leaves.
    tally: Tally,
    geometry: PhantomData<fn() -> G>,
}

const LEVELS: usize = 3;
const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

/// Returns the slots of a node.
const fn slots<G: Geometry>() -> usize {
    1 << ((G::VA_BITS as usize - 12) / LEVELS)
}

/// Returns the base pages of a slot.
fn units<G: Geometry>(level: usize) -> usize {
    slots::<G>().pow((LEVELS - 1 - level) as u32)
}

/// Returns the page size of a slot.
fn slot<G: Geometry>(level: usize) -> PageSize {
    G::SIZES[LEVELS - 1 - level]
}

/// Returns the level of a page size that the space has.
fn level_of<G: Geometry>(size: PageSize) -> usize {
    (0..LEVELS).find(|&level| slot::<G>(level) == size).unwrap_or(LEVELS - 1)
}

/// Cuts pages of one half of the space into the parts that the slots of a level have of them.
fn parts<G: Geometry>(level: usize, pages: Pages) -> impl Iterator<Item = (usize, Pages)> {
    let (first, last) = (pages.first().get() / units::<G>(level), pages.last().get() / units::<G>(level));
    let last = planted!(LastPage, last, last - usize::from(last == usize::MAX >> 12 && first < last));
    (first..=last).filter_map(move |number| {
        let whole = Pages::count(Vpn::new(number * units::<G>(level)), units::<G>(level))?;
        Some((number % slots::<G>(), whole.intersect(pages)?))
    })
}

fn leaf<G: Geometry>(word: u64, level: usize, page: Vpn) -> Leaf {
    let size = Compact::size(word, slot::<G>(level));
    let at = VirtAddr::new(page.address(PageSize::K4).get() & !size.mask());
    Leaf { at, size, frame: Compact::frame(word, size), attr: Compact::attr(word, true) }
}

/// Nodes that a change has taken before it changes anything.
type Taken<'n, N> = Stock<'n, N, 1>;

impl<'n, G: Geometry, N: Nodes<Word = u64>> Own<'n, G, N> {
    /// The words of the nodes that are taken, which are of one kind.
    const WORDS: &'static [usize; 1] = &[slots::<G>()];
    const BYTES: usize = slots::<G>() * 8;

    /// Returns an empty table with nodes from `nodes`.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] if there is none for the root.
    pub(crate) fn new(nodes: &'n N) -> Result<Self, Error> {
        let root = nodes.take(slots::<G>()).ok_or_else(|| Error::no_memory(1, nodes.held()))?;
        let tally = Tally::default();
        tally.node(1, Self::BYTES);
        planted!(OtherTable, (), bugs::forget(root));
        Ok(Self { nodes, root, flag: WriterFlag::new(nodes.held()), tally, geometry: PhantomData })
    }

    /// Returns the word of a slot, to its writer.
    fn word(&self, node: NodeAddr, index: usize) -> u64 {
        // SAFETY: the caller is the writer, and comes to nodes of the table alone.
        unsafe { self.nodes.word_mut(node, index) }.read()
    }

    fn link(&self, node: NodeAddr, index: usize) -> Option<NodeAddr> {
        Some(self.word(node, index)).filter(|&word| Compact::is_link(word)).map(Compact::node)
    }

    fn publish(&self, node: NodeAddr, index: usize, word: u64) {
        // SAFETY: the caller is the writer, and comes to nodes of the table alone.
        unsafe { self.nodes.word_mut(node, index) }.publish(word);
    }

    /// Counts entries of a node in or out, and returns how many it has.
    fn live(&self, node: NodeAddr, by: isize) -> u32 {
        // SAFETY: the caller is the writer, and comes to nodes of the table alone.
        let record = unsafe { self.nodes.record(node, slots::<G>()) };
        let live = record.load(Relaxed).wrapping_add_signed(by as i32);
        record.store(live, Relaxed);
        live
    }

    /// Takes a node over into a batch, which nothing leads to any more.
    fn retire(&self, batch: &mut Retired<'n>, node: NodeAddr, clean: bool) {
        self.tally.node(-1, Self::BYTES);
        planted!(FreedAtOnce, (), return self.free_at_once(node, clean));
        planted!(FreedTwice, (), self.free_at_once(node, false));
        planted!(FreedTwice, (), return self.free_at_once(node, false));
        let clean = planted!(FalseClean, clean, true);
        // SAFETY: the node is the table's, and unlinked.
        unsafe { batch.push(node, clean) };
        planted!(RetiredTwice, (), self.retire_again(batch, node));
    }

    /// Visits the leaves of pages of one half under a node, in ascending order.
    fn visit(
        &self,
        node: NodeAddr,
        level: usize,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for (index, part) in parts::<G>(level, pages) {
            // SAFETY: the caller is pinned, or the writer.
            let word = unsafe { self.nodes.word(node, index) }.follow();
            if Compact::is_link(word) {
                self.visit(Compact::node(word), level + 1, part, visit)?;
            } else if Compact::is_leaf(word, level + 1 == LEVELS) {
                visit(leaf::<G>(word, level, part.first()))?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Checks leaves one after the other, of which `check` is told how many pages are absent before each.
    fn check(
        &self,
        pages: Pages,
        mut check: impl FnMut(Leaf, usize) -> Result<(), Error>,
    ) -> Result<usize, Error> {
        let (mut next, mut result) = (pages.first().get(), Ok(()));
        let _ = self.visit(self.root, 0, pages, &mut |leaf| {
            let whole = self.space().pages_of(&leaf);
            result = check(leaf, whole.first().get().saturating_sub(next));
            next = whole.last().get() + 1;
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        result.map(|()| (pages.last().get() + 1).saturating_sub(next))
    }

    /// Checks that a range cuts no leaf and has no holes that are refused. Returns its mapped pages.
    fn check_whole(&self, pages: Pages, holes: Holes) -> Result<usize, Error> {
        let space = self.space();
        space.check_pages(pages)?;
        let (mut mapped, mut next) = (0, pages.first());
        let hole = |next: Vpn| Error::NotMapped { at: next.address(PageSize::K4) };
        let rest = self.check(pages, |leaf, absent| {
            let whole = space.pages_of(&leaf);
            if whole.intersect(pages) != Some(whole) {
                return Err(Error::Partial { at: leaf.at, size: leaf.size });
            }
            if absent > 0 && holes == Holes::Refuse {
                return Err(hole(next));
            }
            next = Vpn::new(whole.last().get() + 1);
            mapped += whole.len();
            Ok(())
        })?;
        if rest > 0 && holes == Holes::Refuse { Err(hole(next)) } else { Ok(mapped) }
    }

    /// Returns how many nodes a map needs that are not there.
    fn missing(&self, node: Option<NodeAddr>, level: usize, pages: Pages, to: usize) -> usize {
        if level == to {
            return 0;
        }
        let needs = parts::<G>(level, pages).map(|(index, part)| {
            let below = node.and_then(|node| self.link(node, index));
            usize::from(below.is_none()) + self.missing(below, level + 1, part, to)
        });
        needs.sum()
    }

    fn map_range(&self, pages: Pages, frame: Pfn, size: PageSize, attr: Attr) -> Result<(), Error> {
        self.space().check_sized(pages, size)?;
        check_attr::<Compact>(attr)?;
        let frame = planted!(FrameAskew, frame, bugs::rounded(frame, size));
        self.space().check_frames(frame, pages.len(), size)?;
        let to = level_of::<G>(size);
        let word = Compact::leaf(frame, size, attr, to + 1 == LEVELS)?;
        Compact::leaf(Pfn::new(frame.get() + pages.len() - units::<G>(to)), size, attr, to + 1 == LEVELS)?;
        self.check(pages, |Leaf { at, size, .. }, _| Err(Error::Occupied { at, size }))?;
        let wanted = self.missing(Some(self.root), 0, pages, to);
        let wanted = planted!(OneTooMany, wanted, wanted + usize::from(wanted > 0));
        planted!(LinkedEarly, (), self.link_early(pages, wanted)?);
        planted!(NotRepaired, (), self.link_early(pages, wanted)?);
        planted!(LastRefused, (), bugs::refuse_last(pages)?);
        let mut stock = Stock::take(self.nodes, Self::WORDS, [wanted])?;
        self.fill(self.root, 0, pages, to, &mut { word }, &mut stock);
        planted!(StoresEndless, (), self.store_endlessly());
        Ok(())
    }

    /// Stores leaves under a node, the first of which is `word`. A new node is complete before it is linked.
    fn fill(
        &self,
        node: NodeAddr,
        level: usize,
        pages: Pages,
        to: usize,
        word: &mut u64,
        stock: &mut Taken<'n, N>,
    ) {
        for (index, part) in parts::<G>(level, pages) {
            if level == to {
                self.publish(node, index, *word);
                *word = word.advance(Compact::STEP, units::<G>(to));
                self.live(node, 1);
                self.tally.ptes(1);
            } else if let Some(below) = self.link(node, index) {
                self.fill(below, level + 1, part, to, word, stock);
            } else if let Some(below) = stock.next(0) {
                let part = planted!(LateNode, part, bugs::late(part, pages, level));
                let below = planted!(OtherTable, below, self.others(below));
                self.fill(below, level + 1, part, to, word, stock);
                self.publish(node, index, Compact::link(below));
                self.live(node, 1);
                self.tally.node(1, Self::BYTES);
            }
        }
    }

    /// Takes the first leaf of a range out, and nodes that this leaves empty.
    fn take(
        &self,
        batch: &mut Retired<'n>,
        node: NodeAddr,
        level: usize,
        pages: Pages,
    ) -> Result<Option<Leaf>, Error> {
        for (index, part) in parts::<G>(level, pages) {
            let word = self.word(node, index);
            if Compact::is_leaf(word, level + 1 == LEVELS) {
                let leaf = leaf::<G>(word, level, part.first());
                if part.len() < units::<G>(level) {
                    return Err(Error::Partial { at: leaf.at, size: leaf.size });
                }
                self.publish(node, index, 0);
                self.tally.ptes(-1);
                self.live(node, -1);
                return Ok(Some(leaf));
            } else if let Some(below) = self.link(node, index) {
                let taken = self.take(batch, below, level + 1, part)?;
                let left = self.live(below, 0);
                let left = planted!(KeptEmpty, left, 1);
                if left == 0 {
                    self.publish(node, index, 0);
                    self.live(node, -1);
                    self.retire(batch, below, true);
                }
                if taken.is_some() {
                    return Ok(taken);
                }
            }
        }
        Ok(None)
    }

    /// Takes the first leaf of a range out.
    fn take_first(
        &self,
        batch: &mut Retired<'n>,
        rest: &mut Rest,
    ) -> Result<Option<(Vpn, Uncovered)>, Error> {
        let Some(pages) = rest.pages() else { return Ok(None) };
        self.space().check_pages(pages)?;
        planted!(
            FrameTwice,
            (),
            if let Some(again) = self.hand_again(rest) {
                return Ok(Some(again));
            }
        );
        let Some(leaf) = self.take(batch, self.root, 0, pages)? else {
            planted!(FlushedForNothing, (), batch.touch(FlushScope::Everywhere, pages));
            rest.end();
            return Ok(None);
        };
        let whole = self.space().pages_of(&leaf);
        let stale = whole;
        let stale = planted!(OnePageFlushed, stale, Pages::one(stale.first()));
        planted!(UnmapStride, (), bugs::note(rest));
        let is_told = planted!(UnmapStride, true, bugs::is_in_stride(rest, pages, stale));
        if is_told {
            batch.touch(FlushScope::Everywhere, stale);
        }
        rest.go_past(whole.last());
        planted!(EndsEarly, (), rest.end());
        planted!(FrameTwice, (), rest.set_place(leaf.frame.get() + 1));
        let run = leaf.run(PageSize::K4);
        let run = planted!(LostDirty, run, bugs::clean(run));
        let run = planted!(SizeTold, run, bugs::cut(run));
        Ok(Some((whole.first(), Uncovered::Frames(run))))
    }

    /// Changes the attributes of all leaves of a range.
    fn edit(&self, node: NodeAddr, level: usize, pages: Pages, change: Change) {
        for (index, part) in parts::<G>(level, pages) {
            let word = self.word(node, index);
            let change = planted!(HugePassed, change, bugs::but_huge(change, level, word));
            let change = planted!(GlobalLost, change, bugs::and_not_global(change));
            if let Some(below) = self.link(node, index) {
                self.edit(below, level + 1, part, change);
            } else if Compact::is_leaf(word, level + 1 == LEVELS) {
                self.publish(node, index, Compact::change(word, change, true));
            }
        }
    }

    /// Checks what a change of size needs, and returns how many nodes.
    fn check_resize(&self, pages: Pages, to: PageSize) -> Result<usize, Error> {
        let space = self.space();
        space.check_sized(pages, to)?;
        let (mut wanted, mut next, mut begun) = (0, pages.first(), None::<Leaf>);
        let hole = |next: Vpn| Error::NotMapped { at: next.address(PageSize::K4) };
        let rest = self.check(pages, |leaf, absent| {
            let absent = planted!(JoinedGap, absent, 0);
            if absent > 0 {
                return Err(hole(next));
            }
            let whole = space.pages_of(&leaf);
            next = Vpn::new(whole.last().get() + 1);
            let offset = whole.first().get() & (units::<G>(level_of::<G>(to)) - 1);
            if leaf.size >= to {
                // One node a level that is split, each full of the next.
                for level in level_of::<G>(leaf.size)..level_of::<G>(to) {
                    wanted += units::<G>(level_of::<G>(leaf.size)) / units::<G>(level);
                }
                let cut = whole.intersect(pages) != Some(whole);
                return if cut { Err(Error::Partial { at: leaf.at, size: leaf.size }) } else { Ok(()) };
            }
            let first = if offset == 0 { leaf } else { begun.unwrap_or(leaf) };
            begun = Some(first);
            let differs = (leaf.attr ^ first.attr).difference(STATUS);
            let differs = planted!(GlobalIgnored, differs, differs.difference(Attr::GLOBAL));
            let aligned = first.frame.is_aligned(to, PageSize::K4);
            let aligned = planted!(JoinedAskew, aligned, true);
            let follows = leaf.frame.get() == first.frame.get() + offset;
            if aligned && follows && differs.is_empty() {
                Ok(())
            } else {
                Err(Error::NotUniform { at: leaf.at })
            }
        })?;
        if rest > 0 { Err(hole(next)) } else { Ok(wanted) }
    }

    fn resize_range(&self, batch: &mut Retired<'n>, pages: Pages, to: PageSize) -> Result<(), Error> {
        let wanted = self.check_resize(pages, to)?;
        planted!(SplitLeaks, (), self.leak_if_refused(wanted)?);
        let mut stock = Stock::take(self.nodes, Self::WORDS, [wanted])?;
        self.reshape(batch, self.root, 0, pages, level_of::<G>(to), &mut stock);
        Ok(())
    }

    /// Makes every slot's leaves those of a level: each leaf that is split, or subtree that is joined, is exchanged by
    /// one store.
    fn reshape(
        &self,
        batch: &mut Retired<'n>,
        node: NodeAddr,
        level: usize,
        pages: Pages,
        to: usize,
        stock: &mut Taken<'n, N>,
    ) {
        for (index, part) in parts::<G>(level, pages) {
            let below = self.link(node, index);
            match below {
                None if level < to => {
                    let leaf = leaf::<G>(self.word(node, index), level, part.first());
                    let leaf = planted!(SecondSplit, leaf, bugs::shifted(leaf, part, pages));
                    planted!(ZeroedFirst, (), self.publish(node, index, 0));
                    if let Some(below) = self.split(leaf, level + 1, to, stock) {
                        planted!(FilledLate, (), self.link_unfilled(node, index, below));
                        self.publish(node, index, Compact::link(below));
                        self.tally.ptes(-1);
                        batch.touch(FlushScope::Everywhere, part);
                    }
                }
                Some(below) if level < to => self.reshape(batch, below, level + 1, part, to, stock),
                Some(below) => {
                    let (mut first, mut status) = (None, Attr::empty());
                    let _ = self.visit(below, level + 1, part, &mut |leaf| {
                        first = first.or(Some(leaf));
                        status |= leaf.attr & STATUS;
                        ControlFlow::Continue(())
                    });
                    let Some(first) = first else { continue };
                    let (attr, size) = (first.attr | status, slot::<G>(level));
                    let attr = planted!(StatusDropped, attr, first.attr);
                    let size = planted!(StaleSize, size, first.size);
                    if let Ok(word) = Compact::leaf(first.frame, size, attr, false) {
                        self.publish(node, index, word);
                        self.tally.ptes(1);
                        planted!(JoinLive, (), _ = self.live(node, 1));
                        planted!(JoinTally, (), self.tally.ptes(1));
                        batch.touch(FlushScope::Everywhere, part);
                        self.retire_all(batch, below, level + 1);
                        planted!(WipedJoined, (), self.wipe(below));
                    }
                }
                None => {}
            }
        }
    }

    /// Builds a node of the leaves that a larger one is split into, with all that is below it.
    fn split(&self, leaf: Leaf, level: usize, to: usize, stock: &mut Taken<'n, N>) -> Option<NodeAddr> {
        let node = stock.next(0)?;
        for index in 0..slots::<G>() {
            let frame = Pfn::new(leaf.frame.get() + index * units::<G>(level));
            if level == to {
                let word = Compact::leaf(frame, slot::<G>(level), leaf.attr, level + 1 == LEVELS).ok()?;
                let word = planted!(LostPage, word, if index == slots::<G>() - 1 { 0 } else { word });
                self.publish(node, index, word);
                self.tally.ptes(1);
            } else {
                let frame = planted!(SplitAskew, frame, leaf.frame);
                let below = self.split(Leaf { frame, ..leaf }, level + 1, to, stock)?;
                self.publish(node, index, Compact::link(below));
            }
        }
        self.live(node, slots::<G>() as isize);
        self.tally.node(1, Self::BYTES);
        Some(node)
    }

    /// Retires a subtree that nothing leads to any more. A walker may still be in it: its words stay.
    fn retire_all(&self, batch: &mut Retired<'n>, node: NodeAddr, level: usize) {
        for index in 0..slots::<G>() {
            if let Some(below) = self.link(node, index) {
                self.retire_all(batch, below, level + 1);
            } else if Compact::is_leaf(self.word(node, index), level + 1 == LEVELS) {
                self.tally.ptes(-1);
            }
        }
        self.retire(batch, node, false);
    }
}

impl<G, N: Nodes<Word = u64>> Drop for Own<'_, G, N> {
    /// Counts what a table loses that is dropped without having been taken apart: nothing, if it has been.
    fn drop(&mut self) {
        planted!(NotBuried, (), return);
        // SAFETY: this is the drop of the table that the flag belongs to.
        unsafe { self.nodes.held().count_dropped_table(&self.flag, self.tally.footprint().nodes) };
    }
}

// SAFETY: the batch is over the table's storage, and the flag a field. A change pushes each node after the store that
// unlinks it, and names every page that it changes; it takes all nodes before, and calls nothing that may unwind after that. `Own`
// is `Send` only if `&N` is.
unsafe impl<'n, G: Geometry, N: Nodes<Word = u64>> Table<'n> for Own<'n, G, N> {
    fn space(&self) -> Space {
        Space::of::<G>()
    }

    fn lookup(&self, _pinned: Pinned<'_>, at: VirtAddr) -> Option<Leaf> {
        let inside = self.space().holds(at);
        let inside = planted!(OffByOne, inside, inside || at.get() == 1 << 38);
        let (mut node, page) = (self.root, at.vpn(PageSize::K4));
        planted!(Endless, (), while page.get() == usize::MAX >> 12 && self.link(node, 0).is_none() {});
        for level in 0..if inside { LEVELS } else { 0 } {
            let index = page.get() / units::<G>(level) % slots::<G>();
            // SAFETY: the caller is pinned, and a link leads to a node that is live, or retired and not reclaimed.
            let word = unsafe { self.nodes.word(node, index) }.follow();
            if !Compact::is_link(word) {
                let found = Compact::is_leaf(word, level + 1 == LEVELS);
                let word = planted!(ReadsTwice, word, self.again(node, index));
                return found.then(|| leaf::<G>(word, level, page));
            }
            node = Compact::node(word);
        }
        None
    }

    fn for_each(
        &self,
        _pinned: Pinned<'_>,
        pages: Pages,
        visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        planted!(VisitRestarts, (), self.visit_first(pages, visit)?);
        planted!(VisitEndless, (), self.visit_endlessly(pages, visit));
        planted!(BreaksLie, (), return self.visit_and_lie(pages, visit));
        planted!(GoesOn, (), return self.visit_on(pages, visit));
        self.space().parts(pages).try_for_each(|part| self.visit(self.root, 0, part, visit))
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
        planted!(WantsMore, (), return self.map_wanting_more(pages, frame, size, attr));
        self.map_range(pages, frame, size, attr)
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
        planted!(ProtectTakes, (), drop(Stock::take(self.nodes, Self::WORDS, [1])?));
        self.edit(self.root, 0, pages, change);
        let scope = change.scope();
        let scope = planted!(ReachTooLow, scope, scope.min(FlushScope::Local));
        let scope = planted!(ExecForgotten, scope, bugs::but_for_exec(change, scope));
        if mapped > 0 && scope > FlushScope::Nowhere {
            let stale = planted!(ProtectStride, pages, bugs::strided(pages));
            batch.touch(scope, stale);
        }
        let mapped = planted!(CountOff, mapped, mapped - usize::from(mapped > 1));
        Ok(mapped)
    }

    fn replace(
        &self,
        right: Right<'_, 'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        _known: FlushAll<'_>,
    ) -> Result<Leaf, Error> {
        let batch = right.batch(&self.flag)?;
        let page = Pages::one(at.vpn(PageSize::K4));
        self.space().check_pages(page)?;
        let (mut node, mut level) = (self.root, 0);
        let index = |level| page.first().get() / units::<G>(level) % slots::<G>();
        while let Some(below) = self.link(node, index(level)) {
            (node, level) = (below, level + 1);
        }
        let word = self.word(node, index(level));
        if !Compact::is_leaf(word, level + 1 == LEVELS) {
            return Err(Error::NotMapped { at });
        }
        let old = leaf::<G>(word, level, page.first());
        check_attr::<Compact>(attr)?;
        planted!(SwapAskew, (), return self.replace_askew(batch, node, index(level), old, frame, attr));
        self.space().check_frames(frame, units::<G>(level), old.size)?;
        let new = Compact::leaf(frame, old.size, attr, level + 1 == LEVELS)?;
        planted!(ReplacedTwice, (), self.publish(node, index(level), 0));
        self.publish(node, index(level), new);
        batch.touch(FlushScope::Everywhere, self.space().pages_of(&old));
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
        _known: FlushAll<'_>,
    ) -> Result<(), Error> {
        self.resize_range(right.batch(&self.flag)?, pages, to)
    }

    fn breaks(&self) -> bool {
        Compact::BREAK
    }

    unsafe fn dismantle(&mut self, batch: &mut Retired<'n>) {
        self.retire_all(batch, self.root, 0);
        planted!(StillCounted, (), self.tally.ptes(1));
        planted!(FreedRoot, (), self.free_at_once(self.root, false));
    }
}

#[path = "bugs.rs"]
mod bugs;
