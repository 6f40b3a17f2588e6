//! Checks: whether a CPU can reach memory that changes hands, whether a promised change is in force, and the result of an access.

use std::vec;
use std::vec::Vec;

use super::arch::{Arch, Entry, Family, PAGE, rights};
use super::held::{GLOBAL, Item, Place, span};
use super::machine::{Holder, Lowering, Machine};
use super::memory::{Below, Line};
use super::session::{Kind, Session};
use super::verdict::{Refusal, Rule};
use crate::event::Access;

impl Machine {
    /// Checks that no CPU can reach memory, by a leaf or as a node.
    pub(super) fn unreached(&mut self, first: u64, last: u64) -> Result<(), Refusal> {
        let mut idle = Vec::new();
        for shift in self.arch.sizes() {
            let size = 1 << shift;
            let (from, to) = (first & !(size - 1), last & !(size - 1));
            // A large range may have more pages than there are frames that a table or an item maps.
            let known = |&(of, frame): &(u32, u64)| of == shift && (from..=to).contains(&frame);
            let mut frames: Vec<_> = if (to - from) >> shift < 1024 {
                (from..=to).step_by(size as usize).map(|frame| (shift, frame)).collect()
            } else {
                let held = self.frames.keys().map(|(key, ..)| key);
                held.chain(self.tables.leaves.keys()).copied().filter(known).collect()
            };
            frames.sort_unstable();
            frames.dedup();
            for key in frames {
                self.unheld(key, &mut idle)?;
                for &at in self.tables.leaves.get(&key).into_iter().flatten() {
                    self.unmapped(at, key, &mut idle)?;
                }
            }
        }
        self.unlinked(first, last, &mut idle)?;
        self.outlive(idle);
        Ok(())
    }

    /// Checks that no CPU can walk, through a link that it holds, to memory that is no longer a node of a table.
    fn unlinked(&self, first: u64, last: u64, idle: &mut Vec<(usize, u16)>) -> Result<(), Refusal> {
        let page = self.arch.granule();
        let from = self.arch.node(first);
        let mut nodes: Vec<u64> = if (last - from) / page < 1024 {
            (from..=last).step_by(page as usize).filter(|node| self.cut.contains_key(node)).collect()
        } else {
            self.cut.keys().copied().filter(|node| (from..=last).contains(node)).collect()
        };
        nodes.retain(|&node| self.tables.level(node).is_none());
        nodes.sort_unstable();
        for node in nodes {
            for &(cpu, place) in self.cut.get(&node).into_iter().flatten() {
                let asid = place.0 as u16;
                if self.uses(cpu, asid) {
                    let holder = Holder::by_link(cpu, asid, span(place).0);
                    let level = place.1 - self.arch.step();
                    return Err(self.violation(Rule::NodeReached, Some(cpu)).node(node, &holder, level));
                }
                idle.push((cpu, asid));
            }
        }
        Ok(())
    }

    /// Records the CPUs that may hold entries of gone memory or rights under a number that they do not run. Such a CPU has to invalidate
    /// the number before it uses the number again.
    pub(super) fn outlive(&mut self, mut idle: Vec<(usize, u16)>) {
        idle.sort_unstable();
        idle.dedup();
        for (cpu, asid) in idle {
            let left = self.last_ran(cpu, asid);
            self.cpus[cpu].dead.insert(asid, left);
        }
    }

    /// Returns the line in which a CPU last left a number that it does not run. An invalidation after this line covers all entries that
    /// the CPU holds under the number, even if it began before the memory or right went, and completed afterwards.
    fn last_ran(&self, cpu: usize, asid: u16) -> Line {
        let tables = self.cpus[cpu].used.get(&asid).into_iter().flatten();
        let sessions = tables.filter_map(|root| self.sessions.get(root)).flatten();
        let own = sessions.filter(|session| (session.cpu, session.asid) == (cpu, asid));
        own.map(|session| session.until.unwrap_or(self.now)).max().unwrap_or(self.now)
    }

    /// Tells whether a CPU runs a number, and so can use the entries that it holds under the number.
    pub(super) fn uses(&self, cpu: usize, asid: u16) -> bool {
        self.cpus[cpu].roots.iter().flatten().any(|&(_, loaded)| loaded == asid)
    }

