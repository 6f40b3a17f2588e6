//! The software TLB cache: what a hit, a fill and an invalidation cost, beside the walk that a hit saves.
//!
//! How many instructions, loads and branches a hit has is counted by `benches/examples/stlb_hit.rs` under callgrind.

use std::collections::HashSet;

use crate::peers::X86;
use crate::work::{dense, shuffled, sparse};
use crate::{Case, Subject, timed};
use tlbkit_addr::{Asid, PageSize, VirtAddr};
use tlbkit_stlb::{
    AsidTag, Assoc, Cache, CacheMemory, Direct, Integrated, Invalidate, Page64, Probe, Ptlb, Rank, Shared,
    Victim,
};

/// Pages that are hit, and slots of the caches.
const PAGES: usize = 8192;
const SLOTS: usize = 16384;
/// Pages of the chain that stays in the first-level data cache: 8 KiB of entries.
const NEAR: usize = 512;

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

/// A throughput case and a chain case of one way to translate. `fill` makes it for these pages, and returns their order.
fn hits<T: Fn(usize) -> usize + 'static>(
    cases: &mut Vec<Case>,
    (jobs, pages): ([&'static str; 2], Pages),
    subject: &'static str,
    fill: impl Fn(&[usize]) -> (Vec<usize>, T) + Copy + 'static,
) {
    let [throughput, chain] = jobs;
    cases.push(Case::new(throughput, subject, PAGES, move || {
        let (order, translate) = fill(&pages());
        let sum = order.iter().fold(0, |sum: usize, &va| sum.wrapping_add(va));
        move || {
            let add = |sum: usize, &va: &usize| sum.wrapping_add(translate(va));
            let (time, found) = timed(|| order.iter().fold(0, add));
            assert_eq!(found, sum, "{subject} finds something else than was filled in");
            time
        }
    }));
    cases.push(Case::new(chain, subject, PAGES, move || {
        let (order, translate) = fill(&pages());
        move || {
            let (time, end) = timed(|| (0..order.len()).fold(order[0], |va, _| translate(va)));
            assert_eq!(end, order[0], "{subject} finds something else than was filled in");
            time
        }
    }));
}

/// Draws [`PAGES`] pages.
type Pages = fn() -> Vec<usize>;

/// The walk, and each form of the cache, on the same pages.
fn translations(cases: &mut Vec<Case>, jobs: ([&'static str; 2], Pages)) {
    hits(cases, jobs, X86::<48>::NAME, |pages| {
        let mut table = X86::<48>::new();
        let order = cycle(pages, |at, next| table.map(at.get() >> 12, next >> 12));
        (order, move |va| table.translate(va).unwrap_or(0))
    });
    macro_rules! form {
        ($name:literal, $cache:ty) => {
            hits(cases, jobs, $name, |pages| {
                let mut cache = <$cache>::new(memory::<{ SLOTS * 16 }>()).expect("room");
                let order = cycle(pages, |at, next| cache.fill(at, space(), next as u64));
                (order, move |va| cache.lookup(VirtAddr::new(va), space()).unwrap_or(0) as usize)
            });
        };
    }
    form!("direct", Direct<'static, Page64, SLOTS>);
    form!("2-way", Assoc<'static, Page64, { SLOTS / 2 }, 2>);
    form!("4-way", Assoc<'static, Page64, { SLOTS / 4 }, 4>);
    hits(cases, jobs, "shared", |pages| {
        let shared = Shared::<Page64, SLOTS, 1>::new(memory::<{ SLOTS * 32 }>()).expect("room");
        let order = cycle(pages, |at, next| {
            if let Err(ticket) = shared.lookup(at, space()) {
                shared.fill(ticket, at, space(), next as u64);
            }
        });
        (order, move |va| shared.lookup(VirtAddr::new(va), space()).map_or(0, |data| data as usize))
    });
}

/// Latency in units of a load from the first-level cache.
fn near(cases: &mut Vec<Case>) {
    let job = "STLB near chain";
    // A chain of bare addresses: nothing but the load.
    cases.push(Case::new(job, "L1 load", PAGES, || {
        let order = shuffled((0..NEAR).collect());
        let cells: &'static mut [usize] = Box::leak(vec![0; NEAR].into_boxed_slice());
        let base = cells.as_ptr();
        for at in 0..NEAR {
            cells[order[at]] = base.wrapping_add(order[(at + 1) % NEAR]).expose_provenance();
        }
        let start = cells[order[0]];
        move || {
            let load = || {
                // SAFETY: every cell holds the address of a cell.
                (0..PAGES).fold(start, |at, _| unsafe { *std::ptr::with_exposed_provenance::<usize>(at) })
            };
            let (time, end) = timed(load);
            assert_eq!(end, start, "so many steps are whole rounds of the cycle");
            time
        }
    }));
    cases.push(Case::new(job, "direct", PAGES, || {
        let mut cache = Direct::<Page64, NEAR>::new(memory::<{ NEAR * 16 }>()).expect("room");
        let order = cycle(&dense(48, NEAR), |at, next| cache.fill(at, space(), next as u64));
        let hit = move |va| cache.lookup(VirtAddr::new(va), space()).unwrap_or(0) as usize;
        move || {
            let (time, end) = timed(|| (0..PAGES).fold(order[0], |va, _| hit(va)));
            assert_eq!(end, order[0], "so many steps are whole rounds of the cycle");
            time
        }
    }));
}

/// Fills and invalidations of single pages, in shuffled order over a full cache.
fn changes(cases: &mut Vec<Case>) {
    macro_rules! form {
        ($name:literal, $cache:ty) => {
            for job in ["STLB fill", "STLB invalidate page"] {
                cases.push(Case::new(job, $name, PAGES, move || {
                    let mut cache = <$cache>::new(memory::<{ SLOTS * 16 }>()).expect("room");
                    let order = shuffled(dense(48, PAGES)).into_iter().map(|vpn| VirtAddr::new(vpn << 12));
                    let order: Vec<_> = order.collect();
                    move || {
                        let fill = || order.iter().for_each(|&at| cache.fill(at, space(), at.get() as u64));
                        let (filled, ()) = timed(fill);
                        for &at in &order {
                            assert_eq!(
                                cache.lookup(at, space()),
                                Some(at.get() as u64),
                                "{at:?} is filled in"
                            );
                        }
                        let page = |at: &VirtAddr| cache.invalidate_page(space(), at.vpn(PageSize::K4));
                        let (invalidated, ()) = timed(|| order.iter().for_each(page));
                        for &at in &order {
                            assert_eq!(cache.lookup(at, space()), None, "{at:?} is invalidated");
                        }
                        if job == "STLB fill" { filled } else { invalidated }
                    }
                }));
            }
        };
    }
    form!("direct", Direct<'static, Page64, SLOTS>);
    form!("4-way", Assoc<'static, Page64, { SLOTS / 4 }, 4>);
    form!("victim", Victim<'static, Page64, SLOTS, 8>);
}

/// A hardware TLB that has every page, or none.
struct Hardware(bool);

impl Probe<Page64> for Hardware {
    fn probe(&mut self, at: VirtAddr, _space: AsidTag<Page64>) -> Option<u64> {
        self.0.then_some(at.get() as u64)
    }
}

/// What a kernel does at a message for each address that its receiver will use: the PTLB alone, and one with the STLB.
fn messages(cases: &mut Vec<Case>) {
    macro_rules! form {
        ($name:literal, $new:expr, $record:expr, $prefetch:expr) => {
            for job in ["PTLB record", "PTLB prefetch"] {
                cases.push(Case::new(job, $name, PAGES, move || {
                    let mut table = $new;
                    let order = shuffled(dense(48, PAGES)).into_iter().map(|vpn| VirtAddr::new(vpn << 12));
                    let order: Vec<_> = order.collect();
                    move || {
                        let record = |at: &VirtAddr| _ = $record(&mut table, *at, &mut Hardware(true));
                        let (recorded, ()) = timed(|| order.iter().for_each(record));
                        let sum = order.iter().fold(0, |sum: u64, at| sum.wrapping_add(at.get() as u64));
                        let (prefetched, found) = timed(|| {
                            let mut entry = |at: &VirtAddr| $prefetch(&mut table, *at, &mut Hardware(false));
                            order.iter().fold(0, |sum: u64, at| sum.wrapping_add(entry(at).unwrap_or(0)))
                        });
                        assert_eq!(found, sum, "{} returns every entry that it has recorded", $name);
                        order.iter().for_each(|at| table.invalidate_page(space(), at.vpn(PageSize::K4)));
                        if job == "PTLB record" { recorded } else { prefetched }
                    }
                }));
            }
        };
    }
    type Cached = Direct<'static, Page64, SLOTS>;
    type Alone = Ptlb<'static, Page64, SLOTS>;
    type Both = Integrated<Page64, Cached>;
    form!(
        "PTLB",
        Alone::new(memory::<{ SLOTS * 16 }>()).expect("room"),
        |table: &mut Alone, at, tlb: &mut Hardware| table.record(at, space(), tlb),
        |table: &mut Alone, at, tlb: &mut Hardware| table.prefetch(at, space(), tlb)
    );
    form!(
        "STLB and PTLB",
        Both::new(Cached::new(memory::<{ SLOTS * 16 }>()).expect("room")),
        |table: &mut Both, at, tlb: &mut Hardware| table.record(at, space(), Rank::Lower, tlb),
        |table: &mut Both, at, tlb: &mut Hardware| table.prefetch(at, space(), Rank::Lower, tlb)
    );
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    translations(&mut cases, (["STLB hit dense", "STLB chain dense"], || dense(48, PAGES)));
    translations(&mut cases, (["STLB hit sparse", "STLB chain sparse"], sparse_hits));
    near(&mut cases);
    changes(&mut cases);
    messages(&mut cases);
    cases
}
