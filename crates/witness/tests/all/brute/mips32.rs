//! MIPS32: software loads the TLB, whose entries are pairs of pages.
//!
//! A refill handler runs where nothing matches. It loads both words of a pair, as they are at one moment, and a pair of which one
//! half is invalid, or are both, is an entry as any: it matches, and stays until it is invalidated or written over. The handler ends
//! before its CPU does anything else.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tlbkit_witness::check::{Arch, Refusal, check};

use super::{CPUS, Dice};

const G: u64 = 1;
const V: u64 = 2;
const D: u64 = 4;

/// A valid half: its frame, how many bits of an address it takes, and whether stores are allowed.
type Page = (u64, u32, bool);

/// What one pair of words says in a TLB. A larger page is several of these, as a flush names all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    /// None for a global pair.
    asid: Option<u16>,
    va: u64,
    /// The bits of a page that the entry was loaded with, by a handler that takes a page with nothing beside it for a pair within it,
    /// and by one that takes it for the valid half of an entry of its size.
    sizes: [u32; 2],
    halves: [Option<Page>; 2],
    link: Link,
}

/// The word of a root that a walk began with, and the line of the store that the walk read there. Memory is coherent: a CPU that has
/// read a store reads no earlier one of that word.
type Link = (u64, u64);

/// A handler that has loaded a link: where, to which node, and as of which line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Walk {
    va: u64,
    node: u64,
    line: u64,
    link: Link,
}

#[derive(Clone, Copy, Debug)]
struct Store {
    value: u64,
    line: u64,
    cpu: usize,
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    root: Option<(u64, u16)>,
    tlb: BTreeSet<Pair>,
    walks: BTreeSet<Walk>,
    /// The tables that it has run: by number and root, and when it left.
    ran: BTreeMap<(u16, u64), Option<u64>>,
    /// Those of which it may hold global pages.
    globals: BTreeMap<u64, Option<u64>>,
    dead: BTreeMap<u16, u64>,
    must: Option<(u16, u64)>,
    /// Words that it stored and has not used since.
    unused: Vec<u64>,
    epoch: u64,
    /// Its stores to this line are seen by all; it sees all stores to the line in which it loaded a root.
    visible: u64,
    loaded: u64,
    stores: u64,
}

struct Machine {
    /// Handlers load larger pages by pairs within them.
    halves: bool,
    words: BTreeMap<u64, Vec<Store>>,
    cpus: [Cpu; CPUS],
    line: u64,
    stored: BTreeMap<u64, (usize, u64)>,
    unsettled: BTreeMap<u64, (usize, u64, u64)>,
    freed: BTreeSet<u64>,
    placed: BTreeSet<u64>,
    lowering: Option<(u64, u64, u64)>,
}

fn root(which: u64) -> u64 {
    0x2_0000 | which << 12
}

fn leaf(which: u64) -> u64 {
    0x1_0000 | which << 12
}

fn link(word: u64) -> Option<u64> {
    (word >> 29 == 0b100).then_some(word & 0x1fff_f000)
}

/// The page that a word of the last level maps.
fn page(word: u64) -> Option<Page> {
    if word & V == 0 {
        return None;
    }
    let pfn = word >> 6 & 0xff_ffff;
    let bits = if word >> 30 == 1 { 14 + pfn.trailing_zeros() / 2 * 2 } else { 12 };
    Some((pfn << 12 >> bits << bits, bits, word & D != 0))
}

/// The size of a page of more than 4 KiB.
fn larger(word: u64) -> Option<u32> {
    page(word).map(|(_, bits, _)| bits).filter(|&bits| bits > 12)
}

fn leads((frame, bits, write): Page, va: u64) -> (u64, bool) {
    (frame | va & ((1 << bits) - 1), write)
}

/// The addresses that entries of a page take in.
fn range(va: u64, bits: u32) -> (u64, u64) {
    (va >> bits << bits, va | ((1 << bits) - 1))
}

fn meet(one: (u64, u64), two: (u64, u64)) -> bool {
    one.0 <= two.1 && two.0 <= one.1
}

impl Machine {
    fn new(halves: bool) -> Self {
        let (words, cpus, stored, unsettled, freed, placed, lowering) = Default::default();
        Self { halves, words, cpus, line: 0, stored, unsettled, freed, placed, lowering }
    }

    fn now(&self, at: u64) -> u64 {
        self.words.get(&at).and_then(|stores| stores.last()).map_or(0, |store| store.value)
    }

