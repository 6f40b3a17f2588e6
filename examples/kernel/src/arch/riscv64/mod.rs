//! RISC-V, Sv39, on QEMU's machine `virt` with OpenSBI.
//!
//! The kernel runs in supervisor mode, where memory is mapped one to one, and takes interrupts from user mode alone:
//! where it waits, it asks for them.

use core::arch::asm;

use crate::witness;

mod boot;
mod sbi;
mod trap;

pub(crate) use boot::start_others;
pub(crate) use sbi::{Console, stop};
pub(crate) use tlbkit::arch::Sv39 as Machine;
use tlbkit::{Asid, Flush, PageSize};
pub(crate) use trap::{CONVENTION, More, run};

use crate::growth::Miss;

/// The machine's name.
pub(crate) const NAME: &str = "riscv64";

/// Whether hardware sets accessed and dirty bits: QEMU's does.
pub(crate) fn notes() -> bool {
    true
}

/// How many bits an ASID has.
pub(crate) const ASID_BITS: u32 = 16;

/// Each hart invalidates its own TLB, as it is interrupted.
pub(crate) const BROADCAST: Option<fn(&Flush<'_>, Option<Asid>) -> bool> = None;

/// The part of every address space that is the kernel's: the gigabyte that memory is in, and the next one.
pub(crate) const KERNEL: usize = 0x8000_0000;
const KERNEL_LEN: usize = 2 << 30;
/// What the kernel's own address space lends.
pub(crate) const LENT: (usize, usize) = (KERNEL, KERNEL_LEN);
/// Where the kernel maps pages for itself.
pub(crate) const OWN: usize = KERNEL + (1 << 30);
/// How much of it is mapped one to one: memory.
pub(crate) const MAPPED_LEN: usize = if crate::witness::RECORDS { 1 << 30 } else { 256 << 20 };
/// Where pages of devices are mapped in it: OpenSBI has all of them.
pub(crate) const DEVICES: &[usize] = &[];

/// Where the witness's record is: behind the programs, which QEMU puts 128 MiB behind the kernel's beginning, and before the
/// device tree, in a machine of a gigabyte.
pub(crate) const RECORD: usize = KERNEL + (160 << 20);
pub(crate) const RECORD_LEN: usize = 800 << 20;

/// Returns the physical address of what the kernel has at `at`.
pub(crate) const fn physical(at: usize) -> usize {
    at
}

/// Bits of `sie` and `sip`: software and timer interrupts of supervisor mode.
const SOFTWARE: usize = 1 << 1;
const TIMER: usize = 1 << 5;
/// Supervisor mode takes interrupts.
const SIE: usize = 1 << 1;

/// Returns the number of the hart that calls this.
pub(crate) fn cpu() -> usize {
    let hart;
    // SAFETY: the kernel keeps the hart's number in tp.
    unsafe { asm!("mv {}, tp", out(reg) hart, options(nomem, nostack, preserves_flags)) };
    hart
}

/// Runs `f` without interrupts.
pub(crate) fn masked<R>(f: impl FnOnce() -> R) -> R {
    let before: usize;
    // SAFETY: it masks interrupts; they come back as they were.
    unsafe { asm!("csrrci {}, sstatus, {}", out(reg) before, const SIE, options(nostack)) };
    let result = f();
    // SAFETY: it restores the interrupt mask that was there before `f`.
    unsafe { asm!("csrs sstatus, {}", in(reg) before & SIE, options(nostack)) };
    result
}

/// What stands before fences, and behind them: a fence is its own barrier.
pub(crate) fn before_fences() {}
pub(crate) fn after_fences() {}

/// Forgets the translation of an address in one address space.
pub(crate) fn fence(at: usize, asid: u16) {
    // SAFETY: a fence is always allowed.
    unsafe { asm!("sfence.vma {}, {}", in(reg) at, in(reg) usize::from(asid), options(nostack)) };
    witness::fence(Some(at), Some(asid));
}

/// Forgets the translations of one address space.
pub(crate) fn fence_asid(asid: u16) {
    // SAFETY: a fence is always allowed.
    unsafe { asm!("sfence.vma zero, {}", in(reg) usize::from(asid), options(nostack)) };
    witness::fence(None, Some(asid));
}

/// Forgets every translation.
pub(crate) fn fence_all() {
    // SAFETY: a fence is always allowed.
    unsafe { asm!("sfence.vma", options(nostack)) };
    witness::fence(None, None);
}

/// Translates by this root from now on; by none if it is 0.
///
/// # Safety
///
/// The root's table maps the kernel's memory one to one, or is 0.
pub(crate) unsafe fn set_root(root: usize) {
    // SAFETY: the caller's promise.
    unsafe { asm!("csrw satp, {}", in(reg) root, options(nostack)) };
    witness::root(root);
}

/// Interrupts these harts.
pub(crate) fn interrupt(harts: usize) {
    witness::sending(harts);
    sbi::interrupt(harts);
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

/// Hands over what has missed on this hart: nothing that the kernel knows of. Tells whether there was no room for more.
pub(crate) fn misses(_each: impl FnMut(Miss)) -> bool {
    false
}

/// Returns how many instructions this hart has executed.
pub(crate) fn instructions() -> usize {
    let count;
    // SAFETY: it reads a counter.
    unsafe { asm!("rdinstret {}", out(reg) count, options(nostack)) };
    count
}

/// Waits for an interrupt, so many microseconds at most.
pub(crate) fn wait(microseconds: u32) {
    set_timer(microseconds);
    // SAFETY: it waits until an interrupt is pending.
    unsafe { asm!("wfi", options(nostack)) };
}

/// Lets the timer interrupt after so many microseconds: ten ticks each.
pub(crate) fn set_timer(microseconds: u32) {
    sbi::set_timer(10 * microseconds as usize);
}

/// Takes the software interrupt back. What it was sent for is looked for after that.
pub(crate) fn take_interrupt() {
    // SAFETY: it clears a pending interrupt.
    unsafe { asm!("csrc sip, {}", in(reg) SOFTWARE, options(nostack)) };
    witness::taken();
}

/// Makes what has been stored executable on this hart.
pub(crate) fn fetch_anew() {
    // SAFETY: a fence is always allowed.
    unsafe { asm!("fence.i", options(nostack)) };
}
