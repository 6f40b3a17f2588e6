//! What the papers and the module docs say of hashed and clustered tables.
#![cfg(target_pointer_width = "64")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_conformance::Instrumented;
use tlbkit_pagetable::format::{Compact, Compact32};
use tlbkit_pagetable::geometry::{Va32, Va48, Va64};
use tlbkit_pagetable::hpt::{Buckets, H8k, H128k, Hashed, Hr, HrSmall};
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes, Reclaim as _, Slab};
use tlbkit_pagetable::{
    Error, FlushAll, Holes, Local, Mark, Pinned, Retired, Shared, Solo, Table, Writer, cpt, destroy,
};

use crate::right::right;

const RW: Attr = Attr::READ.union(Attr::WRITE);

fn page(vpn: usize) -> Pages {
    Pages::one(Vpn::new(vpn))
}

fn run(vpn: usize, pages: usize) -> Pages {
    Pages::count(Vpn::new(vpn), pages).unwrap()
}

/// Page numbers all over the 64-bit space, always the same.
fn uniform(pages: usize) -> Vec<usize> {
    let mut state = 1999u64;
    let mut next = || {
        // Vigna's splitmix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = state;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ bits >> 31) as usize >> 12
    };
    (0..pages).map(|_| next()).collect()
}

/// A table of two first buckets has an overflow bucket for three pages. It keeps this bucket, vacant, while its page is unmapped.
#[test]
fn a_page_that_comes_and_goes_costs_the_storage_nothing() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let (hr, cpt) = (Hr::new(&slab).unwrap(), cpt::Cpt8::new(&slab).unwrap());
    comes_and_goes(&hr, 1, &slab);
    comes_and_goes(&cpt, 8, &slab);
    // SAFETY: nothing walks.
    unsafe {
        destroy(hr).reclaim();
        destroy(cpt).reclaim();
    }
    assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0), "the vacant buckets go with their table");
}

/// Unmaps and maps three pages that are `apart`, in a table that is empty.
fn comes_and_goes<'n>(table: &impl Table<'n>, apart: usize, slab: &Slab<'_, u64, Solo>) {
    let mut batch = table.batch();
    let pages = [0, apart, 2 * apart];
    for vpn in pages {
        map(table, &mut batch, vpn);
    }
    let (nodes, all) = (slab.usage().nodes, table.footprint().nodes);
    assert!(all > 2, "an overflow bucket");
    for vpn in pages.repeat(3) {
        unmap(table, &mut batch, vpn);
        assert_eq!((batch.nodes(), table.footprint().nodes), (0, all), "page {vpn}");
        // Another page of the block: nothing is left of the first one.
        let other = vpn + apart - 1;
        map(table, &mut batch, other);
        // SAFETY: nothing is reclaimed during the loop.
        let found = |vpn| table.lookup(unsafe { Pinned::by(&slab) }, Vpn::new(vpn).address(PageSize::K4));
        assert!(found(other).is_some() && (apart == 1 || found(vpn).is_none()));
        unmap(table, &mut batch, other);
        map(table, &mut batch, vpn);
        assert_eq!((slab.usage().nodes, table.footprint().nodes), (nodes, all), "page {vpn}");
    }
    // SAFETY: nothing walks.
    unsafe { batch.reclaim() };
}

/// A visit that is under way may be in a bucket that a change empties, so the bucket is retired.
#[test]
fn a_bucket_that_a_visit_may_be_in_is_retired() {
    let mut memory = vec![Chunk::ZERO; 4];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let table = Hr::new(&slab).unwrap();
    let mut batch = table.batch();
    (0..3).for_each(|vpn| {
        map(&table, &mut batch, vpn);
    });
    let overflow = table.footprint().nodes - 2;
    let mut left = 3;
    // SAFETY: nothing is reclaimed during the visit.
    let _ = table.for_each(unsafe { Pinned::by(&slab) }, run(0, 3), &mut |_| {
        while left > 0 {
            left -= 1;
            unmap(&table, &mut batch, left);
        }
        ControlFlow::Continue(())
    });
    assert!(overflow > 0);
    assert_eq!((batch.nodes(), slab.held().pending()), (overflow, overflow));
    // SAFETY: nothing walks.
    unsafe {
        batch.reclaim();
        destroy(table).reclaim();
    }
}

