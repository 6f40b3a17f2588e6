//! The features of a CPU that its refill handler depends on.

/// The instructions that a CPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// MIPS III, 64 bits: the paper's R4700.
    Mips3,
    /// MIPS32 release 1: no bit-field instructions, and a program waits for hazards by cycles.
    R1,
    /// MIPS32 release 2 and later, but not 6: bit-field instructions, rotation, `ehb`.
    R2,
}

/// The order of the bytes in a word.
///
/// A handler that loads only words is the same in both orders; 64-bit handlers also load double words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endian {
    /// The lowest byte first.
    Little,
    /// The highest byte first.
    Big,
}

/// The features of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The instructions that the CPU has.
    pub isa: Isa,
    /// The byte order.
    pub endian: Endian,
    /// The set of KScratch registers, with bit n for select n: the field KScrExist of Config4.
    pub kscratch: u8,
}

impl Features {
    /// 4Kc: release 1.
    pub const R1: Self = Self { isa: Isa::R1, endian: Endian::Little, kscratch: 0 };
    /// 24Kf, 34Kf, 74Kf: release 2 without scratch registers.
    pub const R2: Self = Self { isa: Isa::R2, ..Self::R1 };
    /// P5600: release 2 and later, with KScratch1 to KScratch3.
    pub const P5600: Self = Self { kscratch: 0b1_1100, ..Self::R2 };
    /// R4000 and R4700.
    pub const MIPS3: Self = Self { isa: Isa::Mips3, ..Self::R1 };

    /// Returns the same CPU with the given byte order.
    pub const fn with_endian(self, endian: Endian) -> Self {
        Self { endian, ..self }
    }

    /// Tells whether the CPU has the KScratch register with this select.
    pub const fn has_kscratch(&self, select: u8) -> bool {
        select < 8 && self.kscratch >> select & 1 != 0
    }
}
