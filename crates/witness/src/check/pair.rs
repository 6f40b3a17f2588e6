//! MIPS32: a TLB that software loads, in pairs of pages.
//!
//! A refill handler runs when a CPU misses: it reads both words of a pair in the table that the CPU has loaded, and writes them to
//! the TLB. A log does not tell which addresses a program accesses, so a handler may have run for each address at any moment. A
//! handler runs with interrupts off, in the order of its CPU's other actions: at each event of a CPU, the CPU's walk has ended.

use std::vec::Vec;

use super::arch::{Arch, Entry, G, Links, PAGE, Scope};
use super::held::{GLOBAL, Item, Place, span};
use super::machine::{Holder, Machine};
use super::memory::{Below, Word};
use super::story::stores;
use super::verdict::{Refusal, Rule};
use crate::event::{Event, Fence};

/// The scope of the end of a walk: it covers links, and no page.
const WALKS: Scope =
    Scope { pages: Some((u64::MAX, u64::MAX)), asid: None, globals: false, links: Links::All };

impl Machine {
    /// Records that a CPU's walk has ended, before an event of this CPU. If the event is no store, fence or barrier, checks the larger and
    /// global pages that the CPU has stored before, because the CPU may load them from now on.
    pub(super) fn settle(&mut self, cpu: usize, event: &Event) -> Result<(), Refusal> {
        self.end_walks(cpu);
        if !matches!(event, Event::Fence(_) | Event::Barrier(_) | Event::Refill { .. }) {
            self.cpus[cpu].forgot = None;
        }
        match event {
            Event::Write { .. } | Event::Swap { .. } | Event::Fence(_) | Event::Barrier(_) => return Ok(()),
            _ => {}
        }
        core::mem::take(&mut self.cpus[cpu].unpaired).into_iter().try_for_each(|at| self.fits(cpu, at))
    }

    /// Checks that a CPU may load the entry of a word beside the items that it holds.
    fn fits(&self, cpu: usize, at: u64) -> Result<(), Refusal> {
        let node = self.arch.node(at);
        let Some(level) = self.tables.level(node) else { return Ok(()) };
        let entry = self.tables.entry(at, level);
        let holders = self.holders(node);
        let mut own = holders.iter().filter(|holder| holder.cpu == cpu && self.walks(holder));
        own.try_for_each(|holder| self.outgrows(cpu, at, level, entry, holder))
    }

    /// Ends a CPU's walk. The CPU may read a link again if it runs the table and does not see the store that changed the link.
    pub(super) fn end_walks(&mut self, cpu: usize) {
        if self.cpus[cpu].held.has_links() {
            self.drop(cpu, &WALKS, cpu, None);
        }
    }

    /// Records the item for the word at `at` if its pair becomes global, or ceases to be, by a store to the other word.
    pub(super) fn beside(&mut self, at: u64, global: bool, holders: &[Holder], writer: usize) {
        let word = self.tables.word(at);
        let was = word.value & self.tables.word(at ^ 4).value & G != 0;
        let own = matches!(self.tables.entry(at, 12), Entry::Leaf { shift: 12, .. } | Entry::Absent);
        if own && was != (global && word.value & G != 0) {
            self.retire(at, 12, false, holders, writer);
            self.tables.put(at, Word { since: self.now, by: writer as u8, ..word });
        }
    }

    /// Records, for each holder, the old entry of a word and the pairs below it. For a page of 4 KiB, also records the other half of its TLB
    /// entry if that half is invalid, because a TLB may keep the entry after both words have changed.
    ///
    /// If the old entry is a link, a pair below it with two invalid halves is not recorded.
    pub(super) fn retire_pairs(
        &mut self,
        at: u64,
        said: Below,
        below: &[Below],
        holders: &[Holder],
        writer: usize,
    ) {
        let node = match said.entry {
            Entry::Link { node, .. } => node,
            _ => self.arch.node(at),
        };
        for holder in holders {
            let is_half = self.is_valid(at ^ 4) || holder.root.is_some();
            if said.entry == Entry::Absent {
                if is_half {
                    self.keep_as(holder, said, false, writer, (self.is_global(at), [0; 2]));
                }
            } else {
                self.keep_as(holder, said, false, writer, (false, self.sizes(at, said.level)));
            }
            let base = if said.level == 12 { None } else { Some(said) };
            for page in base.map_or(core::slice::from_ref(&said), |_| below) {
                let from = base.map_or(page.offset, |base| base.offset + page.offset);
                let since = base.map_or(page.since, |base| base.since.max(page.since));
                let own = node + (page.offset >> 12 & 0x3ff) * 4;
                if base.is_some() {
                    let page = Below { offset: from, since, ..*page };
                    self.keep_as(holder, page, false, writer, (false, self.sizes(own, 12)));
                }
                let other = own ^ 4;
                if matches!(page.entry, Entry::Leaf { shift: 12, .. }) && !self.is_valid(other) {
                    let since = since.max(self.tables.word(other).since);
                    let half = Below { level: 12, offset: from ^ PAGE, entry: Entry::Absent, since };
                    self.keep_as(holder, half, false, writer, (self.is_global(other), [0; 2]));
                }
            }
        }
    }

