//! Page-out as Tzou 5.3.3 has it: the unmapper, the launderers, and the states of Figure 5.4.
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
//! The unmapper keeps the clean list at a threshold (5.3.3.2). Zeroed pages do not count: the process that fills them
//! takes them from the clean list, and would otherwise leave nothing to read into.
//!
//! No flush is waited for: a page that is being unmapped keeps its contents, so a stale translation still reaches
//! the right page (transient inconsistency). The invariant that makes it so is that a frame leaves `BeingUnmapped`
//! for a list from which it can be allocated only by the message that says that its unmapping is done.

use core::fmt;

use crate::Outcome;

/// The states of a physical page (5.3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Mapped, or about to be.
    InUse,
    /// Free, and as it was when it was paged in or written.
    Clean,
    /// Free, and full of zeros.
    Zeroed,
    /// Being filled from backing store.
    BeingRead,
    /// Being written to backing store.
    BeingWritten,
    /// An asynchronous unmapping is in flight.
    BeingUnmapped,
}

/// What the kernel has to do next.
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

/// A step that the page's state does not allow. Nothing has changed.
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

/// The message that is to come for a page. Until then it is on no list, whatever its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Unmapped,
    Written,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    state: State,
    due: Due,
    /// Written to before it was reclaimed, which its new entry does not say, and not yet to backing store.
    dirty: bool,
}

/// The unmapper and the launderers for `FRAMES` physical pages.
#[derive(Clone, Debug)]
pub struct PageOut<const FRAMES: usize> {
    pages: [Page; FRAMES],
    /// How many clean pages to keep.
    threshold: usize,
    hand: usize,
}

impl<const FRAMES: usize> PageOut<FRAMES> {
    /// Returns `FRAMES` clean pages, of which `threshold` are to be kept clean.
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

    /// Allocates a page: a zeroed one if `zeroed` is wanted. Otherwise a clean one, or a zeroed one if no page is clean.
    pub fn allocate(&mut self, zeroed: bool) -> Option<usize> {
        let first = |wanted| self.pages.iter().position(|page| page.state == wanted);
        let clean = if zeroed { None } else { first(State::Clean) };
        let frame = clean.or_else(|| first(State::Zeroed))?;
        self.go(frame, &[State::Clean, State::Zeroed], Due::Nothing, State::InUse).ok().map(|()| frame)
    }

    /// Allocates a page to be read into; [`read`](Self::read) ends it.
    pub fn page_in(&mut self) -> Option<usize> {
        let frame = self.allocate(false)?;
        self.go(frame, &[State::InUse], Due::Nothing, State::BeingRead).ok().map(|()| frame)
    }

    /// The page has been read: it is in use.
    ///
    /// # Errors
    ///
    /// [`WrongState`] if it was not being read.
    pub fn read(&mut self, frame: usize) -> Result<(), WrongState> {
        self.go(frame, &[State::BeingRead], Due::Nothing, State::InUse)
    }

    /// The zero-filling process: a clean page becomes a zeroed one.
    ///
    /// # Errors
    ///
    /// [`WrongState`] if it was not clean.
    pub fn zero(&mut self, frame: usize) -> Result<(), WrongState> {
        self.go(frame, &[State::Clean], Due::Nothing, State::Zeroed)
    }

    /// The unmapper: selects a page to be unmapped if too few are clean, those on their way there included. It goes round
    /// (the text picks at random).
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

    /// The page-fault handler: a program referenced a page that is on its way out. It is reclaimed.
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

    /// A launderer takes the unmapper's message: the unmapping has ended, and `dirty` is what the old entry said. If
    /// the page is in use again, that is kept for the next time.
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
            // A reclaimed page has been mapped by the fault; one whose unmapping failed has its entry back.
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

    /// A launderer's write has ended: the page is clean, unless a fault has reclaimed it meanwhile.
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

    /// A launderer's write has failed: the backing store does not have the page. It is in use again, and dirty, so that it is
    /// written when its turn comes once more. It must be mapped again, unless a fault has done that.
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

    fn due(&mut self, frame: usize, due: Due, dirty: bool) {
        if let Some(page) = self.pages.get_mut(frame) {
            (page.due, page.dirty) = (due, dirty);
        }
    }

    fn is_dirty(&self, frame: usize) -> bool {
        self.pages.get(frame).is_some_and(|page| page.dirty)
    }

    /// Tells whether the invariants hold: what can be allocated has nothing in flight and nothing to be written, and what
    /// is on its way has its message to come.
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

    /// No sequence of calls leads to those that it finds.
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
