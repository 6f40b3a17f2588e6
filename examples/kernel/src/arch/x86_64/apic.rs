//! The local APIC of each CPU, by way of memory: its timer, and interrupts to the other CPUs. Intel SDM volume 3, chapter 12.

use core::arch::asm;

use super::{KERNEL, out, vectors};

/// Where it is mapped.
pub(super) const AT: usize = KERNEL + 0xfee0_0000;

/// Registers.
const END: usize = 0xb0;
const SPURIOUS: usize = 0xf0;
const COMMAND: usize = 0x300;
const COMMAND_TO: usize = 0x310;
const TIMER: usize = 0x320;
const LINT0: usize = 0x350;
const COUNT: usize = 0x380;
const COUNT_LEFT: usize = 0x390;
const DIVIDE: usize = 0x3e0;

/// The interrupt command register: what is sent, and that it is on its way.
const ASSERT: u32 = 1 << 14;
const INIT: u32 = 5 << 8;
const STARTUP: u32 = 6 << 8;
const SENDING: u32 = 1 << 12;
/// A local interrupt is masked.
const MASKED: u32 = 1 << 16;

/// Ticks of a microsecond, of QEMU's: it counts nanoseconds.
const TICKS: u32 = 1000;

/// Writes a register, after all that was stored before.
fn write(register: usize, value: u32) {
    // SAFETY: it is a register, mapped not to be cached; of those above none lets the APIC write memory.
    unsafe {
        asm!("mov [{}], {:e}", in(reg) AT + register, in(reg) value, options(nostack, preserves_flags))
    };
}

fn read(register: usize) -> u32 {
    let value;
    // SAFETY: it is a register, mapped not to be cached.
    unsafe {
        asm!("mov {:e}, [{}]", out(reg) value, in(reg) AT + register, options(nostack, preserves_flags))
    };
    value
}

/// Switches this CPU's on. The two controllers of old, and what they are wired to, stay silent.
pub(super) fn prepare() {
    [0x21, 0xa1].into_iter().for_each(|port| out(port, 0xff));
    write(SPURIOUS, 1 << 8 | u32::from(vectors::SPURIOUS));
    write(LINT0, MASKED);
    // Not divided, once.
    write(DIVIDE, 0b1011);
    write(TIMER, vectors::TIMER.into());
}

/// Tells that an interrupt has been taken.
pub(super) fn end() {
    write(END, 0);
}

/// Lets the timer interrupt after so many microseconds; at 0 it is off.
pub(super) fn set_timer(microseconds: u32) {
    write(COUNT, microseconds * TICKS);
}

/// Waits until something holds, so many microseconds at most, while the timer does not interrupt.
fn wait(microseconds: u32, holds: impl Fn() -> bool) {
    write(TIMER, MASKED);
    set_timer(microseconds);
    while read(COUNT_LEFT) > 0 && !holds() {
        core::hint::spin_loop();
    }
    set_timer(0);
    write(TIMER, vectors::TIMER.into());
}

fn send(cpu: usize, what: u32) {
    while read(COMMAND) & SENDING != 0 {
        core::hint::spin_loop();
    }
    write(COMMAND_TO, (cpu as u32) << 24);
    write(COMMAND, ASSERT | what);
}

/// Interrupts a CPU.
pub(super) fn interrupt(cpu: usize) {
    send(cpu, vectors::CALLED.into());
}

/// Resets a CPU and lets it run at a page below 1 MiB, and waits until it has started, if there is such a CPU: 12.4.4.1 of the
/// manual has the times.
pub(super) fn start(cpu: usize, page: usize, has_started: impl Fn() -> bool) {
    const SECONDS_2: u32 = 2_000_000;
    send(cpu, INIT);
    wait(10_000, || false);
    for most in [200, SECONDS_2] {
        if !has_started() {
            send(cpu, STARTUP | (page >> 12) as u32);
            wait(most, &has_started);
        }
    }
}
