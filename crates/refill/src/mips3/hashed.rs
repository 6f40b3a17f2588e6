//! The walk of a hashed or clustered table: the hash of the block's number, the comparison of the tag, the chain.
//!
//! ```text
//!   bucket   | tag: 64 bits | a PTE for each page | a word of the kernel for each page | link: 64 bits |
//!   tag      | 1 | block << (c + 3) | grain: 3 | 0 |     of blocks of `2^c` pages
//! ```
//!
//! # Tables that grow
//!
//! The root is the directory, of 1024 words: the address of a segment of up to 512 buckets, and in its low five bits the
//! base-two logarithm of the ratio to a full segment. The folded number's low nine bits select the bucket, the bits above
//! them the segment.
//!
//! # Larger pages
//!
//! A page of up to a block has its PTE in every slot that it covers. Larger ones are in blocks of a coarser grain: the
//! block's number and the slots count larger pages, and the tag names the grain. A handler [with them](Hashed::with_larger_pages)
//! finds pages of 4 KiB as fast as before, but for two instructions; otherwise it searches the chain of each grain. Of a
//! larger page it loads a pair within the page, of a quarter of its size each. It needs no neighbour for that: the other half
//! of the page's own pair may hold smaller pages.

use super::Build;
use crate::Error;
use crate::asm::{Cp0, K0, K1, Label, ZERO};
use crate::handler::sized::{PFN, ignored_bits};

/// A hashed table of [`PaperLo`](super::PaperLo) words. The root is the address of the array, or of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    cluster: u32,
    /// The base-two logarithm of the number of buckets, if that is fixed.
    log: Option<u32>,
    /// Whether the table has larger pages.
    larger: bool,
}

/// The number of bits by which a block's number is shifted and combined with itself.
const FOLD: u32 = 10;
/// The lowest bit of the number of the block's first pair in the tag.
const BLOCK: u32 = 4;
/// The base-two logarithms of the number of buckets of a full segment, and of the words of a directory.
const SEGMENT_LOG: u32 = 9;
const ENTRIES_LOG: u32 = 10;
/// The low bits of a directory's word that are not part of the address.
const SHORT_BITS: u32 = 5;
/// The base-two logarithm of the bytes of a page, and by how many bits of an address the pages of one grain are larger than
/// those of the grain before: 4 KiB, 64 KiB, 1 MiB, 16 MiB.
const PAGE: u32 = 12;
const STEP: u32 = 4;
const GRAINS: u32 = 4;
/// The offset of the PTEs in a bucket.
const PTES: i16 = 8;
/// The bit S, which is 1 in the PTE of a larger page.
const S: u32 = 30;
/// The lowest bit of PageMask.
const MASK: u32 = 13;

impl Hashed {
    /// Returns the walk of a `Hashed<Va64, PaperLo, _, Buckets<CLUSTER_LOG, BUCKETS_LOG, 0>>`. (`cluster`, `buckets`) is (1, 8) for
    /// H8k, (1, 12) for H128k and (3, 10) for C128k.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless blocks have 2 to 16 pages, and there are 2 to 65536 buckets.
    pub const fn of(cluster: u32, buckets: u32) -> Result<Self, Error> {
        if cluster < 1 || cluster > 4 || buckets < 1 || buckets > 16 {
            return Err(Error::Geometry);
        }
        Ok(Self { cluster, log: Some(buckets), larger: false })
    }

    /// Returns the walk of a `Hashed<Va64, PaperLo, _, Buckets<CLUSTER_LOG, _, LOAD>>`, a table that grows. `cluster` is 1 for
    /// HR, 3 for CS.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless blocks have 2 to 16 pages.
    pub const fn growing(cluster: u32) -> Result<Self, Error> {
        if cluster < 1 || cluster > 4 {
            Err(Error::Geometry)
        } else {
            Ok(Self { cluster, log: None, larger: false })
        }
    }

    /// Returns the walk of the same table with pages of 16 KiB to 16 MiB, which PageMask can encode.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless blocks have eight pages: the grains are those of such a table.
    pub const fn with_larger_pages(self) -> Result<Self, Error> {
        if self.cluster == 3 { Ok(Self { larger: true, ..self }) } else { Err(Error::Geometry) }
    }

    /// Returns the base-two logarithm of a bucket's bytes: tag and link, and eight bytes for each page, padded.
    const fn log_bucket(&self) -> u32 {
        (16 + (8u32 << self.cluster)).next_power_of_two().trailing_zeros()
    }

