//! The machine that the crate's state machines run on in the explorer: page-table entries, TLBs with their
//! hardware's bad habits, and one instance of the crate's machines per CPU and operation.

use std::fmt;

use tlbkit_addr::{Asid, CpuSet, Pages, Vpn};
use tlbkit_shootdown::{
    Hardware, Loader, Miss, OpId, Outcome, Plan, Queue, Rendezvous, Repair, Replier, Requester, SectionWord,
    SpaceCpus, StatusBit, Switch, SwitchKind, Target,
};

use super::broadcast::{Ending, Node, Visit};

/// Most page-table entries, and operations.
pub(crate) const PTES: usize = 2;
/// Most CPUs.
pub(crate) const CPUS: usize = 4;
/// Requests a queue holds. Two requesters overflow a queue of one.
pub(crate) const QUEUE: usize = 1;

/// A page-table entry or a copy of one: rights in the low two bits, then the referenced and the dirty bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Word(pub(crate) u8);

impl Word {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const READ: Self = Self(1);
    pub(crate) const WRITE: Self = Self(2);
    pub(crate) const REFERENCED: u8 = 4;
    pub(crate) const DIRTY: u8 = 8;

    pub(crate) const fn rights(self) -> u8 {
        self.0 & 3
    }

    /// Which status bits a use of this copy may set: the dirty bit if it may be written through.
    pub(crate) const fn settable(self) -> u8 {
        match self.rights() {
            0 => 0,
            2 => Self::REFERENCED | Self::DIRTY,
            _ => Self::REFERENCED,
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["--", "r-", "rw", "??"][usize::from(self.rights())])?;
        f.write_str(if self.0 & Self::REFERENCED == 0 { "" } else { "R" })?;
        f.write_str(if self.0 & Self::DIRTY == 0 { "" } else { "D" })
    }
}

/// The damages of Table 2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// The entry does not have the rights it was given.
    Overwriting,
    /// A copy allows what the entry forbids.
    IllegalReference,
    /// A copy forbids what the entry allows.
    RejectedReference,
    /// A copy's dirty bit is set and the entry's is not: writes go unrecorded.
    WrongStatus,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overwriting => "overwriting PTE",
            Self::IllegalReference => "illegal reference",
            Self::RejectedReference => "rejecting reference",
            Self::WrongStatus => "wrong PTE status",
        })
    }
}

/// What is explored: the hardware, the plan, and what each CPU does. The initial world follows from it.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) hardware: Hardware,
    pub(crate) plan: Plan,
    pub(crate) cpus: usize,
    pub(crate) ptes: usize,
    /// The operations: started by CPU 0, 1, ... on this entry, down to these rights.
    pub(crate) ops: Vec<(usize, Word)>,
    /// CPU that joins, idles or goes offline meanwhile.
    pub(crate) change: Option<(usize, SwitchKind)>,
    /// The CPU that joins has run the space before, and still holds entry 0.
    pub(crate) lazy: bool,
    /// CPU that raises entry 0's rights again at some time.
    pub(crate) raise: Option<usize>,
    /// What entry 0 holds at the start. A second one has every status bit set besides, and its cache lines stay
    /// clean: the hardware writes for one entry, and what two have to do with each other is the requesters' affair.
    pub(crate) start: Word,
    /// Nothing is synchronized: the entry is changed, and that is all. Which damage is looked for (Table 2.2).
    pub(crate) bare: Option<Damage>,
    /// Whether operations end by a broadcast, in place of the plan's algorithm.
    pub(crate) broadcasts: bool,
    /// Whether CPUs walk the table by software, too.
    pub(crate) visits: bool,
    /// Whether steps that cannot be told apart are one (`reduce`).
    pub(crate) reduce: bool,
}

