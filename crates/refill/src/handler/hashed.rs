//! Hashed and clustered tables: a probe, and the chain behind it.
//!
//! ```text
//!   Context      | 1 0000 0000 | pair: 19 bits | 0000 |     with PTEBase = 0x8000_0000
//!   folded       |             | which unit    | .... |     Context XOR (Context >> 10), without what PTEBase adds
//!   unit         | tag | PTE even | PTE odd | link |
//! ```
//!
//! Context is the pair's tag, and sixteen times the pair's number, which is also the distance of a unit: so hash and tag come
//! from one register. A block of several pairs is as many units side by side, each with a tag and a link of its own
//! ([`hpt`](tlbkit_pagetable::hpt)), so that this code need not know of blocks: the fold's low bits say which unit of a
//! bucket it is, the others which bucket. The EntryLos are moved before the tag is compared, with the barrier in the delay
//! slot.
//!
//! # Tables that grow
//!
//! ```text
//!   folded       |             | entry: 10 bits | unit: 9 bits | .... |
//!   directory    | segment ... | short: 5 bits |     1024 of these words, 4 KiB
//! ```
//!
//! The root is the directory, and stays where it is for the table's whole life. The segment of a table that has only one, of
//! fewer units, is `short` bits shorter than others. The handler finds every page at every stage of growing and shrinking:
//! a bucket is in its chain before it leaves another one. Beside a writer on another CPU it may be led astray once
//! ([`hpt`](tlbkit_pagetable::hpt)), and then passes the miss on.

use tlbkit_pagetable::Geometry;

use super::{Build, sized};
use crate::Error;
use crate::asm::{Cp0, K0, K1, Label, Reg, ZERO};

/// A hashed table of [`EntryLo`](tlbkit_pagetable::format::EntryLo) words for a 32-bit space of 4 KiB pages, all nodes in
/// kseg0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// The base-two logarithm of the pages of a block.
    cluster: u32,
    /// The base-two logarithm of the units in the array, if that is fixed.
    log: Option<u32>,
    /// From one granularity of tags to the next, in bits of an address, and how many there are.
    step: u32,
    grains: u32,
}

/// How far pair numbers are folded onto themselves.
const FOLD: u32 = 10;
/// LIVE, for `lui`: the tag's top bit.
const LIVE: u16 = 0x8000;
/// The low bits of a root word, or of a directory's, that are no address.
const LOG: u32 = 31;
/// The base-two logarithms of the units of a whole segment, and of the entries of a directory.
const SEGMENT: u32 = 9;
const ENTRIES: u32 = PAIR_BITS - SEGMENT;
/// Where Context, and a tag, have the pair's number, and how many bits that has.
const PAIR: u32 = 4;
const PAIR_BITS: u32 = 19;
/// The words of a unit.
const TAG: i16 = 0;
const EVEN: i16 = 4;
const ODD: i16 = 8;
const LINK: i16 = 12;
/// The base-two logarithm of its bytes.
const UNIT: u32 = 4;

