//! Ranges that are taken out before their frames are known: where the frames wait.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
#[cfg(target_pointer_width = "64")]
use tlbkit_pagetable::format::X86;
use tlbkit_pagetable::format::{EntryLoCow, Format};
use tlbkit_pagetable::geometry::Va32;
#[cfg(target_pointer_width = "64")]
use tlbkit_pagetable::geometry::Va48;
use tlbkit_pagetable::mpt::{Detached, Mpt};
use tlbkit_pagetable::nodes::{Chunk, Nodes, Reclaim as _, Slab};
use tlbkit_pagetable::{Error, FlushAll, Holes, Mark, Radix, Shared, Table as _, Uncovered, Writer, destroy};

/// Releases what was detached, and returns the frames.
fn released<G: Radix, F: Format, N: Nodes<Word = F::Word>>(mut parts: Detached<'_, G, F, N>) -> Vec<Pfn> {
    let mut frames = Vec::new();
    let held = &mut |held| match held {
        Uncovered::Frames(run) => frames.extend(run.frames()),
        Uncovered::Mark(mark) => panic!("{mark:?}"),
    };
    // SAFETY: no walker is on another CPU, and no TLB.
    while !unsafe { parts.release(9, held) } {}
    frames
}

/// Takes pages out. Returns what holds them, and where the call stopped.
fn detach<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>>(
    writer: &mut Writer<'_, 'n, Mpt<'n, G, F, N>>,
    nodes: &'n N,
    pages: Pages,
    most: usize,
) -> (Detached<'n, G, F, N>, Option<Vpn>) {
    let mut parts = Detached::new(nodes);
    let stop = writer.detach(pages, most, &mut parts).unwrap();
    (parts, stop)
}

/// Two pages of 4 MiB.
fn two() -> Pages {
    Pages::count(Vpn::new(0), 2048).unwrap()
}

/// Larger pages of a format that has no bits for them wait in a short list, run by run, and the call ends when it is full.
#[test]
fn the_short_list_takes_a_bounded_number_of_runs() {
    let mut memory = vec![Chunk::ZERO; 32];
    let slab = Slab::<u32, Shared>::new(&mut memory, 0).unwrap();
    let table = Mpt::<Va32, EntryLoCow, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    writer.map(two(), Pfn::new(1024), PageSize::M4, Attr::READ).unwrap();
    let (parts, stop) = detach(&mut writer, &slab, two(), usize::MAX);
    assert_eq!(stop, None);
    assert!(released(parts).into_iter().eq((1024..3072).map(Pfn::new)));
    // No two of the frames are neighbours.
    let most = Detached::<Va32, EntryLoCow, Slab<'_, u32, Shared>>::LOOSE;
    let page = |number: usize| Pages::count(Vpn::new(1024 * number), 1024).unwrap();
    for number in 0..=most {
        writer.map(page(number), Pfn::new(2048 * number), PageSize::M4, Attr::READ).unwrap();
    }
    let all = Pages::new(Vpn::new(0), page(most).last()).unwrap();
    let (parts, stop) = detach(&mut writer, &slab, all, usize::MAX);
    assert_eq!(stop, Some(page(most).first()));
    let frames = (0..most).flat_map(|number| 2048 * number..2048 * number + 1024);
    assert!(released(parts).into_iter().eq(frames.map(Pfn::new)));
    assert_eq!(writer.unmap(all, Holes::Skip), Ok(1024));
    // SAFETY: no walker is on another CPU, and no TLB.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
}

/// Entries in which frames wait are left by an unmap and by a drain, and by a detachment of other pages; a detachment of their whole
/// node hands their frames over. So no frame is lost, and none comes twice.
#[test]
#[cfg(target_pointer_width = "64")]
fn a_frame_that_waits_is_handed_over_once() {
    let mut memory = vec![Chunk::ZERO; 32];
    let slab = Slab::<u64, Shared>::new(&mut memory, 0).unwrap();
    let table = Mpt::<Va48, X86, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    let some = |first: usize, count: usize| Pages::count(Vpn::new(first), count).unwrap();
    for whole in [false, true] {
        for page in 0..8 {
            writer.map(some(page, 1), Pfn::new(10 * page), PageSize::K4, Attr::READ).unwrap();
        }
        let (mut first, _) = detach(&mut writer, &slab, some(2, 2), 9);
        assert_eq!(first.nodes(), 0, "the frames wait in the entries");
        assert_eq!(writer.unmap(some(1, 4), Holes::Skip), Ok(2));
        assert_eq!(writer.drain(some(0, 6)).unwrap().count(), 2);
        let mut frames = Vec::new();
        if whole {
            let (second, _) = detach(&mut writer, &slab, some(0, 512), 9);
            assert!(second.nodes() > 0, "the node is out of the table");
            frames.extend(released(second));
        } else {
            frames.extend(released(detach(&mut writer, &slab, some(2, 5), 9).0));
        }
        let mut take = |held| {
            if let Uncovered::Frames(run) = held {
                frames.extend(run.frames());
            }
        };
        // SAFETY: no walker is on another CPU, and no TLB.
        unsafe { writer.clear_detached(some(0, 512), &mut first, &mut take) };
        frames.extend(released(first));
        frames.sort_unstable();
        // A page of the detachment that has left its node is still mapped in the first case.
        let wanted: &[usize] = if whole { &[20, 30, 60, 70] } else { &[20, 30, 60] };
        assert!(frames.into_iter().map(Pfn::get).eq(wanted.iter().copied()));
        assert_eq!(writer.unmap(some(0, 512), Holes::Skip), Ok(usize::from(!whole)));
        // SAFETY: as above.
        unsafe { writer.pending().unwrap().take().reclaim() };
        assert_eq!(table.footprint().nodes, 1);
    }
    // SAFETY: as above.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
    assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
}

