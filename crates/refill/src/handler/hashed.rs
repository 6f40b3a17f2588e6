//! Hashed and clustered tables: a probe, and the chain behind it.
//!
//! ```text
//!   Context      | 1 0000 0000 | block | pair of the block | 0000 |     with PTEBase = 0x8000_0000
//!   tag          | 1 0000 0000 | block | 0                 | 0000 |     (of blocks of pages of 4 KiB)
//!   bucket       | tag | PTE pair | PTE pair | ... | link |
//! ```
//!
//! Context is the tag of a block of one pair, and without the pair's bits that of a larger one. Sixteen times the pair's
//! number is also the distance of a bucket: one of `2^c` pages has `8 * 2^c` bytes. So hash and tag come from
//! one register. The EntryLos are moved before the tag is compared, with the barrier in the delay slot.

use tlbkit_pagetable::Geometry;

use super::Build;
use crate::Error;
use crate::asm::{Cp0, K0, K1, Label, Reg, ZERO};
use crate::cpu::Block;

/// A hashed table of [`EntryLo`](tlbkit_pagetable::format::EntryLo) words for a 32-bit space of 4 KiB pages, all nodes in
/// kseg0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// The base-two logarithm of the pages of a block.
    cluster: u32,
    /// The base-two logarithm of the buckets, if that is fixed.
    log: Option<u32>,
}

/// How far block numbers are folded onto themselves.
const FOLD: u32 = 10;
/// LIVE, for `lui`: the tag's top bit.
const LIVE: u16 = 0x8000;
/// How far MOVED is below it.
const MOVED: u32 = 2;
/// The bits of a root word that say how many buckets there are.
const LOG: u32 = 31;
/// Where Context has the pair's number.
const PAIR: u32 = 4;

impl Hashed {
    /// Returns the handler's idea of `Hashed<G, EntryLo, _, CLUSTER, BUCKETS, LOAD>`.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless the space has 32 bits of 4 KiB pages, blocks have 2 to 16 pages, and a table of a fixed
    /// size has at most 4 MiB; and for pairs in a table that grows.
    pub const fn of<G: Geometry>(cluster: u32, buckets: u32, load: usize) -> Result<Self, Error> {
        if G::VA_BITS != 32 || G::BASE.shift() != 12 || cluster < 1 || cluster > 4 {
            return Err(Error::Geometry);
        }
        let hashed = Self { cluster, log: if load == 0 { Some(buckets) } else { None } };
        let fits = match hashed.log {
            Some(log) => log + hashed.log_bucket() <= 22,
            None => cluster > 1,
        };
        if fits { Ok(hashed) } else { Err(Error::Geometry) }
    }

    /// Returns what the handler starts from, made of what the table calls its root.
    ///
    /// The low bits of a table that grows are the number of its buckets, as the handler needs it: how far to shift a word
    /// left, and right again, to keep the bits of the hash.
    pub const fn root(&self, root: usize) -> u32 {
        let array = root as u32 & !LOG;
        match self.log {
            Some(_) => array,
            None => array | (32 - (root as u32 & LOG)) & LOG,
        }
    }

    /// Returns the base-two logarithm of a bucket's bytes.
    const fn log_bucket(&self) -> u32 {
        self.cluster + 3
    }

    const fn link(&self) -> i16 {
        4 + (4 << self.cluster)
    }

    /// Loads Context, but for PTEBase if that is the cache in front.
    const fn context(b: &mut Build, to: Reg) {
        if b.is_fronted() {
            b.asm.mfc0(to, Cp0::BadVAddr);
            b.asm.srl(to, to, 13);
            b.asm.sll(to, to, PAIR);
        } else {
            b.asm.mfc0(to, Cp0::Context);
        }
    }

