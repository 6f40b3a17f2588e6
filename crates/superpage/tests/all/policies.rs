//! What the policies do at their edges: refusals, exhausted and reclaimed segments, demotion, pressure, errors.

use crate::model::{Arena, Machine, all_pages, approx, asap, asap464, miss, online, step, thrift};
use tlbkit_addr::{PageSize, Pages, Vpn};
use tlbkit_superpage::{
    Action, Activity, ApproxOnline, Asap, Background, CostError, Costs, Coverage, Miss, Online, PageSizes,
    PageSizesError, Policy, Refusal, Reservation, Runs, SegmentMemory, Setup, Slot, Superpage, Tlb,
    Utilization,
};

const TOP: PageSize = PageSize::from_shift(23).unwrap();

/// Two pages in turn in a TLB of one entry: every miss is charged to {0, 1}.
fn ping_pong(policy: &mut dyn Policy, misses: usize, now: impl Fn(usize) -> u64) -> Vec<(usize, Superpage)> {
    let mut asked = Vec::new();
    for n in 0..misses {
        let evicted = (n > 0).then(|| Vpn::new((n + 1) % 2));
        let action = policy.on_miss(Miss { tlb: Tlb::Data, page: Vpn::new(n % 2), evicted, now: now(n) });
        if let Some(Action::Promote { range, copy: true }) = action {
            asked.push((n, range));
            policy.refused(range, Refusal::NoMemory);
        }
    }
    asked
}

#[test]
fn what_is_no_ladder() {
    let size = |shift| PageSize::from_shift(shift).unwrap();
    let page_sizes = |shifts: &[u32]| {
        PageSizes::new(PageSize::K4, &shifts.iter().map(|&shift| size(shift)).collect::<Vec<_>>()).map(|_| ())
    };
    assert_eq!(page_sizes(&[]), Err(PageSizesError::TooFew));
    assert_eq!(page_sizes(&[12]), Err(PageSizesError::TooFew));
    assert_eq!(page_sizes(&(12..29).collect::<Vec<_>>()), Err(PageSizesError::TooMany));
    assert_eq!(page_sizes(&[12, 14, 14]), Err(PageSizesError::NotAscending));
    assert_eq!(page_sizes(&[14, 12]), Err(PageSizesError::NotAscending));
    assert_eq!(page_sizes(&[11, 12]), Err(PageSizesError::NotThePage));
    assert_eq!(page_sizes(&[14, 16]), Err(PageSizesError::NotThePage));
    assert_eq!(page_sizes(&[12, 31]), Err(PageSizesError::TooWide));
    assert_eq!(page_sizes(&[12, 30]), Ok(()));
    assert_eq!(page_sizes(&[13, 15, 17]), Ok(()));
    let page_sizes = PageSizes::new(PageSize::K4, &[size(13), size(15), size(17)]).unwrap();
    assert_eq!(
        [1, 2, 3, 16].map(|level| page_sizes.size(level)),
        [Some(size(15)), Some(size(17)), None, None]
    );
}

#[test]
fn costs_that_cannot_be() {
    let with = |costs| ApproxOnline::segment_memory(&Setup { costs, ..Setup::PAPER }).err();
    assert_eq!(with(Costs { r_per_kb: 0, ..Costs::PAPER }), Some(CostError::ZeroR));
    assert_eq!(with(Costs { prefetch: 0, ..Costs::PAPER }), Some(CostError::ZeroThreshold));
    assert_eq!(
        with(Costs { r_per_kb: u32::MAX, prefetch: u32::MAX, ..Costs::PAPER }),
        Some(CostError::TooLarge)
    );
    assert_eq!(with(Costs::PAPER), None);
}

