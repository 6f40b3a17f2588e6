//! The machine, event by event.

use std::vec;
use std::vec::Vec;

use super::arch::{Arch, Entry, Family, G, Links, PAGE, Scope, rights};
use super::hash::Map;
use super::held::{GLOBAL, Held, Item, Place};
use super::memory::{Below, Line, Store, Tables, Word};
use super::session::{Kind, Session};
use super::verdict::{Checked, Refusal, Rule};
use crate::event::{Barrier, CPUS, Event, Fence, Memory};

/// The most nodes that a line takes or gives back.
const NODES: u64 = 4096;

/// What a CPU is about.
#[derive(Debug, Default)]
pub(super) struct Cpu {
    /// The root node of each register, and the number that goes with it.
    pub(super) roots: [Option<(u64, u16)>; 2],
    pub(super) held: Held,
    /// The number of the last store that every CPU's walks see, and of those before it.
    visible: Line,
    /// When it loaded a root last: it sees the stores before that.
    loaded: Line,
    /// Barriers executed.
    epoch: u64,
    /// The last of them: stores before it are seen before stores after it.
    ordered: Line,
    /// Invalidations that have not completed.
    deferred: Vec<Begun>,
    /// A number that two tables have used, since the line and with the first root.
    pub(super) mixed: Option<(u16, Line, u64)>,
    /// Numbers under which it may hold what has been given back or taken away while it did not run them, and when it last did.
    pub(super) dead: Map<u16, Line>,
    /// The tables that it may hold entries of, by number.
    pub(super) used: Map<u16, Vec<u64>>,
    /// MIPS32: words that it stored and that it may not translate by, together with what it holds.
    pub(super) unpaired: Vec<u64>,
    /// MIPS32: what it has just invalidated, and done nothing since.
    pub(super) forgot: Option<Scope>,
    /// The last invalidation that it executed, or that reached it.
    pub(super) last_fence: Option<(Line, Scope)>,
}

/// An invalidation that has begun and not completed.
#[derive(Clone, Copy, Debug)]
struct Begun {
    scope: Scope,
    at: Line,
    /// The CPU that it is for, or none for all.
    only: Option<usize>,
    /// Its bit in the items that go with it. Those that find no bit of their own share the last one.
    slot: u32,
}

/// A holder of what a node says: a CPU, under a number, with the node at an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) cpu: usize,
    pub(super) asid: u16,
    /// The root, or none if it goes on through a link that a table no longer has.
    pub(super) root: Option<(u64, bool)>,
    pub(super) va: u64,
    rights: u8,
    since: Line,
    /// That link.
    pub(super) link: Option<Item>,
}

impl Holder {
    /// A CPU that goes on at `va` through a link that no table has.
    pub(super) fn by_link(cpu: usize, asid: u16, va: u64) -> Self {
        Self { cpu, asid, root: None, va, rights: rights::ALL, since: 0, link: None }
    }
}

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) arch: Arch,
    pub(super) now: Line,
    /// CPUs below this have had events.
    seen: usize,
    pub(super) tables: Tables,
    pub(super) cpus: Vec<Cpu>,
    pub(super) sessions: Map<u64, Vec<Session>>,
    /// How many items map a frame: by its size and its address.
    pub(super) frames: Map<(u32, u64), u32>,
    /// Where links to a node are held that no table has.
    pub(super) cut: Map<u64, Vec<(usize, Place)>>,
    /// Interrupts on their way.
    interrupts: Map<u64, u64>,
    /// Changes that have begun: root, first and last address, and when.
    pub(super) lowering: Map<u64, (u64, u64, u64, Line)>,
    /// MIPS32: no entry takes in more than one page of more than 4 KiB.
    pub(super) halves: bool,
    pub(super) checked: Checked,
}

impl Machine {
    pub(super) fn new(arch: Arch) -> Self {
        let (sessions, frames, cut, interrupts, lowering) = Default::default();
        let cpus = (0..CPUS).map(|_| Cpu::default()).collect();
        let (tables, checked) = (Tables::new(arch), Checked::default());
        let (now, seen, halves) = (0, 0, false);
        Self { arch, now, seen, tables, cpus, sessions, frames, cut, interrupts, lowering, halves, checked }
    }

    pub(super) fn impossible(&self, why: &'static str) -> Refusal {
        Refusal::Impossible { line: self.now, why }
    }

    pub(super) fn va(&self, va: u64) -> Result<u64, Refusal> {
        self.arch.va(va).ok_or_else(|| self.impossible("no virtual address of this architecture"))
    }

    pub(super) fn event(&mut self, line: Line, cpu: usize, event: Event) -> Result<(), Refusal> {
        self.now = line;
        if cpu >= CPUS {
            return Err(self.impossible("there is no such CPU"));
        }
        if self.checked.full {
            return Err(self.impossible("the log was full before this line"));
        }
        self.checked.events += 1;
        self.seen = self.seen.max(cpu + 1);
        if self.arch.is_software() {
            self.settle(cpu, &event)?;
        }
        match event {
            Event::Write { at, value } => self.write(cpu, at, value, false),
            Event::Swap { at, new, .. } => self.write(cpu, at, new, true),
            Event::Root { value, high } => self.root(cpu, value, high),
            Event::Fence(fence) => self.fence(cpu, fence),
            Event::Barrier(barrier) => {
                self.barrier(cpu, barrier);
                Ok(())
            }
            Event::Node(memory) => self.node(cpu, memory),
            Event::Frame(memory) => self.frame(cpu, memory),
            Event::IpiSend { cpus, id } => {
                // One that is sent twice before it is taken is taken once.
                *self.interrupts.entry(id).or_default() |= cpus;
                self.order(cpu);
                self.cpus[cpu].visible = self.now;
                Ok(())
            }
            Event::IpiTake { id } => self.take_interrupt(cpu, id),
            Event::Lower { id, first, last } => self.lower(cpu, id, first, last),
            Event::Done { id } => self.done(cpu, id),
            Event::Access { at, kind, user, reaches } => self.access(cpu, at, kind, user, reaches),
            Event::Refill { at, words, bytes, blind } => self.refill(cpu, at, words, bytes, blind),
            Event::Full => {
                self.checked.full = true;
                Ok(())
            }
            Event::UsesDirty => {
                if self.arch.is_software() {
                    return Err(self.impossible("hardware of this architecture sets no status bits"));
                }
                if self.checked.writes > 0 {
                    return Err(self.impossible("`uses dirty` comes before the first write"));
                }
                self.tables.dirty = true;
                Ok(())
            }
            Event::UsesHalves => {
                if !self.arch.is_software() {
                    return Err(self.impossible("software loads no TLB of this architecture"));
                }
                if self.checked.writes > 0 {
                    return Err(self.impossible("`uses halves` comes before the first write"));
                }
                self.halves = true;
                Ok(())
            }
        }
    }

