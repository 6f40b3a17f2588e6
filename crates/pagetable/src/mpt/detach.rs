//! Taking a range out of a table before its frames are known: the frames wait for the shootdown in the nodes.
//!
//! ```text
//!   detach    | gone | gone | leaf |        a node of which a part stays: its words hold the frames, as no walker reads them
//!             | link | 0 <-- | link |       a node of which nothing stays: one store unlinks it, and it keeps its entries
//!                    \
//!                     --> | leaf | leaf |   a list of such nodes, by level, through their records
//!   shootdown
//!   clear     | 0    | 0    | leaf |        the frames of the words
//!   release   the frames of the listed nodes, then the nodes: the table is not needed for that
//! ```
//!
//! So a range of any length needs one shootdown and no memory, and hardware may set status bits in the listed nodes until the
//! flush: they are read after it. Where a format has no bits for the words of a level, the frames go to the caller's list.

use core::fmt;
use core::marker::PhantomData;

use tlbkit_addr::{Attr, FlushScope, Pages, Pfn, VirtAddr, Vpn};

use super::Mpt;
use super::shape::{MAX, Shape};
use crate::format::{Format, gone_of, gone_word, walked};
use crate::frames::Joined;
use crate::geometry::Checked as _;
use crate::nodes::{Freed, ListLink, NodeAddr, Nodes};
use crate::word::atomics::Ordering;
use crate::{Error, Frames, Held, Leaf, Mode as _, Pinned, Radix, Retired, Run, Table as _, Word, Writer};

