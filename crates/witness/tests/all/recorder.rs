//! The recorder: what is recorded is read again, in the order in which it happened, and a full log says so.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tlbkit_witness::event::{Barrier, Event, Fence, Memory};
use tlbkit_witness::{Recorder, parse};

fn written<const CPUS: usize, const EVENTS: usize>(recorder: &Recorder<CPUS, EVENTS>) -> String {
    let mut text = String::new();
    recorder.write(&mut text).unwrap();
    text
}

/// Every kind of event, as the gallery and this list have them, is packed into words and comes out of them again.
#[cfg(target_pointer_width = "64")]
#[test]
fn every_event_is_written_as_it_was_recorded() {
    let more = "\
        5 swap 0x1000 0x2 0x3\n\
        5 root 0xffff high\n\
        5 fence va 0x1000 0x2fff asid 65535 leaf broadcast\n\
        5 fence asid 0 leaf\n\
        5 barrier release\n\
        5 barrier fence\n\
        5 barrier isb\n\
        5 barrier tlbsync\n\
        5 barrier dsb ishst\n\
        5 barrier dsb nsh\n\
        5 barrier dsb nshst\n\
        5 node take 0x1000 4096\n\
        5 ipi send 0,33,63 18446744073709551615\n\
        5 access 0x1000 fetch user 0x2000\n\
        5 access 0x1000 store kernel fault\n\
        5 lower 7 0x1000 0x1fff root 0x8000000000000001\n\
        5 lower 7 0x0 0xffffffffffffffff root 0x1000\n\
        5 lower 7 0x1000 0x2000\n\
        5 walk begin 0x8000000000000001\n\
        5 walk begin 0x1000 use\n\
        5 walk end\n\
        5 uses dirty\n\
        5 uses asid ttbr0\n\
        5 uses asid ttbr1\n\
        5 gap\n";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("gallery");
    let logs = fs::read_dir(folder).unwrap().map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    for log in logs.chain([more.into()]) {
        let events: Vec<_> = log.lines().filter_map(|line| parse(line).unwrap()).collect();
        let recorder = Box::new(Recorder::<6, 64>::new());
        events.iter().for_each(|&(cpu, event)| recorder.record(cpu, event));
        assert_eq!(recorder.events().collect::<Vec<_>>(), events);
        let lines: Vec<_> = events.iter().map(|(cpu, event)| format!("{cpu} {event}\n")).collect();
        assert_eq!(written(&recorder), lines.concat());
    }
}

/// Threads hand a token on, and record that they had it: the log has each in its turn.
#[test]
fn what_happens_before_has_its_line_before() {
    const CPUS: usize = 4;
    const EVENTS: usize = if cfg!(miri) { 16 } else { 1000 };
    let (recorder, turn) = (Box::new(Recorder::<CPUS, EVENTS>::new()), AtomicUsize::new(0));
    thread::scope(|scope| {
        for cpu in 0..CPUS {
            let (recorder, turn) = (&recorder, &turn);
            scope.spawn(move || {
                for round in 0..EVENTS {
                    // Any CPU may be the next: the first takes the token.
                    let mut now = turn.load(Ordering::Acquire);
                    while now % CPUS != cpu {
                        thread::yield_now();
                        now = turn.load(Ordering::Acquire);
                    }
                    assert_eq!(now / CPUS, round);
                    recorder.record(cpu, Event::Done { id: now as u64 });
                    turn.store(now + 1, Ordering::Release);
                }
            });
        }
    });
    let events: Vec<_> = recorder.events().collect();
    let expected = (0..CPUS * EVENTS).map(|turn| (turn % CPUS, Event::Done { id: turn as u64 }));
    assert!(events.into_iter().eq(expected));
}

/// The first event that finds no room ends the record: what other CPUs record after it would stand after a hole.
#[test]
fn a_full_log_says_so_and_has_no_hole() {
    let recorder = Recorder::<2, 3>::new();
    for id in 0..3 {
        recorder.record(0, Event::Done { id });
    }
    assert_eq!(written(&recorder), "0 done 0\n0 done 1\n0 done 2\n");
    recorder.record(1, Event::Done { id: 3 });
    recorder.record(0, Event::Done { id: 4 });
    recorder.record(1, Event::Done { id: 5 });
    assert_eq!(written(&recorder), "0 done 0\n0 done 1\n0 done 2\n1 done 3\n0 full\n");

    // So does an event of a CPU that there is not.
    let recorder = Recorder::<2, 3>::new();
    recorder.record(0, Event::Done { id: 0 });
    recorder.record(2, Event::Done { id: 1 });
    recorder.record(0, Event::Done { id: 2 });
    assert_eq!(written(&recorder), "0 done 0\n0 full\n");
}

