//! The registers of coprocessor 0 that the kernel uses.
//!
//! Each write is followed by `ehb`, after which the next instruction sees it.

use core::arch::asm;

/// A register: its name, number and select.
macro_rules! register {
    ($(#[$doc:meta])* $name:ident, $number:literal, $select:literal) => {
        $(#[$doc])*
        pub mod $name {
            use super::*;

            /// Reads it.
            #[inline(always)]
            #[allow(dead_code, reason = "a register is described whole")]
            pub fn read() -> u32 {
                let value;
                // SAFETY: reading a coprocessor register changes nothing. (It is no pure function: hardware writes it.)
                unsafe {
                    asm!(
                        ".set push", ".set noat", concat!("mfc0 {}, $", $number, ", ", $select), ".set pop",
                        out(reg) value,
                        options(nomem, nostack, preserves_flags)
                    );
                }
                value
            }

            /// Writes it.
            ///
            /// # Safety
            ///
            /// The kernel can live with what the register then does.
            #[inline(always)]
            #[allow(dead_code, reason = "a register is described whole")]
            pub unsafe fn write(value: u32) {
                // SAFETY: the caller's promise.
                unsafe {
                    asm!(
                        ".set push", ".set noat", concat!("mtc0 {}, $", $number, ", ", $select), "ehb", ".set pop",
                        in(reg) value,
                        options(nostack, preserves_flags)
                    );
                }
            }
        }
    };
}

register! {
    /// Which TLB entry `tlbr` and `tlbwi` mean.
    index, 0, 0
}
register! {
    /// Which TLB entry `tlbwr` means.
    random, 1, 0
}
register! {
    /// The even page of a TLB entry.
    entry_lo0, 2, 0
}
register! {
    /// The odd page of a TLB entry.
    entry_lo1, 3, 0
}
register! {
    /// PTEBase, ours, and BadVPN2, the hardware's.
    context, 4, 0
}
register! {
    /// How large the pages of a TLB entry are.
    page_mask, 5, 0
}
register! {
    /// Below it `tlbwr` writes no entry.
    wired, 6, 0
}
register! {
    /// Which of its registers user mode may read by `rdhwr`.
    hwrena, 7, 0
}
register! {
    /// The address of the last miss or fault.
    bad_vaddr, 8, 0
}
register! {
    /// Time.
    count, 9, 0
}
register! {
    /// When the timer interrupts: at this time. To write it takes the interrupt back.
    compare, 11, 0
}
register! {
    /// The page pair and the address space of a TLB entry; the address space that runs.
    entry_hi, 10, 0
}
register! {
    /// Modes and masks.
    status, 12, 0
}
register! {
    /// Why there was an exception.
    cause, 13, 0
}
register! {
    /// The processor's identification.
    prid, 15, 0
}
register! {
    /// Its lowest bits: which CPU this is.
    ebase, 15, 1
}
register! {
    /// How many TLB entries there are, among much else.
    config1, 16, 1
}
register! {
    /// Whether there are scratch registers (bits 16 to 23 of this), among others.
    config4, 16, 4
}

register! {
    /// Where an error exception came from. There is none: the refill handler has its root here.
    error_epc, 30, 0
}

/// Puts the timer's interrupt off for as long as Count takes to go round, 25 seconds of the guest's. Nobody waits for it,
/// but while it stands, even masked, QEMU takes its one lock at each turn, and its other threads may never get it.
pub fn put_timer_off() {
    // SAFETY: the timer is masked.
    unsafe { compare::write(count::read().wrapping_sub(1)) };
}

/// Status: exception level, which masks interrupts and keeps EPC.
pub const STATUS_EXL: u32 = 1 << 1;
/// Status: user mode.
pub const STATUS_UM: u32 = 1 << 4;

/// Returns the number of this CPU.
#[inline(always)]
pub fn cpu() -> usize {
    (ebase::read() & 0x3ff) as usize
}
