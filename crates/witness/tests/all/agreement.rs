//! The checker against a machine that is too simple to be wrong: it has a few nodes and frames, and after each event it walks
//! everything that each CPU can walk and puts all of it into that CPU's TLB. On every log both must say the same.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tlbkit_witness::check::{Arch, Refusal, check};

const CPUS: usize = 2;

/// Two nodes in each level and two words in each node; a level's nodes are 0x10000 times the level, plus 0x1000.
fn node(level: u32, which: u64) -> u64 {
    (u64::from(level) + 1) * 0x1_0000 + which * 0x1000
}

fn level_of(node: u64) -> u32 {
    (node / 0x1_0000) as u32 - 1
}

/// An entry of a word, as the simple machine knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    Link(u64),
    Leaf { frame: u64, write: bool, global: bool },
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Stores an entry, or none, in a word.
    Write {
        cpu: usize,
        level: u32,
        which: u64,
        slot: u64,
        entry: Option<(u64, bool, bool)>,
        link: bool,
    },
    Root {
        cpu: usize,
        which: u64,
    },
    Fence {
        cpu: usize,
        page: Option<u64>,
        asid: Option<u64>,
        leaf: bool,
        broadcast: bool,
    },
    Barrier {
        cpu: usize,
    },
    NodeFree {
        cpu: usize,
        level: u32,
        which: u64,
    },
    FrameFree {
        cpu: usize,
        which: u64,
    },
    Lower {
        cpu: usize,
        page: u64,
    },
    Done {
        cpu: usize,
    },
    Access {
        cpu: usize,
        page: u64,
        write: bool,
    },
}

impl Op {
    fn cpu(self) -> usize {
        match self {
            Self::Write { cpu, .. }
            | Self::Root { cpu, .. }
            | Self::Fence { cpu, .. }
            | Self::Barrier { cpu }
            | Self::NodeFree { cpu, .. }
            | Self::FrameFree { cpu, .. }
            | Self::Lower { cpu, .. }
            | Self::Done { cpu }
            | Self::Access { cpu, .. } => cpu,
        }
    }
}

/// Pages are numbered by their slots, level 0 in the lowest bit.
fn va(arch: Arch, page: u64) -> u64 {
    let step = if arch == Arch::Mips32 { 10 } else { 9 };
    (0..4).map(|level| (page >> level & 1) << (12 + step * level)).sum()
}

fn frame(which: u64, level: u32) -> u64 {
    0x4000_0000 * (level as u64 + 1) + which * (0x1000 << (9 * level))
}

fn encode(arch: Arch, entry: Option<Entry>, level: u32) -> u64 {
    let Some(entry) = entry else { return 0 };
    match (arch, entry) {
        (Arch::Sv39, Entry::Link(node)) => node >> 2 | 1,
        (Arch::Sv39, Entry::Leaf { frame, write, global }) => {
            frame >> 2 | 0xd3 | u64::from(write) << 2 | u64::from(global) << 5
        }
        (Arch::X86_64, Entry::Link(node)) => node | 0x27,
        (Arch::X86_64, Entry::Leaf { frame, write, global }) => {
            frame | 0x65 | u64::from(write) << 1 | u64::from(level > 0) << 7 | u64::from(global) << 8
        }
        (Arch::Aarch64, Entry::Link(node)) => node | 3,
        (Arch::Aarch64, Entry::Leaf { frame, write, global }) => {
            let kind = if level == 0 { 3 } else { 1 };
            frame | 0x740 | kind | u64::from(!write) << 7 | u64::from(!global) << 11
        }
        // MIPS32.
        (_, Entry::Link(node)) => node | 0x8000_0000,
        (_, Entry::Leaf { frame, write, global }) => {
            frame >> 6 | 2 | u64::from(write) << 2 | u64::from(global)
        }
    }
}

/// An entry in a TLB: the number or none if global, the level, and the first page.
/// What MIPS32 keeps of an absence has the node, too: one node's goes with its link, and another's stays. With `HALF` it is that of
/// an entry of which the other half is a page, and stays as that page does.
type Key = (Option<u64>, u32, u64, Option<Entry>, u64);

const HALF: u64 = 1;

/// What a walk finds: the level, the first page, the entry, and on MIPS32 the node of an absence.
type Walked = (u32, u64, Option<Entry>, u64);

#[derive(Clone, Copy, Debug)]
struct Stale {
    line: u64,
    writer: usize,
    /// A link was stored.
    linked: bool,
    /// It is found by way of a link that no table has; and when it was not any more, and by whose store.
    through: bool,
    again: Option<(usize, u64)>,
}

