//! What can be wrong with a trace.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a trace cannot be read, or not any further. Prints as one line that says what to do.
#[derive(Debug, Error)]
pub(crate) enum TraceError {
    /// The file cannot be opened.
    #[error("cannot open the trace `{}`: {error}; name a trace file, or make one with `tlblab capture`", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Reading failed.
    #[error("cannot read the trace: {0}")]
    Read(io::Error),
    /// The input is no trace of any kind that is read.
    #[error(
        "this is no trace: give a file made by `tlblab capture`, the output of valgrind's lackey or of DynamoRIO's view tool, or a trace of ChampSim's; plain, gz, xz or zst"
    )]
    NotATrace,
    /// The input is text as an editor of another system writes it.
    #[error(
        "the trace begins with a byte order mark, which lackey does not write: give its output as it is, or without that mark and in ASCII"
    )]
    ByteOrderMark,
    /// The input holds files.
    #[error("this is a tar archive: unpack it, and give the trace that is in it")]
    Archive,
    /// There is nothing in the trace.
    #[error("the trace holds no reference: capture anew")]
    NoReference,
    /// The file was written by a later version.
    #[error(
        "the trace has format version {found}, this program reads version {known}: update it, or capture anew"
    )]
    Version {
        /// The version in the file.
        found: u8,
        /// The only version known here.
        known: u8,
    },
    /// The input ends too early.
    #[error("the trace is cut off at byte {offset}: copy it again, or capture anew")]
    Truncated {
        /// Where in the (unpacked) trace it ends.
        offset: u64,
    },
    /// The input is damaged.
    #[error("the trace is corrupt at byte {offset} ({what}): copy it again, or capture anew")]
    Corrupt {
        /// Where in the (unpacked) trace that shows.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// A line of a text is malformed. The trace can be read on after it.
    #[error("line {line} (byte {offset}) is no line of {of}: `{text}`")]
    Line {
        /// The line, counted from 1.
        line: u64,
        /// Where in the (unpacked) text it begins.
        offset: u64,
        /// Whose text it is.
        of: &'static str,
        /// How it begins, control characters escaped.
        text: Box<str>,
    },
}

impl TraceError {
    /// Sorts an error of reading: the decompressors report what is wrong with their input as errors of their own.
    pub(super) fn from_read(error: io::Error, offset: u64) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated { offset },
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                Self::Corrupt { offset, what: "packed data" }
            }
            _ => Self::Read(error),
        }
    }
}
