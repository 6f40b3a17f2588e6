//! An address space on a machine of one CPU, by what its user program sees.
#![cfg(target_pointer_width = "64")]

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use crate::host::{Host, Met, Use, machine};
use tlbkit::{
    Access, AddressSpace, Attr, Change, Error, Fault, Mmu, PageSize, Pages, Pfn, PhysAddr, SupervisorPages,
    VirtAddr,
};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

fn page(at: usize) -> Pages {
    Pages::one(VirtAddr::new(at).vpn(PageSize::K4))
}

fn pages(at: usize, count: usize) -> Pages {
    Pages::count(VirtAddr::new(at).vpn(PageSize::K4), count).unwrap()
}

fn data(mmu: &'static Mmu<Host>, pattern: u64) -> Pfn {
    mmu.kernel().data(pattern).unwrap()
}

/// A load or store of the user program's, with the kernel's page-fault handler behind it.
fn access(space: &AddressSpace<Host>, at: usize, store: bool) -> Result<PhysAddr, Fault> {
    let at = VirtAddr::new(at);
    let access = if store { Access::STORE } else { Access::LOAD }.by_user();
    for _ in 0..4 {
        if let Met::Memory(phys) = space.mmu().kernel().access(at, store) {
            return Ok(phys);
        }
        match space.fault(at, access).unwrap() {
            Fault::Retry => {}
            other => return Err(other),
        }
    }
    panic!("{at} faults for ever")
}

#[test]
fn a_user_sees_what_is_mapped_until_it_is_unmapped() {
    let mmu = machine::<1>(64);
    let space = AddressSpace::new(mmu).unwrap();
    space.activate().unwrap();
    let frame = data(mmu, 7);
    assert_eq!(access(&space, 0x5000, false), Err(Fault::NotMapped));
    space.map(page(0x5000), frame, RW).unwrap();
    assert_eq!(access(&space, 0x5008, true), Ok(PhysAddr::new(frame.get() * 4096 + 8)));
    assert_eq!(space.translate(VirtAddr::new(0x5010)), Some(PhysAddr::new(frame.get() * 4096 + 16)));
    let occupied = space.map(page(0x5000), frame, RW);
    assert!(matches!(occupied, Err(Error::Occupied { at, .. }) if at == VirtAddr::new(0x5000)));

    // A store is refused from the moment on that `protect` returns, though the TLB held the right.
    space.protect(page(0x5000), Change::clear(Attr::WRITE)).unwrap();
    assert!(matches!(access(&space, 0x5000, true), Err(Fault::NoRight(leaf)) if leaf.frame == frame));
    assert!(access(&space, 0x5000, false).is_ok());

    assert_eq!(space.unmap(pages(0, 16)), Ok(1));
    assert_eq!(mmu.kernel().mappings(frame), Use::Free);
    assert_eq!(mmu.kernel().dirty.load(Ordering::Relaxed), 1, "it was written while it was mapped");
    assert_eq!(access(&space, 0x5000, false), Err(Fault::NotMapped));
    mmu.idle().unwrap();
    drop(space);
    assert_eq!(mmu.kernel().in_use(), 0);
}

#[test]
fn a_number_is_used_again_when_the_tlb_has_forgotten_it() {
    let mmu = machine::<1>(64);
    // Three numbers for more address spaces.
    mmu.kernel().asid_bits.store(2, Ordering::Relaxed);
    let spaces: Vec<_> = (0..8).map(|_| AddressSpace::new(mmu).unwrap()).collect();
    for (space, pattern) in spaces.iter().zip(1..) {
        space.map(page(0x5000), data(mmu, pattern), RW).unwrap();
    }
    for space in &spaces {
        space.activate().unwrap();
        assert!(access(space, 0x5000, false).is_ok());
    }
    assert_eq!(mmu.kernel().mistaken.load(Ordering::Relaxed), 0);
    mmu.idle().unwrap();
}

#[test]
fn the_last_handle_gives_everything_back_whoever_has_it() {
    let mmu = machine::<1>(64);
    let space = AddressSpace::new(mmu).unwrap();
    space.map_each(pages(0x40_0000, 8), (0..8).map(|at| data(mmu, at)), RW).unwrap();
    let other = space.clone();
    space.activate().unwrap();
    drop((space, other));
    // The CPU still runs it.
    assert!(matches!(mmu.kernel().access(VirtAddr::new(0x40_3000), false), Met::Memory(_)));
    mmu.idle().unwrap();
    assert_eq!(mmu.kernel().in_use(), 0);
}

