//! Multi-level tables that hardware walks: status bits, break before make, and links that no change can harm.
#![cfg(target_pointer_width = "64")]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_conformance::Instrumented;
use tlbkit_pagetable::format::{Aarch64, Aarch64Of, Compact, Format, RiscvOf, Sv39, X86};
use tlbkit_pagetable::geometry::{Napot, Runs as Contiguous, Va39, Va48};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes, Reclaim, Slab};
use tlbkit_pagetable::{
    Change, Error, FlushAll, Holes, Local, Mode, Pinned, Radix, Run, Solo, Table, Uncovered, Writer, destroy,
};

use crate::right::right;

const PHYS: usize = 0x8020_0000;
const K4: PageSize = PageSize::K4;
const M2: PageSize = PageSize::M2;
const RW: Attr = Attr::READ.union(Attr::WRITE);

type Storage<'m> = Slab<'m, u64, Solo>;

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

/// Returns the cell at which hardware's walk for `at` ends: it follows links and knows nothing else.
fn cell<'s, G: Radix, F: Format<Word = u64>, M: Mode>(
    slab: &'s Slab<'_, u64, M>,
    root: NodeAddr,
    at: usize,
) -> &'s AtomicU64 {
    let (mut node, mut shift) = (root, G::VA_BITS);
    for (level, width) in G::WIDTHS.iter().enumerate() {
        shift -= width;
        // SAFETY: the node is in the table or retired; the index is within it; cells are atomic.
        let cell = unsafe { &*slab.at(node).add(at >> shift & 511) };
        let word = cell.load(Ordering::Relaxed);
        if level + 1 == G::WIDTHS.len() || !F::is_link(word) {
            return cell;
        }
        node = F::node(word);
    }
    unreachable!()
}

const AT: VirtAddr = VirtAddr::new(0x0060_7000);
const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

/// Changes the size of the page around [`AT`] while the MMU stores to it at the writer's access `moment`: by a walk, or
/// through the link that it has cached, until it is told to forget. The page must be mapped at every moment, unless the
/// format breaks, and dirty afterwards. Returns whether there was such a moment.
fn dirtied_at<G: Radix, F: Format<Word = u64>>(
    (from, to): (PageSize, PageSize),
    moment: usize,
    cached: bool,
) -> bool {
    let mut memory = vec![Chunk::ZERO; 32];
    let nodes = Instrumented::new(Storage::new(&mut memory, PHYS).unwrap());
    let table: Mpt<'_, G, F, _> = Mpt::new(&nodes).unwrap();
    let whole = pages(0x600, 512);
    let mut writer = Writer::new(&table).unwrap();
    writer.map(whole, Pfn::new(0x400), from, RW | Attr::ACCESSED).unwrap();
    let root = table.root();
    let relinked = from == M2 || to == M2;
    // The way to the old leaf. Nodes that are retired are not freed meanwhile, so it can be gone.
    let old: *const AtomicU64 = cell::<G, F, _>(nodes.slab(), root, AT.get());
    let (forgot, noted, accesses) = (Cell::new(false), Cell::new(false), Cell::new(0));
    let mmu = || {
        accesses.set(accesses.get() + 1);
        let access = accesses.get();
        let now = cell::<G, F, _>(nodes.slab(), root, AT.get());
        assert!(F::BREAK || now.load(Ordering::Relaxed) != 0, "not mapped at access {access}");
        if access == moment {
            // SAFETY: retired nodes are not freed before their batch completes: the old leaf's cell is still one.
            let cell = if cached && !forgot.get() { unsafe { &*old } } else { now };
            let word = cell.load(Ordering::Relaxed);
            if word != 0 {
                // The bit stands at the same place at every level.
                cell.store(F::change(word, Change::set(Attr::DIRTY), true), Ordering::Relaxed);
                noted.set(true);
            }
        }
    };
    let mut flushed = |flush: &Flush| {
        assert!(flush.scope() == FlushScope::Everywhere);
        // A run is flushed by itself, and has the same links as what is made of it.
        assert!(if relinked { flush.covers(whole) && flush.links() } else { !flush.links() });
        if flush.covers(Pages::one(AT.vpn(K4))) {
            forgot.set(true);
        }
    };
    // SAFETY: nothing runs on these pages.
    nodes
        .at_accesses(&mmu, || writer.resize(whole, to, unsafe { FlushAll::breaking(&mut flushed) }))
        .unwrap();
    let accesses = accesses.get();
    // SAFETY: no CPU reclaims meanwhile.
    let leaf = table.lookup(unsafe { Pinned::by(&nodes) }, AT).unwrap();
    let frame = if to == K4 { 0x407 } else { 0x400 };
    assert_eq!((leaf.size, leaf.frame), (to, Pfn::new(frame)));
    let dirty = if noted.get() { STATUS } else { Attr::ACCESSED };
    assert_eq!(leaf.attr, RW | dirty, "the MMU stored at access {moment} of {accesses}");
    let batch = writer.finish();
    assert!((batch.flush().links() || !relinked) && batch.flush().covers(whole));
    // SAFETY: no CPU walks the table.
    unsafe {
        batch.reclaim();
        assert_eq!(table.footprint().ptes, if to == M2 { 1 } else { 512 });
        destroy(table).reclaim();
    }
    assert_eq!((nodes.slab().usage().nodes, nodes.held().lost()), (0, 0));
    moment <= accesses
}

