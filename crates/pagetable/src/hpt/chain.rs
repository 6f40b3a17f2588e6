//! Chains: reservation of buckets for a change, and assignment of a bucket to a block.

use core::sync::atomic::Ordering;

use tlbkit_addr::Pages;

use super::node::{Bucket, Fresh, Slots, Span, Supply, Writing};
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
        self.reserve_with(0, pages, |slots| slots.check_empty())
    }

    /// Reserves a bucket for every block of `grain` in a range that has none.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]. Then nothing is reserved.
    #[inline(never)]
    pub(super) fn reserve(self, grain: usize, pages: Pages) -> Result<Supply<'n, G, F, N, S>, Error> {
        self.reserve_with(grain, pages, |_| Ok(()))
    }

    /// Reserves a bucket for every block of `grain` in a range that has none, at the end of a dry run. `check` is called for the blocks
    /// that have a bucket, and may refuse the change.
    ///
    /// A block whose chain has a free first bucket claims this bucket: a claimed tag matches no address, and no other block
    /// can claim the bucket. The other blocks need overflow buckets, which are taken from the storage.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`], or the error of `check`. Then the function has undone all its claims.
    #[inline(always)]
    fn reserve_with(
        self,
        grain: usize,
        pages: Pages,
        check: impl Fn(Slots<'_, 'n, G, F, N, S>) -> Result<(), Error>,
    ) -> Result<Supply<'n, G, F, N, S>, Error> {
        let (first, last) = Self::blocks_of(grain, pages);
        let (mut claims, mut want, mut checked) = (0, 0, Ok(()));
        // No block's number is the largest `usize`, and this range compiles to a simpler loop than `first..=last`.
        for block in first..last + 1 {
            let (head, tag) = (self.head(block), Self::tag_of(grain, block));
            if let Some(bucket) = head.seek(tag) {
                let inner = block > first && block < last;
                #[expect(
                    clippy::redundant_closure,
                    reason = "a reference to the closure is called out of line"
                )]
                let visited = bucket.covered(grain, block, (pages, inner), |slots| check(slots));
                if let Some(Err(error)) = visited {
                    checked = Err(error);
                    break;
                }
            } else if head.is_free(tag) {
                head.publish_tag(Self::flagged(tag, Self::CLAIMED));
                claims += 1;
            } else {
                want += 1;
            }
        }
        let mut supply = checked.and_then(|()| Supply::take(&self, want, claims + want));
        if supply.is_err() {
            for block in first..=last {
                let head = self.head(block);
                if head.read_tag() == Self::flagged(Self::tag_of(grain, block), Self::CLAIMED) {
                    // The bucket may have been dead before the claim.
                    head.reflag(Self::DEAD);
                }
            }
        }
        if let Err(Error::NoMemory { wanted, .. }) = supply {
            supply = Err(self.no_memory(wanted as usize));
        }
        supply
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
        let (table, tag) = (self.table(), Self::tag_of(span.grain, span.block));
        let mut chain = self.chain(span.block);
        if chain.head().read_tag() == Self::flagged(tag, Self::CLAIMED) {
            // The dry run has searched the chain, so the block has no other bucket.
            chain.head().fit_out(span, word);
        } else if let Some(bucket) = chain.head().seek(tag) {
            let slots = bucket.slots(span);
            bucket.occupy(span.grain);
            table.tally.ptes(-(slots.taken() as isize));
            slots.fill(word);
        } else if chain.head().read_tag() == 0 {
            // The table has grown since the dry run, and the chain of the block now has an unused first bucket.
            chain.head().fit_out(span, word);
        } else if let Some(fresh) = Fresh::take(table, Some(supply)) {
            chain.append(fresh, span, word);
        }
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Bucket<'_, 'n, G, F, N, S> {
    /// Assigns the bucket, which no walker can match, to the block of a span. Stores PTEs in the slots of the span.
    #[inline(always)]
    pub(super) fn fit_out(self, span: Span, word: impl Fn(usize) -> F::Word) {
        // PTEs that fill all slots overwrite the former content, so only other cases need it cleared.
        if span.count < Self::SLOTS || F::EXTRA > 0 {
            self.wipe();
        }
        self.begin(span, word);
    }

    /// As [`fit_out`](Self::fit_out), for a bucket whose other slots are empty.
    #[inline(always)]
    pub(super) fn begin(self, span: Span, word: impl Fn(usize) -> F::Word) {
        self.slots(span).fill(word);
        self.table().enter(span.grain);
        self.publish_tag(Self::tag_of(span.grain, span.block));
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Tells whether a first bucket with the dead tag `old` may be assigned to the block of a live `tag` now.
    #[inline(never)]
    pub(super) fn may_revive(&self, old: usize, tag: usize) -> bool {
        old == Self::flagged(tag, Self::DEAD) || self.nodes.held().is_quiet(&self.flag)
    }

    /// Counts a bucket of `grain` that comes into use, and announces the grain to walkers if it is the first.
    fn enter(&self, grain: usize) {
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