    /// Checks that no CPU holds an item that maps a frame.
    fn unheld(&self, key: (u32, u64), idle: &mut Vec<(usize, u16)>) -> Result<(), Refusal> {
        let maps =
            |item: &&Item| matches!(item.entry, Entry::Leaf { shift, frame, .. } if (shift, frame) == key);
        let last = (key, usize::MAX, (u32::MAX, u32::MAX, u64::MAX));
        let mut found: Option<(usize, Place, &Item)> = None;
        for &(_, cpu, place) in self.frames.range((key, 0, (0, 0, 0))..=last).map(|(place, _)| place) {
            if place.0 != GLOBAL && !self.uses(cpu, place.0 as u16) {
                idle.push((cpu, place.0 as u16));
                continue;
            }
            let items = self.cpus[cpu].held.at(place).iter().filter(maps);
            // The report names the CPU with the lowest number, and its item that has been stale for the longest time.
            found = found
                .into_iter()
                .chain(items.map(|item| (cpu, place, item)))
                .min_by_key(|(cpu, place, item)| (*cpu, item.stale, *place));
        }
        match found {
            Some((cpu, place, item)) => {
                Err(self.violation(Rule::FrameReached, Some(cpu)).frame_held(key.1, place, item))
            }
            None => Ok(()),
        }
    }

    /// Checks that no CPU may hold the entry of a word that maps a frame.
    fn unmapped(&self, at: u64, key: (u32, u64), idle: &mut Vec<(usize, u16)>) -> Result<(), Refusal> {
        let Some(level) = self.tables.level(self.arch.node(at)) else { return Ok(()) };
        let (entry, since) = (self.tables.entry(at, level), self.tables.word(at).since);
        let kind = if matches!(entry, Entry::Leaf { global: true, .. }) { Kind::Global } else { Kind::Leaf };
        for holder in self.holders(self.arch.node(at)) {
            let va = holder.va + self.arch.offset(at, level);
            if self.may_hold(&holder, kind, level, va, since) {
                if kind != Kind::Global && !self.uses(holder.cpu, holder.asid) {
                    idle.push((holder.cpu, holder.asid));
                    continue;
                }
                return Err(self
                    .violation(Rule::FrameReached, Some(holder.cpu))
                    .frame_mapped(key.1, at, va, &holder));
            }
        }
        Ok(())
    }

    /// Returns the root and the number by which a CPU translates an address.
    pub(super) fn root_of(&self, cpu: usize, va: u64) -> Result<(u64, u16), Refusal> {
        let high = usize::from(self.arch.family() == Family::Arm && va >> 48 != 0);
        self.cpus[cpu].roots[high]
            .ok_or_else(|| self.impossible("this CPU has loaded no root for this address"))
    }

    pub(super) fn lower(
        &mut self,
        cpu: usize,
        id: u64,
        (first, last): (u64, u64),
        of: Option<u64>,
    ) -> Result<(), Refusal> {
        let (first, last) = (self.va(first)? & !(PAGE - 1), self.va(last)? | (PAGE - 1));
        if last < first {
            return Err(self.impossible("the range is not in one half of the address space"));
        }
        let root = match of {
            None => self.root_of(cpu, first)?.0,
            Some(value) => self.named(value)?,
        };
        let change = Lowering { root, first, last, line: self.now, changed: false };
        if self.lowering.insert(id, change).is_some() {
            return Err(self.impossible("a change of this number has begun and is not done"));
        }
        Ok(())
    }

    /// Returns the root node that a value of the root register names. The CPU need not have loaded the table.
    pub(super) fn named(&mut self, value: u64) -> Result<u64, Refusal> {
        if let Some(why) = self.arch.no_root(value) {
            return Err(self.impossible(why));
        }
        let Some(node) = self.arch.root(value).and_then(|root| root.node) else {
            return Err(
                self.impossible("this value of the root register names no table of this architecture")
            );
        };
        if self.tables.freed.contains(&node) {
            return Err(self.impossible("the root of this table was given back before this line"));
        }
        self.tables.place(node, self.arch.top());
        Ok(node)
    }

