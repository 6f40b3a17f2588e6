//! The bookkeeping against its definition: scan the TLB on every miss.

mod model;

use model::{ByScan, Counts, Machine, approx, online, step};
use proptest::prelude::*;
use tlbkit_addr::{PageSize, Vpn};
use tlbkit_superpage::{ApproxOnline, Costs, Ladder, Online, Policy, Setup, Tlb};

fn sizes(shifts: &[u32]) -> Vec<PageSize> {
    shifts.iter().map(|&shift| PageSize::from_shift(shift).unwrap()).collect()
}

/// Binary, mixed and MIPS ladders, a unit of two pages, one of more blocks than a word has bits, the paper's.
fn ladders() -> impl Strategy<Value = Ladder> {
    prop_oneof![
        Just(vec![12, 13, 14, 15, 16, 17, 18, 19]),
        Just(vec![12, 14, 16, 18]),
        Just(vec![13, 15, 17, 19]),
        Just(vec![12, 15, 16, 20]),
        Just(vec![12, 13, 16, 25]),
        Just(vec![12, 21]),
        Just((12..=23).collect()),
    ]
    .prop_map(|shifts| Ladder::new(PageSize::K4, &sizes(&shifts)).unwrap())
}

/// References in clusters over three segments, so that everything has neighbours and charges gather.
fn references() -> impl Strategy<Value = Vec<(usize, u8, u16)>> {
    prop::collection::vec((0usize..2, 0u8..3, prop_oneof![0u16..12, 0u16..70, any::<u16>()]), 1..1500)
}

fn page(ladder: &Ladder, segment: u8, at: u16) -> Vpn {
    let pages = ladder.size(ladder.top()).unwrap().pages(PageSize::K4).unwrap();
    // The last segment is that at the top of the address space.
    let top = usize::MAX >> PageSize::K4.shift() << PageSize::K4.shift();
    let first = [0, 5 * pages, (top / pages) * pages][usize::from(segment)];
    Vpn::new(first + usize::from(at) % pages)
}

fn setup(ladder: Ladder, costs: Costs, eager: bool) -> Setup {
    Setup { ladder, costs, eager, ..Setup::PAPER }
}

