//! Exceptions: into user mode and back, and faults of the kernel's own accesses.
//!
//! ```text
//!   enter_user(frame)  kernel registers to the stack, user registers from the frame, eret
//!        ...           the program runs; TLB refills are served at their vector, unseen by this code
//!   general_entry      user registers to the frame, kernel registers from the stack
//!   returns            to the caller of enter_user, which looks at the frame to see what happened
//! ```
//!
//! So a program is a function that the kernel calls: there are no callbacks, and what a fault needs is in the caller's
//! hands. An exception in kernel mode goes to [`kernel_exception`]. The kernel expects one only within
//! [`touch`](super::touch), where it uses user addresses; there a fault is a returned error.

use core::arch::global_asm;

use super::frame::{Exception, Frame};
use crate::cpu::{self, SHIFT};

unsafe extern "C" {
    /// Runs user mode until its next exception that no refill handler serves.
    ///
    /// # Safety
    ///
    /// The frame is a program's; the address space that it is to run in is current.
    pub unsafe fn enter_user(frame: *mut Frame);

    /// What the general vector goes to.
    pub unsafe fn general_entry();

    static touch_begin: u8;
    static touch_end: u8;
    static touch_fault: u8;
}

/// An exception in kernel mode: a fault of [`touch`](super::touch), or the end.
#[unsafe(no_mangle)]
extern "C" fn kernel_exception(frame: &mut Frame) {
    let (begin, end, fault) =
        (&raw const touch_begin as u32, &raw const touch_end as u32, &raw const touch_fault as u32);
    if Exception::of(frame.cause) == Exception::Interrupt {
        crate::smp::interrupt(frame);
    } else if (begin..end).contains(&frame.epc) {
        // SAFETY: this CPU's own data, which no code borrows.
        unsafe { (*cpu::this()).fault = (frame.cause, frame.bad_vaddr) };
        frame.epc = fault;
    } else {
        panic!(
            "exception {:?} in the kernel at {:#x}, address {:#x}",
            frame.exception(),
            frame.epc,
            frame.bad_vaddr
        );
    }
}

/// Assembles with the offsets of the frame, and macros to save and restore registers.
macro_rules! exception_assembly {
    ($($line:literal),* $(,)?) => {
        global_asm!(
            ".set push",
            ".set noreorder",
            ".set noat",
            ".set mips32r2",
            // All registers but $0, k0, k1 and the stack pointer, to and from the frame at `\\at`.
            ".macro registers op at",
            "\\op $1, 4(\\at)", "\\op $2, 8(\\at)", "\\op $3, 12(\\at)", "\\op $4, 16(\\at)",
            "\\op $5, 20(\\at)", "\\op $6, 24(\\at)", "\\op $7, 28(\\at)", "\\op $8, 32(\\at)",
            "\\op $9, 36(\\at)", "\\op $10, 40(\\at)", "\\op $11, 44(\\at)", "\\op $12, 48(\\at)",
            "\\op $13, 52(\\at)", "\\op $14, 56(\\at)", "\\op $15, 60(\\at)", "\\op $16, 64(\\at)",
            "\\op $17, 68(\\at)", "\\op $18, 72(\\at)", "\\op $19, 76(\\at)", "\\op $20, 80(\\at)",
            "\\op $21, 84(\\at)", "\\op $22, 88(\\at)", "\\op $23, 92(\\at)", "\\op $24, 96(\\at)",
            "\\op $25, 100(\\at)", "\\op $28, 112(\\at)", "\\op $30, 120(\\at)", "\\op $31, 124(\\at)",
            ".endm",
            // What the exception left, to the frame at `\\at`; the registers are saved already.
            ".macro save_rest at",
            "mfhi $t0", "sw $t0, 128(\\at)",
            "mflo $t0", "sw $t0, 132(\\at)",
            "mfc0 $t0, $14", "sw $t0, 136(\\at)",
            "mfc0 $t0, $12", "sw $t0, 140(\\at)",
            "mfc0 $t0, $13", "sw $t0, 144(\\at)",
            "mfc0 $t0, $8", "sw $t0, 148(\\at)",
            ".endm",
            // And back; EXL in the frame's Status is set, so k0 and k1 are ours until `eret`.
            ".macro restore_rest at",
            "lw $t0, 128(\\at)", "mthi $t0",
            "lw $t0, 132(\\at)", "mtlo $t0",
            "lw $t0, 140(\\at)", "mtc0 $t0, $12", "ehb",
            "lw $t0, 136(\\at)", "mtc0 $t0, $14", "ehb",
            ".endm",
            // This CPU's data.
            ".macro this_cpu to",
            ".if {release1}",
            "move \\to, $zero",
            ".else",
            "mfc0 \\to, $15, 1",
            "ext \\to, \\to, 0, 10",
            ".endif",
            "sll \\to, \\to, {shift}",
            "lui $k1, %hi(CPU_DATA)",
            "addiu $k1, $k1, %lo(CPU_DATA)",
            "addu \\to, \\to, $k1",
            ".endm",
            $($line,)*
            ".set pop",
            shift = const SHIFT,
            release1 = const cfg!(feature = "release1") as u32,
        );
    };
}

