//! The walk of a guarded table.
//!
//! ```text
//!   fixed      link      | 1 | node address          | shift |     the digit is in the low bits of BadVAddr >> shift
//!              inserted  | 1 | node address  | digit | shift |     the slot's address, except for two constant bits
//!   adaptive   link      | 1 | node address / 4 | 32 - width | 32 - top |
//!   leaf       link      | 0 | address | 1 |
//! ```
//!
//! A level of a fixed table takes five instructions: shift, insert, load, branch by the sign, and in the delay slot the load
//! of BadVAddr for the next level. A level of an adaptive table takes ten: among them two shifts that extract the digit.
//! Tables with nodes of two or four slots have links of the adaptive kind, and also take ten.
//!
//! No level compares a guard. The leaf's tag is the number of its pair of pages, and the handler compares all its bits with
//! the number of the pair that missed. So an address matches only its own leaf, whatever nodes it passes through.
//!
//! ```text
//!   Context    | 0 0000 0000 | pair: 19 bits | 0000 |     with PTEBase = 0
//!   tag        | 0 0000 0000 | pair: 19 bits | size |     size is 0 for pages of 4 KiB, 2 for 16 KiB, 4 for 64 KiB ..
//! ```
//!
//! # Larger pages
//!
//! The tag of a larger page equals no Context, so larger pages do not slow down misses of 4 KiB pages. The plain form passes
//! their misses on. The form for larger pages ([`larger`](Gpt::larger)) compares the tags without as many low bits as the
//! size says. The EntryLo registers are loaded then; if both halves are valid, the handler only has to set PageMask. If one
//! is not, the other half of the pair may hold smaller pages, or be closed, and the handler loads an entry for a pair within
//! the page ([`sized`]). A miss on a closed page is passed on.

use tlbkit_pagetable::Geometry;

use super::{Build, sized};
use crate::Error;
use crate::asm::{Cp0, K0, K1, Label, ZERO};

/// A guarded table in the layout [`Kseg0`](tlbkit_pagetable::gpt::Kseg0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpt {
    /// The number of bits of every digit, if it is fixed and the links do not contain it.
    width: Option<u32>,
}

/// The lowest position of a digit.
const LOWEST: u32 = 13;
/// The number of bits of a tag, and of Context without PTEBase.
const TAGGED: u32 = 23;
/// The number of a tag's low bits, below the pair's number, which hold the size.
const SIZE: u32 = 4;
/// The lowest bit of a page's number in an address.
const PAGE: u32 = 12;
/// The base-two logarithm of the bytes of the largest page whose size a tag can hold.
const LARGEST_LOG: u32 = 26;
/// V of an EntryLo.
const VALID: u16 = 2;
/// The offsets of a leaf's words from its odd link, which is the leaf's address plus one: the tag, and the two PTEs.
const TAG: i16 = -1;
const LO0: i16 = 3;
const LO1: i16 = 7;

impl Gpt {
    /// Returns the walk of a `Gpt<G, EntryLo, _, Kseg0<Fixed<W>>, Fixed<W>>`, for `W` of `width`.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless the address space has 32 bits, its page sizes are powers of four from 4 KiB to 64 MiB, and
    /// nodes have 2 to 256 slots.
    pub const fn fixed<G: Geometry>(width: u32) -> Result<Self, Error> {
        match width {
            1 | 2 => Self::of::<G>(None),
            3..=8 => Self::of::<G>(Some(width)),
            _ => Err(Error::Geometry),
        }
    }

    /// Returns the walk of a `Gpt<G, EntryLo, _, Kseg0<Adaptive>>`. It supports nodes of 2 to 256 slots.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless the address space has 32 bits and its page sizes are powers of four from 4 KiB to 64 MiB.
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
            if shift > LARGEST_LOG || !shift.is_multiple_of(2) {
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
            // Without bit-field instructions the whole path does not fit at the refill vector.
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

    /// Loads k0 with the tag that the pair that missed would have with pages of 4 KiB.
    const fn pair(b: &mut Build) {
        b.asm.mfc0(K0, Cp0::Context);
        if b.is_fronted() {
            // PTEBase is the software TLB's address, and must be removed.
            if b.has_fields() {
                b.asm.ext(K0, K0, 0, TAGGED);
            } else {
                b.asm.sll(K0, K0, 32 - TAGGED);
                b.asm.srl(K0, K0, 32 - TAGGED);
            }
        }
    }

    /// Serves a miss whose leaf has another tag than pages of 4 KiB: k0 is the tag of the pair that missed, k1 the leaf's
    /// tag, and the EntryLo registers are loaded.
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
        // The size in pages of 4 KiB is also the bit of the page's number that distinguishes the two halves of the pair.
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

        // The other half of the pair is absent or closed, so the entry is a pair within this page.
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

    /// Loads k1 with the next link: k0 is the address that missed, k1 the current link.
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
            // Below the digit, the two low bits of the shift remain. They are the same for all digits, because the positions
            // differ by multiples of the width, and so the load's offset subtracts them.
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
        // The two bits below the address are the high bits of `32 - width`, which is at least 24: both are set, and the
        // load's offset subtracts them.
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

    /// Turns an odd physical address in k1 into an address in kseg0.
    const fn make_kseg0(b: &mut Build) {
        if b.has_fields() {
            // Copies the lowest bit, which is set, to the highest.
            b.asm.ins(K1, K1, 31, 1);
        } else {
            b.asm.lui(K0, 0x8000);
            b.asm.addu(K1, K1, K0);
        }
    }
}
