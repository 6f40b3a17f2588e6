//! A requester with what must not be touched before it is done.

use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::{Action, Misuse, Outcome, Plan, Requester, Seen};

static LEAKED: AtomicUsize = AtomicUsize::new(0);

/// Returns how many payloads have been leaked since the start: operations that were dropped half-way.
pub fn leaked() -> usize {
    LEAKED.load(Ordering::Relaxed)
}

/// An operation that holds a payload, such as the page-table nodes and the frames that a change has uncovered, and
/// hands it back when no CPU can reach them any more.
///
/// Dropping it before that leaks the payload and counts the loss ([`leaked`]): some TLB may still translate to it.
#[derive(Debug)]
#[must_use = "dropping an operation half-way leaks its payload"]
pub struct Operation<P, const W: usize = 1> {
    machine: Requester<W>,
    payload: ManuallyDrop<P>,
    given_back: bool,
}

impl<P, const W: usize> Operation<P, W> {
    /// Returns an operation that CPU `me` starts, and that holds `payload`.
    ///
    /// # Errors
    ///
    /// The payload, with [`Misuse::NoSuchCpu`] as for [`Requester::new`].
    pub fn new(plan: Plan, me: usize, payload: P) -> Result<Self, (P, Misuse)> {
        match Requester::new(plan, me) {
            Ok(machine) => Ok(Self { machine, payload: ManuallyDrop::new(payload), given_back: false }),
            Err(why) => Err((payload, why)),
        }
    }

    /// Returns what is to be done now.
    #[inline]
    pub fn next(&self) -> Action {
        self.machine.next()
    }

    /// Tells the operation what came of [`next`](Self::next).
    ///
    /// # Errors
    ///
    /// As [`Requester::did`].
    #[inline]
    pub fn did(&mut self, seen: Seen<W>) -> Result<(), Misuse> {
        self.machine.did(seen)
    }

    /// Continues on CPU `me`, which has counted the last acknowledgement.
    ///
    /// # Errors
    ///
    /// As [`Requester::take_over`].
    pub fn take_over(&mut self, me: usize) -> Result<(), Misuse> {
        self.machine.take_over(me)
    }

    /// Tells whether the operation is with the repliers.
    pub const fn is_left(&self) -> bool {
        self.machine.is_left()
    }

    /// Returns the machine.
    pub const fn machine(&self) -> &Requester<W> {
        &self.machine
    }

    /// Ends the operation and hands its payload back.
    ///
    /// # Errors
    ///
    /// The operation itself, if it has not ended.
    pub fn finish(mut self) -> Result<(P, Outcome), Self> {
        match self.next() {
            Action::Done(outcome) if !self.is_left() => {
                self.given_back = true;
                // SAFETY: `given_back` was false, since this is the only place that sets it and it consumes `self`;
                // it is true now, so nobody takes the payload again.
                let payload = unsafe { ManuallyDrop::take(&mut self.payload) };
                Ok((payload, outcome))
            }
            _ => Err(self),
        }
    }
}

impl<P, const W: usize> Drop for Operation<P, W> {
    fn drop(&mut self) {
        if !self.given_back {
            LEAKED.fetch_add(1, Ordering::Relaxed);
        }
    }
}
