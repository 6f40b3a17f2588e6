//! Working sets larger than the TLB: what a refill takes.
//!
//! A compact set has its pages side by side, a sparse one wherever random numbers say in a gigabyte. Their pages are
//! mapped on demand, by a program in user mode that reads each; then the kernel reads them again and again, timing each
//! load. A load that the TLB knows takes no instruction but itself; what another takes more is the refill.

use core::arch::asm;

use tlbkit_pagetable::Footprint;

use super::check::Checks;
use super::{Random, instructions};
use crate::arch::touch;
use crate::arch::{cp0, tlb};
use crate::task::Event;
use crate::user::{DONE, Program};
use crate::vm::machine::Machine;
use crate::vm::space::{self, Region, Space};
use crate::vm::structure::Structure;

/// Pages of each working set.
pub const PAGES: u32 = 256;
/// How often each is read.
const ROUNDS: u32 = 16;

/// Where the compact set begins, and the gigabyte of the sparse one.
const COMPACT: u32 = 0x1000_0000;
const SPARSE: u32 = 0x2000_0000;

/// What refills took, in instructions.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub refills: u32,
    pub min: u32,
    pub max: u32,
    pub sum: u32,
}

impl Cost {
    /// Returns the cost of no refill.
    pub const fn none() -> Self {
        Self { refills: 0, min: u32::MAX, max: 0, sum: 0 }
    }

    /// Adds a refill.
    pub fn add(&mut self, instructions: u32) {
        self.refills += 1;
        self.min = self.min.min(instructions);
        self.max = self.max.max(instructions);
        self.sum += instructions;
    }

    /// Returns both together.
    pub fn and(mut self, other: Self) -> Self {
        self.refills += other.refills;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self
    }
}

/// What the sets cost.
#[derive(Clone, Copy, Debug)]
pub struct Swept {
    pub compact: Cost,
    pub sparse: Cost,
    /// What the table of both takes.
    pub footprint: Footprint,
}

/// The addresses of a set of `pages` pages.
pub fn sparse(seed: u32, pages: u32) -> impl Iterator<Item = u32> + Clone {
    let mut random = Random::new(seed);
    (0..pages).map(move |_| SPARSE + (random.below(1 << 16) << 14) + (random.below(4) << 12))
}

fn compact() -> impl Iterator<Item = u32> + Clone {
    (0..PAGES).map(|page| COMPACT + (page << 12))
}

/// Sweeps both sets in one address space.
pub fn run<S: Structure>(machine: &mut Machine<S>, code: tlbkit_addr::Pfn, checks: &mut Checks) -> Swept {
    const SALT: u32 = 0x111;
    let arguments = [COMPACT, 1 << 12, PAGES, SALT];
    let Ok(mut task) = machine.task(code, Program::Sweep, arguments, SALT) else {
        panic!("no nodes for a task")
    };
    task.space.allow(Region { pages: space::pages(COMPACT, PAGES as usize), write: false });
    task.space.allow(Region { pages: space::pages(SPARSE, 1 << 18), write: false });

    let event = machine.run(&mut task);
    checks.check(matches!(event, Event::Call(DONE, [0, ..])), |say| {
        say(format_args!("the program that sweeps ended with {event:?}"));
    });
    let space = &mut task.space;
    for at in sparse(1, PAGES) {
        let read = machine.read(space, at);
        checks.check(read.is_ok(), |say| say(format_args!("{at:#x} cannot be read: {read:?}")));
    }
    plugin_counts(true);
    let compact = measure(machine, space, compact(), ROUNDS, checks);
    let sparse = measure(machine, space, sparse(1, PAGES), ROUNDS, checks);
    plugin_counts(false);
    let footprint = space.footprint();
    machine.delete(task.space, |frame| frame == code);
    Swept { compact, sparse, footprint }
}

/// Tells QEMU's plugin, if there is one, to begin counting or to end: by instructions that do nothing else.
fn plugin_counts(begin: bool) {
    // SAFETY: register 0 stays what it is.
    unsafe {
        if begin {
            asm!("ori $0, $0, 1", options(nomem, nostack));
        } else {
            asm!("ori $0, $0, 2", options(nomem, nostack));
        }
    }
}

/// Reads each page of a set `rounds` times, and returns what that took.
fn measure<S: Structure>(
    machine: &mut Machine<S>,
    space: &mut Space<'_, S>,
    set: impl Iterator<Item = u32> + Clone,
    rounds: u32,
    checks: &mut Checks,
) -> Cost {
    let mut cost = Cost::none();
    each(machine, space, set, rounds, checks, |instructions| cost.add(instructions));
    cost
}

/// Reads each page of a set `rounds` times, beginning with an empty TLB, and tells `refilled` what each refill took.
pub fn each<S: Structure>(
    machine: &mut Machine<S>,
    space: &mut Space<'_, S>,
    set: impl Iterator<Item = u32> + Clone,
    rounds: u32,
    checks: &mut Checks,
    mut refilled: impl FnMut(u32),
) {
    machine.activate(space);
    tlb::forget_all(|_| true);
    for _ in 0..rounds {
        cp0::put_timer_off();
        for at in set.clone() {
            let touched = touch::load(at);
            let expected = space.content(space::page(at));
            checks.check(touched.map(|touched| touched.value) == Ok(expected), |say| {
                say(format_args!("{at:#x} reads {touched:x?} and not {expected:#x}"));
            });
            // A load and the reading of Count take an instruction each.
            let more = touched.map_or(0, |touched| instructions(touched.ticks).saturating_sub(2));
            if more > 0 {
                refilled(more);
            }
        }
        let duplicates = tlb::duplicates();
        checks.check(duplicates == 0, |say| {
            say(format_args!("{duplicates} pairs of TLB entries match one address"));
        });
    }
}
