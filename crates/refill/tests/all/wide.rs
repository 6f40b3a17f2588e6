//! The handlers of MIPS III run: what they load is what the table says, what the table does not say they pass on, and they
//! take the instructions and loads that the first page of [`mips3`] promises.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU32;

use crate::guest::{KSEG0, Ram};
use tlbkit_addr::{Attr, FlushScope, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::{EntryLo, Format};
use tlbkit_pagetable::geometry::Va64;
use tlbkit_pagetable::gpt::{self, Gpt};
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::lpt::Lpt;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes, Slab};
use tlbkit_pagetable::{Change, Geometry, Holes, Local, Private, Solo};
use tlbkit_refill::features::Features;
use tlbkit_refill::interp::{Access, Machine, Stop, Window, Windows};
use tlbkit_refill::mips3::{self, Block, GENERAL, PaperLo, Spec, Stlb, TAIL, VECTOR, Walk};

type Storage<'m> = Slab<'m, u32, Solo>;
type Guarded<'n, const W: u32> = Gpt<'n, Va64, PaperLo, Storage<'n>, gpt::TwoWords, gpt::Fixed<W>>;
type Cpu<'m> = Machine<Windows<'m, 3>, 16>;

/// Where things are in physical memory.
const BLOCK: u32 = 0x1000;
const CACHE: u32 = 0x10_0000;
const NODES: usize = 0x100_0000;
const CHUNKS: usize = 2000;
/// Where a linear table begins in virtual memory.
const AT: usize = 0xff00_0000_0000_0000;
/// Zero would match an empty entry of a cache.
const ASID: u64 = 1;

/// Pages far apart and near each other, halves of pairs, in every region, at both ends.
fn pages() -> Vec<usize> {
    let mut pages: Vec<_> = (0..40).map(|n| n * 3).collect();
    pages.extend((0..52).map(|n| 1usize << n));
    pages.extend((0..60usize).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 12));
    pages.extend([(1 << 52) - 1, (1 << 52) - 2, (1 << 52) - 4]);
    let unique: BTreeSet<_> = pages.into_iter().collect();
    unique.into_iter().collect()
}

/// What a refill took: instructions, and loads.
type Cost = (u64, u64);

