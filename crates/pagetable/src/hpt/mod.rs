//! The hashed page table (HPT): one probe finds the PTE, whatever the width of the address.
//!
//! ```text
//!  virtual address | block number   | slot | offset |
//!                      |                |
//!                      | hash           |
//!   root ---> +--------v-------+        |
//!             | bucket         |        |             overflow buckets
//!             | bucket:  tag | PTE 0 PTE 1 .. | link -+--> tag | PTEs | link -+--> ...
//!             | bucket         |
//!             +----------------+
//! ```
//!
//! A hash of the block number, which is the address without page offset and slot, is the index into an array of buckets. A
//! **tag** names the block of a bucket, and the bucket has one PTE for each page of that block. Blocks with the same hash
//! are chained in overflow buckets (Elphinstone et al. 2.2; 3.2: H8k and H128k). [`Hashed`] implements blocks of one to
//! sixteen pages. The literature calls a table with blocks of one or two pages hashed, and one with larger blocks
//! [clustered](crate::cpt). In a table that a refill handler may walk, the bucket of a larger block consists of units of a
//! pair each, with a tag and a link: the same handler serves both kinds.
//!
//! | | words | bucket | |
//! |-|-|-|-|
//! | [`H8k`], [`H128k`] | 32 bits | 64-bit tag, 2 PTEs, 2 mapping-tree words, 64-bit link: 32 bytes | the paper's, 256 and 4096 buckets |
//! | [`Hpt32`] | 32 bits | tag, 2 PTEs, link: 16 bytes | for MIPS32 |
//! | [`Hr`] | 64 bits | tag, PTE, link: 32 bytes with padding | grows |
//! | [`HrSmall`] | 32 bits | 64-bit tag, PTE, link: 16 bytes | grows; small |
//!
//! ```
//! use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
//! use tlbkit_pagetable::nodes::{Chunk, Slab};
//! use tlbkit_pagetable::{Local, Solo, hpt};
//!
//! let mut memory = vec![Chunk::ZERO; 16];
//! let slab = Slab::<u32, Solo>::new(&mut memory, 0)?;
//! let mut table = Local::new(hpt::H8k::new(&slab)?, |_stale| ());
//! assert_eq!(table.footprint().bytes, 8192);
//!
//! // Pages at both ends of 64 bits cost the same.
//! for page in [Vpn::new(3), VirtAddr::new(usize::MAX).vpn(PageSize::K4)] {
//!     table.map(Pages::one(page), Pfn::new(7), PageSize::K4, Attr::READ)?;
//!     assert!(table.lookup(page.address(PageSize::K4)).is_some());
//! }
//! table.destroy();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Cost
//!
//! | operation | loads and stores of table words |
//! |-|-|
//! | lookup, first bucket | 2: tag and PTE, whose addresses do not depend on another load. A 64-bit tag in 32-bit words is 2 loads. In a table that grows, two words of the directory come first, or one if a refill handler may walk the table |
//! | each overflow bucket before the hit | link and tag; the load of the tag depends on the link |
//! | lookup in [`Hr`] and other tables of 64-bit words that grow | 8: two of the directory, three tags and two links of the [near buckets](#near-buckets), and the PTE. Each overflow bucket behind these is 2 loads more |
//! | miss | tag and link of every bucket of the chain |
//! | map, unmap, protect one page | the probe, then one store; a block's first page stores its tag, and the link to an overflow bucket, unless the bucket is still there |
//! | mark, fill one page | two or three probes, then the same stores |
//! | a range | a probe for each block and a load and a store for each page, twice: the dry run comes first. The dry run checks for entries in the way and reserves buckets in one visit, unless larger pages are mapped |
//! | iterate | a probe for each block, or every bucket once if that is less |
//!
//! On x86-64 every operation takes at most 2 KiB of stack, also while the table grows; `cargo xtask stack` prints the
//! figures.
//!
//! With `n` blocks in `m` buckets, hashed evenly, a hit reads `1 + n / 2m` buckets on average. A table that is too small for
//! its load is slow because of its chains, as H8k is from 1000 pages on (Elphinstone et al. 4.2). `Hr` grows, and so avoids
//! this.
//!
//! # Move to front
//!
//! In [`Solo`](crate::Solo) mode, tables of a fixed size swap the bucket that a lookup hits with the first of its
//! chain, as the paper's refill routine does. In other tables a lookup never writes: a table that grows has short chains,
//! and in shared mode a lookup must not write.
//!
//! # Larger pages
//!
//! The leaf of a page that is at most as large as a block is in the block's bucket, in every slot that the page covers.
//! Larger pages have their own buckets, with tags of a coarser **grain**, whose slots are larger pages. One word says which
//! grains are in use, so only address spaces with such pages probe for them (Talluri, Hill and Khalidi call these multiple
//! page tables in one).
//!
//! # Growing and shrinking
//!
//! A table whose load has a bound ([`Sizes::LOAD`] percent) grows by linear hashing, a **segment** of 128 buckets at a time (256 in
//! [`HrSmall`], 512 units in tables that a refill handler may walk), and shrinks when it has less than a quarter of that load. A
//! **directory** has the addresses of the segments, which costs a lookup two more loads, or one. A change of one page splits or
//! merges at most one segment, or makes a few steps that part the chains which the last split has joined, for any set of pages.
//! Without memory the chains get longer, and a later change tries again. The source of `hpt/grow.rs` describes how walkers find
//! their buckets during this.
//!
//! | largest cost | for a change of one page |
//! |-|-|
//! | buckets moved | those of a segment by a split, of two by a merge, or 16 of chains: 128, 256 and 16 in [`Hr`] |
//! | chains swept | 16, and that of the page; a merge may follow |
//! | bytes cleared | two segments, and once for each doubling a directory, of 8 bytes for each segment |
//! | words accessed, among a million changes of up to 500,000 pages | [`Hr`] 14,102, the average is 34; [`Cpt8`](crate::cpt::Cpt8) 18,555 and 62 |
//!
//! `cargo test -p tlbkit-pagetable --test all hashed_bounds -- --nocapture` prints the words, and `cargo xtask worst` the time of the
//! slowest change of a million and the most bytes that a page takes at any size. A directory has at most 32,768 entries: 4 million
//! first buckets in [`Hr`]. Beyond that, chains get longer.
//!
//! # Vacant buckets
//!
//! In a table that grows, a bucket of base pages that an unmap empties stays in its chain, **vacant**, and the next map of its
//! page is one probe and one store. The table keeps at most as many vacant buckets as it has blocks with an entry; beyond that,
//! each change sweeps a few chains, and an empty table has none. Vacant buckets count in the [`Footprint`]:
//! where pages are exchanged for others again and again, a table takes up to twice the memory of one whose pages were only mapped.
//!
//! A change may be refused for want of memory while there are vacant buckets. [`Writer::trim`](crate::Writer::trim) retires them
//! all. Without it, too, the table keeps none after a lack of memory: each unmap that empties a bucket gives it back. A bucket of
//! [`PaperHr`] is never vacant, because the kernel's own words are in it.
//!
//! # Several writers
//!
//! A table in shared mode may have several writers at a time ([`Hashed::with_locks`]): a [`PageTurn`](crate::PageTurn) gives the right to
//! change one page, and its [`Slot`] makes the change.
//!
//! | a right to | excludes | changes |
//! |-|-|-|
//! | one page | the other pages of its 2 MiB, and of those with the same one of 32 locks; with a slot, the other slots of its chain | words of the chain; it may link an overflow bucket |
//! | a range, or the whole table | every writer | anything |
//!
//! A slot has two locks. The first one is chosen by the address, so threads with ranges of their own do not share its line: writers of the
//! whole table wait for it, and its holder counts beside it. The second one is that of the chain: a word in the padding of the first bucket,
//! whose line the change reads in any case. Of two chains that are [joined](#growing-and-shrinking) it is that of the first one. Nothing else
//! of the table is touched: a change of the size, of the directory or of which chains are joined, and the removal of a bucket, are
//! those of a writer of the whole table. So is a change of a range, because its blocks are in chains all over the table.
//!
//! A table whose first buckets have no padding has one writer at a time: [`H8k`], [`H128k`], [`PaperHr`], [`Hpt32`], [`HrSmall`], and clustered
//! tables that a refill handler may walk.
//!
//! Beside the first lock there are counts of PTEs, of buckets that have been taken into use or emptied, and of nodes. The next writer of the
//! whole table adds them to the table's own, and grows, sweeps or shrinks the table for all of these changes. A slot returns `None`, so that
//! the caller takes the whole table, when with its lock one bucket for each 128 first buckets has been taken, or emptied, at least one and at
//! most 64; or when earlier changes of slots are still to be made up for. So with all 32 locks in use a table grows late by a quarter of its
//! first buckets, and one change makes up for at most 256 others. After a lack of memory no slot takes or empties a bucket.
//!
//! # Near buckets
//!
//! In a table with 150 blocks for each 100 first buckets, 52 of 100 blocks are in the first bucket of their chain, 30 in the
//! second, and 12 in the third. A walk that stops at the bucket with the right tag branches on a tag that no CPU can predict, and
//! waits for a mispredicted branch in half of all lookups. So a lookup reads these three buckets without a branch: two
//! conditional moves select the next bucket, or the same one again if its tag matches or its chain ends there. Only the
//! comparison of the third tag is a branch, which is predicted well. In pages looked up in random order, a hit takes about two
//! thirds of the time that it takes with branches; a lookup that waits for the result of the one before takes about a tenth
//! longer (`cargo xtask bench --summary 'lookup dense' 'lookup chain dense'`). The search for the page of a change is the same.
//! That of a range branches, because the pages of a range are often changed in the order of an earlier change, and then the CPU
//! predicts well. So does that of an unmap of one page in a clustered table, because most pages are unmapped in a run, and the pages
//! of a block take the same branches.
//!
//! Tables of a fixed size, tables that a refill handler may walk, and tables of 32-bit words with tags of two words search bucket by
//! bucket.
//!
//! # Instructions of a hit
//!
//! `cargo xtask instructions HR hit` (and `CPT4`, `CPT8`) counts a call on x86-64: 61, 65 and 64 in solo mode, the mean of
//! hits in the near buckets and behind them, and two more in shared mode, which loads the count of
//! [steps](#growing-and-shrinking). A hit in a near bucket of an [`Hr`] in solo mode is 59 of them:
//!
//! | instructions | for |
//! |-|-|
//! | 4 | the check that the address is in the address space |
//! | 7 | the key, the tag that its bucket has, and a copy of the address for the end |
//! | 1 | the root |
//! | 6 | **the hash**: load the secret, multiply, fold the halves of the product, multiply |
//! | 7 | **the directory**: load the mask, shift and mask the hash, split it, load the segment |
//! | 19 | the first two of the near buckets: for each, load the link and the tag, compare both, select the next bucket |
//! | 3 | load the third tag, compare |
//! | 3 | load the PTE, test whether it is valid |
//! | 9 | the physical address, the alignment of the stack for calls that only misses and later buckets make, and the return |
//!
//! * **The secret** costs no instruction itself, because a public number would also be loaded. It makes a second product
//!   necessary, which costs four instructions: one product is sufficient for a public number that is known to spread
//!   adjacent pages, but some secrets would turn a stride into long chains
//!   (`cargo test -p tlbkit-pagetable --test all hashed_bounds` tries a hundred). With two products none does.
//! * **Growth without a lock on the walk** costs five instructions and two loads. An array of a fixed size has its address
//!   in the root word, and a shift computes the bucket. Here the size and the segments must change in one store, so they are
//!   in a separate node, the directory, whose first word is the mask.
//!
//! # Chains
//!
//! Only the hash bounds the length of a chain. A lookup that reads a chain of `c` buckets loads their tags and links. With
//! the public hash ([`Hashed::new`]), a program that chooses its addresses can put all blocks into one chain. With a secret
//! ([`Hashed::keyed`]) it would have to know the secret. The hash that a refill handler computes has no secret: it folds the
//! address in two instructions, and a multiplication would need HI and LO, which belong to the interrupted program. So in a
//! 32-bit space a user program can make long chains: 2^19 pairs fold onto `m` units, at most `2^19 / m` onto each, which is
//! 512 in [`Hpt32`]. A table that grows has as many first buckets as its load demands, and its longest chain has
//! at most some 400 buckets. A program affects only the table of its own space.

