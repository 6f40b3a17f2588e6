//! The requester's actions, carried out on the machine that is explored.

use tlbkit_addr::CpuSet;
use tlbkit_shootdown::{Action, Outcome, Request, Seen, Style};

use super::broadcast::Node;
use super::step::{Step, Turns};
use super::world::{Scene, Word, World, target};

impl World {
    /// One requester's step, or the replier's that it waits with.
    pub(super) fn ask(&self, cpu: usize, op: usize, turns: &mut Turns<'_>) {
        let scene = turns.scene;
        if let Some(ending) = self.ops[op].ending {
            return self.end_by_broadcast(cpu, op, ending, turns);
        }
        let Some(now) = self.asks(op) else { return };
        if matches!(now, Action::IsStopped(_)) && scene.stops_together() {
            return; // Done at once, when it is so of all.
        }
        turns.offer(self, Step::Ask { cpu, op, now }, |w, _| w.ask_one(scene, cpu, op, now));
        let waits = matches!(now, Action::AllAcknowledged);
        if waits && scene.serves() && self.cpus[cpu].stopped && !self.cpus[cpu].queue.is_empty() {
            turns.offer(self, Step::Interrupt { cpu }, |w, steps| {
                w.cpus[cpu].replier.collect();
                w.begin_reply(scene, cpu, steps);
            });
        }
    }

    /// Returns what an operation asks of the CPU that runs it: nothing while it is with the repliers, or over.
    pub(super) fn asks(&self, op: usize) -> Option<Action> {
        let op = &self.ops[op];
        if op.ending.is_some() {
            return None;
        }
        let over = op.machine.next() == Action::Done(Outcome::Done) && op.ended.is_some();
        (!op.machine.is_left() && !over).then(|| op.machine.next())
    }

