//! The checker's memory grows with what CPUs may hold, and not with the log.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit_witness::check::{Arch, Checker};
use tlbkit_witness::event::{Event, Fence, Memory};

/// Counts the bytes that are allocated.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Four CPUs map and unmap 64 pages in turn, with a shootdown each. Returns the bytes that are in use after so many rounds, by
/// hundreds of them.
fn rounds(hundreds: usize, flushes: bool) -> Vec<usize> {
    let mut checker = Checker::new(Arch::X86_64);
    let mut say = |cpu, event| checker.say(cpu, event).unwrap();
    for (at, value) in [(0x1000, 0x2027), (0x2000, 0x3027), (0x3000, 0x4027)] {
        say(0, Event::Write { at, value });
    }
    (0..4).for_each(|cpu| say(cpu, Event::Root { value: 0x1000, high: false }));
    let mut bytes = Vec::new();
    for round in 0..hundreds as u64 * 100 {
        let (page, cpu) = (round % 64, (round % 4) as usize);
        // Each frame is another one.
        let frame = (1 << 32) + (round << 12);
        say(cpu, Event::Write { at: 0x4000 + page * 8, value: frame | 0x67 });
        say(cpu, Event::Write { at: 0x4000 + page * 8, value: 0 });
        if flushes {
            let fence = Event::Fence(Fence { pages: Some((page << 12, page << 12)), ..Fence::default() });
            say(cpu, fence);
            for other in (0..4).filter(|&other| other != cpu) {
                say(cpu, Event::IpiSend { cpus: 1 << other, id: round });
                say(other, Event::IpiTake { id: round });
                say(other, fence);
            }
            say(cpu, Event::Frame(Memory { at: frame, bytes: 4096, free: true }));
        }
        if round % 100 == 99 {
            bytes.push(BYTES.load(Ordering::Relaxed));
        }
    }
    bytes
}

#[test]
fn memory_does_not_grow_with_the_log() {
    let bytes = rounds(100, true);
    assert!(bytes[99] <= bytes[9] + bytes[9] / 8, "{bytes:?}");
    // The control: what is not invalidated is kept.
    let bytes = rounds(20, false);
    assert!(bytes[19] > bytes[1] * 3, "{bytes:?}");
}
