//! What only instructions can do, and where memory is: RISC-V, one hart with Sv39. RAM is mapped one to one.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tlbkit::{Asid, Attr, Error, Flush, Pages, Pfn, PhysAddr, VirtAddr, Vpn};

pub use tlbkit::arch::Sv39 as Machine;

/// The first frame of RAM, and how many frames the kernel maps: 64 MiB.
const RAM: usize = 0x8000_0000 >> 12;
const MAPPED: usize = 16 << 10;
/// The first frame that the kernel gives out: the first half of that memory has the kernel's image.
pub const FIRST: usize = RAM + MAPPED / 2;

/// Returns the part of every address space that is the kernel's: Sv39's slot of the root node for RAM, 1 GiB.
pub fn kernels_parts() -> Result<[Pages; 1], Error> {
    Pages::count(Vpn::new(RAM), 1 << 18).map(|slot| [slot]).ok_or(Error::NoRoom)
}

/// Returns what is mapped there: pages, the frame of the first page, and rights.
pub fn kernels_pages() -> Result<[(Pages, Pfn, Attr); 1], Error> {
    let ram = Pages::count(Vpn::new(RAM), MAPPED).ok_or(Error::NoRoom)?;
    Ok([(ram, Pfn::new(RAM), Attr::READ | Attr::WRITE | Attr::EXEC)])
}

/// Returns a pointer to a frame.
pub fn memory(frame: PhysAddr) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(frame.get())
}

/// A root node with one entry: the gigabyte of RAM, mapped one to one.
#[repr(align(4096))]
struct Root([usize; 512]);

static ROOT: Root = {
    let mut entries = [0; 512];
    // Valid, readable, writable, executable, accessed, dirty.
    entries[2] = RAM << 10 | 0xcf;
    Root(entries)
};

/// How many bits of ASID the hart has.
static ASID_BITS: AtomicU32 = AtomicU32::new(0);

/// Counts the bits of an ASID, before anything of `tlbkit` is called: they are those that keep the ones which are written. The mode must
/// be Sv39 meanwhile, because in mode Bare the other fields of `satp` have to be 0.
pub fn prepare() {
    const ASID: usize = 0xffff << 44;
    let root = 8 << 60 | ROOT.0.as_ptr().addr() >> 12;
    let read: usize;
    // SAFETY: the root maps RAM one to one, and nothing of it stays in the TLB.
    unsafe {
        asm!(
            "sfence.vma", "csrw satp, {ones}", "csrr {read}, satp", "csrw satp, zero", "sfence.vma",
            ones = in(reg) root | ASID, read = out(reg) read
        );
    }
    assert!(read >> 60 == 8, "the hart has no Sv39");
    ASID_BITS.store((read & ASID).count_ones(), Relaxed);
}

/// Returns how many bits of ASID the hart has.
pub fn asid_bits() -> u32 {
    ASID_BITS.load(Relaxed)
}

/// Flushes what `flush` names, and orders the stores before it: `sfence.vma` does both.
#[inline(always)]
pub fn flush(flush: &Flush<'_>, asid: Option<Asid>) {
    match flush.by_address() {
        Some(pages) if asid.is_some() => pages.for_each(|at| fence(Some(at), asid)),
        _ => fence(None, asid),
    }
}

/// Flushes the translation of an address in one address space, all of the address space's, or all there are.
fn fence(at: Option<VirtAddr>, asid: Option<Asid>) {
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

/// Writes the root register.
pub fn load(root: usize) {
    // SAFETY: every root maps RAM one to one.
    unsafe { asm!("csrw satp, {}", in(reg) root) }
}

/// Switches translation off.
pub fn unload() {
    load(0);
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
