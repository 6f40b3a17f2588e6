//! A requester together with the payload that must not be used before the operation has ended.

use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::{Action, Misuse, Order, Outcome, Plan, Requester, Seen};

static LEAKED: AtomicUsize = AtomicUsize::new(0);

/// Returns how many payloads have been leaked since the program started: payloads of operations that were dropped before
/// their end, and payloads that a [`System`](crate::System) carried when it was dropped.
pub fn leaked() -> usize {
    LEAKED.load(Ordering::Relaxed)
}

/// A payload that is leaked and counted, instead of dropped, unless the owner takes it out.
#[derive(Debug)]
pub(crate) struct Hold<P>(ManuallyDrop<Option<P>>);

impl<P> Hold<P> {
    pub(crate) const fn new(payload: Option<P>) -> Self {
        Self(ManuallyDrop::new(payload))
    }

    pub(crate) fn take(&mut self) -> Option<P> {
        self.0.take()
    }

    pub(crate) fn place(&mut self) -> &mut Option<P> {
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

/// An operation that holds a payload, such as the page-table nodes and the frames that its update has unlinked, and returns
/// the payload when no CPU can reach it any more.
///
/// With TLB-first, the acknowledgements precede the update. So a walk may enter a node after its CPU has acknowledged and
/// before the update unlinks the node. The payload of such an operation is not free when the operation ends: the caller
/// [carries](Ended::carried) it, and gives it as `earlier` to a later operation on the same address space. The
/// acknowledgements of that operation come after the update, so the payload is free when that operation ends.
///
/// A plan that flushes remotely asks for no acknowledgements. Where its flush does not end walks by software
/// ([`RemoteTlbs::ends_walks`](crate::RemoteTlbs::ends_walks)), the caller treats [`free`](Ended::free) as carried, and gives no
/// `earlier` payload to such an operation. [`System`](crate::System) does both.
///
/// If an operation is dropped before its end, its payloads are leaked and counted ([`leaked`]), because some TLB may still
/// translate to them.
#[derive(Debug)]
#[must_use = "dropping an operation half-way leaks its payload"]
pub struct Operation<P, const W: usize = 1> {
    machine: Requester<W>,
    earlier: Hold<P>,
    uncovered: Hold<P>,
}

/// The outcome and the payloads of an operation that has ended.
#[derive(Debug)]
#[must_use = "it holds the payloads"]
pub struct Ended<P> {
    /// How the operation ended.
    pub outcome: Outcome,
    /// The payload that an earlier operation [carried](Self::carried): no CPU can reach it any more, if this operation's flush ends
    /// walks.
    pub earlier: Option<P>,
    /// The payload that the update returned. No CPU can reach it any more, if the operation's flush ends walks. But if the outcome
    /// is [`Outcome::Superseded`], the page is in use again. `None` if the operation was superseded before its update, or if the
    /// payload is in [`carried`](Self::carried).
    pub free: Option<P>,
    /// The payload that the update returned after all CPUs had acknowledged: a walk may still be in it.
    pub carried: Option<P>,
}

impl<P, const W: usize> Operation<P, W> {
    /// Returns an operation that CPU `me` starts. `earlier` is the payload that an earlier operation on the same address
    /// space has [carried](Ended::carried), if there is one.
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

    /// Returns the action that the caller must do now.
    #[inline]
    pub fn next(&self) -> Action {
        self.machine.next()
    }

    /// Tells the operation the answer to [`next`](Self::next).
    ///
    /// # Errors
    ///
    /// As [`Requester::did`].
    #[inline]
    pub fn did(&mut self, seen: Seen<W>) -> Result<(), Misuse> {
        self.machine.did(seen)
    }

    /// Returns the place for the payload of [`Action::Update`]. It is `None` in the first round.
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

    /// Tells whether the repliers own the operation.
    pub const fn is_left(&self) -> bool {
        self.machine.is_left()
    }

    /// Returns the state machine.
    pub const fn machine(&self) -> &Requester<W> {
        &self.machine
    }

    /// Ends the operation, and returns its payloads.
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
