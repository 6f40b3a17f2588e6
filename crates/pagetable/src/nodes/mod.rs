//! Node storage: the only module that maps an address in a word to memory.
//!
//! A table takes nodes of the size that it needs, in words, and stores their [`NodeAddr`] in words, as its format encodes
//! links. A node can be small (a guarded node of two entries is a few words), so a page holds many nodes. For each node, the
//! storage keeps a **record** of 32 bits outside of the node, because a node must not be overwritten while a walker may be
//! in it. While the node is in a table, the record counts its live entries. While the node is retired, in stock or free, the
//! record links it to the next such node.
//!
//! | storage | memory | for |
//! |-|-|-|
//! | [`Slab`] | an array that the caller provides | every table; the array may be mapped anywhere |
//! | [`Direct`] | the kernel's own frames, through a direct map | tables whose nodes are whole pages |
//! | [`Pieces`] | the kernel's own frames, cut into small nodes | guarded tables |

#[cfg(not(tlbkit_loom))]
mod direct;
mod held;
#[cfg(not(tlbkit_loom))]
mod pieces;
mod range;
#[cfg(not(tlbkit_loom))]
mod slab;
mod stock;
mod words;

use core::fmt::Debug;
use core::hint::assert_unchecked;
use core::marker::PhantomData;

#[cfg(not(tlbkit_loom))]
pub use direct::{Direct, FrameSource};
pub use held::Held;
pub(crate) use held::{Debt, Freed, GONE};
#[cfg(not(tlbkit_loom))]
pub use pieces::Pieces;
pub use range::LinkRange;
#[cfg(not(tlbkit_loom))]
pub use slab::{Chunk, Identity, Offset, Slab, SlabError, Usage, Window};
pub use stock::Stock;
pub(crate) use stock::{Spare, check_range, take_within};
pub use words::{WordMut, WordRef, WordsMut};

use crate::Mode;
use crate::word::atomics::Ordering;
use crate::word::{Word, atomics};

/// The address of a node, as a word holds it: an offset into an arena, a physical address, or an address in kseg0. Zero
/// means no node.
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

/// The cell of a node's record.
pub type Record = atomics::AtomicU32;

/// A store or fence of a table's writer, which [`Nodes::stored`] receives in the order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// A store of `value` to a word. The word's address is a [`NodeAddr`] plus the word's offset in the node, in bytes.
    Word {
        /// The word's address.
        at: usize,
        /// The new value.
        value: u64,
    },
    /// An atomic exchange of a word, or a store over a leaf entry in which hardware can set no more bits. `old` includes the
    /// bits that hardware had set.
    Exchange {
        /// The word's address.
        at: usize,
        /// The old value.
        old: u64,
        /// The new value.
        new: u64,
    },
    /// A release: a walker that sees a store after it also sees the stores before it. A releasing store follows, or it is a
    /// fence.
    Release,
    /// A sequentially consistent fence: the stores before it are visible before any access after it.
    Fence,
}

/// Storage for the nodes of tables.
///
/// Several tables, each with its own writer, may share one storage; in [`Shared`](crate::Shared) mode the writers may run at
/// the same time.
///
/// A table accesses words by [`word`](Self::word), [`word_mut`](Self::word_mut) and [`words_mut`](Self::words_mut): each is the
/// proof that the words stay in the storage, and the accesses themselves are safe.
///
/// # Safety
///
/// An implementation ensures, for a node from its take until it is freed:
///
/// - no other taker gets any part of the node;
/// - `at` and `walked_at` return a pointer to `words` live cells, which are all [`Word::ZERO`] at first, and aligned to the
///   largest power of two (up to 4096) that divides the node's size in bytes;
/// - its address is a multiple of that power of two, or of its size if that is a larger power of two, as hardware needs of a root of
///   several pages;
/// - `record_at` returns a pointer to a live record that belongs to no other node;
/// - [`storing`](Self::storing) returns the word that it was given, and stores nothing; only a storage of which no code relies on a
///   table, one that injects faults, may do otherwise;
/// - `record`, `word`, `word_mut` and `words_mut` are those provided;
/// - no byte of the node has an address below [`lowest`](Self::lowest) or above the `last` of its taker, and no address
///   wraps.
///
/// In [`Solo`](crate::Solo) mode the storage is not [`Sync`], even if its own lists have a lock, so that the tables, whose
/// stores are plain, stay on one CPU.
///
/// [`take_within`](Self::take_within) and [`free`](Reclaim::free), and the functions that do the same for a list of nodes,
/// may unwind. No other function of the two traits unwinds, because tables call them in intermediate states.
pub unsafe trait Nodes: Reclaim + Debug {
    /// The words of the nodes.
    type Word: Word;
    /// The mode: one CPU or several.
    type Mode: Mode;

