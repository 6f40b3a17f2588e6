//! The other cores, asked of the power controller.
//!
//! The coherence manager (GCR) says where its companions are: the interrupt controller, see [`gic`](crate::gic), and
//! the power controller (CPC). A core begins where it was told to, out of reset: `_start` knows what to do then.

use core::ptr;

/// The GCR block, where it is after reset: kseg1 of physical `0x1fbf_8000`.
const GCR: usize = 0xbfbf_8000;
/// Where the controllers are to be, each with a bit that says so.
pub const GCR_GIC_BASE: usize = GCR + 0x80;
const GCR_CPC_BASE: usize = GCR + 0x88;
/// In the block of the core at hand: which other core the last block is about.
const GCR_CL_OTHER: usize = GCR + 0x2018;
/// In the block of that other core: where it begins, a page boundary.
const GCR_CO_RESET_BASE: usize = GCR + 0x4020;

/// Where the kernel puts the power controller: nothing else is there on this board.
const CPC: usize = 0x1bde_0000;
pub const KSEG1: usize = 0xa000_0000;
/// In the block of the core at hand: a one for each processor that is to run.
const CPC_CL_VP_RUN: usize = KSEG1 + CPC + 0x2028;

/// Writes a device's register.
pub fn write(register: usize, value: usize) {
    // SAFETY: the addresses that this module and `gic` know are registers, which no Rust object is at.
    unsafe { ptr::with_exposed_provenance_mut::<usize>(register).write_volatile(value) };
}

/// Starts the cores `1..cpus`, each at the page boundary `entry`: `_start`.
pub fn start(cpus: usize, entry: usize) {
    write(GCR_CPC_BASE, CPC | 1);
    for core in 1..cpus {
        // The manual has the core's number in the upper half, QEMU 7.2 in the lower one.
        write(GCR_CL_OTHER, core << 16 | core);
        write(GCR_CO_RESET_BASE, entry);
        write(CPC_CL_VP_RUN, 1 << core);
    }
}
