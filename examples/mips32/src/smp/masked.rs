//! Interrupts off, as a value.

use core::arch::asm;
use core::marker::PhantomData;

/// Proof that this CPU takes no interrupt. Not `Send`: another CPU's interrupts are its own.
#[derive(Debug)]
pub(super) struct Masked(PhantomData<*const ()>);

impl Masked {
    /// Asserts that interrupts are off.
    ///
    /// # Safety
    ///
    /// They are, and stay so while the value lives, except within [`sleep`](super::idle::sleep).
    pub(super) const unsafe fn assume() -> Self {
        Self(PhantomData)
    }
}

/// Runs `f` with interrupts off, and then lets them be as they were.
pub(super) fn masked<R>(f: impl FnOnce(&Masked) -> R) -> R {
    let status: u32;
    // SAFETY: changes a bit of Status that only this module and `idle` change. Memory accesses stay on their side.
    unsafe {
        asm!(".set push", ".set mips32r2", "di {0}", "ehb", ".set pop", out(reg) status, options(nostack));
    };
    let result = f(&Masked(PhantomData));
    if status & super::gic::IE != 0 {
        enable();
    }
    result
}

/// Turns interrupts off.
pub(super) fn disable() {
    // SAFETY: changes a bit of Status that only this module and `idle` change. Memory accesses stay on their side.
    unsafe {
        asm!(".set push", ".set mips32r2", "di", "ehb", ".set pop", options(nostack));
    };
}

/// Turns interrupts on.
pub(super) fn enable() {
    // SAFETY: changes a bit of Status that only this module and `idle` change. Memory accesses stay on their side.
    unsafe {
        asm!(".set push", ".set mips32r2", "ei", "ehb", ".set pop", options(nostack));
    };
}
