//! The frames of user pages, and how often each is mapped.
//!
//! A free frame is filled with a word that no program has. A program that reads that word reads a freed frame; and if
//! the word is not there any more when the frame is taken, a program has written to a freed frame.

use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

use tlbkit::{PageSize, Pfn};

use crate::disk::Slot;
use crate::memory::Lock;
use crate::report::{Count, REPORT};
use crate::witness;
use crate::words::{Page, Words, copy, fill};

/// How many there are.
pub(crate) const FRAMES: usize = 2048;

static MEMORY: [Words; FRAMES] = [const { Words::new() }; FRAMES];
static INFO: [Info; FRAMES] = [const { Info::new() }; FRAMES];
static FREE: Lock<Free> = Lock::new(Free { words: [0; FRAMES / BITS], count: 0 });

/// The frames that are free, a bit each.
struct Free {
    words: [usize; FRAMES / BITS],
    count: usize,
}

const BITS: usize = usize::BITS as usize;

impl Free {
    fn set(&mut self, index: usize) {
        self.words[index / BITS] |= 1 << (index % BITS);
        self.count += 1;
    }

    /// Takes the lowest one.
    fn take(&mut self) -> Option<usize> {
        let word = self.words.iter().position(|&word| word != 0)?;
        let index = word * BITS + self.words[word].trailing_zeros() as usize;
        self.clear(index, 1);
        Some(index)
    }

    /// Takes the highest `len` in a row that begin where `fits`.
    fn take_run(&mut self, len: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let is_free = |index: usize| self.words[index / BITS] >> (index % BITS) & 1 == 1;
        let all = |first: usize| (first..first + len).all(is_free);
        let first = (0..=FRAMES - len).rev().find(|&first| fits(first) && all(first))?;
        self.clear(first, len);
        Some(first)
    }

    fn clear(&mut self, first: usize, len: usize) {
        for index in first..first + len {
            self.words[index / BITS] &= !(1 << (index % BITS));
        }
        self.count -= len;
    }
}

/// What a free frame is full of.
const FREED: usize = 0xdead_dead_dead_dead_u64 as usize;

/// What the kernel knows of a frame.
struct Info {
    /// How often it is mapped or held, and [`EARLY`].
    holders: AtomicU32,
    /// Whether it was written by a mapping that is gone.
    dirty: AtomicBool,
    /// The page of the disk that has what the frame held when it was read, or 0.
    slot: AtomicU16,
}

/// A bit of [`Info::holders`]: the frame was freed before it was unmapped, which is a planted fault.
const EARLY: u32 = 1 << 31;

impl Info {
    const fn new() -> Self {
        Self { holders: AtomicU32::new(0), dirty: AtomicBool::new(false), slot: AtomicU16::new(0) }
    }
}

fn index(frame: Pfn) -> usize {
    frame.get() - MEMORY[0].frame().get()
}

/// Returns the words of a frame.
pub(crate) fn words(frame: Pfn) -> &'static Page {
    &MEMORY[index(frame)].0
}

/// Returns where a frame is; `None` if it is none of these.
pub(crate) fn memory(frame: Pfn) -> Option<*mut u8> {
    let words = MEMORY.get(frame.get().wrapping_sub(MEMORY[0].frame().get()))?;
    Some(core::ptr::from_ref(words).cast_mut().cast())
}

/// Makes all of them free.
pub(crate) fn prepare() {
    for frame in &MEMORY {
        fill(&frame.0, FREED);
    }
    let mut free = FREE.lock();
    (0..FRAMES).for_each(|index| free.set(index));
}

/// Returns how many are not free.
pub(crate) fn in_use() -> usize {
    FRAMES - FREE.lock().count
}

/// Fills a frame with zeros.
pub(crate) fn clear(frame: Pfn) {
    fill(words(frame), 0);
}

/// Takes a frame, full of zeros.
pub(crate) fn take() -> Option<Pfn> {
    take_any().inspect(|&frame| clear(frame))
}

/// Takes a frame with the contents of another one.
pub(crate) fn take_copy(of: Pfn) -> Option<Pfn> {
    take_any().inspect(|&frame| copy(words(of), words(frame)))
}

/// Takes `len` frames in a row, the first of which begins a page of `size`: whatever is in them.
pub(crate) fn take_run(len: usize, size: PageSize) -> Option<Pfn> {
    let fits = |index: usize| MEMORY[index].frame().is_aligned(size, PageSize::K4);
    let first = FREE.lock().take_run(len, fits)?;
    for index in first..first + len {
        let _ = taken(index);
    }
    Some(MEMORY[first].frame())
}

fn take_any() -> Option<Pfn> {
    let index = FREE.lock().take()?;
    Some(taken(index))
}

/// A frame is free no longer.
fn taken(index: usize) -> Pfn {
    witness::frame(MEMORY[index].frame(), false);
    let (Words(words), info) = (&MEMORY[index], &INFO[index]);
    let spoilt = words.iter().any(|word| word.load(Ordering::Relaxed) != FREED);
    REPORT.check(!spoilt, Count::StaleWrites, || "a frame was written after it had been freed");
    let holders = info.holders.fetch_add(1, Ordering::Relaxed);
    REPORT.check(holders == 0, Count::Failures, || "a frame was free while it was mapped");
    info.dirty.store(false, Ordering::Relaxed);
    MEMORY[index].frame()
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

/// Notes that the frame holds what no page of the disk has.
pub(crate) fn note_written(frame: Pfn) {
    INFO[index(frame)].dirty.store(true, Ordering::Relaxed);
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
    match info.holders.fetch_sub(1, Ordering::AcqRel) {
        1 => free(frame),
        holders if holders & EARLY != 0 => _ = info.holders.fetch_and(!EARLY, Ordering::Relaxed),
        _ => {}
    }
}

fn free(frame: Pfn) {
    witness::frame(frame, true);
    fill(words(frame), FREED);
    if let Some(slot) = Slot::numbered(INFO[index(frame)].slot.swap(0, Ordering::Relaxed)) {
        slot.release();
    }
    FREE.lock().set(index(frame));
}

/// Frees a frame that is still mapped, once: the planted fault. `serve` lets time pass.
pub(crate) fn free_early(frame: Pfn, serve: fn()) {
    if is_sole(frame) {
        INFO[index(frame)].holders.fetch_or(EARLY, Ordering::Relaxed);
        free(frame);
        // Time for other CPUs to walk into it.
        (0..20).for_each(|_| serve());
    }
}
