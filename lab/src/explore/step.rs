//! What can happen next in a world: each CPU's machines take a step, the hardware does what it likes.

use std::fmt;

use tlbkit_addr::CpuSet;
use tlbkit_shootdown::{
    Action, Algorithm, Loader, Miss, MissAction, Order, Outcome, Rendezvous, Repair, Reply, Request, Seen,
    Source, Status, Style, Switch, SwitchAction, Target,
};

use super::world::{Damage, Scene, Word, World, page, space, target};

/// One step, for a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A TLB loads an entry.
    Load { cpu: usize, pte: usize },
    /// A walker reads an entry, and will load it.
    Walk { cpu: usize, pte: usize },
    /// A TLB drops an entry.
    Evict { cpu: usize, pte: usize },
    /// A use of the page makes the hardware set a status bit.
    Use { cpu: usize, pte: usize, bit: u8 },
    /// A status write lands.
    Land { cpu: usize },
    /// A miss handler starts.
    Miss { cpu: usize, pte: usize },
    /// A miss handler goes on.
    Handle { cpu: usize, now: MissAction },
    /// An interprocessor interrupt is taken.
    Interrupt { cpu: usize },
    /// A replier's step.
    Reply { cpu: usize, now: Reply },
    /// A requester's step.
    Ask { cpu: usize, op: usize, now: Action },
    /// A step of joining, idling, leaving.
    Switch { cpu: usize, now: SwitchAction },
    /// A TLB carries out another CPU's flush.
    Flushed { cpu: usize, pte: usize },
    /// The rights of entry 0 are raised again.
    Raise { cpu: usize },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Load { cpu, pte } => write!(f, "CPU {cpu}'s TLB loads entry {pte}"),
            Self::Walk { cpu, pte } => write!(f, "CPU {cpu}'s walker reads entry {pte}"),
            Self::Evict { cpu, pte } => write!(f, "CPU {cpu}'s TLB drops entry {pte}"),
            Self::Use { cpu, pte, bit } => {
                let bit = if bit == Word::DIRTY { "dirty" } else { "referenced" };
                write!(f, "CPU {cpu} uses page {pte}, to be marked {bit}")
            }
            Self::Land { cpu } => write!(f, "CPU {cpu}'s status write (or walk) lands"),
            Self::Miss { cpu, pte } => write!(f, "CPU {cpu} misses on page {pte}"),
            Self::Handle { cpu, now } => write!(f, "CPU {cpu}'s miss handler: {now:?}"),
            Self::Interrupt { cpu } => write!(f, "CPU {cpu} is interrupted"),
            Self::Reply { cpu, now } => write!(f, "CPU {cpu} replies: {now:?}"),
            Self::Ask { cpu, op, now } => write!(f, "CPU {cpu}, operation {op}: {now:?}"),
            Self::Switch { cpu, now } => write!(f, "CPU {cpu} switches: {now:?}"),
            Self::Flushed { cpu, pte } => write!(f, "CPU {cpu}'s TLB is flushed of entry {pte} from outside"),
            Self::Raise { cpu } => write!(f, "CPU {cpu} raises the rights of entry 0 again"),
        }
    }
}

impl World {
    /// Calls `each` with every step that can be taken and the world after it, always in the same order.
    pub(crate) fn successors(&self, scene: &Scene, mut each: impl FnMut(Step, Self)) {
        for cpu in 0..self.cpus.len() {
            self.hardware(scene, cpu, &mut each);
            self.software(scene, cpu, &mut each);
        }
        if let Some(cpu) = scene.raise {
            self.raise(scene, cpu, &mut each);
        }
    }

