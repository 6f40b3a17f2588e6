//! Moves of a range: entries one by one, and whole nodes by their link.
#![cfg(target_pointer_width = "64")]

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_conformance::Instrumented;
use tlbkit_pagetable::format::{Aarch64, Aarch64Of, Compact, Format, Sv39, X86};
use tlbkit_pagetable::geometry::{Runs, Va39, Va48};
use tlbkit_pagetable::mpt::{Detached, Mpt};
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes as _, Reclaim as _, Slab};
use tlbkit_pagetable::{
    Change, Entry, Error, FlushAll, Holes, Local, Mark, Pinned, Radix, Shared, Solo, Table, Uncovered,
    Writer, destroy, gpt, hpt,
};

const PHYS: usize = 0x8020_0000;
const K4: PageSize = PageSize::K4;
const M2: PageSize = PageSize::M2;
const RW: Attr = Attr::READ.union(Attr::WRITE);

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

fn at(page: usize) -> VirtAddr {
    Vpn::new(page).address(K4)
}

/// Returns the cell at which hardware's walk for a page ends, and whether the walk reaches the last level.
fn cell<'s, G: Radix, F: Format<Word = u64>>(
    slab: &'s Slab<'_, u64, Shared>,
    root: NodeAddr,
    page: usize,
) -> (&'s AtomicU64, bool) {
    let (mut node, mut shift) = (root, G::VA_BITS);
    for (level, width) in G::WIDTHS.iter().enumerate() {
        shift -= width;
        // SAFETY: the node is in the table; the index is within it; cells are atomic.
        let cell = unsafe { &*slab.at(node).add(page << 12 >> shift & 511) };
        let word = cell.load(Ordering::Relaxed);
        let is_last = level + 1 == G::WIDTHS.len();
        if is_last || !F::is_link(word) {
            return (cell, is_last);
        }
        node = F::node(word);
    }
    unreachable!()
}

/// Moves pages while the MMU stores to one of them at the writer's access `moment`, at the place where a walk finds it. Whenever the
/// store takes place, the page is dirty at its new place. Returns whether there was such a moment.
fn dirtied_at<G: Radix, F: Format<Word = u64>>(
    from: Pages,
    to: usize,
    size: PageSize,
    moment: usize,
) -> bool {
    let mut memory = vec![Chunk::ZERO; 32];
    let nodes = Instrumented::new(Slab::<u64, Shared>::new(&mut memory, PHYS).unwrap());
    let table: Mpt<'_, G, F, _> = Mpt::new(&nodes).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    writer.map(from, Pfn::new(0x400), size, RW).unwrap();
    let page = from.first().get() + 7;
    let root = table.root();
    let (accesses, noted) = (Cell::new(0), Cell::new(false));
    let mmu = || {
        accesses.set(accesses.get() + 1);
        let places = [page, to + 7].map(|page| cell::<G, F>(nodes.slab(), root, page));
        let leaves = places.map(|(cell, is_last)| F::is_leaf(cell.load(Ordering::Relaxed), is_last));
        assert_ne!(leaves, [true, true], "the page is at one place");
        if accesses.get() == moment
            && let Some((cell, is_last)) =
                places.into_iter().zip(leaves).find_map(|(place, is)| is.then_some(place))
        {
            let word = cell.load(Ordering::Relaxed);
            cell.store(F::change(word, Change::set(Attr::DIRTY), is_last), Ordering::Relaxed);
            noted.set(true);
        }
    };
    let moved =
        nodes.at_accesses(&mmu, || writer.move_pages(from, Vpn::new(to), FlushAll::in_place(&mut |_| ())));
    assert_eq!(moved, Ok(from.len()));
    // SAFETY: no CPU reclaims meanwhile.
    let leaf = table.lookup(unsafe { Pinned::by(&nodes) }, at(to + 7)).unwrap();
    let frame = leaf.part(at(to + 7), K4).frame;
    assert_eq!(
        (frame, leaf.attr.contains(Attr::DIRTY)),
        (Pfn::new(0x407), noted.get()),
        "at access {moment}"
    );
    // SAFETY: no CPU walks the table.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
    assert_eq!((nodes.slab().usage().nodes, nodes.held().lost()), (0, 0));
    moment <= accesses.get()
}

#[test]
#[cfg_attr(miri, ignore = "minutes for each moment")]
fn what_hardware_notes_at_any_moment_of_a_move_is_kept() {
    fn dirtied<G: Radix, F: Format<Word = u64>>() {
        for (count, to, size) in [
            (16, 0x801, K4),
            // The node moves.
            (16, 0x800, K4),
            (512, 0x800, M2),
            // It becomes small pages.
            (512, 0x801, M2),
        ] {
            let step = if count > 16 && to % 512 > 0 { 97 } else { 1 };
            let moments = (1..)
                .step_by(step)
                .take_while(|&moment| dirtied_at::<G, F>(pages(0x600, count), to, size, moment));
            assert!(moments.count() > 3);
        }
    }
    dirtied::<Va48, X86>();
    dirtied::<Va39, Sv39>();
    dirtied::<Va48, Aarch64>();
}

