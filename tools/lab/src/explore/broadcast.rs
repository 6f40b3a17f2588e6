//! Flushes that the hardware broadcasts, and walks by software: the parts that [`Broadcast`] asks of its driver, and the other side,
//! which `tlbkit` has in `section.rs`.
//!
//! The flush is put before every TLB, also the initiator's, and each carries it out at a moment of its own: when its walk by hardware and
//! its status write have ended, but whatever its miss handler does, of which the hardware knows nothing. The barrier sees that all have.
//!
//! An entry is two things here. For TLBs, and for walks that use what they find, it is a leaf. For each walk by software it is a link
//! besides: a walk that has found it set is in a node until the walk ends, and an operation that clears it takes this node out. The
//! words of the CPUs are looked at one by one.

use tlbkit_addr::CpuSet;
use tlbkit_shootdown::{
    Broadcast, BroadcastAction, BroadcastSeen, Outcome, Repair, SectionKind, SectionWord,
};

use super::step::{Step, Turns};
use super::world::{CPUS, Scene, Word, World};

/// The operation's end by a broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ending {
    at: Now,
    machine: Broadcast,
    /// By CPU: how many flushes were put before its TLB when this one was.
    tickets: [u8; CPUS],
    /// A look at the words under way: the CPUs that are left, and those that were found inside.
    look: Option<(CpuSet, CpuSet)>,
}

/// What the initiator does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Now {
    /// It takes the right to write.
    Exclude,
    /// It changes the entry, and executes a fence.
    Update,
    /// What the crate's machine asks for.
    Asked(BroadcastAction),
    /// The same, at the word of this CPU.
    LookAt(usize),
    /// The same, and the answer is no.
    NoRoom,
    /// It gives up the right to write.
    Release,
}

/// The node below an entry that an operation has cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// There is none.
    #[default]
    None,
    /// It is out of the table.
    Out,
    /// It waits for the walks of this epoch and before. The CPUs whose words have to be looked at.
    Kept { since: usize, left: CpuSet },
    /// It has been given back.
    Free,
}

/// A step of a walk by software.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Walk {
    ReadEpoch,
    Announce,
    ReadTable,
    End,
}

/// A walk by software, with interrupts masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Visit {
    kind: SectionKind,
    pte: u8,
    at: u8,
    epoch: usize,
    /// The entry that it has found.
    found: Word,
}

impl Visit {
    pub(crate) fn next(&self, scene: &Scene) -> Walk {
        scene.walk().get(usize::from(self.at)).copied().unwrap_or(Walk::End)
    }
}

impl Scene {
    /// Returns the steps of a walk by software. Where a CPU's reply to an interrupt says that its walks have ended, none is announced.
    fn walk(&self) -> &'static [Walk] {
        match () {
            () if !self.broadcasts => &[Walk::ReadTable, Walk::End],
            () if self.plan.has(Repair::ANNOUNCE_FIRST) => {
                &[Walk::ReadEpoch, Walk::Announce, Walk::ReadTable, Walk::End]
            }
            () => &[Walk::ReadTable, Walk::ReadEpoch, Walk::Announce, Walk::End],
        }
    }

    /// Returns the end by a broadcast, at its beginning.
    pub(super) fn ending(&self, new: Word) -> Option<Ending> {
        let machine = Broadcast::new(&self.plan, new == Word::NONE);
        self.broadcasts.then_some(Ending { at: Now::Exclude, machine, tickets: [0; CPUS], look: None })
    }
}

