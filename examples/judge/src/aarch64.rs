//! AArch64 with granules of 4, 16 or 64 KiB and 47 or 52 bits for each half, on QEMU's machine `virt`.
//!
//! The kernel runs in EL1, mapped one to one by the table that is judged, away from the addresses that are looked at.
//! Loads and stores for EL0 are made by LDTR and STTR; a fetch by going to an instruction that comes back at once.

#[macro_use]
#[path = "aarch64_board.rs"]
mod board;

use core::arch::asm;
use core::fmt::Write;

use tlbkit_addr::{Attr, Flush, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::Format as _;
use tlbkit_pagetable::nodes::NodeAddr;
use tlbkit_pagetable::{Error, Geometry as _, Local, Radix as _, Table};

use crate::{Access, BASE, Fault, LARGE};

use board::UART;
pub(crate) use board::{Console, MEMORY, stop};

/// The granule, whether there are contiguous runs, and how many bits addresses have, which the build chooses.
mod granule {
    use tlbkit_pagetable::format::Aarch64Of;
    use tlbkit_pagetable::geometry;

    const RUNS: bool =
        cfg!(any(feature = "runs", feature = "k16", feature = "k64", feature = "bbm2", feature = "lpa2"));
    #[cfg(not(any(feature = "runs", feature = "k16", feature = "k64", feature = "bbm2", feature = "lpa2")))]
    pub(crate) type Shape = geometry::Va48;
    #[cfg(all(any(feature = "runs", feature = "bbm2"), not(feature = "lpa2")))]
    pub(crate) type Shape = geometry::Runs<geometry::Va48>;
    #[cfg(all(feature = "k16", not(feature = "lpa2")))]
    pub(crate) type Shape = geometry::Runs<geometry::Va48K16>;
    #[cfg(all(feature = "k64", not(feature = "lpa2")))]
    pub(crate) type Shape = geometry::Runs<geometry::Va48K64>;
    #[cfg(all(feature = "lpa2", not(any(feature = "k16", feature = "k64"))))]
    pub(crate) type Shape = geometry::Runs<geometry::Va53>;
    #[cfg(all(feature = "lpa2", feature = "k16"))]
    pub(crate) type Shape = geometry::Runs<geometry::Va53K16>;
    #[cfg(all(feature = "lpa2", feature = "k64"))]
    pub(crate) type Shape = geometry::Runs<geometry::Va53K64>;
    const GRANULE: u32 = <Shape as tlbkit_pagetable::Geometry>::BASE.shift();
    /// Bits 51 to 48 of a physical address.
    pub(crate) const WIDE: bool = cfg!(feature = "lpa2");
    pub(crate) type Format = Aarch64Of<GRANULE, RUNS, { cfg!(feature = "bbm2") }, WIDE>;
    pub(crate) const NAME: &str = match (GRANULE, WIDE) {
        (12, true) => "aarch64 of 52 bits with runs",
        (14, true) => "aarch64 of 52 bits, 16 KiB, with runs",
        (_, true) => "aarch64 of 52 bits, 64 KiB, with runs",
        (12, _) if cfg!(feature = "bbm2") => "aarch64 with runs, FEAT_BBM level 2",
        (12, _) if RUNS => "aarch64 with runs",
        (12, _) if cfg!(feature = "unmarked") => "aarch64 without hardware's A and D",
        (12, _) => "aarch64",
        (14, _) => "aarch64, 16 KiB, with runs",
        _ => "aarch64, 64 KiB, with runs",
    };
}

pub(crate) use granule::{Format, NAME, Shape};

/// A flush that is missing is seen.
pub(crate) const FLUSHES: bool = true;
/// And so is a number that goes to another space without one.
pub(crate) const NUMBERS: bool = true;
pub(crate) const PLACES: usize = 4;
/// The lower half is a space's; the upper one stays the first table's.
pub(crate) const SPACE_PLACES: usize = 2;
/// How many numbers the bits of a physical address from the 48th on make, where pages may be mapped that have no memory: there
/// the processor is asked.
pub(crate) const FAR: usize = if granule::WIDE { 16 } else { 0 };
pub(crate) const FAR_SHIFT: u32 = 48;
/// Whether ASIDs have 16 bits, as they can here, or eight.
const WIDE_ASIDS: bool = !cfg!(feature = "runs");
/// Those of 16 bits agree in their low eight.
pub(crate) const SPACE_NUMBERS: [usize; 2] = [1, if WIDE_ASIDS { 0x101 } else { 2 }];
pub(crate) const ATTRIBUTES: Attr = Attr::WRITE
    .union(Attr::EXEC)
    .union(Attr::USER)
    .union(Attr::GLOBAL)
    .union(Attr::ACCESSED)
    .union(Attr::DIRTY)
    .union(Attr::MEMORY)
    .union(Attr::VARIETY)
    .union(Attr::SOFTWARE);

/// `svc #0`: an exception to EL1 from wherever it is.
pub(crate) const TRAP: usize = 0xd400_0001;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    User,
    Kernel,
    /// EL1 with PAN: the user's pages are not for its data accesses.
    KernelNever,
}

