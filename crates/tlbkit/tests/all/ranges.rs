//! Long ranges: an unmap costs one shootdown however its frames are scattered, and no call that handles a range keeps interrupts
//! masked for longer than a bounded part of it takes.
#![cfg(target_pointer_width = "64")]

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use tlbkit::{
    AddressSpace, Attr, Base, Change, Error, Guarded, Kernel, Machine, Mark, Mmu, MultiLevel, PageSize,
    Pages, Pfn, PhysAddr, SupervisorPages, VirtAddr, arch,
};

use crate::host::unwinding::{As, RELEASE, Step, TAKE, as_machine, as_machines};
use crate::host::{self, Host, Met, Use, machine, run_as};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
const M2: usize = 2 << 20;
/// The most entries, frames and nodes of one part, and a few for the way to it.
const BOUND: usize = (1 << 13) + (1 << 10);

fn at(at: usize) -> VirtAddr {
    VirtAddr::new(at)
}

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(at(first).vpn(PageSize::K4), count).unwrap()
}

/// A kernel on the modelled machine.
trait Hosted: Kernel<Machine: Machine<Base = Base<12>>> {
    /// The rights of a user's pages that may be written.
    const RW: Attr;

    fn host(&self) -> &Host;
}

impl Hosted for Host {
    const RW: Attr = RW;

    fn host(&self) -> &Host {
        self
    }
}

/// Machines of MIPS32 have no bit for a user's pages.
impl Hosted for As<arch::Mips32<Guarded>> {
    const RW: Attr = Attr::READ.union(Attr::WRITE);

    fn host(&self) -> &Host {
        &self.0
    }
}

impl Hosted for As<arch::Sv39> {
    const RW: Attr = RW;

    fn host(&self) -> &Host {
        &self.0
    }
}

/// Maps pages to frames of which no two are neighbours, and returns the frames.
fn scatter<K: Hosted, const CPUS: usize>(
    space: &AddressSpace<K, CPUS>,
    first: usize,
    count: usize,
) -> Vec<Pfn> {
    let host = space.mmu().kernel().host();
    let mut frames: Vec<Pfn> = (0..count).map(|page| host.data(page as u64).unwrap()).collect();
    // Odd ones, then even ones: each frame's number differs from the last one's by two.
    frames.sort_by_key(|frame| (frame.get() % 2, frame.get()));
    space.map_each(pages(first, count), frames.iter().copied(), K::RW).unwrap();
    frames
}

/// Calls `f` while another CPU runs the address space, and serves shootdowns.
fn beside<K: Hosted + Sync, R>(space: &AddressSpace<K, 2>, f: impl FnOnce() -> R) -> R {
    let over = AtomicBool::new(false);
    let ready = AtomicBool::new(false);
    let host = space.mmu().kernel().host();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            run_as(1);
            space.activate().unwrap();
            ready.store(true, Ordering::SeqCst);
            while !over.load(Ordering::SeqCst) {
                if host.pending() {
                    space.mmu().on_interrupt();
                }
                std::thread::yield_now();
            }
            space.mmu().offline().unwrap();
        });
        while !ready.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let result = f();
        over.store(true, Ordering::SeqCst);
        result
    })
}

/// Unmaps a range of `mapped` pages, and returns how many interrupts that took.
fn interrupts<K: Hosted + Sync>(space: &AddressSpace<K, 2>, range: Pages, mapped: usize) -> usize {
    let host = space.mmu().kernel().host();
    beside(space, || {
        let before = host.interrupted.load(Ordering::Relaxed);
        assert_eq!(space.unmap(range), Ok(mapped));
        host.interrupted.load(Ordering::Relaxed) - before
    })
}

