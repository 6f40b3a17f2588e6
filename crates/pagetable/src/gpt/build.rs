//! New subtrees: the leaves and nodes that are built for a span in an empty slot. No walker reaches them before they are linked.
//!
//! ```text
//!   the slot, empty          the span's addresses differ first in bit b: the uppermost node's digit ends there
//!      |
//!   +-----+-----+-----+-----+
//!   |     |  *  |  *  |  *  |   top: made first, for the whole span
//!   +-----+-----+-----+-----+
//!            |     |     `---> leaf 3, made last
//!            |     `---------> a node, made when the walk for the next page comes to its slot
//!            `---------------> leaf 1, made after `top`
//! ```
//!
//! | term | here |
//! |-|-|
//! | span | the pages to be mapped, as their first and last address |
//! | part | the pages of the span in one slot |
//! | top | the uppermost new node: the edge that is returned, for the caller to link |
//! | node, at | the position of the walk for the next page: the lowest existing node, and the page's address |
//! | ceiling | the position above the slot's highest bit: no digit of a new node goes beyond it |
//! | floor | the lowest position at which a digit may begin: above the leaves, or above the region of a larger page |
//! | done | a leaf, or a node whose slots are filled by larger pages: nothing more is built below it |
//! | worth | a span is worth a leaf if it fills at least half of the leaf, or if there is no smaller leaf. If all nodes have one size, of as many slots as the largest leaf or more, any two pages are worth a leaf |
//!
//! The width of a new node of an adaptive table ([`choose`](Gpt::choose)): `n` entries take `n - 1` nodes of two slots. So the new
//! node gets the largest number of slots whose bytes do not exceed those of the `n - 1` nodes that it replaces.

