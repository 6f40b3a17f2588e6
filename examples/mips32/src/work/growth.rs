//! A hashed table that grows, stopped after every change: the refill handler finds every page that is mapped.
//!
//! Pages at random are mapped one by one, then unmapped one by one in the reverse order. So the table splits segments,
//! parts their chains a few steps a change, and merges the segments again. After each change the kernel reads every
//! page, beginning with an empty TLB. Nothing resolves a fault here: a miss that the handler passes to the general vector
//! is a failure.

use super::check::Checks;
use super::sweep::{self, Cost};
use crate::arch::touch;
use crate::println;
use crate::vm::machine::Machine;
use crate::vm::space::{self, Region, Space};
use crate::vm::structure::Structure;

/// Pages at the most: beyond the second doubling of a table that has more than one segment.
const PAGES: u32 = 1800;
/// First buckets that so many pages fill: four segments of 512.
const GROWN: usize = 2048;
/// Where random numbers start.
const SEED: u32 = 3;
/// The gigabyte where the pages are.
const SPARSE: u32 = 0x2000_0000;

/// Grows and shrinks a table; does nothing if the tables do not grow.
pub fn run<S: Structure>(machine: &mut Machine<S>, checks: &mut Checks) {
    let Ok(mut space) = Space::new(machine.nodes, 5) else { panic!("no nodes for a space") };
    let Some(first) = space.buckets() else { return machine.delete(space, |_| false) };
    space.allow(Region { pages: space::pages(SPARSE, 1 << 18), write: false });
    let mut cost = Cost::none();
    let mut read_all = |machine: &mut Machine<S>, space: &mut Space<'_, S>, pages, checks: &mut Checks| {
        sweep::each(machine, space, sweep::sparse(SEED, pages), 1, checks, |refill| cost.add(refill));
    };
    for (page, at) in sweep::sparse(SEED, PAGES).enumerate() {
        let read = machine.read(&mut space, at);
        checks.check(read.is_ok(), |say| say(format_args!("{at:#x} cannot be read: {read:?}")));
        read_all(machine, &mut space, page as u32 + 1, checks);
    }
    let most = space.buckets();
    for page in (0..PAGES).rev() {
        let Some(at) = sweep::sparse(SEED, PAGES).nth(page as usize) else { break };
        // The same page may have been drawn before.
        if !sweep::sparse(SEED, page).any(|other| other == at) {
            match machine.unmap(&mut space, space::page(at)) {
                // SAFETY: the table has forgotten the frame, and the TLB with it.
                Ok(frame) => unsafe { machine.frames.give(frame) },
                Err(error) => checks.check(false, |say| say(format_args!("{at:#x}: {error}"))),
            }
            let gone = touch::load(at);
            checks.check(gone.is_err(), |say| say(format_args!("{at:#x} is unmapped and reads {gone:x?}")));
        }
        read_all(machine, &mut space, page, checks);
    }
    let last = space.buckets();
    checks.check(most == Some(GROWN) && last < most, |say| {
        say(format_args!("from {first} the table has grown to {most:?} buckets, and shrunk to {last:?}"));
    });
    println!(
        "  growth             {first} to {} buckets, then {}; refills after each change {cost}",
        most.unwrap_or_default(),
        last.unwrap_or_default()
    );
    machine.delete(space, |_| false);
}