    /// Loads the address of the first bucket, plus eight times the pair within the block, into k1.
    const fn bucket(&self, b: &mut Build) {
        let bytes = self.log_bucket();
        Self::context(b, K0);
        b.asm.srl(K1, K0, FOLD);
        b.asm.xor(K1, K1, K0);
        match self.log {
            Some(log) => {
                if log + bytes <= 16 {
                    b.asm.andi(K1, K1, (((1u32 << log) - 1) << bytes) as u16);
                } else {
                    // No immediate is as wide.
                    if b.has_fields() {
                        b.asm.ext(K1, K1, bytes, log);
                    } else {
                        b.asm.sll(K1, K1, 32 - log - bytes);
                        b.asm.srl(K1, K1, 32 - log);
                    }
                    b.asm.sll(K1, K1, bytes);
                }
                self.pair(b);
                b.load_root(K0);
                b.asm.addu(K1, K1, K0);
            }
            None => {
                b.asm.srl(K1, K1, bytes);
                b.load_root(K0);
                b.asm.sllv(K1, K1, K0);
                b.asm.srlv(K1, K1, K0);
                b.asm.sll(K1, K1, bytes);
                b.asm.addu(K1, K1, K0);
                b.clear_low(K1, 5);
                Self::context(b, K0);
                self.pair(b);
            }
        }
    }

    /// Adds eight times the pair within the block to k1, whose low bits are zero. Context is in k0.
    const fn pair(&self, b: &mut Build) {
        if self.cluster == 1 {
            return;
        }
        b.asm.srl(K0, K0, PAIR - 3);
        if b.has_fields() {
            b.asm.ins(K1, K0, 0, self.cluster + 2);
        } else {
            b.asm.andi(K0, K0, (8 << (self.cluster - 1)) - 8);
            b.asm.or(K1, K1, K0);
        }
    }

    /// Branches by whether k0 is the tag of the block that missed: if it is and `equal`, or is not and not. Loses both
    /// registers.
    const fn compare(&self, b: &mut Build, equal: bool, to: Label) {
        let low = PAIR + self.cluster - 1;
        if b.is_fronted() {
            b.asm.mfc0(K1, Cp0::BadVAddr);
            b.asm.srl(K1, K1, 12 + self.cluster);
            b.asm.sll(K1, K1, low);
            b.asm.xor(K0, K0, K1);
            b.asm.lui(K1, LIVE);
        } else {
            b.asm.mfc0(K1, Cp0::Context);
            if self.cluster > 1 {
                b.clear_low(K1, low);
            }
        }
        if equal {
            b.asm.beq(K0, K1, to);
        } else {
            b.asm.bne(K0, K1, to);
        }
    }

    pub(super) const fn emit(&self, b: &mut Build) {
        let chain = b.asm.label();
        self.bucket(b);
        b.asm.lw(K0, 4, K1);
        b.asm.mtc0(K0, Cp0::EntryLo0);
        b.asm.lw(K0, 8, K1);
        b.asm.mtc0(K0, Cp0::EntryLo1);
        b.choose(K0);
        if self.cluster > 1 {
            b.clear_low(K1, self.cluster + 2);
        }
        b.asm.lw(K0, 0, K1);
        self.compare(b, false, chain);
        b.asm.barrier();
        b.close();
        b.cold();
        b.asm.bind(chain);
        self.chain(b);
    }

    /// Looks behind the first bucket.
    const fn chain(&self, b: &mut Build) {
        let general = b.general;
        let found = b.asm.label();
        self.bucket(b);
        if self.cluster > 1 {
            b.clear_low(K1, self.cluster + 2);
        }
        if self.log.is_none() {
            // What the bucket held is in another array: the kernel knows where.
            b.asm.lw(K0, 0, K1);
            b.asm.sll(K0, K0, MOVED);
            b.asm.bltz(K0, general);
        }
        b.asm.lw(K0, self.link(), K1);
        let next = b.asm.here();
        b.asm.beq(K0, ZERO, general);
        let save = b.block_high(K1, Block::SAVE);
        b.asm.sw(K0, save, K1);
        b.asm.lw(K0, 0, K0);
        self.compare(b, true, found);
        b.block_high(K1, Block::SAVE);
        b.asm.lw(K0, save, K1);
        b.asm.b(next);
        b.asm.lw(K0, self.link(), K0);
        b.asm.bind(found);
        b.asm.lw(K1, save, K1);
        if self.cluster > 1 {
            // An overflow bucket is a multiple of eight bytes, and no more.
            b.asm.mfc0(K0, Cp0::BadVAddr);
            b.asm.srl(K0, K0, 13 - 3);
            b.asm.andi(K0, K0, (8 << (self.cluster - 1)) - 8);
            b.asm.addu(K1, K1, K0);
        }
        b.asm.lw(K0, 4, K1);
        b.asm.lw(K1, 8, K1);
        b.finish();
    }
}
