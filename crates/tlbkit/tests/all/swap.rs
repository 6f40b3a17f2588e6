//! Pages that go out and come back while other CPUs use them, with the rights that they have.
#![cfg(target_pointer_width = "64")]

use crate::host;

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use crate::host::{Host, Met, Use, machine, run_as};
use tlbkit::{
    Access, AddressSpace, Attr, Change, Entry, Error, Fault, Mark, PageSize, Pages, Pfn, PhysAddr,
    SupervisorPages, VirtAddr,
};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
const LOAD: Access = Access::LOAD.by_user();
const STORE: Access = Access::STORE.by_user();
const M2: usize = 2 << 20;

fn pages(at: usize, count: usize) -> Pages {
    Pages::count(VirtAddr::new(at).vpn(PageSize::K4), count).unwrap()
}

fn at(at: usize) -> VirtAddr {
    VirtAddr::new(at)
}

/// Gives back the frame that a page's way out holds.
fn put(host: &Host, frame: Pfn) {
    host.put_back(frame);
}

/// Pages out as `docs/embedding.md` says, without a disk.
fn page_out<const CPUS: usize>(
    space: &AddressSpace<Host, CPUS>,
    page: usize,
    payload: u64,
) -> Result<(), Error> {
    let host = space.mmu().kernel();
    let leaf = space.freeze(at(page))?;
    let done = space.page_out(at(page), leaf.frame, payload);
    put(host, leaf.frame);
    done.inspect(|()| host.hold_payload(payload))
}

fn contents(host: &Host, frame: Pfn) -> u64 {
    host.word(PhysAddr::new(frame.get() << 12)).load(Relaxed)
}

/// Another CPU faults on the page at each step of its way out, and resolves the fault as the guide says.
fn another_cpu_faults(when: usize, access: Access) {
    run_as(0);
    let mmu = machine::<2>(256);
    let host = mmu.kernel();
    let mine = move || {
        let waits = host::cpu();
        run_as(1 - waits);
        if host.pending() {
            mmu.on_interrupt();
        }
        run_as(waits);
    };
    host.meanwhile.set(Box::new(mine)).ok();
    let space = AddressSpace::new(mmu).unwrap();
    for cpu in [1, 0] {
        run_as(cpu);
        space.activate().unwrap();
    }
    let frame = host.data(0xbeef).unwrap();
    space.map(pages(0x1000, 1), frame, RW).unwrap();
    let disk = Mutex::new([0; 8]);
    let mut written = 0xbeef;
    let mut other = |now: usize| {
        if now != when {
            return;
        }
        run_as(1);
        match space.fault(at(0x1000), access).unwrap() {
            Fault::Swapped(slot) => {
                let fresh = host.data(disk.lock().unwrap()[slot as usize]).unwrap();
                space.fill(at(0x1000), slot, fresh).unwrap();
                host.let_go_payload(slot);
            }
            Fault::CopyOnWrite(leaf) => {
                assert_eq!(host.mappings(leaf.frame), Use::Data(2), "so it is no page of one holder");
                let copy = host.data(contents(host, leaf.frame)).unwrap();
                space.replace(at(0x1000), copy, RW).unwrap();
            }
            Fault::Retry => {}
            fault => panic!("{fault:?}"),
        }
        if access == STORE
            && let Met::Memory(to) = host.access(at(0x1000), true)
        {
            written = 0xf00d;
            host.word(PhysAddr::new(to.get() & !0xfff)).store(written, Relaxed);
        }
        run_as(0);
    };
    // CPU 0 pages out.
    other(0);
    let leaf = space.freeze(at(0x1000)).unwrap();
    other(1);
    host.hold_payload(3);
    disk.lock().unwrap()[3] = contents(host, leaf.frame);
    other(2);
    let out = space.page_out(at(0x1000), leaf.frame, 3);
    put(host, leaf.frame);
    if out.is_err() {
        assert_eq!((out, access), (Err(Error::Changed { at: at(0x1000) }), STORE));
        host.let_go_payload(3);
    }
    other(3);
    // Whatever happened in which order, the page has what the program has stored.
    if let Fault::Swapped(slot) = space.fault(at(0x1000), LOAD).unwrap() {
        let fresh = host.data(disk.lock().unwrap()[slot as usize]).unwrap();
        space.fill(at(0x1000), slot, fresh).unwrap();
        host.let_go_payload(slot);
    }
    let Met::Memory(to) = host.access(at(0x1000), false) else { panic!("it is there") };
    assert_eq!(host.word(PhysAddr::new(to.get() & !0xfff)).load(Relaxed), written, "step {when}, {access:?}");
    for cpu in [0, 1] {
        run_as(cpu);
        mmu.idle().unwrap();
    }
    run_as(0);
    drop(space);
    assert_eq!((host.in_use(), host.holders(3)), (0, 0));
}

