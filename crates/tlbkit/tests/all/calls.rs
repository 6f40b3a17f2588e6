//! Calls on whole ranges: maps that take over frames, marks, what of a range is in use, changes that refuse holes; and the root.
#![cfg(target_pointer_width = "64")]

use std::cell::Cell;
use std::sync::atomic::Ordering;

use crate::host::{Host, Met, Use, machine, run_as};
use tlbkit::{
    Access, AddressSpace, Attr, Change, Entry, Error, Fault, Flush, Kernel as _, Machine, Mapping, Mark, Mmu,
    PageSize, Pages, SupervisorPages, VirtAddr, addr, arch,
};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
const STORE: Access = Access::STORE.by_user();
const NO_MEMORY: Error = Error::NoMemory { wanted: 1, pending: 0 };
const M2: usize = 2 << 20;

fn pages(at: usize, count: usize) -> Pages {
    Pages::count(VirtAddr::new(at).vpn(PageSize::K4), count).unwrap()
}

fn at(at: usize) -> VirtAddr {
    VirtAddr::new(at)
}

fn space(frames: usize) -> (&'static Host, AddressSpace<Host>) {
    run_as(0);
    let mmu = machine::<1>(frames);
    let space = AddressSpace::new(mmu).unwrap();
    space.activate().unwrap();
    (mmu.kernel(), space)
}

#[test]
fn a_frame_is_taken_for_a_page_that_is_free_and_comes_back_if_it_cannot_be_mapped() {
    let (host, space) = space(64);
    let (before, nodes) = (host.in_use(), space.footprint().nodes);
    let taken = Cell::new(0);
    let take = |_: VirtAddr| {
        taken.set(taken.get() + 1);
        host.data(taken.get()).ok_or(NO_MEMORY)
    };
    // There is memory for the frame and not for its nodes; for nothing; no attributes of this machine; an address outside.
    host.allowance.store(1, Ordering::Relaxed);
    let done = space.map_with(pages(0x1000, 1), RW, take);
    assert!(matches!(done, Err(Error::NoMemory { .. })), "{done:?}");
    assert_eq!(space.map_with(pages(0x1000, 1), RW, take), Err(NO_MEMORY));
    host.allowance.store(usize::MAX, Ordering::Relaxed);
    assert!(matches!(
        space.map_with(pages(0x1000, 1), RW | Attr::GLOBAL, take),
        Err(Error::WrongAttr { .. })
    ));
    assert_eq!((host.in_use(), space.footprint().nodes, taken.get()), (before, nodes, 3));
    let outside = space.map_with(pages(1 << 38, 1), RW, |_| panic!("it is outside"));
    assert!(matches!(outside, Err(Error::OutOfRange { .. })));
    // A range of which the last frame is missing: the frames before it come back, and so do the nodes, of two regions.
    let third = |page: VirtAddr| if page == at(M2 + 0x1000) { Err(Error::NoRoom) } else { take(page) };
    assert_eq!(space.map_with(pages(M2 - 0x2000, 4), RW, third), Err(Error::NoRoom));
    assert_eq!((host.in_use(), space.footprint().nodes, taken.get()), (before, nodes, 6));

    // It is taken for the page that gets it, in order.
    let mut seen = Vec::new();
    let noted = |page: VirtAddr| {
        seen.push(page.get());
        take(page)
    };
    assert_eq!(space.map_with(pages(M2 - 0x1000, 2), RW, noted), Ok(()));
    assert_eq!(seen, [M2 - 0x1000, M2]);
    let word = |page: usize| host.word(space.translate(at(page)).unwrap()).load(Ordering::Relaxed);
    assert_eq!((word(M2 - 0x1000), word(M2)), (7, 8));
    assert!(matches!(host.access(at(M2), true), Met::Memory(_)));
    // Nothing is taken for a page that is in use.
    space.mark(at(0x5000), Mark::Guard).unwrap();
    let nothing = |_: VirtAddr| panic!("the page is in use");
    let occupied = Err(Error::Occupied { at: at(M2), size: PageSize::K4 });
    assert_eq!(space.map_with(pages(M2, 1), RW, nothing), occupied);
    assert_eq!(space.map_with(pages(M2, 3), RW, nothing), occupied);
    assert_eq!(space.map_with(pages(0x5000, 1), RW, nothing), Err(Error::Marked { at: at(0x5000) }));
    assert_eq!(space.map_with(pages(0x3000, 4), RW, nothing), Err(Error::Marked { at: at(0x5000) }));
    assert_eq!(space.edit(|_| Ok(space.map_with(pages(0, 1), RW, nothing))), Ok(Err(Error::Nested)));
    // If the kernel unwinds, what was mapped before stays.
    let unwinds = |page: VirtAddr| {
        if page == at(0xb000) { std::panic::resume_unwind(Box::new(())) } else { take(page) }
    };
    let map = std::panic::AssertUnwindSafe(|| space.map_with(pages(0xa000, 2), RW, unwinds));
    assert!(std::panic::catch_unwind(map).is_err());
    assert_eq!((word(0xa000), space.unmap(pages(0xa000, 2))), (9, Ok(1)));
    // So it is with one store, in a node that is there.
    let unwinds = |_: VirtAddr| std::panic::resume_unwind(Box::new(()));
    let map = std::panic::AssertUnwindSafe(|| space.map_with(pages(0xb000, 1), RW, unwinds));
    assert!(std::panic::catch_unwind(map).is_err());
    assert_eq!(space.map_with(pages(0xb000, 1), RW, |_| Err(Error::NoRoom)), Err(Error::NoRoom));
    // By a cursor, at the page of a fault.
    let mapped = space.edit(|edit| {
        let (fault, cursor) = edit.fault_cursor(at(0x7008), STORE)?;
        assert_eq!(fault, Fault::NotMapped);
        cursor.expect("a page").map_with(RW, || take(at(0x7000)))
    });
    assert_eq!((mapped, word(0x7000)), (Ok(()), 10));
    space.mmu().idle().unwrap();
    drop(space);
    assert_eq!(host.in_use(), 0);
}

