//! What a thread leaves behind as it traps, and why it has.

use tlbkit::{Access, VirtAddr};

use crate::arch::{CONVENTION, More};

/// The registers of a thread that does not run. `arch` knows where each part is.
#[repr(C)]
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// By number. Some are not used.
    registers: [usize; 32],
    /// Where the thread goes on.
    pc: usize,
    /// The kernel's stack, while the thread runs.
    _stack: usize,
    pub(crate) more: More,
}

/// Why a thread has come back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trap {
    /// It asks for something.
    Call,
    /// An access has faulted.
    Fault(VirtAddr, Access),
    /// Another CPU wants something.
    Interrupt,
    /// It has run for long enough.
    Timer,
    /// It has done what it must not do.
    Illegal,
}

/// Which registers are what.
pub(crate) struct Convention {
    pub(crate) stack: usize,
    /// The first of four arguments.
    pub(crate) arguments: usize,
    /// What is asked for, and the answer.
    pub(crate) number: usize,
    pub(crate) answer: usize,
    /// Bytes that every caller leaves on the stack.
    pub(crate) room: usize,
    /// How many bytes the instruction has that asks.
    pub(crate) call: usize,
}

impl Frame {
    /// Returns a thread that begins at `pc`.
    pub(crate) fn new(pc: usize, stack: usize, argument: usize) -> Self {
        let mut registers = [0; 32];
        registers[CONVENTION.stack] = stack - CONVENTION.room;
        registers[CONVENTION.arguments] = argument;
        Self { registers, pc, _stack: 0, more: More::NEW }
    }

    /// Returns what the thread asks for: the call's number and its arguments.
    pub(crate) fn call(&self) -> (usize, [usize; 4]) {
        let argument = |at: usize| self.registers[CONVENTION.arguments + at];
        (self.registers[CONVENTION.number], [0, 1, 2, 3].map(argument))
    }

    /// Answers a call: the thread goes on behind its instruction.
    pub(crate) fn answer(&mut self, value: usize) {
        self.registers[CONVENTION.answer] = value;
        self.pc += CONVENTION.call;
    }

    /// Lets the thread go on elsewhere.
    pub(crate) fn go_to(&mut self, pc: usize) {
        self.pc = pc;
    }

    /// Returns where the thread is.
    pub(crate) fn pc(&self) -> usize {
        self.pc
    }
}
