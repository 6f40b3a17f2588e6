//! Names of registers.

/// A general register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reg(u8);

/// Register 0, which reads as zero.
pub const ZERO: Reg = Reg(0);
/// The first register that belongs to exception handlers.
pub const K0: Reg = Reg(26);
/// The second and last register that belongs to exception handlers.
pub const K1: Reg = Reg(27);

impl Reg {
    /// Returns the register with this number, below 32.
    pub(super) const fn from_number(number: u8) -> Self {
        Self(number)
    }

    /// Returns the register's number, below 32.
    pub const fn number(self) -> u32 {
        self.0 as u32
    }
}

/// A register of coprocessor 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cp0 {
    /// The index of the TLB entry that `tlbr` reads and `tlbwi` writes. Bit 31 is set after a `tlbp` that found no entry.
    Index,
    /// The index of the TLB entry that `tlbwr` writes. It changes with every instruction, and is never that of a wired
    /// entry.
    Random,
    /// The frame and rights of a pair's even page.
    EntryLo0,
    /// The frame and rights of a pair's odd page.
    EntryLo1,
    /// PTEBase, which the kernel writes, in the high bits; below it the number of the pair of pages that missed, times 16.
    Context,
    /// The size of the two pages.
    PageMask,
    /// The number of wired entries, from index 0, which `tlbwr` never writes.
    Wired,
    /// The address that missed.
    BadVAddr,
    /// The number of the pair of pages that missed, and the ASID.
    EntryHi,
    /// The CPU's mode and interrupt masks.
    Status,
    /// The cause of the exception.
    Cause,
    /// The address of the instruction at which the exception was taken.
    Epc,
    /// As Context, for 64-bit addresses.
    XContext,
    /// As EPC, for resets, NMIs and cache errors.
    ErrorEpc,
    /// One of the kernel's scratch registers, select 2 to 7 of register 31.
    KScratch(u8),
}

impl Cp0 {
    /// Returns the register's number and select.
    pub const fn number(self) -> (u32, u32) {
        match self {
            Self::Index => (0, 0),
            Self::Random => (1, 0),
            Self::EntryLo0 => (2, 0),
            Self::EntryLo1 => (3, 0),
            Self::Context => (4, 0),
            Self::PageMask => (5, 0),
            Self::Wired => (6, 0),
            Self::BadVAddr => (8, 0),
            Self::EntryHi => (10, 0),
            Self::Status => (12, 0),
            Self::Cause => (13, 0),
            Self::Epc => (14, 0),
            Self::XContext => (20, 0),
            Self::ErrorEpc => (30, 0),
            Self::KScratch(select) => (31, select as u32 & 7),
        }
    }

    /// Returns the register with this number and select, if this type has it.
    pub const fn from_number(number: u32, select: u32) -> Option<Self> {
        Some(match (number, select) {
            (0, 0) => Self::Index,
            (1, 0) => Self::Random,
            (2, 0) => Self::EntryLo0,
            (3, 0) => Self::EntryLo1,
            (4, 0) => Self::Context,
            (5, 0) => Self::PageMask,
            (6, 0) => Self::Wired,
            (8, 0) => Self::BadVAddr,
            (10, 0) => Self::EntryHi,
            (12, 0) => Self::Status,
            (13, 0) => Self::Cause,
            (14, 0) => Self::Epc,
            (20, 0) => Self::XContext,
            (30, 0) => Self::ErrorEpc,
            (31, 2..=7) => Self::KScratch(select as u8),
            _ => return None,
        })
    }
}
