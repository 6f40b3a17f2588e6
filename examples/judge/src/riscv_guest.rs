//! RISC-V's second stage of translation, the G-stage, with Sv39x4 or Sv48x4, on QEMU's machine `virt`.
//!
//! The kernel stays in machine mode. The guest's own translation is off (`vsatp` is 0), so that a guest-virtual address is a
//! guest-physical one. Loads and stores are made as if by the guest with HLV.D and HSV.D (Privileged Architecture, *Hypervisor Virtual-
//! Machine Load and Store Instructions*), a fetch by going to VS-mode or VU-mode, to an instruction that comes back at once. They leave
//! `mstatus` alone, so QEMU keeps its TLB from one to the next, and a flush that is missing is seen.

#[path = "riscv_board.rs"]
mod board;

use core::arch::asm;
use core::fmt::Write;

use tlbkit_addr::{Attr, Flush, VirtAddr};
use tlbkit_pagetable::format::Format as _;
use tlbkit_pagetable::nodes::NodeAddr;
use tlbkit_pagetable::{Error, Local, Table};

use crate::{Access, BASE, Fault};

pub(crate) use board::{Console, MEMORY, TRAP, stop};
pub(crate) use tlbkit_pagetable::format::Sv39x4 as Format;

/// The mode of translation, which the build chooses: its geometry, its name, and its number in `hgatp`.
mod mode {
    use tlbkit_pagetable::geometry::{self, GuestX4};

    #[cfg(not(feature = "sv48"))]
    pub(crate) type Shape = GuestX4<geometry::Va39>;
    #[cfg(feature = "sv48")]
    pub(crate) type Shape = GuestX4<geometry::Va48>;
    pub(crate) const NAME: &str =
        if cfg!(feature = "sv48") { "riscv64 Sv48x4, a guest" } else { "riscv64 Sv39x4, a guest" };
    pub(crate) const HGATP: usize = if cfg!(feature = "sv48") { 9 << 60 } else { 8 << 60 };
}

pub(crate) use mode::{NAME, Shape};

pub(crate) const FLUSHES: bool = true;
/// QEMU's TLB has no VMIDs.
pub(crate) const NUMBERS: bool = false;
/// QEMU 7.2 takes a guest-physical address with its highest bit set for one that is not sign-extended, and faults: the upper half is
/// left alone.
pub(crate) const PLACES: usize = 2;
pub(crate) const SPACE_PLACES: usize = 2;
/// No physical address is told: none is mapped where there is no memory.
pub(crate) const FAR: usize = 0;
pub(crate) const FAR_SHIFT: u32 = BASE.shift();
/// VMIDs of 14 bits, which agree in their low eight.
pub(crate) const SPACE_NUMBERS: [usize; 2] = [1, 0x101];
pub(crate) const ATTRIBUTES: Attr = Format::OPTIONAL.difference(Attr::READ);

/// A mode of the guest. The G-stage does not distinguish them: it takes every access for one of user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    User,
    Supervisor,
}

pub(crate) const MODES: [Mode; 2] = [Mode::User, Mode::Supervisor];
pub(crate) const KERNEL: Mode = Mode::Supervisor;

/// `mstatus`: the mode that MRET goes to, and that it is the guest's.
const MPP: usize = 3 << 11;
const MPV: usize = 1 << 39;
/// `hstatus`: HLV and HSV are accesses of VS-mode.
const SPVP: usize = 1 << 8;

/// Nothing: machine mode needs no translation.
pub(crate) fn map_kernel<'n, T: Table<'n>, F: FnMut(&Flush)>(_: &mut Local<'n, T, F>) -> Result<(), Error> {
    Ok(())
}

/// Nothing of the kernel is there.
pub(crate) const fn spares(_at: usize) -> bool {
    false
}

/// Makes the table at `root` the one that is walked for the guest.
pub(crate) fn enter(root: NodeAddr) {
    // SAFETY: in machine mode nothing is translated.
    unsafe { asm!("csrw vsatp, zero") };
    switch(root, 0);
}

/// Runs the guest of the table at `root` under a VMID.
///
/// QEMU 7.2 keeps its TLB, which has no VMIDs, where `hgatp` changes: it is told to forget.
pub(crate) fn switch(root: NodeAddr, number: usize) {
    let hgatp = mode::HGATP | number << 44 | root.get() >> 12;
    let taken: usize;
    // SAFETY: in machine mode nothing is translated, whatever hgatp says.
    unsafe {
        asm!("csrw hgatp, {0}", "csrr {1}, hgatp", in(reg) hgatp, out(reg) taken);
    }
    // The two lowest bits of the number of a page would be ignored.
    if taken != hgatp {
        stop("this hart has no such mode or number, or the root is not aligned to 16 KiB", 2);
    }
    forget(number);
}

