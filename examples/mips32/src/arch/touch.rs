//! The kernel's use of user addresses: a fault is an error, not the end.
//!
//! These few instructions are the only ones of the kernel that may fault; [`super::exception`] knows where they begin
//! and end. They go through the TLB as a program's do, so a miss is served by the same refill handler.

use core::arch::global_asm;

use super::frame::Exception;
use crate::cpu;

/// Why an access failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub why: Exception,
    /// The address that the hardware names.
    pub at: u32,
}

/// What a load found.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Touched {
    pub value: u32,
    /// Ticks of Count from just before the load to just after.
    pub ticks: u32,
}

unsafe extern "C" {
    safe fn touch_load(at: u32, touched: &mut Touched) -> u32;
    unsafe fn touch_store(at: u32, value: u32) -> u32;
}

/// Loads a word.
///
/// # Errors
///
/// The fault, if there was one.
pub fn load(at: u32) -> Result<Touched, Fault> {
    let mut touched = Touched::default();
    if touch_load(at, &mut touched) == 0 { Ok(touched) } else { Err(fault()) }
}

/// Stores a word.
///
/// # Errors
///
/// The fault, if there was one.
///
/// # Safety
///
/// The address is a user's, or memory that no other code knows.
pub unsafe fn store(at: u32, value: u32) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    if unsafe { touch_store(at, value) } == 0 { Ok(()) } else { Err(fault()) }
}

fn fault() -> Fault {
    // SAFETY: this CPU's own data, written by the exception that has just returned.
    let (cause, at) = unsafe { (*cpu::this()).fault };
    Fault { why: Exception::of(cause), at }
}

global_asm!(
    ".set push",
    ".set noreorder",
    ".set mips32r2",
    ".section .text",
    ".globl touch_begin",
    ".globl touch_end",
    ".globl touch_fault",
    ".globl touch_load",
    ".globl touch_store",
    "touch_begin:",
    "touch_load:",
    "mfc0 $t1, $9",
    "lw   $t0, 0($a0)",
    "mfc0 $t2, $9",
    "subu $t2, $t2, $t1",
    "sw   $t0, 0($a1)",
    "sw   $t2, 4($a1)",
    "jr   $ra",
    "move $v0, $zero",
    "touch_store:",
    "sw   $a1, 0($a0)",
    "jr   $ra",
    "move $v0, $zero",
    "touch_end:",
    "touch_fault:",
    "jr   $ra",
    "li   $v0, 1",
    ".set pop",
);
