//! The frames that a change uncovers.
//!
//! A change **uncovers** a frame when it removes a translation to it from the table. A frame must not be reused before every TLB
//! has flushed that translation: a store through a stale TLB entry would write into memory that has a new owner. So uncovered
//! frames are held like retired nodes, and a shootdown carries both. A caller that does not know the frames of a range takes them
//! out of the table piece by piece ([`Table::take_next`](crate::Table::take_next)), as many as it has a place for.

use tlbkit_addr::{Pages, Pfn, Vpn};

use crate::Mark;

/// The number of a frame: [`Pfn`], which counts base pages of whatever size, or a type that knows the size.
pub trait FrameNumber: Copy {
    /// Returns the number plus `frames`, or `None` if it overflows.
    fn checked_add(self, frames: usize) -> Option<Self>;
}

impl FrameNumber for Pfn {
    #[inline]
    fn checked_add(self, frames: usize) -> Option<Self> {
        self.checked_add(frames)
    }
}

/// Frames that an unmap uncovered: `len` base frames from `first` on. `F` numbers them, as in a [`Leaf`](crate::Leaf).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Run<F = Pfn> {
    /// The first frame.
    pub first: F,
    /// The number of base frames.
    pub len: usize,
    /// Whether any of the frames was dirty: [`Attr::DIRTY`](tlbkit_addr::Attr::DIRTY) was set in its entry.
    pub dirty: bool,
}

impl<F: FrameNumber> Run<F> {
    /// Returns the frames in ascending order.
    #[inline]
    pub fn frames(&self) -> impl Iterator<Item = F> + use<F> {
        let first = self.first;
        (0..self.len).map_while(move |frame| first.checked_add(frame))
    }
}

/// What a change has taken out of the table: what [`Table::take_next`](crate::Table::take_next) returns, and what
/// [`mpt::Detached`](crate::mpt::Detached) and [`gpt::Detached`](crate::gpt::Detached) hand over after the flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uncovered {
    /// Frames that were mapped.
    Frames(Run),
    /// The mark of a page. No TLB holds a mark, so the object that the payload names may be reused at once.
    Mark(Mark),
}

/// Frames to hand over when the next ones do not continue them, so that neighbouring frames are one run. Without frames the run is
/// empty. (A copy of an `Option` would copy the padding, byte by byte.)
#[derive(Debug)]
pub(crate) struct Joined(Run);

impl Joined {
    pub(crate) const fn new() -> Self {
        Self(Run { first: Pfn::new(0), len: 0, dirty: false })
    }

    /// Adds frames to the run, or hands that run over first.
    pub(crate) fn add(&mut self, run: Run, hand_over: &mut dyn FnMut(Uncovered)) {
        let Run { first, len, dirty } = self.0;
        if len > 0 && first.checked_add(len) == Some(run.first) {
            (self.0.len, self.0.dirty) = (len + run.len, dirty | run.dirty);
            return;
        }
        (self.0.first, self.0.len, self.0.dirty) = (run.first, run.len, run.dirty);
        if len > 0 {
            hand_over(Uncovered::Frames(Run { first, len, dirty }));
        }
    }

    /// Hands the run over.
    pub(crate) fn end(&mut self, hand_over: &mut dyn FnMut(Uncovered)) {
        let Run { first, len, dirty } = self.0;
        self.0.len = 0;
        if len > 0 {
            hand_over(Uncovered::Frames(Run { first, len, dirty }));
        }
    }
}

/// The part of a range that is still to be [taken out](crate::Table::take_next) of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    pages: Option<Pages>,
    place: usize,
}

impl Rest {
    /// Returns the whole range.
    #[inline(always)]
    pub const fn of(pages: Pages) -> Self {
        Self { pages: Some(pages), place: 0 }
    }

    /// Returns the pages that may still have entries, or `None` at the end.
    #[inline(always)]
    pub const fn pages(&self) -> Option<Pages> {
        self.pages
    }

    /// Leaves only the pages after `last`. A table that takes the entries out in ascending order calls this.
    #[inline(always)]
    pub fn go_past(&mut self, last: Vpn) {
        self.pages =
            self.pages.and_then(|pages| Pages::new(last.checked_add(1)?.max(pages.first()), pages.last()));
    }

    /// Ends the range: it has no entry any more.
    #[inline]
    pub const fn end(&mut self) {
        self.pages = None;
    }

    /// Returns the number that [`set_place`](Self::set_place) has stored, and 0 before.
    #[inline]
    pub const fn place(&self) -> usize {
        self.place
    }

    /// Stores where the next call continues, for a table that takes the entries out in an order of its own.
    #[inline]
    pub const fn set_place(&mut self, place: usize) {
        self.place = place;
    }
}
