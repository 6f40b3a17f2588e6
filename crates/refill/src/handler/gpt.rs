//! The guarded table.
//!
//! ```text
//!   fixed      link      | 1 | node address          | shift |     BadVAddr >> shift is the digit, and what is above
//!              inserted  | 1 | node address  | digit | shift |     the slot's address but for two constant bits
//!   adaptive   link      | 1 | node address / 4 | 32 - width | 32 - top |
//!   leaf       link      | 0 | address | 1 |
//! ```
//!
//! A level of a fixed table takes five instructions: shift, insert, load, branch by the sign, and in its delay slot the
//! address anew. A level of an adaptive one takes ten: two shifts cut the digit out, three make the address; and so does
//! one of nodes of two or four slots, whose links are of that kind.
//!
//! No level compares a guard. The leaf's tag is the number of its pair, and is compared with the number of the pair that
//! missed in all its bits: so whatever way an address takes through the nodes, it matches no leaf but its own.
//!
//! ```text
//!   Context    | 0 0000 0000 | pair: 19 bits | 0000 |     with PTEBase = 0
//!   tag        | 0 0000 0000 | pair: 19 bits | size |     size is 0 for pages of 4 KiB, 2 for 16 KiB, 4 for 64 KiB ..
//! ```
//!
//! # Larger pages
//!
//! Their tags equal no Context, so they cost the others nothing. The plain form passes their misses on. The form for
//! them ([`larger`](Gpt::larger)) compares without the low bits, as many as the size says, and has the EntryLos moved
//! already: if both are valid PageMask is all that is missing. If one is not, the other half of the pair may hold smaller
//! pages, or be closed, and the entry is a pair within the page: see [`sized`]. A page that is closed itself is passed on.

use tlbkit_pagetable::Geometry;

use super::{Build, sized};
use crate::Error;
use crate::asm::{Cp0, K0, K1, Label, ZERO};

/// A guarded table in the layout [`Kseg0`](tlbkit_pagetable::gpt::Kseg0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpt {
    /// The bits of every digit, if that is fixed and links have no room for it.
    width: Option<u32>,
}

/// The lowest position of a digit.
const LOWEST: u32 = 13;
/// The bits of a tag, and of Context, up to those of the pair's number, and below it.
const TAGGED: u32 = 23;
const SIZE: u32 = 4;
/// Where a page's number begins in an address.
const PAGE: u32 = 12;
/// The largest page that a tag has a size for.
const LARGEST: u32 = 26;
/// V of an EntryLo.
const VALID: u16 = 2;
/// What a leaf's link is larger than its address, and the words of a leaf behind an odd address.
const TAG: i16 = -1;
const LO0: i16 = 3;
const LO1: i16 = 7;

impl Gpt {
    /// Returns the handler's idea of `Gpt<G, EntryLo, _, Kseg0<Fixed<W>>, Fixed<W>>`.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless the space has 32 bits, its pages are of 4 KiB to 64 MiB, powers of four, and nodes have
    /// 2 to 256 slots.
    pub const fn fixed<G: Geometry>(width: u32) -> Result<Self, Error> {
        match width {
            1 | 2 => Self::of::<G>(None),
            3..=8 => Self::of::<G>(Some(width)),
            _ => Err(Error::Geometry),
        }
    }

    /// Returns the handler's idea of `Gpt<G, EntryLo, _, Kseg0<Adaptive>>`. It serves nodes of 2 to 256 slots.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless the space has 32 bits, and its pages are of 4 KiB to 64 MiB, powers of four.
    pub const fn adaptive<G: Geometry>() -> Result<Self, Error> {
        Self::of::<G>(None)
    }

    const fn of<G: Geometry>(width: Option<u32>) -> Result<Self, Error> {
        if G::VA_BITS != 32 || G::BASE.shift() != PAGE {
            return Err(Error::Geometry);
        }
        let mut at = 0;
        while at < G::SIZES.len() {
            let shift = G::SIZES[at].shift();
            if shift > LARGEST || !shift.is_multiple_of(2) {
                return Err(Error::Geometry);
            }
            at += 1;
        }
        Ok(Self { width })
    }

    pub(super) const fn emit(&self, b: &mut Build) {
        let general = b.general;
        let leaf = b.asm.label();
        let other = if b.spec.form.sized { b.asm.label() } else { general };
        b.load_root(K1);
        b.asm.bgez(K1, leaf);
        b.asm.mfc0(K0, Cp0::BadVAddr);
        let level = b.asm.here();
        match self.width {
            Some(width) => Self::fixed_level(b, width),
            None => Self::adaptive_level(b),
        }
        b.asm.bltz(K1, level);
        b.asm.mfc0(K0, Cp0::BadVAddr);
        if b.spec.form.reporting && !b.has_fields() {
            // Without bit fields all of it does not fit at the vector.
            b.asm.b(leaf);
            b.asm.nop();
            b.cold();
        }
        b.asm.bind(leaf);
        b.asm.blez(K1, general);
        Self::make_kseg0(b);
        b.asm.lw(K0, LO0, K1);
        b.asm.mtc0(K0, Cp0::EntryLo0);
        b.asm.lw(K0, LO1, K1);
        b.asm.mtc0(K0, Cp0::EntryLo1);
        b.choose(K0);
        b.small();
        b.asm.lw(K1, TAG, K1);
        Self::pair(b);
        b.asm.barrier_head();
        b.asm.bne(K0, K1, other);
        b.asm.barrier_tail();
        b.close();
        if b.spec.form.sized {
            b.cold();
            Self::larger(b, other);
        }
    }

