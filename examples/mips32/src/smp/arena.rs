//! The frames under test: what is in each says whose it is.
//!
//! ```text
//!   word    0 ... 3                              4 ... 7
//!          +------------------------------------+------------------------------------+
//!          | page, generation                   | page, CPU, count                   |
//!          +------------------------------------+------------------------------------+
//!            loaded by all CPUs                   stored by CPU 0 ... 3
//! ```
//!
//! A page gets a new frame each time that it is mapped, and the frame its next generation. A frame that no CPU may
//! use is full of poison. So a load through a stale translation finds poison, another page, or an older generation
//! than the CPU has seen; a store through one leaves a word that is not the next owner's.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use tlbkit_addr::Pfn;

use super::CPUS;

/// Words that are loaded, and as many that are stored.
pub(super) const WORDS: usize = CPUS;

/// How many frames there are: more than pages, so that a freed one rests before it is used again.
const FRAMES: usize = 48;

/// What a free frame is full of: no page has this number.
const POISON: u32 = 0xffff_ffff;

#[repr(align(4096))]
struct Memory([AtomicU32; 1024]);

/// All frames. Loads and stores by way of the TLB are made by other instructions than Rust's; both are atomic.
static FRAME: [Memory; FRAMES] = [const { Memory([const { AtomicU32::new(POISON) }; 1024]) }; FRAMES];

/// A frame of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame(usize);

/// Which frames are free, and what was found in them.
#[derive(Debug, Default)]
pub(super) struct Arena {
    used: [AtomicU32; FRAMES.div_ceil(32)],
    /// Words that a CPU has stored where they should not be.
    pub(super) strays: AtomicUsize,
}

/// What a load of a page of this generation finds.
const fn stamp(page: usize, generation: u32) -> u32 {
    (page as u32) << 24 | generation & 0xff_ffff
}

/// What a CPU stores to a page.
pub(super) const fn mark(page: usize, cpu: usize, count: u32) -> u32 {
    (page as u32) << 24 | (cpu as u32) << 20 | count & 0xf_ffff
}

/// Returns the generation that a load of `page` has found, or `None` if it has found something else.
pub(super) const fn generation(page: usize, found: u32) -> Option<u32> {
    if found >> 24 == page as u32 { Some(found & 0xff_ffff) } else { None }
}

impl Frame {
    fn words(self) -> impl Iterator<Item = &'static AtomicU32> {
        FRAME[self.0].0.iter().take(2 * WORDS)
    }

    /// Returns its number in physical memory: the arena lies in kseg0.
    pub(super) fn number(self) -> Pfn {
        Pfn::new((FRAME[self.0].0.as_ptr().addr() & 0x1fff_ffff) >> 12)
    }

    /// Returns what the CPUs have stored, folded: as long as no CPU stores, it stays.
    pub(super) fn stored(self) -> u32 {
        self.words().skip(WORDS).fold(0, |all, word| all.rotate_left(5) ^ word.load(Ordering::Relaxed))
    }
}

impl Arena {
    /// Takes a free frame and makes it a page's, or returns `None` if there is none.
    pub(super) fn take(&self, page: usize, generation: u32) -> Option<Frame> {
        let frame = (0..FRAMES).map(Frame).find(|frame| {
            let (word, bit) = self.place(*frame);
            word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Acquire) & bit == 0
        })?;
        self.expect(frame, |word| word == POISON);
        for (index, word) in frame.words().enumerate() {
            let value = if index < WORDS { stamp(page, generation) } else { mark(page, index - WORDS, 0) };
            word.store(value, Ordering::Relaxed);
        }
        Some(frame)
    }

    /// Checks a page's frame: no other code has stored to it.
    pub(super) fn check(&self, frame: Frame, page: usize) {
        self.expect(frame, |word| word >> 24 == page as u32);
    }

    fn expect(&self, frame: Frame, good: impl Fn(u32) -> bool) {
        let strays = frame.words().filter(|word| !good(word.load(Ordering::Relaxed))).count();
        self.strays.fetch_add(strays, Ordering::Relaxed);
    }

    /// Takes a page's frame back: checked, poisoned, free.
    pub(super) fn give(&self, frame: Frame, page: usize) {
        self.check(frame, page);
        frame.words().for_each(|word| word.store(POISON, Ordering::Relaxed));
        let (word, bit) = self.place(frame);
        word.fetch_and(!bit, Ordering::Release);
    }

    /// Returns the number of frames in use.
    pub(super) fn used(&self) -> usize {
        self.used.iter().map(|word| word.load(Ordering::Relaxed).count_ones() as usize).sum()
    }

    fn place(&self, frame: Frame) -> (&AtomicU32, u32) {
        (&self.used[frame.0 / 32], 1 << (frame.0 % 32))
    }
}
