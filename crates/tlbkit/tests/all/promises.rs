//! Promises of the documentation that an adversary, or a kernel that unwinds, puts to the test.
#![cfg(target_pointer_width = "64")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::host::unwinding::{GIVE, RELEASE, SHARE, TAKE, as_machine};
use crate::host::{Met, Use, machine};
use tlbkit::{
    Access, AddressSpace, Attr, Change, Error, Fault, Guarded, Kernel as _, PageSize, Pages, Pfn, Run,
    SupervisorPages, VirtAddr, arch,
};

const RW: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);
const M2: usize = 1 << 21;

fn pages(at: usize, count: usize) -> Pages {
    Pages::count(VirtAddr::new(at).vpn(PageSize::K4), count).unwrap()
}

#[test]
fn a_user_gets_no_copy_of_a_page_that_is_not_a_users() {
    let mmu = machine::<1>(64);
    let space = AddressSpace::new(mmu).unwrap();
    let at = VirtAddr::new(0x1000);
    space.map(pages(0x1000, 1), mmu.kernel().data(7).unwrap(), Attr::READ | Attr::WRITE).unwrap();
    space.protect(pages(0x1000, 1), Change::COPY_ON_WRITE).unwrap();
    assert!(matches!(space.fault(at, Access::STORE.by_user()), Ok(Fault::NoRight(_))));
    assert!(matches!(space.fault(at, Access::STORE), Ok(Fault::CopyOnWrite(_))));
}

#[test]
fn the_next_mapped_page_may_be_in_the_upper_half() {
    let mmu = machine::<1>(64);
    let space = AddressSpace::new(mmu).unwrap();
    let at = [0x3f_ffff_f000, 0xffff_ffc0_0000_0000, 0xffff_ffff_ffff_f000].map(VirtAddr::new);
    for at in at {
        let frame = mmu.kernel().data(1).unwrap();
        space.map(Pages::one(at.vpn(PageSize::K4)), frame, RW).unwrap();
    }
    let visited = space.edit(|edit| {
        let mut cursor = edit.cursor(VirtAddr::new(0))?;
        let mut visited = Vec::new();
        // The hole is no end, but the last page asked for is.
        assert_eq!(cursor.next_mapped(VirtAddr::new(0x3f_ffff_e000)), None);
        cursor.seek(at[0])?;
        assert_eq!(cursor.next_mapped(VirtAddr::new(0x40_0000_0000)), None);
        assert_eq!(cursor.at(), at[0]);
        cursor.seek(VirtAddr::new(0))?;
        while let Some(leaf) = cursor.next_mapped(VirtAddr::new(usize::MAX)) {
            visited.push(leaf.at);
        }
        Ok(visited)
    });
    assert_eq!(visited.unwrap(), at);
}

#[test]
fn a_fork_that_unwinds_half_way_releases_what_it_has_shared() {
    for unwinds in 1..4 {
        let mmu = as_machine::<arch::Sv39>(64);
        let kernel = mmu.kernel();
        let space = AddressSpace::new(mmu).unwrap();
        let frames: Vec<Pfn> = (0..3).map(|at| kernel.0.data(at).unwrap()).collect();
        // No frame continues another one.
        for (at, &frame) in [0x3000, 0x2000, 0x4000_0000].into_iter().zip(&frames) {
            space.map(pages(at, 1), frame, RW).unwrap();
        }
        let before = kernel.0.in_use();
        kernel.unwinds_at(SHARE, unwinds);
        assert!(catch_unwind(AssertUnwindSafe(|| space.fork(SupervisorPages::LeftOut))).is_err());
        assert!(frames.iter().all(|&frame| kernel.0.mappings(frame) == Use::Data(1)), "call {unwinds}");
        assert_eq!((kernel.0.in_use(), mmu.lost()), (before, 0), "call {unwinds}");
        drop(space);
        assert_eq!(kernel.0.in_use(), 0);
    }
}

