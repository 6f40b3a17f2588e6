//! A small kernel for several CPUs, whose virtual memory is `tlbkit`. It runs programs that check themselves, and says
//! what it has counted in one row.
//!
//! ```text
//!   main ── threads ── process ── body ── tlbkit: AddressSpace
//!             │           │        ├── frames   of user pages, and how often each is mapped
//!             │           │        ├── growth   which pages should be larger, where software loads the TLB
//!             │           │        └── disk     in memory, for pages that go out
//!             │           └── messages, the clock's hand
//!             ├── open     pages that threads change beside each other, without a lock of their process's
//!             ├── own      pages that the kernel maps for itself, under stress
//!             └── arch: to user mode and back      memory: the one `unsafe impl Kernel`
//!
//!   of their own:  protocols  every shootdown algorithm that suits MIPS32, and Tzou's chapter 5
//!                  moving     messages, copied and remapped, in instructions
//! ```
//!
//! `cargo xtask boot --machine riscv64`, or another machine, builds it and runs it in QEMU.
#![no_std]
#![no_main]
#![cfg_attr(target_arch = "mips", feature(asm_experimental_arch))]

use core::sync::atomic::{AtomicUsize, Ordering};

use arch::Boot;
use arch::CPUS;
use body::Body;
use memory::MMU;
use process::Process;
use report::{Count, REPORT, say};
use threads::Thread;
use trap::Frame;
use window::{PAGES, WINDOW, WindowRange};

mod arch;
mod body;
mod costs;
mod disk;
mod faults;
mod frames;
mod growth;
mod load;
mod memory;
mod moving;
mod open;
mod own;
mod process;
#[cfg(all(target_arch = "mips", not(feature = "one-cpu")))]
mod protocols;
mod report;
mod threads;
mod time;
mod trap;
mod window;
mod witness;
mod words;

/// How many pages the first process's stack has, at the end of its window.
const STACK: usize = 8;

/// What the first program is told: to run every program (0), to receive messages, or to run the one that superpages are for.
const RECEIVE: usize = 1;
const ONLY_DENSE: usize = 2;

static RUNNING: AtomicUsize = AtomicUsize::new(1);
/// How many operations the programs are to come to.
static WANTED: AtomicUsize = AtomicUsize::new(0);

/// Returns how many CPUs run.
pub(crate) fn cpus() -> usize {
    RUNNING.load(Ordering::Relaxed)
}

/// Returns how many operations the programs are to come to.
pub(crate) fn wanted() -> usize {
    WANTED.load(Ordering::Relaxed)
}

/// What the first CPU does.
pub(crate) fn first(boot: Boot) -> ! {
    let cpus = number(boot.words, "cpus").unwrap_or(1);
    assert_eq!(MMU.online(), Ok(()));
    WANTED.store(number(boot.words, "operations").unwrap_or(0), Ordering::Relaxed);
    if let Some(name) = value(boot.words, "inject") {
        faults::plant(name);
    }
    if value(boot.words, "unmaps") == Some("deferred") {
        memory::defer();
    }
    let work = value(boot.words, "work");
    #[cfg(all(target_arch = "mips", not(feature = "one-cpu")))]
    if work == Some("protocols") {
        protocols::begin();
        RUNNING.store(arch::start_others(cpus), Ordering::Relaxed);
        assert_eq!(self::cpus(), cpus, "not every CPU that was asked for has started");
        let total = number(boot.words, "shootdowns").unwrap_or(2000);
        protocols::first(cpus, total, value(boot.words, "protocol"));
    }
    witness::begin(boot.words.split(' ').any(|word| word == "witness"));
    let kernel = memory::prepare().expect("there is memory for the kernel's half");
    disk::prepare();
    let program = match work {
        None => 0,
        Some("moving") => moving::run(&kernel, boot.programs, number(boot.words, "costs").unwrap_or(1)),
        Some("superpage") => {
            growth::tell();
            ONLY_DENSE
        }
        Some(other) => panic!("the kernel knows no work {other}"),
    };
    growth::prepare();
    own::begin(&kernel);
    witness::begin_words();
    let tables = memory::tables();

    if costs::LONGEST
        && let Some(unit) = number(boot.words, "costs")
    {
        costs::measure(&kernel, unit).expect("there is memory");
    }
    let (space, entry) = load::load(&kernel, boot.programs);
    let mut body = Body::new(space.clone());
    let stack = WINDOW + (PAGES - STACK) * 4096;
    body.reserve(WindowRange::new(stack, STACK).expect("it is in the window"), true)
        .expect("nothing is there");
    let process = Process::begin(body, None).expect("it is the first");

    arch::fetch_anew();
    RUNNING.store(arch::start_others(cpus.min(CPUS)), Ordering::Relaxed);
    // Any CPU may take the first thread, which asks how many CPUs there are.
    Thread::new(process, space, Frame::new(entry, WINDOW + PAGES * 4096, program)).ready();
    REPORT.check(self::cpus() == cpus, Count::Failures, || "not every CPU that was asked for has started");
    threads::work();
    threads::wait_for_all();
    own::end();
    let grown = [Count::Promotions, Count::Demotions].iter().all(|&count| REPORT.get(count) > 0);
    REPORT.check(
        grown || arch::SIZES.is_empty(),
        Count::Failures,
        || "no page has grown, or none was split again",
    );
    let copied = REPORT.get(Count::LargeCopies) > 0;
    REPORT.check(
        copied || body::LARGE.is_none() && arch::SIZES.is_empty(),
        Count::Failures,
        || "no large page was shared and written",
    );
    assert!(MMU.flush_deferred().is_ok(), "every CPU has stopped");
    let leaked = frames::in_use() + disk::in_use();
    // Nodes may wait for walks that other CPUs have ended since.
    let waiting = MMU.reclaim();
    REPORT.check(waiting == 0, Count::Failures, || "a CPU is in a walk for ever");
    REPORT.end(leaked, memory::tables() - tables + MMU.lost())
}

/// What every other CPU does.
pub(crate) fn other() -> ! {
    arch::fetch_anew();
    assert_eq!(MMU.online(), Ok(()), "no two CPUs have one number");
    #[cfg(all(target_arch = "mips", not(feature = "one-cpu")))]
    if protocols::has_begun() {
        protocols::other()
    }
    threads::work();
    loop {
        time::idle();
        arch::take_interrupt();
    }
}

/// Returns the value of a word `name=value`.
fn value<'w>(words: &'w str, name: &str) -> Option<&'w str> {
    words.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn number(words: &str, name: &str) -> Option<usize> {
    value(words, name)?.parse().ok()
}

#[panic_handler]
fn panic(why: &core::panic::PanicInfo<'_>) -> ! {
    say(format_args!("{why}"));
    REPORT.add(Count::Failures, 1);
    REPORT.end(0, 0)
}
