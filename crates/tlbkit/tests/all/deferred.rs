//! Unmaps whose flush waits until the frames are wanted again: what another CPU may go on to use, and what must not wait.
//! `adversary.rs` mixes them with all other changes.
#![cfg(target_pointer_width = "64")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::host::unwinding::{As, RELEASE, as_machines};
use crate::host::{Host, Met, Use, any_machine, cpu, run_as};
use tlbkit::{
    AddressSpace, Attr, Change, Deferred, Kernel, Mark, Mmu, PageSize, Pages, Pfn, Place, SupervisorPages,
    VirtAddr, arch,
};

const CPUS: usize = 3;
const PLACES: usize = 20;
const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

type Space<const BROADCASTS: bool = false> = AddressSpace<Host<BROADCASTS>, CPUS>;
/// A change of an address space.
type Apply<'c> = &'c dyn Fn(&Space);

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(address(first).vpn(PageSize::K4), count).unwrap()
}

fn page(number: usize) -> Pages {
    pages(number, 1)
}

fn address(number: usize) -> VirtAddr {
    VirtAddr::new(number << 12)
}

/// Serves what other CPUs ask of all but this one.
fn serve<K: Kernel, const N: usize>(mmu: &'static Mmu<K, N>, pending: impl Fn() -> bool) {
    let me = cpu();
    for other in (0..N).filter(|&other| other != me) {
        run_as(other);
        if pending() {
            mmu.on_interrupt();
        }
    }
    run_as(me);
}

/// A machine of one thread that runs as all CPUs, with memory for deferred unmaps.
fn machine<const BROADCASTS: bool>() -> &'static Mmu<Host<BROADCASTS>, CPUS> {
    machine_with::<BROADCASTS, PLACES>()
}

fn machine_with<const BROADCASTS: bool, const PLACES: usize>() -> &'static Mmu<Host<BROADCASTS>, CPUS> {
    run_as(0);
    let mmu = any_machine::<CPUS, BROADCASTS>(256);
    let host = mmu.kernel();
    let memory: &'static Deferred<[Place; PLACES]> = Box::leak(Box::default());
    assert!(host.deferred.set(memory).is_ok());
    assert!(host.meanwhile.set(Box::new(move || serve(mmu, || mmu.kernel().pending()))).is_ok());
    mmu
}

/// An address space that every CPU runs, with pages that every CPU has written by its TLB.
fn crowded<const BROADCASTS: bool>(
    mmu: &'static Mmu<Host<BROADCASTS>, CPUS>,
    numbers: impl IntoIterator<Item = usize> + Clone,
) -> (Space<BROADCASTS>, Vec<Pfn>) {
    let space = Space::new(mmu).unwrap();
    let map = |number| {
        let frame = mmu.kernel().data(number as u64).unwrap();
        space.map(page(number), frame, RW).unwrap();
        frame
    };
    let frames = numbers.clone().into_iter().map(map).collect();
    for cpu in (0..CPUS).rev() {
        run_as(cpu);
        space.activate().unwrap();
        for number in numbers.clone() {
            assert!(matches!(mmu.kernel().access(address(number), true), Met::Memory(_)));
        }
    }
    (space, frames)
}

fn interrupts<const BROADCASTS: bool>(mmu: &'static Mmu<Host<BROADCASTS>, CPUS>) -> usize {
    mmu.kernel().interrupted.load(Ordering::Relaxed)
}

fn waiting<const BROADCASTS: bool>(mmu: &'static Mmu<Host<BROADCASTS>, CPUS>) -> (usize, usize) {
    mmu.kernel().deferred().unwrap().waiting()
}

/// What an access of a CPU meets.
fn access_of<const BROADCASTS: bool>(
    mmu: &'static Mmu<Host<BROADCASTS>, CPUS>,
    on: usize,
    number: usize,
) -> Met {
    let me = cpu();
    run_as(on);
    let met = mmu.kernel().access(address(number), true);
    run_as(me);
    met
}

