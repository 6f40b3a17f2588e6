//! Replacing a leaf: one store, the old frame back with what hardware noted, and all or nothing.
#![cfg(target_pointer_width = "64")]

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::kinds;
use crate::common::rebased::Rebased;
use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, VirtAddr};
use tlbkit_pagetable::format::{self, Format};
use tlbkit_pagetable::geometry::{Va32, Va39, Va48, Va64};
use tlbkit_pagetable::mpt::{Encoded, Mpt};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{
    Entry, Error, FlushAll, Holes, Local, Mark, PageTurn, Pinned, Private, Solo, Table as _, Writer, destroy,
    gpt, hpt,
};

const AT: VirtAddr = VirtAddr::new(0x40_3000);

fn pages(at: VirtAddr, size: PageSize) -> Pages {
    Pages::count(at.vpn(PageSize::K4), size.pages(PageSize::K4).unwrap()).unwrap()
}

/// Maps two pages of `size` beside each other, replaces the second, and looks at everything.
fn check<'n, T: Private<'n>>(table: T, size: PageSize, attr: Attr, name: &str) {
    let flushes = RefCell::new(Vec::<Flush>::new());
    let breaks = table.breaks_frames();
    let mut table = Local::new(table, |flush: &Flush| flushes.borrow_mut().push(flush.clone()));
    let first = AT.align_down(size);
    let second = first.checked_add(size.bytes()).unwrap();
    let inside = second.checked_add(size.mask()).unwrap();
    let frames = size.pages(PageSize::K4).unwrap();
    let [one, two, three] = [2, 4, 8].map(|at| Pfn::new(at * frames));
    // SAFETY: nothing stands on these pages.
    let unmapped = table.replace(second, three, attr, |flush| unsafe { FlushAll::breaking(flush) });
    assert_eq!(unmapped, Err(Error::NotMapped { at: second }), "{name}");
    table.map(pages(first, size), one, size, attr).unwrap();
    table.map(pages(second, size), two, size, attr).unwrap();
    let footprint = table.footprint();
    flushes.borrow_mut().clear();

    let mut old = table.replace(inside, three, attr, FlushAll::in_place);
    if breaks {
        assert_eq!(old, Err(Error::Breaks), "{name}");
        // SAFETY: nothing stands on the page.
        old = table.replace(inside, three, attr, |flush| unsafe { FlushAll::breaking(flush) });
    }
    let old = old.unwrap();
    assert_eq!((old.at, old.size, old.frame), (second, size, two), "{name}");
    let [left, right] = [first, inside].map(|at| table.lookup(at).unwrap());
    assert_eq!([left.frame, right.frame], [one, three], "{name}");
    assert_eq!((right.size, right.attr), (size, left.attr), "{name}");
    assert_eq!(table.footprint(), footprint, "{name}");
    let told = flushes.take();
    let told = told.iter().find(|flush| flush.scope() == FlushScope::Everywhere);
    assert!(
        told.is_some_and(|flush| flush.covers(pages(second, size)) && !flush.links()),
        "{name}: {told:?}"
    );

    // What is refused changes nothing.
    if frames > 1 {
        let frame = Pfn::new(1);
        // SAFETY: nothing stands on the page.
        let refused = table.replace(second, frame, attr, |flush| unsafe { FlushAll::breaking(flush) });
        assert_eq!(refused, Err(Error::MisalignedFrame { frame, size }), "{name}");
    }
    // SAFETY: nothing stands on the page.
    let refused =
        table.replace(VirtAddr::new(1 << 60), one, attr, |flush| unsafe { FlushAll::breaking(flush) });
    assert!(refused.is_err(), "{name}");
    assert_eq!(table.lookup(second).unwrap().frame, three, "{name}");
    table
        .unmap(Pages::new(pages(first, size).first(), pages(second, size).last()).unwrap(), Holes::Refuse)
        .unwrap();
    table.destroy();
}

