//! Tzou's chapter 5 on several CPUs: pages that come and go, and messages that move between two address spaces.
//!
//! ```text
//!   program   what each CPU does: loads, stores, letters; knows what every word must be
//!   vm        what the kernel's lock guards: PageOut, IpcRegion, Dash, the backing store
//!   spaces    the page tables, as Dash sees them
//!   unmap     the operation of an unmapping in one space
//!   engine    a CPU's part: what the protocol asks of it, and its fault handler
//! ```
//!
//! | pages | are | in frames |
//! |-|-|-|
//! | [`PAGED`] | of a segment that both spaces share: an unmapping is an operation in each | [`FRAMES`], fewer than pages |
//! | [`MAILED`] | of the IPC region, at the same address in both spaces | one each |
//!
//! Every other CPU runs the one space, the rest the other one. A CPU knows what it has stored last to each word of its own in
//! each page of the segment, and finds it there, however often the page has been to the backing store meanwhile. Two
//! CPUs of different spaces write letters to each other: a letter is whole, only the owners of its page store to it,
//! and no other code reads what its writer has not sent. A shootdown that comes late or not at all loses a store, or
//! lets one land in another's page.

mod engine;
mod program;
mod spaces;
mod unmap;
mod vm;

use core::fmt::Arguments;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use tlbkit_addr::{PageSize, Pfn, VirtAddr, Vpn};
use tlbkit_shootdown::{Plan, SharedSpace, System};

use self::unmap::Unmap;
use self::vm::{Ended, Vm};
use super::lock::Lock;
use super::masked::masked;
use super::report::Report;
use super::run::{REQUESTS, SLOTS};
use super::sleepers::Sleepers;
use super::{CPUS, MIPS, Shot};
use crate::args::{Args, Inject};
use crate::println;

pub(super) use self::engine::poll;
pub(super) use self::program::take_part;

/// Address spaces.
const SPACES: usize = 2;
/// Pages of the shared segment, and the frames that they share.
const PAGED: usize = 12;
const FRAMES: usize = 5;
/// Pages of the IPC region, each with a frame of its own.
const MAILED: usize = 8;
/// All pages, one behind the other: two that are neighbours have one entry of the TLB.
const PAGES: usize = PAGED + MAILED;

/// Words of a page.
const WORDS: usize = 1024;

/// A page's worth of memory.
#[repr(align(4096))]
struct Memory([AtomicU32; WORDS]);

/// The frames: those of the segment, then the IPC region's. Programs reach them by way of the TLB, with other instructions
/// than Rust's; both are atomic.
static FRAME: [Memory; FRAMES + MAILED] =
    [const { Memory([const { AtomicU32::new(0) }; WORDS]) }; FRAMES + MAILED];
/// The backing store of the segment.
static STORE: [Memory; PAGED] = [const { Memory([const { AtomicU32::new(0) }; WORDS]) }; PAGED];

impl Memory {
    fn copy_from(&self, other: &Self) {
        for (to, from) in self.0.iter().zip(&other.0) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Its number in physical memory: statics lie in kseg0.
    fn number(&self) -> Pfn {
        Pfn::new((self.0.as_ptr().addr() & 0x1fff_ffff) >> 12)
    }
}

/// Returns the address of a page, in both spaces.
const fn address(page: usize) -> usize {
    0x1000_0000 + (page << 12)
}

/// Returns a page's number in its address space.
const fn vpn(page: usize) -> Vpn {
    VirtAddr::new(address(page)).vpn(PageSize::K4)
}

/// Returns the page at an address, if it is under test.
fn page_at(at: usize) -> Option<usize> {
    (0..PAGES).find(|&page| address(page) == at & !0xfff)
}

/// Counts something that must not be, and says so the first times.
fn wrong(what: Arguments<'_>) {
    if WRONG.fetch_add(1, Ordering::Relaxed) < 3 {
        println!("wrong: {what}");
    }
}

/// Calls of [`wrong`].
static WRONG: AtomicUsize = AtomicUsize::new(0);

/// What went on, and what must not have.
#[derive(Debug, Default)]
struct Counts {
    /// Operations that have ended.
    shootdowns: AtomicUsize,
    /// Loads and stores of programs.
    touches: AtomicUsize,
    /// Those that the kernel had to do something for.
    faults: AtomicUsize,
    /// Letters that have been received.
    letters: AtomicUsize,
    /// Words of the segment that are not what their CPU has stored last.
    lost: AtomicUsize,
    /// Words of a letter that are not its writer's, and what another space has read of one that was not sent.
    leaks: AtomicUsize,
}

/// A flag and a tentative entry, which TLB-first's miss handler looks at.
#[derive(Debug, Default)]
struct Tentative {
    changing: AtomicBool,
    /// The word of EntryLo.
    entry: AtomicU32,
}

/// A run: what all CPUs share.
pub(super) struct Paging {
    plan: Plan,
    cpus: usize,
    total: usize,
    no_flush: bool,
    roots: [u32; SPACES],
    system: System<Ended, Unmap, CPUS, REQUESTS, 1, SLOTS>,
    spaces: [SharedSpace; SPACES],
    tentative: [[Tentative; PAGES]; SPACES],
    vm: Lock<Vm>,
    counts: Counts,
    /// CPUs that wait for something within a shootdown, or may be about to.
    waiting: Sleepers,
    /// CPUs that rest until something changes, and how often it has.
    resting: Sleepers,
    epoch: AtomicU32,
    /// CPUs that are through.
    finished: AtomicUsize,
}

impl Paging {
    /// Returns a run that has not begun, over two empty tables whose roots a refill handler loads as `roots`.
    pub(super) fn new(
        plan: Plan,
        tables: [&'static Shot; SPACES],
        roots: [u32; SPACES],
        args: &Args,
    ) -> Self {
        FRAME.iter().chain(&STORE).for_each(Memory::clear);
        WRONG.store(0, Ordering::Relaxed);
        Self {
            plan,
            cpus: args.cpus,
            total: args.shootdowns,
            no_flush: args.inject == Some(Inject::NoFlush),
            roots,
            system: System::new(MIPS).with_rendezvous(plan.rendezvous()),
            spaces: Default::default(),
            tentative: Default::default(),
            vm: Lock::new(Vm::new(plan, tables)),
            counts: Counts::default(),
            waiting: Sleepers::default(),
            resting: Sleepers::default(),
            epoch: AtomicU32::new(0),
            finished: AtomicUsize::new(0),
        }
    }

    /// Tells whether there have been enough operations.
    fn is_over(&self) -> bool {
        self.counts.shootdowns.load(Ordering::SeqCst) >= self.total
    }

    /// Tells CPUs that rest that something has changed.
    fn changed(&self, me: usize) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        self.resting.wake(me);
    }

    /// Looks at everything once more, when all CPUs have left, and says how the run went.
    pub(super) fn audit(&self) -> Report {
        let done = masked(|masked| {
            self.vm.with(masked, |vm| {
                vm.audit();
                vm.counts
            })
        });
        let counts = &self.counts;
        let mut report = Report::of("paging", self.plan, self.cpus);
        report.counted("shootdowns", &counts.shootdowns);
        report.counted("touches", &counts.touches);
        report.counted("faults", &counts.faults);
        report.count("written", done.written);
        report.count("reclaimed", done.reclaimed);
        report.counted("letters", &counts.letters);
        report.count("copies", done.copies);
        let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        report.failed("lost", of(&counts.lost));
        report.failed("leaks", of(&counts.leaks));
        report.failed("other", of(&WRONG));
        report
    }
}
