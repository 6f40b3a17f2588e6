//! Time, by the virtual timer of each CPU, and instructions, by its performance monitor.

use core::arch::asm;

/// Makes the cycle counter of this CPU ready, if it has one. EL0 reaches neither that nor the timer.
pub(super) fn prepare() {
    /// PMUVer: none, and one that is not Arm's.
    const NONE: [usize; 2] = [0, 15];
    /// PMCR_EL0: on; PMCNTENSET_EL0: the cycle counter.
    const ON: usize = 1;
    const CYCLES: usize = 1 << 31;
    // SAFETY: the kernel's accesses are allowed whatever it says.
    unsafe { asm!("msr cntkctl_el1, xzr", options(nostack, preserves_flags)) };
    let features: usize;
    // SAFETY: it reads a register.
    unsafe { asm!("mrs {}, id_aa64dfr0_el1", out(reg) features, options(nomem, nostack, preserves_flags)) };
    if !NONE.contains(&(features >> 8 & 15)) {
        // SAFETY: there is a performance monitor, which nothing else uses.
        unsafe {
            asm!(
                "msr pmuserenr_el0, xzr", "msr pmcr_el0, {on}", "msr pmcntenset_el0, {cycles}", "isb",
                on = in(reg) ON, cycles = in(reg) CYCLES, options(nostack, preserves_flags)
            );
        }
    }
}

/// Returns the cycle counter. QEMU's cycles are nanoseconds.
pub(crate) fn instructions() -> usize {
    let count;
    // SAFETY: it reads a counter.
    unsafe { asm!("isb", "mrs {}, pmccntr_el0", out(reg) count, options(nostack, preserves_flags)) };
    count
}

/// Lets the timer interrupt after so many microseconds, and takes its interrupt back.
pub(crate) fn set_timer(microseconds: u32) {
    let frequency: u64;
    // SAFETY: it reads a register.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) frequency, options(nomem, nostack, preserves_flags)) };
    let ticks = u64::from(microseconds) * frequency / 1_000_000;
    // SAFETY: it says when this CPU's timer interrupts: in so many ticks, and that it does.
    unsafe {
        asm!(
            "msr cntv_tval_el0, {}", "msr cntv_ctl_el0, {}", "isb",
            in(reg) ticks, in(reg) 1_u64, options(nostack, preserves_flags)
        );
    }
}

/// Waits for an interrupt, so many microseconds at most.
pub(crate) fn wait(microseconds: u32) {
    set_timer(microseconds);
    // SAFETY: it waits until an interrupt is pending, masked or not.
    unsafe { asm!("dsb ish", "wfi", options(nostack, preserves_flags)) };
}