fn at(frame: Pfn) -> Met {
    Met::Memory(frame.address(PageSize::K4))
}

/// Ends the address spaces, and finds everything back.
fn end<const BROADCASTS: bool>(mmu: &'static Mmu<Host<BROADCASTS>, CPUS>, spaces: Vec<Space<BROADCASTS>>) {
    drop(spaces);
    for cpu in 0..CPUS {
        run_as(cpu);
        mmu.idle().unwrap();
    }
    mmu.flush_deferred().unwrap();
    assert_eq!((mmu.reclaim(), mmu.kernel().in_use(), mmu.lost()), (0, 0, 0));
}

#[test]
fn an_unmap_that_waits_interrupts_nobody_and_one_flush_frees_all() {
    let mmu = machine::<false>();
    let (space, frames) = crowded(mmu, 1..=8);
    let before = interrupts(mmu);
    for number in 1..=8 {
        assert_eq!(space.unmap_deferred(page(number)), Ok(1));
        assert_eq!(space.lookup(address(number)), None);
        assert_eq!(access_of(mmu, 0, number), Met::Fault, "this CPU has flushed");
        assert_eq!(access_of(mmu, 1, number), at(frames[number - 1]), "the others go on to use it: {number}");
    }
    assert_eq!((interrupts(mmu), waiting(mmu).0), (before, 8));
    assert!(frames.iter().all(|&frame| mmu.kernel().mappings(frame) == Use::Data(1)), "nobody else has one");
    assert_eq!(mmu.kernel().dirty.load(Ordering::Relaxed), 0);
    assert_eq!(mmu.flush_deferred(), Ok(8));
    assert_eq!((interrupts(mmu), waiting(mmu).0), (before + CPUS - 1, 0));
    assert_eq!(mmu.kernel().dirty.load(Ordering::Relaxed), 8, "they were written");
    for (number, &frame) in (1..=8).zip(&frames) {
        assert_eq!(mmu.kernel().mappings(frame), Use::Free);
        assert!((0..CPUS).all(|cpu| access_of(mmu, cpu, number) == Met::Fault));
    }
    assert_eq!((mmu.flush_deferred(), interrupts(mmu)), (Ok(0), before + CPUS - 1), "nothing waits");
    end(mmu, vec![space]);
}

#[test]
fn a_page_that_waits_gets_no_new_entry_before_the_flush() {
    let mmu = machine::<false>();
    let host = mmu.kernel();
    let to_4: Apply<'_> = &|space| {
        space.map(page(4), host.data(1).unwrap(), RW).unwrap();
    };
    let changes: [(&str, Apply<'_>); 10] = [
        ("a map", to_4),
        ("a map in an edit", &|space| {
            space.edit(|edit| edit.map(page(4), host.data(1).unwrap(), RW)).unwrap();
        }),
        ("a map of a range", &|space| {
            let frames = [0; 4].map(|_| host.data(1).unwrap());
            space.map_each(pages(1, 4), frames, RW).unwrap();
        }),
        ("a map to what a closure takes", &|space| {
            space.map_with(page(4), RW, |_| Ok(host.data(1).unwrap())).unwrap();
        }),
        ("a map by a cursor", &|space| {
            space.edit(|edit| edit.cursor(address(4))?.map(host.data(1).unwrap(), RW)).unwrap();
        }),
        ("a guard", &|space| {
            space.mark(address(4), Mark::Guard).unwrap();
        }),
        ("guards", &|space| space.mark_pages(pages(1, 4), Mark::Guard).unwrap()),
        ("a mark by a cursor", &|space| {
            space.edit(|edit| edit.cursor(address(4))?.mark(Mark::Guard)).map(drop).unwrap();
        }),
        ("a payload", &|space| {
            host.hold_payload(7);
            space.mark(address(4), Mark::Payload(7, RW)).unwrap();
        }),
        ("a move", &|space| {
            assert_eq!(space.move_pages(page(6), address(4)), Ok(1));
        }),
    ];
    for (what, change) in changes {
        let (space, frames) = crowded(mmu, 4..=7);
        assert_eq!(space.unmap_deferred(page(4)), Ok(1));
        let before = interrupts(mmu);
        space.map(page(3), host.data(3).unwrap(), RW).unwrap();
        space.unmap_deferred(page(3)).unwrap();
        space.map(page(8), host.data(3).unwrap(), RW).unwrap();
        assert_eq!((interrupts(mmu), waiting(mmu).0), (before, 2), "other pages do not matter");
        // A page beside it, which also waits, is no reason either.
        let other = Space::new(mmu).unwrap();
        other.map(page(4), host.data(3).unwrap(), RW).unwrap();
        assert_eq!(interrupts(mmu), before, "nor does another address space");
        change(&space);
        assert!(interrupts(mmu) >= before + CPUS - 1, "{what}");
        assert_eq!((waiting(mmu).0, mmu.kernel().mappings(frames[0])), (0, Use::Free), "{what}");
        let new = space.lookup(address(4)).map_or(Met::Fault, |leaf| at(leaf.frame));
        assert!((0..CPUS).all(|cpu| access_of(mmu, cpu, 4) == new), "{what}");
        end(mmu, vec![space, other]);
    }
}