#[test]
fn a_range_of_scattered_frames_costs_one_shootdown() {
    run_as(0);
    let mmu = machine::<2>(4096);
    let host = mmu.kernel();
    let space = AddressSpace::<Host, 2>::new(mmu).unwrap();
    space.activate().unwrap();
    let empty = host.in_use();
    // A node of its own; a part of a node; parts of two nodes with whole ones between them.
    for (first, count, neighbours) in
        [(M2, 320, &[][..]), (M2 + 0x1000, 320, &[M2]), (M2 - 0x3000, 1200, &[M2 - 0x4000, 4 * M2 - 0x1000])]
    {
        let kept: Vec<Pfn> = neighbours.iter().flat_map(|&page| scatter(&space, page, 1)).collect();
        let frames = scatter(&space, first, count);
        assert_eq!(interrupts(&space, pages(first, count), count), 1);
        assert!(frames.iter().all(|&frame| host.mappings(frame) == Use::Free));
        for (&page, &frame) in neighbours.iter().zip(&kept) {
            assert_eq!(space.lookup(at(page)).map(|leaf| leaf.frame), Some(frame));
            assert_eq!(space.unmap(pages(page, 1)), Ok(1));
        }
        assert_eq!((host.in_use(), space.footprint().ptes, space.footprint().nodes), (empty, 0, 1));
    }
    mmu.idle().unwrap();
}

/// A leaf of a guarded table is a pair of pages, of which one may stay at each end of the range.
#[test]
fn a_range_of_a_guarded_table_costs_one_shootdown() {
    type Kernel = As<arch::Mips32<Guarded>>;
    run_as(0);
    let mmu = as_machines::<arch::Mips32<Guarded>, 2>(4096);
    let host = &mmu.kernel().0;
    let space = AddressSpace::<Kernel, 2>::new(mmu).unwrap();
    space.activate().unwrap();
    let empty = host.in_use();
    for (first, count, neighbours) in [
        (M2, 320, &[][..]),
        (M2 + 0x1000, 320, &[M2, M2 + 0x0014_1000]),
        (M2 - 0x3000, 1200, &[M2 - 0x4000, 4 * M2 - 0x1000]),
    ] {
        let kept: Vec<Pfn> = neighbours.iter().flat_map(|&page| scatter(&space, page, 1)).collect();
        let frames = scatter(&space, first, count);
        // Marks go with the range, also that of a page whose neighbour stays, and so do pages that are closed.
        for page in [0, 7, 8, count - 1] {
            let at = at(first + (page << 12));
            assert_eq!(space.unmap(Pages::one(at.vpn(PageSize::K4))), Ok(1));
            host.hold_payload(7);
            space.mark(at, Mark::Payload(7, Attr::READ)).unwrap();
        }
        space.protect(pages(first + 0x1_4000, 20), Change::clear(Kernel::RW | Attr::EXEC)).unwrap();
        assert_eq!(interrupts(&space, pages(first, count), count - 4), 1);
        assert_eq!(host.holders(7), 0);
        assert!(frames.iter().all(|&frame| host.mappings(frame) == Use::Free));
        for (&page, &frame) in neighbours.iter().zip(&kept) {
            assert_eq!(space.lookup(at(page)).map(|leaf| leaf.frame), Some(frame));
            assert_eq!(space.unmap(pages(page, 1)), Ok(1));
        }
        assert_eq!((host.in_use(), space.footprint().ptes, space.footprint().nodes), (empty, 0, 0));
    }
    mmu.idle().unwrap();
}

