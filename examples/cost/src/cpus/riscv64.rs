//! RISC-V: the number of a hart is in `tp`.

use core::arch::asm;

use tlbkit::CpuSet;

/// Makes this hart the one of a number.
pub fn begin(number: usize) {
    // SAFETY: no other code uses the register.
    unsafe { asm!("mv tp, {}", in(reg) number) };
}

/// Returns the number of the hart that calls this.
pub fn number() -> usize {
    let number;
    // SAFETY: it reads a register.
    unsafe { asm!("mv {}, tp", out(reg) number, options(nomem, nostack)) };
    number
}

/// Interrupts these harts, by the firmware.
pub fn interrupt(cpus: CpuSet) {
    let harts: usize = cpus.iter().map(|cpu| 1 << cpu).sum();
    // SAFETY: the call sends interrupts; it keeps every register but a0 and a1.
    unsafe {
        asm!("ecall", inout("a0") harts => _, inout("a1") 0 => _, in("a6") 0, in("a7") 0x73_5049, options(nostack));
    }
}

/// Returns how many instructions this hart has executed.
pub fn instructions() -> usize {
    let count;
    // SAFETY: it reads a counter.
    unsafe { asm!("rdinstret {}", out(reg) count, options(nostack)) };
    count
}

/// Executes two instructions so many times, and few more.
pub fn execute(times: usize) {
    // SAFETY: it counts down.
    unsafe { asm!("2: addi {0}, {0}, -1", "bnez {0}, 2b", inout(reg) times => _, options(nomem, nostack)) }
}

/// Calls `run` on another stack, whose end is at `top`.
pub fn on_stack(top: usize, run: extern "C" fn() -> !) -> ! {
    // SAFETY: nothing returns to the stack that is left.
    unsafe { asm!("mv sp, {}", "jr {}", in(reg) top, in(reg) run, options(noreturn)) }
}
