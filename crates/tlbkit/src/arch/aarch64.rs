//! Armv8-A, 4 KiB granule.

use tlbkit_addr::{Asid, PhysAddr};
use tlbkit_pagetable::format;
use tlbkit_pagetable::geometry::{Runs, Va48};
use tlbkit_shootdown::Hardware;

use crate::{Machine, MultiLevel};

/// Armv8-A with a 4 KiB granule and 48-bit addresses, in the half of `TTBR0_EL1`.
#[derive(Debug)]
pub struct AArch64;

// SAFETY: Arm ARM D8.2: four levels of 512 entries; D8.4: access flag and dirty state are updated atomically, only
// in an entry that still allows the access.
unsafe impl Machine for AArch64 {
    type Geometry = Va48;
    type Format = format::Aarch64;
    type Table = MultiLevel;
    const HARDWARE: Hardware = Hardware::AARCH64_HAFDBS;
    const ASID_BITS: u32 = 16;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        (asid.get() as usize) << 48 | node.get()
    }
}

/// [`AArch64`] with contiguous runs: pages of 64 KiB, 32 MiB and 16 GiB in addition to the others.
#[derive(Debug)]
pub struct AArch64Runs;

// SAFETY: as for `AArch64`; Arm ARM D8.7: the contiguous bit says that 16 entries continue each other, whether or not a TLB
// has one entry for them.
unsafe impl Machine for AArch64Runs {
    type Geometry = Runs<Va48>;
    type Format = format::Aarch64Of<12, true, false>;
    type Table = MultiLevel;
    const HARDWARE: Hardware = Hardware::AARCH64_HAFDBS;
    const ASID_BITS: u32 = 16;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        AArch64::root(node, asid)
    }
}
