//! Which worlds need not be told apart: steps that are done at once, TLBs that are never merely empty, CPUs that
//! differ only by name.
//!
//! **Steps done at once.** Steps of different CPUs that touch different things can change places. If a step can
//! change places with every step that another CPU (or this CPU's hardware) might take before it, cannot be
//! prevented by one, and hides no violation, then whatever goes wrong also goes wrong where it is taken first
//! (Lipton's left movers). So it is: the turn of another CPU goes on until no CPU has such a step. They are those
//! that touch what is this CPU's alone ([`Reply::Take`] from a queue that has one sender), that only allow others
//! something ([`Action::Send`], [`Action::Release`], an acknowledgement that is merely counted), or that see what
//! can no longer change ([`Action::AllAcknowledged`] with a count of zero). What these lists call "no CPU" and "alone"
//! depends on the scene: with two requesters, CPUs that come and go, or rights that are raised again, the lists are
//! shorter. The other way around, an interrupt and a miss change places with whatever follows them, up to the handler's
//! first step; they are taken together with it.
//!
//! **TLBs that replace.** A CPU whose TLB holds an entry can do whatever it could do without: where a load may
//! replace the entry, dropping it adds nothing. So no entry is merely dropped, and TLBs are full at the start. Not
//! where a CPU asks which others hold an entry, nor a dirty cache line, whose dropping writes to memory.
//!
//! **CPUs alike.** Repliers of one operation that no other CPU acts upon differ only by name; they are sorted.
//!
//! `tlblab explore --unreduced` does without all of this. A test compares the two on every case of two CPUs; the
//! hazards are found in both.

use std::ops::Range;

use tlbkit_shootdown::{Action, Algorithm, MissAction, Repair, Reply, Style};

use super::step::Step;
use super::world::{Scene, World};

/// More steps at once than any machine takes: one that never comes to rest is at fault.
const ENDLESS: usize = 1000;

impl Scene {
    /// Tells whether one operation is all there is: no queue overflows, and no CPU waits for an exclusion.
    fn alone(&self) -> bool {
        self.ops.len() == 1
    }

    /// Tells whether no CPU comes or goes: all have the same target set, and are online.
    fn still(&self) -> bool {
        self.change.is_none()
    }

    /// Tells whether no CPU raises rights: no CPU asks how far an operation is.
    fn falling(&self) -> bool {
        self.raise.is_none()
    }

    /// Tells whether a TLB entry gives way to a new one, and is never merely dropped.
    pub(super) fn replaces(&self) -> bool {
        self.reduce && self.plan.has(Repair::ALL_LOADERS)
    }

    /// Tells whether 2-phase's requester sees all CPUs stopped at once: a CPU that has stopped stays so until it may go on,
    /// and the order in which the requester looks at them would give them names.
    pub(super) fn stops_together(&self) -> bool {
        self.reduce && self.alone() && self.still()
    }

    /// Returns the CPUs that differ only by name: all repliers, unless one of them runs the operation, or they are
    /// flushed one after the other.
    pub(super) fn alike(&self, world: &World) -> Range<usize> {
        let only = self.reduce && self.alone() && self.still() && self.falling() && self.bare.is_none();
        let together = self.plan.algorithm().style() != Style::Remote && !self.broadcasts;
        if only && together && self.plan.has(Repair::ALL_LOADERS) && world.ops[0].machine.cpu() == 0 {
            1..self.cpus
        } else {
            0..0
        }
    }
}

impl World {
    /// Does what is done at once, on every CPU, and notes it in `steps`.
    pub(super) fn settle(&mut self, scene: &Scene, steps: &mut Vec<Step>) {
        if !scene.reduce || scene.bare.is_some() {
            return;
        }
        let from = steps.len();
        let mut rest = 0;
        while rest < self.cpus.len() {
            rest = 0;
            for cpu in 0..self.cpus.len() {
                match self.at_once(scene, cpu) {
                    Some(step) => steps.push(step),
                    None => rest += 1,
                }
            }
            if steps.len() - from > ENDLESS {
                self.memory.wrong = Some("a machine never comes to rest");
                return;
            }
        }
    }