fn check_tlbcounts(
    policy: &mut ApproxOnline<'_>,
    machine: &Machine,
    counts: &mut Counts,
    page: Vpn,
) -> Result<(), TestCaseError> {
    let unit =
        (0, page.get() >> machine.ladder.size(0).unwrap().pages(PageSize::K4).unwrap().trailing_zeros());
    for level in 0..machine.ladder.levels() {
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

    /// Eager and deferred APPROX-ONLINE promote exactly where scanning does, whatever the ladder, the costs, and
    /// whether charges are deferred; counts agree at the end, demotions and flushes included.
    #[test]
    fn approx_online_is_its_definition(
        ladder in ladders(),
        refs in references(),
        r in 1u32..6,
        prefetch in prop_oneof![Just(125u32), 1u32..2000],
        eager in any::<bool>(),
        tlb_sizes in [1usize..6, 1usize..6],
        demote_every in 5usize..400,
    ) {
        let setup = setup(ladder, Costs { r_per_kb: r, prefetch, ..Costs::PAPER }, eager);
        let mut machine = Machine::new(ladder, tlb_sizes);
        let mut policy = approx(&setup, 4);
        let mut scan = ByScan::new(&setup, false);
        for (n, &(tlb, segment, at)) in refs.iter().enumerate() {
            let page = page(&ladder, segment, at);
            if n % demote_every == demote_every - 1 {
                let node = machine.demote(page);
                prop_assert_eq!(policy.demote(page), node.map(|node| machine.superpage(node)));
                if let Some(node) = node {
                    scan.restart(&machine, node);
                }
            }
            if let Some(missed) = machine.touch(tlb, page) {
                let expected = scan.miss(&machine, tlb, &missed);
                let range = step(&mut policy, &machine, tlb, page, &missed, 0);
                prop_assert_eq!(range, expected.map(|node| machine.superpage(node)), "reference {}", n);
                if let (Some(node), Some(range)) = (expected, range) {
                    scan.promoted(&machine, node);
                    machine.promote(node);
                    policy.promoted(range);
                }
            }
        }
        let counted: Vec<_> = scan.prefetch.iter().map(|(&node, &count)| (node, count)).collect();
        for (node, count) in counted {
            prop_assert_eq!(policy.prefetch(machine.superpage(node)).map(u64::from), Some(count), "{:?}", node);
        }
    }

    /// Over runs of many periods at the paper's costs, deferring never moves a promotion. References are skewed, so that
    /// at every time some superpages are far from their thresholds and some close.
    #[test]
    fn deferring_moves_no_promotion(seed in any::<u64>(), skew in 1u32..5, size in 1usize..8, r in 1u32..100) {
        let setup = Setup { costs: Costs { r_per_kb: r, ..Costs::PAPER }, ..Setup::PAPER };
        let eager = Setup { eager: true, ..setup };
        let (mut deferred, mut at_once) = (approx(&setup, 2), approx(&eager, 2));
        let mut machine = Machine::new(Ladder::PAPER, [size, size]);
        let mut state = seed | 1;
        for n in 0..8_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = (state >> 33) as u32;
            let wide = ((random >> 8) % 2048) >> (random % (2 * skew));
            let page = Vpn::new(wide as usize);
            let tlb = usize::from(random & 0x80 != 0);
            let Some(missed) = machine.touch(tlb, page) else { continue };
            let range = step(&mut deferred, &machine, tlb, page, &missed, 0);
            prop_assert_eq!(range, step(&mut at_once, &machine, tlb, page, &missed, 0), "reference {}", n);
            if let Some(range) = range {
                machine.promote(machine.node(range));
                deferred.promoted(range);
                at_once.promoted(range);
            }
        }
    }

    /// `tlbcount` from the map of resident units is Appendix A's counter, done literally, after every miss.
    #[test]
    fn tlbcount_is_appendix_a(
        ladder in ladders(),
        refs in references(),
        r in 1u32..6,
        size in 1usize..8,
        demote_every in 5usize..100,
    ) {
        let setup = Setup { split: false, ..setup(ladder, Costs { r_per_kb: r, ..Costs::PAPER }, false) };
        let mut machine = Machine::new(ladder, [size, 0]);
        let mut policy = approx(&setup, 4);
        let mut counts = Counts::default();
        for (n, &(_, segment, at)) in refs.iter().take(400).enumerate() {
            let page = page(&ladder, segment, at);
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

    /// ONLINE promotes exactly where scanning the TLB and the LRU stack does.
    #[test]
    fn online_is_its_definition(
        ladder in ladders(),
        refs in references(),
        r in 1u32..6,
        capacity in 50u32..1000,
        eager in any::<bool>(),
        tlb_sizes in [1usize..6, 1usize..6],
        demote_every in 5usize..400,
    ) {
        let setup = setup(ladder, Costs { r_per_kb: r, prefetch: 500, capacity }, eager);
        let mut machine = Machine::new(ladder, tlb_sizes);
        let mut policy = online(&setup, tlb_sizes, 4);
        let mut scan = ByScan::new(&setup, true);
        for (n, &(tlb, segment, at)) in refs.iter().enumerate() {
            let page = page(&ladder, segment, at);
            if n % demote_every == demote_every - 1 {
                let node = machine.demote(page);
                prop_assert_eq!(policy.demote(page), node.map(|node| machine.superpage(node)));
                if let Some(node) = node {
                    scan.restart(&machine, node);
                }
            }
            if let Some(missed) = machine.touch(tlb, page) {
                let expected = scan.miss(&machine, tlb, &missed);
                let range = step(&mut policy, &machine, tlb, page, &missed, 0);
                prop_assert_eq!(range, expected.map(|node| machine.superpage(node)), "reference {}", n);
                if let (Some(node), Some(range)) = (expected, range) {
                    scan.promoted(&machine, node);
                    machine.promote(node);
                    policy.promoted(range);
                }
            }
        }
        let counted: Vec<_> = scan.capacity.iter().map(|(&node, &count)| (node, count)).collect();
        for (node, count) in counted {
            let charged = policy.charges(machine.superpage(node)).map(|(_, capacity)| u64::from(capacity));
            prop_assert_eq!(charged, Some(count), "{:?}", node);
        }
    }

    /// With promotion off, prefetch plus capacity charges of a superpage are the misses that vanish when it exists
    /// from the start, in either TLB.
    #[test]
    fn charges_are_the_misses_that_vanish(
        ladder in ladders(),
        refs in references(),
        tlb_sizes in [1usize..6, 1usize..6],
        pick in any::<prop::sample::Index>(),
        level in 1usize..16,
    ) {
        // Thresholds that nothing reaches.
        let setup = setup(ladder, Costs { r_per_kb: 500, prefetch: 1000, capacity: 1000 }, false);
        let mut policy = online(&setup, tlb_sizes, 4);
        let (_, segment, at) = *pick.get(&refs);
        let probe = Machine::new(ladder, tlb_sizes);
        let unit = probe.map(page(&ladder, segment, at));
        let node = probe.up(unit, 1 + level % ladder.top());
        let replay = |machine: &mut Machine| {
            refs.iter().filter(|&&(tlb, segment, at)| machine.touch(tlb, page(&ladder, segment, at)).is_some()).count()
        };
        let without = replay(&mut Machine::new(ladder, tlb_sizes));
        let mut promoted = Machine::new(ladder, tlb_sizes);
        promoted.promote(node);
        let with = replay(&mut promoted);
        let mut machine = Machine::new(ladder, tlb_sizes);
        for &(tlb, segment, at) in &refs {
            let page = page(&ladder, segment, at);
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
    let ladder = Ladder::new(PageSize::K4, &sizes(&[12, 13, 14, 15, 16])).unwrap();
    let setup = Setup { ladder, split: false, ..Setup::PAPER };
    let mut policy = online(&setup, [3, 0], 1);
    let mut machine = Machine::new(ladder, [3, 0]);
    let charged = |policy: &mut Online<'_>| {
        let mut all = Vec::new();
        for level in 1..ladder.levels() {
            for number in 0..ladder.nodes(level) {
                let superpage = Machine::new(ladder, [3, 0]).superpage((level, number));
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