/// A table with every page, and its handler behind a cache of so many bytes or none: refills all of them twice. Returns what
/// the first refill of each took, and what the second did, which finds the cache full.
fn refills<'n, T: Private<'n>>(
    (storage, base): (&'n Storage<'n>, usize),
    table: T,
    root: fn(&T) -> Block,
    walk: Walk,
    cache: Option<u32>,
    pages: &[usize],
) -> [BTreeSet<Cost>; 2] {
    let mut table = Local::new(table, |_| ());
    for (number, &page) in pages.iter().enumerate() {
        let writable = if number % 3 == 0 { Attr::WRITE | Attr::DIRTY } else { Attr::empty() };
        let frame = Pfn::new(number * 7 + 1);
        table.map(Pages::one(Vpn::new(page)), frame, PageSize::K4, PaperLo::IMPLIED | writable).unwrap();
    }
    let cache = cache.map(|bytes| Stlb::new(KSEG0 as u32 + CACHE, bytes).unwrap());
    let handler = Spec { block: KSEG0 as u32 + BLOCK, cache, walk }.assemble().unwrap();
    let low = Ram::new();
    low.put(VECTOR as usize, handler.refill.words());
    low.put(TAIL as usize, handler.tail.words());
    low.put(GENERAL as usize, handler.general.words());
    low.put(BLOCK as usize, &root(table.table()));
    let entries: Vec<_> = (0..(128 << 10) / 4).map(|_| AtomicU32::new(0)).collect();
    // SAFETY: the slab's memory, which no CPU writes while the machine runs.
    let nodes = unsafe {
        let first = storage.at(NodeAddr::new(base));
        Window::from_raw(NODES as u64, first.cast(), CHUNKS * size_of::<Chunk>() / 4)
    };
    let windows = Windows([low.window(0), Window::new(CACHE.into(), &entries), nodes]);
    let mut cpu = Cpu::new(Features::MIPS3, windows);
    cpu.cp0.entry_hi = ASID;
    // The kernel's own code begins behind the handler's.
    cpu.stop += 4 * handler.general.words().len() as u64;

    let mut costs = [BTreeSet::new(), BTreeSet::new()];
    for &page in pages {
        for costs in &mut costs {
            let at = Vpn::new(page).address(PageSize::K4);
            cpu.tlb.flush();
            cpu.cp0.status = 0;
            cpu.counts = Default::default();
            assert!(cpu.settle(at.get() as u64, Access::Load).is_ok(), "{at:?}");
            costs.insert((cpu.counts.instructions, cpu.counts.loads));
            for half in [page, page ^ 1] {
                let at = Vpn::new(half).address(PageSize::K4);
                let says = table.lookup(at);
                let physical = says.map(|leaf| leaf.phys(at, PageSize::K4).get() as u64);
                let loaded = cpu.translate(at.get() as u64, Access::Load);
                assert_eq!(loaded.ok(), physical, "{at:?}");
                let stored = cpu.translate(at.get() as u64, Access::Store);
                let writable = says.is_some_and(|leaf| leaf.attr.contains(Attr::DIRTY));
                assert_eq!(stored.is_ok(), writable, "{at:?}");
            }
        }
    }
    // Those that differ in one bit are not mapped, and the kernel learns of the access as it was.
    let mapped: BTreeSet<_> = pages.iter().map(|page| page >> 1).collect();
    for page in pages.iter().step_by(9).flat_map(|page| (1..52).map(move |bit| page ^ 1 << bit)) {
        let at = Vpn::new(page).address(PageSize::K4).get() as u64;
        // A linear table's own pages are in the TLB.
        let own = matches!(walk, Walk::Lpt(_)) && (AT as u64..0xffc0 << 48).contains(&at);
        if !mapped.contains(&(page >> 1)) && !own {
            cpu.tlb.flush();
            (cpu.cp0.status, cpu.cp0.entry_hi) = (0, ASID);
            assert_eq!(cpu.settle(at, Access::Load), Err(Stop::Reached), "{at:#x}");
            assert_eq!(cpu.pc, cpu.stop);
            assert_eq!((cpu.cp0.bad_vaddr, cpu.cp0.entry_hi), (at, at & !0x1fff | ASID));
        }
    }
    for &page in pages {
        table.unmap(Pages::one(Vpn::new(page)), Holes::Refuse).unwrap();
    }
    table.destroy();
    costs
}

/// As [`refills`], in nodes of its own.
macro_rules! refills {
    ($make:expr, $root:expr, $walk:expr, $cache:expr) => {
        refills!($make, $root, $walk, $cache, &pages())
    };
    ($make:expr, $root:expr, $walk:expr, $cache:expr, $pages:expr) => {
        refills!($make, $root, $walk, $cache, $pages, KSEG0 as u32 as usize + NODES)
    };
    ($make:expr, $root:expr, $walk:expr, $cache:expr, $pages:expr, $base:expr) => {{
        let mut memory = vec![Chunk::ZERO; CHUNKS];
        let storage = Storage::new(&mut memory, $base).unwrap();
        refills((&storage, $base), $make(&storage), $root, $walk, $cache, $pages)
    }};
}

fn linear(cache: Option<u32>) -> [BTreeSet<Cost>; 2] {
    let walk = Walk::Lpt(mips3::Lpt::of::<Va64, AT>().unwrap());
    let make = |nodes| Lpt::<Va64, PaperLo, _, AT>::new(nodes).unwrap();
    // The table's PTEs hold the physical addresses of its nodes.
    let root = |table: &Lpt<'_, _, _, _, AT>| [KSEG0 as u32 | table.root().get() as u32, 0, 0, 0];
    refills!(make, root, walk, cache, &pages(), NODES)
}

