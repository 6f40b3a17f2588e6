//! Pages that are not mapped and not forgotten: on disk, closed, guards.
#![cfg(target_pointer_width = "64")]

use std::ops::ControlFlow;

use crate::host::{Host, Met, Use, machine};
use tlbkit::{
    Access, AddressSpace, Attr, Change, Entry, Error, Fault, Kernel as _, Mark, PageSize, Pages, Pfn, Run,
    SupervisorPages, VirtAddr,
};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
const ACCESS: Attr = Attr::READ.union(Attr::WRITE).union(Attr::EXEC);
const LOAD: Access = Access::LOAD.by_user();
const STORE: Access = Access::STORE.by_user();
const M2: usize = 2 << 20;

fn pages(at: usize, count: usize) -> Pages {
    Pages::count(VirtAddr::new(at).vpn(PageSize::K4), count).unwrap()
}

fn at(at: usize) -> VirtAddr {
    VirtAddr::new(at)
}

/// A space that this CPU runs, with a page at each multiple of 4 KiB from 4 KiB on.
fn space(data: usize) -> (&'static Host, AddressSpace<Host>, Vec<Pfn>) {
    let mmu = machine::<1>(128);
    let space = AddressSpace::new(mmu).unwrap();
    let frames: Vec<Pfn> = (0..data).map(|n| mmu.kernel().data(n as u64).unwrap()).collect();
    space.map_each(pages(0x1000, data), frames.iter().copied(), RW).unwrap();
    space.activate().unwrap();
    (mmu.kernel(), space, frames)
}

#[test]
fn a_page_goes_out_in_one_store_and_comes_back_in_another() {
    let (host, space, frames) = space(2);
    assert!(space.fault(at(0x1000), STORE).is_ok());
    assert!(matches!(host.access(at(0x1000), true), Met::Memory(_)), "and the TLB has it");

    host.hold_payload(17);
    let leaf = space.freeze(at(0x1abc)).unwrap();
    assert_eq!(
        (leaf.frame, leaf.attr),
        (frames[0], RW | Attr::ACCESSED | Attr::DIRTY),
        "with what hardware noted"
    );
    // It can be read until it is out, and no store of a CPU reaches the frame, which the caller holds, too.
    assert!(matches!(host.access(at(0x1000), false), Met::Memory(_)));
    assert_eq!((host.access(at(0x1000), true), host.mappings(frames[0])), (Met::Fault, Use::Data(2)));
    space.page_out(at(0x1abc), leaf.frame, 17).unwrap();
    assert_eq!(host.access(at(0x1000), false), Met::Fault);
    assert_eq!(host.mappings(frames[0]), Use::Data(1));
    host.release(Run { first: leaf.frame, len: 1, dirty: false });
    assert_eq!(host.mappings(frames[0]), Use::Free);
    assert_eq!(space.lookup(at(0x1000)), None);
    assert_eq!(space.entry(at(0x1fff)), Entry::Mark(Mark::Payload(17, RW)));
    assert_eq!(space.fault(at(0x1008), LOAD), Ok(Fault::Swapped(17)));

    // Nothing is mapped over it by mistake.
    let frame = host.data(99).unwrap();
    let taken = Error::Marked { at: at(0x1000) };
    assert_eq!(space.map(pages(0x1000, 1), frame, RW), Err(taken));
    assert_eq!(space.map(pages(0, 2), frame, RW), Err(taken));
    // A frame that cannot be mapped is released.
    let fill = |page: usize| {
        let frame = host.data(98).unwrap();
        let done = space.fill(at(page), 17, frame);
        assert_eq!(host.mappings(frame), Use::Free);
        done
    };
    assert_eq!(fill(0x2000), Err(Error::Occupied { at: at(0x2000), size: PageSize::K4 }));
    assert_eq!(fill(0x3000), Err(Error::NotMapped { at: at(0x3000) }));
    assert!(matches!(fill(1 << 38), Err(Error::OutOfRange { .. })));
    assert_eq!(space.edit(|_| Ok(fill(0x1000))), Ok(Err(Error::Nested)), "also if no edit begins");

    assert_eq!(space.fill(at(0x1008), 17, frame), Ok(()));
    host.let_go_payload(17);
    assert!(space.fault(at(0x1000), LOAD).is_ok_and(|fault| fault == Fault::Retry));
    assert!(matches!(host.access(at(0x1000), false), Met::Memory(phys) if phys.get() == frame.get() * 4096));
    // A mark that takes a mark's place returns it, and so does taking it away.
    assert_eq!(space.mark(at(0x5000), Mark::Payload(1, RW)), Ok(Entry::Empty));
    assert_eq!(space.mark(at(0x5000), Mark::Guard), Ok(Entry::Mark(Mark::Payload(1, RW))));
    assert_eq!(space.edit(|edit| edit.unmark(at(0x5000))), Ok(Some(Mark::Guard)));
    assert_eq!(space.edit(|edit| edit.unmark(at(0x5000))), Ok(None));
    assert_eq!(space.edit(|edit| edit.unmark(at(0x1000))), Ok(None), "a page that is mapped stays");
    assert!(space.lookup(at(0x1000)).is_some());
}

