//! `mremap` in one call: pages, marks and whole nodes move, with one shootdown.
#![cfg(target_pointer_width = "64")]

use std::sync::atomic::{AtomicBool, Ordering};

use tlbkit::{Access, AddressSpace, Attr, Change, Entry, Error, Fault, Mark, PageSize, Pages, Pfn, VirtAddr};

use crate::host::{Host, Met, Use, machine, run_as};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
const M2: usize = 2 << 20;
const GIB: usize = 1 << 30;

fn pages(at: usize, count: usize) -> Pages {
    Pages::count(VirtAddr::new(at).vpn(PageSize::K4), count).unwrap()
}

fn at(at: usize) -> VirtAddr {
    VirtAddr::new(at)
}

#[test]
fn a_move_over_holes() {
    run_as(0);
    let mmu = machine::<1>(256);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    let source: Vec<(usize, Pfn)> =
        [0, 3, 4, 9].into_iter().map(|n| (n, host.data(n as u64).unwrap())).collect();
    for (n, frame) in &source {
        space.map(pages(0x10_0000 + n * 0x1000, 1), *frame, RW).unwrap();
    }
    let beside = host.data(50).unwrap();
    space.map(pages(0x40_0000 + 10 * 0x1000, 1), beside, RW).unwrap();
    space.activate().unwrap();
    assert!(matches!(host.access(at(0x10_3000), true), Met::Memory(_)));
    let flushes = host.flushes.load(Ordering::Relaxed);
    assert_eq!(space.move_pages(pages(0x10_0000, 10), at(0x40_0000)), Ok(4));
    assert_eq!(host.flushes.load(Ordering::Relaxed), flushes + 1);
    assert_eq!(host.access(at(0x10_3000), false), Met::Fault);
    for n in 0..10 {
        let frame = source.iter().find(|(m, _)| *m == n).map(|(_, frame)| *frame);
        assert_eq!(space.lookup(at(0x40_0000 + n * 0x1000)).map(|leaf| leaf.frame), frame);
        if let Some(frame) = frame {
            assert_eq!(host.mappings(frame), Use::Data(1));
        }
    }
    // What hardware has noted came along.
    assert!(space.lookup(at(0x40_3000)).unwrap().attr.contains(Attr::DIRTY));
    assert!(!space.lookup(at(0x40_4000)).unwrap().attr.contains(Attr::ACCESSED));
    assert_eq!(space.lookup(at(0x40_a000)).unwrap().frame, beside);
    mmu.idle().unwrap();
    drop(space);
    assert_eq!(host.in_use(), 0);
}

/// Whatever moves, each other CPU is interrupted once, and finds no page at its old place when the call returns.
#[test]
fn a_move_costs_one_shootdown() {
    run_as(0);
    let mmu = machine::<2>(4096);
    let host = mmu.kernel();
    let other = move || {
        run_as(1);
        if mmu.kernel().pending() {
            mmu.on_interrupt();
        }
        run_as(0);
    };
    host.meanwhile.set(Box::new(other)).ok();
    let space = AddressSpace::<Host, 2>::new(mmu).unwrap();
    for cpu in [1, 0] {
        run_as(cpu);
        space.activate().unwrap();
    }
    // The nodes move; the pages move; and of the last range, the nodes between its ends move.
    for (to, count) in [(3 * M2, 1024), (3 * M2 + 0x1000, 1024), (3 * M2 + 0x7000, 1100)] {
        let first = if to % M2 == 0x7000 { M2 / 2 + 0x7000 } else { M2 };
        let to = if first == M2 { to } else { to + M2 / 2 };
        let frames: Vec<Pfn> = (0..count).map(|n| host.data(n as u64).unwrap()).collect();
        space.map_each(pages(first, count), frames.iter().copied(), RW).unwrap();
        let nodes = space.footprint().nodes;
        run_as(1);
        assert!(matches!(host.access(at(first), true), Met::Memory(_)));
        run_as(0);
        let before = host.interrupted.load(Ordering::Relaxed);
        assert_eq!(space.move_pages(pages(first, count), at(to)), Ok(count));
        assert_eq!(host.interrupted.load(Ordering::Relaxed), before + 1);
        assert!(space.footprint().nodes <= nodes + 1);
        run_as(1);
        assert_eq!(host.access(at(first), false), Met::Fault);
        assert_eq!(host.access(at(to), false), Met::Memory(frames[0].address(PageSize::K4)));
        run_as(0);
        let moved: Vec<_> =
            pages(to, count).into_iter().map(|page| space.lookup(page.address(PageSize::K4))).collect();
        assert!(moved.iter().zip(&frames).all(|(leaf, frame)| leaf.unwrap().frame == *frame));
        assert!(moved[0].unwrap().attr.contains(Attr::DIRTY));
        assert!(frames.iter().all(|&frame| host.mappings(frame) == Use::Data(1)));
        assert_eq!(space.unmap(pages(to, count)), Ok(count));
    }
    for cpu in [1, 0] {
        run_as(cpu);
        mmu.idle().unwrap();
    }
}

