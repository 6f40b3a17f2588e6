//! Attacks on several writers of one table: what safe code must not reach.
#![cfg(target_pointer_width = "64")]

mod model;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::writers::{NODE, RIGHTS, at, complete, map, over, page, pages, table};
use tlbkit_addr::{Attr, Flush, PageSize, Pfn, Vpn};
use tlbkit_pagetable::format::{Compact, Compact32, X86};
use tlbkit_pagetable::geometry::{Geometry, Half, Va32, Va39, Va48};
use tlbkit_pagetable::mpt::{Encoded, Mpt};
use tlbkit_pagetable::nodes::{Chunk, Reclaim as _, Slab};
use tlbkit_pagetable::{
    Change, Error, FlushAll, Holes, NodeLocks, PageCursor as _, PageTurn, Radix, Shared, Table, Writer,
    destroy,
};

/// The batch that takes the place of one that was taken knows the part, too.
#[test]
fn a_writer_whose_obligation_is_taken_keeps_to_its_part() {
    table!(table, slab);
    map(&table, pages(0, 3));
    map(&table, pages(NODE, 3));
    let mut writer = over(&table, page(0)).unwrap();
    assert_eq!(writer.protect(page(0), Holes::Refuse, Change::READ_ONLY), Ok(1));
    let other = over(&table, page(NODE)).unwrap();
    complete(writer.pending().unwrap().take());
    // The other writer has these pages.
    assert_eq!(writer.unmap(page(NODE), Holes::Refuse).map(drop), Err(Error::OutsideRight { at: at(NODE) }));
    {
        let mut cursor = writer.cursor(Vpn::new(0)).unwrap();
        complete(cursor.pending().take());
        assert_eq!(cursor.seek(Vpn::new(NODE)), Err(Error::OutsideRight { at: at(NODE) }));
    }
    complete(writer.finish());
    complete(other.finish());
    complete(destroy(table));
    assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
}

/// A page number that no address has shifts into the address of another page.
#[test]
fn a_page_number_of_no_address_is_no_other_page() {
    let mut memory = vec![Chunk::ZERO; 2048];
    let (slab, mut locks) = (Slab::<u64, Shared>::new(&mut memory, 0).unwrap(), NodeLocks::new());
    let table = Mpt::<Va48, Compact, _>::new(&slab).unwrap().with_locks(&mut locks);
    map(&table, pages(0, 3));
    let alias = page(1 << 52 | 5);
    {
        // It is the only one to write the node of page 0.
        let writer = over(&table, page(0)).unwrap();
        let other = over(&table, alias);
        assert!(
            other.as_ref().is_err() || !other.as_ref().unwrap().may_write(alias),
            "a second writer has come to the node, which it reads without a lock: {other:?}"
        );
        drop(other);
        complete(writer.finish());
    }
    complete(destroy(table));
}

/// A writer of other pages leaves a debt alone, so that the next writer of its pages finds it.
#[test]
fn a_debt_is_taken_up_before_its_pages_change_again() {
    table!(table, slab);
    map(&table, pages(0, 3));
    map(&table, pages(NODE, 3));
    let mut other = over(&table, page(0)).unwrap();
    let mut dropped = over(&table, page(NODE)).unwrap();
    assert_eq!(dropped.unmap(page(NODE), Holes::Refuse), Ok(1));
    drop(dropped);
    // It has had its right since before the debt.
    assert_eq!(other.protect(page(0), Holes::Refuse, Change::READ_ONLY), Ok(1));
    {
        let mut turn = PageTurn::new(&table, Vpn::new(NODE)).unwrap();
        assert!(turn.slot().is_none(), "TLBs may hold a translation of the page");
    }
    complete(other.finish());
    let mut writer = over(&table, page(NODE)).unwrap();
    writer.map(page(NODE), Pfn::new(1), PageSize::K4, RIGHTS).unwrap();
    let batch = writer.finish();
    assert!(batch.flush().is_all(), "{batch:?}");
    complete(batch);
    complete(destroy(table));
    assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
}

/// Pages that are mapped by one store, and unmapped by an edit, are counted in two places.
#[test]
fn a_table_shows_what_it_has_mapped() {
    table!(table, slab);
    map(&table, page(0));
    {
        let mut turn = PageTurn::new(&table, Vpn::new(1)).unwrap();
        assert!(turn.slot().unwrap().map(Pfn::new(9), Encoded::new(RIGHTS).unwrap()).is_some());
    }
    let mut writer = Writer::new(&table).unwrap();
    assert_eq!(writer.unmap(pages(0, 2), Holes::Refuse), Ok(2));
    complete(writer.finish());
    assert_eq!(table.footprint().ptes, 0);
    let shown = format!("{table:?}");
    assert!(shown.contains("ptes: 0"), "{shown}");
    complete(destroy(table));
    assert_eq!(slab.usage().nodes, 0);
}

