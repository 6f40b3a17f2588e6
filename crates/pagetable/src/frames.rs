//! The frames that a change uncovers.
//!
//! A change **uncovers** a frame when it removes a translation to it from the table. A frame must not be reused before every TLB
//! has flushed that translation: a store through a stale TLB entry would write into memory that has a new owner. So uncovered
//! frames are held like retired nodes, and a shootdown carries both. The caller provides the place for uncovered frames
//! ([`Frames`]). The table reserves room there in its dry run, so that a lack of room is an error before the table has changed.

use tlbkit_addr::{Attr, PageSize, Pfn, VirtAddr};

use crate::{Error, Mark};

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
pub struct Run<F = Pfn> {
    /// The first frame.
    pub first: F,
    /// The number of base frames.
    pub len: usize,
    /// Whether any of the frames was dirty: [`Attr::DIRTY`] was set in its entry.
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

/// What a detached range held, as [`mpt::Detached`](crate::mpt::Detached) and [`gpt::Detached`](crate::gpt::Detached) hand it over
/// after the flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Frames that were mapped.
    Frames(Run),
    /// The mark of a page.
    Mark(Mark),
}

/// Frames to hand over when the next ones do not continue them, so that neighbouring frames are one run.
#[derive(Debug, Default)]
pub(crate) struct Joined(Option<Run>);

impl Joined {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// Adds frames to the run, or hands that run over first.
    pub(crate) fn add(&mut self, run: Run, held: &mut dyn FnMut(Held)) {
        if let Some(before) = &mut self.0
            && before.first.checked_add(before.len) == Some(run.first)
        {
            before.len += run.len;
            before.dirty |= run.dirty;
        } else if let Some(before) = self.0.replace(run) {
            held(Held::Frames(before));
        }
    }

    /// Hands the run over.
    pub(crate) fn end(&mut self, held: &mut dyn FnMut(Held)) {
        if let Some(run) = self.0.take() {
            held(Held::Frames(run));
        }
    }
}

/// A place for uncovered frames.
pub trait Frames {
    /// Makes room for `leaves` more uncovered pages.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if there is not enough room; the table has not changed then.
    fn reserve(&mut self, leaves: usize) -> Result<(), Error>;

    /// Takes over the frames of one page of `size` that is no longer mapped. A base frame has the size `base`. At most as many
    /// pages are passed as were reserved.
    fn push(&mut self, frame: Pfn, size: PageSize, base: PageSize, attr: Attr);

    /// Takes over `pages` neighbouring frames from `first` on, whose base pages are no longer mapped and had the same attributes.
    /// The effect is that of one [`push`](Self::push) for each frame. Called only if [`by_runs`](Self::by_runs) returns `true`.
    fn push_run(&mut self, first: Pfn, pages: usize, base: PageSize, attr: Attr) {
        (first.get()..).take(pages).for_each(|frame| self.push(Pfn::new(frame), base, base, attr));
    }

    /// Tells whether a table may call [`push_run`](Self::push_run). If this returns `true`, `push_run` must not unwind: the
    /// frames of the run would be lost.
    fn by_runs(&self) -> bool {
        false
    }

    /// Takes over the mark of the page at `at`, which is no longer in the table. No TLB holds a mark, so the object that the
    /// payload names may be reused at once. A mark needs no reserved room. The default drops the mark.
    #[inline]
    fn marked(&mut self, at: VirtAddr, mark: Mark) {
        let _ = (at, mark);
    }
}

/// A caller's array of [`Run`]s. Neighbouring frames are merged into one run.
///
/// ```
/// use tlbkit_addr::{Attr, PageSize, Pfn};
/// use tlbkit_pagetable::{Frames, Run, Runs};
///
/// let mut room = [None; 2];
/// let mut runs = Runs::new(&mut room);
/// runs.reserve(2)?;
/// runs.push(Pfn::new(8), PageSize::K4, PageSize::K4, Attr::READ);
/// runs.push(Pfn::new(9), PageSize::K4, PageSize::K4, Attr::DIRTY);
/// assert_eq!(runs.iter().collect::<Vec<_>>(), [Run { first: Pfn::new(8), len: 2, dirty: true }]);
/// # Ok::<(), tlbkit_pagetable::Error>(())
/// ```
#[derive(Debug)]
pub struct Runs<'a> {
    room: &'a mut [Option<Run>],
    used: usize,
}

impl<'a> Runs<'a> {
    /// Returns an empty list with room for `room.len()` runs.
    pub fn new(room: &'a mut [Option<Run>]) -> Self {
        Self { room, used: 0 }
    }

    fn add(&mut self, run: Run) {
        if let Some(Some(last)) = self.used.checked_sub(1).and_then(|at| self.room.get_mut(at))
            && last.first.checked_add(last.len) == Some(run.first)
        {
            last.len += run.len;
            last.dirty |= run.dirty;
        } else if let Some(slot) = self.room.get_mut(self.used) {
            *slot = Some(run);
            self.used += 1;
        }
    }

    /// Returns the runs in the order in which they were uncovered.
    pub fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.room.iter().take(self.used).flatten().copied()
    }
}

impl Frames for Runs<'_> {
    fn reserve(&mut self, leaves: usize) -> Result<(), Error> {
        if self.room.len() - self.used >= leaves { Ok(()) } else { Err(Error::NoRoom) }
    }

    fn push(&mut self, frame: Pfn, size: PageSize, base: PageSize, attr: Attr) {
        let len = size.pages(base).unwrap_or(1);
        self.add(Run { first: frame, len, dirty: attr.contains(Attr::DIRTY) });
    }

    fn push_run(&mut self, first: Pfn, pages: usize, _base: PageSize, attr: Attr) {
        self.add(Run { first, len: pages, dirty: attr.contains(Attr::DIRTY) });
    }

    fn by_runs(&self) -> bool {
        true
    }
}
