//! RISC-V, Sv39.

use tlbkit_addr::{Asid, PhysAddr};
use tlbkit_pagetable::format;
use tlbkit_pagetable::geometry::Va39;
use tlbkit_shootdown::Hardware;

use crate::Machine;

/// RISC-V with Sv39, with hardware that sets A and D (Svadu) or without (Svade): where it does not, a page fault sets
/// them ([`AddressSpace::fault`](crate::AddressSpace::fault)).
#[derive(Debug)]
pub struct Sv39;

// SAFETY: RISC-V Privileged Architecture, 10.4: Sv39 walks three levels of 512 entries; Svadu sets A and D atomically,
// only in an entry that still allows the access.
unsafe impl Machine for Sv39 {
    type Geometry = Va39;
    type Format = format::Sv39;
    const HARDWARE: Hardware = Hardware::RISCV_SVADU;
    const ASID_BITS: u32 = 16;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        8 << 60 | (asid.get() as usize) << 44 | node.get() >> 12
    }
}
