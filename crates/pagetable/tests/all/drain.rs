//! Ranges that are drained: each leaf and mark is taken out when the iterator is asked for it, and nothing that can fail is left to
//! the iterator.
#![cfg(target_pointer_width = "64")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Compact, X86};
use tlbkit_pagetable::geometry::Va48;
use tlbkit_pagetable::mpt::{Mpt, Mpt4};
use tlbkit_pagetable::nodes::{Chunk, Reclaim as _, Slab};
use tlbkit_pagetable::{
    Error, Holes, Local, Mark, Pinned, Rest, Run, Shared, Solo, Table, Uncovered, Writer, destroy,
};

use crate::common::kinds;

const K4: PageSize = PageSize::K4;
const M2: PageSize = PageSize::M2;

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

/// Returns the first page, the first frame, the number of frames and whether they are dirty, of leaves.
fn flat((page, uncovered): (Vpn, Uncovered)) -> (usize, usize, usize, bool) {
    let Uncovered::Frames(run) = uncovered else { panic!("{uncovered:?}") };
    (page.get(), run.first.get(), run.len, run.dirty)
}

/// Calls a test with a new table of each organisation.
fn each(test: impl Fn(&dyn Table<'_>)) {
    let mut memory = vec![Chunk::ZERO; if cfg!(miri) { 64 } else { 512 }];
    let slab = Slab::<u64, Shared>::new(&mut memory, 0).unwrap();
    fn with<'n, T: Table<'n>>(table: Result<T, Error>, test: &impl Fn(&dyn Table<'_>)) {
        let table = table.unwrap();
        test(&table);
        // SAFETY: no CPU walks the table.
        unsafe { destroy(table).reclaim() };
    }
    macro_rules! kind {
        ($name:ident, $kind:ident, $change:ident) => {
            with(kinds::$kind::<Va48, Compact, _>::new(&slab), &test);
        };
    }
    each_own_kind!(kind);
    assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
}

/// Returns the first frame of the leaf that maps a page.
fn frame(table: &dyn Table<'_>, page: usize) -> Option<usize> {
    // SAFETY: nothing is reclaimed meanwhile.
    let pinned = unsafe { Pinned::by(&page) };
    table.lookup(pinned, VirtAddr::new(page << 12)).map(|leaf| leaf.frame.get())
}

/// Whatever can be refused is refused before the first page is taken out; then no page is. After that nothing fails, although there
/// is no memory for a node.
#[test]
fn everything_that_fails_fails_first() {
    each(|table| {
        let mut writer = Writer::new(table).unwrap();
        writer.map(pages(0x200, 0x400), Pfn::new(0x200), M2, Attr::READ).unwrap();
        writer.map(pages(0x1ff, 1), Pfn::new(9), K4, Attr::READ).unwrap();
        writer.map(pages(0x600, 1), Pfn::new(8), K4, Attr::READ).unwrap();
        // SAFETY: no CPU walks the table.
        unsafe { writer.pending().unwrap().take().reclaim() };
        let before = table.footprint();
        let cut = |at: usize| Some(Error::Partial { at: VirtAddr::new(at), size: M2 });
        assert_eq!(writer.drain(pages(0x1ff, 0x300)).err(), cut(0x40_0000));
        assert_eq!(writer.drain(pages(0x201, 0x400)).err(), cut(0x20_0000));
        assert_eq!(writer.drain(pages(0x200, 0x3ff)).err(), cut(0x40_0000));
        let outside = writer.drain(pages((1 << 35) - 1, 2)).err();
        assert!(matches!(outside, Some(Error::OutOfRange { .. })), "{outside:?}");
        assert!(writer.pending().is_none_or(|pending| pending.is_empty()));
        assert_eq!(table.footprint(), before);

        let mut drained: Vec<_> = writer.drain(pages(0x1ff, 0x402)).unwrap().map(flat).collect();
        drained.sort_unstable();
        let mut all: Vec<_> = drained
            .iter()
            .flat_map(|&(page, frame, len, _)| (0..len).map(move |at| (page + at, frame + at)))
            .collect();
        all.sort_unstable();
        let wanted =
            [(0x1ff, 9)].into_iter().chain((0x200..0x600).map(|page| (page, page))).chain([(0x600, 8)]);
        assert!(all.into_iter().eq(wanted), "{drained:x?}");
        let batch = writer.finish();
        assert!(
            batch.flush().covers(pages(0x1ff, 0x402))
                || drained.iter().all(|&(page, _, len, _)| batch.flush().covers(pages(page, len)))
        );
        // SAFETY: no CPU walks the table.
        unsafe { batch.reclaim() };
        assert_eq!(table.footprint().ptes, 0);
    });
}

/// A call that meets a leaf of which a part is in the range changes nothing.
#[test]
fn a_leaf_is_taken_out_as_a_whole() {
    each(|table| {
        let mut writer = Writer::new(table).unwrap();
        writer.map(pages(0x200, 0x200), Pfn::new(0x200), M2, Attr::READ).unwrap();
        // SAFETY: no CPU walks the table.
        unsafe { writer.pending().unwrap().take().reclaim() };
        let mut rest = Rest::of(pages(0x100, 0x200));
        let cut = Error::Partial { at: VirtAddr::new(0x20_0000), size: M2 };
        assert_eq!(writer.take_next(&mut rest), Err(cut));
        assert!(writer.pending().is_none_or(|pending| pending.is_empty()));
        assert_eq!(frame(table, 0x300), Some(0x200));
    });
}

/// What the iterator has not been asked for stays, whether it is dropped or forgotten, and so does the writer's obligation.
#[test]
fn the_rest_of_a_range_stays_mapped() {
    each(|table| {
        let mut writer = Writer::new(table).unwrap();
        for page in 0..20 {
            // No two of the frames are neighbours.
            writer.map(pages(page, 1), Pfn::new(3 * page), K4, Attr::READ).unwrap();
        }
        // SAFETY: no CPU walks the table.
        unsafe { writer.pending().unwrap().take().reclaim() };
        let mut gone = BTreeMap::new();
        for forgotten in [false, true] {
            let mut drain = writer.drain(pages(0, 20)).unwrap();
            for _ in 0..5 {
                let (page, frame, len, _) = drain.next().map(flat).unwrap();
                assert_eq!((frame, len, gone.insert(page, frame)), (3 * page, 1, None));
            }
            if forgotten {
                forget(drain);
            } else {
                drop(drain);
            }
            let pending = writer.pending().unwrap();
            let flush = pending.flush();
            assert!(gone.keys().all(|&page| flush.covers(pages(page, 1))), "{flush:?}");
            let there = |page: &usize| frame(table, *page).is_some();
            assert!((0..20).all(|page| there(&page) != gone.contains_key(&page)));
        }
        assert_eq!(table.footprint().ptes, 10);
        assert_eq!(writer.unmap(pages(0, 20), Holes::Skip), Ok(10));
        assert_eq!(writer.drain(pages(0, 20)).unwrap().next(), None);
        // SAFETY: no CPU walks the table.
        unsafe { writer.finish().reclaim() };
    });
}

/// Of a range that has more blocks than a hashed table has buckets, the entries come in the order of the buckets: each once, though
/// the table could shrink meanwhile.
#[test]
fn a_range_as_large_as_the_space_comes_once() {
    let count = if cfg!(miri) { 20 } else { 300 };
    each(|table| {
        let mut writer = Writer::new(table).unwrap();
        for number in 0..count {
            writer.map(pages(number << 12, 1), Pfn::new(2 * number), K4, Attr::READ).unwrap();
            writer.mark(VirtAddr::new((number << 24) + 0x1000), Some(Mark::Guard)).unwrap();
        }
        writer.map(pages(1 << 25, 0x200), Pfn::new(0x2000), M2, Attr::READ).unwrap();
        let all = table.space().halves()[0].unwrap();
        let (mut leaves, mut marks, mut large) = (Vec::new(), Vec::new(), 0);
        for (page, uncovered) in writer.drain(all).unwrap() {
            match uncovered {
                Uncovered::Frames(Run { len: 0x200, .. }) => large += 1,
                Uncovered::Frames(run) => leaves.push((page.get(), run.first.get())),
                Uncovered::Mark(mark) => marks.push((page.get(), mark)),
            }
        }
        leaves.sort_unstable();
        marks.sort_unstable_by_key(|&(page, _)| page);
        assert!(leaves.into_iter().eq((0..count).map(|number| (number << 12, 2 * number))));
        assert!(marks.into_iter().eq((0..count).map(|number| ((number << 12) + 1, Mark::Guard))));
        assert_eq!((large, table.footprint().ptes), (1, 0));
        // SAFETY: no CPU walks the table.
        unsafe { writer.finish().reclaim() };
    });
}

/// A local table has flushed when the iterator returns, so that a caller may use the frames, and forget the iterator.
#[test]
fn a_local_table_flushes_before_it_hands_frames_over() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let flushed = Cell::new(0);
    let mut table = Local::new(Mpt4::new(&slab).unwrap(), |_stale| flushed.set(flushed.get() + 1));
    for page in 0..3 {
        table.map(pages(2 * page, 1), Pfn::new(5 * page), K4, Attr::READ).unwrap();
    }
    let before = flushed.get();
    let mut drain = table.drain(pages(0, 8)).unwrap();
    assert_eq!((drain.next().map(flat), flushed.get()), (Some((0, 0, 1, false)), before + 1));
    assert_eq!((drain.next().map(flat), flushed.get()), (Some((2, 5, 1, false)), before + 2));
    forget(drain);
    let mapped = |page: usize| table.lookup(VirtAddr::new(page << 12)).is_some();
    assert_eq!([0, 2, 4].map(mapped), [false, false, true]);
    assert_eq!(table.drain(pages(4, 1)).unwrap().map(flat).collect::<Vec<_>>(), [(4, 10, 1, false)]);
    assert_eq!(table.drain(pages(0, 8)).unwrap().next(), None);
    table.destroy();
}

/// Marks come in their places among the pages, and end a run.
#[test]
fn marks_come_with_the_pages() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u64, Shared>::new(&mut memory, 0).unwrap();
    let table = Mpt4::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    writer.map(pages(0, 2), Pfn::new(4), K4, Attr::READ).unwrap();
    writer.mark(VirtAddr::new(0x2000), Some(Mark::Guard)).unwrap();
    writer.map(pages(3, 1), Pfn::new(6), K4, Attr::READ | Attr::DIRTY).unwrap();
    let run = |first, len, dirty| Uncovered::Frames(Run { first: Pfn::new(first), len, dirty });
    let wanted = [(0, run(4, 2, false)), (2, Uncovered::Mark(Mark::Guard)), (3, run(6, 1, true))];
    let drained: Vec<_> = writer.drain(pages(0, 9)).unwrap().collect();
    assert_eq!(drained, wanted.map(|(page, uncovered)| (Vpn::new(page), uncovered)));
    assert_eq!(table.footprint().nodes, 1);
    // SAFETY: no CPU walks the table.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
}

