//! Contiguous runs: pages in several slots, in any of which hardware notes what it does.
#![cfg(target_pointer_width = "64")]

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Aarch64Of, Format, RiscvOf};
use tlbkit_pagetable::geometry::{Napot, Runs, Va39, Va48};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes, Reclaim as _, Slab};
use tlbkit_pagetable::{
    Change, Entry, Error, FlushAll, Holes, PageCursor as _, Pinned, Radix, Shared, Table, Uncovered, Writer,
    destroy,
};

use crate::right::right;

type Svnapot = RiscvOf<true, true, false>;
type Contiguous = Aarch64Of<12, true, false>;
type ContiguousBbm2 = Aarch64Of<12, true, true>;

const K4: PageSize = PageSize::K4;
const K64: PageSize = PageSize::K64;
const M2: PageSize = PageSize::M2;
const RW: Attr = Attr::READ.union(Attr::WRITE);
/// A run's first page, and the page after its last.
const FIRST: usize = 0x610;
const AT: VirtAddr = VirtAddr::new(FIRST << 12);
/// A page of four runs.
const WHOLE: usize = 64;

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

/// Notes something in the slot in which a walk for a page ends, as hardware does.
fn note<G: Radix, F: Format<Word = u64>, N: Nodes<Word = u64>>(
    nodes: &N,
    root: NodeAddr,
    page: usize,
    attr: Attr,
) {
    let (mut node, mut shift) = (root, G::VA_BITS);
    for (level, width) in G::WIDTHS.iter().enumerate() {
        shift -= width;
        // SAFETY: the node is in the table, and the index within it.
        let cell = unsafe { &*nodes.at(node).add((page << 12) >> shift & ((1 << width) - 1)) };
        let word = cell.load(Ordering::Relaxed);
        let last = level + 1 == G::WIDTHS.len();
        if last || !F::is_link(word) {
            assert!(F::is_leaf(word, last));
            cell.store(F::change(word, Change::set(attr), last), Ordering::Relaxed);
            return;
        }
        node = F::node(word);
    }
}

/// Runs a test with a table in which four runs are mapped.
fn with<G: Radix, F: Format<Word = u64>>(
    test: impl for<'n> FnOnce(
        &Mpt<'n, G, F, Slab<'n, u64, Shared>>,
        &mut Writer<'_, 'n, Mpt<'n, G, F, Slab<'n, u64, Shared>>>,
        &'n Slab<'n, u64, Shared>,
        NodeAddr,
    ),
) {
    let mut memory = vec![Chunk::ZERO; 24];
    let slab = Slab::<u64, Shared>::new(&mut memory, 0x8020_0000).unwrap();
    let table: Mpt<'_, G, F, _> = Mpt::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    writer.map(pages(0x600, WHOLE), Pfn::new(0x400), K64, RW | Attr::COPY_ON_WRITE).unwrap();
    test(&table, &mut writer, &slab, table.root());
    // SAFETY: no CPU walks the table.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
    assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
}

/// Runs a test for each format.
macro_rules! each {
    ($test:ident) => {{
        $test::<Napot<Va39>, Svnapot>();
        $test::<Runs<Va48>, Contiguous>();
        $test::<Runs<Va48>, ContiguousBbm2>();
    }};
}