    /// Tells whether a word of the last level maps a page.
    pub(super) fn is_valid(&self, at: u64) -> bool {
        self.tables.entry(at, 12) != Entry::Absent
    }

    /// Tells whether both words of a pair have G.
    fn is_global(&self, at: u64) -> bool {
        self.tables.word(at).value & self.tables.word(at ^ 4).value & G != 0
    }

    /// Checks a page that is stored: no CPU may load its TLB entry while the CPU holds an entry that maps a part of it, or, for a global
    /// page, one of another address space.
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
        let own = holders.iter().find(|holder| holder.cpu == cpu && self.walks(holder));
        if let Some(holder) = own {
            self.joins(at, level, (before, after), holder);
            self.cpus[cpu].unpaired.push(at);
        }
        Ok(())
    }

    /// Checks that no other CPU's handler may load a pair in which only one word is of a larger page: the handler would treat both words as
    /// pages of 4 KiB.
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

    /// Tells whether a handler loads a page in one entry with its neighbour, which has the same size.
    fn is_whole(&self, at: u64, level: u32, shift: u32) -> bool {
        let beside = || self.tables.entry(at ^ 4 << (shift - level), level);
        let same = |entry| matches!(entry, Entry::Leaf { shift: size, .. } if size == shift);
        shift > 12 && !self.halves && same(beside())
    }

    /// Tells whether the other half of a page's pair has smaller pages, or handlers load larger pages in parts anyway.
    fn is_parted(&self, at: u64, level: u32, shift: u32) -> bool {
        let words = 1 << (shift - level);
        let first = (at & !(4 * words - 1)) ^ (4 * words);
        let smaller =
            |at| matches!(self.tables.entry(at, level), Entry::Leaf { shift: size, .. } if size < shift);
        self.halves || (0..words).any(|slot| smaller(first + 4 * slot))
    }

    /// Returns the logarithm of the page size with which two kinds of handlers load the page that a word maps. If nothing is mapped in the
    /// other half of the page's pair, the first kind loads a pair within the page, and the second kind an entry of the page's size with
    /// an invalid half.
    pub(super) fn sizes(&self, at: u64, level: u32) -> [u32; 2] {
        match self.tables.entry(at, level) {
            Entry::Leaf { shift, .. } if self.arch.is_software() => self.sizes_of(at, level, shift),
            _ => [0; 2],
        }
    }

    fn sizes_of(&self, at: u64, level: u32, shift: u32) -> [u32; 2] {
        let size = |whole| if shift == 12 || whole { shift } else { shift - 2 };
        let parted = || shift > 12 && self.is_parted(at, level, shift);
        [size(self.is_whole(at, level, shift)), size(!parted())]
    }

    /// Checks that a CPU may load the entry of a page that is stored at `at`: it holds no smaller page within that entry and, if the page is
    /// global, no page of another address space.
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
        let held = &self.cpus[holder.cpu].held;
        for (kind, size) in self.sizes_of(at, level, shift).into_iter().enumerate() {
            let (first, last) = over(va, shift, size);
            for tag in held.tags().filter(|&tag| global || tag == GLOBAL || tag == u32::from(holder.asid)) {
                let other = tag != GLOBAL && tag != u32::from(holder.asid);
                let near = held.near(tag, self.arch.levels(), first, last);
                let below = near.iter().flat_map(|&link| self.pages_below(holder.cpu, at, link));
                let near: Vec<(Place, Item)> = near.iter().copied().chain(below).collect();
                for (place, item) in near {
                    let within = meets(span(place), (first, last)) && !is_after(&item, holder);
                    let other = other && place.0 != GLOBAL;
                    if within
                        && matches!(item.entry, Entry::Leaf { .. })
                        && (item.sizes[kind] < size || other)
                    {
                        return Err(self.violation(Rule::TwoMatch, Some(holder.cpu)).matching(
                            &stores(cpu, at),
                            place,
                            &item,
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Records the pages of a table that a CPU has just loaded that may match beside the items that the CPU holds, under other numbers or of
    /// the table's old entries. The CPU has to flush as soon as for pages that it stores.
    pub(super) fn meets_held(&mut self, cpu: usize, root: u64) {
        // A CPU that has to invalidate the whole ASID first gets `asid-reused`, not this rule.
        if !self.tables.overlaps || self.cpus[cpu].mixed.is_some() {
            return;
        }
        let mut words = Vec::new();
        for (place, item) in self.cpus[cpu].held.all() {
            if !matches!(item.entry, Entry::Leaf { .. }) {
                continue;
            }
            // A TLB entry maps its page and the page's neighbour.
            let va = span(place).0;
            let beside = self.arch.sizes().map(|size| va ^ 1 << size);
            words.extend([va].into_iter().chain(beside).filter_map(|va| self.overlapping(root, va)));
        }
        words.sort_unstable();
        words.dedup();
        words.retain(|&at| self.fits(cpu, at).is_err());
        self.cpus[cpu].unpaired.extend(words);
    }

    /// Returns the word of a table that maps an address, if it maps a larger or a global page.
    fn overlapping(&self, root: u64, va: u64) -> Option<u64> {
        let (mut at, mut level) = (self.arch.slot(root, 22, va), 22);
        if let Entry::Link { node, .. } = self.tables.entry(at, level) {
            (at, level) = (self.arch.slot(node, 12, va), 12);
        }
        let is = |entry| matches!(entry, Entry::Leaf { shift, global, .. } if shift > 12 || global);
        is(self.tables.entry(at, level)).then_some(at)
    }

    /// Returns the pages that a CPU may have loaded through a link that it holds and that no table has, if the link's node is not that of the
    /// word at `at`.
    fn pages_below(&self, cpu: usize, at: u64, (place, link): (Place, Item)) -> Vec<(Place, Item)> {
        let Entry::Link { node, .. } = link.entry else { return Vec::new() };
        let mut found = Vec::new();
        if node != self.arch.node(at) {
            self.below((cpu, place.0 as u16), (place, link), (0, u64::MAX), &mut found, |_| true);
        }
        for (place, item) in &mut found {
            let at = self.arch.slot(node, place.1, span(*place).0);
            item.sizes = self.sizes(at, place.1);
        }
        found
    }

    /// Records the neighbour of a page that a CPU stores, if the neighbour has the same size: the CPU may hold the neighbour by pairs within
    /// it, and the TLB entry of both pages would overlap them.
    fn joins(&mut self, at: u64, level: u32, (before, after): (Entry, Entry), holder: &Holder) {
        let Entry::Leaf { shift: shift @ 13.., .. } = after else { return };
        let same = |entry: Entry| matches!(entry, Entry::Leaf { shift: size, .. } if size == shift);
        let beside = at ^ 4 << (shift - level);
        let (entry, since) = (self.tables.entry(beside, level), self.tables.word(beside).since);
        if self.halves || same(before) || !same(entry) {
            return;
        }
        let offset = self.arch.offset(beside, level);
        let said = Below { level, offset, entry, since };
        self.keep_as(holder, said, false, holder.cpu, (false, [shift - 2, shift]));
    }

    /// Checks that a larger page is not stored while another CPU may have loaded overlapping entries from the same table: smaller pages in
    /// the same pair, or the other half of the pair, which was loaded by smaller entries while it was alone.
    fn overlaps(
        &self,
        at: u64,
        level: u32,
        (before, after): (Entry, Entry),
        holder: &Holder,
    ) -> Result<(), Refusal> {
        let Entry::Leaf { shift: shift @ 13.., .. } = after else { return Ok(()) };
        let same = |entry: Entry| matches!(entry, Entry::Leaf { shift: size, .. } if size == shift);
        let offset = self.arch.offset(at, level);
        let half = offset >> shift;
        let sizes = self.sizes_of(at, level, shift);
        for word in self.tables.used(self.arch.node(at)) {
            let (place, entry) = (self.arch.offset(word, level), self.tables.entry(word, level));
            let near = |size| {
                let (first, last) = over(offset, shift, size);
                (first..=last).contains(&place)
            };
            if !sizes.iter().any(|&size| near(size)) {
                continue;
            }
            let smaller = || {
                let held = self.sizes(word, level);
                matches!(entry, Entry::Leaf { .. })
                    && !same(entry)
                    && (0..2).any(|kind| near(sizes[kind]) && held[kind] < sizes[kind])
            };
            let joins = place >> shift != half && same(entry) && !same(before);
            if joins || smaller() {
                let since = self.tables.word(word).since;
                let violation = self.violation(Rule::TwoMatch, Some(holder.cpu));
                return Err(violation.paired(at, holder.va + place, since));
            }
        }
        Ok(())
    }

    /// Handles the event `refill`: software writes a pair to a CPU's TLB.
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
        // The CPU does not hold an entry that its last action has invalidated.
        let forgot = self.cpus[cpu].forgot.take();
        let gone = |scope: Scope| {
            scope.asid.is_none_or(|named| named == asid)
                && scope.pages.is_none_or(|(from, to)| from <= first && last <= to)
        };
        let blind = blind && !forgot.is_some_and(gone);
        let halves = words.map(|word| Arch::half(word, shift));
        let global = words[0] & words[1] & G != 0;
        // The entries that the CPU may hold already: the table's current entries, and items.
        let held = &self.cpus[cpu].held;
        for tag in held.tags().filter(|&tag| global || tag == GLOBAL || tag == u32::from(asid)) {
            let other = tag != GLOBAL && tag != u32::from(asid);
            for (place, item) in held.near(tag, self.arch.levels(), first, last) {
                let doubles = match item.entry {
                    Entry::Leaf { .. } => item.sizes[1] < shift || other || blind,
                    Entry::Absent => blind,
                    Entry::Link { .. } => false,
                };
                if doubles {
                    return Err(self.violation(Rule::TwoMatch, Some(cpu)).matching(
                        &stores(cpu, at),
                        place,
                        &item,
                    ));
                }
            }
        }
        let known = |found: &(u32, Entry, u64)| found.0 == 12 || found.1 != Entry::Absent;
        if blind && let Some((_, entry, since)) = self.tables.find(root, first).filter(known) {
            let item = Item {
                entry,
                linked: false,
                since,
                writer: cpu,
                stale: self.now,
                root,
                again: None,
                going: 0,
                sizes: [shift; 2],
            };
            let place = (asid.into(), 12, first >> 12);
            return Err(self.violation(Rule::TwoMatch, Some(cpu)).matching(&stores(cpu, at), place, &item));
        }
        // There was a miss, or the new entry replaces the entry that the probe has found.
        if !blind {
            let page = self.va(at)?;
            let near = if shift == 12 {
                (first, last)
            } else {
                (page & !(PAGE | (PAGE - 1)), page | PAGE | (PAGE - 1))
            };
            let pages = Fence { pages: Some(near), asid: Some(asid), ..Fence::default() };
            let scope = self.arch.scope(pages, Some(near), asid);
            self.flush(cpu, &scope, cpu, self.now, None);
        }
        for (half, entry) in (0..).zip(halves) {
            let va = first + (half << shift);
            let Entry::Leaf { frame, shift, rights, memory, .. } = entry else {
                // The table may map this page by now.
                let level = if shift < 22 { 12 } else { 22 };
                if level == 12 && self.tables.find(root, va).is_some_and(|(_, said, _)| said != Entry::Absent)
                {
                    let (tag, stale) = (if global { GLOBAL } else { asid.into() }, self.now);
                    for place in pages(tag, level, va, shift) {
                        let (since, writer) = (stale, cpu);
                        let item = Item {
                            entry,
                            linked: false,
                            since,
                            writer,
                            stale,
                            root,
                            again: None,
                            going: 0,
                            sizes: [shift; 2],
                        };
                        self.hold(cpu, place, item, false);
                    }
                }
                continue;
            };
            let entry = Entry::Leaf { frame, shift, rights, global, memory };
            let level = if shift < 22 { 12 } else { 22 };
            // The table's own entry needs no item.
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
                    sizes: [shift; 2],
                };
                self.hold(cpu, place, item, false);
            }
        }
        Ok(())
    }
}

/// Tells whether a CPU has read an item, or the link to it, after the link through which a holder walks was replaced. A CPU that has
/// seen a store to a word does not read the word's earlier values.
fn is_after(item: &Item, holder: &Holder) -> bool {
    let same = |link: &Item| item.root != 0 && item.root == link.root;
    holder.link.is_some_and(|link| same(&link) && item.stale > link.stale && item.since >= link.stale)
}

fn meets(one: (u64, u64), other: (u64, u64)) -> bool {
    one.0 <= other.1 && other.0 <= one.1
}

/// Returns the first and last address of the pair that a page is in.
fn pair(va: u64, shift: u32) -> (u64, u64) {
    span((0, shift + 1, va >> (shift + 1)))
}

/// Returns the first and last address that the TLB entries of a page map if a handler loads them with pages of `2^size` bytes.
fn over(va: u64, shift: u32, size: u32) -> (u64, u64) {
    if size == shift { pair(va, shift) } else { span((0, shift, va >> shift)) }
}

/// Returns the places of a page.
fn pages(tag: u32, level: u32, va: u64, shift: u32) -> impl Iterator<Item = Place> {
    let first = va >> level;
    (first..first + (1 << (shift - level))).map(move |key| (tag, level, key))
}
