//! A cache in which nothing can be pushed out knows what was filled in and not forgotten since: no less, and no more.
#![cfg(target_has_atomic = "64")]

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Debug;

use crate::ops::{Op, op};
use proptest::prelude::*;
use tlbkit_addr::{Asid, PageSize, Pages, VirtAddr, Vpn};
use tlbkit_stlb::{
    AsidTag, Assoc, Atomic, Cache, CacheMemory, EntryLayout, Hit, Integrated, Invalidate, Mips32, Page64,
    Pair, Shared, Victim,
};

const PAGES: usize = 120;
const SPACES: u16 = 3;

fn space<L: EntryLayout>(asid: u16) -> AsidTag<L> {
    AsidTag::new(Asid::new(asid, 8).unwrap()).unwrap()
}

fn page(number: usize) -> VirtAddr {
    Vpn::new(number).address(PageSize::K4)
}

/// The shared form, as one CPU uses it.
struct OfMany<'a, L: EntryLayout<Tag: Atomic, Data: Atomic>, const SETS: usize, const WAYS: usize>(
    Shared<'a, L, SETS, WAYS>,
);

impl<L: EntryLayout<Tag: Atomic, Data: Atomic>, const SETS: usize, const WAYS: usize> Invalidate<L>
    for OfMany<'_, L, SETS, WAYS>
{
    fn invalidate_pages(&mut self, space: AsidTag<L>, pages: Pages) {
        self.0.invalidate_pages(space, pages);
    }
    fn invalidate_global(&mut self, pages: Pages) {
        self.0.invalidate_global(pages);
    }
    fn invalidate_space(&mut self, space: AsidTag<L>) {
        self.0.invalidate_space(space);
    }
    fn invalidate_all(&mut self) {
        self.0.invalidate_all();
    }
}

impl<L: EntryLayout<Tag: Atomic, Data: Atomic>, const SETS: usize, const WAYS: usize> Cache<L>
    for OfMany<'_, L, SETS, WAYS>
{
    fn find(&mut self, at: VirtAddr, space: AsidTag<L>) -> Option<Hit<L::Data>> {
        self.peek(at, space).map(|data| Hit { data, probes: 1 })
    }
    fn peek(&self, at: VirtAddr, space: AsidTag<L>) -> Option<L::Data> {
        self.0.lookup(at, space).ok()
    }
    fn fill(&mut self, at: VirtAddr, space: AsidTag<L>, data: L::Data) {
        // Only a CPU that missed can fill.
        if self.peek(at, space).is_some() {
            self.invalidate_page(space, at.vpn(L::BASE));
        }
        let ticket = self.0.lookup(at, space).unwrap_err();
        assert!(self.0.fill(ticket, at, space, data), "no other code is there");
    }
    fn count(&self) -> &L::Count {
        self.0.count()
    }
}