#[test]
fn marks_larger_pages_and_closed_pages_go_with_the_range() {
    run_as(0);
    let mmu = machine::<2>(8192);
    let host = mmu.kernel();
    let space = AddressSpace::<Host, 2>::new(mmu).unwrap();
    space.activate().unwrap();
    // A large page at one level above.
    let large = std::iter::from_fn(|| host.data(1)).find(|frame| frame.get() % 512 == 0).unwrap();
    let rest: Vec<Pfn> = (1..512).map(|_| host.data(1).unwrap()).collect();
    assert_eq!(rest.last().map(|last| last.get()), Some(large.get() + 511));
    space.map_linear(pages(M2, 512), large, RW).unwrap();
    assert_eq!(space.lookup(at(M2)).unwrap().size, PageSize::M2);
    space.map(pages(3 * M2, 1), host.data(9).unwrap(), RW).unwrap();
    let frames = scatter(&space, 0x1000, 400);
    for page in (2..40).step_by(3) {
        host.hold_payload(7);
        assert_eq!(space.unmap(pages(page << 12, 1)), Ok(1));
        space.mark(at(page << 12), Mark::Payload(7, RW)).unwrap();
    }
    space.protect(pages(50 << 12, 20), Change::clear(RW)).unwrap();
    let marked = host.holders(7);
    assert_eq!(interrupts(&space, pages(0x1000, 1023), 400 - marked + 512), 1);
    assert_eq!((host.holders(7), host.mappings(large)), (0, Use::Free));
    assert!(frames.iter().all(|&frame| host.mappings(frame) == Use::Free));
    assert_eq!(space.unmap(pages(3 * M2, 1)), Ok(1));
    assert_eq!((space.footprint().ptes, space.footprint().nodes), (0, 1));
    mmu.idle().unwrap();
}

#[test]
fn what_another_cpu_writes_until_the_flush_is_released_dirty() {
    run_as(0);
    let mmu = machine::<2>(2048);
    let host = mmu.kernel();
    let space = AddressSpace::<Host, 2>::new(mmu).unwrap();
    let frames = scatter(&space, M2, 512);
    run_as(1);
    space.activate().unwrap();
    assert!(matches!(host.access(at(M2), false), Met::Memory(_)));
    run_as(0);
    // A CPU that has cached the link to the last-level node sets D there until it flushes, in an entry that is there. The list of
    // runs has taken the first entries out, and then the node goes with the others.
    let (number, dirty) = ((frames[100].get() << 10) as u64, 1 << 7);
    let words = || (0..2048 * 512).map(|word| host.word(PhysAddr::new(host::RAM + word * 8)));
    let entry = words().find(|word| word.load(Ordering::SeqCst) & !0x3ff == number).unwrap();
    let stores = move || {
        entry.fetch_or(dirty, Ordering::SeqCst);
        run_as(1);
        mmu.on_interrupt();
        run_as(0);
    };
    assert!(host.meanwhile.set(Box::new(stores)).is_ok());
    assert_eq!(space.unmap(pages(M2, 512)), Ok(512));
    assert_eq!(host.dirty.load(Ordering::Relaxed), 1);
    mmu.idle().unwrap();
}

#[test]
fn a_page_that_was_cleaned_in_the_same_edit_is_released_dirty() {
    run_as(0);
    let mmu = machine::<2>(256);
    let host = mmu.kernel();
    let space = AddressSpace::<Host, 2>::new(mmu).unwrap();
    let serve = move || {
        run_as(1);
        mmu.on_interrupt();
        run_as(0);
    };
    assert!(host.meanwhile.set(Box::new(serve)).is_ok());
    let clean = |range: Pages, unmap: &dyn Fn(&mut tlbkit::Edit<'_, Host, 2>)| {
        scatter(&space, M2, 32);
        run_as(1);
        space.activate().unwrap();
        assert!(matches!(host.access(at(M2), true), Met::Memory(_)));
        run_as(0);
        let before = host.dirty.load(Ordering::Relaxed);
        space
            .edit(|edit| {
                edit.protect(range, Change::clear(Attr::DIRTY))?;
                run_as(1);
                // By the TLB entry with D, so that the table does not hear of the store.
                assert!(matches!(host.access(at(M2), true), Met::Memory(_)));
                run_as(0);
                unmap(edit);
                Ok(())
            })
            .unwrap();
        let _ = space.unmap(pages(M2, 32));
        host.dirty.load(Ordering::Relaxed) > before
    };
    assert!(clean(pages(M2, 32), &|edit| assert_eq!(edit.unmap(pages(M2, 32)), Ok(32))));
    assert!(clean(pages(M2, 1), &|edit| assert_eq!(edit.unmap(pages(M2, 1)), Ok(1))));
    assert!(clean(pages(M2, 1), &|edit| assert!(edit.mark(at(M2), Mark::Guard).is_ok())));
    assert!(clean(pages(M2, 1), &|edit| {
        edit.replace(at(M2), host.data(5).unwrap(), RW).unwrap();
    }));
    // A flush in between makes the table the one that knows.
    assert!(!clean(pages(M2, 1), &|edit| {
        edit.flush();
        assert_eq!(edit.unmap(pages(M2, 1)), Ok(1));
    }));
}