/// Nodes that [`Writer::detach`] has taken out of a table, with the frames and marks in them.
///
/// If it is dropped before [`release`](Self::release) has returned `true`, the nodes are leaked, and counted as
/// [lost](crate::nodes::Held::lost); their frames are leaked, too.
#[must_use = "its nodes hold frames: flush, then release it"]
pub struct Detached<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    nodes: &'n N,
    /// The first node of each level's list. The records of the nodes link the lists.
    heads: [Option<NodeAddr>; MAX],
    /// The next slot to read in the first node of each list.
    next: [usize; MAX],
    /// The number of nodes in the lists, and below them.
    count: usize,
    pending: Joined,
    /// The first page of the range that was not reached.
    stop: Option<Vpn>,
    shape: PhantomData<(G, F)>,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Detached<'n, G, F, N> {
    const fn new(nodes: &'n N) -> Self {
        Self {
            nodes,
            heads: [None; MAX],
            next: [0; MAX],
            count: 0,
            pending: Joined::new(),
            stop: None,
            shape: PhantomData,
        }
    }

    /// Returns the number of nodes that wait for their release.
    pub const fn nodes(&self) -> usize {
        self.count
    }

    /// Returns the first page of the range that [`Writer::detach`] has not reached, if there is one.
    pub const fn stop(&self) -> Option<Vpn> {
        self.stop
    }

    /// Adds a node of `level` and the `count` nodes that it and those below it are.
    ///
    /// # Safety
    ///
    /// The node and those below it came from the storage, and no word leads to the node any more.
    unsafe fn push(&mut self, node: NodeAddr, level: usize, count: usize) {
        // SAFETY: by this function's contract the node is taken, so its record is live.
        unsafe { self.link(node, level) };
        self.nodes.held().retire(count, N::Mode::SHARED);
        self.count += count;
    }

    /// Puts a node at the front of its level's list.
    ///
    /// # Safety
    ///
    /// The node is taken from the storage, and nobody else uses its record.
    unsafe fn link(&mut self, node: NodeAddr, level: usize) {
        let rest = self.heads[level % MAX].map_or(0, |head| self.nodes.index_of(head));
        // SAFETY: by this function's contract the node is taken, so its record is live.
        unsafe { (*self.nodes.link(node)).store(ListLink::word(rest, false), Ordering::Relaxed) };
        self.heads[level % MAX] = Some(node);
    }

    /// Takes the first node from its level's list and frees it.
    ///
    /// # Safety
    ///
    /// As for [`release`](Self::release); all slots of the node have been read.
    unsafe fn free(&mut self, node: NodeAddr, level: usize) {
        // SAFETY: the node is in the list, so its record is the list's.
        let link = unsafe { (*self.nodes.link(node)).load(Ordering::Relaxed) };
        let (rest, _) = ListLink::read(link);
        self.heads[level % MAX] = (rest != 0).then(|| self.nodes.node_of(rest));
        self.next[level % MAX] = 0;
        self.count -= 1;
        self.nodes.held().reclaim(1, N::Mode::SHARED);
        let freed = Freed::new(self.nodes.held(), 0);
        // SAFETY: by this function's contract no walker can reach the node, which is in no list any more.
        unsafe { self.nodes.free(node, false) };
        freed.done();
    }

    /// Hands over the frames and marks in up to `slots` slots, and frees the nodes that have been read. Returns `true` if nothing
    /// is left. Neighbouring frames are handed over as one run. If `held` unwinds, the call can be repeated: it continues after
    /// what `held` was called with.
    ///
    /// # Safety
    ///
    /// As for [`Retired::reclaim`](crate::Retired::reclaim): since the call of [`Writer::detach`] every CPU that may hold a
    /// translation of the table, or walk it, has left its walks and flushed what the writer's obligation names.
    pub unsafe fn release(&mut self, slots: usize, held: &mut dyn FnMut(Held)) -> bool {
        let mut left = slots;
        // The lists of the lower levels come first, so that a node's list is empty when a node above it is read.
        while let Some(level) =
            (0..Mpt::<'n, G, F, N>::LEVELS).rev().find(|&level| self.heads[level].is_some())
            && let Some(node) = self.heads[level]
        {
            // SAFETY: this function's contract is that of `read`; the node is the first of its list.
            unsafe {
                if self.next[level] == Mpt::<'n, G, F, N>::slots(level) {
                    self.free(node, level);
                    continue;
                }
                if left == 0 {
                    break;
                }
                left -= self.read(node, level, left, held);
            }
        }
        self.pending.end(held);
        self.count == 0
    }

    /// Reads up to `most` slots of the first node of a list, from the next slot on, but no further than to a link. Returns how
    /// many slots it has read.
    ///
    /// # Safety
    ///
    /// As for [`release`](Self::release).
    unsafe fn read(
        &mut self,
        node: NodeAddr,
        level: usize,
        most: usize,
        held: &mut dyn FnMut(Held),
    ) -> usize {
        let first = self.next[level % MAX];
        let end = Mpt::<'n, G, F, N>::slots(level).min(first.saturating_add(most));
        for index in first..end {
            let place = Mpt::<'n, G, F, N>::place(level, index);
            // SAFETY: the place is in the node, which is not free.
            let word = unsafe { self.nodes.follow(node, place) };
            self.next[level % MAX] = index + 1;
            if word == F::Word::ZERO {
                continue;
            }
            let last = level + 1 == Mpt::<'n, G, F, N>::LEVELS;
            if F::is_leaf(word, last) {
                self.pending.add(Mpt::<'n, G, F, N>::run_of(word, level, index), held);
            } else if !last && F::is_link(word) {
                // SAFETY: the node below came from the storage, too, and only this one led to it.
                unsafe { self.link(F::node(word), level + 1) };
                return index + 1 - first;
            } else if last && let Some(mark) = Mpt::<'n, G, F, N>::entry(word, level, VirtAddr::new(0)).mark()
            {
                held(Held::Mark(mark));
            }
        }
        end - first
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Drop for Detached<'_, G, F, N> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.nodes.held().lose(self.count);
            self.nodes.held().reclaim(self.count, N::Mode::SHARED);
        }
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> fmt::Debug for Detached<'_, G, F, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached").field("nodes", &self.count).finish_non_exhaustive()
    }
}

