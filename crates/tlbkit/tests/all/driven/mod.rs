//! Address spaces beside a model of their pages: what eight bytes ask for is done to both, on any CPU, and both are compared.
//!
//! ```text
//!  byte   0      1       2       3       4       5      6      7
//!       +------+-------+------+-------+--------+-------+------+-----+
//!       | kind | space | spot | count | rights | twist | fail | CPU |
//!       +------+-------+------+-------+--------+-------+------+-----+
//! ```
//!
//! Proptest draws the bytes, the fuzzer mutates them, and Miri interprets a few. One thread runs as all CPUs: each
//! history is the same every time.
#![allow(dead_code, unreachable_pub, reason = "each program uses a part")]

#[macro_use]
pub mod kernel;
mod model;
mod steps;

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;

use kernel::{Arch, Ram};
use model::{Model, Page, mask};
use tlbkit::{AddressSpace, Attr, Entry, FrameOf, Leaf, Mark, Mmu, Run, VirtAddr};

/// The bytes of a step.
pub const STEP: usize = 8;
/// The most address spaces at a time, those included that a CPU alone still has.
const SPACES: usize = 4;

type Space<A, const CPUS: usize> = AddressSpace<Ram<A>, CPUS>;

/// An address space, and what it is to be.
struct Process<A: Arch, const CPUS: usize> {
    /// What tells it from all others.
    name: usize,
    /// `None` if only the CPUs that run it have it.
    handle: Option<Space<A, CPUS>>,
    model: Model,
    /// The nodes that it had last.
    nodes: usize,
}

/// A page that is unmapped, which other CPUs may use until the next flush of all.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// The address space's.
    name: usize,
    first: usize,
    page: Page,
    /// The CPU that has unmapped it, and has flushed.
    cpu: usize,
}

impl Waiting {
    fn last(&self) -> usize {
        self.first + (self.page.pages - 1)
    }
}

struct World<A: Arch, const CPUS: usize> {
    mmu: &'static Mmu<Ram<A>, CPUS>,
    processes: Vec<Process<A, CPUS>>,
    names: usize,
    payloads: u64,
    /// What each CPU runs.
    runs: [Option<usize>; CPUS],
    waiting: Vec<Waiting>,
    /// How many runs of frames these are.
    waiting_runs: usize,
}

/// How a history goes that is no random one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fault {
    /// No CPU flushes anything.
    pub forgets: bool,
    /// The model misses one unmap.
    pub misses: bool,
}

/// Does what the steps ask for, on a machine of `CPUS` CPUs, and compares after each. `bits` is how many bits an ASID
/// has, or as many as the machine has if that is fewer.
///
/// # Panics
///
/// If an address space and its model differ, or a frame, a node or a payload is lost.
pub fn run<A: Arch, const CPUS: usize>(bits: u32, steps: &[[u8; STEP]], fault: Fault) {
    let machine = Box::into_raw(Box::new(Mmu::new(Ram::<A>::new(CPUS))));
    // SAFETY: the machine is there until the end of this function, and no address space is left then. If this unwinds before
    // that, the machine is leaked.
    let mmu: &'static Mmu<Ram<A>, CPUS> = unsafe { &*machine };
    let others = move || mmu.kernel().serve(|| mmu.on_interrupt());
    assert!(mmu.kernel().others.set(Box::new(others)).is_ok());
    mmu.kernel().state().asid_bits = bits.min(A::ASID_BITS);
    mmu.kernel().state().forgets = fault.forgets;
    // What fails goes no further: the ends of its address spaces would fail, too.
    let mut world = ManuallyDrop::new(World {
        mmu,
        processes: Vec::new(),
        names: 0,
        payloads: 0,
        runs: [None; CPUS],
        waiting: Vec::new(),
        waiting_runs: 0,
    });
    for &step in steps {
        world.step(step, fault.misses);
    }
    world.end();
    drop(ManuallyDrop::into_inner(world));
    // SAFETY: it came from a box, and no code uses it any more: the last address space is gone, and no CPU is online.
    drop(unsafe { Box::from_raw(machine) });
}

