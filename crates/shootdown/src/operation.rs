//! A requester with what must not be touched before it is done.

use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::{Action, Misuse, Order, Outcome, Plan, Requester, Seen};

static LEAKED: AtomicUsize = AtomicUsize::new(0);

/// Returns how many payloads have been leaked since the start: those of operations that were dropped half-way, and
/// those that were carried for an address space by a [`System`](crate::System) that was dropped.
pub fn leaked() -> usize {
    LEAKED.load(Ordering::Relaxed)
}

/// A payload that is leaked and counted, not dropped, unless it is taken out.
#[derive(Debug)]
pub(crate) struct Hold<P>(ManuallyDrop<Option<P>>);

impl<P> Hold<P> {
    pub(crate) const fn new(payload: Option<P>) -> Self {
        Self(ManuallyDrop::new(payload))
    }

    pub(crate) fn take(&mut self) -> Option<P> {
        self.0.take()
    }

    fn place(&mut self) -> &mut Option<P> {
        &mut self.0
    }
}

impl<P> Drop for Hold<P> {
    fn drop(&mut self) {
        if self.0.is_some() {
            LEAKED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An operation that holds a payload, such as the page-table nodes and the frames that its update has uncovered, and
/// hands it back when no CPU can reach them any more.
///
/// Where the acknowledgements precede the update (TLB-first), a walk may have entered, after its CPU acknowledged, what
/// the update then took out. The payload of such an operation is not free when the operation ends: it is
/// [carried](Ended::carried), and given to a later operation on the same address space as `earlier`. That one's
/// acknowledgements come after the update, so the payload is free when it ends.
///
/// Dropping an operation half-way leaks its payloads and counts the loss ([`leaked`]): some TLB may still translate to
/// them.
#[derive(Debug)]
#[must_use = "dropping an operation half-way leaks its payload"]
pub struct Operation<P, const W: usize = 1> {
    machine: Requester<W>,
    earlier: Hold<P>,
    uncovered: Hold<P>,
}

/// What an operation hands back.
#[derive(Debug)]
#[must_use = "it holds the payloads"]
pub struct Ended<P> {
    /// How it ended.
    pub outcome: Outcome,
    /// What a former operation was [carried](Self::carried) for: no CPU can reach it any more.
    pub earlier: Option<P>,
    /// What the update returned: no CPU can reach it any more. There is none if the operation was superseded before its
    /// update.
    pub free: Option<P>,
    /// What the update returned after all had acknowledged: a walk may still be in it.
    pub carried: Option<P>,
}

impl<P, const W: usize> Operation<P, W> {
    /// Returns an operation that CPU `me` starts. `earlier` is what an operation on the same address space has
    /// [carried](Ended::carried), if one has.
    ///
    /// # Errors
    ///
    /// `earlier`, with [`Misuse::NoSuchCpu`] as for [`Requester::new`].
    pub fn new(plan: Plan, me: usize, earlier: Option<P>) -> Result<Self, (Option<P>, Misuse)> {
        match Requester::new(plan, me) {
            Ok(machine) => Ok(Self { machine, earlier: Hold::new(earlier), uncovered: Hold::new(None) }),
            Err(why) => Err((earlier, why)),
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

    /// Returns the place of what [`Action::Update`] uncovers. It is empty in the first round.
    #[inline]
    pub fn uncovered(&mut self) -> &mut Option<P> {
        self.uncovered.place()
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

    /// Ends the operation and hands its payloads back.
    ///
    /// # Errors
    ///
    /// The operation itself, if it has not ended.
    pub fn finish(mut self) -> Result<Ended<P>, Self> {
        match self.next() {
            Action::Done(outcome) if !self.is_left() => {
                let (earlier, uncovered) = (self.earlier.take(), self.uncovered.take());
                let last = matches!(self.machine.plan().algorithm().order(), Order::TlbFirst);
                let (free, carried) = if last { (None, uncovered) } else { (uncovered, None) };
                Ok(Ended { outcome, earlier, free, carried })
            }
            _ => Err(self),
        }
    }
}