#[test]
fn the_kernel_gets_every_payload_back_once() {
    let (host, space, frames) = space(4);
    for (page, payload) in [(0x1000, 5), (0x3000, 6), (0x40_0000, 7), (0x8000_0000, 7)] {
        host.hold_payload(payload);
        space.unmap(pages(page, 1)).unwrap();
        space.mark(at(page), Mark::Payload(payload, RW)).unwrap();
    }
    space.mark(at(0x6000), Mark::Guard).unwrap();
    let nodes = space.footprint().nodes;

    // A copy has them, too, and guards, and the frames.
    let child = space.fork(SupervisorPages::LeftOut).unwrap();
    assert_eq!([5, 6, 7].map(|payload| host.holders(payload)), [2, 2, 4]);
    assert_eq!(child.fault(at(0x3000), STORE), Ok(Fault::Swapped(6)));
    assert_eq!(child.fault(at(0x6000), STORE), Ok(Fault::Guard));
    assert_eq!(host.mappings(frames[1]), Use::Data(2));
    let mut seen = Vec::new();
    let whole = pages(0, 1 << 26);
    let flow = child.for_each_mark(whole, |at, mark| {
        seen.push((at.get(), mark));
        ControlFlow::Continue(())
    });
    assert_eq!(flow, Ok(ControlFlow::Continue(())));
    let payload = |payload| Mark::Payload(payload, RW);
    let wanted = [(0x1000, payload(5)), (0x3000, payload(6)), (0x6000, Mark::Guard)];
    assert_eq!(seen, [&wanted[..], &[(0x40_0000, payload(7)), (0x8000_0000, payload(7))]].concat());

    // Unmapped, with the pages beside them; one by one, and a node that holds nothing else.
    assert_eq!(space.unmap(pages(0x1000, 16)), Ok(2));
    assert_eq!([5, 6, 7].map(|payload| host.holders(payload)), [1, 1, 4]);
    assert_eq!(space.unmap(pages(0x8000_0000, 1)), Ok(0));
    assert_eq!((host.holders(7), space.footprint().nodes), (3, nodes - 2 - 1));
    // What is dropped lets go of the rest.
    space.mmu().idle().unwrap();
    drop((space, child));
    assert_eq!([5, 6, 7].map(|payload| host.holders(payload)), [0; 3]);
    assert_eq!(host.in_use(), 0);
}