    /// Marks the changes ([`Lowering`]) to whose table and range a word belongs. The word is about to change.
    pub(super) fn changes(&mut self, at: u64, level: u32) {
        if self.lowering.values().all(|change| change.changed) {
            return;
        }
        let mut ways = vec![(self.arch.node(at), level, self.arch.offset(at, level))];
        while let Some((node, of, offset)) = ways.pop() {
            if of == self.arch.top() {
                for change in self.lowering.values_mut().filter(|change| change.root == node) {
                    let half = self.arch.family() == Family::Arm && change.first >> 48 != 0;
                    let first = offset + self.arch.base(half);
                    let last = first + ((1 << level) - 1);
                    change.changed |= first <= change.last && change.first <= last;
                }
            }
            let above = of + self.arch.step();
            for &parent in self.tables.nodes.get(&node).into_iter().flat_map(|node| &node.parents) {
                ways.push((self.arch.node(parent), above, offset + self.arch.offset(parent, above)));
            }
        }
    }

    /// Returns the items that a CPU may use for an address from `first` to `last`, and the entries below links among them.
    fn leftovers(&self, cpu: usize, asid: u16, first: u64, last: u64) -> Vec<(Place, Item)> {
        let mut found = Vec::new();
        // An entry that was read from one word of a contiguous run maps the whole run.
        let bits = if self.tables.runs { self.arch.sizes().max().unwrap_or(0) } else { 0 };
        let (from, to) = (first >> bits << bits, last | ((1 << bits) - 1));
        for tag in [asid.into(), GLOBAL] {
            for (place, item) in self.cpus[cpu].held.near(tag, self.arch.levels(), from, to) {
                let (begin, end) = reached(place, &item);
                if end < first || last < begin {
                    continue;
                }
                let Entry::Link { .. } = item.entry else {
                    found.push((place, item));
                    continue;
                };
                // The CPU may use the entries below a link that it holds.
                found.push((place, item));
                self.below((cpu, asid), (place, item), (first, last), &mut found, |_| true);
            }
        }
        // The CPU may have found a global entry through any link, under any number.
        found.extend(self.global_below(cpu, asid, first, last));
        found
    }

    /// Returns the global leaves for addresses from `first` to `last` that a CPU may have found through links that it holds under other
    /// numbers.
    pub(super) fn global_below(&self, cpu: usize, asid: u16, first: u64, last: u64) -> Vec<(Place, Item)> {
        let mut found = Vec::new();
        for (&node, places) in &self.cut {
            for &(_, place) in places.iter().filter(|(of, place)| *of == cpu && place.0 != u32::from(asid)) {
                let links = |item: &&Item| matches!(item.entry, Entry::Link { node: to, .. } if to == node);
                let (from, to) = span(place);
                if from <= last
                    && first <= to
                    && let Some(item) = self.cpus[cpu].held.at(place).iter().find(links)
                {
                    let of = (cpu, place.0 as u16);
                    self.below(of, (place, *item), (first, last), &mut found, |kind| kind == Kind::Global);
                }
            }
        }
        found
    }

    /// Adds the leaves that a CPU may have found below a link that it holds.
    pub(super) fn below(
        &self,
        (cpu, asid): (usize, u16),
        (place, item): (Place, Item),
        (first, last): (u64, u64),
        found: &mut Vec<(Place, Item)>,
        is: impl Fn(Kind) -> bool,
    ) {
        let Entry::Link { node, rights } = item.entry else { return };
        for under in self.tables.below(node, rights) {
            let va = span(place).0 + under.offset;
            let (kind, tag) = match under.entry {
                Entry::Leaf { global: true, .. } => (Kind::Global, GLOBAL),
                Entry::Leaf { .. } => (Kind::Leaf, asid.into()),
                _ => continue,
            };
            let place = (tag, under.level, va >> under.level);
            let (from, to) = span(place);
            let read = || self.may_hold(&Holder::by_link(cpu, asid, va), kind, under.level, va, under.since);
            if is(kind) && from <= last && first <= to && read() {
                found.push((place, Item { entry: under.entry, ..item }));
            }
        }
    }