    /// Loads the tag of the pair that missed, if it is one of pages of 4 KiB, into k0.
    const fn pair(b: &mut Build) {
        b.asm.mfc0(K0, Cp0::Context);
        if b.is_fronted() {
            // PTEBase is the cache.
            if b.has_fields() {
                b.asm.ext(K0, K0, 0, TAGGED);
            } else {
                b.asm.sll(K0, K0, 32 - TAGGED);
                b.asm.srl(K0, K0, 32 - TAGGED);
            }
        }
    }

    /// Serves a leaf of larger pages: k0 is the tag that was looked for and k1 the leaf's, and the EntryLos are moved.
    const fn larger(b: &mut Build, other: Label) {
        let general = b.general;
        let (own, within, odd, done) = (b.asm.label(), b.asm.label(), b.asm.label(), b.asm.label());
        b.asm.bind(other);
        b.asm.xor(K0, K0, K1);
        b.asm.srl(K0, K0, SIZE);
        b.asm.andi(K1, K1, (1 << SIZE) - 1);
        b.asm.srlv(K0, K0, K1);
        b.asm.bne(K0, ZERO, general);
        b.asm.addiu(K0, ZERO, 1);
        // The size in pages of 4 KiB is the bit of the page's number that tells the halves apart.
        b.asm.sllv(K0, K0, K1);
        b.asm.mfc0(K1, Cp0::BadVAddr);
        b.asm.srl(K1, K1, PAGE);
        b.asm.and(K1, K1, K0);
        b.asm.bne(K1, ZERO, own);
        b.asm.mfc0(K1, Cp0::EntryLo1);
        b.asm.mfc0(K1, Cp0::EntryLo0);
        b.asm.bind(own);
        b.asm.andi(K1, K1, VALID);
        b.asm.beq(K1, ZERO, general);
        b.asm.addiu(K0, K0, -1);
        let bits = b.save_high(K1, sized::BITS);
        b.asm.sw(K0, bits, K1);
        b.asm.mfc0(K0, Cp0::EntryLo0);
        b.asm.mfc0(K1, Cp0::EntryLo1);
        b.asm.and(K1, K1, K0);
        b.asm.andi(K1, K1, VALID);
        b.asm.beq(K1, ZERO, within);
        b.save_high(K0, sized::BITS);
        b.asm.lw(K0, bits, K0);
        sized::whole(b, K0, done);

        // The other half is absent, or closed: then it has a frame of its own.
        b.asm.bind(within);
        b.save_high(K1, sized::BITS);
        b.asm.lw(K1, bits, K1);
        b.asm.mfc0(K0, Cp0::BadVAddr);
        b.asm.addiu(K1, K1, 1);
        b.asm.srl(K0, K0, PAGE);
        b.asm.and(K0, K0, K1);
        b.asm.bne(K0, ZERO, odd);
        b.asm.mfc0(K0, Cp0::EntryLo1);
        b.asm.mfc0(K0, Cp0::EntryLo0);
        b.asm.bind(odd);
        let leaf = b.save_high(K1, sized::GRAIN);
        b.asm.sw(K0, leaf, K1);
        b.asm.addiu(K1, K1, leaf);
        let own = b.save_high(K0, sized::OWN);
        b.asm.sw(K1, own, K0);
        sized::within(b, done);
    }

    /// Loads the next link: k0 is the address that missed, k1 the link.
    const fn fixed_level(b: &mut Build, width: u32) {
        b.asm.srlv(K0, K0, K1);
        if !b.has_fields() {
            b.asm.andi(K0, K0, (1 << width) - 1);
            b.asm.sll(K0, K0, 2);
            b.asm.srl(K1, K1, width + 2);
            b.asm.sll(K1, K1, width + 2);
            b.asm.or(K1, K1, K0);
            return b.asm.lw(K1, 0, K1);
        }
        b.asm.ins(K1, K0, 2, width);
        if width.is_multiple_of(4) {
            // Below the digit the two low bits of the shift are left: the positions of all digits are the same modulo four.
            b.asm.lw(K1, -((LOWEST & 3) as i16), K1);
        } else {
            b.asm.ins(K1, ZERO, 0, 2);
            b.asm.lw(K1, 0, K1);
        }
    }

    /// As [`fixed_level`](Self::fixed_level), for nodes of any size.
    const fn adaptive_level(b: &mut Build) {
        b.asm.sllv(K0, K0, K1);
        b.asm.srl(K1, K1, 5);
        b.asm.srlv(K0, K0, K1);
        b.asm.sll(K0, K0, 2);
        // The two bits below the address are the high ones of the count, which is 24 at least: both are set.
        if b.has_fields() {
            b.asm.ext(K1, K1, 3, 23);
        } else {
            b.asm.sll(K1, K1, 6);
            b.asm.srl(K1, K1, 9);
        }
        b.asm.addu(K1, K1, K0);
        Self::make_kseg0(b);
        b.asm.lw(K1, -3, K1);
    }

    /// Makes an odd physical address in k1 one in kseg0.
    const fn make_kseg0(b: &mut Build) {
        if b.has_fields() {
            // Its lowest bit, which is set, is copied to its highest.
            b.asm.ins(K1, K1, 31, 1);
        } else {
            b.asm.lui(K0, 0x8000);
            b.asm.addu(K1, K1, K0);
        }
    }
}