/// What lies in memory is what the recorder returns, whatever else is there. Memory that is all zero is a recorder.
#[cfg(feature = "check")]
#[test]
fn a_log_is_read_out_of_memory() {
    use std::alloc::{Layout, alloc_zeroed};
    use std::io::Cursor;

    use tlbkit_witness::check::{Place, read};

    type Small = Recorder<3, 4>;
    // SAFETY: a recorder has a size, zeros are one, and the box gets memory of its layout.
    let recorder = unsafe { Box::from_raw(alloc_zeroed(Layout::new::<Small>()).cast::<Small>()) };
    let seen = |recorder: &Small| {
        // SAFETY: all of it was zero, padding too, and no CPU writes to it meanwhile.
        let own = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(recorder).cast::<u8>(), size_of::<Small>())
        };
        let memory = [&[0xaa; 24][..], own, &[0xbb; 8]].concat();
        let place = Place { at: 24, word: size_of::<usize>(), cpus: 3, events: 4 };
        read(&mut Cursor::new(memory), place).unwrap().events
    };
    let mut own = Vec::new();
    for id in 0..8 {
        recorder.record(id % 3, Event::IpiSend { cpus: 1 << 31 | 1, id: id as u64 });
        own.push(seen(&recorder));
        assert_eq!(own[id].len(), id + 1);
        assert!(own[id].iter().copied().eq(recorder.events()));
    }
    for id in 0..8 {
        recorder.record(id % 3, Event::Done { id: id as u64 });
        assert!(seen(&recorder).into_iter().eq(recorder.events()), "{id}");
    }
    assert_eq!(seen(&recorder).last(), Some(&(0, Event::Full)));
    let place = Place { at: 0, word: size_of::<usize>(), cpus: 1, events: 4 };
    assert!(read(&mut Cursor::new([0; 63]), place).is_err(), "it is cut off");

    // A CPU has nine events under way at the most: its own, and those of eight interrupts.
    let numbered = |number: u64| {
        let mut words = vec![0_u64; 8 + 21];
        // One event, done 0.
        (words[0], words[8], words[9], words[10]) = (number, 1, number, 10);
        read(
            &mut Cursor::new(words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>()),
            Place { word: 8, ..place },
        )
    };
    let found = numbered(10).unwrap();
    assert_eq!((&*found.events, found.missing), (&[(0, Event::Done { id: 0 })][..], 9));
    assert!(numbered(11).is_err());
}

/// A wrong address is told: there is nothing, or what no recorder leaves there.
#[cfg(feature = "check")]
#[test]
fn memory_that_is_no_recorder_is_refused() {
    use std::io::Cursor;

    use tlbkit_witness::check::{Place, Unread, read};

    const PLACE: Place = Place { at: 0, word: 8, cpus: 1, events: 4 };
    let read_at = |memory: &[u64], place| {
        let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_le_bytes()).collect();
        read(&mut Cursor::new(bytes), place)
    };
    let read_words = |memory: &[u64]| read_at(memory, PLACE);
    assert!(matches!(read_words(&[0; 64]), Err(Unread::Nothing)));
    assert!(matches!(read_words(&[0; 7]), Err(Unread::File(_))));
    for place in
        [Place { word: 2, ..PLACE }, Place { cpus: 65, ..PLACE }, Place { events: usize::MAX / 8, ..PLACE }]
    {
        assert!(matches!(read_at(&[0; 64], place), Err(Unread::NoPlace)), "{place:?}");
    }
    // Two events, done 1 and a barrier.
    let mut right = [0; 64];
    (right[0], right[8]) = (2, 2);
    right[9..14].copy_from_slice(&[1, 10, 1, 0, 0]);
    right[14..19].copy_from_slice(&[2, 1 << 8 | 4, 0, 0, 0]);
    let found = read_words(&right).unwrap();
    assert_eq!((found.events.len(), found.missing), (2, 0));
    // Each of these words is another one in some other memory.
    for (at, word) in [
        (0, 1),            // A number was not taken.
        (0, 100),          // Too many events are missing.
        (1, 2),            // Neither full nor not.
        (8, 3_000),        // More events than there is room for.
        (9, 2),            // A number twice.
        (10, 0xff),        // No such event.
        (10, 10 | 1 << 8), // A flag that the event has not.
        (12, 1),           // A word that the event has not.
        (15, 7 << 8 | 4),  // No such barrier.
    ] {
        let mut memory = right;
        memory[at] = word;
        let found = read_words(&memory);
        assert!(matches!(found, Err(Unread::NoRecorder(_))), "word {at}: {found:?}");
    }
}

