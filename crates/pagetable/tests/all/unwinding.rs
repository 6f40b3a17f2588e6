//! Panics in the caller's code, in the middle of a change: nothing is freed that the table still leads to. The property
//! suite has one at every call of every operation of every table; here are those that it does not make.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::common::kinds;
use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Compact32, EntryLo, Format};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::gpt::{Adaptive, Fixed, Gpt32};
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Reclaim, Slab};
use tlbkit_pagetable::{FlushAll, Holes, Local, Pinned, Private, Solo, Table};

const RIGHTS: Attr = EntryLo::IMPLIED.union(Attr::READ).union(Attr::WRITE).union(Attr::DIRTY);

/// What the pages become, one after the other.
const SIZES: &[PageSize] =
    if cfg!(miri) { &[PageSize::K4] } else { &[PageSize::K4, PageSize::K16, PageSize::K64, PageSize::K4] };

type Storage<'m> = Slab<'m, u32, Solo>;

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

fn unwinds<T>(f: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

/// Splits and joins pages with a flush that unwinds at the call number `bad`, and goes on. Tells whether it has.
fn resizes<'n, T: Private<'n>>(slab: &Storage<'_>, table: T, bad: usize) -> bool {
    let (calls, armed) = (Cell::new(0), Cell::new(false));
    let mut table = Local::new(table, |_: &Flush| {
        if armed.get() && calls.replace(calls.get() + 1) == bad {
            resume_unwind(Box::new("the flush unwinds"));
        }
    });
    let whole = |table: &Local<'n, T, _>| {
        let left = table.footprint();
        assert_eq!(slab.usage().nodes, left.nodes + left.leaves + slab.held().lost());
        assert_eq!(slab.held().pending(), 0, "nothing waits after a change that has returned");
        let mut mapped = 0;
        for page in 0x400..0x440 {
            let Some(leaf) = table.lookup(Vpn::new(page).address(PageSize::K4)) else { continue };
            let offset = page - leaf.at.vpn(PageSize::K4).get();
            assert_eq!(leaf.frame.get() + offset, page - 0x400);
            mapped += 1;
        }
        mapped
    };
    let mut unwound = false;
    table.map(pages(0x400, 0x40), Pfn::new(0), PageSize::K16, RIGHTS).unwrap();
    for &to in SIZES {
        armed.set(true);
        // SAFETY: no code needs the pages.
        unwound |=
            unwinds(|| table.resize(pages(0x400, 0x40), to, |flush| unsafe { FlushAll::breaking(flush) }));
        armed.set(false);
        // One that changes nothing: what the last one owes is flushed and freed before it returns.
        table.unmap(pages(0x800, 1), Holes::Skip).unwrap();
        assert!(unwound || whole(&table) == 0x40);
    }
    table.unmap(pages(0x400, 0x40), Holes::Skip).unwrap();
    assert_eq!(whole(&table), 0);
    let lost = slab.held().lost();
    table.destroy();
    assert_eq!((slab.usage().nodes, slab.held().lost(), slab.held().pending()), (lost, lost, 0));
    unwound
}

macro_rules! a_flush_unwinds {
    ($($name:ident, |$nodes:ident| $make:expr;)*) => { $(
        #[test]
        fn $name() {
            for bad in (0..).step_by(if cfg!(miri) { 19 } else { 1 }) {
                let mut memory = vec![Chunk::ZERO; 64];
                let slab = Storage::new(&mut memory, 0x10_0000).unwrap();
                let $nodes = &slab;
                if !resizes(&slab, $make.unwrap(), bad) {
                    assert!(bad > 3, "only {bad} flushes");
                    break;
                }
            }
        }
    )* };
}

macro_rules! kind {
    ($name:ident, $kind:ident, $change:ident) => {
        a_flush_unwinds! { $name, |nodes| kinds::$kind::<Va32, EntryLo, _>::new(nodes); }
    };
}

each_kind!(kind);

a_flush_unwinds! {
    g16, |nodes| Gpt32::<_, Fixed<4>>::new(nodes);
    adaptive, |nodes| Gpt32::<_, Adaptive>::new(nodes);
}

