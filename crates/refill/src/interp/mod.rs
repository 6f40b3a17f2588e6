//! An interpreter for refill handlers: the CPU, its coprocessor 0, its TLB, and what they count.
//!
//! It runs the words that a kernel copies to the exception vectors, on the host, against tables that Rust edits. It
//! knows the instructions of [`asm`](crate::asm) and what the architecture says of a TLB that is loaded by software:
//!
//! * entries of two pages, with PageMask, ASID and G; Random, Wired, Index; `tlbp`, `tlbr`, `tlbwi`, `tlbwr`;
//! * exceptions: a TLB miss sets BadVAddr, Context and EntryHi and goes to the refill vector, or, while EXL is set, to
//!   the general one without touching EPC; delay slots;
//! * kseg0 and kseg1 unmapped, everything else through the TLB, so that a handler's own loads can miss;
//! * hazards: reading what `mtc0`, `tlbp` or `tlbr` has changed without a [`barrier`](crate::asm::Asm::barrier) stops
//!   the machine ([`Stop::Hazard`]), where a real one would now and then do the wrong thing. So does a
//!   write that would leave two TLB entries for one address ([`Stop::Duplicate`]).
//!
//! On MIPS III it has 64-bit registers and all 64 bits of an address in EntryHi, as the tables of Elphinstone et al. do,
//! where the R4700 has 40.

mod cp0;
mod exception;
mod execute;
mod memory;
mod tlb;

pub use cp0::State;
pub use exception::{Access, Cause};
pub use memory::{Memory, Window, Windows};
pub use tlb::{Entry, Found, Tlb};

use crate::features::{Endian, Features};

/// Returns a value with the bits in `mask` taken from another one.
const fn merge(value: u64, other: u64, mask: u64) -> u64 {
    value & !mask | other & mask
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions executed.
    pub instructions: u64,
    /// Loads among them.
    pub loads: u64,
    /// Stores among them.
    pub stores: u64,
    /// Exceptions taken.
    pub exceptions: u64,
    /// Exceptions among them that were taken while another one was being handled.
    pub nested: u64,
}

/// Why the machine stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// An `eret` has left the exception.
    Returned,
    /// The next instruction is the one at [`Machine::stop`].
    Reached,
    /// As many instructions as were allowed have been executed.
    Limit,
    /// A word that is no instruction of this CPU, or none that the interpreter knows.
    Unknown {
        /// Where.
        pc: u64,
        /// The word.
        word: u32,
    },
    /// No memory, or a misaligned access.
    Bus {
        /// Where the instruction is.
        pc: u64,
        /// The virtual address.
        at: u64,
    },
    /// Coprocessor 0 was used before a change to it had taken effect.
    Hazard {
        /// Where.
        pc: u64,
    },
    /// A branch in a delay slot.
    Slot {
        /// Where.
        pc: u64,
    },
    /// A general register other than k0 and k1 was written.
    Clobbered {
        /// Where.
        pc: u64,
    },
    /// Several TLB entries would match an address after a write.
    Duplicate {
        /// The address.
        at: u64,
    },
}

/// A machine with a TLB of `N` entries.
#[derive(Clone, Debug)]
pub struct Machine<M, const N: usize> {
    /// What the CPU has.
    pub features: Features,
    /// Physical memory.
    pub memory: M,
    /// The TLB.
    pub tlb: Tlb<N>,
    /// Coprocessor 0.
    pub cp0: State,
    /// The general registers, sign-extended.
    pub gpr: [u64; 32],
    /// The next instruction.
    pub pc: u64,
    /// Where the vectors are: EBase.
    pub vectors: u64,
    /// Where the machine stops: the kernel's own code, which is not run.
    pub stop: u64,
    /// The counts, to be set to zero at will.
    pub counts: Counts,
    /// The target of a branch whose delay slot is next.
    target: Option<u64>,
    /// What was changed of coprocessor 0 since the last barrier.
    pending: execute::Pending,
    executed: u64,
}

impl<M: Memory, const N: usize> Machine<M, N> {
    /// Returns a machine in user mode with an empty TLB, which stops at the general exception vector.
    pub fn new(features: Features, memory: M) -> Self {
        let vectors = 0xffff_ffff_8000_0000;
        Self {
            features,
            memory,
            tlb: Tlb::new(),
            cp0: State::new(N as u64),
            gpr: [0; 32],
            pc: 0,
            vectors,
            stop: vectors + 0x180,
            counts: Counts::default(),
            target: None,
            pending: execute::Pending::default(),
            executed: 0,
        }
    }

    /// Executes instructions until the machine stops, `limit` at most.
    pub fn run(&mut self, limit: u64) -> Stop {
        let mut left = limit;
        loop {
            if self.pc == self.stop && self.target.is_none() {
                return Stop::Reached;
            }
            if left == 0 {
                return Stop::Limit;
            }
            left -= 1;
            if let Err(stop) = self.step() {
                return stop;
            }
        }
    }

    /// Accesses a mapped address in user mode and returns the physical address, or takes the exception and runs its
    /// handler until the machine stops.
    ///
    /// After [`Stop::Returned`] the access is to be tried again, as the CPU would.
    ///
    /// # Errors
    ///
    /// Why the machine stopped.
    pub fn touch(&mut self, at: u64, access: Access) -> Result<u64, Stop> {
        match self.translate(at, access) {
            Ok(physical) => Ok(physical),
            Err(cause) => {
                self.raise(cause, at);
                Err(self.run(10_000))
            }
        }
    }

    /// Accesses a mapped address in user mode, again after every refill, and returns the physical address.
    ///
    /// # Errors
    ///
    /// Why the machine stopped: [`Stop::Reached`] if the kernel's turn has come.
    pub fn settle(&mut self, at: u64, access: Access) -> Result<u64, Stop> {
        for _ in 0..16 {
            match self.touch(at, access) {
                Err(Stop::Returned) => {}
                done => return done,
            }
        }
        Err(Stop::Limit)
    }

    const fn is_big(&self) -> bool {
        matches!(self.features.endian, Endian::Big)
    }
}