/// A run, in any of whose slots hardware notes status, is dirty at its new place if one of them was.
#[test]
fn a_run_that_becomes_small_pages_keeps_what_was_noted_in_any_slot() {
    type Contiguous = Aarch64Of<12, true, true>;
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Slab::<u64, Shared>::new(&mut memory, PHYS).unwrap();
    let table: Mpt<'_, Runs<Va48>, Contiguous, _> = Mpt::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    writer.map(pages(0x10, 16), Pfn::new(0x40), PageSize::K64, RW).unwrap();
    let (noted, _) = cell::<Runs<Va48>, Contiguous>(&slab, table.root(), 0x1d);
    noted.store(
        Contiguous::change(noted.load(Ordering::Relaxed), Change::set(Attr::DIRTY), true),
        Ordering::Relaxed,
    );
    let unflushed = &mut |_: &Flush| panic!("no node moves");
    writer.move_pages(pages(0x10, 16), Vpn::new(0x31), FlushAll::in_place(unflushed)).unwrap();
    for page in 0..16 {
        // SAFETY: no CPU reclaims meanwhile.
        let leaf = table.lookup(unsafe { Pinned::by(&slab) }, at(0x31 + page)).unwrap();
        assert_eq!((leaf.size, leaf.frame, leaf.attr), (K4, Pfn::new(0x40 + page), RW | Attr::DIRTY));
    }
    // SAFETY: no CPU walks the table.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
}

/// Moves `from` in a table with these pages mapped, and returns the flushes that were asked for in the call, whether each came when the
/// new place was mapped and the old one was not, and whether the last-level node of the first page is the same one.
fn relinked(mapped: &[Pages], from: Pages, to: usize) -> (Vec<bool>, bool) {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u64, Shared>::new(&mut memory, PHYS).unwrap();
    let table: Mpt<'_, Va48, X86, _> = Mpt::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    for &pages in mapped {
        writer.map(pages, Pfn::new(pages.first().get()), K4, RW).unwrap();
    }
    let count = mapped.iter().filter_map(|pages| pages.intersect(from)).map(Pages::len).sum::<usize>();
    let first = mapped[0].first().get();
    let new = to + (first - from.first().get());
    let before = table.footprint();
    let old_cell = std::ptr::from_ref(cell::<Va48, X86>(&slab, table.root(), first).0);
    let flushes = RefCell::new(Vec::new());
    let known = &mut |flush: &Flush| {
        // SAFETY: no CPU reclaims meanwhile.
        let [old, new] =
            [first, new].map(|page| table.lookup(unsafe { Pinned::by(&slab) }, at(page)).is_some());
        let is_named = flush.links() && flush.covers(from) && flush.scope() == FlushScope::Everywhere;
        flushes.borrow_mut().push(is_named && !old && new);
    };
    assert_eq!(writer.move_pages(from, Vpn::new(to), FlushAll::in_place(known)), Ok(count));
    let new_cell = std::ptr::from_ref(cell::<Va48, X86>(&slab, table.root(), new).0);
    let batch = writer.finish();
    assert!(batch.flush().covers(from) && batch.flush().scope() == FlushScope::Everywhere);
    assert_eq!(table.footprint().ptes, before.ptes);
    // SAFETY: no CPU walks the table.
    unsafe {
        batch.reclaim();
        destroy(table).reclaim();
    }
    assert_eq!(slab.usage().nodes, 0);
    (flushes.into_inner(), old_cell == new_cell)
}

#[test]
fn a_node_moves_by_its_link_where_both_places_are_alike() {
    const GIB: usize = 1 << 18;
    let all = pages(0x600, 512);
    let by_link = (vec![true], true);
    assert_eq!(relinked(&[all], all, 0xa00), by_link);
    // The node has no other pages.
    assert_eq!(relinked(&[pages(0x610, 3)], pages(0x608, 16), 0xa08), by_link);
    // A node above the last level, with two nodes below it.
    assert_eq!(relinked(&[pages(0x600, 512), pages(0x1000, 9)], pages(0, GIB), 5 * GIB), by_link);
    // The first node has other pages, and the second moves.
    assert_eq!(relinked(&[pages(0x608, 16), pages(0x603, 1)], pages(0x608, 1024), 0xe08), (vec![], false));
    let both = [pages(0x608, 16), pages(0x603, 1), pages(0x800, 16)];
    assert_eq!(relinked(&both, pages(0x608, 1024), 0xe08), (vec![true], false));
    // Not alike, or a node in the way, or a node with pages of both places.
    assert_eq!(relinked(&[all], all, 0xa01), (vec![], false));
    assert_eq!(relinked(&[all, pages(0x900, 1)], pages(0x600, 256), 0x800), (vec![], false));
    assert_eq!(relinked(&[pages(0x700, 512)], pages(0x700, 512), 0x900), (vec![], false));
}