/// A kernel that maps pages at their first use gives the addresses out again.
#[test]
fn addresses_that_wait_are_flushed_before_they_are_given_out_again() {
    let mmu = machine::<false>();
    let (space, frames) = crowded(mmu, 4..=7);
    let before = interrupts(mmu);
    assert_eq!(space.flush_deferred(page(4)), Ok(0));
    assert_eq!(space.unmap_deferred(page(4)), Ok(1));
    assert_eq!((space.flush_deferred(pages(5, 600)), interrupts(mmu)), (Ok(0), before));
    assert_eq!((space.flush_deferred(pages(1, 5)), interrupts(mmu)), (Ok(1), before + CPUS - 1));
    assert_eq!((mmu.kernel().mappings(frames[0]), access_of(mmu, 1, 4)), (Use::Free, Met::Fault));
    end(mmu, vec![space]);
}

/// An edit that has uncovered frames of its own, and then uses a page that waits: each frame is released once, after its flush.
#[test]
fn an_edit_flushes_its_own_changes_before_what_waits() {
    let mmu = machine::<false>();
    let (space, frames) = crowded(mmu, 1..=4);
    assert_eq!(space.unmap_deferred(page(1)), Ok(1));
    let new = mmu.kernel().data(9).unwrap();
    space
        .edit(|edit| {
            edit.unmap(page(2))?;
            edit.protect(page(3), Change::clear(Attr::WRITE))?;
            edit.map(page(1), new, RW)
        })
        .unwrap();
    let is_free = |frame: &Pfn| mmu.kernel().mappings(*frame) == Use::Free;
    assert_eq!(frames.iter().map(is_free).collect::<Vec<_>>(), [true, true, false, false]);
    for cpu in 0..CPUS {
        assert_eq!([1, 2, 3].map(|number| access_of(mmu, cpu, number)), [at(new), Met::Fault, Met::Fault]);
    }
    end(mmu, vec![space]);
}

#[test]
fn what_waits_is_bounded() {
    let mmu = machine::<false>();
    // Every second page: no run has two frames.
    let numbers = (0..80).step_by(2);
    let (space, frames) = crowded(mmu, numbers.clone());
    let before = interrupts(mmu);
    for number in numbers {
        assert_eq!(space.unmap_deferred(page(number)), Ok(1));
        assert!(waiting(mmu).0 <= PLACES);
    }
    assert_eq!((interrupts(mmu) - before) / (CPUS - 1), 1);
    let free = frames.iter().filter(|&&frame| mmu.kernel().mappings(frame) == Use::Free).count();
    assert_eq!(free + waiting(mmu).0, frames.len());
    end(mmu, vec![space]);
}