#[test]
fn nothing_is_taken_for_a_page_of_the_kernels() {
    run_as(0);
    let mmu = machine::<1>(64);
    let half = pages(4 << 30, 1 << 18);
    let kernel = std::mem::ManuallyDrop::new(AddressSpace::lending(mmu, [half]).unwrap());
    let space = AddressSpace::sharing(&kernel).unwrap();
    let borrowed = Error::Borrowed { at: at(4 << 30) };
    let nothing = |_: VirtAddr| panic!("it is the kernel's");
    assert_eq!(space.map_with(pages(4 << 30, 1), RW, nothing), Err(borrowed));
    assert_eq!(space.mark_pages(pages((4 << 30) - 0x1000, 2), Mark::Guard), Err(borrowed));
    assert_eq!(space.protect_whole(pages(4 << 30, 1), Change::READ_ONLY), Err(borrowed));
    // What the kernel has there is in use in each space.
    assert_eq!(space.first_used(half), Ok(None));
    kernel.map(pages((4 << 30) + 0x3000, 1), mmu.kernel().data(1).unwrap(), Attr::READ).unwrap();
    assert_eq!(space.first_used(half), Ok(Some(at((4 << 30) + 0x3000))));
    assert_eq!(space.first_hole(pages((4 << 30) + 0x3000, 2)), Ok(Some(at((4 << 30) + 0x4000))));
}

