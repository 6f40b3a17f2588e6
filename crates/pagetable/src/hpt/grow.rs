//! Growing and shrinking: linear hashing, a segment of buckets at a time.
//!
//! ```text
//!   root --> directory                    segments of first buckets
//!            | 0 | 1 | 2 | 3 |
//!              |   |   |   |
//!              +---|---+---|-----------> | 0 |    not split yet: two entries of the directory lead to it
//!                  |       |
//!                  +-------|-----------> | 1 |    split: one bit more of the hash
//!                          +-----------> | 3 |    says which of the two
//! ```
//!
//! The first buckets are numbered, and a table can have any number of them (Litwin 1980; Larson 1988: the bucket to split is
//! the next one in turn, not a full one). They are in **segments**, and a **directory** has the segments' addresses. An
//! entry for a segment that does not exist yet leads to the segment from which it will be split. So a walker uses as many
//! bits of the hash as the directory has, and needs no information on how many segments have been split.
//!
//! # Splitting
//!
//! A table that exceeds its load, in which [vacant](super::vacant) buckets count, splits the next segment in turn. The
//! writer builds two segments, copies each first bucket into the segment that its hash selects, links the first buckets of
//! the same place in both segments to **one joined chain**, publishes the segments in the directory, and retires the old
//! segment. So a split reads no chain, however long chains are. A walker finds its bucket in the joined chain, because
//! buckets of the other chain have other tags.
//!
//! Each change after that which takes a bucket or empties one makes a few steps that part the chains. A **step** takes the first
//! overflow bucket that two chains have in common. It removes the bucket from the chain to which its hash does not belong. If the
//! first bucket of the other chain is free, it moves the contents there, and retires the overflow bucket. The next segment is split
//! when all chains of the last split have been parted.
//!
//! # Merging
//!
//! A table with less than a quarter of its load, in which vacant buckets do not count, merges the segment that was split
//! last with the segment from which it was split: the writer links one chain to the end of the other, builds one segment,
//! publishes it, and retires both. If both chains of a pair have [`SHORT`] overflow buckets or more, the table does not
//! merge, because the search for the end of a chain would take too long.
//!
//! # Reserving while the table grows
//!
//! A change that maps a range first reserves its buckets (`reserve` in `hpt/chain.rs`), so that a lack of memory is an error
//! before the table has changed. A block without a bucket gets one in one of two ways:
//!
//! | first bucket of the block's chain | reservation |
//! |-|-|
//! | free | the first bucket is **claimed**: it gets the block's tag with the flag CLAIMED, so that it matches no address and is free for no other block |
//! | in use | an overflow bucket from the storage, linked when the block is written |
//!
//! Then the writer grows the table for the new blocks ([`make_room`](Writing::make_room)), so splits may come between the
//! reservation and the stores. The reservation is still sufficient:
//!
//! - A split copies a claimed bucket with its tag to the segment that the tag's hash selects, where the block searches for
//!   it.
//! - A block with a reserved overflow bucket may find its first bucket free after the split. It uses the first bucket, and
//!   the overflow bucket goes back to the storage. If a step moves an overflow bucket into that first bucket before, the block
//!   uses its reserved bucket. A step moves nothing into a claimed first bucket, because that is not free.
//! - A merge could move two claims into one first bucket, and one of the two blocks would need an overflow bucket that was
//!   not reserved. So the table does not merge between the reservation and the stores.
//! - A block with a vacant bucket has reserved none. So the table does not sweep between the reservation and the stores, and
//!   splits, merges and steps treat vacant buckets like others.
//!
//! # Walkers
//!
//! A walk that begins can reach every bucket. A walk that is under way can miss a bucket in one case only: it is in an
//! overflow bucket of the other chain when a step links that bucket past the next one. Before each such store, the writer
//! increments two counts: one of the table ([`steps`](Growth::steps)), and one in the **record** of the segment.
//!
//! A lookup loads the count of the table before it loads the root. If it has found nothing and this count has not changed, no
//! page is there. If the count has changed, the lookup walks again with the counts of segments, as a visit does: it checks
//! that the directory leads to the same segment as before and that the segment's count has not changed, and otherwise repeats
//! the walk. So a lookup has little to load, and is repeated only as often as the chains of its own segment are parted. A walker
//! that finds its bucket checks no count. (A refill handler never checks one: it passes such a miss on, and the kernel's own
//! lookup finds the page.)
//!
//! # Bounds
//!
//! A change of one page splits one segment, or sweeps [`STEPS`] chains and merges two segments, or makes [`STEPS`] steps; a
//! change of a range does so for each of its blocks, once before and once after it. A segment has 128 first buckets; 256 in
//! [`HrSmall`](super::HrSmall), and 512 units in a table that a refill handler walks. Each doubling copies the directory,
//! which has up to 32,768 entries (1024 in such a table). Beyond that, or without memory, chains get longer.

