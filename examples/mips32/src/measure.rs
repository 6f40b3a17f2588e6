//! What refills and tasks take, in instructions.
//!
//! Instructions are counted by time: under QEMU's `-icount shift=6` an instruction takes 64 ns, and a tick of Count 6 ns. The kernel
//! reads pages one by one and times each load: a load that the TLB knows takes no instruction but itself; what another takes more
//! is the refill. A compact set of pages has them side by side, a sparse one wherever random numbers say in a gigabyte.

use core::arch::asm;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr};
use tlbkit_malta::check::{Checks, Random};
use tlbkit_malta::{cp0, println, tlb, trap};
use tlbkit_pagetable::{Footprint, Holes};
use tlbkit_refill::Log;

use crate::machine::{self, BLOCK, Space, pages};
use crate::tables::{Nodes, Structure};
use crate::user::{DONE, Program, Task};

/// Pages of each working set, and how often each is read.
const PAGES: u32 = 256;
const ROUNDS: u32 = 16;

/// Where the compact set begins, and the gigabyte of the sparse ones.
pub const COMPACT: u32 = 0x1000_0000;
const SPARSE: u32 = 0x2000_0000;
/// What the first word of each page is more than its address.
const SALT: u32 = 0x111;

/// How many tasks. More than there are numbers for address spaces would count a flush of the TLB with them.
const TASKS: u32 = 100;

/// Returns the instructions in so many ticks of Count.
fn instructions(ticks: u32) -> u32 {
    // Ticks times 6 over 64, rounded; in 64 bits, for a long time.
    ((u64::from(ticks) * 3 + 16) / 32) as u32
}

/// Counts the instructions of a call.
pub fn counted<T>(call: impl FnOnce() -> T) -> (T, u32) {
    cp0::put_timer_off();
    let start = cp0::count::read();
    let result = call();
    (result, instructions(cp0::count::read().wrapping_sub(start)))
}

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

    fn add(&mut self, instructions: u32) {
        self.refills += 1;
        self.min = self.min.min(instructions);
        self.max = self.max.max(instructions);
        self.sum += instructions;
    }

    /// Returns both together.
    pub fn and(self, other: Self) -> Self {
        Self {
            refills: self.refills + other.refills,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            sum: self.sum + other.sum,
        }
    }
}

/// Returns the addresses of a set of `pages` pages.
pub fn sparse(seed: u32, pages: u32) -> impl Iterator<Item = u32> + Clone {
    let mut random = Random::new(seed);
    (0..pages).map(move |_| SPARSE + (random.below(1 << 16) << 14) + (random.below(4) << 12))
}

fn compact() -> impl Iterator<Item = u32> + Clone {
    (0..PAGES).map(|page| COMPACT + (page << 12))
}

/// Maps the pages of a set that are not mapped yet, each to a frame of its own, and reads each, so that a software TLB cache has it.
fn map<S: Structure>(space: &mut Space<S>, set: impl Iterator<Item = u32> + Clone, checks: &mut Checks) {
    for at in set.clone() {
        if space.lookup(VirtAddr::new(at as usize)).is_none() {
            let mapped = space.map_page(at, machine::frame_of(at + SALT), Attr::empty());
            checks.check(mapped.is_ok(), |say| say(format_args!("{at:#x} cannot be mapped: {mapped:?}")));
        }
    }
    space.activate();
    for at in set {
        let read = trap::load(at);
        checks.check(read.is_ok(), |say| say(format_args!("{at:#x} cannot be read: {read:?}")));
    }
}

