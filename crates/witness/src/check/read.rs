//! Reads a recorder's log from a machine's memory.

use core::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::vec;
use std::vec::Vec;

use crate::event::{CPUS, Event};
use crate::record::{self, NESTED};

/// The words of an event; the first is its number.
const SLOT: usize = 5;

/// The place and the type of a [`Recorder`](crate::Recorder) in the memory of a machine, which is little-endian.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The offset of the recorder's first byte in the memory.
    pub at: u64,
    /// The bytes of the machine's word: 4 or 8.
    pub word: usize,
    /// The recorder's `CPUS`.
    pub cpus: usize,
    /// The recorder's `EVENTS`.
    pub events: usize,
}

/// The events of a recorder.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// The events in their order, each with its CPU, as [`Recorder::events`](crate::Recorder::events) returns them.
    pub events: Vec<(usize, Event)>,
    /// The number of events that have a number and are not in the record, before and after the last recorded one: their CPUs, interrupts
    /// or threads were recording when the machine stopped.
    pub missing: u64,
}

/// The reason why no log was read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Unread {
    /// The file could not be read; [`io::ErrorKind::UnexpectedEof`] if the recorder extends beyond the memory.
    File(io::Error),
    /// No recorder has such words, or so many CPUs or events.
    NoPlace,
    /// There is no event: the recorder has recorded nothing, or is elsewhere.
    Nothing,
    /// The memory holds no record of a recorder of this type.
    NoRecorder(&'static str),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(why) => why.fmt(f),
            Self::NoPlace => f.write_str("no recorder has such words, or so many CPUs or events"),
            Self::Nothing => f.write_str("no event has been recorded at this address"),
            Self::NoRecorder(why) => write!(f, "there is no recorder at this address: {why}"),
        }
    }
}

impl core::error::Error for Unread {}

impl From<io::Error> for Unread {
    fn from(why: io::Error) -> Self {
        Self::File(why)
    }
}

/// Reads the events of a recorder from a file that holds a machine's memory.
///
/// The log can be read whenever the machine has stopped, for whatever reason. If a CPU was recording an event at that moment, the event
/// is left out, and the later events of other CPUs are kept: that CPU did nothing more that they could have seen.
/// [`Recorded::missing`] counts the events that are left out. A kernel whose threads may be preempted while they record should have
/// none. If the recorder was full, the log ends before the first missing event, with [`Event::Full`].
///
/// Costs a sort of the events. Reads only the part of the memory that holds recorded events.
///
/// # Errors
///
/// [`Unread`]. A recorder has no magic number, because memory that is all zero is a recorder. So this function checks that each event is
/// one that a recorder writes, and that the events' numbers are those that the recorder has given out.
pub fn read(memory: &mut (impl Read + Seek), place: Place) -> Result<Recorded, Unread> {
    let Place { at, word, cpus, events } = place;
    let log =
        log_bytes(word, events).filter(|_| matches!(word, 4 | 8) && cpus <= CPUS).ok_or(Unread::NoPlace)?;
    let begin = |cpu: usize| {
        let before = log.checked_mul(cpu as u64)?.checked_add(64)?;
        at.checked_add(before)
    };
    let taken = words(memory, at, 1, word)?[0];
    let full = bytes(memory, at.saturating_add(word as u64), 1)?[0];
    if full > 1 {
        return Err(Unread::NoRecorder("it is neither full nor not"));
    }
    // Each CPU may have stopped while it recorded one event, and one for each nested interrupt.
    let midst = NESTED as u64 + 1;
    let (mut found, mut fullest) = (Vec::new(), (0, 0));
    for cpu in 0..cpus {
        let at = begin(cpu).ok_or(Unread::NoPlace)?;
        let used = words(memory, at, 1, word)?[0];
        if used > taken || used > (events as u64).saturating_add(midst) {
            return Err(Unread::NoRecorder(
                "a CPU has more events than there is room for, or than were counted",
            ));
        }
        if used > fullest.1 {
            fullest = (cpu, used);
        }
        let used = used.min(events as u64) as usize;
        let slots = words(memory, at.saturating_add(word as u64), used * SLOT, word)?;
        // An event that is being written has no number yet.
        let (slots, _) = slots.as_chunks::<SLOT>();
        found.extend(slots.iter().filter(|slot| slot[0] != 0).map(|slot| (cpu, *slot)));
    }
    if found.is_empty() && full == 0 {
        return Err(Unread::Nothing);
    }
    found.sort_unstable_by_key(|(_, slot)| slot[0]);
    let mut read = Vec::with_capacity(found.len() + 1);
    let most = cpus as u64 * midst;
    let (mut number, mut missing) = (1, most);
    for (cpu, slot) in found {
        let ahead = slot[0].checked_sub(number).ok_or(Unread::NoRecorder("two events have one number"))?;
        if ahead > 0 && full != 0 {
            break;
        }
        missing = missing.checked_sub(ahead).ok_or(Unread::NoRecorder(MISSING))?;
        number = slot[0].saturating_add(1);
        let [_, words @ ..] = slot;
        let event = record::unpack(words).filter(|&event| record::holds(event, words, word));
        read.push((cpu, event.ok_or(Unread::NoRecorder("it writes no such event"))?));
    }
    if full != 0 {
        read.push((fullest.0, Event::Full));
        return Ok(Recorded { events: read, missing: 0 });
    }
    match taken.checked_add(1).and_then(|end| end.checked_sub(number)) {
        None => Err(Unread::NoRecorder("an event has a number that was not counted")),
        Some(ahead) if ahead > missing => Err(Unread::NoRecorder(MISSING)),
        Some(ahead) => Ok(Recorded { events: read, missing: most - missing + ahead }),
    }
}

const MISSING: &str = "more events are missing than CPUs can have been recording";

/// Returns the bytes of a CPU's log.
fn log_bytes(word: usize, events: usize) -> Option<u64> {
    let words = events.checked_mul(SLOT)?.checked_add(1)?;
    Some(words.checked_mul(word)?.checked_next_multiple_of(64)? as u64)
}

fn words(memory: &mut (impl Read + Seek), at: u64, count: usize, word: usize) -> io::Result<Vec<u64>> {
    let bytes = bytes(memory, at, count * word)?;
    let number = |word: &[u8]| word.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
    Ok(bytes.chunks(word).map(number).collect())
}

fn bytes(memory: &mut (impl Read + Seek), at: u64, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    memory.seek(SeekFrom::Start(at))?;
    memory.read_exact(&mut bytes)?;
    Ok(bytes)
}
