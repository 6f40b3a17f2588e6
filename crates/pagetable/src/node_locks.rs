//! Which pages each of several writers of one table may change.
//!
//! ```text
//!   a right to              takes                                      and excludes
//!   pages of one node       the lock of the last-level node            the other writers of that node
//!   a range                 a block: what one node covers              every writer of a page of the block
//!   the table               the block of all pages                     every writer
//! ```
//!
//! In a hashed table the lock of a page is that of its 2 MiB, and a range is the whole table:
//! [its documentation](crate::hpt#several-writers) says what is beside that lock.
//!
//! A block is an aligned run of pages that one node covers, or would cover. The holder of a block is the only one that stores in that
//! node and in those below it; the nodes above it do not change on the way there, because a change of them is one of a larger block. So
//! the locks need no node: they are words in [`NodeLocks`], which hold numbers of blocks, and no lock is in memory that a change may free.
//!
//! ```text
//!   writer of a node     lock = block    load the count of blocks            0, or none overlaps: go on; otherwise give up
//!   writer of a range    block in the list, count + 1    load all locks      none overlaps: go on; otherwise wait
//! ```
//!
//! The accesses are sequentially consistent, so at least one of the two sees the other. A writer of a node gives up, and a writer of
//! a range waits: so pages that are changed one after the other do not hold up a writer of a range, whose block stays in the list. Of two
//! ranges that overlap the second one finds the first in the list, and gives up; so it does if the first has the lock of a node, where it
//! may make many changes: in the list the second one would keep writers of other nodes away for as long. Who gets no lock of a node takes
//! the node's block as a range.
//!
//! No writer has more than one lock or block of a table, so none waits for another one that waits for it.

use core::hint;

use tlbkit_addr::{Pages, Vpn};

use crate::mode::{Lock as _, SpinLock};
use crate::word::atomics::{AtomicUsize, Ordering, fence};

/// The number of locks of last-level nodes. Two nodes have one lock by chance in one case of so many.
const LOCKS: usize = if cfg!(tlbkit_loom) { 2 } else { 32 };
/// The most writers of ranges at a time.
const BLOCKS: usize = if cfg!(tlbkit_loom) { 2 } else { 7 };

/// How often a writer of a node pauses for another one. It serves no shootdown meanwhile.
const PAUSES: u32 = if cfg!(tlbkit_loom) { 0 } else { 16 };

/// The ordering of a load before a fence that makes it an acquire. An acquire under the thread sanitizer, which does not support fences.
const FENCED: Ordering = if cfg!(tsan) { Ordering::Acquire } else { Ordering::Relaxed };

/// An aligned run of pages whose number is a power of two, at least two: what one node covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block(
    /// The number of a page in the middle of the block, so that the lowest bit that is set tells its size; never 0.
    usize,
);

impl Block {
    /// All pages.
    pub(crate) const ALL: Self = Self(1 << (usize::BITS - 1));

    /// Returns the block of 2^`log` pages that has `page`; with a `log` of at least the bits of a page number, [`ALL`](Self::ALL). `log`
    /// is at least 1.
    #[inline(always)]
    pub(crate) const fn of(page: Vpn, log: u32) -> Self {
        if log >= usize::BITS {
            return Self::ALL;
        }
        let last = (1 << log) - 1;
        Self((page.get() | last) ^ (last >> 1))
    }

    /// Returns the smallest of the blocks of 2^`log(from)` pages, 2^`log(from + 1)`, and so on, that has all of `pages`, and the argument
    /// that gave its size.
    pub(crate) fn around(pages: Pages, from: usize, log: impl Fn(usize) -> u32) -> (Self, usize) {
        let mut above = from;
        loop {
            let block = Self::of(pages.first(), log(above));
            if block == Self::of(pages.last(), log(above)) {
                return (block, above);
            }
            above += 1;
        }
    }

