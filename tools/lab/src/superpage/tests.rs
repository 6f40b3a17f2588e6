//! The simulator against slow and obvious ones.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tlbkit_addr::PageSize;
use tlbkit_superpage::{Costs, PageSizes, Setup};

use super::footprint::Footprint;
use super::offline::{self, Spool};
use super::policies::{Arena, Named};
use super::simulation::{Memory, Reference, Reservations, Simulation, Tlbs, Yardstick};
use super::tlb::{Entry, Lru, Map};

const SPLIT: Tlbs = Tlbs { instruction: 3, data: 4, unified: false };

fn references(pages: &[(bool, usize)]) -> Vec<Reference> {
    pages.iter().enumerate().map(|(n, &(fetch, page))| Reference { page, fetch, now: n as u64 }).collect()
}

/// Runs a policy and returns its misses and its promotions, line by line.
fn simulate(named: Named, setup: &Setup, tlbs: Tlbs, stream: &[Reference]) -> (u64, String) {
    let (simulation, log) = simulate_reserving(named, setup, tlbs, stream, None);
    (simulation.misses, log)
}

/// What a policy comes to.
struct Cost {
    misses: u64,
    kb_copied: u64,
    /// Base pages of memory taken.
    pages: u64,
}

/// The same on a machine that can reserve some percent of the regions of 64 KB.
fn simulate_reserving(
    named: Named,
    setup: &Setup,
    tlbs: Tlbs,
    stream: &[Reference],
    percent: Option<u32>,
) -> (Cost, String) {
    #[derive(Clone, Default)]
    struct Shared(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);
    impl std::io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.borrow_mut().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut arena = Arena::new(named, setup, tlbs, 64).unwrap();
    let (sizing, book) = arena.build(named, setup, tlbs).unwrap();
    let mut simulation = Simulation::new(named.to_string(), sizing, book, tlbs);
    let log = Shared::default();
    simulation.log = Some(Box::new(log.clone()));
    simulation.memory = Memory::new(percent.map(|percent| Reservations::new(PageSize::K64, percent)), 0);
    simulation.tells = true;
    for piece in stream.chunks(777) {
        simulation.run(piece).unwrap();
    }
    let mut footprint = Footprint::default();
    for reference in stream {
        footprint.touch(reference.page);
    }
    let pages = simulation.sizes(&footprint).1;
    let cost = Cost { misses: simulation.misses, kb_copied: simulation.kb_copied, pages };
    (cost, String::from_utf8(log.0.take()).unwrap())
}

fn spool(stream: &[Reference], tlbs: Tlbs) -> Spool {
    let mut lru = [Lru::new(tlbs.data), Lru::new(tlbs.instruction)];
    let mut spool = Spool::new().unwrap();
    for reference in stream {
        let Some(tlb) = tlbs.route(reference.fetch) else { continue };
        if !lru[tlb].hit(reference.page) {
            let evicted = lru[tlb].refill(Entry::around(reference.page, 0));
            spool.push(tlb, reference.page, evicted.map(|entry| entry.first)).unwrap();
        }
    }
    spool
}

/// Misses when some superpages exist from the start, by simulating every reference.
fn misses_under(
    stream: &[Reference],
    tlbs: Tlbs,
    chosen: &BTreeMap<usize, usize>,
    page_sizes: &PageSizes,
) -> u64 {
    let mut map = Map::default();
    for (&first, &level) in chosen {
        map.promote(Entry::around(first, page_sizes.shift(level)));
    }
    let mut lru = [Lru::new(tlbs.data), Lru::new(tlbs.instruction)];
    let mut misses = 0;
    for reference in stream {
        let Some(tlb) = tlbs.route(reference.fetch) else { continue };
        if !lru[tlb].hit(reference.page) {
            misses += 1;
            lru[tlb].refill(Entry::around(reference.page, map.shift(reference.page)));
        }
    }
    misses
}

/// Every set of disjoint superpages within `1 << shift` pages from `first` on.
fn every_choice(first: usize, level: usize) -> Vec<BTreeMap<usize, usize>> {
    if level == 0 {
        return vec![BTreeMap::new()];
    }
    let mut all = vec![BTreeMap::from([(first, level)])];
    let upper = every_choice(first + (1 << (level - 1)), level - 1);
    for lower in every_choice(first, level - 1) {
        all.extend(upper.iter().map(|upper| lower.iter().chain(upper).map(|(&f, &l)| (f, l)).collect()));
    }
    all
}