/// 3.125 counters a page, 6397 for 8 MB; and far less than 0.3 % of the memory for them, with either number of TLBs.
#[test]
fn space() {
    let superpages =
        |from| (from..=PageSizes::PAPER.top()).map(|level| PageSizes::PAPER.nodes(level)).sum::<usize>();
    // A prefetch count for each superpage, a tlbcount for each and each page, a deferred count from 64 KB on.
    assert_eq!(superpages(1) + superpages(0) + superpages(4), 6397);
    for split in [false, true] {
        let bytes = ApproxOnline::segment_memory(&Setup { split, ..Setup::PAPER }).unwrap().bytes();
        assert!(bytes * 10_000 <= TOP.bytes() * 8, "{bytes} bytes for 8 MB");
    }
    let words = SegmentMemory { bits: 3, counters: 5 };
    assert_eq!(words.bytes(), 2 * size_of::<Slot>() + 3 * size_of::<usize>() + 5 * 2);
    assert_eq!(Online::stack_len(&Setup::PAPER, 64), 64 + 2048);
}

#[test]
fn the_threshold_is_reached_not_passed() {
    let mut policy = approx(&Setup::PAPER, 1);
    // The first miss finds the TLB empty; then each is charged. 0.125 R of 8 KB is 100.
    assert_eq!(ping_pong(&mut policy, 101, |_| 0)[0].0, 100);
    let mut policy = online(&Setup::PAPER, [1, 1], 1);
    assert_eq!(ping_pong(&mut policy, 102, |_| 0)[0].0, 101);
}

#[test]
fn refusals_back_off() {
    let mut policy = approx(&Setup::PAPER, 1);
    let asked: Vec<usize> = ping_pong(&mut policy, 2000, |_| 0).iter().map(|&(n, _)| n).collect();
    assert_eq!(asked, [100, 200, 400, 800, 1600]);
    // A grant ends it.
    let Some(Action::Promote { range, .. }) =
        (2000..).find_map(|n| policy.on_miss(Miss { evicted: Some(Vpn::new((n + 1) % 2)), ..miss(n % 2) }))
    else {
        panic!("never asked again")
    };
    policy.promoted(range);
    assert_eq!(policy.tlbcount(Tlb::Data, range), Some(1));
    assert_eq!(policy.prefetch(range), Some(0));
    assert_eq!(policy.tlbcount(Tlb::Data, Superpage { first: Vpn::new(1), size: PageSize::K4 }), Some(-1));
}

/// A TLB may drop what it had before the policy was told of anything.
#[test]
fn an_eviction_of_what_was_never_seen() {
    let mut policy = approx(&Setup::PAPER, 1);
    policy.evicted(Tlb::Data, Vpn::new(1));
    policy.on_miss(miss(40));
    policy.evicted(Tlb::Data, Vpn::new(40));
    policy.evicted(Tlb::Data, Vpn::new(1));
    assert_eq!(ping_pong(&mut policy, 101, |_| 0)[0].0, 100);
}

/// Thresholds that a single charge reaches, or for capacity that nothing reaches.
fn at_once(capacity: u32) -> Setup {
    Setup { costs: Costs { r_per_kb: 1, prefetch: 1, capacity }, ..Setup::PAPER }
}

/// What stands at its threshold after a refusal is asked for again by a miss that it would have prevented, not by others.
#[test]
fn asked_again_where_it_would_help() {
    let promotion = |shift| {
        let range = Superpage { first: Vpn::new(0), size: PageSize::from_shift(shift).unwrap() };
        (range, Some(Action::Promote { range, copy: true }))
    };
    let ((pair, ask_pair), (four, ask_four), (_, ask_eight)) = (promotion(13), promotion(14), promotion(15));
    let (mut by_both, mut by_prefetch) = (online(&at_once(100_000), [4, 4], 1), approx(&at_once(1), 1));
    for policy in [&mut by_both as &mut dyn Policy, &mut by_prefetch] {
        assert_eq!([policy.on_miss(miss(0)), policy.on_miss(miss(1))], [None, ask_pair]);
        policy.refused(pair, Refusal::NoMemory);
        for page in [0, 1] {
            policy.evicted(Tlb::Data, Vpn::new(page));
        }
        // With 2 resident, {0, 1} does not help.
        assert_eq!([policy.on_miss(miss(2)), policy.on_miss(miss(0))], [None, ask_four]);
    }

    let mut policy = approx(&at_once(1), 1);
    assert_eq!([policy.on_miss(miss(0)), policy.on_miss(miss(1))], [None, ask_pair]);
    policy.promoted(pair);
    assert_eq!(policy.on_miss(miss(2)), ask_four);
    policy.refused(four, Refusal::NoMemory);
    for page in [0, 2] {
        policy.evicted(Tlb::Data, Vpn::new(page));
    }
    // With 4 resident, {0..3} does not help.
    assert_eq!([policy.on_miss(miss(4)), policy.on_miss(miss(0))], [None, ask_eight]);
}

