//! Mapping: how a range of pages grows into the tree.
//!
//! One recursion does it, over what a slot says: it returns what the slot shall say instead. It runs twice, first
//! with a supply that only counts nodes, then with one that hands out exactly those. Existing nodes are entered and
//! their slots replaced one by one; every replacement is built privately and linked with one store.
//!
//! ```text
//!   slot -> X, pages outside X         slot -> new                 insert splits X's guard
//!            guard of X:                        prefix             into prefix, digit and
//!            prefix . digit . rest      +--------+-------+         remainder
//!                                       |   X    | pages |
//!                                       +--------+-------+
//!                                    rest
//!
//!   slot -> X of small slots,          slot -> upper               a larger page needs a
//!            one page of 2^k slots      +------+------+            slot of its own size:
//!                                       | page | lower|            X's digit is parted
//!                                       +------+------+
//! ```

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn};

use super::Gpt;
use super::bits::{agree, digit, low};
use super::layout::{Edge, Layout};
use super::policy::Policy;
use super::slots::{KINDS, Place, inner_kind, leaf_kind};
use super::sweep::Span;
use crate::format::{Format, check_attr};
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes, Stock};
use crate::{Error, Geometry, Retired, Word};

/// Where nodes come from.
pub(super) trait Supply {
    /// Whether the nodes are real; if not nothing is written.
    const REAL: bool;

    /// Takes a node of a kind.
    fn take(&mut self, kind: usize) -> NodeAddr;
}

/// A supply that counts.
#[derive(Default)]
pub(super) struct Count(pub(super) [usize; KINDS]);

impl Supply for Count {
    const REAL: bool = false;

    fn take(&mut self, kind: usize) -> NodeAddr {
        self.0[kind] += 1;
        // Any address that is not zero: nobody goes there.
        NodeAddr::new(1)
    }
}

impl<N: Nodes> Supply for Stock<'_, N, KINDS> {
    const REAL: bool = true;

    fn take(&mut self, kind: usize) -> NodeAddr {
        // The dry run, which is the same code, has counted it.
        self.next(kind).unwrap_or(NodeAddr::new(0))
    }
}