mod merge;
mod split;

use core::sync::atomic::Ordering;

use super::chain::bump;
use super::node::{Bucket, Walk, Writing};
use super::shape::{Shape as _, Spot};
use super::{Hashed, Sizes};
use crate::format::Format;
use crate::nodes::{NodeAddr, Nodes};
use crate::word::atomics::{AtomicUsize, fence};
use crate::{Geometry, NodeLocks};

/// The number of steps that a change makes for each bucket that it has taken or emptied, and of chains that it sweeps.
pub(super) const STEPS: usize = 16;

/// The most buckets that writers of single pages may take, or empty, with one lock before a change of the whole table.
const PUT_OFF: usize = 64;
/// The most of such changes that one change of the whole table makes up for.
const MOST_PUT_OFF: usize = 256;

/// A merge searches the end only of chains with fewer overflow buckets than this.
const SHORT: usize = 32;

/// The state of growth, and its cost so far. Only the writer uses it.
#[derive(Debug)]
pub(super) struct Growth {
    /// The number of first buckets.
    heads: AtomicUsize,
    /// The number of the first bucket, among those that the last split has added, whose chain has not been parted. It equals
    /// `heads` if all chains have been parted.
    joined: AtomicUsize,
    /// For each of the two chains that are joined there, its last bucket that is not in the other chain: the node, and the
    /// word within the node.
    tails: [[AtomicUsize; 2]; 2],
    /// The least number of blocks, and the largest number of buckets in use, with which a change neither grows nor shrinks the
    /// table nor parts chains.
    limits: [AtomicUsize; 2],
    /// How many buckets writers of single pages have taken or emptied since the table was last grown, swept or shrunk, if it is due.
    put_off: AtomicUsize,
    /// The number of [steps](Self::steps). Walkers read it.
    steps: AtomicUsize,
    /// The most blocks that one step has moved.
    most: AtomicUsize,
    /// The most bytes that the table has had.
    peak: AtomicUsize,
}

impl Growth {
    pub(super) fn new(heads: usize) -> Self {
        Self {
            heads: AtomicUsize::new(heads),
            joined: AtomicUsize::new(heads),
            tails: core::array::from_fn(|_| core::array::from_fn(|_| AtomicUsize::new(0))),
            limits: [AtomicUsize::new(usize::MAX), AtomicUsize::new(0)],
            put_off: AtomicUsize::new(0),
            steps: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        }
    }

    /// Returns the number of steps that have parted chains of the table. A walk that began after this call and has found nothing
    /// calls [`has_stepped`](Self::has_stepped) afterwards.
    #[inline(always)]
    pub(super) fn steps(&self) -> usize {
        self.steps.load(Ordering::Acquire)
    }

    /// Tells whether a walk that began after [`steps`](Self::steps) has returned `before` may have missed a bucket.
    #[inline(always)]
    pub(super) fn has_stepped(&self, before: usize) -> bool {
        // The loads of the walk come before the load of the count. The writer increments the count before a step's stores.
        fence(Ordering::Acquire);
        self.steps.load(Ordering::Relaxed) != before
    }

    /// Records the number of bytes if it is the largest so far.
    #[inline(always)]
    pub(super) fn note_bytes(&self, bytes: usize) {
        self.peak.store(self.peak.load(Ordering::Relaxed).max(bytes), Ordering::Relaxed);
    }

    /// Records the number of moved blocks if it is the largest so far.
    fn note_moved(&self, moved: usize) {
        self.most.store(self.most.load(Ordering::Relaxed).max(moved), Ordering::Relaxed);
    }

    /// Tells whether a change that leaves `blocks` blocks and `used` buckets in use neither grows nor shrinks the table nor parts
    /// chains.
    #[inline(always)]
    pub(super) fn is_within_limits(&self, blocks: usize, used: usize) -> bool {
        let [least, most] = self.limits.each_ref().map(|number| number.load(Ordering::Relaxed));
        least <= blocks && used <= most
    }

    /// Sets the limits of [`is_within_limits`](Self::is_within_limits): the least number of blocks, and the largest number of
    /// buckets in use. There is no such number of buckets if the least number is larger.
    pub(super) fn set_limits(&self, numbers: [usize; 2]) {
        for (limit, number) in self.limits.iter().zip(numbers) {
            limit.store(number, Ordering::Relaxed);
        }
    }

