//! The crate's machines, action by action, and the time that each takes.

use tlbkit_shootdown::{Action, Duty, Misuse, OpId, Order, Reply, Request, Seen, Target};

use super::Sends;
use super::changes::pages;
use super::clock::Event;
use super::processors::{Doing, SLOTS, Simulator};

impl Simulator<'_> {
    /// One action of a CPU's machines. Returns whether time stands still.
    pub(super) fn synchronize(&mut self, cpu: usize) -> Result<bool, Misuse> {
        if let Some(op) = self.cpus[cpu].taken {
            return self.ask(cpu, op);
        }
        if !self.cpus[cpu].replier.is_idle() {
            return self.reply(cpu);
        }
        if let Some(op) = self.cpus[cpu].own {
            let went_on = self.ask(cpu, op)?;
            let waits = !went_on && !self.cpus[cpu].computing;
            if waits
                && !self.cpus[cpu].stopped
                && matches!(self.plan.duty(), Duty::Flush | Duty::AcknowledgeFirst)
                && !self.cpus[cpu].queue.is_empty()
            {
                self.cpus[cpu].replier.interrupt();
                return Ok(true);
            }
            return Ok(went_on);
        }
        if !self.is_asynchronous() && !self.cpus[cpu].queue.is_empty() {
            self.cpus[cpu].replier.interrupt();
            return Ok(true);
        }
        if self.cpus[cpu].slice_over {
            if !std::mem::replace(&mut self.cpus[cpu].looked, true) {
                self.cpus[cpu].replier.interrupt();
                return Ok(true);
            }
            self.cpus[cpu].looked = false;
            self.cpus[cpu].slice_over = false;
            self.clock.after(self.p.x_j, Event::Slice { cpu });
        }
        self.idle(cpu);
        Ok(true)
    }

    fn op_of(&self, cpu: u16, slot: u16) -> Option<usize> {
        self.by_slot.get(usize::from(cpu) * SLOTS + usize::from(slot)).copied().flatten()
    }

    fn reply(&mut self, cpu: usize) -> Result<bool, Misuse> {
        let paid = std::mem::take(&mut self.cpus[cpu].paid);
        match self.cpus[cpu].replier.next() {
            Reply::Enter => {
                self.stop(cpu);
                self.cpus[cpu].replier.did()?;
            }
            Reply::Leave => {
                self.cpus[cpu].stopped = false;
                self.cpus[cpu].replier.did()?;
            }
            Reply::Take => {
                let work = self.cpus[cpu].queue.take();
                self.cpus[cpu].replier.took(work)?;
            }
            Reply::Flush { .. } if paid => self.cpus[cpu].replier.did()?,
            Reply::Flush { what, .. } => {
                let time = self.random.draw(self.o.services, self.p.x_reply) + self.flushing(what);
                self.compute(cpu, time);
                return Ok(false);
            }
            Reply::Acknowledge(OpId { cpu: of, slot, .. }) | Reply::AcknowledgeSlot { cpu: of, slot } => {
                let mut left = 0;
                if let Some(op) = self.op_of(of, slot) {
                    self.ops[op].count -= 1;
                    left = self.ops[op].count;
                    if left == 0 {
                        self.awake.push_back(self.ops[op].runner);
                    }
                }
                self.cpus[cpu].replier.counted(left)?;
            }
            Reply::TakeOver { cpu: of, slot } => {
                if let Some(op) = self.op_of(of, slot) {
                    self.ops[op].machine.take_over(cpu)?;
                    self.ops[op].runner = cpu;
                    self.cpus[cpu].taken = Some(op);
                }
            }
            Reply::MayContinue(OpId { cpu: of, slot, generation }) => {
                let op = self.op_of(of, slot).filter(|&op| self.ops[op].id.generation == generation);
                return self.may_continue(cpu, op);
            }
            Reply::MayContinueSlot { cpu: of, slot } => {
                let op = self.op_of(of, slot);
                return self.may_continue(cpu, op);
            }
            Reply::Idle => {}
        }
        Ok(true)
    }

    fn may_continue(&mut self, cpu: usize, op: Option<usize>) -> Result<bool, Misuse> {
        let yes = op.is_none_or(|op| self.ops[op].continued);
        self.cpus[cpu].replier.may_continue(yes)?;
        if let (false, Some(op)) = (yes, op) {
            self.ops[op].waiting.push(cpu);
        }
        Ok(yes)
    }

    fn stop(&mut self, cpu: usize) {
        self.cpus[cpu].stopped = true;
        for op in std::mem::take(&mut self.cpus[cpu].watchers) {
            self.awake.push_back(self.ops[op].runner);
        }
    }

    /// The time that the pages after the first, and all pages' cache lines, take to be flushed.
    fn flushing(&self, what: Target) -> f64 {
        let pages = pages(what) as f64;
        self.o.x_page * (pages - 1.0).max(0.0) + self.o.x_lines * pages
    }

    /// The share of a request's computation that this action takes.
    fn cost(&mut self, op: usize, now: Action) -> f64 {
        let begins = match self.plan.algorithm().order() {
            Order::TwoPhase => now == Action::Enter,
            Order::TlbFirst => now == Action::SetTentative,
            Order::PteFirst | Order::Optimistic => now == Action::Update,
        };
        let mean = self.p.x_req1 + (self.ops[op].targets.len() as f64 - 1.0) * self.p.x_req2;
        if begins {
            self.ops[op].computation = self.random.draw(self.o.services, mean);
        }
        let whole = self.ops[op].computation;
        let flushing = self.flushing(self.ops[op].what);
        let asks = matches!(now, Action::Send(_) | Action::SendAndLeave(_) | Action::FlushRemotely { .. });
        let flushes = matches!(now, Action::FlushLocally { .. } | Action::FlushRemotely { .. });
        let computes = match self.o.sends {
            Sends::After if begins => whole,
            Sends::Spread if begins => whole * self.p.x_req1 / mean,
            Sends::Spread if asks => whole * self.p.x_req2 / mean,
            _ => 0.0,
        };
        computes + if flushes { flushing } else { 0.0 }
    }

    fn ask(&mut self, cpu: usize, op: usize) -> Result<bool, Misuse> {
        let now = self.ops[op].machine.next();
        if now == Action::Enter {
            self.stop(cpu);
        }
        if !std::mem::take(&mut self.cpus[cpu].paid) {
            let time = self.cost(op, now);
            if time > 0.0 {
                self.compute(cpu, time);
                return Ok(false);
            }
        }
        let seen = match now {
            Action::Exclude | Action::Close => Seen::Yes,
            Action::ReadTargets | Action::ReadHolders => {
                Seen::Targets { members: self.ops[op].targets, running: self.ops[op].running }
            }
            Action::IsRunning(_) => Seen::No,
            Action::SetCount(count) => {
                self.ops[op].count = count;
                Seen::Did
            }
            Action::Send(to) => {
                self.send(op, to)?;
                Seen::Did
            }
            Action::SendAndLeave(to) => {
                self.ops[op].machine.did(Seen::Did)?;
                self.release(cpu, op)?;
                self.send(op, to)?;
                return Ok(true);
            }
            Action::AllAcknowledged if self.ops[op].count == 0 => Seen::Yes,
            Action::AllAcknowledged => return Ok(false),
            Action::IsStopped(of) if self.cpus[of].stopped => Seen::Yes,
            Action::IsStopped(of) => {
                self.cpus[of].watchers.push(op);
                return Ok(false);
            }
            Action::FlushRemotely { .. } => Seen::Posted { ticket: 1, done: 1 },
            Action::IsFlushed { .. } => Seen::Yes,
            Action::Continue => {
                self.ops[op].continued = true;
                for cpu in std::mem::take(&mut self.ops[op].waiting) {
                    self.awake.push_back(cpu);
                }
                Seen::Did
            }
            Action::Check if self.random.unit() < self.p.passes() => Seen::Yes,
            Action::Check => Seen::No,
            Action::Serve if self.cpus[cpu].stopped => {
                self.cpus[cpu].replier.finish();
                return Ok(true);
            }
            Action::Done(_) => {
                self.end(cpu, op);
                self.release(cpu, op)?;
                return Ok(true);
            }
            _ => Seen::Did,
        };
        self.ops[op].machine.did(seen)?;
        Ok(true)
    }

    fn release(&mut self, cpu: usize, op: usize) -> Result<(), Misuse> {
        if self.cpus[cpu].taken == Some(op) {
            self.cpus[cpu].taken = None;
            self.cpus[cpu].replier.did()?;
        } else {
            self.cpus[cpu].own = None;
        }
        Ok(())
    }

    fn end(&mut self, cpu: usize, op: usize) {
        let begun = self.ops[op].begun;
        if self.is_asynchronous() {
            self.returned(begun);
        } else {
            self.cpus[cpu].returning = Some(begun);
        }
        self.frozen += self.after_warm_up(begun);
        if self.counts() {
            self.unmaps += self.ops[op].unmaps as u64;
        }
        let id = self.ops[op].id;
        self.cpus[usize::from(id.cpu)].slots &= !(1 << id.slot);
        self.by_slot[usize::from(id.cpu) * SLOTS + usize::from(id.slot)] = None;
        self.free_ops.push(op);
    }

    /// An operation is over for its caller: for a synchronous one that is the end of the busy period (4.2.1.4).
    pub(super) fn returned(&mut self, begun: f64) {
        if self.counts() {
            let latency = self.clock.now() - begun;
            self.ended += 1;
            self.latencies += latency;
            self.longest = self.longest.max(latency);
        }
    }

    fn send(&mut self, op: usize, to: usize) -> Result<(), Misuse> {
        let request = Request {
            op: self.ops[op].id,
            what: self.ops[op].what,
            duty: self.ops[op].machine.plan().duty(),
        };
        self.cpus[to].queue.push(request)?;
        let at = &self.cpus[to];
        let waits = at.doing == Doing::Synchronizing && !at.computing;
        if !self.is_asynchronous() && (at.doing == Doing::Idle || waits) {
            self.awake.push_back(to);
        }
        Ok(())
    }
}
