//! What the hardware does by itself: it loads and drops TLB entries, sets status bits, carries out remote flushes.

use tlbkit_shootdown::{Loader, Miss, MissAction, Repair, Status, Target};

use super::step::{Step, Turns};
use super::world::{Scene, Word, World, page, space};

impl World {
    pub(super) fn hardware(&self, cpu: usize, turns: &mut Turns<'_>) {
        let (at, scene) = (&self.cpus[cpu], turns.scene);
        for pte in 0..scene.ptes {
            let held = at.tlb[pte].rights() != 0;
            let writes_back = scene.hardware.lines_need_entry && at.tlb[pte].0 & Word::DIRTY != 0;
            let replaces = scene.replaces() && !writes_back;
            if held {
                if !replaces {
                    turns.offer(self, Step::Evict { cpu, pte }, |w, _| w.drop_entry(scene, cpu, pte));
                }
                self.use_page(cpu, pte, turns);
            }
            let known = self.memory.space.members.contains(cpu);
            if !known || held && !replaces {
                // It knows no table of this space to load from, or must drop what it has first.
                continue;
            }
            if scene.hardware.loader == Loader::Software {
                self.miss(cpu, pte, turns);
            } else if self.memory.ptes[pte].rights() == 0 {
                // There is nothing to load.
            } else if !scene.walks() {
                turns.offer(self, Step::Load { cpu, pte }, |w, _| w.cpus[cpu].tlb[pte] = w.memory.ptes[pte]);
                self.load_to_use(cpu, pte, self.memory.ptes[pte], turns);
            } else if at.walk.is_none() {
                turns.offer(self, Step::Walk { cpu, pte }, |w, _| {
                    w.cpus[cpu].tlb[pte] = Word::NONE;
                    w.cpus[cpu].walk = Some((pte as u8, w.memory.ptes[pte]));
                });
            }
        }
        if let Some((pte, word)) = at.walk {
            turns.offer(self, Step::Land { cpu }, |w, _| {
                w.cpus[cpu].walk = None;
                w.cpus[cpu].tlb[usize::from(pte)] = word;
            });
            self.load_to_use(cpu, usize::from(pte), word, turns);
        }
        if at.late.is_some() {
            turns.offer(self, Step::Land { cpu }, |w, _| w.land(cpu));
        }
        if let Some(&(pte, drain)) = at.flushes.first() {
            let busy = at.walk.is_some() || at.late.is_some() || at.miss.is_some() && !scene.broadcasts;
            if !(drain && busy) {
                let pte = usize::from(pte);
                turns.offer(self, Step::Flushed { cpu, pte }, |w, _| {
                    w.cpus[cpu].flushes.remove(0);
                    w.drop_entry(scene, cpu, pte);
                    w.cpus[cpu].flushed += 1;
                });
            }
        }
    }

    /// A miss handler starts. Where nothing can interrupt it, that cannot be told from its first look.
    fn miss(&self, cpu: usize, pte: usize, turns: &mut Turns<'_>) {
        let scene = turns.scene;
        if self.cpus[cpu].miss.is_some() || !self.may_use(scene, cpu) {
            return;
        }
        turns.offer(self, Step::Miss { cpu, pte }, |w, steps| {
            let miss = Miss::new(&scene.plan);
            w.cpus[cpu].tlb[pte] = Word::NONE;
            w.cpus[cpu].miss = Some((pte as u8, miss, Word::NONE));
            if scene.reduce && scene.plan.has(Repair::MISS_MASKED) {
                steps.push(Step::Handle { cpu, now: miss.next() });
                w.handle(scene, cpu);
            }
        });
    }