/// While a TLB may hold the old leaves, none of another size is there: a flush that unwinds has told no CPU.
#[test]
fn a_flush_that_unwinds_makes_no_leaf_of_another_size() {
    for (from, to) in
        [(PageSize::K16, PageSize::K4), (PageSize::K4, PageSize::K16), (PageSize::M4, PageSize::K4)]
    {
        let mut memory = vec![Chunk::ZERO; 64];
        let slab = Storage::new(&mut memory, 0x8000_0000).unwrap();
        let bad = Cell::new(false);
        let mut table = Local::new(Mpt::<Va32, EntryLo, _>::new(&slab).unwrap(), |_: &Flush| {
            if bad.get() {
                resume_unwind(Box::new("the flush unwinds"));
            }
        });
        let whole = pages(0x400, from.max(to).pages(PageSize::K4).unwrap());
        table.map(whole, Pfn::new(0), from, RIGHTS).unwrap();
        bad.set(true);
        // SAFETY: no code needs the pages.
        assert!(unwinds(|| table.resize(whole, to, |flush| unsafe { FlushAll::breaking(flush) })));
        bad.set(false);
        for page in whole {
            let leaf = table.lookup(page.address(PageSize::K4));
            assert!(leaf.is_none_or(|leaf| leaf.size == from), "{from} to {to}: {leaf:?}");
        }
        table.unmap(whole, Holes::Skip).unwrap();
        table.destroy();
        assert_eq!(slab.usage().nodes, slab.held().lost());
    }
}

/// What a flush that unwinds was given is flushed, and freed, with the next change.
#[test]
fn the_flush_after_one_that_unwound_asks_for_both() {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let (bad, covered) = (Cell::new(false), Cell::new(true));
    let mut table = Local::new(Mpt::<Va32, Compact32, _>::new(&slab).unwrap(), |flush: &Flush| {
        if bad.get() {
            resume_unwind(Box::new("the flush unwinds"));
        }
        covered.set(flush.covers(pages(7, 1)));
    });
    for page in [7, 1 << 12] {
        table.map(pages(page, 1), Pfn::new(9), PageSize::K4, RIGHTS & !Attr::DIRTY).unwrap();
    }
    bad.set(true);
    assert!(unwinds(|| table.unmap(pages(7, 1), Holes::Refuse)));
    assert_eq!((table.lookup(VirtAddr::new(7 << 12)), slab.held().pending()), (None, 1));
    bad.set(false);
    covered.set(false);
    table.unmap(pages(1 << 12, 1), Holes::Refuse).unwrap();
    assert!(covered.get());
    assert_eq!((slab.held().pending(), slab.usage().nodes), (0, 1));
    table.destroy();
    assert_eq!((slab.held().lost(), slab.usage().nodes), (0, 0));
}

/// A visit keeps lookups from reordering chains, but not after it has unwound.
#[test]
fn a_visit_that_unwinds_is_over() {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let mut table =
        Local::new(Hashed::<Va32, Compact32, _, Buckets<0, 1, 0>>::new(&slab).unwrap(), |_: &Flush| ());
    table.map(pages(0, 16), Pfn::new(9), PageSize::K4, Attr::READ).unwrap();
    let order = |table: &Local<'_, Hashed<'_, Va32, Compact32, _, Buckets<0, 1, 0>>, _>| {
        let mut order = Vec::new();
        // SAFETY: nothing is reclaimed during the visit.
        let _ = table.table().for_each(unsafe { Pinned::by(&slab) }, pages(0, 1 << 20), &mut |leaf| {
            order.push(leaf.at);
            ControlFlow::Continue(())
        });
        order
    };
    // SAFETY: nothing is reclaimed during the visit.
    let pinned = unsafe { Pinned::by(&slab) };
    let visit = &mut |_| resume_unwind(Box::new("the visit unwinds"));
    assert!(unwinds(|| table.table().for_each(pinned, pages(0, 16), visit)));
    let before = order(&table);
    assert!(table.lookup(*before.last().unwrap()).is_some());
    assert_ne!(order(&table), before, "what was looked up is the first of its chain");
    table.destroy();
}