/// The last of the misses asks for this superpage of two or four pages, if what the first ones asked for was not done.
fn asked_by_the_last(policy: &mut dyn Policy, entries: usize, pages: &[usize]) -> Option<(usize, usize)> {
    let mut last = None;
    for (n, &page) in pages.iter().enumerate() {
        let evicted = n.checked_sub(entries).map(|oldest| Vpn::new(pages[oldest]));
        last = policy.on_miss(Miss { evicted, ..miss(page) });
    }
    match last {
        Some(Action::Promote { range, .. }) => Some((range.first.get(), range.size.pages(PageSize::K4)?)),
        _ => None,
    }
}

/// Of the candidates the smallest is promoted, of two as small the one around the page that missed, and of those for
/// capacity the lowest.
#[test]
fn one_of_several_candidates() {
    let by_capacity = Setup { costs: Costs { prefetch: 100_000, ..at_once(1).costs }, ..at_once(1) };
    for pages in [[8, 2, 3, 6, 7, 8], [8, 6, 7, 2, 3, 8]] {
        assert_eq!(asked_by_the_last(&mut online(&by_capacity, [4, 4], 1), 4, &pages), Some((2, 2)));
    }
    let both = |pages: &[usize]| asked_by_the_last(&mut online(&at_once(1), [4, 4], 1), 4, pages);
    // {2, 3} for capacity, {0..15} for prefetch.
    assert_eq!(both(&[8, 2, 3, 6, 7, 8]), Some((2, 2)));
    // {2, 3} for capacity, {8, 9} for prefetch.
    assert_eq!(both(&[8, 9, 2, 3, 40, 8]), Some((8, 2)));
    // {0..3} for capacity, {8, 9} for prefetch.
    assert_eq!(both(&[8, 9, 0, 2, 40, 8]), Some((8, 2)));
}

/// What a flush takes out may be charged for capacity when it misses again.
#[test]
fn a_flush_empties_the_lru_stack_of_residents() {
    let by_capacity = Setup { costs: Costs { prefetch: 100_000, ..at_once(1).costs }, ..at_once(1) };
    let mut policy = online(&by_capacity, [3, 3], 1);
    assert_eq!(asked_by_the_last(&mut policy, 3, &[8, 2, 3]), None);
    policy.flushed(Tlb::Data);
    let pair = Superpage { first: Vpn::new(2), size: PageSize::from_shift(13).unwrap() };
    assert_eq!(policy.on_miss(miss(8)), Some(Action::Promote { range: pair, copy: true }));
}

#[test]
fn inactive_below_a_miss_rate() {
    let setup = Setup { activity: Activity { misses_per_million: 1000 }, ..Setup::PAPER };
    // One miss in 2000 instructions, then one in 500.
    assert_eq!(ping_pong(&mut approx(&setup, 1), 10_000, |n| 2000 * n as u64), []);
    let asked = ping_pong(&mut approx(&setup, 1), 10_000, |n| 500 * n as u64);
    // The 256th miss ends the first window and is the first to be charged.
    assert_eq!(asked[0].0, 254 + 100);
    // What the clock shows at the first miss does not matter.
    for start in [1_000_000, u64::MAX / 2] {
        assert_eq!(ping_pong(&mut approx(&setup, 1), 10_000, |n| start + 500 * n as u64), asked);
    }
}