    const fn link(&self) -> i16 {
        8 + (8 << self.cluster)
    }

    /// Loads k1 with the address of the first bucket of a grain's block.
    const fn bucket(&self, b: &mut Build, grain: u32) {
        b.asm.dmfc0(K0, Cp0::BadVAddr);
        b.asm.dsrl(K0, K0, PAGE + STEP * grain + self.cluster);
        b.asm.dsrl(K1, K0, FOLD);
        b.asm.xor(K1, K1, K0);
        let Some(log) = self.log else { return self.in_segment(b) };
        b.asm.andi(K1, K1, ((1u32 << log) - 1) as u16);
        b.asm.dsll(K1, K1, self.log_bucket());
        let low = b.block(K0);
        b.asm.lw(K0, low, K0);
        b.asm.daddu(K1, K1, K0);
    }

    /// Turns a folded number in k1 into the address of its bucket, in a table that grows.
    const fn in_segment(&self, b: &mut Build) {
        b.asm.dmtc0(K1, Cp0::ErrorEpc);
        b.asm.dsrl(K0, K1, SEGMENT_LOG);
        b.asm.andi(K0, K0, (1 << ENTRIES_LOG) - 1);
        b.asm.dsll(K0, K0, 2);
        let low = b.block(K1);
        b.asm.lw(K1, low, K1);
        b.asm.daddu(K0, K0, K1);
        b.asm.lw(K0, 0, K0);
        b.asm.dmfc0(K1, Cp0::ErrorEpc);
        // These shifts count by five bits.
        b.asm.sll(K1, K1, 32 - SEGMENT_LOG);
        b.asm.sllv(K1, K1, K0);
        b.asm.srlv(K1, K1, K0);
        b.asm.srl(K1, K1, 32 - SEGMENT_LOG);
        b.asm.dsll(K1, K1, self.log_bucket());
        b.asm.dsrl(K0, K0, SHORT_BITS);
        b.asm.dsll(K0, K0, SHORT_BITS);
        b.asm.daddu(K1, K1, K0);
    }

    /// Adds eight times the number of the pair within the block to k1.
    const fn pair(&self, b: &mut Build) {
        if self.cluster > 1 {
            b.asm.dmfc0(K0, Cp0::BadVAddr);
            b.asm.dsrl(K0, K0, 13 - 3);
            b.asm.andi(K0, K0, (8 << (self.cluster - 1)) - 8);
            b.asm.daddu(K1, K1, K0);
        }
    }

    /// Adds four times the number of the grain's page within the block to k1.
    const fn slot(&self, b: &mut Build, grain: u32) {
        b.asm.dmfc0(K0, Cp0::BadVAddr);
        b.asm.dsrl(K0, K0, PAGE + STEP * grain - 2);
        b.asm.andi(K0, K0, (4 << self.cluster) - 4);
        b.asm.daddu(K1, K1, K0);
    }

    /// Branches unless the bucket at k1 has the tag of the grain's block that missed. Overwrites k0 and k1; the delay slot
    /// follows.
    const fn differs(&self, b: &mut Build, grain: u32, to: Label) {
        b.asm.ld(K1, 0, K1);
        b.asm.dmfc0(K0, Cp0::BadVAddr);
        b.asm.dsrl(K0, K0, PAGE + STEP * grain + self.cluster);
        b.asm.dsll(K0, K0, BLOCK + self.cluster - 1);
        b.asm.xor(K0, K0, K1);
        b.asm.lui(K1, 0x8000);
        b.asm.dsll32(K1, K1, 0);
        if grain > 0 {
            b.asm.ori(K1, K1, (grain << 1) as u16);
        }
        b.asm.bne(K0, K1, to);
    }

    pub(super) const fn emit(&self, b: &mut Build) {
        let chain = b.asm.label();
        self.bucket(b, 0);
        self.pair(b);
        b.asm.lw(K0, PTES, K1);
        b.asm.mtc0(K0, Cp0::EntryLo0);
        if self.larger {
            // The low bit of S becomes the sign. The delay slot does no harm.
            b.asm.sll(K0, K0, 31 - S);
            b.asm.bltz(K0, chain);
        }
        b.asm.lw(K0, PTES + 4, K1);
        b.asm.mtc0(K0, Cp0::EntryLo1);
        if self.cluster > 1 {
            b.asm.dsrl(K1, K1, self.log_bucket());
            b.asm.dsll(K1, K1, self.log_bucket());
        }
        self.differs(b, 0, chain);
        b.asm.nop();
        b.close();

        b.cold();
        b.asm.bind(chain);
        if self.larger { self.grains(b) } else { self.chain(b) }
    }

