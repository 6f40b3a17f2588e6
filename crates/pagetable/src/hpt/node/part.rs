//! Parts of a range: the slots of each bucket that it covers.

use core::ops::ControlFlow;

use tlbkit_addr::{Pages, VirtAddr, Vpn};

use super::bucket::Place;
use super::{Bucket, Unit};
use crate::format::{Format, is_taken};
use crate::hpt::Sizes;
use crate::hpt::shape::Shape as _;
use crate::hpt::tag::Tags as _;
use crate::nodes::Nodes;
use crate::{Entry, Geometry, Word as _};

/// Slots of a block: `count` from `slot` on.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) grain: usize,
    pub(crate) block: usize,
    pub(crate) slot: usize,
    pub(crate) count: usize,
}

/// Slots of one bucket, for the writer.
pub(crate) struct Slots<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> {
    /// The bucket of the span's block.
    bucket: Bucket<'a, 'n, G, F, N, S>,
    /// Within the slots of a bucket.
    span: Span,
}

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Unit<'a, 'n, G, F, N, S> {
    /// Calls `visit` with every leaf and mark in the slots of a span, once each: the first slot of the span that holds it, its first
    /// address, and the entry. The unit is the first of the bucket of the span's block.
    #[inline(always)]
    pub(crate) fn each_taken(
        self,
        span: Span,
        mut visit: impl FnMut(usize, VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Span { grain, block, slot: first, count } = Self::within(span);
        let page = (block << S::CLUSTER_LOG) << Self::slot_shift(grain);
        let spot = self.bucket().spot;
        let mut slot = first;
        while slot < first + count {
            // SAFETY: the slot is one of the bucket, whose words are words of a live node.
            let word = unsafe { self.walk.nodes.word(spot.node, spot.at + Self::pte(block, slot)) };
            let word = word.follow();
            if !is_taken::<F>(word) {
                slot += 1;
                continue;
            }
            let at = Vpn::new(page + (slot << Self::slot_shift(grain))).address(G::BASE);
            let entry = Self::decode(word, grain, at);
            let Entry::Leaf(leaf) = entry else {
                visit(slot, at, entry)?;
                slot += 1;
                continue;
            };
            visit(slot, leaf.at, entry)?;
            let slots = 1 << (leaf.size.shift() - Self::GRAIN[grain].shift());
            slot = (slot | (slots - 1)) + 1;
        }
        ControlFlow::Continue(())
    }

    /// Returns each bucket that belongs to the chain that begins with this unit, and its slots that a range covers.
    #[inline(always)]
    pub(crate) fn parts(self, pages: Pages) -> impl Iterator<Item = (Self, Span)> {
        self.chain().filter_map(move |unit| {
            let tag = unit.tag();
            if tag & Self::LIVE == 0 || unit != self && !self.walk.leads_to(self, tag) {
                return None;
            }
            let (grain, block) = Self::untag(tag);
            Some((unit, Self::span_of(grain, block, pages)?))
        })
    }

    /// Returns the slots of a span that a bucket has. The compiler knows that a bucket of one slot has only slot 0.
    #[inline(always)]
    fn within(span: Span) -> Span {
        let slot = if Self::SLOTS == 1 { 0 } else { span.slot & (Self::SLOTS - 1) };
        let count = if Self::SLOTS == 1 { 1 } else { span.count.min(Self::SLOTS - slot) };
        Span { slot, count, ..span }
    }

    /// Returns the first leaf or mark of the part, and its first address.
    pub(crate) fn first_taken(self, span: Span) -> Option<(VirtAddr, Entry)> {
        let mut found = None;
        let _ = self.each_taken(span, |_, at, entry| {
            found = Some((at, entry));
            ControlFlow::Break(())
        });
        found
    }
}

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Bucket<'a, 'n, G, F, N, S> {
    /// Returns the slots of a span, of whose block this is the bucket.
    #[inline(always)]
    pub(crate) fn slots(self, span: Span) -> Slots<'a, 'n, G, F, N, S> {
        Slots { bucket: self, span: Unit::<'a, 'n, G, F, N, S>::within(span) }
    }

    /// Returns the slots that a range covers in each bucket that belongs to the chain that begins with this one.
    #[inline(always)]
    pub(crate) fn parts(self, pages: Pages) -> impl Iterator<Item = Slots<'a, 'n, G, F, N, S>> {
        self.0.parts(pages).map(|(unit, span)| Self(unit).slots(span))
    }

    /// Calls `visit` with the slots that a range covers in this bucket of `block`, if it covers any. A block that is `inner` is wholly
    /// in the range.
    #[inline(always)]
    pub(crate) fn covered<T>(
        self,
        grain: usize,
        block: usize,
        (pages, inner): (Pages, bool),
        visit: impl FnOnce(Slots<'a, 'n, G, F, N, S>) -> T,
    ) -> Option<T> {
        if Self::SLOTS == 1 || inner {
            return Some(visit(self.slots(Self::whole(grain, block))));
        }
        // An end of the range. Without a call, the compiler would compute its slots for each block.
        Self::end_of(grain, block, pages).map(|span| visit(self.slots(span)))
    }
}

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Slots<'a, 'n, G, F, N, S> {
    /// Returns the bucket.
    #[inline(always)]
    pub(crate) fn bucket(self) -> Bucket<'a, 'n, G, F, N, S> {
        self.bucket
    }

    /// Returns the span, which is within the slots of a bucket.
    #[inline(always)]
    pub(crate) fn span(self) -> Span {
        if Self::SLOTS == 1 { Span { slot: 0, count: 1, ..self.span } } else { self.span }
    }

    /// Calls `visit` with every leaf and mark, as [`Unit::each_taken`] does.
    #[inline(always)]
    pub(crate) fn each_taken(
        self,
        visit: impl FnMut(usize, VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.bucket.each_taken(self.span, visit)
    }

    /// Returns the slots, one by one.
    #[inline(always)]
    fn places(self) -> impl Iterator<Item = Place<'a, 'n, G, F, N, S>> {
        let Span { block, slot, count, .. } = self.span();
        let Unit { walk, spot } = self.bucket.0;
        (slot..slot + count).map(move |slot| Place {
            table: walk.table,
            node: spot.node,
            index: spot.at + Self::pte(block, slot),
        })
    }

    /// Counts the slots whose word is as `wanted` says.
    #[inline(always)]
    fn number(self, wanted: impl Fn(F::Word) -> bool) -> usize {
        self.places().filter(|place| wanted(place.read())).count()
    }

    /// Counts the leaves.
    #[inline(always)]
    pub(crate) fn leaves(self) -> usize {
        self.number(|word| F::is_leaf(word, true))
    }

    /// Counts the leaves and marks.
    #[inline(always)]
    pub(crate) fn taken(self) -> usize {
        self.number(is_taken::<F>)
    }

    /// Stores `word(0)`, `word(1)`, ...
    #[inline(always)]
    pub(crate) fn fill(self, word: impl Fn(usize) -> F::Word) {
        self.places().enumerate().for_each(|(at, place)| place.store_relaxed(word(at)));
        self.settle_pairs();
    }

    /// Publishes `word` in each slot, and returns what the last one held.
    pub(crate) fn replace(self, word: F::Word) -> F::Word {
        let mut was = F::Word::ZERO;
        for place in self.places() {
            was = place.read();
            place.publish(word);
        }
        self.settle_pairs();
        was
    }

    /// Replaces each word by the result of `change`.
    #[inline(always)]
    pub(crate) fn edit(self, change: impl Fn(F::Word) -> F::Word) {
        let Span { block, slot, count, .. } = self.span();
        if Self::UNITS == 1 {
            let Unit { walk, spot } = self.bucket.0;
            // SAFETY: the slots are in the bucket, adjacent ones are adjacent words, and the holder is their only writer.
            let ptes = unsafe { walk.nodes.words_mut(spot.node, spot.at + Self::pte(block, slot), count) };
            ptes.edit(change);
        } else {
            self.places().for_each(|place| place.edit(&change));
        }
        self.settle_pairs();
    }

    /// Stores zero in each slot, and leaves the words beside them as they are.
    #[inline(always)]
    pub(crate) fn clear(self) {
        // A releasing store: it becomes visible after the leaf that may have replaced this one.
        self.places().for_each(|place| place.publish(F::Word::ZERO));
    }

    /// Clears the slots, which are `full` if none of them is empty, and counts their PTEs out.
    pub(crate) fn empty(self, full: bool) {
        let Span { grain, count, .. } = self.span();
        let taken = if full { count } else { self.taken() };
        self.clear();
        self.settle_pairs();
        let table = self.bucket.table();
        table.tally.ptes(-(taken as isize));
        if Self::keeps(grain) && taken > 0 && self.bucket.is_vacant() {
            table.count_vacant(grain);
        }
    }

    /// Updates the words beside the leaves of the bucket.
    #[inline(always)]
    pub(crate) fn settle_pairs(self) {
        self.bucket.settle_pairs(self.span.grain, self.span.block);
    }
}