/// A count that is read while pages change is never one of less than nothing.
#[test]
fn pages_are_counted_while_they_change() {
    const ROUNDS: usize = if cfg!(miri) { 20 } else { 20_000 };
    table!(table, slab);
    map(&table, page(0));
    let (shared, ended, most) = (&table, &AtomicBool::new(false), 8);
    thread::scope(|threads| {
        threads.spawn(move || {
            for _ in 0..ROUNDS {
                let mut writer = over(shared, pages(1, most)).unwrap();
                writer.map(pages(1, most), Pfn::new(1), PageSize::K4, RIGHTS).unwrap();
                complete(writer.finish());
                for number in 1..=most {
                    let mut turn = PageTurn::new(shared, Vpn::new(number)).unwrap();
                    assert!(turn.slot().unwrap().unmap().is_some());
                }
            }
            ended.store(true, Ordering::Relaxed);
        });
        while !ended.load(Ordering::Relaxed) {
            let ptes = shared.footprint().ptes;
            assert!(ptes < usize::MAX / 2, "{ptes}");
        }
    });
    assert_eq!(table.footprint().ptes, 1);
    complete(destroy(table));
    assert_eq!(slab.usage().nodes, 0);
}

/// A table that is one node.
#[derive(Clone, Copy, Debug)]
struct Flat;

impl Geometry for Flat {
    const VA_BITS: u32 = 21;
    const BASE: PageSize = PageSize::K4;
    const HALF: Half = Half::Lower;
    const SIZES: &'static [PageSize] = &[PageSize::K4];
}

impl Radix for Flat {
    const WIDTHS: &'static [u32] = &[9];
}

#[test]
fn a_table_of_one_level_has_a_lock() {
    let mut memory = vec![Chunk::ZERO; 512];
    let (slab, mut locks) = (Slab::<u32, Shared>::new(&mut memory, 0).unwrap(), NodeLocks::new());
    let table = Mpt::<Flat, Compact32, _>::new(&slab).unwrap().with_locks(&mut locks);
    map(&table, pages(0, 3));
    {
        let mut turn = PageTurn::new(&table, Vpn::new(7)).unwrap();
        assert!(turn.slot().unwrap().map(Pfn::new(9), Encoded::new(RIGHTS).unwrap()).is_some());
        assert_eq!(over(&table, page(0)).map(drop), Err(Error::Busy));
    }
    let writer = over(&table, page(0)).unwrap();
    assert_eq!(PageTurn::new(&table, Vpn::new(0)).map(drop), Err(Error::Busy));
    complete(writer.finish());
    complete(destroy(table));
}

/// The locks of a table that is gone are those of a new one.
#[test]
fn locks_can_be_used_again() {
    let mut memory = vec![Chunk::ZERO; 512];
    let slab = Slab::<u32, Shared>::new(&mut memory, 0).unwrap();
    let mut locks = NodeLocks::new();
    for _ in 0..2 {
        let table = Mpt::<Va32, Compact32, _>::new(&slab).unwrap().with_locks(&mut locks);
        assert_eq!(table.footprint().ptes, 0, "of a table that is empty");
        map(&table, page(0));
        let mut turn = PageTurn::new(&table, Vpn::new(1)).unwrap();
        assert!(turn.slot().unwrap().map(Pfn::new(9), Encoded::new(RIGHTS).unwrap()).is_some());
        drop(turn);
        assert_eq!(table.footprint().ptes, 2);
        // A right that is never given back.
        std::mem::forget(PageTurn::new(&table, Vpn::new(NODE)).unwrap());
        complete(destroy(table));
    }
}

type Large<'m, 'n> = Mpt<'n, Va39, X86, Slab<'m, u64, Shared>>;

/// The loan of a node counts after a change below has unwound, too.
#[test]
fn a_part_that_unwinds_keeps_the_loan_of_its_node() {
    let mut memory = vec![Chunk::ZERO; 4096];
    let (slab, mut locks) = (Slab::<u64, Shared>::new(&mut memory, 0).unwrap(), NodeLocks::new());
    let mut table: Large<'_, '_> = Mpt::new(&slab).unwrap();
    let _ = table.lend([pages(0, 1 << 18)]).unwrap();
    let table = table.with_locks(&mut locks);
    let user = RIGHTS | Attr::USER;
    {
        let mut writer = Writer::new(&table).unwrap();
        writer.map(pages(0, 512), Pfn::new(0), PageSize::K4, user).unwrap();
        complete(writer.finish());
    }
    let mut writer = over(&table, pages(0, 512)).unwrap();
    let is_part = !writer.may_write(page(1 << 18));
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let mut flush = |_: &Flush| resume_unwind(Box::new(()));
        let _ = writer.resize(pages(0, 512), PageSize::M2, FlushAll::in_place(&mut flush));
    }));
    assert!(unwound.is_err());
    complete(writer.finish());
    // The part that a writer of a page gets tells whether the node may become empty.
    let writer = over(&table, pages(0, 512)).unwrap();
    assert_eq!(!writer.may_write(page(1 << 18)), is_part, "the loan is an entry that stays");
    drop(writer);
    complete(destroy(table));
}