#[test]
fn exhausted_segments_are_said_once() {
    let segment = PageSizes::PAPER.units_per_segment();
    let mut policies: Vec<Box<dyn Policy>> = vec![
        Box::new(approx(&Setup::PAPER, 2)),
        Box::new(online(&Setup::PAPER, [4, 4], 2)),
        Box::new(asap(PageSizes::PAPER, 2)),
        Box::new(asap464(PageSizes::PAPER, 2)),
        Box::new(Reservation::new(
            PageSizes::PAPER,
            Arena::leak(Reservation::segment_memory(&PageSizes::PAPER), 2),
        )),
        Box::new(Background::new(
            PageSizes::PAPER,
            Utilization { size: TOP, percent: 50, period: 1 },
            Arena::leak(Background::segment_memory(&PageSizes::PAPER), 2),
        )),
        Box::new(coverage(Utilization { size: TOP, percent: 50, period: 1 }, 2)),
    ];
    for policy in &mut policies {
        assert_eq!(policy.on_miss(miss(0)), None);
        assert_eq!(policy.on_miss(miss(segment)), None);
        let page = Vpn::new(5 * segment);
        assert_eq!(policy.on_miss(miss(page.get())), Some(Action::OutOfSegments { page }));
        assert_eq!(policy.on_miss(miss(9 * segment)), None);
        policy.evicted(Tlb::Data, page);
        assert_eq!(policy.demote(page), None);
        // A segment that dies makes room for another.
        policy.unmapped(Pages::count(Vpn::new(0), segment).unwrap());
        assert_eq!(policy.on_miss(miss(5 * segment)), None);
        assert_eq!(policy.on_miss(miss(9 * segment)), None);
        policy.unmapped(all_pages());
    }
    let mut none = approx(&Setup::PAPER, 0);
    assert!(matches!(none.on_miss(miss(1)), Some(Action::OutOfSegments { .. })));
    assert_eq!(none.on_miss(miss(1)), None);
}

/// With memory for the first of two segments, ONLINE asks for nothing in the second, of which it would know nothing; and
/// for what is in the first whichever segment the page that misses is in.
#[test]
fn online_charges_segments_that_it_has_memory_for() {
    let sizes = [12, 13, 14].map(|shift| PageSize::from_shift(shift).unwrap());
    let page_sizes = PageSizes::new(PageSize::K4, &sizes).unwrap();
    let costs = Costs { r_per_kb: 1, prefetch: 100_000, capacity: 100 };
    let setup = Setup { page_sizes, costs, ..Setup::PAPER };
    // Three pages in turn in a TLB of two entries. Two of them as one would keep the third.
    let asked = |pages: [usize; 3]| {
        let mut policy = online(&setup, [2, 2], 1);
        let asked = (0..).zip(pages.into_iter().cycle()).take(60).filter_map(|(n, page)| {
            let evicted = (n > 1).then(|| Vpn::new(pages[(n + 1) % 3]));
            policy.on_miss(Miss { evicted, ..miss(page) }).map(|action| (n, action))
        });
        asked.take(2).collect::<Vec<_>>()
    };
    let out = |n, page| (n, Action::OutOfSegments { page: Vpn::new(page) });
    assert_eq!(asked([0, 4, 5]), [out(1, 4)]);
    let pair = Superpage { first: Vpn::new(0), size: sizes[1] };
    assert_eq!(asked([0, 1, 4]), [out(2, 4), (5, Action::Promote { range: pair, copy: true })]);
}

#[test]
fn reclaimed_segments_start_anew() {
    let segment = PageSizes::PAPER.units_per_segment();
    let mut policy = approx(&Setup::PAPER, 3);
    let pair = Superpage { first: Vpn::new(0), size: PageSize::from_shift(13).unwrap() };
    for round in 0..50 {
        for page in [0, segment, 7 * segment, 1, segment + 1, 7 * segment + 1] {
            assert_eq!(policy.on_miss(miss(page)), None, "round {round}");
        }
        assert_eq!((policy.prefetch(pair), policy.segments()), (Some(1), (3, 3)));
        // Part of a segment is not the segment.
        policy.unmapped(Pages::count(Vpn::new(1), segment - 1).unwrap());
        assert_eq!(policy.segments().0, 3);
        policy.unmapped(if round % 2 == 0 {
            all_pages()
        } else {
            Pages::new(Vpn::new(0), Vpn::new(8 * segment - 1)).unwrap()
        });
        assert_eq!((policy.prefetch(pair), policy.segments().0), (Some(0), 0));
    }
}

