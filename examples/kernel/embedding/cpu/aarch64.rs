//! What only instructions can do, and where memory is: AArch64, one CPU, a granule of 4 KiB and 48 bits in both halves. TTBR0 has the
//! processes; TTBR1 has the kernel, and all memory at an offset.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use tlbkit::arch::{AArch64Control, AArch64Upper};
use tlbkit::{Asid, Attr, Error, Flush, PageSize, Pages, Pfn, PhysAddr, VirtAddr};

pub use tlbkit::arch::AArch64 as Machine;

/// Where physical address 0 is mapped: at the beginning of the upper half.
const OFFSET: usize = 0xffff_0000_0000_0000;
/// The first frame of RAM, and how many frames the kernel maps: 64 MiB.
const RAM: usize = 0x4000_0000 >> 12;
const MAPPED: usize = 16 << 10;
/// The frame of the serial line's registers.
const UART: usize = 0x0900_0000 >> 12;
/// The first frame that the kernel gives out: the first half of that memory has the kernel's image.
pub const FIRST: usize = RAM + MAPPED / 2;

/// Returns what is mapped in the kernel's half: pages, the frame of the first page, and rights. The boot's table maps the same frames
/// there, with the same types of memory; the kernel runs while one replaces the other.
pub fn kernels_pages() -> Result<[(Pages, Pfn, Attr); 2], Error> {
    let part = |frame: usize, count, rights| {
        let at = VirtAddr::new(OFFSET + (frame << 12));
        let pages = Pages::count(at.vpn(PageSize::K4), count).ok_or(Error::NoRoom)?;
        Ok((pages, Pfn::new(frame), rights))
    };
    let data = Attr::READ | Attr::WRITE;
    Ok([part(UART, 1, data | Attr::DEVICE)?, part(RAM, MAPPED, data | Attr::EXEC)?])
}

/// Returns a pointer to a frame.
pub fn memory(frame: PhysAddr) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(OFFSET + frame.get())
}

/// A root node without an entry.
#[repr(align(4096))]
struct Empty([usize; 512]);

static EMPTY: Empty = Empty([0; 512]);

/// TTBR1_EL1 as the boot has left it.
static BOOT: AtomicUsize = AtomicUsize::new(0);
/// How many bits of ASID the CPU has.
static ASID_BITS: AtomicU32 = AtomicU32::new(0);

/// Sets and checks what page tables rely on, and leaves the lower half empty, before anything of `tlbkit` is called, on each CPU.
pub fn prepare() {
    /// Fields of TCR_EL1.
    const AS: u64 = 1 << 36;
    const HA: u64 = 1 << 39;
    const HD: u64 = 1 << 40;
    let (mair, tcr, ttbr1): (u64, u64, usize);
    let (numbers, marks): (u64, u64);
    // SAFETY: it reads registers.
    unsafe {
        asm!("mrs {}, mair_el1", "mrs {}, tcr_el1", "mrs {}, ttbr1_el1", out(reg) mair, out(reg) tcr, out(reg) ttbr1);
        asm!("mrs {}, id_aa64mmfr0_el1", "mrs {}, id_aa64mmfr1_el1", out(reg) numbers, out(reg) marks);
    }
    BOOT.store(ttbr1, Relaxed);
    // ASIDs of 16 bits; hardware sets access flags and dirty states. A CPU may have neither.
    let has_16 = numbers >> 4 & 15 == 2;
    ASID_BITS.store(if has_16 { 16 } else { 8 }, Relaxed);
    let tcr = if has_16 { tcr | AS } else { tcr & !AS };
    let tcr = if marks & 15 >= 2 { tcr | HA | HD } else { tcr & !(HA | HD) };
    // SAFETY: the CPU has what is switched on, and nothing of a process is in the TLB.
    unsafe { asm!("msr tcr_el1, {}", "isb", in(reg) tcr, options(nostack, preserves_flags)) }
    let control = AArch64Control { mair, tcr };
    assert_eq!(Machine::check(control, asid_bits()), Ok(()));
    assert_eq!(AArch64Upper::check(control, 0), Ok(()));
    unload();
    // What the boot has mapped one to one in the lower half is global: it would match in each process.
    fence_all();
    after_fences();
}

