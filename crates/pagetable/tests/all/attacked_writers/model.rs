//! Several writers that are alive at the same time, each of its own part, beside a model.

use std::collections::BTreeMap;

use crate::common::numbers::Numbers;
use crate::common::writers::complete;
use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::Compact;
use tlbkit_pagetable::geometry::{Geometry, Half};
use tlbkit_pagetable::mpt::{Detached, Encoded, Mpt};
use tlbkit_pagetable::nodes::{Chunk, Reclaim as _, Slab};
use tlbkit_pagetable::{
    Change, Entry, Error, FlushAll, Holes, Mark, NodeLocks, PageCursor as _, PageTurn, Pinned, Radix, Rest,
    Shared, Table, Uncovered, Writer, destroy,
};

const RIGHTS: Attr = Attr::READ.union(Attr::WRITE);
const PAGES: usize = 512;

/// 512 pages in four levels, with pages of the size of the slots of two levels.
#[derive(Clone, Copy, Debug)]
struct Small;

impl Geometry for Small {
    const VA_BITS: u32 = 21;
    const BASE: PageSize = PageSize::K4;
    const HALF: Half = Half::Lower;
    const SIZES: &'static [PageSize] = &[PageSize::K4, PageSize::K16, PageSize::K64];
}

impl Radix for Small {
    const WIDTHS: &'static [u32] = &[3, 2, 2, 2];
}

type Nodes<'m> = Slab<'m, u64, Shared>;
type T<'m, 'n> = Mpt<'n, Small, Compact, Nodes<'m>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Frame(usize),
    Guard,
}

fn check(table: &T<'_, '_>, model: &BTreeMap<usize, Held>, what: &str) {
    for page in 0..PAGES {
        let at = Vpn::new(page).address(PageSize::K4);
        // SAFETY: this thread alone frees nodes.
        let found = match table.entry(unsafe { Pinned::by(&()) }, at) {
            Entry::Leaf(leaf) => Some(Held::Frame(leaf.frame.get() + page - leaf.at.vpn(PageSize::K4).get())),
            Entry::Mark(_) => Some(Held::Guard),
            Entry::Empty => None,
        };
        assert_eq!(found, model.get(&page).copied(), "page {page} after {what}");
    }
}

fn node(pages: Pages, above: usize) -> (usize, usize) {
    let log = 2 * (above as u32 + 1);
    (pages.first().get() >> log << log, (pages.first().get() >> log << log) + (1 << log) - 1)
}