/// One CPU.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Cpu {
    pub(crate) tlb: [Word; PTES],
    /// A status write under way: the entry, and the word to be written.
    pub(crate) late: Option<(u8, Word)>,
    /// A hardware walk under way: what it has read. Only where another CPU flushes this TLB: a CPU's own flush
    /// ends its walks, and no two steps of a walk can then be told apart.
    pub(crate) walk: Option<(u8, Word)>,
    /// A miss handler under way: for which entry, and what it has read.
    pub(crate) miss: Option<(u8, Miss, Word)>,
    pub(crate) queue: Queue<QUEUE>,
    pub(crate) replier: Replier<QUEUE>,
    /// An acknowledgement has been counted, and the count not yet read (hazard).
    pub(crate) half_counted: bool,
    /// In 2-phase.
    pub(crate) stopped: bool,
    /// The operation that this CPU runs, and the one that it took over in the middle of that.
    pub(crate) own: Option<u8>,
    pub(crate) taken: Option<u8>,
    pub(crate) switch: Option<Switch>,
    pub(crate) changed: bool,
    /// A remote flush asked for: its entry, whether it drains.
    pub(crate) flushes: heapless::Vec<(u8, bool), 4>,
    pub(crate) posted: u8,
    pub(crate) flushed: u8,
    /// Its word, and its walk by software.
    pub(crate) section: SectionWord,
    pub(crate) visit: Option<Visit>,
}

/// One operation.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Op {
    pub(crate) machine: Requester,
    pub(crate) id: OpId,
    pub(crate) pte: u8,
    pub(crate) new: Word,
    pub(crate) count: u8,
    pub(crate) continued: bool,
    pub(crate) open: bool,
    pub(crate) superseded: bool,
    /// The entry has been changed (the text's t1).
    pub(crate) updated: bool,
    pub(crate) ended: Option<Outcome>,
    /// The status bits that came back.
    pub(crate) status: u8,
    /// Its end, where that is a broadcast, and the node that it takes out.
    pub(crate) ending: Option<Ending>,
    pub(crate) node: Node,
}

/// What the CPUs share, and what is noted of the whole.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Memory {
    pub(crate) ptes: [Word; PTES],
    pub(crate) tentative: [Word; PTES],
    pub(crate) changing: [bool; PTES],
    pub(crate) locked: [bool; PTES],
    pub(crate) space: SpaceCpus,
    /// A CPU has written to the page through a translation whose dirty bit is in memory.
    pub(crate) written: [bool; PTES],
    pub(crate) raised: bool,
    /// While the operation was still under way.
    pub(crate) raised_early: bool,
    /// The epoch in which a walk by software begins.
    pub(crate) epoch: usize,
    /// The machine said that something cannot be; it is a violation.
    pub(crate) wrong: Option<&'static str>,
}

/// Everything.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) memory: Memory,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) ops: Vec<Op>,
}

pub(crate) fn space() -> Asid {
    Asid::new(1, 8).unwrap_or_default()
}

pub(crate) fn page(pte: u8) -> Vpn {
    Vpn::new(usize::from(pte) * 16)
}

pub(crate) fn target(pte: u8) -> Target {
    Target::Pages(space(), Pages::one(page(pte)))
}

