//! A small kernel for MIPS32 on QEMU's Malta board that measures refill handlers: those of every page table, alone and behind a
//! software TLB cache.
//!
//! ```text
//!   tables     the page tables by name, and their refill handlers
//!   machine    the CPU: frames, what remembers translations, address spaces
//!   user       programs in user mode
//!   measure    what refills and tasks take, in instructions; mapping: what changes of rights take
//!   report     how it went
//!   ipc        processes that send messages, over page tables in mapped memory
//! ```
//!
//! `cargo xtask boot` builds and runs it. It prints a report and ends QEMU with status 0 if nothing failed.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod ipc;
mod machine;
mod mapping;
mod measure;
mod memory;
mod report;
mod tables;
mod user;

use tlbkit_addr::Pfn;
use tlbkit_malta::check::Checks;
use tlbkit_malta::stress::{self, Fault};
use tlbkit_malta::{cp0, firmware, println, semihosting, tlb, trap, vectors};
use tlbkit_names as names;
use tlbkit_pagetable::Leaf;
use tlbkit_pagetable::nodes::Chunk;
use tlbkit_refill::handler::{Form, Front, Place, Root, Spec, Stlb, Write};

use self::machine::{BLOCK, Forget, Space};
use self::report::Report;
use self::tables::{Linear, Nodes, Place as _, Structure};

/// What the command line asks for, by words `name=value`: `table=S8k/G16 work=stress seed=2`.
#[derive(Clone, Copy, Debug)]
struct Args {
    /// The table's name.
    table: &'static str,
    /// What to do: `measure`, `stress` or `ipc`.
    work: &'static str,
    /// Refills of random stress, and where random numbers start.
    refills: u32,
    seed: u32,
    inject: Option<Inject>,
    /// Where the refill handler has the root of the running table.
    root: Root,
}

/// A fault to plant, which the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inject {
    /// Pages are unmapped and protected without a flush of the TLB.
    DropFlush,
    /// A word is changed by which a walk knows that it has come to the right place.
    CorruptGuard,
    /// What remembers translations is not told that they have changed: the software cache, and, when address-space numbers begin
    /// anew, the TLB.
    SkipInvalidation,
}

