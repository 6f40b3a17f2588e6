//! What a policy's bookkeeping adds to a TLB miss.

use std::hint::black_box;
use std::time::Duration;

use crate::work::{CC1, captured, shuffled};
use crate::{Case, timed};
use tlbkit_addr::Vpn;
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

/// Returns rounds of a policy that serves the misses.
fn rounds(mut policy: impl Policy + 'static) -> impl FnMut() -> Duration {
    let misses = misses();
    move || timed(|| serve(&mut policy, &misses)).0
}

pub(super) fn cases() -> Vec<Case> {
    let (job, setup) = ("superpage bookkeeping", &Setup::PAPER);
    let memory = |each: SegmentMemory| Box::leak(Box::new(Storage::new(each))).memory();
    let misses = misses().len();
    vec![
        Case::new(job, "APPROX-ONLINE", misses, move || {
            let each = ApproxOnline::segment_memory(setup).expect("the paper's costs");
            rounds(ApproxOnline::new(setup, memory(each)).expect("the paper's costs"))
        }),
        Case::new(job, "THRIFT", misses, move || {
            let each = Thrift::segment_memory(setup).expect("the paper's costs");
            rounds(Thrift::new(setup, memory(each)).expect("the paper's costs"))
        }),
    ]
}