#[test]
fn a_store_after_a_fork_is_seen_by_its_own_process_alone() {
    let mmu = machine::<1>(128);
    let host = mmu.kernel();
    let parent = AddressSpace::new(mmu).unwrap();
    let frames: Vec<Pfn> = (0..4).map(|at| data(mmu, at)).collect();
    parent.map_each(pages(0x1000, 4), frames.iter().copied(), RW).unwrap();
    parent.protect(page(0x4000), Change::clear(Attr::WRITE)).unwrap();
    parent.activate().unwrap();
    assert!(access(&parent, 0x1000, true).is_ok(), "and the TLB knows that it may");

    let child = parent.fork(SupervisorPages::LeftOut).unwrap();
    assert!(frames.iter().all(|&frame| host.mappings(frame) == Use::Data(2)));
    let stored = access(&parent, 0x1000, true);
    let Err(Fault::CopyOnWrite(leaf)) = stored else { panic!("{stored:?}") };
    assert_eq!(leaf.frame, frames[0]);
    let copy = data(mmu, 100);
    parent.replace(VirtAddr::new(0x1000), copy, RW).unwrap();
    assert_eq!(access(&parent, 0x1000, true), Ok(PhysAddr::new(copy.get() * 4096)));
    assert_eq!(host.mappings(frames[0]), Use::Data(1));

    // The child has what was; no other space maps that frame any more, so that it can have it back.
    child.activate().unwrap();
    assert_eq!(access(&child, 0x1000, false), Ok(PhysAddr::new(frames[0].get() * 4096)));
    assert!(matches!(access(&child, 0x1000, true), Err(Fault::CopyOnWrite(_))));
    child.protect(page(0x1000), Change { clear: Attr::COPY_ON_WRITE, set: Attr::WRITE }).unwrap();
    assert!(access(&child, 0x1000, true).is_ok());
    // A page that could never be written cannot now.
    assert!(matches!(access(&child, 0x4000, true), Err(Fault::NoRight(_))));

    drop(parent);
    mmu.idle().unwrap();
    drop(child);
    assert_eq!(host.in_use(), 0);
}

/// After a fork a page that loses only the right to write is still copied at a store; `READ_ONLY` forbids the store, and
/// `COPY_ON_WRITE` allows it again without the other process's frame.
#[test]
fn a_protection_outlives_a_fork() {
    let mmu = machine::<1>(128);
    let host = mmu.kernel();
    let parent = AddressSpace::new(mmu).unwrap();
    parent.map_each(pages(0x1000, 2), (0..2).map(|at| data(mmu, at)), RW).unwrap();
    let child = parent.fork(SupervisorPages::LeftOut).unwrap();
    child.activate().unwrap();
    let refused = |at, change| {
        child.protect(page(at), change).unwrap();
        access(&child, at, true)
    };
    assert!(matches!(refused(0x1000, Change::clear(Attr::WRITE)), Err(Fault::CopyOnWrite(_))));
    assert!(matches!(refused(0x1000, Change::READ_ONLY), Err(Fault::NoRight(_))));
    assert!(matches!(refused(0x1000, Change::COPY_ON_WRITE), Err(Fault::CopyOnWrite(_))));
    // The same for a page that no fork has touched.
    child.replace(VirtAddr::new(0x2000), data(mmu, 7), RW).unwrap();
    assert!(access(&child, 0x2000, true).is_ok());
    assert!(matches!(refused(0x2000, Change::READ_ONLY), Err(Fault::NoRight(_))));
    assert!(matches!(refused(0x2000, Change::COPY_ON_WRITE), Err(Fault::CopyOnWrite(_))));
    mmu.idle().unwrap();
    drop((parent, child));
    assert_eq!(host.in_use(), 0);
}

#[test]
fn a_fork_that_runs_out_of_memory_changes_nothing() {
    let mmu = machine::<1>(64);
    let host = mmu.kernel();
    let parent = AddressSpace::new(mmu).unwrap();
    for at in [0x1000, 0x8000_0000_usize, 0x20_0000_0000] {
        parent.map(page(at), data(mmu, at as u64), RW).unwrap();
    }
    let before = host.in_use();
    for allowance in 0..8 {
        host.allowance.store(allowance, Ordering::Relaxed);
        assert!(
            matches!(parent.fork(SupervisorPages::LeftOut), Err(Error::NoMemory { .. })),
            "with {allowance} frames"
        );
        assert_eq!(host.in_use(), before, "with {allowance} frames");
        assert!(parent.lookup(VirtAddr::new(0x1000)).unwrap().attr.contains(Attr::WRITE));
    }
    host.allowance.store(usize::MAX, Ordering::Relaxed);
    drop(parent.fork(SupervisorPages::LeftOut).unwrap());
    assert_eq!(host.in_use(), before);
    drop(parent);
    assert_eq!(host.in_use(), 0);
}