#[test]
fn a_long_range_is_handled_in_bounded_parts() {
    run_as(0);
    let mmu = machine::<1>(22 << 10);
    let host = mmu.kernel();
    let space = AddressSpace::<Host>::new(mmu).unwrap();
    let count = 20 << 10;
    let masked = |what: &str, f: &mut dyn FnMut()| {
        host.most_masked.store(0, Ordering::Relaxed);
        f();
        let most = host.most_masked.load(Ordering::Relaxed);
        println!("{what}: at most {most} stores, frames and nodes with interrupts masked");
        assert!(most <= BOUND, "{what}: {most}");
        assert!(most > 0, "{what}");
    };
    scatter(&space, M2, count);
    masked("protect", &mut || {
        assert_eq!(space.protect(pages(0, count + 600), Change::READ_ONLY), Ok(count));
    });
    masked("fork", &mut || {
        let child = space.fork(SupervisorPages::LeftOut).unwrap();
        assert_eq!(child.footprint(), space.footprint());
        let same = |page: usize| {
            let leaf = child.lookup(at(page << 12)).unwrap();
            assert_eq!(space.lookup(at(page << 12)), Some(leaf));
            assert_eq!(host.mappings(leaf.frame), Use::Data(2));
        };
        (512..512 + count).for_each(same);
    });
    masked("unmap", &mut || assert_eq!(space.unmap(pages(0x1000, count + 600)), Ok(count)));
    assert_eq!(space.footprint().ptes, 0);
    scatter(&space, M2, count);
    let mut space = Some(space);
    masked("drop", &mut || drop(space.take()));
    assert_eq!(host.in_use(), 0);
}

#[test]
fn a_long_range_of_a_guarded_table_is_handled_in_bounded_parts() {
    type Kernel = As<arch::Mips32<Guarded>>;
    run_as(0);
    let mmu = as_machine::<arch::Mips32<Guarded>>(22 << 10);
    let host = &mmu.kernel().0;
    let space = AddressSpace::<Kernel>::new(mmu).unwrap();
    let count = 20 << 10;
    let masked = |what: &str, f: &mut dyn FnMut()| {
        host.most_masked.store(0, Ordering::Relaxed);
        f();
        let most = host.most_masked.load(Ordering::Relaxed);
        println!("{what}: at most {most} stores, frames and nodes with interrupts masked");
        assert!(0 < most && most <= BOUND, "{what}: {most}");
    };
    // The first page of a part is the second one of a pair.
    scatter(&space, M2 + 0x1000, count);
    masked("protect", &mut || {
        assert_eq!(space.protect(pages(0, count + 600), Change::READ_ONLY), Ok(count));
    });
    masked("unmap", &mut || assert_eq!(space.unmap(pages(0x1000, count + 600)), Ok(count)));
    assert_eq!((space.footprint().ptes, host.in_use()), (0, 1));
    scatter(&space, M2 + 0x1000, count);
    let mut space = Some(space);
    masked("drop", &mut || drop(space.take()));
    assert_eq!(host.in_use(), 0);
}

