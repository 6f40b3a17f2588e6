//! What a policy's bookkeeping adds to a TLB miss: of a program whose promotions are all refused, and of one that gets them.

use std::hint::black_box;

use crate::work::{CC1, captured, shuffled};
use crate::{Case, timed};
use tlbkit_addr::{PageSize, Vpn};
use tlbkit_superpage::{
    Action, ApproxOnline, Asap, Asap464, Background, Coverage, Miss, Online, OnlineMemory, Policy,
    PolicyMemory, Refusal, Reservation, Runs, SegmentMemory, Setup, Slot, StackEntry, Superpage, Thrift, Tlb,
    Utilization,
};

/// Entries of the TLB whose misses these are.
const ENTRIES: usize = 64;
const SEGMENTS: usize = 64;
/// Pages that a loop of the program touches, and how often it does: more than the TLB holds, so that every page misses until it is
/// promoted.
const WINDOW: usize = 96;
const SWEEPS: usize = 150;
const WINDOWS: usize = 2;

fn miss(page: Vpn, evicted: Option<Vpn>, at: usize) -> Miss {
    Miss { tlb: Tlb::Data, page, evicted, now: at as u64 }
}

/// Misses to a real program's pages in random order, each pushing out the page of the miss 64 before.
fn misses() -> Vec<Miss> {
    let pages = shuffled(captured(48, CC1));
    let evicted = |at: usize| (at >= ENTRIES).then(|| Vpn::new(pages[at - ENTRIES]));
    (0..pages.len()).map(|at| miss(Vpn::new(pages[at]), evicted(at), at)).collect()
}

/// Refuses every promotion: it would be the copying's cost, not the bookkeeping's.
fn refuse(policy: &mut impl Policy, misses: &[Miss]) {
    for &miss in misses {
        if let Some(Action::Promote { range, .. }) = policy.on_miss(black_box(miss)) {
            policy.refused(range, Refusal::NoMemory);
        }
    }
}

/// Grants every promotion, and returns how many there were.
fn grant(policy: &mut impl Policy, misses: &[Miss]) -> usize {
    let mut granted = 0;
    for &miss in misses {
        if let Some(Action::Promote { range, .. }) = policy.on_miss(black_box(miss)) {
            policy.promoted(range);
            granted += 1;
        }
    }
    granted
}

/// The TLB of a program that gets its promotions: its entries, the last used last.
#[derive(Default)]
struct Model {
    entries: Vec<Superpage>,
    promoted: Vec<Superpage>,
}

fn covers(entry: Superpage, page: Vpn) -> bool {
    let pages = entry.pages(PageSize::K4);
    pages.first() <= page && page <= pages.last()
}

impl Model {
    /// Returns, if the page misses, the first page of the entry that its own evicts.
    fn refer(&mut self, page: Vpn) -> Option<Option<Vpn>> {
        if let Some(at) = self.entries.iter().position(|&entry| covers(entry, page)) {
            let entry = self.entries.remove(at);
            self.entries.push(entry);
            return None;
        }
        let larger = self.promoted.iter().copied().find(|&range| covers(range, page));
        self.entries.push(larger.unwrap_or(Superpage { first: page, size: PageSize::K4 }));
        Some((self.entries.len() > ENTRIES).then(|| self.entries.remove(0).first))
    }

    fn promote(&mut self, range: Superpage) {
        for list in [&mut self.entries, &mut self.promoted] {
            list.retain(|part| !covers(range, part.first));
            list.push(range);
        }
    }
}

/// Returns the misses of loops over a real program's pages under a policy, and how many promotions it gets: at least one.
fn promotions(policy: &mut impl Policy) -> (Vec<Miss>, usize) {
    let mut pages = captured(48, CC1);
    pages.sort_unstable();
    let (mut model, mut misses, mut granted) = (Model::default(), Vec::new(), 0);
    for window in pages.chunks(WINDOW).take(WINDOWS) {
        for &page in (0..SWEEPS).flat_map(|_| window) {
            let page = Vpn::new(page);
            let Some(evicted) = model.refer(page) else { continue };
            let miss = miss(page, evicted, misses.len());
            misses.push(miss);
            if let Some(Action::Promote { range, .. }) = policy.on_miss(miss) {
                policy.promoted(range);
                model.promote(range);
                granted += 1;
            }
        }
    }
    assert!(granted > 0, "{policy:?} promotes nothing");
    (misses, granted)
}

/// Memory for a policy's counters.
struct Part {
    directory: Vec<Slot>,
    bits: Vec<usize>,
    counters: Vec<u16>,
}

