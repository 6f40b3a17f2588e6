//! Armv8-A with a granule of 4, 16 or 64 KiB: each half of the addresses, with its own root.

use tlbkit_addr::{Asid, Attr, PhysAddr};
use tlbkit_pagetable::format::{Aarch64, Aarch64Of};
use tlbkit_pagetable::geometry::{Arm, Runs};
use tlbkit_shootdown::Hardware;

use super::Setting;
use crate::fault::{Reason, Report};
use crate::{Access, Base, BasePage, Machine, MultiLevel};

/// Armv8-A with `BITS` bits of address in one half and a granule of `1 << GRANULE` bytes.
///
/// | parameter | is | what the kernel sets, and what each CPU must have |
/// |-|-|-|
/// | `BITS` | 36 to 48; 52 with `WIDE` | TCR_EL1.T0SZ, or T1SZ, is [`TSZ`](Self::TSZ) |
/// | `GRANULE` | 12, 14 or 16: 4, 16 or 64 KiB, also the size of frames, and [what numbers them](crate::BasePage) | TG0, or TG1; ID_AA64MMFR0_EL1 says whether a CPU has the granule |
/// | `RUNS` | contiguous runs: 16, 32 or 128 pages, or blocks, that may share a TLB entry | - |
/// | `UPPER` | the half of `TTBR1_EL1`, whose addresses begin with ones, in place of that of `TTBR0_EL1` | TCR_EL1.A1 is 0 |
/// | `WIDE` | physical addresses of 52 bits | FEAT_LPA2 and TCR_EL1.DS, or, with 64 KiB, FEAT_LPA; for `BITS` 52 also FEAT_LVA. The nodes are [lower](crate::Kernel::take_frame) |
///
/// MAIR_EL1 is [`MAIR_EL1`](Self::MAIR_EL1) on each CPU, before it runs an address space: with another value, a page of
/// [`Attr::DEVICE`](crate::Attr::DEVICE) may be cached memory.
///
/// A root value has the ASID in bits 63 to 48. With `UPPER` there is no ASID: [`Kernel::load`] writes the value to `TTBR1_EL1`, and
/// [`Kernel::flush`] always gets `None`, so it invalidates for every ASID (`TLBI VAAE1`, `VMALLE1`). [`crate::arch`], "AArch64: two
/// halves", has the rest.
///
/// [`Kernel::load`]: crate::Kernel::load
/// [`Kernel::flush`]: crate::Kernel::flush
#[derive(Debug)]
pub struct AArch64Of<
    const BITS: u32,
    const GRANULE: u32,
    const RUNS: bool = false,
    const UPPER: bool = false,
    const WIDE: bool = false,
>;

/// Armv8-A with a 4 KiB granule and 48 bits of address, in the half of `TTBR0_EL1`.
pub type AArch64 = AArch64Of<48, 12>;

/// The kernel's half beside [`AArch64`]: a 4 KiB granule and 48 bits of address, in the half of `TTBR1_EL1`.
pub type AArch64Upper = AArch64Of<48, 12, false, true>;

/// [`AArch64`] with contiguous runs: pages of 64 KiB, 32 MiB and 16 GiB in addition to the others.
pub type AArch64Runs = AArch64Of<48, 12, true>;

/// Armv8-A with a 16 KiB granule, contiguous runs, and 47 bits of address, which three levels translate, in the half of `TTBR0_EL1`.
/// (48 bits, `AArch64Of<48, 14, true>`, have a fourth level, a root of two entries.)
pub type AArch64K16 = AArch64Of<47, 14, true>;

/// Armv8-A with a 64 KiB granule, contiguous runs, and 48 bits of address, in the half of `TTBR0_EL1`.
pub type AArch64K64 = AArch64Of<48, 16, true>;