/// The nodes wait, too: a CPU whose TLB knows the way to one may walk in it.
#[test]
fn nodes_wait_as_frames_do_and_their_number_is_bounded() {
    let mmu = machine::<false>();
    let apart = |number: usize| number << 18 | 1;
    let (space, _) = crowded(mmu, (1..=3).map(apart));
    let before = mmu.kernel().in_use();
    for number in 1..=3 {
        assert_eq!(space.unmap_deferred(page(apart(number))), Ok(1));
    }
    assert_eq!((waiting(mmu), mmu.kernel().in_use()), ((3, 6), before), "two nodes each");
    assert_eq!((mmu.flush_deferred(), mmu.kernel().in_use()), (Ok(3), before - 9));
    end(mmu, vec![space]);
    // There is room for more than half as many runs as nodes.
    let mmu = machine_with::<false, 64>();
    let (space, _) = crowded(mmu, (1..=40).map(apart));
    let before = interrupts(mmu);
    let most = (1..=40).map(|number| {
        assert_eq!(space.unmap_deferred(page(apart(number))), Ok(1));
        waiting(mmu)
    });
    assert_eq!((most.max(), (interrupts(mmu) - before) / (CPUS - 1)), (Some((33, 66)), 1));
    end(mmu, vec![space]);
}

#[test]
fn one_flush_is_for_all_address_spaces_also_for_those_that_have_ended() {
    let mmu = machine::<false>();
    let (first, _) = crowded(mmu, 1..=2);
    let (second, _) = crowded(mmu, 1..=2);
    let before = interrupts(mmu);
    for space in [&first, &second] {
        assert_eq!(space.unmap_deferred(pages(1, 2)), Ok(2));
    }
    // No CPU is left that runs the first one: the CPUs have its translations under its number.
    drop(first);
    assert_eq!(mmu.flush_deferred(), Ok(4));
    assert_eq!(interrupts(mmu) - before, CPUS - 1);
    end(mmu, vec![second]);
}

/// A page whose unmap is deferred while another CPU flushes, which has loaded it again after its own part: that flush does not free it.
#[test]
fn a_flush_frees_nothing_that_was_unmapped_after_it_began() {
    run_as(0);
    let mmu = any_machine::<CPUS, false>(64);
    let host = mmu.kernel();
    let memory: &'static Deferred<[Place; PLACES]> = Box::leak(Box::default());
    assert!(host.deferred.set(memory).is_ok());
    let (space, frames) = crowded(mmu, 1..=4);
    assert_eq!(space.unmap_deferred(page(1)), Ok(1));
    let (other, began) = (space.clone(), AtomicBool::new(false));
    let meanwhile = move || {
        if !began.swap(true, Ordering::Relaxed) {
            assert!(matches!(mmu.kernel().access(address(2), true), Met::Memory(_)));
            run_as(1);
            assert_eq!(other.unmap_deferred(page(2)), Ok(1));
            run_as(0);
        }
        serve(mmu, || mmu.kernel().pending());
    };
    assert!(host.meanwhile.set(Box::new(meanwhile)).is_ok());
    assert_eq!((mmu.flush_deferred(), memory.waiting().0), (Ok(1), 1));
    assert_eq!((host.mappings(frames[0]), host.mappings(frames[1])), (Use::Free, Use::Data(1)));
    assert_eq!(access_of(mmu, 0, 2), at(frames[1]));
    assert_eq!((mmu.flush_deferred(), host.mappings(frames[1])), (Ok(1), Use::Free));
    assert_eq!((access_of(mmu, 0, 2), access_of(mmu, 0, 3)), (Met::Fault, at(frames[2])));
}