/// A page that is out, a guard, a frozen page and a closed page are the same at their new place.
#[test]
fn marks_and_frozen_pages_move() {
    run_as(0);
    let mmu = machine::<1>(256);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    space.activate().unwrap();
    let frames: Vec<Pfn> = (0..2).map(|n| host.data(n).unwrap()).collect();
    space.map_each(pages(0x10_0000, 2), frames.iter().copied(), RW).unwrap();
    host.hold_payload(7);
    space.mark(at(0x10_2000), Mark::Payload(7, RW)).unwrap();
    space.mark(at(0x10_3000), Mark::Guard).unwrap();
    space.protect(pages(0x10_1000, 1), Change::clear(Attr::RIGHTS - Attr::USER)).unwrap();
    assert!(matches!(host.access(at(0x10_0000), true), Met::Memory(_)));
    space.freeze(at(0x10_0000)).unwrap();
    for to in [0x50_0000, 0x10_0000, 0x60_1000] {
        let from = if to == 0x50_0000 {
            0x10_0000
        } else if to == 0x10_0000 {
            0x50_0000
        } else {
            0x10_0000
        };
        assert_eq!(space.move_pages(pages(from, 5), at(to)), Ok(2));
        let fault = |page: usize| space.fault(at(to + page), Access::STORE.by_user()).unwrap();
        assert!(matches!(fault(0), Fault::CopyOnWrite(leaf) if leaf.frame == frames[0]));
        assert!(matches!(fault(0x1000), Fault::Closed(leaf) if leaf.frame == frames[1]));
        assert!(matches!(fault(0x2000), Fault::Swapped(mark) if mark == 7));
        assert_eq!(fault(0x3000), Fault::Guard);
        assert_eq!(fault(0x4000), Fault::NotMapped);
        assert_eq!((0..5).map(|n| space.entry(at(from + n * 0x1000))).collect::<Vec<_>>(), [Entry::Empty; 5]);
    }
    assert_eq!(host.holders(7), 1);
    // The frame that was frozen for it is put out at the new place.
    space.page_out(at(0x60_1000), frames[0], 8).unwrap();
    host.hold_payload(8);
    host.put_back(frames[0]);
    assert_eq!(host.mappings(frames[0]), Use::Free);
    mmu.idle().unwrap();
    drop(space);
    assert_eq!((host.in_use(), host.holders(7), host.holders(8)), (0, 0, 0));
}