struct Simple {
    arch: Arch,
    top: u32,
    words: BTreeMap<(u64, u64), Entry>,
    roots: [Option<u64>; CPUS],
    /// The roots that a CPU has loaded, and may hold entries of.
    loaded: [BTreeSet<u64>; CPUS],
    tlb: [BTreeMap<Key, Option<Stale>>; CPUS],
    visible: [u64; CPUS],
    /// When a CPU loaded a root last: it sees the stores before that.
    root_at: [u64; CPUS],
    /// What goes when an invalidation completes: the CPU that executed it, where, what, and its number among those of
    /// that CPU.
    deferred: Vec<(usize, usize, Key, usize)>,
    /// The invalidations of each CPU that wait for its barrier.
    begun: [Vec<Op>; CPUS],
    freed: BTreeSet<u64>,
    /// Numbers that a CPU does not run, and under which it may hold what has gone meanwhile; and that it has loaded since.
    dead: [BTreeSet<u64>; CPUS],
    reused: [Option<u64>; CPUS],
    /// The same, where an invalidation of the number has begun.
    dying: Vec<(usize, usize, u64)>,
    reviving: Vec<(usize, usize, u64)>,
    /// Tables that a CPU runs no more, and whose every entry goes there when an invalidation completes.
    leaving: Vec<(usize, usize, u64)>,
    /// Entries of two tables that exclude each other, and that both tables say: docs/witness.md excepts them.
    excepted: BTreeSet<(usize, Key, Key)>,
    lowering: Option<(u64, u64)>,
    /// The CPU that stored to a node last, and when.
    last: BTreeMap<u64, (usize, u64)>,
    /// Nodes that hang, or hung, under a root that was loaded: what their words say is known.
    placed: BTreeSet<u64>,
    /// How many barriers a CPU has executed, and when it last ordered what it sees before its own walks.
    barriers: [u64; CPUS],
    own: [u64; CPUS],
    stored: BTreeMap<(u64, u64), Stored>,
    line: u64,
}

/// When a word was stored that says what it says, by which CPU, after how many barriers, and whether it said nothing before.
#[derive(Clone, Copy, Debug)]
struct Stored {
    cpu: usize,
    line: u64,
    barriers: u64,
    first: bool,
}

impl Simple {
    /// The entries that a walk from a node finds: with their level and first page.
    fn walk(&self, node: u64, page: u64, found: &mut BTreeSet<Walked>) {
        let level = level_of(node);
        for slot in 0..2 {
            let (mut entry, page) = (self.words.get(&(node, slot)).copied(), page | slot << level);
            // A pair of MIPS32 is global if both halves are.
            if let (Arch::Mips32, Some(Entry::Leaf { global, .. })) = (self.arch, &mut entry) {
                let other = self.words.get(&(node, 1 - slot));
                *global &= matches!(other, Some(Entry::Leaf { global: true, .. }));
            }
            let of = if self.arch == Arch::Mips32 && entry.is_none() { node } else { 0 };
            if of != 0 && matches!(self.words.get(&(node, 1 - slot)), Some(Entry::Leaf { .. })) {
                found.insert((level, page, entry, of | HALF));
            }
            if found.insert((level, page, entry, of))
                && let Some(Entry::Link(next)) = entry
            {
                self.walk(next, page, found);
            }
        }
    }

    fn asid(root: u64) -> u64 {
        root / 0x1000 % 16 + 1
    }

    fn tagged(root: u64, (level, page, entry, of): Walked) -> Key {
        let global = matches!(entry, Some(Entry::Leaf { global: true, .. }));
        ((!global).then(|| Self::asid(root)), level, page, entry, of)
    }

    /// Lets each CPU load everything that it can walk.
    fn load(&mut self) {
        for root in self.loaded.iter().flatten().copied().collect::<Vec<_>>() {
            let mut found = BTreeSet::new();
            self.walk(root, 0, &mut found);
            let links = found.iter().filter_map(|(_, _, entry, _)| match entry {
                Some(Entry::Link(node)) => Some(*node),
                _ => None,
            });
            self.placed.extend(links.chain([root]));
        }
        for cpu in 0..CPUS {
            let Some(root) = self.roots[cpu] else { continue };
            let mut found = BTreeSet::new();
            self.walk(root, 0, &mut found);
            // What is read again after an invalidation has begun is not covered by it.
            let again: BTreeSet<_> = found.iter().map(|&entry| Self::tagged(root, entry)).collect();
            self.deferred.retain(|(_, target, key, _)| *target != cpu || !again.contains(key));
            for entry in found {
                self.keep(cpu, Self::tagged(root, entry), None);
            }
            let held = self.tlb[cpu].iter().filter(|(key, _)| key.0 == Some(Self::asid(root)));
            for ((_, link_level, page, entry, _), stale) in
                held.map(|(key, stale)| (*key, *stale)).collect::<Vec<_>>()
            {
                let Some(Entry::Link(next)) = entry else { continue };
                let mut found = BTreeSet::new();
                self.walk(next, page, &mut found);
                let by: Vec<(usize, usize)> = self
                    .deferred
                    .iter()
                    .filter(|(_, on, key, _)| {
                        (*on, *key) == (cpu, (Some(Self::asid(root)), link_level, page, entry, 0))
                    })
                    .map(|(by, _, _, number)| (*by, *number))
                    .collect();
                for entry in found {
                    if self.arch == Arch::Mips32 && entry.2.is_none() && entry.3 & HALF == 0 {
                        continue;
                    }
                    // No table says it, since the link was cut; and it goes with the link.
                    let key = Self::tagged(root, entry);
                    let new = !self.tlb[cpu].contains_key(&key);
                    self.keep(cpu, key, stale);
                    // What has begun to cover the entry and not the link does not cover what is read again.
                    self.deferred.retain(|(from, on, held, number)| {
                        (*on, *held) != (cpu, key) || by.contains(&(*from, *number))
                    });
                    if let Some(Some(stale)) = self.tlb[cpu].get_mut(&key) {
                        stale.through = true;
                    }
                    for &(by, number) in &by {
                        let fence = self.begun[by][number];
                        if new && self.tlb[cpu].contains_key(&key) && self.covers(by, cpu, &key, fence) {
                            self.deferred.push((by, cpu, key, number));
                        }
                    }
                }
            }
        }
    }

