//! The replier, as a state machine: it takes requests from its CPU's queue until there are none.

use crate::{Duty, Misuse, OpId, Plan, Queue, Rendezvous, Repair, Request, Target, Work};

/// An action that the replier asks its driver to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// 2-phase: disable interrupts, wait for this CPU's status writes, and set its flag. (The caller of
    /// [`System`](crate::System) disables the interrupts.)
    Enter,
    /// 2-phase: clear the flag. Interrupts stay disabled until [`Idle`](Self::Idle).
    Leave,
    /// Take the next work from this CPU's queue, and pass it to [`Replier::took`].
    Take,
    /// Flush `what` from this CPU's TLB. With `drain`, wait for this CPU's status writes first.
    Flush {
        /// The translations to flush.
        what: Target,
        /// Whether to wait for status writes.
        drain: bool,
    },
    /// Count down the acknowledgements of this operation in one atomic step, and pass the remaining number to
    /// [`Replier::counted`].
    Acknowledge(OpId),
    /// As [`Acknowledge`](Self::Acknowledge), for the operation that is in this slot, after an overflow of the queue.
    AcknowledgeSlot {
        /// The CPU.
        cpu: u16,
        /// Its slot.
        slot: u16,
    },
    /// Take over an asynchronous operation, of which this CPU has counted the last acknowledgement, and run it to its end.
    TakeOver {
        /// The CPU that started it.
        cpu: u16,
        /// Its slot.
        slot: u16,
    },
    /// 2-phase: read this operation's continuing signal, and pass it to [`Replier::may_continue`].
    MayContinue(OpId),
    /// As [`MayContinue`](Self::MayContinue), for the operation that is in this slot, after an overflow of the queue: the
    /// signal is set, or the operation has ended.
    MayContinueSlot {
        /// The CPU.
        cpu: u16,
        /// Its slot.
        slot: u16,
    },
    /// Do nothing until the next request.
    Idle,
}

/// The state of a replier: the action that it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Idle,
    Enter,
    Take,
    Flush,
    Acknowledge,
    TakeOver,
    Continue,
    Leave,
    /// 2-phase: the check of the queue after the flag has been cleared.
    LookAgain,
}

/// One CPU's replier, for queues of `N` requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replier<const N: usize, const W: usize = 1, const SLOTS: usize = 1> {
    plan: Plan,
    at: At,
    work: Option<Work<W, SLOTS>>,
    /// After an overflow: the CPU and the slot of the operation that is being acknowledged.
    slot: Option<(u16, u16)>,
    /// The CPU and the slot of the operation to take over.
    taken_over: (u16, u16),
    /// 2-phase: requests that have been taken and whose flush is still to be done.
    held: Queue<N, W, SLOTS>,
    /// 2-phase: this CPU is a waiting requester, so requests are only acknowledged and held.
    collecting: bool,
}

impl<const N: usize, const W: usize, const SLOTS: usize> Replier<N, W, SLOTS> {
    /// Returns a replier with nothing to do.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoRoom`] as for [`Queue::new`].
    pub fn new(plan: Plan) -> Result<Self, Misuse> {
        Queue::<N, W, SLOTS>::new()?;
        Ok(Self::of_checked_size(plan))
    }

    /// As [`new`](Self::new), for sizes that are known not to be zero.
    pub(crate) const fn of_checked_size(plan: Plan) -> Self {
        Self {
            plan,
            at: At::Idle,
            work: None,
            slot: None,
            taken_over: (0, 0),
            held: Queue::of_checked_size(),
            collecting: false,
        }
    }

    /// Starts the replier, after an interrupt or when the queue has a request.
    pub fn interrupt(&mut self) {
        if self.at == At::Idle {
            self.collecting = false;
            self.at = if self.plan.stops_repliers() { At::Enter } else { At::Take };
        }
    }

    /// Starts the replier on a CPU that waits in 2-phase as a requester: requests are acknowledged and held.
    pub fn collect(&mut self) {
        if self.at == At::Idle {
            self.collecting = true;
            self.at = At::Take;
        }
    }

    /// Starts the replier on a CPU that has finished its own 2-phase operation: all requests are finished, then the CPU
    /// leaves the algorithm.
    pub fn finish(&mut self) {
        if self.at == At::Idle {
            self.collecting = false;
            self.at = At::Take;
        }
    }

