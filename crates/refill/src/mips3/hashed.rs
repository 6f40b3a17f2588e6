//! Hashed and clustered tables: the block's number folded onto itself, a tag, a chain.
//!
//! ```text
//!   bucket   | tag: 64 bits | PTE, one for each page | as many of the kernel's words | link: 64 bits |
//!   tag      | 1 | block << (c + 3) |     of blocks of `2^c` pages
//! ```

use super::Build;
use crate::Error;
use crate::asm::{Cp0, K0, K1, Label, ZERO};

/// A hashed table of [`PaperLo`](super::PaperLo) words, of a fixed size; its root is the address of its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    cluster: u32,
    log: u32,
}

/// How far block numbers are folded onto themselves.
const FOLD: u32 = 10;
/// Where the tag has the number of the block's first pair.
const BLOCK: u32 = 4;

impl Hashed {
    /// Returns the handler's idea of `Hashed<Va64, PaperLo, _, CLUSTER, BUCKETS, 0>`: H8k is (1, 8), H128k (1, 12), C128k
    /// (3, 10).
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

    /// The base-two logarithm of a bucket's bytes: tag and link, and eight for each page, padded.
    const fn log_bucket(&self) -> u32 {
        (16 + (8u32 << self.cluster)).next_power_of_two().trailing_zeros()
    }

    const fn link(&self) -> i16 {
        8 + (8 << self.cluster)
    }

    /// Makes k1 the first bucket.
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

    /// Adds eight times the pair within the block to k1.
    const fn pair(&self, b: &mut Build) {
        if self.cluster > 1 {
            b.asm.dmfc0(K0, Cp0::BadVAddr);
            b.asm.dsrl(K0, K0, 13 - 3);
            b.asm.andi(K0, K0, (8 << (self.cluster - 1)) - 8);
            b.asm.daddu(K1, K1, K0);
        }
    }

    /// Branches unless the bucket in k1 has the tag of the block that missed. Loses both registers; the delay slot follows.
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