/// A list that has been released in part takes more nodes: each frame comes once, and each node goes back once.
#[test]
#[cfg(target_pointer_width = "64")]
fn more_is_added_to_a_list_that_is_released_in_part() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u64, Shared>::new(&mut memory, 0).unwrap();
    let table = Mpt::<Va48, X86, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    // Two nodes of the last level below each of two that link them.
    let half = |of: usize| Pages::count(Vpn::new(of << 18), 1 << 18).unwrap();
    for (at, page) in [0, 1, 512, 1 << 18, (1 << 18) + 1, (1 << 18) + 512].into_iter().enumerate() {
        writer.map(Pages::one(Vpn::new(page)), Pfn::new(10 * at), PageSize::K4, Attr::READ).unwrap();
    }
    let mut frames = Vec::new();
    let mut take = |held| match held {
        Uncovered::Frames(run) => frames.extend(run.frames().map(Pfn::get)),
        Uncovered::Mark(mark) => panic!("{mark:?}"),
    };
    let mut parts = Detached::new(&slab);
    assert_eq!(writer.detach(half(0), usize::MAX, &mut parts), Ok(None));
    // SAFETY: no walker is on another CPU, and no TLB.
    assert!(!unsafe { parts.release(2, &mut take) }, "the first page of the first node");
    assert_eq!(writer.detach(half(1), usize::MAX, &mut parts), Ok(None));
    // SAFETY: as above.
    while !unsafe { parts.release(9, &mut take) } {}
    frames.sort_unstable();
    assert_eq!(frames, [0, 10, 20, 30, 40, 50]);
    // SAFETY: as above.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
    assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
}

/// A list takes only nodes of its storage.
#[cfg(target_pointer_width = "64")]
#[test]
fn a_list_for_another_storage_is_refused() {
    let (mut memory, mut elsewhere) = (vec![Chunk::ZERO; 32], vec![Chunk::ZERO; 32]);
    let slab = Slab::<u64, Shared>::new(&mut memory, 0).unwrap();
    let other = Slab::<u64, Shared>::new(&mut elsewhere, 0).unwrap();
    let table = Mpt::<Va48, X86, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    let page = Pages::one(Vpn::new(7));
    writer.map(page, Pfn::new(7), PageSize::K4, Attr::READ).unwrap();
    let mut parts = Detached::new(&other);
    assert_eq!(writer.detach(page, 9, &mut parts), Err(Error::OtherTable));
    assert_eq!((parts.nodes(), writer.unmap(page, Holes::Refuse)), (0, Ok(1)));
    // SAFETY: no walker is on another CPU, and no TLB.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
}

/// A part is bounded also where a node has one page, behind its empty slots.
#[cfg(target_pointer_width = "64")]
#[test]
fn empty_slots_count_in_a_part() {
    let mut memory = vec![Chunk::ZERO; 32];
    let slab = Slab::<u64, Shared>::new(&mut memory, 0).unwrap();
    let table = Mpt::<Va48, X86, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    let gib = 1 << 18;
    for node in 1..=8 {
        writer.map(Pages::one(Vpn::new(node * gib - 1)), Pfn::new(node), PageSize::K4, Attr::READ).unwrap();
    }
    let all = Pages::count(Vpn::new(0), 8 * gib).unwrap();
    // Two nodes and 512 loads for each page.
    let (detached, stop) = detach(&mut writer, &slab, all, 200);
    assert_eq!(stop, Some(Vpn::new(2 * gib)));
    drop(detached);
    // SAFETY: no walker is on another CPU, and no TLB.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
}