mod census;
mod chain;
mod grow;
mod map;
mod mark;
mod mend;
mod move_to_front;
mod node;
mod one_page;
mod protect;
mod replace;
mod resize;
mod shape;
mod sizes;
mod slot;
mod table;
mod tag;
mod unmap;
mod vacant;
mod visit;
mod walk;

use core::fmt;
use core::marker::PhantomData;

pub use sizes::{Buckets, Sizes};
pub use slot::Slot;

use shape::Shape as _;

use crate::footprint::Tally;
use crate::format::{Compact32, Format};
use crate::node_locks::Count;
use crate::nodes::{NodeAddr, Nodes};
use crate::word::atomics::{AtomicUsize, Ordering};
use crate::{Error, Footprint, Geometry, Mode as _, NodeLocks, Word, WriterFlag, geometry};

/// A hashed page table of geometry `G` with entries of format `F` in nodes from `N`.
///
/// `S` has the sizes: [`Buckets`].
///
/// The value itself is a handle of a few words; the table is its nodes.
pub struct Hashed<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> {
    nodes: &'n N,
    /// The array's address, and in its low bits the base-two logarithm of the number of its buckets. In a table that grows
    /// the [directory's](grow) address.
    root: <F::Word as Word>::Cell,
    /// The odd number by which the hash multiplies keys.
    secret: usize,
    /// The set of grains in use, without the finest; the flag that pages have [moved](MOVE) between grains; and the
    /// [number of moves](MOVES). While it is zero, walkers need not search again.
    grains: AtomicUsize,
    /// The number of buckets in use, by grain.
    used: [AtomicUsize; shape::MAX],
    /// The number of visits under way, during which no lookup may reorder a chain.
    visits: AtomicUsize,
    /// The number of [vacant] buckets of base pages, which are among those in use.
    vacant: AtomicUsize,
    /// Whether a change has ever found no memory: 1, or 0.
    lacked_memory: AtomicUsize,
    /// The number of the first bucket at which the next sweep begins, or one that is too large, if it begins at the first.
    swept: AtomicUsize,
    growth: grow::Growth,
    flag: WriterFlag,
    /// By which several writers share the table; `None`: it has one at a time.
    locks: Option<&'n NodeLocks>,
    tally: Tally,
    shape: PhantomData<(G, F, S)>,
}