    /// Tells whether a CPU's handler sees a store.
    fn sees(&self, cpu: usize, store: &Store) -> bool {
        store.cpu == cpu || store.line <= self.cpus[store.cpu].visible.max(self.cpus[cpu].loaded)
    }

    /// The lines as of which a CPU's handler may read: now, and before each store that it does not see.
    fn lines(&self, cpu: usize) -> BTreeSet<u64> {
        let unseen = self.words.values().flatten().filter(|store| !self.sees(cpu, store));
        unseen.map(|store| store.line - 1).chain([u64::MAX]).collect()
    }

    /// A word as a CPU's handler reads it as of a line.
    fn read(&self, cpu: usize, at: u64, line: u64) -> u64 {
        self.store(cpu, at, line).map_or(0, |store| store.value)
    }

    fn store(&self, cpu: usize, at: u64, line: u64) -> Option<&Store> {
        let known = |store: &&Store| store.line <= line || self.sees(cpu, store);
        self.words.get(&at).and_then(|stores| stores.iter().rfind(known))
    }

    /// What a handler may load that misses in a word's page, and over which addresses.
    fn refill(
        &self,
        asid: u16,
        va: u64,
        (node, link): (u64, Link),
        word: impl Fn(u64) -> u64,
    ) -> Option<(Pair, [(u64, u64); 2])> {
        let at = node + (va >> 12 & 0x3ff) * 4;
        let (own, other) = (word(at), word(at ^ 4));
        let pair = range(va, 13).0;
        let Some(bits) = larger(own) else {
            // A page of 4 KiB beside one that is larger is half of one that is being stored.
            if larger(other).is_some() {
                return None;
            }
            let asid = (own & other & G == 0).then_some(asid);
            let halves = if va == pair { [own, other] } else { [other, own] }.map(page);
            return Some((Pair { asid, va: pair, sizes: [12; 2], halves, link }, [range(va, 13); 2]));
        };
        // Beside a page of its size it is half of an entry of that size, beside smaller pages two entries of a quarter, and beside
        // nothing either.
        let words = 1 << (bits - 12);
        let first = node + (at - node) / (4 * words) * (4 * words);
        let beside: Vec<u64> = (0..words).map(|slot| word((first ^ (4 * words)) + 4 * slot)).collect();
        let smaller = beside.iter().any(|&word| page(word).is_some_and(|(_, size, _)| size < bits));
        let same = larger(word(at ^ (4 * words))) == Some(bits);
        let asid = (own & G == 0).then_some(asid);
        let within = (bits - 2, if bits == 14 { range(va, 13) } else { range(va, bits) });
        let whole = (bits, range(va, bits + 1));
        let loads = match (self.halves || smaller, same) {
            (true, _) => [within; 2],
            (false, true) => [whole; 2],
            (false, false) => [within, whole],
        };
        let sizes = loads.map(|(size, _)| size);
        let pair = Pair { asid, va: pair, sizes, halves: [page(own); 2], link };
        Some((pair, loads.map(|(_, over)| over)))
    }

    /// Lets the handlers of a CPU run for every address.
    fn load_one(&mut self, cpu: usize) {
        let Some((root, asid)) = self.cpus[cpu].root else { return };
        let lines = self.lines(cpu);
        for slot in 0..2 {
            for &line in &lines {
                let at = root + 4 * slot;
                if let Some(&Store { value, line: stored, .. }) = self.store(cpu, at, line)
                    && let Some(node) = link(value)
                {
                    self.cpus[cpu].walks.insert(Walk { va: slot << 22, node, line, link: (at, stored) });
                }
            }
        }
        let mut found = BTreeSet::new();
        for walk in &self.cpus[cpu].walks {
            // A walk that began before a store which all see by now reads as of now.
            for &line in lines.iter().filter(|&&line| line >= walk.line) {
                let linked = link(self.now(root + (walk.va >> 22) * 4)) == Some(walk.node);
                for slot in 0..32 {
                    let va = walk.va | slot << 12;
                    let pair = self.refill(asid, va, (walk.node, walk.link), |at| self.read(cpu, at, line));
                    // docs/witness.md: where a link goes, a pair of which both halves are invalid is not kept.
                    let known = |pair: &Pair| {
                        linked || pair.halves != [None; 2] || self.was_half(cpu, walk, slot, line)
                    };
                    found.extend(pair.into_iter().map(|(pair, _)| pair).filter(known));
                }
            }
        }
        self.cpus[cpu].tlb.extend(found);
    }

