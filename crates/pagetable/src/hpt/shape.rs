//! The constants of a hashed table, which follow from its geometry, its format and its cluster size.
//!
//! ```text
//!  bucket   | tag | PTE 0 | PTE 1 | ... | PTE 2^c - 1 | the kernel's words, if any | link | (padding) |
//!           0     PTE                                 EXTRA                        LINK   NODE        STRIDE
//! ```
//!
//! In the array, a bucket is padded to a power of two, so that a shift computes its address. An overflow bucket is not
//! padded.
//!
//! # Units
//!
//! In a table that a refill handler walks, a bucket of more than one pair has no padding. It consists of **units**: a tag, a
//! pair of PTEs, and a link each.
//!
//! ```text
//!  bucket   | tag | PTE | PTE | link | tag | PTE | PTE | link | ...     of 2^(c-1) units
//!           0     PTE         LINK   UNIT                       NODE = STRIDE
//! ```
//!
//! A unit has the layout of a bucket in a table of pairs, so the same handler finds a pair in both: it hashes the pair's
//! number and compares the unit's tag. The number that the hash and the tag use is the **key**. (In other tables a bucket is
//! one unit.) The low bits of the folded key select the unit, the bits above them the bucket. All pairs of a block are in
//! one bucket, in the order `unit XOR` [`turn(block)`](Hashed::turn).

use tlbkit_addr::{PageSize, VirtAddr, Vpn};

use super::{Hashed, Sizes};
use crate::format::{Format, entry_of};
use crate::nodes::{NodeAddr, Nodes};
use crate::{Entry, Geometry, Leaf, Word};

/// The largest number of grains (sizes of a slot) that a tag can name.
pub(super) const MAX: usize = 8;

/// The place of a bucket or unit: in the array, or in its own node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) node: NodeAddr,
    /// The index of its first word in the node.
    pub(super) at: usize,
}

impl Spot {
    /// Returns the overflow bucket in `node`.
    pub(super) const fn node(node: NodeAddr) -> Self {
        Self { node, at: 0 }
    }
}

/// The multiplier of a table without a secret: `2^64` divided by the golden ratio, made odd (Knuth's
/// Fibonacci hashing), which spreads neighbours evenly and any stride well.
pub(super) const GOLDEN: usize = 0x9e37_79b9_7f4a_7c15_u64 as usize;

/// Returns the odd multiplier for a secret. Every bit of the multiplier depends on every bit of the secret except the
/// highest. The steps are invertible, so uniform secrets give uniform odd multipliers. A secret with a pattern would be a
/// bad multiplier itself: with 0x1234_5678_9abc_def1, three of four adjacent pages share a bucket.
pub(super) const fn multiplier(secret: usize) -> usize {
    let half = usize::BITS / 2;
    let mut mixed = secret ^ secret >> half;
    mixed = mixed.wrapping_mul(GOLDEN);
    mixed ^= mixed >> half;
    mixed = mixed.wrapping_mul(MIX);
    (mixed ^ mixed >> half).wrapping_add(GOLDEN) | 1
}

/// The first multiplier of MurmurHash3's 64-bit finalizer.
const MIX: usize = 0xff51_afd7_ed55_8ccd_u64 as usize;

/// The number of bits by which a 32-bit block number is shifted and combined with itself: half of its bits, so that all bits
/// affect the hash.
const FOLD: u32 = 10;

