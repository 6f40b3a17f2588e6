//! What the software on a CPU does: miss handler, replier, requester, and what a CPU does to itself.

use tlbkit_shootdown::{Action, Outcome, Repair, Reply, Switch, SwitchAction, SwitchKind, Target};

use super::step::{Step, Turns};
use super::world::{PTES, Scene, World};

impl World {
    pub(super) fn software(&self, cpu: usize, turns: &mut Turns<'_>) {
        let (at, scene) = (&self.cpus[cpu], turns.scene);
        if let Some((_, miss, _)) = at.miss {
            turns.offer(self, Step::Handle { cpu, now: miss.next() }, |w, _| w.handle(scene, cpu));
            if miss.is_masked() {
                return;
            }
        }
        self.visits(cpu, turns);
        if at.visit.is_some() {
            return;
        }
        if self.replies(cpu) {
            let now = at.replier.next();
            turns.offer(self, Step::Reply { cpu, now }, |w, _| w.reply(scene, cpu, now));
            return;
        }
        if self.is_interrupted(scene, cpu) {
            turns.offer(self, Step::Interrupt { cpu }, |w, steps| {
                w.cpus[cpu].replier.interrupt();
                w.begin_reply(scene, cpu, steps);
            });
        }
        if at.miss.is_some() {
            return;
        }
        if scene.bare.is_some() {
            if at.own.is_some() {
                let now = Action::Store;
                turns.offer(self, Step::Ask { cpu, op: 0, now }, |w, _| w.change_bare(scene, cpu));
            }
        } else if let Some(op) = self.runs(cpu) {
            self.ask(cpu, op, turns);
        }
        if let Some(switch) = at.switch {
            let now = switch.next();
            turns.offer(self, Step::Switch { cpu, now }, |w, _| w.switch(scene, cpu, switch));
        } else if let Some((changer, change)) = scene.change
            && changer == cpu
            && !at.changed
        {
            let switch = Switch::new(&scene.plan, change);
            turns.offer(self, Step::Switch { cpu, now: switch.next() }, |w, _| {
                w.cpus[cpu].changed = true;
                w.switch(scene, cpu, switch);
            });
        }
    }

    /// Tells whether the CPU's replier is what runs on it.
    pub(super) fn replies(&self, cpu: usize) -> bool {
        !self.cpus[cpu].replier.is_idle() && self.cpus[cpu].taken.is_none()
    }

    /// Tells whether the CPU takes an interrupt now. In 2-phase, in the midst of a reply, in a walk by software, and once the
    /// CPU is offline, none is taken.
    pub(super) fn is_interrupted(&self, scene: &Scene, cpu: usize) -> bool {
        let at = &self.cpus[cpu];
        let offline = scene.change == Some((cpu, SwitchKind::Offline)) && at.changed && at.switch.is_none();
        let masked = at.stopped || at.taken.is_some() || at.visit.is_some();
        !at.queue.is_empty() && !masked && at.replier.is_idle() && !offline
    }

    /// Returns the operation that the CPU runs.
    pub(super) fn runs(&self, cpu: usize) -> Option<usize> {
        self.cpus[cpu].taken.or(self.cpus[cpu].own).map(usize::from)
    }

    /// The first step of a replier that has just been interrupted: the two cannot be told apart.
    pub(super) fn begin_reply(&mut self, scene: &Scene, cpu: usize, steps: &mut Vec<Step>) {
        if scene.reduce {
            let now = self.cpus[cpu].replier.next();
            steps.push(Step::Reply { cpu, now });
            self.reply(scene, cpu, now);
        }
    }

    /// Changes the entry, and that is all.
    fn change_bare(&mut self, scene: &Scene, cpu: usize) {
        let pte = usize::from(self.ops[0].pte);
        self.update(scene, 0, pte);
        self.ops[0].ended = Some(Outcome::Done);
        self.memory.written = [false; PTES];
        self.cpus[cpu].own = None;
    }