/// ASAP goes straight to the largest superpage that is full, ASAP-4-64 to 64 KB at half.
#[test]
fn as_soon_as_possible() {
    let mut policy = asap(PageSizes::PAPER, 1);
    for page in [0, 2, 3, 4, 5, 6, 7] {
        let action = policy.on_miss(miss(page));
        // {2, 3} is full with 3, {4, 5} with 5, {4..7} with 7.
        let expected = match page {
            3 => Some((2, 13)),
            5 => Some((4, 13)),
            7 => Some((4, 14)),
            _ => None,
        };
        let range = expected.map(|(first, shift)| Superpage {
            first: Vpn::new(first),
            size: PageSize::from_shift(shift).unwrap(),
        });
        assert_eq!(action, range.map(|range| Action::Promote { range, copy: true }), "page {page}");
        if let Some(range) = range {
            policy.promoted(range);
        }
    }
    let all = Superpage { first: Vpn::new(0), size: PageSize::from_shift(15).unwrap() };
    assert_eq!(policy.on_miss(miss(1)), Some(Action::Promote { range: all, copy: true }));
    policy.refused(all, Refusal::NoMemory);
    assert_eq!(policy.on_miss(miss(1)), None);
    let again = (0..20).filter(|_| policy.on_miss(miss(1)).is_some()).count();
    // It waits for 8 misses, as many as there are pages.
    assert_eq!(again, 14);

    let mut policy = asap464(PageSizes::PAPER, 1);
    for page in 0..7 {
        assert_eq!(policy.on_miss(miss(2 * page)), None);
    }
    let range = Superpage { first: Vpn::new(0), size: PageSize::K64 };
    assert_eq!(policy.on_miss(miss(15)), Some(Action::Promote { range, copy: true }));
    policy.promoted(range);
    assert_eq!(policy.on_miss(miss(1)), None);
    assert_eq!(policy.demote(Vpn::new(9)), Some(range));
    assert_eq!(policy.demote(Vpn::new(9)), None);
    assert_eq!(policy.on_miss(miss(15)), None);
}

#[test]
fn reservations_are_promoted_when_full_and_broken_when_old() {
    let segment = PageSizes::PAPER.units_per_segment();
    let mut policy =
        Reservation::new(PageSizes::PAPER, Arena::leak(Reservation::segment_memory(&PageSizes::PAPER), 4));
    let whole = Superpage { first: Vpn::new(segment), size: TOP };
    assert_eq!(policy.reservation(Vpn::new(segment + 77)), Some(whole));
    assert_eq!(policy.on_miss(miss(0)), None);
    let pair = Superpage { first: Vpn::new(0), size: PageSize::from_shift(13).unwrap() };
    assert_eq!(policy.on_miss(miss(1)), Some(Action::Promote { range: pair, copy: false }));
    policy.promoted(pair);
    assert_eq!(policy.on_miss(miss(1)), None);
    assert_eq!(policy.on_miss(miss(segment)), None);
    // The first segment was added to least recently.
    assert_eq!(policy.under_pressure(), Some(Superpage { first: Vpn::new(0), size: TOP }));
    assert_eq!([policy.on_miss(miss(2)), policy.on_miss(miss(3))], [None, None]);
    assert_eq!(policy.under_pressure(), Some(whole));
    assert_eq!(policy.under_pressure(), None);

    let mut policy = Reservation::partial(
        PageSizes::PAPER,
        Arena::leak(Reservation::segment_memory(&PageSizes::PAPER), 4),
    );
    let block = Superpage { first: Vpn::new(16), size: PageSize::K64 };
    assert_eq!(policy.on_miss(miss(17)), None);
    assert_eq!(policy.on_miss(miss(30)), Some(Action::Promote { range: block, copy: false }));
}

#[test]
fn the_background_promotes_what_is_used_and_demotes_what_is_not() {
    let utilization = Utilization { size: PageSize::K64, percent: 50, period: 4 };
    let footprint = Background::segment_memory(&PageSizes::PAPER);
    let mut policy = Background::new(PageSizes::PAPER, utilization, Arena::leak(footprint, 2));
    let (first, second) = (
        Superpage { first: Vpn::new(0), size: PageSize::K64 },
        Superpage { first: Vpn::new(16), size: PageSize::K64 },
    );
    for page in 0..7 {
        assert_eq!(policy.on_miss(miss(page)), None);
    }
    assert_eq!(policy.on_miss(miss(7)), Some(Action::Promote { range: first, copy: true }));
    policy.promoted(first);
    let asked: Vec<_> = (16..32).filter_map(|page| policy.on_miss(miss(page))).collect();
    assert_eq!(asked[0], Action::Promote { range: second, copy: true });
    policy.promoted(second);
    assert_eq!(policy.under_pressure(), Some(first));
    // The second is full.
    assert_eq!(policy.under_pressure(), None);
}

