//! The walk of a hashed or clustered table: the hash of the block's number, the comparison of the tag, the chain.
//!
//! ```text
//!   bucket   | tag: 64 bits | a PTE for each page | a word of the kernel for each page | link: 64 bits |
//!   tag      | 1 | block << (c + 3) |     of blocks of `2^c` pages
//! ```

use super::Build;
use crate::Error;
use crate::asm::{Cp0, K0, K1, Label, ZERO};

/// A hashed table of [`PaperLo`](super::PaperLo) words, of a fixed size. The root is the address of the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    cluster: u32,
    log: u32,
}

/// The number of bits by which a block's number is shifted and combined with itself.
const FOLD: u32 = 10;
/// The lowest bit of the number of the block's first pair in the tag.
const BLOCK: u32 = 4;

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
        Ok(Self { cluster, log: buckets })
    }

    /// Returns the base-two logarithm of a bucket's bytes: tag and link, and eight bytes for each page, padded.
    const fn log_bucket(&self) -> u32 {
        (16 + (8u32 << self.cluster)).next_power_of_two().trailing_zeros()
    }

    const fn link(&self) -> i16 {
        8 + (8 << self.cluster)
    }

    /// Loads k1 with the address of the first bucket.
    const fn bucket(&self, b: &mut Build) {
        b.asm.dmfc0(K0, Cp0::BadVAddr);
        b.asm.dsrl(K0, K0, 12 + self.cluster);
        b.asm.dsrl(K1, K0, FOLD);
        b.asm.xor(K1, K1, K0);
        b.asm.andi(K1, K1, ((1u32 << self.log) - 1) as u16);
        b.asm.dsll(K1, K1, self.log_bucket());
        let low = b.block(K0);
        b.asm.lw(K0, low, K0);
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

    /// Branches unless the bucket at k1 has the tag of the block that missed. Overwrites k0 and k1; the delay slot follows.
    const fn differs(&self, b: &mut Build, to: Label) {
        b.asm.ld(K1, 0, K1);
        b.asm.dmfc0(K0, Cp0::BadVAddr);
        b.asm.dsrl(K0, K0, 12 + self.cluster);
        b.asm.dsll(K0, K0, BLOCK + self.cluster - 1);
        b.asm.xor(K0, K0, K1);
        b.asm.lui(K1, 0x8000);
        b.asm.dsll32(K1, K1, 0);
        b.asm.bne(K0, K1, to);
    }

    pub(super) const fn emit(&self, b: &mut Build) {
        let general = b.general;
        let chain = b.asm.label();
        self.bucket(b);
        self.pair(b);
        b.asm.lw(K0, 8, K1);
        b.asm.mtc0(K0, Cp0::EntryLo0);
        b.asm.lw(K0, 12, K1);
        b.asm.mtc0(K0, Cp0::EntryLo1);
        if self.cluster > 1 {
            b.asm.dsrl(K1, K1, self.log_bucket());
            b.asm.dsll(K1, K1, self.log_bucket());
        }
        self.differs(b, chain);
        b.asm.nop();
        b.close();

        b.cold();
        b.asm.bind(chain);
        self.bucket(b);
        let next = b.asm.here();
        b.asm.lw(K1, self.link(), K1);
        b.asm.beq(K1, ZERO, general);
        b.asm.dmtc0(K1, Cp0::ErrorEpc);
        self.differs(b, next);
        b.asm.dmfc0(K1, Cp0::ErrorEpc);
        self.pair(b);
        b.asm.lw(K0, 8, K1);
        b.asm.lw(K1, 12, K1);
        b.finish();
    }
}
