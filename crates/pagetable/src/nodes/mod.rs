//! Node storage: the only place that knows how an address in a word becomes memory.
//!
//! A table asks for nodes of the size that it needs, in words, and stores their [`NodeAddr`] in words, in whatever way its format
//! says. A node is as small as the table likes (a two-entry guarded node is a few words), so storage hands out many to a page.
//! Beside each node it keeps one 32-bit **record**, outside the node, because a node must not be overwritten while a walker may be
//! in it. In a table, the record counts the node's live entries. When the node is retired, in stock or free, the record links it to
//! the next such node.
//!
//! | storage | memory | for |
//! |-|-|-|
//! | [`Slab`] | an array that the caller hands over | every table; the arena may be mapped anywhere |
//! | [`Direct`] | the kernel's own frames, through a direct map | tables whose nodes are whole pages |
//! | [`Pieces`] | the same, cut where nodes are small | guarded tables |

#[cfg(not(tlbkit_loom))]
mod direct;
mod held;
#[cfg(not(tlbkit_loom))]
mod pieces;
mod range;
#[cfg(not(tlbkit_loom))]
mod slab;
mod stock;

use core::fmt::Debug;

#[cfg(not(tlbkit_loom))]
pub use direct::{Direct, FrameSource};
pub use held::Held;
pub(crate) use held::{Debt, Freed};
#[cfg(not(tlbkit_loom))]
pub use pieces::Pieces;
pub use range::LinkRange;
#[cfg(not(tlbkit_loom))]
pub use slab::{Chunk, Identity, Offset, Slab, SlabError, Usage, Window};
pub use stock::Stock;
pub(crate) use stock::{Spare, check_range, take_within};

use crate::Mode;
use crate::word::atomics::Ordering;
use crate::word::{Word, atomics};

/// The address of a node, exactly as a word holds it: an offset into an arena, a physical address, an address in
/// kseg0. Zero is no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct NodeAddr(usize);

impl NodeAddr {
    /// Wraps an address.
    #[inline(always)]
    pub const fn new(at: usize) -> Self {
        Self(at)
    }

    /// Returns the address.
    #[inline(always)]
    pub const fn get(self) -> usize {
        self.0
    }
}

impl Store {
    /// Returns the store of a word in a node.
    #[inline(always)]
    pub(crate) fn word<W: Word>(node: NodeAddr, index: usize, word: W) -> Self {
        Self::Word { at: node.get() + index * W::BYTES, value: word.to_u64() }
    }

    /// Returns the exchange of a word in a node.
    #[inline(always)]
    pub(crate) fn exchange<W: Word>(node: NodeAddr, index: usize, old: W, new: W) -> Self {
        Self::Exchange { at: node.get() + index * W::BYTES, old: old.to_u64(), new: new.to_u64() }
    }
}

/// The cell of a node's record.
pub type Record = atomics::AtomicU32;

/// What a table's writer did to the words of its nodes, in the order in which it did it: see [`Nodes::stored`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// A word holds `value` from here on. Its address is a [`NodeAddr`] plus the word's place in bytes.
    Word {
        /// The word's address.
        at: usize,
        /// What it holds.
        value: u64,
    },
    /// A word was exchanged atomically; `old` includes the bits that hardware had set.
    Exchange {
        /// The word's address.
        at: usize,
        /// What came out.
        old: u64,
        /// What the word holds.
        new: u64,
    },
    /// What was stored before is seen by a walker that sees what is stored after: a releasing store follows, or a fence.
    Release,
    /// What was stored before is visible before anything that follows: a sequentially consistent fence.
    Fence,
}

/// Storage for the nodes of tables.
///
/// Several tables, each with a writer of its own, may share one storage; in [`Shared`](crate::Shared) mode it keeps
/// them apart.
///
/// # Safety
///
/// An implementation hands out a node to one taker at a time: until it is freed, `at` maps its address to `words`
/// live cells that no other taker was given, all [`Word::ZERO`] at first, aligned to the largest power of two (up to
/// 4096) that divides its size in bytes; `record` maps it to one live record of its own. No byte of a node has an
/// address below [`lowest`](Self::lowest), nor above the `last` that its taker named, and no address wraps.
///
/// In [`Solo`](crate::Solo) mode the storage is not [`Sync`], even if its own lists have a lock: so the tables, whose
/// stores are plain, stay on one CPU.
///
/// [`take_within`](Self::take_within) and [`free`](Reclaim::free) may unwind, and so may the functions that do the same for a list
/// of nodes. No other function of the two traits may: tables call them in intermediate states.
pub unsafe trait Nodes: Reclaim + Debug {
    /// The words of the nodes.
    type Word: Word;
    /// One CPU or several.
    type Mode: Mode;

    /// Returns an address that no node lies below.
    fn lowest(&self) -> NodeAddr;

    /// Takes a node of `words` words, all zero, that ends at the address `last` or below it, or returns `None` if no
    /// such memory is free. The record is zero too.
    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr>;