/// A cold way: the program's instruction misses six times, and the last time finds all.
#[test]
fn six_cascaded_faults() {
    let costs = linear(None);
    assert_eq!(costs, [[(542, 18)].into(), [(542, 18)].into()]);
}

fn adaptive() -> [BTreeSet<Cost>; 2] {
    let walk = Walk::Gpt(mips3::Gpt::adaptive());
    let make = |nodes| Gpt::<Va64, PaperLo, _, gpt::TwoWords, gpt::Adaptive>::new(nodes).unwrap();
    refills!(make, |table| table.root_slot(), walk, None)
}

#[test]
fn guarded_of_widths_that_adapt() {
    let [first, second] = adaptive();
    assert_eq!(first, second);
    assert!(first.len() > 1);
    for (instructions, loads) in first {
        let nodes = (loads - 4) / 2;
        assert_eq!((instructions, loads), (22 + 14 * nodes, 4 + 2 * nodes));
    }
}

fn guarded<const W: u32>(cache: Option<u32>) -> [BTreeSet<Cost>; 2] {
    let walk = Walk::Gpt(mips3::Gpt::fixed(W).unwrap());
    refills!(|nodes| Guarded::<W>::new(nodes).unwrap(), |table| table.root_slot(), walk, cache)
}

fn multi_level(cache: Option<u32>) -> [BTreeSet<Cost>; 2] {
    let walk = Walk::Mpt(mips3::Mpt::of::<Va64>().unwrap());
    let make = |nodes| Mpt::<Va64, PaperLo, _>::new(nodes).unwrap();
    refills!(make, |table| [table.root().get() as u32, 0, 0, 0], walk, cache)
}

#[test]
fn six_levels() {
    assert_eq!(multi_level(None), [[(47, 8)].into(), [(47, 8)].into()]);
    for (bytes, instructions) in [(8 << 10, 17), (128 << 10, 18)] {
        assert_eq!(multi_level(Some(bytes))[1], [(instructions, 3)].into(), "the cache hits");
    }
}

#[test]
fn guarded_of_all_widths() {
    let levels = |costs: [BTreeSet<Cost>; 2]| {
        let [first, second] = costs;
        assert_eq!(first, second);
        assert!(first.len() > 1);
        for (instructions, loads) in first {
            let nodes = (loads - 4) / 2;
            assert_eq!((instructions, loads), (22 + 9 * nodes, 4 + 2 * nodes));
        }
    };
    levels(guarded::<1>(None));
    levels(guarded::<4>(None));
    levels(guarded::<5>(None));
    levels(guarded::<8>(None));
    for (bytes, instructions) in [(8 << 10, 17), (128 << 10, 18)] {
        assert_eq!(guarded::<4>(Some(bytes))[1], [(instructions, 3)].into(), "the cache hits");
    }
    // The root slot alone.
    let walk = Walk::Gpt(mips3::Gpt::fixed(4).unwrap());
    let costs = refills!(
        |nodes| Guarded::<4>::new(nodes).unwrap(),
        |table| table.root_slot(),
        walk,
        None,
        &[0x1_2345]
    );
    assert_eq!(costs[0], [(22, 4)].into());
}

fn hashed<const C: u32, const B: u32>(cache: Option<u32>) -> [BTreeSet<Cost>; 2] {
    let walk = Walk::Hashed(mips3::Hashed::of(C, B).unwrap());
    let make = |nodes| Hashed::<Va64, PaperLo, _, Buckets<C, B, 0>>::new(nodes).unwrap();
    // The low bits are the number of the buckets.
    refills!(make, |table| [table.root() as u32 & !31, 0, 0, 0], walk, cache)
}