/// Where no other CPU may hold a translation, nobody is interrupted anyway; and one that is new to the space finds the table as it is.
#[test]
fn nothing_waits_for_a_cpu_that_has_no_translation() {
    let mmu = machine::<false>();
    let space = Space::new(mmu).unwrap();
    space.activate().unwrap();
    let frame = mmu.kernel().data(1).unwrap();
    space.map(page(1), frame, RW).unwrap();
    assert_eq!((space.unmap_deferred(page(1)), waiting(mmu)), (Ok(1), (0, 0)));
    assert_eq!(mmu.kernel().mappings(frame), Use::Free);
    end(mmu, vec![space]);
}

#[test]
fn what_is_no_deferred_change_is_immediate() {
    let mmu = machine::<false>();
    let (space, frames) = crowded(mmu, 1..=4);
    let none = Err(tlbkit::Error::OutOfRange { at: VirtAddr::new(1 << 38) });
    assert_eq!(space.unmap_deferred(page(1 << 26)), none);
    assert_eq!(space.unmap_deferred(page(100)), Ok(0));
    assert_eq!(waiting(mmu), (0, 0));
    // More than 512 pages.
    assert_eq!((space.unmap_deferred(pages(1, 600)), waiting(mmu)), (Ok(4), (0, 0)));
    assert!(frames.iter().all(|&frame| mmu.kernel().mappings(frame) == Use::Free));
    // The memory of another machine: it waits there for nobody.
    let other = any_machine::<CPUS, false>(64);
    run_as(0);
    assert!(other.kernel().deferred.set(mmu.kernel().deferred.get().unwrap()).is_ok());
    assert!(
        other.kernel().meanwhile.set(Box::new(move || serve(other, || other.kernel().pending()))).is_ok()
    );
    let (foreign, frames) = crowded(other, [1]);
    assert_eq!((foreign.unmap_deferred(page(1)), waiting(mmu)), (Ok(1), (0, 0)));
    assert_eq!((other.kernel().mappings(frames[0]), other.flush_deferred()), (Use::Free, Ok(0)));
    end(other, vec![foreign]);
    end(mmu, vec![space]);
}

/// A range with more runs than places costs one shootdown for what has no place, and not one each time that the places are full.
#[test]
fn the_rest_of_a_range_with_too_many_runs_does_not_wait() {
    let mmu = machine::<false>();
    let (space, _) = crowded(mmu, []);
    // No run has two frames.
    let frames: Vec<Pfn> = (0..200).map(|at| mmu.kernel().data(at).unwrap()).collect();
    space.map_each(pages(0, 100), frames.iter().copied().step_by(2), RW).unwrap();
    let before = interrupts(mmu);
    assert_eq!(space.unmap_deferred(pages(0, 100)), Ok(100));
    assert_eq!(((interrupts(mmu) - before) / (CPUS - 1), waiting(mmu).0), (1, 16));
    frames.iter().skip(1).step_by(2).for_each(|&frame| mmu.kernel().put_back(frame));
    end(mmu, vec![space]);
}

/// A node that had marks alone: no frame waits that would tell a later change of the links to it.
#[test]
fn nodes_do_not_wait_without_frames() {
    let mmu = machine::<false>();
    let (space, _) = crowded(mmu, [1 << 18]);
    space.mark(address(1), Mark::Guard).unwrap();
    let (before, nodes) = (interrupts(mmu), mmu.kernel().in_use());
    assert_eq!((space.unmap_deferred(page(1)), waiting(mmu)), (Ok(0), (0, 0)));
    assert_eq!((interrupts(mmu) - before, nodes - mmu.kernel().in_use()), (CPUS - 1, 2));
    end(mmu, vec![space]);
}

