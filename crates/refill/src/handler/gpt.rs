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
//! address anew. A level of an adaptive one takes ten: two shifts cut the digit out, three make the address.
//!
//! No level compares a guard. The leaf's tag is the address of its pair, and is compared with the address that missed in
//! all its bits: so whatever way an address takes through the nodes, it matches no leaf but its own.

use tlbkit_pagetable::Geometry;

use super::Build;
use crate::Error;
use crate::asm::{Cp0, K0, K1, ZERO};

/// A guarded table in the layout [`Kseg0`](tlbkit_pagetable::gpt::Kseg0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpt {
    /// The bits of every digit, if that is fixed.
    width: Option<u32>,
}

/// The bits of an address that do not tell pairs apart.
const OFFSET: u32 = 13;
/// What a leaf's link is larger than its address, and the words of a leaf behind an odd address.
const TAG: i16 = -1;
const LO0: i16 = 3;
const LO1: i16 = 7;

impl Gpt {
    /// Returns the handler's idea of `Gpt<G, EntryLo, _, Kseg0<Fixed<W>>, Fixed<W>>`.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless the space has 32 bits of 4 KiB pages alone, and nodes have 8 to 256 slots.
    pub const fn fixed<G: Geometry>(width: u32) -> Result<Self, Error> {
        if width < 3 || width > 8 {
            return Err(Error::Geometry);
        }
        Self::of::<G>(Some(width))
    }

    /// Returns the handler's idea of `Gpt<G, EntryLo, _, Kseg0<Adaptive>>`. It serves nodes of 2 to 256 slots.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless the space has 32 bits of 4 KiB pages alone.
    pub const fn adaptive<G: Geometry>() -> Result<Self, Error> {
        Self::of::<G>(None)
    }

    const fn of<G: Geometry>(width: Option<u32>) -> Result<Self, Error> {
        if G::VA_BITS == 32 && G::BASE.shift() == 12 && G::SIZES.len() == 1 {
            Ok(Self { width })
        } else {
            Err(Error::Geometry)
        }
    }

    pub(super) const fn emit(&self, b: &mut Build) {
        let general = b.general;
        let leaf = b.asm.label();
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
        b.asm.mfc0(K0, Cp0::BadVAddr);
        if b.has_fields() {
            b.asm.ins(K1, K0, 0, OFFSET);
            b.asm.bne(K0, K1, general);
        } else {
            b.asm.xor(K0, K0, K1);
            b.asm.srl(K0, K0, OFFSET);
            b.asm.bne(K0, ZERO, general);
        }
        b.asm.barrier();
        b.close();
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
            // Below the digit the two low bits of the shift are left: all digits begin at so many bits modulo four.
            b.asm.lw(K1, -((OFFSET & 3) as i16), K1);
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
