//! QEMU's machine `virt` with a RISC-V hart in machine mode: how the kernel begins and ends, what it prints to, and where traps go.

use core::arch::global_asm;
use core::fmt::{self, Write};

pub(crate) const MEMORY: usize = 0x8000_0000;

/// `ecall`: traps to machine mode from wherever it is.
pub(crate) const TRAP: usize = 0x0000_0073;

pub(super) const MPRV: usize = 1 << 17;
/// QEMU's `sifive_test`: what is written here ends the machine.
const TEST: *mut u32 = 0x10_0000 as *mut u32;
const UART: *mut u8 = 0x1000_0000 as *mut u8;

global_asm!(
    r#"
    .section .text.boot, "ax"
    .globl _start
_start:
    csrr    t0, mhartid
    bnez    t0, 3f
    la      sp, _stack
    la      t0, _bss
    la      t1, _bss_end
1:  bgeu    t0, t1, 2f
    sw      zero, (t0)
    addi    t0, t0, 4
    j       1b
2:  la      t0, {trap}
    csrw    mtvec, t0
    li      t0, -1                  # All of memory, for every mode: translation alone decides.
    csrw    pmpaddr0, t0
    li      t0, 0x1f
    csrw    pmpcfg0, t0
    j       {judge}
3:  wfi
    j       3b

    # Where a trap comes back to is in mscratch; nothing else is to be restored.
    .balign 4
{trap}:
    li      t0, {mprv}
    csrc    mstatus, t0
    csrr    t0, mscratch
    beqz    t0, 4f
    jr      t0
4:  csrr    a0, mcause
    csrr    a1, mepc
    j       {unexpected}
    "#,
    trap = sym trap_entry,
    judge = sym crate::judge,
    unexpected = sym unexpected,
    mprv = const MPRV,
);

unsafe extern "C" {
    safe fn trap_entry();
}

extern "C" fn unexpected(cause: usize, at: usize) -> ! {
    let _ = writeln!(Console, "trap {cause} at {at:#x}");
    stop("an unexpected trap", 2)
}

/// The serial line.
pub(crate) struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the address is that of the machine's UART, whose first register takes a byte.
            unsafe { UART.write_volatile(byte) };
        }
        Ok(())
    }
}

/// Says why, if there is something to say, and ends the machine with an exit code.
pub(crate) fn stop(why: &str, code: u32) -> ! {
    if !why.is_empty() {
        let _ = writeln!(Console, "{}: {why}", super::NAME);
    }
    let word = if code == 0 { 0x5555 } else { code << 16 | 0x3333 };
    // SAFETY: the address is that of the machine's test device.
    unsafe { TEST.write_volatile(word) };
    loop {
        core::hint::spin_loop();
    }
}