    fn keep(&mut self, cpu: usize, key: Key, stale: Option<Stale>) {
        let absences = match self.arch {
            Arch::X86_64 => false,
            Arch::Mips32 => key.1 == 0,
            _ => true,
        };
        if key.3.is_some() || absences {
            self.tlb[cpu].entry(key).or_insert(stale);
        }
    }

    /// After a store by `writer`: notes which entries no table says any more.
    fn age(&mut self, writer: usize, linked: bool, above: bool) {
        for cpu in 0..CPUS {
            let mut said = BTreeSet::new();
            for &root in &self.loaded[cpu] {
                let mut found = BTreeSet::new();
                self.walk(root, 0, &mut found);
                said.extend(found.into_iter().map(|entry| Self::tagged(root, entry)));
            }
            let mut through = BTreeSet::new();
            for (asid, _, page, entry, _) in self.tlb[cpu].keys() {
                if let (Some(Entry::Link(next)), Some(root)) = (entry, self.roots[cpu])
                    && *asid == Some(Self::asid(root))
                {
                    let mut found = BTreeSet::new();
                    self.walk(*next, *page, &mut found);
                    through.extend(found.into_iter().map(|entry| Self::tagged(root, entry)));
                }
            }
            for (key, stale) in &mut self.tlb[cpu] {
                if said.contains(key) {
                    *stale = None;
                } else if let Some(stale) = stale {
                    if stale.through && !through.contains(key) {
                        (stale.through, stale.again) = (false, Some((writer, self.line)));
                    }
                } else if stale.is_none() {
                    *stale = Some(Stale { line: self.line, writer, linked, through: false, again: None });
                }
            }
        }
        if self.arch == Arch::Mips32 {
            // A CPU that stores is in no walk.
            let goes = |key: &Key, stale: &Option<Stale>| {
                matches!(key.3, Some(Entry::Link(_))) && stale.is_some_and(|stale| stale.line == self.line)
            };
            self.tlb[writer].retain(|key, stale| !goes(key, stale));
            // A pair of which both halves are absent is not kept below a link which goes, as docs/witness.md says.
            let below = |key: &Key, stale: &Option<Stale>| {
                let goes = stale.is_some_and(|stale| stale.line == self.line);
                above && key.3.is_none() && key.4 & HALF == 0 && goes
            };
            self.tlb.iter_mut().for_each(|tlb| tlb.retain(|key, stale| !below(key, stale)));
        }
    }

    /// On MIPS32 a CPU's walk has ended when it does anything else.
    fn settle(&mut self, cpu: usize) {
        if self.arch != Arch::Mips32 {
            return;
        }
        let visible = self.visible;
        let ended = |key: &Key, stale: &Option<Stale>| {
            let seen = |stale: &Stale| stale.writer == cpu || stale.line <= visible[stale.writer];
            matches!(key.3, Some(Entry::Link(_))) && stale.as_ref().is_some_and(seen)
        };
        self.tlb[cpu].retain(|key, stale| !ended(key, stale));
    }

    /// The nodes on the way to a page.
    fn way(&self, root: u64, page: u64) -> Vec<u64> {
        let (mut nodes, mut node) = (vec![root], root);
        while let Some(Entry::Link(next)) = self.words.get(&(node, page >> level_of(node) & 1)) {
            nodes.push(*next);
            node = *next;
        }
        nodes
    }

    fn now(&self, root: u64, page: u64) -> Option<(u64, bool)> {
        let mut node = root;
        loop {
            let level = level_of(node);
            match *self.words.get(&(node, page >> level & 1))? {
                Entry::Link(next) => node = next,
                Entry::Leaf { frame, write, .. } => {
                    return Some((reach(self.arch, frame, level, page), write));
                }
            }
        }
    }

    fn covers(&self, cpu: usize, target: usize, key: &Key, op: Op) -> bool {
        let Op::Fence { page, asid, leaf, broadcast, .. } = op else { unreachable!("a fence") };
        let near = page.is_none_or(|page| page >> key.1 == key.2 >> key.1);
        // So does an absence count whose place a link has taken.
        let linked = matches!(self.tlb[target][key], Some(Stale { linked: true, .. }));
        let link = matches!(key.3, Some(Entry::Link(_))) || (key.3.is_none() && linked);
        let number = |asid: Option<u64>| asid.is_none_or(|asid| key.0 == Some(asid)) && key.0.is_some();
        match self.arch {
            // By address it is a pair that goes, whether or not it is global.
            Arch::Mips32 => {
                let tagged = if key.0.is_none() { asid.is_none() || page.is_some() } else { number(asid) };
                let pair = page.is_none_or(|page| page >> 1 == key.2 >> 1);
                tagged && pair && !matches!(key.3, Some(Entry::Link(_)))
            }
            Arch::Sv39 => {
                let tagged = if key.0.is_none() { asid.is_none() } else { number(asid) };
                tagged && near && !(link && page.is_some())
            }
            Arch::X86_64 if page.is_some() && asid.is_none() && !broadcast => {
                let current = Some(self.roots[cpu].map_or(0, Self::asid));
                if link { key.0 == current && !leaf } else { (key.0.is_none() || key.0 == current) && near }
            }
            Arch::X86_64 => {
                let tagged = if key.0.is_none() { asid.is_none() } else { number(asid) };
                tagged && near && !(link && leaf && page.is_some())
            }
            _ => {
                let tagged = if key.0.is_none() { asid.is_none() || page.is_some() } else { number(asid) };
                tagged && near && !(link && leaf && page.is_some())
            }
        }
    }

