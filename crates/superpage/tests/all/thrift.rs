//! THRIFT against its definition, and what its documentation promises.

use std::collections::HashSet;

use crate::model::world::{Event, SEGMENTS, World, activity, ladders, memory, page, refusals, sizes, start};
use crate::model::{miss, thrift};
use proptest::prelude::*;
use tlbkit_addr::{PageSize, Pages, Vpn};
use tlbkit_superpage::{Action, Costs, Miss, PageSizes, Policy, Refusal, Setup, Superpage, Tlb};

/// Pages beside each other, some in each region, and one in each.
fn places() -> impl Strategy<Value = u16> {
    let some = |apart: u16, first: u16| (0u16..40).prop_map(move |n| apart * n + first);
    prop_oneof![0u16..16, 0u16..70, some(4, 0), some(16, 1), any::<u16>()]
}

/// References to a few pages, over and over, so that superpages with holes come to their price, and now and then to
/// others; in every other run other events, too. First of all some reservations fail.
fn events(page_sizes: PageSizes) -> impl Strategy<Value = Vec<Event>> {
    let any_page = move || {
        (prop_oneof![4 => Just(1), 1 => 0..SEGMENTS], places())
            .prop_map(move |(segment, at)| page(&page_sizes, segment, at))
    };
    prop::collection::vec(any_page(), 1..14).prop_flat_map(move |few| {
        let page = move || prop_oneof![30 => prop::sample::select(few.clone()), 1 => any_page()];
        let reference = {
            let page = page.clone();
            move |refused: u32| {
                (0usize..2, page(), refusals(refused))
                    .prop_map(|(tlb, page, refuse)| Event::Reference(tlb, page, refuse))
            }
        };
        let broken = (page(), any::<usize>()).prop_map(|(page, level)| Event::Broken(page, level));
        let other = prop_oneof![
            100 => reference(300),
            3 => (0usize..2, page()).prop_map(|(tlb, page)| Event::Again(tlb, page)),
            2 => page().prop_map(Event::Demotion),
            1 => (page(), any::<usize>()).prop_map(|(page, level)| Event::Promotion(page, level)),
            2 => (0usize..2, page()).prop_map(|(tlb, page)| Event::Drop(tlb, page)),
            2 => (0usize..2, any::<usize>()).prop_map(|(tlb, nth)| Event::DropOneOf(tlb, nth)),
            1 => (0usize..2).prop_map(Event::Flush),
            1 => page().prop_map(Event::Unmap),
            2 => (page(), 0usize..40, any::<bool>())
                .prop_map(|(page, more, told)| Event::UnmapPart(page, more, told)),
            1 => broken.clone(),
        ];
        let mostly_references = prop::collection::vec(reference(50), 1..1500);
        let rest = prop_oneof![mostly_references, prop::collection::vec(other, 1..1500)];
        (prop::collection::vec(broken, 0..8), rest).prop_map(|(broken, rest)| [broken, rest].concat())
    })
}

fn histories() -> impl Strategy<Value = (PageSizes, Vec<Event>)> {
    ladders().prop_flat_map(|page_sizes| (Just(page_sizes), events(page_sizes)))
}