pub(crate) const MODES: [Mode; 3] = [Mode::User, Mode::Kernel, Mode::KernelNever];

/// The mode of the pages that are not the user's.
pub(crate) const KERNEL: Mode = Mode::Kernel;

const MEMORY_BYTES: usize = 256 << 20;

// CPACR_EL1.FPEN: compiled code may use vector registers.
start!("el1", "mov x0, #(3 << 20)", "msr cpacr_el1, x0");

/// Maps memory and the serial line one to one: the kernel runs on this table.
pub(crate) fn map_kernel<'n, T: Table<'n>, F: FnMut(&Flush)>(
    table: &mut Local<'n, T, F>,
) -> Result<(), Error> {
    let attr = Attr::READ | Attr::WRITE | Attr::GLOBAL | Attr::ACCESSED | Attr::DIRTY;
    let first = MEMORY >> BASE.shift();
    let pages = MEMORY_BYTES.next_multiple_of(LARGE.bytes()) >> BASE.shift();
    let memory = Pages::count(Vpn::new(first), pages).unwrap_or(Pages::one(Vpn::new(first)));
    table.map(memory, Pfn::new(first), LARGE, attr | Attr::EXEC)?;
    let uart = UART >> BASE.shift();
    table.map(Pages::one(Vpn::new(uart)), Pfn::new(uart), BASE, attr | Attr::UNCACHED | Attr::DEVICE)
}

/// Tells whether the kernel itself is there.
pub(crate) const fn spares(at: usize) -> bool {
    at.wrapping_sub(MEMORY) < MEMORY_BYTES.next_multiple_of(LARGE.bytes())
        || at >> BASE.shift() == UART >> BASE.shift()
}

/// Makes the table at `root` the one that is walked: its lower half by TTBR0, its upper half by TTBR1.
pub(crate) fn enter(root: NodeAddr) {
    const SPARE: u64 = 65 - Shape::VA_BITS as u64;
    const SIZES: u64 = SPARE | SPARE << 16;
    /// DS: FEAT_LPA2, whose granules are those of 4 and 16 KiB.
    const DS: u64 = ((granule::WIDE && BASE.shift() < 16) as u64) << 59;
    /// TG0 and TG1.
    const GRANULES: u64 = match BASE.shift() {
        12 => 2 << 30,
        14 => 2 << 14 | 1 << 30,
        _ => 1 << 14 | 3 << 30,
    };
    /// Walks are cached, inner shareable.
    const WALKS: u64 = 1 << 8 | 1 << 10 | 3 << 12 | 1 << 24 | 1 << 26 | 3 << 28 | GRANULES;
    /// AS.
    const ASIDS: u64 = (WIDE_ASIDS as u64) << 36;
    /// The upper half of the root.
    const UPPER: usize = 8 << (Shape::WIDTHS[0] - 1);
    const HA_HD: u64 = 3 << 39;
    /// M, C, I, SPAN.
    const SCTLR_ON: u64 = 1 | 1 << 2 | 1 << 12 | 1 << 23;
    /// A, WXN.
    const SCTLR_OFF: u64 = 1 << 1 | 1 << 19;
    let (memory, marks): (u64, u64);
    // SAFETY: the registers say what the processor has; the kernel is mapped one to one, so the next instruction is
    // where it was.
    unsafe {
        asm!("mrs {0}, id_aa64mmfr0_el1", "mrs {1}, id_aa64mmfr1_el1", out(reg) memory, out(reg) marks);
        let physical = (memory & 15).min(if granule::WIDE { 6 } else { 5 }) << 32;
        let hardware = if marks & 15 >= 2 && !cfg!(feature = "unmarked") { HA_HD } else { 0 };
        asm!(
            "msr mair_el1, {mair}", "msr tcr_el1, {tcr}", "msr ttbr0_el1, {low}", "msr ttbr1_el1, {high}",
            "dsb ish", "isb", "tlbi vmalle1", "dsb ish", "isb",
            "mrs {old}, sctlr_el1", "orr {old}, {old}, {on}", "bic {old}, {old}, {off}",
            "msr sctlr_el1, {old}", "isb",
            mair = in(reg) Format::MAIR, tcr = in(reg) SIZES | WALKS | ASIDS | DS | physical | hardware,
            low = in(reg) root.get(), high = in(reg) root.get() + UPPER,
            on = in(reg) SCTLR_ON, off = in(reg) SCTLR_OFF, old = out(reg) _,
        );
    }
}

