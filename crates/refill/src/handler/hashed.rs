//! The walk of a hashed or clustered table: the probe of a bucket's first unit, then its chain.
//!
//! ```text
//!   Context      | 1 0000 0000 | pair: 19 bits | 0000 |     with PTEBase = 0x8000_0000
//!   folded       |             | which unit    | .... |     Context XOR (Context >> 10), without the bits of PTEBase
//!   unit         | tag | PTE even | PTE odd | link |
//! ```
//!
//! Context equals the pair's tag, and contains the pair's number times sixteen, the size of a unit in bytes. So hash and tag
//! come from one register. A block of several pairs consists of as many adjacent units, each with its own tag and link
//! ([`hpt`](tlbkit_pagetable::hpt)), so this code does not depend on the size of blocks: the low bits of the folded number
//! select the unit of a bucket, the others the bucket. The handler moves the PTEs to the EntryLo registers before it
//! compares the tag, so that the barrier is in the branch's delay slot.
//!
//! # Tables that grow
//!
//! ```text
//!   folded       |             | entry: 10 bits | unit: 9 bits | .... |
//!   directory    | segment ... | short: 5 bits |     1024 of these words, 4 KiB
//! ```
//!
//! The root is the directory, which does not move during the table's lifetime. If a table has only one segment, that segment
//! has fewer units: `short` is the base-two logarithm of the ratio to a full segment. The handler finds every page at every
//! stage of growing and shrinking, because a bucket enters its new chain before it leaves the old one. If a writer on
//! another CPU changes a chain during the walk, the walk may follow a link into another chain
//! ([`hpt`](tlbkit_pagetable::hpt)); then it passes the miss on.

use tlbkit_pagetable::Geometry;

use super::{Build, sized};
use crate::Error;
use crate::asm::{Cp0, K0, K1, Label, Reg, ZERO};

/// A hashed table of [`EntryLo`](tlbkit_pagetable::format::EntryLo) words for a 32-bit address space of 4 KiB pages, with
/// all nodes in kseg0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// The base-two logarithm of the pages of a block.
    cluster: u32,
    /// The base-two logarithm of the number of units in the array, if that is fixed.
    log: Option<u32>,
    /// The distance from one granularity of tags to the next, in bits of an address. `grains` is the number of
    /// granularities.
    step: u32,
    grains: u32,
}

/// The number of bits by which a pair's number is shifted and combined with itself.
const FOLD: u32 = 10;
/// The upper half of LIVE, the tag's top bit, for `lui`.
const LIVE: u16 = 0x8000;
/// The low bits of a root word, or of a directory's word, that are not part of the address.
const LOG: u32 = 31;
/// The base-two logarithm of the number of units of a full segment.
const SEGMENT_LOG: u32 = 9;
/// The base-two logarithm of the number of words of a directory.
const ENTRIES_LOG: u32 = PAIR_BITS - SEGMENT_LOG;
/// The lowest bit of the pair's number in Context and in a tag.
const PAIR: u32 = 4;
/// The number of bits of a pair's number.
const PAIR_BITS: u32 = 19;
/// The offsets of a unit's words, in bytes.
const TAG: i16 = 0;
const EVEN: i16 = 4;
const ODD: i16 = 8;
const LINK: i16 = 12;
/// The base-two logarithm of a unit's bytes.
const UNIT_LOG: u32 = 4;

/// Returns the distance between the granularities of tags, in bits of an address, and their number; or `None` if the
/// distances are not equal. The first granularity is the base page; each further one is the next page size that a block of
/// the one before cannot hold.
const fn grains<G: Geometry>(cluster: u32) -> Option<(u32, u32)> {
    let (mut last, mut step, mut count) = (G::BASE.shift(), 0, 1);
    let mut at = 1;
    while at < G::SIZES.len() {
        let size = G::SIZES[at].shift();
        if size > last + cluster {
            if step != 0 && size - last != step {
                return None;
            }
            step = size - last;
            last = size;
            count += 1;
        }
        at += 1;
    }
    Some((step, count))
}