    /// Returns the entries that a CPU may hold for an address from any word of the address's contiguous run, as the table has them now.
    fn run_beside(&self, cpu: usize, asid: u16, root: u64, va: u64) -> Vec<(Place, Item)> {
        if !self.tables.runs {
            return Vec::new();
        }
        let high = self.arch.family() == Family::Arm && va >> 48 != 0;
        let base = self.arch.base(high);
        let mut found = Vec::new();
        for Below { level, offset, entry, since } in self.tables.beside(root, va - base) {
            let global = matches!(entry, Entry::Leaf { global: true, .. });
            let (kind, tag) = if global { (Kind::Global, GLOBAL) } else { (Kind::Leaf, asid.into()) };
            let (place, of) = ((tag, level, (base + offset) >> level), base + offset);
            let holds = |session: &Session| {
                (session.cpu, session.asid, session.high) == (cpu, asid, high)
                    && session.may_hold(&self.cpus[cpu].flushed, kind, level, of, since)
            };
            if self.sessions.get(&root).is_some_and(|sessions| sessions.iter().any(holds)) {
                let item = Item {
                    entry,
                    linked: false,
                    since,
                    writer: cpu,
                    stale: 0,
                    again: None,
                    root,
                    going: 0,
                    sizes: [0; 2],
                };
                found.push((place, item));
            }
        }
        found
    }

    /// Returns the global entry for an address that a CPU may hold of a table that it does not walk.
    fn elsewhere(&self, cpu: usize, root: u64, va: u64) -> Option<(Place, Item)> {
        let others =
            self.cpus[cpu].used.iter().flat_map(|(asid, roots)| roots.iter().map(move |root| (*asid, *root)));
        let base = self.arch.base(self.arch.family() == Family::Arm && va >> 48 != 0);
        others.filter(|&(_, other)| other != root).find_map(|(asid, other)| {
            let (level, entry, since) = self.tables.find(other, va - base)?;
            let mine = |session: &Session| {
                let high = self.arch.family() == Family::Arm && va >> 48 != 0;
                (session.cpu, session.asid, session.high) == (cpu, asid, high)
                    && session.may_hold(
                        &self.cpus[cpu].flushed,
                        Kind::Global,
                        level,
                        va >> level << level,
                        since,
                    )
            };
            let global = matches!(entry, Entry::Leaf { global: true, .. });
            let held = global && self.sessions.get(&other)?.iter().any(mine);
            let item = Item {
                entry,
                linked: false,
                since,
                writer: cpu,
                stale: since,
                root: other,
                again: None,
                going: 0,
                sizes: [0; 2],
            };
            held.then_some(((GLOBAL, level, va >> level), item))
        })
    }