/// The kernel has no handler for a fault on a page of its own. Beside a page whose node waits, another CPU would not find it.
#[cfg(not(miri))]
#[test]
fn pages_of_the_kernel_are_in_force_beside_nodes_that_wait() {
    type Apply<'c> = &'c dyn Fn(&AddressSpace<As<arch::X86_64>, 2>);
    const OWN: Attr = Attr::READ.union(Attr::WRITE);
    run_as(0);
    let mmu = as_machines::<arch::X86_64, 2>(256);
    let host = &mmu.kernel().0;
    let memory: &'static Deferred<[Place; PLACES]> = Box::leak(Box::default());
    assert!(host.deferred.set(memory).is_ok());
    assert!(host.meanwhile.set(Box::new(move || serve(mmu, || mmu.kernel().0.pending()))).is_ok());
    let frame = || host.data(1).unwrap();
    let user: Apply<'_> = &|space| space.map(page(4), frame(), RW).unwrap();
    let changes: [(&str, Apply<'_>); 9] = [
        ("a map", &|space| space.map(page(4), frame(), OWN).unwrap()),
        ("a map beside a user's", &|space| {
            space.map(page(5), frame(), RW).unwrap();
            assert_ne!(memory.waiting(), (0, 0));
            space.map(page(4), frame(), OWN).unwrap();
        }),
        ("a map in an edit", &|space| space.edit(|edit| edit.map(page(4), frame(), OWN)).unwrap()),
        ("a map to what a closure takes", &|space| {
            space.map(page(5), frame(), RW).unwrap();
            space.map_with(page(4), OWN, |_| Ok(frame())).unwrap();
        }),
        ("a map by a cursor", &|space| {
            space.edit(|edit| edit.cursor(address(4))?.map(frame(), OWN)).unwrap();
        }),
        ("a page that comes in", &|space| {
            host.hold_payload(7);
            space.mark(address(4), Mark::Payload(7, OWN)).unwrap();
            assert_ne!(memory.waiting(), (0, 0));
            space.fill(address(4), 7, frame()).unwrap();
            host.let_go_payload(7);
        }),
        ("a move", &|space| assert_eq!(space.move_pages(page(9 << 9), address(4)), Ok(1))),
        ("a right that is taken away", &|space| {
            user(space);
            assert_ne!(memory.waiting(), (0, 0));
            space.protect(page(4), Change::clear(Attr::USER)).unwrap();
        }),
        ("a replacement", &|space| {
            user(space);
            space.replace(address(4), frame(), OWN).unwrap();
        }),
    ];
    for (what, change) in changes {
        let space = AddressSpace::new(mmu).unwrap();
        space.map(page(9 << 9), frame(), OWN).unwrap();
        space.map(page(1), frame(), RW).unwrap();
        for cpu in [1, 0] {
            run_as(cpu);
            space.activate().unwrap();
        }
        assert_eq!((space.unmap_deferred(page(1)), memory.waiting()), (Ok(1), (1, 1)));
        change(&space);
        assert_eq!(memory.waiting(), (0, 0), "{what}");
        drop(space);
        for cpu in [1, 0] {
            run_as(cpu);
            mmu.idle().unwrap();
        }
        assert_eq!(host.in_use(), 0, "{what}");
    }
    let kernels = AddressSpace::lending(mmu, [pages(1 << 27, 1 << 27)]).unwrap();
    kernels.map(page(1 << 27), frame(), OWN).unwrap();
    // Both CPUs are online.
    assert_eq!((kernels.unmap_deferred(page(1 << 27)), memory.waiting()), (Ok(1), (0, 0)));
}

/// AArch64: an edit has taken a page out that it maps again, beside one that waits. The flush of another CPU, which began before the edit,
/// frees what waits in the middle of the map. The page is flushed nevertheless before it is mapped.
#[cfg(not(miri))]
#[test]
fn an_entry_is_broken_although_another_cpu_has_flushed_what_waits() {
    run_as(0);
    let mmu = as_machines::<arch::AArch64, 2>(64);
    let host = &mmu.kernel().0;
    let memory: &'static Deferred<[Place; PLACES]> = Box::leak(Box::default());
    assert!(host.deferred.set(memory).is_ok());
    let space = AddressSpace::new(mmu).unwrap();
    let frames: Vec<Pfn> = (0..4).map(|at| host.data(at).unwrap()).collect();
    space.map(pages(1, 2), frames[0], RW).unwrap();
    for cpu in [1, 0] {
        run_as(cpu);
        space.activate().unwrap();
    }
    assert_eq!((space.unmap_deferred(page(1)), memory.waiting().0), (Ok(1), 1));
    // How far the edit is: it has not begun, it is in the flush of what waits, or it may go on.
    let step: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
    let wait_for = |at: usize| {
        while step.load(Ordering::SeqCst) < at {
            std::thread::yield_now();
        }
    };
    let asked = AtomicUsize::new(0);
    let on_deferred = move || {
        // The map looks whether one of its pages waits; then it flushes.
        if cpu() == 0 && step.load(Ordering::SeqCst) == 1 && asked.fetch_add(1, Ordering::SeqCst) == 1 {
            assert_eq!(memory.waiting().0, 1);
            step.store(2, Ordering::SeqCst);
            wait_for(3);
            assert_eq!(memory.waiting().0, 0);
        }
    };
    let meanwhile = move || if cpu() == 1 { wait_for(2) } else { std::thread::yield_now() };
    assert!(host.on_deferred.set(Box::new(on_deferred)).is_ok());
    assert!(host.meanwhile.set(Box::new(meanwhile)).is_ok());
    let was_absent = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            run_as(1);
            assert_eq!(mmu.flush_deferred(), Ok(1));
            step.store(3, Ordering::SeqCst);
            while step.load(Ordering::SeqCst) < 4 {
                if host.pending() {
                    was_absent.fetch_or(space.lookup(address(2)).is_none(), Ordering::SeqCst);
                    mmu.on_interrupt();
                }
                std::thread::yield_now();
            }
        });
        while !host.pending() {
            std::thread::yield_now();
        }
        mmu.on_interrupt();
        step.store(1, Ordering::SeqCst);
        space
            .edit(|edit| {
                edit.unmap(page(2))?;
                edit.map(pages(1, 2), frames[2], RW)
            })
            .unwrap();
        step.store(4, Ordering::SeqCst);
    });
    assert_eq!(step.load(Ordering::SeqCst), 4);
    assert!(was_absent.into_inner(), "CPU 1 has flushed the page while it was absent");
}