#[test]
fn a_fault_of_another_cpu_at_any_step_loses_no_page() {
    for when in 0..4 {
        another_cpu_faults(when, LOAD);
        another_cpu_faults(when, STORE);
    }
}

#[test]
fn a_page_keeps_its_rights_while_it_is_out() {
    let mmu = machine::<1>(256);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    let text = Attr::READ | Attr::EXEC | Attr::USER;
    let back = |page: usize, payload: u64| {
        space.fill(at(page), payload, host.data(1).unwrap()).unwrap();
        host.let_go_payload(payload);
        space.lookup(at(page)).unwrap().attr
    };
    space.map(pages(0x1000, 1), host.data(1).unwrap(), text).unwrap();
    page_out(&space, 0x1000, 3).unwrap();
    assert_eq!(back(0x1000, 3), text, "text that was out is not writable");
    // `mprotect` of pages that are out, alone and among others, and of a page with a cursor.
    space.map_each(pages(0x2000, 4), (0..4).map(|_| host.data(1).unwrap()), RW).unwrap();
    for page in [0x2000, 0x3000, 0x5000] {
        page_out(&space, page, page as u64).unwrap();
    }
    assert_eq!(space.protect(pages(0x2000, 1), Change::READ_ONLY), Ok(0));
    assert_eq!(space.protect(pages(0x3000, 2), Change::READ_ONLY), Ok(1));
    let was = space.edit(|edit| edit.cursor(at(0x5000))?.protect(Change::READ_ONLY));
    assert_eq!(was, Ok(Entry::Mark(Mark::Payload(0x5000, RW))));
    for page in [0x2000, 0x3000, 0x5000] {
        assert_eq!(back(page, page as u64), Attr::READ | Attr::USER);
        assert!(matches!(space.fault(at(page), STORE), Ok(Fault::NoRight(_))));
    }
    // Closed while it is out, and opened again before it is back, or after.
    space.protect(pages(0x2000, 1), Change::set(Attr::WRITE)).unwrap();
    page_out(&space, 0x2000, 7).unwrap();
    let closed = Change::clear(Attr::READ | Attr::WRITE | Attr::EXEC);
    space.protect(pages(0x2000, 1), closed).unwrap();
    assert_eq!(back(0x2000, 7), Attr::USER);
    space.protect(pages(0x2000, 1), Change::set(RW)).unwrap();
    page_out(&space, 0x2000, 8).unwrap();
    space.protect(pages(0x2000, 1), closed).unwrap();
    space.protect(pages(0x2000, 1), Change::set(Attr::READ)).unwrap();
    assert_eq!(back(0x2000, 8), Attr::READ | Attr::USER);
    // What a page allows is no reason to write again.
    let clean = space.freeze(at(0x2000)).unwrap();
    assert_eq!((clean.attr, space.lookup(at(0x2000))), (Attr::READ | Attr::USER, Some(clean)));
    put(host, clean.frame);
}