fn tiny() -> PageSizes {
    let sizes: Vec<_> = (12..16).map(|shift| PageSize::from_shift(shift).unwrap()).collect();
    PageSizes::new(PageSize::K4, &sizes).unwrap()
}

fn stream(pages: usize, length: usize) -> impl Strategy<Value = Vec<(bool, usize)>> {
    prop::collection::vec((any::<bool>(), prop_oneof![0..pages, 0..pages / 2]), 1..length)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With deferred charges and by scanning: the same promotions, line by line.
    #[test]
    fn two_ways_to_count(
        pages in prop_oneof![stream(40, 3000), stream(3000, 3000)],
        r_per_kb in 1u32..6,
    ) {
        let setup = Setup { costs: Costs { r_per_kb, ..Costs::PAPER }, ..Setup::PAPER };
        let stream = references(&pages);
        let scan = simulate(Named::ApproxScan, &setup, SPLIT, &stream);
        prop_assert_eq!(&simulate(Named::Approx, &setup, SPLIT, &stream), &scan);
    }

    /// Where no reservation is to be had, THRIFT is APPROX-ONLINE, line by line.
    #[test]
    fn without_reservations_thrift_is_approx_online(
        pages in prop_oneof![stream(40, 3000), stream(3000, 3000)],
        r_per_kb in 1u32..6,
    ) {
        let setup = Setup { costs: Costs { r_per_kb, ..Costs::PAPER }, ..Setup::PAPER };
        let stream = references(&pages);
        let (cost, log) = simulate_reserving(Named::Thrift, &setup, SPLIT, &stream, Some(0));
        prop_assert_eq!((cost.misses, log), simulate(Named::Approx, &setup, SPLIT, &stream));
    }

    /// The spooled misses of base pages determine those under any choice of superpages.
    #[test]
    fn the_spool_is_enough(pages in stream(24, 600), pick in any::<prop::sample::Index>()) {
        let (page_sizes, stream) = (tiny(), references(&pages));
        let choices = every_choice(0, 3);
        let chosen = pick.get(&choices);
        let replayed = offline::misses(&mut spool(&stream, SPLIT), &page_sizes, SPLIT, chosen).unwrap();
        prop_assert_eq!(replayed, misses_under(&stream, SPLIT, chosen, &page_sizes));
    }

    /// OFFLINE's greedy choice against the best of all choices on eight pages: never better, and at most a quarter
    /// worse.
    #[test]
    fn offline_against_brute_force(pages in stream(8, 400), r_per_kb in 1u32..4) {
        let tlbs = Tlbs { instruction: 2, data: 2, unified: false };
        let (page_sizes, stream) = (tiny(), references(&pages));
        let price = |chosen: &BTreeMap<usize, usize>| {
            let kb: u64 = chosen.values().map(|&level| 4 << level).sum();
            misses_under(&stream, tlbs, chosen, &page_sizes) + kb * u64::from(r_per_kb)
        };
        let best = every_choice(0, 3).iter().map(price).min().unwrap();
        let found = offline::choose(
            &mut spool(&stream, tlbs),
            &page_sizes,
            tlbs,
            offline::copying(&page_sizes, r_per_kb),
            |_, _| (),
        )
        .unwrap();
        let price = price(&found.chosen);
        prop_assert!(price >= best && 4 * price <= 5 * best, "{} against {}: {:?}", price, best, found.chosen);
        prop_assert_eq!(found.misses, misses_under(&stream, tlbs, &found.chosen, &page_sizes));
    }

    /// A TLB of fixed pages is the bare one on page numbers cut short.
    #[test]
    fn fixed_sizes_are_shorter_page_numbers(pages in stream(200, 2000), shift in 0u32..6) {
        let stream = references(&pages);
        let size = PageSize::from_shift(12 + shift).unwrap();
        let (misses, _) = simulate(Named::Fixed(size), &Setup::PAPER, SPLIT, &stream);
        let cut: Vec<_> = stream.iter().map(|r| Reference { page: r.page >> shift, ..*r }).collect();
        let mut bare = Yardstick::new(SPLIT);
        bare.run(&cut);
        prop_assert_eq!(misses, bare.misses());
    }

    /// What two maps have in common is what both map by superpages, page by page.
    #[test]
    fn maps_in_common(picks in prop::collection::vec((any::<bool>(), 0usize..16, 1u32..5), 0..12)) {
        let (mut maps, mut sets) = ([Map::default(), Map::default()], [0u64; 2]);
        for (which, at, shift) in picks {
            let (which, whole) = (usize::from(which), Entry::around(at << 2, shift));
            // A superpage never becomes smaller.
            if maps[which].shift(whole.first) < shift {
                maps[which].promote(whole);
                sets[which] |= ((1 << (1 << shift)) - 1) << whole.first;
            }
        }
        let both = u64::from((sets[0] & sets[1]).count_ones());
        prop_assert_eq!([maps[0].in_common(&maps[1]), maps[1].in_common(&maps[0])], [both; 2]);
    }

    #[test]
    fn footprints_are_sets(pages in prop::collection::vec(0usize..5000, 0..300), shift in 0u32..11) {
        let mut footprint = Footprint::default();
        for &page in &pages {
            footprint.touch(page);
        }
        let set: std::collections::BTreeSet<_> = pages.iter().copied().collect();
        prop_assert_eq!(footprint.pages(), set.len() as u64);
        let ranges: std::collections::BTreeSet<_> = pages.iter().map(|page| page >> shift).collect();
        prop_assert_eq!(footprint.ranges(shift), ranges.len() as u64);
        for range in ranges {
            let within = set.range(range << shift..(range + 1) << shift).count();
            prop_assert_eq!(footprint.within(range << shift, shift), within as u64);
        }
    }
}

