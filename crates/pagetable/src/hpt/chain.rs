//! Chains as their writer sees them: finding a block's bucket, giving it one, and taking empty ones out.

use core::sync::atomic::Ordering;

use tlbkit_addr::Pages;

use super::shape::Spot;
use super::{Hashed, SPLIT};
use crate::format::Format;
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
    /// Returns the bucket at which the chain of a block begins now.
    ///
    /// # Safety
    ///
    /// The caller is the only writer; so for all that follow.
    #[inline(always)]
    pub(super) unsafe fn head(&self, block: usize) -> Spot {
        let first = Self::bucket(self.root(), block);
        // SAFETY: the caller's promise.
        unsafe {
            if LOAD > 0 && self.read_tag(first) & Self::MOVED != 0 {
                return Self::bucket(self.next(), block);
            }
        }
        first
    }

    /// Returns the root word of the array that buckets are moved to, or zero.
    pub(super) fn next(&self) -> usize {
        // SAFETY: the cell is a field.
        unsafe { F::Word::follow(&raw const self.next) }.to_usize()
    }

    /// Returns the overflow bucket behind a bucket.
    #[inline(always)]
    pub(super) unsafe fn behind(&self, spot: Spot) -> Option<Spot> {
        // SAFETY: the caller's promise.
        let link = unsafe { self.nodes.read(spot.node, spot.at + Self::LINK) };
        (link != F::Word::ZERO).then(|| Spot::node(NodeAddr::new(link.to_usize())))
    }

    /// Finds the bucket with a live tag in the chain that begins at `head`.
    #[inline(always)]
    pub(super) unsafe fn seek(&self, head: Spot, tag: usize) -> Option<Spot> {
        let mut spot = head;
        // SAFETY: the caller's promise.
        unsafe {
            while self.read_tag(spot) != tag {
                spot = self.behind(spot)?;
            }
        }
        Some(spot)
    }

    /// Tells whether a chain's first bucket may be given to the block of a live `tag` now.
    unsafe fn is_free(&self, head: Spot, tag: usize) -> bool {
        // SAFETY: the caller's promise.
        let old = unsafe { self.read_tag(head) };
        old == 0
            || old & Self::DEAD != 0
                && (old == Self::flagged(tag, Self::DEAD) || self.nodes.held().quarantined() == 0)
    }

    /// The end of a dry run: sets aside what it takes to give every block of `grain` in a range a bucket.
    ///
    /// First buckets that are free are claimed on the spot, so that two blocks cannot count on one: a claimed tag
    /// matches nothing. The others need overflow buckets.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]; no claim is left then.
    pub(super) unsafe fn reserve(&self, grain: usize, pages: Pages) -> Result<Spare<'n, N>, Error> {
        let (first, last) = Self::blocks_of(grain, pages);
        let mut want = 0;
        for block in first..=last {
            let tag = Self::tag_of(grain, block);
            // SAFETY: the caller's promise.
            unsafe {
                let head = self.head(block);
                if self.seek(head, tag).is_some() {
                    continue;
                }
                if self.is_free(head, tag) {
                    // One block needs no claim: nobody else can take the bucket.
                    if first != last {
                        self.publish_tag(head, Self::flagged(tag, Self::CLAIMED));
                    }
                } else {
                    want += 1;
                }
            }
        }
        let spare = Stock::take(self.nodes, &[Self::NODE], [want]);
        if spare.is_err() {
            for block in first..=last {
                // SAFETY: the caller's promise.
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

    /// Stores `count` PTEs from `slot` on in the bucket of a block, which gets one if it has none: a claimed or free
    /// first bucket, or a spare one.
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
        // SAFETY: the caller's promise: the slots are within a bucket.
        unsafe {
            let head = self.head(block);
            if let Some(spot) = self.seek(head, tag) {
                let old = self
                    .count_words(spot.node, Self::place(spot, slot), count, |word| F::is_leaf(word, true));
                self.tally.ptes(-(old as isize));
                self.fill_words(spot.node, Self::place(spot, slot), count, word);
                self.settle_pairs(spot, grain);
            } else if self.read_tag(head) == Self::flagged(tag, Self::CLAIMED) || self.is_free(head, tag) {
                self.wipe(head);
                self.fill_words(head.node, Self::place(head, slot), count, word);
                self.settle_pairs(head, grain);
                self.enter(grain);
                self.publish_tag(head, tag);
            } else if let Some(node) = spare.next(0) {
                let spot = Spot::node(node);
                self.fill_words(node, Self::place(spot, slot), count, word);
                self.settle_pairs(spot, grain);
                self.enter(grain);
                self.publish_tag(spot, tag);
                self.nodes.put(node, Self::LINK, self.nodes.read(head.node, head.at + Self::LINK));
                self.nodes.publish(head.node, head.at + Self::LINK, F::Word::from_usize(node.get()));
                self.count_node(1);
            }
        }
        self.tally.ptes(count as isize);
    }

    /// Counts those of `count` words from `first` on that `is` says yes to.
    pub(super) unsafe fn count_words(
        &self,
        node: NodeAddr,
        first: usize,
        count: usize,
        is: impl Fn(F::Word) -> bool,
    ) -> usize {
        // SAFETY: the caller's promise.
        (first..first + count).filter(|&at| is(unsafe { self.nodes.read(node, at) })).count()
    }

    /// Stores `word(0)`, `word(1)`, ... in `count` words from `first` on, which lead nowhere.
    pub(super) unsafe fn fill_words(
        &self,
        node: NodeAddr,
        first: usize,
        count: usize,
        word: impl Fn(usize) -> F::Word,
    ) {
        for at in 0..count {
            // SAFETY: the caller's promise.
            unsafe { self.nodes.put(node, first + at, word(at)) };
        }
    }

    /// Counts a bucket in.
    fn enter(&self, grain: usize) {
        if bump(&self.used[grain], 1) == 1 && grain > 0 {
            self.grains.store(self.grains.load(Ordering::Relaxed) | 1 << grain, Ordering::Release);
        }
    }

    /// Counts a bucket out.
    fn leave(&self, grain: usize) {
        if bump(&self.used[grain], -1) == 0 && grain > 0 {
            self.grains.store(self.grains.load(Ordering::Relaxed) & !(1 << grain), Ordering::Release);
        }
    }

    /// Tells walkers that what they did not find may have moved to a finer grain.
    pub(super) fn count_split(&self) {
        let now = self.grains.load(Ordering::Relaxed).wrapping_add(SPLIT);
        // Without any split and any grain the word is zero: walkers then need not look again.
        let now = if now < SPLIT { now + SPLIT } else { now };
        self.grains.store(now, Ordering::Release);
    }

    /// Counts an overflow bucket in or out.
    pub(super) fn count_node(&self, sign: isize) {
        self.tally.node(sign, Self::NODE * F::Word::BYTES);
        self.growth.note_bytes(self.tally.footprint().bytes);
    }

    /// Clears the PTEs and the kernel's words of a bucket that nobody can match.
    unsafe fn wipe(&self, spot: Spot) {
        // SAFETY: the caller's promise.
        unsafe { self.fill_words(spot.node, spot.at + Self::PTE, Self::LINK - Self::PTE, |_| F::Word::ZERO) };
    }

    /// Tells whether a bucket maps nothing.
    #[inline(always)]
    pub(super) unsafe fn is_vacant(&self, spot: Spot) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            self.count_words(spot.node, Self::place(spot, 0), Self::SLOTS, |word| F::is_leaf(word, true)) == 0
        }
    }

    /// Takes the empty buckets out of the chain that begins at `head`.
    pub(super) unsafe fn tidy(&self, batch: &mut Retired<'n>, head: Spot) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut before = head;
            while let Some(spot) = self.behind(before) {
                if self.is_vacant(spot) {
                    self.leave(Self::untag(self.read_tag(spot)).0);
                    self.unlink(batch, before, spot);
                } else {
                    before = spot;
                }
            }
            if self.read_tag(head) & Self::LIVE == 0 || !self.is_vacant(head) {
                return;
            }
            self.leave(Self::untag(self.read_tag(head)).0);
            if N::Mode::SHARED {
                batch.quarantine();
                self.reflag(head, Self::DEAD);
            } else if let Some(spot) = self.behind(head) {
                // The first bucket is the one that is found soonest.
                for word in 0..Self::LINK {
                    self.nodes.put(head.node, head.at + word, self.nodes.read(spot.node, spot.at + word));
                }
                self.unlink(batch, head, spot);
            } else {
                self.wipe(head);
                self.publish_tag(head, 0);
            }
        }
    }

    /// Unlinks the overflow bucket behind `before` and retires it. Walkers that are in it still find their way on.
    unsafe fn unlink(&self, batch: &mut Retired<'n>, before: Spot, spot: Spot) {
        // SAFETY: the caller's promise; after the store no word leads to the node.
        unsafe {
            let link = self.nodes.read(spot.node, spot.at + Self::LINK);
            self.nodes.publish(before.node, before.at + Self::LINK, link);
            self.retire(batch, spot.node);
        }
    }

    /// Hands an overflow bucket over to which no word leads any more.
    pub(super) unsafe fn retire(&self, batch: &mut Retired<'n>, node: NodeAddr) {
        self.count_node(-1);
        // SAFETY: the caller's promise. The node has a tag, so it is not clean.
        unsafe { batch.push(node, false) };
    }

    /// Makes the words beside the leaves of a bucket agree with them, where two words are one TLB entry.
    #[inline(always)]
    pub(super) unsafe fn settle_pairs(&self, spot: Spot, grain: usize) {
        if !F::PAIRED {
            return;
        }
        for slot in 0..Self::SLOTS {
            // SAFETY: the caller's promise; the slots are in the bucket.
            unsafe {
                let old = self.nodes.read(spot.node, Self::place(spot, slot));
                if F::is_leaf(old, true) {
                    continue;
                }
                // The partner is as many slots away as its page fills.
                let mut wanted = F::Word::ZERO;
                let mut away = 1;
                while away < Self::SLOTS {
                    let word = self.nodes.read(spot.node, Self::place(spot, slot ^ away));
                    // Only a leaf has a size.
                    if F::is_leaf(word, true)
                        && F::size(word, Self::GRAIN[grain]).pages(Self::GRAIN[grain]) == Some(away)
                    {
                        wanted = F::beside(word, wanted);
                    }
                    away *= 2;
                }
                if wanted != old {
                    self.nodes.publish(spot.node, Self::place(spot, slot), wanted);
                }
            }
        }
    }
}

/// Adds without a locked instruction, for there is one writer, and returns the sum.
pub(super) fn bump(counter: &AtomicUsize, by: isize) -> usize {
    let sum = counter.load(Ordering::Relaxed).wrapping_add_signed(by);
    counter.store(sum, Ordering::Relaxed);
    sum
}
