//! A boot: builds the machine around one kind of table, and works it.

use tlbkit_pagetable::nodes::Chunk;
use tlbkit_refill::handler::{self, Form, Front, Root, Spec, Stlb, Write};

use crate::arch::{cp0, tlb, vectors};
use crate::args::{Args, Inject, Work};
use crate::vm::caches::Software;
use crate::vm::frames::Frames;
use crate::vm::machine::{BLOCK, Machine};
use crate::vm::structure::{Linear, Nodes, Place, Structure};
use crate::work::check::Checks;
use crate::work::report::{self, Report};
use crate::work::{curve, exhaust, growth, mapping, stress, sweep, tasking};
use crate::{memory, moving, user};

/// The ways to write the TLB, by name.
const WRITES: [(&str, Write); 2] = [("random", Write::Random), ("index", Write::Index)];

/// Returns what a handler of a table is made of.
fn spec<S: Structure>(sets: usize, root: Root, write: Write) -> Spec {
    let front =
        if sets == 0 { Front::None } else { Front::Stlb(fits(Stlb::new(memory::window_of(0) as u32, sets))) };
    Spec {
        features: cp0::features(),
        place: handler::Place::VECTOR,
        block: (&raw const BLOCK).addr() as u32,
        root,
        front,
        walk: S::WALK,
        form: Form::PLAIN,
        write,
    }
}

fn fits<T>(part: Result<T, tlbkit_refill::Error>) -> T {
    match part {
        Ok(part) => part,
        Err(error) => panic!("no handler for this table: {error}"),
    }
}

/// Boots with a kind of table, behind a software TLB cache of so many sets, and returns how many checks failed.
pub fn run<S: Structure>(args: &Args, sets: usize) -> u32 {
    // SAFETY: the machine is built once.
    let (nodes, mut frames) = unsafe { (storage::<S>(), Frames::all()) };
    let Some(code) = frames.take() else { panic!("no frame for the programs") };
    // SAFETY: the frame was just taken.
    unsafe { user::install(code) };
    // SAFETY: this CPU has no other cache.
    let software = match unsafe { Software::new(cp0::cpu(), sets, args.inject) } {
        Ok(software) => software,
        Err(error) => panic!("no software TLB cache: {error}"),
    };
    let mut machine = Machine::<S>::new(nodes, frames, software, 255, args.inject, args.root);
    if args.work == Work::Moving {
        start(&mut machine, &spec::<S>(sets, args.root, Write::Index));
        return moving::run(&mut machine, code);
    }
    let mut failures = 0;
    if args.work == Work::Measure {
        for (write, how) in WRITES {
            let mut checks = Checks::default();
            let words = start(&mut machine, &spec::<S>(sets, args.root, how));
            let swept = sweep::run(&mut machine, code, &mut checks);
            let task = tasking::run(&mut machine, code, &mut checks);
            let mapping = mapping::run(&mut machine, code, &mut checks);
            if write == "random" {
                curve::run(&mut machine, args.table, code, &mut checks);
                growth::run(&mut machine, &mut checks);
            }
            exhaust::run(&mut machine, code, &mut checks);
            failures += checks.failed;
            Report { table: args.table, stlb: sets > 0, write, words, swept, task, mapping, checks }.print();
        }
    }
    start(&mut machine, &spec::<S>(sets, args.root, Write::Index));
    machine.renumber(stress::NUMBERS);
    let mut checks = Checks::default();
    let corrupted = args.inject == Some(Inject::CorruptGuard);
    let stressed = stress::run(&mut machine, args.refills, args.seed, corrupted, &mut checks);
    report::stress(args.table, stressed, machine.tally.spurious, machine.generations(), checks);
    failures + checks.failed
}

/// Boots with processes that send messages, and returns how many checks failed.
pub fn ipc() -> u32 {
    // SAFETY: once.
    let (nodes, frames) = unsafe { (storage::<Linear>(), Frames::all()) };
    crate::ipc::run(nodes, frames)
}

/// Lets a handler serve the refills from now on, and returns how many instructions it has.
fn start<S: Structure>(machine: &mut Machine<S>, spec: &Spec) -> usize {
    machine.forget_everything();
    let handler = fits(spec.assemble());
    let [refill, general, tail] = [&handler.refill, &handler.general, &handler.tail].map(|code| code.words());
    // SAFETY: the handler is that of the machine's tables, and no address space is current.
    unsafe {
        vectors::install(refill, general, tail);
        cp0::context::write(spec.context());
        tlb::switch(0);
    }
    refill.len() + general.len() + tail.len()
}

/// Builds the storage for nodes. Its own few words are in the first chunk of the memory.
///
/// # Safety
///
/// Called once.
pub unsafe fn storage<S: Structure>() -> &'static Nodes<S::Window> {
    // SAFETY: the caller's promise.
    let memory = unsafe { memory::nodes() };
    let Some((own, rest)) = memory.split_first_mut() else { panic!("no memory for nodes") };
    let nodes = match S::Window::nodes(rest) {
        Ok(nodes) => nodes,
        Err(error) => panic!("no memory for nodes: {error}"),
    };
    const { assert!(size_of::<Nodes<S::Window>>() <= size_of::<Chunk>()) };
    let place = core::ptr::from_mut(own).cast::<Nodes<S::Window>>();
    // SAFETY: the chunk is ours for ever, large enough, and aligned beyond any need.
    unsafe {
        place.write(nodes);
        &*place
    }
}