    /// One step of the miss handler.
    pub(super) fn handle(&mut self, scene: &Scene, cpu: usize) {
        let Some((pte, mut miss, mut word)) = self.cpus[cpu].miss else { return };
        let flag = scene.plan.flag_of(usize::from(pte));
        let yes = match miss.next() {
            MissAction::IsChanging => self.memory.changing[flag],
            MissAction::Read(from) => {
                word = match from {
                    tlbkit_shootdown::Source::Table => self.memory.ptes[usize::from(pte)],
                    tlbkit_shootdown::Source::Tentative => self.memory.tentative[flag],
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

    /// A use that sets a status bit. Uses that set none change nothing.
    fn use_page(&self, cpu: usize, pte: usize, turns: &mut Turns<'_>) {
        let (at, scene) = (&self.cpus[cpu], turns.scene);
        let entry = at.tlb[pte];
        if at.late.is_some() || !self.may_use(scene, cpu) {
            return;
        }
        if scene.hardware.lines_need_entry {
            if pte == 0 && entry.rights() == 2 && entry.0 & Word::DIRTY == 0 {
                let used = Step::Use { cpu, pte, bit: Word::DIRTY };
                turns.offer(self, used, |w, _| w.cpus[cpu].tlb[pte].0 |= Word::DIRTY);
            }
            return;
        }
        let mut missing = [Word::REFERENCED, Word::DIRTY].into_iter().filter(|bit| {
            entry.settable() & scene.bits() & !entry.0 & bit != 0 && scene.ways(*bit).on_hit != Status::Never
        });
        // Where each is set atomically, their order cannot be observed.
        let order = if scene.hardware.status_overwrites() { 2 } else { 1 };
        for bit in missing.by_ref().take(order) {
            turns.offer(self, Step::Use { cpu, pte, bit }, |w, _| w.mark(scene, cpu, pte, bit, entry));
        }
    }

    /// A use of the translation `entry` sets a status bit.
    fn mark(&mut self, scene: &Scene, cpu: usize, pte: usize, bit: u8, entry: Word) {
        self.cpus[cpu].tlb[pte].0 |= bit;
        let memory = self.memory.ptes[pte];
        match scene.ways(bit).on_hit {
            Status::Never => {}
            // What it reads may have the bit already; then there may be nothing to write.
            Status::ReadThenWrite if memory.0 & bit != 0 && !scene.hardware.rewrites_set_bits => {}
            Status::ReadThenWrite => self.cpus[cpu].late = Some((pte as u8, Word(memory.0 | bit))),
            Status::FromTlb => self.cpus[cpu].late = Some((pte as u8, Word(entry.0 | bit))),
            Status::Atomic if memory.rights() >= entry.rights() => {
                self.memory.ptes[pte].0 |= bit;
                self.memory.written[pte] |= bit == Word::DIRTY;
            }
            // The entry does not allow it any more: a fault, and the stale copy is gone.
            Status::Atomic => self.cpus[cpu].tlb[pte] = Word::NONE,
        }
    }

    /// A miss on a use that sets status bits non-atomically: the walker has read `word`, loads it with the bits, and
    /// writes it so later. (Atomically it is a load and a use.)
    fn load_to_use(&self, cpu: usize, pte: usize, word: Word, turns: &mut Turns<'_>) {
        let scene = turns.scene;
        if self.cpus[cpu].late.is_some() || !self.may_use(scene, cpu) || scene.hardware.lines_need_entry {
            return;
        }
        let on_miss = |bit| {
            let sets = word.settable() & bit != 0 && scene.ways(bit).on_miss.overwrites();
            if sets { bit } else { 0 }
        };
        let (referenced, dirty) = (on_miss(Word::REFERENCED), on_miss(Word::DIRTY));
        for bits in [referenced, referenced | dirty] {
            let writes = bits & !word.0 != 0 || scene.hardware.rewrites_set_bits;
            if bits == 0 || !writes {
                continue;
            }
            turns.offer(self, Step::LoadToUse { cpu, pte, bits }, |w, _| {
                let word = Word(word.0 | bits);
                w.cpus[cpu].walk = None;
                w.cpus[cpu].tlb[pte] = word;
                w.cpus[cpu].late = Some((pte as u8, word));
            });
        }
    }

    pub(super) fn land(&mut self, cpu: usize) {
        if let Some((pte, word)) = self.cpus[cpu].late.take() {
            self.memory.ptes[usize::from(pte)] = word;
        }
    }

    /// A TLB loses an entry. A dirty line of a virtually tagged cache must be written back first, for which its old
    /// entry is put back if need be (2.3.3).
    fn drop_entry(&mut self, scene: &Scene, cpu: usize, pte: usize) {
        let entry = std::mem::take(&mut self.cpus[cpu].tlb[pte]);
        if scene.hardware.lines_need_entry
            && entry.0 & Word::DIRTY != 0
            && self.memory.ptes[pte].rights() < entry.rights()
        {
            self.memory.ptes[pte] = Word(entry.rights());
        }
    }

    pub(super) fn flush(&mut self, scene: &Scene, cpu: usize, what: Target, drain: bool) {
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

    /// The rights of entry 0 are raised again, when the plan allows it.
    pub(super) fn raise(&self, cpu: usize, turns: &mut Turns<'_>) {
        let scene = turns.scene;
        let op = &self.ops[0];
        let told = scene.plan.has(Repair::RAISE_SUPERSEDES);
        let free = !self.memory.locked[0];
        let may = free || if told { op.open } else { op.machine.is_left() };
        // TLB-first has yet to lower the entry: its new rights are the tentative ones.
        let lowered = self.memory.ptes[0].rights() < 2 || op.machine.is_left();
        if !self.memory.raised && may && lowered {
            turns.offer(self, Step::Raise { cpu }, |w, _| {
                w.memory.raised = true;
                w.memory.raised_early = !free && op.ended.is_none();
                w.ops[0].superseded = told && !free;
                w.memory.ptes[0] = Word::WRITE;
            });
        }
    }
}