    /// Whether each word of a run is accessed by itself, through [`at`](Self::at). A storage that observes the writer sets it.
    const WORD_BY_WORD: bool = false;

    /// Returns a lower bound on the addresses of nodes.
    fn lowest(&self) -> NodeAddr;

    /// Takes a node of `words` words whose last byte has an address of at most `last`. All words and the record are zero.
    /// Returns `None` if no such memory is free.
    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr>;

    /// As [`take_within`](Self::take_within), at any address.
    #[inline]
    fn take(&self, words: usize) -> Option<NodeAddr> {
        self.take_within(words, usize::MAX)
    }

    /// Takes `count` nodes as [`take_within`](Self::take_within) does, and puts each at the head of a list. `head` is the
    /// number of the list's first node, or 0; the record of each node holds the number of the next one. Returns whether
    /// there were `count` nodes. If there were fewer, they are in the list.
    ///
    /// It is a function of the storage, so that a storage with a lock takes the lock once for many nodes.
    #[doc(hidden)]
    fn take_list(&self, words: usize, count: usize, last: usize, head: &mut u32) -> bool {
        take_each(self, words, count, last, head)
    }

    /// Returns an upper bound on the number of nodes of `words` words that [`take`](Self::take) can return. A table refuses
    /// a change that needs more before its dry run. The default is no bound.
    fn room(&self, words: usize) -> usize {
        let _ = words;
        usize::MAX
    }

    /// Returns the place of a node's cells. The pointer is valid from the take of the node until it is freed.
    fn at(&self, node: NodeAddr) -> *const <Self::Word as Word>::Cell;

    /// Returns what [`at`](Self::at) returns, before a walk loads word `index` of the node. A storage that counts the loads of
    /// walks overrides it.
    #[inline(always)]
    fn walked_at(&self, node: NodeAddr, index: usize) -> *const <Self::Word as Word>::Cell {
        let _ = index;
        self.at(node)
    }

    /// Returns the place of the record of a node that was taken with `words` words. The pointer is valid from the take of the
    /// node until it is freed.
    fn record_at(&self, node: NodeAddr, words: usize) -> *const Record;

    /// Receives what the writer is about to store, by an access of the storage's mode, and returns the word to store, or `None` to
    /// drop the store. A storage that injects faults overrides it.
    #[inline(always)]
    fn storing(&self, at: WordMut<'_, Self>, word: Self::Word) -> Option<Self::Word> {
        let _ = at;
        Some(word)
    }

    /// Receives each store to a word of a node, after the store. A storage that records stores (`tlbkit-witness`) overrides
    /// it. The default is empty, and costs no instruction.
    ///
    /// It does not receive the clearing of a node by [`take_within`](Self::take_within), nor stores to a root word outside
    /// of the nodes.
    #[inline(always)]
    fn stored(&self, store: Store) {
        let _ = store;
    }

    /// Returns the record of a node.
    ///
    /// # Safety
    ///
    /// `node` was taken from this storage with `words` words, and is not free for the lifetime of the result.
    #[inline(always)]
    unsafe fn record(&self, node: NodeAddr, words: usize) -> &Record {
        let record = self.record_at(node, words);
        // SAFETY: by this function's contract the node is not free, so the pointer is valid. It is not null; the compiler need not
        // compute what a storage returns for other nodes.
        unsafe {
            assert_unchecked(!record.is_null());
            &*record
        }
    }

