//! The events `write` and `swap`: the stores that become visible, the rules that a store may break, and the items that it leaves.

use std::vec;
use std::vec::Vec;

use super::arch::{Arch, Entry, G, rights};
use super::machine::{Cpu, Holder, Machine};
use super::memory::{Below, Store, Word};
use super::verdict::{Refusal, Rule};

impl Machine {
    /// Makes the last store of another CPU to a node visible, because a CPU that stores to the node, or links it, holds the lock under which
    /// the other CPU stored.
    fn synchronise(&mut self, cpu: usize, node: u64) {
        let Some(Store { cpu: other, line, .. }) = self.tables.nodes.get(&node).and_then(|node| node.last)
        else {
            return;
        };
        if other != cpu {
            self.cpus[other].visible = self.cpus[other].visible.max(line);
        }
    }

    /// Handles an atomic exchange: the old value is the value that was stored, with the status bits that hardware has set since.
    pub(super) fn swap(&mut self, cpu: usize, at: u64, old: u64, new: u64) -> Result<(), Refusal> {
        let word = self.tables.word(at);
        if (word.value ^ old) & !self.arch.set_by_hardware(word.value, self.tables.dirty) != 0 {
            return Err(self.impossible("the word did not hold this old value before"));
        }
        if word.value != old {
            // Status bits change neither the node that the word links nor the frame that it maps.
            self.tables.put(at, Word { value: old, ..word });
        }
        self.write(cpu, at, new, true)
    }

    pub(super) fn write(&mut self, cpu: usize, at: u64, value: u64, swapped: bool) -> Result<(), Refusal> {
        self.checked.writes += 1;
        if !at.is_multiple_of(self.arch.word()) || value > self.arch.largest() {
            return Err(self.impossible(self.arch.no_word()));
        }
        let node = self.arch.node(at);
        self.synchronise(cpu, node);
        if self.arch.is_software() {
            // The CPU is in no walk, and later walks see the stores to this node.
            self.end_walks(cpu);
        }
        let (old, store) = (self.tables.word(at), Store { cpu, line: self.now, epoch: self.cpus[cpu].epoch });
        let new = !self.arch.says(old.value);
        let found = self.tables.nodes.entry(node).or_default();
        found.last = Some(store);
        if !new && old.value != value {
            found.unsettled = Some(store);
        }
        let word = Word { value, since: self.now, by: cpu as u8, epoch: store.epoch, new };
        let Some(level) = found.level else {
            // The word can be decoded only when the node has a level.
            self.tables.put(at, if old.value == value { old } else { word });
            return Ok(());
        };
        if old.value != value {
            self.changes(at, level);
        }
        let before = self.tables.entry(at, level);
        let after = self.tables.read(at, value, level);
        if let Entry::Link { node, .. } = after {
            self.synchronise(cpu, node);
            if self.arch.is_software() {
                self.end_walks(cpu);
            }
        }
        let holders = self.holders(node);
        if self.tables.dirty && !swapped {
            self.keeps_dirty(cpu, at, level, before, &holders)?;
        }
        // The store may make the other half of the pair global, or no longer global.
        let pairs = level == 12 && self.arch.is_software();
        let beside = self.tables.word(at ^ 4).value;
        let unites = pairs && old.value & G == 0 && value & beside & G != 0;
        if pairs && (old.value ^ value) & G != 0 {
            self.beside(at ^ 4, value & G != 0, &holders, cpu);
            if unites {
                // A TLB may hold the old entry under one ASID beside the global one.
                self.retire(at, level, false, &holders, cpu);
                // Decodes the other half as if this word were stored.
                let now = self.tables.word(at ^ 4).value;
                let after = Arch::half(now, 12);
                self.doubled(cpu, at ^ 4, level, after, after, &holders)?;
            }
        }
        // The same holds for an invalid half.
        let tagged = |value: u64| value & self.tables.word(at ^ 4).value & G != 0;
        if before == after && !(pairs && tagged(old.value) != tagged(value)) {
            self.tables.put(at, Word { value, ..old });
            return Ok(());
        }
        // A TLB may hold the entry that a page replaces beside the page.
        let is_page = self.arch.is_software() && matches!(after, Entry::Leaf { .. });
        if is_page && !unites {
            self.retire(at, level, false, &holders, cpu);
        }
        if self.arch.is_software() {
            self.doubled(cpu, at, level, before, after, &holders)?;
            self.halved(cpu, at, level, after, &holders)?;
        }
        // The entries of a new node are compared with the items that CPUs hold.
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
        self.detach(at, before);
        self.tables.part(at, level);
        self.tables.put(at, word);
        self.tables.join(at, level);
        let Entry::Link { node, .. } = after else { return Ok(()) };
        self.unordered(cpu, (node, level - self.arch.step()), self.arch.offset(at, level), &holders);
        self.dangles()
    }

