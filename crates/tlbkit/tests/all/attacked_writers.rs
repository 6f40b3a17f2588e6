//! Attacks on several writers of one address space.
#![cfg(target_pointer_width = "64")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::host::{Host, Use, machine, run_as};
use tlbkit::{
    Access, AddressSpace, Attr, Change, Edit, Entry, Error, Mmu, PageSize, Pages, PhysAddr, VirtAddr,
};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
const REGION: usize = 512;
const GIB: usize = REGION * REGION;

type Space = AddressSpace<Host, 2>;

fn pages(number: usize, count: usize) -> Pages {
    Pages::count(address(number).vpn(PageSize::K4), count).unwrap()
}

fn page(number: usize) -> Pages {
    pages(number, 1)
}

fn address(number: usize) -> VirtAddr {
    VirtAddr::new(number << 12)
}

fn map(space: &Space, number: usize) {
    space.map(page(number), space.mmu().kernel().data(number as u64).unwrap(), RW).unwrap();
}

/// A page outside of the range fails, and so do those before it.
#[test]
fn a_range_that_leaves_the_right_is_mapped_as_a_whole_or_not() {
    run_as(0);
    let mmu = machine::<2>(64);
    let space = AddressSpace::new(mmu).unwrap();
    map(&space, 5);
    let done = space.edit_in(page(0), |edit| {
        let each = edit.map_with(pages(0, 2), RW, |_| Ok(mmu.kernel().data(1).unwrap()));
        assert!(each.is_err());
        Ok(edit.first_used(page(0)))
    });
    assert_eq!(done, Ok(None), "nothing has changed");
    drop(space);
    assert_eq!((mmu.kernel().in_use(), mmu.lost()), (0, 0));
}

