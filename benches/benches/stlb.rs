//! The software TLB cache: what a hit, a fill and an invalidation cost, beside the walk that a hit saves.
//!
//! With `--summary` it runs the cases interleaved round by round, and prints ratios to the first subject of each job: on a
//! shared machine only those mean something. Otherwise criterion measures them. How many instructions, loads and branches a hit
//! has is counted by `benches/examples/stlb_hit.rs` under callgrind.
#![allow(missing_docs)]

use std::collections::HashSet;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use criterion::Throughput;
use tlbkit_addr::{Asid, PageSize, VirtAddr};
use tlbkit_benches::Subject;
use tlbkit_benches::peers::X86;
use tlbkit_benches::work::{dense, shuffled, sparse};
use tlbkit_stlb::{AsidTag, Assoc, Cache, CacheMemory, Direct, Invalidate, Page64, Shared, Victim};

/// Pages that are hit, and slots of the caches.
const PAGES: usize = 8192;
const SLOTS: usize = 16384;
/// Pages of the chain that stays in the first-level data cache: 8 KiB of entries.
const NEAR: usize = 512;

type Round = Box<dyn FnMut() -> Duration>;

struct Case {
    job: &'static str,
    subject: &'static str,
    operations: usize,
    round: Round,
}

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    black_box(work());
    start.elapsed()
}

fn space() -> AsidTag<Page64> {
    AsidTag::new(Asid::new(7, 8).expect("8 bits")).expect("room")
}

fn memory<const BYTES: usize>() -> &'static mut [std::mem::MaybeUninit<u8>] {
    Box::leak(Box::new(CacheMemory::<BYTES>::new())).bytes()
}

/// Single pages all over the space, each with a slot of its own: what is measured is the hit.
fn sparse_hits() -> Vec<usize> {
    let mut slots = HashSet::new();
    let mut pages = shuffled(sparse(48, 4 * PAGES));
    pages.retain(|vpn| slots.insert(vpn % SLOTS) && slots.len() <= PAGES);
    pages
}

/// Calls `fill` with each page's address and the address of the next in a shuffled cycle; returns the order.
fn cycle(pages: &[usize], mut fill: impl FnMut(VirtAddr, usize)) -> Vec<usize> {
    let order: Vec<usize> = shuffled(pages.to_vec()).into_iter().map(|vpn| vpn << 12).collect();
    for (at, &va) in order.iter().enumerate() {
        fill(VirtAddr::new(va), order[(at + 1) % order.len()]);
    }
    order
}