    fn take_interrupt(&mut self, cpu: usize, id: u64) -> Result<(), Refusal> {
        let waiting = self.interrupts.get_mut(&id).filter(|cpus| **cpus >> cpu & 1 != 0);
        let Some(cpus) = waiting else {
            return Err(self.impossible("this interrupt was not sent to this CPU, or was taken already"));
        };
        *cpus &= !(1 << cpu);
        if *cpus == 0 {
            self.interrupts.remove(&id);
        }
        // An exception begins anew what the CPU executes.
        self.barrier(cpu, Barrier::Context);
        Ok(())
    }

    /// Returns the CPUs that may hold what a node says.
    pub(super) fn holders(&self, node: u64) -> Vec<Holder> {
        let mut found = Vec::new();
        if let Some(level) = self.tables.level(node) {
            self.climb(node, level, 0, rights::ALL, 0, &mut found);
        }
        found
    }

    fn climb(&self, node: u64, level: u32, va: u64, rights: u8, since: Line, found: &mut Vec<Holder>) {
        for &(cpu, place) in self.cut.get(&node).into_iter().flatten() {
            let left = self.cpus[cpu].held.at(place).iter().find_map(|item| match item.entry {
                Entry::Link { node: to, rights } if to == node => Some((rights, *item)),
                _ => None,
            });
            let va = va + super::held::span(place).0;
            let Some((left, link)) = left else { continue };
            let (asid, rights) = (place.0 as u16, rights & left);
            found.push(Holder { cpu, asid, root: None, va, rights, since, link: Some(link) });
        }
        if level == self.arch.top() {
            for session in self.sessions.get(&node).into_iter().flatten() {
                let &Session { cpu, asid, high, .. } = session;
                let va = va + self.arch.base(high);
                found.push(Holder { cpu, asid, root: Some((node, high)), va, rights, since, link: None });
            }
        }
        let step = self.arch.step();
        for &parent in &self.tables.nodes[&node].parents {
            let word = self.tables.word(parent);
            let Entry::Link { rights: left, .. } = self.tables.entry(parent, level + step) else { continue };
            let va = va + self.arch.offset(parent, level + step);
            self.climb(self.arch.node(parent), level + step, va, rights & left, since.max(word.since), found);
        }
    }

    /// Tells whether a CPU may hold an entry in a word of `level` of the holder's node.
    pub(super) fn may_hold(&self, holder: &Holder, kind: Kind, level: u32, va: u64, since: Line) -> bool {
        let since = since.max(holder.since);
        // A walk of software has ended when its CPU loads another root.
        let ended =
            |session: &Session| kind == Kind::Link && self.arch.is_software() && session.until.is_some();
        let of = |session: &Session| {
            session.cpu == holder.cpu
                && !ended(session)
                && session.asid == holder.asid
                && holder.root.is_none_or(|(_, high)| high == session.high)
                && session.may_hold(kind, level, va, since)
        };
        match holder.root {
            Some((root, _)) => self.sessions.get(&root).into_iter().flatten().any(of),
            // Through a link that it holds a CPU walks whenever the link's number is loaded.
            None => {
                let roots = self.cpus[holder.cpu].used.get(&holder.asid);
                roots.into_iter().flatten().filter_map(|root| self.sessions.get(root)).flatten().any(of)
            }
        }
    }

    /// Notes that a CPU may hold what a word said until `writer` changed it, if it may. `offset` is from the holder's node.
    pub(super) fn keep(&mut self, holder: &Holder, said: Below, linked: bool, writer: usize) {
        self.keep_as(holder, said, linked, writer, (false, [0; 2]));
    }

    /// Does so. What an absence is in all address spaces, and by which size a page is loaded, the caller says.
    pub(super) fn keep_as(
        &mut self,
        holder: &Holder,
        said: Below,
        linked: bool,
        writer: usize,
        loaded: (bool, [u32; 2]),
    ) {
        self.keep_until(self.now, holder, said, linked, writer, loaded);
    }

    /// Does so for what `writer` changed at a line.
    fn keep_until(
        &mut self,
        stale: Line,
        holder: &Holder,
        said: Below,
        linked: bool,
        writer: usize,
        (everywhere, sizes): (bool, [u32; 2]),
    ) {
        let Below { level, offset, entry, since } = said;
        let (entry, va) = (entry.limited(holder.rights), holder.va + offset);
        // The CPU that stores is in no walk of software.
        if self.arch.is_software() && matches!(entry, Entry::Link { .. }) && holder.cpu == writer {
            return;
        }
        let (kind, tag) = match entry {
            Entry::Leaf { global: true, .. } => (Kind::Global, GLOBAL),
            Entry::Absent if everywhere => (Kind::Global, GLOBAL),
            Entry::Link { .. } => (Kind::Link, holder.asid.into()),
            Entry::Leaf { .. } | Entry::Absent => (Kind::Leaf, holder.asid.into()),
        };
        if self.may_hold(holder, kind, level, va, since) {
            let place = (tag, level, va >> level);
            let root = holder.root.map_or(0, |(root, _)| root);
            let mut item = Item { entry, linked, since, writer, stale, root, again: None, going: 0, sizes };
            // What was read by way of a link that no table has goes with that link.
            if let Some(link) = &holder.link {
                (item.writer, item.stale) = (link.writer, link.stale);
                item.again = Some((writer, stale));
                item.going = self.going_with(link, place, &item);
            }
            // A CPU that left the table before an invalidation began reads nothing again.
            for begun in self.begun() {
                let here = begun.only.is_none_or(|cpu| cpu == holder.cpu);
                if here && begun.scope.covers(place, &item) && self.left(holder, begun.at) {
                    item.going |= 1 << begun.slot;
                }
            }
            self.hold(holder.cpu, place, item, holder.root.is_some());
        }
    }