/// Lets CPU 1 unmap the only page of a node while `look` of CPU 0 is at the node, and tells whether the node was freed under its feet.
fn is_freed(look: impl FnOnce(&mut Edit<'_, Host, 2>)) -> bool {
    run_as(0);
    let mmu: &'static Mmu<Host, 2> = machine::<2>(64);
    let kernel =
        Space::lending(mmu, [Pages::count(VirtAddr::new(usize::MAX << 30).vpn(PageSize::K4), GIB).unwrap()])
            .unwrap();
    let space = Space::sharing(&kernel).unwrap();
    for number in [0, 1, GIB, GIB + REGION] {
        map(&space, number);
    }
    // The nodes on the way to the page.
    let (seen, target) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let (begun, ended, freed) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let hook = {
        let (seen, target, begun, ended, freed) = (
            Arc::clone(&seen),
            Arc::clone(&target),
            Arc::clone(&begun),
            Arc::clone(&ended),
            Arc::clone(&freed),
        );
        move |frame: PhysAddr| {
            if target.load(Ordering::SeqCst) == 0 {
                seen.lock().unwrap().push(frame.get());
            }
            if crate::host::cpu() != 0
                || target.compare_exchange(frame.get(), 1, Ordering::SeqCst, Ordering::SeqCst).is_err()
            {
                return;
            }
            begun.store(true, Ordering::SeqCst);
            let start = Instant::now();
            while !ended.load(Ordering::SeqCst) && start.elapsed() < Duration::from_millis(1000) {
                thread::yield_now();
            }
            let node = PhysAddr::new(frame.get()).pfn(PageSize::K4);
            freed.store(mmu.kernel().mappings(node) == Use::Free, Ordering::SeqCst);
        }
    };
    assert!(mmu.kernel().on_memory.set(Box::new(hook)).is_ok());
    assert!(space.lookup(address(GIB)).is_some());
    let node = *seen.lock().unwrap().last().unwrap();
    thread::scope(|threads| {
        let other = threads.spawn(|| {
            run_as(1);
            while !begun.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            assert_eq!(space.unmap(page(GIB)), Ok(1));
            ended.store(true, Ordering::SeqCst);
            mmu.idle().unwrap();
        });
        space
            .edit_in(page(1), |edit| {
                target.store(node, Ordering::SeqCst);
                look(edit);
                Ok(())
            })
            .unwrap();
        assert!(begun.load(Ordering::SeqCst), "the walk has come to the node");
        while !other.is_finished() {
            mmu.on_interrupt();
            thread::yield_now();
        }
    });
    freed.load(Ordering::SeqCst)
}

#[test]
fn a_look_keeps_the_nodes_of_others() {
    assert!(!is_freed(|edit| {
        let _ = edit.first_used(pages(2, 2 * GIB));
    }));
}

#[test]
fn a_cursor_keeps_the_nodes_of_others() {
    assert!(!is_freed(|edit| {
        let _ = edit.cursor(address(1)).unwrap().next_mapped(address(2 * GIB));
    }));
}

/// Only the writer of a page knows what the page's fault needs.
#[test]
fn a_fault_outside_of_the_right_is_refused() {
    run_as(0);
    let mmu = machine::<2>(64);
    let space = AddressSpace::new(mmu).unwrap();
    map(&space, 0);
    map(&space, 5);
    map(&space, REGION);
    let outside =
        space.edit_in(page(0), |edit| Ok(edit.fault(address(REGION), Access::STORE.by_user()).map(drop)));
    assert_eq!(outside, Ok(Err(Error::OutsideRight { at: address(REGION) })));
    drop(space);
}

/// An unmap that leaves the right splits no page.
#[test]
fn an_unmap_that_leaves_the_right_splits_nothing() {
    run_as(0);
    let mmu = machine::<2>(2048);
    let space: Space = AddressSpace::new(mmu).unwrap();
    map(&space, 2 * REGION);
    let frames: Vec<_> = (0..1024).map(|_| mmu.kernel().data(1).unwrap()).collect();
    let first = frames.iter().position(|frame| frame.get() % REGION == 0).unwrap();
    space.map_linear(pages(0, REGION), frames[first], RW).unwrap();
    assert_eq!(space.lookup(address(3)).unwrap().size, PageSize::M2);
    let done = space.edit_in(pages(0, REGION), |edit| Ok(edit.unmap(pages(3, REGION))));
    assert_eq!(done, Ok(Err(Error::OutsideRight { at: address(3) })));
    assert_eq!(space.lookup(address(3)).unwrap().size, PageSize::M2);
    assert_eq!(space.entry(address(2 * REGION + 1)), Entry::Empty);
}

/// An edit of all pages that has met a range waits in the list from then on: changes of pages that begin later wait for it.
#[test]
fn an_edit_of_all_that_has_met_a_range_is_not_starved_by_pages() {
    run_as(0);
    let mmu: &'static Mmu<Host, 3> = machine::<3>(64);
    let space: AddressSpace<Host, 3> = AddressSpace::new(mmu).unwrap();
    let data = || mmu.kernel().data(1).unwrap();
    for number in [0, 3, REGION] {
        space.map(page(number), data(), RW).unwrap();
    }
    let [held, listed, released] = [const { AtomicBool::new(false) }; 3];
    let (early, late) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|threads| {
        // CPU 2 changes one page, and takes its time.
        threads.spawn(|| {
            run_as(2);
            // The first call of a CPU is that of a range.
            mmu.online().unwrap();
            space
                .map_with(page(REGION + 1), RW, |_| {
                    held.store(true, Ordering::SeqCst);
                    while !listed.load(Ordering::SeqCst) {
                        thread::yield_now();
                    }
                    thread::sleep(Duration::from_millis(600));
                    Ok(data())
                })
                .unwrap();
            released.store(true, Ordering::SeqCst);
            mmu.idle().unwrap();
        });
        // CPU 1 has a range until CPU 0 waits for it, and then changes pages.
        threads.spawn(|| {
            run_as(1);
            mmu.online().unwrap();
            while !held.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            space
                .edit_in(page(0), |_| {
                    listed.store(true, Ordering::SeqCst);
                    while mmu.kernel().pauses.load(Ordering::SeqCst) == 0 {
                        thread::yield_now();
                    }
                    Ok(())
                })
                .unwrap();
            let start = Instant::now();
            while !released.load(Ordering::SeqCst) {
                space.map(page(2), data(), RW).unwrap();
                assert_eq!(space.unmap(page(2)), Ok(1));
                let count = if start.elapsed() < Duration::from_millis(100) { &early } else { &late };
                count.fetch_add(1, Ordering::SeqCst);
            }
            mmu.idle().unwrap();
        });
        while !listed.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        space.edit(|_| Ok(())).unwrap();
        mmu.idle().unwrap();
    });
    println!("{early:?} changes in the first 100 ms, {late:?} later, while CPU 0 waits");
    assert!(late.load(Ordering::SeqCst) <= 2, "{late:?} changes began while an edit of all waited");
}

/// Whatever unwinds with the lock of a node, or on the way to it, gives it back.
#[test]
fn the_lock_of_a_node_is_given_back_by_what_unwinds() {
    run_as(0);
    let mmu = machine::<2>(64);
    let space: Space = AddressSpace::new(mmu).unwrap();
    map(&space, 0);
    map(&space, 1);
    let unwinds = |call: &dyn Fn()| assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    unwinds(&|| space.edit_in(page(0), |_| -> Result<(), Error> { resume_unwind(Box::new(())) }).unwrap());
    unwinds(&|| space.map_with(page(2), RW, |_| resume_unwind(Box::new(()))).unwrap());
    unwinds(&|| space.map_with(pages(2, 2), RW, |_| resume_unwind(Box::new(()))).unwrap());
    // A CPU that waits for the node has a place in the list.
    assert!(mmu.kernel().meanwhile.set(Box::new(|| resume_unwind(Box::new(())))).is_ok());
    space
        .edit_in(page(0), |_| {
            thread::scope(|threads| {
                threads.spawn(|| {
                    run_as(1);
                    mmu.online().unwrap();
                    unwinds(&|| map(&space, 3));
                    unwinds(&|| space.edit(|_| Ok(())).unwrap());
                    mmu.idle().unwrap();
                });
            });
            Ok(())
        })
        .unwrap();
    // Nobody waits any more: that would unwind.
    map(&space, 4);
    space.edit_in(pages(0, REGION), |_| Ok(())).unwrap();
    space.edit(|_| Ok(())).unwrap();
    assert_eq!(space.footprint().ptes, 3);
}

