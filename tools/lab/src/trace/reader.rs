//! Reading a recorded trace.

use std::io::Read;

use lzma_rust2::Lzma2Reader;

use super::format::{BLOCK, COMMAND, Coder, FIXED, MAGIC, VERSION};
use super::{Access, Counts, Header, TraceError};

/// Streams the accesses of a recorded trace: an iterator that ends after the first error.
///
/// Holds one block at a time, and hands out nothing of a block whose checksum does not hold.
#[derive(Debug)]
pub(crate) struct Reader<R: Read> {
    input: R,
    header: Header,
    offset: u64,
    coder: Coder,
    packed: Vec<u8>,
    block: Vec<u8>,
    at: usize,
    seen: Counts,
    done: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header of the trace that begins with the next byte of `input`.
    ///
    /// # Errors
    ///
    /// If the input is no trace, of another version, cut off in the header, or damaged there.
    pub(crate) fn new(mut input: R) -> Result<Self, TraceError> {
        let mut offset = 0;
        let mut fixed = [0; FIXED];
        let (magic, rest) = fixed.split_at_mut(MAGIC.len() + 1);
        fill(&mut input, magic, &mut offset)?;
        if !magic.starts_with(MAGIC) {
            return Err(TraceError::NotATrace);
        }
        if magic[MAGIC.len()] != VERSION {
            return Err(TraceError::Version { found: magic[MAGIC.len()], known: VERSION });
        }
        fill(&mut input, rest, &mut offset)?;
        let length = u32::from_le_bytes(std::array::from_fn(|i| fixed[FIXED - 4 + i])) as usize;
        if length > COMMAND {
            return Err(TraceError::Corrupt { offset, what: "length of the command" });
        }
        let mut command = vec![0; length];
        fill(&mut input, &mut command, &mut offset)?;
        let mut sum = crc32fast::Hasher::new();
        sum.update(&fixed);
        sum.update(&command);
        if number(&mut input, &mut offset)? != sum.finalize() {
            return Err(TraceError::Corrupt { offset, what: "header" });
        }
        let header = Header::decode(&fixed, &command).map_err(|what| TraceError::Corrupt { offset, what })?;
        Ok(Self {
            input,
            header,
            offset,
            coder: Coder::default(),
            packed: Vec::new(),
            block: Vec::new(),
            at: 0,
            seen: Counts::default(),
            done: false,
        })
    }

    /// Returns what the trace says about itself.
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the next access, or `None` at the end.
    fn step(&mut self) -> Result<Option<Access>, TraceError> {
        if self.at == self.block.len() && !self.next_block()? {
            return Ok(None);
        }
        let mut rest = &self.block[self.at..];
        let bits = u64::BITS - self.header.page.shift();
        let access = self.coder.decode(&mut rest, bits).map_err(|what| self.corrupt(what))?;
        self.at = self.block.len() - rest.len();
        self.seen.add(&access);
        Ok(Some(access))
    }

    /// Unpacks the next block, and tells whether there was one.
    fn next_block(&mut self) -> Result<bool, TraceError> {
        let length = number(&mut self.input, &mut self.offset)? as usize;
        if length == 0 {
            return self.end();
        }
        // What cannot be packed is stored, with a few bytes more.
        if length > BLOCK + BLOCK / 16 {
            return Err(self.corrupt("length of a block"));
        }
        let sum = number(&mut self.input, &mut self.offset)?;
        self.packed.resize(length, 0);
        fill(&mut self.input, &mut self.packed, &mut self.offset)?;
        if crc32fast::hash(&self.packed) != sum {
            return Err(self.corrupt("checksum of a block"));
        }
        self.block.clear();
        self.at = 0;
        let unpacked = Lzma2Reader::new(&self.packed[..], BLOCK as u32, None)
            .take(BLOCK as u64 + 1)
            .read_to_end(&mut self.block);
        if unpacked.is_err() || self.block.is_empty() || self.block.len() > BLOCK {
            return Err(self.corrupt("packed block"));
        }
        Ok(true)
    }

    /// Checks that the end is where the header says it is.
    fn end(&mut self) -> Result<bool, TraceError> {
        let expected = Counts { pages: 0, ..self.header.counts };
        if self.seen != expected {
            return Err(self.corrupt("counts"));
        }
        match self.input.read(&mut [0]) {
            Ok(0) => Ok(false),
            Ok(_) => Err(self.corrupt("data after the end")),
            Err(error) => Err(TraceError::from_read(error, self.offset)),
        }
    }

    fn corrupt(&self, what: &'static str) -> TraceError {
        TraceError::Corrupt { offset: self.offset, what }
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Access, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = self.step();
        self.done = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

/// Fills `bytes` from `input` and counts them.
fn fill(input: &mut impl Read, bytes: &mut [u8], offset: &mut u64) -> Result<(), TraceError> {
    input.read_exact(bytes).map_err(|error| TraceError::from_read(error, *offset))?;
    *offset += bytes.len() as u64;
    Ok(())
}

fn number(input: &mut impl Read, offset: &mut u64) -> Result<u32, TraceError> {
    let mut bytes = [0; 4];
    fill(input, &mut bytes, offset)?;
    Ok(u32::from_le_bytes(bytes))
}