    /// Takes an event in; returns whether it breaks a rule.
    fn step(&mut self, op: Op) -> bool {
        let (arch, line) = (self.arch, self.line);
        self.settle(op.cpu());
        match op {
            Op::Write { cpu, level, which, slot, .. } => {
                let at = (node(level, which), slot);
                let new = self.entry(op);
                // A CPU that stores to a node, or links one, has its lock, and those below, from the CPU that stored to it before.
                let mut locked = BTreeSet::from([at.0]);
                if let (Some(Entry::Link(next)), true) = (new, self.placed.contains(&at.0)) {
                    let mut found = BTreeSet::new();
                    if self.words.get(&at).copied() != new {
                        self.walk(next, 0, &mut found);
                    }
                    locked.insert(next);
                    locked.extend(found.iter().filter_map(|(_, _, entry, _)| match entry {
                        Some(Entry::Link(node)) => Some(*node),
                        _ => None,
                    }));
                }
                for (other, when) in locked.iter().filter_map(|node| self.last.get(node)) {
                    if *other != cpu {
                        self.visible[*other] = self.visible[*other].max(*when);
                    }
                }
                // It is in no walk, and sees now what it did not see before.
                self.settle(cpu);
                self.last.insert(at.0, (cpu, line));
                let old = self.words.get(&at).copied();
                if old != new {
                    let stored = Stored { cpu, line, barriers: self.barriers[cpu], first: old.is_none() };
                    self.stored.insert(at, stored);
                }
                match new {
                    Some(entry) => self.words.insert(at, entry),
                    None => self.words.remove(&at),
                };
                self.age(cpu, matches!(new, Some(Entry::Link(_))), level > 0);
                self.load();
                self.revived() || (arch == Arch::Aarch64 && self.matches(new.is_some()))
            }
            Op::Root { cpu, which } => {
                let root = node(self.top, which);
                if self.reused[cpu].is_some() {
                    return true;
                }
                if arch == Arch::X86_64 {
                    let asid = Self::asid(root);
                    self.tlb[cpu].retain(|key, _| key.0 != Some(asid));
                    self.dead[cpu].remove(&asid);
                }
                if arch == Arch::Mips32 {
                    self.tlb[cpu].retain(|key, _| !matches!(key.3, Some(Entry::Link(_))));
                    self.tlb[cpu].values_mut().flatten().for_each(|stale| stale.through = false);
                }
                self.roots[cpu] = Some(root);
                self.root_at[cpu] = line;
                self.reused[cpu] = Some(Self::asid(root)).filter(|asid| self.dead[cpu].contains(asid));
                self.leaving.retain(|&(_, target, left)| (target, left) != (cpu, root));
                // What has begun before the load is older.
                self.reviving.retain(|(_, target, _)| *target != cpu);
                self.dying.retain(|(_, target, of)| (*target, *of) != (cpu, Self::asid(root)));
                self.loaded[cpu].insert(root);
                self.load();
                self.revived() || (arch == Arch::Aarch64 && self.matches(true))
            }
            Op::Fence { cpu, broadcast, page, asid, leaf } => {
                if arch == Arch::Sv39 {
                    self.own[cpu] = line;
                }
                let deferred = arch == Arch::Aarch64 || (arch == Arch::X86_64 && broadcast);
                if deferred {
                    self.begun[cpu].push(op);
                }
                for target in if broadcast { 0..CPUS } else { cpu..cpu + 1 } {
                    let named = |of: &u64| page.is_none() && asid.is_none_or(|asid| asid == *of);
                    if page.is_none() && asid.is_none() {
                        let current = self.roots[target];
                        let left = self.loaded[target].iter().filter(|root| Some(**root) != current);
                        self.leaving.extend(left.map(|root| (cpu, target, *root)));
                        if !deferred {
                            self.left(cpu);
                        }
                    }
                    if deferred {
                        // Also of what goes before the barrier: the CPU loads nothing under such a number meanwhile.
                        let current = self.roots[target].map(Self::asid);
                        let idle = self.tlb[target].keys().filter_map(|key| key.0);
                        let idle: BTreeSet<u64> = idle.chain(self.dead[target].iter().copied()).collect();
                        let idle = idle.into_iter().filter(|of| named(of) && Some(*of) != current);
                        self.dying.extend(idle.map(|of| (cpu, target, of)));
                        self.reviving.extend(self.reused[target].filter(named).map(|of| (cpu, target, of)));
                    } else {
                        self.dead[target].retain(|of| !named(of));
                        self.reused[target] = self.reused[target].filter(|of| !named(of));
                    }
                    let covered = |key: &&Key| self.covers(cpu, target, key, op);
                    let keys: Vec<_> = self.tlb[target].keys().filter(covered).copied().collect();
                    for key in keys {
                        let seen = match self.tlb[target][&key] {
                            None => true,
                            Some(stale) => {
                                let seen = |(writer, line): (usize, u64)| {
                                    line <= self.visible[writer].max(self.root_at[target])
                                        || (matches!(arch, Arch::Sv39 | Arch::Mips32) && writer == cpu)
                                };
                                // The link to it goes, too, or is of software.
                                let both = match arch {
                                    Arch::Sv39 => page.is_none(),
                                    Arch::Mips32 => true,
                                    _ => !(leaf && page.is_some()),
                                };
                                arch == Arch::X86_64
                                    || (seen((stale.writer, stale.line)) && (stale.again.is_none() || both))
                                    || stale.again.is_some_and(seen)
                                    || key.0.is_some_and(|of| self.roots[target].map(Self::asid) != Some(of))
                            }
                        };
                        if seen && deferred {
                            self.deferred.push((cpu, target, key, self.begun[cpu].len() - 1));
                        } else if seen {
                            self.tlb[target].remove(&key);
                        }
                    }
                }
                self.load();
                false
            }
            Op::Barrier { cpu } => {
                self.visible[cpu] = line;
                self.own[cpu] = line;
                self.barriers[cpu] += 1;
                if !matches!(arch, Arch::Sv39 | Arch::Mips32) {
                    for (by, target, asid) in std::mem::take(&mut self.dying) {
                        if by == cpu {
                            self.dead[target].remove(&asid);
                        } else {
                            self.dying.push((by, target, asid));
                        }
                    }
                    for (by, target, asid) in std::mem::take(&mut self.reviving) {
                        if by == cpu {
                            self.reused[target] = self.reused[target].filter(|of| *of != asid);
                        } else {
                            self.reviving.push((by, target, asid));
                        }
                    }
                    self.begun[cpu].clear();
                    self.left(cpu);
                    for (by, target, key, number) in std::mem::take(&mut self.deferred) {
                        if by != cpu {
                            self.deferred.push((by, target, key, number));
                        } else {
                            self.tlb[target].remove(&key);
                        }
                    }
                }
                self.load();
                false
            }
            Op::NodeFree { cpu, level, which } => {
                let gone = node(level, which);
                if self.roots.contains(&Some(gone)) || self.gone(|_, key| key.3 == Some(Entry::Link(gone))) {
                    return true;
                }
                self.words.retain(|&(node, _), _| node != gone);
                self.stored.retain(|&(node, _), _| node != gone);
                self.freed.insert(gone);
                self.last.remove(&gone);
                self.placed.remove(&gone);
                self.age(cpu, false, true);
                self.load();
                false
            }
            Op::FrameFree { which, .. } => self
                .gone(|_, key| matches!(key.3, Some(Entry::Leaf { frame: at, .. }) if at == frame(which, 0))),
            Op::Lower { cpu, page } => {
                self.lowering = Some((self.roots[cpu].unwrap(), page));
                false
            }
            Op::Done { .. } => {
                let (root, page) = self.lowering.take().unwrap();
                let now = self.now(root, page);
                // A table that links the same node has the same pages.
                let way = self.way(root, page);
                let loaded = self.loaded.clone().map(|roots| {
                    let same = |root: &u64| self.way(*root, page).iter().any(|node| way.contains(node));
                    roots.into_iter().filter(same).map(Self::asid).collect::<BTreeSet<_>>()
                });
                self.gone(|cpu, key| {
                    let loaded = &loaded[cpu];
                    let mine = key.0.map_or(!loaded.is_empty(), |asid| loaded.contains(&asid));
                    mine && key.2 == page >> key.1 << key.1
                        && match (key.3, now) {
                            (Some(Entry::Leaf { .. }), None) => true,
                            (Some(Entry::Leaf { frame, write, .. }), Some((at, right))) => {
                                reach(arch, frame, key.1, page) != at || (write && !right)
                            }
                            _ => false,
                        }
                })
            }
            Op::Access { cpu, .. } if self.reused[cpu].is_some() => true,
            Op::Access { cpu, page, write } => {
                let root = self.roots[cpu].unwrap();
                let does = |at: u64, right: bool| (right || !write).then_some(at);
                let wanted = self.now(root, page).and_then(|(at, right)| does(at, right));
                // A fault in kernel mode, too, where the walk finds a word as it was before the root was loaded.
                if arch == Arch::Sv39 && wanted.is_some() && self.late(cpu, root, page) {
                    return true;
                }
                self.tlb[cpu].keys().any(|&(asid, level, first, entry, _)| {
                    let mine =
                        asid.is_none_or(|asid| asid == Self::asid(root)) && first == page >> level << level;
                    let found = match entry {
                        Some(Entry::Leaf { frame, write, .. }) => {
                            does(reach(arch, frame, level, page), write)
                        }
                        // A walk that goes on from a link that no table has may end in nothing.
                        Some(Entry::Link(next)) => match self.now(next, page) {
                            Some(_) => return false,
                            None => None,
                        },
                        None => None,
                    };
                    // Kernel mode: a fault that need not be is one too many.
                    // A fault in user mode is the kernel's to resolve.
                    let resolved = arch == Arch::Aarch64 && found.is_none();
                    mine && found != wanted && !resolved
                })
            }
        }
    }

