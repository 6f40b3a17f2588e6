//! Names of operations, their outcomes, and the errors of misuse.

use core::fmt;

/// The name of an operation: the CPU that started it, the slot of that CPU that it uses, and its generation in that slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId {
    /// The number of the CPU that started the operation.
    pub cpu: u16,
    /// The number of the slot.
    pub slot: u16,
    /// The generation, which distinguishes the operation from earlier operations in the same slot. A [`System`](crate::System)
    /// counts generations modulo 2^16, so a slot uses a name again after 65536 operations and [drains](crate::System::drain).
    pub generation: u32,
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}#{}", self.cpu, self.slot, self.generation)
    }
}

/// The end of an operation. After each outcome, the TLBs are consistent with the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The entry has the new rights.
    Done,
    /// A CPU raised the rights while acknowledgements were outstanding: the page is in use again.
    Superseded,
    /// A status write restored the old rights, and the plan is [conditional](crate::Plan::conditional).
    Overwritten,
}

/// The error of a call whose precondition does not hold. Nothing has changed, unless the call's documentation says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Misuse {
    /// There is no such CPU: the number is not below the set's capacity, or not below the number of the system's CPUs.
    NoSuchCpu {
        /// The number.
        cpu: usize,
    },
    /// A queue or table has size zero, or a slot's number is not below the number of slots.
    NoRoom,
    /// The slot has no operation of this generation under way.
    UnknownGeneration {
        /// The operation that the caller named.
        op: OpId,
        /// The slot's current generation.
        current: u32,
    },
    /// Every acknowledgement of the operation has already been counted.
    AlreadyComplete {
        /// The operation.
        op: OpId,
    },
    /// The state machine did not ask for this answer.
    NotAsked,
    /// The CPU already has a handle.
    Attached {
        /// The CPU.
        cpu: usize,
    },
    /// The handle belongs to another system.
    OtherSystem {
        /// The handle's CPU.
        cpu: usize,
    },
    /// The plan was made for unmapping, and the change leaves rights with which the hardware may write status bits.
    OtherRights,
    /// The system's edit type allows only [PTE-first](crate::Algorithm::PteFirst) plans ([`Edit::ONLY_PTE_FIRST`](crate::Edit::ONLY_PTE_FIRST)).
    OtherPlan,
    /// The CPU must not go offline, because it runs another address space.
    StillRuns {
        /// The CPU.
        cpu: usize,
    },
    /// The plan flushes other CPUs' TLBs, and this CPU does not implement [`LocalCpu::remote`](crate::LocalCpu::remote).
    NoRemoteTlbs,
    /// An earlier operation still uses the slot.
    Busy {
        /// The operation in the slot.
        op: OpId,
    },
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchCpu { cpu } => write!(f, "there is no CPU {cpu}"),
            Self::NoRoom => f.write_str("a size is zero, or there is no such slot"),
            Self::UnknownGeneration { op, current } => {
                write!(f, "operation {op} is not the one under way, which is #{current}")
            }
            Self::AlreadyComplete { op } => write!(f, "operation {op} has had all its acknowledgements"),
            Self::NotAsked => f.write_str("the machine did not ask for this"),
            Self::OtherRights => {
                f.write_str("the plan is for unmapping: make one with `LowRights::MayWriteBack`")
            }
            Self::OtherPlan => f.write_str("the system's edit type allows only PTE-first plans"),
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