use super::Gpt;
use super::guard::{agree, digit, low};
use super::job::{Around, Fresh, Job, Ptes, Supply};
use super::layout::{Edge, Holds, Layout};
use super::node_size::NodeSize;
use super::slots::{Place, leaf_kind};
use super::visit::Span;
use crate::format::{Format, is_taken};
use crate::nodes::Nodes;
use crate::{Geometry, Word as _};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Maps a span in an empty slot of `2^ceiling` bytes: in a leaf, or in leaves under new nodes.
    ///
    /// The leaves are made from left to right, each after the new nodes above it. The nodes for a part of the span depend on that
    /// part alone. So a walk from the uppermost node finds the slot of the next leaf, and the stack need not hold a path of nodes.
    /// A dry run, which has no nodes to read, computes the nodes on that walk. No walker can reach the nodes yet.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the job's batch came from this table.
    #[inline(never)]
    pub(super) unsafe fn build<S: Supply>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        ceiling: u32,
        span: Span,
    ) -> Edge {
        // SAFETY: the caller is the writer; the new nodes are private, and slots are within them.
        unsafe {
            let (mut top, mut node, mut at) = (Edge::EMPTY, Edge::EMPTY, span.first);
            loop {
                // The uppermost node is made first, for the whole span.
                let (bits, part) = if top.is_empty() {
                    (ceiling, span)
                } else {
                    (node.shift, span.clip(at, node.shift, job.page))
                };
                let child = if part.first == at {
                    let child = self.build_node(job, bits, part);
                    if S::REAL && !top.is_empty() {
                        self.store_edge(node.node, node.index(at), node.shift, child);
                        self.add_live(node, 1);
                    }
                    child
                } else if S::REAL {
                    self.edge(Place::In(node.node, node.index(at)), node.shift, at)
                } else {
                    let (shift, width) = Self::upper_digit(job.page, node.shift, part);
                    Edge { node: node.node, shift, width, holds: Holds::Links, base: 0 }
                };
                if top.is_empty() {
                    top = child;
                }
                if !Self::is_done(job.page, child) {
                    node = child;
                    continue;
                }
                if part.last >= span.last {
                    return top;
                }
                let next = (part.last | low(job.page)) + 1;
                if !agree(at, next, node.top()) {
                    node = top;
                }
                at = next;
            }
        }
    }

    /// Tells whether the leaf or node that was made for a part of a span maps all of the part: a leaf, or a node whose slots the
    /// pages fill.
    fn is_done(page: u32, made: Edge) -> bool {
        made.is_leaf() || page > Self::BASE && made.shift < Self::unit(page)
    }

    /// Takes the uppermost node or leaf for a span. Fills a node whose slots are smaller than the pages.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the job's batch came from this table.
    #[inline(always)]
    unsafe fn build_node<S: Supply>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        ceiling: u32,
        span: Span,
    ) -> Edge {
        // SAFETY: the caller is the writer.
        unsafe {
            let node = self.build_upper(job, ceiling, span);
            if L::PAIRS && !node.is_leaf() && Self::is_done(job.page, node) {
                let base = span.first & !low(node.top());
                let fresh = Fresh { node, base, around: Around::Nothing };
                self.fill_node(job, &fresh, Edge::EMPTY, span);
            }
            node
        }
    }

    /// Takes the uppermost node for a span, or a leaf, if the span is worth one.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the job's batch came from this table.
    #[inline(never)]
    unsafe fn build_upper<S: Supply>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        ceiling: u32,
        span: Span,
    ) -> Edge {
        // SAFETY: the caller is the writer.
        unsafe {
            match Self::leaf_width_for(job.page, span) {
                Some(width) => self.new_leaf(job, width, span),
                None => self.new_upper_node(job, ceiling, span),
            }
        }
    }

    /// Returns the width of the leaf for a span, if the span is worth one.
    fn leaf_width_for(page: u32, span: Span) -> Option<u32> {
        let bit = Self::top_bit(span.first ^ span.last);
        if page > Self::BASE {
            return (bit < Self::unit(page)).then_some(Self::unit(page) - page);
        }
        let one = span.first == span.last;
        let width = if one { Self::MIN_LEAF_WIDTH } else { (bit + 1 - Self::BASE).max(Self::MIN_LEAF_WIDTH) };
        (width <= Self::MAX_LEAF_WIDTH && Self::worth(Self::pages_in(span, page), width)).then_some(width)
    }

    /// Takes the uppermost indexing node for a span that needs more than one leaf.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the job's batch came from this table.
    unsafe fn new_upper_node<S: Supply>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        ceiling: u32,
        span: Span,
    ) -> Edge {
        let (shift, width) = Self::upper_digit(job.page, ceiling, span);
        // SAFETY: the caller is the writer; the new node is private.
        unsafe { self.new_node(job.supply, shift, width, span.first & !low(shift + width)) }
    }

    /// Returns the digit of the uppermost node for a span that needs more than one leaf.
    fn upper_digit(page: u32, ceiling: u32, span: Span) -> (u32, u32) {
        let bit = Self::top_bit(span.first ^ span.last);
        Self::choose(bit, Self::floor(page, bit), ceiling, Some(span))
    }

    /// Maps a span in the slots of a private node, which are empty.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the job's batch came from this table, and `node` is a new node, to which no slot leads yet.
    pub(super) unsafe fn build_slots<S: Supply>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        node: Edge,
        span: Span,
    ) {
        let base = span.first & !low(node.top());
        for slot in node.index(span.first)..=node.index(span.last) {
            let Some(part) = span.within(base | slot << node.shift, node.shift, job.page) else { continue };
            // SAFETY: the caller is the writer; the slot is within the node.
            unsafe {
                let child = self.build(job, node.shift, part);
                if S::REAL {
                    self.store_edge(node.node, slot, node.shift, child);
                    self.add_live(node, 1);
                }
            }
        }
    }

    /// Takes a new leaf of `2^width` pages and maps a span in it.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the job's batch came from this table.
    pub(super) unsafe fn new_leaf<S: Supply>(
        &self,
        job: &mut Job<'_, 'n, S, F::Word>,
        width: u32,
        span: Span,
    ) -> Edge {
        let node = job.supply.take(leaf_kind(width));
        let base = span.first & !low(job.page + width);
        let leaf = Edge { node, shift: job.page, width, holds: Holds::Ptes, base: Self::base(base) };
        if S::REAL {
            // SAFETY: the leaf is private.
            unsafe {
                self.count_in(leaf);
                self.store_tag(leaf, base);
                self.fill(job, leaf, span);
            }
        }
        leaf
    }

    /// Stores the PTEs of a span in their leaf.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `leaf` is a leaf of this table, or a new one, that covers the span.
    pub(super) unsafe fn fill<S>(&self, job: &Job<'_, 'n, S, F::Word>, leaf: Edge, span: Span) {
        let pages = Self::pages_in(span, leaf.shift);
        let first = Self::pte_of(leaf, span.first);
        // SAFETY: the leaf covers the span, and only the caller writes it.
        unsafe {
            for page in 0..pages {
                let at = span.first + (page << leaf.shift);
                let place = if Self::IN_A_ROW { first + page } else { Self::pte_of(leaf, at) };
                self.nodes.publish(leaf.node, place, self.inserted_pte(job.ptes, at));
                self.settle_pair(leaf, at);
            }
            self.add_live(leaf, pages);
        }
        self.tally.ptes(pages as isize);
    }

    /// Returns the PTE of the page at `key`.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(always)]
    unsafe fn inserted_pte(&self, ptes: Ptes<F::Word>, key: usize) -> F::Word {
        match ptes {
            // A format's step is that of a base frame's number; the low bits of a larger page's frame number do not change.
            Ptes::Frames(first, pte) => pte.advance(F::STEP, (key - first) >> Self::BASE),
            // SAFETY: the caller is the writer.
            Ptes::Resized(to) => unsafe { self.resized_pte(key, to) },
        }
    }

    /// Copies the PTEs and marks of a leaf to a new leaf that covers its pages.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, `old` is a leaf of this table that begins at `base`, and `new` is a new leaf that covers its
    /// pages.
    pub(super) unsafe fn copy_leaf(&self, old: Edge, base: usize, new: Edge) {
        let mut live = 0;
        // SAFETY: the slots are within both leaves.
        unsafe {
            for slot in 0..old.slots() {
                let at = base | slot << old.shift;
                let word = self.nodes.read(old.node, Self::pte_of(old, at));
                if is_taken::<F>(word) {
                    self.nodes.store_relaxed(new.node, Self::pte_of(new, at), word);
                    self.settle_pair(new, at);
                    live += 1;
                }
            }
            self.add_live(new, live);
        }
    }

    /// Returns the number of pages of a span.
    pub(super) fn pages_in(span: Span, page: u32) -> usize {
        ((span.last - span.first) >> page) + 1
    }

    /// Whether any two pages in the region of a leaf are worth that leaf: it takes no more bytes than a node of the fixed size and
    /// two small leaves.
    pub(super) const ANY_TWO_GET_A_LEAF: bool =
        L::TAGGED && !L::PAIRS && !P::ADAPTIVE && Self::WIDEST >= Self::MAX_LEAF_WIDTH;

    /// Tells whether `pages` pages are worth a leaf of `2^width` pages: they fill at least half of it, or there is no smaller leaf,
    /// or a node and smaller leaves would take more memory.
    pub(super) const fn worth(pages: usize, width: u32) -> bool {
        width <= Self::MIN_LEAF_WIDTH || pages * 2 >= 1 << width || Self::ANY_TWO_GET_A_LEAF
    }

    /// Returns the value of an edge's `base`: zero in the layouts whose slots hold no guard.
    pub(super) const fn base(base: usize) -> usize {
        if L::TAGGED { 0 } else { base }
    }

    /// Returns the lowest position at which the digit of a node above pages of `2^page` bytes may begin, if the node's
    /// entries differ in `bit`.
    pub(super) fn floor(page: u32, bit: u32) -> u32 {
        if page > Self::BASE {
            Self::unit(page)
        } else if bit >= Self::LEAF_TOP {
            Self::LEAF_TOP
        } else {
            Self::BASE + Self::MIN_LEAF_WIDTH
        }
    }

    /// Chooses the digit of a new node, its position and width, between `floor` and `ceiling`. `bit` is the highest bit in which
    /// the node's entries differ. `span` is given if its pages will be the node's only entries.
    pub(super) fn choose(bit: u32, floor: u32, ceiling: u32, span: Option<Span>) -> (u32, u32) {
        if !P::ADAPTIVE {
            // Digits begin at multiples of the width above the leaves. This is always possible, because a page of a pair may occupy
            // several slots.
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
        // The largest node that takes no more bytes than the two-slot nodes that it replaces.
        let mut width = 1;
        if let Some(span) = span {
            for wider in 2..=Self::RANGE_WIDTH.min(bit + 1 - floor) {
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