#[test]
fn a_fork_in_parts_copies_supervisor_pages_before_any_page_loses_a_right() {
    run_as(0);
    let mmu = machine::<1>(24 << 10);
    let host = mmu.kernel();
    let space = AddressSpace::<Host>::new(mmu).unwrap();
    let (count, kernels) = (20 << 10, Attr::READ | Attr::WRITE);
    scatter(&space, M2, count);
    // In a node of its own, and among user pages that are copied in the first part and in the last one.
    let own = [0x1000, M2 + (600 << 12), M2 + (19 << 22)];
    for &page in &own {
        let _ = space.unmap(pages(page, 1));
        space.map(pages(page, 1), host.data(3).unwrap(), kernels).unwrap();
    }
    let is_shared = |page: usize| space.lookup(at(page)).unwrap().attr.contains(Attr::COPY_ON_WRITE);
    let mut copied = 0;
    let refused = space.fork(SupervisorPages::Copied(&mut |_| {
        copied += 1;
        if copied < own.len() { Ok(host.data(4).unwrap()) } else { Err(Error::WrongMark) }
    }));
    assert!(refused.is_err_and(|why| why == Error::WrongMark));
    assert!(!is_shared(M2) && (0..count).step_by(512).all(|page| !is_shared(M2 + (page << 12))));
    host.most_masked.store(0, Ordering::Relaxed);
    let child = space.fork(SupervisorPages::Copied(&mut |_| Ok(host.data(4).unwrap()))).unwrap();
    // A store in each table.
    assert!(host.most_masked.load(Ordering::Relaxed) <= 2 * BOUND);
    assert_eq!(child.footprint(), space.footprint());
    for &page in &own {
        let (here, there) = [&space, &child].map(|space| space.lookup(at(page)).unwrap()).into();
        assert_ne!(here.frame, there.frame);
        assert!(here.attr.contains(kernels) && there.attr.contains(kernels));
        assert!(matches!(
            (host.mappings(here.frame), host.mappings(there.frame)),
            (Use::Data(1), Use::Data(1))
        ));
    }
    for page in (0..count).map(|page| M2 + (page << 12)).filter(|page| !own.contains(page)) {
        assert_eq!(child.lookup(at(page)), space.lookup(at(page)));
        assert!(is_shared(page));
    }
    drop((space, child));
    assert_eq!(host.in_use(), 0);
}

/// A kernel takes the lock of its frames once for 16 runs.
#[test]
fn scattered_frames_come_back_in_few_calls() {
    run_as(0);
    let mmu = machine::<1>(4096);
    let host = mmu.kernel();
    for ends in [false, true] {
        let space = AddressSpace::<Host>::new(mmu).unwrap();
        scatter(&space, M2, 500);
        host.batches.store(0, Ordering::Relaxed);
        if ends {
            drop(space);
        } else {
            assert_eq!(space.unmap(pages(M2, 500)), Ok(500));
        }
        let calls = host.batches.load(Ordering::Relaxed);
        assert!((500 / 16..=500 / 16 + 2).contains(&calls), "{calls} calls; the address space ends: {ends}");
    }
    assert_eq!(host.in_use(), 0);
}

/// Lets the kernel unwind at a release of an unmap or of the drop of an address space, whose table keeps `nodes` nodes without pages.
fn release_unwinds<M: Machine<Base = Base<12>>>(nodes: usize)
where
    As<M>: Hosted,
{
    for call in [1, 2, 300, 700, 1200] {
        for ends in [false, true] {
            let mmu: &'static Mmu<As<M>> = as_machine::<M>(4096);
            let host = &mmu.kernel().0;
            let space = AddressSpace::<As<M>>::new(mmu).unwrap();
            let range = pages(M2 - 0x3000, 1200);
            scatter(&space, M2 - 0x3000, 1200);
            let data = || {
                (0..4096).filter(|&frame| {
                    matches!(host.mappings(Pfn::new(frame + host::RAM / 4096)), Use::Data(_))
                })
            };
            mmu.kernel().unwinds_at(RELEASE, call);
            let unwound = if ends {
                catch_unwind(AssertUnwindSafe(|| drop(space))).is_err()
            } else {
                let unwound = catch_unwind(AssertUnwindSafe(|| space.unmap(range))).is_err();
                assert_eq!((space.footprint().ptes, space.footprint().nodes), (0, nodes));
                drop(space);
                unwound
            };
            assert!(unwound);
            assert_eq!(data().count(), 1, "the one that the kernel was given when it unwound");
            assert_eq!((host.in_use(), mmu.lost()), (1, 0));
        }
    }
}

