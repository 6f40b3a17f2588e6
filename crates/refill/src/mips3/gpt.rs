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

/// A guarded table of [`PaperLo`](super::PaperLo) words, with nodes of one size. The root is the root slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpt {
    width: u32,
}

impl Gpt {
    /// Returns the walk of a `PaperGpt<_, Fixed<width>>` with the format [`PaperLo`](super::PaperLo). The width of G2 is 1,
    /// that of G256 is 8.
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