/// What to map.
pub(super) struct Job<'j, 'n, S, W> {
    pub(super) supply: &'j mut S,
    pub(super) batch: &'j mut Retired<'n>,
    /// The logarithm of the page size.
    pub(super) page: u32,
    /// Whether what is mapped there with another size is replaced. Otherwise nothing is mapped there.
    pub(super) over: bool,
    /// The PTE of the page at an address.
    pub(super) word: W,
    /// Who makes a break known before what replaces the pages is linked.
    pub(super) broken: &'j mut dyn FnMut(&Flush),
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: Policy> Gpt<'n, G, F, N, L, P> {
    /// See [`Table::map`](crate::Table::map).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table; so for all that follow.
    #[inline(always)]
    pub(super) unsafe fn map_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        G::SPACE.check_sized(pages, size)?;
        G::SPACE.check_frames(frame, pages.len(), size)?;
        check_attr::<F>(attr)?;
        let word = F::leaf(frame, size, attr, true)?;
        if pages.len() == 1 {
            let at = pages.first().address(G::BASE).get();
            // SAFETY: the caller is the writer.
            if let Some(done) = unsafe { self.map_one(batch, pages, at, word) } {
                return done;
            }
        }
        // SAFETY: the caller is the writer.
        unsafe { self.map_range(batch, pages, frame, size, attr, word) }
    }

    /// Maps one base page if that needs no change of the tree: into a leaf with room, or an empty table.
    #[inline(always)]
    unsafe fn map_one(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        at: usize,
        word: F::Word,
    ) -> Option<Result<(), Error>> {
        // SAFETY: the caller is the writer; the leaf is live and the index below its slots.
        unsafe {
            let Some(found) = L::seek(self.nodes, &self.root, G::VA_BITS, Self::TAG, at) else {
                return self.look_root().is_empty().then(|| self.map_first(batch, pages, at, word));
            };
            let place = Self::pte_at(found.shift, found.index, at);
            let old = self.nodes.read(found.leaf, place);
            if F::is_leaf(old, true) {
                return Some(Err(Error::Occupied { occupant: Self::leaf(old, found.shift, at) }));
            }
            if L::TAGGED && found.width < Self::LEAF_MAX {
                // The leaf may be worth joining with a neighbour now.
                return None;
            }
            let edge = found.edge();
            self.nodes.publish(found.leaf, place, word);
            self.settle_pair(edge, at);
            self.set_live(edge, self.live(edge) + 1);
        }
        self.tally.ptes(1);
        batch.touch(F::APPEARS, pages);
        Some(Ok(()))
    }

    /// Maps the first page of an empty table.
    unsafe fn map_first(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        at: usize,
        word: F::Word,
    ) -> Result<(), Error> {
        let kind = leaf_kind(Self::LEAF_MIN);
        let refused = || Error::NoMemory { wanted: 1, pending: self.nodes.held().pending() };
        let mut supply = One(Some(self.take(Self::WORDS[kind]).ok_or_else(refused)?));
        N::Mode::release();
        let broken = &mut |_: &Flush| ();
        let mut job =
            Job { supply: &mut supply, batch, page: Self::BASE, over: false, word: |_| word, broken };
        // SAFETY: the root slot is empty; a leaf for one page is all that is taken.
        unsafe {
            let leaf =
                self.plant(&mut job, Self::LEAF_MIN, Span { first: Self::key(at), last: Self::key(at) });
            self.publish(Place::Root, G::VA_BITS, leaf);
        }
        batch.touch(F::APPEARS, pages);
        Ok(())
    }

    /// Takes a node that a slot can lead to.
    pub(super) fn take(&self, words: usize) -> Option<NodeAddr> {
        let node = self.nodes.take(words)?;
        if node.get() <= L::REACH {
            return Some(node);
        }
        // SAFETY: the node was just taken, and nobody else knows it.
        unsafe { self.nodes.free(node, true) };
        None
    }

    /// Maps a range, with whatever nodes that needs.
    #[inline(never)]
    unsafe fn map_range(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
        word: F::Word,
    ) -> Result<(), Error> {
        let size_pages = size.pages(G::BASE).unwrap_or(1);
        // The highest frame must fit too; `check_frames` has seen that it exists.
        F::leaf(Pfn::new(frame.get() + (pages.len() - size_pages)), size, attr, true)?;
        let span = Self::span(pages);
        // A format's step is that of a base frame's number; the low bits of a larger page's stay what they are.
        let word = |at: usize| word.advance(F::STEP, (at - span.first) >> Self::BASE);
        // SAFETY: the caller is the writer.
        unsafe {
            self.check_vacant(span)?;
            self.grow(batch, span, size.shift(), false, word, &mut |_| ())?;
        }
        batch.touch(F::APPEARS, pages);
        Ok(())
    }

    /// Grafts a span into the tree: counts the nodes, reserves them, commits.
    pub(super) unsafe fn grow(
        &self,
        batch: &mut Retired<'n>,
        span: Span,
        page: u32,
        over: bool,
        word: impl Fn(usize) -> F::Word,
        broken: &mut dyn FnMut(&Flush),
    ) -> Result<(), Error> {
        let span = Span { first: span.first, last: span.last & !low(page) };
        let mut count = Count::default();
        let mut job = Job { supply: &mut count, batch, page, over, word: &word, broken: &mut *broken };
        // SAFETY: the caller is the writer.
        unsafe { self.graft_root(&mut job, span) };
        let mut stock = Stock::take_within(self.nodes, &Self::WORDS, count.0, L::REACH)?;
        // Frames are whole before the table leads to them.
        N::Mode::release();
        let mut job = Job { supply: &mut stock, batch, page, over, word: &word, broken };
        // SAFETY: as above.
        unsafe {
            let old = self.edge(Place::Root, G::VA_BITS, 0);
            let root = self.graft_root(&mut job, span);
            if root != old {
                self.break_old(&mut job, old, span);
                self.publish(Place::Root, G::VA_BITS, root);
            }
        }
        Ok(())
    }

    unsafe fn graft_root<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        span: Span,
    ) -> Edge {
        // SAFETY: the caller is the writer.
        unsafe {
            let root = self.edge(Place::Root, G::VA_BITS, span.first);
            let near = if root.is_empty() { None } else { self.nearest(root, span.first) };
            self.graft(job, root, G::VA_BITS, span, near.unwrap_or(span.first))
        }
    }

    /// Returns what a slot of `2^ceiling` bytes that says `old` shall say so that `span` is mapped. `near` is an
    /// address that `old` covers.
    unsafe fn graft<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        old: Edge,
        ceiling: u32,
        span: Span,
        near: usize,
    ) -> Edge {
        // SAFETY: the caller is the writer, in everything called.
        unsafe {
            if old.is_empty() {
                return self.build(job, ceiling, span);
            }
            let base = near & !low(old.top());
            if !(agree(span.first, base, old.top()) && agree(span.last, base, old.top())) {
                return self.branch(job, old, ceiling, span, near);
            }
            if job.over && !(old.leaf && old.shift == job.page) && (old.leaf || old.top() <= job.page) {
                let new = self.build(job, ceiling, span);
                if S::REAL {
                    self.discard(job.batch, old);
                }
                return new;
            }
            if old.leaf {
                if S::REAL && !job.over {
                    self.fill(job, old, span);
                }
                return old;
            }
            if old.shift < job.page {
                return self.part(job, old, span, base);
            }
            let mut changed = false;
            for slot in old.index(span.first)..=old.index(span.last) {
                let start = base | slot << old.shift;
                let Some(part) = span.within(start, old.shift, job.page) else { continue };
                let place = Place::In(old.node, slot);
                let child = self.edge(place, old.shift, start);
                let near = if child.is_empty() || slot == old.index(near) {
                    near
                } else {
                    self.nearest(child, part.first).unwrap_or(start)
                };
                let new = self.graft(job, child, old.shift, part, near);
                if S::REAL && new != child {
                    self.break_old(job, child, part);
                    self.publish(place, old.shift, new);
                    self.set_live(old, self.live(old) + usize::from(child.is_empty()));
                    changed = true;
                }
            }
            if S::REAL && (changed || old.top() <= Self::LEAF_TOP) {
                return self.tune(job.batch, old, base);
            }
            old
        }
    }

    /// Maps a span in an empty slot of `2^ceiling` bytes.
    unsafe fn build<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        ceiling: u32,
        span: Span,
    ) -> Edge {
        let bit = Self::top_bit(span.first ^ span.last);
        let one = span.first == span.last;
        if job.page > Self::BASE {
            if one {
                // SAFETY: the caller is the writer.
                return unsafe { self.plant(job, 0, span) };
            }
        } else {
            let width = if one { Self::LEAF_MIN } else { (bit + 1 - Self::BASE).max(Self::LEAF_MIN) };
            if width <= Self::LEAF_MAX && Self::worth(Self::pages_in(span), width) {
                // SAFETY: as above.
                return unsafe { self.plant(job, width, span) };
            }
        }
        let (shift, width) = Self::choose(bit, Self::floor(job.page, bit), ceiling, Some(span));
        // SAFETY: as above; the new node is private, and its slots within it.
        unsafe {
            let base = span.first & !low(shift + width);
            let new = self.sprout(job.supply, shift, width, base);
            let mut live = 0;
            for slot in new.index(span.first)..=new.index(span.last) {
                if let Some(part) = span.within(base | slot << shift, shift, job.page) {
                    let child = self.build(job, shift, part);
                    if S::REAL {
                        self.put(new.node, slot, shift, child);
                    }
                    live += 1;
                }
            }
            if S::REAL {
                self.set_live(new, live);
            }
            new
        }
    }

    /// Joins what a slot says and a span outside of that: in one larger leaf, or under a new node at the highest bit
    /// in which they differ.
    unsafe fn branch<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        old: Edge,
        ceiling: u32,
        span: Span,
        near: usize,
    ) -> Edge {
        let base = near & !low(old.top());
        let bit = Self::top_bit((span.first ^ span.last) | (span.first ^ base));
        // SAFETY: the caller is the writer; the new node is private, and its slots within it.
        unsafe {
            if old.leaf && old.shift == job.page && old.shift == Self::BASE && bit < Self::LEAF_TOP {
                let width = bit + 1 - Self::BASE;
                if Self::worth(self.live(old) + Self::pages_in(span), width) {
                    let leaf = self.plant(job, width, span);
                    if S::REAL {
                        self.copy_leaf(old, base, leaf);
                        self.retire(job.batch, old);
                    }
                    return leaf;
                }
            }
            let floor = Self::floor(job.page, bit).max(old.top());
            let (shift, width) = Self::choose(bit, floor, ceiling, None);
            let new = self.sprout(job.supply, shift, width, base & !low(shift + width));
            let (first, last, home) = (new.index(span.first), new.index(span.last), new.index(base));
            let mut live = 0;
            for slot in first.min(home)..=last.max(home) {
                let content = if slot == home { old } else { Edge::EMPTY };
                let start = base & !low(shift + width) | slot << shift;
                let child = match span.within(start, shift, job.page) {
                    Some(part) => self.graft(job, content, shift, part, near),
                    None => content,
                };
                live += usize::from(!child.is_empty());
                if S::REAL {
                    self.put(new.node, slot, shift, child);
                }
            }
            if S::REAL {
                self.set_live(new, live);
                return self.tune(job.batch, new, base & !low(shift + width));
            }
            new
        }
    }

    /// Parts the digit of a node whose slots are smaller than the pages to be mapped: an upper node with slots of
    /// that size, and lower ones for what the old node holds.
    unsafe fn part<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        old: Edge,
        span: Span,
        base: usize,
    ) -> Edge {
        let cut = job.page;
        // SAFETY: the caller is the writer; the new nodes are private, and slots within their nodes.
        unsafe {
            if job.over && span.first == span.last {
                let gone = old.index(span.first)..old.index(span.last | low(cut)) + 1;
                let empty = |slot| self.edge(Place::In(old.node, slot), old.shift, base).is_empty();
                if (0..old.slots()).all(|slot| gone.contains(&slot) || empty(slot)) {
                    // The page replaces everything that the node holds.
                    let new = self.build(job, cut, span);
                    if S::REAL {
                        self.discard(job.batch, old);
                    }
                    return new;
                }
            }
            let upper = self.sprout(job.supply, cut, old.top() - cut, base);
            let below = cut - old.shift;
            let mut live = 0;
            for slot in 0..upper.slots() {
                let start = base | slot << cut;
                let group = slot << below..(slot + 1) << below;
                let child = match span.within(start, cut, cut) {
                    Some(part) => {
                        let new = self.build(job, cut, part);
                        if S::REAL && job.over {
                            self.discard_slots(job.batch, old, group);
                        }
                        new
                    }
                    None => self.gather(job.supply, old, group, below, start),
                };
                if S::REAL {
                    let child = self.settle(job.batch, child, cut, start);
                    self.put(upper.node, slot, cut, child);
                }
                live += usize::from(!child.is_empty());
            }
            if S::REAL {
                self.set_live(upper, live);
                self.retire(job.batch, old);
                return self.tune(job.batch, upper, base);
            }
            upper
        }
    }

    /// Returns what stands for some slots of a node, `2^width` of them from `start` on, in a slot of their size: a
    /// node of their own if there is more than one entry.
    pub(super) unsafe fn gather<S: Supply>(
        &self,
        supply: &mut S,
        old: Edge,
        group: core::ops::Range<usize>,
        width: u32,
        start: usize,
    ) -> Edge {
        let first = group.start;
        // SAFETY: the caller is the writer; the group is within the node, and the new node private.
        unsafe {
            let child = |slot: usize| {
                self.edge(Place::In(old.node, slot), old.shift, start | (slot - first) << old.shift)
            };
            let (mut live, mut only) = (0, Edge::EMPTY);
            for slot in group.clone() {
                let child = child(slot);
                if !child.is_empty() {
                    (live, only) = (live + 1, child);
                }
            }
            if live < 2 {
                return only;
            }
            let node = supply.take(inner_kind(width));
            let new = Edge { node, shift: old.shift, width, leaf: false, base: Self::base(start) };
            if S::REAL {
                for slot in group {
                    self.put(node, slot - first, old.shift, child(slot));
                }
                self.set_live(new, live);
                self.count_in(new);
            }
            new
        }
    }

    /// Discards what some slots of a node lead to.
    unsafe fn discard_slots(&self, batch: &mut Retired<'n>, old: Edge, group: core::ops::Range<usize>) {
        for slot in group {
            // SAFETY: the caller is the writer, and the group is within the node.
            unsafe {
                let child = self.edge(Place::In(old.node, slot), old.shift, 0);
                if !child.is_empty() {
                    self.discard(batch, child);
                }
            }
        }
    }

    /// Takes a new leaf of `2^width` pages and maps a span in it.
    unsafe fn plant<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        width: u32,
        span: Span,
    ) -> Edge {
        let node = job.supply.take(leaf_kind(width));
        let base = span.first & !low(job.page + width);
        let leaf = Edge { node, shift: job.page, width, leaf: true, base: Self::base(base) };
        if S::REAL {
            // SAFETY: the leaf is private.
            unsafe {
                self.count_in(leaf);
                self.put_tag(node, base);
                self.fill(job, leaf, span);
            }
        }
        leaf
    }

    /// Stores the PTEs of a span in their leaf.
    unsafe fn fill<S, W: Fn(usize) -> F::Word>(&self, job: &Job<'_, 'n, S, W>, leaf: Edge, span: Span) {
        let pages = Self::pages_in(span);
        // SAFETY: the leaf covers the span, and only the caller writes it.
        unsafe {
            for page in 0..pages {
                let at = span.first + (page << leaf.shift);
                self.nodes.publish(leaf.node, Self::pte_of(leaf, at), (job.word)(at));
                self.settle_pair(leaf, at);
            }
            self.set_live(leaf, self.live(leaf) + pages);
        }
        self.tally.ptes(pages as isize);
    }

    /// Copies the PTEs of a leaf, those that there are, to a private leaf that covers them.
    pub(super) unsafe fn copy_leaf(&self, old: Edge, base: usize, new: Edge) {
        let mut live = 0;
        for slot in 0..old.slots() {
            let at = base | slot << old.shift;
            // SAFETY: the slots are within both leaves.
            unsafe {
                let word = self.nodes.read(old.node, Self::pte_of(old, at));
                if F::is_leaf(word, true) {
                    self.nodes.put(new.node, Self::pte_of(new, at), word);
                    self.settle_pair(new, at);
                    live += 1;
                }
            }
        }
        // SAFETY: as above.
        unsafe { self.set_live(new, self.live(new) + live) };
    }

    /// Returns the number of pages of a span of base pages, or of one of a larger page.
    fn pages_in(span: Span) -> usize {
        ((span.last - span.first) >> Self::BASE) + 1
    }

    /// Tells whether so many pages are worth a leaf of `2^width`: half of it.
    pub(super) const fn worth(pages: usize, width: u32) -> bool {
        width <= Self::LEAF_MIN || pages * 2 >= 1 << width
    }

    /// Returns an edge's `base`, which only layouts with guards in their slots keep.
    pub(super) const fn base(base: usize) -> usize {
        if L::TAGGED { 0 } else { base }
    }

    /// Returns the lowest position at which the digit of a node above pages of `2^page` bytes may begin, if its
    /// entries differ in `bit`.
    fn floor(page: u32, bit: u32) -> u32 {
        if page > Self::BASE {
            page
        } else if bit >= Self::LEAF_TOP {
            Self::LEAF_TOP
        } else {
            Self::BASE + Self::LEAF_MIN
        }
    }

    /// Chooses the digit of a new node whose entries differ in `bit` at highest: its position and width, between
    /// `floor` and `ceiling`. `span` is what fills it, if it will hold nothing else.
    fn choose(bit: u32, floor: u32, ceiling: u32, span: Option<Span>) -> (u32, u32) {
        if !P::ADAPTIVE {
            // Digits stand at multiples of the width above the leaves.
            let origin = if bit >= Self::LEAF_TOP { Self::LEAF_TOP } else { Self::BASE };
            let low = origin + (bit - origin) / Self::WIDEST * Self::WIDEST;
            let high = if bit >= Self::LEAF_TOP {
                low + Self::WIDEST
            } else {
                Self::LEAF_TOP.min(low + Self::WIDEST)
            };
            let shift = low.max(floor);
            return (shift, high.min(ceiling) - shift);
        }
        // The largest that costs no more than two-slot nodes would.
        let mut width = 1;
        if let Some(span) = span {
            for wider in 2..=Self::RANGE.min(bit + 1 - floor) {
                let shift = bit + 1 - wider;
                let slots = digit(span.last, shift, wider) - digit(span.first, shift, wider) + 1;
                if Self::cost(wider) <= (slots as isize - 1) * Self::cost(1) {
                    width = wider;
                }
            }
        }
        (bit + 1 - width, width)
    }
}

/// A supply of one leaf for the first page of a table.
struct One(Option<NodeAddr>);

impl Supply for One {
    const REAL: bool = true;

    fn take(&mut self, _kind: usize) -> NodeAddr {
        self.0.take().unwrap_or(NodeAddr::new(0))
    }
}