#[test]
fn a_release_that_unwinds_leaves_nothing_behind() {
    release_unwinds::<arch::Sv39>(1);
    release_unwinds::<arch::Mips32<Guarded>>(0);
}

#[test]
fn leaves_are_visited_in_ascending_order_while_another_cpu_joins_them() {
    run_as(0);
    let mmu = machine::<2>(4096);
    let host = mmu.kernel();
    let space = AddressSpace::<Host, 2>::new(mmu).unwrap();
    let first = std::iter::from_fn(|| host.data(1)).find(|frame| frame.get() % 512 == 0).unwrap();
    let _rest: Vec<Pfn> = (1..1024).map(|_| host.data(1).unwrap()).collect();
    for page in 0..1024 {
        // All status bits, so that the join need not wait for them.
        let frame = Pfn::new(first.get() + page);
        space.map(pages(M2 + (page << 12), 1), frame, RW | Attr::ACCESSED | Attr::DIRTY).unwrap();
    }
    space.activate().unwrap();
    let joined = AtomicBool::new(false);
    let go = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (space, joined, go) = (&space, &joined, &go);
        scope.spawn(move || {
            run_as(1);
            while !go.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            space.resize(pages(2 * M2, 512), PageSize::M2).unwrap();
            joined.store(true, Ordering::SeqCst);
        });
        let mut reached = M2 + (256 << 12);
        let mut count = 0;
        let visited = space.for_each(pages(reached, 768), |leaf| {
            assert_eq!((leaf.at.get(), leaf.frame.get()), (reached, first.get() + (reached - M2) / 4096));
            reached += leaf.size.bytes();
            count += 1;
            if count == 512 {
                // The last visit of a part. The other CPU waits for this one after it has stored the larger leaf.
                go.store(true, Ordering::SeqCst);
                while space.lookup(at(2 * M2)).unwrap().size == PageSize::K4 {
                    std::thread::yield_now();
                }
            }
            ControlFlow::Continue(())
        });
        assert_eq!((visited, reached), (Ok(ControlFlow::Continue(())), 3 * M2));
        while !joined.load(Ordering::SeqCst) {
            mmu.on_interrupt();
            std::thread::yield_now();
        }
    });
    mmu.idle().unwrap();
}

#[test]
fn an_address_space_that_lends_nothing_cannot_be_shared() {
    run_as(0);
    let mmu = machine::<1>(64);
    let space = AddressSpace::<Host>::new(mmu).unwrap();
    assert!(matches!(AddressSpace::sharing(&space), Err(Error::NothingLent)));
    drop(space);
    assert_eq!(mmu.kernel().in_use(), 0);
}

#[test]
fn a_switch_never_mixes_translations_where_that_is_an_error() {
    fn steps<M: Machine<Table = MultiLevel, Base = Base<12>>>(lent: usize, slot: usize) -> Vec<Step> {
        run_as(0);
        let mmu: &'static Mmu<As<M>> = as_machine::<M>(256);
        let half = Pages::count(at(lent).vpn(PageSize::K4), slot >> 12).unwrap();
        let halves = [0, 1].map(|_| AddressSpace::lending(mmu, [half]).unwrap());
        let spaces = halves.each_ref().map(|half| AddressSpace::sharing(half).unwrap());
        spaces.iter().for_each(|space| space.activate().unwrap());
        spaces[0].activate().unwrap();
        mmu.kernel().3.lock().unwrap().clear();
        spaces[1].activate().unwrap();
        // An idle CPU runs the kernel's own address space, so its half stays the same.
        mmu.idle().unwrap();
        std::mem::take(&mut mmu.kernel().3.lock().unwrap())
    }
    assert_eq!(
        steps::<arch::AArch64>(1 << 39, 1 << 39),
        [Step::Unload, Step::FlushAll, Step::Load, Step::Load]
    );
    assert_eq!(steps::<arch::Sv39>(1 << 30, 1 << 30), [Step::Load, Step::FlushAll, Step::Load]);
}

