//! RISC-V with 64 bits: Sv39, Sv48 and Sv57.

use tlbkit_addr::{Asid, PhysAddr};
use tlbkit_pagetable::format;
use tlbkit_pagetable::geometry::{Napot, Va39, Va48, Va57};
use tlbkit_shootdown::Hardware;

use crate::{Base, Machine, MultiLevel};

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
