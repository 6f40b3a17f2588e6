//! The reporting form: the handler reads the TLB entry that it is about to replace, and records it with the miss.

use super::Build;
use crate::asm::{Cp0, K0, K1, ZERO};
use crate::block::Block;

/// The number of bytes of a record.
const RECORD: i16 = 24;

/// Begins a handler: chooses the TLB entry to replace, and writes a record that is not yet part of the log. Afterwards
/// EntryHi has its former value, and PageMask is that of 4 KiB.
pub(super) const fn open(b: &mut Build) {
    let general = b.general;
    let base = b.block_base(K0);
    b.asm.lw(K1, b.block_low(Block::END), base);
    b.asm.lw(K0, b.block_low(Block::NEXT), base);
    b.asm.beq(K0, K1, general);
    b.asm.mfc0(K1, Cp0::BadVAddr);
    b.asm.sw(K1, 0, K0);
    b.asm.mfc0(K1, Cp0::EntryHi);
    b.asm.sw(K1, 4, K0);
    b.asm.mfc0(K1, Cp0::Random);
    b.asm.mtc0(K1, Cp0::Index);
    b.asm.barrier();
    b.asm.tlbr();
    b.asm.long_barrier();
    let parts = [Cp0::EntryHi, Cp0::PageMask, Cp0::EntryLo0, Cp0::EntryLo1];
    let mut part = 0;
    while part < parts.len() {
        b.asm.mfc0(K1, parts[part]);
        b.asm.sw(K1, 8 + 4 * part as i16, K0);
        part += 1;
    }
    b.asm.lw(K1, 4, K0);
    b.asm.mtc0(K1, Cp0::EntryHi);
    b.asm.mtc0(ZERO, Cp0::PageMask);
    // The code that follows uses EntryHi: a software TLB compares it with a tag, the load of a linear table uses its ASID,
    // and the kernel reads it if the miss is passed on.
    b.asm.long_barrier();
}

/// Adds the record to the log, after the TLB entry has been written.
pub(super) const fn close(b: &mut Build) {
    let base = b.block_base(K0);
    let next = b.block_low(Block::NEXT);
    b.asm.lw(K1, next, base);
    b.asm.addiu(K1, K1, RECORD);
    b.asm.sw(K1, next, base);
}