    /// Tells whether the blocks have a page in common: one of them has all pages of the other.
    #[inline(always)]
    const fn overlaps(self, other: Self) -> bool {
        let (a, b) = (self.0 & self.0.wrapping_neg(), other.0 & other.0.wrapping_neg());
        // Twice the lowest bit of the larger one; 0 for all pages.
        let size = if a > b { a << 1 } else { b << 1 };
        (self.0 ^ other.0) & size.wrapping_neg() == 0
    }

    /// Returns the lock of the block of 2^`log` pages. Blocks at equal distances of 2^n, for n below 10, have different locks, as those of
    /// threads' heaps and stacks are. (The only node of a table of one level has the block of all pages.)
    #[inline(always)]
    const fn lock(self, log: u32) -> usize {
        let number = if log < usize::BITS { self.0 >> log } else { 0 };
        (number ^ (number >> LOCKS.ilog2())) % LOCKS
    }
}

/// The locks of a table that has several writers at a time: memory that the caller gives it
/// ([`Mpt::with_locks`](crate::mpt::Mpt::with_locks), [`Hashed::with_locks`](crate::hpt::Hashed::with_locks)).
///
/// It takes 2112 bytes: a cache line for each of 32 locks, so that writers of different nodes do not share one, and a line that all
/// writers read, and only those of ranges write. Memory of zeros is what [`new`](Self::new) returns. (Writers of different nodes also share
/// the line of their nodes' [records](crate::nodes::Record), if the storage has these side by side.)
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct NodeLocks {
    ranges: Ranges,
    nodes: [Line; LOCKS],
}

/// A lock on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(NodeLock);

/// The writers of ranges.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Ranges {
    /// How many there are.
    count: AtomicUsize,
    /// The blocks, or 0.
    blocks: [AtomicUsize; BLOCKS],
    /// Is held while a block is added.
    lock: SpinLock,
}

/// The lock of some last-level nodes, or of a whole table.
#[derive(Debug, Default)]
pub(crate) struct NodeLock {
    /// The block whose writer has the lock, or 0.
    holder: AtomicUsize,
    /// 1 if the holder makes more than one change: a hint for those that wait.
    edited: AtomicUsize,
    /// What the writers of single pages have [counted](Count).
    counts: [AtomicUsize; COUNTS],
}

/// What the writers of single pages count beside their locks: how many more there are than before.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    /// PTEs.
    Ptes,
    /// Buckets of a hashed table that are in use.
    Buckets,
    /// Those of them that are vacant.
    Vacant,
    /// Overflow buckets.
    Nodes,
}

const COUNTS: usize = Count::Nodes as usize + 1;

impl NodeLocks {
    /// Returns the locks of a table that nobody writes.
    #[cfg(not(tlbkit_loom))]
    pub const fn new() -> Self {
        #[expect(clippy::declare_interior_mutable_const, reason = "each use is a new word")]
        const FREE: AtomicUsize = AtomicUsize::new(0);
        Self {
            ranges: Ranges { count: FREE, blocks: [FREE; BLOCKS], lock: SpinLock::new() },
            nodes: [const { Line(NodeLock { holder: FREE, edited: FREE, counts: [FREE; COUNTS] }) }; LOCKS],
        }
    }

    /// Makes the locks those of a table that nobody has written.
    pub(crate) fn free(&mut self) {
        let Self { ranges: Ranges { count, blocks, lock }, nodes } = self;
        *lock = SpinLock::default();
        blocks.iter().chain([&*count]).for_each(|word| word.store(0, Ordering::Relaxed));
        for Line(lock) in nodes.iter() {
            lock.end_edit();
            lock.take_counts();
        }
    }

