//! Armv8-A with a granule of 4, 16 or 64 KiB.

use tlbkit_addr::{Asid, PhysAddr};
use tlbkit_pagetable::format;
use tlbkit_pagetable::geometry::{Runs, Va47K16, Va48, Va48K64};
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

// SAFETY: Arm ARM D8.2: four levels of 512 entries; D8.4: access flag and dirty state are updated atomically, only in an entry
// that still allows the access; D8.7: the contiguous bit says that 16 entries continue each other, whether or not a TLB has one
// entry for them.
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

/// Armv8-A with a 16 KiB granule, contiguous runs, and 47-bit addresses in the half of `TTBR0_EL1` (T0SZ = 17). What the kernel has in
/// the half of `TTBR1_EL1` is no part of the address spaces.
///
/// Frames have 16 KiB. ID_AA64MMFR0_EL1.TGran16 says whether a CPU has the granule.
#[derive(Debug)]
pub struct AArch64K16;

// SAFETY: Arm ARM D8.2: with T0SZ = 17 three levels of 2048 entries; D8.4: access flag and dirty state are updated atomically, only
// in an entry that still allows the access; D8.7: the contiguous bit says that entries continue each other.
unsafe impl Machine for AArch64K16 {
    type Geometry = Runs<Va47K16>;
    type Format = format::Aarch64Of<14, true, false>;
    type Table = MultiLevel;
    const HARDWARE: Hardware = Hardware::AARCH64_HAFDBS;
    const ASID_BITS: u32 = 16;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        AArch64::root(node, asid)
    }
}

/// Armv8-A with a 64 KiB granule, contiguous runs, and 48-bit addresses, in the half of `TTBR0_EL1` (T0SZ = 17).
///
/// Frames have 64 KiB. ID_AA64MMFR0_EL1.TGran64 says whether a CPU has the granule.
#[derive(Debug)]
pub struct AArch64K64;

// SAFETY: Arm ARM D8.2: with T0SZ = 17 a root of 32 entries, and two levels of 8192; D8.4: access flag and dirty state are updated
// atomically, only in an entry that still allows the access; D8.7: the contiguous bit says that entries continue each other.
unsafe impl Machine for AArch64K64 {
    type Geometry = Runs<Va48K64>;
    type Format = format::Aarch64Of<16, true, false>;
    type Table = MultiLevel;
    const HARDWARE: Hardware = Hardware::AARCH64_HAFDBS;
    const ASID_BITS: u32 = 16;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        AArch64::root(node, asid)
    }
}