#[test]
fn a_fork_of_a_guarded_table_that_unwinds_leaves_every_count_as_it_was() {
    type Kernel = As<arch::Mips32<Guarded>>;
    let mut unwound = 0;
    for call in 1.. {
        let mmu: &'static Mmu<Kernel> = as_machine::<arch::Mips32<Guarded>>(256);
        let host = &mmu.kernel().0;
        let space = AddressSpace::<Kernel>::new(mmu).unwrap();
        let frames: Vec<Pfn> = (0..100).map(|page| host.data(page).unwrap()).collect();
        for (page, &frame) in frames.iter().enumerate() {
            space.map(pages((page + 1) << 20, 1), frame, Attr::READ | Attr::WRITE).unwrap();
        }
        host.hold_payload(5);
        space.mark(at(0x7000_0000), Mark::Payload(5, Attr::READ)).unwrap();
        mmu.kernel().unwinds_at(TAKE, call);
        let forked = catch_unwind(AssertUnwindSafe(|| space.fork(SupervisorPages::LeftOut).map(drop)));
        assert!(frames.iter().all(|&frame| host.mappings(frame) == Use::Data(1)), "call {call}");
        assert_eq!(host.holders(5), 1);
        drop(space);
        assert_eq!((host.in_use(), host.holders(5)), (0, 0));
        if forked.is_ok() {
            break;
        }
        unwound += 1;
    }
    assert!(unwound > 1, "the fork takes frames");
}

/// A protect that fails has cleared no status bit, so the frames that the edit then uncovers are as dirty as their entries say.
#[test]
fn a_protect_that_fails_makes_no_frame_dirty() {
    let mmu = machine::<1>(64);
    let host = mmu.kernel();
    let kernels = AddressSpace::lending(mmu, [pages(3 << 30, 1 << 18)]).unwrap();
    let space = AddressSpace::sharing(&kernels).unwrap();
    space.map_linear(pages(2 * M2, 512), Pfn::new(512), RW).unwrap();
    let clean = Change::clear(Attr::DIRTY);
    let released = |wrong: Pages, frames: usize| {
        space.map(pages(0x1000, 1), host.data(1).unwrap(), RW).unwrap();
        let before = host.dirty.load(Ordering::Relaxed);
        let why = space.edit(|edit| {
            host.allowance.store(frames, Ordering::Relaxed);
            let why = edit.protect(wrong, clean).unwrap_err();
            assert!(edit.cursor(at(0x5000)).unwrap().protect(clean).is_err(), "nothing is mapped there");
            edit.unmap(pages(0x1000, 1))?;
            Ok(why)
        });
        host.allowance.store(usize::MAX, Ordering::Relaxed);
        (why.unwrap(), host.dirty.load(Ordering::Relaxed) - before)
    };
    let shared = pages(3 << 30, 1);
    assert_eq!(released(shared, usize::MAX), (Error::Borrowed { at: at(3 << 30) }, 0));
    let end_of_a_larger_page = pages(2 * M2 + 0x1000, 1);
    assert_eq!(released(end_of_a_larger_page, 0), (Error::NoMemory { wanted: 1, pending: 0 }, 0));
    // A control.
    space.edit(|edit| edit.protect(pages(0x2000, 1), clean)).unwrap();
    space.map(pages(0x1000, 1), host.data(1).unwrap(), RW).unwrap();
    let before = host.dirty.load(Ordering::Relaxed);
    let both =
        space.edit(|edit| edit.protect(pages(0x1000, 1), clean).and_then(|_| edit.unmap(pages(0x1000, 1))));
    assert_eq!(
        (both, host.dirty.load(Ordering::Relaxed) - before),
        (Ok(1), 1),
        "a CPU may have stored to it"
    );
    // The host does not know the frames of the larger page, which an end of the address space would release.
    core::mem::forget(space);
}
