//! A disk in memory, in pages. A page that is in two address spaces is there once.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use spin::{Mutex, RelaxStrategy as _};

use crate::memory::Serving;
use crate::words::{Page, Words, copy};

/// How many pages it has. The first is never used.
pub(crate) const SLOTS: usize = 4096;

static PAGES: [Words; SLOTS] = [const { Words::new() }; SLOTS];
static HOLDERS: [AtomicU32; SLOTS] = [const { AtomicU32::new(0) }; SLOTS];
static FREE: Mutex<heapless::Vec<u16, SLOTS>> = Mutex::new(heapless::Vec::new());

/// A page of the disk, held by an entry that has it as its payload, or by a frame that holds the same. `share` and `release`
/// count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u16);

/// Makes all of it free.
pub(crate) fn prepare() {
    FREE.lock().extend(1..SLOTS as u16);
}

/// Waits as for a disk, so that other CPUs fault on a page that is on its way.
pub(crate) fn turn() {
    (0..4).for_each(|_| Serving::relax());
}

/// Returns how many pages hold something.
pub(crate) fn in_use() -> usize {
    SLOTS - 1 - FREE.lock().len()
}

impl Slot {
    fn words(self) -> &'static Page {
        &PAGES[usize::from(self.0)].0
    }

    /// Takes a page that is free; `None` if there is none.
    pub(crate) fn take() -> Option<Self> {
        let slot = Self(FREE.lock().pop()?);
        HOLDERS[usize::from(slot.0)].store(1, Ordering::Relaxed);
        Some(slot)
    }

    /// Returns the page that a payload names.
    pub(crate) fn of(payload: u64) -> Self {
        Self::numbered(payload as u16).expect("the payload is a page of the disk")
    }

    /// Returns the page of a number; `None` for the first.
    pub(crate) fn numbered(number: u16) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    pub(crate) fn number(self) -> u16 {
        self.0
    }

    /// Writes a frame to the page.
    pub(crate) fn write(self, frame: &Page) {
        copy(frame, self.words());
    }

    /// Reads the page into a frame.
    pub(crate) fn read(self, frame: &Page) {
        copy(self.words(), frame);
    }

    /// Tells whether the page is what the frame holds.
    pub(crate) fn is(self, frame: &Page) -> bool {
        let word = |word: &AtomicUsize| word.load(Ordering::Relaxed);
        self.words().iter().map(word).eq(frame.iter().map(word))
    }

    /// Notes one more user of the page.
    pub(crate) fn share(self) {
        HOLDERS[usize::from(self.0)].fetch_add(1, Ordering::Relaxed);
    }

    /// Notes one user less. The page is free after the last.
    pub(crate) fn release(self) {
        if HOLDERS[usize::from(self.0)].fetch_sub(1, Ordering::AcqRel) == 1 {
            let _ = FREE.lock().push(self.0);
        }
    }
}
