//! The registers of coprocessor 0.

use super::merge;
use crate::asm::Cp0;

/// Coprocessor 0 without the TLB.
///
/// A write to EntryLo0 or EntryLo1 ignores the top two bits (Fill); a write to another register ignores the bits that the
/// register does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The index of the entry that `tlbwi` writes. Bit 31 is set after a `tlbp` that found no entry.
    pub index: u64,
    /// The index of the entry that `tlbwr` writes.
    pub random: u64,
    /// The frame and rights of the even page.
    pub entry_lo0: u64,
    /// The frame and rights of the odd page.
    pub entry_lo1: u64,
    /// PTEBase and BadVPN2.
    pub context: u64,
    /// The size of the pages.
    pub page_mask: u64,
    /// The index of the first entry that `tlbwr` may write.
    pub wired: u64,
    /// The address of the last TLB exception.
    pub bad_vaddr: u64,
    /// The pair of pages and the ASID.
    pub entry_hi: u64,
    /// The interpreter uses only EXL.
    pub status: u64,
    /// ExcCode and BD.
    pub cause: u64,
    /// The address to which `eret` returns.
    pub epc: u64,
    /// PTEBase and BadVPN2 of 64 bits.
    pub xcontext: u64,
    /// A register without a function in this interpreter.
    pub error_epc: u64,
    /// The KScratch registers of select 2 to 7, at index 0 to 5.
    pub kscratch: [u64; 6],
    entries: u64,
}

impl State {
    /// Status.EXL: an exception is being handled.
    pub const EXL: u64 = 2;

    pub(super) const fn new(entries: u64) -> Self {
        Self {
            index: 0,
            random: entries - 1,
            entry_lo0: 0,
            entry_lo1: 0,
            context: 0,
            page_mask: 0,
            wired: 0,
            bad_vaddr: 0,
            entry_hi: 0,
            status: 0,
            cause: 0,
            epc: 0,
            xcontext: 0,
            error_epc: 0,
            kscratch: [0; 6],
            entries,
        }
    }

    /// Returns the ASID of the running address space.
    pub const fn asid(&self) -> u64 {
        self.entry_hi & 0xff
    }

    /// Tells whether an exception is being handled.
    pub const fn exl(&self) -> bool {
        self.status & Self::EXL != 0
    }

    /// Changes Random, as every instruction does.
    pub(super) const fn tick(&mut self) {
        self.random = if self.random <= self.wired { self.entries - 1 } else { self.random - 1 };
    }

    pub(super) fn get(&self, register: Cp0) -> u64 {
        match register {
            Cp0::Index => self.index,
            Cp0::Random => self.random,
            Cp0::EntryLo0 => self.entry_lo0,
            Cp0::EntryLo1 => self.entry_lo1,
            Cp0::Context => self.context,
            Cp0::PageMask => self.page_mask,
            Cp0::Wired => self.wired,
            Cp0::BadVAddr => self.bad_vaddr,
            Cp0::EntryHi => self.entry_hi,
            Cp0::Status => self.status,
            Cp0::Cause => self.cause,
            Cp0::Epc => self.epc,
            Cp0::XContext => self.xcontext,
            Cp0::ErrorEpc => self.error_epc,
            Cp0::KScratch(select) => {
                self.kscratch.get(usize::from(select).wrapping_sub(2)).copied().unwrap_or(0)
            }
        }
    }

    /// Writes the writable bits of a register.
    pub(super) fn set(&mut self, register: Cp0, value: u64) {
        match register {
            Cp0::Index => self.index = value & 0x3f,
            Cp0::Random | Cp0::BadVAddr => {}
            Cp0::EntryLo0 => self.entry_lo0 = value & 0x3fff_ffff,
            Cp0::EntryLo1 => self.entry_lo1 = value & 0x3fff_ffff,
            Cp0::Context => self.context = merge(value, self.context, 0x7f_ffff),
            Cp0::PageMask => self.page_mask = value & 0x1fff_e000,
            Cp0::Wired => {
                self.wired = value.min(self.entries - 1);
                self.random = self.entries - 1;
            }
            Cp0::EntryHi => self.entry_hi = value & !0x1f00,
            Cp0::Status => self.status = value,
            Cp0::Cause => self.cause = value,
            Cp0::Epc => self.epc = value,
            Cp0::XContext => self.xcontext = merge(value, self.xcontext, 0x1_ffff_ffff),
            Cp0::ErrorEpc => self.error_epc = value,
            Cp0::KScratch(select) => {
                if let Some(scratch) = self.kscratch.get_mut(usize::from(select).wrapping_sub(2)) {
                    *scratch = value;
                }
            }
        }
    }
}