/// A change of rights does not wait, whatever waits beside it; and a fork gives the child nothing that waits.
#[test]
fn rights_and_forks_do_not_wait() {
    let mmu = machine::<false>();
    let (space, frames) = crowded(mmu, 1..=3);
    assert_eq!(space.unmap_deferred(page(1)), Ok(1));
    assert_eq!(space.protect(page(2), Change::clear(Attr::WRITE)), Ok(1));
    let child = space.fork(SupervisorPages::LeftOut).unwrap();
    for cpu in 0..CPUS {
        assert_eq!([2, 3].map(|number| access_of(mmu, cpu, number)), [Met::Fault; 2]);
    }
    assert_eq!((child.lookup(address(1)), mmu.kernel().mappings(frames[0])), (None, Use::Data(1)));
    assert_eq!(access_of(mmu, 1, 1), at(frames[0]));
    end(mmu, vec![space, child]);
}

/// What waits behind a release that unwinds waits on.
#[test]
fn a_release_that_unwinds_loses_nothing_of_what_waits() {
    for call in [1, 5, 17, 18] {
        let mmu = as_machines::<arch::Sv39, 2>(128);
        let host = &mmu.kernel().0;
        let memory: &'static Deferred<[Place; 48]> = Box::leak(Box::default());
        assert!(host.deferred.set(memory).is_ok());
        assert!(host.meanwhile.set(Box::new(move || serve(mmu, || mmu.kernel().0.pending()))).is_ok());
        run_as(0);
        let space = AddressSpace::new(mmu).unwrap();
        let numbers = || (1_usize..37).step_by(2).map(|number| number << 9);
        let frames: Vec<Pfn> = (0..36).map(|at| host.data(at).unwrap()).step_by(2).collect();
        for (number, &frame) in numbers().zip(&frames) {
            space.map(page(number), frame, RW).unwrap();
        }
        for cpu in [1, 0] {
            run_as(cpu);
            space.activate().unwrap();
        }
        let before = host.in_use();
        for number in numbers() {
            space.unmap_deferred(page(number)).unwrap();
        }
        let nodes = memory.waiting().1;
        assert_eq!((memory.waiting().0, host.in_use()), (18, before));
        mmu.kernel().unwinds_at(RELEASE, call);
        assert!(catch_unwind(AssertUnwindSafe(|| mmu.flush_deferred())).is_err(), "{call}");
        mmu.kernel().unwinds_at(RELEASE, 0);
        assert_eq!(memory.waiting(), (if call <= 16 { 2 } else { 0 }, nodes));
        assert_eq!(mmu.flush_deferred(), Ok(memory.waiting().0 + if call <= 16 { 2 } else { 0 }));
        // What the kernel was given when it unwound is the kernel's affair.
        let lost = frames.iter().filter(|&&frame| host.mappings(frame) != Use::Free).count();
        assert_eq!((lost, memory.waiting(), mmu.lost()), (1, (0, 0), 0), "{call}");
        assert_eq!(host.in_use(), before - 17 - nodes, "{call}");
    }
}

