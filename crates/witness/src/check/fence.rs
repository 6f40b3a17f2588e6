//! Invalidations and barriers: which items a CPU no longer holds.

use std::vec::Vec;

use super::arch::{Arch, Entry, Family, Links, PAGE, Scope, rights};
use super::held::{GLOBAL, Item, Place};
use super::machine::{Begun, Holder, Machine};
use super::memory::Line;
use super::session::Kind;
use super::verdict::Refusal;
use crate::event::{Barrier, CPUS, Fence};

/// The largest number of pages kept for a CPU that it has invalidated since its last context synchronisation event. A log may have no
/// such event.
const FETCHED: usize = 1024;

impl Machine {
    pub(super) fn fence(&mut self, cpu: usize, fence: Fence) -> Result<(), Refusal> {
        self.checked.fences += 1;
        if fence.broadcast && matches!(self.arch.family(), Family::RiscV | Family::Mips) {
            return Err(self.impossible("no fence of this architecture reaches other CPUs"));
        }
        let last_level = match self.arch.family() {
            Family::Arm => true,
            Family::X86 => fence.broadcast,
            Family::RiscV | Family::Mips => false,
        };
        if fence.leaf && !last_level {
            return Err(self.impossible("this architecture has no such fence for the last level alone"));
        }
        if fence.leaf && fence.pages.is_none() {
            return Err(self.impossible("a fence for the last level alone names an address"));
        }
        let pages = match fence.pages {
            Some((first, last)) => Some((self.va(first)? & !(PAGE - 1), self.va(last)? | (PAGE - 1))),
            None => None,
        };
        if pages.is_some_and(|(first, last)| last < first) {
            return Err(self.impossible("the range is not in one half of the address space"));
        }
        // A TLB entry of MIPS32 is a pair, and an invalidation removes both halves.
        let pages = match pages {
            Some((first, last)) if self.arch == Arch::Mips32 => Some((first & !PAGE, last | PAGE)),
            pages => pages,
        };
        let (bits, too_wide) = self.arch.asid();
        if fence.asid.is_some_and(|asid| u32::from(asid) >> bits != 0) {
            return Err(self.impossible(too_wide));
        }
        let current = self.cpus[cpu].roots[0].map_or(0, |(_, asid)| asid);
        let scope = self.arch.scope(fence, pages, current);
        self.cpus[cpu].forgot = self.arch.is_software().then_some(scope);
        if self.arch.family() == Family::RiscV {
            self.fenced(cpu, fence);
        }
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

    /// Applies an invalidation that CPU `by` executed in line `at` to the TLB of `target`. If it was deferred, it removes the items that
    /// have its bit.
    pub(super) fn flush(&mut self, target: usize, scope: &Scope, by: usize, at: Line, slot: Option<u32>) {
        self.drop(target, scope, by, slot);
        self.cpus[target].last_fence = Some((at, *scope));
        self.flush_sessions(target, scope, at);
        let named = |asid: u16| scope.asid.is_none_or(|named| named == asid);
        if scope.pages.is_none() {
            let cpu = &mut self.cpus[target];
            cpu.mixed = cpu.mixed.filter(|mixed| !(named(mixed.asid) && mixed.since <= at));
            cpu.dead.retain(|&asid, line| !(named(asid) && *line <= at));
        }
    }

    /// Removes the items that an invalidation, or the end of a walk, covers.
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
        if slot.is_some() && target == by && self.arch.family() == Family::Arm {
            self.fetch(target, scope, &gone);
        }
        for (place, item) in &gone {
            self.forget(target, *place, item);
        }
        // An entry that the CPU has found through a link that is removed stays if the invalidation does not cover the entry.
        for (place, item) in &gone {
            self.outlast(target, *place, item, |at, kept| !scope.covers(at, kept));
        }
    }

    /// AArch64: records the pages that a CPU's own invalidation removes. Until its next context synchronisation event the CPU may
    /// execute instructions that it has fetched before.
    fn fetch(&mut self, cpu: usize, scope: &Scope, gone: &[(Place, Item)]) {
        let mut found = Vec::new();
        for &(place, item) in gone {
            match item.entry {
                Entry::Leaf { .. } => found.push((place, item)),
                Entry::Link { .. } => {
                    let mut below = Vec::new();
                    self.below((cpu, place.0 as u16), (place, item), (0, u64::MAX), &mut below, |_| true);
                    found.extend(below.into_iter().filter(|(place, item)| scope.covers(*place, item)));
                }
                Entry::Absent => {}
            }
        }
        let now = self.now;
        let fetched = &mut self.cpus[cpu].fetched;
        let room = FETCHED.saturating_sub(fetched.len());
        fetched.extend(found.into_iter().take(room).map(|(place, item)| (place, item, now)));
    }

