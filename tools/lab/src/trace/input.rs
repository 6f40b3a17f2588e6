//! Opening a trace, whatever it is and wherever it comes from.

use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::str::FromStr;

use flate2::bufread::MultiGzDecoder;
use indicatif::ProgressBar;
use lzma_rust2::XzReader;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use tlbkit_addr::PageSize;

use super::champsim::{ChampSim, is_champsim};
use super::dynamorio::is_view;
use super::format::MAGIC;
use super::{Access, Header, Reader, Text, TraceError};

/// Where a trace comes from: a file, or standard input (`-` on the command line).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// Standard input.
    Stdin,
    /// A file.
    File(PathBuf),
}

impl FromStr for Input {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "-" { Self::Stdin } else { Self::File(text.into()) })
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdin => f.write_str("-"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

type Source = Box<dyn BufRead>;

/// The accesses of a trace, one by one. After a [`TraceError::Line`] it can be read on; after any other error it
/// ends.
pub(crate) enum Trace {
    /// A recorded trace.
    Recorded(Reader<Source>),
    /// A text.
    Text(Text<Source>),
    /// ChampSim's records.
    ChampSim(ChampSim<Source>),
}

impl Trace {
    /// Returns what a recorded trace says about itself; the others say nothing.
    pub(crate) fn header(&self) -> Option<&Header> {
        match self {
            Self::Recorded(reader) => Some(reader.header()),
            Self::Text(_) | Self::ChampSim(_) => None,
        }
    }

    /// Returns the accesses as they were recorded, and the size of what they count in.
    pub(crate) fn raw(&mut self) -> (PageSize, &mut dyn Iterator<Item = Result<Access, TraceError>>) {
        match self {
            Self::Recorded(reader) => (reader.header().page, reader),
            Self::Text(text) => (PageSize::K4, text),
            Self::ChampSim(records) => (PageSize::K4, records),
        }
    }
}

impl Iterator for Trace {
    type Item = Result<Access, TraceError>;

    /// Returns the next access, to a page of 4 KB also in a trace of lines.
    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (unit, access) = match self {
            Self::Recorded(reader) => (reader.header().page, reader.next()?),
            Self::Text(text) => return text.next(),
            Self::ChampSim(records) => return records.next(),
        };
        Some(access.map(|access| Access { page: access.page.address(unit).vpn(PageSize::K4), ..access }))
    }
}

/// Opens a trace of any kind, plain or packed by gzip, xz or zstd, whatever its name.
///
/// `progress` advances with the bytes read, out of the file's length where that is known.
///
/// # Errors
///
/// [`TraceError::Open`] if there is no such file; otherwise what the beginning of the trace has wrong with it.
pub(crate) fn open(input: &Input, progress: &ProgressBar) -> Result<Trace, TraceError> {
    match input {
        Input::Stdin => read(progress.wrap_read(io::stdin())),
        Input::File(path) => {
            let failed = |error| TraceError::Open { path: path.clone(), error };
            let file = File::open(path).map_err(failed)?;
            let about = file.metadata().map_err(failed)?;
            if about.is_dir() {
                return Err(failed(io::ErrorKind::IsADirectory.into()));
            }
            if about.is_file() {
                progress.set_length(about.len());
            }
            read(progress.wrap_read(file))
        }
    }
}

/// Reads a trace from `input`.
///
/// # Errors
///
/// What the beginning of the trace has wrong with it.
pub(crate) fn read(input: impl Read + 'static) -> Result<Trace, TraceError> {
    let (head, source) = unpacked(input)?;
    match head.first() {
        _ if head.get(USTAR..).is_some_and(|field| field.starts_with(b"ustar")) => Err(TraceError::Archive),
        _ if MARKS.iter().any(|mark| head.starts_with(mark)) => Err(TraceError::ByteOrderMark),
        _ if is_champsim(&head) => Ok(Trace::ChampSim(ChampSim::new(source))),
        _ if is_view(&head) => Ok(Trace::Text(Text::dynamorio(source))),
        // A recorded trace, or the few bytes that are left of one.
        Some(&byte) if byte == MAGIC[0] => Reader::new(source).map(Trace::Recorded),
        Some(b'I' | b' ' | b'=' | b'-' | b'\n' | b'\r') => {
            Ok(Trace::Text(Text::lackey(source, PageSize::K4)))
        }
        _ => Err(TraceError::NotATrace),
    }
}

/// Where a tar archive says what it is.
const USTAR: usize = 257;

/// Byte order marks: of UTF-8, and of UTF-16 in either order.
const MARKS: [&[u8]; 3] = [&[0xef, 0xbb, 0xbf], &[0xff, 0xfe], &[0xfe, 0xff]];

/// Returns the first few bytes of what `input` is, plain or packed by gzip, xz or zstd, and a reader of it.
///
/// # Errors
///
/// If its beginning cannot be read.
pub(crate) fn unpacked(input: impl Read + 'static) -> Result<(Vec<u8>, Box<dyn BufRead>), TraceError> {
    let (head, packed) = sniff(input)?;
    sniff(if head.starts_with(&[0x1f, 0x8b]) {
        Box::new(MultiGzDecoder::new(packed))
    } else if head.starts_with(&[0xfd, b'7', b'z', b'X', b'Z', 0]) {
        Box::new(XzReader::new(packed, true)) as Box<dyn Read>
    } else if head.starts_with(&ZSTD) {
        Box::new(Frames { packed: Some(packed), frame: None }) as Box<dyn Read>
    } else {
        packed
    })
}

/// How a frame of zstd's begins.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// What frames of zstd's hold, one after the other.
struct Frames {
    /// What follows, between two frames.
    packed: Option<Source>,
    frame: Option<StreamingDecoder<Source, FrameDecoder>>,
}

impl Read for Frames {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                match frame.read(into) {
                    Ok(0) if !into.is_empty() => {
                        self.packed = self.frame.take().map(StreamingDecoder::into_inner);
                    }
                    Ok(read) => return Ok(read),
                    Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
                }
            }
            let Some(mut packed) = self.packed.take() else { return Ok(0) };
            if packed.fill_buf()?.is_empty() {
                return Ok(0);
            }
            let frame = StreamingDecoder::new(packed);
            self.frame = Some(frame.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?);
        }
    }
}

/// Returns the first few bytes of `input`, and a reader that still has them.
fn sniff(mut input: impl Read + 'static) -> Result<(Vec<u8>, Source), TraceError> {
    let mut head = Vec::new();
    input
        .by_ref()
        .take(USTAR as u64 + 5)
        .read_to_end(&mut head)
        .map_err(|error| TraceError::from_read(error, 0))?;
    let source = io::Cursor::new(head.clone()).chain(input);
    Ok((head, Box::new(BufReader::with_capacity(1 << 16, source))))
}
