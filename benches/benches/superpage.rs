//! What a policy's bookkeeping adds to a TLB miss.
#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tlbkit_addr::Vpn;
use tlbkit_benches::work::{CC1, captured, shuffled};
use tlbkit_superpage::{Action, ApproxOnline, Footprint, Memory, Miss, Policy, Setup, Slot, Thrift, Tlb};

/// Entries of the TLB whose misses these are.
const ENTRIES: usize = 64;
const SEGMENTS: usize = 64;

/// Misses to a real program's pages in random order, each pushing out the page of the miss 64 before.
fn misses() -> Vec<Miss> {
    let pages = shuffled(captured(CC1));
    let miss = |at: usize| Miss {
        tlb: Tlb::Data,
        page: Vpn::new(pages[at]),
        evicted: (at >= ENTRIES).then(|| Vpn::new(pages[at - ENTRIES])),
        now: at as u64,
    };
    (0..pages.len()).map(miss).collect()
}

/// Misses and refusals: a promotion would be the copying's cost, not the bookkeeping's.
fn serve(policy: &mut impl Policy, misses: &[Miss]) {
    for &miss in misses {
        if let Some(Action::Promote { range, .. }) = policy.on_miss(black_box(miss)) {
            policy.refused(range);
        }
    }
}

fn bookkeeping(criterion: &mut Criterion) {
    let misses = misses();
    let setup = Setup::PAPER;
    let mut group = criterion.benchmark_group("superpage bookkeeping of a miss");
    group.throughput(Throughput::Elements(misses.len() as u64));
    macro_rules! policy {
        ($name:literal $policy:ty) => {
            let each = <$policy>::footprint(&setup).expect("the paper's costs");
            let mut directory = vec![Slot::default(); SEGMENTS * Footprint::SLOTS];
            let mut bits = vec![0; SEGMENTS * each.bits];
            let mut counters = vec![0; SEGMENTS * each.counters];
            let memory = Memory { directory: &mut directory, bits: &mut bits, counters: &mut counters };
            let mut policy = <$policy>::new(&setup, memory).expect("the paper's costs");
            group.bench_function($name, |bench| bench.iter(|| serve(&mut policy, &misses)));
        };
    }
    policy!("APPROX-ONLINE" ApproxOnline<'_>);
    policy!("THRIFT" Thrift<'_>);
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    targets = bookkeeping
}
criterion_main!(benches);
