//! Interprocessor interrupts: one shared interrupt of the controller (GIC) for each CPU.

use core::ptr;
use core::sync::atomic::{Ordering, fence};

use crate::cores::{GCR_GIC_BASE, KSEG1, write};
use crate::cp0;

/// Where the kernel puts the controller: nothing else is there on this board.
const GIC: usize = 0x1bdc_0000;
/// Its registers.
pub const REGISTERS: usize = KSEG1 + GIC;

/// The lowest bits: one less than the CPUs.
const SH_CONFIG: usize = REGISTERS;
/// Raises (with the highest bit) or lowers a shared interrupt.
const SH_WEDGE: usize = REGISTERS + 0x280;
/// Enables shared interrupts from 32 on, a bit each.
const SH_SMASK_32: usize = REGISTERS + 0x384;
/// Which pin of the CPU an interrupt is for; a word each.
const SH_MAP_PIN: usize = REGISTERS + 0x500;
/// Which CPUs it is for; 32 bytes each.
const SH_MAP_VP: usize = REGISTERS + 0x2000;
const HIGHEST: usize = 1 << 31;

/// The shared interrupt of CPU 0; the board's own devices have lower ones.
const FIRST: usize = 48;

/// Puts the controller where the kernel wants it, and returns how many CPUs the machine has.
pub fn find() -> usize {
    write(GCR_GIC_BASE, GIC | 1);
    (read(SH_CONFIG) & 0x7f) + 1
}

/// Reads a register of the controller.
pub fn read(register: usize) -> usize {
    // SAFETY: a register of the controller.
    unsafe { ptr::with_exposed_provenance::<usize>(register).read_volatile() }
}

/// Gives each of the CPUs its interrupt.
pub fn route(cpus: usize) {
    for cpu in 0..cpus {
        write(SH_MAP_PIN + 4 * (FIRST + cpu), HIGHEST);
        write(SH_MAP_VP + 32 * (FIRST + cpu), 1 << cpu);
        write(SH_SMASK_32, 1 << (FIRST + cpu - 32));
    }
}

/// Stops this CPU's Count, so that the timer's interrupt never stands unserved: while any does, even a masked one, QEMU
/// takes its one lock at each turn.
pub fn stop_timer() {
    // SAFETY: no test measures time on several CPUs.
    unsafe { cp0::cause::write(1 << 27) };
}

/// Interrupts a CPU, which sees what was stored before.
pub fn send(cpu: usize) {
    fence(Ordering::SeqCst);
    write(SH_WEDGE, HIGHEST | (FIRST + cpu));
}

/// Lowers the interrupt of this CPU. Look for what it was about afterwards: whatever is new interrupts again.
pub fn acknowledge(me: usize) {
    write(SH_WEDGE, FIRST + me);
    fence(Ordering::SeqCst);
}
