//! The errors of assembling a handler.

use core::fmt;

use crate::features::Isa;

/// Why a handler cannot be assembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The code is longer than the space for it.
    TooLong {
        /// The number of words of the code.
        words: usize,
        /// The number of words that the space has.
        room: usize,
    },
    /// The CPU lacks an instruction.
    NoInstruction {
        /// Where, in words from the start of the code.
        word: usize,
        /// The instruction set that introduced the instruction.
        needs: Isa,
    },
    /// The CPU lacks the scratch register.
    NoKScratch {
        /// Its select.
        select: u8,
    },
    /// A value does not fit into its field of an instruction.
    TooWide {
        /// Where, in words from the start of the code.
        word: usize,
    },
    /// A branch does not reach its label.
    TooFar {
        /// Where, in words from the start of the code.
        word: usize,
    },
    /// A branch has no target.
    UnboundLabel {
        /// Where, in words from the start of the code.
        word: usize,
    },
    /// There are more labels or branches than the assembler can hold.
    TooManyLabels,
    /// An address is not in kseg0 (a block's may also be at the end of kseg3, a linear table's is in kseg2), or is not
    /// aligned as needed.
    BadAddress {
        /// The address.
        address: u32,
    },
    /// The handler does not support the table's geometry.
    Geometry,
    /// A reporting handler needs [`Write::Index`](crate::handler::Write::Index), because it must replace the entry that it
    /// has read.
    ReportNeedsIndex,
    /// The parts of the handler cannot be combined.
    Unsupported,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooLong { words, room } => write!(f, "the handler has {words} words, its place {room}"),
            Self::NoInstruction { word, needs } => write!(f, "word {word} is an instruction of {needs:?}"),
            Self::NoKScratch { select } => write!(f, "the CPU has no KScratch register {select}"),
            Self::TooWide { word } => write!(f, "an operand of word {word} does not fit its field"),
            Self::TooFar { word } => write!(f, "the branch in word {word} does not reach its target"),
            Self::UnboundLabel { word } => write!(f, "the branch in word {word} has no target"),
            Self::TooManyLabels => f.write_str("too many labels or branches"),
            Self::BadAddress { address } => write!(f, "{address:#x} is no aligned address in kseg0"),
            Self::Geometry => f.write_str("the table has a shape that the handler does not know"),
            Self::ReportNeedsIndex => {
                f.write_str("a handler that reports must write the entry that it has read")
            }
            Self::Unsupported => f.write_str("the parts of the handler do not go together"),
        }
    }
}

impl core::error::Error for Error {}
