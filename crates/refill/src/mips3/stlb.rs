//! The direct-mapped software TLB of the paper: entries of 16 bytes, with a 64-bit tag, which is EntryHi, and two PTEs.

use super::Build;
use crate::Error;
use crate::asm::{Cp0, K0, K1, Label};

/// A software TLB in front of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stlb {
    base: u32,
    log: u32,
}

/// The offsets of the PTEs in an entry, in bytes.
const LO0: i16 = 8;
const LO1: i16 = 12;
/// The base-two logarithm of an entry's bytes.
const ENTRY_LOG: u32 = 4;

impl Stlb {
    /// Returns the front for a software TLB of `bytes` bytes at the address `base` in kseg0: S8k has 8192 bytes, S128k
    /// 131072.
    ///
    /// # Errors
    ///
    /// - [`Error::BadAddress`] unless `base` is a multiple of 64 KiB in kseg0.
    /// - [`Error::Geometry`] unless `bytes` is a power of two from 32 bytes to 4 MiB.
    pub const fn new(base: u32, bytes: u32) -> Result<Self, Error> {
        if base >> 29 != 0b100 || base & 0xffff != 0 {
            return Err(Error::BadAddress { address: base });
        }
        if !bytes.is_power_of_two() || bytes < 32 || bytes > 4 << 20 {
            return Err(Error::Geometry);
        }
        Ok(Self { base, log: bytes.trailing_zeros() })
    }

    /// Loads k1 with the address of the entry for the pair that missed. Context has the pair's number times 16; PTEBase is
    /// zero.
    const fn entry(&self, b: &mut Build) {
        b.asm.mfc0(K0, Cp0::Context);
        if self.log <= 16 {
            b.asm.andi(K0, K0, ((1u32 << self.log) - (1 << ENTRY_LOG)) as u16);
        } else {
            b.asm.sll(K0, K0, 32 - self.log);
            b.asm.srl(K0, K0, 32 - self.log);
        }
        b.asm.lui(K1, (self.base >> 16) as u16);
        b.asm.daddu(K1, K1, K0);
    }

    pub(super) const fn probe(&self, b: &mut Build, miss: Label) {
        self.entry(b);
        b.asm.lw(K0, LO0, K1);
        b.asm.mtc0(K0, Cp0::EntryLo0);
        b.asm.lw(K0, LO1, K1);
        b.asm.mtc0(K0, Cp0::EntryLo1);
        b.asm.ld(K1, 0, K1);
        b.asm.dmfc0(K0, Cp0::EntryHi);
        b.asm.bne(K0, K1, miss);
        b.asm.nop();
        b.write();
    }

    /// Stores the EntryLo registers and EntryHi as an entry of the software TLB.
    pub(super) const fn fill(&self, b: &mut Build) {
        self.entry(b);
        b.asm.mfc0(K0, Cp0::EntryLo0);
        b.asm.sw(K0, LO0, K1);
        b.asm.mfc0(K0, Cp0::EntryLo1);
        b.asm.sw(K0, LO1, K1);
        b.asm.dmfc0(K0, Cp0::EntryHi);
        b.asm.sd(K0, 0, K1);
    }
}