    /// Tells whether a CPU reads an item no more, whatever it sees of the store that changed it: it has left the table.
    fn has_left(&self, target: usize, place: Place, item: &Item) -> bool {
        let mut loaded = self.cpus[target].roots.iter().flatten();
        let va = super::held::span(place).0;
        let top = |root: u64| {
            let at = self.arch.slot(root, self.arch.top(), va);
            self.tables.entry(at, self.arch.top())
        };
        // Tables may share what a top-level entry links; an entry that links nothing shares nothing.
        let shares = |entry: Entry| matches!(entry, Entry::Link { .. }) && entry == top(item.root);
        let same = |root: u64| item.root == 0 || root == item.root || shares(top(root));
        // It walks on through links that it holds of the table that it left, under the same number.
        let ran = |asid: u16| {
            let mut sessions = self.sessions.get(&item.root).into_iter().flatten();
            sessions.any(|session| (session.cpu, session.asid) == (target, asid))
        };
        !loaded.any(|&(root, asid)| match place.0 {
            GLOBAL => same(root) || ran(asid),
            of => u32::from(asid) == of && same(root),
        })
    }

    /// Tells whether a CPU does not read an item again that an invalidation covers: it sees a store that changed it. If it holds
    /// the link to it yet, that has to be the last one.
    fn is_past(
        &self,
        target: usize,
        scope: &Scope,
        place: Place,
        item: &Item,
        visible: &[Line; CPUS],
    ) -> bool {
        let link_goes = self.arch.is_software() || scope.links != Links::None;
        let sees = |writer: usize, line: Line| line <= visible[writer].max(self.cpus[target].loaded);
        let again = item.again.is_some_and(|(writer, line)| sees(writer, line));
        let sees = sees(item.writer, item.stale) && (item.again.is_none() || link_goes);
        self.arch.is_ordered() || sees || again || self.has_left(target, place, item)
    }

    /// Returns the invalidations that have begun.
    fn begun(&self) -> impl Iterator<Item = &Begun> {
        self.cpus[..self.seen].iter().flat_map(|cpu| &cpu.deferred)
    }

    /// Returns the CPU that has begun one of the invalidations with these bits.
    pub(super) fn beginner(&self, going: u64) -> usize {
        let of = |begun: &Begun| going >> begun.slot & 1 != 0;
        self.cpus.iter().position(|cpu| cpu.deferred.iter().any(of)).unwrap_or(0)
    }

    /// Returns the invalidations that cover what was read by way of a link, and that have begun to cover the link itself.
    fn going_with(&self, link: &Item, place: Place, item: &Item) -> u64 {
        if link.going == 0 {
            return 0;
        }
        let covers = |begun: &&Begun| link.going >> begun.slot & 1 != 0 && begun.scope.covers(place, item);
        self.begun().filter(covers).fold(0, |going, begun| going | 1 << begun.slot)
    }

    pub(super) fn hold(&mut self, cpu: usize, place: Place, item: Item, said: bool) {
        if !self.cpus[cpu].held.add(place, item, said) {
            return;
        }
        match item.entry {
            Entry::Leaf { frame, shift, .. } => *self.frames.entry((shift, frame)).or_default() += 1,
            Entry::Link { node, .. } => self.cut.entry(node).or_default().push((cpu, place)),
            Entry::Absent => {}
        }
    }

    fn forget(&mut self, cpu: usize, place: Place, item: &Item) {
        match item.entry {
            Entry::Leaf { frame, shift, .. } => {
                if let Some(count) = self.frames.get_mut(&(shift, frame)) {
                    *count -= 1;
                    if *count == 0 {
                        self.frames.remove(&(shift, frame));
                    }
                }
            }
            Entry::Link { node, .. } => {
                if let Some(places) = self.cut.get_mut(&node) {
                    if let Some(at) = places.iter().position(|&found| found == (cpu, place)) {
                        places.swap_remove(at);
                    }
                    if places.is_empty() {
                        self.cut.remove(&node);
                    }
                }
            }
            Entry::Absent => {}
        }
    }

    /// Notes for each holder what a word said, and what was below it. `linked` says that a link takes its place.
    pub(super) fn retire(&mut self, at: u64, level: u32, linked: bool, holders: &[Holder], writer: usize) {
        let (entry, since) = (self.tables.entry(at, level), self.tables.word(at).since);
        let said = Below { level, offset: self.arch.offset(at, level), entry, since };
        let below = match entry {
            Entry::Absent if !self.arch.has_absence(level) => return,
            Entry::Link { node, rights } => self.tables.below(node, rights),
            _ => Vec::new(),
        };
        if self.arch.is_software() {
            return self.retire_pairs(at, said, &below, holders, writer);
        }
        for holder in holders {
            self.keep(holder, said, linked && entry == Entry::Absent, writer);
            for under in &below {
                let (offset, since) = (said.offset + under.offset, since.max(under.since));
                self.keep(holder, Below { offset, since, ..*under }, false, writer);
            }
        }
    }

    /// Tells whether a holder's CPU had left the tables of its number at a line.
    fn left(&self, holder: &Holder, at: Line) -> bool {
        let roots = self.cpus[holder.cpu].used.get(&holder.asid).into_iter().flatten();
        let mut sessions = roots.filter_map(|root| self.sessions.get(root)).flatten();
        sessions.all(|session| {
            (session.cpu, session.asid) != (holder.cpu, holder.asid)
                || session.until.is_some_and(|until| until <= at)
        })
    }