/// Runs the space of the table at `root`, its lower half, under a number: with one store.
pub(crate) fn switch(root: NodeAddr, number: usize) {
    // SAFETY: each table maps the kernel one to one, with global pages.
    unsafe { asm!("msr ttbr0_el1, {0}", "isb", in(reg) root.get() | number << 48) };
}

/// Returns the numbers of the 4 KiB of a page, by any of which TLBI names it: with larger granules the lowest bits of the address
/// are ignored.
///
/// QEMU 7.2 forgets by one of them the whole page in its TLB, but of the code that it has translated only what lies around that
/// address (`tb_jmp_cache_clear_page`): a fetch from another 4 KiB of the page goes on where it was. No processor does.
fn parts(page: Vpn) -> impl Iterator<Item = usize> {
    let first = page.address(BASE).get() >> 12;
    first..first + (BASE.bytes() >> 12)
}

/// Tells the processor what has changed in the space of a number.
pub(crate) fn flush_of(flush: &Flush, number: usize) {
    let Some(pages) = flush.by_address(Format::WALK_CACHE, 512) else { return forget(number) };
    if flush.is_none() {
        return;
    }
    // SAFETY: forgetting translations is always allowed here; the order is that of `flush`.
    unsafe {
        asm!("dsb ishst");
        for page in pages.flat_map(parts) {
            let page = page & ((1 << 44) - 1) | number << 48;
            if flush.links() {
                asm!("tlbi vae1, {0}", in(reg) page);
            } else {
                asm!("tlbi vale1, {0}", in(reg) page);
            }
        }
        asm!("dsb ish", "isb");
    }
}

/// Makes the processor forget what it has of the space of a number.
pub(crate) fn forget(number: usize) {
    // SAFETY: forgetting translations is always allowed here.
    unsafe { asm!("dsb ishst", "tlbi aside1, {0}", "dsb ish", "isb", in(reg) number << 48) };
}

/// Tells the processor what has changed.
pub(crate) fn flush(flush: &Flush) {
    if flush.is_none() {
        return;
    }
    // SAFETY: forgetting translations is always allowed here.
    unsafe {
        // What was stored is seen by the walker from here on: all that a new mapping needs (`FlushScope::Barrier`).
        asm!("dsb ishst");
        match flush.by_address(Format::WALK_CACHE, 512) {
            Some(pages) => {
                for page in pages.flat_map(parts) {
                    let page = page & ((1 << 44) - 1);
                    // The form for the last level leaves links where they are.
                    if flush.links() {
                        asm!("tlbi vaae1, {0}", in(reg) page);
                    } else {
                        asm!("tlbi vaale1, {0}", in(reg) page);
                    }
                }
            }
            None => asm!("tlbi vmalle1"),
        }
        asm!("dsb ish", "isb");
    }
}

/// Returns what the manual says of an access to a page with these attributes (D8.4 and D8.5).
pub(crate) fn rules(attr: Attr, access: Access, mode: Mode) -> Result<(), Fault> {
    if !crate::mmu_marks() && !attr.contains(Attr::ACCESSED) {
        return Err(Fault::NotAccessed);
    }
    let user = attr.contains(Attr::USER);
    let allowed = match (access, mode) {
        // A page is executed by the user alone, or by the kernel alone.
        (Access::Fetch, _) => attr.contains(Attr::EXEC) && user == (mode == Mode::User),
        (_, Mode::User) => user,
        (_, Mode::Kernel) => true,
        (_, Mode::KernelNever) => !user,
    };
    let written = Attr::WRITE | if crate::mmu_marks() { Attr::empty() } else { Attr::DIRTY };
    let right = if access == Access::Store { written } else { Attr::READ };
    if allowed && attr.contains(right) { Ok(()) } else { Err(Fault::Forbidden) }
}

/// Returns what PAR_EL1 says of an address after it was translated for loads: nothing for other accesses, and under PAN.
fn par(at: VirtAddr, access: Access, mode: Mode) -> Option<usize> {
    let told: usize;
    // SAFETY: a translation is asked for, and nothing is accessed.
    unsafe {
        match (access, mode) {
            (Access::Load, Mode::User) => {
                asm!("dsb ish", "at s1e0r, {1}", "isb", "mrs {0}, par_el1", out(reg) told, in(reg) at.get());
            }
            (Access::Load, Mode::Kernel) => {
                asm!("dsb ish", "at s1e1r, {1}", "isb", "mrs {0}, par_el1", out(reg) told, in(reg) at.get());
            }
            _ => return None,
        }
    }
    Some(told)
}