impl<const BITS: u32, const GRANULE: u32, const RUNS: bool, const UPPER: bool, const WIDE: bool>
    AArch64Of<BITS, GRANULE, RUNS, UPPER, WIDE>
{
    /// The value that MAIR_EL1 must have: the memory types that entries name by their indices
    /// ([`format::Aarch64Of`](tlbkit_pagetable::format::Aarch64Of) lists them).
    pub const MAIR_EL1: u64 = Aarch64::MAIR;

    /// The value that TCR_EL1.T0SZ must have, or T1SZ with `UPPER`.
    pub const TSZ: u64 = 64 - BITS as u64;

    /// Checks what the control registers of a CPU hold, before the CPU runs an address space of this half: a kernel reads them and asserts
    /// this in its debug builds. `asid_bits` is what [`Kernel::asid_bits`] returns. Costs a few instructions.
    ///
    /// | register, or field of TCR_EL1 | must be | because |
    /// |-|-|-|
    /// | MAIR_EL1 | [`MAIR_EL1`](Self::MAIR_EL1) | entries name the fields by their numbers |
    /// | TCR_EL1.T0SZ, or T1SZ | [`TSZ`](Self::TSZ) | it is the width of the half |
    /// | TG0, or TG1 | that of `GRANULE` | |
    /// | EPD0, or EPD1 | 0 | otherwise each TLB miss faults |
    /// | IRGN0 and ORGN0, or 1 | write-back | otherwise a walk does not see stores that are in a cache |
    /// | SH0, or SH1 | shareable | the same with the caches of other CPUs |
    /// | A1 | 0 | TTBR0_EL1 has the ASID |
    /// | AS | 1, if `asid_bits` is more than 8 | otherwise two ASIDs are one |
    /// | DS | 1 with `WIDE` and a granule of 4 or 16 KiB, otherwise 0 | it is the format of the entries |
    ///
    /// # Errors
    ///
    /// The first [`Setting`] that differs.
    ///
    /// [`Kernel::asid_bits`]: crate::Kernel::asid_bits
    pub fn check(control: AArch64Control, asid_bits: u32) -> Result<(), Setting> {
        const WIDTH: &str = "it is the width of the addresses";
        const OFF: &str = "otherwise every TLB miss faults";
        const CACHED: &str = "otherwise walks do not see what is in a cache";
        const GRANULE_SIZE: &str = "it is the size of a page";
        const NUMBERS: &str = "TTBR0_EL1 has the ASID";
        const WIDE_NUMBERS: &str = "otherwise an ASID has 8 bits, and `asid_bits` is larger";
        const FORMAT: &str = "it is the format of the entries";
        const TYPES: &str = "entries name the types of memory by their numbers";
        let AArch64Control { mair, tcr } = control;
        let (half, granule_at) = if UPPER { (16, 30) } else { (0, 14) };
        let [tsz, epd, irgn, orgn, sh, tg] = if UPPER {
            ["T1SZ", "EPD1", "IRGN1[0]", "ORGN1[0]", "SH1[1]", "TG1"]
        } else {
            ["T0SZ", "EPD0", "IRGN0[0]", "ORGN0[0]", "SH0[1]", "TG0"]
        };
        let granule = match (GRANULE, UPPER) {
            (12, false) => 0,
            (12, true) | (14, false) => 2,
            (14, true) | (16, false) => 1,
            _ => 3,
        };
        Setting { field: "MAIR_EL1", mask: u64::MAX, value: Self::MAIR_EL1, reason: TYPES }.check(mair)?;
        let checks = [
            Setting::new(tsz, half, Self::TSZ, WIDTH).wide(6),
            Setting::new(epd, half + 7, 0, OFF),
            // Write-back is 01 or 11, shareable 10 or 11.
            Setting::new(irgn, half + 8, 1, CACHED),
            Setting::new(orgn, half + 10, 1, CACHED),
            Setting::new(sh, half + 13, 1, CACHED),
            Setting::new(tg, granule_at, granule, GRANULE_SIZE).wide(2),
            Setting::new("A1", 22, 0, NUMBERS),
            Setting::new("DS", 59, (WIDE && GRANULE < 16).into(), FORMAT),
        ];
        checks.into_iter().try_for_each(|setting| setting.check(tcr))?;
        if asid_bits > 8 { Setting::new("AS", 36, 1, WIDE_NUMBERS).check(tcr) } else { Ok(()) }
    }

    const ASIDS: u32 = {
        assert!(WIDE || BITS < 52, "addresses of 52 bits come with physical addresses of 52 bits");
        // TTBR0_EL1 has the ASID of both halves.
        if UPPER { 0 } else { 16 }
    };

    /// Returns the value of TTBR0_EL1 or TTBR1_EL1. Bits 51 to 48 of the root's address are in bits 5 to 2.
    const fn ttbr(node: PhysAddr, asid: Asid) -> usize {
        let low = node.get() & ((1 << 48) - 1);
        let high = if WIDE { node.get() >> 48 << 2 } else { 0 };
        (asid.get() as usize) << 48 | low | high
    }
}

/// What the control registers of an AArch64 CPU hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AArch64Control {
    /// MAIR_EL1.
    pub mair: u64,
    /// TCR_EL1.
    pub tcr: u64,
}

// SAFETY: Arm ARM D8.2: with TnSZ 64 - BITS, the levels of the geometry; D8.4: access flag and dirty state are updated atomically, only
// in an entry that still allows the access.
unsafe impl<const BITS: u32, const GRANULE: u32, const UPPER: bool, const WIDE: bool> Machine
    for AArch64Of<BITS, GRANULE, false, UPPER, WIDE>
where
    Base<GRANULE>: BasePage,
{
    type Geometry = Arm<BITS, GRANULE, UPPER>;
    type Format = Aarch64Of<GRANULE, false, false, WIDE>;
    type Table = MultiLevel;
    type Base = Base<GRANULE>;
    const HARDWARE: Hardware = Hardware::AARCH64_HAFDBS;
    const ASID_BITS: u32 = Self::ASIDS;
    const BY_ADDRESS: usize = 64;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        Self::ttbr(node, asid)
    }
}