/// The nodes that a move empties are nodes that it needs, in both directions.
#[test]
fn a_move_by_less_than_a_node_takes_the_nodes_that_it_empties() {
    for (from, to) in [(0x700, 0x500), (0x500, 0x700), (0x700, 0x4ff)] {
        let mut memory = vec![Chunk::ZERO; 16];
        let nodes = Instrumented::new(Slab::<u64, Solo>::new(&mut memory, PHYS).unwrap());
        let mut table = Local::new(Mpt::<'_, Va48, X86, _>::new(&nodes).unwrap(), |_| ());
        table.map(pages(from, 512), Pfn::new(0x40), K4, RW).unwrap();
        let out = nodes.out();
        // One of the two nodes at the new place is one of the two at the old place.
        nodes.fail_at(1);
        assert_eq!(table.move_pages(pages(from, 512), Vpn::new(to)), Ok(512));
        assert!(!nodes.failed(), "one node is enough");
        for page in 0..512 {
            assert_eq!(table.lookup(at(to + page)).unwrap().frame, Pfn::new(0x40 + page));
        }
        assert_eq!(nodes.out(), out);
        table.destroy();
    }
}

#[test]
fn what_is_in_the_way_is_named_and_nothing_moves() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u64, Solo>::new(&mut memory, PHYS).unwrap();
    let mut table = Local::new(Mpt::<'_, Va48, Compact, _>::new(&slab).unwrap(), |_| ());
    table.map(pages(0x600, 8), Pfn::new(0x40), K4, RW).unwrap();
    table.mark(at(0x608), Some(Mark::Payload(7, RW))).unwrap();
    table.map(pages(0xa05, 1), Pfn::new(0x90), K4, RW).unwrap();
    table.mark(at(0xb03), Some(Mark::Guard)).unwrap();
    table.map(pages(0x800, 512), Pfn::new(0x200), M2, RW).unwrap();
    let from = pages(0x600, 16);
    let all =
        |table: &Local<'_, _, _>| (0x600..0xc00).map(|page| table.entry(at(page))).collect::<Vec<Entry>>();
    let before = all(&table);
    for (from, to, error) in [
        (from, 0xa00, Error::Occupied { at: at(0xa05), size: K4 }),
        (from, 0x7f8, Error::Occupied { at: at(0x800), size: M2 }),
        (from, 0xb00, Error::Marked { at: at(0xb03) }),
        (from, 0x60f, Error::Overlap { at: at(0x60f) }),
        (from, 0x5f8, Error::Overlap { at: at(0x600) }),
        (from, 0x600, Error::Overlap { at: at(0x600) }),
        (pages(0x7f0, 32), 0xc00, Error::Partial { at: at(0x800), size: M2 }),
        (from, (1 << 35) - 8, Error::OutOfRange { at: at((1 << 35) + 7) }),
        (from, usize::MAX - 3, Error::OutOfRange { at: at(usize::MAX - 3) }),
    ] {
        assert_eq!(table.move_pages(from, Vpn::new(to)), Err(error), "to {to:#x}");
        assert_eq!(all(&table), before);
    }
    // The mark moves with the pages, and so do the holes behind it.
    assert_eq!(table.move_pages(from, Vpn::new(0xa08)), Ok(8));
    assert_eq!(table.entry(at(0xa10)), Entry::Mark(Mark::Payload(7, RW)));
    assert_eq!((table.entry(at(0x608)), table.entry(at(0xa11))), (Entry::Empty, Entry::Empty));
    table.destroy();
}

/// Borrowers keep a copy of a lent link, so what is below it moves in smaller nodes.
#[test]
fn lent_links_stay_and_borrowed_pages_are_refused() {
    const SLOT: usize = 1 << 18;
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u64, Shared>::new(&mut memory, PHYS).unwrap();
    let mut kernel: Mpt<'_, Va39, Sv39, _> = Mpt::new(&slab).unwrap();
    kernel.lend([pages(4 * SLOT, 4 * SLOT)]).unwrap();
    let mut writer = Writer::new(&kernel).unwrap();
    writer.map(pages(4 * SLOT, 512), Pfn::new(0x40), K4, RW).unwrap();
    let shares = Mpt::sharing(&kernel).unwrap();
    let flushes = Cell::new(0);
    let known = &mut |_: &Flush| flushes.set(flushes.get() + 1);
    writer.move_pages(pages(4 * SLOT, SLOT), Vpn::new(5 * SLOT), FlushAll::in_place(known)).unwrap();
    // SAFETY: no CPU reclaims meanwhile.
    let frame = |page| shares.lookup(unsafe { Pinned::by(&slab) }, at(page)).map(|leaf| leaf.frame);
    assert_eq!((frame(4 * SLOT), frame(5 * SLOT + 511)), (None, Some(Pfn::new(0x40 + 511))));
    assert_eq!(flushes.get(), 1, "a node below the lent one moves");
    let mut borrower = Writer::new(&shares).unwrap();
    borrower.map(pages(1, 1), Pfn::new(9), K4, RW).unwrap();
    for (from, to) in [(pages(1, 1), 6 * SLOT), (pages(5 * SLOT, 2), 8)] {
        let shared = if to == 8 { from.first().get() } else { to };
        let refused = borrower.move_pages(from, Vpn::new(to), FlushAll::in_place(&mut |_| ()));
        assert_eq!(refused, Err(Error::Borrowed { at: at(shared) }));
    }
    // SAFETY: no CPU walks the tables.
    unsafe {
        writer.finish().reclaim();
        borrower.finish().reclaim();
        destroy(shares).reclaim();
        destroy(kernel).reclaim();
    }
}

/// A frame that waits for its flush in an entry is not the table's any more, and stays where it is.
#[test]
fn frames_that_wait_for_a_flush_do_not_move() {
    let mut memory = vec![Chunk::ZERO; 32];
    let slab = Slab::<u64, Shared>::new(&mut memory, PHYS).unwrap();
    let table: Mpt<'_, Va48, X86, _> = Mpt::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    writer.map(pages(0x600, 8), Pfn::new(0x40), K4, RW).unwrap();
    let mut detached = Detached::new(&slab);
    assert_eq!(writer.detach(pages(0x600, 4), 64, &mut detached), Ok(None));
    let unflushed = &mut |_: &Flush| panic!("the node stays");
    assert_eq!(writer.move_pages(pages(0x600, 512), Vpn::new(0xa00), FlushAll::in_place(unflushed)), Ok(4));
    let mut handed = Vec::new();
    // SAFETY: no TLB and no walker uses the table.
    unsafe {
        writer.clear_detached(pages(0x600, 4), &mut detached, &mut |uncovered| handed.push(uncovered));
        assert!(detached.release(64, &mut |uncovered| handed.push(uncovered)));
    }
    assert!(matches!(handed[..], [Uncovered::Frames(run)] if run.first == Pfn::new(0x40) && run.len == 4));
    assert_eq!(table.footprint().ptes, 4);
    // SAFETY: no CPU walks the table.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
    assert_eq!(slab.usage().nodes, 0);
}

/// The other tables move the entries one by one, however far they are apart.
#[test]
fn scattered_entries_move_in_tables_of_every_kind() {
    fn moves<'n, T: Table<'n>>(table: &T) {
        let mut writer = Writer::new(table).unwrap();
        let places = [0, 1, 40, 511, 5000, 70_000];
        for page in places {
            writer.map(pages(0x600 + page, 1), Pfn::new(0x40 + page), K4, RW | Attr::DIRTY).unwrap();
        }
        let (from, to) = (pages(0x600, 70_001), 0x10_0001);
        let moved = writer.move_pages(from, Vpn::new(to), FlushAll::in_place(&mut |_| ()));
        assert_eq!(moved, Ok(places.len()));
        for page in places {
            // SAFETY: no CPU reclaims meanwhile.
            let [old, new] =
                [0x600, to].map(|first| table.lookup(unsafe { Pinned::by(&writer) }, at(first + page)));
            let new = new.map(|leaf| (leaf.frame, leaf.attr.contains(Attr::DIRTY)));
            assert_eq!((old, new), (None, Some((Pfn::new(0x40 + page), true))));
        }
        assert_eq!(writer.unmap(pages(to, 70_001), Holes::Skip), Ok(places.len()));
        // SAFETY: no CPU walks the table.
        unsafe { writer.finish().reclaim() };
    }
    let mut memory = vec![Chunk::ZERO; 256];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let (mpt, gpt, hpt) = (
        Mpt::<Va48, Compact, _>::new(&slab).unwrap(),
        gpt::Gpt::<Va48, Compact, _, gpt::OneWord, gpt::Adaptive>::new(&slab).unwrap(),
        hpt::Hr::new(&slab).unwrap(),
    );
    moves(&mpt);
    moves(&gpt);
    moves(&hpt);
    // SAFETY: no CPU walks the tables.
    unsafe {
        destroy(mpt).reclaim();
        destroy(gpt).reclaim();
        destroy(hpt).reclaim();
    }
}