impl Args {
    /// Reads the words, or returns the first that says nothing.
    fn parse(words: &'static str) -> Result<Self, &'static str> {
        let (table, work, root) = (names::MPT, "measure", Root::ErrorEpc);
        let mut args = Self { table, work, refills: 20_000, seed: 1, inject: None, root };
        for word in words.split_whitespace() {
            let number = |text: &str| text.parse().map_err(|_| word);
            match word.split_once('=').unwrap_or((word, "")) {
                ("table", name) => args.table = name,
                ("work", work @ ("measure" | "stress" | "ipc")) => args.work = work,
                ("refills", text) => args.refills = number(text)?,
                ("seed", text) => args.seed = number(text)?,
                ("root", "error-epc") => args.root = Root::ErrorEpc,
                ("root", "block") => args.root = Root::Block,
                ("root", "kscratch1") => args.root = Root::KScratch(2),
                ("root", "kscratch2") => args.root = Root::KScratch(3),
                ("root", "kscratch3") => args.root = Root::KScratch(4),
                ("inject", "drop-flush") => args.inject = Some(Inject::DropFlush),
                ("inject", "corrupt-guard") => args.inject = Some(Inject::CorruptGuard),
                ("inject", "skip-invalidation") => args.inject = Some(Inject::SkipInvalidation),
                _ => return Err(word),
            }
        }
        Ok(args)
    }
}

tlbkit_malta::start!(first, other);

/// What the CPU does.
extern "C" fn first(count: usize, arguments: *const u32) -> ! {
    tlb::reset();
    // SAFETY: user mode may read Count; there is no handler to serve any address space, and none is current.
    unsafe {
        if !tlbkit_malta::RELEASE_1 {
            cp0::hwrena::write(1 << 2);
        }
        vectors::install(&[], &[], &[]);
    }
    // SAFETY: the firmware's registers, as they came.
    let words = unsafe { firmware::command_line(count, arguments) };
    let failures = match Args::parse(words) {
        Ok(args) => {
            println!("CPU {:#010x}, {} TLB entries: {args:?}", cp0::prid::read(), tlb::entries());
            table(&args)
        }
        Err(word) => panic!("the kernel does not know the argument `{word}`"),
    };
    semihosting::exit(u32::from(failures > 0))
}

/// There is one CPU.
extern "C" fn other() -> ! {
    loop {}
}

/// Boots with the table of a name, and returns how many checks failed.
fn table(args: &Args) -> u32 {
    use tables::{Guarded, Hash, MultiLevel};
    use tlbkit_pagetable::gpt::{Adaptive, Fixed};

    let (bytes, name) = names::split(args.table).unwrap_or((0, ""));
    let sets = bytes / 16;
    machine::begin(args, sets);
    if args.work == "ipc" {
        return ipc::run(storage::<Linear>());
    }
    match name {
        names::MPT => run::<MultiLevel>(args, sets),
        names::LPT => run::<Linear>(args, sets),
        names::G2 => run::<Guarded<Fixed<1>>>(args, sets),
        names::G4 => run::<Guarded<Fixed<2>>>(args, sets),
        names::G8 => run::<Guarded<Fixed<3>>>(args, sets),
        names::G16 => run::<Guarded<Fixed<4>>>(args, sets),
        names::G64 => run::<Guarded<Fixed<6>>>(args, sets),
        names::G256 => run::<Guarded<Fixed<8>>>(args, sets),
        names::GA => run::<Guarded<Adaptive>>(args, sets),
        names::H8K => run::<Hash<1, 9>>(args, sets),
        names::H128K => run::<Hash<1, 13>>(args, sets),
        names::HR => run::<Hash<1, 1, 100>>(args, sets),
        names::C128K => run::<Hash<3, 11>>(args, sets),
        _ => panic!("the kernel knows no table `{}`", args.table),
    }
}

/// Measures a kind of table, behind a software TLB cache of so many sets, and returns how many checks failed.
fn run<S: Structure>(args: &Args, sets: usize) -> u32 {
    let nodes = storage::<S>();
    let code = user::install();
    let mut failures = 0;
    if args.work == "measure" {
        for (write, how) in [("random", Write::Random), ("index", Write::Index)] {
            let mut checks = Checks::default();
            let words = start::<S>(args, sets, how, Form::PLAIN);
            let swept = measure::sweep::<S>(nodes, &mut checks);
            let task = measure::tasks::<S>(nodes, code, &mut checks);
            let mapping = mapping::run::<S>(nodes, code, &mut checks);
            if how == Write::Random {
                measure::curve::<S>(nodes, args.table, &mut checks);
                measure::growth::<S>(nodes, &mut checks);
            }
            failures += checks.failed;
            Report { table: args.table, stlb: sets > 0, write, words, swept, task, mapping, checks }.print();
        }
    }
    // What stands in front of a table serves larger pages as it serves all.
    if sets == 0 && args.inject.is_none() {
        let mut checks = Checks::default();
        start::<S>(args, sets, Write::Index, Form::BOTH);
        measure::reports::<S>(nodes, args.table, &mut checks);
        failures += checks.failed;
    }
    let words = start::<S>(args, sets, Write::Index, Form::PLAIN);
    machine::renumber(NUMBERS);
    let mut checks = Checks::default();
    let taken = machine::taken();
    let mut at: heapless::Vec<usize, 256> =
        (0..DENSE).map(|page| measure::COMPACT as usize + (page << 12)).collect();
    for page in measure::sparse(args.seed, 1024) {
        if !at.contains(&(page as usize)) && at.push(page as usize).is_err() {
            break;
        }
    }
    let corrupts = args.inject == Some(Inject::CorruptGuard);
    let mut under = UnderStress::<S> { nodes, corrupts };
    let stressed = stress::run(&mut under, &at, DENSE, args.refills, args.seed, &mut checks);
    let usage = nodes.usage();
    checks.check(usage.nodes == 0, |say| say(format_args!("{} nodes have leaked", usage.nodes)));
    let left = machine::taken();
    checks.check(left == taken, |say| say(format_args!("{left} frames are in use, before {taken}")));
    stress::report(args.table, words, stressed, checks);
    failures + checks.failed
}

/// Numbers for address spaces under stress: twice as many as there are spaces, so that they soon run out.
const NUMBERS: u8 = 8;
/// Pages that are side by side there.
const DENSE: usize = 64;

/// Lets a handler serve the refills from now on, and returns how many instructions it has.
fn start<S: Structure>(args: &Args, sets: usize, write: Write, form: Form) -> usize {
    machine::forget_everything();
    let front = match sets {
        0 => Front::None,
        sets => Front::Stlb(Stlb::new(memory::WINDOW as u32, sets).expect("the window is in kseg0")),
    };
    let spec = Spec {
        features: cp0::features(),
        // On release 1 handlers that report are longer than the room up to the cache error vector.
        place: if form.reporting { Place::WIDE } else { Place::VECTOR },
        block: (&raw const BLOCK).addr() as u32,
        root: args.root,
        front,
        walk: S::WALK,
        form,
        write,
    };
    let handler = spec.assemble().expect("there is a handler for this table");
    let [refill, general, tail] = [&handler.refill, &handler.general, &handler.tail].map(|code| code.words());
    // SAFETY: the handler is that of the tables to come, and no address space is current.
    unsafe {
        vectors::install(refill, general, tail);
        cp0::context::write(spec.context());
        tlb::switch(0);
    }
    refill.len() + general.len() + tail.len()
}

/// Builds the storage for nodes. Its own few words are in the first chunk of the memory. A boot builds it once.
fn storage<S: Structure>() -> &'static Nodes<S::Window> {
    // SAFETY: once.
    let memory = unsafe { memory::nodes() };
    let Some((own, rest)) = memory.split_first_mut() else { panic!("no memory for nodes") };
    let nodes = S::Window::nodes(rest).expect("it is memory for nodes");
    const { assert!(size_of::<Nodes<S::Window>>() <= size_of::<Chunk>()) };
    let place = core::ptr::from_mut(own).cast::<Nodes<S::Window>>();
    // SAFETY: the chunk is ours for ever, large enough, and aligned beyond any need.
    unsafe {
        place.write(nodes);
        &*place
    }
}

