//! The two-level table.
//!
//! ```text
//!   BadVAddr   | index 0: 10 bits | pair: 9 bits |   | offset |
//!   rotated by 22        | pair: 9 bits |   | offset | index 0: 10 bits |
//! ```
//!
//! The rotated address serves both levels: its low end is the first index, its high end the second. That is four
//! instructions fewer than loading and shifting twice.

use tlbkit_pagetable::Radix;

use super::{Build, sized};
use crate::Error;
use crate::asm::{Cp0, K0, K1, Label, ZERO};

/// A two-level table of [`EntryLo`](tlbkit_pagetable::format::EntryLo) words, all nodes in kseg0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mpt {
    /// The index bits of both levels.
    widths: [u32; 2],
}

impl Mpt {
    /// Returns the handler's idea of a table of geometry `G`.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless the table has 32 bits of 4 KiB pages in two levels of at most ten bits.
    pub const fn of<G: Radix>() -> Result<Self, Error> {
        let widths = G::WIDTHS;
        if G::VA_BITS != 32 || G::BASE.shift() != 12 || widths.len() != 2 || G::LINEAR.is_some() {
            return Err(Error::Geometry);
        }
        // A root of at most a page is aligned to its size, and so are the other nodes.
        if widths[0] > 10 || widths[1] > 10 {
            return Err(Error::Geometry);
        }
        Ok(Self { widths: [widths[0], widths[1]] })
    }

    pub(super) const fn emit(&self, b: &mut Build) {
        let pair = self.widths[1] - 1;
        let large = if b.spec.form.sized { b.asm.label() } else { b.general };
        self.top(b);
        b.asm.lw(K1, 0, K1);
        if b.has_fields() {
            // A link is an address in kseg0; a larger page, or nothing, has bit 31 clear.
            b.asm.bgez(K1, large);
            b.asm.srl(K0, K0, 32 - pair);
            b.asm.ins(K1, K0, 3, pair);
        } else {
            b.asm.mfc0(K0, Cp0::Context);
            b.asm.bgez(K1, large);
            // The pair's number stands 4 bits up, and a pair of words has 8 bytes.
            b.asm.srl(K0, K0, 1);
            b.asm.andi(K0, K0, (((1u32 << pair) - 1) << 3) as u16);
            b.asm.addu(K1, K1, K0);
        }
        b.asm.lw(K0, 0, K1);
        b.asm.lw(K1, 4, K1);
        if !b.spec.form.sized {
            return b.finish();
        }
        let larger = b.asm.label();
        b.asm.mtc0(K0, Cp0::EntryLo0);
        sized::test(b, larger);
        b.asm.mtc0(K1, Cp0::EntryLo1);
        b.finish_moved();
        b.cold();
        self.emit_sized(b, large, larger);
    }

    /// Loads the address of the root's slot into k1. The address that missed is in k0, rotated if there are bit fields.
    const fn top(&self, b: &mut Build) {
        let top = self.widths[0];
        b.load_root(K1);
        b.asm.mfc0(K0, Cp0::BadVAddr);
        if b.has_fields() {
            b.asm.rotr(K0, K0, 32 - top);
            b.asm.ins(K1, K0, 2, top);
        } else {
            b.asm.srl(K0, K0, 32 - top);
            b.asm.sll(K0, K0, 2);
            b.asm.addu(K1, K1, K0);
        }
    }

    /// Serves what stands in the root (`large`), and what may be larger than 4 KiB in a node (`larger`).
    const fn emit_sized(&self, b: &mut Build, large: Label, larger: Label) {
        let leaf = self.widths[1];
        let sized = b.asm.label();
        let small = b.asm.label();
        let general = b.general;
        b.asm.bind(large);
        self.top(b);
        if b.spec.form.shared {
            // What is no larger page is passed on: nothing, or a link that has just been stored.
            sized::sort(b, leaf as i16, general, sized);
        } else {
            b.asm.lw(K0, 0, K1);
            b.asm.srl(K0, K0, 30);
            b.asm.beq(K0, ZERO, general);
            sized::enter(b, leaf as i16, sized);
        }

        b.asm.bind(larger);
        self.top(b);
        b.asm.lw(K1, 0, K1);
        b.asm.mfc0(K0, Cp0::BadVAddr);
        b.asm.srl(K0, K0, 12 - 2);
        b.asm.andi(K0, K0, (((1u32 << leaf) - 1) << 2) as u16);
        b.asm.addu(K1, K1, K0);
        sized::sort(b, 0, small, sized);
        sized::small(b, small);
        // No pair of pages stands in two nodes.
        sized::emit(b, sized, i16::MAX);
    }
}
