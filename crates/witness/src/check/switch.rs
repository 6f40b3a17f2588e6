//! The event `root`: a CPU loads a root under a number, and the rule `asid-reused`.

use std::vec;

use super::arch::{Entry, Family, Links, Scope, rights};
use super::held::Item;
use super::machine::{Holder, Machine, Mixed};
use super::session::{Kind, Session};
use super::verdict::{Refusal, Rule};

/// The largest number of roots kept for a CPU that it has left since its last context synchronisation event.
const LEFT: usize = 64;

impl Machine {
    pub(super) fn root(&mut self, cpu: usize, value: u64, high: bool) -> Result<(), Refusal> {
        if high && self.arch.family() != Family::Arm {
            return Err(self.impossible("this architecture has one root register"));
        }
        if let Some(mixed) = self.cpus[cpu].mixed {
            return Err(self.violation(Rule::AsidReused, Some(cpu)).mixed(cpu, mixed));
        }
        if let Some(why) = self.arch.no_root(value) {
            return Err(self.impossible(why));
        }
        let Some(root) = self.arch.root(value) else {
            return Err(
                self.impossible("satp names a mode that is neither Bare nor that of this architecture")
            );
        };
        if let Some((old, _)) = self.leave(cpu, high) {
            let now = self.now;
            if self.arch.is_software() {
                self.end_walks(cpu);
            }
            // After so many roots without an `isb`, the checker assumes that the CPU no longer uses the first of them.
            if self.cpus[cpu].left.len() >= LEFT {
                self.cpus[cpu].left.remove(0);
            }
            if self.arch.family() == Family::Arm
                && !self.cpus[cpu].left.iter().any(|&(of, half, _)| (of, half) == (old, high))
            {
                self.cpus[cpu].left.push((old, high, now));
            }
        }
        if root.flushes {
            let scope = Scope { pages: None, asid: Some(root.asid), globals: false, links: Links::All };
            self.flush(cpu, &scope, cpu, self.now, None);
        }
        let asid = match self.numbered {
            None => root.asid,
            Some(of) => {
                if of == high {
                    self.cpus[cpu].number = root.asid;
                }
                self.cpus[cpu].number
            }
        };
        if let Some(node) = root.node {
            self.enter(cpu, (node, asid), high)?;
        }
        let beside = self.cpus[cpu].roots[usize::from(!high)].filter(|&(_, number)| number != asid);
        match (beside, self.numbered) {
            // From this line on, the CPU holds the entries of the other half's walks under the new number.
            (Some((node, _)), Some(of)) if of == high => {
                self.leave(cpu, !high);
                self.enter(cpu, (node, asid), !high)
            }
            (Some(_), None) if root.node.is_some() => {
                self.cpus[cpu].twofold.get_or_insert(self.now);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Records that a CPU no longer walks the table of a half. Returns the table's root and number.
    fn leave(&mut self, cpu: usize, high: bool) -> Option<(u64, u16)> {
        let (old, asid) = self.cpus[cpu].roots[usize::from(high)].take()?;
        let (now, nothing) = (self.now, self.leaves_nothing(cpu, old, asid));
        let sessions = self.sessions.get_mut(&old).into_iter().flatten();
        for session in
            sessions.filter(|session| (session.cpu, session.asid, session.high) == (cpu, asid, high))
        {
            session.until = Some(now);
            session.only_global |= nothing;
        }
        Some((old, asid))
    }

    /// Records that a CPU walks a table in a half from this line on, under a number.
    fn enter(&mut self, cpu: usize, (node, asid): (u64, u16), high: bool) -> Result<(), Refusal> {
        let now = self.now;
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
        // If the other half got its number in the same line, `mixed` may be set already.
        let mixed = other.or(dead).map(|first| Mixed { asid, since: now, first, root: node });
        self.cpus[cpu].mixed = mixed.or(self.cpus[cpu].mixed);
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
        self.reads(cpu, node, asid)?;
        self.dangles()?;
        if self.arch.is_software() {
            self.meets_held(cpu, node);
        }
        if self.arch.breaks() { self.excluded(cpu, node, asid, high) } else { Ok(()) }
    }

    /// Tells whether a CPU that leaves a table holds no entry under the number, except global ones: the table is empty, the architecture
    /// keeps no absences, and the CPU has used no other table and holds no item under the number.
    fn leaves_nothing(&self, cpu: usize, root: u64, asid: u16) -> bool {
        let live = |session: &Session| (session.cpu, session.asid) == (cpu, asid) && !session.only_global;
        let mut others = self.cpus[cpu].used.get(&asid).into_iter().flatten().filter(|&&used| used != root);
        matches!(self.arch.family(), Family::Arm | Family::X86)
            && self.tables.used(root).is_empty()
            && !self.cpus[cpu].held.has_present(asid.into())
            && !others.any(|used| self.sessions.get(used).is_some_and(|of| of.iter().any(live)))
    }

    /// Records the links that a CPU may hold of the tables that it has used under a number, because it is about to walk another table under
    /// that number. It walks through these links, too.
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
}
