//! The machine: what it knows of each CPU, and which event does what.

use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

use super::arch::{Arch, Family, Scope, rights};
use super::hash::Map;
use super::held::{Held, Item, Place};
use super::memory::{Line, Store, Tables};
use super::session::{Flushed, Session};
use super::verdict::{Checked, Pending, Refusal};
use crate::event::{Barrier, CPUS, Event};

/// What a CPU is about.
#[derive(Debug, Default)]
pub(super) struct Cpu {
    /// The root node of each register, and the number that goes with it.
    pub(super) roots: [Option<(u64, u16)>; 2],
    pub(super) held: Held,
    /// The number of the last store that every CPU's walks see, and of those before it.
    pub(super) visible: Line,
    /// The last event that orders the stores that it sees before its own walks: a `dsb` of any domain, a fence of RISC-V.
    pub(super) near: Line,
    /// Nodes that it has filled with zeros since its stores were visible to every CPU's walks.
    pub(super) filled: VecDeque<u64>,
    /// RISC-V: a table that it has loaded, of which it may read what the memory held before.
    pub(super) unread: Option<Unread>,
    /// The number of both halves, where one register has it.
    pub(super) number: u16,
    /// When it ran its halves under two numbers, and no line says which of them counts.
    pub(super) twofold: Option<Line>,
    /// When it loaded a root last: it sees the stores before that.
    pub(super) loaded: Line,
    /// Barriers executed.
    pub(super) epoch: u64,
    /// The last of them: stores before it are seen before stores after it.
    pub(super) ordered: Line,
    /// Invalidations that have not completed.
    pub(super) deferred: Vec<Begun>,
    /// A number that it has to invalidate before it goes on.
    pub(super) mixed: Option<Mixed>,
    /// Numbers under which it may hold what has been given back or taken away while it did not run them, and when it last did.
    pub(super) dead: Map<u16, Line>,
    /// The tables that it may hold entries of, by number.
    pub(super) used: Map<u16, Vec<u64>>,
    /// MIPS32: words that it stored and that it may not translate by, together with what it holds.
    pub(super) unpaired: Vec<u64>,
    /// MIPS32: what it has just invalidated, and done nothing since.
    pub(super) forgot: Option<Scope>,
    /// AArch64: the roots that it has left since its last context synchronisation event, and when.
    pub(super) left: Vec<(u64, bool, Line)>,
    /// AArch64: pages that it has invalidated itself since then, and when that was complete.
    pub(super) fetched: Vec<(Place, Item, Line)>,
    /// What it has invalidated of all numbers.
    pub(super) flushed: Flushed,
    /// The last invalidation that it executed, or that reached it.
    pub(super) last_fence: Option<(Line, Scope)>,
}

/// A table that a CPU has loaded, of which its walks may read a node as that was before a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unread {
    pub(super) root: u64,
    pub(super) asid: u16,
    /// When the root was loaded.
    pub(super) since: Line,
    pub(super) node: u64,
    pub(super) store: Store,
}

/// A number under which a CPU may hold entries of two tables, or what has gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mixed {
    pub(super) asid: u16,
    /// When the second root was loaded.
    pub(super) since: Line,
    /// The root of the table that it ran under this number before.
    pub(super) first: u64,
    /// The root that it has loaded since.
    pub(super) root: u64,
}

/// A change that has begun and is not promised yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lowering {
    /// The root of the table that it is made in.
    pub(super) root: u64,
    pub(super) first: u64,
    pub(super) last: u64,
    /// When it began.
    pub(super) line: Line,
    /// A word of the table has changed since, in the range.
    pub(super) changed: bool,
}

/// An invalidation that has begun and not completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) scope: Scope,
    pub(super) at: Line,
    /// The CPU that it is for, or none for all.
    pub(super) only: Option<usize>,
    /// Its bit in the items that go with it. Those that find no bit of their own share the last one.
    pub(super) slot: u32,
}

