//! A program in an address space.

use tlbkit_addr::Pfn;
use tlbkit_pagetable::Error;

use crate::arch::exception::enter_user;
use crate::arch::frame::{Exception, Frame};
use crate::arch::touch::Fault;
use crate::user::{CODE, Program};
use crate::vm::access::TRIES;
use crate::vm::fault::Refusal;
use crate::vm::machine::Machine;
use crate::vm::space::{self, PLAIN, Space};
use crate::vm::structure::Structure;

/// A program and its address space.
#[derive(Debug)]
pub struct Task<'n, S: Structure> {
    pub space: Space<'n, S>,
    pub frame: Frame,
}

/// Why a program stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It asks for something: `v0`, `a0` to `a3`. It will go on behind it.
    Call(u32, [u32; 4]),
    /// It did what it may not do, or what there is no memory for, at this address.
    Refused(Refusal, u32),
}

impl<S: Structure> Machine<S> {
    /// Returns a program that is about to begin. It shares the frame of the `code`.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    pub fn task(
        &mut self,
        code: Pfn,
        program: Program,
        arguments: [u32; 4],
        salt: u32,
    ) -> Result<Task<'static, S>, Error> {
        let mut space = Space::new(self.nodes, salt)?;
        self.map(&mut space, space::pages(CODE, 1), code, PLAIN)?;
        let mut frame = Frame::new(program.entry(), 0);
        frame.registers[4..8].copy_from_slice(&arguments);
        Ok(Task { space, frame })
    }

    /// Runs a program until it wants something or has gone wrong. Faults that can be resolved are.
    pub fn run(&mut self, task: &mut Task<'_, S>) -> Event {
        self.activate(&mut task.space);
        let (mut last, mut times) = (0, 0);
        loop {
            // SAFETY: the frame is a program's, and its address space is current.
            unsafe { enter_user(&raw mut task.frame) };
            match task.frame.exception() {
                Exception::Syscall => {
                    task.frame.epc += 4;
                    let [a0, a1, a2, a3] = [4, 5, 6, 7].map(|at| task.frame.registers[at]);
                    return Event::Call(task.frame.registers[2], [a0, a1, a2, a3]);
                }
                Exception::Interrupt => crate::smp::interrupt(&mut task.frame),
                why => {
                    let fault = Fault { why, at: task.frame.bad_vaddr };
                    times = if fault.at == last { times + 1 } else { 0 };
                    last = fault.at;
                    if times == TRIES {
                        return Event::Refused(Refusal::Again, fault.at);
                    }
                    if let Err(refusal) = self.resolve(&mut task.space, fault) {
                        return Event::Refused(refusal, fault.at);
                    }
                }
            }
        }
    }
}