    /// Takes the lock of the node of 2^`log` pages that has `page`, as soon as another change of a page there has ended. Returns `None` if
    /// another writer has it for longer, or has a block that overlaps.
    #[inline(always)]
    pub(crate) fn try_node(&self, page: Vpn, log: u32) -> Option<&NodeLock> {
        let block = Block::of(page, log);
        let Line(lock) = &self.nodes[block.lock(log)];
        if !lock.try_take(block) && !lock.take_soon(block) {
            return None;
        }
        in_order();
        if self.ranges.count.load(Ordering::SeqCst) != 0 && self.ranges.overlap_after(block) {
            lock.give_back();
            return None;
        }
        Some(lock)
    }

    /// Adds a block to the list, and returns its place there. Returns `None` if the list is full or has a block that overlaps. The caller
    /// may change the block's pages as soon as [`is_clear`](Self::is_clear) has returned `true`.
    pub(crate) fn add(&self, block: Block) -> Option<usize> {
        let ranges = &self.ranges;
        ranges.locked(|| {
            if ranges.overlap(block) {
                return None;
            }
            let mut places = ranges.blocks.iter().enumerate();
            // Who finds the new block in the place, and not the 0 there, must find what the writer before has done.
            let (place, free) = places.find(|(_, place)| place.load(Ordering::Acquire) == 0)?;
            free.store(block.0, Ordering::SeqCst);
            ranges.count.fetch_add(1, Ordering::SeqCst);
            Some(place)
        })
    }

    /// Tells whether [`add`](Self::add) would add the block, and nobody edits a node of it.
    pub(crate) fn has_place(&self, block: Block) -> bool {
        let ranges = &self.ranges;
        !self.is_edited(block)
            && ranges.blocks.iter().any(|place| place.load(Ordering::Relaxed) == 0)
            && !ranges.overlap(block)
    }

    /// Puts a larger block, which has the pages of the one at `place`, in its place, and tells whether it did: if another block overlaps,
    /// the place is empty then. So of several writers that need the same larger block one gets it.
    pub(crate) fn widen(&self, place: usize, block: Block) -> bool {
        let ranges = &self.ranges;
        ranges.locked(|| {
            let Some(own) = ranges.blocks.get(place) else { return false };
            let before = own.swap(0, Ordering::SeqCst);
            let is_free = before != 0 && !ranges.overlap(block);
            if is_free {
                own.store(block.0, Ordering::SeqCst);
            } else if before != 0 {
                ranges.count.fetch_sub(1, Ordering::Release);
            }
            is_free
        })
    }

    /// Tells whether no writer of a page has a node of the block, which is in the list. If so, none will have one until the block is
    /// [removed](Self::remove).
    pub(crate) fn is_clear(&self, block: Block) -> bool {
        // Between the addition of the block and the loads.
        fence(Ordering::SeqCst);
        let holder = |Line(lock): &Line| lock.holder.load(FENCED);
        // Almost always all of them are free.
        let mut fours = self.nodes.chunks(4);
        let is_taken = fours.any(|four| {
            four.iter().map(holder).fold(0, |all, held| all | held) != 0
                && four.iter().map(holder).any(|held| held != 0 && Block(held).overlaps(block))
        });
        // What the writers have done happens before what the caller does next.
        fence(Ordering::Acquire);
        !is_taken
    }

    /// Tells whether a writer that makes more than one change has a node of the block, for as much as is known without the right to write.
    #[cold]
    pub(crate) fn is_edited(&self, block: Block) -> bool {
        self.nodes.iter().any(|Line(lock)| {
            let held = lock.holder.load(Ordering::Relaxed);
            held != 0 && lock.edited.load(Ordering::Relaxed) != 0 && Block(held).overlaps(block)
        })
    }

    /// Removes the block at a place of the list.
    pub(crate) fn remove(&self, place: usize) {
        if let Some(place) = self.ranges.blocks.get(place) {
            place.store(0, Ordering::Release);
            self.ranges.count.fetch_sub(1, Ordering::Release);
        }
    }

    /// Returns the sum of a count over all locks.
    pub(crate) fn sum(&self, count: Count) -> isize {
        self.nodes.iter().map(|Line(lock)| lock.counted(count)).fold(0, isize::wrapping_add)
    }