#[test]
fn a_range_that_cannot_be_mapped_whole_is_not_mapped() {
    let mmu = machine::<1>(64);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    let frames: Vec<Pfn> = (0..8).map(|at| data(mmu, at)).collect();
    // Too few frames, a page in the way, and no memory for nodes half-way.
    let few = space.map_each(pages(0x1000, 9), frames.iter().copied(), RW);
    assert_eq!(few, Err(Error::NotMapped { at: VirtAddr::new(0x9000) }));
    space.map(page(0x6000), frames[7], RW).unwrap();
    assert!(matches!(
        space.map_each(pages(0x1000, 7), frames.iter().copied(), RW),
        Err(Error::Occupied { .. })
    ));
    host.allowance.store(0, Ordering::Relaxed);
    let far = pages(0x1f_f000, 2);
    assert!(matches!(space.map_each(far, frames.iter().copied(), RW), Err(Error::NoMemory { .. })));
    let mut leaves = 0;
    let _ = space.for_each(pages(0, 0x1000), |_| {
        leaves += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(leaves, 1);
    for (at, &frame) in frames.iter().enumerate() {
        assert_eq!(host.mappings(frame), Use::Data(1), "frame {at}: it is the caller's still");
    }
}

#[test]
#[cfg(not(miri))] // Thousands of frames, each written word by word.
fn the_largest_pages_that_fit_are_found_and_split_at_the_ends() {
    const M2: usize = 1 << 21;
    let mmu = machine::<1>(2048);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    // Frames that begin one page before a boundary of 2 MiB, as the addresses do.
    let frames: Vec<Pfn> = (0..1026).map(|_| data(mmu, 1)).collect();
    let first = frames.iter().position(|frame| (frame.get() + 1) % 512 == 0).unwrap();
    assert_eq!(frames[first + 513].get() - frames[first].get(), 513, "the frames are contiguous");
    let at = M2 - 4096;
    space.map_linear(pages(at, 514), frames[first], RW).unwrap();
    let size = |at: usize| space.lookup(VirtAddr::new(at)).map(|leaf| leaf.size);
    assert_eq!(
        [at, M2, 2 * M2 - 1, 2 * M2].map(size),
        [Some(PageSize::K4), Some(PageSize::M2), Some(PageSize::M2), Some(PageSize::K4)]
    );
    space.activate().unwrap();
    assert!(access(&space, M2 + 0x5000, true).is_ok());
    // A part of the large page goes.
    assert_eq!(space.unmap(pages(M2 + 0x5000, 3)), Ok(3));
    assert_eq!(size(M2 + 0x4000), Some(PageSize::K4));
    assert_eq!(size(M2 + 0x5000), None);
    assert_eq!(access(&space, M2 + 0x5000, true), Err(Fault::NotMapped));
    assert_eq!(host.mappings(Pfn::new(frames[first].get() + 1 + 5)), Use::Free);
    // More runs than wait for one shootdown.
    for at in (0..512).step_by(2) {
        let _ = space.unmap(page(M2 + at * 4096)).unwrap();
    }
    assert_eq!(space.unmap(pages(at, 514)), Ok(514 - 3 - 256 + 1));
    mmu.idle().unwrap();
    drop(space);
    for frame in frames.iter().filter(|frame| host.mappings(**frame) == Use::Data(1)) {
        assert!(
            *frame < frames[first] || frame.get() >= frames[first].get() + 514,
            "{frame} is mapped still"
        );
    }
}

#[test]
fn a_call_in_the_midst_of_another_is_refused() {
    let mmu = machine::<1>(64);
    let space = AddressSpace::new(mmu).unwrap();
    space.map(page(0x1000), data(mmu, 1), RW).unwrap();
    let inner = space.edit(|_| Ok((space.unmap(page(0x1000)), space.activate(), mmu.idle())));
    assert_eq!(inner, Ok((Err(Error::Nested), Err(Error::Nested), Err(Error::Nested))));
    let visited = space.for_each(pages(0, 16), |leaf| {
        assert_eq!(space.unmap(page(leaf.at.get())), Err(Error::Nested));
        assert_eq!(space.lookup(leaf.at), Some(leaf), "a lookup is none that waits");
        ControlFlow::Break(())
    });
    assert_eq!(visited, Ok(ControlFlow::Break(())));
    assert_eq!(space.unmap(page(0x1000)), Ok(1));
}

#[test]
fn the_kernels_half_is_in_every_address_space_and_global() {
    let mmu = machine::<1>(64);
    let half = Pages::new(
        VirtAddr::new(0xffff_ffc0_0000_0000).vpn(PageSize::K4),
        VirtAddr::new(usize::MAX).vpn(PageSize::K4),
    )
    .unwrap();
    // Every slot of the upper half needs a node.
    let few = Pages::count(half.first(), 2 << 18).unwrap();
    let kernel = AddressSpace::lending(mmu, [few]).unwrap();
    let at = VirtAddr::new(0xffff_ffc0_0000_3000);
    let user = AddressSpace::sharing(&kernel).unwrap();
    kernel.map(page(at.get()), data(mmu, 9), Attr::READ | Attr::WRITE | Attr::GLOBAL).unwrap();
    assert_eq!(user.translate(at), kernel.translate(at));
    assert!(matches!(user.unmap(page(at.get())), Err(Error::Borrowed { .. })));
    assert_eq!(
        user.map(page(0x1000), data(mmu, 1), RW | Attr::GLOBAL),
        Err(Error::WrongAttr { attr: Attr::GLOBAL })
    );
    let child = user.fork(SupervisorPages::LeftOut).unwrap();
    assert_eq!(child.translate(at), kernel.translate(at));
    // The lender lives as long as the spaces that share.
    drop((kernel, user));
    assert!(child.translate(at).is_some());
    drop(child);
}
