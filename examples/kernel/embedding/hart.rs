//! What only instructions can do. RAM is mapped one to one.

use core::arch::asm;

use tlbkit::{Asid, PageSize, Pfn, PhysAddr, VirtAddr};

/// Flushes the translation of an address in one address space, all of the address space's, or all there are.
pub fn fence(at: Option<VirtAddr>, asid: Option<Asid>) {
    let at = at.map(VirtAddr::get);
    let asid = asid.map(|asid| usize::from(asid.get()));
    // SAFETY: a fence is always allowed.
    unsafe {
        match (at, asid) {
            (Some(at), Some(asid)) => asm!("sfence.vma {}, {}", in(reg) at, in(reg) asid),
            (None, Some(asid)) => asm!("sfence.vma zero, {}", in(reg) asid),
            (_, None) => asm!("sfence.vma"),
        }
    }
}

/// Writes the root register; 0 switches translation off.
pub fn set_satp(root: usize) {
    // SAFETY: every root maps RAM one to one.
    unsafe { asm!("csrw satp, {}", in(reg) root) }
}

/// Calls a function with interrupts masked.
pub fn masked<R>(f: impl FnOnce() -> R) -> R {
    const SIE: usize = 1 << 1;
    let before: usize;
    // SAFETY: it masks interrupts.
    unsafe { asm!("csrrci {}, sstatus, 2", out(reg) before) }
    let result = f();
    // SAFETY: it unmasks interrupts if they were not masked before.
    unsafe { asm!("csrs sstatus, {}", in(reg) before & SIE) }
    result
}

/// Returns a pointer to a frame.
pub fn memory(frame: PhysAddr) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(frame.get())
}

/// Fills a frame that only the caller has: with the bytes of another frame, or with zeros.
pub fn fill(frame: Pfn, copy_of: Option<Pfn>) {
    let size = PageSize::K4.bytes();
    let to = memory(frame.address(PageSize::K4));
    match copy_of {
        Some(other) => {
            let from = memory(other.address(PageSize::K4));
            // SAFETY: both are frames of RAM, they are different, and only the caller has the first.
            unsafe { to.copy_from(from, size) }
        }
        // SAFETY: it is a frame of RAM that only the caller has.
        None => unsafe { to.write_bytes(0, size) },
    }
}