    /// Returns how many changes have been put off; now they are not.
    fn take_put_off(&self) -> usize {
        let changes = self.put_off.load(Ordering::Relaxed);
        self.put_off.store(0, Ordering::Relaxed);
        changes
    }

    /// Returns the two tails.
    pub(super) fn tails(&self) -> [Spot; 2] {
        self.tails.each_ref().map(|[node, at]| Spot {
            node: NodeAddr::new(node.load(Ordering::Relaxed)),
            at: at.load(Ordering::Relaxed),
        })
    }

    /// Sets the two tails.
    pub(super) fn set_tails(&self, tails: [Spot; 2]) {
        for ([node, at], tail) in self.tails.iter().zip(tails) {
            node.store(tail.node.get(), Ordering::Relaxed);
            at.store(tail.at, Ordering::Relaxed);
        }
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Returns how many first buckets the table has.
    pub fn buckets(&self) -> usize {
        if S::LOAD == 0 { 1 << S::BUCKETS_LOG } else { self.growth.heads.load(Ordering::Relaxed) }
    }

    /// Returns the most blocks that growing or shrinking has moved in one step: at most the buckets of two full segments, 256 in
    /// [`Hr`](super::Hr).
    pub fn most_moved(&self) -> usize {
        self.growth.most.load(Ordering::Relaxed)
    }

    /// Returns the most bytes that the table's nodes have taken at once.
    pub fn peak_bytes(&self) -> usize {
        self.growth.peak.load(Ordering::Relaxed)
    }

    /// Returns the number of the first bucket of a key's chain.
    fn number(&self, key: usize) -> usize {
        let (heads, hash) = (self.buckets(), self.bucket_hash(key));
        let all = heads.next_power_of_two();
        let number = hash & (all - 1);
        if number < heads { number } else { number - all / 2 }
    }

    /// Tells whether there are chains that have not been parted.
    #[inline(always)]
    pub(super) fn has_joined(&self) -> bool {
        S::LOAD > 0 && self.growth.joined.load(Ordering::Relaxed) != self.buckets()
    }

    /// Returns the least number of blocks, and the largest number of buckets in use, with which
    /// [`adapt_slowly`](Writing::adapt_slowly) has nothing to do but to sweep. If it has chains to part, or to sweep for want of
    /// memory, there are no such numbers.
    fn limits(&self) -> [usize; 2] {
        let heads = self.buckets();
        if self.has_joined() || self.has_lacked_memory() {
            return Self::NEVER_WITHIN;
        }
        let least = if heads > 1 << S::BUCKETS_LOG { (S::LOAD * heads).div_ceil(400) } else { 0 };
        [least, S::LOAD * heads / 100]
    }

    /// Adds what is counted beside the locks to the table's own counts, and notes how many changes are put off, if it is time to grow,
    /// sweep or shrink the table. The caller is the only writer.
    #[inline(never)]
    pub(super) fn gather(&self, locks: &NodeLocks) {
        let [ptes, buckets, vacant, nodes] = locks.take_counts();
        self.tally.ptes(ptes);
        self.count_node(nodes);
        bump(&self.vacant, vacant);
        bump(&self.used[0], buckets);
        let (used, blocks, put_off) = (self.used(), self.known_blocks(), &self.growth.put_off);
        let is_due = S::LOAD > 0 && (!self.growth.is_within_limits(blocks, used) || used - blocks > blocks);
        let sum = put_off.load(Ordering::Relaxed).wrapping_add_signed(buckets + vacant.max(0));
        put_off.store(if is_due { sum.min(MOST_PUT_OFF) } else { 0 }, Ordering::Relaxed);
    }

    /// Tells whether a writer of one page, which takes a bucket or `empties` one, may leave it to a later change to grow, sweep or shrink the
    /// table, if the writers with its lock have taken, or emptied, so many since the counts were [gathered](Self::gather).
    #[inline(always)]
    pub(super) fn may_put_off(&self, changed: isize, empties: bool) -> bool {
        let most = (self.buckets() / 128).clamp(1, PUT_OFF);
        // As after any other change, an unmap does not make the table grow.
        let is_due =
            || !empties || self.must_sweep() || !self.growth.is_within_limits(self.known_blocks(), 0);
        changed < most.cast_signed()
            && !self.has_lacked_memory()
            && (self.growth.put_off.load(Ordering::Relaxed) == 0 || !is_due())
    }

    /// Limits that no table is within.
    pub(super) const NEVER_WITHIN: [usize; 2] = [usize::MAX, 0];
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Walk<'_, 'n, G, F, N, S> {
    /// Returns the last buckets that two chains do not have in common, if the chain of `key` is one of a pair that has not
    /// been parted.
    #[inline(always)]
    pub(super) fn joined(self, key: usize) -> Option<[Spot; 2]> {
        if self.has_joined() { self.find_joined(key) } else { None }
    }

    /// Does what [`joined`](Self::joined) does if some chains have not been parted.
    #[inline(never)]
    fn find_joined(self, key: usize) -> Option<[Spot; 2]> {
        let pair = self.pair(key)?;
        if pair[1] == self.growth.joined.load(Ordering::Relaxed) {
            return Some(self.growth.tails());
        }
        Some(pair.map(|number| self.numbered(number).spot()))
    }

    /// Returns the numbers of the first buckets of a pair of chains that has not been parted, if the chain of `key` is one of them.
    pub(super) fn pair(self, key: usize) -> Option<[usize; 2]> {
        let (joined, heads) = (self.growth.joined.load(Ordering::Relaxed), self.buckets());
        let (_, apart) = Self::split_of(Self::before(heads));
        let number = self.number(key);
        let high = if number >= joined { number } else { number + apart };
        (high >= joined && high < heads).then(|| [high - apart, high])
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Increments the count of the segment of a first bucket and that of the table, before a change of the segment's chains.
    #[inline(always)]
    fn count_change(&self, head: Bucket<'_, 'n, G, F, N, S>) {
        head.count_version();
        let steps = &self.growth.steps;
        steps.store(steps.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Continues to grow, sweep or shrink the table after a change that has taken or emptied `changed` buckets.
    #[inline(always)]
    pub(super) fn adapt(&mut self, changed: usize) {
        if S::LOAD == 0 {
            return;
        }
        let (used, blocks) = (self.used(), self.known_blocks());
        if !self.growth.is_within_limits(blocks, used) || used - blocks > blocks {
            self.again().adapt_slowly(changed, 0);
        }
    }

    /// Grows the table for `more` blocks that the change is about to map. The caller has reserved their buckets before, so
    /// that a change that fails does not resize the table. A split copies a claimed bucket with its claim, so no block needs
    /// more buckets than before. There is no merge here, because it could move two claims into one bucket.
    #[inline]
    pub(super) fn make_room(&mut self, more: usize) {
        let used = self.used().saturating_add(more);
        // The check for a single block follows in `adapt`.
        if more > 1 && S::LOAD > 0 && !self.growth.is_within_limits(self.known_blocks(), used) {
            self.again().adapt_slowly(more, more);
        }
    }

    /// Parts every chain that the last split has joined. After this each bucket is in one chain.
    pub(super) fn part_all(&mut self) {
        while self.has_joined() {
            let steps = self.buckets();
            self.again().unzip(steps);
        }
    }

    /// Merges two segments if the table has less than a quarter of its load. Returns whether it did. The chains of the last split have
    /// all been parted.
    fn shrink(&mut self) -> bool {
        let heads = self.buckets();
        let is_deserted =
            heads > 1 << S::BUCKETS_LOG && self.known_blocks().saturating_mul(400) < S::LOAD * heads;
        is_deserted && self.again().merge()
    }

    /// Grows, sweeps or shrinks the table: does [`STEPS`] steps, a split or a merge for each of `changed` buckets, and at least
    /// once. `coming` is the number of buckets that the change has reserved and not filled. Only if there are none, it sweeps and
    /// merges: then the change must not rely on a bucket that it has found.
    #[inline(never)]
    pub(super) fn adapt_slowly(mut self, changed: usize, coming: usize) {
        // If a step unwinds, the next change does not rely on these numbers.
        self.growth.set_limits(Hashed::<'n, G, F, N, S>::NEVER_WITHIN);
        let put_off = if self.locks().is_some() { self.growth.take_put_off() } else { 0 };
        for _ in 0..(changed + put_off).max(1) {
            let goes_on = if self.has_joined() {
                self.again().unzip(STEPS);
                true
            } else if coming == 0 && self.must_sweep() {
                self.again().sweep();
                self.shrink() || self.must_sweep()
            } else if Self::is_crowded(self.used().saturating_add(coming), self.buckets()) {
                self.again().split()
            } else {
                coming == 0 && self.shrink()
            };
            if !goes_on {
                break;
            }
        }
        self.growth.set_limits(self.limits());
    }
}