fn dirtied<G: Radix, F: Format<Word = u64>>(step: usize) {
    // A TLB entry of the larger page is no way past the table: D is set by a walk.
    for (sizes, cached) in [((K4, M2), true), ((K4, M2), false), ((M2, K4), false)] {
        let moments =
            (1..).step_by(step).take_while(|&moment| dirtied_at::<G, F>(sizes, moment, cached)).count();
        assert!(moments > 3);
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes for a moment; the tests below take the same ways")]
fn what_hardware_notes_at_any_moment_of_a_change_of_size_is_kept() {
    dirtied::<Va48, X86>(1);
    dirtied::<Va39, Sv39>(7);
    dirtied::<Va48, Aarch64>(7);
}

/// Runs: pages in several slots, in any of which hardware notes status.
#[test]
#[cfg_attr(miri, ignore = "as above")]
fn what_hardware_notes_at_any_moment_of_a_change_of_a_run_is_kept() {
    fn dirtied<G: Radix, F: Format<Word = u64>>(step: usize) {
        const K64: PageSize = PageSize::K64;
        for (sizes, cached) in [
            ((K4, K64), false),
            ((K64, K4), false),
            ((K64, M2), true),
            ((K64, M2), false),
            ((M2, K64), false),
        ] {
            let moments =
                (1..).step_by(step).take_while(|&moment| dirtied_at::<G, F>(sizes, moment, cached)).count();
            assert!(moments > 3);
        }
    }
    dirtied::<Napot<Va39>, RiscvOf<true, true, false>>(7);
    dirtied::<Contiguous<Va48>, Aarch64Of<12, true, false>>(23);
    dirtied::<Contiguous<Va48>, Aarch64Of<12, true, true>>(17);
}

/// Pages whose status bits are all set change their size without a flush: one store each.
#[test]
fn a_size_changes_in_place_where_the_architecture_permits_it() {
    fn changes<G: Radix, F: Format<Word = u64>>() {
        let mut memory = vec![Chunk::ZERO; 12];
        let slab = Slab::<u64, Solo>::new(&mut memory, PHYS).unwrap();
        let table: Mpt<'_, G, F, _> = Mpt::new(&slab).unwrap();
        let mut writer = Writer::new(&table).unwrap();
        writer.map(pages(0x600, 512), Pfn::new(0x400), M2, RW | STATUS).unwrap();
        let told = &mut |_: &Flush| panic!("no CPU is to be told");
        writer.resize(pages(0x600, 512), K4, FlushAll::in_place(told)).unwrap();
        writer.resize(pages(0x600, 512), M2, FlushAll::in_place(told)).unwrap();
        // SAFETY: no CPU walks the table.
        unsafe {
            writer.finish().reclaim();
            destroy(table).reclaim();
        }
    }
    changes::<Va48, X86>();
    changes::<Va39, Sv39>();
}

#[test]
fn where_the_architecture_wants_a_break_it_takes_a_promise() {
    let mut memory = vec![Chunk::ZERO; 12];
    let slab = Slab::<u64, Solo>::new(&mut memory, PHYS).unwrap();
    let mut table = Local::new(Mpt::<'_, Va48, Aarch64, _>::new(&slab).unwrap(), |_| ());
    table.map(pages(0x600, 512), Pfn::new(0x400), M2, RW).unwrap();
    let before = table.lookup(AT);
    assert_eq!(table.resize(pages(0x600, 512), K4, FlushAll::in_place), Err(Error::Breaks));
    assert_eq!(table.lookup(AT), before);
    // SAFETY: nothing runs on these pages.
    table.resize(pages(0x600, 512), K4, |flush| unsafe { FlushAll::breaking(flush) }).unwrap();
    assert_eq!(table.lookup(AT).unwrap().size, K4);
    table.destroy();
}

/// A flush that unwinds leaves a whole table, and a batch that owns what is not in it.
#[test]
fn a_flush_that_unwinds_in_a_change_of_size_leaves_every_page_mapped() {
    fn unwinds<G: Radix, F: Format<Word = u64>>(from: PageSize, to: PageSize) {
        let mut memory = vec![Chunk::ZERO; 12];
        let slab = Slab::<u64, Solo>::new(&mut memory, PHYS).unwrap();
        let table: Mpt<'_, G, F, _> = Mpt::new(&slab).unwrap();
        let whole = pages(0x600, 512);
        let mut batch = table.batch();
        table.map(right(&table, &mut batch), whole, Pfn::new(0x400), from, RW).unwrap();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: this is the only writer, and the batch is the table's; nothing runs on these pages.
            let mut flush = |_: &Flush| panic!("the flush");
            // SAFETY: nothing runs on these pages.
            let flush = unsafe { FlushAll::breaking(&mut flush) };
            table.resize(right(&table, &mut batch), whole, to, flush)
        }));
        assert!(unwound.is_err());
        // SAFETY: no CPU reclaims meanwhile.
        let leaf = table.lookup(unsafe { Pinned::by(&slab) }, AT).unwrap();
        // In place the new leaf is there already; after a break the old one is there again, for the TLBs may hold it.
        assert_eq!((leaf.size, leaf.attr), (if F::BREAK { from } else { to }, RW));
        assert!(batch.flush().links() && batch.flush().covers(whole));
        // SAFETY: no CPU walks the table.
        unsafe {
            batch.reclaim();
            destroy(table).reclaim();
        }
        assert_eq!((slab.usage().nodes, slab.held().lost(), slab.held().pending()), (0, 0, 0));
    }
    unwinds::<Va48, X86>(K4, M2);
    unwinds::<Va39, Sv39>(K4, M2);
    unwinds::<Va48, Aarch64>(K4, M2);
    unwinds::<Va48, Aarch64>(M2, K4);
}

