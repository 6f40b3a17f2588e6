//! The constants that a geometry, a format and a cluster size make of a hashed table.
//!
//! ```text
//!  bucket   | tag | PTE 0 | PTE 1 | ... | PTE 2^c - 1 | the kernel's words, if any | link | (padding) |
//!           0     PTE                                 EXTRA                        LINK   NODE        STRIDE
//! ```
//!
//! In the array a bucket is padded to a power of two, so that a shift finds it; an overflow bucket is not.
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
//! A unit has the layout of a bucket in a table of pairs, so the same handler finds a pair in both: it hashes the pair's number
//! and compares the unit's tag. The number that is hashed and tagged is the **key**. (In the other shapes a bucket is one
//! unit.) Folding leaves the unit in the key's low bits, and the bucket in those above them. All pairs of a block are in one
//! bucket, in the order `unit XOR` [`turn(block)`](Hashed::turn).

use tlbkit_addr::{PageSize, VirtAddr, Vpn};

use super::Hashed;
use crate::format::{Format, entry_of};
use crate::nodes::{NodeAddr, Nodes};
use crate::{Entry, Geometry, Leaf, Word};

/// The maximum number of granularities (sizes of a slot) that a tag can name.
pub(super) const MAX: usize = 8;

/// Where a bucket is: in the array, or in a node of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) node: NodeAddr,
    /// Its first word.
    pub(super) at: usize,
}

impl Spot {
    /// Returns the overflow bucket that is a node.
    pub(super) const fn node(node: NodeAddr) -> Self {
        Self { node, at: 0 }
    }
}

/// The multiplier of a table without a secret: `2^64` divided by the golden ratio, made odd (Knuth's
/// Fibonacci hashing), which spreads neighbours evenly and any stride well.
pub(super) const GOLDEN: usize = 0x9e37_79b9_7f4a_7c15_u64 as usize;

/// Returns an odd number to multiply keys with, in which every bit depends on every bit of a secret but the highest. The steps are
/// invertible, so uniform secrets give uniform odd multipliers. A number with a pattern would be a poor one: with
/// 0x1234_5678_9abc_def1 three of four pages in a row share their bucket.
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

/// How far 32-bit block numbers are folded onto themselves: half of their bits, so that all count.
const FOLD: u32 = 10;

/// The low bits of the root word of an array of a fixed size, which say how many buckets there are, and of a directory's
/// entry where a refill handler may walk.
pub(super) const LOG: usize = 31;

impl<'n, G, F, N, const CLUSTER: u32, const BUCKETS: u32, const LOAD: usize>
    Hashed<'n, G, F, N, CLUSTER, BUCKETS, LOAD>