#[test]
fn a_page_that_is_copied_at_the_next_store_comes_back_writable() {
    let mmu = machine::<1>(256);
    let host = mmu.kernel();
    let parent = AddressSpace::new(mmu).unwrap();
    parent.map(pages(0x1000, 1), host.data(1).unwrap(), RW).unwrap();
    let child = parent.fork(SupervisorPages::LeftOut).unwrap();
    page_out(&child, 0x1000, 5).unwrap();
    let came = host.data(2).unwrap();
    child.fill(at(0x1000), 5, came).unwrap();
    host.let_go_payload(5);
    assert_eq!(child.lookup(at(0x1000)).map(|leaf| (leaf.frame, leaf.attr)), Some((came, RW)));
    assert!(matches!(parent.fault(at(0x1000), STORE), Ok(Fault::CopyOnWrite(_))), "as it was");
    // Closed, it does not open by that.
    parent.protect(pages(0x1000, 1), Change::clear(Attr::READ | Attr::WRITE | Attr::EXEC)).unwrap();
    page_out(&parent, 0x1000, 6).unwrap();
    parent.fill(at(0x1000), 6, host.data(1).unwrap()).unwrap();
    host.let_go_payload(6);
    assert!(matches!(parent.fault(at(0x1000), LOAD), Ok(Fault::Closed(_))));
}

#[test]
fn a_fork_while_a_page_is_on_its_way_in() {
    let mmu = machine::<1>(256);
    let host = mmu.kernel();
    let parent = AddressSpace::new(mmu).unwrap();
    parent.map(pages(0x1000, 1), host.data(1).unwrap(), RW).unwrap();
    // A copy on write first, so that the page of the child is not the one below.
    let child = parent.fork(SupervisorPages::LeftOut).unwrap();
    page_out(&child, 0x1000, 5).unwrap();
    // The child faults on it, and forks before the contents are there.
    assert_eq!(child.fault(at(0x1000), LOAD), Ok(Fault::Swapped(5)));
    let grandchild = child.fork(SupervisorPages::LeftOut).unwrap();
    assert_eq!(host.holders(5), 2);
    let came = host.data(2).unwrap();
    assert_eq!(child.fill(at(0x1000), 5, came), Ok(()));
    host.let_go_payload(5);
    // Not the parent's contents, and not the child's frame.
    assert_eq!(grandchild.fault(at(0x1000), LOAD), Ok(Fault::Swapped(5)));
    assert_eq!(grandchild.lookup(at(0x1000)), None);
    // A second fill by a late handler is refused.
    let late = host.data(3).unwrap();
    assert!(matches!(child.fill(at(0x1000), 5, late), Err(Error::Occupied { .. })));
    drop((parent, child, grandchild));
    assert_eq!((host.in_use(), host.holders(5)), (0, 0));
}

/// A fork while a page is on its way out: the copy shares the frame, which no store of either reaches.
#[test]
fn a_fork_while_a_page_is_on_its_way_out() {
    let mmu = machine::<1>(256);
    let host = mmu.kernel();
    let parent = AddressSpace::new(mmu).unwrap();
    parent.map(pages(0x1000, 1), host.data(1).unwrap(), RW).unwrap();
    let leaf = parent.freeze(at(0x1000)).unwrap();
    let child = parent.fork(SupervisorPages::LeftOut).unwrap();
    assert_eq!(host.mappings(leaf.frame), Use::Data(3));
    assert!(matches!(child.fault(at(0x1000), STORE), Ok(Fault::CopyOnWrite(_))));
    assert_eq!(parent.page_out(at(0x1000), leaf.frame, 5), Ok(()));
    host.hold_payload(5);
    put(host, leaf.frame);
    assert_eq!((host.mappings(leaf.frame), child.entry(at(0x1000)).mark()), (Use::Data(1), None));
    assert_eq!(parent.fault(at(0x1000), LOAD), Ok(Fault::Swapped(5)));
    drop((parent, child));
    assert_eq!((host.in_use(), host.holders(5)), (0, 0));
}

