//! The recorder, which a kernel links in to write a log.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::event::{Access, Barrier, Event, Fence, Memory};

/// The number of nested interrupts of a CPU that may record while the code that they interrupt records.
pub(crate) const NESTED: usize = 8;

/// The events of a kernel's CPUs, in fixed memory: up to `EVENTS` events of each of `CPUS` CPUs.
///
/// A kernel has one recorder in a static, and calls [`record`](Self::record) after each store, fence and so on, on the CPU that
/// executed it. With `EVENTS` 0 no code is compiled; a build without the witness uses that.
///
/// # Order
///
/// All CPUs take the numbers of events from one counter. So if one event happens before another (by a lock, an interrupt, an
/// acknowledgement), it has the smaller number. Each CPU writes to a log of its own. The recorder takes no lock. An interrupt may
/// record at any moment; up to eight interrupts may be nested. A thread may be preempted while it records. Its event is in the log
/// when the thread has continued; until then the log has a hole, and [`events`](Self::events) ends there with [`Event::Gap`].
///
/// The first event that finds no room ends the record on all CPUs, because the checker would blame the wrong event in a log with a
/// hole. The last event is [`Event::Full`] then. A kernel that records [`Event::Full`] ends the record in the same way.
///
/// Numbers are as wide as a `usize`: a 32-bit machine records the low 32 bits of addresses and entries.
///
/// # Memory
///
/// An event takes five words. The layout is fixed, so that a program that has the machine's memory can read the record
/// (`check::read`):
///
/// ```text
///   byte 0         the number of events that have begun, a word
///        1 word    1 after an event that found no room, a byte
///        64        the log of CPU 0: the number of its events, a word; then for each its number, counted from 1, and four words
///        ...       the log of CPU 1, at the next multiple of 64
/// ```
///
/// A recorder that has recorded nothing is memory that is all zero.
///
/// ```
/// use tlbkit_witness::Recorder;
/// use tlbkit_witness::event::{Event, Fence};
///
/// static RECORDER: Recorder<2, 1000> = Recorder::new();
///
/// RECORDER.record(0, Event::Write { at: 0x4000, value: 0 });
/// RECORDER.record(0, Event::Fence(Fence::default()));
/// let mut text = String::new();
/// RECORDER.write(&mut text).unwrap();
/// assert_eq!(text, "0 write 0x4000 0x0\n0 fence\n");
/// ```
#[derive(Debug)]
#[repr(C)]
pub struct Recorder<const CPUS: usize, const EVENTS: usize> {
    /// The number of events that have begun.
    taken: AtomicUsize,
    /// Whether an event has found no room.
    full: AtomicBool,
    logs: [Log<EVENTS>; CPUS],
}

/// The log of one CPU, on cache lines of its own.
#[derive(Debug)]
#[repr(C, align(64))]
struct Log<const EVENTS: usize> {
    used: AtomicUsize,
    slots: [Slot; EVENTS],
}

/// An event: its number, counted from 1 and stored last, and its words.
#[derive(Debug)]
#[repr(C)]
struct Slot {
    number: AtomicUsize,
    words: [AtomicUsize; 4],
}

impl<const CPUS: usize, const EVENTS: usize> Recorder<CPUS, EVENTS> {
    /// Returns a recorder that has recorded nothing.
    #[must_use]
    pub const fn new() -> Self {
        const {
            assert!(CPUS <= crate::event::CPUS, "more CPUs than a log speaks of");
        }
        Self { taken: AtomicUsize::new(0), full: AtomicBool::new(false), logs: [const { Log::new() }; CPUS] }
    }

    /// Records an event of `cpu`, the CPU that calls this.
    ///
    /// Costs at most 25 instructions if the kind of the event is a constant (`cargo xtask instructions Recorder`). If there is no
    /// room, or no such CPU, the record ends with this call.
    #[inline(always)]
    pub fn record(&self, cpu: usize, event: Event) {
        if EVENTS == 0 {
            return;
        }
        if let Event::Full = event {
            return self.full.store(true, Ordering::Relaxed);
        }
        self.push(cpu, pack(event));
    }

    #[inline(always)]
    fn push(&self, cpu: usize, words: [usize; 4]) {
        if self.full.load(Ordering::Relaxed) {
            return;
        }
        // The number is taken before the place in the log: an event that finds no place leaves a hole in the numbers, and the record
        // ends there.
        let number = self.taken.fetch_add(1, Ordering::Relaxed) + 1;
        let slot = self.logs.get(cpu).and_then(|log| log.slots.get(log.used.fetch_add(1, Ordering::Relaxed)));
        let Some(slot) = slot else { return self.full.store(true, Ordering::Relaxed) };
        for (cell, word) in slot.words.iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
        slot.number.store(number, Ordering::Release);
    }

