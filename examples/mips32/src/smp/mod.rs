//! Several CPUs: every shootdown protocol that suits the hardware, while all of them use what is changed.
//!
//! ```text
//!   cores, gic        the other cores, and interrupts between them
//!   masked, idle      interrupts off; sleeping without missing one
//!   sleepers, seats   CPUs to be woken; what each CPU's interrupt handler finds
//!   lock, random
//!   arena             frames whose contents say whose they are
//!   run               what the CPUs share: table, model, counts
//!   lower             the change that a shootdown is for, what it uncovers, and the shootdowns themselves
//!   engine            a CPU's part: what the protocol asks of it, and its miss handler
//!   vector            the refill vector
//!   stress            what each CPU does
//!   report            how it went
//!   paging            Tzou's chapter 5: pages that come and go, and messages, by the same shootdowns
//! ```
//!
//! No CPU ever spins for another, except for the few instructions for which another CPU holds a list's lock: with more
//! CPUs than the host has, spinning CPUs keep the CPU for which they wait from running.

mod arena;
mod cores;
mod engine;
mod gic;
mod idle;
mod lock;
mod lower;
mod masked;
mod paging;
mod random;
mod report;
mod run;
mod seats;
mod shelf;
mod sleepers;
mod stress;
mod vector;

use core::sync::atomic::{AtomicU32, Ordering};

use tlbkit_pagetable::format::EntryLo;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Identity, Slab};
use tlbkit_pagetable::{Shared, destroy};
use tlbkit_refill::handler::Root;
use tlbkit_shootdown::{Algorithm, Hardware, LowRights, Plan, Rendezvous};

use self::lower::Shootdowns;
use self::masked::masked;
use self::paging::Paging;
use self::run::Run;
use self::shelf::Shelf;
use crate::arch::frame::Frame;
use crate::arch::{cp0, tlb};
use crate::args::Args;
use crate::println;
use crate::vm::machine::BLOCK;
use crate::vm::structure::{MultiLevel, Structure};
use tlbkit_names::MPT;

/// The most CPUs that take part.
const CPUS: usize = 4;

/// MIPS as the shootdowns see it: software loads the TLBs and no CPU writes status bits back, and no CPU flushes
/// another one's. Tzou's Table 2.1 has it as the RP3.
const MIPS: Hardware = Hardware::RP3;

/// Node storage of a table that several CPUs walk.
type Nodes = Slab<'static, u32, Shared, Identity>;
/// The table under test.
type Shot = Mpt<'static, Va32, EntryLo, Nodes>;

static NODES: Shelf<Nodes> = Shelf::new();
/// The tables of a run: [`Run`] uses the first, [`Paging`] both.
static TABLES: [Shelf<Shot>; 2] = [const { Shelf::new() }; 2];
/// The run at hand: CPU 0 puts it there and takes it away, while no other CPU is in it.
static JOB: Shelf<Job> = Shelf::new();
/// How many runs there have been.
static NUMBER: AtomicU32 = AtomicU32::new(0);
/// The CPUs but the first that are in the run.
static INSIDE: AtomicU32 = AtomicU32::new(0);

/// What all CPUs do.
#[expect(clippy::large_enum_variant, reason = "there is one, in a static")]
enum Job {
    /// Any page's rights change at any time.
    Stress(Run, Shootdowns),
    /// Pages come and go, and messages move.
    Paging(Paging),
}

impl Job {
    /// Takes part, on CPU `cpu`. Interrupts are off before and afterwards.
    fn take_part(&'static self, cpu: usize) {
        match self {
            Self::Stress(run, system) => stress::take_part(run, system, cpu),
            Self::Paging(run) => paging::take_part(run, cpu),
        }
    }
}

/// Where every CPU but the first begins, on its own stack, its TLB in no particular state.
#[unsafe(no_mangle)]
extern "C" fn secondary(cpu: usize) -> ! {
    tlb::reset();
    // SAFETY: the TLB has just been emptied.
    unsafe { vector::wire() };
    gic::stop_timer();
    gic::listen();
    let mut last = 0;
    loop {
        masked(|masked| {
            while NUMBER.load(Ordering::SeqCst) == last {
                idle::sleep(masked);
            }
        });
        last = NUMBER.load(Ordering::SeqCst);
        // SAFETY: CPU 0 has put the run there before it counted it, and takes it away when no CPU is inside.
        if let Some(job) = unsafe { JOB.get() } {
            job.take_part(cpu);
        }
        INSIDE.fetch_sub(1, Ordering::SeqCst);
        gic::send(0);
    }
}

