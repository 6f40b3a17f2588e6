//! The bookkeeping against its definition: scan the TLB on every miss.

use std::collections::HashMap;

use crate::model::world::{Event, SEGMENTS, World, activity, ladders, memory, page, refusals, sizes, start};
use crate::model::{ByScan, Counts, Machine, Node, TLBS, approx, online, step};
use proptest::prelude::*;
use tlbkit_addr::{PageSize, Vpn};
use tlbkit_superpage::{ApproxOnline, Costs, Online, PageSizes, Policy, Setup, Tlb};

/// Pages in clusters, so that everything has neighbours and charges gather, and in blocks apart from each other.
fn places() -> impl Strategy<Value = u16> {
    prop_oneof![0u16..12, 0u16..70, any::<u16>(), (0u16..40).prop_map(|n| 16 * n + 1)]
}

/// Mostly references; everything else only in every other run, so that in some charges gather for long.
fn events(page_sizes: PageSizes) -> impl Strategy<Value = Vec<Event>> {
    let page = move || (0..SEGMENTS, places()).prop_map(move |(segment, at)| page(&page_sizes, segment, at));
    let reference = move |refused: u32| {
        (0usize..2, page(), refusals(refused))
            .prop_map(|(tlb, page, refuse)| Event::Reference(tlb, page, refuse))
    };
    let any = prop_oneof![
        100 => reference(300),
        5 => (0usize..2, page()).prop_map(|(tlb, page)| Event::Again(tlb, page)),
        2 => page().prop_map(Event::Demotion),
        2 => (page(), any::<usize>()).prop_map(|(page, level)| Event::Promotion(page, level)),
        2 => (0usize..2, page()).prop_map(|(tlb, page)| Event::Drop(tlb, page)),
        2 => (0usize..2, any::<usize>()).prop_map(|(tlb, nth)| Event::DropOneOf(tlb, nth)),
        1 => (0usize..2).prop_map(Event::Flush),
        1 => page().prop_map(Event::Unmap),
        2 => (page(), 0usize..70, any::<bool>())
            .prop_map(|(page, more, told)| Event::UnmapPart(page, more, told)),
    ];
    prop_oneof![prop::collection::vec(reference(100), 1..1500), prop::collection::vec(any, 1..1500)]
}

/// Page sizes, and what happens with them.
fn histories() -> impl Strategy<Value = (PageSizes, Vec<Event>)> {
    ladders().prop_flat_map(|page_sizes| (Just(page_sizes), events(page_sizes)))
}

/// References to all segments.
fn references() -> impl Strategy<Value = Vec<(usize, u8, u16)>> {
    prop::collection::vec((0usize..2, 0..SEGMENTS, places()), 1..1500)
}

fn setup(page_sizes: PageSizes, costs: Costs) -> Setup {
    Setup { page_sizes, costs, ..Setup::PAPER }
}