    /// Tells whether a walk may find nothing yet in a word that was stored before the root was loaded.
    fn late(&self, cpu: usize, root: u64, page: u64) -> bool {
        let way = self.way(root, page);
        let words = way.iter().filter_map(|&node| self.stored.get(&(node, page >> level_of(node) & 1)));
        let words: Vec<Stored> = words.copied().collect();
        words.iter().enumerate().any(|(at, word)| {
            let &Stored { cpu: by, line, barriers, first } = word;
            // A link above was stored after a barrier, or by a CPU that saw the word.
            let after =
                |link: &Stored| if link.cpu == by { link.barriers > barriers } else { link.line > line };
            first
                && line <= self.root_at[cpu]
                && line > self.visible[by]
                && line > self.own[cpu]
                && (by == cpu || self.barriers[by] == barriers)
                && !words[..at].iter().any(after)
        })
    }

    /// Tells whether a CPU walks to a node that was given back.
    fn revived(&self) -> bool {
        let freed = |key: &Key| matches!(key.3, Some(Entry::Link(node)) if self.freed.contains(&node));
        (0..CPUS).any(|cpu| {
            let runs = self.roots[cpu].map(Self::asid);
            // What it holds under a number that it has to invalidate first is not used yet.
            if let (Some(root), Some(_)) = (self.roots[cpu], self.reused[cpu]) {
                let mut found = BTreeSet::new();
                self.walk(root, 0, &mut found);
                return found.into_iter().any(|entry| freed(&Self::tagged(root, entry)));
            }
            self.tlb[cpu].keys().any(|key| key.0 == runs && freed(key))
        })
    }