    /// Tells whether a holder's CPU walks on from there.
    pub(super) fn walks(&self, holder: &Holder) -> bool {
        let roots = self.cpus[holder.cpu].roots.iter().flatten();
        let mut roots = roots.filter(|(_, asid)| *asid == holder.asid);
        roots.any(|&(root, _)| holder.root.is_none_or(|(of, _)| of == root))
    }

    /// A CPU stores to a node after another one: it holds the lock under which that one stored.
    fn synchronise(&mut self, cpu: usize, node: u64) {
        let Some(Store { cpu: other, line, .. }) = self.tables.nodes.get(&node).and_then(|node| node.last)
        else {
            return;
        };
        if other != cpu {
            self.cpus[other].visible = self.cpus[other].visible.max(line);
        }
    }

    fn write(&mut self, cpu: usize, at: u64, value: u64, swapped: bool) -> Result<(), Refusal> {
        self.checked.writes += 1;
        if !at.is_multiple_of(self.arch.word()) || value > self.arch.largest() {
            return Err(self.impossible(self.arch.no_word()));
        }
        let node = self.arch.node(at);
        self.synchronise(cpu, node);
        if self.arch.is_software() {
            // The CPU is in no walk, and sees from here on what it did not see before.
            self.end_walks(cpu);
        }
        let (old, store) = (self.tables.word(at), Store { cpu, line: self.now, epoch: self.cpus[cpu].epoch });
        let found = self.tables.nodes.entry(node).or_default();
        found.last = Some(store);
        if self.arch.says(old.value) && old.value != value {
            found.unsettled = Some(store);
        }
        let word = Word { value, since: self.now, by: cpu as u8 };
        let Some(level) = found.level else {
            self.tables.put(at, word);
            return Ok(());
        };
        let before = self.tables.entry(at, level);
        let after = self.tables.read(at, value, level);
        if let Entry::Link { node, .. } = after {
            self.synchronise(cpu, node);
        }
        let holders = self.holders(node);
        if self.tables.dirty && !swapped {
            self.keeps_dirty(cpu, at, level, before, &holders)?;
        }
        // The other half of a pair may be global from here on, or no more.
        let pairs = level == 12 && self.arch.is_software();
        let beside = self.tables.word(at ^ 4).value;
        let unites = pairs && old.value & G == 0 && value & beside & G != 0;
        if pairs && (old.value ^ value) & G != 0 {
            self.beside(at ^ 4, value & G != 0, &holders, cpu);
            if unites {
                // What was there under one ASID may be in a TLB beside the pair of all.
                self.retire(at, level, false, &holders, cpu);
                // Read as if this word were stored.
                let now = self.tables.word(at ^ 4).value;
                let after = Arch::half(now, 12);
                self.doubled(cpu, at ^ 4, level, after, after, &holders)?;
            }
        }
        // So may an invalid half.
        let tagged = |value: u64| value & self.tables.word(at ^ 4).value & G != 0;
        if before == after && !(pairs && tagged(old.value) != tagged(value)) {
            self.tables.put(at, Word { value, ..old });
            return Ok(());
        }
        // What a page takes the place of may be in a TLB beside it.
        let is_page = self.arch.is_software() && matches!(after, Entry::Leaf { .. });
        if is_page && !unites {
            self.retire(at, level, false, &holders, cpu);
        }
        if self.arch.is_software() {
            self.doubled(cpu, at, level, before, after, &holders)?;
            self.halved(cpu, at, level, after, &holders)?;
        }
        // What a new node says is compared with what CPUs hold.
        if let Entry::Link { node, .. } = after {
            self.tables.place(node, level - self.arch.step());
        }
        if self.arch.breaks() && after != Entry::Absent {
            self.broken(cpu, at, level, before, after, &holders)?;
        }
        if let Entry::Link { node, .. } = after {
            self.linked(cpu, node, level, &holders)?;
        }
        if !is_page && !unites {
            self.retire(at, level, matches!(after, Entry::Link { .. }), &holders, cpu);
        }
        self.tables.part(at, level);
        self.tables.put(at, word);
        self.tables.join(at, level);
        let Entry::Link { node, .. } = after else { return Ok(()) };
        self.unordered(cpu, (node, level - self.arch.step()), self.arch.offset(at, level), &holders);
        self.dangles()
    }

    /// A CPU has linked a node, and no barrier lies between that and some of its stores in the node or below: a walk that sees the link
    /// may find an absence yet where such a store is.
    fn unordered(&mut self, cpu: usize, linked: (u64, u32), offset: u64, holders: &[Holder]) {
        if self.arch.is_ordered() || self.arch.is_software() {
            return;
        }
        let seen = self.cpus[cpu].visible.max(self.cpus[cpu].ordered);
        let mut nodes = vec![(linked.0, linked.1, offset)];
        while let Some((node, level, base)) = nodes.pop() {
            if self.tables.level(node) != Some(level) {
                continue;
            }
            for at in self.tables.used(node) {
                let (word, entry) = (self.tables.word(at), self.tables.entry(at, level));
                let offset = base + self.arch.offset(at, level);
                if word.by == cpu as u8 && word.since > seen && entry != Entry::Absent {
                    let said = Below { level, offset, entry: Entry::Absent, since: self.now };
                    let is_link = matches!(entry, Entry::Link { .. });
                    for holder in holders {
                        self.keep_until(word.since, holder, said, is_link, cpu, (false, [0; 2]));
                    }
                }
                if let Entry::Link { node, .. } = entry {
                    nodes.push((node, level - self.arch.step(), offset));
                }
            }
        }
    }