impl World {
    /// A step of a walk by software, if the CPU is in one or may begin one.
    pub(super) fn visits(&self, cpu: usize, turns: &mut Turns<'_>) {
        let (at, scene) = (&self.cpus[cpu], turns.scene);
        if let Some(visit) = at.visit {
            let now = visit.next(scene);
            turns.offer(self, Step::Visit { cpu, pte: visit.pte.into(), now }, |w, _| {
                w.visit(scene, cpu, visit);
            });
            return;
        }
        // A CPU inside a change is in no walk that another CPU would wait for.
        let is_free = self.runs(cpu).is_none() && at.replier.is_idle() && !at.stopped && at.switch.is_none();
        if !scene.visits || !is_free || at.miss.is_some() || !self.memory.space.running.contains(cpu) {
            return;
        }
        for kind in [SectionKind::Walk, SectionKind::Use] {
            for pte in 0..scene.ptes {
                let visit = Visit { kind, pte: pte as u8, at: 0, epoch: 0, found: Word::NONE };
                let now = visit.next(scene);
                turns.offer(self, Step::Visits { cpu, pte, now }, |w, _| w.visit(scene, cpu, visit));
            }
        }
    }

    fn visit(&mut self, scene: &Scene, cpu: usize, mut visit: Visit) {
        match visit.next(scene) {
            Walk::ReadEpoch => visit.epoch = self.memory.epoch,
            Walk::Announce => {
                self.cpus[cpu].section = SectionWord::begun(visit.epoch, visit.kind);
                // The epoch is of no use any more.
                visit.epoch = 0;
            }
            Walk::ReadTable => visit.found = self.memory.ptes[usize::from(visit.pte)],
            Walk::End => {
                self.cpus[cpu].section = SectionWord::OUTSIDE;
                self.cpus[cpu].visit = None;
                return;
            }
        }
        visit.at += 1;
        self.cpus[cpu].visit = Some(visit);
    }

    /// Returns what is wrong with a walk by software: what it has found is used by somebody else.
    pub(super) fn wrong_visit(&self, cpu: usize) -> Option<String> {
        let visit = self.cpus[cpu].visit?;
        self.ops.iter().enumerate().filter(|(_, op)| op.pte == visit.pte).find_map(|(at, op)| {
            let uses = visit.kind == SectionKind::Use && visit.found.rights() > op.new.rights();
            if visit.found.rights() > 0 && op.node == Node::Free {
                Some(format!("CPU {cpu} walks in a node that operation {at} gave back"))
            } else if uses && op.ended == Some(Outcome::Done) {
                Some(format!("CPU {cpu} uses by software what operation {at} took"))
            } else {
                None
            }
        })
    }

    /// The step of an initiator that broadcasts.
    pub(super) fn end_by_broadcast(&self, cpu: usize, op: usize, ending: Ending, turns: &mut Turns<'_>) {
        let scene = turns.scene;
        let mut offer = |now| {
            turns
                .offer(self, Step::Broadcast { cpu, op, now }, |w, _| w.end_one(scene, cpu, op, ending, now));
        };
        match ending.at {
            Now::Exclude if self.memory.locked[usize::from(self.ops[op].pte)] => {}
            Now::Asked(BroadcastAction::AllFlushed) if !self.has_flushed(&ending) => {}
            Now::Asked(BroadcastAction::Look { cpus, .. }) => {
                let (left, _) = ending.look.unwrap_or((cpus, CpuSet::empty()));
                // With none to look at, its own number stands for all.
                offer(Now::LookAt(left.iter().next().unwrap_or(cpu)));
            }
            Now::Asked(BroadcastAction::Keep { .. }) => {
                offer(ending.at);
                offer(Now::NoRoom);
            }
            now => offer(now),
        }
    }

    fn has_flushed(&self, ending: &Ending) -> bool {
        self.cpus.iter().zip(ending.tickets).all(|(cpu, ticket)| cpu.flushed >= ticket)
    }

