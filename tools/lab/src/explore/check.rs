//! What must hold in every world, and when everything is over.

use tlbkit_shootdown::{Algorithm, Form, Order, Outcome, Repair};

use super::broadcast::Node;
use super::world::{Cpu, Damage, Scene, Word, World};

impl World {
    /// Tells whether `cpu` may use the page now: it runs the space, and it is not stopped in 2-phase, nor in a handler that has
    /// acknowledged early.
    pub(crate) fn may_use(&self, scene: &Scene, cpu: usize) -> bool {
        let at = &self.cpus[cpu];
        let stopped = scene.plan.algorithm() == Algorithm::TwoPhase
            && (at.stopped || !at.replier.is_idle())
            && scene.plan.has(Repair::INTERRUPTS_DISABLED)
            || scene.plan.form() == Form::EarlyAcknowledgement
                && !at.replier.is_idle()
                && scene.plan.has(Repair::FLUSH_BEFORE_USE);
        self.memory.space.running.contains(cpu) && !stopped && at.switch.is_none()
    }

    /// Returns what is wrong with this world, if anything.
    pub(crate) fn violation(&self, scene: &Scene) -> Option<String> {
        if let Some(damage) = scene.bare {
            return self.damage(scene, damage);
        }
        if let Some(wrong) = self.memory.wrong {
            return Some(wrong.into());
        }
        let always = matches!(scene.plan.algorithm().order(), Order::TlbFirst | Order::TwoPhase);
        let beyond = |cpu: &Cpu| cpu.tlb.iter().any(|copy| copy.rights() > scene.start.rights());
        if !self.memory.raised && self.cpus.iter().any(beyond) {
            return Some("a copy has rights that no entry has had".into());
        }
        if let Some(wrong) = (0..self.cpus.len()).find_map(|cpu| self.wrong_visit(cpu)) {
            return Some(wrong);
        }
        for (at, op) in self.ops.iter().enumerate() {
            let pte = usize::from(op.pte);
            let bound = match op.ended {
                Some(Outcome::Done) => true,
                Some(_) => false,
                None => op.updated && always,
            };
            if scene.counts_dirty() && op.ended == Some(Outcome::Done) && !self.memory.raised {
                let known =
                    op.status | self.memory.ptes[pte].0 | self.ops.iter().fold(0, |s, o| s | o.status);
                if self.memory.written[pte] && known & Word::DIRTY == 0 {
                    return Some(format!(
                        "page {pte} has been written, and operation {at} lost its dirty bit"
                    ));
                }
            }
            if self.memory.raised && pte == 0 {
                if self.memory.raised_early && op.ended == Some(Outcome::Done) {
                    return Some(format!("operation {at} hands page {pte} back, which is mapped again"));
                }
                continue;
            }
            if !bound {
                continue;
            }
            if self.memory.ptes[pte].rights() > op.new.rights() {
                return Some(format!("entry {pte} has the old rights again, after operation {at} took them"));
            }
            for cpu in 0..self.cpus.len() {
                if self.cpus[cpu].tlb[pte].rights() > op.new.rights() && self.may_use(scene, cpu) {
                    return Some(format!(
                        "CPU {cpu} may use page {pte} with rights that operation {at} took"
                    ));
                }
            }
        }
        // A late write of lower rights may still take them away: damage that a fault repairs (Table 2.2).
        (self.memory.raised
            && !scene.hardware.status_overwrites()
            && self.finished()
            && self.memory.ptes[0].rights() < 2)
            .then(|| "the raised rights of entry 0 have been taken away again".into())
    }

    /// Returns the damage of Table 2.2 if it is there.
    fn damage(&self, scene: &Scene, damage: Damage) -> Option<String> {
        let (op, pte) = (&self.ops[0], usize::from(self.ops[0].pte));
        op.ended?;
        let entry = self.memory.ptes[pte];
        let copies = || {
            (0..self.cpus.len()).filter(|&cpu| self.may_use(scene, cpu)).map(|cpu| self.cpus[cpu].tlb[pte])
        };
        let there = match damage {
            Damage::Overwriting => entry.rights() != op.new.rights(),
            Damage::IllegalReference => copies().any(|copy| copy.rights() > entry.rights()),
            Damage::RejectedReference => {
                copies().any(|copy| copy.rights() != 0 && copy.rights() < entry.rights())
            }
            // The next write, or the next reference, sets no bit: the copy says that it is set already.
            Damage::WrongStatus => {
                let wrong = |bit: u8, rights: u8| {
                    entry.0 & bit == 0 && copies().any(|copy| copy.rights() >= rights && copy.0 & bit != 0)
                };
                (wrong(Word::DIRTY, 2) || wrong(Word::REFERENCED, 1))
                    && self.cpus.iter().all(|cpu| cpu.late.is_none())
            }
        };
        there.then(|| damage.to_string())
    }

    /// Tells whether everything has come to its end.
    pub(crate) fn finished(&self) -> bool {
        let kept = |node| matches!(node, Node::Out | Node::Kept { .. });
        self.ops.iter().all(|op| op.ended.is_some() && op.ending.is_none() && !kept(op.node))
            && self.cpus.iter().all(|cpu| {
                cpu.visit.is_none()
                    && cpu.replier.is_idle()
                    && cpu.queue.is_empty()
                    && !cpu.stopped
                    && cpu.switch.is_none()
            })
    }
}
