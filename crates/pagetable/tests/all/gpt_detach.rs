//! A range of a guarded table that is detached: what is left of the table, and what the leaves hand over.

use crate::common::numbers::Numbers;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::gpt::{Adaptive, Digits, Fixed, Gpt32};
use tlbkit_pagetable::nodes::{Chunk, Reclaim as _, Slab};
use tlbkit_pagetable::{
    Entry, Error, Geometry, Holes, Mark, Pinned, Retired, Shared, Table, Uncovered, Writer, destroy,
};

const K4: PageSize = PageSize::K4;
type Pairs<'m, P> = Gpt32<'m, Slab<'m, u32, Shared>, P>;

/// Returns all entries, by page.
fn entries<'n>(table: &impl Table<'n>, pages: Pages) -> BTreeMap<usize, Entry> {
    let mut found = BTreeMap::new();
    // SAFETY: nothing is reclaimed meanwhile.
    let _ = table.for_each_entry(unsafe { Pinned::by(table) }, pages, &mut |at, entry| {
        found.insert(at.vpn(K4).get(), entry);
        ControlFlow::Continue(())
    });
    found
}

/// The base frames and the payloads of entries, in ascending order.
fn contents(entries: impl Iterator<Item = Uncovered>) -> (Vec<usize>, Vec<Mark>) {
    let (mut frames, mut marks) = (Vec::new(), Vec::new());
    for held in entries {
        match held {
            Uncovered::Frames(run) => frames.extend(run.frames().map(Pfn::get)),
            Uncovered::Mark(mark) => marks.push(mark),
        }
    }
    frames.sort_unstable();
    marks.sort_by_key(|mark| format!("{mark:?}"));
    (frames, marks)
}