    pub(super) fn ask_one(&mut self, scene: &Scene, cpu: usize, op: usize, now: Action) {
        let pte = usize::from(self.ops[op].pte);
        let flag = scene.plan.flag_of(pte);
        let seen = match now {
            Action::Exclude if self.memory.locked[pte] => Seen::No,
            Action::Exclude => {
                self.memory.locked[pte] = true;
                // The new entry is worked out under the exclusion: rights only go down.
                let lower = self.ops[op].new.0.min(self.memory.ptes[pte].rights());
                self.ops[op].new = Word(lower);
                Seen::Yes
            }
            Action::Release => {
                self.memory.locked[pte] = false;
                Seen::Did
            }
            Action::SetTentative => {
                self.memory.tentative[flag] = self.ops[op].new;
                Seen::Did
            }
            Action::SetChanging(on) => {
                self.memory.changing[flag] = on;
                Seen::Did
            }
            Action::Update => {
                self.ops[op].status |= self.memory.ptes[pte].0;
                self.update(scene, op, pte);
                Seen::Did
            }
            Action::ReadStatus => {
                self.ops[op].status |= self.memory.ptes[pte].0;
                Seen::Did
            }
            Action::Store => {
                self.update(scene, op, pte);
                Seen::Did
            }
            Action::ReadTargets => {
                Seen::Targets { members: self.memory.space.members, running: self.memory.space.running }
            }
            Action::ReadHolders => {
                let holders: CpuSet =
                    (0..self.cpus.len()).filter(|&c| self.cpus[c].tlb[pte].rights() != 0).collect();
                Seen::Targets { members: holders, running: holders.intersection(self.memory.space.running) }
            }
            Action::MarkStale(of) => {
                self.memory.space.stale.insert(of);
                Seen::Did
            }
            Action::IsRunning(of) if self.memory.space.running.contains(of) => Seen::Yes,
            Action::IsRunning(_) => Seen::No,
            Action::FlushLocally { drain } => {
                self.flush(scene, cpu, target(pte as u8), drain);
                Seen::Did
            }
            Action::SetCount(count) => {
                self.ops[op].count = count as u8;
                self.ops[op].continued = false;
                Seen::Did
            }
            Action::Send(to) if self.send(scene, cpu, op, to) => Seen::Did,
            Action::Send(_) => Seen::No,
            Action::SendAndLeave(to) => {
                let result = self.ops[op].machine.did(Seen::Did);
                self.check_done(result);
                if self.cpus[cpu].taken == Some(op as u8) {
                    self.end_take_over(cpu);
                } else {
                    self.cpus[cpu].own = None;
                }
                self.send(scene, cpu, op, to);
                return;
            }
            Action::AllAcknowledged if self.ops[op].count == 0 => Seen::Yes,
            Action::AllAcknowledged => Seen::No,
            Action::Enter => {
                self.cpus[cpu].stopped = true;
                self.land(cpu);
                Seen::Did
            }
            Action::IsStopped(of) if self.cpus[of].stopped => Seen::Yes,
            Action::IsStopped(_) => Seen::No,
            Action::Continue => {
                self.ops[op].continued = true;
                Seen::Did
            }
            Action::FlushRemotely { cpu: of, drain } => {
                let of = &mut self.cpus[of];
                if of.flushes.push((pte as u8, drain)).is_err() {
                    self.memory.wrong = Some("too many remote flushes for this model");
                    return;
                }
                of.posted += 1;
                Seen::Posted { ticket: u32::from(of.posted), done: u32::from(of.flushed) }
            }
            Action::IsFlushed { cpu: of, ticket } if u32::from(self.cpus[of].flushed) >= ticket => Seen::Yes,
            Action::IsFlushed { .. } => Seen::No,
            Action::Open => {
                self.ops[op].open = true;
                Seen::Did
            }
            Action::Close => {
                self.ops[op].open = false;
                if self.ops[op].superseded { Seen::No } else { Seen::Yes }
            }
            Action::Check => {
                self.ops[op].status |= self.memory.ptes[pte].0;
                if self.memory.ptes[pte].rights() == self.ops[op].new.rights() { Seen::Yes } else { Seen::No }
            }
            Action::Serve => {
                // Its replier runs to the end; then this is asked again, with the flag cleared.
                if self.cpus[cpu].stopped {
                    self.cpus[cpu].replier.finish();
                    return;
                }
                Seen::Did
            }
            Action::Done(outcome) => {
                if self.ops[op].ended.replace(outcome).is_some() {
                    self.memory.wrong = Some("the payload is handed back twice");
                }
                self.hold(op, Node::Free);
                if self.cpus[cpu].taken == Some(op as u8) {
                    self.end_take_over(cpu);
                } else {
                    self.cpus[cpu].own = None;
                }
                return;
            }
        };
        let result = self.ops[op].machine.did(seen);
        self.check_done(result);
    }

    pub(super) fn update(&mut self, scene: &Scene, op: usize, pte: usize) {
        let old = std::mem::replace(&mut self.memory.ptes[pte], self.ops[op].new);
        if scene.visits && self.ops[op].new.rights() == 0 && old.rights() > 0 {
            self.ops[op].node = Node::Out;
        }
        self.ops[op].updated = true;
    }

    fn end_take_over(&mut self, cpu: usize) {
        self.cpus[cpu].taken = None;
        let result = self.cpus[cpu].replier.did();
        self.check_done(result);
    }

    fn send(&mut self, scene: &Scene, cpu: usize, op: usize, to: usize) -> bool {
        let duty = scene.plan.duty();
        let request = Request { op: self.ops[op].id, what: target(self.ops[op].pte), duty };
        match self.cpus[to].queue.push(request) {
            Ok(true) => return true,
            // Offline: acknowledged in its place.
            Ok(false) => {
                self.ops[op].count = self.ops[op].count.saturating_sub(1);
                let last = self.ops[op].count == 0 && scene.plan.algorithm().style() == Style::Asynchronous;
                if last && self.ops[op].machine.is_left() {
                    self.cpus[cpu].own = Some(op as u8);
                    let result = self.ops[op].machine.take_over(cpu);
                    self.check_done(result);
                }
            }
            Err(_) => self.memory.wrong = Some("a request does not fit the queue it was sent to"),
        }
        false
    }
}
