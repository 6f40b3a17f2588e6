//! x86-64, four or five levels.

use tlbkit_addr::{Asid, Attr, PhysAddr};
use tlbkit_pagetable::format;
use tlbkit_pagetable::geometry::{UpToM2, Va48, Va57};
use tlbkit_shootdown::Hardware;

use super::Setting;
use crate::fault::{Reason, Report};
use crate::{Access, Base, Machine, MultiLevel};

/// x86-64 with four-level paging and pages of 4 KiB and 2 MiB, which every processor has. The ASID is the PCID; the root value has
/// the no-flush bit (63) set where the PCID is not 0, so CR4.PCIDE must be on if [`asid_bits`](crate::Kernel::asid_bits) is not 0.
#[derive(Debug)]
pub struct X86_64;

impl X86_64 {
    /// Checks what the control registers of a CPU hold, before the CPU runs an address space: a kernel reads them and asserts this in its
    /// debug builds. `asid_bits` is what [`Kernel::asid_bits`](crate::Kernel::asid_bits) returns. Costs a few instructions.
    ///
    /// | field | must be | because |
    /// |-|-|-|
    /// | CR0.WP | 1 | otherwise the kernel's stores change copy-on-write pages of processes |
    /// | EFER.NXE | 1 | otherwise bit 63 of an entry is reserved, and a page without `EXEC` faults ([`Reason::Entry`]) |
    /// | CR4.LA57 | 0; 1 for [`X86_64La57`] and [`X86_64La57G1`] | it is the number of levels |
    /// | CR4.PCIDE | 1, if `asid_bits` is not 0 | otherwise bit 63 of CR3 is reserved: `mov cr3` faults |
    ///
    /// SMEP, SMAP, PKE and PGE may be on or off. With SMEP and SMAP the kernel's own accesses to pages of users are
    /// [`Reason::UserPage`]; without PGE global pages cost a walk after each switch.
    ///
    /// # Errors
    ///
    /// The first [`Setting`] that differs.
    pub fn check(control: X86Control, asid_bits: u32) -> Result<(), Setting> {
        control.check(false, asid_bits)
    }
}

// SAFETY: Intel SDM volume 3, 4.5: four levels of 512 entries; 4.8: A and D are set by locked read-modify-writes.
unsafe impl Machine for X86_64 {
    type Geometry = UpToM2<Va48>;
    type Format = format::X86;
    type Table = MultiLevel;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::X86_64;
    const ASID_BITS: u32 = 12;
    const BY_ADDRESS: usize = 33;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        cr3(node, asid)
    }
}

/// [`X86_64`] with pages of 1 GiB in addition, on processors that have them (CPUID.80000001H:EDX.Page1GB). Another processor faults
/// on each access to such a page: a bit of its entry is reserved ([`Reason::Entry`](crate::Reason::Entry)).
#[derive(Debug)]
pub struct X86_64G1;

impl X86_64G1 {
    /// Checks the control registers as [`X86_64::check`] does.
    ///
    /// # Errors
    ///
    /// The first [`Setting`] that differs.
    pub fn check(control: X86Control, asid_bits: u32) -> Result<(), Setting> {
        control.check(false, asid_bits)
    }
}

// SAFETY: as for `X86_64`; this processor has pages of 1 GiB.
unsafe impl Machine for X86_64G1 {
    type Geometry = Va48;
    type Format = format::X86;
    type Table = MultiLevel;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::X86_64;
    const ASID_BITS: u32 = 12;
    const BY_ADDRESS: usize = 33;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        cr3(node, asid)
    }
}

/// x86-64 with five-level paging: CR4.LA57 is on; otherwise as [`X86_64`].
#[derive(Debug)]
pub struct X86_64La57;

impl X86_64La57 {
    /// Checks the control registers as [`X86_64::check`] does.
    ///
    /// # Errors
    ///
    /// The first [`Setting`] that differs.
    pub fn check(control: X86Control, asid_bits: u32) -> Result<(), Setting> {
        control.check(true, asid_bits)
    }
}

// SAFETY: Intel SDM volume 3, 4.5: five levels of 512 entries, which are those of four-level paging.
unsafe impl Machine for X86_64La57 {
    type Geometry = UpToM2<Va57>;
    type Format = format::X86;
    type Table = MultiLevel;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::X86_64;
    const ASID_BITS: u32 = 12;
    const BY_ADDRESS: usize = 33;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        cr3(node, asid)
    }
}

/// [`X86_64La57`] with pages of 1 GiB in addition, as [`X86_64G1`] has them.
#[derive(Debug)]
pub struct X86_64La57G1;

