//! What happens when there are no frames left: an error, for the program that wanted one.

use tlbkit_addr::Pfn;

use super::check::Checks;
use crate::println;
use crate::task::Event;
use crate::user::Program;
use crate::vm::fault::Refusal;
use crate::vm::machine::Machine;
use crate::vm::space::{self, Region};
use crate::vm::structure::Structure;

/// Where the program's pages are, how many it wants and how many it can have.
const AT: u32 = 0x1000_0000;
const WANTED: u32 = 16;
const FRAMES: usize = 8;

/// Runs a program that wants more than there is, then one whose access is refused.
pub fn run<S: Structure>(machine: &mut Machine<S>, code: Pfn, checks: &mut Checks) {
    let taken = machine.frames.taken();
    let arguments = [AT, 1 << 12, WANTED, 0];
    let Ok(mut task) = machine.task(code, Program::Sweep, arguments, 0) else {
        panic!("no nodes for a task")
    };
    task.space.allow(Region { pages: space::pages(AT, WANTED as usize), write: false });
    let limit = machine.frames.limit(FRAMES);
    let event = machine.run(&mut task);
    let expected = Event::Refused(Refusal::NoFrame, AT + ((FRAMES as u32) << 12));
    checks.check(event == expected, |say| say(format_args!("without frames a program ends with {event:?}")));
    if let Event::Refused(refusal, at) = event {
        println!("  a program that touched {at:#x} with {FRAMES} frames in the pool was ended: {refusal}");
    }
    machine.delete(task.space, |frame| frame == code);
    machine.frames.lift(limit);
    checks.check(machine.frames.taken() == taken, |say| say(format_args!("frames are missing afterwards")));

    // A store where nothing is, and one where it may not be: refused, with the right address.
    for (at, region, refusal) in [
        (0x6543_2100, None, Refusal::NoRegion),
        (AT + 8, Some(Region { pages: space::pages(AT, 1), write: false }), Refusal::Protection),
    ] {
        let Ok(mut task) = machine.task(code, Program::Store, [at, 7, 0, 0], 0) else {
            panic!("no nodes for a task")
        };
        region.into_iter().for_each(|region| task.space.allow(region));
        let event = machine.run(&mut task);
        checks.check(event == Event::Refused(refusal, at), |say| {
            say(format_args!("a store to {at:#x} ends with {event:?}"));
        });
        machine.delete(task.space, |frame| frame == code);
    }
}
