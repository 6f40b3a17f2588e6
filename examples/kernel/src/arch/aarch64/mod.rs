//! AArch64 with a 4 KiB granule, on QEMU's machine `virt` with a GICv2.
//!
//! ```text
//!   0 to 256 TiB          TTBR0    an address space of tlbkit's, with its ASID; none while the CPU is idle
//!   the last 256 TiB      TTBR1    the kernel: memory and devices from KERNEL on, by a table of `boot`'s
//! ```
//!
//! The kernel runs in EL1 with interrupts masked, and takes them from EL0 alone: where it waits, it asks for them.

use core::arch::asm;

use crate::witness;

mod boot;
mod gic;
mod psci;
mod timer;
mod tlb;
mod trap;
mod uart;

pub(crate) use boot::{fetch_anew, notes, start_others};
pub(crate) use gic::take_interrupt;
pub(crate) use psci::stop;
pub(crate) use timer::{instructions, set_timer, wait};
pub(crate) use tlb::{
    ASID_BITS, BROADCAST, after_fences, before_fences, fence, fence_all, fence_asid, set_root,
};
use tlbkit::PageSize;
pub(crate) use tlbkit::arch::AArch64 as Machine;
pub(crate) use trap::{CONVENTION, More, run};
pub(crate) use uart::Console;

use crate::growth::Miss;

/// The machine's name.
pub(crate) const NAME: &str = "aarch64";

/// Where the kernel sees physical address 0: at the beginning of the upper half.
pub(crate) const KERNEL: usize = 0xffff_0000_0000_0000;
/// What the kernel's own address space lends, if the kernel maps pages for itself: a part of the lower half, by TTBR0.
pub(crate) const LENT: (usize, usize) = (1 << 39, 1 << 39);
/// Where the kernel maps pages for itself.
pub(crate) const OWN: usize = LENT.0;
/// Where memory begins, physically.
const MEMORY: usize = 0x4000_0000;
/// How much of it `tlbkit` maps: nothing, as TTBR1 has the kernel's own table.
pub(crate) const MAPPED_LEN: usize = 0;
/// Where pages of devices are mapped in it: TTBR1 has them.
pub(crate) const DEVICES: &[usize] = &[];

/// Where the witness's record is: behind the programs, which QEMU puts 128 MiB behind the beginning of memory, and the device
/// tree, in a machine of a gigabyte.
pub(crate) const RECORD: usize = KERNEL + MEMORY + (160 << 20);
pub(crate) const RECORD_LEN: usize = 800 << 20;

/// Returns the physical address of what the kernel has at `at`.
pub(crate) const fn physical(at: usize) -> usize {
    at - KERNEL
}

/// A register of a device.
fn register(at: usize) -> *mut u32 {
    core::ptr::with_exposed_provenance_mut(KERNEL + at)
}

/// Returns the number of the CPU that calls this.
pub(crate) fn cpu() -> usize {
    let cpu;
    // SAFETY: the kernel keeps the CPU's number in TPIDR_EL1.
    unsafe { asm!("mrs {}, tpidr_el1", out(reg) cpu, options(nomem, nostack, preserves_flags)) };
    cpu
}

/// Runs `f` without interrupts.
pub(crate) fn masked<R>(f: impl FnOnce() -> R) -> R {
    let before: usize;
    // SAFETY: it masks interrupts; they come back as they were.
    unsafe { asm!("mrs {}, daif", "msr daifset, #2", out(reg) before, options(nostack, preserves_flags)) };
    let result = f();
    // SAFETY: it restores the interrupt mask that was there before `f`.
    unsafe { asm!("msr daif, {}", in(reg) before, options(nostack, preserves_flags)) };
    result
}

/// Interrupts these CPUs.
pub(crate) fn interrupt(cpus: usize) {
    witness::sending(cpus);
    gic::send(cpus);
}

/// The sizes of TLB entries that pages grow into: none, for nothing tells the kernel of misses.
pub(crate) const SIZES: &[PageSize] = &[];

/// Returns the size of the pages that fill a TLB entry of this one.
pub(crate) fn page_size(entry: PageSize) -> PageSize {
    entry
}

/// Returns how many pairs of TLB entries match one address: hardware sees to that.
pub(crate) fn conflicts() -> usize {
    0
}

/// Hands over what has missed on this CPU: nothing that the kernel knows of. Tells whether there was no room for more.
pub(crate) fn misses(_each: impl FnMut(Miss)) -> bool {
    false
}