/// Elphinstone et al. 3.2: H8k, H128k and C128k.
#[test]
fn paper_sizes() {
    let mut memory = vec![Chunk::ZERO; 600];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let small = H8k::new(&slab).unwrap();
    let large = H128k::new(&slab).unwrap();
    let clustered = cpt::C128k::new(&slab).unwrap();
    assert_eq!(small.footprint().bytes, 8 << 10);
    assert_eq!(large.footprint().bytes, 128 << 10);
    assert_eq!(clustered.footprint().bytes, 128 << 10);
    // Overflow buckets: 32 bytes for a pair, 80 for eight pages.
    let (mut small, mut clustered) = (Local::new(small, |_| ()), Local::new(clustered, |_| ()));
    for vpn in uniform(if cfg!(miri) { 300 } else { 4000 }) {
        small.map(page(vpn), Pfn::new(1), PageSize::K4, RW).unwrap();
        clustered.map(page(vpn), Pfn::new(1), PageSize::K4, RW).unwrap();
    }
    let (small_used, clustered_used) = (small.footprint(), clustered.footprint());
    assert!(small_used.nodes > 1 && clustered_used.nodes > 1);
    assert_eq!(small_used.bytes, (8 << 10) + 32 * (small_used.nodes - 1));
    assert_eq!(clustered_used.bytes, (128 << 10) + 80 * (clustered_used.nodes - 1));
    small.destroy();
    clustered.destroy();
    // SAFETY: no CPU walks the table.
    unsafe { destroy(large).reclaim() };
    assert_eq!(slab.usage().nodes, 0);
}

/// A pair is one bucket, eight pages are one bucket; single pages of the same block share it with their holes.
#[test]
fn neighbours_share_a_bucket() {
    let mut memory = vec![Chunk::ZERO; 100];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(cpt::C128k::new(&slab).unwrap(), |_| ());
    table.map(run(16, 8), Pfn::new(1), PageSize::K4, RW).unwrap();
    table.map(page(25), Pfn::new(77), PageSize::K4, RW).unwrap();
    table.map(page(31), Pfn::new(5), PageSize::K4, RW).unwrap();
    assert_eq!(table.table().blocks(), 2);
    table.unmap(run(24, 7), Holes::Skip).unwrap();
    assert_eq!(table.table().blocks(), 2, "freed while a PTE was valid");
    table.unmap(page(31), Holes::Refuse).unwrap();
    assert_eq!(table.table().blocks(), 1);
    table.destroy();
}

/// Two loads where the tag is one word, three where it is two. In a table that grows, two loads of the directory and two of links
/// more, and the tag three times: the walk reads three buckets, or the last one of a shorter chain again.
#[test]
fn loads_of_a_lookup() {
    let mut memory = vec![Chunk::ZERO; 8];
    let nodes = Instrumented::new(Slab::<u64, Solo>::new(&mut memory, 0).unwrap());
    let mut table = Local::new(Hr::new(&nodes).unwrap(), |_| ());
    table.map(page(7), Pfn::new(3), PageSize::K4, RW).unwrap();
    let (leaf, loads) = nodes.loads_of(|| table.lookup(VirtAddr::new(7 << 12)));
    assert_eq!((leaf.unwrap().frame, loads), (Pfn::new(3), 8));
    table.destroy();

    let mut memory = vec![Chunk::ZERO; 8];
    let nodes = Instrumented::new(Slab::<u32, Solo>::new(&mut memory, 0).unwrap());
    let mut table = Local::new(H8k::new(&nodes).unwrap(), |_| ());
    table.map(page(7), Pfn::new(3), PageSize::K4, RW).unwrap();
    let (leaf, loads) = nodes.loads_of(|| table.lookup(VirtAddr::new(7 << 12)));
    assert_eq!((leaf.unwrap().frame, loads), (Pfn::new(3), 3));
    table.destroy();
}