where
    G: Geometry,
    F: Format,
    N: Nodes<Word = F::Word>,
{
    /// Slots of a bucket.
    pub(super) const SLOTS: usize = {
        assert!(CLUSTER <= 4, "a cluster has 1, 2, 4, 8 or 16 pages");
        assert!(!F::STATUS, "hardware walks no hashed table, so none sets status bits in one");
        assert!(!F::PAIRED || CLUSTER > 0, "a pair of pages stands in one bucket");
        1 << CLUSTER
    };

    /// Significant bits of a tag.
    pub(super) const TAG_BITS: u32 = if G::VA_BITS <= 32 { 32 } else { 64 };
    /// Whether block numbers are folded. A refill handler must not multiply: HI and LO belong to the interrupted program.
    pub(super) const FOLDED: bool = Self::TAG_BITS == 32 || F::PAIRED;
    /// Words of a tag. If there are two, the low half comes first, and the flags are in the second.
    pub(super) const TAG: usize = Self::TAG_BITS.div_ceil(F::Word::BITS) as usize;
    /// The base-two logarithm of the slots of a unit.
    const UNIT_LOG: u32 =
        if Self::FOLDED && Self::TAG == 1 && F::EXTRA == 0 && CLUSTER > 1 { 1 } else { CLUSTER };
    /// The base-two logarithm of the units of a bucket.
    pub(super) const GROUP: u32 = CLUSTER - Self::UNIT_LOG;
    /// Units of a bucket.
    pub(super) const UNITS: usize = 1 << Self::GROUP;
    /// The first word of a unit's PTEs.
    pub(super) const PTE: usize = Self::TAG;
    /// The word of a unit's link. Its second half, in the paper's layout, stays zero.
    pub(super) const LINK: usize = Self::PTE + (1 << Self::UNIT_LOG) * (1 + F::EXTRA);
    /// The words of a unit. Where the kernel has words in it, the layout is the paper's, whose link is as wide as the
    /// tag.
    pub(super) const UNIT: usize = Self::LINK + if F::EXTRA > 0 { Self::TAG } else { 1 };
    /// The words of an overflow bucket.
    pub(super) const NODE: usize = Self::UNITS * Self::UNIT;
    /// The words from one bucket of the array to the next.
    pub(super) const STRIDE: usize = Self::NODE.next_power_of_two();

    /// The size of a slot by granularity: the base page, then the next size that the buckets of the one before
    /// cannot hold.
    pub(super) const GRAIN: [PageSize; MAX] = {
        let mut grains = [G::BASE; MAX];
        let (mut grain, mut at) = (0, 1);
        while at < G::SIZES.len() {
            if G::SIZES[at].shift() > grains[grain].shift() + CLUSTER {
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

    /// How many granularities there are.
    pub(super) const GRAINS: usize = {
        let mut count = 1;
        while count < MAX && Self::GRAIN[count].shift() > Self::GRAIN[count - 1].shift() {
            count += 1;
        }
        count
    };

    /// Returns the granularity whose buckets hold pages of `size`: the finest that can.
    #[inline(always)]
    pub(super) fn grain_of(size: PageSize) -> usize {
        // The finest first: it needs no search.
        if size.shift() <= G::BASE.shift() + CLUSTER {
            return 0;
        }
        // The default is never taken, but tells the compiler that the result is a grain.
        let fits = |&grain: &usize| size.shift() <= Self::GRAIN[grain].shift() + CLUSTER;
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
        // A page is smaller than the address, but the block of the largest may be all of it.
        at.get() >> Self::GRAIN[grain].shift() >> CLUSTER
    }

    /// Returns the slot of its bucket that `at` falls into.
    #[inline(always)]
    pub(super) const fn slot(grain: usize, at: VirtAddr) -> usize {
        at.get() >> Self::GRAIN[grain].shift() & (Self::SLOTS - 1)
    }

    /// Returns the first and the last page of a block.
    #[inline(always)]
    pub(super) const fn bounds(grain: usize, block: usize) -> (Vpn, Vpn) {
        let first = block << CLUSTER << Self::slot_shift(grain);
        (Vpn::new(first), Vpn::new(first + ((Self::SLOTS << Self::slot_shift(grain)) - 1)))
    }

    /// Returns the key of the unit of `grain` that `at` is in.
    #[inline(always)]
    pub(super) const fn key(grain: usize, at: VirtAddr) -> usize {
        at.get() >> Self::GRAIN[grain].shift() >> Self::UNIT_LOG
    }

    /// Returns the word of the PTE in a unit that `at` falls into.
    #[inline(always)]
    pub(super) const fn pte(unit: Spot, grain: usize, at: VirtAddr) -> usize {
        let slot = at.get() >> Self::GRAIN[grain].shift() & ((1 << Self::UNIT_LOG) - 1);
        unit.at + Self::PTE + slot
    }

    /// Returns the number that is XORed with a unit's index to get its place in the bucket.
    #[inline(always)]
    pub(super) const fn turn(block: usize) -> usize {
        if Self::FOLDED { block << Self::GROUP >> FOLD & (Self::UNITS - 1) } else { 0 }
    }

    /// Returns the key of the first unit of a block's bucket.
    #[inline(always)]
    pub(super) const fn lead(block: usize) -> usize {
        (block << Self::GROUP) + Self::turn(block)
    }

    /// Returns the word of a slot of a block in its bucket.
    #[inline(always)]
    pub(super) const fn place(bucket: Spot, block: usize, slot: usize) -> usize {
        if Self::UNITS == 1 {
            // So that the compiler sees that slots follow each other.
            return bucket.at + Self::PTE + slot;
        }
        let unit = slot >> Self::UNIT_LOG ^ Self::turn(block);
        bucket.at + unit * Self::UNIT + Self::PTE + (slot & ((1 << Self::UNIT_LOG) - 1))
    }

    /// Returns where the units of a bucket begin.
    pub(super) fn units(bucket: Spot) -> impl Iterator<Item = usize> {
        (0..Self::UNITS).map(move |unit| bucket.at + unit * Self::UNIT)
    }

    /// Returns the bucket that a unit is in: where its first unit is.
    #[inline(always)]
    pub(super) const fn bucket(unit: Spot) -> Spot {
        Spot { at: unit.at & !(Self::STRIDE - 1), ..unit }
    }

    /// The base-two logarithm of the first buckets of a whole segment, in a table that grows: 512 units of a refill handler's;
    /// in other shapes 128 buckets, or 4 KiB of them, because storage wastes part of a page on smaller nodes.
    pub(super) const SEGMENT: u32 = {
        let page = 12 - (Self::STRIDE * F::Word::BYTES).ilog2();
        if Self::FOLDED {
            9 - Self::GROUP
        } else if page > 7 {
            page
        } else {
            7
        }
    };
    /// The base-two logarithm of the entries of a directory that has all of them from the beginning.
    pub(super) const ENTRIES: u32 = {
        let bits = if G::VA_BITS < usize::BITS { G::VA_BITS } else { usize::BITS };
        let entries = (bits - G::BASE.shift() - Self::UNIT_LOG).saturating_sub(Self::SEGMENT + Self::GROUP);
        if entries < 10 { entries } else { 10 }
    };
    /// The maximum number of buckets of a table that grows, overflow buckets not counted, which is also what the largest directory
    /// leads to.
    pub(super) const MOST: usize = 1 << (Self::SEGMENT + if Self::FOLDED { Self::ENTRIES } else { 15 });

    /// Hashes a key.
    ///
    /// A shape that a refill handler walks folds it, which tells the unit in the low bits and the bucket in those above. An
    /// array of a fixed size takes the high bits of the product with the table's secret.
    ///
    /// A table that grows takes bits from two places: the number of the bucket in its segment from the top, and the segment,
    /// one bit more for each doubling, from bit 32 on. All of them must depend on all of the key, also where the keys have a
    /// stride that the secret happens to turn into a small step. So both halves of the product, which is twice as wide as a
    /// key, are folded onto each other, which no stride survives, and multiplied again, which brings them into those bits.
    #[inline(always)]
    fn hash(&self, key: usize) -> usize {
        if Self::FOLDED {
            return key ^ key >> FOLD;
        }
        if LOAD == 0 {
            return key.wrapping_mul(self.secret);
        }
        let product = key as u128 * self.secret as u128;
        ((product >> usize::BITS) as usize ^ product as usize).wrapping_mul(self.secret)
    }

    /// Returns the hash by which a key's bucket is chosen: the number of the first bucket in a table with
    /// [`MOST`](Self::MOST) of them. Higher bits mean nothing.
    #[inline(always)]
    pub(super) fn bucket_hash(&self, key: usize) -> usize {
        let hash = self.hash(key);
        if Self::FOLDED {
            return hash >> Self::GROUP;
        }
        hash >> (usize::BITS - Self::SEGMENT) | hash >> (usize::BITS / 2) << Self::SEGMENT
    }

    /// The words before a directory's entries: one, a mask of the hash bits in use, where the hash multiplies.
    ///
    /// ```text
    ///  hash      | bucket | ..   | segment |     32 bits
    ///  mask      | 1 .. 1 | 0 .. | 0.. 1.. |
    ///  directory | mask | segment | segment | ...
    /// ```
    ///
    /// The mask tells how many entries there are, and how many buckets are in a segment if there is only one and it is not
    /// whole. So a walk takes the same few instructions at every size, and one store of the root changes both.
    pub(super) const HEADER: usize = if Self::FOLDED { 0 } else { 1 };
    /// Where a masked hash has the number of a bucket in its segment; the segment's is in the bits below.
    pub(super) const WITHIN: u32 = 32 - Self::SEGMENT;
    /// The bits of a masked hash that have the number of a segment.
    pub(super) const ENTRY: usize = (Self::MOST >> Self::SEGMENT) - 1;

    /// Returns the unit at which the chain of a key begins.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer; `root` was loaded meanwhile.
    #[inline(always)]
    pub(super) unsafe fn first(&self, root: usize, key: usize) -> Spot {
        let hash = self.hash(key);
        let unit = Self::STRIDE >> Self::GROUP;
        if LOAD == 0 {
            let index = if Self::FOLDED {
                hash & ((Self::UNITS << BUCKETS) - 1)
            } else if BUCKETS == 0 {
                0
            } else {
                hash >> (usize::BITS - BUCKETS)
            };
            return Spot { node: NodeAddr::new(root & !LOG), at: index * unit };
        }
        // SAFETY: `root` was loaded while the caller was pinned, or by the writer, so the directory is not freed before the call
        // ends; `ENTRIES`, or the mask in its first word, keeps the index below its length.
        unsafe {
            if Self::FOLDED {
                let units = Self::UNITS << Self::SEGMENT;
                let entry = self.entry(root, (hash / units) & ((1 << Self::ENTRIES) - 1));
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

    /// Decodes what a slot of `grain` holds.
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
        G::SIZES.len() > 1 && G::SIZES[1].shift() <= G::BASE.shift() + CLUSTER;
}
