//! Sleeping until an interrupt, without missing one.
//!
//! ```text
//!               interrupts are off, and there is nothing to do     an interrupt from here on stays pending
//!   idle_sleep: ei                                                 and comes here at the earliest
//!               wait
//!               di
//!   idle_end:   interrupts are off
//! ```
//!
//! If one came between `ei` and `wait` and its handler served it, the CPU would sleep on what it was about. So the
//! handler does nothing when it has interrupted the sequence, except to end it: it moves EPC to `idle_end` and takes
//! IE out of the Status to return to. The interrupt is still pending then, and the CPU that slept looks for what it was
//! about. So a protocol may sleep while it waits: no handler runs on top of it.

use core::arch::global_asm;

use super::gic;
use super::masked::Masked;
use crate::arch::cp0;
use crate::arch::frame::Frame;

global_asm!(
    ".set push",
    ".set noreorder",
    ".set mips32r2",
    ".section .text",
    ".globl idle_sleep",
    ".globl idle_end",
    "idle_sleep:",
    "ei",
    "ehb",
    "wait",
    "di",
    "ehb",
    "idle_end:",
    "jr $ra",
    "nop",
    ".set pop",
);

unsafe extern "C" {
    fn idle_sleep();
    static idle_end: u8;
}

/// Sleeps until an interrupt, and lowers it. Sometimes it returns earlier.
pub(super) fn sleep(_masked: &Masked) {
    // SAFETY: a function without arguments, which comes back with interrupts off.
    unsafe { idle_sleep() };
    gic::acknowledge(cp0::cpu());
}

/// Ends the sequence, if that is what the interrupt of `frame` has interrupted.
pub(super) fn end(frame: &mut Frame) -> bool {
    let begin = idle_sleep as *const () as usize as u32;
    let end = (&raw const idle_end).addr() as u32;
    let slept = (begin..end).contains(&frame.epc);
    if slept {
        frame.epc = end;
        frame.status &= !gic::IE;
    }
    slept
}