    /// Checks that no CPU walks to a node that was given back, by way of a link that stayed.
    fn dangles(&self) -> Result<(), Refusal> {
        let mut nodes: Vec<u64> = self.tables.dangling.iter().copied().collect();
        nodes.sort_unstable();
        for node in nodes {
            // What it holds under a number that it has to invalidate first is not used yet.
            let used = |holder: &&Holder| {
                let mixed = self.cpus[holder.cpu].mixed.map(|(asid, ..)| asid);
                self.walks(holder) && (holder.root.is_some() || mixed != Some(holder.asid))
            };
            if let Some(holder) = self.holders(node).iter().find(used) {
                return Err(self.violation(Rule::NodeReached, Some(holder.cpu)).linked_free(node));
            }
        }
        Ok(())
    }

    /// Checks a node that is about to be linked: that it is one, and that a walk sees its words before the link.
    fn linked(&mut self, cpu: usize, node: u64, level: u32, holders: &[Holder]) -> Result<(), Refusal> {
        if self.tables.freed.contains(&node) {
            let reader = holders.iter().find(|holder| self.walks(holder)).map_or(cpu, |holder| holder.cpu);
            return Err(self.violation(Rule::NodeReached, Some(reader)).linked_free(node));
        }
        if self.arch.is_ordered() {
            return Ok(());
        }
        // A walk of software is in the order of what its CPU does.
        let apart = |holder: &&Holder| !(self.arch.is_software() && holder.cpu == cpu);
        let reader =
            holders.iter().find(|holder| self.walks(holder) && apart(holder)).map(|holder| holder.cpu);
        let mut nodes = vec![(node, level - self.arch.step())];
        while let Some((node, level)) = nodes.pop() {
            // A CPU that links nodes has the locks of those below, too.
            self.synchronise(cpu, node);
            let unsettled = self.tables.nodes.get(&node).and_then(|node| node.unsettled);
            let Cpu { epoch, visible, .. } = self.cpus[cpu];
            if let (Some(store), Some(reader)) = (unsettled, reader)
                && (store.cpu, store.epoch) == (cpu, epoch)
                && store.line > visible
            {
                return Err(self.violation(Rule::Unwritten, Some(reader)).unwritten(node, store.line));
            }
            for at in self.tables.used(node) {
                if let Entry::Link { node, .. } = self.tables.entry(at, level) {
                    nodes.push((node, level - self.arch.step()));
                }
            }
        }
        Ok(())
    }

    /// Checks a plain store over an entry in which another CPU's hardware may be setting the dirty bit. That of the CPU that stores sets
    /// it for that CPU's own stores to the page, before or after this one, and never for a speculated one.
    fn keeps_dirty(
        &self,
        cpu: usize,
        at: u64,
        level: u32,
        before: Entry,
        holders: &[Holder],
    ) -> Result<(), Refusal> {
        let Entry::Leaf { rights: right, .. } = before else { return Ok(()) };
        if right & rights::WRITE == 0 || right & rights::MARKED != 0 {
            return Ok(());
        }
        match holders.iter().find(|holder| holder.cpu != cpu && self.walks(holder)) {
            Some(holder) => {
                let va = holder.va + self.arch.offset(at, level);
                Err(self.violation(Rule::DirtyLost, Some(holder.cpu)).dirty_lost(
                    at,
                    va,
                    self.tables.word(at).since,
                ))
            }
            None => Ok(()),
        }
    }

    /// Checks a new entry where the old one has to be invalid first, and invalidated.
    fn broken(
        &self,
        cpu: usize,
        at: u64,
        level: u32,
        before: Entry,
        after: Entry,
        holders: &[Holder],
    ) -> Result<(), Refusal> {
        for holder in holders.iter().filter(|holder| self.walks(holder)) {
            let va = holder.va + self.arch.offset(at, level);
            let since = self.tables.word(at).since;
            if conflict(before, after) {
                let violation = self.violation(Rule::BreakLeftOut, Some(holder.cpu));
                return Err(violation.unbroken(at, va, since));
            }
            // A table that is linked brings its own leaves with it.
            let mut made = vec![(level, va, after)];
            if let Entry::Link { node, rights } = after {
                let below = self.tables.below(node, rights).into_iter();
                made.extend(below.map(|under| (under.level, va + under.offset, under.entry)));
            }
            for (level, va, after) in made {
                self.matches(cpu, at, holder, (level, va, after))?;
            }
        }
        Ok(())
    }

    /// Checks that nothing that a CPU may still hold excludes a new entry.
    fn matches(
        &self,
        cpu: usize,
        at: u64,
        holder: &Holder,
        (level, va, after): (u32, u64, Entry),
    ) -> Result<(), Refusal> {
        let last = va + ((1 << level) - 1);
        let held = &self.cpus[holder.cpu].held;
        let near = |tag| held.near(tag, self.arch.levels(), va, last);
        let below = self.global_below(holder.cpu, holder.asid, va, last);
        for (place, item) in near(holder.asid.into()).into_iter().chain(near(GLOBAL)).chain(below) {
            // A link leads on to what is below it, as another table does.
            let above = place.1 > level && matches!(item.entry, Entry::Link { .. });
            let below = place.1 < level && matches!(after, Entry::Link { .. });
            // What the CPU has of a table that it left under the same number is told as that.
            if !above && !below && item.stale != 0 && conflict(item.entry, after) {
                let violation = self.violation(Rule::TwoMatch, Some(holder.cpu));
                return Err(violation.matching(cpu, at, place, &item));
            }
        }
        Ok(())
    }