/// Does to each cache what is done to a map of units and address spaces; each must be the map.
fn is_the_map<L: EntryLayout<Data: PartialEq + Debug>>(
    cache: &mut dyn Cache<L>,
    ops: &[Op],
    data: impl Fn(u64) -> L::Data,
) -> Result<(), TestCaseError> {
    let unit = L::UNIT.pages(L::BASE).unwrap();
    let mut map = HashMap::new();
    for op in ops {
        let touched = |first: usize, count: usize| {
            move |at: usize| first / unit <= at && at <= (first + count - 1) / unit
        };
        match *op {
            Op::Fill(at, asid, datum) => {
                map.insert((at / unit, asid), data(datum));
                cache.fill(page(at), space(asid), data(datum));
            }
            Op::Pages(first, count, asid) => {
                let touched = touched(first, count);
                map.retain(|&(at, of), _| of != asid || !touched(at));
                cache.invalidate_pages(space(asid), Pages::count(Vpn::new(first), count).unwrap());
            }
            Op::Global(first, count) => {
                let touched = touched(first, count);
                map.retain(|&(at, _), _| !touched(at));
                cache.invalidate_global(Pages::count(Vpn::new(first), count).unwrap());
            }
            Op::Space(asid) => {
                map.retain(|&(_, of), _| of != asid);
                cache.invalidate_space(space(asid));
            }
            Op::All => {
                map.clear();
                cache.invalidate_all();
            }
        }
        for at in 0..PAGES {
            for asid in 0..SPACES {
                prop_assert_eq!(cache.peek(page(at), space(asid)), map.get(&(at / unit, asid)).copied());
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: if cfg!(miri) { 1 } else { 64 },
        ..ProptestConfig::default() })]

    /// Many sets of a few ways, so that a range is forgotten set by set, and a few sets of many, so that all are looked
    /// through.
    #[test]
    fn as_a_map(ops in proptest::collection::vec(op(), 1..if cfg!(miri) { 8 } else { 120 })) {
        let mut memory = Box::new([const { CacheMemory::<16384>::new() }; 9]);
        let [a, b, c, d, e, f, g, h, i] = &mut *memory;
        let page64: [&mut dyn Cache<Page64>; 6] = [
            &mut Assoc::<Page64, 128, 4>::new(a.bytes()).unwrap(),
            &mut Assoc::<Page64, 4, 128>::new(b.bytes()).unwrap(),
            &mut Victim::<Page64, 8, 512>::new(c.bytes()).unwrap(),
            &mut OfMany(Shared::<Page64, 128, 4>::new(d.bytes()).unwrap()),
            &mut OfMany(Shared::<Page64, 4, 128>::new(e.bytes()).unwrap()),
            &mut Integrated::new(Assoc::<Page64, 64, 8>::new(f.bytes()).unwrap()),
        ];
        for cache in page64 {
            is_the_map(cache, &ops, |datum| datum)?;
        }
        let mips: [&mut dyn Cache<Mips32>; 3] = [
            &mut Assoc::<Mips32, 64, 4>::new(g.bytes()).unwrap(),
            &mut Assoc::<Mips32, 2, 128>::new(h.bytes()).unwrap(),
            &mut OfMany(Shared::<Mips32, 64, 4>::new(i.bytes()).unwrap()),
        ];
        for cache in mips {
            is_the_map(cache, &ops, |datum| Pair { page_mask: 0, lo0: datum as u32, lo1: !datum as u32 })?;
        }
    }
}

#[test]
fn pages_beyond_the_address_space_belong_to_no_entry() {
    let mut memory = [const { CacheMemory::<4096>::new() }; 2];
    let [one, two] = &mut memory;
    let beyond = Vpn::new((usize::MAX >> PageSize::K4.shift()) + 1);
    let caches: [&mut dyn Cache<Page64>; 2] = [
        &mut Assoc::<Page64, 16, 4>::new(one.bytes()).unwrap(),
        &mut OfMany(Shared::<Page64, 16, 4>::new(two.bytes()).unwrap()),
    ];
    for cache in caches {
        // Its address would be that of page 0, if it had one.
        cache.fill(page(0), space(1), 5);
        cache.invalidate_page(space(1), beyond);
        cache.invalidate_global(Pages::new(beyond, Vpn::new(usize::MAX)).unwrap());
        assert_eq!(cache.peek(page(0), space(1)), Some(5));
        // And a range that goes on there costs no more than one pass.
        cache.invalidate_pages(space(1), Pages::new(Vpn::new(1), Vpn::new(usize::MAX)).unwrap());
        assert_eq!(cache.peek(page(0), space(1)), Some(5));
        cache.invalidate_pages(space(1), Pages::new(Vpn::new(0), Vpn::new(usize::MAX)).unwrap());
        assert_eq!(cache.peek(page(0), space(1)), None);
    }
}

/// A layout that counts how often a set is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Watched;

thread_local! {
    static LOOKS: Cell<usize> = const { Cell::new(0) };
}

impl EntryLayout for Watched {
    type Tag = u64;
    type Data = u64;
    type Count = ();
    const BASE: PageSize = PageSize::K4;
    const UNIT: PageSize = PageSize::K4;
    const ASID_BITS: u32 = 8;

