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

use tlbkit_addr::{PageSize, Pages, VirtAddr, Vpn};

use super::node::{Array, Bucket, Chain, Directory, Fresh, Probe, Segment, Slots, Span, Unit, Walk, Writing};
use super::{Hashed, Sizes, Slot};
use crate::format::{Format, entry_of};
use crate::nodes::{NodeAddr, Nodes};
use crate::{Entry, Geometry, Leaf, Word as _};

/// The largest number of grains (sizes of a slot) that a tag can name.
pub(super) const MAX: usize = 8;

/// The place of a bucket or unit: in the array, or in its own node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(super) node: NodeAddr,
    /// The index of its first word in the node.
    pub(super) at: usize,
}

impl Spot {
    /// Returns the overflow bucket in `node`.
    #[inline(always)]
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

/// The constants of a table. The table and all its handles have the same.
pub(super) trait Shape {
    /// The geometry.
    type G: Geometry;
    /// The format.
    type F: Format;
    /// The sizes.
    type S: Sizes;

    /// The number of slots of a bucket.
    const SLOTS: usize = {
        assert!(Self::S::CLUSTER_LOG <= 4, "a cluster has 1, 2, 4, 8 or 16 pages");
        assert!(!Self::F::STATUS, "hardware walks no hashed table, so none sets status bits in one");
        assert!(!Self::F::PAIRED || Self::S::CLUSTER_LOG > 0, "a pair of pages stands in one bucket");
        1 << Self::S::CLUSTER_LOG
    };

    /// The number of bits of a tag.
    const TAG_BITS: u32 = if Self::G::VA_BITS <= 32 { 32 } else { 64 };
    /// Whether the hash folds block numbers. A refill handler must not multiply, because HI and LO belong to the interrupted
    /// program.
    const FOLDED: bool = Self::TAG_BITS == 32 || Self::F::PAIRED;
    /// The number of words of a tag. If there are two, the low half comes first, and the flags are in the second.
    const TAG: usize = Self::TAG_BITS.div_ceil(<Self::F as Format>::Word::BITS) as usize;
    /// The base-two logarithm of the slots of a unit.
    const UNIT_SLOTS_LOG: u32 =
        if Self::FOLDED && Self::TAG == 1 && Self::F::EXTRA == 0 && Self::S::CLUSTER_LOG > 1 {
            1
        } else {
            Self::S::CLUSTER_LOG
        };
    /// The base-two logarithm of the units of a bucket.
    const UNITS_LOG: u32 = Self::S::CLUSTER_LOG - Self::UNIT_SLOTS_LOG;
    /// The number of units of a bucket.
    const UNITS: usize = 1 << Self::UNITS_LOG;
    /// The index of the first word of a unit's PTEs.
    const PTE: usize = Self::TAG;
    /// The index of a unit's link. In the paper's layout the link has a second word, which stays zero.
    const LINK: usize = Self::PTE + (1 << Self::UNIT_SLOTS_LOG) * (1 + Self::F::EXTRA);
    /// The number of words of a unit. If the format has words for the kernel, the layout is the paper's, whose link is as
    /// wide as the tag.
    const UNIT: usize = Self::LINK + if Self::F::EXTRA > 0 { Self::TAG } else { 1 };
    /// The number of words of an overflow bucket.
    const NODE: usize = Self::UNITS * Self::UNIT;
    /// The distance, in words, from one bucket of the array to the next.
    const STRIDE: usize = Self::NODE.next_power_of_two();