#[test]
fn every_table_replaces_leaves_of_every_size() {
    const RW: Attr = Attr::READ.union(Attr::WRITE);
    let size = |shift| PageSize::from_shift(shift).unwrap();
    let (k4, k16, k64, m2) = (PageSize::K4, PageSize::K16, PageSize::K64, PageSize::M2);
    macro_rules! tables {
        ($($word:ty, $chunks:literal: $name:expr, $make:expr, $attr:expr, $sizes:expr;)*) => { $(
            for size in $sizes {
                let mut memory = vec![Chunk::ZERO; $chunks];
                let slab = Slab::<$word, Solo>::new(&mut memory, 0).unwrap();
                check(($make)(&slab), size, $attr, &format!("{} {size}", $name));
            }
        )* };
    }
    let (mips, arm) = (format::EntryLo::IMPLIED | Attr::WRITE, RW | Attr::ACCESSED);
    macro_rules! kind {
        ($name:ident, $kind:ident, $change:ident) => {
            tables! {
                u32, 64: stringify!($name), |slab| kinds::$kind::<Va32, format::EntryLo, _>::new(slab).unwrap(), mips, [k4, k16, k64];
            }
        };
    }
    each_kind!(kind);
    tables! {
        u64, 64: "MPT", |slab| Mpt::<Va48, format::Compact, _>::new(slab).unwrap(), RW, [k4, m2];
        u64, 64: "MPT in several slots", |slab| Mpt::<Va64, format::Compact, _>::new(slab).unwrap(), RW, [k4, k16, size(24)];
        u64, 64: "Sv39", |slab| Mpt::<Va39, format::Sv39, _>::new(slab).unwrap(), RW, [k4, m2];
        u64, 64: "x86-64", |slab| Mpt::<Va48, format::X86, _>::new(slab).unwrap(), RW, [k4, m2];
        u64, 64: "AArch64", |slab| Mpt::<Va48, format::Aarch64, _>::new(slab).unwrap(), arm, [k4, m2];
        u64, 64: "G16", |slab| gpt::Gpt::<Va64, format::Compact, _, gpt::OneWord, gpt::Fixed<4>>::new(slab).unwrap(), RW, [k4, k16, k64];
        u64, 64: "HR", |slab| hpt::Hr::new(slab).unwrap(), RW, [k4, m2];
        u32, 64: "GA, EntryLo", |slab| gpt::Gpt32::<_, gpt::Adaptive>::new(slab).unwrap(), mips, [k4, k16, k64];
    }
}

/// A part of a larger page is replaced whose other part is not mapped, beside a third that is as large as the first was: all of
/// them share a bucket of a hashed table.
#[test]
fn a_page_is_replaced_where_it_is_mapped_and_nowhere_else() {
    const RW: Attr = Attr::READ.union(Attr::WRITE);
    let (small, large) = (PageSize::from_shift(18).unwrap(), PageSize::from_shift(20).unwrap());
    fn check<'n, T: Private<'n>>(table: T, attr: Attr, small: PageSize, large: PageSize, name: &str) {
        let mut table = Local::new(table, |_: &Flush| ());
        let at = |page: usize| VirtAddr::new(page << 18);
        let two = Pages::count(at(0).vpn(PageSize::K4), 512).unwrap();
        table.map(two, Pfn::new(0), large, attr).unwrap();
        // SAFETY: nothing stands on these pages.
        table.resize(pages(at(0), large), small, |flush| unsafe { FlushAll::breaking(flush) }).unwrap();
        table.unmap(pages(at(0), small), Holes::Refuse).unwrap();
        table.replace(at(2), Pfn::new(0x1000), attr, FlushAll::in_place).unwrap();
        let found = [0, 1, 2, 3, 4].map(|page| table.lookup(at(page)).map(|leaf| leaf.frame.get()));
        assert_eq!(found, [None, Some(0x40), Some(0x1000), Some(0xc0), Some(0x100)], "{name}");
        assert_eq!(table.unmap(two, Holes::Skip), Ok(448), "{name}");
        table.destroy();
    }
    macro_rules! replaced {
        ($word:ty, $attr:expr, $table:ty) => {
            let mut memory = vec![Chunk::ZERO; 64];
            let slab = Slab::<$word, Solo>::new(&mut memory, 0).unwrap();
            check(<$table>::new(&slab).unwrap(), $attr, small, large, stringify!($table));
        };
    }
    macro_rules! kind {
        ($name:ident, $kind:ident, $change:ident) => {
            replaced!(
                u32,
                format::EntryLo::IMPLIED | Attr::WRITE,
                kinds::$kind<'_, Va32, format::EntryLo, _>
            );
            replaced!(u64, RW, kinds::$kind<'_, Va64, format::Compact, _>);
        };
    }
    each_own_kind!(kind);
    replaced!(u64, RW, hpt::Hashed<'_, Va64, format::Compact, _, hpt::Buckets<4, 1, 150>>);
}

/// A flush that unwinds in the midst of break before make: the old leaf is back.
#[test]
fn a_page_is_there_again_if_the_flush_unwinds() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let panics = Cell::new(false);
    let flush = |_: &Flush| assert!(!panics.get(), "as planned");
    let mut table = Local::new(Mpt::<Va48, format::Aarch64, _>::new(&slab).unwrap(), flush);
    let attr = Attr::READ | Attr::WRITE | Attr::ACCESSED;
    table.map(pages(AT, PageSize::K4), Pfn::new(7), PageSize::K4, attr).unwrap();
    let before = table.lookup(AT);
    panics.set(true);
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: nothing stands on the page.
        table.replace(AT, Pfn::new(8), attr, |flush| unsafe { FlushAll::breaking(flush) })
    }));
    assert!(unwound.is_err());
    panics.set(false);
    assert_eq!(table.lookup(AT), before);
    assert_eq!(table.unmap(pages(AT, PageSize::K4), Holes::Refuse), Ok(1));
    table.destroy();
    assert_eq!(slab.usage().nodes, 0);
}