/// Fibonacci hashing keeps neighbours apart: blocks up to a quarter of the buckets all have one of their own.
#[test]
fn neighbours_have_buckets_of_their_own() {
    let mut memory = vec![Chunk::ZERO; 80];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(H128k::new(&slab).unwrap(), |_| ());
    let blocks = 4096 / 4;
    for block in 0..blocks {
        table.map(page(2 * block), Pfn::new(block), PageSize::K4, RW).unwrap();
    }
    assert_eq!((table.table().blocks(), table.footprint().nodes), (blocks, 1), "an overflow bucket");
    table.destroy();
}

/// A table of one bucket: every block is in one chain.
type OneChain<'n, N> = Hashed<'n, Va48, Compact, N, Buckets<0, 0, 0>>;

/// "The refill routine moves the hit entry to the head of this list."
#[test]
fn a_hit_moves_to_the_front() {
    let mut memory = vec![Chunk::ZERO; 8];
    let nodes = Instrumented::new(Slab::<u64, Solo>::new(&mut memory, 0).unwrap());
    let mut table = Local::new(OneChain::new(&nodes).unwrap(), |_| ());
    for vpn in 1..=10 {
        table.map(page(vpn), Pfn::new(100 + vpn), PageSize::K4, RW).unwrap();
    }
    let at = VirtAddr::new(2 << 12);
    let (first, far) = nodes.loads_of(|| table.lookup(at));
    let (second, near) = nodes.loads_of(|| table.lookup(at));
    assert_eq!((first, near), (second, 2));
    assert!(far > 2);
    // Lookups during a visit do not: it still sees every leaf once.
    let mut seen = BTreeMap::new();
    // SAFETY: nothing is reclaimed meanwhile.
    let pinned = unsafe { Pinned::by(&()) };
    let space = table.table().space().halves()[0].unwrap();
    let _ = table.table().for_each(pinned, space, &mut |leaf| {
        assert_eq!(seen.insert(leaf.at, leaf), None);
        for vpn in 1..=10 {
            assert!(table.lookup(VirtAddr::new(vpn << 12)).is_some());
        }
        ControlFlow::Continue(())
    });
    assert_eq!(seen.len(), 10);
    table.destroy();
}

/// Shared walkers write nothing, so the chain stays as it is.
#[test]
fn shared_chains_stay_in_order() {
    let mut memory = vec![Chunk::ZERO; 8];
    let nodes = Instrumented::new(Slab::<u64, Shared>::new(&mut memory, 0).unwrap());
    let mut table = Local::new(OneChain::new(&nodes).unwrap(), |_| ());
    table.map(run(1, 10), Pfn::new(1), PageSize::K4, RW).unwrap();
    for vpn in 1..=10 {
        let at = VirtAddr::new(vpn << 12);
        assert_eq!(nodes.loads_of(|| table.lookup(at)), nodes.loads_of(|| table.lookup(at)));
    }
    table.destroy();
}

fn map<'n, T: Table<'n>>(table: &T, batch: &mut Retired<'n>, vpn: usize) -> usize {
    table.map(right(table, batch), page(vpn), Pfn::new(vpn), PageSize::K4, RW).unwrap();
    table.footprint().nodes
}

fn unmap<'n, T: Table<'n>>(table: &T, batch: &mut Retired<'n>, vpn: usize) {
    table.unmap(right(table, batch), page(vpn), Holes::Refuse).unwrap();
}