    /// Records absences after a CPU has linked a node without a barrier after its stores to the node or below: a walk that sees the link may
    /// still find such a word empty.
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
                    // A CPU that loaded its root since then sees the store.
                    for holder in holders {
                        if word.since <= self.cpus[holder.cpu].loaded {
                            continue;
                        }
                        self.keep_until(word.since, holder, said, is_link, cpu, (false, [0; 2]));
                    }
                }
                if let Entry::Link { node, .. } = entry {
                    nodes.push((node, level - self.arch.step(), offset));
                }
            }
        }
    }

    /// Checks that no CPU walks to a node that was given back, through a link that is still in a table.
    pub(super) fn dangles(&self) -> Result<(), Refusal> {
        let mut nodes: Vec<u64> = self.tables.dangling.iter().copied().collect();
        nodes.sort_unstable();
        for node in nodes {
            // A CPU does not use the links that it holds under a number that it has to invalidate first.
            let used = |holder: &&Holder| {
                let mixed = self.cpus[holder.cpu].mixed.map(|mixed| mixed.asid);
                self.walks(holder) && (holder.root.is_some() || mixed != Some(holder.asid))
            };
            if let Some(holder) = self.holders(node).iter().find(used) {
                return Err(self.violation(Rule::NodeReached, Some(holder.cpu)).linked_free(node));
            }
        }
        Ok(())
    }

    /// Checks a node that is about to be linked: it was not given back, and a walk that sees the link sees the node's words.
    fn linked(&mut self, cpu: usize, node: u64, level: u32, holders: &[Holder]) -> Result<(), Refusal> {
        if self.tables.freed.contains(&node) {
            let reader = holders.iter().find(|holder| self.walks(holder)).map_or(cpu, |holder| holder.cpu);
            return Err(self.violation(Rule::NodeReached, Some(reader)).linked_free(node));
        }
        if self.arch.is_ordered() {
            return Ok(());
        }
        // A walk by software sees all earlier stores of its own CPU.
        let apart = |holder: &&Holder| !(self.arch.is_software() && holder.cpu == cpu);
        let mut readers = holders.iter().filter(|holder| self.walks(holder) && apart(holder));
        let reader = readers.clone().find(|holder| holder.cpu != cpu).map(|holder| holder.cpu);
        let own = readers.find(|holder| holder.cpu == cpu).map(|holder| holder.cpu);
        let mut nodes = vec![(node, level - self.arch.step())];
        while let Some((node, level)) = nodes.pop() {
            // A CPU that links a node also holds the locks of the nodes below.
            self.synchronise(cpu, node);
            let unsettled = self.tables.nodes.get(&node).and_then(|node| node.unsettled);
            let Cpu { epoch, visible, near, .. } = self.cpus[cpu];
            if let Some(store) = unsettled
                && (store.cpu, store.epoch) == (cpu, epoch)
            {
                // Other CPUs' walks may not see a store that the CPU has ordered before its own walks.
                let reader = reader.filter(|_| store.line > visible);
                let own = own.filter(|_| store.line > visible.max(near));
                if let Some(reader) = reader.or(own) {
                    return Err(self.violation(Rule::Unwritten, Some(reader)).unwritten(node, store.line));
                }
            }
            for at in self.tables.used(node) {
                if let Entry::Link { node, .. } = self.tables.entry(at, level) {
                    nodes.push((node, level - self.arch.step()));
                }
            }
        }
        Ok(())
    }

    /// Checks that a plain store replaces no entry in which another CPU's hardware may be setting the dirty bit. The hardware of the
    /// storing CPU sets the bit only for this CPU's own stores to the page, which come before or after this store, and never by
    /// speculation.
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
}