#[test]
fn a_page_has_the_status_of_all_its_slots() {
    fn test<G: Radix, F: Format<Word = u64>>() {
        with::<G, F>(|table, writer, slab, root| {
            note::<G, F, _>(slab, root, FIRST + 3, Attr::ACCESSED);
            note::<G, F, _>(slab, root, FIRST + 15, Attr::DIRTY);
            let attr = RW | Attr::COPY_ON_WRITE | Attr::ACCESSED | Attr::DIRTY;
            let whole = |attr| tlbkit_pagetable::Leaf { at: AT, size: K64, frame: Pfn::new(0x410), attr };
            // SAFETY: no CPU reclaims meanwhile.
            let pinned = unsafe { Pinned::by(slab) };
            for page in FIRST..FIRST + 16 {
                let at = VirtAddr::new(page << 12 | 0x123);
                assert_eq!(table.lookup(pinned, at), Some(whole(attr)));
                assert_eq!(table.entry(pinned, at), Entry::Leaf(whole(attr)));
                assert_eq!(table.translate(pinned, at).unwrap().get(), 0x41_0000 | at.get() & 0xffff);
            }
            let mut seen = Vec::new();
            let _ = table.for_each(pinned, pages(0, 0x1000), &mut |leaf| {
                seen.push(leaf);
                ControlFlow::Continue(())
            });
            let attrs: Vec<_> = seen.iter().map(|leaf| leaf.attr).collect();
            assert_eq!(
                attrs,
                [RW | Attr::COPY_ON_WRITE, attr, RW | Attr::COPY_ON_WRITE, RW | Attr::COPY_ON_WRITE]
            );
            assert_eq!(seen[1], whole(attr));
            // The cursor, and a change of rights, which returns the page as it was and clears what is to be cleared everywhere.
            let mut cursor = writer.cursor(Vpn::new(FIRST + 7)).unwrap();
            assert_eq!(cursor.look(), Some(whole(attr)));
            let clean = Change::clear(Attr::DIRTY | Attr::WRITE);
            assert_eq!(cursor.protect(clean), Ok(whole(attr)));
            assert_eq!(cursor.look(), Some(whole(attr - Attr::DIRTY - Attr::WRITE)));
            assert!(cursor.pending().flush().covers(pages(FIRST, 16)));
            assert_eq!(cursor.unmap(), Ok(whole(attr - Attr::DIRTY - Attr::WRITE)));
            assert_eq!(cursor.look(), None);
        });
    }
    each!(test);
}

/// The frames that a drain uncovers, how many, and whether they are dirty.
fn drained<'n>(writer: &mut Writer<'_, 'n, impl Table<'n>>, pages: Pages) -> Vec<(usize, usize, bool)> {
    let flat = |(_, uncovered)| match uncovered {
        Uncovered::Frames(run) => (run.first.get(), run.len, run.dirty),
        Uncovered::Mark(mark) => panic!("{mark:?}"),
    };
    writer.drain(pages).unwrap().map(flat).collect()
}

#[test]
fn a_run_that_was_written_anywhere_gives_its_frames_back_dirty() {
    fn test<G: Radix, F: Format<Word = u64>>() {
        with::<G, F>(|_, writer, slab, root| {
            note::<G, F, _>(slab, root, FIRST + 9, Attr::DIRTY);
            let run = |first, dirty| (first, 16, dirty);
            assert_eq!(
                drained(writer, pages(0x600, WHOLE)),
                [run(0x400, false), run(0x410, true), run(0x420, false), run(0x430, false)]
            );
        });
    }
    each!(test);
}

/// So does one of blocks, wherever hardware has noted the store.
#[test]
fn a_run_of_blocks_that_was_written_anywhere_gives_its_frames_back_dirty() {
    let mut memory = vec![Chunk::ZERO; 24];
    let slab = Slab::<u64, Shared>::new(&mut memory, 0x8020_0000).unwrap();
    let table: Mpt<'_, Runs<Va48>, Contiguous, _> = Mpt::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    let (m32, first) = (PageSize::from_shift(25).unwrap(), 0x1_2000);
    for (block, status) in [(0, Attr::DIRTY), (7, Attr::DIRTY), (15, Attr::DIRTY), (3, Attr::ACCESSED)] {
        writer.map(pages(first, 0x6000), Pfn::new(0x4000), m32, RW).unwrap();
        // SAFETY: no CPU reclaims meanwhile.
        let pinned = unsafe { Pinned::by(&slab) };
        let attr = |page| table.lookup(pinned, VirtAddr::new(page << 12)).unwrap().attr;
        note::<Runs<Va48>, Contiguous, _>(&slab, table.root(), first + 0x2000 + (block << 9), status);
        assert_eq!((attr(first), attr(first + 0x2000)), (RW, RW | status));
        let run = |first, dirty| (first, 0x2000, dirty);
        let wanted = [run(0x4000, false), run(0x6000, status == Attr::DIRTY), run(0x8000, false)];
        assert_eq!(drained(&mut writer, pages(first, 0x6000)), wanted);
    }
    // SAFETY: no CPU walks the table.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
}

