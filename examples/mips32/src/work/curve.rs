//! When a software TLB cache pays: the same refills with it and without it, at hit rates from high to low.
//!
//! Sets of pages at random are read again and again; the larger a set, the fewer of its pairs the cache still knows. A
//! refill that takes as few instructions as any was a hit.

use tlbkit_addr::Pfn;

use super::check::Checks;
use super::sweep::{self, Cost};
use crate::println;
use crate::task::Event;
use crate::user::{DONE, Program};
use crate::vm::machine::Machine;
use crate::vm::space::{self, Region};
use crate::vm::structure::Structure;

/// Sets have `2^n` pages, for these `n`.
const SIZES: core::ops::RangeInclusive<u32> = 5..=13;
/// How often each page is read.
const ROUNDS: u32 = 4;
/// The gigabyte where they are.
const SPARSE: u32 = 0x2000_0000;

/// Prints a line for each size.
pub fn run<S: Structure>(machine: &mut Machine<S>, table: &str, code: Pfn, checks: &mut Checks) {
    for log in SIZES {
        let Ok(mut task) = machine.task(code, Program::Message, [0; 4], 0) else {
            panic!("no nodes for a task")
        };
        let event = machine.run(&mut task);
        checks.check(matches!(event, Event::Call(DONE, [0, ..])), |say| say(format_args!("{event:?}")));
        task.space.allow(Region { pages: space::pages(SPARSE, 1 << 18), write: false });
        let set = sweep::sparse(log, 1 << log);
        for at in set.clone() {
            let read = machine.read(&mut task.space, at);
            checks.check(read.is_ok(), |say| say(format_args!("{at:#x} cannot be read: {read:?}")));
        }
        let (mut hits, mut misses) = (Cost::none(), Cost::none());
        sweep::each(machine, &mut task.space, set, ROUNDS, checks, |instructions| {
            // A hit in the cache takes twelve. Where there is no cache this tells nothing.
            let cost = if instructions <= HIT { &mut hits } else { &mut misses };
            cost.add(instructions);
        });
        println!(
            "curve table={table} pages={} hits={} hit_insns={} misses={} miss_insns={}",
            1 << log,
            hits.refills,
            hits.sum,
            misses.refills,
            misses.sum
        );
        machine.delete(task.space, |frame| frame == code);
    }
}

/// What a hit takes.
const HIT: u32 = 12;
