//! Tasks come and go (Elphinstone et al. 3.3): create one, wait for its message, delete it.
//!
//! A task needs one page, which holds its program; so the cost is that of a table with one page in it, and of the way
//! into user mode and back.

use tlbkit_addr::Pfn;

use super::check::Checks;
use super::counted;
use crate::task::Event;
use crate::user::{DONE, Program};
use crate::vm::machine::Machine;
use crate::vm::structure::Structure;

/// How many tasks. More than there are numbers for address spaces would count a flush of the TLB with them.
const TASKS: u32 = 100;

/// Returns the instructions that a task takes.
pub fn run<S: Structure>(machine: &mut Machine<S>, code: Pfn, checks: &mut Checks) -> u32 {
    let ((), total) = counted(|| {
        for _ in 0..TASKS {
            let Ok(mut task) = machine.task(code, Program::Message, [0; 4], 0) else {
                panic!("no nodes for a task")
            };
            let event = machine.run(&mut task);
            checks.check(matches!(event, Event::Call(DONE, [0, ..])), |say| {
                say(format_args!("a task that should have sent a message ended with {event:?}"));
            });
            machine.delete(task.space, |frame| frame == code);
        }
    });
    total / TASKS
}
