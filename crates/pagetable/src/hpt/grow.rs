//! Growing and shrinking: linear hashing, a segment of buckets at a time.
//!
//! ```text
//!   root --> directory                    segments of first buckets
//!            | 0 | 1 | 2 | 3 |
//!              |   |   |   |
//!              +---|---+---|-----------> | 0 |    not split yet: two entries lead to it
//!                  |       |
//!                  +-------|-----------> | 1 |    split: one bit more of the hash
//!                          +-----------> | 3 |    says which of the two
//! ```
//!
//! The first buckets are numbered, and a table has any number of them (Litwin 1980; Larson 1988: the bucket to split is the
//! next one in turn, not the full one). They stand in **segments**, and a **directory** has the segments' addresses. An entry
//! for a segment that does not exist yet leads to the one that it will be split from, so a walker takes as many bits of the
//! hash as the directory has, and does not ask how far the splitting has come.
//!
//! # Splitting
//!
//! A table that is beyond its load splits the next segment in turn. The writer builds two segments, copies each first
//! bucket into the one that its hash belongs to, lets the first buckets of the same place in both lead to **one chain**, and
//! publishes the segments in the directory; the old one is retired. So a segment is split without a look at any chain, however
//! long chains are, and a walker finds what it looks for at once: what else is in the chain has other tags.
//!
//! Each change after that takes a few steps to part the chains. A **step** looks at the first overflow bucket that two chains
//! have in common, and makes the other chain lead past it; or, where the first bucket is free, moves the overflow bucket's
//! contents there. The next segment is split when all chains of the last have been parted.
//!
//! # Merging
//!
//! A table with less than a quarter of its load merges the segment that was split last with the one that it came from: it
//! links one chain to the end of the other, builds a segment, publishes and retires. If both chains of a pair are longer than
//! [`SHORT`], the table stays as it is: nothing goes through them to find an end.
//!
//! # Reserving while the table grows
//!
//! A range that is mapped reserves its buckets first, and fails, if it fails, before anything has changed
//! ([`reserve`](Hashed::reserve)). A block without a bucket gets one in one of two ways:
//!
//! | its chain's first bucket | reserved |
//! |-|-|
//! | free | **claimed**: it gets the block's tag with a mark, so that it matches nothing and is free for no other block |
//! | in use | an overflow bucket from the storage, linked when the block is written |
//!
//! Only then the table is made large enough for the blocks to come ([`make_room`](Hashed::make_room)), so it may split
//! between the reservation and the stores. What was reserved is still enough:
//!
//! - A split copies a claimed bucket, tag and all, to the side that the tag's hash belongs to, and that is where the block
//!   looks for it.
//! - A block with an overflow bucket may find its first bucket free after the split. It takes that one, and the overflow
//!   bucket goes back to the storage.
//! - A merge would bring two claims into one first bucket, and one of the two blocks would need an overflow bucket that was
//!   not reserved. So none is made in between.
//!
//! # Walkers
//!
//! Nothing is ever out of reach for a walk that begins. A walk that is under way can be led astray by one thing alone: it is in
//! an overflow bucket of the other chain when that is made to lead past the next one. Each such store comes behind a count in
//! the **record** of the segment, so a walker that has found nothing looks whether the directory leads to the same segment as
//! before and the count is what it was, and if not it walks again. A walker that finds what it looks for does not look at
//! the count. (A refill handler never does: it finds nothing once, and the kernel's own lookup finds the page.)
//!
//! # Bounds
//!
//! A change of one page splits or merges one segment at the most, of 128 first buckets (512 units), and takes [`STEPS`] steps;
//! a range does so for each of its blocks. Once for each doubling the directory is copied; it has up to 32,768 entries.
//! Beyond that, or without memory, chains get longer.

mod merge;
mod split;

use core::sync::atomic::Ordering;

use super::Hashed;
use super::shape::{LOG, Spot};
use crate::footprint::Tally;
use crate::format::Format;
use crate::nodes::{Freed, NodeAddr, Nodes};
use crate::word::atomics::AtomicUsize;
use crate::{Geometry, Retired, Word};

/// How many steps a change takes for each bucket that it has filled or emptied.
const STEPS: usize = 16;

/// The longest chain whose end is looked for.
const SHORT: usize = 32;