#[test]
fn a_closed_page_keeps_its_frame_and_allows_nothing() {
    let (host, space, frames) = space(2);
    assert!(matches!(host.access(at(0x1000), true), Met::Memory(_)), "the TLB has it");
    space.protect(pages(0x1000, 2), Change::clear(ACCESS)).unwrap();
    for access in [LOAD, STORE, Access::LOAD, Access::FETCH] {
        let fault = space.fault(at(0x1000), access);
        assert!(matches!(fault, Ok(Fault::Closed(leaf)) if leaf.frame == frames[0]), "{fault:?}");
    }
    assert_eq!(host.access(at(0x1000), false), Met::Fault);
    let attr = space.lookup(at(0x1000)).unwrap().attr;
    assert_eq!(attr, Attr::USER | Attr::ACCESSED | Attr::DIRTY, "the page is still dirty");
    assert!(space.copy_from_user(at(0x1000), &mut [0; 8], |_, _, _| Ok(false)).is_err(), "it cannot be read");

    // A copy shares the frame; in neither is it a page to copy before it is opened.
    let child = space.fork(SupervisorPages::LeftOut).unwrap();
    assert_eq!(host.mappings(frames[0]), Use::Data(2));
    child.protect(pages(0x1000, 1), Change::set(Attr::COPY_ON_WRITE)).unwrap();
    assert!(matches!(child.fault(at(0x1000), STORE), Ok(Fault::Closed(_))));
    child.protect(pages(0x1000, 1), Change::set(Attr::READ)).unwrap();
    assert!(
        matches!(child.fault(at(0x1000), STORE), Ok(Fault::CopyOnWrite(leaf)) if leaf.frame == frames[0])
    );

    space.protect(pages(0x1000, 1), Change::set(Attr::READ | Attr::WRITE)).unwrap();
    assert!(
        matches!(host.access(at(0x1000), true), Met::Memory(phys) if phys.get() == frames[0].get() * 4096)
    );
    drop(child);
    assert_eq!(host.mappings(frames[0]), Use::Data(1));
    assert_eq!(space.unmap(pages(0x1000, 2)), Ok(2));
    assert_eq!(host.mappings(frames[0]), Use::Free);
}

#[test]
fn a_guard_is_no_place_for_a_page() {
    let (host, space, _) = space(1);
    space.mark(at(0x2000), Mark::Guard).unwrap();
    assert_eq!(host.access(at(0x2000), true), Met::Fault);
    assert_eq!(space.fault(at(0x2000), STORE), Ok(Fault::Guard));
    let frame = host.data(1).unwrap();
    let refused = space.map_each(pages(0x2000, 1), [frame], RW);
    assert_eq!(refused, Err(Error::Marked { at: at(0x2000) }));
    assert_eq!(host.mappings(frame), Use::Data(1));
    host.put_back(frame);
    // It does not count as mapped, and no change of rights meets it.
    assert_eq!(space.protect(pages(0x1000, 2), Change::clear(Attr::WRITE)), Ok(1));
    assert_eq!(space.fault(at(0x2000), STORE), Ok(Fault::Guard));
}

#[test]
fn what_a_mark_cannot_be_is_refused() {
    let (_, space, frames) = space(1);
    let large = Mark::Payload(1 << 56, RW);
    assert_eq!(space.mark(at(0x2000), large), Err(Error::WrongMark));
    // A payload takes no page's place but by `page_out`.
    let large = Mark::Payload(1, RW);
    assert_eq!(space.mark(at(0x1000), large), Err(Error::Occupied { at: at(0x1000), size: PageSize::K4 }));
    assert_eq!(space.lookup(at(0x1000)).unwrap().frame, frames[0]);
    assert_eq!(space.mark(at(0x2000), Mark::Payload((1 << 56) - 1, RW)), Ok(Entry::Empty));
    assert_eq!(space.fault(at(0x2000), LOAD), Ok(Fault::Swapped((1 << 56) - 1)));
    assert!(matches!(space.mark(at(1 << 40), Mark::Guard), Err(Error::OutOfRange { .. })));
    // A part of a larger page: split it first.
    let space = std::mem::ManuallyDrop::new(space);
    space.edit(|edit| edit.map_sized(pages(M2, 512), Pfn::new(512), PageSize::M2, RW)).unwrap();
    assert!(matches!(space.mark(at(M2), Mark::Guard), Err(Error::Partial { .. })));
    space.resize(pages(M2, 512), PageSize::K4).unwrap();
}