/// A detachment under way.
struct Detaching<'d, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    detached: Detached<'n, G, F, N>,
    frames: &'d mut dyn Frames,
    /// How many more entries and nodes may be visited.
    left: usize,
    /// Whether an entry has changed.
    changed: bool,
    /// Whether a node has been unlinked.
    unlinked: bool,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writer<'_, 'n, Mpt<'n, G, F, N>> {
    /// Takes the leaves and marks of `pages` out of the table, from the first page on, until it has visited about `most` entries
    /// and nodes. Returns the nodes that hold them, and the page at which it [stopped](Detached::stop).
    ///
    /// The frames belong to the caller after the flush that the writer's obligation asks for: those of entries in nodes that stay
    /// are handed over by [`clear_detached`](Self::clear_detached), all others by [`Detached::release`]. Larger pages of a format
    /// without bits for that go to `frames` at once ([`Frames::reserve`] says whether there is room); a lack of room ends the call
    /// at that page. Between this call and `clear_detached` the table must not be changed.
    ///
    /// Costs a store for each last-level node of which nothing stays, and otherwise one for each leaf.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::Borrowed`], or [`Error::Partial`] if a leaf extends beyond the range. Nothing has changed
    /// then.
    pub fn detach(
        &mut self,
        pages: Pages,
        most: usize,
        frames: &mut dyn Frames,
    ) -> Result<Detached<'n, G, F, N>, Error> {
        const { assert!(F::EXTRA == 0 && G::LINEAR.is_none(), "a node is its entries") };
        let (table, batch) = self.parts();
        G::SPACE.check_pages(pages)?;
        table.check_own(pages)?;
        for end in [pages.first(), pages.last()] {
            // SAFETY: the caller is the writer.
            if let Some(leaf) = unsafe { table.find(end.address(G::BASE)) } {
                G::SPACE.check_whole(leaf, pages)?;
            }
        }
        // SAFETY: the caller is the writer.
        let stale = unsafe { table.stale(pages) };
        let detached = Detached::new(table.nodes);
        let mut work = Detaching { detached, frames, left: most.max(1), changed: false, unlinked: false };
        // SAFETY: the caller is the only writer, and the batch is the table's. No leaf extends beyond the pages.
        let stop = unsafe { table.detach_in(batch, &mut work, table.root, 0, pages) };
        if work.changed {
            batch.touch(FlushScope::Everywhere, stale);
            if work.unlinked && walked::<F>() {
                batch.relink(FlushScope::Everywhere, stale);
            }
        }
        work.detached.stop = stop;
        Ok(work.detached)
    }

    /// Empties the entries of `pages` that [`detach`](Self::detach) has left in nodes that stay, removes the marks there, and hands
    /// both over. A call that `held` has unwound can be repeated.
    ///
    /// # Safety
    ///
    /// As for [`Detached::release`]. The pages are those of that call, up to the page where it stopped.
    pub unsafe fn clear_detached(
        &mut self,
        pages: Pages,
        detached: &mut Detached<'n, G, F, N>,
        held: &mut dyn FnMut(Held),
    ) {
        let (table, batch) = self.parts();
        if G::SPACE.check_pages(pages).is_err() {
            return;
        }
        // SAFETY: the caller is the only writer, and the batch is the table's; the pages are in the space.
        unsafe { table.clear_in(batch, detached, table.root, 0, pages, held) };
        detached.pending.end(held);
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Destroys a table whose nodes hold frames, as [`destroy`](crate::destroy) does for one whose pages the caller knows. Returns
    /// its nodes, and the obligation of earlier changes whose flush was dropped. Both need a flush of the whole address space on
    /// every CPU that may hold a translation of it.
    ///
    /// Costs a load for each top-level slot.
    pub fn detach_all(self) -> (Detached<'n, G, F, N>, Retired<'n>) {
        const { assert!(F::EXTRA == 0 && G::LINEAR.is_none(), "a node is its entries") };
        let mut debt = self.batch();
        // SAFETY: this function owns the table, so it is the only writer, and the batch came from the table.
        unsafe { debt.take_up(&self.flag) };
        debt.outlive();
        let mut detached = Detached::new(self.nodes);
        for index in 0..Self::slots(0) {
            if self.is_borrowed(index) {
                // SAFETY: the slot is in the root, and this function owns the table.
                unsafe { self.store_relaxed(self.root, Self::place(0, index), F::Word::ZERO) };
            }
        }
        let nodes = self.tally.footprint().nodes;
        self.tally.clear();
        // SAFETY: no code uses the table after this function, and the tally counts all of its nodes.
        unsafe { detached.push(self.root, 0, nodes) };
        (detached, debt)
    }

    /// Returns the first part of `pages` that has about `most` entries, for a caller that handles a range in bounded parts. The
    /// part ends with the end of a node or of a leaf. Costs a load for each entry above the last level.
    pub fn part(&self, _pinned: Pinned<'_>, pages: Pages, most: usize) -> Pages {
        let mut left = most;
        if G::SPACE.check_pages(pages).is_err() {
            return pages;
        }
        // SAFETY: the caller is pinned, and the pages are in the space.
        let end = unsafe { self.part_in(self.root, 0, pages, &mut left) };
        end.and_then(|end| Pages::new(pages.first(), end.min(pages.last()))).unwrap_or(pages)
    }

    /// Returns the page after which `left` entries of the range have been counted, unless there are fewer.
    ///
    /// # Safety
    ///
    /// The caller is pinned or the writer. `node` is a node of `level` that covers all of `pages`.
    unsafe fn part_in(&self, node: NodeAddr, level: usize, pages: Pages, left: &mut usize) -> Option<Vpn> {
        let mut at = pages.first();
        loop {
            let index = Self::index(level, at.address(G::BASE));
            let mut end = Vpn::new(at.get() | (Self::slot_pages(level) - 1));
            // SAFETY: by this function's contract a walk may read the node, and the place is in it.
            let word = unsafe { self.nodes.follow(node, Self::place(level, index)) };
            let last = level + 1 == Self::LEVELS;
            if F::is_leaf(word, last) {
                *left = left.saturating_sub(1);
                end = end.max(G::SPACE.pages_of(&Self::leaf(word, level, at.address(G::BASE))).last());
            } else if !last && F::is_link(word) {
                let span = Pages::new(at, end.min(pages.last()))?;
                if level + 2 == Self::LEVELS {
                    *left = left.saturating_sub(span.len());
                } else {
                    // SAFETY: the link's node is of the next level and covers this slot.
                    let stop = unsafe { self.part_in(F::node(word), level + 1, span, left) };
                    if stop.is_some() {
                        return stop;
                    }
                }
            }
            if *left == 0 {
                return Some(end);
            }
            if end >= pages.last() {
                return None;
            }
            at = Vpn::new(end.get() + 1);
        }
    }

    /// Returns the leaf in the slot `index` of a node of `level`, and of a page in several slots the number of pages before that
    /// slot's.
    #[inline(always)]
    fn part_of(word: F::Word, level: usize, index: usize) -> (Leaf, usize) {
        let at = VirtAddr::new(index << Self::slot_size(level).shift());
        let leaf = Self::leaf(word, level, at);
        (leaf, (at.get() & leaf.size.mask()) >> G::BASE.shift())
    }

    /// Returns the frames of the slot `index` of a node of `level`, which holds a leaf: of a page in several slots, the part.
    #[inline(always)]
    fn run_of(word: F::Word, level: usize, index: usize) -> Run {
        let (leaf, part) = Self::part_of(word, level, index);
        Run {
            first: Pfn::new(leaf.frame.get() + part),
            len: Self::slot_pages(level),
            dirty: leaf.attr.contains(Attr::DIRTY),
        }
    }

    /// Takes the entries of `pages` in a node out of the table. Returns the page at which it stopped, if it did.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `node` is one of `level` that covers all of `pages`. No
    /// leaf extends beyond the range.
    unsafe fn detach_in(
        &self,
        batch: &mut Retired<'n>,
        work: &mut Detaching<'_, 'n, G, F, N>,
        node: NodeAddr,
        level: usize,
        pages: Pages,
    ) -> Option<Vpn> {
        let last = level + 1 == Self::LEVELS;
        let mut at = pages.first();
        loop {
            let index = Self::index(level, at.address(G::BASE));
            let end = Vpn::new(at.get() | (Self::slot_pages(level) - 1)).min(pages.last());
            // SAFETY: by this function's contract the caller is the only writer, and the slot is in the node.
            unsafe {
                let word = self.read(node, Self::place(level, index));
                // A page in several slots is taken as a whole.
                if work.left == 0 && (!F::is_leaf(word, last) || Self::part_of(word, level, index).1 == 0) {
                    return Some(at);
                }
                if word == F::Word::ZERO {
                } else if F::is_leaf(word, last) {
                    if !self.detach_leaf(work, node, level, index, word) {
                        return Some(at);
                    }
                } else if !last
                    && F::is_link(word)
                    && let Some(span) = Pages::new(at, end)
                {
                    let below = F::node(word);
                    let lent = level == 0 && self.is_lent(index);
                    if !lent && self.is_within(below, level + 1, span) {
                        self.unlink(node, level, index);
                        let (nodes, ptes) = self.count(below, level + 1);
                        self.tally.ptes(-(ptes as isize));
                        work.left = work.left.saturating_sub(nodes);
                        (work.changed, work.unlinked) = (true, true);
                        work.detached.push(below, level + 1, nodes);
                    } else {
                        let stop = self.detach_in(batch, work, below, level + 1, span);
                        if !lent && self.live(below, level + 1) == 0 {
                            self.unlink(node, level, index);
                            work.unlinked = true;
                            self.retire(batch, below, level + 1, true);
                        }
                        if stop.is_some() {
                            return stop;
                        }
                    }
                }
            }
            if end >= pages.last() {
                return None;
            }
            at = Vpn::new(end.get() + 1);
        }
    }

    /// Replaces a leaf by a word that holds its frame, or passes the frame to the caller's list. Returns `false` if there is no
    /// room in that list: nothing has changed then.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the node is one of `level`, and its slot `index` holds the leaf `word`.
    unsafe fn detach_leaf(
        &self,
        work: &mut Detaching<'_, 'n, G, F, N>,
        node: NodeAddr,
        level: usize,
        index: usize,
        word: F::Word,
    ) -> bool {
        let last = level + 1 == Self::LEVELS;
        let place = Self::place(level, index);
        let gone = |leaf| {
            let Run { first, dirty, .. } = Self::run_of(leaf, level, index);
            gone_word::<F>(first, dirty, last)
        };
        // SAFETY: by this function's contract the caller is the only writer, and the slot is in the node.
        unsafe {
            if gone(word).is_some() {
                // Whether there is such a word depends on the frame, which hardware does not change.
                self.amend(node, place, word, |leaf| gone(leaf).unwrap_or(F::Word::ZERO));
            } else {
                // The parts of a page in several slots are one run.
                if Self::part_of(word, level, index).1 == 0 && work.frames.reserve(1).is_err() {
                    return false;
                }
                let old = self.take(node, place, word);
                self.sub_live(node, level, 1);
                self.tally.ptes(-1);
                let Run { first, len, .. } = Self::run_of(old, level, index);
                work.frames.push_run(first, len, G::BASE, F::attr(old, last));
            }
            self.settle_pair(node, level, index);
        }
        work.left = work.left.saturating_sub(1);
        work.changed = true;
        true
    }

    /// Tells whether a node and those below it have no entry outside of `span`, and there are few enough of them to be taken at
    /// once: those of the last two levels.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `node` is one of `level` that covers all of `span`.
    unsafe fn is_within(&self, node: NodeAddr, level: usize, span: Pages) -> bool {
        if level + 2 < Self::LEVELS {
            return false;
        }
        let cover = Self::slot_pages(level);
        if span.len() == cover << Self::width(level) {
            return true;
        }
        let last = level + 1 == Self::LEVELS;
        let (mut taken, mut at) = (0, span.first());
        loop {
            let index = Self::index(level, at.address(G::BASE));
            let end = Vpn::new(at.get() | (cover - 1)).min(span.last());
            // SAFETY: by this function's contract the caller is the only writer, and the slot is in the node.
            taken += u32::from(unsafe {
                let word = self.read(node, Self::place(level, index));
                if !last && F::is_link(word) {
                    Pages::new(at, end).is_some_and(|span| self.is_within(F::node(word), level + 1, span))
                } else {
                    F::is_leaf(word, last) || Self::is_mark(word, level)
                }
            });
            if end >= span.last() {
                // SAFETY: the caller is the only writer.
                return taken == unsafe { self.live(node, level) };
            }
            at = Vpn::new(end.get() + 1);
        }
    }

    /// Counts a node and those below it out of the tally. Returns the number of nodes, and of leaves and marks.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `node` is one of `level`.
    unsafe fn count(&self, node: NodeAddr, level: usize) -> (usize, usize) {
        self.tally.node(-1, Self::words(level) * F::Word::BYTES);
        // SAFETY: by this function's contract the caller is the only writer, and the node is one of `level`.
        let mut live = unsafe { self.live(node, level) };
        let (mut nodes, mut ptes) = (1, live as usize);
        if level + 1 == Self::LEVELS {
            return (nodes, ptes);
        }
        for index in 0..Self::slots(level) {
            if live == 0 {
                break;
            }
            // SAFETY: the slot is in the node, and a link leads to a node of the next level.
            unsafe {
                let word = self.read(node, Self::place(level, index));
                if F::is_link(word) {
                    let (more, entries) = self.count(F::node(word), level + 1);
                    (nodes, ptes, live) = (nodes + more, ptes + entries - 1, live - 1);
                } else if F::is_leaf(word, false) {
                    live -= 1;
                }
            }
        }
        (nodes, ptes)
    }

    /// Empties a slot that holds a link.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the slot `index` of the node, one of `level`, holds a link.
    unsafe fn unlink(&self, node: NodeAddr, level: usize, index: usize) {
        // SAFETY: by this function's contract the caller is the only writer, and the slot is in the node.
        unsafe {
            self.store_relaxed(node, Self::place(level, index), F::Word::ZERO);
            self.settle_pair(node, level, index);
            self.sub_live(node, level, 1);
        }
    }

    /// Empties the entries of `pages` in a node that hold frames or marks, and hands them over.
    ///
    /// # Safety
    ///
    /// As for [`Writer::clear_detached`]; the caller is the only writer, the batch came from this table, and `node` is one of
    /// `level` that covers all of `pages`.
    unsafe fn clear_in(
        &self,
        batch: &mut Retired<'n>,
        detached: &mut Detached<'n, G, F, N>,
        node: NodeAddr,
        level: usize,
        pages: Pages,
        held: &mut dyn FnMut(Held),
    ) {
        let last = level + 1 == Self::LEVELS;
        let mut at = pages.first();
        loop {
            let index = Self::index(level, at.address(G::BASE));
            let end = Vpn::new(at.get() | (Self::slot_pages(level) - 1)).min(pages.last());
            // SAFETY: by this function's contract the caller is the only writer, and the slot is in the node.
            unsafe {
                let word = self.read(node, Self::place(level, index));
                if word == F::Word::ZERO || F::is_leaf(word, last) {
                } else if !last && F::is_link(word) {
                    let below = F::node(word);
                    if let Some(span) = Pages::new(at, end) {
                        self.clear_in(batch, detached, below, level + 1, span, held);
                    }
                    if self.live(below, level + 1) == 0 && !(level == 0 && self.is_lent(index)) {
                        self.unlink(node, level, index);
                        let page = Pages::one(at);
                        batch.touch(FlushScope::Everywhere, page);
                        if walked::<F>() {
                            batch.relink(FlushScope::Everywhere, page);
                        }
                        self.retire(batch, below, level + 1, true);
                    }
                } else {
                    let (gone, mark) =
                        (gone_of::<F>(word), Self::entry(word, level, VirtAddr::new(0)).mark());
                    if gone.is_some() || mark.is_some() {
                        self.store_relaxed(node, Self::place(level, index), F::Word::ZERO);
                        self.settle_pair(node, level, index);
                        self.sub_live(node, level, 1);
                        self.tally.ptes(-1);
                    }
                    if let Some((first, dirty)) = gone {
                        detached.pending.add(Run { first, len: Self::slot_pages(level), dirty }, held);
                    } else if let Some(mark) = mark {
                        held(Held::Mark(mark));
                    }
                }
            }
            if end >= pages.last() {
                return;
            }
            at = Vpn::new(end.get() + 1);
        }
    }
}