/// A holder of what a node says: a CPU, under a number, with the node at an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) cpu: usize,
    pub(super) asid: u16,
    /// The root, or none if it goes on through a link that a table no longer has.
    pub(super) root: Option<(u64, bool)>,
    pub(super) va: u64,
    pub(super) rights: u8,
    pub(super) since: Line,
    /// That link.
    pub(super) link: Option<Item>,
}

impl Holder {
    /// A CPU that goes on at `va` through a link that no table has.
    pub(super) fn by_link(cpu: usize, asid: u16, va: u64) -> Self {
        Self { cpu, asid, root: None, va, rights: rights::ALL, since: 0, link: None }
    }
}

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) arch: Arch,
    pub(super) now: Line,
    /// CPUs below this have had events.
    pub(super) seen: usize,
    pub(super) tables: Tables,
    pub(super) cpus: Vec<Cpu>,
    pub(super) sessions: Map<u64, Vec<Session>>,
    /// Where items map a frame, by its size and its address, and how many do so there.
    pub(super) frames: BTreeMap<((u32, u64), usize, Place), u32>,
    /// Where links to a node are held that no table has.
    pub(super) cut: Map<u64, Vec<(usize, Place)>>,
    /// Interrupts on their way: to which CPUs, and since when.
    interrupts: Map<u64, (u64, Line)>,
    /// Changes that have begun.
    pub(super) lowering: Map<u64, Lowering>,
    /// AArch64: the register that has the number of both halves, if the log says which.
    pub(super) numbered: Option<bool>,
    /// MIPS32: no entry takes in more than one page of more than 4 KiB.
    pub(super) halves: bool,
    pub(super) checked: Checked,
}

impl Machine {
    pub(super) fn new(arch: Arch) -> Self {
        let (sessions, frames, cut, interrupts, lowering) = Default::default();
        let cpus = (0..CPUS).map(|_| Cpu::default()).collect();
        let (tables, checked) = (Tables::new(arch), Checked::default());
        let (now, seen, halves, numbered) = (0, 0, false, None);
        Self {
            arch,
            now,
            seen,
            tables,
            cpus,
            sessions,
            frames,
            cut,
            interrupts,
            lowering,
            numbered,
            halves,
            checked,
        }
    }

    pub(super) fn impossible(&self, why: &'static str) -> Refusal {
        Refusal::Impossible { line: self.now, why }
    }

    pub(super) fn va(&self, va: u64) -> Result<u64, Refusal> {
        self.arch.va(va).ok_or_else(|| self.impossible("no virtual address of this architecture"))
    }

