//! The requester, as a state machine: it runs a program of lines, asks for one action at a time, and takes the answer.

use tlbkit_addr::CpuSet;

use super::{Line, program};
use crate::{Misuse, Outcome, Plan, Rendezvous, Repair};

/// An action that the requester asks its driver to do. Other CPUs see each action as one step, and all actions are
/// sequentially consistent, except that release or acquire suffices for [`SetCount`](Self::SetCount),
/// [`AllAcknowledged`](Self::AllAcknowledged), [`Continue`](Self::Continue), [`Open`](Self::Open) and [`Close`](Self::Close).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Take the exclusion of the entry (or of the table that holds it) if it is free. Answer: [`Seen::Yes`], or [`Seen::No`]
    /// if it is not free; then the requester asks again, and the CPU must serve requests in between.
    Exclude,
    /// Set the tentative entry to the new one.
    SetTentative,
    /// Set or clear the flag. With TLB-first, miss handlers read the flag; with 2-phase, every CPU that switches to the
    /// space does.
    SetChanging(bool),
    /// Exchange the entry for the new one, and keep the status bits of the old one.
    Update,
    /// Read the entry's status bits, and keep them ([`Repair::EXCHANGE`] switched off).
    ReadStatus,
    /// Store the new entry ([`Repair::EXCHANGE`] switched off).
    Store,
    /// Read which CPUs may hold the entry, and which of them run the address space. Answer: [`Seen::Targets`].
    ReadTargets,
    /// Read which CPUs hold the entry now ([`Repair::ALL_LOADERS`] switched off). Answer: [`Seen::Targets`].
    ReadHolders,
    /// Mark the CPU with this number as stale: it must flush before it runs the address space again.
    MarkStale(usize),
    /// Read whether the CPU with this number runs the address space. Answer: [`Seen::Yes`] or [`Seen::No`].
    IsRunning(usize),
    /// Flush the entry from the requester's own TLB. With `drain`, wait for the requester's status writes first.
    FlushLocally {
        /// Whether to wait for status writes.
        drain: bool,
    },
    /// Set the number of acknowledgements to wait for. (2-phase with [`Rendezvous::Flag`] waits for flags instead, and no replier
    /// counts down.)
    SetCount(u32),
    /// Put a request into the queue of the CPU with this number, and interrupt the CPU. If the CPU is offline, count its
    /// acknowledgement instead, and answer [`Seen::No`].
    Send(usize),
    /// As [`Send`](Self::Send), with the last request, after which the repliers own the operation: answer first, then send,
    /// and do not access the state machine afterwards.
    SendAndLeave(usize),
    /// Read whether all CPUs have acknowledged. Answer: [`Seen::Yes`] or [`Seen::No`]. While they have not, serve the requester's
    /// own queue.
    AllAcknowledged,
    /// Enter 2-phase: disable interrupts, wait for the requester's own status writes, and set its flag. (The caller of
    /// [`System`](crate::System) disables the interrupts.)
    Enter,
    /// Read whether the CPU with this number is in 2-phase. Answer: [`Seen::Yes`] or [`Seen::No`].
    IsStopped(usize),
    /// Set the operation's continuing signal.
    Continue,
    /// Start a flush of the entry from the TLB of `cpu`. With `drain`, the flush is done when the walks, miss handlers and
    /// status writes under way on that CPU have ended. Answer: [`Seen::Posted`].
    FlushRemotely {
        /// The CPU.
        cpu: usize,
        /// Whether the flush waits for walks, miss handlers and status writes.
        drain: bool,
    },
    /// Read whether the TLB of `cpu` has acknowledged flush number `ticket`. Answer: [`Seen::Yes`] or [`Seen::No`].
    IsFlushed {
        /// The CPU.
        cpu: usize,
        /// The number of the flush.
        ticket: u32,
    },
    /// Allow other CPUs to raise the rights while acknowledgements are outstanding.
    Open,
    /// Forbid other CPUs to raise the rights. Answer: [`Seen::Yes`], or [`Seen::No`] if a CPU has raised them.
    Close,
    /// Read whether the entry has the new access rights, and keep its status bits. Answer: [`Seen::Yes`] or [`Seen::No`].
    Check,
    /// Give up the exclusion.
    Release,
    /// Run the requester's own replier until it has left 2-phase.
    Serve,
    /// The operation has ended with this outcome. There is no further action.
    Done(Outcome),
}

/// The answer of a driver to an [`Action`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seen<const W: usize = 1> {
    /// The action is done.
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
    /// A remote flush has been started.
    Posted {
        /// The number of the flush.
        ticket: u32,
        /// The number of the last flush that is done.
        done: u32,
    },
}

