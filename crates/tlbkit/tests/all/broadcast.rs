//! A machine on which a CPU flushes the TLBs of all others itself: no change interrupts a CPU. Frames wait for visits and copies under way,
//! nodes for any walk by software; and nobody waits with the nodes.
#![cfg(target_pointer_width = "64")]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

use crate::host::{self, Host, Met, Use, any_machine, run_as};
use tlbkit::{
    Access, AddressSpace, Attr, Change, Fault, Mmu, Overdue, PageSize, Pages, PhysAddr, SupervisorPages,
    VirtAddr, Walking,
};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

type Machine<const CPUS: usize> = Mmu<Host<true>, CPUS>;
type Space<const CPUS: usize> = AddressSpace<Host<true>, CPUS>;

fn machine<const CPUS: usize>() -> &'static Machine<CPUS> {
    any_machine(128)
}

fn page(number: usize) -> Pages {
    Pages::one(VirtAddr::new(number << 12).vpn(PageSize::K4))
}

/// Pages of different last-level nodes.
fn far(number: usize) -> Pages {
    page(number << 9)
}

fn address(page: Pages) -> VirtAddr {
    page.first().address(PageSize::K4)
}

/// Makes all CPUs run the address space, and then runs as CPU 0.
fn on_all<const CPUS: usize>(space: &Space<CPUS>) {
    for cpu in (0..CPUS).rev() {
        run_as(cpu);
        space.activate().unwrap();
    }
}

fn map<const CPUS: usize>(space: &Space<CPUS>, page: Pages) -> tlbkit::Pfn {
    let frame = space.mmu().kernel().data(7).unwrap();
    space.map(page, frame, RW).unwrap();
    frame
}

/// Loads the page to the TLB of each CPU.
fn load<const CPUS: usize>(space: &Space<CPUS>, page: Pages) {
    for cpu in (0..CPUS).rev() {
        run_as(cpu);
        assert!(matches!(space.mmu().kernel().access(address(page), true), Met::Memory(_)), "CPU {cpu}");
    }
}

/// Runs `f` on another CPU in the middle of a visit of `pages` by this one.
fn during_a_visit<const CPUS: usize>(space: &Space<CPUS>, pages: Pages, f: impl FnOnce()) {
    let (cpu, mut f) = (host::cpu(), Some(f));
    let visit = |_| {
        run_as(if cpu == 0 { 1 } else { 0 });
        if let Some(f) = f.take() {
            f();
        }
        run_as(cpu);
        ControlFlow::Break(())
    };
    assert!(space.for_each(pages, visit).unwrap().is_break());
}

/// A change of an address space.
type Act<const CPUS: usize> = fn(&Space<CPUS>);

/// Each change on four CPUs that run the address space and have the page in their TLBs: it is gone from all, and no CPU was interrupted.
#[test]
fn no_change_interrupts_a_cpu() {
    const CPUS: usize = 4;
    let mmu = machine::<CPUS>();
    let host = mmu.kernel();
    let space = Space::<CPUS>::new(mmu).unwrap();
    on_all(&space);
    let changes: [(&str, Met, Act<CPUS>); 6] = [
        ("protect", Met::Fault, |space| {
            assert_eq!(space.protect(page(1), Change::clear(Attr::WRITE)), Ok(1));
        }),
        ("replace", Met::Memory(PhysAddr::new(0)), |space| {
            let frame = space.mmu().kernel().data(8).unwrap();
            space.replace(address(page(1)), frame, RW).unwrap();
        }),
        ("unmap, with its nodes", Met::Fault, |space| assert_eq!(space.unmap(page(1)), Ok(1))),
        ("unmap a range", Met::Fault, |space| {
            let range = Pages::count(page(0).first(), 1 << 14).unwrap();
            assert_eq!(space.unmap(range), Ok(1));
        }),
        ("move", Met::Fault, |space| {
            assert_eq!(space.move_pages(page(1), address(far(3))), Ok(1));
            assert_eq!(space.unmap(far(3)), Ok(1));
        }),
        ("fork", Met::Fault, |space| drop(space.fork(SupervisorPages::LeftOut).unwrap())),
    ];
    for (name, after, change) in changes {
        run_as(0);
        map(&space, page(1));
        load(&space, page(1));
        let before = host.broadcasts.load(Ordering::Relaxed);
        change(&space);
        assert!(host.broadcasts.load(Ordering::Relaxed) > before, "{name} is a broadcast");
        for cpu in 0..CPUS {
            run_as(cpu);
            let met = host.access(address(page(1)), true);
            assert_eq!(
                matches!(met, Met::Fault),
                matches!(after, Met::Fault),
                "{name} on CPU {cpu}: {met:?}"
            );
        }
        run_as(0);
        let _ = space.unmap(page(1)).unwrap();
    }
    assert_eq!((host.interrupted.load(Ordering::Relaxed), host.pauses.load(Ordering::Relaxed)), (0, 0));
    // A control: a machine that leaves the flushes out.
    map(&space, page(1));
    load(&space, page(1));
    host.forgets.store(true, Ordering::Relaxed);
    assert_eq!(space.unmap(page(1)), Ok(1));
    assert!(matches!(host.access(address(page(1)), true), Met::Memory(_)), "the TLB still has it");
}

