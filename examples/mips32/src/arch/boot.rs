//! The first instructions of a CPU.
//!
//! QEMU starts CPU 0 here with the firmware's registers: `a0` arguments at the addresses in the array `a1`. The other
//! CPUs come here when CPU 0 lets them run, out of reset (BEV and ERL set), so both are cleared for all.
//! `_start` is a page boundary because a core's reset address must be one.

use core::arch::global_asm;

use crate::cpu::{CPUS, STACK};

/// One stack for each CPU.
#[repr(C, align(16))]
struct Stacks([[u8; STACK]; CPUS]);

/// They grow down, so a CPU begins at the end of its own.
#[unsafe(no_mangle)]
static mut STACKS: Stacks = Stacks([[0; STACK]; CPUS]);

global_asm!(
    ".set push",
    ".set noreorder",
    ".set mips32r2",
    ".section .text.boot, \"ax\", @progbits",
    ".balign 4096",
    ".globl _start",
    "_start:",
    // Kernel mode, interrupts masked, vectors in kseg0.
    "mtc0 $zero, $12",
    "ehb",
    // Which CPU is this? EBase.CPUNum; a CPU of release 1 is alone.
    ".if {release1}",
    "move $t0, $zero",
    ".else",
    "mfc0 $t0, $15, 1",
    "andi $t0, $t0, 0x3ff",
    ".endif",
    "lui  $sp, %hi(STACKS)",
    "addiu $sp, $sp, %lo(STACKS)",
    "addiu $t1, $t0, 1",
    "li   $t2, {stack}",
    "mul  $t1, $t1, $t2",
    "addu $sp, $sp, $t1",
    // Room for four arguments, as every caller leaves.
    "addiu $sp, $sp, -16",
    "bnez $t0, 2f",
    "nop",
    // CPU 0 clears what the image leaves out.
    "lui  $t1, %hi(__bss_start)",
    "addiu $t1, $t1, %lo(__bss_start)",
    "lui  $t2, %hi(__bss_end)",
    "addiu $t2, $t2, %lo(__bss_end)",
    "1:",
    "beq  $t1, $t2, 3f",
    "nop",
    "sw   $zero, 0($t1)",
    "b    1b",
    "addiu $t1, $t1, 4",
    "3:",
    "j    main",
    "nop",
    "2:",
    "j    secondary",
    "move $a0, $t0",
    ".set pop",
    stack = const STACK,
    release1 = const cfg!(feature = "release1") as u32,
);