#[test]
fn marks_are_stored_in_a_whole_range_or_nowhere() {
    let (host, space) = space(64);
    let nodes = space.footprint().nodes;
    assert_eq!(space.mark_pages(pages(M2 - 0x2000, 4), Mark::Guard), Ok(()));
    for page in [M2 - 0x2000, M2 + 0x1000] {
        assert_eq!(space.fault(at(page), STORE), Ok(Fault::Guard));
    }
    assert_eq!([M2 - 0x3000, M2 + 0x2000].map(|page| space.entry(at(page))), [Entry::Empty; 2]);
    // A page in use is in the way, wherever it is; it stays.
    assert_eq!(
        space.mark_pages(pages(M2 + 0x1000, 2), Mark::Guard),
        Err(Error::Marked { at: at(M2 + 0x1000) })
    );
    let frame = host.data(1).unwrap();
    space.map(pages(M2 + 0x4000, 1), frame, RW).unwrap();
    let occupied = Err(Error::Occupied { at: at(M2 + 0x4000), size: PageSize::K4 });
    assert_eq!(space.mark_pages(pages(M2 + 0x2000, 3), Mark::Guard), occupied);
    assert_eq!(space.entry(at(M2 + 0x2000)), Entry::Empty);
    // No memory for the second node.
    assert_eq!(space.unmap(pages(M2 - 0x2000, 8)), Ok(1));
    assert_eq!(space.footprint().nodes, nodes);
    host.allowance.store(2, Ordering::Relaxed);
    let done = space.mark_pages(pages(M2 - 0x1000, 2), Mark::Guard);
    assert!(matches!(done, Err(Error::NoMemory { .. })), "{done:?}");
    host.allowance.store(usize::MAX, Ordering::Relaxed);
    assert_eq!((space.footprint().nodes, space.first_used(pages(0, 1 << 26))), (nodes, Ok(None)));
    // Payloads have as many holders as pages.
    (0..3).for_each(|_| host.hold_payload(5));
    space.mark_pages(pages(0x1000, 3), Mark::Payload(5, RW)).unwrap();
    assert_eq!(space.fault(at(0x3abc), STORE), Ok(Fault::Swapped(5)));
    let kept = space.mark_pages(pages(0x8000, 2), Mark::Payload(1, Attr::DEVICE));
    assert!(matches!(kept, Err(Error::WrongAttr { .. })), "{kept:?}");
    let child = space.fork(SupervisorPages::LeftOut).unwrap();
    assert_eq!(host.holders(5), 6);
    assert_eq!(space.unmap(pages(0x1000, 3)), Ok(0));
    assert_eq!(host.holders(5), 3);
    drop(child);
    assert_eq!(host.holders(5), 0);
}

#[test]
fn the_first_page_in_use_and_the_first_hole() {
    let (host, space) = space(1200);
    let all = pages(0, 1 << 26);
    assert_eq!((space.first_used(all), space.first_hole(all)), (Ok(None), Ok(Some(at(0)))));
    let large = std::iter::from_fn(|| host.data(1)).find(|frame| frame.get() % 512 == 0).unwrap();
    (1..512).for_each(|_| _ = host.data(1).unwrap());
    space.map_linear(pages(4 * M2, 512), large, RW).unwrap();
    // A larger page, of which the range has a part.
    assert_eq!(space.first_used(all), Ok(Some(at(4 * M2))));
    assert_eq!(space.first_used(pages(4 * M2 + 0x5000, 3)), Ok(Some(at(4 * M2 + 0x5000))));
    assert_eq!(space.first_hole(pages(4 * M2 + 0x5000, 3)), Ok(None));
    assert_eq!(space.first_hole(pages(4 * M2 - 0x1000, 3)), Ok(Some(at(4 * M2 - 0x1000))));
    assert_eq!(space.first_hole(pages(4 * M2, 513)), Ok(Some(at(5 * M2))));
    assert_eq!(space.first_used(pages(5 * M2, 1 << 24)), Ok(None));
    // Marks are in use; a range may begin and end in them.
    space.mark_pages(pages(5 * M2, 2), Mark::Guard).unwrap();
    space.mark(at(5 * M2 + 0x2000), Mark::Payload(3, RW)).unwrap();
    host.hold_payload(3);
    assert_eq!(space.first_hole(pages(4 * M2 + 0x1000, 514)), Ok(None));
    assert_eq!(space.first_hole(pages(4 * M2, 516)), Ok(Some(at(5 * M2 + 0x3000))));
    assert_eq!(space.first_used(pages(5 * M2 + 0x1000, 9)), Ok(Some(at(5 * M2 + 0x1000))));
    // In an edit, as it changes the range; and outside of one it is a visit.
    let seen = space.edit(|edit| {
        edit.unmap(pages(4 * M2 + 0x7000, 1))?;
        Ok((
            edit.first_hole(pages(4 * M2, 512)),
            edit.first_used(pages(4 * M2 + 0x7000, 2)),
            space.first_used(all),
        ))
    });
    let (hole, used) = (Some(at(4 * M2 + 0x7000)), Some(at(4 * M2 + 0x8000)));
    assert_eq!(seen, Ok((hole, used, Err(Error::Nested))));
    // More pages than are visited with interrupts masked.
    let many = space.map_each(pages(8 * M2, 1500), std::iter::repeat_n(large, 1500), RW);
    (0..1500).for_each(|_| host.share(tlbkit::Run { first: large, len: 1, dirty: false }));
    assert_eq!((many, space.first_hole(pages(8 * M2, 1500))), (Ok(()), Ok(None)));
    assert_eq!(space.first_hole(pages(8 * M2, 1501)), Ok(Some(at(8 * M2 + 1500 * 4096))));
    // What no page can be at is no page in use.
    assert_eq!(space.first_hole(pages((1 << 38) - 0x1000, 4)), Ok(Some(at((1 << 38) - 0x1000))));
}