/// The requester of one operation, for CPU sets of `W` words.
///
/// It is plain data, so an explorer of interleavings can copy and compare it. [`Operation`](crate::Operation) adds the
/// payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Requester<const W: usize = 1> {
    plan: Plan,
    me: u16,
    /// The current line. `at` is its index in the program.
    line: Line,
    at: u8,
    round: u8,
    /// Whether the first of the current line's two steps is done.
    half: bool,
    /// Whether the repliers own the operation.
    left: bool,
    outcome: Outcome,
    ticket: u32,
    /// Whether the requester's own TLB may hold the entry.
    here: bool,
    /// The other CPUs that may hold the entry.
    others: CpuSet<W>,
    /// The CPUs that the operation asks to reply.
    repliers: CpuSet<W>,
    /// The CPUs for which the current line is still to be done.
    todo: CpuSet<W>,
}

impl<const W: usize> Requester<W> {
    /// The number of CPUs that a set can hold and an operation's name can distinguish.
    pub(crate) const CPUS: usize =
        if CpuSet::<W>::CAPACITY < 1 << 16 { CpuSet::<W>::CAPACITY } else { 1 << 16 };

    /// Returns the requester of an operation that CPU `me` starts.
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

    /// Returns the CPU for which the current line must be done now.
    #[inline]
    fn next_todo(&self) -> usize {
        self.todo.iter().next().unwrap_or_default()
    }

    /// Returns the action that the driver must do now. The result does not change until [`did`](Self::did) takes an answer.
    // `next` and `did` are inlined into the driver's loop, so that a step costs a few jumps and no call.
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

    /// Takes the answer to [`next`](Self::next).
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
            // The requester asks for the same action again.
            Action::Exclude | Action::AllAcknowledged | Action::IsStopped(_) | Action::IsFlushed { .. }
                if no =>
            {
                same
            }
            Action::IsRunning(cpu) if yes => {
                // The CPU may have switched to the space before it could see the mark, so it gets a request like the others.
                self.repliers.insert(cpu);
                self.each(cpu)
            }
            Action::IsRunning(cpu) if no => self.each(cpu),
            Action::Send(cpu) if done => self.each(cpu),
            Action::Send(cpu) if no => {
                // The CPU may come online again before the requester reads its flag, and does not stop for this operation.
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

    /// Handles the answer to `while (PTE.access_rights != new_PTE.access_rights)`. Returns the index of the line that
    /// follows.
    fn check(&mut self, unchanged: bool) -> u8 {
        if self.round < self.plan.rounds() || (!unchanged && !self.plan.is_conditional()) {
            // The count stops at the required number, so that an explorer sees finitely many states.
            self.round = self.round.saturating_add(1).min(self.plan.rounds());
            self.todo = CpuSet::empty();
            return self.place(0, |line| matches!(line, Line::Update));
        }
        if !unchanged {
            self.outcome = Outcome::Overwritten;
        }
        self.at + 1
    }

    /// Records that the current line is done for `cpu`. Returns the index of the line that follows: the same line, or the
    /// next if it is done for all CPUs.
    fn each(&mut self, cpu: usize) -> u8 {
        self.half = false;
        self.todo.remove(cpu);
        self.at + u8::from(self.todo.is_empty())
    }

    /// Returns the index of the first line, from index `from` on, for which `wanted` returns true. There must be one.
    fn place(&self, from: u8, wanted: impl Fn(Line) -> bool) -> u8 {
        let rest = program(&self.plan).iter().skip(usize::from(from));
        from + rest.take_while(|&&line| !wanted(line)).count() as u8
    }

    /// Skips lines that need no action, and makes the next line that needs one the current line.
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
            // No CPU will take the operation over.
            self.left |= self.line == Line::RequestAndLeave && !self.plan.has(Repair::ZERO_REPLIERS);
            self.at += 1;
        }
    }

    /// Tells whether the repliers own the operation. The caller must not call [`next`](Self::next) until the last replier
    /// has taken the operation over.
    pub const fn is_left(&self) -> bool {
        self.left
    }

    /// Continues the operation on CPU `me`, which has counted the last acknowledgement.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAsked`] if the repliers do not own the operation; [`Misuse::NoSuchCpu`] as for [`new`](Self::new).
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

    /// Returns the CPU that runs the requester.
    pub fn cpu(&self) -> usize {
        usize::from(self.me)
    }

    /// Returns the CPUs that the operation asks to reply in the current round.
    pub fn repliers(&self) -> CpuSet<W> {
        self.repliers
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}