/// Returns how many bits of ASID the CPU has.
pub fn asid_bits() -> u32 {
    ASID_BITS.load(Relaxed)
}

/// Flushes what `flush` names. One that names no page (`FlushScope::Barrier`) executes the barriers alone.
#[inline(always)]
pub fn flush(flush: &Flush<'_>, asid: Option<Asid>) {
    // SAFETY: a barrier is always allowed. Walks that follow see what was stored.
    unsafe { asm!("dsb ishst", options(nostack, preserves_flags)) }
    match (flush.by_address(), asid) {
        (Some(pages), Some(asid)) => pages.for_each(|at| fence(at, asid)),
        (Some(pages), None) => pages.for_each(fence_everywhere),
        (None, Some(asid)) => fence_asid(asid),
        (None, None) => fence_all(),
    }
    after_fences();
}

/// Waits until the TLB has dropped what was flushed, and walks that may have used it have ended.
fn after_fences() {
    // SAFETY: a barrier is always allowed.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) }
}

/// Returns the operand of a TLBI for an address.
fn page(at: VirtAddr) -> usize {
    at.get() >> 12 & ((1 << 44) - 1)
}

/// Flushes the translation of an address in one address space, and the links on the way.
fn fence(at: VirtAddr, asid: Asid) {
    // SAFETY: a flush is always allowed.
    unsafe {
        asm!("tlbi vae1, {}", in(reg) usize::from(asid.get()) << 48 | page(at), options(nostack, preserves_flags))
    }
}

/// Flushes the translation of an address under every ASID.
fn fence_everywhere(at: VirtAddr) {
    // SAFETY: a flush is always allowed.
    unsafe { asm!("tlbi vaae1, {}", in(reg) page(at), options(nostack, preserves_flags)) }
}

/// Flushes an address space's translations.
fn fence_asid(asid: Asid) {
    // SAFETY: a flush is always allowed.
    unsafe {
        asm!("tlbi aside1, {}", in(reg) usize::from(asid.get()) << 48, options(nostack, preserves_flags))
    }
}

/// Flushes everything.
fn fence_all() {
    // SAFETY: a flush is always allowed.
    unsafe { asm!("tlbi vmalle1", options(nostack, preserves_flags)) }
}

/// Writes the root of the lower half, and waits for walks from the one before.
pub fn load(root: usize) {
    // SAFETY: the kernel is in the upper half.
    unsafe { asm!("msr ttbr0_el1, {}", "isb", "dsb nsh", in(reg) root, options(nostack, preserves_flags)) }
}

/// Leaves the lower half empty.
pub fn unload() {
    load(EMPTY.0.as_ptr().addr() - OFFSET);
}

/// Writes the root of the upper half, and waits for walks from the one before.
pub fn load_upper(root: usize) {
    // SAFETY: the root maps the kernel as the one before does.
    unsafe { asm!("msr ttbr1_el1, {}", "isb", "dsb nsh", in(reg) root, options(nostack, preserves_flags)) }
}

/// Loads the boot's table to the upper half.
pub fn unload_upper() {
    load_upper(BOOT.load(Relaxed));
}

/// Calls a function with interrupts masked.
pub fn masked<R>(f: impl FnOnce() -> R) -> R {
    let before: usize;
    // SAFETY: it masks interrupts.
    unsafe { asm!("mrs {}, daif", "msr daifset, #2", out(reg) before, options(nostack, preserves_flags)) }
    let result = f();
    // SAFETY: it restores the mask that was there before.
    unsafe { asm!("msr daif, {}", in(reg) before, options(nostack, preserves_flags)) }
    result
}