/// Three CPUs change neighbouring pages, of an address space and of the kernel's, in every way that takes a lock or a place in the list, and
/// each change asks the others: no CPU waits for one that waits for it.
#[test]
fn cpus_that_wait_for_a_node_reply() {
    const CPUS: usize = 3;
    const ROUNDS: usize = if cfg!(miri) { 20 } else { 3000 };
    run_as(0);
    let mmu: &'static Mmu<Host, CPUS> = machine::<CPUS>(256);
    let host = mmu.kernel();
    let half = pages(4 * GIB, GIB);
    let kernel = AddressSpace::<Host, CPUS>::lending(mmu, [half]).unwrap();
    let space = AddressSpace::sharing(&kernel).unwrap();
    let put = |space: &AddressSpace<Host, CPUS>, number: usize, attr: Attr| {
        let frame = host.data(1).unwrap();
        if space.map(page(number), frame, attr).is_err() {
            host.put_back(frame);
        }
    };
    put(&space, 0, RW);
    put(&kernel, 4 * GIB, Attr::READ);
    let (ready, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let meet = |count: &AtomicUsize| {
        count.fetch_add(1, Ordering::SeqCst);
        while count.load(Ordering::SeqCst) < CPUS {
            mmu.on_interrupt();
            thread::yield_now();
        }
    };
    let work = |cpu: usize| {
        run_as(cpu);
        space.activate().unwrap();
        meet(&ready);
        let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(cpu as u64 + 1);
        let mut below = |end: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % end as u64) as usize
        };
        for _ in 0..ROUNDS {
            // Page 0 keeps its node; that of the others comes and goes.
            let number = [1 + below(6), REGION + below(3)][below(2)];
            let lent = 4 * GIB + 1 + below(3);
            match below(10) {
                0 | 1 => put(&space, number, RW),
                2 | 3 => drop(space.unmap(page(number)).unwrap()),
                4 => drop(space.protect(pages(number, 2), Change::READ_ONLY).unwrap()),
                5 => {
                    let faulted = space.edit_in(pages(number, 2), |edit| {
                        edit.unmap(pages(number, 2))?;
                        // A change of the kernel's address space inside of one of this.
                        edit.fault(address(lent), Access::LOAD)
                    });
                    let _ = faulted.unwrap();
                }
                6 => put(&kernel, lent, Attr::READ),
                7 => drop(kernel.unmap(page(lent)).unwrap()),
                8 => _ = space.fault(address(number), Access::STORE.by_user()).unwrap(),
                _ => space.edit(|edit| edit.unmap(page(number)).map(drop)).unwrap(),
            }
            if host.pending() {
                mmu.on_interrupt();
            }
        }
        mmu.idle().unwrap();
        meet(&done);
    };
    thread::scope(|threads| {
        for cpu in 1..CPUS {
            let work = &work;
            threads.spawn(move || work(cpu));
        }
        work(0);
    });
    let used = |number: usize| space.entry(address(number)) != Entry::Empty;
    let left = (0..8).chain(REGION..REGION + 4).filter(|&number| used(number)).count();
    assert_eq!(space.footprint().ptes, left);
    assert_eq!(space.unmap(pages(0, 2 * REGION)), Ok(left));
    assert_eq!((space.footprint().ptes, space.footprint().nodes), (0, 1));
    drop((space, kernel));
    mmu.offline().unwrap();
}

/// The first page of a region waits for the edit of another one, and keeps nobody away meanwhile.
#[test]
fn a_range_that_waits_for_an_edit_holds_up_no_other_region() {
    run_as(0);
    let mmu: &'static Mmu<Host, 3> = machine::<3>(64);
    let space: AddressSpace<Host, 3> = AddressSpace::new(mmu).unwrap();
    let data = || mmu.kernel().data(1).unwrap();
    for number in [0, 1, REGION, REGION + 1] {
        space.map(page(number), data(), RW).unwrap();
    }
    let (begun, changes) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|threads| {
        threads.spawn(|| {
            run_as(1);
            while !begun.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            space.map(page(5 * REGION), data(), RW).unwrap();
            mmu.idle().unwrap();
        });
        threads.spawn(|| {
            run_as(2);
            // When CPU 1 waits.
            while mmu.kernel().pauses.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
            for _ in 0..20 {
                space.map(page(REGION + 2), data(), RW).unwrap();
                assert_eq!(space.unmap(page(REGION + 2)), Ok(1));
                changes.fetch_add(1, Ordering::SeqCst);
            }
            mmu.idle().unwrap();
        });
        let done = space.edit_in(page(0), |_| {
            begun.store(true, Ordering::SeqCst);
            let start = Instant::now();
            while changes.load(Ordering::SeqCst) < 20 && start.elapsed() < Duration::from_secs(20) {
                thread::yield_now();
            }
            Ok(changes.load(Ordering::SeqCst))
        });
        assert_eq!(done, Ok(20), "changes of another region while the edit lasts");
        mmu.idle().unwrap();
    });
}