    /// Takes a node as [`take_within`](Self::take_within) does, wherever it lies.
    #[inline]
    fn take(&self, words: usize) -> Option<NodeAddr> {
        self.take_within(words, usize::MAX)
    }

    /// Takes `count` nodes as [`take_within`](Self::take_within) does and puts each before a list of such nodes. `head` is the number
    /// of the list's first node, or 0; the record of each node holds the number of the next one. Tells whether there were `count`
    /// nodes. If there were fewer, they are in the list.
    ///
    /// It is a function of the storage, so that a storage with a lock takes it once for many nodes.
    #[doc(hidden)]
    fn take_list(&self, words: usize, count: usize, last: usize, head: &mut u32) -> bool {
        take_each(self, words, count, last, head)
    }

    /// Returns an upper bound on the nodes of `words` words that [`take`](Self::take) can hand out. A change that needs more is
    /// refused before it looks for anything.
    ///
    /// By default there is no bound.
    fn room(&self, words: usize) -> usize {
        let _ = words;
        usize::MAX
    }

    /// Returns the node's cells.
    ///
    /// # Safety
    ///
    /// `node` was taken from this storage and is not free.
    unsafe fn at(&self, node: NodeAddr) -> *const <Self::Word as Word>::Cell;

    /// Returns the node's record. `words` is what the node was taken with.
    ///
    /// # Safety
    ///
    /// As for [`at`](Self::at).
    unsafe fn record(&self, node: NodeAddr, words: usize) -> *const Record;

    /// Is called after each store to a word of a node. A storage that records them (`tlbkit-witness`) overrides this; the
    /// default is empty, and costs no instruction.
    ///
    /// The words of a node that [`take_within`](Self::take_within) clears are not reported, nor is a root that the table keeps
    /// beside its nodes.
    #[inline(always)]
    fn stored(&self, store: Store) {
        let _ = store;
    }

    /// Loads word `index` of a node as a walker does. A storage that counts references wraps this.
    ///
    /// # Safety
    ///
    /// As for [`at`](Self::at), or the node is retired and not reclaimed; `index` is within the node.
    #[inline(always)]
    unsafe fn follow(&self, node: NodeAddr, index: usize) -> Self::Word {
        // SAFETY: by this function's contract `node` is live, or retired and not reclaimed, and `index` is within it:
        // what `at` and `add` need.
        unsafe { Self::Word::follow(self.at(node).add(index)) }
    }

    /// Reads word `index` as the sole writer.
    ///
    /// # Safety
    ///
    /// As for [`at`](Self::at); the caller is the only writer of the node; `index` is within the node.
    #[inline(always)]
    unsafe fn read(&self, node: NodeAddr, index: usize) -> Self::Word {
        // SAFETY: by this function's contract `node` is live, `index` is within it, and no other CPU writes it.
        unsafe { Self::Mode::read(self.at(node).add(index)) }
    }

    /// Publishes a word: whatever it links is complete. A storage that plants faults wraps this.
    ///
    /// # Safety
    ///
    /// As for [`read`](Self::read).
    #[inline(always)]
    unsafe fn publish(&self, node: NodeAddr, index: usize, word: Self::Word) {
        // SAFETY: by this function's contract `node` is live, and `index` is within it: what `at` and `add` need.
        unsafe { Self::Mode::publish(self.at(node).add(index), word) }
        self.stored(Store::Release);
        self.stored(Store::word(node, index, word));
    }

    /// Stores a word that leads nowhere, or into a node that no walker can reach yet.
    ///
    /// # Safety
    ///
    /// As for [`read`](Self::read).
    #[inline(always)]
    unsafe fn store_relaxed(&self, node: NodeAddr, index: usize, word: Self::Word) {
        // SAFETY: by this function's contract `node` is live, and `index` is within it: what `at` and `add` need.
        unsafe { Self::Mode::store_relaxed(self.at(node).add(index), word) }
        self.stored(Store::word(node, index, word));
    }

    /// Folds `count` words from `first` on, all of them.
    ///
    /// # Safety
    ///
    /// As for [`read`](Self::read), for every word.
    #[inline(always)]
    unsafe fn fold(
        &self,
        node: NodeAddr,
        first: usize,
        count: usize,
        start: Self::Word,
        with: impl Fn(Self::Word, Self::Word) -> Self::Word,
    ) -> Self::Word {
        // SAFETY: by this function's contract `node` is live, and all `count` words from `first` on are within it.
        let cells = unsafe { self.at(node).add(first) };
        // SAFETY: `at` is below `count`, so the cell is in the node, of which the caller is the only writer.
        (0..count).fold(start, |all, at| with(all, unsafe { Self::Mode::read(cells.add(at)) }))
    }

