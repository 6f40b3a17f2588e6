//! The registers of coprocessor 0 that the kernel uses.
//!
//! Each write is followed by `ehb`, after which the next instruction sees it, or on release 1 by as many cycles.

use core::arch::asm;

use tlbkit_refill::features::{Endian, Features, Isa};

/// A register: its name, number and select.
macro_rules! register {
    ($(#[$doc:meta])* $name:ident, $number:literal, $select:literal) => {
        $(#[$doc])*
        pub mod $name {
            use super::*;

            /// Reads it.
            #[inline(always)]
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
            pub unsafe fn write(value: u32) {
                // SAFETY: the caller's promise.
                unsafe {
                    asm!(
                        ".set push", ".set noat", concat!("mtc0 {}, $", $number, ", ", $select), ".set pop",
                        in(reg) value,
                        options(nostack, preserves_flags)
                    );
                    barrier();
                }
            }
        }
    };
}

/// Waits until what was written to coprocessor 0, or read there by the TLB's instructions, has taken effect.
#[inline(always)]
pub fn barrier() {
    // SAFETY: these instructions do nothing but wait.
    unsafe {
        if cfg!(feature = "release1") {
            asm!("ssnop", "ssnop", "ssnop", "ehb", options(nostack, preserves_flags));
        } else {
            asm!("ehb", options(nostack, preserves_flags));
        }
    }
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
    /// Which of its registers user mode may read by `rdhwr`, from release 2 on.
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
    /// Its lowest bits: which CPU this is, from release 2 on.
    ebase, 15, 1
}
register! {
    /// Bits 10 to 12: the release of the architecture, less one. Bit 31: whether there is [`config1`].
    config, 16, 0
}
register! {
    /// How many TLB entries there are, among much else. Bit 31: whether there is a register more, as in all of these.
    config1, 16, 1
}
register! {
    /// Nothing but whether there is [`config3`].
    config2, 16, 2
}
register! {
    /// Nothing but whether there is [`config4`].
    config3, 16, 3
}
register! {
    /// Whether there are scratch registers (bits 16 to 23 of this), among others.
    config4, 16, 4
}

register! {
    /// Where an error exception came from. There is none: the refill handler may have its root here.
    error_epc, 30, 0
}
register! {
    /// A scratch register, if the CPU has it: the refill handler may have its root here. So for the others.
    kscratch1, 31, 2
}
register! {
    /// A register that only the kernel uses, like `kscratch1`.
    kscratch2, 31, 3
}
register! {
    /// A register that only the kernel uses, like `kscratch1`.
    kscratch3, 31, 4
}

/// Puts the timer's interrupt off for as long as Count takes to go round, 25 seconds of the guest's. No CPU waits for
/// it, but while it stands, even masked, QEMU takes its one lock at each turn, and its other threads may never get it.
pub fn put_timer_off() {
    // SAFETY: the timer is masked.
    unsafe { compare::write(count::read().wrapping_sub(1)) };
}

/// Returns the number of this CPU.
#[inline(always)]
pub fn cpu() -> usize {
    if cfg!(feature = "release1") { 0 } else { (ebase::read() & 0x3ff) as usize }
}

/// Returns what this CPU has, as far as its refill handler is concerned, by what it says of itself.
pub fn features() -> Features {
    const MORE: u32 = 1 << 31;
    let isa = if config::read() >> 10 & 7 == 0 { Isa::R1 } else { Isa::R2 };
    // Each register tells whether there is the next; what there is not may not be read.
    let has_config4 = config::read() & MORE != 0
        && config1::read() & MORE != 0
        && config2::read() & MORE != 0
        && config3::read() & MORE != 0;
    let kscratch = if has_config4 { (config4::read() >> 16) as u8 } else { 0 };
    let endian = if cfg!(target_endian = "big") { Endian::Big } else { Endian::Little };
    Features { isa, endian, kscratch }
}
