//! The requester: runs a program of lines, asks for one action at a time, and is told what came of it.

use tlbkit_addr::CpuSet;

use super::{Line, program};
use crate::{Misuse, Outcome, Plan, Rendezvous, Repair};

/// What the requester asks its driver to do. Each is one step as far as other CPUs can see, and sequentially
/// consistent with the others unless its line says less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Take the exclusion of the entry (or of the table that holds it) if it is free. Answer: [`Seen::Yes`], or
    /// [`Seen::No`] to be asked again, interrupts enabled meanwhile.
    Exclude,
    /// Set the tentative entry to the new one.
    SetTentative,
    /// Set or clear the flag: TLB-first's miss handlers look at it, and with 2-phase every CPU that switches to the
    /// space.
    SetChanging(bool),
    /// Exchange the entry for the new one, and keep the status bits that come back.
    Update,
    /// Read the entry's status bits, and keep them ([`Repair::EXCHANGE`] switched off).
    ReadStatus,
    /// Store the new entry ([`Repair::EXCHANGE`] switched off).
    Store,
    /// Tell which CPUs may hold the entry, and which of them run the address space: [`Seen::Targets`].
    ReadTargets,
    /// Tell which CPUs hold the entry right now ([`Repair::ALL_LOADERS`] switched off).
    ReadHolders,
    /// Note that this CPU must flush before it runs the address space again.
    MarkStale(usize),
    /// Tell whether this CPU runs the address space.
    IsRunning(usize),
    /// Flush the entry from this CPU's TLB. With `drain`, status writes under way are in memory before the flush.
    FlushLocally {
        /// Wait for status writes.
        drain: bool,
    },
    /// Set the number of acknowledgements to wait for. (2-phase with [`Rendezvous::Flag`](crate::Rendezvous::Flag) waits for
    /// flags, and no CPU counts down.)
    SetCount(u32),
    /// Put a request into this CPU's queue, and interrupt it. If it is offline, acknowledge in its place, and answer
    /// [`Seen::No`].
    Send(usize),
    /// The same, after which the operation belongs to the repliers: answer first, then send, then touch the machine
    /// no more.
    SendAndLeave(usize),
    /// Tell whether all acknowledgements are in. While they are not, serve this CPU's own queue.
    AllAcknowledged,
    /// Enter 2-phase, with interrupts disabled: wait for this CPU's status writes, then set its flag.
    /// ([`System`](crate::System) leaves the interrupts to its caller.)
    Enter,
    /// Tell whether this CPU is in 2-phase.
    IsStopped(usize),
    /// Set the operation's continuing signal.
    Continue,
    /// Tell the TLB of this CPU to flush the entry: [`Seen::Posted`]. With `drain`, when what is under way there has
    /// ended.
    FlushRemotely {
        /// The CPU.
        cpu: usize,
        /// Wait for walks, miss handlers and status writes.
        drain: bool,
    },
    /// Tell whether this CPU's TLB has acknowledged flush number `ticket`.
    IsFlushed {
        /// The CPU.
        cpu: usize,
        /// The flush.
        ticket: u32,
    },
    /// Allow the rights to be raised while replies are outstanding.
    Open,
    /// Forbid it again; [`Seen::No`] if they have been raised.
    Close,
    /// Tell whether the entry has the new access rights, and keep its status bits.
    Check,
    /// Give the exclusion up.
    Release,
    /// Run this CPU's replier until it has left 2-phase.
    Serve,
    /// The operation has ended; nothing more to ask.
    Done(Outcome),
}

/// What a driver saw when it did what an [`Action`] asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seen<const W: usize = 1> {
    /// It has been done.
    Did,
    /// Yes.
    Yes,
    /// No, or not yet.
    No,
    /// The target set.
    Targets {
        /// CPUs that may hold the entry.
        members: CpuSet<W>,
        /// CPUs that may use the entry.
        running: CpuSet<W>,
    },
    /// A remote flush has been asked for.
    Posted {
        /// Its number.
        ticket: u32,
        /// The number of the last one that is done.
        done: u32,
    },
}

/// One operation's requester, for sets of up to `W` words of CPUs.
///
/// Plain data: an explorer copies and compares it. [`Operation`](crate::Operation) adds the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Requester<const W: usize = 1> {
    plan: Plan,
    me: u16,
    /// The line at hand, and its place in the program.
    line: Line,
    at: u8,
    round: u8,
    /// Within a line: the first half of its two steps is done.
    half: bool,
    /// The operation is with the repliers.
    left: bool,
    outcome: Outcome,
    ticket: u32,
    /// Whether this CPU may hold the entry.
    here: bool,
    /// Which others may.
    others: CpuSet<W>,
    repliers: CpuSet<W>,
    /// The CPUs that the line at hand concerns; where it goes from one CPU to the next, those that are left.
    todo: CpuSet<W>,
}

