//! The guarded table in the paper's layout: guard and pointer of 64 bits.
//!
//! ```text
//!   pointer to a node    | 1 .. 1 | node address: 32 | width: 4 | ..  | shift: 6 |
//!   pointer to a leaf    | 0 ..               .. | leaf address: 32               |
//! ```
//!
//! A pointer is everything that a level needs, in one register: shifted right, arithmetically, it is the node's address.
//! Each level loads the guard too, in the delay slot, and the last one is compared: it is all of the pair's
//! address, so no other can match.

use super::Build;
use crate::Error;
use crate::asm::{Cp0, K0, K1, ZERO};

/// A guarded table of [`PaperLo`](super::PaperLo) words, all nodes of a size; its root is its root slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpt {
    width: u32,
}

impl Gpt {
    /// Returns the handler's idea of `PaperGpt<_, Fixed<width>>` with another format: G2 is 1, G256 is 8.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless nodes have 2 to 4096 slots.
    pub const fn fixed(width: u32) -> Result<Self, Error> {
        if width >= 1 && width <= 12 { Ok(Self { width }) } else { Err(Error::Geometry) }
    }

    pub(super) const fn emit(&self, b: &mut Build) {
        let general = b.general;
        let leaf = b.asm.label();
        let low = b.block(K1);
        b.asm.ld(K0, low + 8, K1);
        b.asm.bgez(K0, leaf);
        b.asm.ld(K1, low, K1);
        let level = b.asm.here();
        b.asm.dmfc0(K1, Cp0::BadVAddr);
        b.asm.dsrlv(K1, K1, K0);
        b.asm.andi(K1, K1, (1 << self.width) - 1);
        b.asm.dsll(K1, K1, 4);
        b.asm.dsra(K0, K0, 12);
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