    /// Tells whether a page was stored in a pair, after what a handler reads there as of a line, and before the link went that the
    /// handler came by.
    fn was_half(&self, cpu: usize, walk: &Walk, slot: u64, line: u64) -> bool {
        let (word, linked) = walk.link;
        let mut stores = self.words.get(&word).into_iter().flatten();
        let gone = stores.find(|store| store.line > linked && link(store.value) != Some(walk.node));
        let gone = gone.map_or(u64::MAX, |store| store.line);
        let at = walk.node + slot * 4;
        [at, at ^ 4].iter().any(|&at| {
            let read = self.store(cpu, at, line).map_or(0, |store| store.line);
            let mut stores = self.words.get(&at).into_iter().flatten();
            stores.any(|store| (read + 1..gone).contains(&store.line) && page(store.value).is_some())
        })
    }

    fn load(&mut self) {
        (0..CPUS).for_each(|cpu| self.load_one(cpu));
        let ran = self.cpus.iter().flat_map(|cpu| cpu.ran.keys().map(|(_, root)| *root));
        // A change has named a table that no CPU has loaded.
        let named = self.placed.iter().copied().filter(|&node| node >= root(0));
        let roots: Vec<u64> = ran.chain(named).collect();
        for root in roots {
            self.placed.insert(root);
            let below: Vec<u64> = (0..2).filter_map(|slot| link(self.now(root + 4 * slot))).collect();
            self.placed.extend(below);
        }
    }

    fn runs(&self, cpu: usize) -> Option<u16> {
        self.cpus[cpu].root.map(|(_, asid)| asid)
    }

    fn reaches(&self, cpu: usize, node: u64) -> bool {
        self.cpus[cpu].root.is_some_and(|(root, _)| root == node)
            || self.cpus[cpu].walks.iter().any(|walk| walk.node == node)
    }

    /// Where a CPU's handler comes to a node: by a walk that has begun, or a link that it may read.
    fn bases(&self, cpu: usize, node: u64) -> BTreeSet<(u64, Link)> {
        let begun =
            self.cpus[cpu].walks.iter().filter(|walk| walk.node == node).map(|walk| (walk.va, walk.link));
        let Some((root, _)) = self.cpus[cpu].root else { return BTreeSet::new() };
        let lines = self.lines(cpu);
        let links = (0..2_u64).flat_map(|slot| {
            let at = root + 4 * slot;
            let stores = lines.iter().filter_map(move |&line| self.store(cpu, at, line));
            let here = stores.filter(|store| link(store.value) == Some(node));
            here.map(move |store| (slot << 22, (at, store.line)))
        });
        links.chain(begun).collect()
    }

    /// A CPU does something: its handler has ended. Tells whether two entries match that it may load by then.
    fn begin(&mut self, cpu: usize, uses: bool) -> bool {
        self.cpus[cpu].walks.clear();
        if !uses {
            return false;
        }
        let words = std::mem::take(&mut self.cpus[cpu].unused);
        words.into_iter().any(|at| self.doubles(cpu, at))
    }

    /// Tells whether what a handler loads by a word may match where something does that a CPU holds.
    fn doubles(&self, cpu: usize, at: u64) -> bool {
        let (Some(asid), node) = (self.runs(cpu), at & !0xfff) else { return false };
        self.bases(cpu, node).into_iter().any(|(base, link)| {
            let va = base | (at & 0xfff) << 10;
            let new = self.refill(asid, va, (node, link), |at| self.now(at)).into_iter();
            new.filter(|(new, _)| new.halves != [None; 2]).any(|(new, over)| {
                self.cpus[cpu].tlb.iter().any(|held| {
                    let here = held.asid.is_none() || held.asid == Some(asid);
                    let doubles = |kind: usize| {
                        meet(range(held.va, 13), over[kind])
                            && if here { held.sizes[kind] < new.sizes[kind] } else { new.asid.is_none() }
                    };
                    // An earlier link is not read again.
                    let past = held.link.0 == link.0 && held.link.1 > link.1;
                    held.halves != [None; 2] && !past && (doubles(0) || doubles(1))
                })
            })
        })
    }

    fn gone(&mut self, is: impl Fn(usize, &Pair) -> bool) -> bool {
        let mut used = false;
        for cpu in 0..CPUS {
            let runs = self.runs(cpu);
            let held: Vec<Pair> = self.cpus[cpu].tlb.iter().copied().collect();
            for pair in held.iter().filter(|pair| is(cpu, pair)) {
                match pair.asid {
                    Some(asid) if Some(asid) != runs => {
                        self.cpus[cpu].dead.insert(asid, self.line);
                    }
                    _ => used = true,
                }
            }
        }
        used
    }