    /// Returns the pages from `first` to `last` for which a CPU may hold a global page of a table that is not `root`, or an entry of a
    /// contiguous run of `other`. For a short range, returns all pages of the range.
    fn pages(&self, cpu: usize, (root, other): (u64, u64), first: u64, last: u64) -> Vec<u64> {
        if (last - first) / PAGE < 1024 {
            return (first..=last).step_by(PAGE as usize).collect();
        }
        let base = self.arch.base(self.arch.family() == Family::Arm && first >> 48 != 0);
        let mut pages = vec![first];
        let used = self.cpus[cpu].used.values().flatten().copied().filter(|&used| used != root);
        for table in used.chain(self.tables.runs.then_some(other)) {
            for said in self.tables.below(table, rights::ALL) {
                // Any other leaf is asked for by its table and what was there before.
                let (shift, counts) = match said.entry {
                    Entry::Leaf { shift, global, .. } => (shift, global || shift > said.level),
                    _ => (0, false),
                };
                if !counts {
                    continue;
                }
                // A contiguous run covers more addresses than one of its words.
                let va = base + said.offset;
                let (from, to) = (va >> shift << shift, va | ((1 << shift) - 1));
                if from <= last && first <= to {
                    let own = va.clamp(first, last) & !(PAGE - 1);
                    pages.extend([own, from.max(first), (own & !0xffff).max(first)]);
                }
            }
        }
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    pub(super) fn done(&mut self, id: u64) -> Result<(), Refusal> {
        let Some(Lowering { root, first, last, changed, .. }) = self.lowering.remove(&id) else {
            return Err(self.impossible("no change of this number has begun"));
        };
        // A CPU that runs another table maps the pages of the nodes that both tables link.
        let base = self.arch.base(self.arch.family() == Family::Arm && first >> 48 != 0);
        let mut holders = Vec::new();
        for (&other, sessions) in &self.sessions {
            let (mut ranges, from) = (Vec::new(), (first - base, last - base));
            self.tables.shared((root, other), self.arch.top(), from, &mut ranges);
            for session in sessions {
                let of = (session.cpu, session.asid, other, session.only_global);
                holders.extend(ranges.iter().map(|(from, to)| (of, from + base, to + base)));
            }
        }
        holders.sort_unstable();
        let mut idle = Vec::new();
        for ((cpu, asid, other, only_global), first, last) in holders {
            let mut left = self.leftovers(cpu, asid, first, last);
            let pages = self.pages(cpu, (root, other), first, last);
            left.extend(pages.iter().filter_map(|&va| self.elsewhere(cpu, root, va)));
            // A contiguous run is checked once, not once for each of its words.
            let bits = self.arch.smallest_run();
            let runs = pages.iter().filter(|&&va| va == first || va % (1 << bits) == 0);
            left.extend(runs.flat_map(|&va| self.run_beside(cpu, asid, other, va)));
            // If the number has been invalidated since, the entries under it are of another table.
            let mine = |place: Place| place.0 == GLOBAL || !only_global;
            let mut before = None;
            for (place, item) in left
                .into_iter()
                .filter(|(place, item)| mine(*place) && matches!(item.entry, Entry::Leaf { .. }))
            {
                let (from, to) = reached(place, &item);
                let (from, to) = (from.max(first), to.min(last));
                // Each word of a run gives the same entry for all of it.
                if before.replace((place.0, from, item.entry)) == Some((place.0, from, item.entry)) {
                    continue;
                }
                let mut next = Some(from);
                while let Some(va) = next.filter(|&va| va <= to) {
                    // The entry and the words of both tables are the same for all pages up to the end of the smallest of them.
                    let alike = |of: u64| self.tables.reach(of, va - base);
                    let bits = alike(root).min(alike(other)).min(place.1);
                    next = (va | ((1 << bits) - 1)).checked_add(1);
                    let entry = within(place, &item, va);
                    // The table that the CPU walks may give more by a link of its own. A global entry is used under every number.
                    let table = |of: u64| self.tables.walk(of, va - base, rights::ALL);
                    let own = if place.0 == GLOBAL { root } else { other };
                    if self.is_more(entry, va, [table(root), table(own)]) {
                        if place.0 != GLOBAL && !self.uses(cpu, asid) {
                            idle.push((cpu, asid));
                            break;
                        }
                        return Err(self.violation(Rule::RightKept, Some(cpu)).kept(id, va, place, &item));
                    }
                }
            }
        }
        self.outlive(idle);
        self.checked.promised += u64::from(changed);
        self.checked.unchanged += u64::from(!changed);
        Ok(())
    }

    /// Tells whether an entry gives a right at an address, to the same memory, that none of the entries `new` gives.
    fn is_more(&self, old: Entry, va: u64, new: [Entry; 2]) -> bool {
        let Some((reached, right)) = reach(old, va) else { return false };
        let care = if self.tables.dirty { rights::ALL } else { rights::ALL & !rights::MARKED };
        let given =
            |entry: Entry| reach(entry, va).filter(|(to, _)| *to == reached).map_or(0, |(_, right)| right);
        right & care & !new.into_iter().fold(0, |all, entry| all | given(entry)) != 0
    }

    pub(super) fn access(
        &mut self,
        cpu: usize,
        at: u64,
        kind: Access,
        user: bool,
        reaches: Option<u64>,
    ) -> Result<(), Refusal> {
        let va = self.va(at)?;
        let (root, asid) = self.root_of(cpu, va)?;
        if let Some(mixed) = self.cpus[cpu].mixed {
            return Err(self.violation(Rule::AsidReused, Some(cpu)).mixed(cpu, mixed));
        }
        let need = match (kind, user) {
            (Access::Load, false) => rights::READ,
            (Access::Load, true) => rights::READ | rights::USER,
            (Access::Store, false) => rights::WRITE,
            (Access::Store, true) => rights::WRITE | rights::USER,
            (Access::Fetch, false) => rights::KERNEL_EXEC,
            (Access::Fetch, true) => rights::USER_EXEC,
        };
        // On MIPS32 user mode may use only the lower half of the addresses.
        if user && self.arch == Arch::Mips32 && va >> 31 != 0 {
            if reaches.is_none() {
                self.checked.accesses += 1;
                return Ok(());
            }
            return Err(self.impossible("user mode reaches no such address"));
        }
        let does =
            |entry: Entry| reach(entry, va).filter(|(_, right)| right & need == need).map(|(to, _)| to);
        let wrong = |entry: Entry| match (reaches, does(entry)) {
            (Some(wanted), Some(found)) => wanted != found,
            // A fault in user mode is no error: the kernel finds the entry, and the program continues.
            (Some(_), None) => !user,
            (None, found) => found.is_some(),
        };
        let left = self.leftovers(cpu, asid, va & !(PAGE - 1), va | (PAGE - 1)).into_iter();
        let beside = self.run_beside(cpu, asid, root, va);
        for (place, item) in left.chain(self.elsewhere(cpu, root, va)).chain(beside) {
            if !matches!(item.entry, Entry::Link { .. }) && wrong(within(place, &item, va)) {
                let violation = self.violation(Rule::AccessDiffers, Some(cpu));
                return Err(violation.access(at, reaches, does(item.entry), Some((place, &item))));
            }
            // A walk through a link that the CPU holds may end at an empty word of the linked node.
            if let Entry::Link { node, rights } = item.entry {
                let end = self.tables.walk(node, va - span(place).0, rights);
                if end == Entry::Absent && wrong(end) {
                    let violation = self.violation(Rule::AccessDiffers, Some(cpu));
                    return Err(violation.access(at, reaches, None, Some((place, &item))));
                }
            }
        }
        let base = self.arch.base(self.arch.family() == Family::Arm && va >> 48 != 0);
        // A CPU in user mode has returned from an exception, which is a context synchronisation event.
        if !user {
            for (place, item, line) in &self.cpus[cpu].fetched {
                let (first, last) = reached(*place, item);
                let mine = [u32::from(asid), GLOBAL].contains(&place.0) && (first..=last).contains(&va);
                let entry = within(*place, item, va);
                if mine && wrong(entry) {
                    let violation = self.violation(Rule::AccessDiffers, Some(cpu));
                    return Err(violation.fetched(at, reaches, does(entry), *line));
                }
            }
            if let Some((at, line)) = self.unseen(cpu, root, va - base).filter(|_| wrong(Entry::Absent)) {
                return Err(self.violation(Rule::AccessDiffers, Some(cpu)).unseen(at, reaches, line));
            }
            for &(left, high, line) in &self.cpus[cpu].left {
                let entry = self.tables.walk(left, va - base, rights::ALL);
                if self.arch.base(high) == base && wrong(entry) {
                    let violation = self.violation(Rule::AccessDiffers, Some(cpu));
                    return Err(violation.not_left(at, reaches, does(entry), (left, line)));
                }
            }
        }
        let end = self.tables.walk(root, va - base, rights::ALL);
        if wrong(end) || reaches.is_some() != does(end).is_some() {
            return Err(self.violation(Rule::AccessDiffers, Some(cpu)).access(at, reaches, does(end), None));
        }
        self.checked.accesses += 1;
        Ok(())
    }
}

/// Returns the first and last address that an entry translates. An entry of a contiguous run translates all pages of the run, whichever
/// word it was read from.
fn reached(place: Place, item: &Item) -> (u64, u64) {
    let (first, last) = span(place);
    match item.entry {
        Entry::Leaf { shift, .. } if shift > place.1 => (first >> shift << shift, first | ((1 << shift) - 1)),
        _ => (first, last),
    }
}

/// Returns the entry as it applies to an address. For a page of another word of the run it says nothing about the dirty bit.
fn within(place: Place, item: &Item, va: u64) -> Entry {
    let own = va >> place.1 == place.2;
    item.entry.limited(if own { rights::ALL } else { rights::ALL & !rights::MARKED })
}

/// Returns the physical address to which an entry translates an address, and the rights; `None` if the entry is no leaf.
fn reach(entry: Entry, va: u64) -> Option<(u64, u8)> {
    match entry {
        Entry::Leaf { frame, shift, rights, .. } => Some((frame | va & ((1 << shift) - 1), rights)),
        _ => None,
    }
}
