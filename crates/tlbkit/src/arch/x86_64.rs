//! x86-64, four or five levels.

use tlbkit_addr::{Asid, PhysAddr};
use tlbkit_pagetable::format;
use tlbkit_pagetable::geometry::{UpToM2, Va48, Va57};
use tlbkit_shootdown::Hardware;

use crate::{Base, Machine, MultiLevel};

/// x86-64 with four-level paging and pages of 4 KiB and 2 MiB, which every processor has. The ASID is the PCID; the root value has
/// the no-flush bit (63) set where the PCID is not 0, so CR4.PCIDE must be on if [`asid_bits`](crate::Kernel::asid_bits) is not 0.
#[derive(Debug)]
pub struct X86_64;

// SAFETY: Intel SDM volume 3, 4.5: four levels of 512 entries; 4.8: A and D are set by locked read-modify-writes.
unsafe impl Machine for X86_64 {
    type Geometry = UpToM2<Va48>;
    type Format = format::X86;
    type Table = MultiLevel;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::X86_64;
    const ASID_BITS: u32 = 12;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        cr3(node, asid)
    }
}

/// [`X86_64`] with pages of 1 GiB in addition, on processors that have them (CPUID.80000001H:EDX.Page1GB). Another processor faults
/// on each access to such a page: a bit of its entry is reserved ([`Reason::Entry`](crate::Reason::Entry)).
#[derive(Debug)]
pub struct X86_64G1;

// SAFETY: as for `X86_64`; this processor has pages of 1 GiB.
unsafe impl Machine for X86_64G1 {
    type Geometry = Va48;
    type Format = format::X86;
    type Table = MultiLevel;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::X86_64;
    const ASID_BITS: u32 = 12;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        cr3(node, asid)
    }
}

/// x86-64 with five-level paging: CR4.LA57 is on; otherwise as [`X86_64`].
#[derive(Debug)]
pub struct X86_64La57;

// SAFETY: Intel SDM volume 3, 4.5: five levels of 512 entries, which are those of four-level paging.
unsafe impl Machine for X86_64La57 {
    type Geometry = UpToM2<Va57>;
    type Format = format::X86;
    type Table = MultiLevel;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::X86_64;
    const ASID_BITS: u32 = 12;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        cr3(node, asid)
    }
}

/// [`X86_64La57`] with pages of 1 GiB in addition, as [`X86_64G1`] has them.
#[derive(Debug)]
pub struct X86_64La57G1;

// SAFETY: as for `X86_64La57`; this processor has pages of 1 GiB.
unsafe impl Machine for X86_64La57G1 {
    type Geometry = Va57;
    type Format = format::X86;
    type Table = MultiLevel;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::X86_64;
    const ASID_BITS: u32 = 12;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        cr3(node, asid)
    }
}

/// Returns the value of CR3.
const fn cr3(node: PhysAddr, asid: Asid) -> usize {
    let keep = if asid.get() == 0 { 0 } else { 1 << 63 };
    node.get() | asid.get() as usize | keep
}