    /// Returns word `index` of a node, for a walk.
    ///
    /// # Safety
    ///
    /// The caller ensures, for the lifetime of the result:
    ///
    /// - `node` was taken from this storage and is not free; it may be retired and not yet reclaimed;
    /// - `index` is less than the number of the node's words.
    #[inline(always)]
    unsafe fn word(&self, node: NodeAddr, index: usize) -> WordRef<'_, Self> {
        WordRef { nodes: self, node, index, here: PhantomData }
    }

    /// Returns word `index` of a node, for the only writer.
    ///
    /// # Safety
    ///
    /// The caller ensures, for the lifetime of the result:
    ///
    /// - `node` was taken from this storage and is not free;
    /// - `index` is less than the number of the node's words;
    /// - no other CPU writes the word, or each of them does so by accesses that are atomic in every mode.
    #[inline(always)]
    unsafe fn word_mut(&self, node: NodeAddr, index: usize) -> WordMut<'_, Self> {
        WordMut { nodes: self, node, index, here: PhantomData }
    }

    /// Returns `count` words of a node from `first` on, for the only writer.
    ///
    /// # Safety
    ///
    /// The contract of [`word_mut`](Self::word_mut), for each of the words. `first` is at most the number of the node's words.
    #[inline(always)]
    unsafe fn words_mut(&self, node: NodeAddr, first: usize, count: usize) -> WordsMut<'_, Self> {
        WordsMut { nodes: self, node, first, count, here: PhantomData }
    }
}

/// Implements [`Nodes::take_list`] by taking the nodes one by one.
#[inline]
fn take_each<N: Nodes + ?Sized>(nodes: &N, words: usize, count: usize, last: usize, head: &mut u32) -> bool {
    for _ in 0..count {
        let Some(node) = nodes.take_within(words, last) else { return false };
        // SAFETY: the node was just taken with `words` words, and no other code knows it.
        unsafe { nodes.record(node, words) }.store(*head, Ordering::Relaxed);
        *head = nodes.index_of(node);
    }
    true
}

/// The encoding of a retired node's record: the number of the next node, or 0 if there is none, and whether the node is
/// clean.
pub(crate) struct ListLink;

impl ListLink {
    /// The flag that all words of the node are zero. Node numbers are less than it.
    pub(crate) const CLEAN: u32 = 1 << 31;

    /// Returns the number of the next node, and whether all words of this node are zero.
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

/// The part of [`Nodes`] that a batch of retired nodes needs, independent of the type of words.
///
/// # Safety
///
/// An implementation ensures:
///
/// - for every taken node, `link` returns the same pointer as [`Nodes::record_at`];
/// - `node_of` is the inverse of `index_of`;
/// - if `shared` returns true, the storage is `Sync`;
/// - two storages at one address, such as one and its first field, have the same nodes, numbers and [`Held`]:
///   [`Retired::append`](crate::Retired::append) compares addresses.
pub unsafe trait Reclaim {
    /// Frees a node.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - `node` was taken from this storage, and is not free;
    /// - no walker can reach `node` any more;
    /// - if `clean`, all words of `node` are zero.
    unsafe fn free(&self, node: NodeAddr, clean: bool);

    /// Frees the `count` nodes of a batch, which are linked through their records from `head` on. Removes each node from the
    /// list before it frees the node.
    ///
    /// It is a function of the storage, so that a batch makes one dynamic call instead of one for each node.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - every node of the list was taken from this storage, and is not free;
    /// - no walker can reach a node of the list any more;
    /// - the records link a list of `count` nodes, as a batch does, and all words of a node that is marked clean are zero.
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

    /// Returns the number that represents a node in a record. It is not zero, and less than 2^31.
    fn index_of(&self, node: NodeAddr) -> u32;

    /// Returns the node with this number: the inverse of [`index_of`](Self::index_of).
    fn node_of(&self, index: u32) -> NodeAddr;

    /// Tells whether several CPUs may use the storage.
    fn shared(&self) -> bool;

    /// Returns the tally of nodes that are in no table and not free.
    fn held(&self) -> &Held;
}
