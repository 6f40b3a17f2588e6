//! Chains as their writer sees them: finding a block's bucket, giving it one, and taking empty ones out.

use core::sync::atomic::Ordering;

use tlbkit_addr::Pages;

use super::part::Part;
use super::shape::Spot;
use super::{Hashed, MOVE, MOVES};
use crate::fields::Fields as _;
use crate::format::{Format, absent_beside, is_taken};
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes, Stock};
use crate::word::atomics::AtomicUsize;
use crate::{Error, Geometry, Retired, Word};

/// Overflow buckets set aside for a change.
pub(super) type Spare<'n, N> = Stock<'n, N, 1>;

impl<'n, G, F, N, const CLUSTER: u32, const BUCKETS: u32, const LOAD: usize>
    Hashed<'n, G, F, N, CLUSTER, BUCKETS, LOAD>
where
    G: Geometry,
    F: Format,
    N: Nodes<Word = F::Word>,
{
    /// Returns the bucket at which the chain of a block begins.
    ///
    /// # Safety
    ///
    /// The caller is the only writer; so for all that follow, whose spots are buckets of the table, or private.
    #[inline(always)]
    pub(super) unsafe fn head(&self, block: usize) -> Spot {
        // SAFETY: by this function's contract the caller is the only writer. In the array a block's bucket is where its
        // first unit is.
        Self::bucket(unsafe { self.first(self.root(), Self::lead(block)) })
    }

    /// Returns the overflow bucket behind a bucket.
    #[inline(always)]
    pub(super) unsafe fn behind(&self, spot: Spot) -> Option<Spot> {
        // SAFETY: by the contract of `head`, which is this function's too, the caller is the only writer.
        let link = unsafe { self.nodes.read(spot.node, spot.at + Self::LINK) };
        (link != F::Word::ZERO).then(|| Spot::node(NodeAddr::new(link.to_usize())))
    }

    /// Makes a bucket lead to an overflow bucket, or to none: every unit to the one of the same number.
    #[inline(always)]
    pub(super) unsafe fn publish_link(&self, spot: Spot, behind: Option<Spot>) {
        // SAFETY: by the contract of `head`, which is this function's too, the caller is the only writer.
        unsafe {
            N::Mode::release();
            for unit in (0..Self::UNITS).map(|unit| unit * Self::UNIT) {
                let link = behind.map_or(0, |behind| behind.node.get() + unit * F::Word::BYTES);
                self.nodes.store_relaxed(spot.node, spot.at + unit + Self::LINK, F::Word::from_usize(link));
            }
        }
    }

    /// Finds the bucket with a live tag in the chain that begins at `head`.
    #[inline(always)]
    pub(super) unsafe fn seek(&self, head: Spot, tag: usize) -> Option<Spot> {
        let mut spot = head;
        // SAFETY: by the contract of `head`, which is this function's too, the caller is the only writer.
        unsafe {
            while self.read_tag(spot) != tag {
                spot = self.behind(spot)?;
            }
        }
        Some(spot)
    }

    /// The same, and the bucket before it if it is not the first.
    #[inline(always)]
    pub(super) unsafe fn seek_past(&self, head: Spot, tag: usize) -> Option<(Option<Spot>, Spot)> {
        let (mut before, mut spot) = (None, head);
        // SAFETY: by the contract of `head`, which is this function's too, the caller is the only writer.
        unsafe {
            while self.read_tag(spot) != tag {
                (before, spot) = (Some(spot), self.behind(spot)?);
            }
        }
        Some((before, spot))
    }

    /// Tells whether a chain's first bucket may be given to the block of a live `tag` now.
    pub(super) unsafe fn is_free(&self, head: Spot, tag: usize) -> bool {
        // SAFETY: by the contract of `head`, which is this function's too, the caller is the only writer.
        let old = unsafe { self.read_tag(head) };
        old == 0
            || old & Self::DEAD != 0
                && (old == Self::flagged(tag, Self::DEAD) || self.nodes.held().is_quiet(&self.flag))
    }

    /// The end of a dry run: sets aside what it takes to give every block of `grain` in a range a bucket. The blocks that have
    /// one are shown to `check`, which may refuse.
    ///
    /// First buckets that are free are claimed on the spot, so that two blocks cannot count on one, nor a bucket stop
    /// to be free: a claimed tag matches nothing. The others need overflow buckets.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`], or what `check` returns; no claim is left then.
    pub(super) unsafe fn reserve(
        &self,
        grain: usize,
        pages: Pages,
        check: impl Fn(Part) -> Result<(), Error>,
    ) -> Result<Spare<'n, N>, Error> {
        let (first, last) = Self::blocks_of(grain, pages);
        let mut want = 0;
        let mut claim = |block| {
            let tag = Self::tag_of(grain, block);
            // SAFETY: by the contract of `head`, which is this function's too, the caller is the only writer.
            unsafe {
                let head = self.head(block);
                if let Some(spot) = self.seek(head, tag) {
                    return Self::part(spot, grain, block, pages).map_or(Ok(()), &check);
                }
                if self.is_free(head, tag) {
                    self.publish_tag(head, Self::flagged(tag, Self::CLAIMED));
                } else {
                    want += 1;
                }
            }
            Ok(())
        };
        let claimed = (first..=last).try_for_each(&mut claim);
        let spare = claimed.and_then(|()| Stock::take(self.nodes, &[Self::NODE], [want]));
        if spare.is_err() {
            for block in first..=last {
                // SAFETY: by the contract of `head`, which is this function's too, the caller is the only writer.
                unsafe {
                    let head = self.head(block);
                    if self.read_tag(head) == Self::flagged(Self::tag_of(grain, block), Self::CLAIMED) {
                        // It may have been dead before.
                        self.reflag(head, Self::DEAD);
                    }
                }
            }
        }
        spare
    }

    /// Stores `count` PTEs from `slot` on in the bucket of a block, which gets one if it has none: the claimed first
    /// bucket, or a spare one. The caller counts these PTEs; those in their place are counted out.
    #[inline(always)]
    pub(super) unsafe fn install(
        &self,
        spare: &mut Spare<'n, N>,
        grain: usize,
        block: usize,
        slot: usize,
        count: usize,
        word: impl Fn(usize) -> F::Word,
    ) {
        let tag = Self::tag_of(grain, block);
        // SAFETY: this function's contract: the slots are within a bucket.
        unsafe {
            let head = self.head(block);
            if self.read_tag(head) == Self::flagged(tag, Self::CLAIMED) {
                // The dry run has looked through the chain.
                self.fit_out(head, grain, block, slot, count, word);
            } else if let Some(spot) = self.seek(head, tag) {
                let old = self.count_taken(spot, block, slot, count);
                self.tally.ptes(-(old as isize));
                self.fill(spot, block, slot, count, word);
                self.settle_pairs(spot, grain, block);
            } else if self.read_tag(head) == 0 {
                // The table has grown since, and the block has a bucket that was never used.
                self.fit_out(head, grain, block, slot, count, word);
            } else if let Some(node) = spare.next(0) {
                self.append(head, node, grain, block, slot, count, word);
            }
        }
    }

    /// Gives a new overflow bucket to a block, with `count` PTEs from `slot` on.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "where, and what")]
    pub(super) unsafe fn append(
        &self,
        head: Spot,
        node: NodeAddr,
        grain: usize,
        block: usize,
        slot: usize,
        count: usize,
        word: impl Fn(usize) -> F::Word,
    ) {
        let spot = Spot::node(node);
        // SAFETY: this function's contract: the slots are within a bucket, and no code knows the node.
        unsafe {
            self.count_node(1);
            self.fill(spot, block, slot, count, word);
            self.settle_pairs(spot, grain, block);
            self.enter(grain);
            self.publish_tag(spot, Self::tag_of(grain, block));
            self.link(head, Self::lead(block), spot);
        }
    }

    /// Gives a bucket that no walker can match to a block, with `count` PTEs from `slot` on.
    #[inline(always)]
    pub(super) unsafe fn fit_out(
        &self,
        spot: Spot,
        grain: usize,
        block: usize,
        slot: usize,
        count: usize,
        word: impl Fn(usize) -> F::Word,
    ) {
        // SAFETY: this function's contract: the slots are within a bucket.
        unsafe {
            // What fills all slots leaves nothing of what was there.
            if count < Self::SLOTS || F::EXTRA > 0 {
                self.wipe(spot);
            }
            self.fill(spot, block, slot, count, word);
            self.settle_pairs(spot, grain, block);
            self.enter(grain);
            self.publish_tag(spot, Self::tag_of(grain, block));
        }
    }

    /// Counts the leaves in `count` slots of a block from `slot` on.
    #[inline(always)]
    pub(super) unsafe fn count_leaves(&self, spot: Spot, block: usize, slot: usize, count: usize) -> usize {
        let is_leaf = |&slot: &usize| {
            // SAFETY: this function's contract: the slots are within a bucket.
            F::is_leaf(unsafe { self.nodes.read(spot.node, Self::place(spot, block, slot)) }, true)
        };
        (slot..slot + count).filter(is_leaf).count()
    }

    /// Counts the leaves and marks in `count` slots of a block from `slot` on.
    #[inline(always)]
    pub(super) unsafe fn count_taken(&self, spot: Spot, block: usize, slot: usize, count: usize) -> usize {
        let taken = |&slot: &usize| {
            // SAFETY: this function's contract: the slots are within a bucket.
            is_taken::<F>(unsafe { self.nodes.read(spot.node, Self::place(spot, block, slot)) })
        };
        (slot..slot + count).filter(taken).count()
    }

    /// Stores `word(0)`, `word(1)`, ... in `count` slots of a block from `slot` on.
    #[inline(always)]
    unsafe fn fill(
        &self,
        spot: Spot,
        block: usize,
        slot: usize,
        count: usize,
        word: impl Fn(usize) -> F::Word,
    ) {
        for at in 0..count {
            // SAFETY: this function's contract: the slots are within a bucket.
            unsafe { self.nodes.store_relaxed(spot.node, Self::place(spot, block, slot + at), word(at)) };
        }
    }

    /// Stores what another bucket holds in one that no walker can reach, but for its links.
    pub(super) unsafe fn copy_contents(&self, to: Spot, from: Spot) {
        // SAFETY: by the contract of `head`, which is this function's too, the caller is the only writer.
        unsafe { self.copy_words(to, from, 0) };
    }

    /// The same in one that no walker can match, but for its tags too.
    pub(super) unsafe fn copy_entries(&self, to: Spot, from: Spot) {
        // SAFETY: by the contract of `head`, which is this function's too, the caller is the only writer.
        unsafe { self.copy_words(to, from, Self::PTE) };
    }

    #[inline(always)]
    unsafe fn copy_words(&self, to: Spot, from: Spot, first: usize) {
        for (to_unit, from_unit) in Self::units(to).zip(Self::units(from)) {
            for word in first..Self::LINK {
                // SAFETY: by the contract of `head`, which is this function's too, the caller is the only writer.
                unsafe {
                    self.nodes.store_relaxed(
                        to.node,
                        to_unit + word,
                        self.nodes.read(from.node, from_unit + word),
                    );
                }
            }
        }
    }

    /// Counts a bucket in.
    fn enter(&self, grain: usize) {
        if bump(&self.used[grain], 1) == 1 && grain > 0 {
            let others = self.grains.load(Ordering::Relaxed);
            self.grains.store(others.with(1 << grain), Ordering::Release);
        }
    }

    /// Counts a bucket out.
    fn leave(&self, grain: usize) {
        if bump(&self.used[grain], -1) == 0 && grain > 0 {
            self.grains.store(self.grains.load(Ordering::Relaxed) & !(1 << grain), Ordering::Release);
        }
    }

    /// Tells walkers that what they did not find may have moved to another grain.
    pub(super) fn count_move(&self) {
        let now = self.grains.load(Ordering::Relaxed).wrapping_add(MOVES) | MOVE;
        self.grains.store(now, Ordering::Release);
    }

    /// Counts an overflow bucket in or out.
    pub(super) fn count_node(&self, sign: isize) {
        self.tally.node(sign, Self::NODE * F::Word::BYTES);
        self.growth.note_bytes(self.tally.bytes());
    }

    /// Clears all of a bucket that no walker can match but its links.
    pub(super) unsafe fn wipe(&self, spot: Spot) {
        for unit in Self::units(spot) {
            for word in 0..Self::LINK {
                // SAFETY: by the contract of `head`, which is this function's too, the caller is the only writer.
                unsafe { self.nodes.store_relaxed(spot.node, unit + word, F::Word::ZERO) };
            }
        }
    }

    /// Tells whether a bucket holds no leaf and no mark.
    #[inline(always)]
    pub(super) unsafe fn is_vacant(&self, spot: Spot) -> bool {
        // SAFETY: by the contract of `head`, which is this function's too, the caller is the only writer, whose spots are
        // buckets of the table, or private. All slots are the same in any order.
        unsafe { self.count_taken(spot, 0, 0, Self::SLOTS) == 0 }
    }

    /// Takes the empty buckets out of the chain that begins at `head`.
    pub(super) unsafe fn tidy(&self, batch: &mut Retired<'n>, head: Spot) {
        // SAFETY: by the contract of `head`, which is this function's too, the caller is the only writer.
        unsafe {
            let mut before = head;
            while let Some(spot) = self.behind(before) {
                if self.is_vacant(spot) {
                    self.take_out(batch, Some(before), spot);
                } else {
                    before = spot;
                }
            }
            if self.read_tag(head) & Self::LIVE != 0 && self.is_vacant(head) {
                self.take_out(batch, None, head);
            }
        }
    }

    /// Takes an empty bucket out of its chain: the first one, or the one behind `before`.
    pub(super) unsafe fn take_out(&self, batch: &mut Retired<'n>, before: Option<Spot>, spot: Spot) {
        // SAFETY: by the contract of `head`, which is this function's too, the caller is the only writer.
        unsafe {
            self.leave(Self::untag(self.read_tag(spot)).0);
            if let Some(before) = before {
                return self.unlink(batch, before, spot);
            }
            let head = spot;
            if N::Mode::SHARED {
                batch.quarantine();
                self.reflag(head, Self::DEAD);
            } else if let Some(spot) = self.behind(head)
                && self.leads_to(head, self.read_tag(spot))
            {
                // The first bucket is the one that is found soonest.
                self.copy_contents(head, spot);
                self.unlink(batch, head, spot);
            } else {
                self.wipe(head);
            }
        }
    }

    /// Unlinks the overflow bucket behind `before` and retires it. Walkers that are in it still find their way on.
    unsafe fn unlink(&self, batch: &mut Retired<'n>, before: Spot, spot: Spot) {
        // SAFETY: this function's contract; after the store no word leads to the node.
        unsafe {
            self.lead_past(before, spot);
            self.retire(batch, spot.node);
        }
    }

    /// Hands an overflow bucket over to which no word leads any more.
    pub(super) unsafe fn retire(&self, batch: &mut Retired<'n>, node: NodeAddr) {
        // SAFETY: by the contract of `head`, which is this function's too, the caller is the only writer. The node has a
        // tag, so it is not clean.
        unsafe { batch.push_sized(self.nodes, node, Self::NODE, false) };
        self.count_node(-1);
    }

    /// Makes the words beside the leaves of a bucket agree with them, where two words are one TLB entry.
    #[inline(always)]
    pub(super) unsafe fn settle_pairs(&self, spot: Spot, grain: usize, block: usize) {
        if !F::PAIRED {
            return;
        }
        for slot in 0..Self::SLOTS {
            // SAFETY: this function's contract; the slots are in the bucket.
            unsafe {
                let old = self.nodes.read(spot.node, Self::place(spot, block, slot));
                if F::is_leaf(old, true) {
                    continue;
                }
                // The partner is as many slots away as its page fills. A mark stays one.
                let mut wanted = F::absent(F::absent_bits(old));
                let mut away = 1;
                while away < Self::SLOTS {
                    let word = self.nodes.read(spot.node, Self::place(spot, block, slot ^ away));
                    // Only a leaf has a size.
                    if F::is_leaf(word, true)
                        && F::size(word, Self::GRAIN[grain]).pages(Self::GRAIN[grain]) == Some(away)
                    {
                        wanted = absent_beside::<F>(word, wanted);
                    }
                    away *= 2;
                }
                if wanted != old {
                    self.nodes.publish(spot.node, Self::place(spot, block, slot), wanted);
                }
            }
        }
    }
}

/// Adds without a locked instruction, for there is one writer, and returns the sum.
#[inline(always)]
pub(super) fn bump(counter: &AtomicUsize, by: isize) -> usize {
    let sum = counter.load(Ordering::Relaxed).wrapping_add_signed(by);
    counter.store(sum, Ordering::Relaxed);
    sum
}