/// Reads each page of a set `rounds` times, beginning with an empty TLB, and tells `refilled` what each refill took.
fn each<S: Structure>(
    space: &Space<S>,
    set: impl Iterator<Item = u32> + Clone,
    rounds: u32,
    checks: &mut Checks,
    mut refilled: impl FnMut(u32),
) {
    space.activate();
    tlb::forget_all(|_| true);
    for _ in 0..rounds {
        cp0::put_timer_off();
        for at in set.clone() {
            let touched = trap::load(at);
            checks.check(touched.map(|touched| touched.value) == Ok(at + SALT), |say| {
                say(format_args!("{at:#x} reads {touched:x?}"));
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

/// What the compact and the sparse set cost, and what the table of both takes.
#[derive(Clone, Copy, Debug)]
pub struct Swept {
    pub compact: Cost,
    pub sparse: Cost,
    pub footprint: Footprint,
}

/// Sweeps both sets in one address space.
pub fn sweep<S: Structure>(nodes: &'static Nodes<S::Window>, checks: &mut Checks) -> Swept {
    let mut space = Space::<S>::new(nodes);
    map(&mut space, compact().chain(sparse(1, PAGES)), checks);
    let (mut of_compact, mut of_sparse) = (Cost::none(), Cost::none());
    plugin_counts(true);
    each(&space, compact(), ROUNDS, checks, |refill| of_compact.add(refill));
    each(&space, sparse(1, PAGES), ROUNDS, checks, |refill| of_sparse.add(refill));
    plugin_counts(false);
    let footprint = space.footprint();
    space.end(|_| false);
    Swept { compact: of_compact, sparse: of_sparse, footprint }
}

/// Tasks come and go (Elphinstone et al. 3.3): create one, wait for its message, delete it. A task needs one page, which holds its
/// program; so the cost is that of a table with one page in it, and of the way into user mode and back. Returns the instructions
/// that a task takes.
pub fn tasks<S: Structure>(nodes: &'static Nodes<S::Window>, code: Pfn, checks: &mut Checks) -> u32 {
    let ((), total) = counted(|| {
        for _ in 0..TASKS {
            let mut task = Task::<S>::new(nodes, code, Program::Message, [0; 4]);
            let said = task.run();
            checks.check(said == (DONE, 0), |say| say(format_args!("a task's message is {said:?}")));
            task.space.end(|frame| frame == code);
        }
    });
    total / TASKS
}

/// When a software TLB cache pays: the same refills with it and without it, at hit rates from high to low. Sets of `2^n` pages at
/// random are read again and again; the larger a set, the fewer of its pairs the cache still knows. A refill that takes as few
/// instructions as any was a hit. Prints a line for each size.
pub fn curve<S: Structure>(nodes: &'static Nodes<S::Window>, table: &str, checks: &mut Checks) {
    /// What a hit takes. Where there is no cache this tells nothing.
    const HIT: u32 = 12;
    for log in 5..=13 {
        let mut space = Space::<S>::new(nodes);
        let set = sparse(log, 1 << log);
        map(&mut space, set.clone(), checks);
        let (mut hits, mut misses) = (Cost::none(), Cost::none());
        each(&space, set, 4, checks, |instructions| {
            (if instructions <= HIT { &mut hits } else { &mut misses }).add(instructions);
        });
        println!(
            "curve table={table} pages={} hits={} hit_insns={} misses={} miss_insns={}",
            1 << log,
            hits.refills,
            hits.sum,
            misses.refills,
            misses.sum
        );
        space.end(|_| false);
    }
}

/// A hashed table that grows, stopped after every change: the refill handler finds every page that is mapped.
///
/// Pages at random are mapped one by one, then unmapped one by one in the reverse order. So the table splits segments, parts their
/// chains a few steps a change, and merges the segments again. After each change the kernel reads every page, beginning with an
/// empty TLB. Nothing resolves a fault here. Does nothing if the tables do not grow.
pub fn growth<S: Structure>(nodes: &'static Nodes<S::Window>, checks: &mut Checks) {
    /// Pages at the most, beyond the second doubling of a table that has more than one segment; and the first buckets that so many
    /// fill: four segments of 512.
    const MOST: u32 = 1800;
    const GROWN: usize = 2048;
    const SEED: u32 = 3;
    let mut space = Space::<S>::new(nodes);
    let Some(first) = S::buckets(space.table()) else { return space.end(|_| false) };
    let mut cost = Cost::none();
    let mut read_all = |space: &Space<S>, count, checks: &mut Checks| {
        each(space, sparse(SEED, count), 1, checks, |refill| cost.add(refill));
    };
    for (page, at) in sparse(SEED, MOST).enumerate() {
        map(&mut space, [at].into_iter(), checks);
        read_all(&space, page as u32 + 1, checks);
    }
    let most = S::buckets(space.table());
    for page in (0..MOST).rev() {
        let Some(at) = sparse(SEED, MOST).nth(page as usize) else { break };
        // The same page may have been drawn before.
        if !sparse(SEED, page).any(|other| other == at) {
            let leaf = space.lookup(VirtAddr::new(at as usize));
            let unmapped = space.unmap(pages(at, 1), Holes::Refuse);
            checks.check(unmapped == Ok(1), |say| say(format_args!("{at:#x}: {unmapped:?}")));
            leaf.iter().for_each(|leaf| machine::give(leaf.frame));
            space.set_root();
            let gone = trap::load(at);
            checks.check(gone.is_err(), |say| say(format_args!("{at:#x} is unmapped and reads {gone:x?}")));
        }
        read_all(&space, page, checks);
    }
    let last = S::buckets(space.table());
    checks.check(most == Some(GROWN) && last < most, |say| {
        say(format_args!("from {first} the table has grown to {most:?} buckets, and shrunk to {last:?}"));
    });
    println!(
        "  growth             {first} to {} buckets, then {}; refills after each change {cost}",
        most.unwrap_or_default(),
        last.unwrap_or_default()
    );
    space.end(|_| false);
}

/// Where a reporting handler writes what missed, and what it replaced.
pub static LOG: Log<1> = Log::new();

/// The handler that loads pages of every size, and reports: it runs already, and its log has room for one miss. Pages of each size
/// are read at random; each miss is in the log, or comes to the kernel if there is no room, and so the next misses.
pub fn reports<S: Structure>(nodes: &'static Nodes<S::Window>, table: &str, checks: &mut Checks) {
    const READS: u32 = 20_000;
    /// The logarithms of the bytes of pages; each kind of page has a megabyte of its own.
    const SHIFTS: [u32; 4] = [12, 14, 16, 18];
    let mut space = Space::<S>::new(nodes);
    for (kind, shift) in (0..).zip(SHIFTS) {
        let size = PageSize::from_shift(shift).expect("it is a size");
        let at = COMPACT + (kind << 20);
        let first = machine::take_run(256, size);
        for page in 0..256 {
            // SAFETY: the frames were just taken.
            unsafe {
                machine::word(Pfn::new(first.get() + page)).write_volatile(at + ((page as u32) << 12) + SALT)
            };
        }
        let mapped = space.map(pages(at, 256), first, size, tlbkit_malta::stress::PLAIN);
        checks.check(mapped.is_ok(), |say| say(format_args!("{size:?}: {mapped:?}")));
    }
    space.activate();
    tlb::forget_all(|_| true);
    LOG.attach(&BLOCK, (&raw const LOG).addr() as u32);
    let (mut random, mut misses, mut full) = (Random::new(5), 0, 0);
    for _ in 0..READS {
        let at = COMPACT + (random.below(4) << 20) + (random.below(256) << 12);
        let missed = tlb::probe(at, space.asid()).is_none();
        let mut found = trap::load(at);
        if found.is_err() {
            // There was no room for the miss.
            full += 1;
            LOG.drain(&BLOCK, |_| misses += 1);
            found = trap::load(at);
        }
        checks.check(found.map(|touched| touched.value) == Ok(at + SALT), |say| {
            say(format_args!("{at:#x} reads {found:x?}"));
        });
        let (mut logged, mut drained) = (0, None);
        if random.below(2) == 0 {
            LOG.drain(&BLOCK, |miss| (logged, drained) = (logged + 1, Some(miss)));
            misses += logged;
        }
        let holds =
            drained.is_none_or(|miss| !missed || miss.at == at && miss.entry_hi & tlb::ASID == space.asid());
        checks.check(holds, |say| say(format_args!("the log has {drained:x?} of {at:#x}")));
    }
    let duplicates = tlb::duplicates();
    checks.check(duplicates == 0 && misses > 100 && full > 100, |say| {
        say(format_args!("{duplicates} entries twice, {misses} misses in the log, {full} without room"));
    });
    let unmapped = Pages::count(machine::page(COMPACT), 1024).map(|all| space.unmap(all, Holes::Skip));
    checks.check(unmapped == Some(Ok(1024)), |say| say(format_args!("{unmapped:?} pages are unmapped")));
    println!(
        "reports table={table} misses={misses} full={full} checks={} failures={}",
        checks.done, checks.failed
    );
    space.end(|_| false);
}
