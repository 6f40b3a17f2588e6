//! Page tables under criterion: one group a job, one function a subject.
#![allow(missing_docs)]

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tlbkit_benches::cases;

fn tables(criterion: &mut Criterion) {
    for case in cases::all() {
        let mut group = criterion.benchmark_group(case.job);
        group.throughput(Throughput::Elements(case.operations));
        // Set up once, and only what is asked for.
        let (mut start, mut round) = (Some(case.start), None);
        group.bench_function(case.subject, |bench| {
            if let Some(start) = start.take() {
                round = Some(start());
            }
            let Some(round) = &mut round else { return };
            bench.iter_custom(|rounds| (0..rounds).map(|_| round()).sum::<Duration>());
        });
    }
}

criterion_group! {
    name = benches;
    config = tlbkit_benches::criterion();
    targets = tables
}
criterion_main!(benches);
