//! Tzou's protocols on the CPUs of this machine: each that suits it, one after the other, while all CPUs use what changes. What
//! changes are the pages of Tzou's chapter 5: they come and go, and messages move between two address spaces.
//!
//! ```text
//!   program   what each CPU does: loads, stores, letters; knows what every word must be
//!   cpu       a CPU's part: what the protocol asks of it, and its fault handler
//!   unmap     the operation of an unmapping in one space
//!   vm        what the lock guards: PageOut, IpcRegion, Dash, the disk
//!   spaces    the page tables, as Dash sees them
//! ```
//!
//! | pages | are | in frames |
//! |-|-|-|
//! | [`PAGED`] | of a segment that both spaces share: an unmapping is an operation in each | [`FRAMES`], fewer than pages |
//! | [`MAILED`] | of the IPC region, at the same address in both spaces | one each |
//!
//! Every other CPU runs the one space, the rest the other one. A CPU knows what it has stored last to each word of its own in
//! each page of the segment, and finds it there, however often the page has been on the disk meanwhile. Two CPUs of different
//! spaces write letters to each other: a letter is whole, only the owners of its page store to it, and no other CPU reads what its
//! writer has not sent. A shootdown that comes late or not at all loses a store, or lets one land in another's page. Half of the
//! IPC region's pages have a page-table node of their own, which goes and comes with the page.
//!
//! The programs are part of the kernel, and reach the pages through the TLB. `tlbkit`'s address spaces follow one protocol; here the
//! kernel has tables of `tlbkit-pagetable`, and a refill handler without a cache. Only software that loads TLBs suits every order.

mod cpu;
mod program;
mod spaces;
mod unmap;
mod vm;

use core::fmt::{Arguments, Write};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use spin::Once;
use tlbkit::pagetable::Shared;
use tlbkit::pagetable::format::EntryLo;
use tlbkit::pagetable::geometry::Va32;
use tlbkit::pagetable::mpt::Mpt;
use tlbkit::pagetable::nodes::{Chunk, Identity, Slab};
use tlbkit::shootdown::{Algorithm, Hardware, LowRights, Order, Plan, Rendezvous, SharedSpace, System};
use tlbkit::{PageSize, VirtAddr, Vpn};

use self::spaces::Nodes;
use self::unmap::Unmap;
use self::vm::Vm;
use crate::arch::{self, Console};
use crate::memory::Lock;
use crate::report::{Count, REPORT, say};
use crate::time;

/// The most CPUs that take part.
const CPUS: usize = 4;
/// Requests that a CPU's mailbox holds; one more, and it flushes everything. Few, so that this happens.
const REQUESTS: usize = 2;
/// Operations that a CPU may have in flight.
const SLOTS: usize = 2;

/// Address spaces.
const SPACES: usize = 2;
/// Pages of the shared segment, and the frames that they share.
const PAGED: usize = 12;
const FRAMES: usize = 5;
/// Pages of the IPC region, each with a frame of its own.
const MAILED: usize = 8;
/// All pages. Two that are neighbours have one entry of the TLB, but for these, each of which has a page-table node of its own.
const PAGES: usize = PAGED + MAILED;
const APART: core::ops::Range<usize> = PAGED..PAGED + MAILED / 2;

/// MIPS as the shootdowns see it: software loads the TLBs and no CPU writes status bits back, and no CPU flushes another one's.
const MIPS: Hardware = Hardware::MIPS32;

/// A page table.
type Table = Mpt<'static, Va32, EntryLo, Slab<'static, u32, Shared, Identity>>;

/// Runs of the protocols: one of them, 2-phase, has two ways around two requesters' deadlock.
const RUNS: usize = Algorithm::ALL.len() + 1;
static RUN: [Once<Run>; RUNS] = [const { Once::new() }; RUNS];
/// How many runs there have been, and [`END`] after the last.
static NUMBER: AtomicUsize = AtomicUsize::new(0);
const END: usize = usize::MAX;
/// The CPUs but the first that are in a run.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// Whether the CPUs that start now take part.
static BEGUN: AtomicBool = AtomicBool::new(false);
/// How many entries TLB-first is changing. If there is one, the refill handler passes every miss on to the kernel.
static CHANGING: AtomicU32 = AtomicU32::new(0);

/// Returns the address of a page, in both spaces.
const fn address(page: usize) -> usize {
    let is_apart = page >= APART.start && page < APART.end;
    if is_apart { 0x2000_0000 + (page << 22) + (page << 12) } else { 0x1000_0000 + (page << 12) }
}

/// Returns a page's number in its address space.
const fn vpn(page: usize) -> Vpn {
    VirtAddr::new(address(page)).vpn(PageSize::K4)
}

/// Returns the page at an address, if it is under test.
fn page_at(at: usize) -> Option<usize> {
    (0..PAGES).find(|&page| address(page) == at & !0xfff)
}

/// Notes what must not be, and says so the first times.
fn wrong(what: Arguments<'_>) {
    if REPORT.get(Count::Failures) < 10 {
        say(what);
    }
    REPORT.fail(Count::Failures, "a protocol has failed");
}

/// What went on.
#[derive(Debug, Default)]
struct Counts {
    /// Operations that have ended.
    shootdowns: AtomicUsize,
    /// Loads and stores of programs, and those that the kernel had to do something for.
    touches: AtomicUsize,
    faults: AtomicUsize,
    /// Letters that have been received.
    letters: AtomicUsize,
    /// Nodes of page tables that were given up, and used again after a shootdown.
    nodes: AtomicUsize,
}

