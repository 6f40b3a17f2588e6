//! The checker's machine: the state of each CPU, and the effect of each event.

use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

use super::arch::{Arch, Family, Scope, rights};
use super::hash::Map;
use super::held::{Item, Place, StaleEntries};
use super::memory::{Line, Store, Tables};
use super::session::{Flushed, Session};
use super::verdict::{Checked, Pending, Refusal};
use super::walk::Walk;
use crate::event::{Barrier, CPUS, Event};

/// The state of a CPU.
#[derive(Debug, Default)]
pub(super) struct Cpu {
    /// The root node of each register, and the number that goes with it.
    pub(super) roots: [Option<(u64, u16)>; 2],
    pub(super) held: StaleEntries,
    /// The line up to which this CPU's stores are visible to every CPU's walks.
    pub(super) visible: Line,
    /// The last event that orders the stores that this CPU sees before its own walks: a `dsb` of any domain, a fence of RISC-V.
    pub(super) near: Line,
    /// The nodes that this CPU has filled with zeros since its stores were last visible to every CPU's walks.
    pub(super) filled: VecDeque<u64>,
    /// RISC-V: a table that this CPU has loaded and in which its walks may read the memory's earlier contents.
    pub(super) unread: Option<Unread>,
    /// The number of both halves, if one register holds it.
    pub(super) number: u16,
    /// The line in which the CPU first ran its halves under two numbers, if the log does not say which of them is in force.
    pub(super) twofold: Option<Line>,
    /// The line in which the CPU last loaded a root: the CPU sees all stores before it.
    pub(super) loaded: Line,
    /// The number of barriers that the CPU has executed.
    pub(super) epoch: u64,
    /// The line of the last of these barriers: stores before it are visible before stores after it.
    pub(super) ordered: Line,
    /// The CPU's invalidations that have not completed.
    pub(super) deferred: Vec<Begun>,
    /// A number that the CPU has to invalidate before its next access or root.
    pub(super) mixed: Option<Mixed>,
    /// The numbers under which the CPU may hold entries of memory or rights that went while it did not run the number, each with the
    /// line in which the CPU last left the number.
    pub(super) dead: Map<u16, Line>,
    /// The tables of which the CPU may hold entries, by number.
    pub(super) used: Map<u16, Vec<u64>>,
    /// MIPS32: words that the CPU stored. It must not load a pair with such a word while it holds certain other entries.
    pub(super) unpaired: Vec<u64>,
    /// MIPS32: the scope of an invalidation that was the CPU's last action.
    pub(super) forgot: Option<Scope>,
    /// AArch64: the roots that the CPU has left since its last context synchronisation event, with their half and the line.
    pub(super) left: Vec<(u64, bool, Line)>,
    /// AArch64: the pages that the CPU has invalidated itself since that event, and the line in which the invalidation completed.
    pub(super) fetched: Vec<(Place, Item, Line)>,
    /// The CPU's invalidations that name no number.
    pub(super) flushed: Flushed,
    /// The walk by software that the CPU is in.
    pub(super) walk: Option<Walk>,
    /// The last invalidation that the CPU executed, or that reached it.
    pub(super) last_fence: Option<(Line, Scope)>,
}

/// A table that a CPU has loaded, and a node of it that the CPU's walks may read as the node was before a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unread {
    pub(super) root: u64,
    pub(super) asid: u16,
    /// The line in which the root was loaded.
    pub(super) since: Line,
    pub(super) node: u64,
    pub(super) store: Store,
}

/// A number under which a CPU may hold entries of two tables, or entries of memory or rights that have gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mixed {
    pub(super) asid: u16,
    /// The line in which the second root was loaded.
    pub(super) since: Line,
    /// The root of the table that the CPU ran under this number before.
    pub(super) first: u64,
    /// The second root.
    pub(super) root: u64,
}

/// A change that has begun and is not promised yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lowering {
    /// The root of the table in which the change is made.
    pub(super) root: u64,
    pub(super) first: u64,
    pub(super) last: u64,
    /// The line in which the change began.
    pub(super) line: Line,
    /// Whether a word of the table has changed in the range since then.
    pub(super) changed: bool,
}

/// An invalidation that has begun and not completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) scope: Scope,
    pub(super) at: Line,
    /// The CPU whose TLB the invalidation affects; `None` if it affects all.
    pub(super) only: Option<usize>,
    /// The invalidation's bit in the items that it removes. Invalidations that find no free bit share the last one.
    pub(super) slot: u32,
}

/// A holder of a node's entries: a CPU that finds the node at an address, under a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) cpu: usize,
    pub(super) asid: u16,
    /// The root by which the CPU finds the node, and whether it is that of the upper half. `None` if the CPU finds the node by a
    /// link that it holds and that no table has any more.
    pub(super) root: Option<(u64, bool)>,
    pub(super) va: u64,
    pub(super) rights: u8,
    pub(super) since: Line,
    /// This link, if it is known.
    pub(super) link: Option<Item>,
}

impl Holder {
    /// Returns a CPU that walks at `va` through a link that it holds and that no table has.
    pub(super) fn by_link(cpu: usize, asid: u16, va: u64) -> Self {
        Self { cpu, asid, root: None, va, rights: rights::ALL, since: 0, link: None }
    }
}

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) arch: Arch,
    pub(super) now: Line,
    /// One more than the highest number of a CPU that has had an event.
    pub(super) seen: usize,
    pub(super) tables: Tables,
    pub(super) cpus: Vec<Cpu>,
    pub(super) sessions: Map<u64, Vec<Session>>,
    /// The places with items that map a frame: by the frame's size and address, the CPU and the place, the number of such items.
    pub(super) frames: BTreeMap<((u32, u64), usize, Place), u32>,
    /// For each node, the CPUs and places with an item that is a link to it.
    pub(super) cut: Map<u64, Vec<(usize, Place)>>,
    /// The interrupts that are sent and not taken: the CPUs that have to take each, and the line of its last send.
    interrupts: Map<u64, (u64, Line)>,
    /// The changes that have begun and are not promised.
    pub(super) lowering: Map<u64, Lowering>,
    /// AArch64: whether the register of the upper half has the number of both halves, if the log says which register has it.
    pub(super) numbered: Option<bool>,
    /// MIPS32: whether no TLB entry maps two pages of more than 4 KiB.
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
                // An interrupt that is sent twice before it is taken is taken once.
                let (waiting, since) = self.interrupts.entry(id).or_default();
                (*waiting, *since) = (*waiting | cpus, self.now);
                self.order(cpu);
                self.publish(cpu);
                Ok(())
            }
            Event::IpiTake { id } => self.take_interrupt(cpu, id),
            Event::Lower { id, first, last, root } => self.lower(cpu, id, (first, last), root),
            Event::Done { id } => self.done(id),
            Event::WalkBegin { root, uses } => self.begin_walk(cpu, root, uses),
            Event::WalkEnd => self.end_walk(cpu),
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

    /// Returns the actions that have begun and not ended, in the order of their lines.
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
            found.extend(of.walk.as_ref().map(|walk| Pending::Walk {
                cpu,
                root: walk.root,
                line: walk.since,
            }));
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
        // Taking an exception is a context synchronisation event.
        self.barrier(cpu, Barrier::Context);
        Ok(())
    }
}
