//! The words at their edges: the top of the address space, the widest shifts, full sets.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tlbkit_addr::{
    Asid, CpuSet, Flush, FlushScope, PageSize, Pages, Pfn, PhysAddr, VirtAddr, Vpn, WalkCache,
};

#[test]
fn sizes_are_powers_of_two_that_a_usize_holds() {
    assert_eq!(PageSize::from_shift(usize::BITS), None);
    assert_eq!(PageSize::from_shift(usize::BITS - 1).unwrap().bytes(), 1 << (usize::BITS - 1));
    assert_eq!(PageSize::from_bytes(4096), Some(PageSize::K4));
    assert_eq!(PageSize::from_bytes(4095), None);
    assert_eq!(PageSize::from_bytes(0), None);
    assert_eq!(PageSize::M2.pages(PageSize::K4), Some(512));
    assert_eq!(PageSize::K4.pages(PageSize::M2), None);
    assert_eq!(PageSize::M2.mask(), 0x1f_ffff);
    for (size, text) in
        [(PageSize::K4, "4K"), (PageSize::K16, "16K"), (PageSize::K64, "64K"), (PageSize::M4, "4M")]
    {
        assert_eq!(size.to_string(), text);
    }
    let shown = |shift| PageSize::from_shift(shift).unwrap().to_string();
    assert_eq!([shown(9), shown(10), shown(20), shown(30)], ["512B", "1K", "1M", "1G"]);
    #[cfg(target_pointer_width = "64")]
    assert_eq!([shown(40), shown(50), shown(60), shown(63)], ["1T", "1P", "1E", "8E"]);
}

#[test]
fn addresses_do_not_wrap() {
    let top = VirtAddr::new(usize::MAX);
    assert_eq!(top.checked_add(1), None);
    assert_eq!(VirtAddr::new(1).checked_add(2), Some(VirtAddr::new(3)));
    assert_eq!(top.align_down(PageSize::K4).get(), usize::MAX - 0xfff);
    assert!(top.align_down(PageSize::K4).is_aligned(PageSize::K4) && !top.is_aligned(PageSize::K4));
    let last = top.vpn(PageSize::K4);
    assert_eq!(last.checked_address(PageSize::K4), Some(top.align_down(PageSize::K4)));
    assert_eq!(last.checked_add(1).unwrap().checked_address(PageSize::K4), None);
    assert_eq!(Vpn::new(usize::MAX).checked_add(1), None);
    assert_eq!(Vpn::new(1).checked_sub(2), None);
    assert_eq!(PhysAddr::new(0x1234).pfn(PageSize::K4), Pfn::new(1));
    assert!(Pfn::new(512).is_aligned(PageSize::M2, PageSize::K4));
    assert!(!Pfn::new(513).is_aligned(PageSize::M2, PageSize::K4));
    assert!(!Pfn::new(512).is_aligned(PageSize::K4, PageSize::M2));
    assert_eq!(
        format!("{top} {top:?} {:?}", Vpn::new(16)),
        format!("{0:#x} VirtAddr({0:#x}) Vpn(0x10)", usize::MAX)
    );
}

#[test]
fn asids_fit_their_machine() {
    assert_eq!(Asid::new(255, 8).map(Asid::get), Some(255));
    assert_eq!(Asid::new(256, 8), None);
    assert_eq!(Asid::new(u16::MAX, 16).map(Asid::get), Some(u16::MAX));
    assert_eq!(Asid::new(0, 0).map(Asid::get), Some(0));
    assert_eq!(Asid::new(1, 0), None);
}

#[test]
fn ranges_reach_the_top() {
    let top = Vpn::new(usize::MAX);
    let last = Pages::one(top);
    assert_eq!(last.iter().collect::<Vec<_>>(), [top]);
    assert_eq!(last.iter().rev().collect::<Vec<_>>(), [top]);
    assert_eq!(Pages::one(Vpn::new(0)).iter().rev().collect::<Vec<_>>(), [Vpn::new(0)]);
    assert_eq!(Pages::new(Vpn::new(0), top).unwrap().len(), usize::MAX);
    assert_eq!(Pages::new(Vpn::new(2), Vpn::new(1)), None);
    assert_eq!(Pages::count(top, 0), None);
    assert_eq!(Pages::count(top, 1), Some(last));
    assert_eq!(Pages::count(top, 2), None);
    assert_eq!(last.merge(Pages::one(Vpn::new(usize::MAX - 1))).unwrap().len(), 2);
    assert_eq!(last.merge(Pages::one(Vpn::new(usize::MAX - 2))), None);
}

