//! What only instructions can do, and where memory is: x86-64, one CPU, in the state in which Limine and the `bootloader` crate enter a
//! kernel. Long mode is on, all memory is mapped at an offset, and the kernel's image is in the last 2 GiB of the upper half.

use core::arch::{asm, x86_64};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use tlbkit::arch::X86Control;
use tlbkit::{Asid, Attr, Error, Flush, PageSize, Pages, Pfn, PhysAddr, VirtAddr};

pub use tlbkit::arch::X86_64 as Machine;

/// Where memory is mapped: the boot loader's `physical_memory_offset`, or the response to Limine's HHDM request. The first slot of the
/// upper half.
const OFFSET: usize = 0xffff_8000_0000_0000;
/// Where physical address 0 would be in the image's part: the response to Limine's request for the executable's addresses has both.
const IMAGE: usize = 0xffff_ffff_8000_0000;
/// What an entry of the root node translates: 512 GiB.
const SLOT: usize = 512 << 30;
/// How many frames are mapped, from address 0: 128 MiB. The boot loader's memory map says how many there are.
const MAPPED: usize = 32 << 10;
/// The frames of the image.
const IMAGE_FRAMES: usize = 8 << 10;
/// The first frame that the kernel gives out, of those that the memory map has as usable.
pub const FIRST: usize = IMAGE_FRAMES;

/// Returns the parts of every address space that are the kernel's, in slots of the root node: that of memory, and that of the image.
pub fn kernels_parts() -> Result<[Pages; 2], Error> {
    let slot =
        |at: usize| Pages::covering(VirtAddr::new(at & !(SLOT - 1)), SLOT, PageSize::K4).ok_or(Error::NoRoom);
    Ok([slot(OFFSET)?, slot(IMAGE)?])
}

/// Returns what is mapped there: pages, the frame of the first page, and rights.
pub fn kernels_pages() -> Result<[(Pages, Pfn, Attr); 2], Error> {
    let pages =
        |at: usize, count| Pages::count(VirtAddr::new(at).vpn(PageSize::K4), count).ok_or(Error::NoRoom);
    let data = Attr::READ | Attr::WRITE;
    Ok([
        (pages(OFFSET, MAPPED)?, Pfn::new(0), data),
        (pages(IMAGE, IMAGE_FRAMES)?, Pfn::new(0), data | Attr::EXEC),
    ])
}

/// Returns a pointer to a frame.
pub fn memory(frame: PhysAddr) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(OFFSET + frame.get())
}

/// CR3 as the boot loader has left it, without a PCID.
static BOOT: AtomicUsize = AtomicUsize::new(0);
/// Whether the processor has PCIDs, and INVPCID, which flushes under a PCID that does not run.
static HAS_PCIDS: AtomicBool = AtomicBool::new(false);

/// Sets what page tables rely on, before anything of `tlbkit` is called, on each CPU.
pub fn prepare() {
    /// CR0.WP: the kernel's stores fault on copy-on-write pages, too. CR4.PGE and PCIDE. EFER.NXE.
    const WP: usize = 1 << 16;
    const PGE: usize = 1 << 7;
    const PCIDE: usize = 1 << 17;
    const NXE: u32 = 1 << 11;
    const EFER: u32 = 0xc000_0080;
    let (cr0, cr3, cr4): (usize, usize, usize);
    let (low, high): (u32, u32);
    // SAFETY: it reads registers.
    unsafe {
        asm!("mov {}, cr0", "mov {}, cr3", "mov {}, cr4", out(reg) cr0, out(reg) cr3, out(reg) cr4);
        asm!("rdmsr", in("ecx") EFER, out("eax") low, out("edx") high);
    }
    let has = |register: u32, bit: u32| register >> bit & 1 == 1;
    let has_pcids = x86_64::__cpuid(0).eax >= 7
        && has(x86_64::__cpuid(1).ecx, 17)
        && has(x86_64::__cpuid_count(7, 0).ebx, 10);
    HAS_PCIDS.store(has_pcids, Relaxed);
    // PCIDE can be set only while the PCID is 0.
    let root = cr3 & !0xfff;
    BOOT.store(root, Relaxed);
    let cr0 = cr0 | WP;
    let cr4 = if has_pcids { cr4 | PGE | PCIDE } else { cr4 & !PCIDE | PGE };
    let low = low | NXE;
    // SAFETY: the root is the one that is loaded; the processor has what is switched on, and no entry has bit 63 set if NXE was off.
    unsafe {
        asm!("wrmsr", in("ecx") EFER, in("eax") low, in("edx") high);
        asm!("mov cr3, {}", "mov cr0, {}", "mov cr4, {}", in(reg) root, in(reg) cr0, in(reg) cr4);
    }
    let control = X86Control { cr0: cr0 as u64, cr4: cr4 as u64, efer: u64::from(low) };
    assert_eq!(Machine::check(control, asid_bits()), Ok(()));
}

/// Returns how many bits of PCID the kernel uses.
pub fn asid_bits() -> u32 {
    if HAS_PCIDS.load(Relaxed) { 12 } else { 0 }
}

/// Flushes what `flush` names. Without PCIDs `asid` is always `None`.
#[inline(always)]
pub fn flush(flush: &Flush<'_>, asid: Option<Asid>) {
    let has_pcids = HAS_PCIDS.load(Relaxed);
    match (flush.by_address(), asid) {
        (Some(pages), Some(pcid)) => pages.for_each(|at| invpcid(0, pcid.get(), at.get())),
        (None, Some(pcid)) => invpcid(1, pcid.get(), 0),
        // The kernel's part: its links may be cached under each PCID.
        (_, None) if has_pcids => invpcid(2, 0, 0),
        (Some(pages), None) => pages.for_each(|at| invlpg(at.get())),
        (None, None) => toggle_global_pages(),
    }
}

/// Removes from the TLB what INVPCID of a type names: 0 an address under a PCID, 1 a PCID, 2 everything, global pages too.
fn invpcid(kind: usize, pcid: u16, at: usize) {
    let what = [usize::from(pcid), at];
    // SAFETY: the instruction only makes the processor walk again.
    unsafe { asm!("invpcid {}, [{}]", in(reg) kind, in(reg) &what, options(nostack, preserves_flags)) }
}

/// Removes a page from the TLB, and all links.
fn invlpg(at: usize) {
    // SAFETY: the instruction only makes the processor walk again.
    unsafe { asm!("invlpg [{}]", in(reg) at, options(nostack, preserves_flags)) }
}

/// Removes everything from the TLB, global pages too, by CR4.PGE.
fn toggle_global_pages() {
    // SAFETY: the instructions only make the processor walk again.
    unsafe {
        asm!(
            "mov {old}, cr4", "mov {new}, {old}", "xor {new}, {pge}", "mov cr4, {new}", "mov cr4, {old}",
            old = out(reg) _, new = out(reg) _, pge = const 1 << 7, options(nostack)
        );
    }
}

/// Writes the root register.
pub fn load(root: usize) {
    // SAFETY: every root maps the kernel's half.
    unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) }
}

/// Loads the root that the boot loader has left.
pub fn unload() {
    load(BOOT.load(Relaxed));
}

/// Calls a function with interrupts masked.
pub fn masked<R>(f: impl FnOnce() -> R) -> R {
    let flags: usize;
    // SAFETY: it reads the flags, and masks interrupts.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) }
    let result = f();
    if flags & 1 << 9 != 0 {
        // SAFETY: interrupts were not masked before.
        unsafe { asm!("sti") }
    }
    result
}
