//! Subjects that several threads change at once, each thread on a CPU of its own.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::timed;

mod locked;
mod spaces;
mod tables;

pub use locked::Locked;
pub use spaces::{Sv39Threads, Sv39Whole, X86Threads, X86Whole};
pub use tables::{
    Cpt8Threads, Cpt8Whole, HrThreads, HrWhole, MptThreads, MptWhole, X86TableThreads, X86TableWhole,
};

/// A page table, or something that stands in for one, that several threads change. Pages and frames are numbers of 4 KiB. What cannot be
/// done panics: no thread maps a page that another thread maps.
pub trait Concurrent: Sync {
    /// The bits of an address.
    const BITS: u32;

    /// The most threads.
    const MOST: usize = 64;

    /// Returns how rows are labelled.
    fn name() -> String;

    /// Returns an empty table.
    fn new() -> Self;

    /// Makes this thread the CPU with this number, which runs on the table.
    fn enter(&self, number: usize) {
        let _ = number;
    }

    /// Makes this thread's CPU run on no table.
    fn leave(&self) {}

    /// Serves what other CPUs ask of this one, while it waits.
    fn serve(&self) {}

    /// Resolves the fault of a store to a page: looks the page up, and maps it.
    fn fault(&self, vpn: usize, pfn: usize);

    /// Maps a run of pages.
    fn map(&self, vpn: usize, pfn: usize, pages: usize);

    /// Unmaps a run of pages.
    fn unmap(&self, vpn: usize, pages: usize);

    /// Translates an address. No thread changes the table meanwhile.
    fn translate(&self, va: usize) -> Option<usize>;

    /// Takes an empty table apart.
    fn destroy(self);
}

/// How long a thread has waited for another one. It lets other threads run now and then: there may be fewer CPUs than threads.
#[derive(Default)]
struct Wait(u32);

impl Wait {
    fn pause(&mut self) {
        self.0 += 1;
        if self.0.is_multiple_of(4096) { thread::yield_now() } else { spin_loop() }
    }
}

/// A spin lock: what a kernel has around a table with one writer.
#[derive(Default)]
struct Spin(AtomicBool);

impl Spin {
    const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        let mut wait = Wait::default();
        while self.0.swap(true, Ordering::Acquire) {
            while self.0.load(Ordering::Relaxed) {
                wait.pause();
            }
        }
        let result = f();
        self.0.store(false, Ordering::Release);
        result
    }
}

/// Where the threads of a round meet.
struct Gate {
    /// The last pass that has begun, or [`OVER`].
    pass: AtomicUsize,
    /// How often a thread has come to the gate.
    come: AtomicUsize,
}

const OVER: usize = usize::MAX;

/// Opens the gate for ever at its end, so that no thread waits for one that unwinds.
struct Over<'g>(&'g Gate);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.pass.store(OVER, Ordering::Release);
    }
}

/// Runs passes of `work` by so many threads at once, of which this one is the first, and returns the time of them: from the moment in
/// which all threads are let go until the last one has ended. Outside of that time each thread undoes what it has done, so that a pass
/// begins with each thread's entries in the cache of its CPU; and `check` looks, on this thread alone, at what has been done (`true`) or
/// undone.
pub(crate) fn passes<S: Concurrent>(
    table: &S,
    threads: usize,
    passes: usize,
    [work, undo]: [&(dyn Fn(usize) + Sync); 2],
    check: impl Fn(bool),
) -> Duration {
    let gate = &Gate { pass: AtomicUsize::new(0), come: AtomicUsize::new(0) };
    // Every second pass of the gate undoes the one before.
    let turn = |pass: usize, number| if pass % 2 == 1 { work(number) } else { undo(number) };
    let turn = &turn;
    thread::scope(|scope| {
        for number in 1..threads {
            scope.spawn(move || {
                let over = Over(gate);
                table.enter(number);
                for pass in 1.. {
                    gate.come.fetch_add(1, Ordering::Release);
                    until(table, || gate.pass.load(Ordering::Acquire) >= pass);
                    if gate.pass.load(Ordering::Relaxed) == OVER {
                        break;
                    }
                    turn(pass, number);
                }
                table.leave();
                std::mem::forget(over);
            });
        }
        let _over = Over(gate);
        table.enter(0);
        let all = |pass: usize| {
            until(table, || {
                assert!(gate.pass.load(Ordering::Relaxed) != OVER, "another thread has failed");
                gate.come.load(Ordering::Acquire) == pass * (threads - 1)
            });
        };
        let pass = |pass: usize| {
            all(pass);
            let (time, ()) = timed(|| {
                gate.pass.store(pass, Ordering::Release);
                turn(pass, 0);
                all(pass + 1);
            });
            time
        };
        (1..=passes)
            .map(|number| {
                let time = pass(2 * number - 1);
                check(true);
                pass(2 * number);
                check(false);
                time
            })
            .sum()
    })
}

/// Waits, and serves what other CPUs ask for.
fn until<S: Concurrent>(table: &S, is_so: impl Fn() -> bool) {
    let mut wait = Wait::default();
    while !is_so() {
        table.serve();
        wait.pause();
    }
}