/// Entries that differ in nothing but the frame are one run, in a visit and in a drain. The frame behind the highest one is not
/// the lowest, though its entry with one attribute more is what the highest frame's grows to.
#[test]
fn neighbours_are_one_run_and_the_ends_of_memory_are_not() {
    const HIGHEST: usize = (1 << 40) - 1;
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Mpt::<Va48, X86, _>::new(&slab).unwrap(), |_stale| ());
    let dirty = Attr::READ | Attr::DIRTY;
    let mapped = [
        (0, HIGHEST, Attr::READ),
        (1, 0, Attr::READ | Attr::SOFT_2),
        (3, 7, dirty),
        (4, 8, dirty),
        (6, 9, dirty),
        (7, 10, Attr::READ),
        (8, 12, Attr::READ),
    ];
    for (page, frame, attr) in mapped {
        table.map(Pages::one(Vpn::new(page)), Pfn::new(frame), K4, attr).unwrap();
    }
    let pages = Pages::count(Vpn::new(0), 512).unwrap();

    let wanted = [
        (0, HIGHEST, 1, false),
        (1, 0, 1, false),
        (3, 7, 2, true),
        (6, 9, 1, true),
        (7, 10, 1, false),
        (8, 12, 1, false),
    ];
    // A page that is dirty by hardware is no part of the run of the others: the bits are compared.
    let drained: Vec<_> = table.drain(pages).unwrap().map(flat).collect();
    assert_eq!(drained, wanted);
    table.destroy();
}