fn add(count: &AtomicUsize, more: usize) {
    count.fetch_add(more, Ordering::Relaxed);
}

/// A flag and a tentative entry, which TLB-first's miss handler looks at.
#[derive(Debug, Default)]
struct Tentative {
    changing: AtomicBool,
    /// The word of EntryLo.
    entry: AtomicU32,
}

/// A run: what all CPUs share.
struct Run {
    plan: Plan,
    cpus: usize,
    total: usize,
    roots: [usize; SPACES],
    system: System<Nodes, Unmap, CPUS, REQUESTS, 1, SLOTS>,
    spaces: [SharedSpace; SPACES],
    tentative: [[Tentative; PAGES]; SPACES],
    vm: Lock<Vm>,
    counts: Counts,
    /// CPUs that are through.
    finished: AtomicUsize,
}

impl Run {
    /// Tells whether there have been enough operations.
    fn is_over(&self) -> bool {
        self.counts.shootdowns.load(Ordering::SeqCst) >= self.total
    }

    /// Says how the run went, when all CPUs have left.
    fn report(&self) {
        let done = self.vm.lock().counts;
        let counts = &self.counts;
        let serving = if self.plan.rendezvous() == Rendezvous::Serve { "/serving" } else { "" };
        let _ = write!(
            Console,
            "protocol protocol={}{serving} cpus={} written={} reclaimed={} copies={}",
            self.plan.algorithm(),
            self.cpus,
            done.written,
            done.reclaimed,
            done.copies
        );
        for (name, count) in [
            ("shootdowns", &counts.shootdowns),
            ("touches", &counts.touches),
            ("faults", &counts.faults),
            ("letters", &counts.letters),
            ("nodes", &counts.nodes),
        ] {
            let _ = write!(Console, " {name}={}", count.load(Ordering::Relaxed));
        }
        let _ = writeln!(Console, " failures={}", REPORT.get(Count::Failures));
    }
}

/// The CPUs that start from now on take part in the runs.
pub(crate) fn begin() {
    BEGUN.store(true, Ordering::Release);
}

/// Tells whether this boot is for the protocols.
pub(crate) fn has_begun() -> bool {
    BEGUN.load(Ordering::Acquire)
}

/// What CPU 0 does: runs the protocols that suit the hardware, or the one of this name, on all CPUs, each until there have been
/// `total` operations.
pub(crate) fn first(cpus: usize, total: usize, only: Option<&str>) -> ! {
    static MEMORY: spin::Mutex<[Chunk; 64]> = spin::Mutex::new([Chunk::ZERO; 64]);
    static SLAB: Once<Slab<'static, u32, Shared, Identity>> = Once::new();
    static TABLES: Once<[Table; SPACES]> = Once::new();
    assert!(cpus <= CPUS, "{cpus} CPUs are more than {CPUS}");
    let slab = SLAB.call_once(|| {
        let memory: &mut [_; _] = spin::MutexGuard::leak(MEMORY.lock());
        Slab::identity(memory).expect("it is memory for nodes")
    });
    let tables =
        TABLES.call_once(|| [(); SPACES].map(|()| Table::new(slab).expect("there is memory for a table")));
    let suits = |algorithm| match Plan::new(algorithm, &MIPS, LowRights::NeverWriteBack) {
        Ok(plan) => Some(plan),
        Err(why) => {
            say(format_args!("{algorithm} is not for this hardware: {why}"));
            None
        }
    };
    let wanted = |algorithm: &Algorithm| only.is_none_or(|name| name == algorithm.name());
    let serves = |plan: Plan| {
        let both = plan.algorithm().order() == Order::TwoPhase;
        [Some(plan), both.then(|| plan.with_rendezvous(Rendezvous::Serve))].into_iter().flatten()
    };
    let plans = Algorithm::ALL.into_iter().filter(wanted).filter_map(suits).flat_map(serves);
    for (number, plan) in plans.enumerate() {
        let run = RUN[number].call_once(|| Run {
            plan,
            cpus,
            total,
            roots: tables.each_ref().map(|table| table.root().get()),
            system: System::new(MIPS).with_rendezvous(plan.rendezvous()),
            spaces: Default::default(),
            tentative: Default::default(),
            vm: Lock::new(Vm::new(plan, tables.each_ref())),
            counts: Counts::default(),
            finished: AtomicUsize::new(0),
        });
        INSIDE.store(cpus - 1, Ordering::SeqCst);
        NUMBER.store(number + 1, Ordering::SeqCst);
        program::take_part(run, 0);
        while INSIDE.load(Ordering::SeqCst) > 0 {
            time::pause();
        }
        run.vm.lock().audit();
        let left = slab.usage().nodes;
        if left != SPACES {
            wrong(format_args!("{left} nodes are left, and {SPACES} are roots"));
        }
        run.report();
        REPORT.add(Count::Checks, run.counts.touches.load(Ordering::Relaxed));
    }
    REPORT.check(NUMBER.load(Ordering::SeqCst) > 0, Count::Failures, || "no protocol has this name");
    NUMBER.store(END, Ordering::SeqCst);
    REPORT.end(0, 0)
}

/// What every other CPU does.
pub(crate) fn other() -> ! {
    let mut last = 0;
    loop {
        match NUMBER.load(Ordering::SeqCst) {
            number if number == last => time::pause(),
            END => time::idle(),
            number => {
                last = number;
                time::begin_slice();
                if let Some(run) = RUN[number - 1].get() {
                    program::take_part(run, arch::cpu());
                }
                INSIDE.fetch_sub(1, Ordering::SeqCst);
            }
        }
        arch::take_interrupt();
    }
}