exception_assembly!(
    ".section .text",
    ".globl enter_user",
    "enter_user:",
    "addiu $sp, $sp, -48",
    "sw $16, 0($sp)",
    "sw $17, 4($sp)",
    "sw $18, 8($sp)",
    "sw $19, 12($sp)",
    "sw $20, 16($sp)",
    "sw $21, 20($sp)",
    "sw $22, 24($sp)",
    "sw $23, 28($sp)",
    "sw $30, 32($sp)",
    "sw $31, 36($sp)",
    "sw $28, 40($sp)",
    // From here on no exception may come: the frame's Status has EXL set.
    "this_cpu $k0",
    "sw $sp, 0($k0)",
    "sw $a0, 4($k0)",
    "move $k1, $a0",
    "restore_rest $k1",
    "lw $29, 116($k1)",
    "registers lw $k1",
    "eret",
    "",
    ".globl general_entry",
    "general_entry:",
    "mfc0 $k0, $12",
    "andi $k0, $k0, 0x10",
    "beqz $k0, 1f",
    "nop",
    // From user mode.
    "this_cpu $k0",
    "lw $k1, 4($k0)",
    "registers sw $k1",
    "sw $29, 116($k1)",
    "save_rest $k1",
    "lw $sp, 0($k0)",
    // Kernel mode, no exception level, interrupts masked.
    "mfc0 $t0, $12",
    ".if {release1}",
    "srl $t0, $t0, 5",
    "sll $t0, $t0, 5",
    ".else",
    "ins $t0, $zero, 0, 5",
    ".endif",
    "mtc0 $t0, $12",
    "ehb",
    "lw $16, 0($sp)",
    "lw $17, 4($sp)",
    "lw $18, 8($sp)",
    "lw $19, 12($sp)",
    "lw $20, 16($sp)",
    "lw $21, 20($sp)",
    "lw $22, 24($sp)",
    "lw $23, 28($sp)",
    "lw $30, 32($sp)",
    "lw $31, 36($sp)",
    "lw $28, 40($sp)",
    "jr $ra",
    "addiu $sp, $sp, 48",
    // From kernel mode: a frame on the stack, below it room for a callee's arguments.
    "1:",
    "addiu $k1, $sp, -152",
    "registers sw $k1",
    "sw $29, 116($k1)",
    "save_rest $k1",
    "move $a0, $k1",
    "jal kernel_exception",
    "addiu $sp, $k1, -16",
    "addiu $k1, $sp, 16",
    "restore_rest $k1",
    "lw $29, 116($k1)",
    "registers lw $k1",
    "eret",
);
