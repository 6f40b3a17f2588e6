//! The walk of a two-level table.
//!
//! ```text
//!   BadVAddr   | index 0: 10 bits | pair: 9 bits |   | offset |
//!   rotated by 22        | pair: 9 bits |   | offset | index 0: 10 bits |
//! ```
//!
//! The rotated address serves both levels: its low bits are the first index, its high bits the second. This takes four
//! instructions fewer than two loads of BadVAddr with shifts.

use tlbkit_pagetable::Radix;

use super::{Build, sized};
use crate::Error;
use crate::asm::{Cp0, K0, K1, Label, ZERO};

/// A two-level table of [`EntryLo`](tlbkit_pagetable::format::EntryLo) words, with all nodes in kseg0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mpt {
    /// The number of index bits of each level.
    widths: [u32; 2],
}

impl Mpt {
    /// Returns the walk of a table of geometry `G`.
    ///
    /// # Errors
    ///
    /// [`Error::Geometry`] unless the address space has 32 bits and 4 KiB pages, and the table has two levels of at most ten
    /// bits.
    pub const fn of<G: Radix>() -> Result<Self, Error> {
        let widths = G::WIDTHS;
        if G::VA_BITS != 32 || G::BASE.shift() != 12 || widths.len() != 2 || G::LINEAR.is_some() {
            return Err(Error::Geometry);
        }
        // Nodes of at most a page are aligned to their size, so `ins` can insert an index into their addresses.
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
            // A link is an address in kseg0, and so negative. The word of a larger page, or of no page, has bit 31 clear.
            b.asm.bgez(K1, large);
            b.asm.srl(K0, K0, 32 - pair);
            b.asm.ins(K1, K0, 3, pair);
        } else {
            b.asm.mfc0(K0, Cp0::Context);
            b.asm.bgez(K1, large);
            // Context has the pair's number times 16, and a pair of words has 8 bytes.
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

    /// Loads k1 with the address of the root's slot, and k0 with the address that missed: rotated if the CPU has bit-field
    /// instructions, otherwise shifted.
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

    /// Serves larger pages: at `large` those in the root, at `larger` those in a node of the second level.
    const fn emit_sized(&self, b: &mut Build, large: Label, larger: Label) {
        let leaf = self.widths[1];
        let sized = b.asm.label();
        let small = b.asm.label();
        let general = b.general;
        b.asm.bind(large);
        self.top(b);
        if b.spec.form.shared {
            // A word that is no larger page is passed on: it is absent, or a link that another CPU has just stored.
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
        // Both halves of a pair are always in one node.
        sized::emit(b, sized, i16::MAX);
    }
}
