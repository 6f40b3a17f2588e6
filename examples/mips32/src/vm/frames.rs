//! The physical frame allocator: a stack of free frames.
//!
//! Frames that were never used lie above a mark, so that nothing must be set up at boot. The one that was given back last
//! is taken first, which shows stale translations soonest; and its link is beside it, not in it, so that a store through
//! one is found by its owner and not by the allocator.

use tlbkit_addr::{PageSize, Pfn};

use crate::memory::{FRAMES, KSEG0};

/// The number of the first frame, and how many there are.
const FIRST: usize = FRAMES.start >> PageSize::K4.shift();
const COUNT: usize = (FRAMES.end - FRAMES.start) >> PageSize::K4.shift();

static mut NEXT: [Option<Pfn>; COUNT] = [None; COUNT];

/// Free frames.
#[derive(Debug)]
pub struct Frames {
    /// The frame that was given back last.
    free: Option<Pfn>,
    /// What was given back before each free frame.
    next: &'static mut [Option<Pfn>; COUNT],
    /// The first frame that was never taken.
    fresh: usize,
    end: usize,
    taken: usize,
}

impl Frames {
    /// Returns all frames that there are.
    ///
    /// # Safety
    ///
    /// Called once: the frames become the allocator's.
    #[expect(clippy::deref_addrof, reason = "a reference to a mutable static is made in this one place")]
    pub unsafe fn all() -> Self {
        // SAFETY: called once, so no other code has the links.
        let next = unsafe { &mut *(&raw mut NEXT) };
        Self { free: None, next, fresh: FIRST, end: FIRST + COUNT, taken: 0 }
    }

    /// Takes a frame, or returns `None` if there is none.
    pub fn take(&mut self) -> Option<Pfn> {
        let frame = match self.free {
            Some(frame) => {
                self.free = self.next[frame.get() - FIRST];
                frame
            }
            None if self.fresh < self.end => {
                self.fresh += 1;
                Pfn::new(self.fresh - 1)
            }
            None => return None,
        };
        self.taken += 1;
        Some(frame)
    }

    /// Takes `count` frames in a row that were never taken, the first one fit for a page of `size`, or returns `None`.
    pub fn take_run(&mut self, count: usize, size: PageSize) -> Option<Pfn> {
        let first = (self.fresh..self.end).find(|&first| Pfn::new(first).is_aligned(size, PageSize::K4))?;
        if count > self.end - first {
            return None;
        }
        for skipped in self.fresh..first {
            self.next[skipped - FIRST] = self.free.replace(Pfn::new(skipped));
        }
        self.fresh = first + count;
        self.taken += count;
        Some(Pfn::new(first))
    }

    /// Gives a frame back.
    ///
    /// # Safety
    ///
    /// It was taken, and no TLB has a translation to it.
    pub unsafe fn give(&mut self, frame: Pfn) {
        self.next[frame.get() - FIRST] = self.free.replace(frame);
        self.taken -= 1;
    }

    /// Returns how many frames are in use.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Keeps at most `frames` more frames, and returns those above: for a kernel that wants to see what happens then.
    pub fn limit(&mut self, frames: usize) -> Limit {
        let limit = Limit { free: self.free.take(), end: self.end };
        self.end = self.end.min(self.fresh + frames);
        limit
    }

    /// Ends a limit.
    pub fn lift(&mut self, limit: Limit) {
        self.end = limit.end;
        // What was given back meanwhile goes below what was free before.
        let Some(mut last) = limit.free else { return };
        while let Some(next) = self.next[last.get() - FIRST] {
            last = next;
        }
        self.next[last.get() - FIRST] = self.free;
        self.free = limit.free;
    }
}

/// What a limit keeps from use.
#[derive(Debug)]
pub struct Limit {
    free: Option<Pfn>,
    end: usize,
}

/// Returns a frame's first word, through kseg0.
pub fn word(frame: Pfn) -> *mut u32 {
    core::ptr::with_exposed_provenance_mut(KSEG0 + frame.address(PageSize::K4).get())
}
