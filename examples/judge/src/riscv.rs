//! RISC-V with Sv32, Sv39, Sv48 or Sv57, on QEMU's machine `virt`.
//!
//! The kernel stays in machine mode, where nothing is translated, so the table holds nothing but what is judged. Loads
//! and stores are made as if in another mode by MPRV (Privileged Architecture 3.1.6.3); a fetch by going there, to an
//! instruction that comes back at once. QEMU forgets its TLB whenever mstatus changes so, so this kernel judges entries,
//! not flushes; the one for AArch64 judges both.

#[path = "riscv_board.rs"]
mod board;

use core::arch::asm;
use core::fmt::Write;

use tlbkit_addr::{Attr, Flush, VirtAddr};
use tlbkit_pagetable::format::Format as _;
use tlbkit_pagetable::nodes::NodeAddr;
use tlbkit_pagetable::{Error, Local, Table};

use crate::{Access, BASE, Fault};

use board::MPRV;
pub(crate) use board::{Console, MEMORY, TRAP, stop};

/// The mode of translation, which the build chooses: its geometry, its name, and its number in `satp`.
#[cfg(target_arch = "riscv32")]
mod mode {
    pub(crate) use tlbkit_pagetable::format::Sv32 as Format;
    pub(crate) use tlbkit_pagetable::geometry::Va32M4 as Shape;
    pub(crate) const NAME: &str = "riscv32 Sv32";
    pub(crate) const SATP: usize = 1 << 31;
}
#[cfg(feature = "svnapot")]
mod mode {
    pub(crate) type Format = tlbkit_pagetable::format::RiscvOf<true, true, true>;
    pub(crate) type Shape = tlbkit_pagetable::geometry::Napot<tlbkit_pagetable::geometry::Va39>;
    pub(crate) const NAME: &str = "riscv64 Sv39 with Svnapot and Svpbmt";
    pub(crate) const SATP: usize = 8 << 60;
}
#[cfg(all(target_arch = "riscv64", not(any(feature = "sv48", feature = "sv57", feature = "svnapot"))))]
mod mode {
    pub(crate) use tlbkit_pagetable::format::Sv39 as Format;
    pub(crate) use tlbkit_pagetable::geometry::Va39 as Shape;
    pub(crate) const NAME: &str = "riscv64 Sv39";
    pub(crate) const SATP: usize = 8 << 60;
}
#[cfg(feature = "sv48")]
mod mode {
    pub(crate) use tlbkit_pagetable::format::Sv39 as Format;
    pub(crate) use tlbkit_pagetable::geometry::Va48 as Shape;
    pub(crate) const NAME: &str = "riscv64 Sv48";
    pub(crate) const SATP: usize = 9 << 60;
}
#[cfg(feature = "sv57")]
mod mode {
    pub(crate) use tlbkit_pagetable::format::Sv39 as Format;
    pub(crate) use tlbkit_pagetable::geometry::Va57 as Shape;
    pub(crate) const NAME: &str = "riscv64 Sv57";
    pub(crate) const SATP: usize = 10 << 60;
}

pub(crate) use mode::{Format, NAME, Shape};

/// QEMU forgets its TLB whenever a mode of access is entered here: a flush that is missing is not seen.
pub(crate) const FLUSHES: bool = false;
/// Nor is a number that goes to another space without a flush.
pub(crate) const NUMBERS: bool = false;
pub(crate) const PLACES: usize = 4;
/// Both halves are a space's.
pub(crate) const SPACE_PLACES: usize = 4;
/// No physical address is told: none is mapped where there is no memory.
pub(crate) const FAR: usize = 0;
pub(crate) const FAR_SHIFT: u32 = BASE.shift();
/// ASIDs of 16 bits (9 with Sv32), which agree in their low eight.
pub(crate) const SPACE_NUMBERS: [usize; 2] = [1, 0x101];
pub(crate) const ATTRIBUTES: Attr = Format::OPTIONAL.difference(Attr::READ);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    User,
    Supervisor,
    /// Supervisor with SUM: user pages are for it too.
    SupervisorUserMemory,
}

