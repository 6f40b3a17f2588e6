//! Where uncovered frames go: room is counted exactly, and found wanting before anything has changed.
#![cfg(target_pointer_width = "64")]

use std::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Compact32, X86};
use tlbkit_pagetable::geometry::{Va32, Va48};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Error, Frames, Holes, Local, Pinned, Run, Runs, Solo, Table};

const K4: PageSize = PageSize::K4;

fn run(first: usize, len: usize) -> Run {
    Run { first: Pfn::new(first), len, dirty: false }
}

#[test]
fn room_is_what_is_not_used_yet() {
    let mut room = [None; 3];
    let mut runs = Runs::new(&mut room);
    assert_eq!((runs.reserve(3), runs.reserve(4)), (Ok(()), Err(Error::NoRoom)));
    runs.push(Pfn::new(8), K4, K4, Attr::READ);
    assert_eq!((runs.reserve(2), runs.reserve(3)), (Ok(()), Err(Error::NoRoom)));
    // A neighbour takes no room, in whatever size it comes.
    runs.push(Pfn::new(9), K4, K4, Attr::READ);
    runs.push(Pfn::new(10), PageSize::K16, K4, Attr::READ);
    assert_eq!((runs.reserve(2), runs.reserve(3)), (Ok(()), Err(Error::NoRoom)));
    // The one below does, and so does one with a gap before it.
    runs.push(Pfn::new(7), K4, K4, Attr::READ);
    assert_eq!((runs.reserve(1), runs.reserve(2)), (Ok(()), Err(Error::NoRoom)));
    runs.push(Pfn::new(9), K4, K4, Attr::READ);
    assert_eq!((runs.reserve(0), runs.reserve(1)), (Ok(()), Err(Error::NoRoom)));
    assert!(runs.iter().eq([run(8, 6), run(7, 1), run(9, 1)]));
}

/// One page too many for the list is an error of the whole range, and leaves every page of it mapped.
#[test]
fn a_list_that_is_too_short_is_refused_before_anything_changes() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Mpt::<Va32, Compact32, _>::new(&slab).unwrap(), |_stale| ());
    // No two of the frames are neighbours.
    let frames = [40, 30, 20];
    for (page, frame) in frames.into_iter().enumerate() {
        table.map(Pages::one(Vpn::new(page)), Pfn::new(frame), K4, Attr::READ).unwrap();
    }
    let pages = Pages::count(Vpn::new(0), 3).unwrap();

    let mut room = [None; 2];
    let mut runs = Runs::new(&mut room);
    assert_eq!(table.unmap(pages, Holes::Refuse, Some(&mut runs)), Err(Error::NoRoom));
    assert_eq!(runs.iter().count(), 0);
    for (page, frame) in frames.into_iter().enumerate() {
        assert_eq!(table.lookup(VirtAddr::new(page << 12)).unwrap().frame, Pfn::new(frame));
    }

    let mut room = [None; 3];
    let mut runs = Runs::new(&mut room);
    assert_eq!(table.unmap(pages, Holes::Refuse, Some(&mut runs)), Ok(3));
    assert!(runs.iter().eq(frames.map(|frame| run(frame, 1))));
    table.destroy();
}

/// Entries that differ in nothing but the frame are one run, in a visit and in an unmap. The frame behind the highest one is not
/// the lowest, though its entry with one attribute more is what the highest frame's grows to.
#[test]
fn neighbours_are_one_run_and_the_ends_of_memory_are_not() {
    const HIGHEST: usize = (1 << 40) - 1;
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Mpt::<Va48, X86, _>::new(&slab).unwrap(), |_stale| ());
    let dirty = Attr::READ | Attr::DIRTY;
    let mapped = [
        (0, HIGHEST, Attr::READ),
        (1, 0, Attr::READ | Attr::SOFT_2),
        (3, 7, dirty),
        (4, 8, dirty),
        (6, 9, dirty),
        (7, 10, Attr::READ),
        (8, 12, Attr::READ),
    ];
    for (page, frame, attr) in mapped {
        table.map(Pages::one(Vpn::new(page)), Pfn::new(frame), K4, attr).unwrap();
    }
    let pages = Pages::count(Vpn::new(0), 512).unwrap();

    let mut seen = Vec::new();
    // SAFETY: nothing changes during the visit.
    let flow = table.table().for_each_run(unsafe { Pinned::by(&table) }, pages, &mut |page, run| {
        seen.push((page.get(), run.first.get(), run.len, run.dirty));
        ControlFlow::Continue(())
    });
    let visited = [
        (0, HIGHEST, 1, false),
        (1, 0, 1, false),
        (3, 7, 2, true),
        (6, 9, 1, true),
        (7, 10, 1, false),
        (8, 12, 1, false),
    ];
    assert_eq!((flow, seen), (ControlFlow::Continue(()), visited.to_vec()));

    let mut room = [None; 7];
    let mut runs = Runs::new(&mut room);
    assert_eq!(table.unmap(pages, Holes::Skip, Some(&mut runs)), Ok(7));
    let written = Run { dirty: true, ..run(7, 4) };
    assert!(runs.iter().eq([run(HIGHEST, 1), run(0, 1), written, run(12, 1)]));
    table.destroy();
}
