//! The frames of user pages, and how often each is mapped.
//!
//! A free frame is filled with a word that no program has. Who reads that word reads what was freed; and where it is not
//! there any more when the frame is taken, somebody has written to what was freed.

use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

use spin::{Mutex, RelaxStrategy as _};
use tlbkit::Pfn;

use crate::disk::Slot;
use crate::memory::{Page, Serving, Words};
use crate::report::{Count, REPORT};
use crate::{arch, witness};

/// How many there are.
pub(crate) const FRAMES: usize = 2048;

static MEMORY: [Words; FRAMES] = [const { Words::new() }; FRAMES];
static INFO: [Info; FRAMES] = [const { Info::new() }; FRAMES];
static FREE: Mutex<heapless::Vec<u16, FRAMES>> = Mutex::new(heapless::Vec::new());

/// What a free frame is full of.
const FREED: usize = 0xdead_dead_dead_dead_u64 as usize;

/// What the kernel knows of a frame.
struct Info {
    /// How often it is mapped or held.
    holders: AtomicU32,
    /// Whether it was written by a mapping that is gone.
    dirty: AtomicBool,
    /// Whether it was freed before it was unmapped: a planted fault.
    early: AtomicBool,
    /// The page of the disk that has what the frame held when it was read, or 0.
    slot: AtomicU16,
}

impl Info {
    const fn new() -> Self {
        Self {
            holders: AtomicU32::new(0),
            dirty: AtomicBool::new(false),
            early: AtomicBool::new(false),
            slot: AtomicU16::new(0),
        }
    }
}

fn index(frame: Pfn) -> usize {
    frame.get() - MEMORY[0].frame().get()
}

/// Returns the words of a frame.
pub(crate) fn words(frame: Pfn) -> &'static Page {
    &MEMORY[index(frame)].0
}

/// Makes all of them free.
pub(crate) fn prepare() {
    for frame in &MEMORY {
        fill(&frame.0, FREED);
    }
    FREE.lock().extend(0..FRAMES as u16);
}

/// Returns how many are not free.
pub(crate) fn in_use() -> usize {
    FRAMES - FREE.lock().len()
}

fn fill(words: &Page, word: usize) {
    words.iter().for_each(|at| at.store(word, Ordering::Relaxed));
}

/// Takes a frame, full of zeros.
pub(crate) fn take() -> Option<Pfn> {
    take_any().inspect(|&frame| fill(words(frame), 0))
}

/// Takes a frame with the contents of another one.
pub(crate) fn take_copy(of: Pfn) -> Option<Pfn> {
    take_any().inspect(|&frame| copy(words(of), words(frame)))
}

pub(crate) fn copy(from: &Page, to: &Page) {
    for (from, to) in from.iter().zip(to) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

fn take_any() -> Option<Pfn> {
    let index = usize::from(FREE.lock().pop()?);
    witness::frame(MEMORY[index].frame(), false);
    let (Words(words), info) = (&MEMORY[index], &INFO[index]);
    let spoilt = words.iter().any(|word| word.load(Ordering::Relaxed) != FREED);
    REPORT.check(!spoilt, Count::StaleWrites, || "a frame was written after it had been freed");
    let holders = info.holders.swap(1, Ordering::Relaxed);
    REPORT.check(holders == 0, Count::Failures, || "a frame was free while it was mapped");
    info.dirty.store(false, Ordering::Relaxed);
    Some(MEMORY[index].frame())
}

/// Returns the page of the disk that has what the frame held when it was read; the frame may have been written since.
pub(crate) fn slot(frame: Pfn) -> Option<Slot> {
    Slot::numbered(INFO[index(frame)].slot.load(Ordering::Relaxed))
}

/// Notes that a page of the disk has what the frame holds: the frame holds that page until it is free.
pub(crate) fn keep_slot(frame: Pfn, slot: Slot) {
    INFO[index(frame)].slot.store(slot.number(), Ordering::Relaxed);
}

/// Notes that a frame is mapped, or held, once more.
pub(crate) fn share(frame: Pfn) {
    INFO[index(frame)].holders.fetch_add(1, Ordering::Relaxed);
}

/// Tells whether a frame is mapped or held once.
pub(crate) fn is_sole(frame: Pfn) -> bool {
    INFO[index(frame)].holders.load(Ordering::Acquire) == 1
}

/// Tells whether a mapping that is gone has written to the frame.
pub(crate) fn was_written(frame: Pfn) -> bool {
    INFO[index(frame)].dirty.load(Ordering::Relaxed)
}

/// Notes that a frame is mapped, or held, once less. It is free after the last.
pub(crate) fn release(frame: Pfn, dirty: bool) {
    let info = &INFO[index(frame)];
    if dirty {
        info.dirty.store(true, Ordering::Relaxed);
    }
    let last = info.holders.fetch_sub(1, Ordering::AcqRel) == 1;
    if !info.early.swap(false, Ordering::Relaxed) && last {
        free(frame);
    }
}

fn free(frame: Pfn) {
    witness::frame(frame, true);
    fill(words(frame), FREED);
    if let Some(slot) = Slot::numbered(INFO[index(frame)].slot.swap(0, Ordering::Relaxed)) {
        slot.release();
    }
    // There is room: it has all of them.
    let _ = FREE.lock().push(index(frame) as u16);
}

/// Frees a frame that is still mapped, once: the planted fault.
pub(crate) fn free_early(frame: Pfn) {
    if is_sole(frame) {
        INFO[index(frame)].early.store(true, Ordering::Relaxed);
        free(frame);
        // Time for other CPUs to walk into it.
        (0..20).for_each(|_| Serving::relax());
    }
}
