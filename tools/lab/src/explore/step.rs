//! What can happen next in a world: one turn of one CPU, of its hardware or of its software.

use std::fmt;

use tlbkit_shootdown::{Action, MissAction, Reply, SwitchAction};

use super::broadcast::{Now, Walk};
use super::world::{Scene, Word, World};

/// One step, for a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A TLB loads an entry.
    Load { cpu: usize, pte: usize },
    /// A TLB loads an entry for a use that sets these bits.
    LoadToUse { cpu: usize, pte: usize, bits: u8 },
    /// A walker reads an entry, and will load it.
    Walk { cpu: usize, pte: usize },
    /// A TLB drops an entry.
    Evict { cpu: usize, pte: usize },
    /// A use of the page makes the hardware set a status bit.
    Use { cpu: usize, pte: usize, bit: u8 },
    /// A status write lands.
    Land { cpu: usize },
    /// A miss handler starts.
    Miss { cpu: usize, pte: usize },
    /// A miss handler goes on.
    Handle { cpu: usize, now: MissAction },
    /// An interprocessor interrupt is taken.
    Interrupt { cpu: usize },
    /// A replier's step.
    Reply { cpu: usize, now: Reply },
    /// A requester's step.
    Ask { cpu: usize, op: usize, now: Action },
    /// A step of joining, idling, leaving.
    Switch { cpu: usize, now: SwitchAction },
    /// A TLB carries out another CPU's flush.
    Flushed { cpu: usize, pte: usize },
    /// The rights of entry 0 are raised again.
    Raise { cpu: usize },
    /// A step of an operation that ends by a broadcast.
    Broadcast { cpu: usize, op: usize, now: Now },
    /// A walk by software begins with this step.
    Visits { cpu: usize, pte: usize, now: Walk },
    /// A step of a walk by software.
    Visit { cpu: usize, pte: usize, now: Walk },
    /// A look at the word of a CPU, for a node that waits.
    Collect { op: usize, cpu: usize },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Load { cpu, pte } => write!(f, "CPU {cpu}'s TLB loads entry {pte}"),
            Self::LoadToUse { cpu, pte, bits } => {
                write!(f, "CPU {cpu}'s TLB loads entry {pte} for a use, to be marked {}", marks(bits))
            }
            Self::Walk { cpu, pte } => write!(f, "CPU {cpu}'s walker reads entry {pte}"),
            Self::Evict { cpu, pte } => write!(f, "CPU {cpu}'s TLB drops entry {pte}"),
            Self::Use { cpu, pte, bit } => {
                write!(f, "CPU {cpu} uses page {pte}, to be marked {}", marks(bit))
            }
            Self::Land { cpu } => write!(f, "CPU {cpu}'s status write (or walk) lands"),
            Self::Miss { cpu, pte } => write!(f, "CPU {cpu} misses on page {pte}"),
            Self::Handle { cpu, now } => write!(f, "CPU {cpu}'s miss handler: {now:?}"),
            Self::Interrupt { cpu } => write!(f, "CPU {cpu} is interrupted"),
            Self::Reply { cpu, now } => write!(f, "CPU {cpu} replies: {now:?}"),
            Self::Ask { cpu, op, now } => write!(f, "CPU {cpu}, operation {op}: {now:?}"),
            Self::Switch { cpu, now } => write!(f, "CPU {cpu} switches: {now:?}"),
            Self::Flushed { cpu, pte } => write!(f, "CPU {cpu}'s TLB is flushed of entry {pte} from outside"),
            Self::Raise { cpu } => write!(f, "CPU {cpu} raises the rights of entry 0 again"),
            Self::Broadcast { cpu, op, now: Now::Asked(now) } => {
                write!(f, "CPU {cpu}, operation {op}: {now:?}")
            }
            Self::Broadcast { cpu, op, now } => write!(f, "CPU {cpu}, operation {op}: {now:?}"),
            Self::Visits { cpu, pte, now } => {
                write!(f, "CPU {cpu} begins a walk to entry {pte} by software: {now:?}")
            }
            Self::Visit { cpu, pte, now } => write!(f, "CPU {cpu} walks to entry {pte} by software: {now:?}"),
            Self::Collect { op, cpu } => write!(f, "the node of operation {op} waits: the word of CPU {cpu}"),
        }
    }
}

const fn marks(bits: u8) -> &'static str {
    match bits {
        Word::REFERENCED => "referenced",
        Word::DIRTY => "dirty",
        _ => "referenced and dirty",
    }
}

/// What is told of the turns that can be taken.
pub(crate) struct Turns<'a> {
    pub(crate) scene: &'a Scene,
    /// The steps of the turn at hand.
    steps: Vec<Step>,
    each: &'a mut dyn FnMut(&[Step], World),
}

impl Turns<'_> {
    /// Offers a turn: `from` after `step`, which does `change`, and after what follows at once. The change may note
    /// steps of its own.
    pub(crate) fn offer(
        &mut self,
        from: &World,
        step: Step,
        change: impl FnOnce(&mut World, &mut Vec<Step>),
    ) {
        self.steps.clear();
        self.steps.push(step);
        let mut next = from.clone();
        change(&mut next, &mut self.steps);
        next.settle(self.scene, &mut self.steps);
        (self.each)(&self.steps, next);
    }
}

impl World {
    /// Calls `each` with the steps of every turn that can be taken and the world after it, always in the same order.
    /// A CPU that waits may be offered a turn that changes nothing.
    pub(crate) fn successors(&self, scene: &Scene, mut each: impl FnMut(&[Step], Self)) {
        let mut turns = Turns { scene, steps: Vec::new(), each: &mut each };
        for cpu in 0..self.cpus.len() {
            self.hardware(cpu, &mut turns);
            self.software(cpu, &mut turns);
        }
        if let Some(cpu) = scene.raise {
            self.raise(cpu, &mut turns);
        }
        self.collect(&mut turns);
    }
}
