//! Tags: what a bucket is for, and what it is about to be.
//!
//! ```text
//!      top bit                                      4+c    4  3       1   0
//!     +------+------+-------+---------+---------------+------+----------+---+
//!     | LIVE | DEAD | MOVED | CLAIMED | ..0.. | block | ..0. | grain    | 0 |
//!     +------+------+-------+---------+---------------+------+----------+---+
//! ```
//!
//! A block of one pair begins at bit 4, one of `2^c` pairs `c` bits higher.
//!
//! A walker compares the whole tag, so only a live one can match. A block number is an address shifted right past the
//! block. For pairs of 4 KiB pages on MIPS32 a live tag is then, bit for bit, what the Context register holds whose
//! PTEBase is 0x8000_0000, and `Context & 0x7f_fff0` is 16 times the pair's number: a 16-byte bucket's offset. Where
//! the block has more pairs, the tag is Context without the bits that tell those apart.
//!
//! # When another tag may take a bucket
//!
//! A walker reads the tag, then a PTE. If the bucket changed hands between the two, it would read another page's PTE:
//! reading the tag once more does not help, for the first owner may have come back. So a bucket of the array goes
//! through these states in a shared table:
//!
//! ```text
//!            last PTE is unmapped          the batch completes            a block without a bucket
//!   LIVE a ----------------------> DEAD a ---------------------> DEAD a -----------------> PTEs of b, then LIVE b
//!      ^    tag marked at once        |   all walkers that saw
//!      |                              |   LIVE a have left
//!      +------------------------------+
//!        a itself may come back at any time
//! ```
//!
//! Marking matters as much as waiting: were the tag kept as it is, a walker that starts after completion would match
//! it. Whether the batches that killed buckets have completed is one count for the whole storage
//! ([`Held`](crate::nodes::Held)): while it is not zero, dead buckets serve nobody but their old owners, and other
//! blocks go to overflow buckets, which are nodes and wait in the batch themselves. In solo mode an empty bucket of
//! the array is free at once.

use core::sync::atomic::Ordering;

use tlbkit_addr::VirtAddr;

use super::Hashed;
use super::shape::Spot;
use crate::format::Format;
use crate::mode::Mode;
use crate::nodes::Nodes;
use crate::word::atomics::fence;
use crate::{Geometry, Word};

const GRAIN_SHIFT: u32 = 1;
const GRAIN_MASK: usize = 7;

impl<'n, G, F, N, const CLUSTER: u32, const BUCKETS: u32, const LOAD: usize>
    Hashed<'n, G, F, N, CLUSTER, BUCKETS, LOAD>
where
    G: Geometry,
    F: Format,
    N: Nodes<Word = F::Word>,
{
    /// The bucket belongs to the tag's block.
    pub(super) const LIVE: usize = {
        let block_bits = G::VA_BITS - G::BASE.shift() - CLUSTER;
        // Upper halves of signed spaces are block numbers with ones up to the top of a `usize`.
        let bits = if G::SIGNED { usize::BITS - G::BASE.shift() - CLUSTER } else { block_bits };
        assert!(bits + Self::BLOCK_SHIFT <= Self::TAG_BITS - 4, "a block number fits beside the flags");
        1 << (Self::TAG_BITS - 1)
    };
    /// The bucket belonged to the tag's block, and a walker may still think so.
    pub(super) const DEAD: usize = Self::LIVE >> 1;
    /// What the bucket held is in the next array.
    pub(super) const MOVED: usize = Self::LIVE >> 2;
    /// A change that has not failed yet will give the bucket to the tag's block.
    pub(super) const CLAIMED: usize = Self::LIVE >> 3;
    /// Where the block's number begins.
    const BLOCK_SHIFT: u32 = 4 + CLUSTER.saturating_sub(1);
    const FLAGS: usize = Self::LIVE | Self::DEAD | Self::MOVED | Self::CLAIMED;

    /// Returns the live tag of a block.
    #[inline(always)]
    pub(super) const fn tag_of(grain: usize, block: usize) -> usize {
        Self::LIVE | block << Self::BLOCK_SHIFT | grain << GRAIN_SHIFT
    }

    /// Returns the live tag of the block that `at` is in.
    #[inline(always)]
    pub(super) const fn tag(grain: usize, at: VirtAddr) -> usize {
        Self::tag_of(grain, Self::block(grain, at))
    }

    /// Returns the granularity and the block number of a tag.
    #[inline(always)]
    pub(super) const fn untag(tag: usize) -> (usize, usize) {
        (tag >> GRAIN_SHIFT & GRAIN_MASK, (tag & !Self::FLAGS) >> Self::BLOCK_SHIFT)
    }

    /// Returns the tag with another flag in place of its own.
    pub(super) const fn flagged(tag: usize, flag: usize) -> usize {
        tag & !Self::FLAGS | flag
    }

    /// Loads a tag as a walker does.
    ///
    /// # Safety
    ///
    /// The bucket is in the table, or was when the caller was already pinned.
    #[inline(always)]
    pub(super) unsafe fn follow_tag(&self, spot: Spot) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            if Self::TAG == 1 {
                return self.nodes.follow(spot.node, spot.at).to_usize();
            }
            let high = self.nodes.follow(spot.node, spot.at + 1).to_usize();
            if N::Mode::SHARED {
                // The half with the flags is stored last and must be loaded first.
                fence(Ordering::Acquire);
            }
            // Shifted twice, for the code that a `usize` of 32 bits never runs.
            self.nodes.follow(spot.node, spot.at).to_usize() | high << 16 << 16
        }
    }

    /// Reads a tag as the writer.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the bucket is in the table; so for all that follow.
    #[inline(always)]
    pub(super) unsafe fn read_tag(&self, spot: Spot) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            let low = self.nodes.read(spot.node, spot.at).to_usize();
            if Self::TAG == 1 {
                low
            } else {
                low | self.nodes.read(spot.node, spot.at + 1).to_usize() << 16 << 16
            }
        }
    }

    /// Stores a tag, the half with the flags last, after everything that the bucket holds.
    #[inline(always)]
    pub(super) unsafe fn publish_tag(&self, spot: Spot, tag: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if Self::TAG == 1 {
                self.nodes.publish(spot.node, spot.at, F::Word::from_usize(tag));
            } else {
                self.nodes.put(spot.node, spot.at, F::Word::from_usize(tag));
                self.nodes.publish(spot.node, spot.at + 1, F::Word::from_usize(tag >> 16 >> 16));
            }
        }
    }

    /// Changes nothing but the flags of a tag: one store.
    pub(super) unsafe fn reflag(&self, spot: Spot, flag: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let tag = Self::flagged(self.read_tag(spot), flag);
            let word = if Self::TAG == 1 { tag } else { tag >> 16 >> 16 };
            self.nodes.publish(spot.node, spot.at + Self::TAG - 1, F::Word::from_usize(word));
        }
    }
}