/// A CPU that visits pages may use their frames, so a change waits for it, without an interrupt.
#[test]
fn a_change_waits_for_a_visit_and_says_so() {
    let mmu = machine::<2>();
    let host = mmu.kernel();
    let space = Space::<2>::new(mmu).unwrap();
    on_all(&space);
    let frame = map(&space, page(1));
    let (inside, waits, left) = (Barrier::new(2), Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            run_as(1);
            let visit = |_| {
                inside.wait();
                waits.wait();
                // CPU 0 waits, and says so after a while.
                while host.overdue.lock().unwrap().is_empty() {
                    std::thread::yield_now();
                }
                assert_eq!(host.mappings(frame), Use::Data(1), "the visit may use it");
                left.store(true, Ordering::SeqCst);
                ControlFlow::Break(())
            };
            assert!(space.for_each(page(1), visit).unwrap().is_break());
        });
        inside.wait();
        waits.wait();
        assert_eq!(space.unmap(page(1)), Ok(1));
        assert!(left.load(Ordering::SeqCst), "the change has waited");
    });
    assert_eq!(host.mappings(frame), Use::Free);
    let visitor = [1].into_iter().collect();
    assert_eq!(host.overdue.lock().unwrap().first(), Some(&Overdue::Walks(visitor)));
    assert_eq!(host.interrupted.load(Ordering::Relaxed), 0);
}

/// The kernel is told of each walk by software: after the walk is announced, and before its end is. A node that another CPU takes out
/// meanwhile waits.
#[test]
fn a_kernel_takes_notice_of_each_walk_while_changes_see_it() {
    let mmu = machine::<2>();
    let space: &'static Space<2> = Box::leak(Box::new(Space::<2>::new(mmu).unwrap()));
    on_all(space);
    map(space, page(1));
    load(space, page(1));
    let told: &'static Mutex<Vec<Walking>> = Box::leak(Box::default());
    // A change would wait for a walk that uses what it finds.
    let waits: &'static AtomicBool = Box::leak(Box::default());
    let on_walk = move |walk| {
        if host::cpu() == 1 {
            told.lock().unwrap().push(walk);
        }
        if host::cpu() == 1 && !waits.load(Ordering::Relaxed) {
            run_as(0);
            map(space, far(3));
            assert_eq!(space.unmap(far(3)), Ok(1));
            assert!(mmu.reclaim() > 0, "{walk:?}");
            run_as(1);
        }
    };
    assert!(mmu.kernel().on_walk.set(Box::new(on_walk)).is_ok());
    run_as(1);
    let root = PhysAddr::new((space.root().unwrap().unwrap() & ((1 << 44) - 1)) << 12);
    assert!(space.lookup(address(page(1))).is_some());
    assert!(space.translate(address(page(1))).is_some());
    let mut word = [0; 8];
    let mut walks = vec![Walking::Begin { root, uses: false }, Walking::End];
    walks.extend_from_within(..);
    assert_eq!(*told.lock().unwrap(), walks);
    assert_eq!(mmu.reclaim(), 0, "no CPU is in a walk");
    told.lock().unwrap().clear();
    waits.store(true, Ordering::Relaxed);
    space.copy_from_user(address(page(1)), &mut word, |_, _, _| Ok(false)).unwrap();
    assert_eq!(*told.lock().unwrap(), [Walking::Begin { root, uses: true }, Walking::End]);
}

/// A CPU that copies from user memory is waited for, too: it does not read the frame's next owner.
#[test]
fn a_change_waits_for_a_copy() {
    let mmu = machine::<2>();
    let host = mmu.kernel();
    let space = Space::<2>::new(mmu).unwrap();
    on_all(&space);
    let frame = map(&space, page(1));
    load(&space, page(1));
    let inside: &'static Barrier = Box::leak(Box::new(Barrier::new(2)));
    // The kernel's `user_memory` gives its use of the frame back here: the copier is still in its section.
    let while_it_copies = move || {
        if host::cpu() == 1 {
            inside.wait();
            while host.pauses.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
        }
    };
    assert!(host.on_release.set(Box::new(while_it_copies)).is_ok());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            run_as(1);
            let mut word = [0; 8];
            space.copy_from_user(address(page(1)), &mut word, |_, _, _| Ok(false)).unwrap();
            assert_eq!(u64::from_ne_bytes(word), 7);
        });
        inside.wait();
        assert_eq!(space.unmap(page(1)), Ok(1));
    });
    assert!(host.pauses.load(Ordering::Relaxed) > 0, "the change has waited");
    assert_eq!((host.mappings(frame), host.interrupted.load(Ordering::Relaxed)), (Use::Free, 0));
}