    /// What the table says of an address.
    fn table(&self, root: u64, va: u64) -> Option<Page> {
        let node = link(self.now(root + (va >> 22) * 4))?;
        page(self.now(node + (va >> 12 & 0x3ff) * 4))
    }

    fn whole(&mut self, cpu: usize, asid: Option<u16>) {
        let cpu = &mut self.cpus[cpu];
        let named = |of: u16| asid.is_none_or(|asid| asid == of);
        cpu.dead.retain(|of, _| !named(*of));
        cpu.must = cpu.must.filter(|(of, _)| !named(*of));
        if asid.is_none() {
            cpu.globals.retain(|_, left| left.is_none());
        }
        cpu.ran.retain(|(of, _), left| !(named(*of) && left.is_some()));
    }

    fn forget(&mut self, cpu: usize, pages: Option<(u64, u64)>, asid: Option<u16>) {
        let near = |va: u64| pages.is_none_or(|(first, last)| meet(range(va, 13), (first, last)));
        let named =
            |of: Option<u16>| asid.is_none_or(|asid| of == Some(asid)) || (of.is_none() && pages.is_some());
        self.cpus[cpu].tlb.retain(|pair| !(near(pair.va) && named(pair.asid)));
    }

    fn fence(&mut self, cpu: usize, pages: Option<(u64, u64)>, asid: Option<u16>) {
        self.forget(cpu, pages, asid);
        if pages.is_none() {
            self.whole(cpu, asid);
        }
        self.load();
    }

    fn write(&mut self, cpu: usize, at: u64, value: u64) -> bool {
        let (of, line) = (at & !0xfff, self.line);
        let (old, placed) = (self.now(at), self.placed.contains(&of));
        let is_root = of & 0x2_0000 != 0;
        let linked = link(value).filter(|_| is_root && placed);
        for node in linked.into_iter().chain([of]) {
            if let Some(&(other, when)) = self.stored.get(&node)
                && other != cpu
            {
                self.cpus[other].visible = self.cpus[other].visible.max(when);
            }
        }
        self.stored.insert(of, (cpu, line));
        self.cpus[cpu].stores = line;
        if old & !G != 0 && old != value {
            self.unsettled.insert(of, (cpu, line, self.cpus[cpu].epoch));
        }
        if old == value {
            self.load();
            return false;
        }
        if let Some(node) = linked {
            if self.freed.contains(&node) {
                return true;
            }
            let reader = (0..CPUS)
                .any(|other| other != cpu && self.cpus[other].root.is_some_and(|(root, _)| root == of));
            if let Some(&(by, when, epoch)) = self.unsettled.get(&node)
                && reader
                && (by, epoch) == (cpu, self.cpus[cpu].epoch)
                && when > self.cpus[cpu].visible
            {
                return true;
            }
        }
        if is_root && let Some(node) = link(old) {
            self.unlink(of, (at & 0xfff) << 20, node);
        }
        self.words.entry(at).or_default().push(Store { value, line, cpu });
        if !is_root && placed {
            let others = |other: &usize| *other != cpu && self.reaches(*other, of);
            // Half of a larger page beside something else.
            let torn = !self.halves && larger(value) != larger(self.now(at ^ 4));
            // It makes a larger page, or a global one, or a pair global.
            let global = value & self.now(at ^ 4) & G != 0 && (value & V != 0 || old & G == 0);
            let single = larger(value).is_some() || global;
            if (0..CPUS).filter(others).any(|other| torn || (single && self.doubles(other, at))) {
                return true;
            }
            if single && !self.bases(cpu, of).is_empty() {
                self.cpus[cpu].unused.push(at);
            }
        }
        self.load();
        linked.is_some() && self.revived()
    }