fn check_tlbcounts(
    policy: &mut ApproxOnline<'_>,
    machine: &Machine,
    counts: &mut Counts,
    page: Vpn,
) -> Result<(), TestCaseError> {
    let unit =
        (0, page.get() >> machine.page_sizes.size(0).unwrap().pages(PageSize::K4).unwrap().trailing_zeros());
    for level in 0..machine.page_sizes.levels() {
        let node = machine.up(unit, level);
        prop_assert_eq!(
            policy.tlbcount(Tlb::Data, machine.superpage(node)),
            Some(counts.0.get(&node).copied().unwrap_or(0)),
            "level {}",
            level
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// APPROX-ONLINE promotes exactly where scanning does, whatever the page sizes and the costs, and after every miss it
    /// counts what scanning counts.
    #[test]
    fn approx_online_is_its_definition(
        (page_sizes, events) in histories(),
        r in 1u32..6,
        prefetch in prop_oneof![Just(125u32), 1u32..2000, 1u32..20],
        split in any::<bool>(),
        (activity, start) in (activity(), start()),
        memory in memory(),
        tlb_sizes in [1usize..6, 1usize..6],
    ) {
        let costs = Costs { r_per_kb: r, prefetch, ..Costs::PAPER };
        let setup = Setup { split, activity, ..setup(page_sizes, costs) };
        let mut world = World::new(&setup, tlb_sizes, false).with_memory(memory);
        let mut policy = approx(&setup, memory);
        for (n, &event) in events.iter().enumerate() {
            let Some((tlb, page)) = world.happens(&mut policy, event, start + 10 * n as u64)? else { continue };
            let unit = world.unit(page);
            for level in 0..page_sizes.levels() {
                let node = world.machine.up(unit, level);
                let superpage = world.machine.superpage(node);
                let count = world.scan.prefetch.get(&node).copied().unwrap_or(0);
                prop_assert_eq!(policy.prefetch(superpage).map(u64::from), (level > 0).then_some(count), "{:?}", node);
                let counted = world.touched.contains(&world.segment(page));
                let held = if counted { world.machine.tlbcount(world.own(tlb), node) } else { 0 };
                prop_assert_eq!(policy.tlbcount(TLBS[tlb], superpage), Some(held), "{:?}", node);
            }
        }
        for (&node, &count) in &world.scan.prefetch {
            prop_assert_eq!(policy.prefetch(world.machine.superpage(node)).map(u64::from), Some(count), "{:?}", node);
        }
        prop_assert_eq!(policy.segments(), (world.touched.len(), memory));
    }

    /// Over runs of many periods at the paper's costs, too, whose charges are deferred for long. References are skewed, so that
    /// at every time some superpages are far from their thresholds and some close.
    #[test]
    fn deferring_moves_no_promotion(seed in any::<u64>(), skew in 1u32..5, size in 1usize..8, r in 1u32..100) {
        let setup = Setup { costs: Costs { r_per_kb: r, ..Costs::PAPER }, ..Setup::PAPER };
        let (mut policy, mut scan) = (approx(&setup, 2), ByScan::new(&setup, false));
        let mut machine = Machine::new(PageSizes::PAPER, [size, size]);
        let mut state = seed | 1;
        for n in 0..8_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = (state >> 33) as u32;
            let wide = ((random >> 8) % 2048) >> (random % (2 * skew));
            let page = Vpn::new(wide as usize);
            let tlb = usize::from(random & 0x80 != 0);
            let Some(missed) = machine.touch(tlb, page) else { continue };
            let wanted = scan.miss(&machine, tlb, &missed);
            let range = step(&mut policy, &machine, tlb, page, &missed, 0);
            prop_assert_eq!(range, wanted.map(|node| machine.superpage(node)), "reference {}", n);
            if let Some(node) = wanted {
                policy.promoted(machine.superpage(node));
                machine.promote(node);
                scan.promoted(&machine, node);
            }
        }
    }

    /// `tlbcount` from the map of resident units is Appendix A's counter, done literally, after every miss.
    #[test]
    fn tlbcount_is_appendix_a(
        page_sizes in ladders(),
        refs in references(),
        r in 1u32..6,
        size in 1usize..8,
        demote_every in 5usize..100,
    ) {
        let setup = Setup { split: false, ..setup(page_sizes, Costs { r_per_kb: r, ..Costs::PAPER }) };
        let mut machine = Machine::new(page_sizes, [size, 0]);
        let mut policy = approx(&setup, 4);
        let mut counts = Counts::default();
        for (n, &(_, segment, at)) in refs.iter().take(400).enumerate() {
            let page = page(&page_sizes, segment, at);
            if n % demote_every == demote_every - 1 {
                let node = machine.demote(page);
                prop_assert_eq!(policy.demote(page), node.map(|node| machine.superpage(node)));
                if let Some(node) = node {
                    counts.demoted(&machine, node);
                }
            }
            if let Some(missed) = machine.touch(0, page) {
                let range = step(&mut policy, &machine, 0, page, &missed, 0);
                counts.miss(&machine, &missed);
                check_tlbcounts(&mut policy, &machine, &mut counts, page)?;
                if let Some(range) = range {
                    policy.promoted(range);
                    machine.promote(machine.node(range));
                    counts.promoted(&machine, machine.node(range));
                    check_tlbcounts(&mut policy, &machine, &mut counts, page)?;
                }
                if let Some(evicted) = missed.evicted {
                    check_tlbcounts(&mut policy, &machine, &mut counts, machine.vpn(evicted))?;
                }
            }
        }
    }

    /// ONLINE promotes exactly where scanning the TLB and the LRU stack does, and counts the same. Where there is no memory
    /// it does neither.
    #[test]
    fn online_is_its_definition(
        (page_sizes, events) in histories(),
        r in 1u32..6,
        prefetch in prop_oneof![Just(500u32), Just(100_000), 1u32..2000],
        capacity in prop_oneof![50u32..1000, 1u32..50],
        split in any::<bool>(),
        (activity, start) in (activity(), start()),
        memory in memory(),
        tlb_sizes in [1usize..6, 1usize..6],
    ) {
        let setup = Setup { split, activity, ..setup(page_sizes, Costs { r_per_kb: r, prefetch, capacity }) };
        let mut world = World::new(&setup, tlb_sizes, true).with_memory(memory);
        let mut policy = online(&setup, tlb_sizes, memory);
        for (n, &event) in events.iter().enumerate() {
            let Some((_, page)) = world.happens(&mut policy, event, start + 10 * n as u64)? else { continue };
            let unit = world.unit(page);
            let around = (1..page_sizes.levels()).map(|level| world.machine.up(unit, level));
            for node in around.chain(world.scan.capacity.keys().copied()) {
                let count = |of: &HashMap<Node, u64>| of.get(&node).copied().unwrap_or(0) as u32;
                let expected = (count(&world.scan.prefetch), count(&world.scan.capacity));
                prop_assert_eq!(policy.charges(world.machine.superpage(node)), Some(expected), "{:?}", node);
            }
        }
    }

    /// With promotion off, prefetch plus capacity charges of a superpage are the misses that vanish when it exists
    /// from the start, in either TLB.
    #[test]
    fn charges_are_the_misses_that_vanish(
        page_sizes in ladders(),
        refs in references(),
        tlb_sizes in [1usize..6, 1usize..6],
        pick in any::<prop::sample::Index>(),
        level in 1usize..16,
    ) {
        // Thresholds that nothing reaches.
        let setup = setup(page_sizes, Costs { r_per_kb: 500, prefetch: 1000, capacity: 1000 });
        let mut policy = online(&setup, tlb_sizes, 4);
        let (_, segment, at) = *pick.get(&refs);
        let probe = Machine::new(page_sizes, tlb_sizes);
        let unit = probe.map(page(&page_sizes, segment, at));
        let node = probe.up(unit, 1 + level % page_sizes.top());
        let replay = |machine: &mut Machine| {
            refs.iter().filter(|&&(tlb, segment, at)| machine.touch(tlb, page(&page_sizes, segment, at)).is_some()).count()
        };
        let without = replay(&mut Machine::new(page_sizes, tlb_sizes));
        let mut promoted = Machine::new(page_sizes, tlb_sizes);
        promoted.promote(node);
        let with = replay(&mut promoted);
        let mut machine = Machine::new(page_sizes, tlb_sizes);
        for &(tlb, segment, at) in &refs {
            let page = page(&page_sizes, segment, at);
            if let Some(missed) = machine.touch(tlb, page) {
                prop_assert_eq!(step(&mut policy, &machine, tlb, page, &missed, 0), None);
            }
        }
        let (prefetch, capacity) = policy.charges(machine.superpage(node)).unwrap();
        prop_assert_eq!((prefetch + capacity) as usize, without - with);
    }
}

/// Figure 2: with 8, 1, 7, 6, 5, 0 behind it, the miss on page 1 is charged to {0, 1} and what lies around it for
/// prefetch, and to {4..7} for capacity.
#[test]
fn figure_2() {
    let page_sizes = PageSizes::new(PageSize::K4, &sizes(&[12, 13, 14, 15, 16])).unwrap();
    let setup = Setup { page_sizes, split: false, ..Setup::PAPER };
    let mut policy = online(&setup, [3, 0], 1);
    let mut machine = Machine::new(page_sizes, [3, 0]);
    let charged = |policy: &mut Online<'_>| {
        let mut all = Vec::new();
        for level in 1..page_sizes.levels() {
            for number in 0..page_sizes.nodes(level) {
                let superpage = Machine::new(page_sizes, [3, 0]).superpage((level, number));
                let (prefetch, capacity) = policy.charges(superpage).unwrap();
                all.push(((level, number), prefetch, capacity));
            }
        }
        all
    };
    for number in [8, 1, 7, 6, 5, 0] {
        let page = Vpn::new(number);
        let missed = machine.touch(0, page).unwrap();
        assert_eq!(step(&mut policy, &machine, 0, page, &missed, 0), None);
    }
    let before = charged(&mut policy);
    let missed = machine.touch(0, Vpn::new(1)).unwrap();
    step(&mut policy, &machine, 0, Vpn::new(1), &missed, 0);
    let after = charged(&mut policy);
    let grown: Vec<_> = before
        .iter()
        .zip(&after)
        .filter(|(before, after)| before != after)
        .map(|(before, after)| (after.0, after.1 - before.1, after.2 - before.2))
        .collect();
    // {0, 1}, {0..3}, {0..7}, {0..15} by prefetch, {4..7} by capacity.
    assert_eq!(grown, [((1, 0), 1, 0), ((2, 0), 1, 0), ((2, 1), 0, 1), ((3, 0), 1, 0), ((4, 0), 1, 0)]);
}