    /// An invalidation of everything has completed.
    fn left(&mut self, by: usize) {
        for (of, target, root) in std::mem::take(&mut self.leaving) {
            if of == by {
                self.loaded[target].remove(&root);
            } else {
                self.leaving.push((of, target, root));
            }
        }
    }

    /// Something goes: tells whether a CPU can use it, and notes which CPUs may hold it under a number that it does not
    /// run.
    fn gone(&mut self, is: impl Fn(usize, &Key) -> bool) -> bool {
        let mut used = false;
        for cpu in 0..CPUS {
            let runs = self.roots[cpu].map(Self::asid);
            for key in self.tlb[cpu].keys().filter(|key| is(cpu, key)) {
                match key.0 {
                    Some(asid) if Some(asid) != runs => {
                        self.dead[cpu].insert(asid);
                    }
                    _ => used = true,
                }
            }
        }
        used
    }

    fn entry(&self, op: Op) -> Option<Entry> {
        let Op::Write { level, entry, link, .. } = op else { unreachable!("a write") };
        let (which, write, global) = entry?;
        if level > 1 || (level == 1 && (link || self.arch == Arch::Mips32)) {
            return Some(Entry::Link(node(level - 1, which)));
        }
        Some(Entry::Leaf { frame: frame(which, level), write, global })
    }

    /// Two entries of one CPU that a single address would match and that are not the same translation.
    fn conflicts(&self) -> bool {
        let mine = |cpu: usize, key: &Key| key.0.is_none() || key.0 == self.roots[cpu].map(Self::asid);
        let mut pairs =
            self.excluding().into_iter().filter(|(cpu, one, two)| mine(*cpu, one) && mine(*cpu, two));
        pairs.any(|pair| !self.excepted.contains(&pair))
    }

    /// After a store or a load of a root: tells whether entries exclude each other that one table says, or none.
    fn matches(&mut self, made: bool) -> bool {
        self.except();
        made && self.conflicts()
    }

    /// Notes what two tables say at once.
    fn except(&mut self) {
        let tlb = &self.tlb;
        self.excepted.retain(|(cpu, one, two)| tlb[*cpu].contains_key(one) && tlb[*cpu].contains_key(two));
        let said = |(cpu, one, two): &(usize, Key, Key)| tlb[*cpu][one].is_none() && tlb[*cpu][two].is_none();
        let more: Vec<_> = self.excluding().into_iter().filter(said).collect();
        self.excepted.extend(more);
    }

