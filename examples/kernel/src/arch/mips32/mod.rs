//! MIPS32, on QEMU's board Malta with up to four coherent cores of a P5600.
//!
//! The kernel and all memory are in kseg0, which is not translated; a program is in kuseg, whose pages the TLB has from the refill
//! handler, which looks into a software TLB cache first. The board itself is that of `examples/malta`.

use core::fmt;

use tlbkit::{Asid, Flush};
use tlbkit_malta::{KSEG0, cp0, gic, semihosting, uart};

use crate::witness;

mod boot;
mod refill;
mod timer;
mod trap;

pub(crate) use boot::start_others;
pub(crate) use refill::{SIZES, conflicts, misses, page_size};
#[cfg(not(feature = "one-cpu"))]
pub(crate) use refill::{install_plain, plain_root};
pub(crate) use timer::set as set_timer;
#[cfg(not(feature = "guarded"))]
pub(crate) use tlbkit::arch::Mips32Coherent as Machine;
pub(crate) use tlbkit_malta::cp0::cpu;
pub(crate) use trap::{CONVENTION, More, run};

/// The machine with guarded page tables.
#[cfg(feature = "guarded")]
pub(crate) type Machine = tlbkit::arch::Mips32Coherent<tlbkit::Guarded>;

/// The machine's name.
pub(crate) const NAME: &str = "mips32";

/// Whether hardware sets accessed and dirty bits.
pub(crate) fn notes() -> bool {
    false
}

/// How many bits an ASID has.
pub(crate) const ASID_BITS: u32 = 8;

/// Software loads the TLBs: each CPU invalidates its own, as it is interrupted.
pub(crate) const BROADCAST: Option<fn(&Flush<'_>, Option<Asid>) -> bool> = None;

/// The part of every address space that is the kernel's: the beginning of kseg2.
pub(crate) const KERNEL: usize = 0xc000_0000;
const KERNEL_LEN: usize = 4 << 20;
/// What the kernel's own address space lends, if the kernel maps pages for itself.
pub(crate) const LENT: (usize, usize) = (KERNEL, KERNEL_LEN);
/// Where the kernel maps pages for itself.
pub(crate) const OWN: usize = KERNEL;
/// How much of it is mapped: nothing, as all memory is in kseg0.
pub(crate) const MAPPED_LEN: usize = 0;
/// Where pages of devices are mapped in it: they are in kseg1.
pub(crate) const DEVICES: &[usize] = &[];

/// What stands before fences, and behind them: software walks.
pub(crate) fn before_fences() {}
pub(crate) fn after_fences() {}

/// Forgets the translation of an address in one address space.
pub(crate) fn fence(at: usize, asid: u16) {
    refill::fence(at, asid);
    witness::fence(Some(at), Some(asid));
}

/// Forgets the translations of one address space.
pub(crate) fn fence_asid(asid: u16) {
    refill::fence_asid(asid);
    witness::fence(None, Some(asid));
}

/// Forgets every translation.
pub(crate) fn fence_all() {
    refill::fence_all();
    witness::fence(None, None);
}

/// Translates by this root from now on; by none if it is 0.
///
/// # Safety
///
/// It is the root of an address space that lives until another one is set, or 0.
pub(crate) unsafe fn set_root(root: usize) {
    // SAFETY: the caller's promise.
    unsafe { refill::set_root(root) };
    witness::root(root);
}

/// Where the witness's record is: behind the software TLB caches of eight CPUs, up to the end of memory.
pub(crate) const RECORD: usize = KSEG0 + (192 << 20);
pub(crate) const RECORD_LEN: usize = 64 << 20;

/// Returns the physical address of what the kernel has at `at`.
pub(crate) const fn physical(at: usize) -> usize {
    at & 0x1fff_ffff
}

/// Whether there are other CPUs, and the board's coherence manager and interrupt controller with them.
const SEVERAL: bool = super::CPUS > 1;

/// Status and Cause: the interrupts of other CPUs, by pin 0 of the interrupt controller.
const IPI: u32 = if SEVERAL { 1 << 10 } else { 0 };

/// Runs `f` without interrupts, which the kernel never takes.
pub(crate) fn masked<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Interrupts these CPUs.
pub(crate) fn interrupt(cpus: usize) {
    witness::sending(cpus);
    (0..super::CPUS).filter(|cpu| cpus >> cpu & 1 == 1).for_each(gic::send);
}

/// Returns the time, in nanoseconds of QEMU's: a tick of Count has six.
pub(crate) fn instructions() -> usize {
    cp0::count::read().wrapping_mul(6) as usize
}

/// Waits for an interrupt, so many microseconds at most, or some more.
pub(crate) fn wait(microseconds: u32) {
    timer::set(microseconds);
    tlbkit_malta::trap::sleep();
}

/// Takes the interrupt of other CPUs back, if it has come. What it was sent for is looked for after that.
pub(crate) fn take_interrupt() {
    if cp0::cause::read() & IPI != 0 {
        gic::acknowledge(cpu());
        witness::taken();
    }
}

/// Makes what has been stored executable on this CPU: QEMU's caches are coherent.
pub(crate) fn fetch_anew() {
    cp0::barrier();
}

/// The serial line.
pub(crate) struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        uart::Uart.write_str(text)
    }
}

/// Ends the machine.
pub(crate) fn stop() -> ! {
    semihosting::exit(0)
}