/// An entry in which a frame waits is in use: a change that would store over it is refused. Otherwise the count of slots in use would
/// grow with each round, until it wraps.
#[test]
#[cfg(target_pointer_width = "64")]
fn an_entry_in_which_a_frame_waits_is_not_vacant() {
    let mut memory = vec![Chunk::ZERO; 32];
    let slab = Slab::<u64, Shared>::new(&mut memory, 0).unwrap();
    let table = Mpt::<Va48, X86, _>::new(&slab).unwrap();
    let child = Mpt::<Va48, X86, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    let large = |slot: usize| Pages::count(Vpn::new(slot * 512), 512).unwrap();
    let small = |page: usize| Pages::one(Vpn::new(page));
    let (stays, goes) = (small(4096), small(4097));
    writer.map(large(0), Pfn::new(0), PageSize::M2, Attr::READ).unwrap();
    writer.map(large(1), Pfn::new(512), PageSize::M2, Attr::READ).unwrap();
    writer.map(stays, Pfn::new(5), PageSize::K4, Attr::READ).unwrap();
    writer.map(goes, Pfn::new(6), PageSize::K4, Attr::READ).unwrap();
    let mut parts = [large(1), goes].map(|pages| (pages, detach(&mut writer, &slab, pages, 9).0));
    let before = table.footprint();
    let waits = |pages: Pages| Error::Marked { at: pages.first().address(PageSize::K4) };
    for (pages, size) in [(large(1), PageSize::M2), (small(512), PageSize::K4), (goes, PageSize::K4)] {
        assert_eq!(writer.map(pages, Pfn::new(1024), size, Attr::READ), Err(waits(pages)));
        assert_eq!(writer.mark(pages.first().address(PageSize::K4), Some(Mark::Guard)), Err(waits(pages)));
    }
    // The child has a page in the place of a supervisor's, and beside it one that waits.
    let mut others = Writer::new(&child).unwrap();
    others.map(stays, Pfn::new(8), PageSize::K4, Attr::READ).unwrap();
    others.map(goes, Pfn::new(9), PageSize::K4, Attr::READ).unwrap();
    let (mut part, _) = detach(&mut others, &slab, goes, 9);
    assert_eq!(writer.copy_on_write(&mut others, |_| (), |_| ()), Err(waits(goes)));
    // SAFETY: no walker is on another CPU, and no TLB.
    unsafe { others.clear_detached(goes, &mut part, &mut |_| ()) };
    assert_eq!(table.footprint(), before);
    for (pages, detached) in &mut parts {
        let mut frames = 0;
        // SAFETY: no walker is on another CPU, and no TLB.
        unsafe {
            writer.clear_detached(*pages, detached, &mut |held| {
                if let Uncovered::Frames(run) = held {
                    frames += run.len;
                }
            });
        }
        assert_eq!(frames, pages.len());
    }
    assert_eq!(writer.map(large(1), Pfn::new(1024), PageSize::M2, Attr::READ), Ok(()));
    assert_eq!(writer.map(goes, Pfn::new(6), PageSize::K4, Attr::READ), Ok(()));
    drop(parts);
    // SAFETY: as above.
    unsafe {
        writer.finish().reclaim();
        others.finish().reclaim();
        destroy(table).reclaim();
        destroy(child).reclaim();
    }
    assert_eq!(slab.usage().nodes, 0);
}

/// Frames that wait in their entries are no other change's, and so outlive one that unwinds.
#[test]
#[cfg(target_pointer_width = "64")]
fn frames_that_wait_outlive_another_change_that_unwinds() {
    let some = |first: usize, count: usize| Pages::count(Vpn::new(first), count).unwrap();
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Slab::<u64, Shared>::new(&mut memory, 0).unwrap();
    let table = Mpt::<Va48, X86, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    let large = some(0x200, 0x200);
    writer.map(some(0, 20), Pfn::new(0x100), PageSize::K4, Attr::READ).unwrap();
    writer.map(large, Pfn::new(0x400), PageSize::K4, Attr::READ).unwrap();
    // The node stays, because some of its pages do.
    let (mut detached, _) = detach(&mut writer, &slab, some(4, 10), usize::MAX);
    let resized = catch_unwind(AssertUnwindSafe(|| {
        writer.resize(large, PageSize::M2, FlushAll::in_place(&mut |_| resume_unwind(Box::new(()))))
    }));
    assert!(resized.is_err());
    let mut frames = Vec::new();
    let mut take = |what| {
        if let Uncovered::Frames(run) = what {
            frames.extend(run.frames());
        }
    };
    // SAFETY: no walker is on another CPU, and no TLB.
    unsafe {
        writer.clear_detached(some(4, 10), &mut detached, &mut take);
        assert!(detached.release(usize::MAX, &mut take));
    }
    assert!(frames.into_iter().map(Pfn::get).eq(0x104..0x10e));
    assert_eq!(writer.unmap(some(0, 20), Holes::Skip), Ok(10));
    // SAFETY: as above.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
    assert_eq!((slab.usage().nodes, slab.held().lost()), (0, 0));
}
