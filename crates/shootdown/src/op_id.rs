//! Names of operations, and how one ends.

use core::fmt;

/// An operation: the CPU that started it, which of that CPU's slots it uses, and its generation number in that slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId {
    /// The CPU whose slot it is.
    pub cpu: u16,
    /// The slot.
    pub slot: u16,
    /// The generation: it tells the operation from earlier ones in the same slot. A [`System`](crate::System) counts them
    /// modulo 2^16, so a name is another operation's again after as many.
    pub generation: u32,
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}#{}", self.cpu, self.slot, self.generation)
    }
}

/// How an operation ended. The TLBs are consistent in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The entry has the new rights.
    Done,
    /// A CPU raised the rights while replies were outstanding: the page is in use again.
    Superseded,
    /// A status write put the old rights back, and the plan is to say so rather than to start over.
    Overwritten,
}

/// A call that does not fit the state of things. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Misuse {
    /// No such CPU: the number is beyond the set's capacity or the system's size.
    NoSuchCpu {
        /// The number.
        cpu: usize,
    },
    /// The set of CPUs is empty where at least one is needed.
    NoCpus,
    /// A queue or table of size zero.
    NoRoom,
    /// The slot has no operation of this generation under way.
    UnknownGeneration {
        /// The operation that was named.
        op: OpId,
        /// The generation that the slot is at.
        current: u32,
    },
    /// Every acknowledgement of the operation has already been counted.
    AlreadyComplete {
        /// The operation.
        op: OpId,
    },
    /// The machine did not ask for this answer.
    NotAsked,
    /// The CPU has a handle already.
    Attached {
        /// The CPU.
        cpu: usize,
    },
    /// The handle belongs to another system.
    OtherSystem {
        /// The handle's CPU.
        cpu: usize,
    },
    /// The plan was made for unmapping, and the change leaves rights that the hardware may write back.
    OtherRights,
    /// The CPU is to go offline, and runs an address space.
    StillRuns {
        /// The CPU.
        cpu: usize,
    },
    /// The plan flushes other CPUs' TLBs, and this CPU has not said how.
    NoRemoteTlbs,
    /// The slot is still in use by an earlier operation.
    Busy {
        /// The operation in it.
        op: OpId,
    },
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchCpu { cpu } => write!(f, "there is no CPU {cpu}"),
            Self::NoCpus => f.write_str("the set of CPUs is empty"),
            Self::NoRoom => f.write_str("a queue of size zero holds nothing"),
            Self::UnknownGeneration { op, current } => {
                write!(f, "operation {op} is not the one under way, which is #{current}")
            }
            Self::AlreadyComplete { op } => write!(f, "operation {op} has had all its acknowledgements"),
            Self::NotAsked => f.write_str("the machine did not ask for this"),
            Self::OtherRights => {
                f.write_str("the plan is for unmapping: make one with `LowRights::MayWriteBack`")
            }
            Self::StillRuns { cpu } => write!(f, "CPU {cpu} runs another address space: leave that first"),
            Self::NoRemoteTlbs => {
                f.write_str("the plan flushes other CPUs' TLBs: implement `LocalCpu::remote`")
            }
            Self::Busy { op } => write!(f, "operation {op} is still under way"),
            Self::Attached { cpu } => write!(f, "CPU {cpu} has a handle already: pass that on, or drop it"),
            Self::OtherSystem { cpu } => write!(f, "the handle of CPU {cpu} belongs to another system"),
        }
    }
}

impl core::error::Error for Misuse {}
