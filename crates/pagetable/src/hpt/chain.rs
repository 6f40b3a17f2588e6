//! Chains: reservation of buckets for a change, and assignment of a bucket to a block.

use core::sync::atomic::Ordering;

use tlbkit_addr::Pages;

use super::node::{Span, Supply, Writing};
use super::shape::Shape as _;
use super::tag::Tags as _;
use super::{Hashed, MOVE, MOVES, Sizes};
use crate::fields::Fields as _;
use crate::format::Format;
use crate::nodes::Nodes;
use crate::word::atomics::AtomicUsize;
use crate::{Error, Geometry, Word};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Reserves a bucket for every block of base pages in a range that has none, and refuses the range if one of its pages has an
    /// entry. No larger page may be mapped.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`], [`Error::Occupied`] or [`Error::Marked`]. Then nothing is reserved.
    #[inline(never)]
    pub(super) fn reserve_empty(self, pages: Pages) -> Result<Supply<'n, G, F, N, S>, Error> {
        self.reserve_all(0, pages, true)
    }

    /// Reserves a bucket for every block of `grain` in a range that has none.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]. Then nothing is reserved.
    #[inline(never)]
    pub(super) fn reserve(self, grain: usize, pages: Pages) -> Result<Supply<'n, G, F, N, S>, Error> {
        self.reserve_all(grain, pages, false)
    }

    /// Reserves a bucket for every block of `grain` in a range that has none, at the end of a dry run, and refuses a range with an entry
    /// if it `must_be_empty`.
    ///
    /// A block whose chain has a free first bucket claims this bucket: a claimed tag matches no address, and no other block
    /// can claim the bucket. The other blocks need overflow buckets, which are taken from the storage.
    #[inline(always)]
    fn reserve_all(
        mut self,
        grain: usize,
        pages: Pages,
        must_be_empty: bool,
    ) -> Result<Supply<'n, G, F, N, S>, Error> {
        let (first, last) = Self::blocks_of(grain, pages);
        let (mut claims, mut want, mut is_refused) = (0, 0, false);
        // No block's number is the largest `usize`, and this range compiles to a simpler loop than `first..=last`.
        for block in first..last + 1 {
            let (mut chain, tag) = (self.chain(block), Self::tag_of(grain, block));
            if chain.seek(tag) {
                let inner = block > first && block < last;
                // A result would be copied for each block, so the error is made when the loop is over.
                if must_be_empty
                    && chain.here().covered(grain, block, (pages, inner), |slots| slots.taken() > 0)
                        == Some(true)
                {
                    is_refused = true;
                    break;
                }
            } else if chain.head().is_free(tag) {
                chain.head().publish_tag(Self::flagged(tag, Self::CLAIMED));
                claims += 1;
            } else {
                want += 1;
            }
        }
        let supply = if is_refused {
            self.check_empty(pages).and_then(|()| Supply::take(&self, 0, 0))
        } else {
            Supply::take(&self, want, claims + want)
        };
        supply.map_err(|error| self.unclaim(grain, pages, error))
    }

    /// Undoes all claims for a range, of which this is the error.
    #[cold]
    fn unclaim(&self, grain: usize, pages: Pages, error: Error) -> Error {
        let (first, last) = Self::blocks_of(grain, pages);
        for block in first..=last {
            let head = self.head(block);
            if head.tag() == Self::flagged(Self::tag_of(grain, block), Self::CLAIMED) {
                // The bucket may have been dead before the claim.
                head.reflag(Self::DEAD);
            }
        }
        match error {
            Error::NoMemory { wanted, .. } => self.no_memory(wanted as usize),
            error => error,
        }
    }

    /// Stores PTEs in the slots of a span, for whose block [`reserve`](Self::reserve) has returned the supply. A block without a
    /// bucket gets the claimed first bucket or a reserved one. The function subtracts the replaced PTEs from the tally; the caller
    /// adds the new ones.
    #[inline(always)]
    pub(super) fn install(
        &mut self,
        supply: &mut Supply<'n, G, F, N, S>,
        span: Span,
        word: impl Fn(usize) -> F::Word,
    ) {
        let tag = Self::tag_of(span.grain, span.block);
        let mut chain = self.chain(span.block);
        let at_head = chain.head().tag();
        // The dry run has searched the chain of a block with a claim, so the block has no other bucket.
        let is_claimed = at_head == Self::flagged(tag, Self::CLAIMED);
        if !is_claimed && chain.seek(tag) {
            let slots = chain.here().slots(span);
            chain.here().occupy(span.grain);
            chain.tally.ptes(-(slots.taken() as isize));
            return slots.fill(word);
        }
        // If the table has grown since the dry run, the chain of the block may have an unused first bucket. There is an overflow
        // bucket if not: the dry run has reserved it.
        let has_begun = chain.begin(is_claimed || at_head == 0, Some(supply), span, word);
        debug_assert!(has_begun, "the dry run has reserved no bucket");
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Tells whether a first bucket with the dead tag `old` may be assigned to the block of a live `tag` now.
    #[inline(never)]
    pub(super) fn may_revive(&self, old: usize, tag: usize) -> bool {
        old == Self::flagged(tag, Self::DEAD) || self.nodes.held().is_quiet(&self.flag)
    }

    /// Counts a bucket of `grain` that comes into use, and announces the grain to walkers if it is the first.
    #[inline(always)]
    pub(super) fn enter(&self, grain: usize) {
        if bump(&self.used[grain], 1) == 1 && grain > 0 {
            let others = self.grains.load(Ordering::Relaxed);
            self.grains.store(others.with(1 << grain), Ordering::Release);
        }
    }

    /// Counts an empty bucket of `grain` that goes out of use, and withdraws the grain if it was the last.
    #[inline(always)]
    pub(super) fn leave(&self, grain: usize) {
        if Self::keeps(grain) {
            bump(&self.vacant, -1);
        }
        if bump(&self.used[grain], -1) == 0 && grain > 0 {
            self.grains.store(self.grains.load(Ordering::Relaxed) & !(1 << grain), Ordering::Release);
        }
    }

    /// Increments the count of moves, which tells walkers that a page that they did not find may have moved to another
    /// grain.
    pub(super) fn count_move(&self) {
        let now = self.grains.load(Ordering::Relaxed).wrapping_add(MOVES) | MOVE;
        self.grains.store(now, Ordering::Release);
    }

    /// Adds an overflow bucket to the tally, or subtracts one: `sign` is 1 or -1.
    #[inline(always)]
    pub(super) fn count_node(&self, sign: isize) {
        self.tally.node(sign, Self::NODE * F::Word::BYTES);
        if sign > 0 {
            self.growth.note_bytes(self.tally.bytes());
        }
    }
}

/// Adds to a counter and returns the sum. It needs no atomic read-modify-write, because only the writer changes the counter.
#[inline(always)]
pub(super) fn bump(counter: &AtomicUsize, by: isize) -> usize {
    let sum = counter.load(Ordering::Relaxed).wrapping_add_signed(by);
    counter.store(sum, Ordering::Relaxed);
    sum
}