#[test]
fn a_change_that_refuses_holes_changes_nothing_beside_one() {
    let (host, space) = space(64);
    let frame = |page: VirtAddr| host.data(page.get() as u64).ok_or(NO_MEMORY);
    space.map_with(pages(0x1000, 2), RW, frame).unwrap();
    space.mark(at(0x3000), Mark::Payload(4, RW)).unwrap();
    host.hold_payload(4);
    space.mark(at(0x4000), Mark::Guard).unwrap();
    space.map_with(pages(0x6000, 1), RW, frame).unwrap();
    let hole = Err(Error::NotMapped { at: at(0x5000) });
    let attr = |page: usize| match space.entry(at(page)) {
        Entry::Leaf(leaf) => leaf.attr,
        Entry::Mark(Mark::Payload(_, attr)) => attr,
        _ => Attr::empty(),
    };
    assert_eq!(space.protect_whole(pages(0x1000, 6), Change::READ_ONLY), hole);
    assert_eq!(space.set_rights_whole(pages(0x2000, 4), Mapping::Private, Attr::READ), hole);
    assert_eq!(space.unmap_whole(pages(0x5000, 2)), hole);
    assert_eq!(space.unmap_whole(pages(0x1000, 6)), hole);
    assert_eq!([0x1000, 0x2000, 0x3000, 0x6000].map(attr), [RW; 4]);
    // The rights reach marks, whichever call it is.
    assert_eq!(space.set_rights_whole(pages(0x1000, 4), Mapping::Private, Attr::READ), Ok(2));
    assert_eq!([0x1000, 0x2000, 0x3000].map(attr), [Attr::READ | Attr::USER; 3]);
    assert_eq!(space.protect_whole(pages(0x3000, 1), Change::set(Attr::EXEC)), Ok(0));
    assert_eq!(attr(0x3000), Attr::READ | Attr::EXEC | Attr::USER);
    assert_eq!(space.entry(at(0x4000)), Entry::Mark(Mark::Guard));
    assert_eq!(space.unmap_whole(pages(0x1000, 4)), Ok(2));
    assert_eq!((space.first_used(pages(0, 6)), host.holders(4)), (Ok(None), 0));
    // Holes are passed over by the others, as before.
    assert_eq!(space.protect(pages(0, 8), Change::READ_ONLY), Ok(1));
    assert_eq!(space.unmap(pages(0, 8)), Ok(1));
}

/// A range that is changed in parts.
#[test]
fn a_long_range_with_a_hole_at_its_end_is_refused_as_a_whole() {
    const COUNT: usize = 9000;
    let (host, space) = space(256);
    let frame = host.data(1).unwrap();
    (1..COUNT).for_each(|_| host.share(tlbkit::Run { first: frame, len: 1, dirty: false }));
    space.map_each(pages(M2, COUNT), std::iter::repeat_n(frame, COUNT), RW).unwrap();
    let hole = Err(Error::NotMapped { at: at(M2 + COUNT * 4096) });
    assert_eq!(space.protect_whole(pages(M2, COUNT + 1), Change::READ_ONLY), hole);
    assert_eq!(space.unmap_whole(pages(M2, COUNT + 1)), hole);
    assert_eq!((host.mappings(frame), space.lookup(at(M2)).unwrap().attr), (Use::Data(COUNT), RW));
    assert_eq!(space.protect_whole(pages(M2, COUNT), Change::READ_ONLY), Ok(COUNT));
    assert_eq!(space.unmap_whole(pages(M2, COUNT)), Ok(COUNT));
    assert_eq!(host.mappings(frame), Use::Free);
}

