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
    /// Set or clear the flag: TLB-first's miss handlers look at it, and with 2-phase whoever switches to the space.
    SetChanging(bool),
    /// Exchange the entry for the new one, and keep the status bits that come back.
    Update,
    /// Read the entry's status bits, and keep them ([`Repair::EXCHANGE`] switched off).
    ReadStatus,
    /// Store the new entry ([`Repair::EXCHANGE`] switched off).
    Store,
    /// Tell who may hold the entry, and who of them runs the address space: [`Seen::Targets`].
    ReadTargets,
    /// Tell who holds the entry right now ([`Repair::ALL_WHO_MAY_LOAD`] switched off).
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
    /// Set the number of acknowledgements to wait for.
    SetCount(u32),
    /// Put a request into this CPU's queue, and interrupt it. If it is offline, acknowledge in its place, and answer
    /// [`Seen::No`].
    Send(usize),
    /// The same, after which the operation belongs to the repliers: answer first, then send, then touch the machine
    /// no more.
    SendAndLeave(usize),
    /// Tell whether all acknowledgements are in. While they are not, serve this CPU's own queue.
    AllAcknowledged,
    /// Enter 2-phase: disable interrupts, then set this CPU's flag; wait for its status writes.
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
        /// Who may hold the entry.
        members: CpuSet<W>,
        /// Who may use it.
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
    members: CpuSet<W>,
    repliers: CpuSet<W>,
    /// Whom the line at hand has still to do.
    todo: CpuSet<W>,
}

impl<const W: usize> Requester<W> {
    /// Returns the machine of an operation that CPU `me` starts.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoSuchCpu`] if a `CpuSet<W>` cannot hold `me`.
    pub fn new(plan: Plan, me: usize) -> Result<Self, Misuse> {
        if me >= CpuSet::<W>::CAPACITY {
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
            members: CpuSet::empty(),
            repliers: CpuSet::empty(),
            todo: CpuSet::empty(),
        };
        machine.settle();
        Ok(machine)
    }

    fn next_todo(&self) -> Option<usize> {
        self.todo.iter().next()
    }

