//! Interprocessor interrupts: one shared interrupt of the controller (GIC) for each CPU.

use core::ptr;
use core::sync::atomic::{Ordering, fence};

use super::cores::{GCR_GIC_BASE, KSEG1, write};
use crate::arch::cp0;

/// Where the kernel puts the controller: nothing else is there on this board.
const GIC: usize = 0x1bdc_0000;
/// Its registers.
pub(super) const REGISTERS: usize = KSEG1 + GIC;

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
/// Of the CPU at hand: disables interrupts of its own, a bit each.
const VP_RMASK: usize = REGISTERS + 0x800c;

/// The bit of the timer, among a CPU's own interrupts.
const COMPARE: usize = 1 << 1;

const HIGHEST: usize = 1 << 31;

/// The shared interrupt of CPU 0; the board's own devices have lower ones.
const FIRST: usize = 48;

/// Status: lets pin 0 of the controller interrupt.
const PIN_0: u32 = 1 << 10;
/// Status: interrupts are on.
pub(super) const IE: u32 = 1;

/// Puts the controller where the kernel wants it, and returns how many CPUs the machine has.
pub(super) fn find() -> usize {
    write(GCR_GIC_BASE, GIC | 1);
    (read(SH_CONFIG) & 0x7f) + 1
}

/// Reads a register of the controller.
pub(super) fn read(register: usize) -> usize {
    // SAFETY: a register of the controller.
    unsafe { ptr::with_exposed_provenance::<usize>(register).read_volatile() }
}

/// Gives each of the CPUs its interrupt.
pub(super) fn route(cpus: usize) {
    for cpu in 0..cpus {
        write(SH_MAP_PIN + 4 * (FIRST + cpu), HIGHEST);
        write(SH_MAP_VP + 32 * (FIRST + cpu), 1 << cpu);
        write(SH_SMASK_32, 1 << (FIRST + cpu - 32));
    }
}

/// Stops this CPU's Count, so that the timer's interrupt never stands unserved: while any does, even a masked one, QEMU
/// takes its one lock at each turn.
pub(super) fn stop_timer() {
    // SAFETY: no test measures time on several CPUs.
    unsafe { cp0::cause::write(1 << 27) };
}

/// Lets others interrupt this CPU whenever interrupts are on; they are off afterwards.
///
/// After reset the controller's own timer is on, at pin 0, and its time comes after 43 s: it would stand there for good.
pub(super) fn listen() {
    write(VP_RMASK, COMPARE);
    // SAFETY: kernel mode, no exception level, the vectors in kseg0, interrupts off.
    unsafe { cp0::status::write(PIN_0) };
}

/// Interrupts a CPU, which sees what was stored before.
pub(super) fn send(cpu: usize) {
    fence(Ordering::SeqCst);
    write(SH_WEDGE, HIGHEST | (FIRST + cpu));
}

/// Lowers the interrupt of this CPU. Look for what it was about afterwards: whatever is new interrupts again.
pub(super) fn acknowledge(me: usize) {
    write(SH_WEDGE, FIRST + me);
    fence(Ordering::SeqCst);
}