    fn after(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    /// Tells whether `cpu` may use the page now: it runs the space, and it is not stopped in 2-phase.
    pub(crate) fn may_use(&self, scene: &Scene, cpu: usize) -> bool {
        let at = &self.cpus[cpu];
        let stopped = scene.plan.algorithm() == Algorithm::TwoPhase
            && (at.stopped || !at.replier.is_idle())
            && scene.plan.has(Repair::INTERRUPTS_DISABLED);
        self.space.running.contains(cpu) && !stopped && at.switch.is_none()
    }

    fn hardware(&self, scene: &Scene, cpu: usize, each: &mut impl FnMut(Step, Self)) {
        let at = &self.cpus[cpu];
        for pte in 0..scene.ptes {
            if at.tlb[pte].rights() != 0 {
                each(Step::Evict { cpu, pte }, self.after(|w| w.drop_entry(scene, cpu, pte)));
                self.use_page(scene, cpu, pte, each);
            } else if !self.space.members.contains(cpu) {
                // It knows no table of this space to load from.
            } else if scene.hardware.loader == Loader::Hardware && self.ptes[pte].rights() != 0 {
                if !scene.walks() {
                    each(Step::Load { cpu, pte }, self.after(|w| w.cpus[cpu].tlb[pte] = w.ptes[pte]));
                } else if at.walk.is_none() {
                    let read = self.after(|w| w.cpus[cpu].walk = Some((pte as u8, w.ptes[pte])));
                    each(Step::Walk { cpu, pte }, read);
                }
            } else if scene.hardware.loader == Loader::Software
                && at.miss.is_none()
                && self.may_use(scene, cpu)
            {
                let miss = (pte as u8, Miss::new(&scene.plan), Word::NONE);
                each(Step::Miss { cpu, pte }, self.after(|w| w.cpus[cpu].miss = Some(miss)));
            }
        }
        if let Some((pte, word)) = at.walk {
            let landed = self.after(|w| {
                w.cpus[cpu].walk = None;
                w.cpus[cpu].tlb[usize::from(pte)] = word;
            });
            each(Step::Land { cpu }, landed);
        }
        if at.late.is_some() {
            each(Step::Land { cpu }, self.after(|w| w.land(cpu)));
        }
        if let Some(&(pte, drain)) = at.flushes.first() {
            let busy = at.walk.is_some() || at.miss.is_some() || at.late.is_some();
            if !(drain && busy) {
                let flushed = self.after(|w| {
                    w.cpus[cpu].flushes.remove(0);
                    w.drop_entry(scene, cpu, usize::from(pte));
                    w.cpus[cpu].flushed += 1;
                });
                each(Step::Flushed { cpu, pte: usize::from(pte) }, flushed);
            }
        }
    }

    /// A use that sets a status bit. Uses that set none change nothing.
    fn use_page(&self, scene: &Scene, cpu: usize, pte: usize, each: &mut impl FnMut(Step, Self)) {
        let at = &self.cpus[cpu];
        let entry = at.tlb[pte];
        if at.late.is_some() || !self.may_use(scene, cpu) {
            return;
        }
        if scene.hardware.lines_need_entry {
            if entry.rights() == 2 && entry.0 & Word::DIRTY == 0 {
                let dirty = self.after(|w| w.cpus[cpu].tlb[pte].0 |= Word::DIRTY);
                each(Step::Use { cpu, pte, bit: Word::DIRTY }, dirty);
            }
            return;
        }
        let Some(bit) = entry.missing(scene.bits) else { return };
        let used = self.after(|w| {
            w.cpus[cpu].tlb[pte].0 |= bit;
            match scene.hardware.status {
                Status::Never => {}
                // What it reads may have the bit already; then there is nothing to write.
                Status::ReadThenWrite if w.ptes[pte].0 & bit != 0 => {}
                Status::ReadThenWrite => {
                    w.cpus[cpu].late = Some((pte as u8, Word(w.ptes[pte].0 | bit)));
                }
                Status::FromTlb => w.cpus[cpu].late = Some((pte as u8, Word(entry.0 | bit))),
                Status::Atomic if w.ptes[pte].rights() >= entry.rights() => {
                    w.ptes[pte].0 |= bit;
                    w.written[pte] |= bit == Word::DIRTY;
                }
                // The entry does not allow it any more: a fault, and the stale copy is gone.
                Status::Atomic => w.cpus[cpu].tlb[pte] = Word::NONE,
            }
        });
        each(Step::Use { cpu, pte, bit }, used);
    }

    fn land(&mut self, cpu: usize) {
        if let Some((pte, word)) = self.cpus[cpu].late.take() {
            self.ptes[usize::from(pte)] = word;
        }
    }

    /// A TLB loses an entry. A dirty line of a virtually tagged cache must be written back first, for which its old
    /// entry is put back if need be (2.3.3).
    fn drop_entry(&mut self, scene: &Scene, cpu: usize, pte: usize) {
        let entry = std::mem::take(&mut self.cpus[cpu].tlb[pte]);
        if scene.hardware.lines_need_entry
            && entry.0 & Word::DIRTY != 0
            && self.ptes[pte].rights() < entry.rights()
        {
            self.ptes[pte] = Word(entry.rights());
        }
    }

    fn flush(&mut self, scene: &Scene, cpu: usize, what: Target, drain: bool) {
        if drain {
            self.land(cpu);
        }
        for pte in 0..scene.ptes {
            if what.covers(space(), page(pte as u8)) {
                self.drop_entry(scene, cpu, pte);
            }
        }
        self.cpus[cpu].walk = None;
    }

    fn raise(&self, scene: &Scene, cpu: usize, each: &mut impl FnMut(Step, Self)) {
        let op = &self.ops[0];
        let told = scene.plan.has(Repair::RAISE_SUPERSEDES);
        let free = !self.locked[0];
        let may = free || if told { op.open } else { op.machine.is_left() };
        // TLB-first has yet to lower the entry: its new rights are the tentative ones.
        let lowered = self.ptes[0].rights() < 2 || op.machine.is_left();
        if !self.raised && may && lowered {
            let raised = self.after(|w| {
                w.raised = true;
                w.raised_early = !free && op.ended.is_none();
                w.ops[0].superseded = told && !free;
                w.ptes[0] = Word::WRITE;
            });
            each(Step::Raise { cpu }, raised);
        }
    }

    fn software(&self, scene: &Scene, cpu: usize, each: &mut impl FnMut(Step, Self)) {
        let at = &self.cpus[cpu];
        if let Some((pte, miss, word)) = at.miss {
            each(
                Step::Handle { cpu, now: miss.next() },
                self.after(|w| w.handle(scene, cpu, pte, miss, word)),
            );
            if miss.is_masked() {
                return;
            }
        }
        if !at.replier.is_idle() && at.taken.is_none() {
            let now = at.replier.next();
            let next = self.after(|w| w.reply(scene, cpu, now));
            if next != *self {
                each(Step::Reply { cpu, now }, next);
            }
            return;
        }
        let masked = at.stopped || at.taken.is_some();
        if !at.queue.is_empty() && !masked && at.replier.is_idle() {
            each(Step::Interrupt { cpu }, self.after(|w| w.cpus[cpu].replier.interrupt()));
        }
        if at.miss.is_some() {
            return;
        }
        if scene.bare.is_some() {
            if at.own.is_some() {
                let now = Action::Store;
                each(Step::Ask { cpu, op: 0, now }, self.after(|w| w.change_bare(cpu)));
            }
        } else if let Some(op) = at.taken.or(at.own) {
            self.ask(scene, cpu, usize::from(op), each);
        }
        if let Some(switch) = at.switch {
            let next = self.after(|w| w.switch(scene, cpu, switch));
            if next != *self {
                each(Step::Switch { cpu, now: switch.next() }, next);
            }
        } else if let Some((who, change)) = scene.change
            && who == cpu
            && !at.changed
        {
            let switch = Switch::new(&scene.plan, change);
            let begun = self.after(|w| {
                w.cpus[cpu].changed = true;
                w.switch(scene, cpu, switch);
            });
            each(Step::Switch { cpu, now: switch.next() }, begun);
        }
    }

    /// Changes the entry, and that is all.
    fn change_bare(&mut self, cpu: usize) {
        let pte = usize::from(self.ops[0].pte);
        self.update(0, pte);
        self.ops[0].ended = Some(Outcome::Done);
        self.written = [false; super::world::PTES];
        self.cpus[cpu].own = None;
    }

    fn handle(&mut self, scene: &Scene, cpu: usize, pte: u8, mut miss: Miss, mut word: Word) {
        let flag = scene.plan.flag_of(usize::from(pte));
        let yes = match miss.next() {
            MissAction::IsChanging => self.changing[flag],
            MissAction::Read(from) => {
                word = match from {
                    Source::Table => self.ptes[usize::from(pte)],
                    Source::Tentative => self.tentative[flag],
                };
                false
            }
            MissAction::Load => {
                self.cpus[cpu].tlb[usize::from(pte)] = word;
                false
            }
        };
        let ended = miss.did(yes);
        self.cpus[cpu].miss = (!ended).then_some((pte, miss, word));
    }

    fn check_done(&mut self, result: Result<(), tlbkit_shootdown::Misuse>) {
        if result.is_err() {
            self.wrong = Some("a machine was told what it did not ask for");
        }
    }

    /// One replier's step.
    fn reply(&mut self, scene: &Scene, cpu: usize, now: Reply) {
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
                self.wrong = Some("more acknowledgements than repliers");
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

    /// One requester's step, or the replier's that it waits with.
    fn ask(&self, scene: &Scene, cpu: usize, op: usize, each: &mut impl FnMut(Step, Self)) {
        let machine = &self.ops[op].machine;
        if machine.is_left() {
            return;
        }
        let now = machine.next();
        if now == Action::Done(Outcome::Done) && self.ops[op].ended.is_some() {
            return;
        }
        let next = self.after(|w| w.ask_one(scene, cpu, op, now));
        if next != *self {
            each(Step::Ask { cpu, op, now }, next);
        }
        let waits = matches!(now, Action::AllAcknowledged);
        let serves = scene.plan.rendezvous() == Rendezvous::Serve && scene.plan.has(Repair::RENDEZVOUS);
        if waits && serves && self.cpus[cpu].stopped && !self.cpus[cpu].queue.is_empty() {
            each(Step::Interrupt { cpu }, self.after(|w| w.cpus[cpu].replier.collect()));
        }
    }

    fn ask_one(&mut self, scene: &Scene, cpu: usize, op: usize, now: Action) {
        let pte = usize::from(self.ops[op].pte);
        let flag = scene.plan.flag_of(pte);
        let seen = match now {
            Action::Exclude if self.locked[pte] => Seen::No,
            Action::Exclude => {
                self.locked[pte] = true;
                // The new entry is worked out under the exclusion: rights only go down.
                let lower = self.ops[op].new.0.min(self.ptes[pte].rights());
                self.ops[op].new = Word(lower);
                Seen::Yes
            }
            Action::Release => {
                self.locked[pte] = false;
                Seen::Did
            }
            Action::SetTentative => {
                self.tentative[flag] = self.ops[op].new;
                Seen::Did
            }
            Action::SetChanging(on) => {
                self.changing[flag] = on;
                Seen::Did
            }
            Action::Update => {
                self.ops[op].status |= self.ptes[pte].0;
                self.update(op, pte);
                Seen::Did
            }
            Action::ReadStatus => {
                self.ops[op].status |= self.ptes[pte].0;
                Seen::Did
            }
            Action::Store => {
                self.update(op, pte);
                Seen::Did
            }
            Action::ReadTargets => Seen::Targets { members: self.space.members, running: self.space.running },
            Action::ReadHolders => {
                let holders: CpuSet =
                    (0..self.cpus.len()).filter(|&c| self.cpus[c].tlb[pte].rights() != 0).collect();
                Seen::Targets { members: holders, running: holders.intersection(self.space.running) }
            }
            Action::MarkStale(of) => {
                self.space.stale.insert(of);
                Seen::Did
            }
            Action::IsRunning(of) if self.space.running.contains(of) => Seen::Yes,
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
                    self.wrong = Some("too many remote flushes for this model");
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
                self.ops[op].status |= self.ptes[pte].0;
                if self.ptes[pte].rights() == self.ops[op].new.rights() { Seen::Yes } else { Seen::No }
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
                    self.wrong = Some("the payload is handed back twice");
                }
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

    fn update(&mut self, op: usize, pte: usize) {
        self.ptes[pte] = self.ops[op].new;
        self.ops[op].updated = true;
    }

    fn end_take_over(&mut self, cpu: usize) {
        self.cpus[cpu].taken = None;
        let result = self.cpus[cpu].replier.did();
        self.check_done(result);
    }

    fn send(&mut self, scene: &Scene, cpu: usize, op: usize, to: usize) -> bool {
        let request = Request { op: self.ops[op].id, what: target(self.ops[op].pte) };
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
            Err(_) => self.wrong = Some("a request does not fit the queue it was sent to"),
        }
        false
    }

    fn switch(&mut self, scene: &Scene, cpu: usize, mut switch: Switch) {
        let yes = match switch.next() {
            SwitchAction::Open => {
                self.cpus[cpu].queue.open();
                false
            }
            SwitchAction::Join => self.space.members.insert(cpu) == Some(true),
            SwitchAction::SetRunning => {
                self.space.running.insert(cpu);
                false
            }
            SwitchAction::IsChanging => self.changing.contains(&true),
            SwitchAction::TakeStale => self.space.stale.remove(cpu),
            SwitchAction::FlushSpace | SwitchAction::FlushAll => {
                self.flush(scene, cpu, Target::All, true);
                false
            }
            SwitchAction::Drain => {
                self.land(cpu);
                false
            }
            SwitchAction::ClearRunning => {
                self.space.running.remove(cpu);
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
            SwitchAction::Part => {
                self.space.members.remove(cpu);
                false
            }
            SwitchAction::Finished => return,
        };
        let result = switch.did(yes);
        self.check_done(result);
        self.cpus[cpu].switch = (switch.next() != SwitchAction::Finished).then_some(switch);
    }

    /// Returns what is wrong with this world, if anything.
    pub(crate) fn violation(&self, scene: &Scene) -> Option<String> {
        if let Some(damage) = scene.bare {
            return self.damage(scene, damage);
        }
        if let Some(wrong) = self.wrong {
            return Some(wrong.into());
        }
        let always = matches!(scene.plan.algorithm().order(), Order::TlbFirst | Order::TwoPhase);
        let beyond =
            |cpu: &super::world::Cpu| cpu.tlb.iter().any(|copy| copy.rights() > scene.start.rights());
        if !self.raised && self.cpus.iter().any(beyond) {
            return Some("a copy has rights that no entry has had".into());
        }
        for (at, op) in self.ops.iter().enumerate() {
            let pte = usize::from(op.pte);
            let bound = match op.ended {
                Some(Outcome::Done) => true,
                Some(_) => false,
                None => op.updated && always,
            };
            if scene.counts_dirty() && op.ended == Some(Outcome::Done) && !self.raised {
                let known = op.status | self.ptes[pte].0 | self.ops.iter().fold(0, |s, o| s | o.status);
                if self.written[pte] && known & Word::DIRTY == 0 {
                    return Some(format!(
                        "page {pte} has been written, and operation {at} lost its dirty bit"
                    ));
                }
            }
            if self.raised && pte == 0 {
                if self.raised_early && op.ended == Some(Outcome::Done) {
                    return Some(format!("operation {at} hands page {pte} back, which is mapped again"));
                }
                continue;
            }
            if !bound {
                continue;
            }
            if self.ptes[pte].rights() > op.new.rights() {
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
        (self.raised && !scene.hardware.status.overwrites() && self.finished() && self.ptes[0].rights() < 2)
            .then(|| "the raised rights of entry 0 have been taken away again".into())
    }

    /// Returns the damage of Table 2.2 if it is there.
    fn damage(&self, scene: &Scene, damage: Damage) -> Option<String> {
        let (op, pte) = (&self.ops[0], usize::from(self.ops[0].pte));
        op.ended?;
        let entry = self.ptes[pte];
        let copies = || {
            (0..self.cpus.len()).filter(|&cpu| self.may_use(scene, cpu)).map(|cpu| self.cpus[cpu].tlb[pte])
        };
        let there = match damage {
            Damage::Overwriting => entry.rights() != op.new.rights(),
            Damage::IllegalReference => copies().any(|copy| copy.rights() > entry.rights()),
            Damage::RejectedReference => {
                copies().any(|copy| copy.rights() != 0 && copy.rights() < entry.rights())
            }
            // The next write sets no bit: the copy says that it is set already.
            Damage::WrongStatus => {
                entry.0 & Word::DIRTY == 0
                    && copies().any(|copy| copy.rights() == 2 && copy.0 & Word::DIRTY != 0)
                    && self.cpus.iter().all(|cpu| cpu.late.is_none())
            }
        };
        there.then(|| damage.to_string())
    }

    /// Tells whether everything has come to its end.
    pub(crate) fn finished(&self) -> bool {
        self.ops.iter().all(|op| op.ended.is_some())
            && self.cpus.iter().all(|cpu| {
                cpu.replier.is_idle() && cpu.queue.is_empty() && !cpu.stopped && cpu.switch.is_none()
            })
    }
}