fn runs(segments: usize) -> Runs<'static> {
    let memory = Arena::leak(Runs::segment_memory(&PageSizes::PAPER), segments);
    Runs::new(PageSizes::PAPER, PageSize::K64, memory)
}

fn coverage(utilization: Utilization, segments: usize) -> Coverage<'static> {
    let memory = Arena::leak(Coverage::segment_memory(&PageSizes::PAPER, utilization), segments);
    Coverage::new(PageSizes::PAPER, utilization, memory)
}

/// A run is asked for at its first touch, is unfolded by a change of one page, and folded when its last page misses.
#[test]
fn a_run_is_folded_whole_and_again_after_a_change() {
    let mut policy = runs(2);
    let run = Superpage { first: Vpn::new(16), size: PageSize::K64 };
    let asks = Some(Action::Promote { range: run, copy: false });
    assert_eq!(policy.on_miss(miss(20)), asks);
    policy.promoted(run);
    assert_eq!(policy.demote(Vpn::new(20)), Some(run));
    assert_eq!([20, 16, 30].map(|page| policy.on_miss(miss(page))), [None; 3]);
    assert_eq!(policy.on_miss(miss(31)), asks);
    policy.promoted(run);
    // Page 16 goes: the others stay, and are folded when it is there again.
    policy.unmapped(Pages::one(Vpn::new(16)));
    assert_eq!([31, 17, 16].map(|page| policy.on_miss(miss(page))), [None; 3]);
    assert_eq!(policy.on_miss(miss(31)), asks);
}

/// A run that has no contiguous memory comes page by page, and is asked for twice in as many first touches as it has pages.
#[test]
fn a_run_without_memory_comes_page_by_page() {
    for why in [Refusal::NoMemory, Refusal::NotHere] {
        let mut policy = runs(2);
        let asked = (0..64).filter(|n| match policy.on_miss(miss(n % 16)) {
            Some(Action::Promote { range, .. }) => {
                policy.refused(range, why);
                true
            }
            _ => false,
        });
        assert_eq!(asked.collect::<Vec<_>>(), [0, 15, 16, 31, 32, 47, 48, 63], "{why:?}");
    }
}

/// Of two regions, the one of which more pages missed lately comes first, though all pages of the other were touched before.
#[test]
fn coverage_goes_by_what_is_used_now() {
    let mut policy = coverage(Utilization { size: PageSize::K64, percent: 1, period: 32 }, 2);
    let mut period = |page: fn(usize) -> usize| {
        let asked = (0..32).filter_map(|n| policy.on_miss(miss(page(n)))).collect::<Vec<_>>();
        let [Action::Promote { range, copy: true }] = asked[..] else { panic!("{asked:?}") };
        match range.first.get() {
            0 => policy.refused(range, Refusal::NoMemory),
            _ => policy.promoted(range),
        }
        range.first.get()
    };
    let old = period(|n| n % 16);
    let new = period(|n| if n % 2 == 0 { 0 } else { 32 + n / 2 });
    // What is promoted does not miss any more, and is not asked for again.
    assert_eq!([old, new, period(|_| 0)], [0, 32, 0]);
}

/// Looking at every miss, the background waits twice as long after each refusal, from one miss on.
#[test]
fn the_background_waits_without_a_period() {
    for period in [0, 1] {
        let utilization = Utilization { period, ..Utilization::KHUGEPAGED };
        let footprint = Background::segment_memory(&PageSizes::PAPER);
        let mut policy = Background::new(PageSizes::PAPER, utilization, Arena::leak(footprint, 1));
        let range = Superpage { first: Vpn::new(0), size: PageSize::M2 };
        let asked = (0..40).filter(|_| {
            let action = policy.on_miss(miss(0));
            assert!(action.is_none_or(|action| action == Action::Promote { range, copy: true }));
            if action.is_some() {
                policy.refused(range, Refusal::NoMemory);
            }
            action.is_some()
        });
        assert_eq!(asked.collect::<Vec<_>>(), [0, 1, 3, 7, 15, 31], "{period}");
    }
}

