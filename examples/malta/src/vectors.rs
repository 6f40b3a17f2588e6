//! The exception vectors, written at boot.
//!
//! ```text
//!   0x80000000  refill      a page table's handler: a TLB miss, unless one is being handled
//!   0x80000180  general     everything else: a handler's own part (nested misses of a linear table), if it has
//!                           one, then a jump to `general_entry`
//!   0x80000400  tail        the rest of the refill handler: what is seldom needed
//!   0x80001000  the end
//! ```

use core::arch::asm;
use core::ops::Range;

use crate::cp0;
use crate::trap::general_entry;

const VECTORS: usize = 0x8000_0000;
const GENERAL: usize = 0x180;
const TAIL: usize = 0x400;
const END: usize = 0x1000;

/// Writes the pieces of a handler. What follows the general one is the way to the kernel.
///
/// # Safety
///
/// The words are a handler that serves the address spaces which the kernel then makes current.
pub unsafe fn install(refill: &[u32], general: &[u32], tail: &[u32]) {
    // SAFETY: the caller's promise; nothing else is there.
    unsafe { install_at(VECTORS, refill, general, tail) };
}

/// Writes them to other vectors than those after reset: EBase says where.
///
/// # Safety
///
/// As for [`install`], on each CPU whose vectors these are, and nothing else is in the page at `vectors`.
pub unsafe fn install_at(vectors: usize, refill: &[u32], general: &[u32], tail: &[u32]) {
    let entry = general_entry as *const () as usize as u32;
    let jump = [
        // lui k0, high; ori k0, k0, low; jr k0; nop
        0x3c1a_0000 | entry >> 16,
        0x375a_0000 | entry & 0xffff,
        0x0340_0008,
        0,
    ];
    place(vectors..vectors + GENERAL, refill, &[]);
    place(vectors + GENERAL..vectors + TAIL, general, &jump);
    place(vectors + TAIL..vectors + END, tail, &[]);
    written(vectors, END);
}

/// Fills a place with words, then others, then `nop`: without a refill handler a miss runs into the general vector.
fn place(place: Range<usize>, words: &[u32], more: &[u32]) {
    assert!((words.len() + more.len()) * 4 <= place.len(), "a handler is longer than its room");
    let words = words.iter().chain(more).copied().chain(core::iter::repeat(0));
    for (at, word) in place.step_by(4).zip(words) {
        // SAFETY: the vectors are memory that only this file uses.
        unsafe { core::ptr::with_exposed_provenance_mut::<u32>(at).write_volatile(word) };
    }
}

/// Makes the instruction cache see what was written to memory.
pub fn written(at: usize, bytes: usize) {
    // No line is shorter than 16 bytes.
    for line in (at..at + bytes).step_by(16) {
        // SAFETY: it writes back, and forgets, a line of the caches.
        unsafe {
            if cfg!(feature = "release1") {
                // Hit Writeback, data; Hit Invalidate, instructions.
                asm!(
                    ".set push", ".set noat", ".set mips32", "cache 0x19, 0({0})", "sync", "cache 0x10, 0({0})", ".set pop",
                    in(reg) line, options(nostack)
                );
            } else {
                asm!(
                    ".set push", ".set noat", ".set mips32r2", "synci 0({})", ".set pop", in(reg) line, options(nostack)
                );
            }
        }
    }
    // SAFETY: a barrier.
    unsafe { asm!("sync", options(nostack)) };
    cp0::barrier();
}