    fn root(&mut self, cpu: usize, value: u64, high: bool) -> Result<(), Refusal> {
        if high && self.arch.family() != Family::Arm {
            return Err(self.impossible("this architecture has one root register"));
        }
        if let Some((asid, line, first)) = self.cpus[cpu].mixed {
            return Err(self.violation(Rule::AsidReused, Some(cpu)).mixed(cpu, asid, line, first));
        }
        let root = self.arch.root(value);
        if let Some((old, asid)) = self.cpus[cpu].roots[usize::from(high)].take() {
            let now = self.now;
            let sessions = self.sessions.get_mut(&old).into_iter().flatten();
            for session in
                sessions.filter(|session| (session.cpu, session.asid, session.high) == (cpu, asid, high))
            {
                session.until = Some(now);
            }
            if self.arch.is_software() {
                self.end_walks(cpu);
            }
        }
        if root.flushes {
            let scope = Scope { pages: None, asid: Some(root.asid), globals: false, links: Links::All };
            self.flush(cpu, &scope, cpu, self.now, None);
        }
        let Some(node) = root.node else { return Ok(()) };
        let (asid, now) = (root.asid, self.now);
        if self.tables.freed.contains(&node) {
            return Err(self.violation(Rule::NodeReached, Some(cpu)).linked_free(node));
        }
        self.tables.place(node, self.arch.top());
        let other = self.cpus[cpu].used.get(&asid).into_iter().flatten().find_map(|&used| {
            let live = |session: &Session| {
                (session.cpu, session.asid, session.high) == (cpu, asid, high) && !session.only_global
            };
            (used != node && self.sessions.get(&used)?.iter().any(live)).then_some(used)
        });
        if other.is_some() {
            self.linger(cpu, node, asid, high);
        }
        let dead = self.cpus[cpu].dead.get(&asid).map(|_| node);
        self.cpus[cpu].mixed = other.or(dead).map(|first| (asid, now, first));
        self.cpus[cpu].roots[usize::from(high)] = Some((node, asid));
        self.cpus[cpu].loaded = now;
        let sessions = self.sessions.entry(node).or_default();
        match sessions
            .iter_mut()
            .find(|session| (session.cpu, session.asid, session.high) == (cpu, asid, high))
        {
            Some(session) => session.resume(now),
            None => {
                sessions.push(Session::new(cpu, asid, high, now));
                let used = self.cpus[cpu].used.entry(asid).or_default();
                if !used.contains(&node) {
                    used.push(node);
                }
            }
        }
        self.dangles()?;
        if self.arch.breaks() { self.excluded(cpu, node, asid, high) } else { Ok(()) }
    }

    /// Another table is about to be walked under a number: the CPU walks on through the links that it has of those before.
    fn linger(&mut self, cpu: usize, now: u64, asid: u16, high: bool) {
        let roots = self.cpus[cpu].used.get(&asid).cloned().unwrap_or_default();
        for root in roots.into_iter().filter(|&root| root != now) {
            let of = Holder {
                cpu,
                asid,
                root: Some((root, high)),
                va: self.arch.base(high),
                rights: rights::ALL,
                since: 0,
                link: None,
            };
            let mut nodes = vec![(root, self.arch.top(), of)];
            while let Some((node, level, holder)) = nodes.pop() {
                for at in self.tables.used(node) {
                    let (entry, since) = (self.tables.entry(at, level), self.tables.word(at).since);
                    let (va, since) = (holder.va + self.arch.offset(at, level), since.max(holder.since));
                    let Entry::Link { node, .. } = entry else { continue };
                    let entry @ Entry::Link { rights, .. } = entry.limited(holder.rights) else { continue };
                    if self.may_hold(&of, Kind::Link, level, va, since) {
                        let item = Item {
                            entry,
                            linked: false,
                            since,
                            writer: cpu,
                            stale: 0,
                            root,
                            again: None,
                            going: 0,
                            sizes: [0; 2],
                        };
                        self.hold(cpu, (asid.into(), level, va >> level), item, false);
                    }
                    let below = level - self.arch.step();
                    if below > self.arch.levels()[0] && self.tables.level(node) == Some(below) {
                        nodes.push((node, below, Holder { va, rights, since, ..of }));
                    }
                }
            }
        }
    }

    /// Checks that nothing that a CPU may hold excludes an entry of the table that it has loaded.
    fn excluded(&self, cpu: usize, root: u64, asid: u16, high: bool) -> Result<(), Refusal> {
        let base = self.arch.base(high);
        let (held, last) = (&self.cpus[cpu].held, base | ((1 << 48) - 1));
        let tags = [asid.into(), GLOBAL].into_iter().filter(|&tag| held.has_present(tag));
        let items = tags.flat_map(|tag| held.near(tag, self.arch.levels(), base, last));
        for (place, item) in items.chain(self.global_below(cpu, asid, base, last)) {
            if item.entry == Entry::Absent || item.stale == 0 {
                continue;
            }
            // What a walk finds below a link that the CPU holds is loaded beside what it holds already.
            if let Entry::Link { node, rights } = item.entry {
                let va = super::held::span(place).0;
                let holder = Holder { cpu, asid, root: None, va, rights, since: 0, link: None };
                for under in self.tables.below(node, rights) {
                    self.matches(cpu, node, &holder, (under.level, va + under.offset, under.entry))?;
                }
            }
            for found in self.tables.along(root, place.1, super::held::span(place).0 - base) {
                let above = place.1 > found.level && matches!(item.entry, Entry::Link { .. });
                let below = place.1 < found.level && matches!(found.entry, Entry::Link { .. });
                if !above && !below && conflict(item.entry, found.entry) {
                    let violation = self.violation(Rule::TwoMatch, Some(cpu));
                    return Err(violation.matching(cpu, root, place, &item));
                }
            }
        }
        Ok(())
    }