#[test]
fn a_change_that_is_refused_splits_no_page_and_maps_none() {
    let mmu = machine::<1>(64);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    // Nothing of this machine's memory: it must not be released.
    let space = std::mem::ManuallyDrop::new(space);
    space.edit(|edit| edit.map_sized(pages(M2, 512), Pfn::new(512), PageSize::M2, RW)).unwrap();
    let leaf = space.lookup(VirtAddr::new(M2));
    let first = VirtAddr::new(M2 + 0x1000).vpn(PageSize::K4);
    let over_the_hole = Pages::new(first, VirtAddr::new(usize::MAX).vpn(PageSize::K4)).unwrap();
    let cleared = Change::clear(Attr::WRITE);
    assert!(matches!(space.protect(over_the_hole, cleared), Err(Error::OutOfRange { .. })));
    assert!(matches!(
        space.protect(pages(M2 + 0x1000, 1), Change::set(Attr::UNCACHED)),
        Err(Error::WrongAttr { .. })
    ));
    assert_eq!(space.lookup(VirtAddr::new(M2)), leaf);
    // A range that cannot be mapped asks for no frame and takes none.
    let before = host.in_use();
    let behind = Pages::new(VirtAddr::new(0x3f_ffff_f000).vpn(PageSize::K4), over_the_hole.last()).unwrap();
    let asked = AtomicUsize::new(0);
    let frames = std::iter::from_fn(|| {
        asked.fetch_add(1, Ordering::Relaxed);
        Some(Pfn::new(7))
    });
    assert!(matches!(space.map_each(behind, frames, RW), Err(Error::OutOfRange { .. })));
    assert_eq!((asked.into_inner(), host.in_use()), (0, before));
}

#[test]
fn what_nobody_shares_is_global_nowhere() {
    let mmu = machine::<1>(64);
    let half = Pages::new(
        VirtAddr::new(0xffff_ffff_8000_0000).vpn(PageSize::K4),
        VirtAddr::new(usize::MAX).vpn(PageSize::K4),
    );
    let kernel = AddressSpace::lending(mmu, [half.unwrap()]).unwrap();
    let frame = mmu.kernel().data(7).unwrap();
    // It would stay in the TLB when the CPU goes on to one that shares the other pages.
    let refused = kernel.map(pages(0x1000, 1), frame, RW | Attr::GLOBAL);
    assert_eq!(refused, Err(Error::WrongAttr { attr: Attr::GLOBAL }));
    assert_eq!(kernel.map(pages(0x1000, 1), frame, RW), Ok(()));
    let refused = kernel.protect(pages(0x1000, 1), Change::set(Attr::GLOBAL));
    assert_eq!(refused, Err(Error::WrongAttr { attr: Attr::GLOBAL }));
    let user = AddressSpace::sharing(&kernel).unwrap();
    kernel.activate().unwrap();
    assert!(matches!(mmu.kernel().access(VirtAddr::new(0x1000), false), Met::Memory(_)));
    user.activate().unwrap();
    assert_eq!(mmu.kernel().access(VirtAddr::new(0x1000), false), Met::Fault);
    mmu.idle().unwrap();
}

#[test]
fn a_change_for_which_there_is_no_memory_splits_no_page() {
    let mmu = machine::<1>(64);
    let host = mmu.kernel();
    let space = AddressSpace::new(mmu).unwrap();
    // Nothing of this machine's memory: it must not be released.
    let space = std::mem::ManuallyDrop::new(space);
    space.edit(|edit| edit.map_sized(pages(M2, 1024), Pfn::new(512), PageSize::M2, RW)).unwrap();
    let leaves = || [M2, 2 * M2].map(|at| space.lookup(VirtAddr::new(at)));
    let before = (leaves(), host.in_use());
    // From the midst of one page to the midst of the other, with a node for one of them.
    let cut = pages(M2 + 0x1000, 1022);
    host.allowance.store(1, Ordering::Relaxed);
    assert!(matches!(space.unmap(cut), Err(Error::NoMemory { .. })));
    assert_eq!((leaves(), host.in_use()), before);
    host.allowance.store(1, Ordering::Relaxed);
    assert!(matches!(space.protect(cut, Change::clear(Attr::WRITE)), Err(Error::NoMemory { .. })));
    assert_eq!((leaves(), host.in_use()), before);
}

