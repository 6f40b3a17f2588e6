//! Reading a trace of ChampSim's: one record for each instruction, and nothing else.
//!
//! ```text
//! 0    8     9     10            12          16                         32                    64
//! | ip | is  | was | registers   | registers | addresses that it stores | addresses that it   |
//! |    | a   | ta- | that it     | that it   | to, two                  | loads from, four    |
//! |    | branch ken| writes, two | reads, 4  |                          |                     |
//! ```
//!
//! Numbers have the low byte first; an address of zero is none. A record has no sizes: each reference is to the page of its address.

use std::collections::VecDeque;
use std::io::{self, Read};

use tlbkit_addr::{PageSize, VirtAddr};

use super::{Access, Kind, TraceError};

/// The bytes of a record.
const RECORD: usize = 64;
/// The bytes of the first address of the program's stores, and of its loads.
const STORES: usize = 16;
const LOADS: usize = 32;

fn address(record: &[u8], at: usize) -> usize {
    u64::from_le_bytes(std::array::from_fn(|byte| record[at + byte])) as usize
}

fn addresses(record: &[u8], from: usize, to: usize) -> impl Iterator<Item = usize> {
    (from..to).step_by(8).map(|at| address(record, at)).filter(|&at| at != 0)
}

/// Tells whether data begins with records: the format has no mark, but in each a few bytes can have one of few values.
pub(super) fn is_champsim(head: &[u8]) -> bool {
    // The upper bits of an address are equal.
    let is_address = |at: usize| matches!(at as isize >> 47, 0 | -1);
    let is_record = |record: &[u8]| {
        address(record, 0) != 0
            && is_address(address(record, 0))
            && record[8..10].iter().all(|&flag| flag <= 1)
            && addresses(record, STORES, RECORD).all(is_address)
    };
    head.len() >= RECORD && head.chunks_exact(RECORD).all(is_record)
}

/// Streams the accesses of a trace of ChampSim's. It ends after the first error.
#[derive(Debug)]
pub(crate) struct ChampSim<R: Read> {
    input: R,
    offset: u64,
    /// Those of the last record that are still to come.
    next: VecDeque<Access>,
    done: bool,
}

impl<R: Read> ChampSim<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, offset: 0, next: VecDeque::new(), done: false }
    }

    /// Reads a record; false at the end.
    fn record(&mut self) -> Result<bool, TraceError> {
        let (mut record, mut had) = ([0; RECORD], 0);
        while had < RECORD {
            match self.input.read(&mut record[had..]) {
                Ok(0) if had == 0 => return Ok(false),
                Ok(0) => return Err(TraceError::Truncated { offset: self.offset }),
                Ok(read) => (had, self.offset) = (had + read, self.offset + read as u64),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(TraceError::from_read(error, self.offset)),
            }
        }
        let access = |kind, at| Access { kind, count: 1, page: VirtAddr::new(at).vpn(PageSize::K4) };
        self.next.push_back(access(Kind::Instr, address(&record, 0)));
        let (loads, stores) = (addresses(&record, LOADS, RECORD), addresses(&record, STORES, LOADS));
        let (loads, stores): (Vec<_>, Vec<_>) = (loads.collect(), stores.collect());
        let alone = loads.iter().filter(|at| !stores.contains(at));
        self.next.extend(alone.map(|&at| access(Kind::Load, at)));
        let kind = |at: &usize| if loads.contains(at) { Kind::Modify } else { Kind::Store };
        self.next.extend(stores.iter().map(|at| access(kind(at), *at)));
        Ok(true)
    }
}

impl<R: Read> Iterator for ChampSim<R> {
    type Item = Result<Access, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next.is_empty() && !self.done {
            match self.record() {
                Ok(more) => self.done = !more,
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            }
        }
        self.next.pop_front().map(Ok)
    }
}