/// An event that no log may have is recorded as it is, hides nothing that follows, and is refused by its reader with its line.
#[cfg(feature = "check")]
#[test]
fn what_is_no_event_is_recorded_and_refused_where_it_stands() {
    use tlbkit_witness::Malformed;
    use tlbkit_witness::check::{Arch, Checker, Refusal, check};
    use tlbkit_witness::event::{Fence, Memory};

    let pages = |first, last| Fence { pages: Some((first, last)), ..Fence::default() };
    let memory = |at, bytes| Memory { at, bytes, free: false };
    let refill = |bytes| Event::Refill { at: 0, words: [0; 2], bytes, blind: false };
    let (range, size) = (Malformed::Expected("a range of memory"), Malformed::Expected("the size of a page"));
    let receivers = Malformed::Expected("a list of CPUs with commas between them");
    for (event, why) in [
        (refill(0), size),
        (refill(0x1800), size),
        (Event::Node(memory(0x1000, 0)), range),
        (Event::Frame(memory(!0, 2)), range),
        (Event::Fence(pages(0x2000, 0x1000)), Malformed::Backwards),
        (Event::Lower { id: 1, first: 0x2000, last: 0x1000, root: None }, Malformed::Backwards),
        (Event::Lower { id: 1, first: 0x2000, last: 0x1fff, root: Some(1) }, Malformed::Backwards),
        (Event::IpiSend { cpus: 0, id: 3 }, receivers),
    ] {
        let recorder = Recorder::<2, 4>::new();
        recorder.record(0, Event::UsesHalves);
        recorder.record(1, event);
        recorder.record(0, Event::Done { id: 7 });
        let events: Vec<_> = recorder.events().collect();
        assert_eq!((events.len(), events[2]), (3, (0, Event::Done { id: 7 })), "{event:?}");
        let refused = Refusal::Malformed { line: 2, why };
        assert_eq!(check(Arch::Mips32, &written(&recorder)), Err(refused.clone()), "{event:?}");
        let mut checker = Checker::new(Arch::Mips32);
        assert_eq!(checker.say(0, events[0].1), Ok(()));
        assert_eq!(checker.say(1, events[1].1), Err(refused), "{event:?}");
    }
    // Nothing follows what says that nothing does.
    let recorder = Recorder::<2, 4>::new();
    for event in [Event::UsesHalves, Event::Full, Event::UsesHalves] {
        recorder.record(0, event);
    }
    assert_eq!(written(&recorder), "0 uses halves\n0 full\n");
}

/// A log with a gap does not hold, whatever its events say.
#[cfg(feature = "check")]
#[test]
fn a_gap_is_no_verdict() {
    use tlbkit_witness::check::{Arch, Refusal, check};

    let checked = check(Arch::Sv39, "0 write 0x1000 0\n0 gap").unwrap();
    assert!(checked.gap && checked.incomplete().is_some_and(|why| why.contains("missing")));
    let more = check(Arch::Sv39, "0 gap\n0 write 0x1000 0");
    assert!(matches!(more, Err(Refusal::Impossible { line: 2, .. })), "{more:?}");
    assert!(check(Arch::Sv39, "# nothing").unwrap().incomplete().is_some_and(|why| why.contains("no event")));
    assert_eq!(check(Arch::Sv39, "0 write 0x1000 0").unwrap().incomplete(), None);
}

#[test]
fn one_that_is_off_has_no_memory_for_events_and_records_nothing() {
    let recorder = Recorder::<4, 0>::new();
    recorder.record(0, Event::Full);
    assert_eq!(written(&recorder), "");
    assert!(size_of_val(&recorder) <= 5 * 64);
}

/// Compiles code, and keeps its text.
macro_rules! with_text {
    ($text:ident, $($code:tt)*) => {
        const $text: &str = stringify!($($code)*);
        $($code)*
    };
}

/// The lines with which docs/witness.md shows the recorder are these, and compile.
#[test]
#[cfg_attr(miri, ignore = "its memory is 8 MB")]
fn the_manual_shows_a_recorder_that_compiles() {
    const CPUS: usize = 2;
    fn shown(console: &mut String) -> Result<(), std::fmt::Error> {
        let (cpu, cpus, id, free, mut console) = (0, 2, 1, false, console);
        let (at, value, bytes, first, last) = (0x1000, 0, 0x1000, 0, 0xfff);
        let (pages, asid, root) = (Some((first, last)), None, 0);
        with_text! { SHOWN,
            static RECORDER: Recorder<CPUS, 100_000> = Recorder::new();

            RECORDER.record(cpu, Event::Write { at, value });
            RECORDER.record(cpu, Event::Node(Memory { at, bytes, free }));
            RECORDER.record(cpu, Event::Root { value, high: false });
            RECORDER.record(cpu, Event::Fence(Fence { pages, asid, ..Fence::default() }));
            RECORDER.record(cpu, Event::Barrier(Barrier::Complete));
            RECORDER.record(cpu, Event::IpiSend { cpus, id });
            RECORDER.record(cpu, Event::Lower { id, first, last, root: None });
            RECORDER.record(cpu, Event::Done { id });
            RECORDER.record(cpu, Event::WalkBegin { root, uses: false });
            RECORDER.write(&mut console)?;
        }
        let page = include_str!("../../../../docs/witness.md");
        let (_, code) = page.split_once("```rust,ignore\nstatic RECORDER").unwrap();
        let (code, _) = code.split_once("```").unwrap();
        let code: String = code.lines().map(|line| line.split("//").next().unwrap()).collect();
        let words = |text: &str| text.split_whitespace().collect::<String>();
        assert_eq!(words(&format!("static RECORDER{code}")), words(SHOWN));
        Ok(())
    }
    let mut log = String::new();
    shown(&mut log).unwrap();
    assert_eq!(log.lines().count(), 9, "{log}");
}
