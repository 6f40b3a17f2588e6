//! x86-64 with four levels, on QEMU's PC.
//!
//! The kernel runs in ring 0, where memory is mapped at the beginning of the upper half, and takes interrupts only where it asks
//! for them: what interrupts it has is pending then, until it is looked for. QEMU's CPUs have no PCIDs: a load of CR3 forgets all
//! but global pages.

use core::arch::asm;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

use tlbkit::{Asid, Flush, PageSize};

use crate::growth::Miss;
use crate::witness;

mod apic;
mod boot;
mod tables;
mod trap;
mod vectors;

pub(crate) use boot::start_others;
pub(crate) use tables::cpu;
pub(crate) use tlbkit::arch::X86_64 as Machine;
pub(crate) use trap::{CONVENTION, More, run, set_timer, take_interrupt};

/// The machine's name.
pub(crate) const NAME: &str = "x86_64";

/// Whether hardware sets accessed and dirty bits.
pub(crate) fn notes() -> bool {
    true
}

/// How many bits an ASID has.
pub(crate) const ASID_BITS: u32 = 0;

/// Each CPU invalidates its own TLB, as it is interrupted.
pub(crate) const BROADCAST: Option<fn(&Flush<'_>, Option<Asid>) -> bool> = None;

/// The part of every address space that is the kernel's: the first slot of the upper half.
pub(crate) const KERNEL: usize = 0xffff_8000_0000_0000;
const KERNEL_LEN: usize = 1 << 39;
/// What the kernel's own address space lends.
pub(crate) const LENT: (usize, usize) = (KERNEL, KERNEL_LEN);
/// Where the kernel maps pages for itself.
pub(crate) const OWN: usize = KERNEL + (2 << 30);
/// How much of it is mapped: memory.
pub(crate) const MAPPED_LEN: usize = if crate::witness::RECORDS { 1 << 30 } else { 256 << 20 };
/// Where pages of devices are mapped in it: the local APIC, each CPU's own at one address.
pub(crate) const DEVICES: &[usize] = &[apic::AT];

/// Where the witness's record is: between the kernel and the programs, which QEMU puts at the end of memory, in a machine of a
/// gigabyte.
pub(crate) const RECORD: usize = KERNEL + (160 << 20);
pub(crate) const RECORD_LEN: usize = 800 << 20;

/// Returns the physical address of what the kernel has at `at`.
pub(crate) const fn physical(at: usize) -> usize {
    at - KERNEL
}

/// Runs `f` without interrupts: the kernel takes none of itself, and what takes them notes that they are pending, and no more.
pub(crate) fn masked<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Stores are seen in their order, and before what forgets: nothing stands before fences, and nothing behind them.
pub(crate) fn before_fences() {}

pub(crate) fn after_fences() {}

/// Forgets the translation of an address, and all links.
pub(crate) fn fence(at: usize, _asid: u16) {
    // SAFETY: forgetting is always allowed.
    unsafe { asm!("invlpg [{}]", in(reg) at, options(nostack, preserves_flags)) };
    witness::fence(Some(at), None);
}

/// Forgets the translations of every address space: there are no numbers that tell them apart.
pub(crate) fn fence_asid(_asid: u16) {
    fence_all();
}

/// Forgets every translation, the global ones too, as a change of CR4.PGE does.
pub(crate) fn fence_all() {
    // SAFETY: forgetting is always allowed.
    unsafe {
        asm!(
            "mov {old}, cr4", "mov {new}, {old}", "xor {new}, {pge}", "mov cr4, {new}", "mov cr4, {old}",
            old = out(reg) _, new = out(reg) _, pge = const boot::PGE, options(nostack)
        );
    }
    witness::fence(None, None);
}

/// The root that the CPUs boot with, which maps memory as every other one does.
static BOOT_ROOT: AtomicUsize = AtomicUsize::new(0);

/// Translates by this root from now on; by that which the CPUs boot with if it is 0.
///
/// # Safety
///
/// The root's table maps the kernel's half, or is 0.
pub(crate) unsafe fn set_root(root: usize) {
    let root = if root == 0 { BOOT_ROOT.load(Ordering::Relaxed) } else { root };
    // SAFETY: the caller's promise.
    unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
    witness::root(root);
}

/// Interrupts these CPUs.
pub(crate) fn interrupt(cpus: usize) {
    witness::sending(cpus);
    (0..super::CPUS).filter(|cpu| cpus >> cpu & 1 == 1).for_each(apic::interrupt);
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

/// Returns the time-stamp counter, which counts instructions where QEMU is told to.
pub(crate) fn instructions() -> usize {
    let (low, high): (usize, usize);
    // SAFETY: it reads a counter.
    unsafe { asm!("rdtsc", out("rax") low, out("rdx") high, options(nostack, preserves_flags)) };
    high << 32 | low
}

/// Waits for an interrupt, so many microseconds at most.
pub(crate) fn wait(microseconds: u32) {
    set_timer(microseconds);
    trap::sleep();
}

/// Makes what has been stored executable on this CPU: its caches are coherent.
pub(crate) fn fetch_anew() {}

/// The serial line.
pub(crate) struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| out(0x3f8, byte));
        Ok(())
    }
}

/// Writes a byte to a port.
fn out(port: u16, byte: u8) {
    // SAFETY: the ports that are used here are the serial line's and the old interrupt controllers', of which none reaches memory.
    unsafe { asm!("out dx, al", in("dx") port, in("al") byte, options(nostack, preserves_flags)) };
}

/// Ends the machine: soft off, of its power management.
pub(crate) fn stop() -> ! {
    // SAFETY: it is the end.
    unsafe { asm!("out dx, ax", in("dx") 0x604u16, in("ax") 0x2000u16, options(nostack)) };
    loop {
        core::hint::spin_loop();
    }
}
