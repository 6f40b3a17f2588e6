//! Several writers of one multi-level table: which of them exclude each other, and what they leave behind.

use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{hint, thread};

use crate::common::numbers::Numbers;
use crate::common::writers::{NODE, RIGHTS, at, complete, map, over, page, pages, table};
use tlbkit_addr::{Flush, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::Compact32;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::mpt::{Encoded, Mpt};
use tlbkit_pagetable::nodes::{Reclaim as _, Slab};
use tlbkit_pagetable::{
    Change, Error, FlushAll, Holes, PageCursor as _, PageTurn, Pinned, Shared, Table, Turn, Writer, destroy,
};

type Nodes<'m> = Slab<'m, u32, Shared>;

#[test]
fn writers_of_pages_that_overlap_exclude_each_other_and_nobody_else() {
    table!(table, slab);
    map(&table, pages(0, 3));
    map(&table, pages(NODE, 3));
    let first = over(&table, page(0)).unwrap();
    assert_eq!(over(&table, page(1)).unwrap_err(), Error::Busy, "they have a node in common");
    assert_eq!(PageTurn::new(&table, Vpn::new(1)).unwrap_err(), Error::Busy);
    let second = over(&table, page(NODE)).unwrap();
    assert_eq!(PageTurn::new(&table, Vpn::new(NODE + 1)).unwrap_err(), Error::Busy);
    assert_eq!(Turn::new(&table).unwrap_err(), Error::Busy);
    assert_eq!(over(&table, pages(0, 2 * NODE)).unwrap_err(), Error::Busy);
    drop(second);
    let one = PageTurn::new(&table, Vpn::new(NODE)).unwrap();
    assert_eq!(PageTurn::new(&table, Vpn::new(NODE + 1)).unwrap_err(), Error::Busy);
    drop((one, first));
    let whole = Turn::new(&table).unwrap();
    assert!(over(&table, page(0)).is_err() && PageTurn::new(&table, Vpn::new(0)).is_err());
    drop(whole);
    complete(destroy(table));
    assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
}

#[test]
fn a_writer_of_a_range_waits_for_those_of_pages_and_no_more_begin() {
    table!(table, slab);
    map(&table, pages(0, 3));
    {
        let mut held = Some(PageTurn::new(&table, Vpn::new(0)).unwrap());
        let mut waits = 0;
        let writer = Writer::over(&table, page(1), &mut || {
            waits += 1;
            assert_eq!(PageTurn::new(&table, Vpn::new(2)).unwrap_err(), Error::Busy);
            drop((waits == 3).then(|| held.take()));
            true
        });
        assert!(writer.is_ok());
        drop(writer);
        assert_eq!((waits, held.is_none()), (3, true));
        let held = PageTurn::new(&table, Vpn::new(0)).unwrap();
        assert_eq!(over(&table, page(1)).unwrap_err(), Error::Busy, "it gives up");
        drop(held);
        assert!(
            PageTurn::new(&table, Vpn::new(0)).is_ok() && over(&table, page(1)).is_ok(),
            "and leaves nothing"
        );
    }
    complete(destroy(table));
    assert_eq!(slab.usage().nodes, 0);
}

#[test]
fn a_writer_changes_its_range_and_no_other_page() {
    table!(table, slab);
    map(&table, pages(0, 8));
    map(&table, page(NODE));
    let mut writer = over(&table, pages(2, 2)).unwrap();
    let outside = |first| Err(Error::OutsideRight { at: at(first) });
    assert_eq!(writer.map(page(9), Pfn::new(1), PageSize::K4, RIGHTS), outside(9));
    assert_eq!(writer.map(pages(3, 2), Pfn::new(1), PageSize::K4, RIGHTS), outside(3));
    assert_eq!(writer.unmap(page(4), Holes::Refuse).map(drop), outside(4));
    assert_eq!(writer.unmap(pages(0, 8), Holes::Skip).map(drop), outside(0));
    assert_eq!(writer.protect(page(NODE), Holes::Refuse, Change::READ_ONLY).map(drop), outside(NODE));
    assert_eq!(writer.mark(at(4), None).map(drop), outside(4));
    assert_eq!(writer.fill(at(4), 0, Pfn::new(1)), outside(4));
    let mut no_flush = |_: &Flush| ();
    assert_eq!(
        writer.replace(at(4), Pfn::new(1), RIGHTS, FlushAll::in_place(&mut no_flush)).map(drop),
        outside(4)
    );
    assert_eq!(
        writer.move_pages(page(2), Vpn::new(20), FlushAll::in_place(&mut no_flush)).map(drop),
        outside(20)
    );
    assert_eq!(writer.drain(pages(2, 3)).map(drop), outside(2));
    assert_eq!(writer.any_cursor(Vpn::new(2)).map(drop), outside(2));
    let mut cursor = writer.cursor(Vpn::new(2)).unwrap();
    assert_eq!(cursor.seek(Vpn::new(4)), outside(4));
    assert_eq!(cursor.next_mapped(Vpn::new(NODE)).map(|leaf| leaf.at), Some(at(3)));
    assert_eq!(cursor.next_mapped(Vpn::new(NODE)), None);
    assert_eq!(writer.cursor(Vpn::new(1)).map(drop), outside(1));
    assert_eq!(writer.unmap(pages(2, 2), Holes::Refuse), Ok(2));
    complete(writer.finish());
    assert_eq!(table.footprint().ptes, 7);
    complete(destroy(table));
    assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
}

/// The range of the right grows to the node that keeps an entry, so a node that a change empties goes.
#[test]
fn the_right_to_empty_a_node_is_the_one_to_unlink_it() {
    table!(table, slab);
    map(&table, pages(0, 2));
    map(&table, page(NODE));
    let nodes = table.footprint().nodes;
    // Another page stays in the node, so the other node has its own writers.
    let mut writer = over(&table, page(0)).unwrap();
    assert!(PageTurn::new(&table, Vpn::new(NODE)).is_ok());
    assert_eq!(writer.unmap(page(0), Holes::Refuse), Ok(1));
    complete(writer.finish());
    assert_eq!(table.footprint().nodes, nodes);
    let mut writer = over(&table, page(1)).unwrap();
    assert!(PageTurn::new(&table, Vpn::new(NODE)).is_err(), "the node above changes");
    assert_eq!(writer.unmap(page(1), Holes::Refuse), Ok(1));
    complete(writer.finish());
    assert_eq!(table.footprint().nodes, nodes - 1);
    // The last page but one store does not unmap.
    let mut turn = PageTurn::new(&table, Vpn::new(NODE)).unwrap();
    assert!(turn.slot().unwrap().unmap().is_none());
    drop(turn);
    // A page of which there is no node.
    let mut writer = over(&table, page(5 * NODE)).unwrap();
    writer.map(page(5 * NODE), Pfn::new(1), PageSize::K4, RIGHTS).unwrap();
    complete(writer.finish());
    assert_eq!(table.footprint().nodes, nodes);
    complete(destroy(table));
    assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
}

#[test]
fn a_right_that_unwinds_while_it_waits_is_given_back() {
    table!(table, slab);
    map(&table, pages(0, 2));
    let turn = PageTurn::new(&table, Vpn::new(0)).unwrap();
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = Writer::over(&table, page(1), &mut || std::panic::resume_unwind(Box::new(())));
    }));
    assert!(unwound.is_err());
    drop(turn);
    assert!(Turn::new(&table).is_ok());
    complete(destroy(table));
    assert_eq!(slab.usage().nodes, 0);
}