/// A first bucket whose last page is gone serves no other block before the batch that emptied it has completed.
#[test]
fn an_emptied_bucket_waits_for_completion() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u64, Shared>::new(&mut memory, 0).unwrap();
    let table = OneChain::new(&slab).unwrap();
    let (mut first, mut second) = (table.batch(), table.batch());
    assert_eq!(map(&table, &mut first, 1), 1);
    unmap(&table, &mut first, 1);
    assert_eq!(map(&table, &mut second, 2), 2, "another block took the bucket too early");
    assert_eq!(map(&table, &mut second, 1), 2, "the old owner may come back");
    unmap(&table, &mut second, 1);
    // SAFETY: no CPU walks the table.
    unsafe { first.reclaim() };
    assert_eq!(map(&table, &mut second, 3), 3, "the bucket was emptied again by a batch that still waits");
    // SAFETY: no CPU walks the table.
    unsafe { second.complete() };
    assert_eq!(map(&table, &mut second, 4), 3);
    // SAFETY: no CPU walks the table.
    unsafe {
        second.reclaim();
        destroy(table).reclaim();
    }
    assert_eq!(slab.usage().nodes, 0);
}

/// What a MIPS32 handler does with the table, word for word: no multiplication, no Rust, and no matter how large the
/// blocks are.
#[test]
fn a_handler_finds_a_pair() {
    finds_a_pair::<1, 12>();
    finds_a_pair::<2, 11>();
    finds_a_pair::<3, 10>();
    finds_a_pair::<4, 9>();
}

fn finds_a_pair<const CLUSTER_LOG: u32, const BUCKETS_LOG: u32>() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let table = Hashed::<Va32, Compact32, _, Buckets<CLUSTER_LOG, BUCKETS_LOG, 0>>::new(&slab).unwrap();
    let root = table.root();
    let mut table = Local::new(table, |_| ());
    for vpn in [0x400, 0x401, 0x1_0000, 0x7_ffff, 0xf_fffc] {
        table.map(page(vpn), Pfn::new(vpn), PageSize::K4, RW).unwrap();
    }
    for vpn in [0x400, 0x401, 0x1_0000, 0x7_ffff, 0xf_fffc] {
        // The Context register, with PTEBase at 0x8000_0000.
        let context = 0x8000_0000u32 | (vpn as u32 >> 1) << 4;
        let offset = (context ^ context >> 10) & 0xfff << 4;
        let word = |index: usize| {
            // SAFETY: the bucket is in the array, whose node is live.
            unsafe { slab.word_mut(NodeAddr::new(root & !31), offset as usize / 4 + index).read() }
        };
        assert_eq!(word(0), context);
        assert_eq!(word(1 + (vpn & 1)) as usize >> 12, vpn);
    }
    table.destroy();
}

/// Space beyond the paper: 8192 single pages of a 64-bit space at most 21 bytes a page, everything counted.
#[test]
#[cfg(not(miri))]
fn uniform_pages_take_twenty_one_bytes() {
    let mut memory = vec![Chunk::ZERO; 256];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(HrSmall::new(&slab).unwrap(), |_| ());
    for (at, vpn) in uniform(8192).into_iter().enumerate() {
        table.map(page(vpn), Pfn::new(at), PageSize::K4, RW).unwrap();
    }
    let bytes = slab.usage().chunks as f64 / 8192.0;
    assert!(bytes <= 21.0, "{bytes} bytes a page: {:?}, {:?}", table.table(), slab.usage());
    table.destroy();
}

/// A small address space in a clustered table is two buckets, and what leads to them.
#[test]
fn one_page_takes_two_buckets() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(cpt::Cpt8::new(&slab).unwrap(), |_| ());
    table.map(page(9), Pfn::new(3), PageSize::K4, RW).unwrap();
    assert_eq!((table.footprint().total(), slab.usage().bytes), (320, 320));
    table.destroy();
}

/// No single map moves more blocks than a segment has buckets, however large the table.
#[test]
fn growing_is_bounded() {
    let pages = uniform(if cfg!(miri) { 200 } else { 20_000 });
    let mut memory = vec![Chunk::ZERO; 1024];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Hashed::<Va64, Compact, _, Buckets<0, 1, 40>>::new(&slab).unwrap(), |_| ());
    for (at, &vpn) in pages.iter().enumerate() {
        table.map(page(vpn), Pfn::new(at), PageSize::K4, RW).unwrap();
    }
    for (at, &vpn) in pages.iter().enumerate() {
        assert_eq!(table.lookup(VirtAddr::new(vpn << 12)).unwrap().frame, Pfn::new(at));
    }
    let most = table.table().most_moved();
    assert!(most > 0 && most <= 128, "{most} blocks moved at once");
    let peak = table.table().peak_bytes();
    assert!(peak >= table.footprint().bytes && peak < table.footprint().bytes + (16 << 10), "{peak} bytes");
    table.destroy();
    assert_eq!(slab.usage().nodes, 0);
}