#[test]
fn larger_pages_are_split_where_they_must_be_and_a_move_that_fails_leaves_them_whole() {
    run_as(0);
    let mmu = machine::<1>(1024);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    let frame = Pfn::new(GIB / 0x1000);
    space.map_linear(pages(GIB, 1024), frame, RW).unwrap();
    let leaf =
        |page: usize| space.lookup(at(page)).map(|leaf| (leaf.size, leaf.part(at(page), PageSize::K4).frame));
    // Its size stays.
    assert_eq!(space.move_pages(pages(GIB, 512), at(GIB + 4 * M2)), Ok(512));
    assert_eq!((leaf(GIB), leaf(GIB + 4 * M2)), (None, Some((PageSize::M2, frame))));
    // It becomes small pages.
    assert_eq!(space.move_pages(pages(GIB + 4 * M2, 512), at(GIB + 6 * M2 + 0x5000)), Ok(512));
    assert_eq!(leaf(GIB + 7 * M2 + 0x4000), Some((PageSize::K4, Pfn::new(frame.get() + 511))));
    // A page in the way: the page that the range cuts is whole again.
    let cut = pages(GIB + M2 + 0x3000, 8);
    let second = frame.get() + 512;
    let busy = Error::Occupied { at: at(GIB + 6 * M2 + 0x5000), size: PageSize::K4 };
    assert_eq!(space.move_pages(cut, at(GIB + 6 * M2)), Err(busy));
    assert_eq!(leaf(GIB + M2 + 0x3000), Some((PageSize::M2, Pfn::new(second + 3))));
    // No memory for the new nodes: neither.
    let nodes = space.footprint().nodes;
    host.allowance.store(1, Ordering::Relaxed);
    assert!(matches!(space.move_pages(cut, at(5 * GIB)), Err(Error::NoMemory { .. })));
    host.allowance.store(usize::MAX, Ordering::Relaxed);
    assert_eq!(
        (leaf(GIB + M2 + 0x3000), space.footprint().nodes),
        (Some((PageSize::M2, Pfn::new(second + 3))), nodes)
    );
    assert_eq!(space.move_pages(cut, at(5 * GIB)), Ok(8));
    assert_eq!(leaf(5 * GIB + 0x7000), Some((PageSize::K4, Pfn::new(second + 10))));
    assert_eq!(
        (leaf(GIB + M2 + 0xa000), leaf(GIB + M2 + 0xb000)),
        (None, Some((PageSize::K4, Pfn::new(second + 11))))
    );
    // The frames are none of the host's.
    std::mem::forget(space);
}

#[test]
fn a_place_that_no_page_can_take_is_refused() {
    run_as(0);
    let mmu = machine::<1>(256);
    let host = mmu.kernel();
    let half = pages(0x40 * GIB, (0x40 * GIB) / 0x1000);
    let kernel = AddressSpace::lending(mmu, [half]).unwrap();
    let global = RW.difference(Attr::USER) | Attr::GLOBAL;
    kernel.map(pages(0x40 * GIB, 1), host.data(1).unwrap(), global).unwrap();
    assert_eq!(
        kernel.move_pages(pages(0x40 * GIB, 2), at(GIB)),
        Err(Error::WrongAttr { attr: Attr::GLOBAL })
    );
    assert_eq!(kernel.move_pages(pages(0x40 * GIB, 2), at(0x42 * GIB)), Ok(1));
    let space = AddressSpace::sharing(&kernel).unwrap();
    space.map(pages(GIB, 1), host.data(2).unwrap(), RW).unwrap();
    for (from, to, error) in [
        (0x42 * GIB, GIB + M2, Error::Borrowed { at: at(0x42 * GIB) }),
        (GIB, 0x42 * GIB, Error::Borrowed { at: at(0x42 * GIB) }),
        (GIB, GIB + 0x800, Error::Misaligned { at: at(GIB + 0x800), size: PageSize::K4 }),
        (GIB, GIB + 0x1000, Error::Overlap { at: at(GIB + 0x1000) }),
        (GIB, 1 << 40, Error::OutOfRange { at: at(1 << 40) }),
    ] {
        assert_eq!(space.move_pages(pages(from, 2), at(to)), Err(error), "from {from:#x} to {to:#x}");
    }
    assert!(space.lookup(at(GIB)).is_some());
    drop(space);
    std::mem::forget(kernel);
}