pub(super) const WRITERS: usize = 3;
const STEPS: usize = if cfg!(miri) { 60 } else { 20_000 };
/// Each writer has every third page of six nodes, so they have all nodes in common; and a node of its own.
const SHARED_PAGES: usize = 4;

/// The pages of a writer.
fn own(writer: usize) -> Vec<usize> {
    let shared = (0..6).flat_map(|node| (0..SHARED_PAGES).map(move |page| node * NODE + page * WRITERS));
    let alone = (0..3).map(|page| (10 + writer) * NODE + page);
    shared.map(|page| page + writer).chain(alone).collect()
}

/// Returns the frame of a page in a generation. Frame numbers tell the pages apart.
pub(super) fn frame(page: usize, generation: usize) -> Pfn {
    Pfn::new(page << 3 | generation & 7)
}

pub(super) fn busy<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> T {
    loop {
        match attempt() {
            Err(Error::Busy) => {
                hint::spin_loop();
                thread::yield_now();
            }
            done => return done.unwrap(),
        }
    }
}

/// The pages of a writer, and what each is mapped to.
pub(super) type Left = Vec<(usize, Option<Pfn>)>;

/// Runs writers of neighbouring pages, which change them page by page, and a walker, which looks for pages that `any` draws. What a writer
/// has done stays until it changes the page again. Checks what they have left with `check` too, and destroys the table.
pub(super) fn beside_each_other<'n, T: Table<'n> + Sync + 'n>(
    table: T,
    write: impl Fn(&T, usize, &RwLock<()>) -> Left + Sync,
    any: impl Fn(&mut Numbers) -> usize,
    check: impl FnOnce(&T, &[usize]),
) {
    let (shared, walks, ended) = (&table, &RwLock::new(()), &AtomicUsize::new(0));
    let write = &write;
    let left: Left = thread::scope(|threads| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                threads.spawn(move || {
                    let _ended = Ended(ended);
                    write(shared, number, walks)
                })
            })
            .collect();
        let mut numbers = Numbers(99);
        while ended.load(Ordering::Acquire) < WRITERS {
            let page = any(&mut numbers);
            let walk = walks.read().unwrap();
            // SAFETY: no batch is reclaimed during the walk.
            if let Some(leaf) = shared.lookup(unsafe { Pinned::by(&walk) }, at(page)) {
                assert_eq!((leaf.frame.get() >> 3, leaf.size), (page, PageSize::K4));
            }
        }
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    for &(page, frame) in &left {
        // SAFETY: no thread writes the table, and none reclaims a batch.
        let leaf = table.lookup(unsafe { Pinned::by(walks) }, at(page));
        assert_eq!(leaf.map(|leaf| leaf.frame), frame, "page {page}");
    }
    let mapped: Vec<_> = left.iter().filter(|(_, frame)| frame.is_some()).map(|&(page, _)| page).collect();
    let footprint = table.footprint();
    assert_eq!(footprint.ptes, mapped.len());
    check(&table, &mapped);
    let dead = destroy(table);
    assert_eq!(dead.nodes(), footprint.nodes, "each emptied node was unlinked, and no other one");
    complete(dead);
}