#[test]
fn hashed_and_clustered() {
    for (costs, first) in [
        (hashed::<1, 8>(None), 27),
        (hashed::<1, 12>(None), 27),
        (hashed::<3, 10>(None), 33),
        (hashed::<2, 2>(None), 33),
        (hashed::<4, 1>(None), 33),
    ] {
        assert_eq!(costs[0].first(), Some(&(first, 4)));
        assert!(costs[0].len() > 1, "some are behind others in a chain");
    }
    assert_eq!(hashed::<1, 8>(Some(8 << 10))[1], [(17, 3)].into());
}

fn growing<const C: u32>(cache: Option<u32>) -> [BTreeSet<Cost>; 2] {
    let walk = Walk::Hashed(mips3::Hashed::growing(C).unwrap());
    let make = |nodes| Hashed::<Va64, PaperLo, _, Buckets<C, 1, 100>>::new(nodes).unwrap();
    refills!(make, |table| [table.root() as u32 & !31, 0, 0, 0], walk, cache)
}

#[test]
fn hashed_and_growing() {
    for (costs, first) in [(growing::<1>(None), 39), (growing::<3>(None), 45)] {
        assert_eq!(costs[0].first(), Some(&(first, 5)));
        assert!(costs[0].len() > 1, "some are behind others in a chain");
    }
    assert_eq!(growing::<1>(Some(8 << 10))[1], [(17, 3)].into());
}

/// Pages of every size, each alone and beside one of its size, among small ones, in a table that grows.
#[test]
fn larger_pages() {
    let mut memory = vec![Chunk::ZERO; CHUNKS];
    let storage = Storage::new(&mut memory, KSEG0 as u32 as usize + NODES).unwrap();
    let table = Hashed::<Va64, PaperLo, _, Buckets<3, 1, 100>>::new(&storage).unwrap();
    let mut table = Local::new(table, |_| ());
    let mut probes = Vec::new();
    for (number, size) in Va64::SIZES.iter().enumerate() {
        let pages = size.pages(PageSize::K4).unwrap();
        for (place, first) in
            [16usize << 8 | number, 17 << 8, (number + 1) << 28 | 1, 18 << 8 | number, 19 << 8 | number]
                .into_iter()
                .enumerate()
        {
            // All over the space, some beside each other.
            let first = Vpn::new((first << 20 | number << 40) & !(pages - 1) | (place / 4 * pages));
            let attr = if place % 2 == 0 { Attr::WRITE | Attr::DIRTY } else { Attr::empty() };
            let frame = Pfn::new(((number * 5 + place + 1) * pages) & 0xff_ffff);
            let run = Pages::count(first, pages).unwrap();
            table.map(run, frame, *size, PaperLo::IMPLIED | attr).unwrap();
            probes.extend([first.get(), first.get() + pages / 2, run.last().get(), run.last().get() + 1]);
            probes.extend((0..40).map(|n: usize| first.get() + n.wrapping_mul(0x9e37) % pages));
        }
    }
    let walk = Walk::Hashed(mips3::Hashed::growing(3).unwrap().with_larger_pages().unwrap());
    let handler = Spec { block: KSEG0 as u32 + BLOCK, cache: None, walk }.assemble().unwrap();
    let low = Ram::new();
    low.put(VECTOR as usize, handler.refill.words());
    low.put(TAIL as usize, handler.tail.words());
    low.put(BLOCK as usize, &[table.table().root() as u32 & !31]);
    // SAFETY: the slab's memory, which no CPU writes while the machine runs.
    let nodes = unsafe {
        let first = storage.at(NodeAddr::new(KSEG0 as u32 as usize + NODES));
        Window::from_raw(NODES as u64, first.cast(), CHUNKS * size_of::<Chunk>() / 4)
    };
    let mut cpu = Machine::<_, 16>::new(Features::MIPS3, Windows([low.window(0), nodes]));
    cpu.cp0.entry_hi = ASID;
    let mut sizes = BTreeSet::new();
    for page in probes {
        let at = Vpn::new(page).address(PageSize::K4);
        let says = table.lookup(at);
        cpu.tlb.flush();
        (cpu.cp0.status, cpu.cp0.entry_hi) = (0, ASID);
        let physical = says.map(|leaf| leaf.phys(at, PageSize::K4).get() as u64);
        assert_eq!(cpu.settle(at.get() as u64, Access::Load).ok(), physical, "{at:?}");
        assert_eq!(cpu.cp0.page_mask, 0);
        let Some(leaf) = says else { continue };
        sizes.insert(leaf.size);
        // All that the entry maps is within the page, and as the table says.
        let entry = cpu.tlb.entries().iter().flatten().next().unwrap();
        let bytes = (entry.page_mask >> 1) + 0x1000;
        assert_eq!(
            leaf.size.bytes() as u64,
            if bytes == 0x1000 && leaf.size == PageSize::K4 { bytes } else { 4 * bytes }
        );
        for at in [entry.hi & !0x1fff, (entry.hi & !0x1fff) + bytes] {
            let at = tlbkit_addr::VirtAddr::new(at as usize);
            let says = table.lookup(at);
            let physical = says.map(|leaf| leaf.phys(at, PageSize::K4).get() as u64);
            assert_eq!(cpu.translate(at.get() as u64, Access::Load).ok(), physical, "{at:?}");
            let stored = cpu.translate(at.get() as u64, Access::Store);
            assert_eq!(stored.is_ok(), says.is_some_and(|leaf| leaf.attr.contains(Attr::DIRTY)), "{at:?}");
        }
    }
    assert_eq!(sizes.len(), Va64::SIZES.len());
    table.unmap(Pages::new(Vpn::new(0), Vpn::new((1 << 52) - 1)).unwrap(), Holes::Skip).unwrap();
    table.destroy();
}