    fn excluding(&self) -> Vec<(usize, Key, Key)> {
        let mut found = Vec::new();
        for (cpu, tlb) in self.tlb.iter().enumerate() {
            let keys: Vec<_> = tlb.keys().collect();
            for one in &keys {
                for two in &keys {
                    let tags = one.0.is_none() || two.0.is_none() || one.0 == two.0;
                    let (low, high) = if one.1 < two.1 { (one, two) } else { (two, one) };
                    let near = low.2 >> high.1 == high.2 >> high.1;
                    let excludes = tags
                        && near
                        && match (low.3, high.3) {
                            (None, _) | (_, None) => false,
                            (Some(_), Some(Entry::Link(_))) if low.1 < high.1 => false,
                            (
                                Some(Entry::Leaf { frame, global, .. }),
                                Some(Entry::Leaf { frame: other, global: all, .. }),
                            ) if low.1 == high.1 => (frame, global) != (other, all),
                            (Some(Entry::Link(one)), Some(Entry::Link(two))) => one != two,
                            _ => true,
                        };
                    if excludes {
                        found.push((cpu, **one, **two));
                    }
                }
            }
        }
        found
    }
}

fn reach(arch: Arch, frame: u64, level: u32, page: u64) -> u64 {
    frame + (va(arch, page) & ((0x1000 << (9 * level)) - 1))
}

/// Writes the operations as a log, as far as the simple machine finds nothing, and with the first that breaks a rule.
fn log(arch: Arch, ops: &[Op]) -> (String, Option<u64>) {
    let (top, word) = match arch {
        Arch::Mips32 => (1, 4),
        Arch::Sv39 => (2, 8),
        _ => (3, 8),
    };
    let (words, tlb, visible, deferred, freed, lowering) = Default::default();
    let (roots, loaded, last, placed, begun) = Default::default();
    let (dead, reused, dying, reviving, leaving, excepted) = Default::default();
    let mut simple = Simple {
        arch,
        top,
        words,
        roots,
        root_at: [0; CPUS],
        loaded,
        tlb,
        visible,
        deferred,
        freed,
        dead,
        reused,
        dying,
        reviving,
        leaving,
        excepted,
        lowering,
        last,
        placed,
        begun,
        barriers: [0; CPUS],
        own: [0; CPUS],
        stored: BTreeMap::new(),
        line: 0,
    };
    let mut text = String::new();
    for &op in ops {
        let op = within(op, arch, top);
        // What cannot happen is left out.
        let line = match op {
            Op::Write { cpu, level, which, slot, .. } => {
                let at = node(level, which);
                if level > top || simple.freed.contains(&at) {
                    continue;
                }
                // A link changes when what the other CPU stored is visible: `brute.rs` has its word on the rest.
                let pending = simple.last.values().any(|&(by, when)| by != cpu && when > simple.visible[by]);
                let links = matches!(simple.words.get(&(at, slot)), Some(Entry::Link(_)));
                if arch != Arch::X86_64 && links && pending {
                    continue;
                }
                let entry = simple.entry(op);
                if matches!(entry, Some(Entry::Link(next)) if simple.freed.contains(&next)) {
                    continue;
                }
                // Stores before a link are ordered before it.
                if matches!(entry, Some(Entry::Link(_))) {
                    text += &format!("{cpu} barrier release\n");
                    simple.line += 1;
                    simple.barriers[cpu] += 1;
                    simple.settle(cpu);
                }
                format!("{cpu} write {:#x} {:#x}", at + slot * word, encode(arch, entry, level))
            }
            Op::Root { cpu, which } => {
                let (root, asid) = (node(top, which), which + 1);
                if simple.freed.contains(&root) {
                    continue;
                }
                let value = match arch {
                    Arch::Sv39 => 8 << 60 | asid << 44 | root >> 12,
                    Arch::X86_64 | Arch::Mips32 => root | asid,
                    _ => asid << 48 | root,
                };
                format!("{cpu} root {value:#x}")
            }
            Op::Fence { cpu, page, asid, leaf, broadcast } => {
                if matches!(arch, Arch::Sv39 | Arch::Mips32) && broadcast {
                    continue;
                }
                let mut line = format!("{cpu} fence");
                line += &page.map_or(String::new(), |page| format!(" va {:#x}", va(arch, page)));
                line += &asid.map_or(String::new(), |asid| format!(" asid {asid}"));
                line += if leaf { " leaf" } else { "" };
                line + if broadcast { " broadcast" } else { "" }
            }
            Op::Barrier { cpu } => {
                // On AArch64 with the ISB that a kernel executes after it; on x86-64 with TLBSYNC.
                match arch {
                    Arch::Sv39 | Arch::Mips32 => format!("{cpu} barrier fence"),
                    Arch::X86_64 => format!("{cpu} barrier tlbsync"),
                    _ => format!("{cpu} barrier dsb"),
                }
            }
            Op::NodeFree { cpu, level, which } => {
                if level > top || simple.freed.contains(&node(level, which)) {
                    continue;
                }
                format!("{cpu} node free {:#x} 4096", node(level, which))
            }
            Op::FrameFree { cpu, which } => format!("{cpu} frame free {:#x} 4096", frame(which, 0)),
            Op::Lower { cpu, page } => {
                if simple.lowering.is_some() || simple.roots[cpu].is_none() {
                    continue;
                }
                format!("{cpu} lower 1 {:#x}", va(arch, page))
            }
            Op::Done { cpu } => {
                // A table that went back has no change to promise.
                if simple.lowering.is_none_or(|(root, _)| simple.freed.contains(&root)) {
                    continue;
                }
                format!("{cpu} done 1")
            }
            Op::Access { cpu, page, write } => {
                let Some(root) = simple.roots[cpu] else { continue };
                let wanted = simple.now(root, page).filter(|&(_, right)| right || !write);
                let wanted = wanted.map_or("fault".into(), |(at, _)| format!("{at:#x}"));
                let kind = if write { "store" } else { "load" };
                // What an `isb` does to the kernel's accesses `brute` knows.
                let mode = if arch == Arch::Aarch64 { "user" } else { "kernel" };
                format!("{cpu} access {:#x} {kind} {mode} {wanted}", va(arch, page))
            }
        };
        text += &line;
        text += "\n";
        simple.line += 1;
        if simple.step(op) {
            return (text, Some(simple.line));
        }
    }
    (text, None)
}