    fn fence(&mut self, cpu: usize, fence: Fence) -> Result<(), Refusal> {
        self.checked.fences += 1;
        if fence.broadcast && matches!(self.arch.family(), Family::RiscV | Family::Mips) {
            return Err(self.impossible("no fence of this architecture reaches other CPUs"));
        }
        let pages = match fence.pages {
            Some((first, last)) => Some((self.va(first)? & !(PAGE - 1), self.va(last)? | (PAGE - 1))),
            None => None,
        };
        if pages.is_some_and(|(first, last)| last < first) {
            return Err(self.impossible("the range is not in one half of the address space"));
        }
        // An entry of MIPS32 is a pair, and goes as one.
        let pages = match pages {
            Some((first, last)) if self.arch == Arch::Mips32 => Some((first & !PAGE, last | PAGE)),
            pages => pages,
        };
        if self.arch == Arch::Mips32 && fence.asid.is_some_and(|asid| asid > 0xff) {
            return Err(self.impossible("an ASID of this architecture has 8 bits"));
        }
        let current = self.cpus[cpu].roots[0].map_or(0, |(_, asid)| asid);
        let scope = self.arch.scope(fence, pages, current);
        self.cpus[cpu].forgot = self.arch.is_software().then_some(scope);
        if !self.arch.defers(fence) {
            self.flush(cpu, &scope, cpu, self.now, None);
            return Ok(());
        }
        let only = (!fence.broadcast).then_some(cpu);
        let taken = self.begun().fold(0_u64, |taken, begun| taken | 1 << begun.slot);
        let slot = taken.trailing_ones().min(63);
        self.cpus[cpu].deferred.push(Begun { scope, at: self.now, only, slot });
        let visible = self.visibility();
        for target in only.map_or(0..self.seen, |cpu| cpu..cpu + 1) {
            let (mut held, levels) = (core::mem::take(&mut self.cpus[target].held), self.arch.levels());
            held.sweep(&scope, levels, |place, item| {
                if self.is_past(target, &scope, place, item, &visible) {
                    item.going |= 1 << slot;
                }
                false
            });
            self.cpus[target].held = held;
        }
        Ok(())
    }

    fn visibility(&self) -> [Line; CPUS] {
        core::array::from_fn(|cpu| self.cpus[cpu].visible)
    }

    /// Takes an invalidation in that `by` executed at line `at`. If it was deferred, the items go that have its bit.
    pub(super) fn flush(&mut self, target: usize, scope: &Scope, by: usize, at: Line, slot: Option<u32>) {
        self.drop(target, scope, by, slot);
        self.cpus[target].last_fence = Some((at, *scope));
        self.flush_sessions(target, scope, at);
        let named = |asid: u16| scope.asid.is_none_or(|named| named == asid);
        if scope.pages.is_none() {
            let cpu = &mut self.cpus[target];
            cpu.mixed = cpu.mixed.filter(|&(asid, line, _)| !(named(asid) && line <= at));
            cpu.dead.retain(|&asid, line| !(named(asid) && *line <= at));
        }
    }

    /// Takes the items out that an invalidation covers, or the end of a walk.
    pub(super) fn drop(&mut self, target: usize, scope: &Scope, by: usize, slot: Option<u32>) {
        let (mut visible, levels) = (self.visibility(), self.arch.levels());
        // A CPU's fence orders its own stores before its own walks.
        if slot.is_none() && target == by {
            visible[by] = self.now;
        }
        let mut gone = Vec::new();
        let mut held = core::mem::take(&mut self.cpus[target].held);
        held.sweep(scope, levels, |place, item| {
            let goes = match slot {
                Some(slot) => item.going >> slot & 1 != 0,
                None => self.is_past(target, scope, place, item, &visible),
            };
            if goes {
                gone.push((place, *item));
            }
            goes
        });
        self.cpus[target].held = held;
        for (place, item) in &gone {
            self.forget(target, *place, item);
        }
        // What the CPU found by way of a link that goes stays, if the invalidation does not cover it.
        for (place, item) in &gone {
            self.outlast(target, *place, item, |at, kept| !scope.covers(at, kept));
        }
    }

    /// Notes what a CPU may have found by way of a link that it holds no more, as far as that `stays`.
    fn outlast(&mut self, target: usize, of: Place, link: &Item, stays: impl Fn(Place, &Item) -> bool) {
        let Entry::Link { node, rights: left } = link.entry else { return };
        for under in self.tables.below(node, left) {
            let va = super::held::span(of).0 + under.offset;
            let (entry, since) = (under.entry, under.since);
            let sizes = self.sizes(self.arch.slot(node, under.level, under.offset), under.level);
            let kept = Item { entry, linked: false, since, going: 0, sizes, ..*link };
            let global = matches!(under.entry, Entry::Leaf { global: true, .. });
            let place = (if global { GLOBAL } else { of.0 }, under.level, va >> under.level);
            let holder = Holder {
                cpu: target,
                asid: of.0 as u16,
                root: None,
                va,
                rights: rights::ALL,
                since: link.stale,
                link: None,
            };
            let kind = match under.entry {
                Entry::Link { .. } => Kind::Link,
                _ if global => Kind::Global,
                _ => Kind::Leaf,
            };
            // Also what an invalidation has covered meanwhile: the CPU may have read it again by way of the link.
            let read = self.may_hold(&holder, kind, under.level, va, under.since);
            if read && stays(place, &kept) {
                let kept = Item { going: self.going_with(link, place, &kept), ..kept };
                self.hold(target, place, kept, false);
            }
        }
    }

    fn flush_sessions(&mut self, target: usize, scope: &Scope, at: Line) {
        let levels = self.arch.levels();
        let (sessions, used) = (&mut self.sessions, &mut self.cpus[target].used);
        let mut each = |asid: u16, roots: &mut Vec<u64>| {
            roots.retain(|root| {
                let Some(of) = sessions.get_mut(root) else { return false };
                of.retain_mut(|session| {
                    (session.cpu, session.asid) != (target, asid) || session.flush(scope, at, levels)
                });
                let kept = of.iter().any(|session| (session.cpu, session.asid) == (target, asid));
                if of.is_empty() {
                    sessions.remove(root);
                }
                kept
            });
            !roots.is_empty()
        };
        match scope.asid.filter(|_| !scope.globals) {
            Some(asid) => {
                if used.get_mut(&asid).is_some_and(|roots| !each(asid, roots)) {
                    used.remove(&asid);
                }
            }
            None => used.retain(|&asid, roots| each(asid, roots)),
        }
    }

    /// Stores of a CPU from here on are seen after those before.
    fn order(&mut self, cpu: usize) {
        self.cpus[cpu].epoch += 1;
        self.cpus[cpu].ordered = self.now;
    }