/// A throughput case and a chain case of one way to translate.
fn hits(
    cases: &mut Vec<Case>,
    [throughput, chain]: [&'static str; 2],
    subject: &'static str,
    order: Vec<usize>,
    translate: impl Fn(usize) -> usize + Clone + 'static,
) {
    let (operations, start, follow) = (order.len(), order[0], translate.clone());
    let sum = move || timed(|| order.iter().fold(0, |sum: usize, &va| sum.wrapping_add(translate(va))));
    let walk = move || timed(|| (0..operations).fold(start, |va, _| follow(va)));
    cases.push(Case { job: throughput, subject, operations, round: Box::new(sum) });
    cases.push(Case { job: chain, subject, operations, round: Box::new(walk) });
}

/// The walk, and each form of the cache, on the same pages.
fn translations(cases: &mut Vec<Case>, jobs: [&'static str; 2], pages: &[usize]) {
    let mut table = X86::new();
    let order = cycle(pages, |at, next| table.map(at.get() >> 12, next >> 12));
    let table: &'static X86 = Box::leak(Box::new(table));
    hits(cases, jobs, X86::NAME, order, move |va| table.translate(va).unwrap_or(0));

    macro_rules! form {
        ($name:literal, $cache:ty) => {
            let mut cache = <$cache>::new(memory::<{ SLOTS * 16 }>()).expect("room");
            let order = cycle(pages, |at, next| cache.fill(at, space(), next as u64));
            let cache: &'static $cache = Box::leak(Box::new(cache));
            hits(cases, jobs, $name, order, move |va| {
                cache.lookup(VirtAddr::new(va), space()).unwrap_or(0) as usize
            });
        };
    }
    form!("direct", Direct<'static, Page64, SLOTS>);
    form!("2-way", Assoc<'static, Page64, { SLOTS / 2 }, 2>);
    form!("4-way", Assoc<'static, Page64, { SLOTS / 4 }, 4>);

    let shared = Shared::<Page64, SLOTS, 1>::new(memory::<{ SLOTS * 32 }>()).expect("room");
    let order = cycle(pages, |at, next| {
        if let Err(ticket) = shared.lookup(at, space()) {
            shared.fill(ticket, at, space(), next as u64);
        }
    });
    let shared: &'static Shared<'static, Page64, SLOTS, 1> = Box::leak(Box::new(shared));
    hits(cases, jobs, "shared", order, move |va| {
        shared.lookup(VirtAddr::new(va), space()).map_or(0, |data| data as usize)
    });
}

/// Latency in units of a load from the first-level cache.
fn near(cases: &mut Vec<Case>) {
    let next: Vec<usize> = {
        let order = shuffled((0..NEAR).collect());
        let mut next = vec![0; NEAR];
        (0..NEAR).for_each(|at| next[order[at]] = order[(at + 1) % NEAR]);
        next
    };
    let job = "near chain";
    // A chain of bare addresses: nothing but the load.
    let cells: &'static mut [usize] = Box::leak(next.clone().into_boxed_slice());
    let base = cells.as_ptr();
    for (at, &to) in next.iter().enumerate() {
        cells[at] = base.wrapping_add(to).expose_provenance();
    }
    let start = cells[0];
    let load = move || {
        timed(|| {
            // SAFETY: every cell holds the address of a cell.
            (0..PAGES).fold(start, |at, _| unsafe { *std::ptr::with_exposed_provenance::<usize>(at) })
        })
    };
    cases.push(Case { job, subject: "L1 load", operations: PAGES, round: Box::new(load) });

    let mut cache = Direct::<Page64, NEAR>::new(memory::<{ NEAR * 16 }>()).expect("room");
    let order = cycle(&dense(48, NEAR), |at, next| cache.fill(at, space(), next as u64));
    let cache: &'static Direct<'static, Page64, NEAR> = Box::leak(Box::new(cache));
    let hit = move |va| cache.lookup(VirtAddr::new(va), space()).unwrap_or(0) as usize;
    let (start, follow) = (order[0], hit);
    let round = move || timed(|| (0..PAGES).fold(start, |va, _| follow(va)));
    cases.push(Case { job, subject: "direct", operations: PAGES, round: Box::new(round) });
}

/// Fills and invalidations of single pages, in shuffled order over a full cache.
fn changes(cases: &mut Vec<Case>) {
    macro_rules! form {
        ($name:literal, $cache:ty) => {
            let order = shuffled(dense(48, PAGES));
            for job in ["fill", "invalidate page"] {
                let mut cache = <$cache>::new(memory::<{ SLOTS * 16 }>()).expect("room");
                let order: Vec<_> = order.iter().map(|&vpn| VirtAddr::new(vpn << 12)).collect();
                let round = move || {
                    let fill = |cache: &mut $cache| {
                        order.iter().for_each(|&at| cache.fill(at, space(), at.get() as u64));
                    };
                    if job == "fill" {
                        return timed(|| fill(&mut cache));
                    }
                    fill(&mut cache);
                    timed(|| order.iter().for_each(|at| cache.invalidate_page(space(), at.vpn(PageSize::K4))))
                };
                cases.push(Case { job, subject: $name, operations: PAGES, round: Box::new(round) });
            }
        };
    }
    form!("direct", Direct<'static, Page64, SLOTS>);
    form!("4-way", Assoc<'static, Page64, { SLOTS / 4 }, 4>);
    form!("victim", Victim<'static, Page64, SLOTS, 8>);
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    translations(&mut cases, ["hit dense", "chain dense"], &dense(48, PAGES));
    translations(&mut cases, ["hit sparse", "chain sparse"], &sparse_hits());
    near(&mut cases);
    changes(&mut cases);
    cases.sort_by_key(|case| case.job);
    cases
}

/// Runs the subjects of each job in turn and prints medians of times and of ratios of neighbouring rounds.
fn ratios(cases: &mut [Case]) {
    println!("{:<18} {:<10} {:>8}  {:>6}  quartiles", "job", "subject", "ns/op", "ratio");
    for group in cases.chunk_by_mut(|a, b| a.job == b.job) {
        let mut times = vec![Vec::new(); group.len()];
        for _ in 0..60 {
            for (case, times) in group.iter_mut().zip(&mut times) {
                times.push((case.round)().as_nanos() as f64 / case.operations as f64);
            }
        }
        for (case, own) in group.iter().zip(&times) {
            let [_, time, _] = quartiles(own.clone());
            let [low, ratio, high] = quartiles(own.iter().zip(&times[0]).map(|(a, b)| a / b).collect());
            println!("{:<18} {:<10} {time:>8.2}  {ratio:>6.3}  {low:.3}..{high:.3}", case.job, case.subject);
        }
    }
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[values.len() * quarter / 4])
}

fn main() -> ExitCode {
    let mut cases = cases();
    let is_given = |option: &str| std::env::args().any(|argument| argument == option);
    if is_given("--summary") {
        ratios(&mut cases);
        return ExitCode::SUCCESS;
    }
    let mut criterion = tlbkit_benches::criterion().configure_from_args();
    let mut ran = 0;
    let names: Vec<_> = cases.iter().map(|case| format!("{}/{}", case.job, case.subject)).collect();
    for mut case in cases {
        let mut group = criterion.benchmark_group(case.job);
        group.throughput(Throughput::Elements(case.operations as u64));
        group.bench_function(case.subject, |bench| {
            ran += 1;
            bench.iter_custom(|rounds| (0..rounds).map(|_| (case.round)()).sum::<Duration>());
        });
    }
    criterion.final_summary();
    if ran == 0 && !is_given("--list") {
        eprintln!("nothing is called so; there are: {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