    /// Takes the CPU's next step if it is one to be done at once.
    fn at_once(&mut self, scene: &Scene, cpu: usize) -> Option<Step> {
        if let Some((_, miss, _)) = self.cpus[cpu].miss {
            let now = miss.next();
            // Nothing looks at this TLB before the handler has ended.
            let waits = scene.plan.has(Repair::REMOTE_DRAIN) && !scene.broadcasts;
            let unseen = scene.plan.has(Repair::MISS_MASKED) && waits;
            if now == MissAction::Load && unseen {
                self.handle(scene, cpu);
                return Some(Step::Handle { cpu, now });
            }
            if miss.is_masked() {
                return None;
            }
        }
        if self.replies(cpu) {
            let now = self.cpus[cpu].replier.next();
            return self.replies_at_once(scene, now).then(|| {
                self.reply(scene, cpu, now);
                Step::Reply { cpu, now }
            });
        }
        let stops = scene.plan.algorithm() == Algorithm::TwoPhase;
        if self.is_interrupted(scene, cpu) && scene.alone() && scene.still() && !stops && !scene.visits {
            self.cpus[cpu].replier.interrupt();
            return Some(Step::Interrupt { cpu });
        }
        let op = self.runs(cpu).filter(|_| self.cpus[cpu].miss.is_none())?;
        let now = self.asks(op).filter(|&now| self.asks_at_once(scene, cpu, op, now))?;
        self.ask_one(scene, cpu, op, now);
        Some(Step::Ask { cpu, op, now })
    }

    fn replies_at_once(&self, scene: &Scene, now: Reply) -> bool {
        match now {
            Reply::Take => scene.alone(),
            // The CPU that counts to zero continues an asynchronous operation: the order tells.
            Reply::Acknowledge(_) | Reply::AcknowledgeSlot { .. } => {
                scene.plan.algorithm().style() == Style::Synchronous
            }
            Reply::TakeOver { .. } => scene.alone() && scene.falling(),
            Reply::MayContinue(op) => scene.alone() && self.ops[usize::from(op.cpu)].continued,
            // The requester that looked at the flag has gone on.
            Reply::Leave => scene.alone() && scene.still(),
            Reply::Enter | Reply::Flush { .. } | Reply::MayContinueSlot { .. } | Reply::Idle => false,
        }
    }

    fn asks_at_once(&self, scene: &Scene, cpu: usize, op: usize, now: Action) -> bool {
        let (alone, still, falling) = (scene.alone(), scene.still(), scene.falling());
        let at = &self.ops[op];
        match now {
            Action::Exclude => alone && falling && !self.memory.locked[usize::from(at.pte)],
            // No code looks at it before the flag is set.
            Action::SetTentative => alone && scene.plan.has(Repair::VALUE_BEFORE_FLAG),
            // 2-phase's gate, at which no CPU waits.
            Action::SetChanging(_) => alone && still && scene.plan.algorithm() == Algorithm::TwoPhase,
            Action::ReadTargets => still,
            Action::SetCount(_) => true,
            Action::Send(_) => alone && still,
            Action::SendAndLeave(_) => alone && still && falling,
            // A CPU that serves its queue while it waits can tell how long it waits.
            Action::AllAcknowledged => at.count == 0 && (alone || !scene.serves()),
            Action::IsStopped(_) => {
                scene.stops_together() && at.machine.repliers().iter().all(|of| self.cpus[of].stopped)
            }
            Action::Continue => alone,
            Action::FlushRemotely { .. } => alone && scene.plan.has(Repair::GENERATION),
            Action::IsFlushed { cpu: of, ticket } => u32::from(self.cpus[of].flushed) >= ticket,
            Action::Open | Action::Close | Action::Release | Action::Done(_) => falling,
            Action::Serve => alone && still && (self.cpus[cpu].stopped || self.cpus[cpu].replier.is_idle()),
            Action::Update
            | Action::ReadStatus
            | Action::Store
            | Action::ReadHolders
            | Action::MarkStale(_)
            | Action::IsRunning(_)
            | Action::FlushLocally { .. }
            | Action::Enter
            | Action::Check => false,
        }
    }
}