/// Returns the physical address that the processor says an address has for loads, if it has one: nothing for other accesses, and
/// under PAN.
pub(crate) fn ask(at: VirtAddr, access: Access, mode: Mode) -> Option<Option<usize>> {
    const ADDRESS: usize = (1 << 52) - (1 << 12);
    let told = par(at, access, mode)?;
    Some((told & 1 == 0).then_some(told & ADDRESS | at.get() & 0xfff))
}

/// Tells whether an address has the memory type that its attributes say: the processor tells the field of MAIR_EL1 of it.
pub(crate) fn is_typed(at: VirtAddr, access: Access, mode: Mode, attr: Attr) -> Option<bool> {
    let told = par(at, access, mode)?;
    let field = match attr & (Attr::MEMORY | Attr::VARIETY) {
        Attr::UNCACHED => 0x44,
        Attr::MEMORY => 0x04,
        Attr::WRITE_THROUGH => 0xbb,
        Attr::TAGGED => 0xf0,
        Attr::STRICT => 0x00,
        Attr::REORDERED => 0x08,
        Attr::GATHERED => 0x0c,
        _ => 0xff,
    };
    Some(told & 1 == 0 && told >> 56 == field)
}

/// Makes one access and returns what was loaded, or the fault.
pub(crate) fn access(at: VirtAddr, access: Access, mode: Mode, value: usize) -> Result<usize, Fault> {
    let (syndrome, mut loaded): (usize, usize);
    loaded = 0;
    /// Writes an access that an exception ends at label 3.
    macro_rules! attempt {
        ($access:literal, $($operands:tt)*) => {
            asm!(
                "dsb ish", "isb", "adr x16, 3f", "msr tpidr_el1, x16",
                $access,
                "mov {syndrome}, xzr", "b 4f",
                "3: mrs {syndrome}, esr_el1",
                "4: msr tpidr_el1, xzr", ".inst 0xd500409f",
                at = in(reg) at.get(), syndrome = out(reg) syndrome, out("x16") _, $($operands)*
            )
        };
    }
    // SAFETY: translation is what is judged: a load and a store of a mapped word reach the pool alone, which holds no
    // Rust object; what is fetched there traps at once. The exception comes back to label 3 with x16 changed, and PAN
    // is then cleared as it was (the `.inst` is MSR PAN, #0; 0xd500419f sets it).
    unsafe {
        match (access, mode) {
            (Access::Load, Mode::User) => attempt!("ldtr {value}, [{at}]", value = out(reg) loaded),
            (Access::Load, Mode::Kernel) => attempt!("ldr {value}, [{at}]", value = out(reg) loaded),
            (Access::Load, Mode::KernelNever) => {
                attempt!(".inst 0xd500419f\nldr {value}, [{at}]", value = out(reg) loaded);
            }
            (Access::Store, Mode::User) => attempt!("sttr {value}, [{at}]", value = in(reg) value),
            (Access::Store, Mode::Kernel) => attempt!("str {value}, [{at}]", value = in(reg) value),
            (Access::Store, Mode::KernelNever) => {
                attempt!(".inst 0xd500419f\nstr {value}, [{at}]", value = in(reg) value);
            }
            (Access::Fetch, Mode::User) => attempt!(
                "ic iallu\ndsb ish\nisb\nmsr elr_el1, {at}\nmsr spsr_el1, {state}\neret",
                state = in(reg) 0x3c0u64
            ),
            (Access::Fetch, _) => attempt!("ic iallu\ndsb ish\nisb\nbr {at}",),
        }
    }
    let fault = match syndrome & 0x3c {
        // At level -1.
        0x28 if syndrome & 0x3f == 0x2b => Fault::Absent,
        0x04 => Fault::Absent,
        0x10 if syndrome & 0x3f == 0x10 => Fault::Nowhere,
        0x08 => Fault::NotAccessed,
        0x0c => Fault::Forbidden,
        _ if syndrome >> 26 == 0x15 && access == Access::Fetch => return Ok(loaded),
        _ if syndrome == 0 && access != Access::Fetch => return Ok(loaded),
        _ => {
            let _ = writeln!(Console, "{access:?} at {at}: syndrome {syndrome:#x}");
            stop("a fault that is none of translation", 1)
        }
    };
    // Instruction and data aborts, from EL0 and from EL1.
    match (syndrome >> 26, access) {
        (0x20 | 0x21, Access::Fetch) | (0x24 | 0x25, Access::Load | Access::Store) => Err(fault),
        _ => {
            let _ = writeln!(Console, "{access:?} at {at}: syndrome {syndrome:#x}");
            stop("a fault of another access", 1)
        }
    }
}
