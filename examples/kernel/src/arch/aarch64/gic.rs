//! The interrupt controller: Arm Generic Interrupt Controller, version 2 (IHI 0048).
//!
//! Software interrupt 0 is that of other CPUs. It is acknowledged when it is taken back; the timer's never is, for it ends
//! when the timer is set anew.

use core::arch::asm;

use crate::witness;

const DISTRIBUTOR: usize = 0x0800_0000;
const CPU_INTERFACE: usize = 0x0801_0000;

/// On, of both.
const CTLR: usize = 0;
/// Of the CPU at hand for interrupts below 32: a bit, and a byte, for each.
const ISENABLER: usize = DISTRIBUTOR + 0x100;
const IPRIORITYR: usize = DISTRIBUTOR + 0x400;
/// Sends a software interrupt.
const SGIR: usize = DISTRIBUTOR + 0xf00;
/// Interrupts of this priority and above it, which is a larger number, wait.
const PMR: usize = CPU_INTERFACE + 0x4;
/// Acknowledges an interrupt, ends it, and says which one is next.
const IAR: usize = CPU_INTERFACE + 0xc;
const EOIR: usize = CPU_INTERFACE + 0x10;
const HPPIR: usize = CPU_INTERFACE + 0x18;

/// An interrupt's number, in what the CPU interface says.
const NUMBER: u32 = 0x3ff;
/// The interrupt of other CPUs.
const SHOOTDOWN: u32 = 0;
/// The interrupt of the virtual timer of each CPU.
pub(super) const TIMER: u32 = 27;

fn read(at: usize) -> u32 {
    // SAFETY: it is a register of the interrupt controller, which touches no memory.
    unsafe { super::register(at).read_volatile() }
}

fn write(at: usize, value: u32) {
    // SAFETY: it is a register of the interrupt controller, which touches no memory. The kernel chooses what interrupts, and takes
    // interrupts from EL0 alone.
    unsafe { super::register(at).write_volatile(value) };
}

/// Lets the interrupts through that EL0 takes on this CPU. Those of other CPUs precede the timer's.
pub(super) fn prepare() {
    write(DISTRIBUTOR + CTLR, 1);
    write(ISENABLER, 1 << TIMER | 1 << SHOOTDOWN);
    let shift = TIMER % 4 * 8;
    let others = read(IPRIORITYR + (TIMER & !3) as usize) & !(0xff << shift);
    write(IPRIORITYR + (TIMER & !3) as usize, others | 0x80 << shift);
    write(IPRIORITYR, read(IPRIORITYR) & !0xff);
    write(PMR, 0xff);
    write(CPU_INTERFACE + CTLR, 1);
}

/// Returns the number of the interrupt that is pending, one that is none if there is none.
pub(super) fn pending() -> u32 {
    read(HPPIR) & NUMBER
}

/// Interrupts these CPUs.
pub(super) fn send(cpus: usize) {
    // SAFETY: it lets what was stored be seen before the interrupt is.
    unsafe { asm!("dsb ishst", options(nostack, preserves_flags)) };
    write(SGIR, (cpus as u32 & 0xff) << 16 | SHOOTDOWN);
}

/// Takes the interrupts of other CPUs back, of which each has its own. What they were sent for is looked for after that.
pub(crate) fn take_interrupt() {
    while pending() == SHOOTDOWN {
        let taken = read(IAR);
        write(EOIR, taken);
    }
    // SAFETY: what follows is begun after that, as after an exception.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
    witness::taken();
}
