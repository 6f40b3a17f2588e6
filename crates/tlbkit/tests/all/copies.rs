//! Copy on write of pages of every size: whose frame a fault names, what a page gets, and what is left after each failure.
#![cfg(target_pointer_width = "64")]

use crate::host;

use std::sync::atomic::Ordering;

use crate::driven::kernel::{Arch, Ram};
use crate::host::{Host, Met, Use, machine, run_as};
use tlbkit::pagetable::Geometry;
use tlbkit::{
    Access, AddressSpace, Attr, Change, Entry, Error, Fault, FrameOf, Leaf, Mapping, Mmu, PageSize, Pages,
    Pfn, SupervisorPages, VirtAddr, arch,
};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
const STORE: Access = Access::STORE.by_user();
const M2: usize = 2 << 20;
const NO_MEMORY: Error = Error::NoMemory { wanted: 1, pending: 0 };

fn pages(at: usize, count: usize) -> Pages {
    Pages::count(VirtAddr::new(at).vpn(PageSize::K4), count).unwrap()
}

fn at(at: usize) -> VirtAddr {
    VirtAddr::new(at)
}

/// The handler of docs/embedding.md, with the modelled machine's frames.
fn page_fault<const CPUS: usize>(
    host: &Host,
    process: &AddressSpace<Host, CPUS>,
    at: VirtAddr,
    take: impl Fn(Pfn) -> Result<Pfn, Error>,
) -> Result<bool, Error> {
    process.edit(|edit| {
        match edit.fault(at, STORE)? {
            Fault::Retry => {}
            Fault::CopyOnWrite(_) => {
                edit.unshare(at, |frame| host.mappings(frame) == Use::Data(1), take)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    })
}

/// Takes a frame with the contents of another one.
fn copied(host: &Host, of: Pfn) -> Result<Pfn, Error> {
    let word = |frame: Pfn| host.word(frame.address(PageSize::K4)).load(Ordering::Relaxed);
    host.data(word(of)).ok_or(NO_MEMORY)
}

/// A space whose 2 MiB at `M2` are one page. The frame of each part holds the part's number.
fn large<const CPUS: usize>() -> (&'static Mmu<Host, CPUS>, AddressSpace<Host, CPUS>, Vec<Pfn>) {
    run_as(0);
    let mmu = machine::<CPUS>(4096);
    let frames: Vec<Pfn> = (0..512).map(|part| mmu.kernel().data(part).unwrap()).collect();
    let parent = AddressSpace::new(mmu).unwrap();
    parent.map_linear(pages(M2, 512), frames[0], RW).unwrap();
    assert_eq!(parent.lookup(at(M2)).unwrap().size, PageSize::M2);
    (mmu, parent, frames)
}

fn frame_at<const CPUS: usize>(space: &AddressSpace<Host, CPUS>, page: usize) -> Pfn {
    space.translate(at(page)).unwrap().pfn(PageSize::K4)
}

// The three tests of shared/cases/page-fault-large-pages.rs.

#[test]
fn a_store_in_a_shared_large_page_copies_its_own_page() {
    let (mmu, parent, frames) = large::<1>();
    let host = mmu.kernel();
    let child = parent.fork(SupervisorPages::LeftOut).unwrap();
    let page = M2 + 9 * 4096;
    let Ok(Fault::CopyOnWrite(leaf)) = child.fault(at(page + 0x123), STORE) else { panic!("it is shared") };
    assert_eq!((leaf.at, leaf.frame, leaf.size), (at(page), frames[9], PageSize::K4));
    assert_eq!(page_fault(host, &child, at(page + 0x123), |frame| copied(host, frame)), Ok(true));
    // That page alone has another frame, with the same contents, and may be written.
    let copy = frame_at(&child, page);
    assert_ne!(copy, frames[9]);
    assert_eq!((host.mappings(frames[9]), host.mappings(copy)), (Use::Data(1), Use::Data(1)));
    assert_eq!(host.word(copy.address(PageSize::K4)).load(Ordering::Relaxed), 9);
    for part in (0..512).filter(|&part| part != 9) {
        let page = M2 + part * 4096;
        assert_eq!((frame_at(&child, page), frame_at(&parent, page)), (frames[part], frames[part]));
        assert_eq!(host.mappings(frames[part]), Use::Data(2));
        assert!(!child.lookup(at(page)).unwrap().attr.contains(Attr::WRITE));
    }
    assert!(child.lookup(at(page)).unwrap().attr.contains(RW | Attr::ACCESSED | Attr::DIRTY));
    assert!(!child.lookup(at(page)).unwrap().attr.contains(Attr::COPY_ON_WRITE));
    assert_eq!(parent.lookup(at(page)).unwrap().size, PageSize::M2);
    assert_eq!(parent.translate(at(page)), Some(frames[9].address(PageSize::K4)));
}

#[test]
fn no_frame_of_others_is_mapped() {
    let (mmu, parent, _) = large::<1>();
    let host = mmu.kernel();
    let child = parent.fork(SupervisorPages::LeftOut).unwrap();
    // Frames until one is aligned as a large page's is, and the frame behind that one, which is somebody's.
    let aligned = loop {
        let frame = host.data(0xdead).unwrap();
        if frame.get().is_multiple_of(512) {
            break frame;
        }
    };
    let secret = host.data(0x5ec4e7).unwrap();
    assert_eq!(secret.get(), aligned.get() + 1);
    assert_eq!(page_fault(host, &child, at(M2 + 0x9000), |_| Ok(aligned)), Ok(true));
    assert_eq!(frame_at(&child, M2 + 0x9000), aligned);
    assert!((0..512).all(|part| frame_at(&child, M2 + part * 0x1000) != secret));
}

#[test]
fn a_page_asks_for_the_count_of_its_own_frame() {
    let (mmu, parent, frames) = large::<1>();
    let host = mmu.kernel();
    let child = parent.fork(SupervisorPages::LeftOut).unwrap();
    child.resize(pages(M2, 512), PageSize::K4).unwrap();
    // The child has a copy of part 0, so the parent has that frame alone. It shares part 9.
    assert_eq!(page_fault(host, &child, at(M2), |frame| copied(host, frame)), Ok(true));
    assert_eq!((host.mappings(frames[0]), host.mappings(frames[9])), (Use::Data(1), Use::Data(2)));
    assert_eq!(page_fault(host, &parent, at(M2 + 0x9000), |frame| copied(host, frame)), Ok(true));
    let (mine, theirs) = (frame_at(&parent, M2 + 0x9000), frame_at(&child, M2 + 0x9000));
    assert_eq!((mine == frames[9], theirs), (false, frames[9]), "the parent writes what the child reads");
    // Part 0 needs no copy.
    assert_eq!(page_fault(host, &parent, at(M2), |_| panic!("it is copied")), Ok(true));
    assert_eq!(frame_at(&parent, M2), frames[0]);
}

/// A replaced page gets its own frame and no more; one of a size the frames of that size.
#[test]
fn a_frame_replaces_a_page_and_not_the_leaf() {
    let (mmu, space, frames) = large::<1>();
    let host = mmu.kernel();
    let one = host.data(7).unwrap();
    space.replace(at(M2 + 0x5000), one, RW).unwrap();
    assert_eq!(frame_at(&space, M2 + 0x5000), one);
    assert_eq!(space.lookup(at(M2 + 0x5000)).unwrap().size, PageSize::K4);
    assert_eq!(host.mappings(frames[5]), Use::Free);
    assert_eq!(frame_at(&space, M2 + 0x6000), frames[6]);
    // Small pages are no page of 2 MiB.
    let wrong = space.replace_sized(at(M2 + 0x5000), Pfn::new(0x20_0000), PageSize::M2, RW);
    assert_eq!(wrong, Err(Error::Occupied { at: at(M2 + 0x5000), size: PageSize::K4 }));
    assert_eq!(
        space.replace_sized(at(M2), one, PageSize::K64, RW),
        Err(Error::WrongSize { size: PageSize::K64 })
    );
    // An error after the split: nothing has changed.
    let (_, space, frames) = large::<1>();
    let beyond = Pfn::new(1 << 44);
    assert_eq!(space.replace(at(M2 + 0x5000), beyond, RW), Err(Error::FrameTooLarge { frame: beyond }));
    let leaf = space.lookup(at(M2 + 0x5000)).unwrap();
    assert_eq!((leaf.size, leaf.frame), (PageSize::M2, frames[0]));
}

/// If the last other mapping of a large page is gone, the page gets its right back as it is.
#[test]
fn a_large_page_that_is_shared_no_more_stays_large() {
    let (mmu, parent, frames) = large::<1>();
    let host = mmu.kernel();
    drop(parent.fork(SupervisorPages::LeftOut).unwrap());
    assert_eq!(page_fault(host, &parent, at(M2 + 0x9000), |_| panic!("it is copied")), Ok(true));
    let leaf = parent.lookup(at(M2 + 0x9000)).unwrap();
    assert_eq!((leaf.size, leaf.frame), (PageSize::M2, frames[0]));
    assert!(leaf.attr.contains(Attr::WRITE) && !leaf.attr.contains(Attr::COPY_ON_WRITE));
    // One frame of 512 is shared: the page of the fault has its own frame, and no other page may be written.
    let child = parent.fork(SupervisorPages::LeftOut).unwrap();
    child.unmap(pages(M2, 511)).unwrap();
    assert_eq!(page_fault(host, &parent, at(M2 + 0x9000), |_| panic!("it is copied")), Ok(true));
    let may = |part: usize| parent.lookup(at(M2 + part * 4096)).unwrap().attr.contains(Attr::WRITE);
    assert_eq!((0..512).filter(|&part| may(part)).collect::<Vec<_>>(), [9]);
    assert_eq!(frame_at(&parent, M2 + 0x9000), frames[9]);
}

/// What is no copy-on-write page stays as it is, and nobody is asked.
#[test]
fn only_copy_on_write_is_resolved() {
    let (mmu, space, frames) = large::<1>();
    let resolve = |page: usize| space.unshare(at(page), |_| panic!("asked"), |_| panic!("copied"));
    let rights = |page: usize| space.lookup(at(page)).map(|leaf| leaf.attr & (RW | Attr::COPY_ON_WRITE));
    assert_eq!((resolve(M2), rights(M2)), (Ok(()), Some(RW)));
    assert_eq!((resolve(0x1000), rights(0x1000)), (Ok(()), None));
    for change in [Change::READ_ONLY, Change { clear: RW - Attr::USER, set: Attr::COPY_ON_WRITE }] {
        space.protect(pages(M2, 512), change).unwrap();
        let before = space.lookup(at(M2));
        assert_eq!((resolve(M2 + 0x1000), space.lookup(at(M2))), (Ok(()), before));
    }
    assert_eq!(resolve(1 << 60), Err(Error::OutOfRange { at: at(1 << 60) }));
    // A page of the kernel's half, where faults are the kernel's.
    let half = Pages::count(at(4 << 30).vpn(PageSize::K4), 1 << 18).unwrap();
    let kernel = AddressSpace::lending(mmu, [half]).unwrap();
    let shares = AddressSpace::sharing(&kernel).unwrap();
    kernel.map(Pages::one(half.first()), frames[0], Attr::READ | Attr::COPY_ON_WRITE).unwrap();
    let refused = shares.unshare(at(4 << 30), |_| true, Ok);
    assert_eq!(refused, Err(Error::Borrowed { at: at(4 << 30) }));
    assert_eq!(shares.replace(at(4 << 30), frames[0], RW), refused);
    assert_eq!(kernel.unshare(at(4 << 30), |_| true, Ok), Ok(()));
    assert!(kernel.lookup(at(4 << 30)).unwrap().attr.contains(Attr::WRITE));
    std::mem::forget((kernel, shares));
}

/// Two CPUs with stale translations: nobody writes a shared frame after the store is resolved, and nobody reads the old one.
#[test]
fn a_copy_is_in_force_on_every_cpu() {
    let (mmu, parent, frames) = large::<2>();
    let host = mmu.kernel();
    let page = M2 + 9 * 4096;
    for cpu in [0, 1] {
        run_as(cpu);
        parent.activate().unwrap();
        assert!(matches!(host.access(at(page), true), Met::Memory(_)));
    }
    run_as(0);
    assert!(host.meanwhile.set(Box::new(move || answer(mmu))).is_ok());
    let child = parent.fork(SupervisorPages::LeftOut).unwrap();
    run_as(1);
    assert_eq!(host.access(at(page), true), Met::Fault, "the right is gone on both CPUs");
    assert_eq!(host.access(at(page), false), Met::Memory(frames[9].address(PageSize::K4)));
    run_as(0);
    assert_eq!(page_fault(host, &parent, at(page), |frame| copied(host, frame)), Ok(true));
    let copy = frame_at(&parent, page).address(PageSize::K4);
    for cpu in [0, 1] {
        run_as(cpu);
        // CPU 1 may still have a translation without the right to write, and none to the old frame.
        assert_eq!(host.access(at(page), false), Met::Memory(copy));
    }
    run_as(1);
    // The other CPU faults on the same page, and finds that it is resolved.
    assert_eq!(page_fault(host, &parent, at(page), |_| panic!("it is copied twice")), Ok(true));
    assert_eq!(host.access(at(page), true), Met::Memory(copy));
    assert_eq!(host.access(at(page + 4096), true), Met::Fault);
    assert_eq!(child.translate(at(page)), Some(frames[9].address(PageSize::K4)));
    for cpu in [0, 1] {
        run_as(cpu);
        mmu.offline().unwrap();
    }
    run_as(0);
}

/// While a CPU waits, the other one takes its interrupts.
fn answer(mmu: &'static Mmu<Host, 2>) {
    let me = host::cpu();
    for cpu in (0..2).filter(|&cpu| cpu != me) {
        run_as(cpu);
        if mmu.kernel().pending() {
            mmu.on_interrupt();
        }
    }
    run_as(me);
}

type Space<A, const CPUS: usize> = AddressSpace<Ram<A>, CPUS>;

fn leaf_of<A: Arch, const CPUS: usize>(space: &Space<A, CPUS>, page: usize) -> Leaf<FrameOf<Ram<A>>> {
    space.lookup(VirtAddr::new(page << A::SHIFT)).expect("it is mapped")
}

/// Every size of a machine, on one CPU or several, with each number of free frames for nodes: either the page gets its copy, or
/// nothing has changed.
fn resolves<A: Arch, const CPUS: usize>() {
    let base = A::Geometry::BASE;
    for &size in A::Geometry::SIZES {
        let count = size.bytes() >> A::SHIFT;
        let mmu: &'static Mmu<Ram<A>, CPUS> = Box::leak(Box::new(Mmu::new(Ram::new(CPUS))));
        assert!(mmu.kernel().others.set(Box::new(|| mmu.kernel().serve(|| mmu.on_interrupt()))).is_ok());
        let kernel = mmu.kernel();
        let first = kernel.fresh(count, count);
        let parent = Space::<A, CPUS>::new(mmu).unwrap();
        let all = A::pages(count, 2 * count - 1);
        parent.edit(|edit| edit.map_sized(all, A::frame(first), size, RW)).unwrap();
        let child = parent.fork(SupervisorPages::LeftOut).unwrap();
        for cpu in 0..CPUS {
            kernel.state().cpu = cpu;
            child.activate().unwrap();
        }
        kernel.state().cpu = 0;
        let page = count + count * 5 / 8;
        let (to, own) = (VirtAddr::new(page << A::SHIFT), A::frame(first + count * 5 / 8));
        let whole = leaf_of(&child, page);
        assert_eq!((whole.size, A::number(whole.frame)), (size, first));
        let state = |frame| kernel.state().mapped[&A::number(frame)];
        let nodes = kernel.taken();
        // Without enough nodes: nothing is copied, and nothing changes.
        let mut needed = 0;
        let new = loop {
            kernel.state().allowance = needed;
            let mut new = None;
            let done = child.unshare(
                to,
                |frame| state(frame) == 1,
                |frame| {
                    assert_eq!(frame, own);
                    Ok(A::frame(*new.insert(kernel.fresh(1, 1))))
                },
            );
            kernel.state().allowance = usize::MAX;
            let Err(error) = done else { break new.expect("it is shared") };
            assert!(matches!(error, Error::NoMemory { .. }), "{error}");
            assert_eq!((new, kernel.taken(), leaf_of(&child, page)), (None, nodes, whole));
            needed += 1;
        };
        let levels = |size: PageSize| A::Geometry::SIZES.iter().filter(|&&other| other < size).count();
        assert!(needed <= levels(size), "a node for each step");
        assert_eq!(kernel.taken(), nodes + needed);
        let leaf = leaf_of(&child, page);
        assert_eq!((leaf.size, A::number(leaf.frame)), (base, new));
        assert!(leaf.attr.contains(Attr::WRITE) && !leaf.attr.contains(Attr::COPY_ON_WRITE));
        assert_eq!((state(own), state(A::frame(new))), (1, 1));
        assert_eq!(leaf_of(&parent, page), Leaf { attr: leaf_of(&parent, page).attr, ..whole });
        // Every other page is as it was.
        let mut others = 0;
        let visited = child.for_each(all, |leaf| {
            let pages = leaf.size.bytes() >> A::SHIFT;
            if leaf.at != to {
                let offset = (leaf.at.get() >> A::SHIFT) - count;
                assert_eq!(A::number(leaf.frame), first + offset);
                assert!(!leaf.attr.contains(Attr::WRITE) && leaf.attr.contains(Attr::COPY_ON_WRITE));
                others += pages;
            }
            std::ops::ControlFlow::Continue(())
        });
        assert!(visited.is_ok_and(|flow| flow.is_continue()));
        assert_eq!(others, count - 1);
        // A copy that fails, and a frame that no entry can hold: the leaf is whole again.
        let second = parent.fork(SupervisorPages::LeftOut).unwrap();
        let (whole, nodes) = (leaf_of(&second, page), kernel.taken());
        let full = second.unshare(to, |_| false, |_| Err(NO_MEMORY));
        assert_eq!((full, leaf_of(&second, page), kernel.taken()), (Err(NO_MEMORY), whole, nodes));
        let beyond = usize::MAX >> (A::SHIFT + 1);
        assert_eq!(kernel.state().mapped.insert(beyond, 1), None);
        let refused = second.unshare(to, |_| false, |_| Ok(A::frame(beyond)));
        assert_eq!(refused, Err(Error::FrameTooLarge { frame: Pfn::new(beyond) }));
        assert_eq!((leaf_of(&second, page), kernel.taken()), (whole, nodes));
        assert_eq!(kernel.state().mapped.get(&beyond), None, "it is released");
        // One that is shared no more keeps its frame; a leaf of few frames stays whole.
        for cpu in 0..CPUS {
            kernel.state().cpu = cpu;
            mmu.idle().unwrap();
        }
        kernel.state().cpu = 0;
        drop(second);
        // The page that the first child has copied is the parent's alone.
        parent.unshare(to, |frame| state(frame) == 1, |_| panic!("it is copied")).unwrap();
        let leaf = leaf_of(&parent, page);
        assert!(
            leaf.attr.contains(Attr::WRITE) && parent.translate(to) == Some(Space::<A, CPUS>::address(own))
        );
        assert!((size == base) == (leaf.size == size) || count <= 512);
        drop((parent, child));
        for cpu in 0..CPUS {
            kernel.state().cpu = cpu;
            mmu.offline().unwrap();
        }
        assert_eq!((kernel.taken(), mmu.lost()), (0, 0));
        assert!(kernel.state().mapped.is_empty());
    }
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of thousands of frames")]
fn a_page_of_every_size_gets_its_copy_or_nothing_changes() {
    resolves::<arch::Sv39, 1>();
    resolves::<arch::Sv39, 2>();
    resolves::<arch::Sv39Svnapot, 2>();
    resolves::<arch::X86_64, 1>();
    resolves::<arch::X86_64, 2>();
    resolves::<arch::AArch64, 1>();
    resolves::<arch::AArch64, 2>();
    resolves::<arch::AArch64K16, 2>();
    resolves::<arch::Mips32, 2>();
}

/// A frame for a page whose node is there, which its entry cannot hold.
fn takes_once<A: Arch>() {
    let mmu: &'static Mmu<Ram<A>, 1> = Box::leak(Box::new(Mmu::new(Ram::new(1))));
    let kernel = mmu.kernel();
    let space = Space::<A, 1>::new(mmu).unwrap();
    space.map(A::pages(1, 1), A::frame(kernel.fresh(1, 1)), RW).unwrap();
    let beyond = usize::MAX >> (A::SHIFT + 1);
    kernel.state().mapped.insert(beyond, 1);
    let mut frame = Some(A::frame(beyond));
    let refused = space.map_with(A::pages(2, 2), RW, |_| frame.take().ok_or(Error::NoRoom));
    assert_eq!(refused, Err(Error::FrameTooLarge { frame: Pfn::new(beyond) }));
    assert_eq!((space.entry(A::address(2)), kernel.state().mapped.get(&beyond)), (Entry::Empty, None));
    drop(space);
    assert!(kernel.state().mapped.is_empty());
}

#[test]
fn a_frame_that_no_entry_can_hold_is_taken_once_and_released() {
    takes_once::<arch::Sv39>();
    takes_once::<arch::X86_64>();
    takes_once::<arch::AArch64K16>();
    takes_once::<arch::Mips32>();
}

// Supervisor pages in a fork.

const TRAPS: usize = 0x7000_0000;
const TEXT: Attr = Attr::READ.union(Attr::EXEC);
/// The attributes of a trap context, which the kernel may store to without a fault.
const CONTEXT: Attr = Attr::READ.union(Attr::WRITE).union(Attr::ACCESSED).union(Attr::DIRTY);

/// A process with two pages of its own, a trap context, a trampoline, and 2 MiB of the kernel's.
fn traps<const CPUS: usize>(mmu: &'static Mmu<Host, CPUS>) -> (AddressSpace<Host, CPUS>, [Pfn; 3]) {
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    let [user, context, trampoline] = [1, 2, 3].map(|word| host.data(word).unwrap());
    space.map(pages(0x1000, 1), user, RW).unwrap();
    // Beside a user's page, and in a node of its own.
    space.map(pages(0x2000, 1), context, CONTEXT).unwrap();
    space.map(pages(TRAPS, 1), trampoline, TEXT).unwrap();
    (space, [user, context, trampoline])
}

#[test]
fn a_fork_leaves_supervisor_pages_their_rights_and_out() {
    run_as(0);
    let mmu = machine::<1>(64);
    let host = mmu.kernel();
    let (parent, [user, context, trampoline]) = traps(mmu);
    let before = [0x2000, TRAPS].map(|page| parent.lookup(at(page)));
    let child = parent.fork(SupervisorPages::LeftOut).unwrap();
    assert_eq!([0x2000, TRAPS].map(|page| parent.lookup(at(page))), before);
    assert_eq!([0x2000, TRAPS].map(|page| child.lookup(at(page))), [None; 2]);
    assert_eq!(
        [context, trampoline, user].map(|frame| host.mappings(frame)),
        [Use::Data(1), Use::Data(1), Use::Data(2)]
    );
    for space in [&parent, &child] {
        assert!(matches!(space.fault(at(0x1000), STORE), Ok(Fault::CopyOnWrite(_))));
    }
    // The node that had the trampoline alone is not in the child.
    assert_eq!((parent.footprint().nodes, child.footprint().nodes), (5, 3));
    drop((parent, child));
    assert_eq!((host.in_use(), mmu.lost()), (0, 0));
}

#[test]
fn a_fork_copies_supervisor_pages_at_once() {
    run_as(0);
    let mmu = machine::<1>(64);
    let host = mmu.kernel();
    let (parent, [_, context, trampoline]) = traps(mmu);
    let before = [0x2000, TRAPS].map(|page| parent.lookup(at(page)));
    let mut asked = Vec::new();
    let mut copy = |leaf: Leaf| {
        asked.push((leaf.at.get(), leaf.frame));
        if leaf.attr.contains(Attr::WRITE) {
            return copied(host, leaf.frame);
        }
        // Nobody writes the trampoline: both processes have it.
        tlbkit::Kernel::share(host, leaf.run(PageSize::K4));
        Ok(leaf.frame)
    };
    let child = parent.fork(SupervisorPages::Copied(&mut copy)).unwrap();
    assert_eq!(asked, [(0x2000, context), (TRAPS, trampoline)]);
    assert_eq!([0x2000, TRAPS].map(|page| parent.lookup(at(page))), before);
    let new = child.lookup(at(0x2000)).unwrap();
    assert_eq!((new.attr, new.frame == context), (before[0].unwrap().attr, false));
    assert_eq!(host.word(new.frame.address(PageSize::K4)).load(Ordering::Relaxed), 2);
    assert_eq!(child.lookup(at(TRAPS)), before[1]);
    assert!(matches!(child.fault(at(0x1000), STORE), Ok(Fault::CopyOnWrite(_))));
    assert_eq!(child.footprint(), parent.footprint());
    // A second one, from the child.
    let mut copy = |leaf: Leaf| copied(host, leaf.frame);
    let grandchild = child.fork(SupervisorPages::Copied(&mut copy)).unwrap();
    assert_ne!(frame_at(&grandchild, TRAPS), trampoline);
    drop((parent, child, grandchild));
    assert_eq!((host.in_use(), mmu.lost()), (0, 0));
}

/// Each failure of a fork, one after the other: for lack of a control block, a node or a frame for a copy.
#[test]
fn a_fork_that_fails_leaves_everything_as_it_was() {
    run_as(0);
    let mmu = machine::<1>(64);
    let host = mmu.kernel();
    let (parent, frames) = traps(mmu);
    let state = || {
        let leaves = [0x1000, 0x2000, TRAPS].map(|page| parent.lookup(at(page)));
        (leaves, host.in_use(), frames.map(|frame| host.mappings(frame)), parent.footprint())
    };
    let before = state();
    let mut copy = |leaf: Leaf| copied(host, leaf.frame);
    let mut failures = 0;
    let child = loop {
        host.allowance.store(failures, Ordering::Relaxed);
        let done = parent.fork(SupervisorPages::Copied(&mut copy));
        host.allowance.store(usize::MAX, Ordering::Relaxed);
        let Err(error) = done else { break done };
        assert!(matches!(error, Error::NoMemory { .. }), "{error}");
        assert_eq!(state(), before, "with {failures} frames");
        failures += 1;
    };
    // The control block, the root, four nodes below it and two copies.
    assert_eq!(failures, 8);
    drop((child, parent));
    assert_eq!((host.in_use(), mmu.lost()), (0, 0));
}

/// A page of 2 MiB that is the kernel's is copied as one, and one in the way is no surprise later.
#[test]
fn a_large_supervisor_page_is_copied_whole() {
    fn copies<A: Arch>() {
        let mmu: &'static Mmu<Ram<A>> = Box::leak(Box::new(Mmu::new(Ram::new(1))));
        let kernel = mmu.kernel();
        for &size in A::Geometry::SIZES.iter().filter(|size| size.bytes() >> A::SHIFT <= 512) {
            let count = size.bytes() >> A::SHIFT;
            let parent = Space::<A, 1>::new(mmu).unwrap();
            let [first, second] = [RW, CONTEXT].map(|attr| {
                let frame = kernel.fresh(count, count);
                let at = if attr == RW { 0 } else { count };
                let pages = A::pages(at, at + count - 1);
                parent.edit(|edit| edit.map_sized(pages, A::frame(frame), size, attr)).unwrap();
                frame
            });
            let mut copy = |leaf: Leaf<FrameOf<Ram<A>>>| {
                assert_eq!((leaf.size, A::number(leaf.frame)), (size, second));
                Ok(A::frame(kernel.fresh(count, count)))
            };
            let child = parent.fork(SupervisorPages::Copied(&mut copy)).unwrap();
            let leaf = leaf_of(&child, count);
            assert_eq!((leaf.size, leaf.attr), (size, leaf_of(&parent, count).attr));
            assert!(leaf.attr.contains(CONTEXT) && A::number(leaf.frame) != second);
            assert_eq!(A::number(leaf_of(&child, 0).frame), first);
            assert!(!leaf_of(&child, 0).attr.contains(Attr::WRITE));
            assert_eq!(child.footprint(), parent.footprint());
            // A frame that no entry can hold: nothing has changed, and it is released.
            let beyond = (usize::MAX >> (A::SHIFT + 1)) & !(count - 1);
            let (leaf, taken) = (leaf_of(&parent, 0), kernel.taken());
            (0..count).for_each(|page| _ = kernel.state().mapped.insert(beyond + page, 1));
            let refused = parent.fork(SupervisorPages::Copied(&mut |_| Ok(A::frame(beyond)))).map(drop);
            assert!(matches!(refused, Err(Error::FrameTooLarge { .. })), "{refused:?}");
            assert_eq!((leaf_of(&parent, 0), kernel.taken()), (leaf, taken));
            assert!(!kernel.state().mapped.contains_key(&beyond));
            // Only the user's is in the second child.
            let third = parent.fork(SupervisorPages::LeftOut).unwrap();
            assert_eq!(third.lookup(VirtAddr::new(count << A::SHIFT)), None);
            assert_eq!(third.footprint().ptes * 2, parent.footprint().ptes);
            drop((parent, child, third));
            assert_eq!((kernel.taken(), mmu.lost()), (0, 0));
            assert!(kernel.state().mapped.is_empty());
        }
    }
    copies::<arch::Sv39>();
    copies::<arch::Sv39Svnapot>();
    copies::<arch::X86_64>();
    copies::<arch::AArch64>();
    copies::<arch::AArch64K64>();
}

#[test]
fn the_kernels_own_address_space_is_not_forked() {
    run_as(0);
    let mmu = machine::<1>(64);
    let half = Pages::count(at(4 << 30).vpn(PageSize::K4), 1 << 18).unwrap();
    let kernel = AddressSpace::lending(mmu, [half]).unwrap();
    let global = CONTEXT | Attr::GLOBAL;
    kernel.map(Pages::one(half.first()), mmu.kernel().data(1).unwrap(), global).unwrap();
    kernel.map(pages(0x1000, 1), mmu.kernel().data(2).unwrap(), RW).unwrap();
    let (leaves, taken) = ([at(4 << 30), at(0x1000)].map(|at| kernel.lookup(at)), mmu.kernel().in_use());
    for supervisor in [SupervisorPages::LeftOut, SupervisorPages::Copied(&mut |_| panic!("it is asked"))] {
        assert_eq!(kernel.fork(supervisor).map(drop), Err(Error::Lent { at: at(4 << 30) }));
    }
    assert_eq!([at(4 << 30), at(0x1000)].map(|at| kernel.lookup(at)), leaves);
    assert_eq!(mmu.kernel().in_use(), taken);
    // A process that shares the kernel's pages forks, and they keep their rights.
    let process = AddressSpace::sharing(&kernel).unwrap();
    process.map(pages(0x1000, 1), mmu.kernel().data(3).unwrap(), RW).unwrap();
    let mut copy = |_: Leaf| panic!("the process has no supervisor page of its own");
    let child = process.fork(SupervisorPages::Copied(&mut copy)).unwrap();
    assert_eq!(child.lookup(at(4 << 30)), leaves[0]);
    assert!(matches!(child.fault(at(0x1000), STORE), Ok(Fault::CopyOnWrite(_))));
}

// What mprotect, a copy to user memory and a wild address come to.

/// Each right after each other one, on every machine: the pages allow what they are to, and a private page faults before it is
/// written.
#[test]
fn the_rights_of_a_range_are_set_by_one_call() {
    fn sets<A: Arch>(mappings: &[Attr]) {
        let mmu: &'static Mmu<Ram<A>> = Box::leak(Box::new(Mmu::new(Ram::new(1))));
        let space = Space::<A, 1>::new(mmu).unwrap();
        let (page, range) = (A::address(3), A::pages(3, 3));
        let frame = A::frame(mmu.kernel().fresh(1, 1));
        space.map(range, frame, RW).unwrap();
        for &from in mappings {
            for &to in mappings {
                for (first, mapping) in [
                    (Mapping::Private, Mapping::Shared),
                    (Mapping::Shared, Mapping::Private),
                    (Mapping::Private, Mapping::Private),
                ] {
                    for (mapping, rights) in [(first, from), (mapping, to)] {
                        assert_eq!(space.set_rights(range, mapping, rights), Ok(1), "{from:?} {rights:?}");
                        let leaf = space.lookup(page).unwrap();
                        assert_eq!(leaf.frame, frame);
                        let fault = |access: Access| space.fault(page, access.by_user()).unwrap();
                        let write = rights.contains(Attr::WRITE);
                        match fault(Access::STORE) {
                            Fault::Retry => assert!(write && mapping == Mapping::Shared, "{leaf:?}"),
                            Fault::CopyOnWrite(_) => {
                                assert!(write && mapping == Mapping::Private, "{leaf:?}");
                            }
                            Fault::Closed(_) => assert!(rights.is_empty(), "{leaf:?}"),
                            Fault::NoRight(_) => assert!(!write && !rights.is_empty(), "{leaf:?}"),
                            other => panic!("{other:?}"),
                        }
                        for (access, right) in [(Access::LOAD, Attr::READ), (Access::FETCH, Attr::EXEC)] {
                            let may = fault(access) == Fault::Retry;
                            assert!(may || !rights.contains(right), "{rights:?}: {leaf:?}");
                            assert!(!may || !rights.is_empty(), "{leaf:?}");
                        }
                    }
                }
            }
        }
        assert_eq!(
            space.set_rights(range, Mapping::Private, Attr::READ | Attr::USER),
            Err(Error::WrongAttr { attr: Attr::USER })
        );
    }
    let all = [
        Attr::empty(),
        Attr::READ,
        Attr::WRITE,
        Attr::EXEC,
        Attr::READ | Attr::WRITE,
        Attr::READ | Attr::EXEC,
        Attr::READ | Attr::WRITE | Attr::EXEC,
    ];
    sets::<arch::Sv39>(&all);
    sets::<arch::X86_64>(&all);
    sets::<arch::AArch64>(&all);
    sets::<arch::AArch64K16>(&all);
    sets::<arch::Sv32>(&all);
    sets::<arch::Mips32>(&all);
}

/// An address that no page can have is a program's mistake, which the handler answers; no error of the call.
#[test]
fn a_wild_address_is_a_faults_answer_and_has_no_cursor() {
    run_as(0);
    let mmu = machine::<1>(64);
    let space = AddressSpace::new(mmu).unwrap();
    for wild in [1 << 38, 0xdead_beef_0000_0000, usize::MAX & !(1 << 60)] {
        space
            .edit(|edit| {
                let (fault, cursor) = edit.fault_cursor(at(wild), STORE)?;
                assert!(cursor.is_none(), "{wild:#x}");
                assert_eq!(fault, Fault::NotMapped);
                assert_eq!(edit.fault(at(wild), STORE), Ok(Fault::NotMapped));
                Ok(())
            })
            .unwrap();
    }
    let frame = mmu.kernel().data(1).unwrap();
    space
        .edit(|edit| match edit.fault_cursor(at(0x1234), STORE)? {
            (Fault::NotMapped, Some(mut cursor)) => cursor.map(frame, RW),
            (fault, _) => panic!("{fault:?}"),
        })
        .unwrap();
    assert_eq!(frame_at(&space, 0x1000), frame);
}
