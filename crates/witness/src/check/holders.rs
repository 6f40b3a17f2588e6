//! Which CPUs may hold the entry of a word, and which items they hold when the word changes.
//!
//! A CPU may hold a table's current entries at any moment. This is not recorded: it follows from the tables and from the roots that
//! the CPU has loaded. When a word changes, `Machine::retire` records the word's old entry.

use std::vec::Vec;

use super::arch::{Entry, Links, Scope, rights};
use super::held::{GLOBAL, Item, Place};
use super::machine::{Begun, Holder, Machine};
use super::memory::{Below, Line};
use super::session::{Kind, Session};
use crate::event::CPUS;

impl Machine {
    /// Returns the CPUs that may hold entries of a node.
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
        let (since, all) = (since.max(holder.since), &self.cpus[holder.cpu].flushed);
        // A walk by software has ended when its CPU loads another root.
        let ended =
            |session: &Session| kind == Kind::Link && self.arch.is_software() && session.until.is_some();
        let of = |session: &Session| {
            session.cpu == holder.cpu
                && !ended(session)
                && session.asid == holder.asid
                && holder.root.is_none_or(|(_, high)| high == session.high)
                && session.may_hold(all, kind, level, va, since)
        };
        match holder.root {
            Some((root, _)) => self.sessions.get(&root).into_iter().flatten().any(of),
            // A CPU walks through a link that it holds whenever it runs the link's number.
            None => {
                let roots = self.cpus[holder.cpu].used.get(&holder.asid);
                roots.into_iter().flatten().filter_map(|root| self.sessions.get(root)).flatten().any(of)
            }
        }
    }

    /// Records that a CPU may hold the entry of a word that `writer` changes in this line, if the CPU may. The entry's offset is from
    /// the beginning of the holder's node.
    pub(super) fn keep(&mut self, holder: &Holder, said: Below, linked: bool, writer: usize) {
        self.keep_as(holder, said, linked, writer, (false, [0; 2]));
    }

    /// Records an item as [`keep`](Self::keep) does. `loaded` tells whether an absence is global, and the page sizes with which handlers
    /// load the entry.
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

    /// Records an item as [`keep_as`](Self::keep_as) does, of an entry that `writer` changed in line `stale`.
    pub(super) fn keep_until(
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
        // A CPU that stores is in no walk by software.
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
            // An entry that was read through a link that no table has is removed together with that link.
            if let Some(link) = &holder.link {
                (item.writer, item.stale) = (link.writer, link.stale);
                item.again = Some((writer, stale));
                item.going = self.going_with(link, place, &item);
            }
            // A CPU that left the table before an invalidation began does not read the entry again.
            for begun in self.begun() {
                let here = begun.only.is_none_or(|cpu| cpu == holder.cpu);
                if here && begun.scope.covers(place, &item) && self.left(holder, begun.at) {
                    item.going |= 1 << begun.slot;
                }
            }
            self.hold(holder.cpu, place, item, holder.root.is_some());
        }
    }

    /// Tells whether a CPU cannot read an item's entry again because it has left the table, whether or not it sees the store that
    /// changed the entry.
    fn has_left(&self, target: usize, place: Place, item: &Item) -> bool {
        let mut loaded = self.cpus[target].roots.iter().flatten();
        let va = super::held::span(place).0;
        let top = |root: u64| {
            let at = self.arch.slot(root, self.arch.top(), va);
            self.tables.entry(at, self.arch.top())
        };
        // Two tables may have the same link in a top-level entry. Entries that are no links share no node.
        let shares = |entry: Entry| matches!(entry, Entry::Link { .. }) && entry == top(item.root);
        let same = |root: u64| item.root == 0 || root == item.root || shares(top(root));
        // Under the same number, the CPU also walks through links that it holds of the table that it has left.
        let ran = |asid: u16| {
            let mut sessions = self.sessions.get(&item.root).into_iter().flatten();
            sessions.any(|session| (session.cpu, session.asid) == (target, asid))
        };
        !loaded.any(|&(root, asid)| match place.0 {
            GLOBAL => same(root) || ran(asid),
            of => u32::from(asid) == of && same(root),
        })
    }

    /// Tells whether a CPU cannot read the entry of an item again that an invalidation covers: it sees the store that changed the entry.
    /// If the entry was read through a link that the invalidation does not remove, the CPU must see the last change
    /// ([`again`](Item::again)).
    pub(super) fn is_past(
        &self,
        target: usize,
        scope: &Scope,
        place: Place,
        item: &Item,
        visible: &[Line; CPUS],
    ) -> bool {
        let link_goes = self.arch.is_software() || scope.links != Links::None;
        let sees = |writer: usize, line: Line| {
            let own = &self.cpus[target];
            line <= visible[writer].max(own.loaded) || (writer == target && line <= own.near)
        };
        let again = item.again.is_some_and(|(writer, line)| sees(writer, line));
        let sees = sees(item.writer, item.stale) && (item.again.is_none() || link_goes);
        self.arch.is_ordered() || sees || again || self.has_left(target, place, item)
    }

    /// Returns the invalidations that have begun.
    pub(super) fn begun(&self) -> impl Iterator<Item = &Begun> {
        self.cpus[..self.seen].iter().flat_map(|cpu| &cpu.deferred)
    }

    /// Returns the CPU that has begun one of the invalidations with these bits.
    pub(super) fn beginner(&self, going: u64) -> usize {
        let of = |begun: &Begun| going >> begun.slot & 1 != 0;
        self.cpus.iter().position(|cpu| cpu.deferred.iter().any(of)).unwrap_or(0)
    }

    /// Returns the invalidations that have begun, that cover a link, and that also cover an item which was read through this link.
    pub(super) fn going_with(&self, link: &Item, place: Place, item: &Item) -> u64 {
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
            Entry::Leaf { frame, shift, .. } => {
                *self.frames.entry(((shift, frame), cpu, place)).or_default() += 1;
            }
            Entry::Link { node, .. } => self.cut.entry(node).or_default().push((cpu, place)),
            Entry::Absent => {}
        }
    }

    pub(super) fn forget(&mut self, cpu: usize, place: Place, item: &Item) {
        match item.entry {
            Entry::Leaf { frame, shift, .. } => {
                let key = ((shift, frame), cpu, place);
                if let Some(count) = self.frames.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        self.frames.remove(&key);
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

    /// Records, for each holder, the old entry of a word and the entries below it. `linked` tells whether the word becomes a link.
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

    /// Tells whether a holder's CPU had left all tables of its number before a line.
    fn left(&self, holder: &Holder, at: Line) -> bool {
        let roots = self.cpus[holder.cpu].used.get(&holder.asid).into_iter().flatten();
        let mut sessions = roots.filter_map(|root| self.sessions.get(root)).flatten();
        sessions.all(|session| {
            (session.cpu, session.asid) != (holder.cpu, holder.asid)
                || session.until.is_some_and(|until| until <= at)
        })
    }

    /// Tells whether a holder's CPU can walk to the holder's node now: it runs the holder's number, by the holder's root if there is one.
    pub(super) fn walks(&self, holder: &Holder) -> bool {
        let roots = self.cpus[holder.cpu].roots.iter().flatten();
        let mut roots = roots.filter(|(_, asid)| *asid == holder.asid);
        roots.any(|&(root, _)| holder.root.is_none_or(|(of, _)| of == root))
    }
}