    fn barrier(&mut self, cpu: usize, barrier: Barrier) {
        let aarch64 = self.arch.family() == Family::Arm;
        match barrier {
            Barrier::Release => self.order(cpu),
            Barrier::Complete | Barrier::TlbSync => {
                if barrier == Barrier::Complete {
                    self.order(cpu);
                    self.cpus[cpu].visible = self.now;
                }
                if aarch64 == (barrier == Barrier::Complete) {
                    // What is found by way of a link that goes may go with one of the others.
                    for at in 0..self.cpus[cpu].deferred.len() {
                        let begun = self.cpus[cpu].deferred[at];
                        for target in begun.only.map_or(0..self.seen, |cpu| cpu..cpu + 1) {
                            self.flush(target, &begun.scope, cpu, begun.at, Some(begun.slot));
                        }
                    }
                    self.cpus[cpu].deferred.clear();
                }
            }
            Barrier::Context if aarch64 => {
                let (visible, loaded) = (self.visibility(), self.cpus[cpu].loaded);
                let all = Scope { pages: None, asid: None, globals: true, links: Links::All };
                let levels = self.arch.levels();
                self.cpus[cpu].held.sweep(&all, levels, |_, item| {
                    item.entry == Entry::Absent && item.stale <= visible[item.writer].max(loaded)
                });
            }
            Barrier::Context => {}
        }
    }

    fn node(&mut self, cpu: usize, memory: Memory) -> Result<(), Refusal> {
        let (at, last) = self.range(memory)?;
        let (free, page) = (memory.free, self.arch.granule());
        if !at.is_multiple_of(page) || last % page != page - 1 || (last - at) / page >= NODES {
            return Err(
                self.impossible("nodes are pages of the smallest size, at most 4096 of them in a line")
            );
        }
        self.unreached(at, last)?;
        for node in (at..=last).step_by(page as usize) {
            if self.tables.nodes.contains_key(&node) {
                self.free_node(node, cpu)?;
            }
            if free {
                self.checked.freed += 1;
                self.tables.free(node);
            } else {
                let store = Store { cpu, line: self.now, epoch: self.cpus[cpu].epoch };
                self.tables.take(node, store);
            }
        }
        Ok(())
    }

    fn frame(&mut self, cpu: usize, memory: Memory) -> Result<(), Refusal> {
        let (at, last) = self.range(memory)?;
        self.checked.freed += u64::from(memory.free);
        self.unreached(at, last)?;
        // A kernel may give nodes back as frames.
        let size = self.arch.granule();
        let near = (self.arch.node(at)..=self.arch.node(last)).step_by(size as usize);
        let mut nodes: Vec<u64> = if (last - at) / size < NODES {
            near.filter(|&node| self.tables.level(node).is_some()).collect()
        } else {
            self.tables
                .nodes
                .keys()
                .copied()
                .filter(|node| (self.arch.node(at)..=last).contains(node))
                .collect()
        };
        nodes.sort_unstable();
        for node in nodes {
            self.free_node(node, cpu)?;
            self.tables.free(node);
        }
        Ok(())
    }

    /// Returns the first and last address of memory.
    fn range(&self, Memory { at, bytes, .. }: Memory) -> Result<(u64, u64), Refusal> {
        let last = bytes.checked_sub(1).and_then(|more| at.checked_add(more));
        last.map(|last| (at, last)).ok_or_else(|| self.impossible("a range of memory is expected"))
    }

    /// Takes a node out of the tables, if no CPU can be in it.
    fn free_node(&mut self, node: u64, cpu: usize) -> Result<(), Refusal> {
        let holders = self.holders(node);
        let Some(level) = self.tables.level(node) else {
            self.tables.remove(node);
            return Ok(());
        };
        let mut idle = Vec::new();
        for holder in &holders {
            let own = holder.root.is_some_and(|(root, _)| root == node);
            if own && !self.walks(holder) {
                continue;
            }
            let va = holder.va;
            let direct = holder
                .link
                .is_some_and(|link| matches!(link.entry, Entry::Link { node: to, .. } if to == node));
            if own || direct || self.may_hold(holder, Kind::Link, level + self.arch.step(), va, 0) {
                if !self.uses(holder.cpu, holder.asid) {
                    idle.push((holder.cpu, holder.asid));
                    continue;
                }
                return Err(self.violation(Rule::NodeReached, Some(holder.cpu)).node(node, holder, level));
            }
        }
        self.outlive(idle);
        for at in self.tables.used(node) {
            self.retire(at, level, false, &holders, cpu);
            self.tables.part(at, level);
        }
        self.tables.remove(node);
        // Its number is dead. What is global, a CPU has under every number, also what it found by way of links that no table has.
        let left: Vec<_> =
            self.sessions.get(&node).into_iter().flatten().map(|of| (of.cpu, of.asid)).collect();
        for (cpu, asid) in left {
            let links: Vec<_> = self.cpus[cpu].held.links(asid.into()).collect();
            for (place, link) in links {
                self.outlast(cpu, place, &link, |at, _| at.0 == GLOBAL);
            }
        }
        for session in self.sessions.remove(&node).into_iter().flatten() {
            let cpu = &mut self.cpus[session.cpu];
            if let Some(roots) = cpu.used.get_mut(&session.asid) {
                roots.retain(|&root| root != node);
            }
            if !session.only_global {
                let left = session.until.unwrap_or(self.now);
                let since = cpu.dead.entry(session.asid).or_insert(left);
                *since = left.max(*since);
            }
        }
        Ok(())
    }
}

/// Tells whether two entries must not both be in a TLB, or the second not take the first's place at once.
fn conflict(before: Entry, after: Entry) -> bool {
    match (before, after) {
        (Entry::Absent, _) | (_, Entry::Absent) => false,
        (Entry::Link { node, .. }, Entry::Link { node: other, .. }) => node != other,
        (
            Entry::Leaf { frame, shift, global, memory, .. },
            Entry::Leaf { frame: other, shift: size, global: all, memory: kind, .. },
        ) => (frame, shift, global, memory) != (other, size, all, kind),
        _ => true,
    }
}
