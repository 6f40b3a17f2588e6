//! The software TLB in front of a table.
//!
//! ```text
//!   Context    | PTEBase: 9 bits | pair: 19 bits | 0000 |
//!   without the pair's high bits |  set          | 0000 |     the address of a 16-byte entry
//! ```
//!
//! PTEBase is the address of the cache, so the handler computes the entry's address with two instructions. It moves the PTEs
//! to the EntryLo registers before it compares the tag, so that the barrier is in the delay slot of the branch; on a miss
//! the walk moves them again. A hit takes twelve instructions, among them two that the paper's nine-cycle minimum does not
//! count (Elphinstone et al. 3.1, 4.2).

use tlbkit_stlb::{EntryLayout, Mips32};

use super::Build;
use crate::Error;
use crate::asm::{Cp0, K0, K1, Label, Reg, ZERO};

/// A direct-mapped cache of [`Mips32`] entries: `Direct<Mips32, SETS>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stlb {
    base: u32,
    log_sets: u32,
}

/// The offsets of an entry's words, in bytes.
const TAG: i16 = 0;
const PAGE_MASK: i16 = 4;
const LO0: i16 = 8;
const LO1: i16 = 12;
/// The base-two logarithm of an entry's bytes.
const ENTRY_LOG: u32 = 4;
/// The base-two logarithm of the alignment, in bytes, of an address that PTEBase can hold.
const BASE_LOG: u32 = 23;

const _: () = assert!(Mips32::UNIT.shift() == 13 && Mips32::ASID_BITS == 8);

impl Stlb {
    /// Returns the front for a cache of `sets` sets at the address `base` in kseg0.
    ///
    /// # Errors
    ///
    /// - [`Error::BadAddress`] unless `base` is a multiple of 8 MiB in kseg0, which is what PTEBase can hold.
    /// - [`Error::Geometry`] unless `sets` is a power of two from 2 to 2^19.
    pub const fn new(base: u32, sets: usize) -> Result<Self, Error> {
        if base >> 29 != 0b100 || base & ((1 << BASE_LOG) - 1) != 0 {
            return Err(Error::BadAddress { address: base });
        }
        if !sets.is_power_of_two() || sets < 2 || sets > 1 << (BASE_LOG - ENTRY_LOG) {
            return Err(Error::Geometry);
        }
        Ok(Self { base, log_sets: sets.trailing_zeros() })
    }

    /// Returns the address of the cache.
    pub const fn base(&self) -> u32 {
        self.base
    }

    /// Loads `to` with the address of the entry for the pair that missed. Overwrites `other`.
    const fn entry(&self, b: &mut Build, to: Reg, other: Reg) {
        let top = self.log_sets + ENTRY_LOG;
        b.asm.mfc0(to, Cp0::Context);
        if top == BASE_LOG {
        } else if b.has_fields() {
            b.asm.ins(to, ZERO, top, BASE_LOG - top);
        } else {
            b.asm.srl(other, to, BASE_LOG);
            b.asm.sll(other, other, BASE_LOG);
            b.asm.sll(to, to, 32 - top);
            b.asm.srl(to, to, 32 - top);
            b.asm.or(to, to, other);
        }
    }

    /// Serves a hit. On a miss, branches to `miss`.
    pub(super) const fn probe(&self, b: &mut Build, miss: Label) {
        self.entry(b, K0, K1);
        if b.spec.form.sized {
            b.asm.lw(K1, PAGE_MASK, K0);
            b.asm.mtc0(K1, Cp0::PageMask);
        }
        b.asm.lw(K1, LO0, K0);
        b.asm.mtc0(K1, Cp0::EntryLo0);
        b.asm.lw(K1, LO1, K0);
        b.asm.mtc0(K1, Cp0::EntryLo1);
        b.choose(K1);
        b.asm.lw(K0, TAG, K0);
        b.asm.mfc0(K1, Cp0::EntryHi);
        b.asm.barrier_head();
        b.asm.bne(K0, K1, miss);
        b.asm.barrier_tail();
        b.write();
    }

    /// Stores the EntryLo registers, PageMask and EntryHi, which must have taken effect, as an entry of the cache. Only this
    /// CPU reads the cache, so the order of the stores does not matter.
    pub(super) const fn fill(&self, b: &mut Build) {
        self.entry(b, K0, K1);
        b.asm.mfc0(K1, Cp0::EntryLo0);
        b.asm.sw(K1, LO0, K0);
        b.asm.mfc0(K1, Cp0::EntryLo1);
        b.asm.sw(K1, LO1, K0);
        if b.spec.form.sized {
            b.asm.mfc0(K1, Cp0::PageMask);
        }
        b.asm.sw(if b.spec.form.sized { K1 } else { ZERO }, PAGE_MASK, K0);
        b.asm.mfc0(K1, Cp0::EntryHi);
        b.asm.sw(K1, TAG, K0);
    }
}