/// Between two pages of a range others are unmapped, so that a hashed table shrinks, and its entries stand in other buckets: the rest of
/// the range comes all the same.
#[test]
fn the_rest_comes_after_other_pages_have_gone() {
    each(|table| {
        let mut writer = Writer::new(table).unwrap();
        let (count, other) = if cfg!(miri) { (8, 24) } else { (100, 250) };
        // No two of the pages or frames are neighbours, and the range has more blocks than a table has buckets.
        for page in 0..count {
            writer.map(pages(page << 9, 1), Pfn::new(3 * page), K4, Attr::READ).unwrap();
        }
        for page in 0..other {
            writer.map(pages((1 << 30) + (page << 9), 1), Pfn::new(3 * page), K4, Attr::READ).unwrap();
        }
        let mut rest = Rest::of(pages(0, 1 << 30));
        let mut gone = Vec::new();
        for taken in 0..count {
            if taken == count / 2 {
                for page in 0..other {
                    writer.unmap(pages((1 << 30) + (page << 9), 1), Holes::Refuse).unwrap();
                }
            }
            gone.extend(writer.take_next(&mut rest).unwrap().map(|(page, _)| page.get() >> 9));
        }
        assert_eq!(writer.take_next(&mut rest), Ok(None));
        gone.sort_unstable();
        assert!(gone.into_iter().eq(0..count));
        // SAFETY: no CPU walks the table.
        unsafe { writer.finish().reclaim() };
    });
}

/// What waits for a flush that unwinds is returned after the next one.
#[test]
fn a_flush_that_unwinds_loses_no_frame() {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let flushes = Cell::new(0);
    let mut table = Local::new(Mpt4::new(&slab).unwrap(), |_: &Flush| {
        flushes.set(flushes.get() + 1);
        if flushes.get() == 2 {
            resume_unwind(Box::new("the flush unwinds"));
        }
    });
    for page in 0..4 {
        table.map(pages(page, 1), Pfn::new(3 * page), K4, Attr::READ).unwrap();
    }
    let mut drain = table.drain(pages(0, 4)).unwrap();
    let mut gone = Vec::new();
    let mut unwound = 0;
    loop {
        match catch_unwind(AssertUnwindSafe(|| drain.next())) {
            Ok(Some((page, _))) => gone.push(page.get()),
            Ok(None) => break,
            Err(_) => unwound += 1,
        }
    }
    drop(drain);
    assert_eq!((gone, unwound), (vec![0, 1, 2, 3], 1));
    table.destroy();
}