/// Where a larger array cannot be had, maps still succeed; when it can, the next one grows.
#[test]
fn growth_may_fail() {
    let pages = uniform(200);
    let mut memory = vec![Chunk::ZERO; 64];
    let nodes = Instrumented::new(Slab::<u64, Solo>::new(&mut memory, 0).unwrap());
    nodes.limit_words(8);
    let mut table = Local::new(Hr::new(&nodes).unwrap(), |_| ());
    let vpn = |at: usize| pages[at] & 0x3_ffff_ffff;
    for at in 0..100 {
        table.map(page(vpn(at)), Pfn::new(at), PageSize::K4, RW).unwrap();
    }
    assert_eq!(table.table().buckets(), 2);
    nodes.limit_words(usize::MAX);
    for at in 100..200 {
        table.map(page(vpn(at)), Pfn::new(at), PageSize::K4, RW).unwrap();
    }
    assert!(table.table().buckets() >= 128);
    for at in 0..200 {
        assert_eq!(table.lookup(VirtAddr::new(vpn(at) << 12)).unwrap().frame, Pfn::new(at));
    }
    table.destroy();
    assert_eq!(nodes.slab().usage().nodes, 0);
}

/// A large range makes room for itself first: no chain as long as the range.
#[test]
fn a_range_makes_room() {
    let pages = if cfg!(miri) { 300 } else { 100_000 };
    let mut memory = vec![Chunk::ZERO; 2048];
    let nodes = Instrumented::new(Slab::<u64, Solo>::new(&mut memory, 0).unwrap());
    let mut table = Local::new(cpt::Cpt4::new(&nodes).unwrap(), |_| ());
    table.map(run(5, pages), Pfn::new(5), PageSize::K4, RW).unwrap();
    let (mut most, mut all) = (0, 0);
    for vpn in 5..5 + pages {
        let (leaf, loads) = nodes.loads_of(|| table.lookup(VirtAddr::new(vpn << 12)));
        assert_eq!(leaf.unwrap().frame, Pfn::new(vpn));
        most = most.max(loads);
        all += loads;
    }
    assert!(most <= 32 && all <= 10 * pages, "{most} loads, {all} in all");
    table.destroy();
}

/// A page of up to a block is in the block's bucket; a larger one has a tag of its own, for which others do not look.
#[test]
fn larger_pages() {
    let mut memory = vec![Chunk::ZERO; 16];
    let nodes = Instrumented::new(Slab::<u32, Solo>::new(&mut memory, 0).unwrap());
    let mut table = Local::new(Hashed::<Va32, Compact32, _, Buckets<3, 6, 0>>::new(&nodes).unwrap(), |_| ());
    let missing = VirtAddr::new(0x700_0000);
    table.map(run(4, 4), Pfn::new(16), PageSize::K16, RW).unwrap();
    table.map(page(3), Pfn::new(1), PageSize::K4, RW).unwrap();
    assert_eq!(table.table().blocks(), 1);
    assert_eq!(table.footprint().ptes, 5);
    let before = nodes.loads_of(|| table.lookup(missing)).1;
    table.map(run(16, 16), Pfn::new(32), PageSize::K64, RW).unwrap();
    assert_eq!(table.table().blocks(), 2);
    assert!(nodes.loads_of(|| table.lookup(missing)).1 > before);
    let leaf = table.lookup(VirtAddr::new(0x1_f123)).unwrap();
    assert_eq!((leaf.at, leaf.size, leaf.frame), (VirtAddr::new(0x1_0000), PageSize::K64, Pfn::new(32)));
    // Split it, and walks no longer look for its kind.
    table.resize(run(16, 16), PageSize::K4, FlushAll::in_place).unwrap();
    assert_eq!(table.lookup(VirtAddr::new(0x1_f123)).unwrap().frame, Pfn::new(47));
    assert_eq!(nodes.loads_of(|| table.lookup(missing)).1, before);
    table.destroy();
}

