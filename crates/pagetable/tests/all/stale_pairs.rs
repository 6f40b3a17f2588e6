//! What is flushed where a TLB entry is a pair of larger pages: both of them, and nothing else; and where it is not.

use crate::common::kinds;
use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::{Compact32, EntryLo, Format};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::gpt::{Adaptive, Fixed, Gpt32};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Change, FlushAll, Holes, Solo, Table, Writer};

const K4: PageSize = PageSize::K4;
const K16: PageSize = PageSize::K16;
const K64: PageSize = PageSize::K64;
const RIGHTS: Attr = EntryLo::IMPLIED.union(Attr::WRITE).union(Attr::DIRTY);
/// Where the pages are: some of what is flushed is the linear table's own.
const AT: usize = 0x1_0000;

type Storage<'m> = Slab<'m, u32, Solo>;

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(AT + first), count).unwrap()
}

/// Makes a change. It and every break of entries in it must flush `wanted`, and none of the pages around.
#[track_caller]
fn check<'n, T: Table<'n>>(
    table: &T,
    wanted: Pages,
    change: impl FnOnce(&mut Writer<'_, 'n, T>, &mut dyn FnMut(&Flush)),
) {
    let exact = |flush: &Flush| {
        assert!(flush.covers(wanted), "{flush:?} is not {wanted}");
        for page in (AT - 0x40..AT + 0x80).map(Vpn::new) {
            let within = wanted.first() <= page && page <= wanted.last();
            assert!(within || !flush.covers(Pages::one(page)), "{flush:?} is more than {wanted}");
        }
    };
    let mut writer = Writer::new(table).unwrap();
    change(&mut writer, &mut |flush| exact(flush));
    let batch = writer.finish();
    exact(batch.flush());
    // SAFETY: no other code has the table.
    unsafe { batch.reclaim() };
}

/// Changes the size of pages, which are not mapped for a while.
fn resize<'n, T: Table<'n>>(
    writer: &mut Writer<'_, 'n, T>,
    pages: Pages,
    to: PageSize,
    broken: &mut dyn FnMut(&Flush),
) {
    // SAFETY: nothing runs on these pages.
    writer.resize(pages, to, unsafe { FlushAll::breaking(broken) }).unwrap();
}

fn whole_pairs<'n, T: Table<'n>>(table: &T) {
    check(table, pages(0, 8), |writer, _| writer.map(pages(0, 8), Pfn::new(16), K16, RIGHTS).unwrap());
    // One of two goes, comes, changes.
    check(table, pages(0, 8), |writer, _| {
        assert_eq!(writer.unmap(pages(4, 4), Holes::Refuse), Ok(4));
    });
    check(table, pages(0, 8), |writer, _| writer.map(pages(4, 4), Pfn::new(20), K16, RIGHTS).unwrap());
    check(table, pages(0, 8), |writer, _| {
        assert_eq!(writer.protect(pages(0, 4), Holes::Refuse, Change::clear(Attr::WRITE)), Ok(4));
    });
    check(table, pages(0, 8), |writer, _| {
        assert_eq!(writer.protect(pages(0, 4), Holes::Refuse, Change::set(Attr::WRITE)), Ok(4));
    });
    // It is split, then whole again.
    check(table, pages(0, 8), |writer, broken| resize(writer, pages(0, 4), K4, broken));
    check(table, pages(1, 1), |writer, _| {
        assert_eq!(writer.unmap(pages(1, 1), Holes::Refuse), Ok(1));
    });
    check(table, pages(1, 1), |writer, _| writer.map(pages(1, 1), Pfn::new(17), K4, RIGHTS).unwrap());
    // Pages of the base size are paired as they are loaded, so a range of them is flushed as it is, wherever it ends.
    check(table, pages(1, 2), |writer, _| {
        assert_eq!(writer.unmap(pages(1, 2), Holes::Refuse), Ok(2));
    });
    check(table, pages(1, 2), |writer, _| writer.map(pages(1, 2), Pfn::new(17), K4, RIGHTS).unwrap());
    check(table, pages(0, 8), |writer, broken| resize(writer, pages(0, 4), K16, broken));
    // Four of 16K become one of 64K.
    check(table, pages(8, 8), |writer, _| writer.map(pages(8, 8), Pfn::new(24), K16, RIGHTS).unwrap());
    check(table, pages(0, 32), |writer, broken| resize(writer, pages(0, 16), K64, broken));
    check(table, pages(0, 32), |writer, broken| resize(writer, pages(0, 16), K16, broken));
    // What is mapped at the ends of a range counts.
    check(table, pages(0x20, 32), |writer, _| {
        writer.map(pages(0x20, 16), Pfn::new(0x40), K64, RIGHTS).unwrap();
    });
    check(table, pages(0, 0x40), |writer, _| {
        assert_eq!(writer.unmap(pages(4, 0x2c), Holes::Skip), Ok(28));
    });
    check(table, pages(0, 8), |writer, _| {
        assert_eq!(writer.unmap(pages(0, 4), Holes::Refuse), Ok(4));
    });
}

/// Where each page has a TLB entry of its own.
fn single_pages<'n, T: Table<'n>>(table: &T) {
    let mut writer = Writer::new(table).unwrap();
    writer.map(pages(0, 16), Pfn::new(16), K16, Attr::READ).unwrap();
    // SAFETY: no other code has the table.
    unsafe { writer.finish().reclaim() };
    check(table, pages(4, 8), |writer, _| {
        assert_eq!(writer.protect(pages(4, 8), Holes::Refuse, Change::set(Attr::WRITE)), Ok(8));
    });
    check(table, pages(4, 4), |writer, _| {
        assert_eq!(writer.unmap(pages(4, 4), Holes::Refuse), Ok(4));
    });
    check(table, pages(8, 4), |writer, broken| resize(writer, pages(8, 4), K4, broken));
}

macro_rules! tables {
    ($test:ident: $($name:ident, |$nodes:ident| $make:expr;)*) => { $(
        #[test]
        fn $name() {
            let mut memory = vec![Chunk::ZERO; 64];
            let storage = Storage::new(&mut memory, 0x10_0000).unwrap();
            let $nodes = &storage;
            let table = $make.unwrap();
            $test(&table);
            // SAFETY: no other code has the table.
            unsafe { tlbkit_pagetable::destroy(table).reclaim() };
            assert_eq!(storage.usage().nodes, 0);
        }
    )* };
}

macro_rules! kind {
    ($name:ident, $kind:ident, $change:ident, $test:ident, $format:ty) => {
        tables! { $test: $name, |nodes| kinds::$kind::<Va32, $format, _>::new(nodes); }
    };
}

each_kind!(kind, whole_pairs, EntryLo);

tables! {
    whole_pairs:
    g16_kseg0, |nodes| Gpt32::<_, Fixed<4>>::new(nodes);
    ga_kseg0, |nodes| Gpt32::<_, Adaptive>::new(nodes);
}

mod single {
    use super::*;

    each_kind!(kind, single_pages, Compact32);
}