#[test]
fn the_dirty_bit_travels_with_the_frame() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Storage::new(&mut memory, PHYS).unwrap();
    let mut table = Local::new(Mpt::<'_, Va39, Sv39, _>::new(&slab).unwrap(), |_| ());
    table.map(pages(0x10, 4), Pfn::new(0x90), K4, RW).unwrap();
    cell::<Va39, Sv39, _>(&slab, table.table().root(), 0x12_000).fetch_or(3 << 6, Ordering::Relaxed);
    let run = |first, len, dirty| Uncovered::Frames(Run { first: Pfn::new(first), len, dirty });
    let wanted = [(0x10, run(0x90, 2, false)), (0x12, run(0x92, 1, true)), (0x13, run(0x93, 1, false))];
    let drained: Vec<_> = table.drain(pages(0x10, 4)).unwrap().collect();
    assert_eq!(drained, wanted.map(|(page, run)| (Vpn::new(page), run)));
    table.destroy();
}

#[test]
fn a_change_of_flags_never_makes_a_page_of_a_table() {
    let mut memory = vec![Chunk::ZERO; 12];
    let slab = Storage::new(&mut memory, PHYS).unwrap();
    let mut table = Local::new(Mpt::<'_, Va48, X86, _>::new(&slab).unwrap(), |_| ());
    table.map(pages(0x200, 3), Pfn::new(0x90), K4, RW).unwrap();
    table.map(pages(0x400, 512), Pfn::new(0x200), M2, RW).unwrap();
    let root = table.table().root();
    let dir = |at: usize| {
        let mut node = root;
        for shift in [39, 30] {
            // SAFETY: the node is in the table, and the index within it.
            node = X86::node(unsafe { slab.word(node, at >> shift & 511).follow() });
        }
        // SAFETY: the node is in the table, and the index within it.
        unsafe { slab.word(node, at >> 21 & 511).follow() }
    };
    let before = dir(0x20_0000);
    assert!(X86::is_link(before) && X86::is_leaf(dir(0x40_0000), false));
    let change = Change { set: Attr::GLOBAL | Attr::DEVICE, clear: Attr::WRITE };
    table.protect(pages(0x200, 1024), Holes::Skip, change).unwrap();
    assert_eq!(dir(0x20_0000), before, "the link to the table is as it was");
    assert_eq!(X86::attr(dir(0x40_0000), false), Attr::READ | Attr::GLOBAL | Attr::MEMORY);
    assert_eq!(table.lookup(VirtAddr::new(0x20_1000)).unwrap().frame, Pfn::new(0x91));
    // A part of the large page is refused by name.
    let cut = table.protect(pages(0x400, 1), Holes::Skip, change);
    assert!(matches!(cut, Err(Error::Partial { size, .. }) if size == M2));
    table.destroy();
}

#[test]
fn aarch64_refuses_to_change_the_memory_type_of_a_live_page() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Storage::new(&mut memory, PHYS).unwrap();
    let mut table = Local::new(Mpt::<'_, Va48, Aarch64, _>::new(&slab).unwrap(), |_| ());
    table.map(pages(1, 1), Pfn::new(9), K4, RW).unwrap();
    for attr in [Attr::DEVICE, Attr::UNCACHED, Attr::GLOBAL] {
        let refused = table.protect(pages(1, 1), Holes::Refuse, Change::set(attr));
        assert_eq!(refused, Err(Error::WrongAttr { attr }));
    }
    table.destroy();
}

#[test]
fn what_can_be_written_or_executed_can_be_read() {
    fn maps<G: Radix, F: Format<Word = u64>>() {
        let mut memory = vec![Chunk::ZERO; 8];
        let slab = Slab::<u64, Solo>::new(&mut memory, PHYS).unwrap();
        let mut table = Local::new(Mpt::<'_, G, F, _>::new(&slab).unwrap(), |_| ());
        for (page, attr) in [(1, Attr::WRITE), (2, Attr::EXEC), (3, RW | Attr::DEVICE)] {
            table.map(pages(page, 1), Pfn::new(9), K4, attr).unwrap();
            let found = table.lookup(VirtAddr::new(page << 12)).unwrap().attr;
            assert!(found.contains(attr | Attr::READ), "{found:?}");
        }
        // A page that allows nothing keeps its frame.
        for (page, attr) in [(4, Attr::empty()), (5, Attr::USER), (6, Attr::ACCESSED)] {
            table.map(pages(page, 1), Pfn::new(9), K4, attr).unwrap();
            assert_eq!(table.lookup(VirtAddr::new(page << 12)).unwrap().attr, attr);
        }
        table.destroy();
    }
    maps::<Va39, Sv39>();
    maps::<Va48, X86>();
    maps::<Va48, Aarch64>();
}

#[test]
fn lent_links_are_to_be_flushed_where_absence_may_be_cached() {
    fn lends<G: Radix, F: Format<Word = u64>>() -> Flush {
        let mut memory = vec![Chunk::ZERO; 16];
        let slab = Slab::<u64, Solo>::new(&mut memory, PHYS).unwrap();
        let mut table = Mpt::<'_, G, F, _>::new(&slab).unwrap();
        let slot = 1 << (G::VA_BITS - 12 - G::WIDTHS[0]);
        let flush = table.lend([pages(0, 2 * slot)]).unwrap();
        assert!(flush.scope() < FlushScope::Local || flush.covers(pages(0, 2 * slot)));
        // SAFETY: no CPU walks the table.
        unsafe { destroy(table).reclaim() };
        flush
    }
    let riscv = lends::<Va39, Sv39>();
    assert!(riscv.links() && riscv.scope() == FlushScope::Local);
    assert_eq!(lends::<Va48, X86>(), Flush::none());
    assert_eq!((lends::<Va48, Aarch64>().is_none(), lends::<Va39, Compact>()), (false, Flush::none()));
}

#[test]
fn where_absence_may_be_cached_a_new_page_asks_for_a_local_flush() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Storage::new(&mut memory, PHYS).unwrap();
    let table = Mpt::<'_, Va39, Sv39, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    let high = pages(usize::MAX >> 12, 1);
    writer.map(high, Pfn::new(1), K4, RW).unwrap();
    let batch = writer.finish();
    assert!(batch.flush().scope() == FlushScope::Local && batch.flush().covers(high));
    // SAFETY: no CPU walks the table.
    unsafe {
        batch.reclaim();
        destroy(table).reclaim();
    }
}

/// Compares what the words of a range tell with what its leaves say, for ranges with a page of the other kind at each place.
fn attributes_are_known<G: Radix, F: Format<Word = u64>>() {
    const USERS: Attr = RW.union(Attr::USER).union(Attr::ACCESSED);
    let mut memory = vec![Chunk::ZERO; 64];
    let nodes = Storage::new(&mut memory, PHYS).unwrap();
    let table: Mpt<'_, G, F, _> = Mpt::new(&nodes).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    // Small pages and a hole in two nodes, and a large page between them.
    writer.map(pages(0x1f0, 0x10), Pfn::new(0x40), K4, USERS).unwrap();
    writer.map(pages(0x200, 0x200), Pfn::new(0x200), M2, USERS).unwrap();
    writer.map(pages(0x400, 8), Pfn::new(0x80), K4, USERS).unwrap();
    let range = pages(0x1f0, 0x230);
    assert!(writer.all_have(range, Attr::USER) && writer.all_have(range, USERS));
    assert!(!writer.all_have(range, Attr::EXEC) && writer.all_have(pages(0x408, 8), Attr::EXEC));
    for other in [pages(0x1f0, 1), pages(0x1ff, 1), pages(0x200, 0x200), pages(0x400, 1), pages(0x407, 1)] {
        let users = Change { set: Attr::USER, clear: Attr::empty() };
        let supervisors = Change { set: Attr::empty(), clear: Attr::USER };
        writer.protect(other, Holes::Refuse, supervisors).unwrap();
        assert!(!writer.all_have(range, Attr::USER) && !writer.all_have(other, Attr::USER), "{other:?}");
        // A large page counts also where the range has a part of it alone.
        assert!(other.len() == 1 || !writer.all_have(pages(0x210, 1), Attr::USER));
        assert!(writer.all_have(pages(0x1f1, 14), Attr::USER));
        writer.protect(other, Holes::Refuse, users).unwrap();
    }
    assert!(writer.all_have(range, Attr::USER));
    // What an entry cannot have, no page has.
    let beyond = Attr::all().difference(F::OPTIONAL | F::IMPLIED);
    assert!(beyond.iter().all(|attr| !writer.all_have(range, attr)), "{beyond:?}");
    assert!((F::FIXED & F::OPTIONAL).iter().all(|attr| !writer.all_have(range, attr)));
    // Pages that the table does not have are not known.
    assert!(!writer.all_have(pages(usize::MAX >> 12, 1 << 12), Attr::USER));
    drop(writer);
    // SAFETY: nobody walks.
    unsafe { destroy(table).reclaim() };
}

#[test]
fn whether_all_pages_have_an_attribute_is_known() {
    attributes_are_known::<Va39, Sv39>();
    attributes_are_known::<Va48, X86>();
    attributes_are_known::<Va48, Aarch64>();
    attributes_are_known::<Va48, Compact>();
}
