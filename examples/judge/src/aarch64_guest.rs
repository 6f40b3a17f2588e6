//! AArch64's stage 2 with 40 bits of intermediate physical address and a root of two concatenated tables, or with 43 and of sixteen, on
//! QEMU's machine `virt` with virtualization.
//!
//! The kernel runs in EL2, which stage 2 does not concern, and with its own translation off. The guest's own translation is off, too
//! (SCTLR_EL1.M is 0), so that its virtual addresses are intermediate physical ones. Loads and stores are made by two instructions of
//! the kernel's that are mapped for the guest, in EL1 or EL0; a fetch by going to an instruction that comes back at once. A breakpoint
//! comes to EL2 from either.

#[macro_use]
#[path = "aarch64_board.rs"]
mod board;

use core::arch::{asm, global_asm};
use core::fmt::Write;

use tlbkit_addr::{Attr, Flush, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::Format as _;
use tlbkit_pagetable::geometry::GuestIpa;
use tlbkit_pagetable::nodes::NodeAddr;
use tlbkit_pagetable::{Error, Geometry as _, Local, Radix as _, Table};

use crate::{Access, BASE, Fault};

pub(crate) use board::{Console, MEMORY, stop};
pub(crate) use tlbkit_pagetable::format::Aarch64Guest as Format;

pub(crate) type Shape = GuestIpa<{ if cfg!(feature = "runs") { 43 } else { 40 } }, 3>;

pub(crate) const NAME: &str = match (cfg!(feature = "unmarked"), Shape::VA_BITS) {
    (true, _) => "aarch64 stage 2 of 40 bits, a guest without hardware's A and D",
    (false, 40) => "aarch64 stage 2 of 40 bits, a guest",
    _ => "aarch64 stage 2 of 43 bits, a guest",
};

/// A flush that is missing is seen.
pub(crate) const FLUSHES: bool = true;
/// QEMU flushes its TLB at each change of VTTBR_EL2.
pub(crate) const NUMBERS: bool = false;
pub(crate) const PLACES: usize = 4;
pub(crate) const SPACE_PLACES: usize = 4;
/// No physical address is told: none is mapped where there is no memory.
pub(crate) const FAR: usize = 0;
pub(crate) const FAR_SHIFT: u32 = BASE.shift();
/// VMIDs of 8 bits.
pub(crate) const SPACE_NUMBERS: [usize; 2] = [1, 2];
pub(crate) const ATTRIBUTES: Attr = Format::OPTIONAL.difference(Attr::READ);

/// `brk #0`: an exception to EL2, because MDCR_EL2.TDE is set.
pub(crate) const TRAP: usize = 0xd420_0000;

/// A mode of the guest. Stage 2 does not distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    User,
    Kernel,
}

pub(crate) const MODES: [Mode; 2] = [Mode::User, Mode::Kernel];
pub(crate) const KERNEL: Mode = Mode::Kernel;

// CPTR_EL2: compiled code may use vector registers.
start!("el2", "mov x0, #0x33ff", "msr cptr_el2, x0");

global_asm!(
    r#"
    // The guest's instructions: the only part of the kernel that it may execute, in a page that holds no others of use to it.
    .section .text.guest, "ax"
    .balign 4096
    .globl  {guest_load}
    .globl  {guest_store}
{guest_load}:
    ldr     x1, [x0]
    brk     #0
{guest_store}:
    str     x1, [x0]
    brk     #0
    .balign 4096
    "#,
    guest_load = sym guest_load,
    guest_store = sym guest_store,
);

unsafe extern "C" {
    // What the assembly above defines.
    safe fn guest_load();
    safe fn guest_store();
}

/// Returns the page of the guest's instructions, which has the same number for the guest and for the kernel.
fn code() -> usize {
    guest_load as *const () as usize >> BASE.shift()
}

