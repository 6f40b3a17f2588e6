//! A boot: builds the machine around one kind of table, and works it.

use tlbkit_pagetable::nodes::Chunk;
use tlbkit_refill::features::{Endian, Features};
use tlbkit_refill::handler::{Form, Front, Handler, Place as Room, Root, Spec, Write};

use crate::arch::{cp0, tlb, vectors};
use crate::args::{Args, Inject, Work};
use crate::vm::caches::Software;
use crate::vm::frames::Frames;
use crate::vm::machine::{BLOCK, Machine};
use crate::vm::structure::{Nodes, Place, Structure};
use crate::work::check::Checks;
use crate::work::report::{self, Report};
use crate::work::{exhaust, mapping, stress, sweep, tasking};
use crate::{memory, user};

/// The ways to write the TLB, by name.
const WRITES: [(&str, Write); 2] = [("random", Write::Random), ("index", Write::Index)];

/// Returns what this CPU's handlers are made for.
fn features() -> Features {
    // Scratch registers are not used: the root word's place is the same on all CPUs.
    let endian = if cfg!(target_endian = "big") { Endian::Big } else { Endian::Little };
    Features::R2.with_endian(endian)
}

/// Assembles the handler of a table.
fn handler<S: Structure>(front: Front, write: Write) -> Handler {
    let spec = Spec {
        features: features(),
        place: Room::VECTOR,
        block: (&raw const BLOCK).addr() as u32,
        root: Root::Block,
        front,
        walk: S::WALK,
        form: Form::PLAIN,
        write,
    };
    match spec.assemble() {
        Ok(handler) => handler,
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
    let mut machine = Machine::<S>::new(nodes, frames, software, 255, args.inject);
    let mut failures = 0;
    if args.work == Work::Measure {
        for (write, how) in WRITES {
            let handler = handler::<S>(Front::None, how);
            let mut checks = Checks::default();
            start(&mut machine, &handler);
            let swept = sweep::run(&mut machine, code, &mut checks);
            let task = tasking::run(&mut machine, code, &mut checks);
            let mapping = mapping::run(&mut machine, code, &mut checks);
            exhaust::run(&mut machine, code, &mut checks);
            failures += checks.failed;
            let words = handler.refill.words().len();
            Report { table: args.table, stlb: sets > 0, write, words, swept, task, mapping, checks }.print();
        }
    }
    start(&mut machine, &handler::<S>(Front::None, Write::Index));
    machine.renumber(stress::NUMBERS);
    let mut checks = Checks::default();
    let corrupted = args.inject == Some(Inject::CorruptGuard);
    let stressed = stress::run(&mut machine, args.refills, args.seed, corrupted, &mut checks);
    report::stress(args.table, stressed, machine.tally.spurious, machine.generations(), checks);
    failures + checks.failed
}

/// Lets a handler serve the refills from now on.
fn start<S: Structure>(machine: &mut Machine<S>, handler: &Handler) {
    machine.forget_everything();
    // SAFETY: the handler is that of the machine's tables.
    unsafe { vectors::install(handler.refill.words(), &[]) };
    // SAFETY: number 0 is nobody's.
    unsafe { tlb::switch(0) };
}

/// Builds the storage for nodes. Its own few words are in the first chunk of the memory.
///
/// # Safety
///
/// Called once.
unsafe fn storage<S: Structure>() -> &'static Nodes<S::Window> {
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