    /// Returns the current request, or `None` if there is none or the queue had overflowed.
    pub const fn request(&self) -> Option<&Request> {
        match &self.work {
            Some(Work::One(request)) => Some(request),
            _ => None,
        }
    }

    /// Tells whether the replier has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.at == At::Idle
    }

    /// Tells whether the replier holds requests of operations for whose continuing signals it waits.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns the action that the driver must do now.
    // Inlined into the driver's loop, like the functions that take the answers.
    #[inline(always)]
    pub fn next(&self) -> Reply {
        let drain = self.plan.has(Repair::DRAIN);
        match (self.at, &self.work) {
            (At::Idle, _) => Reply::Idle,
            (At::Enter, _) => Reply::Enter,
            (At::Leave, _) => Reply::Leave,
            (At::Flush, Some(Work::One(Request { what, .. }))) => Reply::Flush { what: *what, drain },
            (At::Flush, _) => Reply::Flush { what: Target::All, drain },
            (At::Acknowledge, Some(Work::One(Request { op, .. }))) => Reply::Acknowledge(*op),
            (At::Continue, Some(Work::One(Request { op, .. }))) => Reply::MayContinue(*op),
            (At::TakeOver, _) => Reply::TakeOver { cpu: self.taken_over.0, slot: self.taken_over.1 },
            (At::Acknowledge, _) => {
                let (cpu, slot) = self.slot.unwrap_or_default();
                Reply::AcknowledgeSlot { cpu, slot }
            }
            (At::Continue, _) => {
                let (cpu, slot) = self.slot.unwrap_or_default();
                Reply::MayContinueSlot { cpu, slot }
            }
            (At::Take | At::LookAgain, _) => Reply::Take,
        }
    }

    /// Records that an action without an answer is done.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAsked`] if the current action needs an answer.
    #[inline(always)]
    pub fn did(&mut self) -> Result<(), Misuse> {
        match self.at {
            At::Enter if self.work.is_some() => self.begin(),
            At::Enter => self.at = At::Take,
            At::Leave if self.plan.has(Repair::ENQUEUE_BEFORE_FLAG) => self.at = At::LookAgain,
            At::Leave => self.at = At::Idle,
            At::Flush if self.plan.stops_repliers() => {
                self.at = if self.plan.has(Repair::FLUSH_AFTER_UPDATE) { At::Take } else { At::Continue };
                if self.at == At::Take {
                    self.work = None;
                    self.release();
                }
            }
            At::Flush if self.acknowledges_first() => {
                self.work = None;
                self.at = At::Take;
            }
            At::Flush => self.acknowledge(),
            At::TakeOver => self.acknowledged(),
            _ => return Err(Misuse::NotAsked),
        }
        Ok(())
    }

    /// Takes the answer to [`Reply::Take`].
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAsked`] if the current action is another.
    #[inline(always)]
    pub fn took(&mut self, work: Option<Work<W, SLOTS>>) -> Result<(), Misuse> {
        match (self.at, work) {
            (At::LookAgain, Some(_)) => {
                // The requester of this work may have seen the flag before it was cleared, so the CPU must enter again.
                self.work = work;
                self.at = At::Enter;
            }
            (At::LookAgain, None) => self.at = At::Idle,
            (At::Take, Some(_)) => {
                self.work = work;
                self.begin();
            }
            (At::Take, None) if self.collecting => self.at = At::Idle,
            (At::Take, None) if self.plan.stops_repliers() => self.release(),
            (At::Take, None) => self.at = At::Idle,
            _ => return Err(Misuse::NotAsked),
        }
        Ok(())
    }

    /// Takes the answer to [`Reply::Acknowledge`] and [`Reply::AcknowledgeSlot`]: the remaining number of acknowledgements,
    /// which the atomic step returned.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAsked`] if the current action is another.
    #[inline(always)]
    pub fn counted(&mut self, left: u32) -> Result<(), Misuse> {
        let op = match (self.at, &self.work) {
            (At::Acknowledge, Some(Work::One(Request { op, .. }))) => (op.cpu, op.slot),
            (At::Acknowledge, _) => self.slot.unwrap_or_default(),
            _ => return Err(Misuse::NotAsked),
        };
        if left == 0 && self.plan.algorithm().style() == crate::Style::Asynchronous {
            self.taken_over = op;
            self.at = At::TakeOver;
        } else {
            self.acknowledged();
        }
        Ok(())
    }

    /// Takes the answer to [`Reply::MayContinue`] and [`Reply::MayContinueSlot`].
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAsked`] if the current action is another.
    pub fn may_continue(&mut self, yes: bool) -> Result<(), Misuse> {
        if self.at != At::Continue {
            return Err(Misuse::NotAsked);
        }
        if !yes {
            // Another requester may wait for this CPU's acknowledgement: hold this request, serve the queue, and ask again.
            if self.plan.rendezvous() == Rendezvous::Serve {
                self.hold();
            }
            return Ok(());
        }
        if let Some(Work::Everything(rest)) = &mut self.work {
            self.slot = rest.pop();
            if self.slot.is_some() {
                return Ok(());
            }
        }
        if self.plan.has(Repair::FLUSH_AFTER_UPDATE) {
            self.at = At::Flush;
        } else {
            self.work = None;
            self.at = At::Take;
        }
        Ok(())
    }

    /// Tells whether the current work is one request whose acknowledgement comes before its flush. After an overflow of the queue all
    /// acknowledgements come after the flush.
    const fn acknowledges_first(&self) -> bool {
        matches!(&self.work, Some(Work::One(Request { duty: Duty::AcknowledgeFirst, .. })))
    }

    /// Starts the work that was taken.
    fn begin(&mut self) {
        if self.acknowledges_first() {
            self.at = At::Acknowledge;
        } else if !self.plan.stops_repliers() {
            self.at = At::Flush;
        } else if self.plan.rendezvous() == Rendezvous::Serve || !self.plan.has(Repair::RENDEZVOUS) {
            self.acknowledge();
        } else {
            self.hold();
        }
    }

    /// Continues with the acknowledgement of the current work.
    fn acknowledge(&mut self) {
        self.at = At::Acknowledge;
        if let Some(Work::Everything(rest)) = &mut self.work {
            self.slot = rest.pop();
            if self.slot.is_none() {
                self.work = None;
                self.at = At::Take;
            }
        }
    }

    /// Continues after an acknowledgement: with the next one of an overflow, or with the next work.
    fn acknowledged(&mut self) {
        if self.plan.stops_repliers() {
            return self.hold_acknowledged();
        }
        match &self.work {
            Some(Work::Everything(_)) => self.acknowledge(),
            _ if self.acknowledges_first() => self.at = At::Flush,
            _ => {
                self.work = None;
                self.at = At::Take;
            }
        }
    }

    /// 2-phase: keeps the acknowledged operation until it continues.
    fn hold_acknowledged(&mut self) {
        match &self.work {
            Some(Work::One(_)) => self.hold(),
            _ => {
                self.hold_slot();
                self.acknowledge();
            }
        }
    }

    /// Holds the operation of an overflow that is in the current slot.
    fn hold_slot(&mut self) {
        if let Some((cpu, slot)) = self.slot {
            self.held.overflow_with(OpId { cpu, slot, generation: 0 });
        }
    }

    /// 2-phase: holds the current work until its operation continues, and takes more work.
    fn hold(&mut self) {
        match self.work.take() {
            Some(Work::One(request)) if self.held.push(request).is_ok() => {}
            Some(Work::Everything(mut rest)) => {
                self.hold_slot();
                while let Some((cpu, slot)) = rest.pop() {
                    self.held.overflow_with(OpId { cpu, slot, generation: 0 });
                }
            }
            _ => {}
        }
        self.slot = None;
        self.at = At::Take;
        if !self.plan.has(Repair::FLUSH_AFTER_UPDATE) && !self.collecting {
            // The order as printed for the requester: flush when the CPU stops.
            self.work = self.held.take();
            self.at = At::Flush;
        }
    }

    /// 2-phase: continues with a held request when the queue is empty, or leaves the algorithm if none is held.
    fn release(&mut self) {
        self.work = self.held.take();
        self.at = match &mut self.work {
            Some(Work::Everything(rest)) => {
                self.slot = rest.pop();
                At::Continue
            }
            Some(Work::One(_)) => At::Continue,
            None => At::Leave,
        };
    }
}