fn history(seed: u64, steps: usize) -> usize {
    let mut memory = vec![Chunk::ZERO; 4096];
    let slab = Nodes::new(&mut memory, 0).unwrap();
    let mut locks = NodeLocks::new();
    let table: T<'_, '_> = Mpt::new(&slab).unwrap().with_locks(&mut locks);
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut model: BTreeMap<usize, Held> = BTreeMap::new();
    let mut live: Vec<(Writer<'_, '_, T<'_, '_>>, Pages)> = Vec::new();
    let mut rights = 0;
    let (mut parted, mut done_in_part) = (0, 0);
    for step in 0..steps {
        let first = numbers.below(PAGES);
        let most = [1, 1, 2, 4, 5, 16, 17, 64][numbers.below(8)];
        let count = (1 + numbers.below(most)).min(PAGES - first);
        let mut pages = Pages::count(Vpn::new(first), count).unwrap();
        let what = numbers.below(24);
        let told = format!("seed {seed} step {step}: {what} of {pages:?}");
        if what < 6 && live.len() < 5 {
            if let Ok(writer) = Writer::over(&table, pages, &mut || false) {
                rights += 1;
                parted += usize::from(!writer.may_write(Pages::count(Vpn::new(0), PAGES).unwrap()));
                live.push((writer, pages));
            }
            continue;
        }
        if what < 9 {
            let Ok(mut turn) = PageTurn::new(&table, Vpn::new(first)) else {
                continue;
            };
            let is_others = live.iter().any(|(writer, _)| writer.may_write(Pages::one(Vpn::new(first))));
            assert!(!is_others, "{told}: a page of a writer of a range");
            if let Some(slot) = turn.slot() {
                if what == 6 {
                    if slot.map(Pfn::new(first), Encoded::new(RIGHTS).unwrap()).is_some() {
                        assert_eq!(model.insert(first, Held::Frame(first)), None);
                    }
                } else if slot.unmap().is_some() {
                    assert!(matches!(model.remove(&first), Some(Held::Frame(_))));
                }
            }
            drop(turn);
            check(&table, &model, &told);
            continue;
        }
        if live.is_empty() {
            continue;
        }
        let chosen = numbers.below(live.len());
        if what == 9 {
            let (writer, _) = live.swap_remove(chosen);
            match numbers.below(3) {
                0 => drop(writer),
                1 => drop(writer.finish()),
                _ => complete(writer.finish()),
            }
            check(&table, &model, &told);
            continue;
        }
        let (writer, own) = &mut live[chosen];
        // Mostly of its own range.
        if numbers.below(8) > 0 {
            let from = own.first().get() + numbers.below(own.len());
            let to = from + numbers.below(own.last().get() - from + 1);
            pages =
                if numbers.below(3) == 0 { *own } else { Pages::new(Vpn::new(from), Vpn::new(to)).unwrap() };
        }
        let (first, last) = (pages.first().get(), pages.last().get());
        let may = writer.may_write(pages);
        let whole_table = writer.may_write(Pages::count(Vpn::new(0), PAGES).unwrap());
        let told = format!("{told} as {pages:?} own {own:?}");
        let at = pages.first().address(PageSize::K4);
        let mut no_flush = |_: &Flush| ();
        let outside = |done: Result<(), Error>| {
            if !may {
                assert!(done.is_err(), "{told}");
            }
            done.is_ok()
        };
        let used = |model: &BTreeMap<usize, Held>| model.range(first..=last).count();
        let was = used(&model);
        let done = match what {
            10 | 11 => {
                let done = outside(writer.map(pages, Pfn::new(first), PageSize::K4, RIGHTS));
                if done {
                    assert_eq!(was, 0, "{told}");
                    (first..=last).for_each(|page| _ = model.insert(page, Held::Frame(page)));
                }
                done
            }
            12 => {
                let size = [PageSize::K16, PageSize::K64][numbers.below(2)];
                let done = outside(writer.map(pages, Pfn::new(first), size, RIGHTS));
                if done {
                    (first..=last).for_each(|page| assert_eq!(model.insert(page, Held::Frame(page)), None));
                }
                done
            }
            13 | 14 => {
                let done = writer.unmap(pages, Holes::Skip);
                if done.is_ok() {
                    (first..=last).for_each(|page| _ = model.remove(&page));
                }
                outside(done.map(drop))
            }
            15 => outside(writer.protect(pages, Holes::Skip, Change::READ_ONLY).map(drop)),
            16 => {
                let may = writer.may_write(Pages::one(pages.first()));
                let done = writer.mark(at, Some(Mark::Guard));
                assert!(may || done.is_err(), "{told}");
                if done.is_ok() {
                    model.insert(first, Held::Guard);
                }
                done.is_ok()
            }
            17 => {
                let may = writer.may_write(Pages::one(pages.first()));
                let done = writer.mark(at, None);
                assert!(may || done.is_err(), "{told}");
                if done.is_ok() {
                    model.remove(&first);
                }
                done.is_ok()
            }
            18 => {
                let size = [PageSize::K4, PageSize::K16, PageSize::K64][numbers.below(3)];
                outside(writer.resize(pages, size, FlushAll::in_place(&mut no_flush)))
            }
            19 => {
                let to = numbers.below(PAGES - pages.len() + 1);
                let to =
                    if numbers.below(2) == 0 { to } else { own.first().get() + numbers.below(own.len()) };
                if to + pages.len() > PAGES {
                    continue;
                }
                let done = writer.move_pages(pages, Vpn::new(to), FlushAll::in_place(&mut no_flush));
                let may = may && writer.may_write(Pages::count(Vpn::new(to), pages.len()).unwrap());
                assert!(may || done.is_err(), "{told}");
                if done.is_ok() {
                    let moved: Vec<_> = (first..=last).map(|page| model.remove(&page)).collect();
                    for (offset, held) in moved.into_iter().enumerate() {
                        if let Some(held) = held {
                            assert_eq!(model.insert(to + offset, held), None);
                        }
                    }
                }
                done.is_ok()
            }
            20 => {
                let mut rest = Rest::of(pages);
                let mut some = false;
                for _ in 0..numbers.below(20) {
                    match writer.take_next(&mut rest) {
                        Ok(Some((page, Uncovered::Frames(run)))) => {
                            assert!(may);
                            (page.get()..page.get() + run.len)
                                .for_each(|page| _ = model.remove(&page).unwrap());
                        }
                        Ok(Some((page, Uncovered::Mark(_)))) => _ = model.remove(&page.get()).unwrap(),
                        Ok(None) => break,
                        Err(_) => break,
                    }
                    some = true;
                }
                some
            }
            21 => {
                let mut detached = Detached::new(&slab);
                let before = model.clone();
                let done = match writer.detach(pages, 1 + numbers.below(40), &mut detached) {
                    Err(_) => false,
                    Ok(stop) => {
                        assert!(may, "{told}");
                        let end = stop.map_or(last + 1, Vpn::get);
                        let mut frames = 0;
                        let mut hand_over = |what: Uncovered| {
                            if let Uncovered::Frames(run) = what {
                                frames += run.len;
                            }
                        };
                        if let Some(taken) =
                            end.checked_sub(1).and_then(|end| Pages::new(pages.first(), Vpn::new(end)))
                        {
                            // SAFETY: no CPU walks the table.
                            unsafe { writer.clear_detached(taken, &mut detached, &mut hand_over) };
                        }
                        // SAFETY: no CPU walks the table.
                        while !unsafe { detached.release(100, &mut hand_over) } {}
                        (first..end).for_each(|page| _ = model.remove(&page));
                        let expected =
                            (first..end).filter(|page| matches!(before.get(page), Some(Held::Frame(_))));
                        assert_eq!(frames, expected.count(), "{told}");
                        true
                    }
                };
                assert_eq!(detached.nodes(), 0);
                done
            }
            22 => match writer.cursor(pages.first()) {
                Err(_) => false,
                Ok(mut cursor) => {
                    for _ in 0..numbers.below(8) {
                        let page = cursor.page().get();
                        match numbers.below(5) {
                            0 => {
                                if cursor.map(Pfn::new(page), RIGHTS).is_ok() {
                                    assert_eq!(model.insert(page, Held::Frame(page)), None, "{told}");
                                }
                            }
                            1 => {
                                if let Ok(leaf) = cursor.unmap() {
                                    let from = leaf.at.vpn(PageSize::K4).get();
                                    let len = leaf.size.bytes() >> 12;
                                    (from..from + len).for_each(|page| _ = model.remove(&page).unwrap());
                                }
                            }
                            2 => _ = cursor.step(),
                            3 => _ = cursor.next_mapped(Vpn::new(PAGES - 1)),
                            _ => _ = cursor.seek(Vpn::new(numbers.below(PAGES))),
                        }
                    }
                    true
                }
            },
            _ => match writer.pending() {
                None => false,
                Some(pending) => {
                    let batch = pending.take();
                    if numbers.below(2) == 0 {
                        complete(batch);
                    } else {
                        drop(batch);
                    }
                    true
                }
            },
        };
        done_in_part += usize::from(done && !whole_table);
        check(&table, &model, &told);
        // No writer has a node that another one has.
        for (index, (one, pages)) in live.iter().enumerate() {
            for (other, others) in &live[index + 1..] {
                assert!(!one.may_write(*others) && !other.may_write(*pages), "{told}");
            }
        }
        let _ = node;
    }
    live.into_iter().for_each(|(writer, _)| complete(writer.finish()));
    let footprint = table.footprint();
    let mut entries = 0;
    // SAFETY: this thread alone frees nodes.
    let _ = table.for_each_entry(
        unsafe { Pinned::by(&()) },
        Pages::count(Vpn::new(0), PAGES).unwrap(),
        &mut |_, _| {
            entries += 1;
            std::ops::ControlFlow::Continue(())
        },
    );
    assert_eq!(footprint.ptes, entries, "seed {seed}");
    let dead = destroy(table);
    assert!(dead.nodes() >= footprint.nodes, "seed {seed}");
    complete(dead);
    assert_eq!((slab.usage().nodes, slab.held().lost(), slab.held().pending()), (0, 0, 0), "seed {seed}");
    let _ = (rights, parted);
    done_in_part
}

#[test]
fn histories_of_writers_of_parts() {
    let histories = if cfg!(miri) {
        2
    } else if cfg!(tlbkit_full) {
        300
    } else {
        40
    };
    let done: usize = (1..=histories).map(|seed| history(seed, if cfg!(miri) { 60 } else { 1500 })).sum();
    println!("{done} changes by writers of parts");
    assert!(done > 0);
}