    /// Returns the sums of all counts, which begin at 0 again. The caller is the table's only writer.
    pub(crate) fn take_counts(&self) -> [isize; COUNTS] {
        let mut sums = [0; COUNTS];
        for Line(lock) in &self.nodes {
            for (sum, count) in sums.iter_mut().zip(lock.take_counts()) {
                *sum = isize::wrapping_add(*sum, count);
            }
        }
        sums
    }
}

impl NodeLock {
    /// Takes the lock for the writer of a block, and tells whether it was free.
    #[inline(always)]
    pub(crate) fn try_take(&self, block: Block) -> bool {
        self.holder.compare_exchange(0, block.0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock when it is free, and tells whether it was within [`PAUSES`]. Its holder has about as much to do as the caller, which
    /// goes the way of ranges otherwise: that takes longer, so the next writer would wait for it, and all would go that way.
    #[cold]
    #[inline(never)]
    fn take_soon(&self, block: Block) -> bool {
        (0..PAUSES).any(|_| {
            hint::spin_loop();
            self.is_free() && self.try_take(block)
        })
    }

    /// Tells whether nobody has the lock.
    pub(crate) fn is_free(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == 0
    }

    /// Returns a count.
    #[inline(always)]
    pub(crate) fn counted(&self, count: Count) -> isize {
        self.counts[count as usize].load(Ordering::Relaxed).cast_signed()
    }

    /// Returns all counts, which begin at 0 again. The caller is the table's only writer.
    pub(crate) fn take_counts(&self) -> [isize; COUNTS] {
        self.counts.each_ref().map(|count| {
            let counted = count.load(Ordering::Relaxed);
            // Almost always 0, and the line stays with the CPU of its writer.
            if counted != 0 {
                count.store(0, Ordering::Relaxed);
            }
            counted.cast_signed()
        })
    }

    /// Gives the lock back, which the caller has.
    #[inline(always)]
    pub(crate) fn give_back(&self) {
        self.holder.store(0, Ordering::Release);
    }

    /// States that the caller, which has the lock, makes more than one change.
    pub(crate) fn begin_edit(&self) {
        self.edited.store(1, Ordering::Relaxed);
    }

    /// Gives the lock back, which the caller has, after [`begin_edit`](Self::begin_edit).
    pub(crate) fn end_edit(&self) {
        self.edited.store(0, Ordering::Relaxed);
        self.give_back();
    }

    /// Adds to a count. The caller has the lock.
    #[inline(always)]
    pub(crate) fn count(&self, count: Count, by: isize) {
        let sum = self.counted(count).wrapping_add(by);
        self.counts[count as usize].store(sum.cast_unsigned(), Ordering::Relaxed);
    }
}

impl Ranges {
    /// Calls `f` while no other CPU adds a block.
    fn locked<T>(&self, f: impl FnOnce() -> T) -> T {
        self.lock.lock();
        let result = f();
        self.lock.unlock();
        result
    }

    /// Tells whether a block in the list overlaps, after the caller has taken the lock of a node.
    #[cold]
    fn overlap_after(&self, block: Block) -> bool {
        fence(Ordering::SeqCst);
        self.overlap(block)
    }

    /// Tells whether a block in the list overlaps. The list does not change, or a fence is between the caller's store and this call.
    #[inline(never)]
    fn overlap(&self, block: Block) -> bool {
        let overlaps = self.blocks.iter().any(|place| {
            let held = place.load(FENCED);
            held != 0 && Block(held).overlaps(block)
        });
        fence(Ordering::Acquire);
        overlaps
    }
}

/// Orders an exchange before a load. Loom takes an access that is sequentially consistent for an acquire and a release.
#[inline(always)]
fn in_order() {
    if cfg!(tlbkit_loom) {
        fence(Ordering::SeqCst);
    }
}