/// The flush of a move comes before the next change of an edit, and takes that of the changes before along.
#[test]
fn changes_of_the_same_edit_come_before_and_after_a_move() {
    run_as(0);
    let mmu = machine::<1>(256);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    space.activate().unwrap();
    let [a, b, c] = [1, 2, 3].map(|n| host.data(n).unwrap());
    space.map_each(pages(M2, 2), [a, b], RW).unwrap();
    for page in [0, 0x1000] {
        assert!(matches!(host.access(at(M2 + page), true), Met::Memory(_)));
    }
    space
        .edit(|edit| {
            edit.unmap(pages(M2 + 0x1000, 1))?;
            edit.move_pages(pages(M2, 512), at(3 * M2))?;
            assert_eq!(host.mappings(b), Use::Free, "the node has moved, so all is flushed");
            // In the node that has moved, and at the old place of the page.
            edit.map(pages(3 * M2 + 0x1000, 1), c, RW)?;
            assert_eq!(host.access(at(M2 + 0x1000), false), Met::Fault);
            edit.unmap(pages(3 * M2, 1))?;
            edit.move_pages(pages(3 * M2 + 0x1000, 1), at(M2))
        })
        .unwrap();
    assert_eq!((host.mappings(a), host.mappings(c)), (Use::Free, Use::Data(1)));
    assert_eq!(host.access(at(M2), true), Met::Memory(c.address(PageSize::K4)));
    mmu.idle().unwrap();
    drop(space);
    assert_eq!(host.in_use(), 0);
}

/// Another CPU stores to a page without a pause while it moves to and fro. Each store meets the page's own frame or a fault, and the last
/// one is noted.
#[test]
fn a_page_that_moves_under_stores_is_dirty() {
    run_as(0);
    let mmu = machine::<2>(256);
    let host = mmu.kernel();
    let space = AddressSpace::<Host, 2>::new(mmu).unwrap();
    let frame = host.data(1).unwrap();
    // Between two places of one node, of two nodes, and by the node's link.
    let places = [M2, M2 + 0x5000, 3 * M2 + 0x1000, 4 * M2 + 0x1000];
    space.map(pages(places[0], 1), frame, RW).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stores = scope.spawn(|| {
            run_as(1);
            space.activate().unwrap();
            let mut met = 0;
            while !over.load(Ordering::SeqCst) {
                if host.pending() {
                    mmu.on_interrupt();
                }
                for place in places {
                    match host.access(at(place), true) {
                        Met::Memory(to) => {
                            assert_eq!(to, frame.address(PageSize::K4));
                            met += 1;
                        }
                        Met::Fault => {}
                    }
                }
            }
            mmu.offline().unwrap();
            met
        });
        let mut now = 0;
        for turn in 0..if cfg!(miri) { 12 } else { 2000 } {
            let next = (now + 1 + turn % 3) % places.len();
            if turn % 5 == 0 {
                // Clean: the next store is noted again.
                space.protect(pages(places[now], 1), Change::clear(Attr::DIRTY)).unwrap();
            }
            let found = space.lookup(at(places[now])).unwrap();
            assert_eq!(space.move_pages(pages(places[now], 1), at(places[next])), Ok(1));
            now = next;
            let moved = space.lookup(at(places[now])).unwrap();
            assert!(
                moved.attr.contains(found.attr),
                "what was noted is kept: {:?}, {:?}",
                found.attr,
                moved.attr
            );
        }
        over.store(true, Ordering::SeqCst);
        assert!(stores.join().unwrap() > 0);
        assert_eq!(host.mappings(frame), Use::Data(1));
        let _ = space.unmap(pages(places[now], 1));
    });
    assert_eq!(host.mappings(frame), Use::Free);
}
