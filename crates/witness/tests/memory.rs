//! The checker's memory grows with what CPUs may hold, and not with the log.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit_witness::check::{Arch, Checker};
use tlbkit_witness::event::{Event, Fence, Memory};

/// Counts the bytes that are allocated, and keeps the most that they have been.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every request goes to the system's allocator unchanged, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = BYTES.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(bytes, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `alloc` took `at` from the system's allocator, with the same layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Four CPUs map and unmap 64 pages in turn, with a shootdown each, until the log has so many events. Returns how many bytes the checker
/// has had at once.
fn peak(events: u64, flushes: bool) -> usize {
    let before = BYTES.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let mut checker = Checker::new(Arch::X86_64);
    let mut say = |cpu, event| checker.say(cpu, event).unwrap();
    for (at, value) in [(0x1000, 0x2027), (0x2000, 0x3027), (0x3000, 0x4027)] {
        say(0, Event::Write { at, value });
    }
    (0..4).for_each(|cpu| say(cpu, Event::Root { value: 0x1000, high: false }));
    let (mut said, mut round) = (7, 0);
    while said < events {
        let (page, cpu) = (round % 64, (round % 4) as usize);
        // Each frame is another one.
        let frame = (1 << 32) + (round << 12);
        say(cpu, Event::Write { at: 0x4000 + page * 8, value: frame | 0x67 });
        say(cpu, Event::Write { at: 0x4000 + page * 8, value: 0 });
        said += 2;
        if flushes {
            let fence = Event::Fence(Fence { pages: Some((page << 12, page << 12)), ..Fence::default() });
            say(cpu, fence);
            for other in (0..4).filter(|&other| other != cpu) {
                say(cpu, Event::IpiSend { cpus: 1 << other, id: round });
                say(other, Event::IpiTake { id: round });
                say(other, fence);
            }
            say(cpu, Event::Frame(Memory { at: frame, bytes: 4096, free: true }));
            said += 11;
        }
        round += 1;
    }
    PEAK.load(Ordering::Relaxed) - before
}

/// The only test of this program, for another one would allocate meanwhile.
#[test]
fn a_log_four_times_as_long_takes_the_same_memory() {
    const EVENTS: u64 = 20_000;
    let [short, long] = [EVENTS, 4 * EVENTS].map(|events| peak(events, true));
    println!("{EVENTS} events: {short} bytes at most, {} events: {long}", 4 * EVENTS);
    assert!(long <= short + short / 8, "{short} bytes, then {long}");
    // The control: what is not invalidated is kept, and so the peak grows with the log.
    let [short, long] = [EVENTS / 4, EVENTS].map(|events| peak(events, false));
    assert!(long > short * 3, "{short} bytes, then {long}");
}
