//! The recorded trace's file format, version 1.
//!
//! ```text
//! file    magic "TLBTRACE"  version u8  page shift u8            ┐
//!         instructions u64  references u64  runs u64  pages u64  │ header
//!         length u32 of what follows: program, 0, argument, 0 …  │
//!         CRC-32 u32 of all the above                            ┘
//!         block …  block, the last with length 0
//! block   length u32 of the data  CRC-32 u32 of the data  data: runs, at most 4 MB of them, as LZMA2
//! run     ┌───────────────┬───────┬─────────┐
//!         │ 7 … 4 repeats │ moved │ 2…0 kind│  more repeats   distance
//!         └───────────────┴───────┴─────────┘  (LEB128)       (zigzag LEB128)
//! ```
//!
//! Integers are little-endian. A run is one [`Access`]: `count - 1` repeats, of which 15 means that the number less
//! 15 follows; `moved` says that the page differs from the last page of the same stream (instructions, or data), by
//! the distance that follows, in pages, modulo 2^64. Both streams start at page 0 and go on from block to block.
//! Loops make long repeats of a few bytes, which LZMA2 finds across a whole block (deflate's window of 32 KB made
//! files two to three times as long): a reference costs some hundredths of a byte.
//!
//! Every byte is under a checksum or decides where one is looked for, the last block marks the end, and the counts of
//! the header must come out: a truncated or damaged file is an error, never a different trace.

use tlbkit_addr::{PageSize, Vpn};

use super::{Access, Kind};

/// The first bytes of every recorded trace.
pub(super) const MAGIC: &[u8; 8] = b"TLBTRACE";

/// The version of the format.
pub(super) const VERSION: u8 = 1;

/// The length of the header before the program and its arguments.
pub(super) const FIXED: usize = 8 + 1 + 1 + 4 * 8 + 4;

/// The most bytes of runs in a block, and the size of the dictionary that unpacks it.
pub(super) const BLOCK: usize = 4 << 20;

/// The most bytes that the program and its arguments may take: Linux's own limit is 128 KB an argument.
pub(super) const COMMAND: usize = 4 << 20;

/// What a recorded trace says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The program, as it was called.
    pub(crate) program: String,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// The page size that page numbers count in.
    pub(crate) page: PageSize,
    /// What the trace holds.
    pub(crate) counts: Counts,
}

/// How much a trace holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Instructions begun.
    pub(crate) instructions: u64,
    /// References of all kinds, fetches included.
    pub(crate) references: u64,
    /// Runs of references of one kind to one page: the items that a reader yields.
    pub(crate) runs: u64,
    /// Different pages.
    pub(crate) pages: u64,
}

impl Counts {
    /// Counts a run; its page is the caller's to count.
    pub(crate) fn add(&mut self, access: &Access) {
        self.instructions += access.instructions();
        self.references += u64::from(access.count);
        self.runs += 1;
    }
}

impl Header {
    /// Returns the header of a trace of `program` that has not been recorded yet.
    pub(crate) fn new(program: &str, args: &[String], page: PageSize) -> Self {
        // A zero byte ends an argument, in the file as in the system call that starts a program.
        let clean = |text: &str| text.replace('\0', "\u{fffd}");
        Self {
            program: clean(program),
            args: args.iter().map(|arg| clean(arg)).collect(),
            page,
            counts: Counts::default(),
        }
    }

    /// Returns the header's bytes. Their number does not depend on the counts.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut command = Vec::new();
        for word in std::iter::once(&self.program).chain(&self.args) {
            command.extend(word.bytes().chain([0]));
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend([VERSION, self.page.shift() as u8]);
        let Counts { instructions, references, runs, pages } = self.counts;
        for count in [instructions, references, runs, pages] {
            bytes.extend(count.to_le_bytes());
        }
        bytes.extend((command.len() as u32).to_le_bytes());
        bytes.extend(command);
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// Reads the fields of a header whose checksum holds: the fixed part after the version, and the command.
    pub(super) fn decode(fixed: &[u8; FIXED], command: &[u8]) -> Result<Self, &'static str> {
        let count = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| fixed[10 + 8 * at + i]));
        let page = PageSize::from_shift(fixed[9].into()).ok_or("page size")?;
        let command = command.strip_suffix(&[0]).ok_or("program")?;
        let mut words =
            command.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        Ok(Self {
            program: words.next().ok_or("program")?,
            args: words.collect(),
            page,
            counts: Counts { instructions: count(0), references: count(1), runs: count(2), pages: count(3) },
        })
    }
}

/// Turns runs into bytes and back, each relative to those before.
#[derive(Debug, Default)]
pub(super) struct Coder {
    /// The last page of the instruction stream and of the data stream.
    last: [u64; 2],
}

const MOVED: u8 = 1 << 3;

impl Coder {
    /// Appends `access` to `bytes`.
    pub(super) fn encode(&mut self, access: &Access, bytes: &mut Vec<u8>) {
        let page = access.page.get() as u64;
        let last = &mut self.last[usize::from(!access.kind.is_fetch())];
        let distance = page.wrapping_sub(*last) as i64;
        *last = page;
        let repeats = access.count - 1;
        let moved = if distance == 0 { 0 } else { MOVED };
        bytes.push(access.kind as u8 | moved | (repeats.min(15) as u8) << 4);
        if repeats >= 15 {
            put(u64::from(repeats) - 15, bytes);
        }
        if distance != 0 {
            put((distance << 1 ^ distance >> 63) as u64, bytes);
        }
    }

    /// Takes the next run off the front of `bytes`, page numbers of at most `bits` bits.
    pub(super) fn decode(&mut self, bytes: &mut &[u8], bits: u32) -> Result<Access, &'static str> {
        let (&first, rest) = bytes.split_first().ok_or("run")?;
        *bytes = rest;
        let kind = match first & 7 {
            0 => Kind::Instr,
            1 => Kind::Rest,
            2 => Kind::Load,
            3 => Kind::Store,
            4 => Kind::Modify,
            _ => return Err("kind of reference"),
        };
        let mut count = u64::from(first >> 4) + 1;
        if count == 16 {
            count = take(bytes)?.checked_add(16).ok_or("repeats")?;
        }
        let last = &mut self.last[usize::from(!kind.is_fetch())];
        if first & MOVED != 0 {
            let zigzag = take(bytes)?;
            *last = last.wrapping_add(zigzag >> 1 ^ (zigzag & 1).wrapping_neg());
        }
        if last.checked_shr(bits).is_some_and(|beyond| beyond != 0) {
            return Err("page number");
        }
        let page = usize::try_from(*last).map_err(|_| "page number")?;
        Ok(Access { kind, page: Vpn::new(page), count: u32::try_from(count).map_err(|_| "repeats")? })
    }
}

/// Appends `value`, seven bits a byte, the lowest first, the top bit set in all but the last.
fn put(mut value: u64, bytes: &mut Vec<u8>) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn take(bytes: &mut &[u8]) -> Result<u64, &'static str> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or("number")?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return if shift == 63 && byte > 1 { Err("number") } else { Ok(value) };
        }
    }
    Err("number")
}