/// Every policy, with memory for two segments; by its charges or at every miss.
const POLICIES: [fn() -> Box<dyn Policy>; 9] = [
    || Box::new(runs(2)),
    || Box::new(coverage(Utilization { size: PageSize::K64, percent: 0, period: 1 }, 2)),
    || Box::new(approx(&Setup::PAPER, 2)),
    || {
        let mut policy = thrift(&Setup::PAPER, 2);
        for first in [0, 64] {
            policy.refused(Superpage { first: Vpn::new(first), size: PageSize::K64 }, Refusal::NoMemory);
        }
        Box::new(policy)
    },
    || Box::new(online(&Setup::PAPER, [2, 2], 2)),
    || Box::new(asap(PageSizes::PAPER, 2)),
    || Box::new(asap464(PageSizes::PAPER, 2)),
    || {
        Box::new(Reservation::new(
            PageSizes::PAPER,
            Arena::leak(Reservation::segment_memory(&PageSizes::PAPER), 2),
        ))
    },
    || {
        let utilization = Utilization { size: PageSize::K64, percent: 10, period: 1 };
        let memory = Arena::leak(Background::segment_memory(&PageSizes::PAPER), 2);
        Box::new(Background::new(PageSizes::PAPER, utilization, memory))
    },
];

/// Pages 0 to 7 miss four times in five, and cannot be one mapping; the fifth miss is to one of the pages from 64 on.
/// Those are promoted after as many misses of their own as if they were alone.
#[test]
fn a_region_beside_one_that_never_can_be_promoted() {
    for (which, policy) in POLICIES.iter().enumerate() {
        let promoted_after = |beside: bool| {
            let mut policy = policy();
            let (mut own, mut others) = (0, 0);
            while own < 20_000 {
                for n in 0..if beside { 5 } else { 1 } {
                    let (page, before) = match n {
                        4 => (64 + own % 8, 64 + (own + 7) % 8),
                        _ if !beside => (64 + own % 8, 64 + (own + 7) % 8),
                        _ => (others % 8, (others + 7) % 8),
                    };
                    let evicted = Some(Vpn::new(before)).filter(|_| own > 0);
                    if page < 64 {
                        others += 1;
                    } else {
                        own += 1;
                    }
                    match policy.on_miss(Miss { evicted, ..miss(page) }) {
                        Some(Action::Promote { range, .. }) if range.first >= Vpn::new(64) => return own,
                        Some(Action::Promote { range, .. }) => policy.refused(range, Refusal::NotHere),
                        _ => {}
                    }
                }
            }
            own
        };
        let alone = promoted_after(false);
        assert!(alone < 1000, "policy {which}: {alone}");
        assert_eq!(promoted_after(true), alone, "policy {which}");
    }
}

/// A promotion that one mapping covers already changes nothing.
#[test]
fn a_promotion_within_a_superpage() {
    for (which, policy) in POLICIES.iter().enumerate() {
        let mut policy = policy();
        let whole = Superpage { first: Vpn::new(0), size: PageSize::K64 };
        for page in 0..16 {
            policy.on_miss(miss(page));
        }
        policy.promoted(whole);
        for (first, shift) in [(0, 13), (4, 14), (0, 16)] {
            policy.promoted(Superpage { first: Vpn::new(first), size: PageSize::from_shift(shift).unwrap() });
        }
        assert_eq!(policy.demote(Vpn::new(5)), Some(whole), "policy {which}");
        assert_eq!(policy.demote(Vpn::new(5)), None, "policy {which}");
    }
}