    /// A link goes: forgets the pairs of which both halves are invalid.
    fn unlink(&mut self, root: u64, base: u64, node: u64) {
        for cpu in 0..CPUS {
            let ran: BTreeSet<u16> =
                self.cpus[cpu].ran.keys().filter(|(_, of)| *of == root).map(|(asid, _)| *asid).collect();
            let held = std::mem::take(&mut self.cpus[cpu].tlb);
            let kept = held.into_iter().filter(|pair| {
                let at = node + (pair.va >> 12 & 0x3ff) * 4;
                let nothing = [at, at ^ 4].iter().all(|&at| page(self.now(at)).is_none());
                // A pair under an ASID was read before the words became global.
                let as_now = pair.asid.is_none() == [at, at ^ 4].iter().all(|&at| self.now(at) & 1 != 0);
                let mut stores = self.words.get(&pair.link.0).into_iter().flatten();
                let here = stores.find(|store| store.line == pair.link.1).and_then(|store| link(store.value));
                let mine = here == Some(node)
                    && pair.asid.is_none_or(|asid| ran.contains(&asid))
                    && pair.va >> 22 == base >> 22;
                !(mine && nothing && as_now && pair.halves == [None; 2])
            });
            self.cpus[cpu].tlb = kept.collect();
        }
    }

    /// Tells whether a walk comes to a node that was given back.
    fn revived(&self) -> bool {
        (0..CPUS).any(|cpu| self.freed.iter().any(|node| self.reaches(cpu, *node)))
    }

    fn moves(&mut self, at: u64) -> bool {
        let within = |first: u64, bits: u32| meet((at, at | 0xfff), range(first, bits));
        let used = self.gone(|_, pair| pair.halves.iter().flatten().any(|page| within(page.0, page.1)));
        if used || (0..CPUS).any(|cpu| self.reaches(cpu, at)) {
            return true;
        }
        self.words.retain(|word, _| word & !0xfff != at);
        self.stored.remove(&at);
        self.unsettled.remove(&at);
        self.placed.remove(&at);
        for cpu in &mut self.cpus {
            let numbers: Vec<u16> =
                cpu.ran.keys().filter(|(_, root)| *root == at).map(|(asid, _)| *asid).collect();
            for asid in numbers {
                cpu.ran.remove(&(asid, at));
                cpu.globals.remove(&at);
                cpu.dead.insert(asid, self.line);
            }
        }
        false
    }

    fn root(&mut self, cpu: usize, node: u64, asid: u16) -> bool {
        if self.cpus[cpu].must.is_some() {
            return true;
        }
        let line = self.line;
        if let Some((old, number)) = self.cpus[cpu].root.take()
            && let Some(left) = self.cpus[cpu].ran.get_mut(&(number, old))
        {
            *left = Some(line);
            self.cpus[cpu].globals.insert(old, Some(line));
        }
        if self.freed.contains(&node) {
            return true;
        }
        let other = self.cpus[cpu].ran.keys().any(|(number, root)| *number == asid && *root != node);
        if other || self.cpus[cpu].dead.contains_key(&asid) {
            self.cpus[cpu].must = Some((asid, line));
        }
        self.cpus[cpu].root = Some((node, asid));
        self.cpus[cpu].loaded = line;
        self.cpus[cpu].ran.insert((asid, node), None);
        self.cpus[cpu].globals.insert(node, None);
        if self.cpus[cpu].must.is_none() {
            // It may load each page beside what it holds.
            let nodes: Vec<u64> = (0..2).filter_map(|slot| link(self.now(node + 4 * slot))).collect();
            let words = nodes.into_iter().flat_map(|node| (0..32).map(move |slot| node + 4 * slot));
            let doubled: Vec<u64> = words.filter(|&at| self.doubles(cpu, at)).collect();
            self.cpus[cpu].unused.extend(doubled);
        }
        self.load();
        self.revived()
    }

    fn done(&mut self) -> bool {
        let Some((root, first, last)) = self.lowering.take() else { return false };
        let pages: Vec<u64> = addresses().filter(|va| (first..=last).contains(va)).collect();
        let now: Vec<(u64, Option<(u64, bool)>)> =
            pages.into_iter().map(|va| (va, self.table(root, va).map(|page| leads(page, va)))).collect();
        let same = |other: u64, va: u64| {
            let node = |root: u64| link(self.now(root + (va >> 22) * 4));
            root == other || (node(root).is_some() && node(root) == node(other))
        };
        let kept: BTreeSet<(usize, Pair)> = (0..CPUS)
            .flat_map(|cpu| self.cpus[cpu].tlb.iter().map(move |pair| (cpu, *pair)))
            .filter(|(cpu, pair)| {
                let cpu = &self.cpus[*cpu];
                now.iter().filter(|(va, _)| range(*va, 13).0 == pair.va).any(|&(va, says)| {
                    let mine = match pair.asid {
                        None => cpu.globals.keys().any(|of| same(*of, va)),
                        Some(asid) => cpu.ran.keys().any(|(of, root)| *of == asid && same(*root, va)),
                    };
                    let Some((at, write)) = pair.halves[(va >> 12 & 1) as usize].map(|page| leads(page, va))
                    else {
                        return false;
                    };
                    mine && says.is_none_or(|(to, left)| at != to || (write && !left))
                })
            })
            .collect();
        self.gone(|cpu, pair| kept.contains(&(cpu, *pair)))
    }