impl Part {
    fn new(each: SegmentMemory) -> Self {
        Self {
            directory: vec![Slot::default(); SEGMENTS * SegmentMemory::SLOTS],
            bits: vec![0; SEGMENTS * each.bits],
            counters: vec![0; SEGMENTS * each.counters],
        }
    }

    fn memory(&mut self) -> PolicyMemory<'_> {
        let Self { directory, bits, counters } = self;
        directory.fill(Slot::default());
        bits.fill(0);
        counters.fill(0);
        PolicyMemory { directory, bits, counters }
    }
}

/// Memory for any policy: the others use the first part.
struct Storage {
    first: Part,
    capacity: Part,
    stacks: [Vec<StackEntry>; 2],
}

impl Storage {
    fn new(setup: &Setup) -> Self {
        let (prefetch, capacity) = Online::segment_memory(setup).expect("the paper's costs");
        let sizes = [
            prefetch,
            ApproxOnline::segment_memory(setup).expect("the paper's costs"),
            Thrift::segment_memory(setup).expect("the paper's costs"),
            Asap::segment_memory(&setup.page_sizes),
            Asap464::segment_memory(&setup.page_sizes),
            Reservation::segment_memory(&setup.page_sizes),
            Background::segment_memory(&setup.page_sizes),
            Coverage::segment_memory(&setup.page_sizes, Utilization::HAWKEYE),
            Runs::segment_memory(&setup.page_sizes),
        ];
        let most = |of: fn(&SegmentMemory) -> usize| sizes.iter().map(of).max().unwrap_or(0);
        let each = SegmentMemory { bits: most(|each| each.bits), counters: most(|each| each.counters) };
        let stack = || vec![StackEntry::default(); Online::stack_len(setup, ENTRIES)];
        Self { first: Part::new(each), capacity: Part::new(capacity), stacks: [stack(), stack()] }
    }

    fn memory(&mut self) -> PolicyMemory<'_> {
        self.first.memory()
    }

    fn online(&mut self) -> OnlineMemory<'_> {
        OnlineMemory {
            prefetch: self.first.memory(),
            capacity: self.capacity.memory(),
            stacks: self.stacks.each_mut().map(Vec::as_mut_slice),
        }
    }
}

pub(super) fn cases() -> Vec<Case> {
    let setup = &Setup::PAPER;
    let mut cases = Vec::new();
    // A round begins with a new policy, for promotions last.
    macro_rules! policy {
        ($name:literal, |$storage:ident| $new:expr) => {
            cases.push(Case::new("superpage bookkeeping", $name, misses().len(), move || {
                let (misses, mut storage) = (misses(), Storage::new(setup));
                move || {
                    let $storage = &mut storage;
                    let mut policy = $new;
                    timed(|| refuse(&mut policy, &misses)).0
                }
            }));
            let mut storage = Storage::new(setup);
            let $storage = &mut storage;
            let (misses, granted) = promotions(&mut $new);
            cases.push(Case::new("superpage promotions", $name, misses.len(), move || {
                let (misses, mut storage) = (misses.clone(), Storage::new(setup));
                move || {
                    let $storage = &mut storage;
                    let mut policy = $new;
                    let (time, now) = timed(|| grant(&mut policy, &misses));
                    assert_eq!(now, granted, "{} promotes the same in each round", $name);
                    time
                }
            }));
        };
    }
    let sizes = setup.page_sizes;
    policy!("APPROX-ONLINE", |storage| ApproxOnline::new(setup, storage.memory())
        .expect("the paper's costs"));
    policy!("ONLINE", |storage| {
        Online::new(setup, [ENTRIES; 2], storage.online()).expect("the paper's costs")
    });
    policy!("ASAP", |storage| Asap::new(sizes, storage.memory()));
    policy!("ASAP-4-64", |storage| Asap464::new(sizes, storage.memory()));
    policy!("RESERVE", |storage| Reservation::new(sizes, storage.memory()));
    policy!("SUBBLOCK", |storage| Reservation::partial(sizes, storage.memory()));
    policy!("KHUGEPAGED", |storage| Background::new(sizes, Utilization::KHUGEPAGED, storage.memory()));
    policy!("RUNS", |storage| Runs::new(sizes, PageSize::K64, storage.memory()));
    policy!("HAWKEYE", |storage| Coverage::new(sizes, Utilization::HAWKEYE, storage.memory()));
    policy!("THRIFT", |storage| Thrift::new(setup, storage.memory()).expect("the paper's costs"));
    cases
}