/// The state of growth, and its cost so far. Only the writer uses it.
#[derive(Debug)]
pub(super) struct Growth {
    /// How many first buckets there are.
    heads: AtomicUsize,
    /// The first bucket whose chain has not been parted from the chain of the bucket that it was split from.
    joined: AtomicUsize,
    /// For each of these two chains, its last bucket that is not in the other chain: the node and the word.
    tails: [[AtomicUsize; 2]; 2],
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
            most: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        }
    }

    /// Remembers the most.
    #[inline(always)]
    pub(super) fn note_bytes(&self, bytes: usize) {
        self.peak.store(self.peak.load(Ordering::Relaxed).max(bytes), Ordering::Relaxed);
    }

    fn note_moved(&self, moved: usize) {
        self.most.store(self.most.load(Ordering::Relaxed).max(moved), Ordering::Relaxed);
    }

    fn tails(&self) -> [Spot; 2] {
        self.tails.each_ref().map(|[node, at]| Spot {
            node: NodeAddr::new(node.load(Ordering::Relaxed)),
            at: at.load(Ordering::Relaxed),
        })
    }

    fn set_tails(&self, tails: [Spot; 2]) {
        for ([node, at], tail) in self.tails.iter().zip(tails) {
            node.store(tail.node.get(), Ordering::Relaxed);
            at.store(tail.at, Ordering::Relaxed);
        }
    }
}

impl<'n, G, F, N, const CLUSTER: u32, const BUCKETS: u32, const LOAD: usize>
    Hashed<'n, G, F, N, CLUSTER, BUCKETS, LOAD>
