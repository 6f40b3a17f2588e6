//! Page-out according to Tzou 5.3.3: the unmapper, the launderers, and the states of Figure 5.4.
//!
//! ```text
//!            select                unmapped, clean                zero
//!   in use ---------> being unmapped -----------------> clean ---------> zeroed
//!     ^  ^               |      |                       ^  |               |
//!     |  +--- fault -----+      | unmapped, dirty       |  |               |
//!     |                         v                       |  |               |
//!     +---- fault, or --- being written ----- written --+  |               |
//!     |     write failed                                   |               |
//!     +------------------ allocate, or fault --------------+- allocate ----+
//!     +------------------ being read <---- allocate to read
//! ```
//!
//! The unmapper keeps the number of clean pages at a threshold (5.3.3.2). Zeroed pages do not count: the zero-filling
//! process takes pages from the clean list, and would otherwise leave no page for page-in.
//!
//! No CPU waits for a flush: a page that is being unmapped keeps its contents, so a stale translation still leads to the
//! right page (transient inconsistency). The invariant: a frame becomes allocatable after `BeingUnmapped` only by the
//! message that its unmapping has ended.

use core::fmt;

use tlbkit_shootdown::Outcome;

/// The states of a physical page (5.3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Mapped, or about to be.
    InUse,
    /// Free; its contents are those that were paged in or written.
    Clean,
    /// Free; its contents are zeros.
    Zeroed,
    /// Being filled from backing store.
    BeingRead,
    /// Being written to backing store.
    BeingWritten,
    /// An asynchronous unmapping is in flight.
    BeingUnmapped,
}

/// The action that the kernel has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageAction {
    /// Unmap the page asynchronously, with both hints of Table 5.2, and call [`PageOut::unmapped`].
    Unmap(usize),
    /// Write the page to backing store, and call [`PageOut::written`].
    Write(usize),
    /// Map the page again: it has been reclaimed.
    Map(usize),
    /// Nothing.
    Nothing,
}

/// The error of a step that the page's state does not allow. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WrongState {
    /// The frame.
    pub frame: usize,
    /// Its state, or `None` if there is no such frame.
    pub state: Option<State>,
}

impl fmt::Display for WrongState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            Some(state) => write!(f, "frame {} is {state:?}, which does not allow this", self.frame),
            None => write!(f, "there is no frame {}", self.frame),
        }
    }
}

impl core::error::Error for WrongState {}

/// The message that the kernel still has to deliver for a page. Until then the page is on no list, whatever its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Unmapped,
    Written,
}

/// The state of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    state: State,
    due: Due,
    /// Whether the page was written to before it was reclaimed, and has not been written to backing store since. Its new
    /// page-table entry does not say so.
    dirty: bool,
}

/// The unmapper and the launderers for `FRAMES` physical pages.
#[derive(Clone, Debug)]
pub struct PageOut<const FRAMES: usize> {
    pages: [Page; FRAMES],
    /// The number of clean pages that the unmapper keeps.
    threshold: usize,
    /// The frame at which the unmapper's next search starts.
    hand: usize,
}

impl<const FRAMES: usize> PageOut<FRAMES> {
    /// Returns the state of `FRAMES` clean pages. The unmapper will keep `threshold` pages clean.
    pub const fn new(threshold: usize) -> Self {
        Self {
            pages: [Page { state: State::Clean, due: Due::Nothing, dirty: false }; FRAMES],
            threshold,
            hand: 0,
        }
    }

    /// Returns a page's state.
    pub fn state(&self, frame: usize) -> Option<State> {
        self.pages.get(frame).map(|page| page.state)
    }

    fn go(&mut self, frame: usize, from: &[State], due: Due, to: State) -> Result<(), WrongState> {
        match self.pages.get_mut(frame) {
            Some(page) if from.contains(&page.state) && page.due == due => {
                page.state = to;
                Ok(())
            }
            page => Err(WrongState { frame, state: page.map(|page| page.state) }),
        }
    }

    /// Allocates a page: a zeroed page if `zeroed`, otherwise a clean page, or a zeroed page if none is clean.
    pub fn allocate(&mut self, zeroed: bool) -> Option<usize> {
        let first = |wanted| self.pages.iter().position(|page| page.state == wanted);
        let clean = if zeroed { None } else { first(State::Clean) };
        let frame = clean.or_else(|| first(State::Zeroed))?;
        self.go(frame, &[State::Clean, State::Zeroed], Due::Nothing, State::InUse).ok().map(|()| frame)
    }

    /// Allocates a page for a read from backing store, whose end the kernel reports with [`read`](Self::read).
    pub fn page_in(&mut self) -> Option<usize> {
        let frame = self.allocate(false)?;
        self.go(frame, &[State::InUse], Due::Nothing, State::BeingRead).ok().map(|()| frame)
    }

    /// Records that the page has been read from backing store: it is in use.
    ///
    /// # Errors
    ///
    /// [`WrongState`] if it was not being read.
    pub fn read(&mut self, frame: usize) -> Result<(), WrongState> {
        self.go(frame, &[State::BeingRead], Due::Nothing, State::InUse)
    }

    /// Records that the zero-filling process has filled a clean page with zeros.
    ///
    /// # Errors
    ///
    /// [`WrongState`] if it was not clean.
    pub fn zero(&mut self, frame: usize) -> Result<(), WrongState> {
        self.go(frame, &[State::Clean], Due::Nothing, State::Zeroed)
    }