#[test]
fn writers_of_neighbouring_pages_do_not_disturb_each_other() {
    table!(table, slab);
    let any = |numbers: &mut Numbers| {
        let mine = own(numbers.below(WRITERS));
        mine[numbers.below(mine.len())]
    };
    beside_each_other(table, write, any, |_, _| ());
    assert_eq!((slab.usage().nodes, slab.held().lost(), slab.held().pending()), (0, 0, 0));
}

/// Counts a thread when it ends, or unwinds.
struct Ended<'c>(&'c AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Changes the pages of a writer, and returns what they are mapped to. Waits for the walks with its obligations, but not for other writers.
fn write(table: &Mpt<'_, Va32, Compact32, Nodes<'_>>, number: usize, walks: &RwLock<()>) -> Left {
    let mut numbers = Numbers(0x9e37_79b9 + number as u64);
    let mut left: Left = own(number).into_iter().map(|page| (page, None)).collect();
    let encoded = Encoded::new(RIGHTS).unwrap();
    for step in 0..STEPS {
        let chosen = numbers.below(left.len());
        let (page, mapped) = &mut left[chosen];
        let (pages, new, by_slot) = (Pages::one(Vpn::new(*page)), frame(*page, step), step % 2 == 0);
        // One store, if that is enough.
        let done = by_slot && {
            let mut turn = busy(|| PageTurn::new(table, pages.first()));
            turn.slot().is_some_and(|slot| match mapped {
                Some(_) => slot.unmap().is_some_and(|(leaf, _)| Some(leaf.frame) == *mapped),
                None => slot.map(new, encoded).is_some(),
            })
        };
        if done {
            *mapped = if mapped.is_some() { None } else { Some(new) };
            continue;
        }
        let mut waits = 0;
        let mut writer = busy(|| {
            Writer::over(table, pages, &mut || {
                waits += 1;
                thread::yield_now();
                waits % 64 != 0
            })
        });
        match *mapped {
            None => {
                writer.map(pages, new, PageSize::K4, RIGHTS).unwrap();
                *mapped = Some(new);
            }
            Some(_) if numbers.below(3) == 0 => {
                assert_eq!(writer.protect(pages, Holes::Refuse, Change::READ_ONLY), Ok(1));
            }
            Some(_) => {
                assert_eq!(writer.unmap(pages, Holes::Refuse), Ok(1));
                *mapped = None;
            }
        }
        let batch = writer.finish();
        let _walks = (batch.nodes() > 0).then(|| walks.write().unwrap());
        complete(batch);
    }
    left
}
