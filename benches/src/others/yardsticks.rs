//! What this machine can do at best, beside which the other numbers mean something: a load from each level of its
//! memory, a line that goes to and fro between two CPUs.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::work::shuffled;
use crate::{Case, timed};

/// Loads of a round.
const STEPS: usize = 8192;
/// Round trips of a round.
const TRIPS: u32 = 1000;

/// Each load needs the one before: a shuffled cycle through a buffer, a line a step.
fn load(subject: &'static str, bytes: usize) -> Case {
    Case::new("dependent load", subject, STEPS, move || {
        let lines = bytes / 64;
        let order = shuffled((0..lines).collect());
        let mut next = vec![0usize; lines * 8];
        for (at, &line) in order.iter().enumerate() {
            next[line * 8] = order[(at + 1) % lines] * 8;
        }
        let mut at = order[0] * 8;
        move || {
            let (time, end) = timed(|| (0..STEPS).fold(at, |at, _| next[at]));
            at = end;
            time
        }
    })
}

#[repr(align(64))]
struct Line(AtomicU32);

/// Two threads, one line: each waits for the other's number and writes the next.
fn ping_pong() -> Case {
    Case::new("cache line there and back", "two CPUs", TRIPS as usize, || {
        move || {
            let line = Line(AtomicU32::new(0));
            let last = 2 * TRIPS;
            let wait = |number| {
                while line.0.load(Ordering::Acquire) != number {
                    spin_loop();
                }
            };
            let (time, ()) = std::thread::scope(|scope| {
                scope.spawn(|| {
                    for number in (1..last).step_by(2) {
                        wait(number);
                        line.0.store(number + 1, Ordering::Release);
                    }
                });
                timed(|| {
                    for number in (0..last).step_by(2) {
                        line.0.store(number + 1, Ordering::Release);
                        wait(number + 2);
                    }
                })
            });
            time
        }
    })
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        load("16 KiB: L1", 16 << 10),
        load("256 KiB: L2", 256 << 10),
        load("64 MiB: memory", 64 << 20),
        ping_pong(),
    ]
}
