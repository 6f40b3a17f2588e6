//! An interpreter for refill handlers: the CPU, its coprocessor 0, its TLB, and counters.
//!
//! It executes, on the host, the words that a kernel copies to the exception vectors, with tables that Rust code edits. It
//! implements the instructions of [`asm`](crate::asm) and the architecture of a TLB that software loads:
//!
//! * entries of two pages, with PageMask, ASID and G; Random, Wired, Index; `tlbp`, `tlbr`, `tlbwi`, `tlbwr`;
//! * exceptions and delay slots: a TLB miss sets BadVAddr, Context and EntryHi, and goes to the refill vector or, while EXL
//!   is set, to the general vector without a change of EPC;
//! * kseg0 and kseg1 are unmapped, all other addresses use the TLB, so that a handler's own loads can miss;
//! * hazards: a use of a register that `mtc0`, `tlbp` or `tlbr` has changed, without a
//!   [`barrier`](crate::asm::Asm::barrier), stops the machine ([`Stop::Hazard`]); a real CPU may use the old or the new
//!   value;
//! * a write that would make two TLB entries match one address stops the machine ([`Stop::Duplicate`]).
//!
//! On MIPS III it has 64-bit registers, and EntryHi has all 64 bits of an address, as the tables of Elphinstone et al. need;
//! EntryHi of the R4700 has 40.

mod cp0;
mod exception;
mod execute;
mod memory;
mod tlb;

pub use cp0::State;
pub use exception::{Access, Cause};
pub use memory::{Memory, Window, Windows};
pub use tlb::{Entry, Match, Tlb};

use crate::features::{Endian, Features};

/// Returns a value with the bits in `mask` taken from another one.
const fn merge(value: u64, other: u64, mask: u64) -> u64 {
    value & !mask | other & mask
}

/// The counters of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions executed.
    pub instructions: u64,
    /// Load instructions executed.
    pub loads: u64,
    /// Store instructions executed.
    pub stores: u64,
    /// Exceptions taken.
    pub exceptions: u64,
    /// Exceptions that were taken while EXL was set.
    pub nested: u64,
}

/// Why the machine stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// An `eret` has returned from the exception.
    Returned,
    /// The next instruction is at [`Machine::stop`].
    Reached,
    /// The machine has executed as many instructions as the caller allowed.
    Limit,
    /// A word is no instruction of this CPU, or none that the interpreter implements.
    Unknown {
        /// Where.
        pc: u64,
        /// The word.
        word: u32,
    },
    /// An access to an address without memory, or a misaligned access.
    Bus {
        /// Where the instruction is.
        pc: u64,
        /// The virtual address.
        at: u64,
    },
    /// An instruction used a register of coprocessor 0 before a change of it had taken effect.
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

/// A CPU with a TLB of `N` entries, and its memory.
#[derive(Clone, Debug)]
pub struct Machine<M, const N: usize> {
    /// The features of the CPU.
    pub features: Features,
    /// Physical memory.
    pub memory: M,
    /// The TLB.
    pub tlb: Tlb<N>,
    /// Coprocessor 0.
    pub cp0: State,
    /// The general registers, sign-extended.
    pub gpr: [u64; 32],
    /// The address of the next instruction.
    pub pc: u64,
    /// The address of the exception vectors: EBase.
    pub vectors: u64,
    /// The address at which the machine stops: that of the kernel's own code, which the machine does not execute.
    pub stop: u64,
    /// The counters, which the caller may set to zero.
    pub counts: Counts,
    /// If the next instruction is in a delay slot, the address of the instruction after it.
    target: Option<u64>,
    /// The registers of coprocessor 0 that have changed since the last barrier.
    pending: execute::Pending,
    /// The number of instructions executed, which numbers them for `pending`.
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
    /// After [`Stop::Returned`] the caller repeats the access, as a CPU would.
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

    /// Accesses a mapped address in user mode, repeats the access after every refill, and returns the physical address.
    ///
    /// # Errors
    ///
    /// Why the machine stopped: [`Stop::Reached`] if the handler has passed the miss on to the kernel.
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
