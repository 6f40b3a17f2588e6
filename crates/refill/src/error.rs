//! Why there is no handler.

use core::fmt;

use crate::features::Isa;

/// Why a handler cannot be assembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The code is longer than its place.
    TooLong {
        /// How many words it has.
        words: usize,
        /// How many words there is room for.
        room: usize,
    },
    /// The CPU lacks an instruction.
    NoInstruction {
        /// Where, in words from the start of the code.
        word: usize,
        /// What brought the instruction.
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
    /// More labels or branches than the assembler can keep.
    TooManyLabels,
    /// The address must be that of a word in kseg0, or a multiple of something larger; a block's may be at the end of kseg3.
    BadAddress {
        /// The address.
        address: u32,
    },
    /// The table has a shape that the handler does not know.
    Geometry,
    /// The replaced entry must be the one that was read: that takes [`Write::Index`](crate::handler::Write::Index).
    ReportNeedsIndex,
    /// The parts of the handler do not go together.
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
