//! The replier: takes requests from its CPU's queue until there are none.

use crate::{Misuse, OpId, Plan, Queue, Rendezvous, Repair, Request, Target, Work};

/// What the replier asks its driver to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// 2-phase, with interrupts disabled: wait for this CPU's status writes, set its flag. ([`System`](crate::System) leaves the
    /// interrupts to its caller.)
    Enter,
    /// 2-phase: clear the flag. Interrupts stay disabled until [`Idle`](Self::Idle).
    Leave,
    /// Take a piece of work from this CPU's queue, and hand it over with [`Replier::took`].
    Take,
    /// Flush this from the CPU's TLB. With `drain`, status writes under way are in memory before the flush.
    Flush {
        /// What.
        what: Target,
        /// Wait for status writes.
        drain: bool,
    },
    /// Count this acknowledgement, in one atomic step, and tell what is left with [`Replier::counted`].
    Acknowledge(OpId),
    /// Count the acknowledgement of whatever operation is in this slot of this CPU (after an overflow).
    AcknowledgeSlot {
        /// The CPU.
        cpu: u16,
        /// Its slot.
        slot: u16,
    },
    /// This CPU has counted the last acknowledgement of an asynchronous operation: take it over and run it.
    TakeOver {
        /// The CPU that started it.
        cpu: u16,
        /// Its slot.
        slot: u16,
    },
    /// 2-phase: tell whether this operation's continuing signal is set.
    MayContinue(OpId),
    /// 2-phase: tell whether the operation in this slot has continued or ended (after an overflow).
    MayContinueSlot {
        /// The CPU.
        cpu: u16,
        /// Its slot.
        slot: u16,
    },
    /// Nothing to do until the next request.
    Idle,
}

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
    /// 2-phase: one more look into the queue after the flag is cleared.
    LookAgain,
}

/// One CPU's replier, for queues of `N` requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replier<const N: usize, const W: usize = 1, const SLOTS: usize = 1> {
    plan: Plan,
    at: At,
    work: Option<Work<W, SLOTS>>,
    /// The operation of an overflow's set that is being acknowledged.
    slot: Option<(u16, u16)>,
    taken_over: (u16, u16),
    /// 2-phase: what has been acknowledged and not yet flushed.
    held: Queue<N, W, SLOTS>,
    /// 2-phase: the CPU is a requester, and waits; requests are only acknowledged.
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

    /// Begins: an interrupt has come in, or a look at the queue found a request.
    pub fn interrupt(&mut self) {
        if self.at == At::Idle {
            self.collecting = false;
            self.at = if self.plan.stops_repliers() { At::Enter } else { At::Take };
        }
    }

    /// Begins on a CPU that is in 2-phase as a requester and waits: requests are acknowledged and held.
    pub fn collect(&mut self) {
        if self.at == At::Idle {
            self.collecting = true;
            self.at = At::Take;
        }
    }

    /// Begins on a CPU whose 2-phase request is through: finishes all requests, then leaves the algorithm.
    pub fn finish(&mut self) {
        if self.at == At::Idle {
            self.collecting = false;
            self.at = At::Take;
        }
    }

    /// Returns the request at hand, if there is one and its mailbox has not overflowed.
    pub const fn request(&self) -> Option<&Request> {
        match &self.work {
            Some(Work::One(request)) => Some(request),
            _ => None,
        }
    }

    /// Tells whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.at == At::Idle
    }

    /// Tells whether the replier has stopped for operations and waits for their continuing signals.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns what is to be done now.
    // This and the answers are parts of the driver's one loop, as the requester's are.
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

    /// Tells the replier that an action without an answer has been done.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAsked`] if the action at hand wants an answer.
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
            At::Flush => self.acknowledge(),
            At::TakeOver => self.acknowledged(),
            _ => return Err(Misuse::NotAsked),
        }
        Ok(())
    }

    /// Hands over what [`Reply::Take`] took.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAsked`] if nothing was to be taken.
    #[inline(always)]
    pub fn took(&mut self, work: Option<Work<W, SLOTS>>) -> Result<(), Misuse> {
        match (self.at, work) {
            (At::LookAgain, Some(_)) => {
                // A requester may have seen the flag before it was cleared: back in, with the work in hand.
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

    /// Tells how many acknowledgements are left after [`Reply::Acknowledge`]: the value that the one atomic step
    /// returned.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAsked`] if no acknowledgement was asked for.
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

    /// Answers [`Reply::MayContinue`].
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAsked`] if that was not the question.
    pub fn may_continue(&mut self, yes: bool) -> Result<(), Misuse> {
        if self.at != At::Continue {
            return Err(Misuse::NotAsked);
        }
        if !yes {
            // Meanwhile others may want an acknowledgement: hold this one, look into the queue, come back.
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

    /// Work has come in.
    fn begin(&mut self) {
        if !self.plan.stops_repliers() {
            self.at = At::Flush;
        } else if self.plan.rendezvous() == Rendezvous::Serve || !self.plan.has(Repair::RENDEZVOUS) {
            self.acknowledge();
        } else {
            self.hold();
        }
    }

    /// On to the acknowledgement of the work in hand.
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

    /// One acknowledgement is through; there may be more of an overflow's.
    fn acknowledged(&mut self) {
        if self.plan.stops_repliers() {
            return self.hold_acknowledged();
        }
        match &self.work {
            Some(Work::Everything(_)) => self.acknowledge(),
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

    fn hold_slot(&mut self) {
        if let Some((cpu, slot)) = self.slot {
            self.held.owe(OpId { cpu, slot, generation: 0 });
        }
    }

    /// 2-phase: keeps the work in hand for later, and takes more.
    fn hold(&mut self) {
        match self.work.take() {
            Some(Work::One(request)) if self.held.push(request).is_ok() => {}
            Some(Work::Everything(mut rest)) => {
                self.hold_slot();
                while let Some((cpu, slot)) = rest.pop() {
                    self.held.owe(OpId { cpu, slot, generation: 0 });
                }
            }
            _ => {}
        }
        self.slot = None;
        self.at = At::Take;
        if !self.plan.has(Repair::FLUSH_AFTER_UPDATE) && !self.collecting {
            // As the requester's half is printed: flush on stopping.
            self.work = self.held.take();
            self.at = At::Flush;
        }
    }

    /// 2-phase: the queue is empty. On to an operation that is held, or out.
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