impl Scene {
    /// Returns the world before anything has happened. TLBs are empty, or full where they [replace](Self::replaces)
    /// what they hold: a full one can do whatever an empty one can.
    pub(crate) fn begin(&self) -> anyhow::Result<World> {
        let mut members = CpuSet::first_n(self.cpus).unwrap_or_default();
        let mut running = members;
        if let Some((cpu, SwitchKind::In)) = self.change {
            running.remove(cpu);
            if !self.lazy {
                members.remove(cpu);
            }
        }
        let lazy = |cpu: usize| self.lazy && !running.contains(cpu);
        let tlb = |cpu: usize, pte: usize| match pte < self.ptes && members.contains(cpu) {
            true if self.replaces() || lazy(cpu) && pte == 0 => self.starts_with(pte),
            _ => Word::NONE,
        };
        let cpu = |at: usize| -> anyhow::Result<Cpu> {
            Ok(Cpu {
                tlb: std::array::from_fn(|pte| tlb(at, pte)),
                late: None,
                walk: None,
                miss: None,
                queue: Queue::new()?,
                replier: Replier::new(self.plan)?,
                half_counted: false,
                stopped: false,
                own: (at < self.ops.len()).then_some(at as u8),
                taken: None,
                switch: None,
                changed: false,
                flushes: heapless::Vec::new(),
                posted: 0,
                flushed: 0,
                section: SectionWord::OUTSIDE,
                visit: None,
            })
        };
        let op = |(at, &(pte, new)): (usize, &(usize, Word))| -> anyhow::Result<Op> {
            Ok(Op {
                machine: Requester::new(self.plan, at)?,
                id: OpId { cpu: at as u16, slot: 0, generation: 1 },
                pte: pte as u8,
                new,
                count: 0,
                continued: false,
                open: false,
                superseded: false,
                updated: false,
                ended: None,
                status: 0,
                ending: self.ending(new),
                node: Node::None,
            })
        };
        let memory = Memory {
            ptes: std::array::from_fn(|at| if at < self.ptes { self.starts_with(at) } else { Word::NONE }),
            tentative: [Word::WRITE; PTES],
            changing: [false; PTES],
            locked: [false; PTES],
            space: SpaceCpus { members, running, stale: CpuSet::empty() },
            written: [false; PTES],
            raised: false,
            raised_early: false,
            epoch: 0,
            wrong: None,
        };
        let mut world = World {
            memory,
            cpus: (0..self.cpus).map(cpu).collect::<Result<_, _>>()?,
            ops: self.ops.iter().enumerate().map(op).collect::<Result<_, _>>()?,
        };
        world.settle(self, &mut Vec::new());
        Ok(world)
    }

    fn starts_with(&self, pte: usize) -> Word {
        let bits = if pte == 0 || self.hardware.lines_need_entry { 0 } else { self.bits() };
        Word(self.start.0 | bits)
    }

    /// Tells whether a CPU that waits in 2-phase serves its own queue.
    pub(crate) fn serves(&self) -> bool {
        self.plan.rendezvous() == Rendezvous::Serve && self.plan.has(Repair::RENDEZVOUS)
    }

    /// Tells whether a walk's two steps matter: see [`Cpu::walk`].
    pub(crate) fn walks(&self) -> bool {
        self.hardware.remote_flush && self.hardware.loader == Loader::Hardware
    }

    /// Tells whether the hardware keeps the dirty bit, so that none may be lost.
    pub(crate) fn counts_dirty(&self) -> bool {
        self.hardware.dirty == StatusBit::ATOMIC && !self.hardware.status_overwrites()
    }

    /// Returns which status bits the hardware writes: of [`Word::REFERENCED`] and [`Word::DIRTY`].
    pub(crate) fn bits(&self) -> u8 {
        let written = |of, bit| if of == StatusBit::NEVER { 0 } else { bit };
        written(self.hardware.referenced, Word::REFERENCED) | written(self.hardware.dirty, Word::DIRTY)
    }

    /// Returns in which ways the hardware writes a status bit.
    pub(crate) const fn ways(&self, bit: u8) -> StatusBit {
        if bit == Word::DIRTY { self.hardware.dirty } else { self.hardware.referenced }
    }
}

impl World {
    /// Prints which CPU holds what, for a line of a trace.
    pub(crate) fn picture(&self, scene: &Scene) -> String {
        let ptes: Vec<_> = self.memory.ptes[..scene.ptes].iter().map(Word::to_string).collect();
        let tlbs: Vec<_> = self
            .cpus
            .iter()
            .map(|cpu| {
                let held: Vec<_> = cpu.tlb[..scene.ptes]
                    .iter()
                    .map(|w| if w.rights() == 0 { "..".into() } else { w.to_string() })
                    .collect();
                held.join(" ")
            })
            .collect();
        format!("PTE {}  TLB {}", ptes.join(" "), tlbs.join(" | "))
    }
}
