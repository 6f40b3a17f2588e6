//! The walk of a guarded table in the paper's layout: a guard and a pointer of 64 bits each.
//!
//! ```text
//!   pointer to a node    | 1 .. 1 | node address: 32 | width: 4 | ..  | shift: 6 |
//!   pointer to a leaf    | 0 ..               .. | leaf address: 32               |
//! ```
//!
//! A pointer contains all that a level needs, in one register: an arithmetic shift to the right gives the node's address.
//! Each level also loads the guard, in the delay slot, and the handler compares the last one. That guard is the complete
//! address of the pair, so no other pair matches.

use super::Build;
use crate::Error;
use crate::asm::{Cp0, K0, K1, ZERO};

/// A guarded table of [`PaperLo`](super::PaperLo) words. The root is the root slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpt {
    /// The number of bits of every digit, if it is fixed.
    width: Option<u32>,
}

/// The position of the digit's width in a pointer to a node.
const WIDTH: u32 = 8;
/// The position of the node's address in a pointer to a node.
const NODE: u32 = 12;
/// The base-two logarithm of the bytes of a slot.
const SLOT_LOG: u32 = 4;

impl Gpt {
    /// Returns the walk of a `PaperGpt<_, Fixed<width>>` with the format [`PaperLo`](super::PaperLo). The width of G2 is 1,
    /// that of G256 is 8.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless nodes have 2 to 4096 slots.
    pub const fn fixed(width: u32) -> Result<Self, Error> {
        if width >= 1 && width <= 12 { Ok(Self { width: Some(width) }) } else { Err(Error::Geometry) }
    }

    /// Returns the walk of a `PaperGpt<_, Adaptive>` with the format [`PaperLo`](super::PaperLo).
    pub const fn adaptive() -> Self {
        Self { width: None }
    }

    /// Loads k1 with the offset of the digit's slot in the node to which k0 points.
    const fn digit(&self, b: &mut Build) {
        if let Some(width) = self.width {
            b.asm.dmfc0(K1, Cp0::BadVAddr);
            b.asm.dsrlv(K1, K1, K0);
            b.asm.andi(K1, K1, (1 << width) - 1);
            b.asm.dsll(K1, K1, SLOT_LOG);
            return;
        }
        b.asm.dmtc0(K0, Cp0::ErrorEpc);
        b.asm.dmfc0(K1, Cp0::BadVAddr);
        b.asm.dsrlv(K1, K1, K0);
        // A shift counts by its operand's low six bits: the width, and two bits of the node's address, which are 0. By the
        // negative width the digit moves to the top and back, without the bits above it.
        b.asm.dsrl(K0, K0, WIDTH);
        b.asm.dsubu(K0, ZERO, K0);
        b.asm.dsllv(K1, K1, K0);
        b.asm.dsrlv(K1, K1, K0);
        b.asm.dsll(K1, K1, SLOT_LOG);
        b.asm.dmfc0(K0, Cp0::ErrorEpc);
    }

    pub(super) const fn emit(&self, b: &mut Build) {
        let general = b.general;
        let leaf = b.asm.label();
        let low = b.block(K1);
        b.asm.ld(K0, low + 8, K1);
        b.asm.bgez(K0, leaf);
        b.asm.ld(K1, low, K1);
        let level = b.asm.here();
        self.digit(b);
        b.asm.dsra(K0, K0, NODE);
        b.asm.daddu(K1, K1, K0);
        b.asm.ld(K0, 8, K1);
        b.asm.bltz(K0, level);
        b.asm.ld(K1, 0, K1);
        b.asm.bind(leaf);
        b.asm.beq(K0, ZERO, general);
        b.asm.sll(K0, K0, 0);
        b.asm.dmtc0(K1, Cp0::ErrorEpc);
        b.asm.lw(K1, 0, K0);
        b.asm.mtc0(K1, Cp0::EntryLo0);
        b.asm.lw(K1, 4, K0);
        b.asm.mtc0(K1, Cp0::EntryLo1);
        b.asm.dmfc0(K0, Cp0::BadVAddr);
        b.asm.dsrl(K0, K0, 13);
        b.asm.dmfc0(K1, Cp0::ErrorEpc);
        b.asm.dsrl(K1, K1, 13);
        b.asm.bne(K0, K1, general);
        b.asm.nop();
        b.close();
    }
}