#[test]
fn flushes_degrade_and_never_forget() {
    let page = |n: usize| Pages::one(Vpn::new(n));
    let mut flush = Flush::none();
    flush.add(FlushScope::Nowhere, page(1));
    assert!(flush.is_none() && !flush.covers(page(1)));
    for n in 0..Flush::RANGES {
        flush.add(FlushScope::Local, page(10 * n));
    }
    assert_eq!(
        (flush.scope(), flush.is_all(), flush.ranges().len()),
        (FlushScope::Local, false, Flush::RANGES)
    );
    flush.add(FlushScope::Everywhere, page(1));
    assert_eq!((flush.scope(), flush.is_all(), flush.is_none()), (FlushScope::Everywhere, false, false));
    flush.add(FlushScope::Local, page(1000));
    assert!(flush.is_all() && flush.ranges().is_empty() && flush.covers(page(7)));
    assert_eq!(flush.scope(), FlushScope::Everywhere);
    let mut other = Flush::none();
    other.merge(&flush);
    assert!(other.is_all() && other.scope() == FlushScope::Everywhere);
    flush.clear();
    assert_eq!(flush, Flush::none());
    assert!(flush.is_none() && !flush.is_all() && !flush.covers(page(7)));
    other = Flush::none();
    other.add_all(FlushScope::Nowhere);
    assert!(other.is_none() && !other.is_all());
    other.add_all(FlushScope::Local);
    assert!(other.is_all() && other.links());
}

#[test]
fn a_barrier_names_no_pages() {
    let mut flush = Flush::none();
    flush.add(FlushScope::Barrier, Pages::one(Vpn::new(3)));
    flush.add_links(FlushScope::Barrier, Pages::one(Vpn::new(4)));
    flush.add_all(FlushScope::Barrier);
    assert_eq!((flush.scope(), flush.is_none(), flush.links()), (FlushScope::Barrier, false, false));
    assert_eq!(flush.by_address(WalkCache::Whole, 0).unwrap().count(), 0);
    let mut other = Flush::none();
    other.merge(&flush);
    assert_eq!(other, flush, "a barrier is carried along");
    other.clear();
    other.add_links(FlushScope::Nowhere, Pages::one(Vpn::new(4)));
    assert_eq!(other, Flush::none());
}

#[test]
fn a_machine_without_a_flush_by_address_is_given_no_address() {
    let mut flush = Flush::none();
    assert_eq!(flush.by_address(WalkCache::NoAddress, 64).unwrap().count(), 0);
    flush.add(FlushScope::Barrier, Pages::one(Vpn::new(3)));
    assert_eq!(flush.by_address(WalkCache::NoAddress, 64).unwrap().count(), 0);
    for page in [3, 3, 7] {
        flush.add(FlushScope::Everywhere, Pages::one(Vpn::new(page)));
        assert!(flush.by_address(WalkCache::NoAddress, 64).is_none());
        assert!(!flush.links() && flush.by_address(WalkCache::Whole, 64).is_some());
    }
    flush.add_all(FlushScope::Everywhere);
    assert!(flush.by_address(WalkCache::NoAddress, 64).is_none());
}

#[test]
fn links_are_flushed_as_the_hardware_needs_it() {
    let mut flush = Flush::none();
    flush.add(FlushScope::Local, Pages::one(Vpn::new(3)));
    flush.add_links(FlushScope::Everywhere, Pages::one(Vpn::new(7)));
    assert!(flush.links() && !flush.is_all() && flush.scope() == FlushScope::Everywhere);
    for cache in [WalkCache::Nothing, WalkCache::ByAddress] {
        assert_eq!(flush.by_address(cache, 2).unwrap().map(Vpn::get).collect::<BTreeSet<_>>(), [3, 7].into());
    }
    assert!(flush.by_address(WalkCache::Whole, 2).is_none());
    let mut added = Flush::none();
    added.add_links(FlushScope::Local, Pages::one(Vpn::new(7)));
    assert_eq!(Flush::of_links(FlushScope::Local, Pages::one(Vpn::new(7))), added);
    let mut leaves = Flush::none();
    leaves.add(FlushScope::Everywhere, Pages::one(Vpn::new(3)));
    assert!(!leaves.links() && leaves.by_address(WalkCache::Whole, 1).is_some());
    leaves.merge(&flush);
    assert!(leaves.links() && leaves.by_address(WalkCache::Whole, 2).is_none());
    leaves.clear();
    assert!(!leaves.links());
    // One range too many asks for all addresses, and says of links what it knew.
    for n in 0..=Flush::RANGES {
        leaves.add(FlushScope::Local, Pages::one(Vpn::new(2 * n)));
    }
    assert!(
        leaves.is_all() && !leaves.links() && leaves.by_address(WalkCache::Nothing, usize::MAX).is_none()
    );
}

