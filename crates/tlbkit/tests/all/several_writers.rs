//! Several CPUs that change one address space at the same time: which of them wait for each other.
#![cfg(target_pointer_width = "64")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::host::{Host, machine, run_as};
use tlbkit::{Access, AddressSpace, Attr, Entry, Error, Fault, Mark, Mmu, PageSize, Pages, VirtAddr};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
/// The pages of a region of 2 MiB.
const REGION: usize = 512;

type Space = AddressSpace<Host, 2>;

fn page(number: usize) -> Pages {
    Pages::one(address(number).vpn(PageSize::K4))
}

fn address(number: usize) -> VirtAddr {
    VirtAddr::new(number << 12)
}

fn map(space: &Space, number: usize) {
    space.map(page(number), space.mmu().kernel().data(number as u64).unwrap(), RW).unwrap();
}

/// Calls `other` on CPU 1 and returns when it has ended. CPU 0 serves no shootdown meanwhile, as inside an edit.
fn meanwhile(mmu: &'static Mmu<Host, 2>, other: impl FnOnce() + Send) {
    thread::scope(|threads| {
        threads.spawn(|| {
            run_as(1);
            other();
            mmu.idle().unwrap();
        });
    });
}

#[test]
fn a_cpu_changes_pages_while_another_one_edits_others() {
    run_as(0);
    let mmu = machine::<2>(64);
    let space = AddressSpace::new(mmu).unwrap();
    for region in 0..2 {
        map(&space, region * REGION);
        map(&space, region * REGION + 1);
    }
    let outside = Err(Error::OutsideRight { at: address(REGION) });
    space
        .edit_in(page(0), |edit| {
            meanwhile(mmu, || {
                // By one store, and in edits of a page.
                map(&space, REGION + 2);
                space.mark_pages(page(REGION + 3), Mark::Guard).unwrap();
                assert_eq!(space.edit_in(page(REGION + 1), |edit| edit.unmap(page(REGION + 1))), Ok(1));
            });
            // Other pages can be looked at, and not be changed.
            assert_eq!(edit.first_used(page(REGION + 1)), None);
            assert_eq!(edit.first_used(page(REGION + 2)), Some(address(REGION + 2)));
            assert_eq!(edit.unmap(page(REGION)).map(drop), outside);
            assert_eq!(edit.cursor(address(REGION)).map(drop), outside);
            let done = edit.move_pages(page(0), address(REGION));
            assert!(done.is_err(), "{done:?}");
            assert_eq!(edit.unmap(page(0)), Ok(1));
            Ok(())
        })
        .unwrap();
    let used = |number| space.entry(address(number)) != Entry::Empty;
    let all = [0, 1, REGION, REGION + 1, REGION + 2, REGION + 3].map(used);
    assert_eq!(all, [false, true, true, false, true, true]);
    drop(space);
    assert_eq!((mmu.kernel().in_use(), mmu.lost()), (0, 0));
}

/// A CPU that changes the same page waits until the other one has ended.
#[test]
fn a_cpu_waits_for_the_one_that_edits_its_page() {
    run_as(0);
    let mmu = machine::<2>(64);
    let space = AddressSpace::new(mmu).unwrap();
    map(&space, 1);
    let (begun, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|threads| {
        let other = threads.spawn(|| {
            run_as(1);
            while !begun.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            let frame = mmu.kernel().data(7).unwrap();
            let done = space.map(page(0), frame, RW);
            assert!(ended.load(Ordering::SeqCst), "the edit has ended before");
            mmu.kernel().put_back(frame);
            mmu.idle().unwrap();
            done
        });
        let frame = mmu.kernel().data(6).unwrap();
        space
            .edit_in(page(0), |edit| {
                begun.store(true, Ordering::SeqCst);
                while mmu.kernel().pauses.load(Ordering::Relaxed) == 0 {
                    thread::yield_now();
                }
                ended.store(true, Ordering::SeqCst);
                edit.map(page(0), frame, RW)
            })
            .unwrap();
        // The loser of two faults finds the page mapped.
        let size = PageSize::K4;
        assert_eq!(other.join().unwrap(), Err(Error::Occupied { at: address(0), size }));
        let fault = space.fault(address(0), Access::STORE.by_user());
        assert!(matches!(fault, Ok(Fault::Refused(_) | Fault::Retry)), "{fault:?}");
    });
    drop(space);
    assert_eq!((mmu.kernel().in_use(), mmu.lost()), (0, 0));
}

/// The pages below change all the time, and the writer of all of them has its turn.
#[test]
fn changes_of_pages_do_not_starve_an_edit_of_all() {
    run_as(0);
    let mmu = machine::<2>(64);
    let space = AddressSpace::new(mmu).unwrap();
    map(&space, 1);
    let (begun, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|threads| {
        threads.spawn(|| {
            run_as(1);
            while !stop.load(Ordering::SeqCst) {
                map(&space, 0);
                assert_eq!(space.unmap(page(0)), Ok(1));
                begun.store(true, Ordering::SeqCst);
            }
            mmu.idle().unwrap();
        });
        while !begun.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        for _ in 0..if cfg!(miri) { 5 } else { 500 } {
            space.edit(|edit| edit.first_hole(page(0)).map_or(Ok(()), |_| Ok(()))).unwrap();
            mmu.on_interrupt();
        }
        stop.store(true, Ordering::SeqCst);
    });
    drop(space);
    assert_eq!((mmu.kernel().in_use(), mmu.lost()), (0, 0));
}
