//! The walk of a multi-level table: at each level an index, an address and a load.

use tlbkit_pagetable::Radix;

use super::Build;
use crate::Error;
use crate::asm::{Cp0, K0, K1};

/// The largest number of levels.
const MAX: usize = 8;

/// A multi-level table of [`PaperLo`](super::PaperLo) words. The root is the address of the root node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mpt {
    widths: [u32; MAX],
    levels: usize,
}

impl Mpt {
    /// Returns the walk of an `Mpt<G, PaperLo, _>`.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless the address space has 64 bits and 4 KiB pages, and the table has at most eight levels of
    /// at most ten bits.
    pub const fn of<G: Radix>() -> Result<Self, Error> {
        let levels = G::WIDTHS.len();
        if G::VA_BITS != 64 || G::BASE.shift() != 12 || G::LINEAR.is_some() || levels > MAX {
            return Err(Error::Geometry);
        }
        let mut widths = [0; MAX];
        let mut level = 0;
        while level < levels {
            if G::WIDTHS[level] > 10 {
                return Err(Error::Geometry);
            }
            widths[level] = G::WIDTHS[level];
            level += 1;
        }
        Ok(Self { widths, levels })
    }

    pub(super) const fn emit(&self, b: &mut Build) {
        let general = b.general;
        let low = b.block(K1);
        b.asm.lw(K1, low, K1);
        b.asm.dmfc0(K0, Cp0::BadVAddr);
        let mut shift = 64;
        let mut level = 0;
        while level + 1 < self.levels {
            let width = self.widths[level];
            shift -= width;
            b.right(K0, K0, shift - 2);
            b.asm.andi(K0, K0, (((1u32 << width) - 1) << 2) as u16);
            b.asm.daddu(K1, K1, K0);
            b.asm.lw(K1, 0, K1);
            // A link is an address in kseg0.
            b.asm.bgez(K1, general);
            b.asm.dmfc0(K0, Cp0::BadVAddr);
            level += 1;
        }
        // A pair has two PTEs and two words of the kernel: 16 bytes.
        let pairs = self.widths[level] - 1;
        b.right(K0, K0, 13 - 4);
        b.asm.andi(K0, K0, (((1u32 << pairs) - 1) << 4) as u16);
        b.asm.daddu(K1, K1, K0);
        b.asm.lw(K0, 0, K1);
        b.asm.lw(K1, 4, K1);
        b.finish();
    }
}