/// The CPU with a kind of table, as the stress sees it.
struct UnderStress<S: Structure> {
    nodes: &'static Nodes<S::Window>,
    corrupts: bool,
}

fn fault(fault: trap::Fault) -> Fault {
    Fault { code: fault.code, at: fault.at as usize }
}

impl<S: Structure> stress::Machine for UnderStress<S> {
    type Table = S::Table<'static>;
    type Flush = Forget;
    type Space = Space<S>;
    const SPACES: usize = 4;

    fn begin(&mut self) -> Space<S> {
        Space::new(self.nodes)
    }

    fn end(&mut self, space: Space<S>) {
        space.end(|_| true);
    }

    fn activate(&mut self, space: &Space<S>) {
        cp0::put_timer_off();
        space.activate();
    }

    fn load(&mut self, at: usize) -> Result<u32, Fault> {
        trap::load(at as u32).map(|touched| touched.value).map_err(fault)
    }

    fn store(&mut self, at: usize, value: u32) -> Result<(), Fault> {
        // SAFETY: what is mapped there is a frame of the stress's.
        unsafe { trap::store(at as u32, value) }.map_err(fault)
    }

    fn take(&mut self) -> Pfn {
        machine::take()
    }

    fn give(&mut self, frame: Pfn) {
        machine::give(frame);
    }

    fn word(&self, frame: Pfn) -> *mut u32 {
        machine::word(frame)
    }

    fn has(&self, at: usize) -> bool {
        tlb::probe(at as u32, tlb::current()).is_some()
    }

    fn forget(&mut self, at: usize) {
        tlb::forget(at as u32, tlb::current());
    }

    fn be_lazy(&mut self, lazy: bool) {
        machine::be_lazy(lazy);
    }

    fn duplicates(&self) -> usize {
        tlb::duplicates()
    }

    /// Changes the guard by which a walk finds a leaf: looked for in all memory for nodes, for that is all one must know.
    fn corrupt(&mut self, leaf: &Leaf, meanwhile: &mut dyn FnMut(&mut Self)) {
        if !self.corrupts {
            return;
        }
        let (first, chunks) = memory::node_range();
        let cells = (0..chunks * size_of::<Chunk>() / 4)
            .map(|index| core::ptr::with_exposed_provenance_mut::<u32>(first).wrapping_add(index));
        // SAFETY: memory for nodes; a planted fault changes it behind the table's back.
        let found = cells.map(|cell| (cell, unsafe { cell.read_volatile() }));
        let found = found.filter(|&(_, word)| S::is_guard(word, leaf)).next();
        if let Some((cell, word)) = found {
            // SAFETY: the same; no code changes the word meanwhile.
            unsafe { cell.write_volatile(word ^ tables::GUARD) };
            machine::forget_everything();
            meanwhile(self);
            // SAFETY: the same.
            unsafe { cell.write_volatile(word) };
            machine::forget_everything();
        }
    }
}

/// The kernel found itself wrong: say so, and end with a failure.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    println!("panic: {info}");
    semihosting::exit(101)
}