    /// Returns the events in their order, each with its CPU. If an event found no room, returns the events before it, then
    /// [`Event::Full`]. If an event is being recorded, by another CPU or by a thread that was preempted, returns the events before
    /// it, then [`Event::Gap`].
    ///
    /// Costs a load for each CPU and event. An event of a thread that was preempted while it recorded costs a pass over the logs.
    pub fn events(&self) -> impl Iterator<Item = (usize, Event)> {
        let (mut heads, mut number, mut ended) = ([0; CPUS], 0, false);
        core::iter::from_fn(move || {
            if ended {
                return None;
            }
            number += 1;
            let taken = self.taken.load(Ordering::Acquire);
            let Some((cpu, event)) = self.find(&heads, number) else {
                ended = true;
                let last = if self.full.load(Ordering::Relaxed) { Event::Full } else { Event::Gap };
                return (last == Event::Full || number <= taken).then_some((self.fullest(), last));
            };
            ended = event == Event::Gap;
            // An interrupt may have recorded the next events of the log, which have been returned already.
            while self.number(cpu, heads[cpu]).is_some_and(|at| at <= number) {
                heads[cpu] += 1;
            }
            Some((cpu, event))
        })
    }

    /// Returns the event with this number. It is at the head of a log or a few places after it, unless its thread was preempted before
    /// it took a place.
    fn find(&self, heads: &[usize; CPUS], number: usize) -> Option<(usize, Event)> {
        let is = |&(cpu, slot): &(usize, usize)| self.number(cpu, slot) == Some(number);
        let near = (0..=NESTED).flat_map(|ahead| (0..CPUS).map(move |cpu| (cpu, heads[cpu] + ahead)));
        let far = (0..CPUS).flat_map(|cpu| (heads[cpu]..self.used(cpu)).map(move |slot| (cpu, slot)));
        let (cpu, slot) = near.chain(far).find(is)?;
        let words =
            self.logs[cpu].slots[slot].words.each_ref().map(|word| word.load(Ordering::Relaxed) as u64);
        Some((cpu, unpack(words)?))
    }

    /// Returns the number of places of a CPU's log that are taken.
    fn used(&self, cpu: usize) -> usize {
        self.logs[cpu].used.load(Ordering::Relaxed).min(EVENTS)
    }

    /// Returns the number of the event in a place, if its recording is complete.
    fn number(&self, cpu: usize, slot: usize) -> Option<usize> {
        let number = self.logs[cpu].slots.get(slot)?.number.load(Ordering::Acquire);
        (number != 0).then_some(number)
    }