    fn end_one(&mut self, scene: &Scene, cpu: usize, op: usize, mut ending: Ending, now: Now) {
        let pte = usize::from(self.ops[op].pte);
        let seen = match now {
            Now::Exclude => {
                self.memory.locked[pte] = true;
                let lower = self.ops[op].new.0.min(self.memory.ptes[pte].rights());
                self.ops[op].new = Word(lower);
                return self.at(op, Ending { at: Now::Update, ..ending });
            }
            Now::Update => {
                self.ops[op].status |= self.memory.ptes[pte].0;
                self.update(scene, op, pte);
                return self.at(op, Ending { at: Now::Asked(ending.machine.next()), ..ending });
            }
            Now::Release => {
                self.memory.locked[pte] = false;
                self.cpus[cpu].own = None;
                // Nothing is left to tell two ends apart.
                self.ops[op].ending = None;
                return;
            }
            Now::LookAt(of) => match ending.machine.next() {
                BroadcastAction::Look { cpus, kind, since } => {
                    let (mut left, mut inside) = ending.look.take().unwrap_or((cpus, CpuSet::empty()));
                    if left.remove(of) && self.cpus[of].section.may_be_inside(kind, since) {
                        inside.insert(of);
                    }
                    if !left.is_empty() {
                        return self.at(op, Ending { look: Some((left, inside)), ..ending });
                    }
                    BroadcastSeen::Cpus(inside)
                }
                _ => BroadcastSeen::Did,
            },
            Now::NoRoom => BroadcastSeen::No,
            Now::Asked(BroadcastAction::Flush) => {
                for (ticket, cpu) in ending.tickets.iter_mut().zip(&mut self.cpus) {
                    if cpu.flushes.push((pte as u8, true)).is_err() {
                        self.memory.wrong = Some("too many flushes for this model");
                    }
                    cpu.posted += 1;
                    *ticket = cpu.posted;
                }
                BroadcastSeen::Did
            }
            Now::Asked(BroadcastAction::AllFlushed) => BroadcastSeen::Yes,
            Now::Asked(BroadcastAction::ReadRunning) => {
                let mut others = self.memory.space.running;
                others.remove(cpu);
                BroadcastSeen::Cpus(others)
            }
            Now::Asked(BroadcastAction::BeginEpoch) => {
                self.memory.epoch += SectionWord::STEP;
                BroadcastSeen::Epoch(self.memory.epoch - SectionWord::STEP)
            }
            // The frame is free from here on.
            Now::Asked(BroadcastAction::Release) => {
                if self.ops[op].ended.replace(Outcome::Done).is_some() {
                    self.memory.wrong = Some("the frames are released twice");
                }
                BroadcastSeen::Did
            }
            Now::Asked(BroadcastAction::Keep { since }) => {
                let left = CpuSet::first_n(scene.cpus).unwrap_or_default();
                self.hold(op, Node::Kept { since, left });
                BroadcastSeen::Yes
            }
            Now::Asked(BroadcastAction::Reclaim) => {
                self.hold(op, Node::Free);
                BroadcastSeen::Did
            }
            Now::Asked(BroadcastAction::Look { .. } | BroadcastAction::Done) => BroadcastSeen::Did,
        };
        let result = ending.machine.did(seen);
        self.check_done(result);
        let at = match ending.machine.next() {
            BroadcastAction::Done => Now::Release,
            next => Now::Asked(next),
        };
        self.at(op, Ending { at, look: None, ..ending });
    }

    fn at(&mut self, op: usize, ending: Ending) {
        self.ops[op].ending = Some(ending);
    }

    /// What becomes of the node, if there is one.
    pub(super) fn hold(&mut self, op: usize, node: Node) {
        if self.ops[op].node != Node::None {
            self.ops[op].node = node;
        }
    }

    /// A CPU looks whether the nodes that wait can be given back: at one word in each turn.
    pub(super) fn collect(&self, turns: &mut Turns<'_>) {
        let all = CpuSet::first_n(turns.scene.cpus).unwrap_or_default();
        for (op, of) in self.ops.iter().enumerate() {
            let Node::Kept { since, mut left } = of.node else { continue };
            let Some(cpu) = left.iter().next() else { continue };
            left.remove(cpu);
            let node = match () {
                () if self.cpus[cpu].section.may_be_inside(SectionKind::Walk, Some(since)) => {
                    Node::Kept { since, left: all }
                }
                () if left.is_empty() => Node::Free,
                () => Node::Kept { since, left },
            };
            turns.offer(self, Step::Collect { op, cpu }, |w, _| w.ops[op].node = node);
        }
    }
}