/// The bit of the grains word that says that a page has been split or promoted. It keeps the word from being zero when the
/// count wraps.
const MOVE: usize = 1 << shape::MAX;
/// The number that a split or promotion adds to the grains word.
const MOVES: usize = MOVE << 1;

/// The paper's hashed table of 8 KiB: 256 buckets of a page pair, to the byte.
#[cfg(target_pointer_width = "64")]
pub type H8k<'n, N> = Hashed<'n, geometry::Va64, crate::format::Paper, N, Buckets<1, 8, 0>>;

/// The paper's hashed table of 128 KiB: 4096 buckets of a page pair, to the byte.
#[cfg(target_pointer_width = "64")]
pub type H128k<'n, N> = Hashed<'n, geometry::Va64, crate::format::Paper, N, Buckets<1, 12, 0>>;

/// The paper's bucket in a table that grows.
#[cfg(target_pointer_width = "64")]
pub type PaperHr<'n, N> = Hashed<'n, geometry::Va64, crate::format::Paper, N, Buckets<1, 1, 100>>;

/// Page pairs of a 32-bit space in 1024 buckets of four words: 16 KiB.
pub type Hpt32<'n, N, F = Compact32> = Hashed<'n, geometry::Va32, F, N, Buckets<1, 10, 0>>;

