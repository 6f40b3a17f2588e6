//! MIPS32: a TLB that software loads, in pairs of pages.
//!
//! A refill handler runs when a CPU misses: it reads both words of a pair in the table that the CPU has loaded, and writes them in
//! the TLB. What a program accesses no log tells, so each handler may have run for each address at any moment. It runs with
//! interrupts off, in the order of what its CPU does: when a CPU does anything that the log tells, its walk has ended.

use super::arch::{Arch, Entry, G, Links, Scope};
use super::held::{GLOBAL, Item, Place, span};
use super::machine::{Holder, Machine};
use super::verdict::{Refusal, Rule};
use crate::event::Event;

/// Ends walks: covers links, and no page.
const WALKS: Scope =
    Scope { pages: Some((u64::MAX, u64::MAX)), asid: None, globals: false, links: Links::All };

impl Machine {
    /// A CPU does something: its walk has ended. What it stored before and has not flushed it may use, if it does more than store
    /// and flush.
    pub(super) fn settle(&mut self, cpu: usize, event: &Event) -> Result<(), Refusal> {
        self.end_walks(cpu);
        if !matches!(event, Event::Fence(_) | Event::Barrier(_) | Event::Refill { .. }) {
            self.cpus[cpu].forgot = None;
        }
        match event {
            Event::Write { .. } | Event::Swap { .. } | Event::Fence(_) | Event::Barrier(_) => return Ok(()),
            _ => {}
        }
        for at in core::mem::take(&mut self.cpus[cpu].unpaired) {
            let Some(level) = self.tables.level(self.arch.node(at)) else { continue };
            let entry = self.tables.entry(at, level);
            for holder in self.holders(self.arch.node(at)) {
                if holder.cpu == cpu && self.walks(&holder) {
                    self.outgrows(cpu, at, level, entry, &holder)?;
                }
            }
        }
        Ok(())
    }

    /// Ends the CPU's walk. A link that it still sees it may read again, if it runs the table.
    pub(super) fn end_walks(&mut self, cpu: usize) {
        if self.cpus[cpu].held.has_links() {
            self.drop(cpu, &WALKS, cpu, None);
        }
    }

    /// The word at `at` stays as it is, and its pair becomes global or ceases to be.
    pub(super) fn beside(&mut self, at: u64, global: bool, holders: &[Holder], writer: usize) {
        let word = self.tables.word(at);
        if let Entry::Leaf { shift: 12, global: was, .. } = self.tables.entry(at, 12)
            && was != (global && word.value & G != 0)
        {
            self.retire(at, 12, false, holders, writer);
            self.tables.put(at, word.value, self.now);
        }
    }

    /// Checks a page that is stored: that no CPU may load it beside an entry for a part of it, or for another address space.
    pub(super) fn doubled(
        &mut self,
        cpu: usize,
        at: u64,
        level: u32,
        before: Entry,
        after: Entry,
        holders: &[Holder],
    ) -> Result<(), Refusal> {
        let Entry::Leaf { shift, global, .. } = after else { return Ok(()) };
        if shift == 12 && !global {
            return Ok(());
        }
        for holder in holders.iter().filter(|holder| holder.cpu != cpu && self.walks(holder)) {
            self.outgrows(cpu, at, level, after, holder)?;
            self.overlaps(at, level, (before, after), holder)?;
        }
        if holders.iter().any(|holder| holder.cpu == cpu && self.walks(holder)) {
            self.cpus[cpu].unpaired.push(at);
        }
        Ok(())
    }

    /// Checks that no other CPU's handler may load a pair of which one word is that of a larger page and the other one not, or not
    /// yet: it takes both for pages of 4 KiB.
    pub(super) fn halved(
        &self,
        cpu: usize,
        at: u64,
        level: u32,
        after: Entry,
        holders: &[Holder],
    ) -> Result<(), Refusal> {
        let larger = |entry| match entry {
            Entry::Leaf { shift: shift @ 13.., .. } => Some(shift),
            _ => None,
        };
        let beside = at ^ 4;
        if self.halves || level != 12 || larger(after) == larger(self.tables.entry(beside, level)) {
            return Ok(());
        }
        match holders.iter().find(|holder| holder.cpu != cpu && self.walks(holder)) {
            None => Ok(()),
            Some(holder) => {
                let since = self.tables.word(beside).since;
                Err(self.violation(Rule::Unwritten, Some(holder.cpu)).halved(cpu, at, beside, since))
            }
        }
    }

    /// Returns the size that a handler loads a page by, in bits.
    fn loaded(&self, shift: u32) -> u32 {
        if self.halves && shift > 12 { shift - 2 } else { shift }
    }

    /// Returns the first and last address that entries of a page may take in.
    fn reach(&self, va: u64, shift: u32) -> (u64, u64) {
        if self.loaded(shift) < shift { span((0, shift, va >> shift)) } else { pair(va, shift) }
    }

    /// Checks that a CPU holds no smaller page where a larger one would be loaded beside it, and none of one address space where
    /// one of all would.
    fn outgrows(
        &self,
        cpu: usize,
        at: u64,
        level: u32,
        after: Entry,
        holder: &Holder,
    ) -> Result<(), Refusal> {
        let Entry::Leaf { shift, global, .. } = after else { return Ok(()) };
        let va = holder.va + self.arch.offset(at, level);
        let (first, last) = self.reach(va, shift);
        let held = &self.cpus[holder.cpu].held;
        for tag in held.tags().filter(|&tag| global || tag == GLOBAL || tag == u32::from(holder.asid)) {
            let other = tag != GLOBAL && tag != u32::from(holder.asid);
            for (place, item) in held.near(tag, self.arch.levels(), first, last) {
                if matches!(item.entry, Entry::Leaf { shift: held, .. } if self.loaded(held) < self.loaded(shift) || other)
                {
                    return Err(self
                        .violation(Rule::TwoMatch, Some(holder.cpu))
                        .matching(cpu, at, place, &item));
                }
            }
        }
        Ok(())
    }