fn pages() -> impl Strategy<Value = Pages> {
    (prop_oneof![0usize..64, Just(usize::MAX - 70)], 0usize..8)
        .prop_map(|(first, more)| Pages::new(Vpn::new(first), Vpn::new(first + more)).unwrap())
}

proptest! {
    #[test]
    fn ranges_are_sets(a in pages(), b in pages()) {
        let set = |p: Pages| p.iter().collect::<BTreeSet<_>>();
        let (sa, sb) = (set(a), set(b));
        prop_assert_eq!(sa.len(), a.len());
        prop_assert_eq!(a.iter().rev().collect::<BTreeSet<_>>(), sa.clone());
        prop_assert_eq!(a.iter().size_hint(), (a.len(), Some(a.len())));
        prop_assert_eq!(a.intersect(b).map(set).unwrap_or_default(), &sa & &sb);
        let union = &sa | &sb;
        let whole = Pages::new(*union.first().unwrap(), *union.last().unwrap()).unwrap();
        prop_assert_eq!(a.merge(b), (whole.len() == union.len()).then_some(whole));
        for vpn in whole.iter().take(100) {
            prop_assert_eq!(a.contains(vpn), sa.contains(&vpn));
        }
    }

    #[test]
    fn flushes_cover_what_they_were_given(parts in prop::collection::vec(pages(), 1..12)) {
        let mut flush = Flush::none();
        for &part in &parts {
            flush.add(FlushScope::Everywhere, part);
        }
        for &part in &parts {
            prop_assert!(flush.covers(part));
        }
        let all: BTreeSet<_> = parts.iter().flat_map(|p| p.iter()).collect();
        if !flush.is_all() {
            prop_assert_eq!(flush.ranges().iter().map(|r| r.len()).sum::<usize>(), all.len());
        }
        for most in [0, all.len() - 1, all.len(), usize::MAX] {
            let pages = flush.by_address(WalkCache::Nothing, most).map(|pages| pages.collect::<Vec<_>>());
            match pages {
                Some(pages) => {
                    let mut each = Vec::new();
                    flush.by_address(WalkCache::Nothing, most).unwrap().for_each(|page| each.push(page));
                    prop_assert_eq!(&each, &pages, "a loop of its own");
                    prop_assert!(!flush.is_all() && pages.len() <= most);
                    prop_assert_eq!((pages.len(), pages.into_iter().collect::<BTreeSet<_>>()), (all.len(), all.clone()));
                }
                None => prop_assert!(flush.is_all() || all.len() > most),
            }
        }
        let mut copy = Flush::none();
        copy.merge(&flush);
        for &part in &parts {
            prop_assert!(copy.covers(part));
        }
    }

    #[test]
    fn cpu_sets_are_sets(a in prop::collection::btree_set(0usize..200, 0..20), b in prop::collection::btree_set(0usize..200, 0..20)) {
        type Set = CpuSet<4>;
        let (sa, sb): (Set, Set) = (a.iter().copied().collect(), b.iter().copied().collect());
        prop_assert_eq!(sa.iter().collect::<BTreeSet<_>>(), a.clone());
        prop_assert_eq!((sa.len(), sa.is_empty(), sa.iter().len()), (a.len(), a.is_empty(), a.len()));
        prop_assert_eq!(sa.union(sb).iter().collect::<BTreeSet<_>>(), &a | &b);
        prop_assert_eq!(sa.intersection(sb).into_iter().collect::<BTreeSet<_>>(), &a & &b);
        prop_assert_eq!(sa.difference(sb).iter().collect::<BTreeSet<_>>(), &a - &b);
        prop_assert_eq!(Set::from_words(*sa.words()), sa);
        for cpu in 0..Set::CAPACITY {
            let mut more = sa;
            prop_assert_eq!(sa.contains(cpu), a.contains(&cpu));
            prop_assert_eq!(more.insert(cpu), Some(!a.contains(&cpu)));
            prop_assert!(more.remove(cpu) && !more.remove(cpu));
        }
    }
}

#[test]
fn cpu_sets_know_their_capacity() {
    let mut set = CpuSet::<1>::first_n(CpuSet::<1>::CAPACITY).unwrap();
    assert_eq!(set.len(), CpuSet::<1>::CAPACITY);
    assert_eq!(set.insert(CpuSet::<1>::CAPACITY), None);
    assert!(!set.remove(CpuSet::<1>::CAPACITY) && !set.contains(CpuSet::<1>::CAPACITY));
    assert_eq!(CpuSet::<1>::first_n(CpuSet::<1>::CAPACITY + 1), None);
    assert_eq!(format!("{:?}", CpuSet::<1>::first_n(2).unwrap()), "{0, 1}");
}
