//! A recorder's log, out of a machine's memory.

use std::io::{self, Read, Seek, SeekFrom};
use std::vec;
use std::vec::Vec;

use crate::event::Event;
use crate::record;

/// The words of an event, its number first.
const SLOT: usize = 5;

/// Where a [`Recorder`](crate::Recorder) is in a machine's memory, and which one it is. The machine is little-endian.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its first byte.
    pub at: u64,
    /// The bytes of a word: 4 or 8.
    pub word: usize,
    /// Its `CPUS`.
    pub cpus: usize,
    /// Its `EVENTS`.
    pub events: usize,
}

/// Reads what a recorder has recorded out of a file that holds a machine's memory: the events in their order, each with its CPU,
/// as [`Recorder::events`](crate::Recorder::events) returns them.
///
/// A machine that has stopped at any moment, by itself or not, leaves a log that can be read. A CPU that was recording an event at
/// that moment has left it out; what other CPUs recorded after it is there, for that CPU did nothing more that they could have seen.
/// If the recorder was full, the log ends with the first event that is missing, and [`Event::Full`].
///
/// Costs a sort of the events; of the memory it reads what has been recorded, and no more.
///
/// # Errors
///
/// Those of the file; [`io::ErrorKind::InvalidData`] if no recorder has written this.
pub fn read(memory: &mut (impl Read + Seek), place: Place) -> io::Result<Vec<(usize, Event)>> {
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    if !matches!(place.word, 4 | 8) || place.cpus > crate::event::CPUS {
        return Err(invalid("there is no such recorder"));
    }
    let full = bytes(memory, place.at + place.word as u64, 1)?[0];
    let log = (place.word + place.events * SLOT * place.word).next_multiple_of(64) as u64;
    let (mut found, mut fullest) = (Vec::new(), (0, 0));
    for cpu in 0..place.cpus {
        let at = place.at + 64 + cpu as u64 * log;
        let used = words(memory, at, 1, place.word)?[0];
        if used > fullest.1 {
            fullest = (cpu, used);
        }
        let used = used.min(place.events as u64) as usize;
        let slots = words(memory, at + place.word as u64, used * SLOT, place.word)?;
        // One that is being written has no number yet.
        let (slots, _) = slots.as_chunks::<SLOT>();
        found.extend(slots.iter().filter(|slot| slot[0] != 0).map(|slot| (cpu, *slot)));
    }
    found.sort_unstable_by_key(|(_, slot)| slot[0]);
    let mut events = Vec::with_capacity(found.len() + 1);
    // Each CPU may have stopped in the midst of one event, and of those whose interrupts had come in the midst of that.
    let (mut number, mut missing) = (1, (place.cpus * (record::NESTED + 1)) as u64);
    for (cpu, slot) in found {
        let ahead = slot[0].checked_sub(number).ok_or_else(|| invalid("two events have one number"))?;
        if ahead > 0 && full != 0 {
            break;
        }
        missing = missing
            .checked_sub(ahead)
            .ok_or_else(|| invalid("more events are missing than CPUs can have been recording"))?;
        number = slot[0].saturating_add(1);
        let [_, words @ ..] = slot;
        events.push((cpu, record::unpack(words).ok_or_else(|| invalid("a recorder has no such event"))?));
    }
    if full != 0 {
        events.push((fullest.0, Event::Full));
    }
    Ok(events)
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
