//! AArch64: the number of a CPU is in TPIDR_EL1. One CPU flushes the TLBs of all.

use core::arch::asm;

use tlbkit::{Asid, CpuSet, Flush, PhysAddr};

/// Makes this CPU the one of a number, and starts its cycle counter, which counts instructions where QEMU is told to.
pub fn begin(number: usize) {
    let (enabled, cycles) = (1usize, 1usize << 31);
    // SAFETY: no other code uses the registers.
    unsafe {
        asm!("msr tpidr_el1, {}", "msr pmcr_el0, {}", "msr pmccfiltr_el0, xzr", "msr pmcntenset_el0, {}", "isb",
            in(reg) number, in(reg) enabled, in(reg) cycles, options(nostack, preserves_flags));
    }
}

/// Returns the number of the CPU that calls this.
pub fn number() -> usize {
    let number;
    // SAFETY: it reads a register.
    unsafe { asm!("mrs {}, tpidr_el1", out(reg) number, options(nomem, nostack, preserves_flags)) };
    number
}

/// Interrupts these CPUs, by the distributor of a GICv2.
pub fn interrupt(cpus: CpuSet) {
    const SGIR: PhysAddr = PhysAddr::new(0x0800_0f00);
    let targets = cpus.iter().fold(0u32, |targets, cpu| targets | 1 << (16 + cpu));
    // SAFETY: a barrier is always allowed. The register is the distributor's, and the interrupt's handler expects it.
    unsafe {
        asm!("dsb ishst", options(nostack, preserves_flags));
        super::cpu::memory(SGIR).cast::<u32>().write_volatile(targets);
    }
}

/// Flushes what `flush` names on every CPU.
pub fn broadcast(flush: &Flush<'_>, asid: Option<Asid>) -> bool {
    let asid = asid.map(|asid| usize::from(asid.get()) << 48);
    // SAFETY: barriers and flushes are always allowed. Walks that follow see what was stored.
    unsafe {
        asm!("dsb ishst", options(nostack, preserves_flags));
        match (flush.by_address(), asid) {
            (Some(pages), Some(asid)) => pages.for_each(|at| {
                let page = at.get() >> 12 & ((1 << 44) - 1);
                asm!("tlbi vae1is, {}", in(reg) asid | page, options(nostack, preserves_flags));
            }),
            (None, Some(asid)) => asm!("tlbi aside1is, {}", in(reg) asid, options(nostack, preserves_flags)),
            (_, None) => asm!("tlbi vmalle1is", options(nostack, preserves_flags)),
        }
        asm!("dsb ish", "isb", options(nostack, preserves_flags));
    }
    true
}

/// Returns the cycle counter.
pub fn instructions() -> usize {
    let count;
    // SAFETY: it reads a counter.
    unsafe { asm!("mrs {}, pmccntr_el0", out(reg) count, options(nostack, preserves_flags)) };
    count
}

/// Executes two instructions so many times, and few more.
pub fn execute(times: usize) {
    // SAFETY: it counts down.
    unsafe { asm!("2: subs {0}, {0}, #1", "b.ne 2b", inout(reg) times => _, options(nomem, nostack)) }
}

/// Calls `run` on another stack, whose end is at `top`.
pub fn on_stack(top: usize, run: extern "C" fn() -> !) -> ! {
    // SAFETY: nothing returns to the stack that is left.
    unsafe { asm!("mov sp, {}", "br {}", in(reg) top, in(reg) run, options(noreturn)) }
}