/// Returns how far the granularities of tags are apart, in bits of an address, and how many there are; or `None` if they
/// are not equally far apart. They are the base page, then the next size that the blocks of the one before cannot hold.
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
    /// Returns the handler's idea of `Hashed<G, EntryLo, _, CLUSTER, BUCKETS, LOAD>`.
    ///
    /// An array of a fixed size of more than 64 KiB must lie at a multiple of its size, as the runs of a
    /// [`Slab`](tlbkit_pagetable::nodes::Slab) do.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless the space has 32 bits of 4 KiB pages, blocks have 2 to 16 pages, and a table of a fixed
    /// size has at most 4 MiB.
    pub const fn of<G: Geometry>(cluster: u32, buckets: u32, load: usize) -> Result<Self, Error> {
        if G::VA_BITS != 32 || G::BASE.shift() != 12 || cluster < 1 || cluster > 4 {
            return Err(Error::Geometry);
        }
        let Some((step, grains)) = grains::<G>(cluster) else { return Err(Error::Geometry) };
        let units = buckets + cluster - 1;
        if load == 0 && units + UNIT > 22 {
            return Err(Error::Geometry);
        }
        Ok(Self { cluster, log: if load == 0 { Some(units) } else { None }, step, grains })
    }

    /// Returns what the handler starts from, made of what the table calls its root.
    ///
    /// That of a table that grows is its directory, and never changes.
    pub const fn root(&self, root: usize) -> u32 {
        let array = root as u32 & !LOG;
        match self.log {
            Some(log) if Self::is_wide(log) => {
                debug_assert!(array.trailing_zeros() >= log + UNIT, "the array is no multiple of its size");
                array >> (log + UNIT)
            }
            Some(_) => array,
            None => array,
        }
    }

    /// Tells whether an array of `2^log` units is too large for an immediate to mask its index. Its root word is the
    /// address, which is a multiple of the size, without the bits that are zero: `ins` joins the two.
    const fn is_wide(log: u32) -> bool {
        log + UNIT > 16
    }

    /// Folds the pair's number into k1, from bit `UNIT` on; what is below means nothing. On release 1 LIVE is in it: there
    /// that is for arrays in which an immediate masks the index.
    const fn fold(b: &mut Build) {
        if b.is_fronted() {
            Self::fold_address(b, UNIT);
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

    /// The same from bit `at` on, of the address, whose top bits are nothing but the pair's: neither LIVE nor a cache's.
    const fn fold_address(b: &mut Build, at: u32) {
        b.asm.mfc0(K0, Cp0::BadVAddr);
        b.asm.srl(K1, K0, 13 + FOLD - at);
        b.asm.srl(K0, K0, 13 - at);
        b.asm.xor(K1, K1, K0);
    }

    /// Loads the address of the first unit into k1.
    const fn first(&self, b: &mut Build) {
        match self.log {
            Some(log) if !Self::is_wide(log) => {
                Self::fold(b);
                b.asm.andi(K1, K1, (((1u32 << log) - 1) << UNIT) as u16);
                b.load_root(K0);
                b.asm.addu(K1, K1, K0);
            }
            Some(log) if b.has_fields() => {
                Self::fold(b);
                b.load_root(K0);
                b.asm.ins(K1, K0, log + UNIT, 32 - log - UNIT);
                b.asm.ins(K1, ZERO, 0, UNIT);
            }
            Some(log) => {
                Self::fold_address(b, 0);
                b.load_root(K0);
                b.asm.sll(K1, K1, 32 - log);
                b.asm.srl(K1, K1, 32 - log - UNIT);
                b.asm.sll(K0, K0, log + UNIT);
                b.asm.addu(K1, K1, K0);
            }
            None if b.has_fields() => {
                Self::fold(b);
                // The entry's number goes to the bottom, the unit's to the top.
                b.asm.rotr(K1, K1, UNIT + SEGMENT);
                b.load_root(K0);
                b.asm.ins(K0, K1, 2, ENTRIES);
                b.asm.lw(K0, 0, K0);
                b.asm.sllv(K1, K1, K0);
                b.asm.srlv(K1, K1, K0);
                b.asm.srl(K1, K1, 32 - UNIT - SEGMENT);
                b.clear_low(K0, LOG.trailing_ones());
                b.asm.addu(K1, K1, K0);
                b.clear_low(K1, UNIT);
            }
            None => {
                Self::fold_address(b, 0);
                // There are two registers for the sum of two things and a third.
                let base = b.block_base(K0);
                b.asm.sw(K1, b.save_low(sized::BUCKET), base);
                b.asm.srl(K1, K1, SEGMENT);
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

    /// Makes a folded pair's number, from bit 0 on, the distance of its unit in the segment of a directory's word, and the word
    /// the segment's address.
    const fn within(b: &mut Build, folded: Reg, word: Reg) {
        b.asm.sll(folded, folded, 32 - SEGMENT);
        b.asm.sllv(folded, folded, word);
        b.asm.srlv(folded, folded, word);
        b.asm.srl(folded, folded, 32 - SEGMENT);
        b.asm.sll(folded, folded, UNIT);
        b.clear_low(word, LOG.trailing_ones());
    }

    /// Branches by whether k0 is the tag of the pair that missed: if it is and `equal`, or is not and not. Loses both
    /// registers.
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
            // The other half of a page that fills a block is in another one.
            sized::emit_units(b, sized, 4 << self.cluster);
        }
    }

    /// Looks behind the first unit; where larger pages may be in a block, looks at that one again.
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
            b.clear_low(K1, UNIT);
        }
        b.asm.lw(K0, EVEN, K1);
        b.asm.lw(K1, ODD, K1);
        b.finish();
    }

    /// Looks for the larger granularities one after the other. Goes to `sized` with what it finds.
    const fn coarse(&self, b: &mut Build, sized: Label) {
        let general = b.general;
        let (next, walk, found) = (b.asm.label(), b.asm.label(), b.asm.label());
        // Which granularity: its size, and its number as the tag has it.
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
                b.asm.srl(K0, K0, 32 - log - UNIT);
                if Self::is_wide(log) {
                    b.asm.sll(K1, K1, log + UNIT);
                }
            }
            None => {
                b.save_high(K1, sized::BUCKET);
                b.asm.sw(K0, bucket, K1);
                b.asm.srl(K0, K0, SEGMENT);
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
        // A block of larger pages has room for no other sizes: nothing is mapped here.
        b.asm.beq(K0, ZERO, general);
        let own = b.save_high(K0, sized::OWN);
        b.asm.b(sized);
        b.asm.sw(K1, own, K0);
    }
}
