//! Tags: the block to which a bucket belongs, and the state of the bucket.
//!
//! ```text
//!      top bit                           4+c    4  3       1   0
//!     +------+------+---------+------------+------+----------+---+
//!     | LIVE | DEAD | CLAIMED | .0. | key  | ..0. | grain    | 0 |
//!     +------+------+---------+------------+------+----------+---+
//! ```
//!
//! The lowest bit of the key is bit 4 for pairs, and bit `4 + c` for units of `2^c` pairs.
//!
//! A walker compares the whole tag, so only a live tag can match. A key is an address shifted right by the size of a unit.
//! For pairs of 4 KiB pages on MIPS32, a live tag equals the Context register with a PTEBase of 0x8000_0000, and
//! `Context & 0x7f_fff0` is 16 times the pair's number: the offset of a 16-byte unit.
//!
//! # When another tag may take a bucket
//!
//! A walker reads the tag, then a PTE. If the bucket were assigned to another block between the two reads, the walker would
//! read another page's PTE. A second read of the tag is not sufficient, because the bucket may belong to the first block
//! again (A-B-A). So in a shared table a bucket of the array goes through these states:
//!
//! ```text
//!           taken out, without a PTE       the batch completes            a block without a bucket
//!   LIVE a ----------------------> DEAD a ---------------------> DEAD a -----------------> PTEs of b, then LIVE b
//!      ^                              |   all walkers that saw
//!      |                              |   LIVE a have left
//!      +------------------------------+
//!        a itself may come back at any time
//! ```
//!
//! Both the DEAD flag and the wait are necessary: without the flag, a walker that starts after the completion would match
//! the tag. One count for the whole storage says whether the batches that took buckets out have completed
//! ([`Held`](crate::nodes::Held)). While it is not zero, only its old block may use a dead bucket. Other blocks get overflow
//! buckets, which are nodes, and so wait in the batch when they are removed. A batch that is dropped affects only its own
//! table, until the table's next batch, which takes over the obligation, has completed. In solo mode a bucket of the array
//! that is taken out is free at once. A [vacant](super::vacant) bucket is LIVE.
//!
//! # Several tags
//!
//! A bucket of several [units](super::shape) has as many tags, which differ in the unit's bits of the key, and as many
//! links, each to the unit of the same number in the next bucket. So a walker reads only units of one number, as in a table
//! of pairs. For the writer it is one bucket: the writer reads the first tag and link, and stores all of them, in any order,
//! one after the other. That is as good as one store, because a walker cannot distinguish the states in between:
//!
//! * **To LIVE**: all PTEs are stored before the first tag. A walker that finds its unit's tag still DEAD finds nothing, as
//!   before the change. It searches one page, and so reads one tag.
//! * **To DEAD**: all PTEs are zero before, so a walker that finds a remaining LIVE tag finds nothing. No LIVE tag may
//!   remain when the batch completes: then another block may get the bucket, and store its PTEs **before** its tags, and
//!   under a LIVE tag of the old block a walker would take these PTEs for the old block's. The batch completes after the
//!   call that stores the last DEAD tag, and walkers that saw a LIVE tag have left by then.
//! * **To CLAIMED**: no tag of the bucket was live before, and none is afterwards.
//! * **Links**: links to a new bucket lead to complete units. Links that bypass a removed bucket are all stored before the
//!   bucket is retired, and the bucket's own links stay for walkers that are in it.

use super::Sizes as _;
use super::shape::Shape;
use crate::fields::Fields as _;
use crate::{Geometry as _, Half};

/// The lowest bit of a tag's grain.
const GRAIN_SHIFT: u32 = 1;
/// The mask of the grain, shifted to bit 0.
const GRAIN_MASK: usize = 7;

/// The tags of a table.
pub(super) trait Tags: Shape {
    /// The flag that the bucket belongs to the tag's block.
    const LIVE: usize = {
        // Keys of the upper half have ones up to the top of a `usize`.
        let wide = if matches!(Self::G::HALF, Half::Lower) { Self::G::VA_BITS } else { usize::BITS };
        let bits = wide - Self::G::BASE.shift() - (Self::S::CLUSTER_LOG - Self::UNITS_LOG);
        assert!(bits + Self::KEY_SHIFT <= Self::TAG_BITS - 3, "a key fits beside the flags");
        1 << (Self::TAG_BITS - 1)
    };
    /// The flag that the bucket belonged to the tag's block, and that a walker may still have seen the live tag.
    const DEAD: usize = Self::LIVE >> 1;
    /// The flag that a change under way has reserved the bucket for the tag's block.
    const CLAIMED: usize = Self::LIVE >> 2;
    /// The lowest bit of the key.
    const KEY_SHIFT: u32 = 4 + (Self::S::CLUSTER_LOG - Self::UNITS_LOG).saturating_sub(1);
    const FLAGS: usize = Self::LIVE | Self::DEAD | Self::CLAIMED;

    /// Returns the live tag of a key.
    #[inline(always)]
    fn tag(grain: usize, key: usize) -> usize {
        Self::LIVE.with(key << Self::KEY_SHIFT).with(grain << GRAIN_SHIFT)
    }

    /// Returns the live tag of a block: that of the first unit of its bucket.
    #[inline(always)]
    fn tag_of(grain: usize, block: usize) -> usize {
        Self::tag(grain, Self::lead(block))
    }

    /// Returns the key of a tag.
    #[inline(always)]
    fn key_of(tag: usize) -> usize {
        (tag & !Self::FLAGS) >> Self::KEY_SHIFT
    }

    /// Returns the grain and the block number of a tag.
    #[inline(always)]
    fn untag(tag: usize) -> (usize, usize) {
        (tag >> GRAIN_SHIFT & GRAIN_MASK, Self::key_of(tag) >> Self::UNITS_LOG)
    }

    /// Returns the tag with another flag in place of its own.
    fn flagged(tag: usize, flag: usize) -> usize {
        (tag & !Self::FLAGS).with(flag)
    }
}

impl<T: Shape> Tags for T {}