/// The same in a slot, and what a walker finds meanwhile.
#[test]
fn a_slot_is_empty_while_its_replacement_is_made_known() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let table = Mpt::<Va48, format::Aarch64, _>::new(&slab).unwrap();
    let (page, attr) = (AT.vpn(PageSize::K4), Attr::READ | Attr::WRITE | Attr::ACCESSED);
    let mut writer = Writer::new(&table).unwrap();
    writer.map(Pages::one(page), Pfn::new(7), PageSize::K4, attr).unwrap();
    // SAFETY: no CPU walks the table.
    unsafe { writer.finish().reclaim() };
    // SAFETY: this thread acknowledges no shootdown during the lookup.
    let look = || table.lookup(unsafe { Pinned::by(&slab) }, AT).map(|leaf| leaf.frame);
    let replace = |known: &dyn Fn(&Flush)| {
        let mut turn = PageTurn::new(&table, page).unwrap();
        let slot = turn.slot().unwrap();
        // SAFETY: nothing stands on the page.
        unsafe {
            slot.replace(
                Pfn::new(8),
                Encoded::new(attr).unwrap(),
                FlushAll::breaking(&mut |flush| known(flush)),
            )
        }
    };
    let unwinds = |_: &Flush| {
        assert_eq!(look(), None);
        panic!("as planned");
    };
    assert!(catch_unwind(AssertUnwindSafe(|| replace(&unwinds))).is_err());
    assert_eq!(look(), Some(Pfn::new(7)));
    let known = Cell::new(0);
    let (old, stale) = replace(&|flush| {
        assert_eq!(look(), None);
        assert!(flush.scope() == FlushScope::Everywhere && flush.covers(Pages::one(page)));
        known.set(known.get() + 1);
    })
    .unwrap();
    assert_eq!((old.frame, known.get(), look()), (Pfn::new(7), 1, Some(Pfn::new(8))));
    assert_eq!((stale.scope, stale.pages), (FlushScope::Barrier, Pages::one(page)));
    // SAFETY: no CPU walks the table.
    unsafe { destroy(table).reclaim() };
    assert_eq!(slab.usage().nodes, 0);
}