    /// Runs the unmapper: selects a page to unmap if the pages that are clean, being unmapped or being written are fewer
    /// than the threshold. The unmapper selects pages in turn (the text selects at random).
    pub fn unmapper(&mut self) -> PageAction {
        let coming =
            |page: &&Page| matches!(page.state, State::Clean | State::BeingUnmapped | State::BeingWritten);
        if self.pages.iter().filter(coming).count() >= self.threshold {
            return PageAction::Nothing;
        }
        for step in 0..FRAMES {
            let frame = (self.hand + step) % FRAMES;
            if let Some(page) = self.pages.get_mut(frame)
                && page.state == State::InUse
                && page.due == Due::Nothing
            {
                (page.state, page.due) = (State::BeingUnmapped, Due::Unmapped);
                self.hand = frame + 1;
                return PageAction::Unmap(frame);
            }
        }
        PageAction::Nothing
    }

    /// Runs the page-fault handler: reclaims a page that a program has referenced while it is being paged out.
    ///
    /// # Errors
    ///
    /// [`WrongState`] if the page no longer has its contents, or is in use anyway.
    pub fn fault(&mut self, frame: usize) -> Result<PageAction, WrongState> {
        self.go(frame, &[State::BeingUnmapped], Due::Unmapped, State::InUse)
            .or_else(|_| self.go(frame, &[State::BeingWritten], Due::Written, State::InUse))
            .or_else(|_| self.go(frame, &[State::Clean], Due::Nothing, State::InUse))?;
        Ok(PageAction::Map(frame))
    }

    /// Records the message of the unmapper that the unmapping has ended. `dirty` is the dirty bit of the old entry. If the
    /// page is in use again, the dirty bit is kept until the page is next unmapped.
    ///
    /// # Errors
    ///
    /// [`WrongState`] if no message of this page was due.
    pub fn unmapped(
        &mut self,
        frame: usize,
        outcome: Outcome,
        dirty: bool,
    ) -> Result<PageAction, WrongState> {
        let due = [State::BeingUnmapped, State::InUse];
        let failed = outcome != Outcome::Done || self.state(frame) == Some(State::InUse);
        if failed {
            self.go(frame, &due, Due::Unmapped, State::InUse)?;
            self.due(frame, Due::Nothing, dirty || self.is_dirty(frame));
            // The fault handler has mapped a reclaimed page. If the unmapping failed, the page still has its entry.
            return Ok(PageAction::Nothing);
        }
        if dirty || self.is_dirty(frame) {
            self.go(frame, &[State::BeingUnmapped], Due::Unmapped, State::BeingWritten)?;
            self.due(frame, Due::Written, false);
            return Ok(PageAction::Write(frame));
        }
        self.go(frame, &[State::BeingUnmapped], Due::Unmapped, State::Clean)?;
        self.due(frame, Due::Nothing, false);
        Ok(PageAction::Nothing)
    }

    /// Records the end of a launderer's write: the page is clean, unless a fault has reclaimed it during the write.
    ///
    /// # Errors
    ///
    /// [`WrongState`] if no write of this page was under way.
    pub fn written(&mut self, frame: usize) -> Result<(), WrongState> {
        if self.state(frame) == Some(State::InUse) {
            self.go(frame, &[State::InUse], Due::Written, State::InUse)?;
        } else {
            self.go(frame, &[State::BeingWritten], Due::Written, State::Clean)?;
        }
        self.due(frame, Due::Nothing, false);
        Ok(())
    }

    /// Records that a launderer's write has failed: the backing store does not have the page. The page is in use again, and
    /// dirty, so that it is written when it is next unmapped. The kernel must map it again, unless the fault handler has
    /// done so.
    ///
    /// # Errors
    ///
    /// [`WrongState`] if no write of this page was under way.
    pub fn write_failed(&mut self, frame: usize) -> Result<PageAction, WrongState> {
        let reclaimed = self.state(frame) == Some(State::InUse);
        self.go(frame, &[State::BeingWritten, State::InUse], Due::Written, State::InUse)?;
        self.due(frame, Due::Nothing, true);
        Ok(if reclaimed { PageAction::Nothing } else { PageAction::Map(frame) })
    }

    /// Sets the message that is due for a page, and its dirty mark.
    fn due(&mut self, frame: usize, due: Due, dirty: bool) {
        if let Some(page) = self.pages.get_mut(frame) {
            (page.due, page.dirty) = (due, dirty);
        }
    }

    fn is_dirty(&self, frame: usize) -> bool {
        self.pages.get(frame).is_some_and(|page| page.dirty)
    }

    /// Tells whether the invariants hold: a page that can be allocated has no message due and is not dirty, and a page that
    /// is being unmapped or written has its message due.
    pub fn check(&self) -> bool {
        self.pages.iter().all(|page| match page.state {
            State::Clean | State::Zeroed | State::BeingRead => page.due == Due::Nothing && !page.dirty,
            State::BeingUnmapped => page.due == Due::Unmapped,
            State::BeingWritten => page.due == Due::Written && !page.dirty,
            State::InUse => true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The states that `check` must reject are not reachable by calls.
    #[test]
    fn check_finds_a_page_whose_message_does_not_fit_its_state() {
        for (due, dirty) in [Due::Nothing, Due::Unmapped, Due::Written]
            .into_iter()
            .flat_map(|due| [(due, false), (due, true)])
        {
            let check =
                |state| PageOut { pages: [Page { state, due, dirty }], threshold: 0, hand: 0 }.check();
            assert!(check(State::InUse), "it may have been reclaimed");
            assert_eq!(check(State::BeingUnmapped), due == Due::Unmapped);
            assert_eq!(check(State::BeingWritten), due == Due::Written && !dirty);
            for idle in [State::Clean, State::Zeroed, State::BeingRead] {
                assert_eq!(check(idle), due == Due::Nothing && !dirty);
            }
        }
    }
}
