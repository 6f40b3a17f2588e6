//! x86-64: the number of a CPU is in the word to which its GS base points.

use core::arch::asm;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tlbkit::CpuSet;

/// The numbers.
static NUMBERS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// Makes this CPU the one of a number.
pub fn begin(number: usize) {
    const GS_BASE: u32 = 0xc000_0101;
    let Some(word) = NUMBERS.get(number) else { return };
    word.store(number, Relaxed);
    let at = word.as_ptr().addr();
    // SAFETY: no other code uses the register.
    unsafe { asm!("wrmsr", in("ecx") GS_BASE, in("eax") at as u32, in("edx") (at >> 32) as u32) };
}

/// Returns the number of the CPU that calls this.
pub fn number() -> usize {
    let number;
    // SAFETY: the word is the CPU's.
    unsafe { asm!("mov {}, gs:[0]", out(reg) number, options(nostack, readonly, preserves_flags)) };
    number
}

/// Interrupts these CPUs, by their x2APICs.
pub fn interrupt(cpus: CpuSet) {
    const COMMAND: u32 = 0x830;
    const VECTOR: u32 = 0xf0;
    for cpu in cpus.iter() {
        // SAFETY: the interrupt's handler expects it.
        unsafe { asm!("wrmsr", in("ecx") COMMAND, in("eax") VECTOR, in("edx") cpu as u32) };
    }
}

/// Returns the time-stamp counter, which counts instructions where QEMU is told to.
pub fn instructions() -> usize {
    let (low, high): (usize, usize);
    // SAFETY: it reads a counter.
    unsafe { asm!("rdtsc", out("rax") low, out("rdx") high, options(nostack, preserves_flags)) };
    high << 32 | low
}

/// Executes two instructions so many times, and few more.
pub fn execute(times: usize) {
    // SAFETY: it counts down.
    unsafe { asm!("2: dec {0}", "jnz 2b", inout(reg) times => _, options(nomem, nostack)) }
}

/// Calls `run` on another stack, whose end is at `top`.
pub fn on_stack(top: usize, run: extern "C" fn() -> !) -> ! {
    // SAFETY: nothing returns to the stack that is left.
    unsafe { asm!("mov rsp, {}", "call {}", in(reg) top, in(reg) run, options(noreturn)) }
}