#[test]
fn the_end_of_an_address_space_that_unwinds_hands_the_rest_back() {
    for call in 1..4 {
        let mmu = as_machine::<arch::Sv39>(64);
        let kernel = mmu.kernel();
        let space = AddressSpace::new(mmu).unwrap();
        // No frame continues another one.
        for (at, page) in [0x3000, 0x2000, 0x4000_0000].into_iter().enumerate() {
            space.map(pages(page, 1), kernel.0.data(at as u64).unwrap(), RW).unwrap();
        }
        kernel.unwinds_at(RELEASE, call);
        assert!(catch_unwind(AssertUnwindSafe(|| drop(space))).is_err());
        // What the kernel was given when it unwound is the kernel's affair.
        assert_eq!((kernel.0.in_use(), mmu.lost()), (1, 0), "call {call}");
    }
}

#[test]
fn what_is_behind_a_release_that_unwinds_is_released_too() {
    for (by_cursor, call) in [(false, 1), (false, 2), (true, 1), (true, 2)] {
        let mmu = as_machine::<arch::Sv39>(64);
        let kernel = mmu.kernel();
        let space = AddressSpace::new(mmu).unwrap();
        // No frame continues another one.
        let frames: Vec<Pfn> = (0..6).map(|at| kernel.0.data(at).unwrap()).step_by(2).collect();
        space.map_each(pages(0x1000, 3), frames.iter().copied(), RW).unwrap();
        kernel.unwinds_at(RELEASE, call);
        let unmap = || {
            if !by_cursor {
                return space.unmap(pages(0, 16)).map(drop);
            }
            space.edit(|edit| {
                let mut cursor = edit.cursor(VirtAddr::new(0))?;
                while cursor.next_mapped(VirtAddr::new(usize::MAX)).is_some() {
                    cursor.unmap()?;
                }
                Ok(())
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(unmap)).is_err());
        // What the kernel was given when it unwound is the kernel's affair.
        let left = frames.iter().filter(|&&frame| kernel.0.mappings(frame) != Use::Free).count();
        assert_eq!((left, space.footprint().ptes), (1, 0), "by cursor: {by_cursor}, call {call}");
    }
}

/// The list of an edit is full, so that it is flushed between the copy and the store of the new frame: whichever release unwinds, the
/// new frame is released, too.
#[test]
fn a_frame_that_an_unwinding_unshare_has_copied_is_released() {
    const ROOM: usize = 16;
    let unshare = |call: usize| {
        let mmu = as_machine::<arch::Sv39>(128);
        let kernel = mmu.kernel();
        let space = AddressSpace::new(mmu).unwrap();
        // No frame continues another one.
        let frames: Vec<Pfn> = (0..2 * ROOM as u64).map(|at| kernel.0.data(at).unwrap()).step_by(2).collect();
        space.map_each(pages(0x1000, ROOM), frames.iter().copied(), RW).unwrap();
        let (old, new) = (kernel.0.data(100).unwrap(), kernel.0.data(200).unwrap());
        let page = VirtAddr::new(0x10_0000);
        space.map(pages(page.get(), 1), old, RW).unwrap();
        space.protect(pages(page.get(), 1), Change::COPY_ON_WRITE).unwrap();
        kernel.unwinds_at(RELEASE, call);
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            space.edit(|edit| {
                for at in 1..=ROOM {
                    edit.unmap(pages(at << 12, 1))?;
                }
                edit.unshare(page, |_| false, |_| Ok(new))
            })
        }))
        .is_err();
        let mapped = space.lookup(page).unwrap().frame;
        let lost = frames.iter().filter(|&&frame| kernel.0.mappings(frame) != Use::Free).count();
        // What the kernel was given when it unwound is the kernel's affair.
        assert_eq!(lost, usize::from(unwound && call <= ROOM), "call {call}");
        let gone = if mapped == old { new } else { old };
        let lost = kernel.0.mappings(gone) != Use::Free;
        assert_eq!(lost, unwound && call > ROOM, "call {call}");
        assert!(matches!(kernel.0.mappings(mapped), Use::Data(_)), "call {call}");
        kernel.unwinds_at(RELEASE, 0);
        drop(space);
        assert_eq!(kernel.0.mappings(mapped), Use::Free, "call {call}");
        assert_eq!(mmu.lost(), 0, "call {call}");
        (unwound, mapped == new)
    };
    for call in 1..=ROOM {
        assert_eq!(unshare(call), (true, false), "call {call}");
    }
    assert_eq!(unshare(ROOM + 1), (true, true), "the old frame, when the edit ends");
    assert_eq!(unshare(ROOM + 2), (false, true));
}

