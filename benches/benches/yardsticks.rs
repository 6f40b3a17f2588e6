//! What this machine can do at best, beside which the other numbers mean something: a load from each level of its
//! memory, a line that goes to and fro between two CPUs.
#![allow(missing_docs)]

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use tlbkit_benches::work::shuffled;

/// Loads of a round.
const STEPS: usize = 8192;

/// Each load needs the one before: a shuffled cycle through a buffer, a line a step.
fn loads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dependent load");
    for (name, bytes) in [("16 KiB: L1", 16 << 10), ("256 KiB: L2", 256 << 10), ("64 MiB: memory", 64 << 20)]
    {
        let lines = bytes / 64;
        let order = shuffled((0..lines).collect());
        let mut next = vec![0usize; lines * 8];
        for (at, &line) in order.iter().enumerate() {
            next[line * 8] = order[(at + 1) % lines] * 8;
        }
        let mut at = order[0] * 8;
        group.throughput(criterion::Throughput::Elements(STEPS as u64));
        group.bench_function(name, |bench| {
            bench.iter(|| {
                for _ in 0..STEPS {
                    at = next[at];
                }
                black_box(at)
            });
        });
    }
    group.finish();
}

#[repr(align(64))]
struct Line(AtomicU32);

/// Two threads, one line: each waits for the other's number and writes the next.
fn ping_pong(criterion: &mut Criterion) {
    criterion.bench_function("cache line there and back", |bench| {
        bench.iter_custom(|times| {
            let line = Line(AtomicU32::new(0));
            let last = 2 * times as u32;
            let wait = |number| {
                while line.0.load(Ordering::Acquire) != number {
                    spin_loop();
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for number in (1..last).step_by(2) {
                        wait(number);
                        line.0.store(number + 1, Ordering::Release);
                    }
                });
                let start = Instant::now();
                for number in (0..last).step_by(2) {
                    line.0.store(number + 1, Ordering::Release);
                    wait(number + 2);
                }
                start.elapsed()
            })
        });
    });
}

criterion_group! {
    name = benches;
    config = tlbkit_benches::criterion();
    targets = loads, ping_pong
}
criterion_main!(benches);