/// Single pages of a 48-bit space in a table that grows: at most 37 bytes a page from a thousand pages on while pages are mapped, and
/// up to [twice that](crate::hpt#vacant-buckets) where they are exchanged for others.
#[cfg(target_pointer_width = "64")]
pub type Hr<'n, N> = Hashed<'n, geometry::Va48, crate::format::Compact, N, Buckets<0, 1, 150>>;

/// Single pages of a 64-bit space in a table that grows late: the least memory for pages without mapped neighbours.
#[cfg(target_pointer_width = "64")]
pub type HrSmall<'n, N> = Hashed<'n, geometry::Va64, Compact32, N, Buckets<0, 4, 200>>;

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Returns an empty table with the public hash.
    ///
    /// A program that chooses its addresses can put all blocks into one chain: see [`keyed`](Self::keyed) and
    /// [chains](crate::hpt#chains).
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] if there is no node for the array.
    pub fn new(nodes: &'n N) -> Result<Self, Error> {
        Self::multiplied(nodes, shape::GOLDEN)
    }

    /// Returns an empty table whose hash uses a secret, which must be a random number for this table only.
    ///
    /// An array of a fixed size then has a hash of a universal family (multiply-shift: Dietzfelbinger et al. 1997): two
    /// pages chosen without knowledge of the secret share one of `m` first buckets with a probability of `2 / m` at most. A
    /// table that grows folds the product and multiplies a second time. In both cases a lookup reads a few other buckets on
    /// average, for any set of pages. The secret costs no instruction: the public hash is the same with a public number. A
    /// number that is not random, such as a small one, can be guessed, but gives an equally good hash, because the
    /// multiplier depends on all of its bits.
    ///
    /// A program that measures the time of many lookups may find pages that collide. Such pages cost a longer chain; the
    /// bound on the number of blocks that a change moves also holds for them.
    ///
    /// Tables that a refill handler walks, those of 32-bit spaces or with paired words, do not use the secret
    /// ([chains](crate::hpt#chains)).
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] if there is no node for the array.
    pub fn keyed(nodes: &'n N, secret: usize) -> Result<Self, Error> {
        Self::multiplied(nodes, shape::multiplier(secret))
    }

    /// Returns an empty table whose hash multiplies keys by `multiplier`, which is odd.
    fn multiplied(nodes: &'n N, multiplier: usize) -> Result<Self, Error> {
        const {
            assert!(G::BASE.shift() == F::BASE.shift(), "the format counts frames of another size");
            assert!(S::BUCKETS_LOG <= 24, "at most 16 million buckets to begin with");
            assert!(
                S::LOAD == 0 || S::BUCKETS_LOG <= Self::SEGMENT_LOG,
                "a table that grows begins with one segment"
            );
            assert!(
                S::BUCKETS_LOG > 0 || S::LOAD == 0,
                "a table that grows begins with two buckets, so that its hash has a bit"
            );
            assert!(
                (Self::STRIDE * F::Word::BYTES) << S::BUCKETS_LOG > shape::LOG,
                "the root word has room for the size"
            );
        }
        let mut table = Self {
            nodes,
            root: F::Word::ZERO.cell(),
            secret: multiplier,
            grains: AtomicUsize::new(0),
            used: core::array::from_fn(|_| AtomicUsize::new(0)),
            visits: AtomicUsize::new(0),
            vacant: AtomicUsize::new(0),
            lacked_memory: AtomicUsize::new(0),
            swept: AtomicUsize::new(0),
            growth: grow::Growth::new(1 << S::BUCKETS_LOG),
            flag: WriterFlag::new(nodes.held()),
            locks: None,
            tally: Tally::default(),
            shape: PhantomData,
        };
        let root = table.begin().ok_or_else(|| Error::no_memory(1, nodes.held()))?;
        table.root = F::Word::from_usize(root).cell();
        Ok(table)
    }

    /// Returns the table, which has several writers from now on: those of single pages. It must be a table whose first buckets have
    /// padding, as [`Hr`] and the clustered tables of 64-bit words have: see [several writers](crate::hpt#several-writers).
    #[must_use]
    pub fn with_locks(mut self, locks: &'n mut NodeLocks) -> Self {
        const {
            assert!(N::Mode::SHARED, "a table of one CPU has one writer");
            assert!(Self::NODE < Self::STRIDE, "a first bucket has no room for the lock of its chain");
        }
        // Another table may have had them, and a right to write it may have been forgotten.
        locks.free();
        self.locks = Some(locks);
        self
    }

    /// Returns the locks, if the table has any. A constant says that some tables have none.
    #[inline(always)]
    fn locks(&self) -> Option<&'n NodeLocks> {
        self.locks.filter(|_| N::Mode::SHARED && Self::NODE < Self::STRIDE)
    }

    /// Returns the root word: the address of the array of buckets, with the base-two logarithm of the number of buckets in
    /// its low five bits. In a table that grows it is the address of the directory, which never changes if a refill handler
    /// may walk the table.
    pub fn root(&self) -> usize {
        F::Word::follow(&self.root).to_usize()
    }

    /// Returns the number of blocks with at least one leaf or mark.
    pub fn blocks(&self) -> usize {
        let beside = |locks: &NodeLocks| locks.sum(Count::Buckets).wrapping_sub(locks.sum(Count::Vacant));
        self.known_blocks().saturating_add_signed(self.locks().map_or(0, beside))
    }

    /// Returns the same, to a change of the whole table, without what is counted beside the locks.
    fn known_blocks(&self) -> usize {
        self.used().saturating_sub(self.vacant.load(Ordering::Relaxed))
    }

    /// Returns the footprint, with what is counted beside the locks.
    fn all_counts(&self) -> Footprint {
        let mut all = self.tally.footprint();
        if let Some(locks) = self.locks() {
            let nodes = locks.sum(Count::Nodes);
            all.nodes = all.nodes.saturating_add_signed(nodes);
            all.bytes = all.bytes.saturating_add_signed(nodes * (Self::NODE * F::Word::BYTES) as isize);
            all.ptes = all.ptes.saturating_add_signed(locks.sum(Count::Ptes));
        }
        all
    }

    /// Returns how many buckets are in use: those of blocks, and the [vacant] ones.
    fn used(&self) -> usize {
        self.used[..Self::GRAINS].iter().map(|used| used.load(Ordering::Relaxed)).sum()
    }
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Drop for Hashed<'_, G, F, N, S> {
    fn drop(&mut self) {
        // SAFETY: this is the `drop` of the table to which the flag belongs.
        unsafe { self.nodes.held().count_dropped_table(&self.flag, self.all_counts().nodes) };
    }
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> fmt::Debug for Hashed<'_, G, F, N, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let low = if S::LOAD == 0 { shape::LOG } else { 0 };
        f.debug_struct("Hashed")
            .field("root", &NodeAddr::new(self.root() & !low))
            .field("buckets", &self.buckets())
            .field("footprint", &self.all_counts())
            .finish_non_exhaustive()
    }
}