impl<const W: usize> Requester<W> {
    /// How many CPUs a set can hold and a name can tell apart.
    pub(crate) const CPUS: usize =
        if CpuSet::<W>::CAPACITY < 1 << 16 { CpuSet::<W>::CAPACITY } else { 1 << 16 };

    /// Returns the machine of an operation that CPU `me` starts.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoSuchCpu`] if a `CpuSet<W>` cannot hold `me`, or an [`OpId`](crate::OpId) cannot name it.
    pub fn new(plan: Plan, me: usize) -> Result<Self, Misuse> {
        if me >= Self::CPUS {
            return Err(Misuse::NoSuchCpu { cpu: me });
        }
        let mut machine = Self {
            plan,
            me: me as u16,
            line: Line::Done,
            at: 0,
            round: 1,
            half: false,
            left: false,
            outcome: Outcome::Done,
            ticket: 0,
            here: false,
            others: CpuSet::empty(),
            repliers: CpuSet::empty(),
            todo: CpuSet::empty(),
        };
        machine.settle();
        Ok(machine)
    }

    /// Returns the CPU that the line at hand is to be done for now.
    #[inline]
    fn next_todo(&self) -> usize {
        self.todo.iter().next().unwrap_or_default()
    }

    /// Returns what is to be done now. Asking twice gives the same answer.
    // This and `did` are parts of the driver's one loop: there a step costs a few jumps, and no call.
    #[inline(always)]
    pub fn next(&self) -> Action {
        match self.line {
            Line::Exclude => Action::Exclude,
            Line::Tentative => Action::SetTentative,
            Line::Changing => Action::SetChanging(true),
            Line::Unchanging => Action::SetChanging(false),
            Line::Update if self.plan.has(Repair::EXCHANGE) => Action::Update,
            Line::Update if !self.half => Action::ReadStatus,
            Line::Update => Action::Store,
            Line::Targets if self.plan.has(Repair::ALL_LOADERS) => Action::ReadTargets,
            Line::Targets => Action::ReadHolders,
            Line::FlushLocally => Action::FlushLocally { drain: self.plan.has(Repair::DRAIN) },
            Line::Defer if !self.half => Action::MarkStale(self.next_todo()),
            Line::Defer => Action::IsRunning(self.next_todo()),
            Line::Count => Action::SetCount(self.repliers.len() as u32),
            Line::RequestAndLeave if self.todo.len() == 1 => Action::SendAndLeave(self.next_todo()),
            Line::Request | Line::RequestAndLeave => Action::Send(self.next_todo()),
            Line::Wait => Action::AllAcknowledged,
            Line::WaitStopped if self.plan.rendezvous() == Rendezvous::Serve => Action::AllAcknowledged,
            Line::WaitStopped if !self.plan.has(Repair::RENDEZVOUS) => Action::AllAcknowledged,
            Line::WaitStopped => Action::IsStopped(self.next_todo()),
            Line::Enter => Action::Enter,
            Line::Continue => Action::Continue,
            Line::FlushRemotely if !self.half => {
                Action::FlushRemotely { cpu: self.next_todo(), drain: self.plan.has(Repair::REMOTE_DRAIN) }
            }
            Line::FlushRemotely => Action::IsFlushed { cpu: self.next_todo(), ticket: self.ticket },
            Line::Open => Action::Open,
            Line::Close => Action::Close,
            Line::Check => Action::Check,
            Line::Release => Action::Release,
            Line::Serve => Action::Serve,
            Line::Done => Action::Done(self.outcome),
        }
    }