fn setups() -> impl Strategy<Value = Setup> {
    let prefetch = prop_oneof![Just(125u32), 1u32..2000, 1u32..20];
    (1u32..6, prefetch, any::<bool>(), activity()).prop_map(|(r_per_kb, prefetch, split, activity)| {
        let costs = Costs { r_per_kb, prefetch, ..Costs::PAPER };
        Setup { costs, split, activity, ..Setup::PAPER }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// It asks for what is full at once, and otherwise for what has its price in charges, holes included, and copies
    /// exactly where no reservation stands; whatever the page sizes and the costs.
    #[test]
    fn thrift_is_its_definition(
        (page_sizes, events) in histories(),
        (setup, start) in (setups(), start()),
        memory in memory(),
        tlb_sizes in [1usize..6, 1usize..6],
    ) {
        let setup = Setup { page_sizes, ..setup };
        let mut world = World::thrift(&setup, tlb_sizes).with_memory(memory);
        let mut policy = thrift(&setup, memory);
        for (n, &event) in events.iter().enumerate() {
            world.happens(&mut policy, event, start + 10 * n as u64)?;
        }
    }

    /// Over long waits for prices, too, which fall with every page that is touched while much is owed.
    #[test]
    fn prices_fall_while_charges_are_deferred(
        (page_sizes, r_per_kb) in (prop_oneof![Just(12..=20), Just(13..=21)], 10u32..60),
        prefetch in 100u32..150,
        few in prop::collection::vec(0usize..16, 2..6),
        references in prop::collection::vec((0usize..2, any::<prop::sample::Index>(), 0usize..64 * 256), 2000..4000),
        segment in 0usize..2,
        size in 1usize..3,
    ) {
        let page_sizes = PageSizes::new(PageSize::K4, &sizes(&page_sizes.collect::<Vec<_>>())).unwrap();
        let costs = Costs { r_per_kb, prefetch, ..Costs::PAPER };
        let setup = Setup { page_sizes, costs, ..Setup::PAPER };
        let mut world = World::thrift(&setup, [size, size]);
        let mut policy = thrift(&setup, 2);
        let first = segment * page_sizes.size(page_sizes.top()).unwrap().pages(PageSize::K4).unwrap();
        // Where one reservation is of use, in the first segment, holes have their price; the others fail.
        let refused = (0..16).filter(|&region| segment > 0 || region != 8);
        let refused = refused.map(|region| Event::Broken(Vpn::new(first + 16 * region), 1));
        let in_place = [128, 129, 130, 131].map(|page| Event::Reference(0, Vpn::new(page), None));
        let references = references.into_iter().map(|(tlb, nth, other)| {
            // A page elsewhere once in 64 times.
            let page = if other < 256 { other } else { 16 * few[nth.index(few.len())] };
            Event::Reference(tlb, Vpn::new(first + page), None)
        });
        for (n, event) in in_place.into_iter().chain(refused).chain(references).enumerate() {
            world.happens(&mut policy, event, n as u64)?;
        }
    }

    /// Where no reservation succeeds it is APPROX-ONLINE.
    #[test]
    fn without_reservations_thrift_is_approx_online(
        (page_sizes, events) in histories(),
        setup in setups(),
        tlb_sizes in [1usize..6, 1usize..6],
    ) {
        let setup = Setup { page_sizes, ..setup };
        let mut world = World::new(&setup, tlb_sizes, false);
        let mut policy = thrift(&setup, 4);
        let mut refused = HashSet::new();
        for (n, &event) in events.iter().enumerate() {
            match event {
                Event::Reference(_, page, _) => {
                    if let Some(region) = policy.reservation(page).filter(|&region| refused.insert(region)) {
                        policy.refused(region, Refusal::NoMemory);
                    }
                }
                Event::Unmap(_) => refused.clear(),
                _ => {}
            }
            world.happens(&mut policy, event, 10 * n as u64)?;
        }
    }
}

fn superpage(first: usize, shift: u32) -> Superpage {
    Superpage { first: Vpn::new(first), size: PageSize::from_shift(shift).unwrap() }
}

fn in_place(range: Superpage) -> Option<Action> {
    Some(Action::Promote { range, copy: false })
}

fn copied(range: Superpage) -> Option<Action> {
    Some(Action::Promote { range, copy: true })
}

/// 64 KB or the next smaller size, of sixteen units at most.
#[test]
fn what_is_reserved() {
    let reservation = |shifts: &[u32], page| {
        let page_sizes = PageSizes::new(PageSize::K4, &sizes(shifts)).unwrap();
        let region = thrift(&Setup { page_sizes, ..Setup::PAPER }, 1).reservation(Vpn::new(page));
        assert_eq!(tlbkit_superpage::Thrift::region(&page_sizes), region.map(|region| region.size));
        let region = region?;
        Some((region.first.get(), region.size.shift()))
    };
    assert_eq!(reservation(&(12..=23).collect::<Vec<_>>(), 37), Some((32, 16)));
    assert_eq!(reservation(&[12, 14, 20], 37), Some((36, 14)));
    assert_eq!(reservation(&[13, 15, 17, 19], 37), Some((32, 15)));
    assert_eq!(reservation(&[12, 21], 37), None);
    let top = usize::MAX >> PageSize::K4.shift();
    assert_eq!(reservation(&[12, 16, 21], top), Some((top - 15, 16)));
}

/// An answer is one to the question, whatever else the kernel says before.
#[test]
fn a_reservation_breaks_before_the_answer() {
    let region = |first| superpage(first, 16);
    let pair = |first| superpage(first, 13);
    // A promotion in place is still one: {0..3} keeps what it was charged, and its holes have their price from now on.
    let mut policy = thrift(&Setup::PAPER, 1);
    assert_eq!(alternate(&mut policy, [0, 2], 0..150), None);
    assert_eq!(policy.on_miss(miss(1)), in_place(pair(0)));
    policy.refused(region(16), Refusal::NoMemory);
    policy.promoted(pair(0));
    policy.evicted(Tlb::Data, Vpn::new(0));
    policy.evicted(Tlb::Data, Vpn::new(2));
    // A quarter of R, 400, and 150 of that have been paid.
    assert_eq!(alternate(&mut policy, [0, 2], 0..2000), Some((250, in_place(superpage(0, 14)).unwrap())));

    // What was not copied waits.
    let mut policy = thrift(&Setup::PAPER, 1);
    for first in [0, 16] {
        policy.refused(region(first), Refusal::NoMemory);
    }
    assert_eq!(alternate(&mut policy, [0, 1], 0..2000), Some((100, copied(pair(0)).unwrap())));
    policy.refused(region(32), Refusal::NoMemory);
    policy.refused(pair(0), Refusal::NoMemory);
    assert_eq!(alternate(&mut policy, [1, 0], 101..2000), Some((200, copied(pair(0)).unwrap())));
}

/// A price that no counter holds is what one holds at the most: sixteen bits, less eight that are owed.
#[test]
fn the_highest_price() {
    let setup = Setup { costs: Costs { r_per_kb: 1500, ..Costs::PAPER }, ..Setup::PAPER };
    let mut policy = thrift(&setup, 1);
    let pair = superpage(32, 13);
    assert_eq!([policy.on_miss(miss(32)), policy.on_miss(miss(33))], [None, in_place(pair)]);
    policy.promoted(pair);
    policy.evicted(Tlb::Data, pair.first);
    let price = (65535 - 255) * 14 / 16;
    assert_eq!(
        alternate(&mut policy, [0, 8], 0..100_000),
        Some((price, in_place(superpage(0, 16)).unwrap()))
    );
}

/// THRIFT: at once and in place what is full, in place what is charged enough, and by copying what is not reserved.
#[test]
fn thrift_copies_where_no_reservation_stands() {
    let mut policy = thrift(&Setup::PAPER, 1);
    let region = |first| Superpage { first: Vpn::new(first), size: PageSize::K64 };
    let pair = Superpage { first: Vpn::new(0), size: PageSize::from_shift(13).unwrap() };
    assert_eq!(policy.reservation(Vpn::new(5)), Some(region(0)));
    assert_eq!(policy.on_miss(miss(0)), None);
    assert_eq!(policy.on_miss(miss(1)), Some(Action::Promote { range: pair, copy: false }));
    policy.promoted(pair);
    policy.refused(region(0), Refusal::NoMemory);
    assert_eq!([policy.on_miss(miss(2)), policy.on_miss(miss(3))], [None, None]);
    // What is used again after a demotion has stayed in place, but is not reserved.
    assert_eq!(policy.demote(Vpn::new(1)), Some(pair));
    assert_eq!([policy.on_miss(miss(0)), policy.on_miss(miss(1))], [None, None]);
    // With holes it takes charges: two pages of 16 KB, half its R of 1600.
    for (first, reserved) in [(16, true), (32, false)] {
        if !reserved {
            policy.refused(region(first), Refusal::NoMemory);
        }
        let range = Superpage { first: Vpn::new(first), size: PageSize::K16 };
        let found = alternate(&mut policy, [first, first + 2], 0..2000);
        assert_eq!(found, Some((800, Action::Promote { range, copy: !reserved })));
        policy.promoted(range);
        policy.evicted(Tlb::Data, Vpn::new(first));
    }
}

/// A page that is unmapped is a hole in its reservation again.
#[test]
fn thrift_promotes_no_hole_in_place() {
    let mut policy = thrift(&Setup::PAPER, 1);
    let range = Superpage { first: Vpn::new(0), size: PageSize::from_shift(13).unwrap() };
    assert_eq!(policy.on_miss(miss(0)), None);
    policy.unmapped(Pages::one(Vpn::new(0)));
    assert_eq!(policy.on_miss(miss(1)), None);
    assert_eq!(policy.on_miss(miss(0)), Some(Action::Promote { range, copy: false }));
}

/// Segments of less than a block begin anywhere among sixteen units: wherever it lies, a region has holes, fills, fills
/// again after a demotion, and breaks.
#[test]
fn segments_smaller_than_a_block() {
    let page_sizes = PageSizes::new(PageSize::K4, &sizes(&[12, 14])).unwrap();
    for segment in [0, 1, 2, 3, 1025] {
        let first = 4 * segment;
        let mut policy = thrift(&Setup { page_sizes, ..Setup::PAPER }, 1);
        let whole = superpage(first, 14);
        let touch = |policy: &mut dyn Policy, page| policy.on_miss(miss(first + page));
        assert_eq!([0, 1, 2].map(|page| touch(&mut policy, page)), [None; 3]);
        policy.unmapped(Pages::one(Vpn::new(first + 1)));
        assert_eq!([3, 1].map(|page| touch(&mut policy, page)), [None, in_place(whole)], "{segment}");
        policy.promoted(whole);
        assert_eq!(policy.demote(Vpn::new(first + 2)), Some(whole));
        assert_eq!([3, 2, 1].map(|page| touch(&mut policy, page)), [None; 3]);
        assert_eq!(touch(&mut policy, 0), in_place(whole), "{segment}");
        policy.refused(whole, Refusal::NoMemory);
        for page in 0..4 {
            policy.evicted(Tlb::Data, Vpn::new(first + page));
        }
        // 0.125 R, three charges of which it has had.
        assert_eq!(alternate(&mut policy, [first, first + 2], 0..500), Some((197, copied(whole).unwrap())));
    }
}

/// Misses two pages in turn in a TLB of one entry, the first of them without one evicted. Returns the first action.
fn alternate(
    policy: &mut dyn Policy,
    mut pages: [usize; 2],
    turns: std::ops::Range<usize>,
) -> Option<(usize, Action)> {
    turns.into_iter().find_map(|n| {
        let evicted = (n > 0).then_some(Vpn::new(pages[1]));
        let action = policy.on_miss(Miss { evicted, ..miss(pages[0]) });
        pages.reverse();
        action.map(|action| (n, action))
    })
}

/// THRIFT's holes are free until a reservation has been of use, and cost their share of R from then on. A page that is
/// touched while a superpage waits is no hole any longer: with the next charge the superpage has what it takes.
#[test]
fn thrift_pays_for_holes() {
    let mut policy = thrift(&Setup::PAPER, 1);
    let region = |first| Superpage { first: Vpn::new(first), size: PageSize::K64 };
    let of = |first, shift| {
        let range = Superpage { first: Vpn::new(first), size: PageSize::from_shift(shift).unwrap() };
        Action::Promote { range, copy: true }
    };
    policy.refused(region(0), Refusal::NoMemory);
    // 0.125 R of 16 KB, whatever its holes.
    assert_eq!(alternate(&mut policy, [0, 2], 0..2000), Some((200, of(0, 14))));
    policy.promoted(Superpage { first: Vpn::new(0), size: PageSize::K16 });
    policy.evicted(Tlb::Data, Vpn::new(0));

    let pair = Superpage { first: Vpn::new(32), size: PageSize::from_shift(13).unwrap() };
    assert_eq!(policy.on_miss(miss(32)), None);
    assert_eq!(policy.on_miss(miss(33)), Some(Action::Promote { range: pair, copy: false }));
    policy.promoted(pair);
    policy.evicted(Tlb::Data, Vpn::new(32));
    // Half of R, 800, for two pages of four; and a quarter, which has been charged, when one of them is touched.
    policy.refused(region(64), Refusal::NoMemory);
    assert_eq!(alternate(&mut policy, [64, 66], 0..450), None);
    assert_eq!(policy.on_miss(Miss { evicted: Some(Vpn::new(66)), ..miss(65) }), Some(of(64, 14)));
    // 128 KB, one region of it untouched but for a page: 0.125 R and the rest for 30 of 32 pages.
    for first in [128, 144] {
        policy.refused(region(first), Refusal::NoMemory);
    }
    let price = 1600 + (12800 - 1600) * 30 / 32;
    assert_eq!(alternate(&mut policy, [128, 144], 0..20_000), Some((price, of(128, 17))));
}

/// Nor does a larger superpage wait for pages that have been touched: with the next charge it is looked at, however much
/// was owed to it.
#[test]
fn thrift_looks_at_once_when_a_price_falls() {
    // Also where nothing is larger.
    for (apart, shift, top) in [(16, 17, 17), (16, 17, 23), (32, 18, 18), (32, 18, 23), (64, 19, 23)] {
        let page_sizes = PageSizes::new(PageSize::K4, &sizes(&(12..=top).collect::<Vec<_>>())).unwrap();
        let mut policy = thrift(&Setup { page_sizes, ..Setup::PAPER }, 2);
        let pair = superpage(1024, 13);
        assert_eq!([policy.on_miss(miss(1024)), policy.on_miss(miss(1025))], [None, in_place(pair)]);
        policy.promoted(pair);
        policy.evicted(Tlb::Data, pair.first);
        for first in (128..128 + 2 * apart).step_by(16) {
            policy.refused(superpage(first, 16), Refusal::NoMemory);
        }
        let (units, whole) = (2 * apart, 6400 * 2 * apart / 16);
        let price = |holes: usize| whole / 8 + (whole - whole / 8) * holes / units;
        // A charge less than it takes with four holes less, the first of which is touched by the last of them.
        let charges = price(units - 2 - 4) - 5;
        assert_eq!(alternate(&mut policy, [128, 128 + apart], 0..charges + 1), None);
        let mut evicted = 128 + if charges % 2 == 0 { 0 } else { apart };
        let asked = [130, 132, 134, 136, 138].map(|page| {
            let action = policy.on_miss(Miss { evicted: Some(Vpn::new(evicted)), ..miss(page) });
            evicted = page;
            action
        });
        assert_eq!(asked, [None, None, None, None, copied(superpage(128, shift))], "{shift}");
    }
}

/// After a refusal every miss counts once, the first to a page that something waits for, too.
#[test]
fn a_wait_after_a_refusal_is_counted_in_misses() {
    let mut policy = thrift(&Setup::PAPER, 1);
    let (pair, region) = (superpage(0, 13), |first| superpage(first, 16));
    assert_eq!(
        [policy.on_miss(miss(1024)), policy.on_miss(miss(1025))],
        [None, in_place(superpage(1024, 13))]
    );
    policy.promoted(superpage(1024, 13));
    for first in [0, 64] {
        policy.refused(region(first), Refusal::NoMemory);
    }
    // {64..67} has 0.125 R, and waits for the price of two holes.
    assert_eq!(alternate(&mut policy, [64, 66], 0..450), None);
    assert_eq!(alternate(&mut policy, [0, 1], 0..200), Some((100, copied(pair).unwrap())));
    policy.refused(pair, Refusal::NoMemory);
    let touches =
        (68..78).map(|page| policy.on_miss(Miss { evicted: Some(Vpn::new(page - 1)), ..miss(page) }));
    assert_eq!(touches.collect::<Vec<_>>(), [None; 10]);
    assert_eq!(alternate(&mut policy, [1, 0], 0..200), Some((89, copied(pair).unwrap())));
}

/// What a superpage that waits owes to those around it is paid when its price falls: {0..127} is asked for after as many
/// misses as if nothing were ever owed.
#[test]
fn what_is_owed_is_paid_when_a_price_falls() {
    let page_sizes = PageSizes::new(PageSize::K4, &sizes(&(12..=19).collect::<Vec<_>>())).unwrap();
    let mut policy = thrift(&Setup { page_sizes, ..Setup::PAPER }, 1);
    assert_eq!([policy.on_miss(miss(100)), policy.on_miss(miss(101))], [None, in_place(superpage(100, 13))]);
    policy.promoted(superpage(100, 13));
    policy.evicted(Tlb::Data, Vpn::new(100));
    for first in [0, 32, 64] {
        policy.refused(superpage(first, 16), Refusal::NoMemory);
    }
    let mut misses = 0;
    // {0..63} waits, and a page of it is touched now and then.
    for page in [2, 4, 6, 8, 10] {
        assert_eq!(alternate(&mut policy, [0, 32], 0..3001), None);
        assert_eq!(policy.on_miss(Miss { evicted: Some(Vpn::new(0)), ..miss(page) }), None);
        policy.evicted(Tlb::Data, Vpn::new(page));
    }
    for (pages, shift) in [([0, 32], 18), ([0, 64], 19)] {
        let (more, action) = alternate(&mut policy, pages, 0..100_000).unwrap();
        assert_eq!(Some(action), copied(superpage(0, shift)));
        policy.promoted(superpage(0, shift));
        policy.evicted(Tlb::Data, Vpn::new(0));
        misses += more;
    }
    assert_eq!(misses, 35_894);
}
