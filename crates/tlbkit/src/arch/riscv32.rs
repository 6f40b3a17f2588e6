//! RISC-V with 32 bits: Sv32.

use tlbkit_addr::{Asid, PhysAddr};
use tlbkit_pagetable::format;
use tlbkit_pagetable::geometry::Va32M4;
use tlbkit_shootdown::Hardware;

use crate::{Base, Machine, MultiLevel};

/// RISC-V with Sv32, and ASIDs of 9 bits at most. If hardware does not set A and D (Svade instead of Svadu), the access faults and
/// [`AddressSpace::fault`](crate::AddressSpace::fault) sets them.
#[derive(Debug)]
pub struct Sv32;

// SAFETY: RISC-V Privileged Architecture, 10.3: Sv32 walks two levels of 1024 entries; Svadu sets A and D atomically, only in an
// entry that still allows the access.
unsafe impl Machine for Sv32 {
    type Geometry = Va32M4;
    type Format = format::Sv32;
    type Table = MultiLevel;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::RISCV_SVADU;
    const ASID_BITS: u32 = 9;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        1 << 31 | (asid.get() as usize) << 22 | node.get() >> 12
    }
}