impl Hashed {
    /// Returns the walk of a `Hashed<G, EntryLo, _, Buckets<CLUSTER_LOG, BUCKETS_LOG, LOAD>>`.
    ///
    /// An array of a fixed size of more than 64 KiB must be aligned to its size, as the runs of a
    /// [`Slab`](tlbkit_pagetable::nodes::Slab) are.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless the address space has 32 bits and 4 KiB pages, blocks have 2 to 16 pages, and a table of a
    /// fixed size has at most 4 MiB.
    pub const fn of<G: Geometry>(cluster: u32, buckets: u32, load: usize) -> Result<Self, Error> {
        if G::VA_BITS != 32 || G::BASE.shift() != 12 || cluster < 1 || cluster > 4 {
            return Err(Error::Geometry);
        }
        let Some((step, grains)) = grains::<G>(cluster) else { return Err(Error::Geometry) };
        let units = buckets + cluster - 1;
        if load == 0 && units + UNIT_LOG > 22 {
            return Err(Error::Geometry);
        }
        Ok(Self { cluster, log: if load == 0 { Some(units) } else { None }, step, grains })
    }

    /// Returns the root word for the handler, from the table's root.
    ///
    /// The root word of a table that grows is its directory, and never changes.
    pub const fn root(&self, root: usize) -> u32 {
        let array = root as u32 & !LOG;
        match self.log {
            Some(log) if Self::is_wide(log) => {
                debug_assert!(
                    array.trailing_zeros() >= log + UNIT_LOG,
                    "the array is no multiple of its size"
                );
                array >> (log + UNIT_LOG)
            }
            Some(_) => array,
            None => array,
        }
    }

    /// Tells whether an array of `2^log` units is too large for a 16-bit immediate to mask its index. The root word of such
    /// an array is its address without the low bits, which are zero, so that `ins` can combine the address and the index.
    const fn is_wide(log: u32) -> bool {
        log + UNIT_LOG > 16
    }

    /// Loads k1 with the folded pair's number from bit `UNIT_LOG` on; the bits below are undefined. On release 1 the result also
    /// contains LIVE, which an immediate masks afterwards.
    const fn fold(b: &mut Build) {
        if b.is_fronted() {
            Self::fold_address(b, UNIT_LOG);
            return;
        }
        b.asm.mfc0(K0, Cp0::Context);
        if b.has_fields() {
            b.asm.ext(K1, K0, FOLD, PAIR + PAIR_BITS - FOLD);
        } else {
            b.asm.srl(K1, K0, FOLD);
        }
        b.asm.xor(K1, K1, K0);
    }

    /// As [`fold`](Self::fold), from bit `at` on, and from the address instead of Context: the result has neither LIVE nor
    /// bits of PTEBase.
    const fn fold_address(b: &mut Build, at: u32) {
        b.asm.mfc0(K0, Cp0::BadVAddr);
        b.asm.srl(K1, K0, 13 + FOLD - at);
        b.asm.srl(K0, K0, 13 - at);
        b.asm.xor(K1, K1, K0);
    }

    /// Loads k1 with the address of the bucket's first unit for the pair that missed.
    const fn first(&self, b: &mut Build) {
        match self.log {
            Some(log) if !Self::is_wide(log) => {
                Self::fold(b);
                b.asm.andi(K1, K1, (((1u32 << log) - 1) << UNIT_LOG) as u16);
                b.load_root(K0);
                b.asm.addu(K1, K1, K0);
            }
            Some(log) if b.has_fields() => {
                Self::fold(b);
                b.load_root(K0);
                b.asm.ins(K1, K0, log + UNIT_LOG, 32 - log - UNIT_LOG);
                b.asm.ins(K1, ZERO, 0, UNIT_LOG);
            }
            Some(log) => {
                Self::fold_address(b, 0);
                b.load_root(K0);
                b.asm.sll(K1, K1, 32 - log);
                b.asm.srl(K1, K1, 32 - log - UNIT_LOG);
                b.asm.sll(K0, K0, log + UNIT_LOG);
                b.asm.addu(K1, K1, K0);
            }
            None if b.has_fields() => {
                Self::fold(b);
                // The rotation moves the directory's index to the low bits, and the unit's index to the high bits.
                b.asm.rotr(K1, K1, UNIT_LOG + SEGMENT_LOG);
                b.load_root(K0);
                b.asm.ins(K0, K1, 2, ENTRIES_LOG);
                b.asm.lw(K0, 0, K0);
                b.asm.sllv(K1, K1, K0);
                b.asm.srlv(K1, K1, K0);
                b.asm.srl(K1, K1, 32 - UNIT_LOG - SEGMENT_LOG);
                b.clear_low(K0, LOG.trailing_ones());
                b.asm.addu(K1, K1, K0);
                b.clear_low(K1, UNIT_LOG);
            }
            None => {
                Self::fold_address(b, 0);
                // The computation needs three values in two registers, so one is saved in the block.
                let base = b.block_base(K0);
                b.asm.sw(K1, b.save_low(sized::BUCKET), base);
                b.asm.srl(K1, K1, SEGMENT_LOG);
                b.asm.sll(K1, K1, 2);
                b.load_root(K0);
                b.asm.addu(K0, K0, K1);
                b.asm.lw(K0, 0, K0);
                let base = b.block_base(K1);
                b.asm.lw(K1, b.save_low(sized::BUCKET), base);
                Self::within(b, K1, K0);
                b.asm.addu(K1, K1, K0);
            }
        }
    }