    /// Returns the CPU that has recorded most.
    fn fullest(&self) -> usize {
        (0..CPUS).max_by_key(|&cpu| self.logs[cpu].used.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Writes the log in the text form.
    ///
    /// # Errors
    ///
    /// The error that `out` returns.
    pub fn write(&self, out: &mut impl fmt::Write) -> fmt::Result {
        self.events().try_for_each(|(cpu, event)| writeln!(out, "{cpu} {event}"))
    }
}

impl<const EVENTS: usize> Log<EVENTS> {
    const fn new() -> Self {
        const { Self { used: AtomicUsize::new(0), slots: [const { Slot::new() }; EVENTS] } }
    }
}

impl Slot {
    const fn new() -> Self {
        Self { number: AtomicUsize::new(0), words: [const { AtomicUsize::new(0) }; 4] }
    }
}

impl<const CPUS: usize, const EVENTS: usize> Default for Recorder<CPUS, EVENTS> {
    fn default() -> Self {
        Self::new()
    }
}

// Kinds of events, in the low byte of the first word. Flags are in the next byte, and an ASID or a small number in the bytes above.
const WRITE: usize = 0;
const SWAP: usize = 1;
const ROOT: usize = 2;
const FENCE: usize = 3;
const BARRIER: usize = 4;
const NODE: usize = 5;
const FRAME: usize = 6;
const SEND: usize = 7;
const TAKE: usize = 8;
const LOWER: usize = 9;
const DONE: usize = 10;
const ACCESS: usize = 11;
const DIRTY: usize = 12;
const FULL: usize = 13;
const REFILL: usize = 14;
const HALVES: usize = 15;
const GAP: usize = 16;
const ASID: usize = 17;
const WALK: usize = 18;
const WALKED: usize = 19;
/// Stands for the logarithm of a size that is no power of two.
const NO_SIZE: usize = 0xff;

/// The bits of a page's number.
const PAGES: u64 = u64::MAX >> 12;

/// Encodes an event as words.
#[inline(always)]
fn pack(event: Event) -> [usize; 4] {
    let (first, a, b, c) = match event {
        Event::Write { at, value } => (WRITE, at, value, 0),
        Event::Swap { at, old, new } => (SWAP, at, old, new),
        Event::Root { value, high } => (ROOT | flag(high, 0), value, 0, 0),
        Event::Fence(Fence { pages, asid, leaf, broadcast }) => {
            let flags =
                flag(pages.is_some(), 0) | flag(asid.is_some(), 1) | flag(leaf, 2) | flag(broadcast, 3);
            let (first, last) = pages.unwrap_or_default();
            (FENCE | flags | usize::from(asid.unwrap_or_default()) << 16, first, last, 0)
        }
        Event::Barrier(barrier) => {
            let kind = match barrier {
                Barrier::Release => 0,
                Barrier::Complete => 1,
                Barrier::Context => 2,
                Barrier::TlbSync => 3,
                Barrier::Stores => 4,
                Barrier::Local => 5,
                Barrier::LocalStores => 6,
            };
            (BARRIER | kind << 8, 0, 0, 0)
        }
        Event::Node(Memory { at, bytes, free }) => (NODE | flag(free, 0), at, bytes, 0),
        Event::Frame(Memory { at, bytes, free }) => (FRAME | flag(free, 0), at, bytes, 0),
        Event::IpiSend { cpus, id } => (SEND, cpus, cpus >> 32, id),
        Event::IpiTake { id } => (TAKE, id, 0, 0),
        Event::Lower { id, first, last, root: None } => (LOWER, id, first, last),
        // The range is encoded in pages, because one word has to hold both ends: the number of pages after the first is in the low 12
        // bits of the first page's address and in the free bits of the first word.
        Event::Lower { id, first, last, root: Some(root) } => {
            let more = (last >> 12).wrapping_sub(first >> 12) & PAGES;
            let low = first & !0xfff | more & 0xfff;
            (LOWER | flag(true, 0) | (more as usize >> 12) << 16, id, low, root)
        }
        Event::Done { id } => (DONE, id, 0, 0),
        Event::WalkBegin { root, uses } => (WALK | flag(uses, 0), root, 0, 0),
        Event::WalkEnd => (WALKED, 0, 0, 0),
        Event::Access { at, kind, user, reaches } => {
            let flags = flag(user, 0) | flag(reaches.is_some(), 1);
            (ACCESS | flags | (kind as usize) << 16, at, reaches.unwrap_or_default(), 0)
        }
        Event::Refill { at, words: [even, odd], bytes, blind } => {
            let size = if bytes.is_power_of_two() { bytes.trailing_zeros() as usize } else { NO_SIZE };
            (REFILL | flag(blind, 0) | size << 16, at, even, odd)
        }
        Event::UsesDirty => (DIRTY, 0, 0, 0),
        Event::UsesHalves => (HALVES, 0, 0, 0),
        Event::UsesAsid { high } => (ASID | flag(high, 0), 0, 0, 0),
        Event::Full => (FULL, 0, 0, 0),
        Event::Gap => (GAP, 0, 0, 0),
    };
    [first, a as usize, b as usize, c as usize]
}

#[inline(always)]
fn flag(set: bool, at: u32) -> usize {
    usize::from(set) << (8 + at)
}

/// Decodes the words of an event, or returns `None` if [`pack`] returns them for no event.
pub(crate) fn unpack(words: [u64; 4]) -> Option<Event> {
    let [first, a, b, c] = words;
    let (is, upper) = (|at: u32| first >> (8 + at) & 1 != 0, first >> 16);
    Some(match first as usize & 0xff {
        WRITE => Event::Write { at: a, value: b },
        SWAP => Event::Swap { at: a, old: b, new: c },
        ROOT => Event::Root { value: a, high: is(0) },
        FENCE => Event::Fence(Fence {
            pages: is(0).then_some((a, b)),
            asid: is(1).then_some(upper as u16),
            leaf: is(2),
            broadcast: is(3),
        }),
        BARRIER => Event::Barrier(match first >> 8 {
            0 => Barrier::Release,
            1 => Barrier::Complete,
            2 => Barrier::Context,
            3 => Barrier::TlbSync,
            4 => Barrier::Stores,
            5 => Barrier::Local,
            6 => Barrier::LocalStores,
            _ => return None,
        }),
        NODE => Event::Node(Memory { at: a, bytes: b, free: is(0) }),
        FRAME => Event::Frame(Memory { at: a, bytes: b, free: is(0) }),
        SEND => Event::IpiSend { cpus: a & 0xffff_ffff | b << 32, id: c },
        TAKE => Event::IpiTake { id: a },
        LOWER if is(0) => {
            let more = upper << 12 | b & 0xfff;
            let last = (b >> 12).wrapping_add(more) & PAGES;
            Event::Lower { id: a, first: b & !0xfff, last: last << 12 | 0xfff, root: Some(c) }
        }
        LOWER => Event::Lower { id: a, first: b, last: c, root: None },
        DONE => Event::Done { id: a },
        WALK => Event::WalkBegin { root: a, uses: is(0) },
        WALKED => Event::WalkEnd,
        ACCESS => Event::Access {
            at: a,
            kind: match upper {
                0 => Access::Load,
                1 => Access::Store,
                _ => Access::Fetch,
            },
            user: is(0),
            reaches: is(1).then_some(b),
        },
        REFILL => {
            let bytes = if upper == NO_SIZE as u64 { 0 } else { 1_u64.checked_shl(upper as u32)? };
            Event::Refill { at: a, words: [b, c], bytes, blind: is(0) }
        }
        DIRTY => Event::UsesDirty,
        HALVES => Event::UsesHalves,
        ASID => Event::UsesAsid { high: is(0) },
        FULL => Event::Full,
        GAP => Event::Gap,
        _ => return None,
    })
}

/// Tells whether a recorder encodes the event of these words, of `bytes` bytes each, in exactly these words.
#[cfg(feature = "check")]
pub(crate) fn holds(event: Event, words: [u64; 4], bytes: usize) -> bool {
    let mask = u64::MAX >> (64 - 8 * bytes);
    pack(event).map(|word| word as u64 & mask) == words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interrupt records after the event that it interrupts has taken its number, and before that event takes its place. The
    /// events are returned in the order of their numbers.
    #[test]
    fn an_interrupt_may_record_in_the_midst_of_recording() {
        let recorder = Recorder::<2, 16>::new();
        recorder.record(1, Event::Done { id: 1 });
        // The number is taken, and the interrupt comes, with one inside of it.
        let number = recorder.taken.fetch_add(1, Ordering::Relaxed) + 1;
        let inner = recorder.taken.fetch_add(1, Ordering::Relaxed) + 1;
        recorder.record(0, Event::Done { id: 4 });
        for (number, id) in [(inner, 3), (number, 2)] {
            let slot = &recorder.logs[0].slots[recorder.logs[0].used.fetch_add(1, Ordering::Relaxed)];
            slot.words[0].store(DONE, Ordering::Relaxed);
            slot.words[1].store(id, Ordering::Relaxed);
            slot.number.store(number, Ordering::Release);
        }
        recorder.record(1, Event::Done { id: 5 });
        let done = |cpu, id| (cpu, Event::Done { id });
        assert!(recorder.events().eq([done(1, 1), done(0, 2), done(0, 3), done(0, 4), done(1, 5)]));
    }

    /// A thread is preempted after its event has taken its number, and before the event takes its place; other threads fill the log
    /// meanwhile. The log then ends with a gap. When the thread has continued, all events are returned.
    #[test]
    fn a_thread_may_be_preempted_in_the_midst_of_recording() {
        const OTHERS: u64 = 300;
        let recorder = Recorder::<2, 400>::new();
        let done = |cpu, id| (cpu, Event::Done { id });
        recorder.record(0, Event::Done { id: 1 });
        let number = recorder.taken.fetch_add(1, Ordering::Relaxed) + 1;
        (3..OTHERS).for_each(|id| recorder.record(id as usize % 2, Event::Done { id }));
        assert!(recorder.events().eq([done(0, 1), (1, Event::Gap)]));
        // Nor has it filled the place that it has taken.
        let at = recorder.logs[0].used.fetch_add(1, Ordering::Relaxed);
        (OTHERS..OTHERS + 50).for_each(|id| recorder.record(0, Event::Done { id }));
        assert_eq!(recorder.events().last(), Some((0, Event::Gap)));
        let slot = &recorder.logs[0].slots[at];
        slot.words[0].store(DONE, Ordering::Relaxed);
        slot.words[1].store(2, Ordering::Relaxed);
        slot.number.store(number, Ordering::Release);
        let ids =
            (1..OTHERS + 50).map(|id| done(if (3..OTHERS).contains(&id) { id as usize % 2 } else { 0 }, id));
        assert!(recorder.events().eq(ids));
    }
}
