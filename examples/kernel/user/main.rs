//! The programs: each process checks what it finds in its memory, and reports what must not be.
//!
//! Every page carries words that say which process wrote it, for which page, and how old they are.
#![no_std]
#![no_main]
#![cfg_attr(target_arch = "mips", feature(asm_experimental_arch))]

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sys::Found;

mod arch;
mod churn;
mod dense;
mod large;
mod messages;
mod moving;
mod open;
mod pressure;
mod storm;
mod sys;
mod threads;
mod tree;

/// Where the window begins that a process maps pages in, 1024 of them; the stack is in the last ones.
const WINDOW: usize = (1 << 30) - (2 << 20);
const PAGE: usize = 4096;
/// The words of a page that are written and read.
const WORDS: [usize; 4] = [0, 171, 342, 511];

/// How many checks this process has made and not reported.
static CHECKS: AtomicUsize = AtomicUsize::new(0);

/// Whether a page that the process has unmapped may be found for a while.
static DEFERS: AtomicBool = AtomicBool::new(false);

/// Tells whether a page that the process has unmapped may be found for a while, on a CPU that has used it. Its frame is nobody else's then.
fn may_stay() -> bool {
    DEFERS.load(Ordering::Relaxed)
}

/// Counts a check.
fn check(holds: bool, found: Found) {
    CHECKS.fetch_add(1, Ordering::Relaxed);
    if !holds {
        sys::report(found);
    }
}

/// Ends the process.
fn exit() -> ! {
    sys::report_checks(CHECKS.swap(0, Ordering::Relaxed));
    sys::exit()
}

/// Returns where a page of the window is.
const fn at(page: usize) -> usize {
    WINDOW + page * PAGE
}

/// Where the page begins in what a page carries, and the process.
const PAGE_AT: u32 = if usize::BITS == 64 { 32 } else { 14 };
const PROCESS_AT: u32 = usize::BITS / 4 * 3;

/// Returns the words that a page carries.
const fn pattern(process: usize, page: usize, age: usize) -> usize {
    (process + 1) << PROCESS_AT | page << PAGE_AT | age_in(age)
}

/// Returns how old a page is that carries a word.
const fn age_in(word: usize) -> usize {
    word & ((1 << PAGE_AT) - 1)
}

/// Writes a word all over a page; tells whether that is allowed.
fn stamp(page: usize, word: usize) -> bool {
    WORDS.iter().all(|offset| sys::store(at(page) + offset * 8, word))
}

/// Checks that a page carries a word.
fn expect(page: usize, word: usize) {
    for offset in WORDS {
        match sys::load(at(page) + offset * 8) {
            Some(found) => check(found == word, Found::StaleRead),
            None => check(false, Found::Failure),
        }
    }
}

/// Where the stacks of threads begin, and how many pages each has.
const STACKS: usize = 600;
const STACK: usize = 4;

/// Starts the threads of a process after its first one, each with its number.
fn start_threads(threads: usize, thread: extern "C" fn(usize) -> !) {
    check(sys::map(at(STACKS), threads * STACK), Found::Failure);
    for number in 1..threads {
        sys::spawn(thread, at(STACKS + (number + 1) * STACK), number);
    }
}

/// A generator of numbers.
struct Numbers(u64);

impl Numbers {
    fn new(seed: usize) -> Self {
        Self((seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// Runs `program` in a child.
fn run(program: impl FnOnce()) {
    match sys::fork() {
        Ok(None) => {
            program();
            exit()
        }
        Ok(Some(_)) => {}
        Err(()) => check(false, Found::Failure),
    }
}

/// The first process: every program, each on as many CPUs as there are; again and again, until there were as many
/// operations as are wanted. Or what the kernel says: the one that receives messages (1), or that superpages are for (2).
extern "C" fn main(what: usize) -> ! {
    match what {
        0 => {
            sys::catch();
            DEFERS.store(sys::defers(), Ordering::Relaxed);
        }
        1 => moving::run(),
        _ => {
            sys::catch();
            dense::run(&mut Numbers::new(1));
            exit()
        }
    }
    let cpus = sys::cpus();
    let mut seed = 0;
    loop {
        for _ in 0..cpus {
            seed += 1;
            run(|| storm::run(&mut Numbers::new(seed)));
        }
        sys::wait();
        for _ in 0..cpus.div_ceil(2) {
            seed += 1;
            run(|| dense::run(&mut Numbers::new(seed)));
        }
        sys::wait();
        for _ in 0..cpus.div_ceil(2) {
            seed += 1;
            run(|| large::run(&mut Numbers::new(seed)));
        }
        sys::wait();
        run(|| tree::run(100));
        sys::wait();
        // No other program runs meanwhile, so that the interrupts are those of its unmaps.
        let before = sys::interrupts();
        run(|| churn::run(cpus, seed));
        sys::wait();
        sys::report_churn(churn::unmaps(cpus), sys::interrupts() - before);
        run(|| threads::run(cpus.max(2), seed));
        sys::wait();
        for _ in 0..cpus.div_ceil(2) {
            seed += 1;
            run(|| open::run(seed));
        }
        sys::wait();
        run(|| pressure::run(seed));
        sys::wait();
        for _ in 0..cpus.div_ceil(2) {
            seed += 1;
            run(|| messages::run(&mut Numbers::new(seed)));
        }
        sys::wait();
        if sys::operations() >= sys::wanted() {
            exit()
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::report(Found::Failure);
    exit()
}