/// A superpage that is unmapped in part counts as demoted, whether the kernel has said so or not: whatever comes after is
/// the same for every policy.
#[test]
fn a_demotion_that_was_not_told() {
    for (which, policy) in POLICIES.iter().enumerate() {
        for shift in 13..=23 {
            let whole = Superpage { first: Vpn::new(2048), size: PageSize::from_shift(shift).unwrap() };
            let pages = whole.pages(PageSize::K4);
            let middle = Vpn::new(whole.first.get() + pages.len() / 2);
            // Its first page, one in its middle, its last, and both ends with what is beyond.
            for gone in [
                Pages::one(pages.first()),
                Pages::one(middle),
                Pages::one(pages.last()),
                Pages::new(Vpn::new(0), pages.first()).unwrap(),
                Pages::new(pages.last(), Vpn::new(1 << 20)).unwrap(),
            ] {
                let after = |told: bool| {
                    let mut policy = policy();
                    for page in pages.first().get()..=pages.last().get().min(pages.first().get() + 40) {
                        policy.on_miss(miss(page));
                    }
                    policy.promoted(whole);
                    if told {
                        assert_eq!(policy.demote(gone.first()).or(policy.demote(gone.last())), Some(whole));
                    }
                    policy.unmapped(gone);
                    let more = [0, 1, pages.len() / 2, pages.len() - 1, 17, 16, 3];
                    let more = more.map(|page| policy.on_miss(miss(pages.first().get() + page)));
                    (more, policy.demote(middle))
                };
                assert_eq!(after(false), after(true), "policy {which}, {whole}, {gone:?}");
            }
        }
    }
}

/// A page at the top of the address space is like any other.
#[test]
fn the_top_of_the_address_space() {
    let top = usize::MAX >> PageSize::K4.shift();
    for pages in [top, usize::MAX] {
        let mut policy = asap(PageSizes::PAPER, 1);
        assert_eq!(policy.on_miss(miss(pages)), None);
        let range = Superpage { first: Vpn::new(pages - 1), size: PageSize::from_shift(13).unwrap() };
        assert_eq!(policy.on_miss(miss(pages - 1)), Some(Action::Promote { range, copy: true }));
        assert_eq!(range.pages(PageSize::K4).last(), Vpn::new(pages));
        policy.promoted(range);
        assert_eq!(policy.demote(Vpn::new(pages)), Some(range));
    }
    assert_eq!(Asap::segment_memory(&PageSizes::PAPER).counters, 0);
}

/// Appendix B: with one candidate, threshold R and overhead o on a miss of cost b, the policy pays at most 2 + o/b of
/// what the offline policy pays, and an adversary that stops right after the promotion makes it pay that.
#[test]
fn competitive_bound() {
    let page_sizes =
        PageSizes::new(PageSize::K4, &[PageSize::K4, PageSize::from_shift(13).unwrap()]).unwrap();
    for (o, b) in [(100.0, 30.0), (0.0, 30.0), (10.0, 200.0)] {
        let mut worst = 0.0f64;
        for r_per_kb in [1u32, 7, 100] {
            let r = f64::from(8 * r_per_kb);
            for misses in [1, 2, 8 * r_per_kb - 1, 8 * r_per_kb, 8 * r_per_kb + 1, 100 * r_per_kb] {
                let setup = Setup {
                    page_sizes,
                    split: false,
                    costs: Costs { r_per_kb, prefetch: 1000, capacity: 1000 },
                    ..Setup::PAPER
                };
                let mut policy = approx(&setup, 1);
                let mut machine = Machine::new(page_sizes, [1, 0]);
                // No policy can prevent the miss of the first reference.
                machine.touch(0, Vpn::new(1));
                policy.on_miss(miss(1));
                let mut online = 0.0;
                for n in 0..misses {
                    let page = Vpn::new(n as usize % 2);
                    let Some(missed) = machine.touch(0, page) else { break };
                    online += b + o;
                    if let Some(range) = step(&mut policy, &machine, 0, page, &missed, 0) {
                        policy.promoted(range);
                        machine.promote(machine.node(range));
                        online += r * b;
                    }
                }
                let offline = (f64::from(misses) * b).min(r * b);
                assert!(online <= (2.0 + o / b) * offline + 1e-6, "{online} against {offline}");
                worst = worst.max(online / offline);
            }
        }
        assert!((worst - (2.0 + o / b)).abs() < 1e-6, "the bound is reached: {worst}");
    }
}
