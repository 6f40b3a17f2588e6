use core::arch::asm;
use tlbkit::{Asid, PageSize, Pfn, PhysAddr, VirtAddr};
pub fn fence(at: Option<VirtAddr>, asid: Option<Asid>) {
    // SAFETY: a fence is always allowed.
    unsafe {
        match (at, asid.map(|asid| usize::from(asid.get()))) {
            (Some(at), Some(asid)) => asm!("sfence.vma {}, {}", in(reg) at.get(), in(reg) asid),
            (None, Some(asid)) => asm!("sfence.vma zero, {}", in(reg) asid),
            (_, None) => asm!("sfence.vma"),
        }
    }
}
pub fn set_satp(root: usize) {
    // SAFETY: every root maps RAM one to one.
    unsafe { asm!("csrw satp, {}", in(reg) root) }
}
pub fn masked<R>(f: impl FnOnce() -> R) -> R {
    let was = set_sie(0);
    let result = f();
    set_sie(was);
    result
}
fn set_sie(sie: usize) -> usize {
    let was: usize;
    // SAFETY: it masks interrupts, or restores what was before.
    unsafe { asm!("csrrci {}, sstatus, 2", "csrs sstatus, {}", out(reg) was, in(reg) sie) }
    was & 2
}
pub fn memory(frame: PhysAddr) -> *mut u8 { core::ptr::with_exposed_provenance_mut(frame.get()) }
/// Fills a frame that is the caller's.
pub fn fill(frame: Pfn, copy_of: Option<Pfn>) {
    let [to, from] = [frame, copy_of.unwrap_or(frame)].map(|frame| memory(frame.address(PageSize::K4)));
    // SAFETY: both are frames of RAM, and the caller alone has one of them.
    unsafe { if copy_of.is_some() { to.copy_from(from, 4096) } else { to.write_bytes(0, 4096) } }
}