impl<A: Arch, const CPUS: usize> World<A, CPUS> {
    fn kernel(&self) -> &'static Ram<A> {
        self.mmu.kernel()
    }

    /// Forgets the processes without a handle.
    fn forget_dead(&mut self) {
        let runs = self.runs;
        self.processes.retain(|process| process.handle.is_some() || runs.contains(&Some(process.name)));
    }

    /// Takes one step, and compares.
    fn step(&mut self, bytes: [u8; STEP], misses: bool) {
        let kernel = self.kernel();
        {
            let mut state = kernel.state();
            state.cpu = usize::from(bytes[7]) % CPUS;
            state.released.clear();
            // Mostly there are frames enough.
            state.allowance = if bytes[6] < 24 { usize::from(bytes[6] % 6) } else { usize::MAX };
        }
        let mut before: Vec<(usize, Page)> = Vec::new();
        for process in &self.processes {
            before.extend(process.model.leaves.values().map(|&page| (process.name, page)));
        }
        before.extend(self.waiting.iter().map(|waiting| (waiting.name, waiting.page)));
        self.take(bytes, misses);
        kernel.state().allowance = usize::MAX;
        self.forget_dead();
        if kernel.deferred.waiting().0 != self.waiting_runs {
            assert_eq!(kernel.deferred.waiting(), (0, 0), "a flush is one of all that waits");
            self.flushed();
        }
        self.check_released(&before);
        self.check();
    }

    /// Everything that has waited is released.
    fn flushed(&mut self) {
        self.waiting.clear();
        self.waiting_runs = 0;
    }

    /// What a page was written by way of is told when it goes back.
    fn check_released(&self, before: &[(usize, Page)]) {
        let state = self.kernel().state();
        for &(name, leaf) in before.iter().filter(|(_, leaf)| leaf.dirty) {
            let now = self.processes.iter().find(|process| process.name == name);
            let waits = |waiting: &Waiting| (waiting.name, waiting.page.frame) == (name, leaf.frame);
            let stays = now.is_some_and(|now| now.model.maps_frame(leaf.frame));
            let told =
                |run: &Run| run.dirty && (run.first.get()..run.first.get() + run.len).contains(&leaf.frame);
            assert!(
                stays || self.waiting.iter().any(waits) || state.released.iter().any(told),
                "{leaf:?} was written, and no CPU was told"
            );
        }
    }

    /// Compares everything.
    fn check(&mut self) {
        let kernel = self.kernel();
        let mut frames = BTreeMap::<usize, usize>::new();
        let mut payloads = BTreeMap::<u64, usize>::new();
        let (mut nodes, mut blocks) = (0, 0);
        for process in &mut self.processes {
            for leaf in process.model.leaves.values() {
                (leaf.frame..leaf.frame + leaf.pages)
                    .for_each(|frame| *frames.entry(frame).or_default() += 1);
            }
            for mark in process.model.marks.values() {
                if let Mark::Payload(payload, _) = mark {
                    *payloads.entry(*payload).or_default() += 1;
                }
            }
            if let Some(space) = &process.handle {
                let footprint = space.footprint();
                process.nodes = if A::WHOLE { footprint.nodes } else { footprint.nodes + footprint.leaves };
                compare(space, &process.model);
            }
            (nodes, blocks) = (nodes + process.nodes, blocks + 1);
        }
        for waiting in &self.waiting {
            let (page, name) = (waiting.page, waiting.name);
            (page.frame..page.frame + page.pages).for_each(|frame| *frames.entry(frame).or_default() += 1);
            let process = self.processes.iter().find(|process| process.name == name);
            let is_free = |of: &Process<A, CPUS>| of.model.is_free(waiting.first, waiting.last());
            assert!(process.is_none_or(is_free), "{waiting:x?} is in use before the flush");
        }
        nodes += kernel.deferred.waiting().1;
        assert_eq!(kernel.state().mapped, frames, "how often frames are mapped");
        assert_eq!(kernel.state().payloads, payloads, "how many pages have each payload");
        let frames = kernel.taken() - blocks;
        // Where nodes are small there is none of them in a frame that has no node.
        let fits = if A::WHOLE { frames == nodes } else { frames <= nodes && (frames > 0) == (nodes > 0) };
        assert!(fits, "{frames} frames for {nodes} nodes, beside control blocks");
        assert_eq!(self.mmu.lost(), 0);
        self.check_tlbs();
    }

    /// No TLB has what its CPU's address space does not map, unless another CPU has left the flush to a later one.
    fn check_tlbs(&self) {
        let state = self.kernel().state();
        for (cpu, tlb) in state.tlbs.iter().enumerate() {
            let Some(root) = tlb.root else { continue };
            let Some(process) = self.processes.iter().find(|process| Some(process.name) == self.runs[cpu])
            else {
                panic!("CPU {cpu} has a root of no address space")
            };
            for (&(tag, page), held) in &tlb.held {
                if tag != A::asid(root) {
                    continue;
                }
                let waits = |of: &&Waiting| {
                    of.name == process.name && (of.first..=of.last()).contains(&page) && of.cpu != cpu
                };
                let waiting = self.waiting.iter().find(waits).map(|of| (of.first, of.page));
                let Some((first, leaf)) = process.model.find(page).or(waiting) else {
                    panic!("CPU {cpu} has {held:x?} of page {page:#x}, which is not mapped")
                };
                assert_eq!(held.frame, leaf.frame + (page - first), "CPU {cpu}, page {page:#x}");
                let may = leaf.attr.contains(Attr::WRITE);
                assert!(may || !held.writable, "CPU {cpu} may write page {page:#x}");
            }
        }
    }

    /// The end of everything: each frame goes back.
    fn end(&mut self) {
        self.mmu.flush_deferred().expect("no call is under way");
        assert_eq!(self.kernel().deferred.waiting(), (0, 0));
        for cpu in 0..CPUS {
            self.kernel().state().cpu = cpu;
            self.mmu.offline().expect("no call is under way");
        }
        self.runs = [None; CPUS];
        self.processes.clear();
        let state = self.kernel().state();
        assert!(state.mapped.is_empty() && state.payloads.is_empty(), "{state:?}");
        drop(state);
        assert_eq!((self.kernel().taken(), self.mmu.lost()), (0, 0));
    }
}