    /// Searches the chain behind the first bucket.
    const fn chain(&self, b: &mut Build) {
        let general = b.general;
        self.bucket(b, 0);
        let next = b.asm.here();
        b.asm.lw(K1, self.link(), K1);
        b.asm.beq(K1, ZERO, general);
        b.asm.dmtc0(K1, Cp0::ErrorEpc);
        self.differs(b, 0, next);
        b.asm.dmfc0(K1, Cp0::ErrorEpc);
        self.pair(b);
        b.asm.lw(K0, PTES, K1);
        b.asm.lw(K1, PTES + 4, K1);
        b.finish();
    }

    /// Searches the chain of each grain, the first bucket included.
    const fn grains(&self, b: &mut Build) {
        let general = b.general;
        let (small, larger) = (b.asm.label(), b.asm.label());
        let mut grain = 0;
        while grain < GRAINS {
            let (next, other) = (b.asm.label(), b.asm.label());
            self.bucket(b, grain);
            b.asm.bind(next);
            b.asm.dmtc0(K1, Cp0::ErrorEpc);
            self.differs(b, grain, other);
            b.asm.dmfc0(K1, Cp0::ErrorEpc);
            self.slot(b, grain);
            b.asm.lw(K0, PTES, K1);
            b.asm.srl(K1, K0, S);
            b.asm.xori(K1, K1, 1);
            b.asm.beq(K1, ZERO, larger);
            b.asm.nop();
            // A block of a coarser grain has larger pages only.
            b.asm.b(if grain == 0 { small } else { general });
            b.asm.nop();
            b.asm.bind(other);
            b.asm.lw(K1, self.link(), K1);
            b.asm.bne(K1, ZERO, next);
            b.asm.nop();
            grain += 1;
        }
        b.asm.b(general);
        b.asm.nop();
        b.asm.bind(small);
        b.asm.dmfc0(K1, Cp0::ErrorEpc);
        self.pair(b);
        b.asm.lw(K0, PTES, K1);
        b.asm.lw(K1, PTES + 4, K1);
        b.finish();
        b.asm.bind(larger);
        Self::within(b);
    }

    /// Loads an entry for a pair within the larger page whose PTE is k0.
    const fn within(b: &mut Build) {
        b.asm.dmtc0(K0, Cp0::ErrorEpc);
        ignored_bits(&mut b.asm, K0, K1);
        b.asm.srl(K0, K0, 2);
        b.asm.sll(K1, K0, MASK);
        b.asm.mtc0(K1, Cp0::PageMask);
        // The two highest of them get new values: the higher one is the address's bit, which selects the pair, the lower one
        // is 0 for the even half and 1 for the odd half. k0 is the lower one.
        b.asm.addiu(K0, K0, 1);
        b.asm.sll(K0, K0, PFN);
        b.asm.mtc0(K0, Cp0::EntryLo1);
        b.asm.sll(K1, K0, 1);
        b.asm.or(K1, K1, K0);
        b.asm.nor(K1, K1, ZERO);
        b.asm.dmfc0(K0, Cp0::ErrorEpc);
        b.asm.and(K0, K0, K1);
        b.asm.dmtc0(K0, Cp0::ErrorEpc);
        b.asm.mfc0(K1, Cp0::EntryLo1);
        b.asm.sll(K1, K1, 1);
        b.asm.dmfc0(K0, Cp0::BadVAddr);
        b.asm.dsrl(K0, K0, PAGE - PFN);
        b.asm.and(K1, K1, K0);
        b.asm.dmfc0(K0, Cp0::ErrorEpc);
        b.asm.or(K0, K0, K1);
        b.asm.mfc0(K1, Cp0::EntryLo1);
        b.asm.mtc0(K0, Cp0::EntryLo0);
        b.asm.or(K1, K1, K0);
        b.asm.mtc0(K1, Cp0::EntryLo1);
        b.asm.barrier();
        b.asm.tlbwr();
        b.asm.nop();
        // PageMask is 0 between handlers, as for pages of 4 KiB.
        b.asm.mtc0(ZERO, Cp0::PageMask);
        b.asm.nop();
        b.asm.eret();
    }
}
