//! Page tables under criterion: one group a job, one function a subject.
#![allow(missing_docs)]

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tlbkit_benches::cases;

fn tables(criterion: &mut Criterion) {
    for case in cases::all() {
        let mut group = criterion.benchmark_group(case.job);
        group.throughput(Throughput::Elements(case.operations));
        let mut round = (case.start)();
        group.bench_function(case.subject, |bench| {
            bench.iter_custom(|rounds| (0..rounds).map(|_| round()).sum::<Duration>());
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(150))
        .measurement_time(Duration::from_millis(400));
    targets = tables
}
criterion_main!(benches);