/// An interrupt in kernel mode: another CPU wants something. CPUs that run alone mask all of them.
///
/// Nothing here is in mapped memory: a TLB miss while EXL is set would be taken for something else.
pub fn interrupt(frame: &mut Frame) {
    if idle::end(frame) {
        return;
    }
    gic::acknowledge(cp0::cpu());
    // EXL off, interrupts still off, so that a protocol which waits can sleep. The frame has the Status to return to.
    gic::listen();
    masked(|masked| {
        engine::SEATS.with(masked, engine::Engine::poll);
        paging::poll(masked);
    });
}

/// Runs the protocols that suit the hardware, one after the other, on so many CPUs. Returns the number of failures.
pub fn run(args: &Args) -> u32 {
    let there = gic::find().min(CPUS);
    if !(1..=there).contains(&args.cpus) {
        println!("error: {} CPUs are asked for; there may be 1 to {there}", args.cpus);
        return 1;
    }
    if args.table != MPT {
        println!("error: several CPUs share a table MPT, not `{}`", args.table);
        return 1;
    }
    // SAFETY: this CPU has wired nothing.
    unsafe { vector::wire() };
    gic::route(args.cpus);
    gic::stop_timer();
    gic::listen();
    cores::start(args.cpus);
    // SAFETY: called once.
    let nodes = match Nodes::identity(unsafe { crate::memory::nodes() }) {
        // SAFETY: the other CPUs do not look there before there is a run.
        Ok(nodes) => unsafe { NODES.put(nodes) },
        Err(error) => panic!("no memory for nodes: {error}"),
    };
    let mut failures = 0;
    let mut asked = false;
    for algorithm in Algorithm::ALL {
        if args.protocol.is_some_and(|name| name != algorithm.name()) {
            continue;
        }
        asked = true;
        match Plan::new(algorithm, &MIPS, LowRights::NeverWriteBack) {
            Ok(plan) => {
                failures += shoot(args, plan, nodes);
                // The other way around two requesters' deadlock.
                if algorithm == Algorithm::TwoPhase {
                    failures += shoot(args, plan.with_rendezvous(Rendezvous::Serve), nodes);
                }
            }
            Err(why) => println!("{algorithm} is not for this hardware: {why}"),
        }
    }
    if !asked {
        println!("error: there is no protocol `{}`", args.protocol.unwrap_or_default());
        return 1;
    }
    failures
}

/// Has all CPUs do one thing after the other by one protocol, and returns the number of failures.
fn shoot(args: &Args, plan: Plan, nodes: &'static Nodes) -> u32 {
    let stress = run_one(plan, Root::Block, nodes, args.cpus, |tables, roots| {
        BLOCK.set_root(roots[0]);
        Job::Stress(Run::new(plan, tables[0], args), lower::shootdowns(plan))
    });
    // A CPU of this run says which table is its own before it uses one.
    let paging = run_one(plan, Root::ErrorEpc, nodes, args.cpus, |tables, roots| {
        Job::Paging(Paging::new(plan, tables, roots, args))
    });
    stress + paging
}

/// Has all CPUs do what `job` makes of two empty tables, whose roots a refill handler finds in `root` as the second argument
/// has them. Returns the number of failures.
fn run_one(
    plan: Plan,
    root: Root,
    nodes: &'static Nodes,
    cpus: usize,
    job: impl FnOnce([&'static Shot; 2], [u32; 2]) -> Job,
) -> u32 {
    let tables = TABLES.each_ref().map(|shelf| match Shot::new(nodes) {
        // SAFETY: no other CPU is in a run.
        Ok(table) => unsafe { shelf.put(table) },
        Err(error) => panic!("no memory for a table: {error}"),
    });
    // SAFETY: no other CPU is in a run, so none has a reference to the job before.
    let job = unsafe { JOB.put(job(tables, tables.map(|table| MultiLevel::WALK.root(table.root().get())))) };
    // SAFETY: the job has put the root there, or each CPU of it does.
    unsafe { vector::install(&plan, MultiLevel::WALK, root) };
    INSIDE.store(cpus as u32 - 1, Ordering::SeqCst);
    NUMBER.fetch_add(1, Ordering::SeqCst);
    (1..cpus).for_each(gic::send);
    job.take_part(0);
    masked(|masked| {
        while INSIDE.load(Ordering::SeqCst) > 0 {
            idle::sleep(masked);
        }
    });
    let mut report = match job {
        Job::Stress(run, _) => run.audit(),
        Job::Paging(run) => run.audit(),
    };
    // SAFETY: all CPUs have left the run.
    unsafe {
        JOB.take();
        for table in TABLES.iter().filter_map(|shelf| shelf.take()) {
            // Every TLB has been emptied, and no CPU walks the table.
            destroy(table).reclaim();
        }
    }
    report.failed("leaked", nodes.usage().nodes);
    println!("{report}");
    report.failures()
}
