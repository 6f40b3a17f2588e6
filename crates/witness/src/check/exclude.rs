//! AArch64: entries that a TLB must not hold together, and break before make.

use std::format;
use std::string::String;
use std::vec;

use super::arch::Entry;
use super::held::GLOBAL;
use super::machine::{Holder, Machine};
use super::story::stores;
use super::verdict::{Refusal, Rule};

impl Machine {
    /// Checks that a new entry follows break before make: it replaces no valid entry that excludes it, and no CPU may still hold such an
    /// entry.
    pub(super) fn broken(
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
            // A link also adds the entries of the nodes below it.
            let mut made = vec![(level, va, after)];
            if let Entry::Link { node, rights } = after {
                let below = self.tables.below(node, rights).into_iter();
                made.extend(below.map(|under| (under.level, va + under.offset, under.entry)));
            }
            for (level, va, after) in made {
                let did = || stores(cpu, at);
                self.matches(&did, holder, (level, va, after))?;
            }
        }
        Ok(())
    }

    /// Checks that a CPU may hold no item that excludes a new entry.
    fn matches(
        &self,
        did: &dyn Fn() -> String,
        holder: &Holder,
        (level, va, after): (u32, u64, Entry),
    ) -> Result<(), Refusal> {
        let last = va + ((1 << level) - 1);
        let held = &self.cpus[holder.cpu].held;
        let near = |tag| held.near(tag, self.arch.levels(), va, last);
        let below = self.global_below(holder.cpu, holder.asid, va, last);
        for (place, item) in near(holder.asid.into()).into_iter().chain(near(GLOBAL)).chain(below) {
            // A link above an entry, or an entry below a new link, does not exclude it.
            let above = place.1 > level && matches!(item.entry, Entry::Link { .. });
            let below = place.1 < level && matches!(after, Entry::Link { .. });
            // What the CPU has of a table that it left under the same number is told as that.
            if !above && !below && item.stale != 0 && conflict(item.entry, after) {
                let violation = self.violation(Rule::TwoMatch, Some(holder.cpu));
                return Err(violation.matching(&did(), place, &item));
            }
        }
        Ok(())
    }

    /// Checks that a CPU may hold no item that excludes an entry of the table that it has loaded.
    pub(super) fn excluded(&self, cpu: usize, root: u64, asid: u16, high: bool) -> Result<(), Refusal> {
        let base = self.arch.base(high);
        let did = || format!("CPU {cpu} loads the root {root:#x}, whose table has a valid entry");
        let (held, last) = (&self.cpus[cpu].held, base | ((1 << 48) - 1));
        let tags = [asid.into(), GLOBAL].into_iter().filter(|&tag| held.has_present(tag));
        let items = tags.flat_map(|tag| held.near(tag, self.arch.levels(), base, last));
        for (place, item) in items.chain(self.global_below(cpu, asid, base, last)) {
            if item.entry == Entry::Absent || item.stale == 0 {
                continue;
            }
            // Through a link that it holds, the CPU may load the entries below it beside the items that it holds.
            if let Entry::Link { node, rights } = item.entry {
                let va = super::held::span(place).0;
                let holder = Holder { cpu, asid, root: None, va, rights, since: 0, link: None };
                for under in self.tables.below(node, rights) {
                    self.matches(&did, &holder, (under.level, va + under.offset, under.entry))?;
                }
            }
            for found in self.tables.along(root, place.1, super::held::span(place).0 - base) {
                let above = place.1 > found.level && matches!(item.entry, Entry::Link { .. });
                let below = place.1 < found.level && matches!(found.entry, Entry::Link { .. });
                if !above && !below && conflict(item.entry, found.entry) {
                    let violation = self.violation(Rule::TwoMatch, Some(cpu));
                    return Err(violation.matching(&did(), place, &item));
                }
            }
        }
        Ok(())
    }
}

/// Tells whether a TLB must not hold both entries, and the second must not replace the first without an invalid entry in between.
pub(super) fn conflict(before: Entry, after: Entry) -> bool {
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