/// A fault that comes again is hopeless only if nothing has changed in between. A change that is broadcast asks this CPU nothing, and counts.
#[test]
fn a_fault_after_a_broadcast_is_answered_again() {
    let mmu = machine::<2>();
    let space = Space::<2>::new(mmu).unwrap();
    on_all(&space);
    map(&space, page(1));
    load(&space, page(1));
    let fault = || space.fault(address(page(1)), Access::STORE.by_user()).unwrap();
    run_as(1);
    assert_eq!(fault(), Fault::Retry);
    run_as(0);
    assert_eq!(space.protect(page(1), Change::clear(Attr::WRITE)), Ok(1));
    assert_eq!(space.protect(page(1), Change::set(Attr::WRITE)), Ok(1));
    // The access has met the page without the right.
    run_as(1);
    assert_eq!(fault(), Fault::Retry);
    assert!(matches!(fault(), Fault::Refused(_)), "now nothing has changed");
}

/// The kernel's own address space is in all TLBs, and a CPU that runs another one walks its nodes by software.
#[test]
fn a_page_of_the_kernel_is_in_force_everywhere_without_an_interrupt() {
    let mmu = machine::<2>();
    let host = mmu.kernel();
    let half = Pages::count(VirtAddr::new(4 << 30).vpn(PageSize::K4), 1 << 18).unwrap();
    let kernels = Space::<2>::lending(mmu, [half]).unwrap();
    let user = Space::<2>::sharing(&kernels).unwrap();
    on_all(&user);
    let at = Pages::one(half.first());
    kernels.map(at, host.data(7).unwrap(), Attr::READ | Attr::WRITE | Attr::GLOBAL).unwrap();
    during_a_visit(&user, at, || {
        // The visitor reads the nodes of the lender: they stay. Its own word does not hold up a lookup of the lender's writer.
        assert!(kernels.lookup(address(at)).is_some());
    });
    assert!(host.broadcasts.load(Ordering::Relaxed) > 0);
    assert_eq!(kernels.unmap(at), Ok(1));
    assert_eq!(user.lookup(address(at)), None);
    assert_eq!(host.interrupted.load(Ordering::Relaxed), 0);
}

/// A machine may find out at run time that it cannot.
#[test]
fn a_broadcast_that_is_refused_is_an_interrupt() {
    let mmu = machine::<2>();
    let host = mmu.kernel();
    host.refuses.store(true, Ordering::Relaxed);
    let meanwhile = move || {
        let me = host::cpu();
        run_as(1 - me);
        if mmu.kernel().pending() {
            mmu.on_interrupt();
        }
        run_as(me);
    };
    assert!(host.meanwhile.set(Box::new(meanwhile)).is_ok());
    let space = Space::<2>::new(mmu).unwrap();
    on_all(&space);
    let frame = map(&space, page(1));
    load(&space, page(1));
    assert_eq!(space.unmap(page(1)), Ok(1));
    run_as(1);
    assert_eq!(host.access(address(page(1)), true), Met::Fault);
    let counts = [&host.interrupted, &host.broadcasts].map(|count| count.load(Ordering::Relaxed));
    assert_eq!((counts, host.mappings(frame)), ([1, 0], Use::Free));
}

/// Three readers look pages up all the time, and one writer replaces, unmaps and maps: no interrupt, and no node that a reader is in is
/// given back (a walk of the host's own counts free frames as an error, and a released frame is overwritten).
#[test]
fn readers_interrupt_nobody_and_are_not_interrupted() {
    const CPUS: usize = 4;
    const ROUNDS: usize = if cfg!(miri) { 20 } else { 3000 };
    let mmu = machine::<CPUS>();
    let host = mmu.kernel();
    let space = Space::<CPUS>::new(mmu).unwrap();
    on_all(&space);
    let (done, found) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for cpu in 1..CPUS {
            let (space, done, found) = (&space, &done, &found);
            scope.spawn(move || {
                run_as(cpu);
                while !done.load(Ordering::Relaxed) {
                    for number in 0..4 {
                        let leaf = space.lookup(address(far(number)));
                        found.fetch_add(usize::from(leaf.is_some()), Ordering::Relaxed);
                        let visit = |leaf: tlbkit::Leaf| {
                            let at = leaf.frame.address(PageSize::K4);
                            assert_eq!(
                                host.word(at).load(Ordering::Relaxed),
                                7,
                                "the frame is still the page's"
                            );
                            ControlFlow::Continue(())
                        };
                        let _ = space.for_each(far(number), visit).unwrap();
                    }
                }
            });
        }
        for round in 0..ROUNDS {
            let pages = far(round % 4);
            map(&space, pages);
            let frame = host.data(7).unwrap();
            space.replace(address(pages), frame, RW).unwrap();
            assert_eq!(space.unmap(pages), Ok(1));
            if round % 64 == 0 {
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(host.interrupted.load(Ordering::Relaxed), 0);
    assert_eq!(mmu.reclaim(), 0);
    for cpu in 0..CPUS {
        run_as(cpu);
        mmu.idle().unwrap();
    }
    drop(space);
    assert_eq!((host.in_use(), mmu.lost()), (0, 0));
}