/// A lookup of another page in the flush of a break must not move the bucket whose word is stored afterwards: in solo mode a table
/// of a fixed size moves what a lookup hits to the front of its chain.
#[test]
fn a_lookup_during_a_break_moves_no_bucket() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let table = hpt::Hashed::<Va48, Rebased<12, true>, _, hpt::Buckets<0, 1, 0>>::new(&slab).unwrap();
    let at = |page: usize| VirtAddr::new(page << 12);
    let frame = |page: usize| {
        // SAFETY: in solo mode any walk is pinned.
        table.lookup(unsafe { Pinned::by(&slab) }, at(page)).map(|leaf| leaf.frame)
    };
    let mut frames: Vec<_> = (0..8).map(|page| Pfn::new(0x100 + page)).collect();
    let mut writer = Writer::new(&table).unwrap();
    for (page, &frame) in frames.iter().enumerate() {
        writer.map(pages(at(page), PageSize::K4), frame, PageSize::K4, Attr::READ).unwrap();
    }
    for page in 0..8 {
        for other in (0..8).filter(|&other| other != page) {
            let new = Pfn::new(0x1000 + page * 16 + other);
            let mut look = |_: &Flush| assert_eq!(frame(other), Some(frames[other]));
            // SAFETY: nothing needs the page until the call returns.
            writer.replace(at(page), new, Attr::READ, unsafe { FlushAll::breaking(&mut look) }).unwrap();
            frames[page] = new;
            let found: Vec<_> = (0..8).map(|page| frame(page).unwrap()).collect();
            assert_eq!(found, frames, "page {page} was replaced while page {other} was looked up");
        }
    }
    // SAFETY: no CPU walks the table now.
    unsafe { writer.finish().reclaim() };
    // SAFETY: the same.
    unsafe { destroy(table).reclaim() };
    assert_eq!(slab.usage().nodes, 0);
}

/// A mark takes the place of nothing, of a mark and of a page with one store, and no larger page's.
#[test]
fn a_slot_takes_a_mark() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let table = Mpt::<Va39, format::Sv39, _>::new(&slab).unwrap();
    let (page, attr) = (AT.vpn(PageSize::K4), Attr::READ | Attr::WRITE);
    let mut writer = Writer::new(&table).unwrap();
    writer.map(pages(AT, PageSize::K4), Pfn::new(7), PageSize::K4, attr).unwrap();
    let large = VirtAddr::new(0x20_0000);
    writer.map(pages(large, PageSize::M2), Pfn::new(512), PageSize::M2, attr).unwrap();
    // SAFETY: no CPU walks the table.
    unsafe { writer.finish().reclaim() };
    let turn = |page| PageTurn::new(&table, page).unwrap();
    let next = page.checked_add(1).unwrap();
    let (was, stale) = turn(next).slot().unwrap().mark(Mark::Guard).unwrap();
    assert_eq!((was, stale.scope), (Entry::Empty, FlushScope::Nowhere));
    let payload = Mark::Payload(9, Attr::READ);
    let (was, stale) = turn(next).slot().unwrap().mark(payload).unwrap();
    assert_eq!((was, stale.scope), (Entry::Mark(Mark::Guard), FlushScope::Nowhere));
    let (was, stale) = turn(page).slot().unwrap().mark(Mark::Guard).unwrap();
    assert_eq!(was.leaf().map(|leaf| leaf.frame), Some(Pfn::new(7)));
    assert_eq!((stale.scope, stale.pages), (FlushScope::Everywhere, Pages::one(page)));
    assert!(turn(large.vpn(PageSize::K4)).slot().is_none_or(|slot| slot.mark(Mark::Guard).is_none()));
    // SAFETY: no CPU walks the table.
    let entry = |at: VirtAddr| table.entry(unsafe { Pinned::by(&slab) }, at);
    assert_eq!(entry(AT), Entry::Mark(Mark::Guard));
    assert_eq!(entry(next.address(PageSize::K4)), Entry::Mark(payload));
    assert_eq!(table.footprint().ptes, 3);
    // The count of the node is right: it goes with its last entry.
    let mut writer = Writer::new(&table).unwrap();
    writer.unmap(Pages::new(page, next).unwrap(), Holes::Skip).unwrap();
    let batch = writer.finish();
    assert_eq!(batch.nodes(), 1);
    // SAFETY: no CPU walks the table.
    unsafe { batch.reclaim() };
    // SAFETY: no CPU walks the table.
    unsafe { destroy(table).reclaim() };
}
