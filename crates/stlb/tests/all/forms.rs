//! What each form keeps, what it pushes out, and what it says about bad input.
#![cfg(target_has_atomic = "64")]

use std::collections::HashMap;

use tlbkit_addr::{Asid, PageSize, Pages, VirtAddr, Vpn};
use tlbkit_stlb::{
    AsidRange, AsidTag, Asids, Assoc, BadMemory, Cache, CacheMemory, Context, Count, Counters, Direct,
    EntryLayout, Integrated, Invalidate, LINE, Mips32, Page64, Pair, Probe, Ptlb, Rank, Recorded, Shared,
    Victim, folded,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted;

impl EntryLayout for Counted {
    type Tag = u64;
    type Data = u64;
    type Count = Counters;
    const BASE: PageSize = PageSize::K4;
    const UNIT: PageSize = PageSize::K4;
    const ASID_BITS: u32 = 8;
}

fn space<L: EntryLayout>(asid: u16) -> AsidTag<L> {
    AsidTag::new(Asid::new(asid, 8).unwrap()).unwrap()
}

fn page(number: usize) -> VirtAddr {
    Vpn::new(number).address(PageSize::K4)
}

#[test]
fn an_assembly_handler_finds_entry_hi_page_mask_lo0_lo1() {
    let mut memory = CacheMemory::<{ 64 * 16 }>::new();
    let place = memory.bytes().as_ptr().addr();
    let mut stlb = Direct::<Mips32, 64>::new(memory.bytes()).unwrap();
    let pair = Pair { page_mask: 0x6000, lo0: 0x1111_1111, lo1: 0x2222_2222 };
    stlb.fill(VirtAddr::new(0x0040_7abc), space(0x5a), pair);
    let base = stlb.base().cast::<[u32; 4]>();
    assert_eq!(base.addr(), place);
    // Slot BadVPN2 & 63, in the words of the machine.
    // SAFETY: the cache has 64 slots of 16 bytes at `base`, initialized by `new`, aligned to a cache line; `stlb`
    // is not used meanwhile.
    let words = unsafe { base.add((0x407 / 2) & 63).read() };
    assert_eq!(words, [0x0040_605a, 0x6000, 0x1111_1111, 0x2222_2222]);
    // SAFETY: the first slot of the cache is initialized, and `stlb` is not used meanwhile.
    let empty = unsafe { base.read() };
    assert_eq!(empty[0] & 0x1f00, 0x100, "an empty slot's tag is no EntryHi");
}

#[test]
fn bad_memory_is_a_typed_error() {
    let mut memory = CacheMemory::<4096>::new();
    let bytes = memory.bytes();
    assert_eq!(Direct::<Page64, 12>::new(bytes).unwrap_err(), BadMemory::NotPowerOfTwo { number: 12 });
    assert_eq!(Direct::<Page64, 0>::new(bytes).unwrap_err(), BadMemory::NotPowerOfTwo { number: 0 });
    assert_eq!(Assoc::<Page64, 4, 3>::new(bytes).unwrap_err(), BadMemory::NotPowerOfTwo { number: 3 });
    assert_eq!(Assoc::<Page64, 4, 0>::new(bytes).unwrap_err(), BadMemory::NotPowerOfTwo { number: 0 });
    let too_small = BadMemory::TooSmall { needed: 8192, given: 4096 };
    assert_eq!(Victim::<Page64, 512, 8>::new(bytes).unwrap_err(), too_small);
    assert_eq!(Ptlb::<Page64, 512>::new(bytes).unwrap_err(), too_small);
    assert_eq!(Assoc::<Page64, 128, 4>::new(bytes).unwrap_err(), too_small);
    let misaligned = BadMemory::Misaligned { needed: LINE };
    assert_eq!(Direct::<Page64, 16>::new(&mut bytes[16..]).unwrap_err(), misaligned);
    assert_eq!(Shared::<Page64, 16, 2>::new(&mut bytes[32..]).unwrap_err(), misaligned);
    assert_eq!(
        Shared::<Page64, 16, 1>::new(&mut bytes[..64]).unwrap_err(),
        BadMemory::TooSmall { needed: 512, given: 64 }
    );
    let none = BadMemory::TooSmall { needed: 16, given: 0 };
    assert_eq!(Direct::<Page64, 1>::new(&mut bytes[..0]).unwrap_err(), none);
    // Exactly enough, for each form.
    assert!(Direct::<Page64, 256>::new(bytes).is_ok());
    assert!(Assoc::<Page64, 64, 4>::new(bytes).is_ok());
    assert_eq!((Direct::<Page64, 256>::BYTES, Shared::<Mips32, 8, 1>::BYTES), (4096, 256));
}

#[test]
fn an_asid_without_room_is_a_typed_error() {
    let asid = |number| Asid::new(number, 16).unwrap();
    assert!(AsidTag::<Mips32>::new(asid(255)).is_ok());
    assert_eq!(AsidTag::<Mips32>::new(asid(256)), Err(AsidRange { asid: 256, bits: 8 }));
    assert_eq!(AsidTag::<Page64>::new(asid(2048)), Err(AsidRange { asid: 2048, bits: 11 }));
    assert!(Asids::<Mips32>::new(0, 255).is_ok());
    assert_eq!(Asids::<Mips32>::new(0, 256).unwrap_err(), AsidRange { asid: 256, bits: 8 });
    assert_eq!(Asids::<Mips32>::new(9, 8).unwrap_err(), AsidRange { asid: 9, bits: 8 });
}

/// What has a number of one allocator gets another of the next, whose numbers others have.
#[test]
fn a_number_is_one_of_its_allocator() {
    let mut memory = [const { CacheMemory::<1024>::new() }; 2];
    let mut caches = memory.each_mut().map(|memory| Direct::<Page64, 64>::new(memory.bytes()).unwrap());
    let mut asids = [(); 2].map(|()| Asids::<Page64>::new(1, 3).unwrap());
    let (mut process, mut other) = (Context::default(), Context::default());
    assert_eq!(asids[0].activate(&mut process, &mut caches[0]).asid(), 1);
    let there = asids[1].activate(&mut other, &mut caches[1]);
    caches[1].fill(page(5), there, 5);
    let here = asids[1].activate(&mut process, &mut caches[1]);
    assert_eq!((there.asid(), here.asid(), caches[1].lookup(page(5), here)), (1, 2, None));
    // It has that one until it is elsewhere again.
    assert_eq!([1, 0, 1].map(|cpu| asids[cpu].activate(&mut process, &mut caches[cpu]).asid()), [2, 2, 3]);
    // An allocator that replaces one knows nothing of what that one gave.
    caches[0].invalidate_all();
    asids[0] = Asids::new(1, 3).unwrap();
    assert_eq!(asids[0].activate(&mut other, &mut caches[0]).asid(), 1);
    assert_eq!(asids[0].activate(&mut process, &mut caches[0]).asid(), 2);
}

#[test]
fn an_address_wider_than_the_tag_is_never_cached() {
    if let Some(at) = 0x40_0000_usize.checked_add(1 << (usize::BITS - 1)).filter(|_| usize::BITS > 32) {
        let mut memory = CacheMemory::<4096>::new();
        let mut stlb = Direct::<Mips32, 16>::new(memory.bytes()).unwrap();
        stlb.fill(VirtAddr::new(at), space(1), Pair::default());
        assert_eq!(stlb.lookup(VirtAddr::new(at), space(1)), None);
        assert_eq!(stlb.lookup(VirtAddr::new(0x40_0000), space(1)), None);
        // Nor recorded, whatever the TLB holds.
        let mut ptlb = Ptlb::<Mips32, 16>::new(memory.bytes()).unwrap();
        for recorded in [Recorded::NotInTlb; 2] {
            assert_eq!(ptlb.record(VirtAddr::new(at), space(1), &mut Full), recorded);
        }
        assert_eq!(ptlb.record(VirtAddr::new(0x40_0000), space(1), &mut Full), Recorded::Now);
    }
}

#[test]
fn nothing_overflows_at_the_edges() {
    let mut memory = CacheMemory::<4096>::new();
    let mut stlb = Victim::<Page64, 16, 4>::new(memory.bytes()).unwrap();
    let top = VirtAddr::new(usize::MAX);
    stlb.fill(top, space(1), 7);
    assert_eq!(stlb.lookup(top, space(1)), Some(7));
    let last = top.vpn(PageSize::K4);
    stlb.invalidate_page(space(1), Vpn::new(usize::MAX)); // beyond the address space: no such page
    stlb.invalidate_page(space(2), last);
    assert_eq!(stlb.lookup(top, space(1)), Some(7));
    stlb.invalidate_pages(space(1), Pages::new(last, Vpn::new(usize::MAX)).unwrap());
    assert_eq!(stlb.lookup(top, space(1)), None);
    stlb.fill(top, space(1), 8);
    stlb.invalidate_pages(space(1), Pages::new(Vpn::new(0), Vpn::new(usize::MAX)).unwrap());
    assert_eq!(stlb.lookup(top, space(1)), None);
    stlb.fill(top, space(1), 9);
    stlb.invalidate_global(Pages::one(last));
    assert_eq!(stlb.lookup(top, space(1)), None);
}

#[test]
fn ways_and_victims_take_what_conflicts() {
    let mut memory = [const { CacheMemory::<4096>::new() }; 3];
    let [one, two, three] = &mut memory;
    let mut direct = Direct::<Counted, 16>::new(one.bytes()).unwrap();
    let mut ways = Assoc::<Counted, 16, 2>::new(two.bytes()).unwrap();
    let mut victim = Victim::<Counted, 16, 2>::new(three.bytes()).unwrap();
    // Pages 5, 21 and 37 share a set of sixteen.
    for number in [5, 21] {
        direct.fill(page(number), space(1), number as u64);
        ways.fill(page(number), space(1), number as u64);
        victim.fill(page(number), space(1), number as u64);
    }
    assert_eq!(direct.find(page(5), space(1)), None);
    assert_eq!(ways.find(page(5), space(1)).map(|found| found.probes), Some(2));
    assert_eq!(ways.find(page(21), space(1)).map(|found| found.probes), Some(1));
    // Found among the victims, an entry changes places with the one in its slot.
    assert_eq!(victim.find(page(5), space(1)).map(|found| found.probes), Some(2));
    assert_eq!(victim.find(page(5), space(1)).map(|found| found.probes), Some(1));
    assert_eq!(victim.find(page(21), space(1)).map(|found| found.data), Some(21));
    for cache in [direct.count(), victim.count()] {
        assert_eq!(cache.conflicts(), 1);
    }
    assert_eq!((direct.count().misses(), ways.count().conflicts(), ways.count().hits()), (1, 0, 2));
    // The third is one too many for two ways: the oldest goes.
    ways.fill(page(37), space(1), 37);
    assert_eq!((ways.count().conflicts(), ways.peek(page(5), space(1))), (1, None));
    assert_eq!(ways.peek(page(21), space(1)), Some(21));
}

#[test]
fn counters_count() {
    let mut memory = CacheMemory::<4096>::new();
    let mut cache = Direct::<Counted, 16>::new(memory.bytes()).unwrap();
    for round in 1..=3 {
        // Page 9 pushes page 25 out, which is missed then, and found again.
        cache.fill(page(25), space(1), 0);
        cache.fill(page(9), space(1), 0);
        assert_eq!(cache.lookup(page(25), space(1)), None);
        assert_eq!(cache.lookup(page(9), space(1)), Some(0));
        let count = cache.count();
        Count::prefetched(count);
        Count::prefetched(count);
        count.prefetch_used();
        assert_eq!((count.hits(), count.misses(), count.conflicts()), (round, round, 2 * round - 1));
        assert_eq!((count.prefetched(), count.prefetches_used()), (2 * round, round));
    }
}

#[test]
fn folding_xors_a_unit_with_its_higher_bits() {
    // A handler in assembly computes the same: each bit of the unit is in three places.
    for bit in 0..usize::BITS {
        let expected =
            [0, 6, 11].iter().filter(|&&down| down <= bit).fold(0, |sum, down| sum | 1 << (bit - down));
        assert_eq!(folded(1 << bit, 0), expected, "bit {bit}");
        assert_eq!(folded(1 << bit, 0xff), expected ^ (0xff * 0x95));
    }
    assert_eq!(folded(usize::MAX, 0), usize::MAX ^ (usize::MAX >> 6) ^ (usize::MAX >> 11));
}

#[test]
fn folding_keeps_neighbours_and_like_spaces_apart() {
    for first in [0, 4096, 0x7_f000] {
        let sets: std::collections::HashSet<_> =
            (first..first + 64).map(|unit| folded(unit, 3) % 4096).collect();
        assert_eq!(sets.len(), 64);
    }
    // Sixteen user page tables 512 pages apart, four pages each, as in the thesis's benchmark.
    let units = (0..16).flat_map(|process| [0, 1, 256, 511].map(|at| 0xc0000 + process * 512 + at));
    let sets: std::collections::HashSet<_> = units.map(|unit| folded(unit, 0) % 4096).collect();
    assert!(sets.len() > 60, "{}", sets.len());
}

/// A TLB that holds what it was told.
#[derive(Default)]
struct Held(HashMap<usize, u64>);

impl<L: EntryLayout<Data = u64>> Probe<L> for Held {
    fn probe(&mut self, at: VirtAddr, _: AsidTag<L>) -> Option<u64> {
        self.0.get(&(at.get() >> 12)).copied()
    }
}

/// A TLB that holds everything.
struct Full;

impl<L: EntryLayout> Probe<L> for Full {
    fn probe(&mut self, _: VirtAddr, _: AsidTag<L>) -> Option<L::Data> {
        Some(L::Data::default())
    }
}

#[test]
fn a_failed_probe_is_repeated_at_the_next_ipc() {
    let mut memory = CacheMemory::<4096>::new();
    let mut ptlb = Ptlb::<Counted, 64>::new(memory.bytes()).unwrap();
    let mut tlb = Held::default();
    assert_eq!(ptlb.record(page(9), space(1), &mut tlb), Recorded::NotInTlb);
    assert_eq!(ptlb.prefetch(page(9), space(1), &mut tlb), None);
    tlb.0.insert(9, 99);
    assert_eq!(ptlb.record(page(9), space(1), &mut tlb), Recorded::Now);
    assert_eq!(ptlb.record(page(9), space(1), &mut tlb), Recorded::Before);
    assert_eq!(ptlb.prefetch(page(9), space(1), &mut tlb), None, "the TLB holds it");
    tlb.0.clear();
    assert_eq!(ptlb.prefetch(page(9), space(1), &mut tlb), Some(99));
    assert_eq!(ptlb.prefetch(page(9), space(2), &mut tlb), None, "another address space");
    assert_eq!(ptlb.count().prefetched(), 1);
}

#[test]
fn the_integrated_table_prefetches_no_top_level_entry() {
    let mut memory = CacheMemory::<4096>::new();
    let mut table = Integrated::new(Direct::<Counted, 64>::new(memory.bytes()).unwrap());
    let mut tlb = Held(HashMap::from([(9, 99)]));
    assert_eq!(table.record(page(9), space(1), Rank::Top, &mut tlb), Recorded::NotInTlb);
    // Filled in by a refill, it is there, but not handed out.
    table.fill(page(9), space(1), 99);
    tlb.0.clear();
    assert_eq!(table.prefetch(page(9), space(1), Rank::Top, &mut tlb), None);
    assert_eq!(table.prefetch(page(9), space(1), Rank::Lower, &mut tlb), Some(99));
    assert_eq!(table.find(page(9), space(1)).map(|found| found.data), Some(99));
    assert_eq!((table.peek(page(9), space(1)), table.peek(page(8), space(1))), (Some(99), None));
}

#[test]
fn an_old_ticket_fills_nothing() {
    let mut memory = CacheMemory::<4096>::new();
    let cache = Shared::<Page64, 16, 2>::new(memory.bytes()).unwrap();
    let ticket = cache.lookup(page(3), space(1)).unwrap_err();
    let other = cache.lookup(page(4), space(1)).unwrap_err();
    cache.invalidate_pages(space(1), Pages::one(Vpn::new(3)));
    assert!(!cache.fill(ticket, page(3), space(1), 3), "its set was invalidated meanwhile");
    assert!(!cache.fill(other, page(3), space(1), 3), "a ticket of another set");
    assert!(cache.fill(other, page(4), space(1), 4));
    assert!(!cache.fill(other, page(4), space(1), 5), "used up");
    assert_eq!(cache.lookup(page(4), space(1)).ok(), Some(4));
}