    fn index(unit: usize, _asid: usize) -> usize {
        LOOKS.set(LOOKS.get() + 1);
        unit
    }
}

/// The cost that [`Invalidate`] states: a set for each unit, or one pass over all, which looks for none.
#[test]
fn a_range_costs_its_sets_or_one_pass() {
    let mut memory = [const { CacheMemory::<1024>::new() }; 2];
    let [one, two] = &mut memory;
    let caches: [&mut dyn Cache<Watched>; 2] = [
        &mut Assoc::<Watched, 16, 2>::new(one.bytes()).unwrap(),
        &mut OfMany(Shared::<Watched, 16, 2>::new(two.bytes()).unwrap()),
    ];
    for cache in caches {
        for units in 1..40 {
            LOOKS.set(0);
            cache.invalidate_pages(space(1), Pages::count(Vpn::new(5), units).unwrap());
            assert_eq!(LOOKS.get(), if units <= 16 { units } else { 0 }, "{units} units of 16 sets");
        }
    }
}

#[test]
fn victims_leave_in_the_order_in_which_they_came() {
    let mut memory = CacheMemory::<64>::new();
    let mut cache = Victim::<Page64, 1, 3>::new(memory.bytes()).unwrap();
    for last in 0..12 {
        cache.fill(page(last), space(1), last as u64);
        for at in 0..=last {
            // The slot's own entry, and the three before it.
            let expected = (at + 3 >= last).then_some(at as u64);
            assert_eq!(cache.peek(page(at), space(1)), expected, "page {at} of {last}");
        }
    }
}

/// An invalidation makes room in the middle. What comes then is younger than all that was there before.
#[test]
fn the_oldest_victim_leaves_after_an_invalidation_too() {
    let mut memory = CacheMemory::<16>::new();
    let mut cache = Victim::<Page64, 1, 3>::new(memory.bytes()).unwrap();
    // 3 is in the main cache, 0, 1 and 2 are its victims.
    for number in 0..4 {
        cache.fill(page(number), space(0), number as u64);
    }
    cache.invalidate_pages(space(0), Pages::one(Vpn::new(1)));
    // 3 takes the place of 1, and 4 that of the oldest: 0, not the one behind the place that 3 took.
    for (number, left) in [(4, [0, 2, 3, 4]), (5, [2, 3, 4, 5])] {
        cache.fill(page(number), space(0), number as u64);
        let known = (0..6).filter(|&number| cache.peek(page(number), space(0)).is_some());
        assert_eq!(known.collect::<Vec<_>>(), left);
    }
}

/// What changes places with a victim that was found has come last.
#[test]
fn what_a_hit_pushes_out_is_the_youngest_victim() {
    let mut memory = CacheMemory::<16>::new();
    let mut cache = Victim::<Page64, 1, 3>::new(memory.bytes()).unwrap();
    for number in 0..4 {
        cache.fill(page(number), space(0), number as u64);
    }
    // 0 and 3 change places. Of 1, 2 and 3 the first to leave is 1, then 2, then 3.
    assert!(cache.find(page(0), space(0)).is_some());
    for (number, left) in [(4, 1), (5, 2), (6, 3)] {
        cache.fill(page(number), space(0), number as u64);
        assert_eq!(cache.peek(page(left), space(0)), None, "{left}");
        let others = (left + 1..4).chain([0]).chain(4..=number);
        let known = others.filter(|&number| cache.peek(page(number), space(0)).is_some());
        assert_eq!(known.count(), 4, "after {number}");
    }
}

#[test]
fn atomic_words_hold_their_value() {
    let pair = Pair { page_mask: 1, lo0: 2, lo1: 3 };
    let cell = pair.cell();
    assert_eq!(Pair::load(&cell), pair);
    let other = Pair { page_mask: 4, lo0: 5, lo1: 6 };
    other.store(&cell);
    assert_eq!(Pair::load(&cell), other);
    assert_eq!((u32::load(&7_u32.cell()), usize::load(&8_usize.cell())), (7, 8));
}