pub(crate) const MODES: [Mode; 3] = [Mode::User, Mode::Supervisor, Mode::SupervisorUserMemory];

/// The mode of the pages that are not the user's.
pub(crate) const KERNEL: Mode = Mode::Supervisor;

/// A load and a store of a machine word.
#[cfg(target_arch = "riscv64")]
macro_rules! load {
    () => {
        "ld {value}, 0({at})"
    };
}
#[cfg(target_arch = "riscv64")]
macro_rules! store {
    () => {
        "sd {value}, 0({at})"
    };
}
#[cfg(target_arch = "riscv32")]
macro_rules! load {
    () => {
        "lw {value}, 0({at})"
    };
}
#[cfg(target_arch = "riscv32")]
macro_rules! store {
    () => {
        "sw {value}, 0({at})"
    };
}

const SUM: usize = 1 << 18;
const MPP: usize = 3 << 11;

/// Nothing: machine mode needs no translation.
pub(crate) fn map_kernel<'n, T: Table<'n>, F: FnMut(&Flush)>(_: &mut Local<'n, T, F>) -> Result<(), Error> {
    Ok(())
}

/// Tells whether the kernel's code is there: where an address is the same without translation, QEMU's TLB keeps what was fetched
/// for loads, too.
pub(crate) const fn spares(at: usize) -> bool {
    cfg!(target_arch = "riscv32") && at.wrapping_sub(MEMORY) < 16 << 20
}

/// Makes the table at `root` the one that is walked.
pub(crate) fn enter(root: NodeAddr) {
    let satp = mode::SATP | root.get() >> 12;
    let taken: usize;
    // SAFETY: in machine mode nothing is translated, whatever satp says.
    unsafe { asm!("csrw satp, {0}", "csrr {1}, satp", "sfence.vma", in(reg) satp, out(reg) taken) };
    // With Svpbmt the fields for it are reserved until menvcfg.PBMTE is set.
    if cfg!(feature = "svnapot") {
        // SAFETY: nothing is translated in machine mode, whatever it says.
        unsafe { asm!("csrs 0x30a, {0}", in(reg) 1usize << 62) };
    }
    // A write of a mode that the hart does not have changes nothing.
    if taken != satp {
        stop("this hart has no such mode", 2);
    }
}

/// Runs the space of the table at `root` under a number: with one store to `satp`, and no fence. The hart has numbers.
pub(crate) fn switch(root: NodeAddr, number: usize) {
    /// Where `satp` has the number.
    const ASID: usize = if cfg!(target_arch = "riscv32") { 22 } else { 44 };
    let satp = mode::SATP | number << ASID | root.get() >> 12;
    let taken: usize;
    // SAFETY: in machine mode nothing is translated, whatever satp says.
    unsafe { asm!("csrw satp, {0}", "csrr {1}, satp", in(reg) satp, out(reg) taken) };
    if taken != satp {
        stop("this hart has no such number", 2);
    }
}

/// Tells the processor what has changed in the space of a number.
pub(crate) fn flush_of(flush: &Flush, number: usize) {
    match flush.by_address(Format::WALK_CACHE, 512) {
        Some(pages) => {
            for page in pages {
                // SAFETY: a fence is always allowed here.
                unsafe { asm!("sfence.vma {0}, {1}", in(reg) page.address(BASE).get(), in(reg) number) };
            }
        }
        None => forget(number),
    }
}

/// Makes the processor forget what it has of the space of a number.
pub(crate) fn forget(number: usize) {
    // SAFETY: a fence is always allowed here.
    unsafe { asm!("sfence.vma zero, {0}", in(reg) number) };
}