/// Compares a table of which ranges are detached with one of which they are unmapped.
fn is_as_unmapped<P: Digits>(seed: usize) {
    let mut memories = [(); 2].map(|()| vec![Chunk::ZERO; 256]);
    let slabs = memories.each_mut().map(|memory| Slab::<u32, Shared>::new(memory, 0).unwrap());
    let tables = slabs.each_ref().map(|slab| Pairs::<P>::new(slab).unwrap());
    let mut writers = tables.each_ref().map(|table| Writer::new(table).unwrap());
    let mut numbers = Numbers((seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let all = Pages::count(Vpn::new(0), 1 << 12).unwrap();
    for round in 0..40 {
        for _ in 0..numbers.below(60) {
            let size = Va32::SIZES[numbers.below(4).min(numbers.below(4))];
            let each = size.pages(K4).unwrap();
            let pages = Pages::count(Vpn::new(numbers.below(all.len()) & !(each - 1)), each).unwrap();
            let frame = Pfn::new(numbers.below(1 << 16) & !(each - 1));
            let results = if numbers.below(8) == 0 {
                let at = pages.first().address(K4);
                writers.each_mut().map(|writer| writer.mark(at, Some(Mark::Guard)).map(drop))
            } else {
                writers.each_mut().map(|writer| writer.map(pages, frame, size, Attr::READ))
            };
            assert_eq!(results[0], results[1]);
        }
        // What the changes so far ask for.
        for writer in &mut writers {
            if let Some(pending) = writer.pending() {
                // SAFETY: no CPU walks the table.
                unsafe { pending.complete() };
            }
        }
        let first = numbers.below(all.len());
        let most = if numbers.below(2) == 0 { 8 } else { all.len() };
        let range = Pages::count(Vpn::new(first), 1 + numbers.below(most.min(all.len() - first))).unwrap();
        let before = entries(&tables[0], all);
        let (inside, [detached, unmapped]) = (entries(&tables[0], range), &mut writers);
        let (done, expected) = (detached.detach(range), unmapped.unmap(range, Holes::Skip));
        let case = format!("seed {seed}, round {round}, {range:?}");
        match (done, expected) {
            (Ok(mut parts), Ok(_)) => {
                let needs = |batch: Retired<'_>| {
                    let flush = !batch.flush().is_none();
                    // SAFETY: no CPU walks the table.
                    unsafe { batch.reclaim() };
                    flush
                };
                let needed = detached.pending().is_some_and(|pending| needs(pending.take()));
                assert_eq!(needed, !inside.is_empty(), "{case}");
                let _ = unmapped.pending().map(|pending| needs(pending.take()));
                let mut held = Vec::new();
                // SAFETY: no CPU walks the table.
                while !unsafe { parts.release(numbers.below(9), &mut |what| held.push(what)) } {}
                let was = inside.values().filter_map(|entry| match entry {
                    Entry::Leaf(leaf) => Some(Uncovered::Frames(leaf.run(K4))),
                    Entry::Mark(mark) => Some(Uncovered::Mark(*mark)),
                    Entry::Empty => None,
                });
                assert_eq!(contents(held.into_iter()), contents(was), "{case}");
            }
            (done, expected) => {
                assert_eq!(done.map(drop), expected.map(drop), "{case}");
                assert_eq!(entries(&tables[0], all), before, "{case}");
            }
        }
        assert_eq!(entries(&tables[0], all), entries(&tables[1], all), "{case}");
        let counts = tables.each_ref().map(|table| {
            let now = table.footprint();
            (now.ptes, now.leaves, now.nodes)
        });
        assert_eq!(counts[0], counts[1], "{case}");
        let held = tables[0].footprint();
        assert_eq!(slabs[0].usage().nodes, held.nodes + held.leaves, "{case}");
    }
    for batch in writers.map(Writer::finish).into_iter().chain(tables.map(destroy)) {
        // SAFETY: no CPU walks the tables now.
        unsafe { batch.reclaim() };
    }
    assert_eq!(slabs.map(|slab| slab.usage().nodes), [0; 2]);
}

#[test]
fn a_detached_range_is_as_unmapped() {
    for seed in 0..if cfg!(tlbkit_full) {
        200
    } else if cfg!(miri) {
        2
    } else {
        12
    } {
        is_as_unmapped::<Fixed<4>>(seed);
        is_as_unmapped::<Fixed<1>>(seed);
        is_as_unmapped::<Adaptive>(seed);
    }
}

/// A page that extends beyond the range is refused, and the table stays as it is; so is a range beyond the space.
#[test]
fn a_range_that_ends_inside_a_page_is_refused() {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Slab::<u32, Shared>::new(&mut memory, 0).unwrap();
    let table = Pairs::<Fixed<4>>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    let all = Pages::count(Vpn::new(0), 64).unwrap();
    writer.map(Pages::count(Vpn::new(16), 16).unwrap(), Pfn::new(64), PageSize::K64, Attr::READ).unwrap();
    writer.map(Pages::one(Vpn::new(3)), Pfn::new(9), K4, Attr::READ).unwrap();
    let before = entries(&table, all);
    let refused = writer.detach(Pages::count(Vpn::new(0), 20).unwrap()).map(drop);
    assert_eq!(refused, Err(Error::Partial { at: VirtAddr::new(16 << 12), size: PageSize::K64 }));
    assert!(matches!(writer.detach(Pages::one(Vpn::new(1 << 20))).map(drop), Err(Error::OutOfRange { .. })));
    assert_eq!(entries(&table, all), before);
    for batch in [writer.finish(), destroy(table)] {
        // SAFETY: no CPU walks the table now.
        unsafe { batch.reclaim() };
    }
}

/// Leaves that are never released are leaked, and counted.
#[test]
fn what_is_not_released_is_lost() {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Slab::<u32, Shared>::new(&mut memory, 0).unwrap();
    let table = Pairs::<Fixed<4>>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    writer.map(Pages::count(Vpn::new(2), 5).unwrap(), Pfn::new(64), K4, Attr::READ).unwrap();
    drop(writer.detach(Pages::count(Vpn::new(2), 4).unwrap()).unwrap());
    // The third pair has another page.
    assert_eq!(table.footprint().ptes, 1);
    for batch in [writer.finish(), destroy(table)] {
        // SAFETY: no CPU walks the table now.
        unsafe { batch.reclaim() };
    }
    assert_eq!(slab.usage().nodes, 2);
    assert_eq!(slab.held().lost(), 2);
}