#[test]
fn a_run_is_cut_nowhere() {
    fn test<G: Radix, F: Format<Word = u64>>() {
        with::<G, F>(|_, writer, _, _| {
            for range in [pages(FIRST + 1, 15), pages(FIRST, 15), pages(FIRST + 4, 1)] {
                let cut = |result: Result<usize, Error>| matches!(result, Err(Error::Partial { size, .. }) if size == K64);
                assert!(cut(writer.unmap(range, Holes::Skip)));
                assert!(cut(writer.protect(range, Holes::Skip, Change::clear(Attr::WRITE))));
            }
        });
    }
    each!(test);
}

#[test]
fn a_run_is_replaced_as_a_whole_and_returned_with_its_status() {
    fn test<G: Radix, F: Format<Word = u64>>() {
        with::<G, F>(|table, writer, slab, root| {
            note::<G, F, _>(slab, root, FIRST + 2, Attr::DIRTY);
            // SAFETY: nothing runs on these pages.
            let old =
                unsafe { writer.replace(AT, Pfn::new(0x800), RW, FlushAll::breaking(&mut |_| ())) }.unwrap();
            assert_eq!((old.frame, old.attr), (Pfn::new(0x410), RW | Attr::COPY_ON_WRITE | Attr::DIRTY));
            // SAFETY: no CPU reclaims meanwhile.
            let pinned = unsafe { Pinned::by(slab) };
            for page in 0..16 {
                let leaf = table.lookup(pinned, VirtAddr::new((FIRST + page) << 12)).unwrap();
                assert_eq!((leaf.frame, leaf.size, leaf.attr), (Pfn::new(0x800), K64, RW));
            }
            if F::BREAK_FRAME {
                // A flush that unwinds puts the old page back, with its status.
                note::<G, F, _>(slab, root, FIRST + 5, Attr::ACCESSED);
                let unwound = catch_unwind(AssertUnwindSafe(|| {
                    // SAFETY: nothing runs on these pages.
                    unsafe {
                        writer.replace(
                            AT,
                            Pfn::new(0x400),
                            RW,
                            FlushAll::breaking(&mut |_| panic!("the flush")),
                        )
                    }
                }));
                assert!(unwound.is_err());
                let leaf = table.lookup(pinned, VirtAddr::new((FIRST + 15) << 12)).unwrap();
                assert_eq!((leaf.frame, leaf.size, leaf.attr), (Pfn::new(0x800), K64, RW | Attr::ACCESSED));
            }
        });
    }
    each!(test);
}

/// Each block of a run has its own address, in the new page as in the old one that an unwinding flush puts back.
#[test]
fn a_run_of_blocks_is_replaced_block_by_block() {
    let mut memory = vec![Chunk::ZERO; 24];
    let slab = Slab::<u64, Shared>::new(&mut memory, 0x8020_0000).unwrap();
    let table: Mpt<'_, Runs<Va48>, Contiguous, _> = Mpt::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    let (m32, first) = (PageSize::from_shift(25).unwrap(), 0x1_2000);
    writer.map(pages(first, 0x2000), Pfn::new(0x4000), m32, RW).unwrap();
    let frames = |frame: usize| {
        for block in 0..16 {
            let (mut node, page) = (table.root(), first + (block << 9));
            for shift in [27, 18] {
                // SAFETY: the node is in the table, and the index within it.
                node = Contiguous::node(unsafe {
                    (*slab.at(node).add(page >> shift & 511)).load(Ordering::Relaxed)
                });
            }
            // SAFETY: the node is in the table, and the index within it.
            let word = unsafe { (*slab.at(node).add(page >> 9 & 511)).load(Ordering::Relaxed) };
            assert_eq!(word >> 12 & ((1 << 36) - 1), (frame + (block << 9)) as u64, "block {block}");
        }
    };
    frames(0x4000);
    let at = VirtAddr::new((first + 0x1234) << 12);
    // SAFETY: nothing runs on these pages.
    let old = unsafe { writer.replace(at, Pfn::new(0x8000), RW, FlushAll::breaking(&mut |_| ())) }.unwrap();
    assert_eq!((old.frame, old.size), (Pfn::new(0x4000), m32));
    frames(0x8000);
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: nothing runs on these pages.
        unsafe { writer.replace(at, Pfn::new(0x4000), RW, FlushAll::breaking(&mut |_| panic!("the flush"))) }
    }));
    assert!(unwound.is_err());
    frames(0x8000);
    // SAFETY: no CPU walks the table.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
}