/// Where flushes are broadcast nobody is interrupted at all, and a walk by software is waited for.
#[test]
fn a_broadcast_frees_what_waits_after_the_walks_of_others() {
    let mmu = machine::<true>();
    let (space, frames) = crowded(mmu, 1..=2);
    let before = mmu.kernel().broadcasts.load(Ordering::Relaxed);
    assert_eq!(space.unmap_deferred(pages(1, 2)), Ok(2));
    assert_eq!((mmu.kernel().broadcasts.load(Ordering::Relaxed), waiting(mmu).0), (before, 2));
    assert_eq!(access_of(mmu, 1, 1), at(frames[0]));
    assert_eq!(mmu.flush_deferred(), Ok(2));
    assert_eq!((mmu.kernel().broadcasts.load(Ordering::Relaxed), interrupts(mmu)), (before + 1, 0));
    assert!((0..CPUS).all(|cpu| access_of(mmu, cpu, 1) == Met::Fault));
    // Refused, as where a CPU lacks the instruction: then they are interrupted.
    space.map(page(1), mmu.kernel().data(1).unwrap(), RW).unwrap();
    assert!(matches!(access_of(mmu, 1, 1), Met::Memory(_)));
    assert_eq!(space.unmap_deferred(page(1)), Ok(1));
    mmu.kernel().refuses.store(true, Ordering::Relaxed);
    assert_eq!((mmu.flush_deferred(), interrupts(mmu)), (Ok(1), CPUS - 1));
    assert_eq!(access_of(mmu, 1, 1), Met::Fault);
    end(mmu, vec![space]);
}

/// The control: a machine whose flushes are left out is found out.
#[test]
fn a_flush_that_is_left_out_is_found() {
    let mmu = machine::<false>();
    let (space, frames) = crowded(mmu, 1..=1);
    assert_eq!(space.unmap_deferred(page(1)), Ok(1));
    mmu.kernel().forgets.store(true, Ordering::Relaxed);
    assert_eq!(mmu.flush_deferred(), Ok(1));
    assert_eq!((mmu.kernel().mappings(frames[0]), access_of(mmu, 1, 1)), (Use::Free, at(frames[0])));
    mmu.kernel().forgets.store(false, Ordering::Relaxed);
    end(mmu, vec![space]);
}