    fn access(&mut self, cpu: usize, va: u64, store: bool, user: bool, reaches: Option<u64>) -> bool {
        if self.cpus[cpu].must.is_some() {
            return true;
        }
        self.load_one(cpu);
        let asid = self.runs(cpu);
        let near = |pair: &&Pair| range(va, 13).0 == pair.va && pair.asid.is_none_or(|of| Some(of) == asid);
        // By a link that it still sees, or of which it does not see that it went.
        let (lines, walks) = (self.lines(cpu), &self.cpus[cpu].walks);
        let walks = walks.iter().filter(|walk| va >> 22 == walk.va >> 22);
        let loads = walks.flat_map(|walk| {
            lines.iter().filter(|&&line| line >= walk.line).flat_map(|&line| {
                let asid = asid.unwrap_or(0);
                self.refill(asid, va & !0xfff, (walk.node, walk.link), |at| self.read(cpu, at, line))
            })
        });
        let loads: Vec<Pair> = loads.map(|(pair, _)| pair).collect();
        self.cpus[cpu].tlb.iter().filter(near).chain(&loads).any(|pair| {
            let does = pair.halves[(va >> 12 & 1) as usize].map(|page| leads(page, va));
            match (reaches, does.filter(|(_, write)| *write || !store)) {
                (Some(wanted), Some((found, _))) => wanted != found,
                (Some(_), None) => !user,
                (None, found) => found.is_some(),
            }
        })
    }
}

/// The pages that the tables have.
fn addresses() -> impl Iterator<Item = u64> {
    (0..2_u64).flat_map(|top| (0..32).map(move |slot| top << 22 | slot << 12))
}

/// How a log is made.
#[derive(Clone, Copy, Debug)]
struct Kind {
    halves: bool,
    /// One table, with global pages; otherwise two tables, and none.
    global: bool,
    /// The bits of larger pages, if there are any.
    larger: Option<u32>,
}

