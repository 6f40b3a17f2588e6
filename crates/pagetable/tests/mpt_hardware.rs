//! Multi-level tables that hardware walks: status bits, break before make, and links that no change can harm.
#![cfg(all(target_pointer_width = "64", not(tlbkit_loom)))]

use std::sync::atomic::{AtomicU64, Ordering};

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, Reach, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Aarch64, Format, Sv39, X86};
use tlbkit_pagetable::geometry::{Va39, Va48};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes, Slab};
use tlbkit_pagetable::{Change, Error, Holes, Local, Pinned, Radix, Run, Runs, Solo, Table, Writer, destroy};

const PHYS: usize = 0x8020_0000;
const K4: PageSize = PageSize::K4;
const M2: PageSize = PageSize::M2;
const RW: Attr = Attr::READ.union(Attr::WRITE);

type Storage<'m> = Slab<'m, u64, Solo>;

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

/// Returns the cell at which hardware's walk for `at` ends: it follows links and knows nothing else.
fn cell<'s, G: Radix, F: Format<Word = u64>>(
    slab: &'s Storage<'_>,
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

/// A page that hardware writes while its size is being changed is dirty afterwards, whatever its size.
fn dirty_through_a_change_of_size<G: Radix, F: Format<Word = u64>>(note: impl Fn(u64) -> u64) {
    let mut memory = vec![Chunk::ZERO; 12];
    let slab = Storage::new(&mut memory, PHYS).unwrap();
    let table: Mpt<'_, G, F, _> = Mpt::new(&slab).unwrap();
    let at = VirtAddr::new(0x0060_7000);
    let whole = pages(0x600, 512);
    let mut writer = Writer::new(&table).unwrap();
    writer.map(whole, Pfn::new(0x400), K4, RW | Attr::ACCESSED).unwrap();

    // The CPU that stores has the way to the old leaf in its caches until it flushes.
    let note_at = |cell: &AtomicU64| {
        let word = cell.load(Ordering::Relaxed);
        cell.store(note(word), Ordering::Relaxed);
    };
    let old = cell::<G, F>(&slab, table.root(), at.get());
    let mut flushed = Flush::none();
    writer
        .resize(whole, M2, &mut |flush| {
            assert_eq!(cell::<G, F>(&slab, table.root(), at.get()).load(Ordering::Relaxed), 0);
            note_at(old);
            flushed.merge(flush);
        })
        .unwrap();
    assert!(flushed.covers(whole) && flushed.reach() == Reach::Everywhere);
    // SAFETY: nobody reclaims meanwhile.
    let leaf = table.lookup(unsafe { Pinned::by(&slab) }, at).unwrap();
    assert_eq!((leaf.size, leaf.attr), (M2, RW | Attr::ACCESSED | Attr::DIRTY));

    writer.resize(whole, K4, &mut |_| ()).unwrap();
    // SAFETY: as above.
    let leaf = table.lookup(unsafe { Pinned::by(&slab) }, at).unwrap();
    assert_eq!((leaf.frame, leaf.size), (Pfn::new(0x407), K4));
    assert_eq!(leaf.attr, RW | Attr::ACCESSED | Attr::DIRTY);
    let batch = writer.finish();
    // SAFETY: nobody walks.
    unsafe { batch.reclaim() };
    assert_eq!(table.footprint().ptes, 512);
    // SAFETY: as above.
    unsafe { destroy(table).reclaim() };
    assert_eq!(slab.usage().nodes, 0);
}

#[test]
fn what_hardware_notes_during_a_change_of_size_is_kept() {
    dirty_through_a_change_of_size::<Va48, X86>(|word| word | 1 << 6);
    dirty_through_a_change_of_size::<Va39, Sv39>(|word| word | 1 << 7);
    dirty_through_a_change_of_size::<Va48, Aarch64>(|word| word & !(1 << 7));
}

#[test]
fn the_dirty_bit_travels_with_the_frame() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Storage::new(&mut memory, PHYS).unwrap();
    let mut table = Local::new(Mpt::<'_, Va39, Sv39, _>::new(&slab).unwrap(), |_| ());
    table.map(pages(0x10, 4), Pfn::new(0x90), K4, RW).unwrap();
    cell::<Va39, Sv39>(&slab, table.table().root(), 0x12_000).fetch_or(3 << 6, Ordering::Relaxed);
    let mut room = [None; 4];
    let mut runs = Runs::new(&mut room);
    table.unmap(pages(0x10, 4), Holes::Refuse, Some(&mut runs)).unwrap();
    let run = Run { first: Pfn::new(0x90), len: 4, dirty: true };
    assert_eq!(runs.iter().collect::<Vec<_>>(), [run]);
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
            // SAFETY: nodes of the table.
            node = X86::node(unsafe { slab.follow(node, at >> shift & 511) });
        }
        // SAFETY: as above.
        unsafe { slab.follow(node, at >> 21 & 511) }
    };
    let before = dir(0x20_0000);
    assert!(X86::is_link(before) && X86::is_leaf(dir(0x40_0000), false));
    let change = Change { set: Attr::GLOBAL | Attr::DEVICE, clear: Attr::WRITE };
    table.protect(pages(0x200, 1024), Holes::Skip, change).unwrap();
    assert_eq!(dir(0x20_0000), before, "the link to the table is as it was");
    assert_eq!(X86::attr(dir(0x40_0000)), Attr::READ | Attr::GLOBAL | Attr::MEMORY);
    assert_eq!(table.lookup(VirtAddr::new(0x20_1000)).unwrap().frame, Pfn::new(0x91));
    // A part of the large page is refused by name.
    let cut = table.protect(pages(0x400, 1), Holes::Skip, change);
    assert!(matches!(cut, Err(Error::Partial { occupant }) if occupant.size == M2));
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
fn where_absence_may_be_cached_a_new_page_asks_for_a_local_flush() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Storage::new(&mut memory, PHYS).unwrap();
    let table = Mpt::<'_, Va39, Sv39, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    let high = pages(usize::MAX >> 12, 1);
    writer.map(high, Pfn::new(1), K4, RW).unwrap();
    let batch = writer.finish();
    assert!(batch.flush().reach() == Reach::Local && batch.flush().covers(high));
    // SAFETY: nobody walks.
    unsafe {
        batch.reclaim();
        destroy(table).reclaim();
    }
}