/// As long as all pages are in buckets of the finest grain, a walker that finds nothing has looked once, beside a
/// writer too.
#[test]
fn small_pages_make_nobody_look_for_larger_ones() {
    let mut memory = vec![Chunk::ZERO; 16];
    let nodes = Instrumented::new(Slab::<u32, Shared>::new(&mut memory, 0).unwrap());
    let mut table = Local::new(Hashed::<Va32, Compact32, _, Buckets<3, 6, 0>>::new(&nodes).unwrap(), |_| ());
    let missing = VirtAddr::new(0x700_0000);
    let before = nodes.loads_of(|| table.lookup(missing));
    table.map(page(3), Pfn::new(1), PageSize::K4, RW).unwrap();
    assert_eq!(nodes.loads_of(|| table.lookup(missing)), before);
    table.map(run(16, 16), Pfn::new(32), PageSize::K64, RW).unwrap();
    assert!(nodes.loads_of(|| table.lookup(missing)).1 > before.1);
    table.destroy();
}

/// A page that is split while a visit is under way is seen, though its small leaves come where the visit has been, and
/// the large one goes before it gets there.
#[test]
fn a_visit_sees_what_is_split_meanwhile() {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Slab::<u32, Shared>::new(&mut memory, 0).unwrap();
    let table = Hashed::<Va32, Compact32, _, Buckets<3, 6, 0>>::new(&slab).unwrap();
    let mut batch = table.batch();
    table.map(right(&table, &mut batch), run(16, 16), Pfn::new(16), PageSize::K64, RW).unwrap();
    map(&table, &mut batch, 40);
    let mut seen = BTreeMap::new();
    // SAFETY: nothing is reclaimed meanwhile.
    let pinned = unsafe { Pinned::by(&()) };
    let _ = table.for_each(pinned, run(0, 64), &mut |leaf| {
        if seen.is_empty() {
            assert_eq!(leaf.frame, Pfn::new(40), "larger pages come last");
            table
                .resize(right(&table, &mut batch), run(16, 16), PageSize::K4, FlushAll::in_place(&mut |_| ()))
                .unwrap();
        }
        seen.insert(leaf.at.get() >> 12, leaf.frame.get());
        ControlFlow::Continue(())
    });
    assert_eq!(seen, (16..32).chain([40]).map(|vpn| (vpn, vpn)).collect());
    // SAFETY: no CPU walks the table.
    unsafe {
        batch.reclaim();
        destroy(table).reclaim();
    }
    assert_eq!(slab.usage().nodes, 0);
}

/// Memory that runs out in the middle of a range leaves nothing claimed.
#[test]
fn a_failed_range_leaves_no_trace() {
    let mut memory = vec![Chunk::ZERO; 64];
    let nodes = Instrumented::new(Slab::<u32, Shared>::new(&mut memory, 0).unwrap());
    let mut table = Local::new(Hashed::<Va32, Compact32, _, Buckets<0, 3, 0>>::new(&nodes).unwrap(), |_| ());
    nodes.limit_words(0);
    let before = (table.footprint(), nodes.slab().usage());
    for start in [0usize, 0xf_fff0] {
        let refused = table.map(run(start, 16), Pfn::new(1), PageSize::K4, RW);
        assert_eq!(refused, Err(Error::NoMemory { wanted: 8, pending: 0 }));
        assert_eq!((table.footprint(), nodes.slab().usage()), before);
    }
    // Eight blocks fit the eight buckets, whichever blocks claimed them before.
    table.map(run(0x100, 8), Pfn::new(1), PageSize::K4, RW).unwrap();
    table.destroy();
}

