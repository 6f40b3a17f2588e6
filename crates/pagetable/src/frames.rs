//! Where the frames go that an unmap uncovers.
//!
//! A change **uncovers** a frame when it removes the last translation to it from the table.
//! A frame must not be reused before every TLB has forgotten the translation that led to it: a store through a stale
//! one would write into its next owner. So uncovered frames are held like retired nodes, and a shootdown carries
//! both. The caller says where they are kept; the table reserves the room in its dry run, so that a full list is an
//! error before anything has changed.

use tlbkit_addr::{Attr, PageSize, Pfn, VirtAddr};

use crate::{Error, Mark};

/// Frames that an unmap uncovered: `len` base frames from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first frame.
    pub first: Pfn,
    /// How many base frames.
    pub len: usize,
    /// Whether hardware or the kernel had marked any of them as written.
    pub dirty: bool,
}

impl Run {
    /// Returns the frames in ascending order.
    pub fn frames(&self) -> impl Iterator<Item = Pfn> + use<> {
        (self.first.get()..).take(self.len).map(Pfn::new)
    }
}

/// A place for uncovered frames.
pub trait Frames {
    /// Makes room for `leaves` more uncovered pages.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if there is none; nothing has changed then.
    fn reserve(&mut self, leaves: usize) -> Result<(), Error>;

    /// Takes over the frames of one page of `size` that is no longer mapped; a frame has `base` bytes. Never called more often than
    /// was reserved.
    fn push(&mut self, frame: Pfn, size: PageSize, base: PageSize, attr: Attr);

    /// Takes over the frames of `pages` neighbouring base pages, from `first` on, that are no longer mapped and had the same
    /// attributes: what [`push`](Self::push) does for each of them, in one call. Called only where
    /// [`by_runs`](Self::by_runs) allows it.
    fn push_run(&mut self, first: Pfn, pages: usize, base: PageSize, attr: Attr) {
        (first.get()..).take(pages).for_each(|frame| self.push(Pfn::new(frame), base, base, attr));
    }

    /// Tells whether a table may hand frames over by [`push_run`](Self::push_run), which does not unwind then: the frames of
    /// the run would be lost.
    fn by_runs(&self) -> bool {
        false
    }

    /// Takes over the mark of the page at `at`, which is in the table no more. No TLB holds a mark, so
    /// what the payload names may be reused at once. Needs no room. The default drops the mark.
    #[inline]
    fn marked(&mut self, at: VirtAddr, mark: Mark) {
        let _ = (at, mark);
    }
}

/// A caller's array of [`Run`]s: neighbours become one.
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
    /// Returns an empty list with room for `room.len()` runs in the worst case, in which no two are neighbours.
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