    /// Tells the machine what came of [`next`](Self::next).
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAsked`] if the answer does not fit the action, or the operation has ended.
    #[inline(always)]
    pub fn did(&mut self, seen: Seen<W>) -> Result<(), Misuse> {
        if self.left {
            return Err(Misuse::NotAsked);
        }
        let (done, yes, no) =
            (matches!(seen, Seen::Did), matches!(seen, Seen::Yes), matches!(seen, Seen::No));
        let (same, next) = (self.at, self.at + 1);
        let to = match self.next() {
            Action::SetTentative
            | Action::SetChanging(_)
            | Action::Update
            | Action::Store
            | Action::FlushLocally { .. }
            | Action::SetCount(_)
            | Action::Enter
            | Action::Continue
            | Action::Open
            | Action::Release
            | Action::Serve
                if done =>
            {
                next
            }
            Action::ReadStatus | Action::MarkStale(_) if done => {
                self.half = true;
                same
            }
            Action::ReadTargets | Action::ReadHolders => match seen {
                Seen::Targets { members, running } => {
                    self.others = members;
                    self.here = self.others.remove(usize::from(self.me));
                    self.repliers = self.others.intersection(running);
                    next
                }
                _ => return Err(Misuse::NotAsked),
            },
            Action::Exclude | Action::AllAcknowledged | Action::Close if yes => next,
            Action::IsStopped(cpu) | Action::IsFlushed { cpu, .. } if yes => self.each(cpu),
            // Not yet: the same is asked again.
            Action::Exclude | Action::AllAcknowledged | Action::IsStopped(_) | Action::IsFlushed { .. }
                if no =>
            {
                same
            }
            Action::IsRunning(cpu) if yes => {
                // It may have switched to the space before it could see the mark: then it is asked like the rest.
                self.repliers.insert(cpu);
                self.each(cpu)
            }
            Action::IsRunning(cpu) if no => self.each(cpu),
            Action::Send(cpu) if done => self.each(cpu),
            Action::Send(cpu) if no => {
                // It may be back before its flag is looked at, and then does not stop.
                self.repliers.remove(cpu);
                self.each(cpu)
            }
            Action::SendAndLeave(cpu) if done => {
                self.left = true;
                self.each(cpu)
            }
            Action::FlushRemotely { .. } => match seen {
                Seen::Posted { ticket, done } => {
                    self.ticket =
                        if self.plan.has(Repair::GENERATION) { ticket } else { done.wrapping_add(1) };
                    self.half = true;
                    same
                }
                _ => return Err(Misuse::NotAsked),
            },
            Action::Close if no => {
                self.outcome = Outcome::Superseded;
                self.place(same, |line| matches!(line, Line::Unchanging | Line::Release))
            }
            Action::Check if yes || no => self.check(yes),
            _ => return Err(Misuse::NotAsked),
        };
        if to != self.at {
            self.half = false;
            self.at = to;
            self.settle();
        }
        Ok(())
    }

    /// `while (PTE.access_rights != new_PTE.access_rights)`: returns the place where to go on.
    fn check(&mut self, unchanged: bool) -> u8 {
        if self.round < self.plan.rounds() || (!unchanged && !self.plan.is_conditional()) {
            // Counted no further than matters, so that an explorer sees finitely many states.
            self.round = self.round.saturating_add(1).min(self.plan.rounds());
            self.todo = CpuSet::empty();
            return self.place(0, |line| matches!(line, Line::Update));
        }
        if !unchanged {
            self.outcome = Outcome::Overwritten;
        }
        self.at + 1
    }

    /// The line at hand is done for `cpu`; perhaps for all. Returns the place where to go on.
    fn each(&mut self, cpu: usize) -> u8 {
        self.half = false;
        self.todo.remove(cpu);
        self.at + u8::from(self.todo.is_empty())
    }

    /// Returns the place of the next line, at `from` or after it, that is `wanted`: there is one.
    fn place(&self, from: u8, wanted: impl Fn(Line) -> bool) -> u8 {
        let rest = program(&self.plan).iter().skip(usize::from(from));
        from + rest.take_while(|&&line| !wanted(line)).count() as u8
    }

    /// Passes over lines that concern no CPU, and sets up the next one that does.
    #[inline(always)]
    fn settle(&mut self) {
        let program = program(&self.plan);
        loop {
            self.line = program.get(usize::from(self.at)).copied().unwrap_or(Line::Done);
            let todo = match self.line {
                Line::Exclude | Line::Release if !self.plan.has(Repair::EXCLUSION) => CpuSet::empty(),
                Line::Open | Line::Close if !self.plan.has(Repair::RAISE_SUPERSEDES) => CpuSet::empty(),
                Line::FlushLocally if !self.here => CpuSet::empty(),
                Line::Defer => self.others.difference(self.repliers),
                Line::FlushRemotely => self.others,
                Line::Count
                | Line::Request
                | Line::RequestAndLeave
                | Line::Wait
                | Line::WaitStopped
                | Line::Continue
                | Line::Open
                | Line::Close => self.repliers,
                _ => return,
            };
            self.todo = todo;
            if !todo.is_empty() {
                return;
            }
            // No CPU will ever take it over.
            self.left |= self.line == Line::RequestAndLeave && !self.plan.has(Repair::ZERO_REPLIERS);
            self.at += 1;
        }
    }

    /// Tells whether the operation is with the repliers: the caller asks this machine for nothing until the last of
    /// them takes it over.
    pub const fn is_left(&self) -> bool {
        self.left
    }

    /// Continues the operation on CPU `me`, which has counted the last acknowledgement.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAsked`] if the operation is not with the repliers; [`Misuse::NoSuchCpu`].
    pub fn take_over(&mut self, me: usize) -> Result<(), Misuse> {
        if !self.is_left() {
            return Err(Misuse::NotAsked);
        }
        if me >= Self::CPUS {
            return Err(Misuse::NoSuchCpu { cpu: me });
        }
        self.me = me as u16;
        self.left = false;
        Ok(())
    }

    /// Returns the CPU that runs the machine.
    pub fn cpu(&self) -> usize {
        usize::from(self.me)
    }

    /// Returns the CPUs that the operation asks to reply, in the round at hand.
    pub fn repliers(&self) -> CpuSet<W> {
        self.repliers
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}
