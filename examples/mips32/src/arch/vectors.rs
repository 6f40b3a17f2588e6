//! The exception vectors, written at boot.
//!
//! ```text
//!   0x80000000  refill      a page table's handler: a TLB miss, unless one is being handled
//!   0x80000180  general     everything else: a handler's own part (nested misses of a linear table), if it has
//!                           one, then a jump to `general_entry`
//!   0x80000400  tail        what of a refill handler is for few misses
//!   0x80001000  the end of all
//! ```

use core::arch::asm;

use super::exception::general_entry;

const REFILL: usize = 0x8000_0000;
const GENERAL: usize = REFILL + 0x180;
const END: usize = REFILL + 0x400;
const TAIL_END: usize = REFILL + 0x1000;

/// Writes the handlers: instructions for the refill vector, and for the beginning of the general one.
///
/// Each falls through at its end: to the general vector, and to the kernel.
///
/// # Safety
///
/// The words are handlers that serve the address spaces which the kernel then makes current.
pub unsafe fn install(refill: &[u32], general: &[u32]) {
    assert!(refill.len() * 4 <= GENERAL - REFILL, "the refill handler is longer than its room");
    assert!(general.len() * 4 + 16 <= END - GENERAL, "the general handler is longer than its room");
    let entry = general_entry as *const () as usize as u32;
    let jump = [
        // lui k0, high; ori k0, k0, low; jr k0; nop
        0x3c1a_0000 | entry >> 16,
        0x375a_0000 | entry & 0xffff,
        0x0340_0008,
        0,
    ];
    // What no handler fills is `nop`, so that what runs off its end gets to the general vector.
    let refill = refill.iter().copied().chain(core::iter::repeat(0)).take((GENERAL - REFILL) / 4);
    let general = general.iter().copied().chain(jump);
    for (index, word) in refill.chain(general).enumerate() {
        let at = REFILL + index * 4;
        // SAFETY: the vectors are memory that belongs to nobody but this function.
        unsafe { core::ptr::with_exposed_provenance_mut::<u32>(at).write_volatile(word) };
    }
    written(REFILL, END - REFILL);
}

/// Writes the tail of a refill handler.
///
/// # Safety
///
/// As for [`install`].
pub unsafe fn install_tail(tail: &[u32]) {
    assert!(tail.len() * 4 <= TAIL_END - END, "the tail of the refill handler is longer than its room");
    for (index, &word) in tail.iter().enumerate() {
        // SAFETY: as above.
        unsafe { core::ptr::with_exposed_provenance_mut::<u32>(END + index * 4).write_volatile(word) };
    }
    written(END, TAIL_END - END);
}

/// Makes the instruction cache see what was written to memory.
pub fn written(at: usize, bytes: usize) {
    // No line is shorter than 16 bytes.
    for line in (at..at + bytes).step_by(16) {
        // SAFETY: it writes back, and forgets, a line of the caches.
        unsafe {
            asm!(".set push", ".set noat", ".set mips32r2", "synci 0({})", ".set pop", in(reg) line, options(nostack));
        }
    }
    // SAFETY: a barrier.
    unsafe { asm!("sync", "ehb", options(nostack)) };
}
