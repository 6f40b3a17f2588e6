//! Random changes and accesses, each judged by what a model says.
//!
//! The model is an array: for each page of a set whether it is mapped, to which frame, and whether it may be written. Pages
//! are side by side, halves of pairs, far apart, and at both ends of the 2^40 bytes that an R4000 has.

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::{Change, Holes, Local, Private};
use tlbkit_refill::mips3::{Block, Handler, PaperLo};

use crate::arch::{self, ASID, Fault};
use crate::println;

/// The software TLB cache, and the frames for pages, as physical addresses.
pub const CACHE: usize = 0x80_0000;
const FRAMES: usize = 0x200_0000;

/// Pages of the set, and steps for each table.
const PAGES: usize = 192;
const STEPS: usize = 20_000;

/// The exception codes of Cause.
const MODIFIED: u64 = 1;
const LOAD: u64 = 2;
const STORE: u64 = 3;

/// A fault to plant, which the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inject {
    /// Neither the TLB nor a software cache is told of changes.
    DropFlush,
    /// Software caches are not.
    SkipInvalidation,
}

/// What was checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checks {
    /// The fault that is planted.
    pub inject: Option<Inject>,
    pub done: u32,
    pub failed: u32,
}

impl Checks {
    fn check(&mut self, holds: bool, what: &str, at: u64) {
        self.done += 1;
        if !holds {
            self.failed += 1;
            if self.failed < 20 {
                println!("FAILED: {what}, at {at:#x}");
            }
        }
    }
}

/// A page of the set.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    number: usize,
    mapped: bool,
    writable: bool,
    frame: usize,
}

/// Random numbers (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % bound
    }
}

/// The set of pages: no two are the same.
fn pages() -> [Page; PAGES] {
    const ALL: usize = 1 << 28;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut pages = [Page::default(); PAGES];
    for nth in 0..PAGES {
        let number = match nth {
            0..80 => nth,
            80..100 => 1 << (nth - 73),
            100..108 => ALL - 1 - (nth - 100),
            _ if nth % 2 == 1 => pages[nth - 1].number ^ 1,
            _ => random.below(ALL) & !1 | 1 << 20,
        };
        pages[nth].number = number;
    }
    pages
}

/// Forgets what a flush names: in the TLB, and in a software cache of so many bytes.
fn forget(flush: &Flush, cache: u32, inject: Option<Inject>) {
    let cache = if inject.is_none() { cache } else { 0 };
    if inject == Some(Inject::DropFlush) {
        return;
    }
    let tag = |at: usize| {
        // An entry is 16 bytes, and the tag its first eight.
        for word in [0, 4] {
            // SAFETY: the cache's memory, which the handler alone reads, and not now.
            unsafe { arch::cell(CACHE + at + word).write_volatile(0) };
        }
    };
    if flush.is_all() {
        arch::forget_all();
        (0..cache as usize).step_by(16).for_each(tag);
    }
    for pages in flush.ranges() {
        for page in pages.first().get()..=pages.last().get() {
            arch::forget((page as u64) << 12);
            if cache > 0 {
                tag(page >> 1 << 4 & (cache as usize - 1));
            }
        }
    }
}

