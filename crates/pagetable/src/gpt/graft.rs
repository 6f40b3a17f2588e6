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
//!
//! Where a larger page may stand in several slots instead, a node that has to change for one is built anew: see
//! [`compose`](super::compose).

use tlbkit_addr::Flush;

use super::Gpt;
use super::bits::{agree, digit, low};
use super::layout::{Edge, Layout};
use super::policy::Policy;
use super::slots::{KINDS, Place, leaf_kind};
use super::sweep::Span;
use crate::format::Format;
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes, Stock};
use crate::{Error, Geometry, Retired};

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
    /// Grafts a span into the tree: counts the nodes, reserves them, commits.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table; so for all that follow.
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
    pub(super) unsafe fn graft<S: Supply, W: Fn(usize) -> F::Word>(
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
            if old.leaf && old.shift != job.page || job.over && !old.leaf && old.top() <= job.page {
                if let Some(other) = self.other_half(job.page, old, base, span) {
                    let new = self.branch(job, old, ceiling, span, other);
                    if S::REAL && job.over {
                        self.release(job.batch, old);
                    }
                    return new;
                }
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
            if L::PAIRS && (old.shift < Self::unit(job.page) || job.over && self.splits(old, span)) {
                return self.renew(job, old, span, base);
            }
            if !L::PAIRS && old.shift < job.page {
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
    pub(super) unsafe fn build<S: Supply, W: Fn(usize) -> F::Word>(
        &self,
        job: &mut Job<'_, 'n, S, W>,
        ceiling: u32,
        span: Span,
    ) -> Edge {
        let bit = Self::top_bit(span.first ^ span.last);
        if job.page > Self::BASE {
            if bit < Self::unit(job.page) {
                // SAFETY: the caller is the writer.
                return unsafe { self.plant(job, Self::unit(job.page) - job.page, span) };
            }
        } else {
            let one = span.first == span.last;
            let width = if one { Self::LEAF_MIN } else { (bit + 1 - Self::BASE).max(Self::LEAF_MIN) };
            if width <= Self::LEAF_MAX && Self::worth(Self::pages_in(span, job.page), width) {
                // SAFETY: as above.
                return unsafe { self.plant(job, width, span) };
            }
        }
        let (shift, width) = Self::choose(bit, Self::floor(job.page, bit), ceiling, Some(span));
        // SAFETY: as above; the new node is private.
        unsafe {
            let base = span.first & !low(shift + width);
            let new = self.sprout(job.supply, shift, width, base);
            let slots = new.index(span.first)..=new.index(span.last);
            let mut live = 0;
            self.compose(job, new, base, span, slots, |_| Edge::EMPTY, &mut |slot, child, another| {
                if S::REAL {
                    self.put(new.node, slot, shift, child);
                }
                live += usize::from(another);
            });
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
        // Where the span is the other half of a pair, the bit that tells them apart.
        let home = near & !low(if L::PAIRS && old.leaf { old.shift } else { old.top() });
        let bit = Self::top_bit((span.first ^ span.last) | (span.first ^ home));
        // SAFETY: the caller is the writer; the new node is private.
        unsafe {
            if old.leaf && old.shift == job.page && old.shift == Self::BASE && bit < Self::LEAF_TOP {
                let width = bit + 1 - Self::BASE;
                if Self::worth(self.live(old) + Self::pages_in(span, job.page), width) {
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
            let region = home & !low(shift + width);
            let new = self.sprout(job.supply, shift, width, region);
            let shared = new.shares(old);
            let content = |slot: usize| {
                let start = region | slot << shift;
                let here = if shared {
                    agree(start, base, old.top()) && self.keeps(old, start, span)
                } else {
                    slot == new.index(base)
                };
                if here { old } else { Edge::EMPTY }
            };
            let last = if shared { base | low(old.top()) } else { base };
            let slots =
                new.index(span.first).min(new.index(base))..=new.index(span.last).max(new.index(last));
            let mut live = 0;
            self.compose(job, new, region, span, slots, content, &mut |slot, child, another| {
                if S::REAL {
                    self.put(new.node, slot, shift, child);
                }
                live += usize::from(another);
            });
            if S::REAL {
                self.set_live(new, live);
                return self.tune(job.batch, new, region);
            }
            new
        }
    }

    /// Takes a new leaf of `2^width` pages and maps a span in it.
    pub(super) unsafe fn plant<S: Supply, W: Fn(usize) -> F::Word>(
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
                self.put_tag(leaf, base);
                self.fill(job, leaf, span);
            }
        }
        leaf
    }

    /// Stores the PTEs of a span in their leaf.
    unsafe fn fill<S, W: Fn(usize) -> F::Word>(&self, job: &Job<'_, 'n, S, W>, leaf: Edge, span: Span) {
        let pages = Self::pages_in(span, leaf.shift);
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

    /// Returns the number of pages of a span.
    fn pages_in(span: Span, page: u32) -> usize {
        ((span.last - span.first) >> page) + 1
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
            Self::unit(page)
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
            // Digits stand at multiples of the width above the leaves; so that they always do, pairs of pages may stand
            // in several slots.
            let origin = if bit >= Self::LEAF_TOP { Self::LEAF_TOP } else { Self::BASE };
            let low = origin + (bit - origin) / Self::WIDEST * Self::WIDEST;
            let high = if bit >= Self::LEAF_TOP {
                low + Self::WIDEST
            } else {
                Self::LEAF_TOP.min(low + Self::WIDEST)
            };
            let shift = if L::PAIRS { low } else { low.max(floor) };
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