    /// Turns `folded`, a folded pair's number from bit 0 on, into the offset in bytes of its unit within a segment, and
    /// `word`, the directory's word, into the segment's address.
    const fn within(b: &mut Build, folded: Reg, word: Reg) {
        b.asm.sll(folded, folded, 32 - SEGMENT_LOG);
        b.asm.sllv(folded, folded, word);
        b.asm.srlv(folded, folded, word);
        b.asm.srl(folded, folded, 32 - SEGMENT_LOG);
        b.asm.sll(folded, folded, UNIT_LOG);
        b.clear_low(word, LOG.trailing_ones());
    }

    /// Branches if k0 is the tag of the pair that missed (`equal`), or if it is not (`!equal`). Overwrites k0 and k1.
    const fn compare(b: &mut Build, equal: bool, to: Label) {
        if b.is_fronted() {
            b.asm.mfc0(K1, Cp0::BadVAddr);
            b.asm.srl(K1, K1, 13);
            b.asm.sll(K1, K1, PAIR);
            b.asm.xor(K0, K0, K1);
            b.asm.lui(K1, LIVE);
        } else {
            b.asm.mfc0(K1, Cp0::Context);
        }
        if equal {
            b.asm.beq(K0, K1, to);
        } else {
            b.asm.bne(K0, K1, to);
        }
    }

    pub(super) const fn emit(&self, b: &mut Build) {
        let chain = b.asm.label();
        // Blocks of one pair hold no larger pages.
        let mixed = b.spec.form.sized && self.cluster > 1;
        self.first(b);
        b.asm.lw(K0, EVEN, K1);
        b.asm.mtc0(K0, Cp0::EntryLo0);
        if mixed {
            sized::test(b, chain);
        }
        b.asm.lw(K0, ODD, K1);
        b.asm.mtc0(K0, Cp0::EntryLo1);
        b.choose(K0);
        b.small();
        b.asm.lw(K0, TAG, K1);
        b.asm.barrier_head();
        Self::compare(b, false, chain);
        b.asm.barrier_tail();
        b.close();
        b.cold();
        b.asm.bind(chain);
        let none = if b.spec.form.sized && self.grains > 1 { b.asm.label() } else { b.general };
        let sized = b.asm.label();
        self.chain(b, none, sized);
        if b.spec.form.sized && self.grains > 1 {
            b.asm.bind(none);
            self.coarse(b, sized);
        }
        if mixed || b.spec.form.sized && self.grains > 1 {
            // The other half of a pair whose page fills a block is in another block.
            sized::emit_units(b, sized, 4 << self.cluster);
        }
    }

    /// Searches the chain behind the first unit; if blocks may hold larger pages, starts at the first unit again.
    const fn chain(&self, b: &mut Build, none: Label, sized: Label) {
        let mixed = b.spec.form.sized && self.cluster > 1;
        let found = b.asm.label();
        self.first(b);
        if mixed {
            b.asm.or(K0, K1, ZERO);
        } else {
            b.asm.lw(K0, LINK, K1);
        }
        let next = b.asm.here();
        b.asm.beq(K0, ZERO, none);
        let save = b.save_high(K1, sized::BUCKET);
        b.asm.sw(K0, save, K1);
        b.asm.lw(K0, TAG, K0);
        Self::compare(b, true, found);
        b.save_high(K1, sized::BUCKET);
        b.asm.lw(K0, save, K1);
        b.asm.b(next);
        b.asm.lw(K0, LINK, K0);
        b.asm.bind(found);
        b.asm.lw(K1, save, K1);
        if mixed {
            let small = b.asm.label();
            b.asm.mfc0(K0, Cp0::BadVAddr);
            b.asm.srl(K0, K0, 12 - 2);
            b.asm.andi(K0, K0, 4);
            b.asm.addu(K1, K1, K0);
            b.asm.addiu(K1, K1, EVEN);
            sized::sort(b, 0, small, sized);
            b.asm.bind(small);
            b.clear_low(K1, UNIT_LOG);
        }
        b.asm.lw(K0, EVEN, K1);
        b.asm.lw(K1, ODD, K1);
        b.finish();
    }