/// A fork copies supervisor pages, and the kernel unwinds: in the function that copies, or when the child's table takes a node.
#[test]
fn a_frame_that_an_unwinding_fork_has_copied_is_released() {
    let fork = |take: usize, copy_unwinds: usize| {
        let mmu = as_machine::<arch::Sv39>(64);
        let kernel = mmu.kernel();
        let space = AddressSpace::new(mmu).unwrap();
        for (at, page) in [0x1000, 0x4000_0000, 0x8000_0000].into_iter().enumerate() {
            let frame = kernel.0.data(at as u64).unwrap();
            space.map(pages(page, 1), frame, Attr::READ | Attr::WRITE).unwrap();
        }
        let before = kernel.0.in_use();
        let mut copies = Vec::new();
        kernel.unwinds_at(TAKE, take);
        let child = catch_unwind(AssertUnwindSafe(|| {
            space.fork(SupervisorPages::Copied(&mut |_| {
                let copy = kernel.0.data(10 + copies.len() as u64).unwrap();
                copies.push(copy);
                if copies.len() == copy_unwinds {
                    kernel.0.release(Run { first: copy, len: 1, dirty: false });
                    resume_unwind(Box::new("the copy unwinds"));
                }
                Ok(copy)
            }))
        }));
        kernel.unwinds_at(TAKE, 0);
        let unwound = child.is_err();
        drop(child);
        assert!(copies.iter().all(|&copy| kernel.0.mappings(copy) == Use::Free), "{take}, {copy_unwinds}");
        assert_eq!((kernel.0.in_use(), mmu.lost()), (before, 0), "{take}, {copy_unwinds}");
        (unwound, copies.len())
    };
    for copy in 1..=3 {
        assert_eq!(fork(0, copy), (true, copy));
    }
    // The block and the root, then two nodes for each page.
    let seen: Vec<_> = (1..=9).map(|take| fork(take, 0)).collect();
    assert_eq!(seen.iter().filter(|(unwound, _)| *unwound).count(), 8, "{seen:?}");
    assert!(seen.contains(&(true, 1)) && seen.contains(&(true, 3)), "{seen:?}");
}

/// A space of a guarded table ends, and the kernel unwinds when a frame of nodes comes back to it: the release goes on after that.
#[test]
fn a_guarded_space_that_ends_releases_all_of_its_frames_although_the_kernel_unwinds() {
    let end = |give: usize| {
        let mmu = as_machine::<arch::Mips32<Guarded>>(2048);
        let kernel = mmu.kernel();
        let before = kernel.0.in_use();
        let space = AddressSpace::new(mmu).unwrap();
        // More leaves than are taken out at a time, each in a node of its own.
        let frames: Vec<_> = (0..600).map(|at| kernel.0.data(at).unwrap()).collect();
        for (at, &frame) in frames.iter().enumerate() {
            space.map(pages(0x1000 + at * 0x12_3000, 1), frame, Attr::READ | Attr::USER).unwrap();
        }
        kernel.unwinds_at(GIVE, give);
        let unwound = catch_unwind(AssertUnwindSafe(|| drop(space))).is_err();
        kernel.unwinds_at(GIVE, 0);
        let lost = frames.iter().filter(|&&frame| kernel.0.mappings(frame) != Use::Free).count();
        assert_eq!((lost, kernel.0.in_use()), (0, before), "{give}");
        unwound
    };
    assert!(!end(0));
    let unwound = (1..20).filter(|&give| end(give)).count();
    assert!(unwound > 2, "{unwound}");
}