/// Tells the processor what has changed.
pub(crate) fn flush(flush: &Flush) {
    // SAFETY: a fence is always allowed here. One with an address orders leaf entries alone, so where links changed
    // there is none.
    unsafe {
        match flush.by_address(Format::WALK_CACHE, 512) {
            Some(pages) => {
                for page in pages {
                    asm!("sfence.vma {0}, zero", in(reg) page.address(BASE).get());
                }
            }
            None => asm!("sfence.vma"),
        }
    }
}

/// Returns what the manual says of an access to a page with these attributes (4.3.2, steps 6 to 9).
pub(crate) fn rules(attr: Attr, access: Access, mode: Mode) -> Result<(), Fault> {
    let user = attr.contains(Attr::USER);
    let in_reach = match mode {
        Mode::User => user,
        Mode::Supervisor => !user,
        Mode::SupervisorUserMemory => !user || access != Access::Fetch,
    };
    let right = match access {
        Access::Load => Attr::READ,
        Access::Store => Attr::WRITE,
        Access::Fetch => Attr::EXEC,
    };
    let marked = if access == Access::Store { Attr::ACCESSED | Attr::DIRTY } else { Attr::ACCESSED };
    // Every fault of translation is the same page fault here.
    if in_reach && attr.contains(right) && (crate::mmu_marks() || attr.contains(marked)) {
        Ok(())
    } else {
        Err(Fault::Absent)
    }
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
    let mode = match mode {
        Mode::User => 0,
        Mode::Supervisor => 1 << 11,
        Mode::SupervisorUserMemory => 1 << 11 | SUM,
    };
    let (cause, loaded): (usize, usize);
    // SAFETY: translation is what is judged: a load and a store of a mapped word reach the pool alone, which holds no
    // Rust object; what is fetched there traps at once. The trap comes back to label 3 with t0 changed, and all is
    // then as before but for mstatus, of which Rust knows nothing.
    unsafe {
        asm!("csrc mstatus, {0}", "csrs mstatus, {1}", in(reg) MPP | SUM, in(reg) mode);
        match access {
            Access::Load => asm!(
                "la t0, 3f", "csrw mscratch, t0",
                "csrs mstatus, {mprv}", load!(), "csrc mstatus, {mprv}",
                "li {cause}, -1", "j 4f",
                "3: csrr {cause}, mcause",
                "4: csrw mscratch, zero",
                mprv = in(reg) MPRV, at = in(reg) at.get(), value = out(reg) loaded, cause = out(reg) cause,
                out("t0") _,
            ),
            Access::Store => {
                loaded = 0;
                asm!(
                    "la t0, 3f", "csrw mscratch, t0",
                    "csrs mstatus, {mprv}", store!(), "csrc mstatus, {mprv}",
                    "li {cause}, -1", "j 4f",
                    "3: csrr {cause}, mcause",
                    "4: csrw mscratch, zero",
                    mprv = in(reg) MPRV, at = in(reg) at.get(), value = in(reg) value, cause = out(reg) cause,
                    out("t0") _,
                );
            }
            Access::Fetch => {
                loaded = 0;
                asm!(
                    "la t0, 3f", "csrw mscratch, t0", "fence.i",
                    "csrw mepc, {at}", "mret",
                    "3: csrr {cause}, mcause", "csrw mscratch, zero",
                    at = in(reg) at.get(), cause = out(reg) cause, out("t0") _,
                );
            }
        }
    }
    match (access, cause) {
        (Access::Load | Access::Store, usize::MAX) => Ok(loaded),
        // The environment call that was fetched.
        (Access::Fetch, 8 | 9) => Ok(loaded),
        (Access::Load, 13) | (Access::Store, 15) | (Access::Fetch, 12) => Err(Fault::Absent),
        _ => {
            let _ = writeln!(Console, "{access:?} at {at}: cause {cause}");
            stop("a fault that is none of translation", 1)
        }
    }
}