    /// Returns what is to be done now. Asking twice gives the same answer.
    pub fn next(&self) -> Action {
        let cpu = self.next_todo().unwrap_or_default();
        match self.line {
            Line::Exclude => Action::Exclude,
            Line::Tentative => Action::SetTentative,
            Line::Changing => Action::SetChanging(true),
            Line::Unchanging => Action::SetChanging(false),
            Line::Update if self.plan.has(Repair::EXCHANGE) => Action::Update,
            Line::Update if !self.half => Action::ReadStatus,
            Line::Update => Action::Store,
            Line::Targets if self.plan.has(Repair::ALL_WHO_MAY_LOAD) => Action::ReadTargets,
            Line::Targets => Action::ReadHolders,
            Line::FlushLocally => Action::FlushLocally { drain: self.plan.has(Repair::DRAIN) },
            Line::Defer if !self.half => Action::MarkStale(cpu),
            Line::Defer => Action::IsRunning(cpu),
            Line::Count => Action::SetCount(self.repliers.len() as u32),
            Line::RequestAndLeave if self.todo.len() == 1 => Action::SendAndLeave(cpu),
            Line::Request | Line::RequestAndLeave => Action::Send(cpu),
            Line::Wait => Action::AllAcknowledged,
            Line::WaitStopped if self.plan.rendezvous() == Rendezvous::Serve => Action::AllAcknowledged,
            Line::WaitStopped if !self.plan.has(Repair::RENDEZVOUS) => Action::AllAcknowledged,
            Line::WaitStopped => Action::IsStopped(cpu),
            Line::Enter => Action::Enter,
            Line::Continue => Action::Continue,
            Line::FlushRemotely if !self.half => {
                Action::FlushRemotely { cpu, drain: self.plan.has(Repair::REMOTE_DRAIN) }
            }
            Line::FlushRemotely => Action::IsFlushed { cpu, ticket: self.ticket },
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
    pub fn did(&mut self, seen: Seen<W>) -> Result<(), Misuse> {
        if self.left {
            return Err(Misuse::NotAsked);
        }
        match (self.next(), seen) {
            (Action::Done(_), _) => return Err(Misuse::NotAsked),
            // Not yet: the same is asked again.
            (
                Action::Exclude | Action::AllAcknowledged | Action::IsStopped(_) | Action::IsFlushed { .. },
                Seen::No,
            ) => {}
            (Action::Exclude | Action::AllAcknowledged, Seen::Yes) => self.advance(),
            (Action::ReadTargets | Action::ReadHolders, Seen::Targets { members, running }) => {
                self.members = members;
                self.repliers = members.intersection(running);
                self.repliers.remove(usize::from(self.me));
                self.advance();
            }
            (Action::ReadStatus | Action::MarkStale(_), Seen::Did) => self.half = true,
            (Action::IsRunning(cpu), Seen::Yes | Seen::No) => {
                // It may have switched to the space before it could see the mark: then it is asked like the rest.
                if seen == Seen::Yes {
                    self.repliers.insert(cpu);
                }
                self.each(cpu);
            }
            (Action::Send(cpu), Seen::Did) | (Action::IsStopped(cpu), Seen::Yes) => self.each(cpu),
            (Action::Send(cpu), Seen::No) => {
                // It may be back before its flag is looked at, and then stops for nobody.
                self.repliers.remove(cpu);
                self.each(cpu);
            }
            (Action::SendAndLeave(cpu), Seen::Did) => {
                self.each(cpu);
                self.left = true;
            }
            (Action::FlushRemotely { .. }, Seen::Posted { ticket, done }) => {
                self.ticket = if self.plan.has(Repair::GENERATION) { ticket } else { done.wrapping_add(1) };
                self.half = true;
            }
            (Action::IsFlushed { cpu, .. }, Seen::Yes) => self.each(cpu),
            (Action::Close, Seen::Yes) => self.advance(),
            (Action::Close, Seen::No) => {
                self.outcome = Outcome::Superseded;
                self.jump(|line| matches!(line, Line::Unchanging | Line::Release));
            }
            (Action::Check, Seen::Yes | Seen::No) => self.check(seen == Seen::Yes),
            (
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
                | Action::Serve,
                Seen::Did,
            ) => self.advance(),
            _ => return Err(Misuse::NotAsked),
        }
        Ok(())
    }

    /// `while (PTE.access_rights != new_PTE.access_rights)`
    fn check(&mut self, unchanged: bool) {
        if self.round < self.plan.rounds() || (!unchanged && !self.plan.is_conditional()) {
            // Counted no further than matters, so that an explorer sees finitely many states.
            self.round = (self.round + 1).min(self.plan.rounds());
            self.at = 0;
            self.jump(|line| matches!(line, Line::Update));
            return;
        }
        if !unchanged {
            self.outcome = Outcome::Overwritten;
        }
        self.advance();
    }

    /// The line at hand is done for `cpu`; perhaps for all.
    fn each(&mut self, cpu: usize) {
        self.half = false;
        self.todo.remove(cpu);
        if self.todo.is_empty() {
            self.advance();
        }
    }

    fn advance(&mut self) {
        self.half = false;
        self.at += 1;
        self.settle();
    }

    /// Goes on at the next line from here that is `wanted`.
    fn jump(&mut self, wanted: impl Fn(Line) -> bool) {
        let rest = program(&self.plan).iter().skip(usize::from(self.at));
        self.at += rest.take_while(|&&line| !wanted(line) && line != Line::Done).count() as u8;
        self.settle();
    }

    /// Passes over lines that have nothing to do, and sets up the one that has.
    fn settle(&mut self) {
        let (program, me) = (program(&self.plan), usize::from(self.me));
        loop {
            self.line = program.get(usize::from(self.at)).copied().unwrap_or(Line::Done);
            let idle = match self.line {
                Line::Exclude | Line::Release => !self.plan.has(Repair::EXCLUSION),
                Line::Open | Line::Close => {
                    !self.plan.has(Repair::RAISE_SUPERSEDES) || self.repliers.is_empty()
                }
                Line::FlushLocally => !self.members.contains(me),
                Line::Defer => {
                    self.todo = self.members.difference(self.repliers);
                    self.todo.remove(me);
                    self.todo.is_empty()
                }
                Line::FlushRemotely => {
                    self.todo = self.members;
                    self.todo.remove(me);
                    self.todo.is_empty()
                }
                Line::RequestAndLeave => {
                    self.todo = self.repliers;
                    // Nobody will ever take it over.
                    self.left = self.todo.is_empty() && !self.plan.has(Repair::ZERO_REPLIERS);
                    self.todo.is_empty()
                }
                Line::Request | Line::WaitStopped => {
                    self.todo = self.repliers;
                    self.todo.is_empty()
                }
                Line::Count | Line::Wait | Line::Continue => self.repliers.is_empty(),
                _ => false,
            };
            if !idle {
                return;
            }
            self.at += 1;
        }
    }

    /// Tells whether the operation is with the repliers: nobody asks this machine for anything until the last of
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
        if me >= CpuSet::<W>::CAPACITY {
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

    /// Returns whom the operation asks to reply, in the round at hand.
    pub fn repliers(&self) -> CpuSet<W> {
        self.repliers
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}