where
    G: Geometry,
    F: Format,
    N: Nodes<Word = F::Word>,
{
    /// Returns how many first buckets the table has.
    pub fn buckets(&self) -> usize {
        if LOAD == 0 { 1 << BUCKETS } else { self.growth.heads.load(Ordering::Relaxed) }
    }

    /// Returns the most blocks that growing or shrinking has moved in one step: at most 128.
    pub fn most_moved(&self) -> usize {
        self.growth.most.load(Ordering::Relaxed)
    }

    /// Returns the most bytes that the table's nodes have taken at once.
    pub fn peak_bytes(&self) -> usize {
        self.growth.peak.load(Ordering::Relaxed)
    }

    /// Returns how many first buckets a table of `heads` gets by a split, and how far each is from the one it is split from.
    const fn split_of(heads: usize) -> (usize, usize) {
        let segment = 1 << Self::SEGMENT;
        (if heads < segment { heads } else { segment }, 1 << heads.ilog2())
    }

    /// Returns how many first buckets there were before the last split.
    const fn before(heads: usize) -> usize {
        let segment = 1 << Self::SEGMENT;
        if heads <= segment { heads / 2 } else { heads - segment }
    }

    /// Returns the base-two logarithm of the entries of a root's directory.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer; so for all that follow.
    pub(super) unsafe fn entries(&self, root: usize) -> u32 {
        if Self::FOLDED {
            return Self::ENTRIES;
        }
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        let mask = unsafe { self.nodes.follow(NodeAddr::new(root), 0) }.to_usize();
        (mask & Self::ENTRY).count_ones()
    }

    /// Returns how many first buckets the segment of an entry has.
    pub(super) unsafe fn segment_of(&self, root: usize, entry: usize) -> usize {
        if Self::FOLDED {
            return (1 << Self::SEGMENT) >> (entry & LOG);
        }
        // SAFETY: by the contract of `entries`, which is this function's too, the caller is pinned, or the writer.
        let mask = unsafe { self.nodes.follow(NodeAddr::new(root), 0) }.to_usize();
        (mask >> Self::WITHIN) + 1
    }

    /// Returns the segment that a directory's entry leads to.
    pub(super) const fn segment(entry: usize) -> NodeAddr {
        NodeAddr::new(if Self::FOLDED { entry & !LOG } else { entry })
    }

    /// Loads an entry of a root's directory as a walker does. The directory has the entry.
    #[inline(always)]
    pub(super) unsafe fn entry(&self, root: usize, index: usize) -> usize {
        // SAFETY: by the contract of `entries`, which is this function's too, the caller is pinned, or the writer.
        unsafe { self.nodes.follow(NodeAddr::new(root), Self::HEADER + index) }.to_usize()
    }

    /// Returns how often the chains of a segment have been changed so that a walker may be led astray.
    pub(super) unsafe fn version(&self, segment: NodeAddr) -> u32 {
        // SAFETY: this function's contract: the segment is live or retired, and its record with it.
        unsafe { (*self.nodes.link(segment)).load(Ordering::Acquire) }
    }

    /// Counts another change of the chains of a segment, before it is made.
    unsafe fn count_change(&self, segment: NodeAddr) {
        // SAFETY: the caller is the writer, and the segment live.
        unsafe {
            let record = &*self.nodes.link(segment);
            record.store(record.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        }
    }

    /// Returns a first bucket by its number, of which there is one.
    pub(super) unsafe fn numbered(&self, number: usize) -> Spot {
        // SAFETY: the number is that of a first bucket, and a directory has an entry for each segment.
        let entry = unsafe { self.entry(self.root(), number >> Self::SEGMENT) };
        let within = number & ((1 << Self::SEGMENT) - 1);
        Spot { node: Self::segment(entry), at: within * Self::STRIDE }
    }

    /// Returns the first bucket that a key's chain begins at, by its number.
    fn number(&self, key: usize) -> usize {
        let (heads, hash) = (self.buckets(), self.bucket_hash(key));
        let all = heads.next_power_of_two();
        let number = hash & (all - 1);
        if number < heads { number } else { number - all / 2 }
    }

    /// Returns the last buckets that two chains do not have in common, if a key's is one of a pair that has not been parted.
    #[inline(always)]
    unsafe fn joined(&self, key: usize) -> Option<[Spot; 2]> {
        if LOAD == 0 {
            return None;
        }
        let (joined, heads) = (self.growth.joined.load(Ordering::Relaxed), self.buckets());
        if joined == heads {
            return None;
        }
        // SAFETY: by the contract of `entries`, which is this function's too, the caller is pinned, or the writer.
        unsafe { self.find_joined(key, joined, heads) }
    }

    #[inline(never)]
    unsafe fn find_joined(&self, key: usize, joined: usize, heads: usize) -> Option<[Spot; 2]> {
        let (_, apart) = Self::split_of(Self::before(heads));
        let number = self.number(key);
        let high = if number >= joined { number } else { number + apart };
        if high < joined || high >= heads {
            return None;
        }
        if high == joined {
            return Some(self.growth.tails());
        }
        // SAFETY: the caller is the writer; both are below the first buckets.
        Some(unsafe { [self.numbered(high - apart), self.numbered(high)] })
    }

    /// Links a bucket that is complete into the chain of a key that begins at `head`.
    ///
    /// # Safety
    ///
    /// The caller is the only writer; so for all that follow.
    pub(super) unsafe fn link(&self, head: Spot, key: usize, spot: Spot) {
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            // Where chains have an end in common, a bucket joins that, so that they still have all of it in common.
            let [one, other] = self.joined(key).unwrap_or([head; 2]);
            self.publish_link(spot, self.behind(one));
            self.publish_link(one, Some(spot));
            if other != one {
                self.publish_link(other, Some(spot));
            }
        }
    }

    /// Makes nothing lead to the overflow bucket behind `before`. Walkers that are in it still find their way on.
    pub(super) unsafe fn lead_past(&self, before: Spot, spot: Spot) {
        // SAFETY: by the contract of `link`, which is this function's too, the caller is the only writer.
        unsafe {
            let behind = self.behind(spot);
            let key = Self::key_of(self.read_tag(spot));
            if self.joined(key).is_none() {
                return self.publish_link(before, behind);
            }
            let (_, apart) = Self::split_of(Self::before(self.buckets()));
            let number = self.number(key);
            let low =
                if number >= self.growth.joined.load(Ordering::Relaxed) { number - apart } else { number };
            let mut tails = self.growth.tails();
            for (head, tail) in [low, low + apart].into_iter().zip(&mut tails) {
                let mut at = self.numbered(head);
                while let Some(next) = self.behind(at) {
                    if next == spot {
                        self.publish_link(at, behind);
                        if *tail == spot {
                            *tail = at;
                        }
                        break;
                    }
                    at = next;
                }
            }
            self.growth.set_tails(tails);
        }
    }

    /// Tells whether a bucket with this tag, in the chain that begins at `head`, is there for its own sake, and not for that of
    /// a chain that has not been parted from it.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer.
    pub(super) unsafe fn leads_to(&self, head: Spot, tag: usize) -> bool {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        LOAD == 0 || Self::bucket(unsafe { self.first(self.root(), Self::key_of(tag)) }) == head
    }

    /// Goes on growing or shrinking after a change that has filled or emptied `changed` buckets.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table; so for all that follow.
    #[inline]
    pub(super) unsafe fn adapt(&self, batch: &mut Retired<'n>, changed: usize) {
        // SAFETY: by this function's contract the caller is the only writer, and the batch came from this table.
        unsafe { self.adapt_to(batch, self.blocks(), changed, true) }
    }

    /// Makes the table large enough for `more` blocks that are about to be mapped. The buckets for them are reserved before, so that a
    /// change that fails does not resize the table. A split copies a claimed bucket with its claim, so no block needs more buckets
    /// than before. There is no merge here: two claims could meet in one bucket.
    #[inline]
    pub(super) unsafe fn make_room(&self, batch: &mut Retired<'n>, more: usize) {
        // One block more or less can wait.
        if more > 1 {
            // SAFETY: by the contract of `adapt`, which is this function's too, the caller is the only writer, and the
            // batch came from this table.
            unsafe { self.adapt_to(batch, self.blocks().saturating_add(more), more, false) };
        }
    }

    #[inline(always)]
    unsafe fn adapt_to(&self, batch: &mut Retired<'n>, blocks: usize, changed: usize, may_merge: bool) {
        if LOAD > 0 && self.must_adapt(blocks, may_merge) {
            // SAFETY: by the contract of `adapt`, which is this function's too, the caller is the only writer, and the
            // batch came from this table.
            unsafe { self.adapt_slowly(batch, blocks, changed, may_merge) };
        }
    }

    /// Tells whether `blocks` blocks are too many, or too few, or whether chains are still to be parted.
    #[inline(always)]
    fn must_adapt(&self, blocks: usize, may_merge: bool) -> bool {
        let heads = self.buckets();
        self.growth.joined.load(Ordering::Relaxed) < heads
            || Self::is_crowded(blocks, heads)
            || may_merge && Self::is_deserted(blocks, heads)
    }

    /// Tells whether a table of `heads` first buckets is beyond its load. There are at most [`MOST`](Self::MOST) of them.
    #[inline(always)]
    fn is_crowded(blocks: usize, heads: usize) -> bool {
        blocks.saturating_mul(100) > LOAD * heads
    }

    /// Tells whether a table of `heads` first buckets has less than a quarter of its load.
    #[inline(always)]
    fn is_deserted(blocks: usize, heads: usize) -> bool {
        heads > 1 << BUCKETS && blocks.saturating_mul(400) < LOAD * heads
    }

    #[inline(never)]
    unsafe fn adapt_slowly(&self, batch: &mut Retired<'n>, blocks: usize, changed: usize, may_merge: bool) {
        for _ in 0..changed.max(1) {
            let heads = self.buckets();
            // SAFETY: by the contract of `adapt`, which is this function's too, the caller is the only writer, and the
            // batch came from this table.
            let goes_on = unsafe {
                if self.growth.joined.load(Ordering::Relaxed) < heads {
                    self.unzip(batch, STEPS);
                    true
                } else if Self::is_crowded(blocks, heads) {
                    self.split(batch)
                } else if may_merge && Self::is_deserted(blocks, heads) {
                    self.merge(batch)
                } else {
                    false
                }
            };
            if !goes_on {
                break;
            }
        }
    }

    /// Takes a segment that is to be the only one, and the directory that is published with it, if that is a new one.
    fn take_only(&self, words: usize) -> Option<(NodeAddr, NodeAddr)> {
        let segment = self.take_array(words)?;
        if Self::FOLDED {
            return Some((NodeAddr::new(0), segment));
        }
        if let Some(directory) = self.take_array(Self::directory_words(0)) {
            return Some((directory, segment));
        }
        // SAFETY: it was just taken.
        unsafe { self.give_array(segment, words) };
        None
    }

    /// Publishes the segment of `heads` first buckets that is all there is.
    unsafe fn publish_only(
        &self,
        batch: &mut Retired<'n>,
        directory: NodeAddr,
        segment: NodeAddr,
        heads: usize,
    ) {
        let old = self.root();
        // SAFETY: this function's contract; the directory is new where it says how many bits of the hash count, so that one store
        // changes both.
        unsafe {
            if Self::FOLDED {
                let short = Self::SEGMENT - heads.ilog2();
                return self.publish_segment(0, 1 << Self::SEGMENT, segment, short as usize);
            }
            Self::mask(self.nodes, directory, 0, heads);
            self.nodes.store_relaxed(directory, Self::HEADER, F::Word::from_usize(segment.get()));
            self.publish_root(directory);
            self.retire_array(batch, NodeAddr::new(old), Self::directory_words(self.entries(old)));
        }
    }

    /// Publishes a segment in the directory's entry `first`, and in those that are `apart` first buckets on, in this order: a
    /// visit relies on it. It has `2^short` times fewer first buckets than others.
    unsafe fn publish_segment(&self, first: usize, apart: usize, segment: NodeAddr, short: usize) {
        let root = self.root();
        // SAFETY: by the contract of `adapt`, which is this function's too, the caller is the only writer, and the batch
        // came from this table.
        unsafe {
            for index in (first..1 << self.entries(root)).step_by(apart >> Self::SEGMENT) {
                let entry = F::Word::from_usize(segment.get() | if Self::FOLDED { short } else { 0 });
                self.nodes.publish(NodeAddr::new(root), Self::HEADER + index, entry);
            }
        }
    }

    /// Publishes a directory.
    unsafe fn publish_root(&self, directory: NodeAddr) {
        let root = F::Word::from_usize(directory.get());
        // SAFETY: the cell is a field, and the caller the only writer.
        unsafe { F::Word::publish(&raw const self.root, root) };
    }

    /// Stores the [mask](Self::HEADER) of a new directory of `2^entries` entries, which leads to segments of `heads` first
    /// buckets.
    unsafe fn mask(nodes: &N, directory: NodeAddr, entries: u32, heads: usize) {
        let mask = (heads - 1) << Self::WITHIN | ((1 << entries) - 1);
        // SAFETY: this function's contract; no walker can reach the directory yet.
        unsafe { nodes.store_relaxed(directory, 0, F::Word::from_usize(mask)) };
    }

    /// Doubles the directory if it has no entry for segment `number`, and tells whether it has one now.
    unsafe fn widen(&self, batch: &mut Retired<'n>, number: usize) -> bool {
        // SAFETY: by the contract of `adapt`, which is this function's too, the caller is the only writer, and the batch
        // came from this table.
        unsafe {
            let entries = self.entries(self.root());
            number < 1 << entries || self.copy_directory(batch, entries + 1)
        }
    }

    /// Halves the directory if a quarter of it has an entry for each of `segments` segments.
    unsafe fn narrow(&self, batch: &mut Retired<'n>, segments: usize) {
        // SAFETY: by the contract of `adapt`, which is this function's too, the caller is the only writer, and the batch
        // came from this table. Without memory the directory stays as it is.
        unsafe {
            let entries = self.entries(self.root());
            if !Self::FOLDED && segments << 2 <= 1 << entries {
                self.copy_directory(batch, entries - 1);
            }
        }
    }

    /// Replaces the directory by one of `2^entries` entries, and tells whether there was memory.
    unsafe fn copy_directory(&self, batch: &mut Retired<'n>, entries: u32) -> bool {
        let old = self.root();
        let Some(new) = self.take_array(Self::directory_words(entries)) else { return false };
        // SAFETY: this function's contract; no walker can reach the new directory yet.
        unsafe {
            let had = self.entries(old);
            Self::mask(self.nodes, new, entries, 1 << Self::SEGMENT);
            for index in 0..1 << entries {
                let entry = self.entry(old, index & ((1 << had) - 1));
                self.nodes.store_relaxed(new, Self::HEADER + index, F::Word::from_usize(entry));
            }
            self.publish_root(new);
            self.retire_array(batch, NodeAddr::new(old), Self::directory_words(had));
        }
        true
    }

    /// Returns the words of a directory of `2^entries` entries. The smallest fills a line of the cache where it multiplies, so
    /// that small ones are of one size.
    const fn directory_words(entries: u32) -> usize {
        let (words, line) = (Self::HEADER + (1 << entries), 64 / F::Word::BYTES);
        if words < line { line } else { words }
    }

    /// Takes what a table of `2^BUCKETS` first buckets begins with, and returns its root.
    pub(super) fn begin(nodes: &N, tally: &Tally) -> Option<usize> {
        let words = Self::STRIDE << BUCKETS;
        let array = nodes.take(words)?;
        tally.node(1, words * F::Word::BYTES);
        if LOAD == 0 {
            return Some(array.get() | BUCKETS as usize);
        }
        let entries = if Self::FOLDED { Self::ENTRIES } else { 0 };
        let Some(directory) = nodes.take(Self::directory_words(entries)) else {
            let freed = Freed::new(nodes.held(), 0);
            // SAFETY: it was just taken.
            unsafe { nodes.free(array, true) };
            freed.done();
            return None;
        };
        tally.node(1, Self::directory_words(entries) * F::Word::BYTES);
        let short = if Self::FOLDED { (Self::SEGMENT - BUCKETS) as usize } else { 0 };
        // SAFETY: the directory was just taken, and no code knows it.
        unsafe {
            if !Self::FOLDED {
                Self::mask(nodes, directory, entries, 1 << BUCKETS);
            }
            for index in 0..1 << entries {
                nodes.store_relaxed(
                    directory,
                    Self::HEADER + index,
                    F::Word::from_usize(array.get() | short),
                );
            }
        }
        Some(directory.get())
    }

    fn take_array(&self, words: usize) -> Option<NodeAddr> {
        let array = self.nodes.take(words)?;
        self.count_array(1, words);
        Some(array)
    }

    /// Gives an array back that no code has seen.
    unsafe fn give_array(&self, array: NodeAddr, words: usize) {
        self.count_array(-1, words);
        let freed = Freed::new(self.nodes.held(), 0);
        // SAFETY: by the contract of `adapt`, which is this function's too, the caller is the only writer, and the batch
        // came from this table.
        unsafe { self.nodes.free(array, true) };
        freed.done();
    }

    /// Hands an array over to which no word leads any more.
    unsafe fn retire_array(&self, batch: &mut Retired<'n>, array: NodeAddr, words: usize) {
        // SAFETY: by the contract of `adapt`, which is this function's too, the caller is the only writer, and the batch
        // came from this table.
        unsafe { batch.push(array, false) };
        self.count_array(-1, words);
    }

    /// Counts the directory and the segments, or the array.
    pub(super) unsafe fn count_arrays(&self) {
        let heads = self.buckets();
        if LOAD == 0 {
            return self.count_array(1, heads * Self::STRIDE);
        }
        let segment = heads.min(1 << Self::SEGMENT);
        for _ in (0..heads).step_by(segment) {
            self.count_array(1, segment * Self::STRIDE);
        }
        // SAFETY: the caller is the writer.
        self.count_array(1, Self::directory_words(unsafe { self.entries(self.root()) }));
    }

    fn count_array(&self, sign: isize, words: usize) {
        self.tally.node(sign, words * F::Word::BYTES);
        self.growth.note_bytes(self.tally.bytes());
    }

    /// Retires every node of the table.
    pub(super) unsafe fn retire_all(&self, batch: &mut Retired<'n>) {
        let heads = self.buckets();
        let root = self.root();
        // SAFETY: this function's contract: no CPU changes the table any more.
        unsafe {
            // So that no bucket is in two chains.
            while LOAD > 0 && self.growth.joined.load(Ordering::Relaxed) < heads {
                self.unzip(batch, heads);
            }
            let segment = if LOAD == 0 { heads } else { heads.min(1 << Self::SEGMENT) };
            for number in (0..heads).step_by(segment) {
                let array = if LOAD == 0 { NodeAddr::new(root & !LOG) } else { self.numbered(number).node };
                for at in 0..segment {
                    let mut spot = self.behind(Spot { node: array, at: at * Self::STRIDE });
                    while let Some(here) = spot {
                        spot = self.behind(here);
                        self.retire(batch, here.node);
                    }
                }
                self.retire_array(batch, array, segment * Self::STRIDE);
            }
            if LOAD > 0 {
                let words = Self::directory_words(self.entries(root));
                self.retire_array(batch, NodeAddr::new(root), words);
            }
        }
    }
}