/// Writes events to a log, and tells whether the last one breaks a rule; none if it cannot happen.
fn next(machine: &mut Machine, how: Kind, step: (u8, usize, u64), text: &mut Vec<String>) -> Option<bool> {
    let (kind, cpu, number) = step;
    let mut dice = Dice(number);
    let dice = &mut dice;
    // A page in one of two pairs.
    let va = |dice: &mut Dice| {
        let far = if how.larger.is_some() { dice.below(8) * 4 } else { 0 };
        u64::from(dice.one_in(6)) << 22 | (far + dice.below(4)) << 12
    };
    let frame = |dice: &mut Dice, bits: u32| 0x1000_0000 | dice.below(2) << bits;
    Some(match kind {
        0..=5 => {
            let node = leaf(u64::from(dice.one_in(4)));
            let at = node + 4 * (va(dice) >> 12 & 31);
            let valid = if dice.below(3) == 0 { 0 } else { V | (dice.below(2) * D) | frame(dice, 12) >> 6 };
            let value = valid | if how.global { dice.below(2) * G } else { 0 };
            if machine.freed.contains(&node) || larger(machine.now(at)).is_some() {
                return None;
            }
            text.push(format!("write {at:#x} {value:#x}"));
            machine.begin(cpu, false);
            machine.write(cpu, at, value)
        }
        6 => {
            let of = root(if how.global { 0 } else { u64::from(dice.one_in(3)) });
            let at = of + 4 * u64::from(dice.one_in(4));
            let value = if dice.below(3) == 0 { 0 } else { 0x8000_0000 | leaf(u64::from(dice.one_in(3))) };
            let other = &machine.cpus[1 - cpu];
            // What was below a link when the link went is told apart by the first store alone: the checker asks for its barrier.
            let pending = machine.now(at) != 0 && other.stores > other.visible;
            if machine.freed.contains(&of) || pending {
                return None;
            }
            text.push(format!("write {at:#x} {value:#x}"));
            machine.begin(cpu, false);
            machine.write(cpu, at, value)
        }
        7 => {
            let which = if how.global { 0 } else { u64::from(dice.one_in(3)) };
            let asid = if dice.one_in(8) { dice.below(3) as u16 } else { which as u16 + 1 };
            let at = root(which);
            text.push(format!("root {:#x}", at | u64::from(asid)));
            machine.begin(cpu, true) || machine.root(cpu, at, asid)
        }
        8..=10 => {
            let pages = if dice.one_in(3) {
                None
            } else {
                let first = va(dice);
                let more = [0, 0x1000, 0x3fff, 0x1_ffff][dice.below(4) as usize];
                Some((first, first + more))
            };
            let asid = (dice.below(3) == 0).then(|| dice.below(3) as u16);
            let mut line = "fence".to_string();
            line += &pages.map_or(String::new(), |(first, last)| format!(" va {first:#x} {last:#x}"));
            line += &asid.map_or(String::new(), |asid| format!(" asid {asid}"));
            text.push(line);
            machine.begin(cpu, false);
            machine.fence(cpu, pages.map(|(first, last)| (first & !0x1fff, last | 0x1fff)), asid);
            false
        }
        11 => {
            let complete = dice.below(3) > 0;
            text.push(format!("barrier {}", if complete { "sync" } else { "release" }));
            machine.begin(cpu, false);
            machine.cpus[cpu].epoch += 1;
            if complete {
                machine.cpus[cpu].visible = machine.line;
            }
            machine.load();
            false
        }
        12 => {
            text.push(format!("ipi send {} {}", 1 - cpu, machine.line));
            let broken = machine.begin(cpu, true);
            machine.cpus[cpu].epoch += 1;
            machine.cpus[cpu].visible = machine.line;
            machine.load();
            broken
        }
        13 => {
            let at = if dice.below(2) == 0 { root(dice.below(2)) } else { leaf(dice.below(2)) };
            let free = dice.below(3) > 0;
            if free && machine.freed.contains(&at) {
                return None;
            }
            text.push(format!("node {} {at:#x} 4096", if free { "free" } else { "take" }));
            let mut broken = machine.begin(cpu, true);
            machine.load();
            broken = broken || machine.moves(at);
            if free {
                machine.freed.insert(at);
            } else {
                machine.freed.remove(&at);
                let epoch = machine.cpus[cpu].epoch;
                machine.stored.insert(at, (cpu, machine.line));
                machine.unsettled.insert(at, (cpu, machine.line, epoch));
            }
            machine.load();
            broken
        }
        14 => {
            let bits = how.larger.filter(|_| dice.below(2) == 0).unwrap_or(12);
            let at = frame(dice, bits) | if bits > 12 { dice.below(2) << 12 } else { 0 };
            text.push(format!("frame free {at:#x} 4096"));
            let broken = machine.begin(cpu, true);
            machine.load();
            broken
                || machine.gone(|_, pair| {
                    pair.halves.iter().flatten().any(|page| meet(range(page.0, page.1), range(at, 12)))
                })
        }
        15 => {
            let (first, more) = (va(dice), if dice.one_in(3) { 0xffff } else { 0xfff });
            if machine.lowering.is_some() {
                return None;
            }
            // Of the table that is loaded, or of any.
            let (of, named) = if dice.one_in(3) {
                let of = root(dice.below(2));
                (of, format!(" root {of:#x}"))
            } else {
                (machine.cpus[cpu].root?.0, String::new())
            };
            if machine.freed.contains(&of) {
                return None;
            }
            text.push(format!("lower 1 {first:#x} {:#x}{named}", first + more));
            let broken = machine.begin(cpu, true);
            machine.placed.insert(of);
            machine.lowering = Some((of, first, first + more));
            machine.load();
            broken
        }
        16 => {
            let (root, ..) = machine.lowering?;
            // Which of two tables under one number says what, is not told apart here.
            let mixed = machine.cpus.iter().any(|cpu| {
                let ran = || cpu.ran.keys();
                ran().any(|(asid, of)| ran().any(|(number, root)| number == asid && root != of))
            });
            if mixed || machine.freed.contains(&root) {
                return None;
            }
            text.push("done 1".into());
            let broken = machine.begin(cpu, true);
            machine.load();
            broken || machine.done()
        }
        17 => {
            let (bits, node) = (how.larger?, leaf(0));
            let words = 1_u64 << (bits - 12);
            let first = dice.below(32 / words) * words;
            let (make, to) = (dice.below(3) > 0, frame(dice, bits));
            let value = 1 << 30 | V | (dice.below(2) * D) | (to >> 6) | 1 << (bits - 14 + 6);
            let at = |slot: u64| node + 4 * (first + slot);
            let here: Vec<u64> = (0..words).map(|slot| machine.now(at(slot))).collect();
            // A page is made where there is nothing, or one of its size.
            let fits = here.iter().all(|&word| page(word).is_none() || larger(word) == Some(bits));
            if machine.freed.contains(&node) || (make && !fits) {
                return None;
            }
            for slot in 0..words {
                if slot > 0 {
                    machine.line += 1;
                }
                let value = if make { value } else { 0 };
                text.push(format!("write {:#x} {value:#x}", at(slot)));
                machine.begin(cpu, false);
                if machine.write(cpu, at(slot), value) {
                    return Some(true);
                }
            }
            false
        }
        _ => {
            let at = va(dice) + 8 * dice.below(2);
            let (root, _) = machine.cpus[cpu].root?;
            let (store, user) = (dice.below(2) == 0, dice.below(2) == 0);
            let now = machine.table(root, at).map(|page| leads(page, at));
            let reaches = now.filter(|(_, write)| *write || !store).map(|(to, _)| to);
            let end = reaches.map_or("fault".into(), |to| format!("{to:#x}"));
            let (what, mode) = (if store { "store" } else { "load" }, if user { "user" } else { "kernel" });
            text.push(format!("access {at:#x} {what} {mode} {end}"));
            machine.begin(cpu, true) || machine.access(cpu, at, store, user, reaches)
        }
    })
}