    pub(super) fn check_done(&mut self, result: Result<(), tlbkit_shootdown::Misuse>) {
        if result.is_err() {
            self.memory.wrong = Some("a machine was told what it did not ask for");
        }
    }

    /// One replier's step.
    pub(super) fn reply(&mut self, scene: &Scene, cpu: usize, now: Reply) {
        let result = match now {
            Reply::Enter => {
                self.cpus[cpu].stopped = true;
                self.land(cpu);
                self.cpus[cpu].replier.did()
            }
            Reply::Leave => {
                self.cpus[cpu].stopped = false;
                self.cpus[cpu].replier.did()
            }
            Reply::Take => {
                let work = self.cpus[cpu].queue.take();
                self.cpus[cpu].replier.took(work)
            }
            Reply::Flush { what, drain } => {
                self.flush(scene, cpu, what, drain);
                self.cpus[cpu].replier.did()
            }
            Reply::Acknowledge(op) => return self.acknowledge(scene, cpu, op.cpu),
            Reply::AcknowledgeSlot { cpu: of, .. } => return self.acknowledge(scene, cpu, of),
            Reply::TakeOver { cpu: of, .. } => {
                self.cpus[cpu].taken = Some(of as u8);
                self.ops[usize::from(of)].machine.take_over(cpu)
            }
            Reply::MayContinue(op) => {
                let yes = self.ops[usize::from(op.cpu)].continued;
                self.cpus[cpu].replier.may_continue(yes)
            }
            Reply::MayContinueSlot { cpu: of, .. } => {
                let yes = self.ops[usize::from(of)].continued;
                self.cpus[cpu].replier.may_continue(yes)
            }
            Reply::Idle => Ok(()),
        };
        self.check_done(result);
    }

    fn acknowledge(&mut self, scene: &Scene, cpu: usize, of: u16) {
        let op = &mut self.ops[usize::from(of)];
        if !self.cpus[cpu].half_counted {
            let Some(left) = op.count.checked_sub(1) else {
                self.memory.wrong = Some("more acknowledgements than repliers");
                return;
            };
            op.count = left;
            if !scene.plan.has(Repair::ATOMIC_COUNT) {
                self.cpus[cpu].half_counted = true;
                return;
            }
        }
        self.cpus[cpu].half_counted = false;
        let left = u32::from(op.count);
        let result = self.cpus[cpu].replier.counted(left);
        self.check_done(result);
    }

    fn switch(&mut self, scene: &Scene, cpu: usize, mut switch: Switch) {
        let yes = match switch.next() {
            SwitchAction::Open => {
                self.cpus[cpu].queue.open();
                false
            }
            SwitchAction::Join => self.memory.space.members.insert(cpu) == Some(true),
            SwitchAction::SetRunning => {
                self.memory.space.running.insert(cpu);
                false
            }
            SwitchAction::IsChanging => self.memory.changing.contains(&true),
            SwitchAction::TakeStale => self.memory.space.stale.remove(cpu),
            SwitchAction::FlushSpace | SwitchAction::FlushAll => {
                self.flush(scene, cpu, Target::All, true);
                false
            }
            SwitchAction::Drain if scene.hardware.lines_need_entry => {
                self.flush(scene, cpu, Target::All, true);
                false
            }
            SwitchAction::Drain => {
                self.land(cpu);
                false
            }
            SwitchAction::ClearRunning => {
                self.memory.space.running.remove(cpu);
                false
            }
            SwitchAction::Close => {
                self.cpus[cpu].queue.close();
                false
            }
            SwitchAction::Serve => {
                if !self.cpus[cpu].queue.is_empty() {
                    self.cpus[cpu].replier.interrupt();
                    return;
                }
                false
            }
            SwitchAction::Leave => {
                self.memory.space.members.remove(cpu);
                false
            }
            SwitchAction::Finished => return,
        };
        let result = switch.did(yes);
        self.check_done(result);
        self.cpus[cpu].switch = (switch.next() != SwitchAction::Finished).then_some(switch);
    }
}