/// A store to one page of a run is one to all, as far as software can tell; and so it is when they become one.
#[test]
fn what_a_run_becomes_has_its_status() {
    fn test<G: Radix, F: Format<Word = u64>>() {
        with::<G, F>(|table, writer, slab, root| {
            let whole = pages(0x600, WHOLE);
            let mut resize = |to: PageSize, noted: usize, attr: Attr| {
                note::<G, F, _>(slab, root, noted, attr);
                // SAFETY: nothing runs on these pages.
                unsafe { writer.resize(whole, to, FlushAll::breaking(&mut |flush| assert!(!flush.links()))) }
                    .unwrap();
                // SAFETY: no CPU reclaims meanwhile.
                let pinned = unsafe { Pinned::by(slab) };
                let found = |page: usize| table.lookup(pinned, VirtAddr::new(page << 12)).unwrap();
                (0x600..0x600 + WHOLE)
                    .map(|page| {
                        let leaf = found(page);
                        let frame = 0x400 + ((page - 0x600) & !(to.pages(K4).unwrap() - 1));
                        assert_eq!((leaf.size, leaf.frame), (to, Pfn::new(frame)));
                        leaf.attr - RW - Attr::COPY_ON_WRITE
                    })
                    .collect::<Vec<_>>()
            };
            let split = resize(K4, FIRST + 8, Attr::DIRTY);
            let is_dirty = |page: usize| page / 16 == 1;
            assert!(
                split.iter().enumerate().all(|(page, &attr)| attr.contains(Attr::DIRTY) == is_dirty(page))
            );
            let joined = resize(K64, 0x600 + 35, Attr::ACCESSED);
            let expected = [Attr::empty(), Attr::DIRTY, Attr::ACCESSED, Attr::empty()];
            assert!(joined.iter().enumerate().all(|(page, &attr)| attr == expected[page / 16]));
        });
    }
    each!(test);
}

#[test]
fn a_flush_that_unwinds_leaves_every_page_of_a_run_mapped() {
    fn test<G: Radix, F: Format<Word = u64>>(from: PageSize, to: PageSize) {
        let mut memory = vec![Chunk::ZERO; 40];
        let slab = Slab::<u64, Shared>::new(&mut memory, 0x8020_0000).unwrap();
        let table: Mpt<'_, G, F, _> = Mpt::new(&slab).unwrap();
        let whole = pages(0x2000, 0x2000);
        let mut batch = table.batch();
        table.map(right(&table, &mut batch), whole, Pfn::new(0x4000), from, RW).unwrap();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: this is the only writer, and the batch is the table's; nothing runs on these pages.
            let mut flush = |_: &Flush| panic!("the flush");
            // SAFETY: nothing runs on these pages.
            let flush = unsafe { FlushAll::breaking(&mut flush) };
            table.resize(right(&table, &mut batch), whole, to, flush)
        }));
        assert!(unwound.is_err());
        // SAFETY: no CPU reclaims meanwhile.
        let pinned = unsafe { Pinned::by(&slab) };
        for page in [0x2000, 0x2fff, 0x3fff] {
            let at = VirtAddr::new(page << 12);
            assert_eq!(table.translate(pinned, at).unwrap().get(), (page + 0x2000) << 12);
            assert_eq!(table.lookup(pinned, at).unwrap().size, from);
        }
        // SAFETY: no CPU walks the table.
        unsafe {
            batch.reclaim();
            destroy(table).reclaim();
        }
        assert_eq!((slab.usage().nodes, slab.held().lost(), slab.held().pending()), (0, 0, 0));
    }
    let m32 = PageSize::from_shift(25).unwrap();
    for (from, to) in [(K64, K4), (K4, K64), (m32, M2), (m32, K4), (M2, m32), (K64, m32), (K4, m32)] {
        test::<Runs<Va48>, Contiguous>(from, to);
    }
}