/// The format is EntryLo's, beside a word of the kernel's for each.
#[test]
fn the_format_is_that_of_entry_lo() {
    assert_eq!((PaperLo::EXTRA, EntryLo::EXTRA), (1, 0));
    assert_eq!((PaperLo::APPEARS, PaperLo::BREAK, PaperLo::PAIRED), (FlushScope::Local, true, true));
    let node = NodeAddr::new(0x8010_0040);
    let link = PaperLo::link(node);
    assert_eq!((link, PaperLo::node(link)), (0x8010_0040, node));
    assert!(PaperLo::is_link(link) && !PaperLo::is_link(0) && !PaperLo::is_leaf(link, false));
    assert!(PaperLo::leaf(Pfn::new(1 << 24), PageSize::K4, Attr::empty(), true).is_err());
    for (size, slot) in [(12, 12), (14, 12), (16, 12)].map(|(size, slot)| {
        let size_of = |shift| PageSize::from_shift(shift).unwrap();
        (size_of(size), size_of(slot))
    }) {
        for attr in [Attr::WRITE | Attr::DIRTY, Attr::UNCACHED | Attr::GLOBAL] {
            let attr = attr | PaperLo::IMPLIED;
            let frame = Pfn::new(0x1230);
            let leaf = PaperLo::leaf(frame, size, attr, true).unwrap();
            assert_eq!(Ok(leaf), EntryLo::leaf(frame, size, attr, true));
            assert!(PaperLo::is_leaf(leaf, true) && !PaperLo::is_link(leaf));
            assert_eq!((PaperLo::frame(leaf, size), PaperLo::attr(leaf, true)), (frame, attr));
            assert_eq!(PaperLo::size(leaf, slot), size);
            let clean = Change { set: Attr::empty(), clear: Attr::WRITE | Attr::DIRTY };
            let changed = PaperLo::change(leaf, clean, true);
            assert_eq!(PaperLo::attr(changed, true), attr.difference(Attr::WRITE | Attr::DIRTY));
            // An absent half takes the G of its neighbour.
            assert_eq!(PaperLo::beside(leaf, 0), EntryLo::beside(leaf, 0));
            assert_eq!(PaperLo::beside(leaf, 0), u32::from(attr.contains(Attr::GLOBAL)));
        }
    }
}