    /// Searches for the larger granularities one after the other, and branches to `sized` with the PTE that it finds.
    const fn coarse(&self, b: &mut Build, sized: Label) {
        let general = b.general;
        let (next, walk, found) = (b.asm.label(), b.asm.label(), b.asm.label());
        // The granularity: the difference of its shift to that of a page, and its number as in the tag.
        let size = b.save_high(K1, sized::GRAIN);
        let number = b.save_low(sized::OWN);
        let tag = b.save_low(sized::BITS);
        let bucket = b.save_low(sized::BUCKET);
        b.asm.sw(ZERO, number, K1);
        b.asm.sw(ZERO, size, K1);
        b.asm.bind(next);
        // k1 is the base of the CPU's block.
        b.asm.lw(K0, size, K1);
        b.asm.addiu(K0, K0, self.step as i16);
        b.asm.sw(K0, size, K1);
        b.asm.lw(K0, number, K1);
        b.asm.addiu(K0, K0, 2);
        b.asm.sw(K0, number, K1);
        b.asm.sltiu(K0, K0, 2 * self.grains as i16);
        b.asm.beq(K0, ZERO, general);
        b.asm.lw(K0, size, K1);
        b.asm.mfc0(K1, Cp0::BadVAddr);
        b.asm.srlv(K1, K1, K0);
        b.asm.srl(K1, K1, 13);
        b.asm.sll(K0, K1, PAIR);
        b.save_high(K1, sized::OWN);
        b.asm.lw(K1, number, K1);
        b.asm.or(K0, K0, K1);
        b.asm.lui(K1, LIVE);
        b.asm.or(K0, K0, K1);
        b.save_high(K1, sized::BITS);
        b.asm.sw(K0, tag, K1);
        // The pair's number again, without LIVE and the granularity.
        b.asm.sll(K0, K0, 1);
        b.asm.srl(K0, K0, PAIR + 1);
        b.asm.srl(K1, K0, FOLD);
        b.asm.xor(K0, K0, K1);
        match self.log {
            Some(log) => {
                b.load_root(K1);
                b.asm.sll(K0, K0, 32 - log);
                b.asm.srl(K0, K0, 32 - log - UNIT_LOG);
                if Self::is_wide(log) {
                    b.asm.sll(K1, K1, log + UNIT_LOG);
                }
            }
            None => {
                b.save_high(K1, sized::BUCKET);
                b.asm.sw(K0, bucket, K1);
                b.asm.srl(K0, K0, SEGMENT_LOG);
                b.asm.sll(K0, K0, 2);
                b.load_root(K1);
                b.asm.addu(K1, K1, K0);
                b.asm.lw(K1, 0, K1);
                b.save_high(K0, sized::BUCKET);
                b.asm.lw(K0, bucket, K0);
                Self::within(b, K0, K1);
            }
        }
        b.asm.addu(K1, K1, K0);
        b.asm.or(K0, K1, ZERO);
        b.asm.bind(walk);
        b.save_high(K1, sized::BUCKET);
        b.asm.sw(K0, bucket, K1);
        b.asm.lw(K0, TAG, K0);
        b.asm.lw(K1, tag, K1);
        b.asm.beq(K0, K1, found);
        b.save_high(K1, sized::BUCKET);
        b.asm.lw(K0, bucket, K1);
        b.asm.lw(K0, LINK, K0);
        b.asm.bne(K0, ZERO, walk);
        b.asm.nop();
        b.asm.b(next);
        b.asm.nop();
        b.asm.bind(found);
        b.asm.lw(K0, size, K1);
        b.asm.mfc0(K1, Cp0::BadVAddr);
        b.asm.srlv(K1, K1, K0);
        b.asm.srl(K1, K1, 12 - 2);
        b.asm.andi(K1, K1, 4);
        b.save_high(K0, sized::BUCKET);
        b.asm.lw(K0, bucket, K0);
        b.asm.addu(K1, K1, K0);
        b.asm.addiu(K1, K1, EVEN);
        b.asm.lw(K0, 0, K1);
        b.asm.srl(K0, K0, 30);
        // A block of a larger granularity holds only larger pages, so a PTE that is none of them maps nothing.
        b.asm.beq(K0, ZERO, general);
        let own = b.save_high(K0, sized::OWN);
        b.asm.b(sized);
        b.asm.sw(K1, own, K0);
    }
}