    /// Stores `count` words from `first` on that lead nowhere: `word`, `word + step`, ...
    ///
    /// # Safety
    ///
    /// As for [`read`](Self::read), for every word.
    #[inline(always)]
    unsafe fn fill(
        &self,
        node: NodeAddr,
        first: usize,
        count: usize,
        mut word: Self::Word,
        step: Self::Word,
    ) {
        // SAFETY: by this function's contract `node` is live, and all `count` words from `first` on are within it.
        let cells = unsafe { self.at(node).add(first) };
        for at in 0..count {
            // SAFETY: `at` is below `count`, so the cell is in the node, of which the caller is the only writer.
            unsafe { Self::Mode::store_relaxed(cells.add(at), word) };
            self.stored(Store::word(node, first + at, word));
            word = word.advance(step, 1);
        }
    }

    /// Replaces each of `count` words from `first` on by what `change` makes of it.
    ///
    /// # Safety
    ///
    /// As for [`read`](Self::read), for every word.
    #[inline(always)]
    unsafe fn edit(
        &self,
        node: NodeAddr,
        first: usize,
        count: usize,
        change: impl Fn(Self::Word) -> Self::Word,
    ) {
        // SAFETY: by this function's contract `node` is live, and all `count` words from `first` on are within it.
        let cells = unsafe { self.at(node).add(first) };
        for at in 0..count {
            // SAFETY: `at` is below `count`, so the cell is in the node, of which the caller is the only writer.
            let word = unsafe {
                let word = change(Self::Mode::read(cells.add(at)));
                Self::Mode::store_relaxed(cells.add(at), word);
                word
            };
            self.stored(Store::word(node, first + at, word));
        }
    }
}

/// Takes nodes for a list one by one: see [`Nodes::take_list`].
#[inline]
fn take_each<N: Nodes + ?Sized>(nodes: &N, words: usize, count: usize, last: usize, head: &mut u32) -> bool {
    for _ in 0..count {
        let Some(node) = nodes.take_within(words, last) else { return false };
        // SAFETY: the node was taken and no other code knows it.
        unsafe { (*nodes.record(node, words)).store(*head, Ordering::Relaxed) };
        *head = nodes.index_of(node);
    }
    true
}

/// What the record of a retired node holds: the number of the next node, 0 if there is none, and whether the node is clean.
pub(crate) struct ListLink;

impl ListLink {
    /// The bit that says that the node is all zero. Node numbers stay below it.
    pub(crate) const CLEAN: u32 = 1 << 31;

    /// Returns the number of the next node, and whether this one is all zero.
    #[inline(always)]
    pub(crate) const fn read(link: u32) -> (u32, bool) {
        (link & !Self::CLEAN, link & Self::CLEAN != 0)
    }

    /// Returns the link of a node.
    #[inline(always)]
    pub(crate) const fn word(next: u32, clean: bool) -> u32 {
        if clean { next | Self::CLEAN } else { next }
    }
}

/// The part of [`Nodes`] that a batch of retired nodes needs, whatever their words are.
///
/// # Safety
///
/// `link` gives every taken node a record of its own, the one that [`Nodes::record`] gives; `index_of` and `node_of`
/// are inverse; and if `shared` says so, the storage is `Sync`.
pub unsafe trait Reclaim {
    /// Frees a node.
    ///
    /// # Safety
    ///
    /// The node was taken from this storage and is not free, and no walker can reach it any more. `clean` means that
    /// all its words are zero.
    unsafe fn free(&self, node: NodeAddr, clean: bool);

    /// Frees the nodes of a batch: `count` of them, linked through their records from `head` on. Takes each out of the list
    /// before it frees it.
    ///
    /// It is a function of the storage, so that a batch calls through `dyn` once, and not for each node.
    ///
    /// # Safety
    ///
    /// As for [`free`](Self::free), of each node; the records hold the links of a batch's list.
    #[doc(hidden)]
    unsafe fn free_list(&self, head: &mut Option<NodeAddr>, count: &mut usize) {
        self.held().reclaim(*count, self.shared());
        while let Some(node) = *head {
            // SAFETY: by this function's contract each node of the list is taken, no walker can reach it, and its record
            // is a link.
            let (next, clean) = ListLink::read(unsafe { (*self.link(node)).load(Ordering::Relaxed) });
            *head = (next != 0).then(|| self.node_of(next));
            *count -= 1;
            let freed = Freed::new(self.held(), *count);
            // SAFETY: by this function's contract each node of the list is taken, no walker can reach it, and its record
            // is a link.
            unsafe { self.free(node, clean) };
            freed.done();
        }
    }

    /// Returns the record through which a retired node is linked.
    ///
    /// # Safety
    ///
    /// The node was taken from this storage and is not free.
    unsafe fn link(&self, node: NodeAddr) -> *const Record;

    /// Returns the number that stands for a node in a record: never zero, below 2^31.
    fn index_of(&self, node: NodeAddr) -> u32;

    /// The inverse of [`index_of`](Self::index_of).
    fn node_of(&self, index: u32) -> NodeAddr;

    /// Tells whether several CPUs may use the storage.
    fn shared(&self) -> bool;

    /// Returns the tally of nodes that are out of the tables and not yet free.
    fn held(&self) -> &Held;
}
