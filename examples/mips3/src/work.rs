//! The CPU with a kind of table, as the stress sees it.
//!
//! Pages are side by side, halves of pairs, far apart, and at both ends of the 2^40 bytes that an R4000 has.

use core::ops::{Deref, DerefMut};

use tlbkit_addr::{Flush, Pfn};
use tlbkit_malta::check::{Checks, Random};
use tlbkit_malta::println;
use tlbkit_malta::stress::{self, Fault};
use tlbkit_pagetable::{Error, Invalidate, Local, Private};
use tlbkit_refill::mips3::{Block, Handler};

use crate::arch::{self, ASID};
use crate::tables::Nodes;

/// The software TLB cache, and the frames for pages, as physical addresses.
pub const CACHE: usize = 0x80_0000;
const FRAMES: usize = 0x200_0000;

/// Refills for each table.
const REFILLS: u32 = 5_000;

/// Pages of the set, of which the first ones are side by side.
const PAGES: usize = 192;
const DENSE: usize = 80;

/// A fault to plant, which the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inject {
    /// Neither the TLB nor a software cache is told of changes.
    DropFlush,
    /// Software caches are not.
    SkipInvalidation,
}

/// Returns the addresses of the pages: no two are the same.
fn addresses() -> [usize; PAGES] {
    const ALL: usize = 1 << 28;
    let mut random = Random::new(1);
    let mut pages = [0; PAGES];
    for nth in 0..PAGES {
        pages[nth] = match nth {
            0..DENSE => nth,
            80..100 => 1 << (nth - 73),
            100..108 => ALL - 1 - (nth - 100),
            _ if nth % 2 == 1 => pages[nth - 1] ^ 1,
            _ => (random.below(1 << 14) as usize) << 14 | (random.below(1 << 14) as usize) & !1 | 1 << 20,
        };
    }
    pages.map(|number| number << 12)
}

/// What a table tells of what it has made stale: a software cache of so many bytes, and the TLB.
#[derive(Clone, Copy, Debug)]
struct Forget {
    cache: usize,
    inject: Option<Inject>,
}

/// Makes the entry of a software cache, 16 bytes whose tag is the first eight, one that matches nothing.
fn untag(at: usize) {
    for word in [0, 4] {
        // SAFETY: the cache's memory, which the handler alone reads, and not now.
        unsafe { arch::cell(CACHE + at + word).write_volatile(0) };
    }
}

impl Invalidate for Forget {
    fn invalidate(&mut self, flush: &Flush) {
        let cache = if self.inject.is_none() { self.cache } else { 0 };
        if self.inject == Some(Inject::DropFlush) {
            return;
        }
        if flush.is_all() {
            arch::forget_all();
            (0..cache).step_by(16).for_each(untag);
        }
        for pages in flush.ranges() {
            for page in pages.first().get()..=pages.last().get() {
                arch::forget((page as u64) << 12);
                if cache > 0 {
                    untag(page >> 1 << 4 & (cache - 1));
                }
            }
        }
    }
}

/// An address space: a table that flushes for itself.
struct Space<T: Private<'static>>(Local<'static, T, Forget>);

impl<T: Private<'static>> Deref for Space<T> {
    type Target = Local<'static, T, Forget>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<T: Private<'static>> DerefMut for Space<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// The CPU with a kind of table.
struct Cpu<T: Private<'static>> {
    nodes: &'static Nodes,
    make: fn(&'static Nodes) -> Result<T, Error>,
    root: fn(&T) -> Block,
    forget: Forget,
    /// Frames that were given back, and the first that was never taken.
    free: heapless::Vec<Pfn, PAGES>,
    fresh: usize,
}

impl<T: Private<'static>> stress::Machine for Cpu<T> {
    type Table = T;
    type Flush = Forget;
    type Space = Space<T>;
    // There is one number for address spaces.
    const SPACES: usize = 1;

    fn begin(&mut self) -> Space<T> {
        let table = (self.make)(self.nodes).expect("there are nodes for a table");
        Space(Local::with(table, self.forget))
    }

    fn end(&mut self, space: Space<T>) {
        space.0.destroy();
        arch::forget_all();
        (0..self.forget.cache).step_by(16).for_each(untag);
    }

    fn activate(&mut self, space: &Space<T>) {
        // SAFETY: the handler is that of this table, and no other address space runs.
        unsafe { arch::set_root((self.root)(space.table())) };
    }

    fn load(&mut self, at: usize) -> Result<u32, Fault> {
        arch::load(at as u64).map_err(fault)
    }

    fn store(&mut self, at: usize, value: u32) -> Result<(), Fault> {
        // SAFETY: what is mapped there is a frame of the stress's.
        unsafe { arch::store(at as u64, value) }.map_err(fault)
    }

    fn take(&mut self) -> Pfn {
        self.free.pop().unwrap_or_else(|| {
            self.fresh += 1;
            Pfn::new((FRAMES >> 12) + self.fresh)
        })
    }

    fn give(&mut self, frame: Pfn) {
        self.free.push(frame).expect("there are no more than pages");
    }

    fn word(&self, frame: Pfn) -> *mut u32 {
        arch::cell(frame.get() << 12)
    }

    fn has(&self, at: usize) -> bool {
        arch::probe(at as u64).is_some()
    }

    fn forget(&mut self, at: usize) {
        arch::forget(at as u64);
    }

    fn be_lazy(&mut self, _lazy: bool) {}

    fn duplicates(&self) -> usize {
        let entries: heapless::Vec<u64, { arch::ENTRIES as usize }> =
            (0..arch::ENTRIES).map(|number| arch::entry(number).0).collect();
        entries
            .iter()
            .enumerate()
            .map(|(at, hi)| entries[..at].iter().filter(|other| *other == hi).count())
            .sum()
    }
}

/// Returns a fault as the stress expects it; at no address, if EntryHi has another one than BadVAddr.
fn fault(arch::Fault { cause, bad_vaddr, entry_hi, .. }: arch::Fault) -> Fault {
    let at = if entry_hi == bad_vaddr & !0x1fff | ASID { bad_vaddr } else { 0 };
    Fault { code: (cause >> 2 & 31) as u32, at: at as usize }
}

/// Works a kind of table with its handler, which has a cache of so many bytes in front, or none.
pub fn run<T: Private<'static>>(
    (front, name): (&str, &str),
    nodes: &'static Nodes,
    make: fn(&'static Nodes) -> Result<T, Error>,
    root: fn(&T) -> Block,
    handler: Handler,
    cache: usize,
    inject: Option<Inject>,
) -> Checks {
    arch::forget_all();
    (0..cache).step_by(16).for_each(untag);
    let forget = Forget { cache, inject };
    let words = handler.refill.words().len() + handler.tail.words().len();
    // SAFETY: the handler is that of the tables to come, and no address space runs.
    unsafe { arch::install(&handler) };
    let mut cpu = Cpu { nodes, make, root, forget, free: heapless::Vec::new(), fresh: 0 };
    let mut checks = Checks::default();
    let stressed = stress::run(&mut cpu, &addresses(), DENSE, REFILLS, 1, &mut checks);
    checks.check(stressed.faults > 1000, |say| say(format_args!("{} faults are too few", stressed.faults)));
    println!(
        "mips3 table={front}{name} words={words} refills={} faults={} checks={} failures={}",
        stressed.refills, stressed.faults, checks.done, checks.failed
    );
    checks
}