/// Tells the processor what has changed in the guest of a VMID.
pub(crate) fn flush_of(flush: &Flush, number: usize) {
    match flush.by_address(Format::WALK_CACHE, 512) {
        Some(pages) => {
            for page in pages {
                let shifted = page.address(BASE).get() >> 2;
                // SAFETY: a fence is always allowed here.
                unsafe {
                    asm!(
                        ".option push", ".option arch, +h", "hfence.gvma {0}, {1}", ".option pop",
                        in(reg) shifted, in(reg) number,
                    );
                }
            }
        }
        None => forget(number),
    }
}

/// Makes the processor forget what it has of the guest of a VMID.
pub(crate) fn forget(number: usize) {
    // SAFETY: a fence is always allowed here.
    unsafe {
        asm!(".option push", ".option arch, +h", "hfence.gvma zero, {0}", ".option pop", in(reg) number);
    }
}

/// Tells the processor what has changed.
pub(crate) fn flush(flush: &Flush) {
    flush_of(flush, 0);
}

/// Returns what the manual says of an access to a page with these attributes: every fault is the same guest-page fault.
pub(crate) fn rules(attr: Attr, access: Access, _mode: Mode) -> Result<(), Fault> {
    let right = match access {
        Access::Load => Attr::READ,
        Access::Store => Attr::WRITE,
        Access::Fetch => Attr::EXEC,
    };
    let marked = if access == Access::Store { Attr::ACCESSED | Attr::DIRTY } else { Attr::ACCESSED };
    let allowed = attr.contains(right) && (crate::mmu_marks() || attr.contains(marked));
    if allowed { Ok(()) } else { Err(Fault::Absent) }
}

/// Nothing: this processor does not tell where an address is.
pub(crate) const fn ask(_at: VirtAddr, _access: Access, _mode: Mode) -> Option<Option<usize>> {
    None
}

/// Nothing: nor of which type the memory is.
pub(crate) const fn is_typed(_at: VirtAddr, _access: Access, _mode: Mode, _attr: Attr) -> Option<bool> {
    None
}

/// Makes one access and returns what was loaded, or the fault.
pub(crate) fn access(at: VirtAddr, access: Access, mode: Mode, value: usize) -> Result<usize, Fault> {
    let is_supervisor = mode == Mode::Supervisor;
    let (cause, mut loaded): (usize, usize);
    loaded = 0;
    /// Writes an access that a trap ends at label 3.
    macro_rules! attempt {
        ($access:literal, $($operands:tt)*) => {
            asm!(
                "la t0, 3f", "csrw mscratch, t0",
                ".option push", ".option arch, +h", $access, ".option pop",
                "li {cause}, -1", "j 4f",
                "3: csrr {cause}, mcause",
                "4: csrw mscratch, zero",
                at = in(reg) at.get(), cause = out(reg) cause, out("t0") _, $($operands)*
            )
        };
    }
    // SAFETY: translation is what is judged: a load and a store of a mapped word reach the pool alone, which holds no
    // Rust object; what is fetched there traps at once. The trap comes back to label 3 with t0 changed, and all is
    // then as before but for mstatus and hstatus, of which Rust knows nothing.
    unsafe {
        match access {
            Access::Load | Access::Store => {
                let spvp = if is_supervisor { SPVP } else { 0 };
                asm!("csrc hstatus, {0}", "csrs hstatus, {1}", in(reg) SPVP, in(reg) spvp);
            }
            Access::Fetch => {
                let to = MPV | if is_supervisor { 1 << 11 } else { 0 };
                asm!("csrc mstatus, {0}", "csrs mstatus, {1}", in(reg) MPP, in(reg) to);
            }
        }
        match access {
            Access::Load => attempt!("hlv.d {value}, ({at})", value = out(reg) loaded),
            Access::Store => attempt!("hsv.d {value}, ({at})", value = in(reg) value),
            Access::Fetch => attempt!("fence.i\ncsrw mepc, {at}\nmret",),
        }
    }
    match (access, cause) {
        (Access::Load | Access::Store, usize::MAX) => Ok(loaded),
        // The environment call that was fetched, in VU-mode or VS-mode.
        (Access::Fetch, 8 | 10) => Ok(loaded),
        // Guest-page faults.
        (Access::Load, 21) | (Access::Store, 23) | (Access::Fetch, 20) => Err(Fault::Absent),
        _ => {
            let _ = writeln!(Console, "{access:?} at {at}: cause {cause}");
            stop("a fault that is none of translation", 1)
        }
    }
}