/// The mask of the low bits of an address word, which hold a base-two logarithm. In the root word of an array of a fixed size it
/// is the logarithm of the number of buckets. In a directory's entry for refill handlers it says how many times smaller the
/// segment is than a full one.
pub(super) const LOG: usize = 31;

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// The number of slots of a bucket.
    pub(super) const SLOTS: usize = {
        assert!(S::CLUSTER_LOG <= 4, "a cluster has 1, 2, 4, 8 or 16 pages");
        assert!(!F::STATUS, "hardware walks no hashed table, so none sets status bits in one");
        assert!(!F::PAIRED || S::CLUSTER_LOG > 0, "a pair of pages stands in one bucket");
        1 << S::CLUSTER_LOG
    };

    /// The number of bits of a tag.
    pub(super) const TAG_BITS: u32 = if G::VA_BITS <= 32 { 32 } else { 64 };
    /// Whether the hash folds block numbers. A refill handler must not multiply, because HI and LO belong to the interrupted
    /// program.
    pub(super) const FOLDED: bool = Self::TAG_BITS == 32 || F::PAIRED;
    /// The number of words of a tag. If there are two, the low half comes first, and the flags are in the second.
    pub(super) const TAG: usize = Self::TAG_BITS.div_ceil(F::Word::BITS) as usize;
    /// The base-two logarithm of the slots of a unit.
    const UNIT_SLOTS_LOG: u32 = if Self::FOLDED && Self::TAG == 1 && F::EXTRA == 0 && S::CLUSTER_LOG > 1 {
        1
    } else {
        S::CLUSTER_LOG
    };
    /// The base-two logarithm of the units of a bucket.
    pub(super) const UNITS_LOG: u32 = S::CLUSTER_LOG - Self::UNIT_SLOTS_LOG;
    /// The number of units of a bucket.
    pub(super) const UNITS: usize = 1 << Self::UNITS_LOG;
    /// The index of the first word of a unit's PTEs.
    pub(super) const PTE: usize = Self::TAG;
    /// The index of a unit's link. In the paper's layout the link has a second word, which stays zero.
    pub(super) const LINK: usize = Self::PTE + (1 << Self::UNIT_SLOTS_LOG) * (1 + F::EXTRA);
    /// The number of words of a unit. If the format has words for the kernel, the layout is the paper's, whose link is as
    /// wide as the tag.
    pub(super) const UNIT: usize = Self::LINK + if F::EXTRA > 0 { Self::TAG } else { 1 };
    /// The number of words of an overflow bucket.
    pub(super) const NODE: usize = Self::UNITS * Self::UNIT;
    /// The distance, in words, from one bucket of the array to the next.
    pub(super) const STRIDE: usize = Self::NODE.next_power_of_two();

    /// The size of a slot by grain. The finest grain has slots of the base page size; each further grain has the smallest page
    /// size that is too large for the buckets of the grain before.
    pub(super) const GRAIN: [PageSize; MAX] = {
        let mut grains = [G::BASE; MAX];
        let (mut grain, mut at) = (0, 1);
        while at < G::SIZES.len() {
            if G::SIZES[at].shift() > grains[grain].shift() + S::CLUSTER_LOG {
                grain += 1;
                assert!(grain < MAX, "too many page sizes for the tag");
                grains[grain] = G::SIZES[at];
            }
            at += 1;
        }
        let mut rest = grain + 1;
        while rest < MAX {
            grains[rest] = grains[grain];
            rest += 1;
        }
        grains
    };

    /// The number of grains.
    pub(super) const GRAINS: usize = {
        let mut count = 1;
        while count < MAX && Self::GRAIN[count].shift() > Self::GRAIN[count - 1].shift() {
            count += 1;
        }
        count
    };

    /// Returns the finest grain whose buckets can hold pages of `size`.
    #[inline(always)]
    pub(super) fn grain_of(size: PageSize) -> usize {
        // The finest grain needs no search.
        if size.shift() <= G::BASE.shift() + S::CLUSTER_LOG {
            return 0;
        }
        // The default is never used. It tells the compiler that the result is less than `GRAINS`.
        let fits = |&grain: &usize| size.shift() <= Self::GRAIN[grain].shift() + S::CLUSTER_LOG;
        (1..Self::GRAINS).find(fits).unwrap_or(Self::GRAINS - 1)
    }

    /// Returns the base-two logarithm of the base pages of a slot.
    #[inline(always)]
    pub(super) const fn slot_shift(grain: usize) -> u32 {
        Self::GRAIN[grain].shift() - G::BASE.shift()
    }

    /// Returns the number of the block of `grain` that `at` is in.
    #[inline(always)]
    pub(super) const fn block(grain: usize, at: VirtAddr) -> usize {
        // Two shifts, because their sum may be the number of bits of an address: a block of the largest pages may be the
        // whole space.
        at.get() >> Self::GRAIN[grain].shift() >> S::CLUSTER_LOG
    }

    /// Returns the slot, in its bucket, of the page of `grain` that contains `at`.
    #[inline(always)]
    pub(super) const fn slot(grain: usize, at: VirtAddr) -> usize {
        at.get() >> Self::GRAIN[grain].shift() & (Self::SLOTS - 1)
    }

    /// Returns the first and the last page of a block.
    #[inline(always)]
    pub(super) const fn bounds(grain: usize, block: usize) -> (Vpn, Vpn) {
        let first = block << S::CLUSTER_LOG << Self::slot_shift(grain);
        (Vpn::new(first), Vpn::new(first + ((Self::SLOTS << Self::slot_shift(grain)) - 1)))
    }

    /// Returns the key of the unit of `grain` that `at` is in.
    #[inline(always)]
    pub(super) const fn key(grain: usize, at: VirtAddr) -> usize {
        at.get() >> Self::GRAIN[grain].shift() >> Self::UNIT_SLOTS_LOG
    }

    /// Returns the index, in the node of `unit`, of the PTE for `at`.
    #[inline(always)]
    pub(super) const fn pte(unit: Spot, grain: usize, at: VirtAddr) -> usize {
        let slot = at.get() >> Self::GRAIN[grain].shift() & ((1 << Self::UNIT_SLOTS_LOG) - 1);
        unit.at + Self::PTE + slot
    }

    /// Returns the number that is XORed with a unit's index to get the unit's place in the bucket.
    #[inline(always)]
    pub(super) const fn turn(block: usize) -> usize {
        if Self::FOLDED { block << Self::UNITS_LOG >> FOLD & (Self::UNITS - 1) } else { 0 }
    }

    /// Returns the key of the first unit of a block's bucket.
    #[inline(always)]
    pub(super) const fn lead(block: usize) -> usize {
        (block << Self::UNITS_LOG) + Self::turn(block)
    }

    /// Returns the index, in the node of `bucket`, of the PTE in a slot of `block`.
    #[inline(always)]
    pub(super) const fn place(bucket: Spot, block: usize, slot: usize) -> usize {
        if Self::UNITS == 1 {
            // This form tells the compiler that adjacent slots are adjacent words.
            return bucket.at + Self::PTE + slot;
        }
        let unit = slot >> Self::UNIT_SLOTS_LOG ^ Self::turn(block);
        bucket.at + unit * Self::UNIT + Self::PTE + (slot & ((1 << Self::UNIT_SLOTS_LOG) - 1))
    }

    /// Returns the index of each unit's first word in the node of a bucket.
    pub(super) fn units(bucket: Spot) -> impl Iterator<Item = usize> {
        (0..Self::UNITS).map(move |unit| bucket.at + unit * Self::UNIT)
    }

    /// Returns the bucket that contains a unit.
    #[inline(always)]
    pub(super) const fn bucket(unit: Spot) -> Spot {
        Spot { at: unit.at & !(Self::STRIDE - 1), ..unit }
    }

    /// The base-two logarithm of the number of first buckets of a full segment, in a table that grows. A segment has 512
    /// units if a refill handler walks the table. Otherwise it has 128 buckets, or 4 KiB of buckets if those are more,
    /// because storage wastes part of a page with smaller nodes.
    pub(super) const SEGMENT_LOG: u32 = {
        let page = 12 - (Self::STRIDE * F::Word::BYTES).ilog2();
        if Self::FOLDED {
            9 - Self::UNITS_LOG
        } else if page > 7 {
            page
        } else {
            7
        }
    };
    /// The base-two logarithm of the number of entries of a directory for refill handlers, which has all entries from the
    /// beginning.
    pub(super) const ENTRIES_LOG: u32 = {
        let bits = if G::VA_BITS < usize::BITS { G::VA_BITS } else { usize::BITS };
        let entries = (bits - G::BASE.shift() - Self::UNIT_SLOTS_LOG)
            .saturating_sub(Self::SEGMENT_LOG + Self::UNITS_LOG);
        if entries < 10 { entries } else { 10 }
    };
    /// The largest number of first buckets of a table that grows, to which the largest directory can lead.
    pub(super) const MOST: usize =
        1 << (Self::SEGMENT_LOG + if Self::FOLDED { Self::ENTRIES_LOG } else { 15 });

    /// Hashes a key.
    ///
    /// A table that a refill handler walks folds the key: the low bits select the unit, the bits above the bucket. An array
    /// of a fixed size uses the high bits of the product with the table's secret.
    ///
    /// A table that grows uses bits from two places: the top bits for the bucket within its segment, and the bits from bit
    /// 32 on for the segment, one more for each doubling. All of these bits must depend on all bits of the key, also if the
    /// keys have a stride that the secret turns into a small step. So the two halves of the product, which is twice as wide
    /// as a key, are combined by XOR, which destroys any stride, and multiplied again, which spreads them over all bits.
    #[inline(always)]
    fn hash(&self, key: usize) -> usize {
        if Self::FOLDED {
            return key ^ key >> FOLD;
        }
        if S::LOAD == 0 {
            return key.wrapping_mul(self.secret);
        }
        let product = key as u128 * self.secret as u128;
        ((product >> usize::BITS) as usize ^ product as usize).wrapping_mul(self.secret)
    }

    /// Returns the hash that selects a key's bucket: the number of its first bucket in a table with [`MOST`](Self::MOST)
    /// first buckets. Higher bits are undefined.
    #[inline(always)]
    pub(super) fn bucket_hash(&self, key: usize) -> usize {
        let hash = self.hash(key);
        if Self::FOLDED {
            return hash >> Self::UNITS_LOG;
        }
        hash >> (usize::BITS - Self::SEGMENT_LOG) | hash >> (usize::BITS / 2) << Self::SEGMENT_LOG
    }

    /// The number of words before a directory's entries. If the hash multiplies, there is one: the mask of the hash bits in
    /// use.
    ///
    /// ```text
    ///  hash      | bucket | ..   | segment |     32 bits
    ///  mask      | 1 .. 1 | 0 .. | 0.. 1.. |
    ///  directory | mask | segment | segment | ...
    /// ```
    ///
    /// The mask gives the number of entries, and the number of buckets of a segment that is the only one and not full. So a
    /// walk takes the same instructions at every size, and one store of the root changes the mask and the entries.
    pub(super) const HEADER: usize = if Self::FOLDED { 0 } else { 1 };
    /// The lowest bit, in a masked hash, of the number of a bucket within its segment. The segment's number is in the bits
    /// below.
    pub(super) const WITHIN: u32 = 32 - Self::SEGMENT_LOG;
    /// The mask of a segment's number in a masked hash.
    pub(super) const ENTRY: usize = (Self::MOST >> Self::SEGMENT_LOG) - 1;

    /// Returns the unit at which the chain of a key begins.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `root` was loaded while the caller was pinned, or by the writer.
    #[inline(always)]
    pub(super) unsafe fn first(&self, root: usize, key: usize) -> Spot {
        let hash = self.hash(key);
        let unit = Self::STRIDE >> Self::UNITS_LOG;
        if S::LOAD == 0 {
            let index = if Self::FOLDED {
                hash & ((Self::UNITS << S::BUCKETS_LOG) - 1)
            } else if S::BUCKETS_LOG == 0 {
                0
            } else {
                hash >> (usize::BITS - S::BUCKETS_LOG)
            };
            return Spot { node: NodeAddr::new(root & !LOG), at: index * unit };
        }
        // SAFETY: by this function's contract `root` was loaded while the caller was pinned, or by the writer, so the
        // directory is not freed before the call ends. `ENTRIES_LOG`, or the mask in the directory's first word, keeps the index
        // below its length.
        unsafe {
            if Self::FOLDED {
                let units = Self::UNITS << Self::SEGMENT_LOG;
                let entry = self.entry(root, (hash / units) & ((1 << Self::ENTRIES_LOG) - 1));
                let within = hash & ((units - 1) >> (entry & LOG));
                return Spot { node: NodeAddr::new(entry & !LOG), at: within * unit };
            }
            let mask = self.nodes.follow(NodeAddr::new(root), 0).to_usize();
            let hash = hash >> (usize::BITS / 2) & mask;
            let entry = self.entry(root, hash & Self::ENTRY);
            Spot { node: NodeAddr::new(entry), at: hash >> (Self::WITHIN - Self::STRIDE.ilog2()) }
        }
    }

    /// Decodes the leaf in a slot of `grain` that maps `at`.
    #[inline(always)]
    pub(super) fn leaf(word: F::Word, grain: usize, at: VirtAddr) -> Leaf {
        Self::leaf_of(word, Self::size(word, grain), at)
    }

    /// Decodes the entry in a slot of `grain`.
    #[inline(always)]
    pub(super) fn decode(word: F::Word, grain: usize, at: VirtAddr) -> Entry {
        entry_of::<F>(word, |word| Self::leaf(word, grain, at))
    }

    /// Decodes the size of a leaf in a slot of `grain`.
    #[inline(always)]
    pub(super) fn size(word: F::Word, grain: usize) -> PageSize {
        if Self::REPLICATED || grain > 0 { F::size(word, Self::GRAIN[grain]) } else { G::BASE }
    }

    /// Decodes the leaf of a known size that maps `at`.
    #[inline(always)]
    pub(super) fn leaf_of(word: F::Word, size: PageSize, at: VirtAddr) -> Leaf {
        Leaf { at: at.align_down(size), size, frame: F::frame(word, size), attr: F::attr(word, true) }
    }

    /// Whether a page can fill several slots of a bucket of base pages.
    pub(super) const REPLICATED: bool =
        G::SIZES.len() > 1 && G::SIZES[1].shift() <= G::BASE.shift() + S::CLUSTER_LOG;
}