/// Works a table with its handler, which has a cache of so many bytes in front, or none.
pub fn run<T: Private<'static>>(
    (front, name): (&str, &str),
    table: T,
    root: fn(&T) -> Block,
    handler: &Handler,
    cache: u32,
    all: &mut Checks,
) {
    let inject = all.inject;
    let mut checks = Checks { inject, ..Checks::default() };
    let mut pages = pages();
    arch::forget_all();
    for at in (0..cache as usize).step_by(4) {
        // SAFETY: the cache's memory, which the handler alone reads, and not now.
        unsafe { arch::cell(CACHE + at).write_volatile(0) };
    }
    let mut table = Local::new(table, |flush: &Flush| forget(flush, cache, inject));
    let mut random = Random(0x1234_5678_9abc_def1);
    let (mut next, mut refills, mut faults) = (0, 0u32, 0u32);
    for step in 0..STEPS {
        let nth = random.below(PAGES);
        let page = &mut pages[nth];
        let vpn = Vpn::new(page.number);
        let one = Pages::one(vpn);
        let at = (page.number as u64) << 12 | (random.below(1024) as u64) << 2;
        let cell = || arch::cell(FRAMES + (page.frame << 12) + (at as usize & 0xfff));
        match random.below(16) {
            0 | 1 if !page.mapped => {
                next += 1;
                (page.mapped, page.writable, page.frame) = (true, next % 3 > 0, next % 4096);
                let writable = if page.writable { Attr::WRITE | Attr::DIRTY } else { Attr::empty() };
                let frame = Pfn::new(page.frame + (FRAMES >> 12));
                let done = table.map(one, frame, PageSize::K4, PaperLo::IMPLIED | writable);
                checks.check(done.is_ok(), "a page cannot be mapped", at);
            }
            0 if page.mapped => {
                page.mapped = false;
                let done = table.unmap(one, Holes::Refuse, None);
                checks.check(done.is_ok(), "a page cannot be unmapped", at);
            }
            1 => {
                page.writable = false;
                let clean = Change { set: Attr::empty(), clear: Attr::WRITE | Attr::DIRTY };
                let done = table.protect(one, Holes::Refuse, clean);
                checks.check(done.is_ok(), "a page cannot be protected", at);
            }
            what => {
                // SAFETY: the handler is that of this table, and no other address space runs.
                unsafe { arch::install(handler, root(table.table())) };
                refills += u32::from(arch::probe(at).is_none());
                let value = step as u32 ^ 0x5a5a_0000;
                let (code, holds) = if what % 2 == 0 {
                    // SAFETY: the frame is this page's alone, and holds a number.
                    unsafe { cell().write_volatile(value) };
                    let got = arch::load(at);
                    (LOAD, if page.mapped { got == Ok(value) } else { failed(got.err(), LOAD, at) })
                } else {
                    // SAFETY: the page leads to a frame that is this page's alone, and holds a number; or the store faults.
                    let got = unsafe { arch::store(at, value) };
                    let holds = match (page.mapped, page.writable) {
                        // SAFETY: the frame is this page's alone, and holds a number.
                        (true, true) => got.is_ok() && unsafe { cell().read_volatile() } == value,
                        (true, false) => failed(got.err(), MODIFIED, at),
                        (false, _) => failed(got.err(), STORE, at),
                    };
                    (STORE, holds)
                };
                faults += u32::from(!page.mapped || code == STORE && !page.writable);
                checks.check(holds, if code == LOAD { "a load is wrong" } else { "a store is wrong" }, at);
            }
        }
        if step % 500 == 0 {
            let doubles = doubles();
            checks.check(doubles == 0, "TLB entries for one address", doubles);
        }
    }
    for page in pages.iter().filter(|page| page.mapped) {
        let done = table.unmap(Pages::one(Vpn::new(page.number)), Holes::Refuse, None);
        checks.check(done.is_ok(), "a page cannot be unmapped", page.number as u64);
    }
    table.destroy();
    checks.check(refills > 1000 && faults > 1000, "too few refills or faults", u64::from(refills));
    let words = handler.refill.words().len() + handler.tail.words().len();
    println!(
        "mips3 table={front}{name} words={words} refills={refills} faults={faults} checks={} failures={}",
        checks.done, checks.failed
    );
    all.done += checks.done;
    all.failed += checks.failed;
}

/// Tells whether a fault is this one, as the kernel must see it.
fn failed(fault: Option<Fault>, code: u64, at: u64) -> bool {
    fault.is_some_and(|fault| {
        (fault.cause >> 2 & 31, fault.bad_vaddr, fault.entry_hi) == (code, at, at & !0x1fff | ASID)
    })
}

/// Returns how many pairs of TLB entries match one address.
fn doubles() -> u64 {
    let mut seen = [0u64; arch::ENTRIES as usize];
    let mut doubles = 0;
    for number in 0..arch::ENTRIES {
        let (hi, _) = arch::entry(number);
        doubles += seen[..number as usize].iter().filter(|&&other| other == hi).count() as u64;
        seen[number as usize] = hi;
    }
    doubles
}