/// A log, and the line that breaks a rule.
fn log(how: Kind, begun: bool, steps: &[(u8, usize, u64)]) -> (String, Option<u64>) {
    let (mut machine, mut text) = (Machine::new(how.halves), String::new());
    if how.halves {
        machine.line += 1;
        text += "0 uses halves\n";
    }
    if begun {
        for (at, value) in [(root(0), 0x8000_0000 | leaf(0)), (leaf(0), 0x1000_0000 >> 6 | V | D)] {
            machine.line += 1;
            machine.write(0, at, value);
            text += &format!("0 write {at:#x} {value:#x}\n");
        }
        machine.line += 1;
        machine.cpus[0].epoch += 1;
        machine.cpus[0].visible = machine.line;
        text += "0 barrier sync\n";
        for cpu in 0..CPUS {
            machine.line += 1;
            machine.root(cpu, root(0), 1);
            text += &format!("{cpu} root {:#x}\n", root(0) | 1);
        }
    }
    for &step in steps {
        let (line, mut lines) = (machine.line, Vec::new());
        machine.line += 1;
        match next(&mut machine, how, step, &mut lines) {
            Some(broken) => {
                text.extend(lines.into_iter().map(|event| format!("{} {event}\n", step.1)));
                if broken {
                    return (text, Some(machine.line));
                }
            }
            None => machine.line = line,
        }
    }
    (text, None)
}

fn agrees(how: Kind, begun: bool, steps: &[(u8, usize, u64)]) -> Result<(), TestCaseError> {
    let (text, wrong) = log(how, begun, steps);
    let (said, why) = match check(Arch::Mips32, &text) {
        Ok(_) => (None, "holds".into()),
        Err(Refusal::Violation(found)) => (Some(found.line()), format!("{}: {found}", found.rule().name())),
        Err(other) => return Err(TestCaseError::fail(format!("{other}\n{text}"))),
    };
    prop_assert_eq!(said, wrong, "{}\n{}", why, text);
    Ok(())
}

fn steps(kinds: u8) -> impl Strategy<Value = Vec<(u8, usize, u64)>> {
    prop::collection::vec((0..kinds, 0..CPUS, any::<u64>()), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Two tables with pages of 4 KiB.
    #[test]
    fn on_mips32(steps in steps(19), begun: bool) {
        agrees(Kind { halves: false, global: false, larger: None }, begun, &steps)?;
    }

    /// One table with global pairs, and halves of them.
    #[test]
    fn on_mips32_with_global_pairs(steps in steps(19), begun: bool) {
        agrees(Kind { halves: false, global: true, larger: None }, begun, &steps)?;
    }

    #[test]
    fn on_mips32_with_larger_pages(steps in steps(19), begun: bool, halves: bool, large: bool) {
        let larger = Some(if large { 16 } else { 14 });
        agrees(Kind { halves, global: false, larger }, begun, &steps)?;
    }
}