/// Maps the guest's instructions one to one.
pub(crate) fn map_kernel<'n, T: Table<'n>, F: FnMut(&Flush)>(
    table: &mut Local<'n, T, F>,
) -> Result<(), Error> {
    let attr = Attr::READ | Attr::EXEC | Attr::ACCESSED;
    table.map(Pages::one(Vpn::new(code())), Pfn::new(code()), BASE, attr)
}

/// Tells whether the guest's instructions are there.
pub(crate) fn spares(at: usize) -> bool {
    at >> BASE.shift() == code()
}

/// Makes the table at `root` the one that is walked for the guest.
pub(crate) fn enter(root: NodeAddr) {
    /// T0SZ, and SL0: which level the walk starts at.
    const SIZE: u64 = (64 - Shape::VA_BITS as u64) | (Shape::WIDTHS.len() as u64 - 2) << 6;
    /// Walks are cached, inner shareable; RES1.
    const WALKS: u64 = 1 << 8 | 1 << 10 | 3 << 12 | 1 << 31;
    const HA_HD: u64 = 3 << 21;
    /// VM, and RW: EL1 is AArch64.
    const HCR: u64 = 1 | 1 << 31;
    /// TDE.
    const MDCR: u64 = 1 << 8;
    /// The bits of SCTLR_EL1 that are RES1; M is 0.
    const SCTLR_EL1: u64 = 0x30d0_0800;
    let (memory, marks): (u64, u64);
    // SAFETY: the registers say what the processor has; stage 2 and EL1 do not concern EL2, where the kernel runs.
    unsafe {
        asm!("mrs {0}, id_aa64mmfr0_el1", "mrs {1}, id_aa64mmfr1_el1", out(reg) memory, out(reg) marks);
        let physical = (memory & 15).min(5) << 16;
        let hardware = if marks & 15 >= 2 && !cfg!(feature = "unmarked") { HA_HD } else { 0 };
        asm!(
            "msr vtcr_el2, {vtcr}", "msr sctlr_el1, {sctlr}", "msr hcr_el2, {hcr}", "msr mdcr_el2, {mdcr}",
            vtcr = in(reg) SIZE | WALKS | physical | hardware, sctlr = in(reg) SCTLR_EL1, hcr = in(reg) HCR,
            mdcr = in(reg) MDCR,
        );
    }
    switch(root, 0);
    // SAFETY: forgetting translations is always allowed here.
    unsafe { asm!("dsb ish", "tlbi vmalls12e1is", "dsb ish", "isb") };
}

/// Runs the guest of the table at `root` under a VMID: with one store.
pub(crate) fn switch(root: NodeAddr, number: usize) {
    // SAFETY: stage 2 does not concern EL2.
    unsafe { asm!("msr vttbr_el2, {0}", "isb", in(reg) root.get() | number << 48) };
}

/// Tells the processor what has changed in the guest of a VMID, which VTTBR_EL2 names meanwhile. No guest runs then.
pub(crate) fn flush_of(flush: &Flush, number: usize) {
    as_number(number, || self::flush(flush));
}

/// Makes the processor forget what it has of the guest of a VMID.
pub(crate) fn forget(number: usize) {
    let mut flush = Flush::none();
    flush.add_all(tlbkit_addr::FlushScope::Everywhere);
    flush_of(&flush, number);
}

fn as_number(number: usize, flush: impl FnOnce()) {
    let running: usize;
    // SAFETY: stage 2 does not concern EL2.
    unsafe { asm!("mrs {0}, vttbr_el2", out(reg) running) };
    switch(NodeAddr::new(running & ((1 << 48) - 1)), number);
    flush();
    switch(NodeAddr::new(running & ((1 << 48) - 1)), running >> 48);
}