    /// Checks that a larger page is not stored beside what another CPU may have loaded from the same table: smaller pages in its
    /// pair, or the other half, whose entries were smaller as long as it was alone.
    fn overlaps(
        &self,
        at: u64,
        level: u32,
        (before, after): (Entry, Entry),
        holder: &Holder,
    ) -> Result<(), Refusal> {
        let Entry::Leaf { shift: shift @ 13.., .. } = after else { return Ok(()) };
        let same = |entry: Entry| matches!(entry, Entry::Leaf { shift: size, .. } if size == shift);
        let smaller = |entry: Entry| matches!(entry, Entry::Leaf { shift: size, .. } if self.loaded(size) < self.loaded(shift));
        let offset = self.arch.offset(at, level);
        let (half, (first, last)) = (offset >> shift, self.reach(offset, shift));
        for word in self.tables.used(self.arch.node(at)) {
            let (place, entry) = (self.arch.offset(word, level), self.tables.entry(word, level));
            if !(first..=last).contains(&place) {
                continue;
            }
            let joins = place >> shift != half && same(entry) && !same(before);
            if joins || smaller(entry) {
                let since = self.tables.word(word).since;
                let violation = self.violation(Rule::TwoMatch, Some(holder.cpu));
                return Err(violation.paired(at, holder.va + place, since));
            }
        }
        Ok(())
    }

    /// Software writes a pair in a CPU's TLB.
    pub(super) fn refill(
        &mut self,
        cpu: usize,
        at: u64,
        words: [u64; 2],
        bytes: u64,
        blind: bool,
    ) -> Result<(), Refusal> {
        let shift = bytes.trailing_zeros();
        if self.arch != Arch::Mips32 || !self.arch.sizes().any(|size| size == shift) {
            return Err(self.impossible("no TLB of this architecture is loaded with such a pair"));
        }
        if words.iter().any(|&word| word > self.arch.largest()) {
            return Err(self.impossible("an EntryLo register has 32 bits"));
        }
        let (first, last) = pair(self.va(at)?, shift);
        let (root, asid) = self.root_of(cpu, first)?;
        // What the CPU has just invalidated it does not hold.
        let forgot = self.cpus[cpu].forgot.take();
        let gone = |scope: Scope| {
            scope.asid.is_none_or(|named| named == asid)
                && scope.pages.is_none_or(|(from, to)| from <= first && last <= to)
        };
        let blind = blind && !forgot.is_some_and(gone);
        let halves = words.map(|word| Arch::half(word, shift));
        let global = words[0] & words[1] & G != 0;
        // What it may hold already: of the table, and of what the table said before.
        let held = &self.cpus[cpu].held;
        for tag in held.tags().filter(|&tag| global || tag == GLOBAL || tag == u32::from(asid)) {
            let other = tag != GLOBAL && tag != u32::from(asid);
            for (place, item) in held.near(tag, self.arch.levels(), first, last) {
                let doubles = match item.entry {
                    Entry::Leaf { shift: held, .. } => held < shift || other || blind,
                    Entry::Absent => blind,
                    Entry::Link { .. } => false,
                };
                if doubles {
                    return Err(self.violation(Rule::TwoMatch, Some(cpu)).matching(cpu, at, place, &item));
                }
            }
        }
        if blind && let Some((_, entry, since)) = self.tables.find(root, first).filter(|found| found.0 == 12)
        {
            let item = Item {
                entry,
                linked: false,
                since,
                writer: cpu,
                stale: self.now,
                root,
                again: None,
                going: 0,
            };
            let place = (asid.into(), 12, first >> 12);
            return Err(self.violation(Rule::TwoMatch, Some(cpu)).matching(cpu, at, place, &item));
        }
        for (half, entry) in (0..).zip(halves) {
            let va = first + (half << shift);
            let Entry::Leaf { frame, shift, rights, memory, .. } = entry else { continue };
            let entry = Entry::Leaf { frame, shift, rights, global, memory };
            let level = if shift < 22 { 12 } else { 22 };
            // What the table says is known already.
            if self.tables.find(root, va).is_some_and(|(_, said, _)| said == entry) {
                continue;
            }
            let tag = if global { GLOBAL } else { asid.into() };
            for place in pages(tag, level, va, shift) {
                let item = Item {
                    entry,
                    linked: false,
                    since: self.now,
                    writer: cpu,
                    stale: self.now,
                    root,
                    again: None,
                    going: 0,
                };
                self.hold(cpu, place, item, false);
            }
        }
        Ok(())
    }
}

/// Returns the first and last address of the pair that a page is in.
fn pair(va: u64, shift: u32) -> (u64, u64) {
    span((0, shift + 1, va >> (shift + 1)))
}

/// Returns the places of a page.
fn pages(tag: u32, level: u32, va: u64, shift: u32) -> impl Iterator<Item = Place> {
    let first = va >> level;
    (first..first + (1 << (shift - level))).map(move |key| (tag, level, key))
}