#[test]
fn names_and_numbers_of_the_command_line() {
    for name in ["ASAP-4-64", "APPROX-ONLINE", "FIXED-16K", "OFFLINE", "THRIFT"] {
        assert_eq!(name.parse::<Named>().unwrap().to_string(), name);
    }
    for name in ["", "FIXED-", "FIXED-3K", "FIXED-2K", "FIXED-2G", "ASAP-64"] {
        assert!(name.parse::<Named>().is_err(), "{name}");
    }
    assert_eq!("0+32".parse(), Ok(Tlbs { instruction: 0, data: 32, unified: false }));
    assert_eq!("64".parse(), Ok(Tlbs { instruction: 0, data: 64, unified: true }));
    for text in ["", "+", "32+0", "x+1", "1+2+3", "-1+3"] {
        assert!(text.parse::<Tlbs>().is_err(), "{text}");
    }
}

/// On every shipped trace, too: three ways to count, and what THRIFT is with and without reservations: it takes less time
/// and no more memory than APPROX-ONLINE.
#[test]
#[cfg_attr(not(tlbkit_full), ignore = "cargo xtask test --full")]
fn the_shipped_traces() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/traces");
    let tlbs = Tlbs { instruction: 32, data: 32, unified: false };
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "tlbt") {
            continue;
        }
        let (mut stream, mut now) = (Vec::new(), 0);
        for access in
            crate::trace::open(&crate::trace::Input::File(path), &indicatif::ProgressBar::hidden()).unwrap()
        {
            let access = access.unwrap();
            now += access.instructions();
            stream.push(Reference { page: access.page.get(), fetch: access.kind.is_fetch(), now });
        }
        let scan = simulate(Named::ApproxScan, &Setup::PAPER, tlbs, &stream);
        assert_eq!(simulate(Named::Approx, &Setup::PAPER, tlbs, &stream), scan);
        let thrift = |percent| simulate_reserving(Named::Thrift, &Setup::PAPER, tlbs, &stream, Some(percent));
        let none = thrift(0);
        assert_eq!((none.0.misses, &none.1), (scan.0, &scan.1));
        // In cycles: 30 and the paper's 100 of bookkeeping a miss, 3000 a KB.
        let cycles = |cost: &Cost| cost.misses * 130 + cost.kb_copied * 3000;
        let none = none.0;
        for percent in [25, 50, 100] {
            let some = thrift(percent).0;
            assert!(cycles(&some) < cycles(&none), "{percent} %: {} of {}", cycles(&some), cycles(&none));
            assert!(some.kb_copied <= none.kb_copied && some.pages <= none.pages, "{percent} %");
        }
    }
}