/// A page that is mapped all the time is visited, at whatever moment another CPU promotes it, block by block or bucket by
/// bucket. Other pages keep the table from shrinking, because a visit begins again when its segment is merged.
#[test]
fn no_visit_misses_what_is_promoted_meanwhile() {
    fn check<'n, T: Table<'n>>(table: &T, all: Pages, apart: usize) {
        let small = run(512 * apart, 512);
        let mut writer = Writer::new(table).unwrap();
        writer.map(run(1 << 21, 2048), Pfn::new(1 << 21), PageSize::K4, RW).unwrap();
        // SAFETY: no CPU walks the table.
        unsafe { writer.finish().reclaim() };
        for moment in (0..).step_by(if cfg!(tlbkit_full) { 7 } else { 97 }) {
            let mut writer = Writer::new(table).unwrap();
            writer.map(small, Pfn::new(512), PageSize::K4, RW).unwrap();
            let (mut leaves, mut seen) = (0, [false; 512]);
            // SAFETY: nothing is reclaimed meanwhile.
            let pinned = unsafe { Pinned::by(&all) };
            let _ = table.for_each(pinned, all, &mut |leaf| {
                if leaves == moment {
                    // In another CPU's place.
                    writer.resize(small, PageSize::M2, FlushAll::in_place(&mut |_| ())).unwrap();
                }
                leaves += 1;
                let first = leaf.at.vpn(PageSize::K4).get();
                for page in first..first + leaf.size.bytes() / 4096 {
                    if small.contains(Vpn::new(page)) {
                        seen[page - small.first().get()] = true;
                    }
                }
                ControlFlow::Continue(())
            });
            assert!(seen.iter().all(|&seen| seen), "promoted at leaf {moment}, {apart} large pages up");
            writer.unmap(small, Holes::Refuse).unwrap();
            // SAFETY: no CPU walks the table.
            unsafe { writer.finish().reclaim() };
            if leaves <= moment {
                break;
            }
        }
    }
    for apart in 1..4 {
        let mut memory = vec![Chunk::ZERO; 1024];
        let slab = Slab::<u64, Shared>::new(&mut memory, 0).unwrap();
        check(&Hr::new(&slab).unwrap(), run(512 * (apart - 1), 1024), apart);
        check(&Hr::new(&slab).unwrap(), run(0, 1 << 35), apart);
        check(&cpt::Cpt16::new(&slab).unwrap(), run(0, 1 << 35), apart);
    }
}

/// The error of a map names the first page in the way, also where the search meets another one first: it goes from grain to
/// grain, and over many blocks in the order of their hashes.
#[test]
fn the_first_page_in_the_way_is_named() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(HrSmall::new(&slab).unwrap(), |_| ());
    let page = |vpn: usize| VirtAddr::new(vpn << 12);
    let range = Pages::count(Vpn::new(0x12340), 64).unwrap();
    let (mark, large) = (Mark::Guard, PageSize::from_shift(18).unwrap());
    for vpn in [0x1237f, 0x12360, 0x1234e, 0x12348, 0x12340] {
        table.mark(page(vpn), Some(mark)).unwrap();
        let refused = table.map(range, Pfn::new(0x40), large, Attr::READ);
        assert_eq!(refused, Err(Error::Marked { at: page(vpn) }));
    }
    table.unmap(range, Holes::Skip).unwrap();
    // A larger page is in the way behind a base page.
    table
        .map(Pages::count(Vpn::new(0x12350), 4).unwrap(), Pfn::new(0x80), PageSize::K16, Attr::READ)
        .unwrap();
    table.map(Pages::count(Vpn::new(0x12360), 1).unwrap(), Pfn::new(0x90), PageSize::K4, Attr::READ).unwrap();
    let refused = table.map(range, Pfn::new(0x40), large, Attr::READ);
    assert!(matches!(refused, Err(Error::Occupied { at, .. }) if at == page(0x12350)), "{refused:?}");
    table.destroy();
}
