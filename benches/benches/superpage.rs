//! What a policy's bookkeeping adds to a TLB miss.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tlbkit_addr::Vpn;
use tlbkit_benches::work::{CC1, captured, shuffled};
use tlbkit_superpage::{
    Action, ApproxOnline, Miss, Policy, PolicyMemory, Refusal, SegmentMemory, Setup, Slot, Thrift, Tlb,
};

/// Entries of the TLB whose misses these are.
const ENTRIES: usize = 64;
const SEGMENTS: usize = 64;

/// Misses to a real program's pages in random order, each pushing out the page of the miss 64 before.
fn misses() -> Vec<Miss> {
    let pages = shuffled(captured(48, CC1));
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
            policy.refused(range, Refusal::NoMemory);
        }
    }
}

/// Memory for a policy's counters.
struct Storage {
    directory: Vec<Slot>,
    bits: Vec<usize>,
    counters: Vec<u16>,
}

impl Storage {
    fn new(each: SegmentMemory) -> Self {
        Self {
            directory: vec![Slot::default(); SEGMENTS * SegmentMemory::SLOTS],
            bits: vec![0; SEGMENTS * each.bits],
            counters: vec![0; SEGMENTS * each.counters],
        }
    }

    fn memory(&mut self) -> PolicyMemory<'_> {
        PolicyMemory { directory: &mut self.directory, bits: &mut self.bits, counters: &mut self.counters }
    }
}

fn bookkeeping(criterion: &mut Criterion) {
    let misses = misses();
    let setup = Setup::PAPER;
    let mut group = criterion.benchmark_group("superpage bookkeeping of a miss");
    group.throughput(Throughput::Elements(misses.len() as u64));
    let charges = ApproxOnline::segment_memory(&setup).expect("the paper's costs");
    let mut storage = Storage::new(charges);
    let mut policy = ApproxOnline::new(&setup, storage.memory()).expect("the paper's costs");
    group.bench_function("APPROX-ONLINE", |bench| bench.iter(|| serve(&mut policy, &misses)));

    let mut storage = Storage::new(Thrift::segment_memory(&setup).expect("the paper's costs"));
    let mut policy = Thrift::new(&setup, storage.memory()).expect("the paper's costs");
    group.bench_function("THRIFT", |bench| bench.iter(|| serve(&mut policy, &misses)));
    group.finish();
}

criterion_group! {
    name = benches;
    config = tlbkit_benches::criterion();
    targets = bookkeeping
}
criterion_main!(benches);