/// The contents may come back by another way meanwhile: another payload.
#[test]
fn a_fill_after_the_payload_has_changed() {
    let mmu = machine::<1>(256);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    space.mark(at(0x1000), Mark::Payload(5, RW)).unwrap();
    let Fault::Swapped(slot) = space.fault(at(0x1000), LOAD).unwrap() else { panic!() };
    // Another thread brings it in, writes, and it goes out to slot 6.
    let theirs = host.data(2).unwrap();
    space.fill(at(0x1000), slot, theirs).unwrap();
    page_out(&space, 0x1000, 6).unwrap();
    let mine = host.data(1).unwrap(); // the contents of slot 5
    assert_eq!(space.fill(at(0x1000), slot, mine), Err(Error::Changed { at: at(0x1000) }));
    assert_eq!(space.fault(at(0x1000), LOAD), Ok(Fault::Swapped(6)), "nothing has changed");
    assert_eq!(host.mappings(mine), Use::Free, "but the frame is released");
    // Nor is what a page was before it became a guard, or was unmapped.
    space.mark(at(0x1000), Mark::Guard).unwrap();
    let none = Err(Error::NotMapped { at: at(0x1000) });
    assert_eq!(space.fill(at(0x1000), 6, host.data(3).unwrap()), none);
    space.unmap(pages(0x1000, 1)).unwrap();
    assert_eq!(space.fill(at(0x1000), 6, host.data(3).unwrap()), none);
    host.let_go_payload(6);
}

/// A store is seen by any of its traces: another frame, the right to write, or the dirty bit.
#[test]
fn a_page_that_was_written_does_not_go_out() {
    let mmu = machine::<1>(256);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    let page = pages(0x1000, 1);
    space.map(page, host.data(1).unwrap(), RW).unwrap();
    let changed = Err(Error::Changed { at: at(0x1000) });
    let leaf = space.freeze(at(0x1000)).unwrap();
    let writable = Change { clear: Attr::COPY_ON_WRITE, set: Attr::WRITE };
    space.protect(page, writable).unwrap();
    assert_eq!(space.page_out(at(0x1000), leaf.frame, 5), changed);
    space.protect(page, Change::set(Attr::DIRTY)).unwrap();
    space.protect(page, Change::READ_ONLY).unwrap();
    assert_eq!(space.page_out(at(0x1000), leaf.frame, 5), changed);
    space.protect(page, Change::clear(Attr::DIRTY)).unwrap();
    let copy = host.data(1).unwrap();
    space.replace(at(0x1000), copy, Attr::READ | Attr::USER).unwrap();
    assert_eq!(space.page_out(at(0x1000), leaf.frame, 5), changed);
    put(host, leaf.frame);
    assert_eq!(space.page_out(at(0x1000), copy, 1 << 56), Err(Error::WrongMark));
    assert_eq!(space.lookup(at(0x1000)).map(|leaf| leaf.frame), Some(copy), "it is where it was");
    assert_eq!(space.page_out(at(0x1000), copy, 5), Ok(()));
    host.hold_payload(5);
    assert_eq!(space.page_out(at(0x1000), copy, 5), Err(Error::NotMapped { at: at(0x1000) }));
    drop(space);
    assert_eq!((host.in_use(), host.holders(5)), (0, 0));
}

#[test]
fn a_page_that_a_mark_cannot_keep_is_not_frozen() {
    let mmu = machine::<1>(256);
    let space = std::mem::ManuallyDrop::new(AddressSpace::new(mmu).unwrap());
    space.map(pages(0x1000, 1), Pfn::new(0x1000), RW | Attr::DEVICE).unwrap();
    let before = space.lookup(at(0x1000));
    assert_eq!(space.freeze(at(0x1000)), Err(Error::WrongAttr { attr: Attr::DEVICE }));
    assert_eq!(space.lookup(at(0x1000)), before);
    assert_eq!(space.freeze(at(0x2000)), Err(Error::NotMapped { at: at(0x2000) }));
    space.edit(|edit| edit.map_sized(pages(M2, 512), Pfn::new(512), PageSize::M2, RW)).unwrap();
    let part = Error::Partial { at: at(M2), size: PageSize::M2 };
    assert_eq!(space.freeze(at(M2 + 0x1000)), Err(part));
    assert_eq!(space.page_out(at(M2 + 0x1000), Pfn::new(513), 5), Err(part));
}