/// Names a page and a fence that the architecture has.
fn within(mut op: Op, arch: Arch, top: u32) -> Op {
    if let Op::Fence { leaf, page, broadcast, .. } = &mut op {
        *leaf &= page.is_some() && (arch == Arch::Aarch64 || (arch == Arch::X86_64 && *broadcast));
    }
    if let Op::Fence { page: Some(page), .. } | Op::Lower { page, .. } | Op::Access { page, .. } = &mut op {
        *page &= (2 << top) - 1;
    }
    op
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (cpu, bit) = (0..CPUS, 0..2_u64);
    let page = 0..16_u64;
    let entry = prop::option::weighted(0.6, (0..2_u64, any::<bool>(), prop::bool::weighted(0.2)));
    let write = (cpu.clone(), 0..4_u32, bit.clone(), bit.clone(), entry, prop::bool::weighted(0.8));
    let fence = (
        cpu.clone(),
        prop::option::weighted(0.6, page.clone()),
        prop::option::weighted(0.3, 1..3_u64),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.5),
    );
    let op = prop_oneof![
        6 => write.prop_map(|(cpu, level, which, slot, entry, link)| Op::Write { cpu, level, which, slot, entry, link }),
        2 => (cpu.clone(), prop::bool::weighted(0.3)).prop_map(|(cpu, other)| Op::Root { cpu, which: other.into() }),
        4 => fence.prop_map(|(cpu, page, asid, leaf, broadcast)| Op::Fence { cpu, page, asid, leaf, broadcast }),
        3 => cpu.clone().prop_map(|cpu| Op::Barrier { cpu }),
        1 => (cpu.clone(), 0..4_u32, bit.clone()).prop_map(|(cpu, level, which)| Op::NodeFree { cpu, level, which }),
        2 => (cpu.clone(), bit).prop_map(|(cpu, which)| Op::FrameFree { cpu, which }),
        1 => (cpu.clone(), page.clone()).prop_map(|(cpu, page)| Op::Lower { cpu, page }),
        1 => cpu.clone().prop_map(|cpu| Op::Done { cpu }),
        1 => (cpu, page, any::<bool>()).prop_map(|(cpu, page, write)| Op::Access { cpu, page, write }),
    ];
    // The tables begin with a way to the first node of each level, and CPUs that walk it.
    (prop::collection::vec(op, 0..40), any::<bool>()).prop_map(|(ops, begun)| {
        let link =
            |level| Op::Write { cpu: 0, level, which: 0, slot: 0, entry: Some((0, true, false)), link: true };
        let begin = [link(3), link(2), link(1), link(0), Op::Barrier { cpu: 0 }];
        let roots = [Op::Root { cpu: 0, which: 0 }, Op::Root { cpu: 1, which: 0 }];
        begin.into_iter().chain(roots).filter(|_| begun).chain(ops).collect()
    })
}

fn agrees(arch: Arch, ops: &[Op]) -> Result<bool, TestCaseError> {
    let (text, wrong) = log(arch, ops);
    let said = match check(arch, &text) {
        Ok(_) => None,
        Err(Refusal::Violation(found)) => Some(found.line()),
        Err(other) => return Err(TestCaseError::fail(format!("{other}\n{text}"))),
    };
    prop_assert_eq!(
        said,
        wrong,
        "{:?}: {}\n{}",
        arch,
        check(arch, &text).map_or_else(|why| why.to_string(), |_| "holds".into()),
        text
    );
    Ok(wrong.is_some())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn on_risc_v(ops in ops()) {
        agrees(Arch::Sv39, &ops)?;
    }

    #[test]
    fn on_x86_64(ops in ops()) {
        agrees(Arch::X86_64, &ops)?;
    }

    /// Two tables, and no page that is in both of them alike.
    #[test]
    fn on_mips32(mut ops in ops()) {
        for op in &mut ops {
            if let Op::Write { entry: Some((_, _, global)), .. } = op {
                *global = false;
            }
        }
        agrees(Arch::Mips32, &ops)?;
    }

    /// One table, with pairs that are global, and halves.
    #[test]
    fn on_mips32_with_global_pairs(mut ops in ops()) {
        for op in &mut ops {
            if let Op::Root { which, .. } = op {
                *which = 0;
            }
            if let Op::Write { entry: Some((_, _, global)), slot, which, .. } = op {
                *global |= *slot == *which;
            }
        }
        agrees(Arch::Mips32, &ops)?;
    }

    #[test]
    fn on_aarch64(ops in ops()) {
        agrees(Arch::Aarch64, &ops)?;
    }
}
