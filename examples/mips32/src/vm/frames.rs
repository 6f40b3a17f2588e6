//! The physical frame allocator: a stack of free frames, linked through the frames themselves.
//!
//! Frames that were never used lie above a mark, so that nothing must be set up at boot, and so that runs of them can
//! be had. The one that was given back last is taken first, which shows stale translations soonest.

use tlbkit_addr::{PageSize, Pfn};

use crate::memory::{FRAMES, KSEG0};

/// Free frames.
#[derive(Debug)]
pub struct Frames {
    /// The frame that was given back last.
    free: Option<Pfn>,
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
    pub const unsafe fn all() -> Self {
        let (fresh, end) = (FRAMES.start >> PageSize::K4.shift(), FRAMES.end >> PageSize::K4.shift());
        Self { free: None, fresh, end, taken: 0 }
    }

    /// Takes a frame, or returns `None` if there is none.
    pub fn take(&mut self) -> Option<Pfn> {
        let Some(frame) = self.free else { return self.take_run(1) };
        // SAFETY: a free frame is the allocator's, and its first word is the link.
        let next = unsafe { word(frame).read_volatile() };
        self.free = (next != 0).then(|| Pfn::new(next as usize));
        self.taken += 1;
        Some(frame)
    }

    /// Takes `frames` frames in a row that were never taken, or returns `None`.
    pub fn take_run(&mut self, frames: usize) -> Option<Pfn> {
        if frames > self.end - self.fresh {
            return None;
        }
        let first = Pfn::new(self.fresh);
        self.fresh += frames;
        self.taken += frames;
        Some(first)
    }

    /// Gives a frame back.
    ///
    /// # Safety
    ///
    /// It was taken, and no TLB has a translation to it.
    pub unsafe fn give(&mut self, frame: Pfn) {
        let next = self.free.map_or(0, Pfn::get) as u32;
        // SAFETY: the frame is the allocator's again.
        unsafe { word(frame).write_volatile(next) };
        self.free = Some(frame);
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
        // SAFETY: free frames are the allocator's, each links to the next.
        unsafe {
            while word(last).read_volatile() != 0 {
                last = Pfn::new(word(last).read_volatile() as usize);
            }
            word(last).write_volatile(self.free.map_or(0, Pfn::get) as u32);
        }
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
