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
//!
//! The width of a new node of an adaptive table ([`choose`](Writing::choose)): `n` entries take `n - 1` nodes of two slots. So the new
//! node gets the largest number of slots whose bytes do not exceed those of the `n - 1` nodes that it replaces.

use super::guard::{agree, digit, low};
use super::job::{Around, Filling, Job, Ptes};
use super::node::{Made, Node, Writing};
use super::shape::{Shape, top_bit};
use super::visit::Span;
use crate::Word as _;
use crate::format::Format;

impl<'w, T: Shape> Writing<'w, '_, T> {
    /// Maps a span in an empty slot of `2^ceiling` bytes: in a leaf, or in leaves under new nodes.
    ///
    /// The leaves are made from left to right, each after the new nodes above it. The nodes for a part of the span depend on that
    /// part alone. So a walk from the uppermost node finds the slot of the next leaf, and the stack need not hold a path of nodes.
    /// A dry run, which has no nodes to read, computes the nodes on that walk. No walker can reach the nodes yet.
    #[inline(never)]
    pub(super) fn build<const REAL: bool>(
        &self,
        job: &mut Job<'_, 'w, T, REAL>,
        ceiling: u32,
        span: Span,
    ) -> Made<'w, T, REAL> {
        // The uppermost node is made first, for the whole span.
        let top = self.build_node(job, ceiling, span);
        if Self::is_done(job.page, top) {
            return top;
        }
        let (mut node, mut at) = (top, span.first);
        loop {
            let part = span.clip(at, node.shift, job.page);
            let child = if part.first == at {
                let child = self.build_node(job, node.shift, part);
                if let Some(fresh) = node.fresh() {
                    fresh.store(fresh.index(at), child.item().node());
                    fresh.add_live(1);
                }
                child
            } else {
                node.below(&job.supply, at, || Self::upper_digit(job.page, node.shift, part))
            };
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

    /// Tells whether the leaf or node that was made for a part of a span maps all of the part: a leaf, or a node whose slots the
    /// pages fill.
    fn is_done<const REAL: bool>(page: u32, made: Made<'w, T, REAL>) -> bool {
        made.is_leaf() || page > T::BASE && made.shift < T::unit(page)
    }

    /// Takes the uppermost node or leaf for a span. Fills a node whose slots are smaller than the pages.
    #[inline(always)]
    fn build_node<const REAL: bool>(
        &self,
        job: &mut Job<'_, 'w, T, REAL>,
        ceiling: u32,
        span: Span,
    ) -> Made<'w, T, REAL> {
        let node = self.build_upper(job, ceiling, span);
        if T::PAIRS && !node.is_leaf() && Self::is_done(job.page, node) {
            let base = span.first & !low(node.top());
            self.fill_node(job, &Filling { node, lone: false, base, around: Around::Nothing, span });
        }
        node
    }

    /// Takes the uppermost node for a span, or a leaf, if one covers the span.
    #[inline(never)]
    fn build_upper<const REAL: bool>(
        &self,
        job: &mut Job<'_, 'w, T, REAL>,
        ceiling: u32,
        span: Span,
    ) -> Made<'w, T, REAL> {
        if let Some(width) = Self::leaf_width_for(job.page, span) {
            return self.new_leaf(job, width, span);
        }
        let (shift, width) = Self::upper_digit(job.page, ceiling, span);
        job.supply.node(shift, width, span.first & !low(shift + width))
    }

    /// Returns the width of the leaf for a span, if one covers it.
    fn leaf_width_for(page: u32, span: Span) -> Option<u32> {
        let bit = top_bit(span.first ^ span.last);
        if page > T::BASE {
            return (bit < T::unit(page)).then_some(T::unit(page) - page);
        }
        let one = span.first == span.last;
        let width = if one { T::MIN_LEAF_WIDTH } else { (bit + 1 - T::BASE).max(T::MIN_LEAF_WIDTH) };
        (width <= T::MAX_LEAF_WIDTH).then_some(width)
    }

    /// Returns the digit of the uppermost node for a span that needs more than one leaf.
    fn upper_digit(page: u32, ceiling: u32, span: Span) -> (u32, u32) {
        let bit = top_bit(span.first ^ span.last);
        Self::choose(bit, Self::floor(page), ceiling, Some(span))
    }

    /// Maps a span in the slots of a new node, which are empty.
    pub(super) fn build_slots<const REAL: bool>(
        &self,
        job: &mut Job<'_, 'w, T, REAL>,
        node: Made<'w, T, REAL>,
        span: Span,
    ) {
        let base = span.first & !low(node.top());
        for slot in node.index(span.first)..=node.index(span.last) {
            let Some(part) = span.within(base | slot << node.shift, node.shift, job.page) else { continue };
            let child = self.build(job, node.shift, part);
            if let Some(fresh) = node.fresh() {
                fresh.store(slot, child.item().node());
                fresh.add_live(1);
            }
        }
    }

    /// Takes a new leaf of `2^width` pages and maps a span in it.
    #[inline(always)]
    pub(super) fn new_leaf<const REAL: bool>(
        &self,
        job: &mut Job<'_, 'w, T, REAL>,
        width: u32,
        span: Span,
    ) -> Made<'w, T, REAL> {
        let leaf = job.supply.leaf(job.page, width, span.first & !low(job.page + width));
        if let Some(leaf) = leaf.fresh() {
            self.fill_leaf(job, leaf.node(), span);
        }
        leaf
    }

    /// Stores the PTEs of a span in the leaf that covers it.
    pub(super) fn fill_leaf<const REAL: bool>(
        &self,
        job: &Job<'_, 'w, T, REAL>,
        leaf: Node<'w, T>,
        span: Span,
    ) {
        let (pages, ptes) = (span.pages(leaf.shift), leaf.ptes(span));
        match job.ptes {
            // A format's step is that of a base frame's number; the low bits of a larger page's frame number do not change.
            Ptes::Frames(first, word) => ptes.for_each(|pte| {
                pte.publish(word.advance(T::F::STEP, (pte.at() - first) >> T::BASE));
            }),
            Ptes::Resized(to) => ptes.for_each(|pte| pte.publish(self.resized_pte(pte.at(), to))),
        }
        leaf.add_live(pages);
        self.table().tally().ptes(pages as isize);
    }

    /// Returns the lowest position at which the digit of a node above pages of `2^page` bytes may begin.
    pub(super) fn floor(page: u32) -> u32 {
        if page > T::BASE { T::unit(page) } else { T::LEAF_TOP }
    }

    /// Chooses the digit of a new node, its position and width, between `floor` and `ceiling`. `bit` is the highest bit in which
    /// the node's entries differ. `span` is given if its pages will be the node's only entries.
    pub(super) fn choose(bit: u32, floor: u32, ceiling: u32, span: Option<Span>) -> (u32, u32) {
        if !T::ADAPTIVE {
            // Digits begin at multiples of the width above the leaves. This is always possible, because a page of a pair may occupy
            // several slots.
            let low = T::LEAF_TOP + (bit - T::LEAF_TOP) / T::WIDEST * T::WIDEST;
            let shift = if T::PAIRS { low } else { low.max(floor) };
            return (shift, ceiling.min(low + T::WIDEST) - shift);
        }
        // The largest node that takes no more bytes than the two-slot nodes that it replaces.
        let mut width = 1;
        if let Some(span) = span {
            for wider in 2..=T::RANGE_WIDTH.min(bit + 1 - floor) {
                let shift = bit + 1 - wider;
                let slots = digit(span.last, shift, wider) - digit(span.first, shift, wider) + 1;
                if T::cost(wider) <= (slots as isize - 1) * T::cost(1) {
                    width = wider;
                }
            }
        }
        (bit + 1 - width, width)
    }
}
