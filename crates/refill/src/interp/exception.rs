//! Address translation, and the exceptions that it raises.

use super::execute::Pending;
use super::{Machine, Memory, State, merge};
use crate::features::Isa;

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The access reads, or fetches an instruction.
    Load,
    /// The access writes.
    Store,
}

/// A TLB exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// No entry matches.
    Refill(Access),
    /// The matching entry's page is invalid.
    Invalid(Access),
    /// A store to a page whose entry has D clear.
    Modified,
}

impl Cause {
    /// Returns the exception code, as in the Cause register.
    pub const fn code(self) -> u64 {
        match self {
            Self::Modified => 1,
            Self::Refill(Access::Load) | Self::Invalid(Access::Load) => 2,
            Self::Refill(Access::Store) | Self::Invalid(Access::Store) => 3,
        }
    }
}

/// V and D of an EntryLo.
const VALID: u64 = 2;
const DIRTY: u64 = 4;

impl<M: Memory, const N: usize> Machine<M, N> {
    /// Returns the physical address of a mapped address in the running address space.
    ///
    /// # Errors
    ///
    /// The exception that the access would raise.
    pub fn translate(&self, at: u64, access: Access) -> Result<u64, Cause> {
        let found = self.tlb.find(at, self.cp0.asid()).ok_or(Cause::Refill(access))?;
        if found.lo & VALID == 0 {
            return Err(Cause::Invalid(access));
        }
        if access == Access::Store && found.lo & DIRTY == 0 {
            return Err(Cause::Modified);
        }
        let frame = (found.lo >> 6 & 0xff_ffff) << 12;
        Ok(merge(frame, at, found.bytes - 1))
    }

    /// Returns the physical address of an address that the kernel accesses: kseg0, kseg1 and xkphys are unmapped.
    pub(super) fn translate_kernel(&self, at: u64, access: Access) -> Result<u64, Cause> {
        match at {
            0xffff_ffff_8000_0000..=0xffff_ffff_bfff_ffff => Ok(at & 0x1fff_ffff),
            0x8000_0000_0000_0000..=0xbfff_ffff_ffff_ffff if self.features.isa == Isa::Mips3 => {
                Ok(at & 0x07ff_ffff_ffff_ffff)
            }
            _ => self.translate(at, access),
        }
    }

    /// Takes a TLB exception for the address `at`, at the current instruction.
    pub fn raise(&mut self, cause: Cause, at: u64) {
        let cp0 = &mut self.cp0;
        self.counts.exceptions += 1;
        self.counts.nested += u64::from(cp0.exl());
        cp0.bad_vaddr = at;
        // The pair's number times 16. In XContext, the two highest bits of a 64-bit address follow above it.
        let pair = at >> 13 << 4;
        cp0.context = merge(cp0.context, pair, 0x7f_ffff);
        cp0.xcontext = merge(cp0.xcontext, merge(pair, at >> 31, 3 << 31), 0x1_ffff_ffff);
        cp0.entry_hi = merge(at, cp0.asid(), 0x1fff);
        let slot = self.target.take().is_some();
        let vector = match cause {
            Cause::Refill(_) if !cp0.exl() => {
                if self.features.isa == Isa::Mips3 {
                    0x80
                } else {
                    0
                }
            }
            _ => 0x180,
        };
        if !cp0.exl() {
            cp0.epc = if slot { self.pc.wrapping_sub(4) } else { self.pc };
            cp0.cause = if slot { 1 << 31 } else { 0 };
        }
        cp0.cause = merge(cp0.cause, cause.code() << 2, 0x7c);
        cp0.status |= State::EXL;
        // An exception clears all hazards, as an `ehb` does.
        self.pending = Pending::default();
        self.pc = self.vectors + vector;
    }
}
