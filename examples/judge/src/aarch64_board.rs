//! QEMU's machine `virt` with an AArch64 CPU: how the kernel begins, what it prints to, and how it ends.

use core::arch::asm;
use core::fmt::{self, Write};

pub(crate) const MEMORY: usize = 0x4000_0000;
pub(super) const UART: usize = 0x0900_0000;

/// Begins the kernel at an exception level, with instructions that let compiled code use vector registers.
macro_rules! start {
    ($el:literal, $($features:literal),+) => {
        core::arch::global_asm!(
            ".section .text.boot, \"ax\"",
            ".globl _start",
            "_start:",
            $($features,)+
            "isb",
            "adrp x0, _stack",
            "add x0, x0, :lo12:_stack",
            "mov sp, x0",
            "adrp x0, _bss",
            "add x0, x0, :lo12:_bss",
            "adrp x1, _bss_end",
            "add x1, x1, :lo12:_bss_end",
            "1: cmp x0, x1",
            "b.hs 2f",
            "str xzr, [x0], #8",
            "b 1b",
            "2: adrp x0, vectors",
            "add x0, x0, :lo12:vectors",
            concat!("msr vbar_", $el, ", x0"),
            concat!("msr tpidr_", $el, ", xzr"),
            "isb",
            "b {judge}",
            ".balign 2048",
            "vectors:",
            ".rept 16",
            ".balign 128",
            "b trap",
            ".endr",
            // Where an exception comes back to is in TPIDR; nothing else is to be restored.
            "trap:",
            concat!("mrs x16, tpidr_", $el),
            "cbz x16, 3f",
            "br x16",
            concat!("3: mrs x0, esr_", $el),
            concat!("mrs x1, elr_", $el),
            concat!("mrs x2, far_", $el),
            "b {unexpected}",
            judge = sym crate::judge,
            unexpected = sym board::unexpected,
        );
    };
}

pub(super) extern "C" fn unexpected(syndrome: usize, at: usize, address: usize) -> ! {
    let _ = writeln!(Console, "exception {syndrome:#x} at {at:#x}, address {address:#x}");
    stop("an unexpected exception", 2)
}

/// The serial line.
pub(crate) struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the address is that of the machine's UART, mapped one to one; its first register takes a byte.
            unsafe { (UART as *mut u32).write_volatile(byte.into()) };
        }
        Ok(())
    }
}

/// Says why, if there is something to say, and ends the machine with an exit code.
pub(crate) fn stop(why: &str, code: u32) -> ! {
    if !why.is_empty() {
        let _ = writeln!(Console, "{}: {why}", super::NAME);
    }
    // Semihosting's SYS_EXIT with ADP_Stopped_ApplicationExit.
    let block = [0x2_0026, u64::from(code)];
    // SAFETY: QEMU, run with semihosting, reads the block and ends.
    unsafe { asm!("hlt #0xf000", in("x0") 0x18, in("x1") block.as_ptr(), options(nostack)) };
    loop {
        core::hint::spin_loop();
    }
}