/// Tells the processor what has changed in the guest of VTTBR_EL2's VMID.
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
                let is_any = pages.clone().next().is_some();
                for page in pages {
                    // The form for the last level leaves links where they are.
                    if flush.links() {
                        asm!("tlbi ipas2e1is, {0}", in(reg) page.get());
                    } else {
                        asm!("tlbi ipas2le1is, {0}", in(reg) page.get());
                    }
                }
                if is_any {
                    // What is combined of both stages is not known by intermediate addresses.
                    asm!("dsb ish", "tlbi vmalle1is");
                }
            }
            None => asm!("tlbi vmalls12e1is"),
        }
        asm!("dsb ish", "isb");
    }
}

/// Returns what the manual says of an access to a page with these attributes (D8.4 and D8.5).
pub(crate) fn rules(attr: Attr, access: Access, _mode: Mode) -> Result<(), Fault> {
    if !crate::mmu_marks() && !attr.contains(Attr::ACCESSED) {
        return Err(Fault::NotAccessed);
    }
    let written = Attr::WRITE | if crate::mmu_marks() { Attr::empty() } else { Attr::DIRTY };
    let right = match access {
        Access::Load => Attr::READ,
        Access::Store => written,
        Access::Fetch => Attr::EXEC,
    };
    if attr.contains(right) { Ok(()) } else { Err(Fault::Forbidden) }
}

/// Nothing: no physical address is asked for.
pub(crate) const fn ask(_at: VirtAddr, _access: Access, _mode: Mode) -> Option<Option<usize>> {
    None
}

/// Nothing: QEMU does not say of which type the memory is.
pub(crate) const fn is_typed(_at: VirtAddr, _access: Access, _mode: Mode, _attr: Attr) -> Option<bool> {
    None
}

/// Makes one access and returns what was loaded, or the fault.
pub(crate) fn access(at: VirtAddr, access: Access, mode: Mode, value: usize) -> Result<usize, Fault> {
    let to = match access {
        Access::Load => guest_load as *const () as usize,
        Access::Store => guest_store as *const () as usize,
        Access::Fetch => at.get(),
    };
    // No interrupts; EL0, or EL1 with its own stack.
    let state: usize = if mode == Mode::User { 0x3c0 } else { 0x3c5 };
    let (syndrome, page): (usize, usize);
    let mut loaded = value;
    // SAFETY: translation is what is judged: a load and a store of a mapped word reach the pool alone, which holds no
    // Rust object; what is fetched there traps at once. The exception comes back to label 3 with x1 and x16 changed.
    unsafe {
        asm!(
            "ic iallu", "dsb ish", "isb", "adr x16, 3f", "msr tpidr_el2, x16",
            "msr elr_el2, {to}", "msr spsr_el2, {state}", "eret",
            "3: mrs {syndrome}, esr_el2", "mrs {page}, hpfar_el2", "msr tpidr_el2, xzr",
            to = in(reg) to, state = in(reg) state, syndrome = out(reg) syndrome, page = out(reg) page,
            in("x0") at.get(), inout("x1") loaded, out("x16") _,
        );
    }
    let class = syndrome >> 26;
    // The breakpoint that is fetched, or that follows the access.
    if class == 0x3c {
        return Ok(loaded);
    }
    let complain = |what: &str| -> ! {
        let _ = writeln!(Console, "{access:?} at {at} in {mode:?}: syndrome {syndrome:#x}, page {page:#x}");
        stop(what, 1)
    };
    let fault = match syndrome & 0x3c {
        0x00 => Fault::Nowhere,
        0x04 => Fault::Absent,
        0x08 => Fault::NotAccessed,
        0x0c => Fault::Forbidden,
        _ => complain("a fault that is none of translation"),
    };
    // Instruction and data aborts of the guest, and the page of the intermediate physical address.
    match (class, access) {
        (0x20, Access::Fetch) | (0x24, Access::Load | Access::Store) if fault == Fault::Forbidden => {
            Err(fault)
        }
        (0x20, Access::Fetch) | (0x24, Access::Load | Access::Store) if page >> 4 == at.get() >> 12 => {
            Err(fault)
        }
        _ => complain("a fault of another access"),
    }
}