    /// The size of a slot by grain. The finest grain has slots of the base page size; each further grain has the smallest page
    /// size that is too large for the buckets of the grain before.
    const GRAIN: [PageSize; MAX] = {
        let mut grains = [Self::G::BASE; MAX];
        let (mut grain, mut at) = (0, 1);
        while at < Self::G::SIZES.len() {
            if Self::G::SIZES[at].shift() > grains[grain].shift() + Self::S::CLUSTER_LOG {
                grain += 1;
                assert!(grain < MAX, "too many page sizes for the tag");
                grains[grain] = Self::G::SIZES[at];
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
    const GRAINS: usize = {
        let mut count = 1;
        while count < MAX && Self::GRAIN[count].shift() > Self::GRAIN[count - 1].shift() {
            count += 1;
        }
        count
    };

    /// Returns the finest grain whose buckets can hold pages of `size`.
    #[inline(always)]
    fn grain_of(size: PageSize) -> usize {
        // The finest grain needs no search.
        if size.shift() <= Self::G::BASE.shift() + Self::S::CLUSTER_LOG {
            return 0;
        }
        // The default is never used. It tells the compiler that the result is less than `GRAINS`.
        let fits = |&grain: &usize| size.shift() <= Self::GRAIN[grain].shift() + Self::S::CLUSTER_LOG;
        (1..Self::GRAINS).find(fits).unwrap_or(Self::GRAINS - 1)
    }

    /// Returns the base-two logarithm of the base pages of a slot.
    #[inline(always)]
    fn slot_shift(grain: usize) -> u32 {
        Self::GRAIN[grain].shift() - Self::G::BASE.shift()
    }

    /// Returns the number of the block of `grain` that `at` is in.
    #[inline(always)]
    fn block(grain: usize, at: VirtAddr) -> usize {
        // Two shifts, because their sum may be the number of bits of an address: a block of the largest pages may be the
        // whole space.
        at.get() >> Self::GRAIN[grain].shift() >> Self::S::CLUSTER_LOG
    }

    /// Returns the slot, in its bucket, of the page of `grain` that contains `at`.
    #[inline(always)]
    fn slot(grain: usize, at: VirtAddr) -> usize {
        at.get() >> Self::GRAIN[grain].shift() & (Self::SLOTS - 1)
    }

    /// Returns the first and the last page of a block.
    #[inline(always)]
    fn bounds(grain: usize, block: usize) -> (Vpn, Vpn) {
        let first = block << Self::S::CLUSTER_LOG << Self::slot_shift(grain);
        (Vpn::new(first), Vpn::new(first + ((Self::SLOTS << Self::slot_shift(grain)) - 1)))
    }

    /// Returns the key of the unit of `grain` that `at` is in.
    #[inline(always)]
    fn key(grain: usize, at: VirtAddr) -> usize {
        at.get() >> Self::GRAIN[grain].shift() >> Self::UNIT_SLOTS_LOG
    }

    /// Returns the slot, in its unit, of the page of `grain` that contains `at`.
    #[inline(always)]
    fn unit_slot(grain: usize, at: VirtAddr) -> usize {
        at.get() >> Self::GRAIN[grain].shift() & ((1 << Self::UNIT_SLOTS_LOG) - 1)
    }

    /// Returns the number that is XORed with a unit's index to get the unit's place in the bucket.
    #[inline(always)]
    fn turn(block: usize) -> usize {
        if Self::FOLDED { block << Self::UNITS_LOG >> FOLD & (Self::UNITS - 1) } else { 0 }
    }

    /// Returns the key of the first unit of a block's bucket.
    #[inline(always)]
    fn lead(block: usize) -> usize {
        (block << Self::UNITS_LOG) + Self::turn(block)
    }

    /// Returns the index, in the bucket of `block`, of the PTE in a slot.
    #[inline(always)]
    fn pte(block: usize, slot: usize) -> usize {
        if Self::UNITS == 1 {
            // This form tells the compiler that adjacent slots are adjacent words.
            return Self::PTE + slot;
        }
        let unit = slot >> Self::UNIT_SLOTS_LOG ^ Self::turn(block);
        unit * Self::UNIT + Self::PTE + (slot & ((1 << Self::UNIT_SLOTS_LOG) - 1))
    }

    /// Returns the bucket that contains a unit.
    #[inline(always)]
    fn bucket_of(unit: Spot) -> Spot {
        if Self::UNITS == 1 { unit } else { Spot { at: unit.at & !(Self::STRIDE - 1), ..unit } }
    }

    /// The number of buckets of a chain that a lookup reads without a branch.
    ///
    /// With 150 blocks for each 100 first buckets, 52 of 100 blocks are in the first bucket of their chain, 30 in the second and 12
    /// in the third. No CPU can predict which, and a mispredicted branch costs more than the loads of the second and the third
    /// bucket. A table for refill handlers is for machines that predict little, and in a table with tags of two words the loads
    /// would cost twice as much.
    const NEAR: usize = if Self::S::LOAD > 0 && !Self::FOLDED && Self::TAG == 1 { 3 } else { 1 };

    /// The base-two logarithm of the number of first buckets of a full segment, in a table that grows. A segment has 512
    /// units if a refill handler walks the table. Otherwise it has 128 buckets, or 4 KiB of buckets if those are more,
    /// because storage wastes part of a page with smaller nodes.
    const SEGMENT_LOG: u32 = {
        let page = 12 - (Self::STRIDE * <Self::F as Format>::Word::BYTES).ilog2();
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
    const ENTRIES_LOG: u32 = {
        let bits = if Self::G::VA_BITS < usize::BITS { Self::G::VA_BITS } else { usize::BITS };
        let entries = (bits - Self::G::BASE.shift() - Self::UNIT_SLOTS_LOG)
            .saturating_sub(Self::SEGMENT_LOG + Self::UNITS_LOG);
        if entries < 10 { entries } else { 10 }
    };
    /// The largest number of first buckets of a table that grows, to which the largest directory can lead.
    const MOST: usize = 1 << (Self::SEGMENT_LOG + if Self::FOLDED { Self::ENTRIES_LOG } else { 15 });

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
    const HEADER: usize = if Self::FOLDED { 0 } else { 1 };
    /// The lowest bit, in a masked hash, of the number of a bucket within its segment. The segment's number is in the bits
    /// below.
    const WITHIN: u32 = 32 - Self::SEGMENT_LOG;
    /// The mask of a segment's number in a masked hash.
    const ENTRY: usize = (Self::MOST >> Self::SEGMENT_LOG) - 1;

    /// Decodes the leaf in a slot of `grain` that maps `at`.
    #[inline(always)]
    fn leaf(word: <Self::F as Format>::Word, grain: usize, at: VirtAddr) -> Leaf {
        Self::leaf_of(word, Self::size(word, grain), at)
    }

    /// Decodes the entry in a slot of `grain`.
    #[inline(always)]
    fn decode(word: <Self::F as Format>::Word, grain: usize, at: VirtAddr) -> Entry {
        entry_of::<Self::F>(word, |word| Self::leaf(word, grain, at))
    }

    /// Decodes the size of a leaf in a slot of `grain`.
    #[inline(always)]
    fn size(word: <Self::F as Format>::Word, grain: usize) -> PageSize {
        if Self::REPLICATED || grain > 0 { Self::F::size(word, Self::GRAIN[grain]) } else { Self::G::BASE }
    }

    /// Decodes the leaf of a known size that maps `at`.
    #[inline(always)]
    fn leaf_of(word: <Self::F as Format>::Word, size: PageSize, at: VirtAddr) -> Leaf {
        Leaf {
            at: at.align_down(size),
            size,
            frame: Self::F::frame(word, size),
            attr: Self::F::attr(word, true),
        }
    }

    /// Whether a page can fill several slots of a bucket of base pages.
    const REPLICATED: bool =
        Self::G::SIZES.len() > 1 && Self::G::SIZES[1].shift() <= Self::G::BASE.shift() + Self::S::CLUSTER_LOG;

    /// Returns how many first buckets each segment has, in a table of `heads`.
    fn segment_of(heads: usize) -> usize {
        if Self::S::LOAD == 0 { heads } else { heads.min(1 << Self::SEGMENT_LOG) }
    }

    /// Returns how many first buckets a split adds to a table of `heads`, and the distance of each from the bucket from
    /// which it is split.
    fn split_of(heads: usize) -> (usize, usize) {
        (heads.min(1 << Self::SEGMENT_LOG), 1 << heads.ilog2())
    }

    /// Returns how many first buckets a table of `heads` had before the last split.
    fn before(heads: usize) -> usize {
        let segment = 1 << Self::SEGMENT_LOG;
        if heads <= segment { heads / 2 } else { heads - segment }
    }

    /// Tells whether a table of `heads` first buckets, at most [`MOST`](Self::MOST), exceeds its load with `used` buckets
    /// in use.
    #[inline(always)]
    fn is_crowded(used: usize, heads: usize) -> bool {
        used.saturating_mul(100) > Self::S::LOAD * heads
    }

    /// Returns the segment that a directory's entry leads to, or the array that the root of a table of a fixed size leads to.
    fn segment_at(entry: usize) -> NodeAddr {
        NodeAddr::new(if Self::S::LOAD == 0 || Self::FOLDED { entry & !LOG } else { entry })
    }

    /// Returns the number of words of a directory of `2^entries` entries. A small directory has a full cache line, so that
    /// all small ones have the same size.
    fn directory_words(entries: u32) -> usize {
        (Self::HEADER + (1 << entries)).max(64 / <Self::F as Format>::Word::BYTES)
    }

    /// Tells whether an empty bucket of `grain` stays in its chain.
    #[inline(always)]
    fn keeps(grain: usize) -> bool {
        Self::S::LOAD > 0 && grain == 0 && Self::F::EXTRA == 0
    }

    /// Returns all slots of a block.
    #[inline(always)]
    fn whole(grain: usize, block: usize) -> Span {
        Span { grain, block, slot: 0, count: Self::SLOTS }
    }

    /// Returns the slots of a block that a range covers, or `None` if it covers none.
    #[inline(always)]
    fn span_of(grain: usize, block: usize, pages: Pages) -> Option<Span> {
        let (first, last) = Self::bounds(grain, block);
        let (from, to) = (first.max(pages.first()), last.min(pages.last()));
        if from > to {
            return None;
        }
        let shift = Self::slot_shift(grain);
        let slot = from.get() >> shift & (Self::SLOTS - 1);
        Some(Span { grain, block, slot, count: (to.get() >> shift & (Self::SLOTS - 1)) - slot + 1 })
    }

    /// Does what [`span_of`](Self::span_of) does for a block at an end of the range.
    #[inline(never)]
    fn end_of(grain: usize, block: usize, pages: Pages) -> Option<Span> {
        Self::span_of(grain, block, pages)
    }

    /// Returns the first and the last block of `grain` that a range overlaps.
    #[inline(always)]
    fn blocks_of(grain: usize, pages: Pages) -> (usize, usize) {
        let shift = Self::slot_shift(grain);
        (
            pages.first().get() >> shift >> Self::S::CLUSTER_LOG,
            pages.last().get() >> shift >> Self::S::CLUSTER_LOG,
        )
    }
}

macro_rules! have_shape {
    ($($name:ident)*) => { $(
        impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Shape for $name<'_, 'n, G, F, N, S> {
            type G = G;
            type F = F;
            type S = S;
        }
    )* };
}

have_shape!(Walk Unit Probe Directory Segment Writing Chain Bucket Fresh Slots Array Slot);

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Shape for Hashed<'_, G, F, N, S> {
    type G = G;
    type F = F;
    type S = S;
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'_, G, F, N, S> {
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
    pub(super) fn hash(&self, key: usize) -> usize {
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
}
