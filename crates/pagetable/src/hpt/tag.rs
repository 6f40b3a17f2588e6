//! Tags: what a bucket is for, and what it is about to be.
//!
//! ```text
//!      top bit                           4+c    4  3       1   0
//!     +------+------+---------+------------+------+----------+---+
//!     | LIVE | DEAD | CLAIMED | .0. | key  | ..0. | grain    | 0 |
//!     +------+------+---------+------------+------+----------+---+
//! ```
//!
//! The key of a pair begins at bit 4, one of `2^c` pairs `c` bits higher.
//!
//! A walker compares the whole tag, so only a live one can match. A key is an address shifted right past the unit. For
//! pairs of 4 KiB pages on MIPS32 a live tag is then, bit for bit, what the Context register holds whose PTEBase is
//! 0x8000_0000, and `Context & 0x7f_fff0` is 16 times the pair's number: a 16-byte unit's offset.
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
//! ([`Held`](crate::nodes::Held)): while it is not zero, only its old owner may use a dead bucket, and other
//! blocks go to overflow buckets, which are nodes and wait in the batch themselves. A batch that is dropped holds up
//! its own table alone, until the table's next batch, which takes it up, has completed. In solo mode an empty bucket of
//! the array is free at once.
//!
//! # Several tags
//!
//! A bucket of several [units](super::shape) has as many tags, which differ in the unit's bits of the key, and as many
//! links, each to the unit of the same number in the next bucket. So a walker stays in the column of its unit, as in a table
//! of pairs, and reads no word of the others. The writer has one bucket: it reads the first tag and link, and stores all of
//! them, in any order, one after the other. That is as good as one store, because nothing happens between that a
//! walker could tell apart:
//!
//! * **To LIVE**: the PTEs are all there before the first tag. A walker that finds its own still DEAD finds nothing, as it
//!   would have before the change; it asks for one page and sees one tag.
//! * **To DEAD**: the PTEs are all zero by then, so that a LIVE tag that is left finds nothing either. What counts is that
//!   none is left when the batch completes: then the bucket may go to another block, whose PTEs come **before** its tags,
//!   and would be taken for the old owner's under a tag that still says so. The batch is complete after the call that
//!   kills the last tag, and a walker that saw a LIVE one has left by then.
//! * **To CLAIMED**: no tag of the bucket was live, and none is.
//! * **Links**: those to a new bucket lead to complete units. Those that go round a bucket that is taken out are all stored
//!   before it is retired, and its own stay as they are for those that are in it.

use core::sync::atomic::Ordering;

use super::Hashed;
use super::shape::Spot;
use crate::fields::Fields as _;
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
        // Upper halves of signed spaces are keys with ones up to the top of a `usize`.
        let wide = if G::SIGNED { usize::BITS } else { G::VA_BITS };
        let bits = wide - G::BASE.shift() - (CLUSTER - Self::GROUP);
        assert!(bits + Self::KEY_SHIFT <= Self::TAG_BITS - 3, "a key fits beside the flags");
        1 << (Self::TAG_BITS - 1)
    };
    /// The bucket belonged to the tag's block, and a walker may still think so.
    pub(super) const DEAD: usize = Self::LIVE >> 1;
    /// A change that has not failed yet will give the bucket to the tag's block.
    pub(super) const CLAIMED: usize = Self::LIVE >> 2;
    /// Where the key begins.
    const KEY_SHIFT: u32 = 4 + (CLUSTER - Self::GROUP).saturating_sub(1);
    const FLAGS: usize = Self::LIVE | Self::DEAD | Self::CLAIMED;

    /// Returns the live tag of a key.
    #[inline(always)]
    pub(super) fn tag(grain: usize, key: usize) -> usize {
        Self::LIVE.with(key << Self::KEY_SHIFT).with(grain << GRAIN_SHIFT)
    }

    /// Returns the live tag of a block: that of the first unit of its bucket.
    #[inline(always)]
    pub(super) fn tag_of(grain: usize, block: usize) -> usize {
        Self::tag(grain, Self::lead(block))
    }

    /// Returns the key of a tag.
    #[inline(always)]
    pub(super) const fn key_of(tag: usize) -> usize {
        (tag & !Self::FLAGS) >> Self::KEY_SHIFT
    }

    /// Returns the granularity and the block number of a tag.
    #[inline(always)]
    pub(super) const fn untag(tag: usize) -> (usize, usize) {
        (tag >> GRAIN_SHIFT & GRAIN_MASK, Self::key_of(tag) >> Self::GROUP)
    }

    /// Returns the tag with another flag in place of its own.
    pub(super) fn flagged(tag: usize, flag: usize) -> usize {
        (tag & !Self::FLAGS).with(flag)
    }

    /// Loads a unit's tag as a walker does.
    ///
    /// # Safety
    ///
    /// The unit is in the table, or was when the caller was already pinned.
    #[inline(always)]
    pub(super) unsafe fn follow_tag(&self, spot: Spot) -> usize {
        // SAFETY: by this function's contract the unit is in the table, or was when the caller was already pinned.
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

    /// Reads a bucket's first tag as the writer.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the bucket is in the table; so for all that follow.
    #[inline(always)]
    pub(super) unsafe fn read_tag(&self, spot: Spot) -> usize {
        // SAFETY: by this function's contract the caller is the only writer, and the bucket is in the table.
        unsafe {
            let low = self.nodes.read(spot.node, spot.at).to_usize();
            if Self::TAG == 1 {
                low
            } else {
                low | self.nodes.read(spot.node, spot.at + 1).to_usize() << 16 << 16
            }
        }
    }

    /// Stores the tags of a bucket, whose first one is `tag`, after everything that the bucket holds: of a wide one the
    /// half with the flags last.
    #[inline(always)]
    pub(super) unsafe fn publish_tag(&self, spot: Spot, tag: usize) {
        // SAFETY: by the contract of `read_tag`, which is this function's too, the caller is the only writer, and the
        // bucket is in the table.
        unsafe {
            if Self::TAG > 1 {
                self.nodes.store_relaxed(spot.node, spot.at, F::Word::from_usize(tag));
                return self.nodes.publish(spot.node, spot.at + 1, F::Word::from_usize(tag >> 16 >> 16));
            }
            N::Mode::release();
            for unit in 0..Self::UNITS {
                let tag = F::Word::from_usize(tag ^ unit << Self::KEY_SHIFT);
                self.nodes.store_relaxed(spot.node, spot.at + unit * Self::UNIT, tag);
            }
        }
    }

    /// Changes nothing but the flags of a bucket's tags.
    pub(super) unsafe fn reflag(&self, spot: Spot, flag: usize) {
        // SAFETY: by the contract of `read_tag`, which is this function's too, the caller is the only writer, and the
        // bucket is in the table.
        unsafe { self.publish_tag(spot, Self::flagged(self.read_tag(spot), flag)) };
    }
}