#[test]
fn the_root_is_what_the_cpu_has_loaded() {
    run_as(0);
    let mmu: &'static Mmu<Host, 2> = machine::<2>(64);
    let host = mmu.kernel();
    let half = pages(4 << 30, 1 << 18);
    let kernel = std::mem::ManuallyDrop::new(AddressSpace::lending(mmu, [half]).unwrap());
    let kernels = kernel.root().unwrap().expect("a CPU may boot with it");
    assert_eq!((kernels >> 60, kernels >> 44 & 0xffff), (8, 0), "Sv39, ASID 0");
    let space = AddressSpace::sharing(&kernel).unwrap();
    let other = AddressSpace::sharing(&kernel).unwrap();
    assert_eq!(space.root(), Ok(None), "no CPU runs it");
    space.activate().unwrap();
    let root = space.root().unwrap().expect("this CPU runs it");
    assert_eq!((kernel.root(), other.root()), (Ok(Some(kernels)), Ok(None)));
    assert_ne!(root >> 44 & 0xffff, 0);
    space.map(pages(0x1000, 1), host.data(1).unwrap(), RW).unwrap();
    assert!(matches!(host.access(at(0x1000), false), Met::Memory(_)));
    // In the kernel, on a trampoline, and back: without a flush.
    host.load(kernels);
    assert_eq!(host.access(at(0x1000), false), Met::Fault, "the kernel's own has no page of the program's");
    host.load(root);
    assert!(matches!(host.access(at(0x1000), false), Met::Memory(_)));
    assert_eq!(host.mistaken.load(Ordering::Relaxed), 0);
    // Another CPU does not run it.
    run_as(1);
    assert_eq!((space.root(), kernel.root()), (Ok(None), Ok(Some(kernels))));
    run_as(0);
    assert_eq!(
        space.edit(|_| Ok((space.root(), kernel.root()))),
        Ok((Err(Error::Nested), Ok(Some(kernels))))
    );
    other.activate().unwrap();
    assert_eq!(space.root(), Ok(None));
    assert_ne!(other.root(), Ok(Some(root)));
    mmu.idle().unwrap();
    assert_eq!(other.root(), Ok(None));
    drop((space, other));
}

/// Each machine says up to how many pages a flush names them; a kernel that knows better says so.
#[test]
fn a_flush_names_as_many_pages_as_the_machine_does() {
    fn named<M: Machine<Base = tlbkit::Base<12>>>(count: usize) -> Option<usize> {
        let mut flush = addr::Flush::none();
        flush.add(addr::FlushScope::Everywhere, pages(0x1000, count));
        Flush::of::<M>(&flush).by_address().map(Iterator::count)
    }
    fn check<M: Machine<Base = tlbkit::Base<12>>>(most: usize) {
        assert_eq!((named::<M>(most), named::<M>(most + 1)), (Some(most), None));
    }
    check::<arch::Sv39>(4);
    check::<arch::X86_64>(33);
    check::<arch::AArch64>(64);
    let mut flush = addr::Flush::none();
    flush.add(addr::FlushScope::Everywhere, pages(0x1000, 9));
    let flush = Flush::of::<arch::Sv39>(&flush);
    assert_eq!(flush.by_address_up_to(9).map(Iterator::count), Some(9));
    assert!(flush.by_address_up_to(8).is_none());
}

/// Plain numbers, for what a program names.
#[test]
fn pages_of_a_range_of_bytes() {
    let covering = AddressSpace::<Host>::pages_covering;
    assert_eq!(covering(at(0x1fff), 2), Ok(pages(0x1000, 2)));
    assert_eq!(covering(at(0x1000), 0x1000), Ok(pages(0x1000, 1)));
    assert_eq!(Pages::covering(at(0x1001), 0x1000, PageSize::K4), Some(pages(0x1000, 2)));
    let last = Pages::one(at(usize::MAX).vpn(PageSize::K4));
    assert_eq!(covering(at(usize::MAX), 1), Ok(last));
    assert_eq!(
        covering(at(usize::MAX - 0xfff), 0x1001),
        Err(Error::OutOfRange { at: at(usize::MAX - 0xfff) })
    );
    assert_eq!(covering(at(0x1000), 0), Err(Error::OutOfRange { at: at(0x1000) }));
}