    pub(super) fn event(&mut self, line: Line, cpu: usize, event: Event) -> Result<(), Refusal> {
        self.now = line;
        if cpu >= CPUS {
            return Err(self.impossible("there is no such CPU"));
        }
        if self.checked.full {
            return Err(self.impossible("the log was full before this line"));
        }
        if self.checked.gap {
            return Err(self.impossible("the log has a gap before this line"));
        }
        if let Err(why) = event.well_formed() {
            return Err(Refusal::Malformed { line, why });
        }
        self.checked.events += 1;
        self.seen = self.seen.max(cpu + 1);
        if self.arch.is_software() {
            self.settle(cpu, &event)?;
        }
        self.has_read(cpu, &event)?;
        match event {
            Event::Write { at, value } => self.write(cpu, at, value, false),
            Event::Swap { at, old, new } => self.swap(cpu, at, old, new),
            Event::Root { value, high } => self.root(cpu, value, high),
            Event::Fence(fence) => self.fence(cpu, fence),
            Event::Barrier(Barrier::Stores | Barrier::Local | Barrier::LocalStores)
                if self.arch.family() != Family::Arm =>
            {
                Err(self.impossible("only AArch64 has this barrier"))
            }
            Event::Barrier(Barrier::Context) if self.arch.family() != Family::Arm => {
                Err(self.impossible("only AArch64 has an `isb` that concerns translations"))
            }
            Event::Barrier(Barrier::TlbSync) if self.arch.family() != Family::X86 => {
                Err(self.impossible("only x86-64 has this barrier"))
            }
            Event::Barrier(barrier) => {
                self.barrier(cpu, barrier);
                Ok(())
            }
            Event::Node(memory) => self.node(cpu, memory),
            Event::Frame(memory) => self.frame(cpu, memory),
            Event::IpiSend { cpus, id } => {
                // One that is sent twice before it is taken is taken once.
                let (waiting, since) = self.interrupts.entry(id).or_default();
                (*waiting, *since) = (*waiting | cpus, self.now);
                self.order(cpu);
                self.publish(cpu);
                Ok(())
            }
            Event::IpiTake { id } => self.take_interrupt(cpu, id),
            Event::Lower { id, first, last, root } => self.lower(cpu, id, (first, last), root),
            Event::Done { id } => self.done(id),
            Event::Access { at, kind, user, reaches } => self.access(cpu, at, kind, user, reaches),
            Event::Refill { at, words, bytes, blind } => self.refill(cpu, at, words, bytes, blind),
            Event::Full => {
                self.checked.full = true;
                Ok(())
            }
            Event::Gap => {
                self.checked.gap = true;
                Ok(())
            }
            Event::UsesDirty => {
                if self.arch.is_software() {
                    return Err(self.impossible("hardware of this architecture sets no status bits"));
                }
                if self.checked.writes > 0 {
                    return Err(self.impossible("`uses dirty` comes before the first write"));
                }
                self.tables.dirty = true;
                Ok(())
            }
            Event::UsesAsid { high } => {
                if self.arch.family() != Family::Arm {
                    return Err(self.impossible("this architecture has one root register"));
                }
                if !self.sessions.is_empty() {
                    return Err(self.impossible("`uses asid` comes before the first root"));
                }
                self.numbered = Some(high);
                Ok(())
            }
            Event::UsesHalves => {
                if !self.arch.is_software() {
                    return Err(self.impossible("software loads no TLB of this architecture"));
                }
                if self.checked.writes > 0 {
                    return Err(self.impossible("`uses halves` comes before the first write"));
                }
                self.halves = true;
                Ok(())
            }
        }
    }

    /// Returns what has begun and not ended, in the order of its lines.
    pub(super) fn pending(&self) -> Vec<Pending> {
        let changes = self.lowering.iter().map(|(&id, change)| Pending::Change { id, line: change.line });
        let sent = self.interrupts.iter();
        let sent = sent.map(|(&id, &(cpus, line))| Pending::Interrupt { id, cpus, line });
        let mut found: Vec<Pending> = changes.chain(sent).collect();
        for (cpu, of) in (0..).zip(&self.cpus) {
            let count = of.deferred.len();
            found.extend(of.deferred.first().map(|of| Pending::Invalidation { cpu, count, line: of.at }));
            found.extend(of.mixed.map(|of| Pending::Number { cpu, asid: of.asid, line: of.since }));
            found.extend(of.unread.map(|of| Pending::Root { cpu, root: of.root, line: of.since }));
            found.extend(of.twofold.map(|line| Pending::Halves { cpu, line }));
        }
        found.sort_unstable_by_key(Pending::line);
        found
    }

    fn take_interrupt(&mut self, cpu: usize, id: u64) -> Result<(), Refusal> {
        let waiting = self.interrupts.get_mut(&id).filter(|(cpus, _)| *cpus >> cpu & 1 != 0);
        let Some((cpus, _)) = waiting else {
            return Err(self.impossible("this interrupt was not sent to this CPU, or was taken already"));
        };
        *cpus &= !(1 << cpu);
        if *cpus == 0 {
            self.interrupts.remove(&id);
        }
        // An exception begins anew what the CPU executes.
        self.barrier(cpu, Barrier::Context);
        Ok(())
    }
}