// SAFETY: as without runs; D8.7: the contiguous bit says that entries continue each other, whether or not a TLB has one entry for them.
unsafe impl<const BITS: u32, const GRANULE: u32, const UPPER: bool, const WIDE: bool> Machine
    for AArch64Of<BITS, GRANULE, true, UPPER, WIDE>
where
    Base<GRANULE>: BasePage,
{
    type Geometry = Runs<Arm<BITS, GRANULE, UPPER>>;
    type Format = Aarch64Of<GRANULE, true, false, WIDE>;
    type Table = MultiLevel;
    type Base = Base<GRANULE>;
    const HARDWARE: Hardware = Hardware::AARCH64_HAFDBS;
    const ASID_BITS: u32 = Self::ASIDS;
    const BY_ADDRESS: usize = 64;

    #[inline]
    fn root(node: PhysAddr, asid: Asid) -> usize {
        Self::ttbr(node, asid)
    }
}

// `ESR_EL1`, decoded: a table of the manual, which reads integers and needs no machine.
impl Access {
    /// Returns the access that `ESR_EL1` describes; `None` if the exception is no instruction abort and no data abort. Arm ARM
    /// D24.2.40, "ISS encoding for an exception from a Data Abort" and "from an Instruction Abort".
    ///
    /// | field | bits | the access |
    /// |-|-|-|
    /// | EC | 31 to 26 | 0x20, 0x21: a fetch; 0x24, 0x25: a load or a store. The even ones are from a lower exception level: user mode |
    /// | WnR | 6 | a store, unless CM is set |
    /// | CM | 8 | a cache maintenance instruction, which needs what a load needs |
    /// | S1PTW | 7 | the hypervisor's table has no translation for a node: [`Reason::Memory`] |
    /// | Overlay, GCS | 38, 40 | with a permission fault: [`Reason::ProtectionKey`], [`Reason::ShadowStack`] |
    ///
    /// | fault status code, bits 5 to 0 | fault | |
    /// |-|-|-|
    /// | 0x00 to 0x03, 0x29, 0x2c | address size | [`Reason::Entry`] |
    /// | 0x04 to 0x07, 0x2a, 0x2b | translation | |
    /// | 0x08 to 0x0b, 0x0c to 0x0f | access flag, permission | |
    /// | 0x10, 0x12 to 0x17 | synchronous external abort | [`Reason::Memory`] |
    /// | 0x18, 0x1b to 0x1f | parity or ECC error | [`Reason::Memory`] |
    /// | 0x21 | alignment | [`Reason::Alignment`] |
    /// | 0x22 to 0x28 | granule protection | [`Reason::Memory`] |
    /// | 0x30 | TLB conflict | a flush of everything is the answer, once |
    /// | 0x31 | the memory cannot be updated by the walker | [`Reason::Memory`] |
    /// | others | tag check, lockdown, ... | [`Reason::Unknown`] |
    pub const fn from_aarch64(esr: u64) -> Option<Self> {
        const WRITE: u64 = 1 << 6;
        const WALK_BY_STAGE_2: u64 = 1 << 7;
        const CACHE: u64 = 1 << 8;
        const OVERLAY: u64 = 1 << 38;
        const GUARDED_STACK: u64 = 1 << 40;
        let (user, is_fetch) = match esr >> 26 & 0x3f {
            0x20 => (true, true),
            0x21 => (false, true),
            0x24 => (true, false),
            0x25 => (false, false),
            _ => return None,
        };
        let right = match esr & (WRITE | CACHE) {
            _ if is_fetch => Attr::EXEC,
            WRITE => Attr::WRITE,
            _ => Attr::READ,
        };
        let report = match esr & 0x3f {
            _ if esr & WALK_BY_STAGE_2 != 0 => Report::Refused(Reason::Memory),
            0x00..=0x03 | 0x29 | 0x2c => Report::Refused(Reason::Entry),
            0x04..=0x07 | 0x2a | 0x2b => Report::Absent,
            0x0c..=0x0f if !is_fetch && esr & GUARDED_STACK != 0 => Report::Refused(Reason::ShadowStack),
            0x0c..=0x0f if esr & OVERLAY != 0 => Report::Refused(Reason::ProtectionKey),
            0x08..=0x0f => Report::Fault,
            0x10 | 0x12..=0x18 | 0x1b..=0x1f | 0x22..=0x28 | 0x31 => Report::Refused(Reason::Memory),
            0x21 => Report::Refused(Reason::Alignment),
            0x30 => Report::Conflict,
            _ => Report::Refused(Reason::Unknown),
        };
        Some(Self::reported_by(right, user, report))
    }
}