/// Compares an address space with its model, by a visit of all of it. (Miri looks at the pages of the model.)
fn compare<A: Arch, const CPUS: usize>(space: &Space<A, CPUS>, model: &Model) {
    let wanted = mask::<A>();
    let same = |first: usize, leaf: &Leaf<FrameOf<Ram<A>>>, page: &Page| {
        let name = || format!("page {first:#x}: {leaf:?} for {page:x?}");
        assert_eq!(leaf.at.get() >> A::SHIFT, first, "{}", name());
        assert_eq!(
            (A::number(leaf.frame), leaf.size.bytes() >> A::SHIFT),
            (page.frame, page.pages),
            "{}",
            name()
        );
        assert_eq!(leaf.attr.intersection(wanted), page.attr.intersection(wanted), "{}", name());
        assert_eq!(leaf.attr.contains(Attr::DIRTY), page.dirty, "{}", name());
    };
    if cfg!(miri) {
        for (&first, page) in &model.leaves {
            let leaf = space.lookup(VirtAddr::new(first << A::SHIFT)).expect("it is mapped");
            same(first, &leaf, page);
        }
        for (&at, &mark) in &model.marks {
            assert_eq!(space.entry(VirtAddr::new(at << A::SHIFT)), Entry::Mark(mark));
        }
        return;
    }
    let mut left = model.leaves.iter();
    let mut marks = model.marks.iter();
    for half in model::halves::<A>() {
        let pages = A::pages(half.0, half.1);
        let visited = space.for_each(pages, |leaf| {
            let (&first, page) = left.next().unwrap_or_else(|| panic!("{leaf:?} has no owner"));
            same(first, &leaf, page);
            ControlFlow::Continue(())
        });
        assert!(visited.is_ok_and(|flow| flow.is_continue()));
        let marked = space.for_each_mark(pages, |at, mark| {
            assert_eq!(marks.next(), Some((&(at.get() >> A::SHIFT), &mark)));
            ControlFlow::Continue(())
        });
        assert!(marked.is_ok_and(|flow| flow.is_continue()));
    }
    assert_eq!((left.next(), marks.next()), (None, None));
}