    /// Records the entries that a CPU may have found through a link that it no longer holds, and for which `stays` returns true.
    pub(super) fn outlast(
        &mut self,
        target: usize,
        of: Place,
        link: &Item,
        stays: impl Fn(Place, &Item) -> bool,
    ) {
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
            // This includes entries that an invalidation has covered since: the CPU may have read them again through the link.
            let read = self.may_hold(&holder, kind, under.level, va, under.since);
            if read && stays(place, &kept) {
                let kept = Item { going: self.going_with(link, place, &kept), ..kept };
                self.hold(target, place, kept, false);
            }
            // MIPS32: a refill has read both halves of the pair, also a half that is invalid.
            let other = self.arch.slot(node, under.level, under.offset) ^ 4;
            if self.arch.is_software()
                && matches!(under.entry, Entry::Leaf { shift: 12, .. })
                && !self.is_valid(other)
            {
                let place = (place.0, place.1, place.2 ^ 1);
                let since = under.since.max(self.tables.word(other).since);
                let half = Item { entry: Entry::Absent, since, sizes: [0; 2], ..kept };
                if self.may_hold(&holder, kind, under.level, va ^ PAGE, since) && stays(place, &half) {
                    let half = Item { going: self.going_with(link, place, &half), ..half };
                    self.hold(target, place, half, false);
                }
            }
        }
    }

    fn flush_sessions(&mut self, target: usize, scope: &Scope, at: Line) {
        let levels = self.arch.levels();
        self.cpus[target].flushed.take_all(scope, at, levels);
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
        match scope.asid.filter(|_| !scope.globals || scope.pages.is_some()) {
            Some(asid) => {
                if used.get_mut(&asid).is_some_and(|roots| !each(asid, roots)) {
                    used.remove(&asid);
                }
            }
            // `Flushed::take_all` has recorded an invalidation of pages of all numbers.
            None if scope.pages.is_some() => {}
            None => used.retain(|&asid, roots| each(asid, roots)),
        }
    }

    /// Records a barrier: the CPU's earlier stores are visible before its later ones.
    pub(super) fn order(&mut self, cpu: usize) {
        self.cpus[cpu].epoch += 1;
        self.cpus[cpu].ordered = self.now;
    }

    /// Makes a CPU's stores visible to every CPU's walks, and the stores that the CPU sees to its own walks.
    pub(super) fn publish(&mut self, cpu: usize) {
        let (now, cpu) = (self.now, &mut self.cpus[cpu]);
        (cpu.visible, cpu.near) = (now, now);
        cpu.filled.clear();
    }

    /// Completes the invalidations that a CPU has begun and for which `of` returns true.
    fn completes(&mut self, cpu: usize, of: impl Fn(&Begun) -> bool) {
        // An entry that is kept when its link is removed may be covered by a later one of these invalidations.
        for at in 0..self.cpus[cpu].deferred.len() {
            let begun = self.cpus[cpu].deferred[at];
            if !of(&begun) {
                continue;
            }
            for target in begun.only.map_or(0..self.seen, |cpu| cpu..cpu + 1) {
                self.flush(target, &begun.scope, cpu, begun.at, Some(begun.slot));
            }
        }
        self.cpus[cpu].deferred.retain(|begun| !of(begun));
    }

    pub(super) fn barrier(&mut self, cpu: usize, barrier: Barrier) {
        let aarch64 = self.arch.family() == Family::Arm;
        match barrier {
            Barrier::Release => self.order(cpu),
            Barrier::Stores => {
                self.order(cpu);
                self.publish(cpu);
            }
            Barrier::LocalStores => self.cpus[cpu].near = self.now,
            Barrier::Local => {
                self.cpus[cpu].near = self.now;
                self.completes(cpu, |begun| begun.only.is_some());
            }
            Barrier::Complete | Barrier::TlbSync => {
                if barrier == Barrier::Complete {
                    self.order(cpu);
                    self.publish(cpu);
                }
                if aarch64 == (barrier == Barrier::Complete) {
                    self.completes(cpu, |_| true);
                }
            }
            Barrier::Context if aarch64 => {
                self.cpus[cpu].left.clear();
                self.cpus[cpu].fetched.clear();
                let (visible, loaded, near) = (self.visibility(), self.cpus[cpu].loaded, self.cpus[cpu].near);
                let all = Scope { pages: None, asid: None, globals: true, links: Links::All };
                let levels = self.arch.levels();
                let runs = self.cpus[cpu].roots.map(|root| root.map(|(_, asid)| u32::from(asid)));
                self.cpus[cpu].held.sweep(&all, levels, |place, item| {
                    // The CPU begins no walk under a number that it does not run.
                    let own = item.writer == cpu && item.stale <= near;
                    let seen = item.stale <= visible[item.writer].max(loaded)
                        || own
                        || !runs.contains(&Some(place.0));
                    item.entry == Entry::Absent && seen
                });
            }
            Barrier::Context => {}
        }
    }
}