impl X86_64La57G1 {
    /// Checks the control registers as [`X86_64::check`] does.
    ///
    /// # Errors
    ///
    /// The first [`Setting`] that differs.
    pub fn check(control: X86Control, asid_bits: u32) -> Result<(), Setting> {
        control.check(true, asid_bits)
    }
}

// SAFETY: as for `X86_64La57`; this processor has pages of 1 GiB.
unsafe impl Machine for X86_64La57G1 {
    type Geometry = Va57;
    type Format = format::X86;
    type Table = MultiLevel;
    type Base = Base<12>;
    const HARDWARE: Hardware = Hardware::X86_64;
    const ASID_BITS: u32 = 12;
    const BY_ADDRESS: usize = 33;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        cr3(node, asid)
    }
}

/// What the control registers of an x86-64 processor hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct X86Control {
    /// CR0.
    pub cr0: u64,
    /// CR4.
    pub cr4: u64,
    /// EFER, MSR C000_0080H.
    pub efer: u64,
}

impl X86Control {
    /// Checks the fields that page tables rely on, of four levels or of five. `asid_bits` is what
    /// [`Kernel::asid_bits`](crate::Kernel::asid_bits) returns.
    fn check(self, has_five_levels: bool, asid_bits: u32) -> Result<(), Setting> {
        const STORES: &str = "otherwise the kernel's stores change copy-on-write pages";
        const NX: &str = "otherwise bit 63 of an entry is reserved";
        const LEVELS: &str = "the processor walks another number of levels";
        const PCID: &str = "otherwise bit 63 of CR3 is reserved, and `asid_bits` is not 0";
        Setting::new("CR0.WP", 16, 1, STORES).check(self.cr0)?;
        Setting::new("EFER.NXE", 11, 1, NX).check(self.efer)?;
        Setting::new("CR4.LA57", 12, has_five_levels.into(), LEVELS).check(self.cr4)?;
        if asid_bits == 0 { Ok(()) } else { Setting::new("CR4.PCIDE", 17, 1, PCID).check(self.cr4) }
    }
}

/// Returns the value of CR3.
const fn cr3(node: PhysAddr, asid: Asid) -> usize {
    let keep = if asid.get() == 0 { 0 } else { 1 << 63 };
    node.get() | asid.get() as usize | keep
}

// The error code of a page fault, decoded: a table of the manual, which reads integers and needs no machine.
impl Access {
    /// Returns the access that the error code of a page fault (vector 14) describes: Intel SDM volume 3, 4.7, and for bit 31 AMD
    /// APM volume 2, 15.36.10.
    ///
    /// | bit | name | the fault |
    /// |-|-|-|
    /// | 0 | P | clear: no translation |
    /// | 1 | W/R | set: a store |
    /// | 2 | U/S | set: in user mode |
    /// | 3 | RSVD | an entry has a reserved bit: [`Reason::Entry`] |
    /// | 4 | I/D | an instruction fetch |
    /// | 5 | PK | [`Reason::ProtectionKey`] |
    /// | 6 | SS | an access to a shadow stack; if the page allows it, [`Reason::ShadowStack`] |
    /// | 7, 15, 31 | HLAT, SGX, RMP | [`Reason::Memory`] |
    ///
    /// A load in supervisor mode from a page that is present and the user's is refused by SMAP alone: [`Reason::UserPage`].
    pub const fn from_x86_64(error: u64) -> Self {
        const PRESENT: u64 = 1;
        const WRITE: u64 = 1 << 1;
        const USER: u64 = 1 << 2;
        const RESERVED: u64 = 1 << 3;
        const FETCH: u64 = 1 << 4;
        const KEY: u64 = 1 << 5;
        const SHADOW_STACK: u64 = 1 << 6;
        const OUTSIDE: u64 = 1 << 7 | 1 << 15 | 1 << 31;
        let right = match error & (FETCH | WRITE) {
            0 => Attr::READ,
            WRITE => Attr::WRITE,
            _ => Attr::EXEC,
        };
        let report = if error & OUTSIDE != 0 {
            Report::Refused(Reason::Memory)
        } else if error & RESERVED != 0 {
            Report::Refused(Reason::Entry)
        } else if error & PRESENT == 0 {
            Report::Absent
        } else if error & KEY != 0 {
            Report::Refused(Reason::ProtectionKey)
        } else if error & SHADOW_STACK != 0 {
            Report::Refused(Reason::ShadowStack)
        } else if error & (WRITE | USER | FETCH) == 0 {
            Report::Refused(Reason::UserPage)
        } else {
            Report::Fault
        };
        Self::reported_by(right, error & USER != 0, report)
    }
}
