//! RISC-V with 64 bits: Sv39, Sv48 and Sv57.

use tlbkit_addr::{Asid, Attr, PhysAddr};
use tlbkit_pagetable::format;
use tlbkit_pagetable::geometry::{Napot, Va39, Va48, Va57};
use tlbkit_shootdown::Hardware;

use crate::fault::{Reason, Report};
use crate::{Access, Base, Machine, MultiLevel};

/// Returns the value of `satp` for one of its modes.
const fn satp(mode: usize, node: PhysAddr, asid: Asid) -> usize {
    mode << 60 | (asid.get() as usize) << 44 | node.get() >> 12
}

/// RISC-V with Sv39. If hardware does not set A and D (Svade instead of Svadu), the access faults and
/// [`AddressSpace::fault`](crate::AddressSpace::fault) sets them.
#[derive(Debug)]
pub struct Sv39;

// SAFETY: RISC-V Privileged Architecture, 10.4: Sv39 walks three levels of 512 entries; Svadu sets A and D atomically,
// only in an entry that still allows the access.
unsafe impl Machine for Sv39 {
    type Geometry = Va39;
    type Format = format::Sv39;
    type Table = MultiLevel;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::RISCV_SVADU;
    const ASID_BITS: u32 = 16;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        satp(8, node, asid)
    }
}

/// RISC-V with Sv39, and Svnapot on every hart: pages of 64 KiB in addition to those of [`Sv39`]; otherwise as [`Sv39`].
#[derive(Debug)]
pub struct Sv39Svnapot;

// SAFETY: RISC-V Privileged Architecture, 10.4: Sv39 walks three levels of 512 entries; Svadu sets A and D atomically, only in an
// entry that still allows the access; 12: Svnapot reads a page of 64 KiB in any of its 16 slots, and sets A and D in any of them.
unsafe impl Machine for Sv39Svnapot {
    type Geometry = Napot<Va39>;
    type Format = format::RiscvOf<true, true, false>;
    type Table = MultiLevel;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::RISCV_SVADU;
    const ASID_BITS: u32 = 16;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        Sv39::root(node, asid)
    }
}

/// RISC-V with Sv48; otherwise as [`Sv39`].
#[derive(Debug)]
pub struct Sv48;

// SAFETY: RISC-V Privileged Architecture, 10.5: Sv48 walks four levels of 512 entries, which are those of Sv39.
unsafe impl Machine for Sv48 {
    type Geometry = Va48;
    type Format = format::Sv39;
    type Table = MultiLevel;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::RISCV_SVADU;
    const ASID_BITS: u32 = 16;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        satp(9, node, asid)
    }
}

/// RISC-V with Sv57; otherwise as [`Sv39`].
#[derive(Debug)]
pub struct Sv57;

// SAFETY: RISC-V Privileged Architecture, 10.6: Sv57 walks five levels of 512 entries, which are those of Sv39.
unsafe impl Machine for Sv57 {
    type Geometry = Va57;
    type Format = format::Sv39;
    type Table = MultiLevel;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::RISCV_SVADU;
    const ASID_BITS: u32 = 16;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        satp(10, node, asid)
    }
}

// `scause` and `sstatus`, decoded: a table of the manual, which reads integers and needs no machine.
impl Access {
    /// Returns the access that `scause` and `sstatus` of a trap to supervisor mode describe; `None` if the trap is not that of an
    /// access to memory. RISC-V Privileged Architecture, 10.1.1 and 10.1.8.
    ///
    /// | `scause` | exception | the access |
    /// |-|-|-|
    /// | 12, 13, 15 | page fault | a fetch, a load, a store or an AMO |
    /// | 0, 4, 6 | misaligned | the same, and [`Reason::Alignment`] |
    /// | 1, 5, 7 | access fault | the same, and [`Reason::Memory`] |
    ///
    /// SPP (bit 8 of `sstatus`) is the mode. Supervisor mode never fetches from a user's page, and loads and stores there only if SUM
    /// (bit 18) is set: [`Reason::UserPage`]. With MXR (bit 19) a load needs a page that can be read or executed.
    pub const fn from_riscv(scause: usize, sstatus: usize) -> Option<Self> {
        const SPP: usize = 1 << 8;
        const SUM: usize = 1 << 18;
        const MXR: usize = 1 << 19;
        let load = if sstatus & MXR == 0 { Attr::READ } else { Attr::READ.union(Attr::EXEC) };
        let (right, is_fetch) = match scause {
            0 | 1 | 12 => (Attr::EXEC, true),
            4 | 5 | 13 => (load, false),
            6 | 7 | 15 => (Attr::WRITE, false),
            _ => return None,
        };
        let user = sstatus & SPP == 0;
        let report = match scause {
            0 | 4 | 6 => Report::Refused(Reason::Alignment),
            1 | 5 | 7 => Report::Refused(Reason::Memory),
            _ if !user && (is_fetch || sstatus & SUM == 0) => Report::Refused(Reason::UserPage),
            _ => Report::Fault,
        };
        Some(Self::reported_by(right, user, report))
    }
}
