//! The pages that `detach` hands to the caller's list at once: those of formats that have no bits for them in their entries.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::EntryLoCow;
#[cfg(target_pointer_width = "64")]
use tlbkit_pagetable::format::X86;
use tlbkit_pagetable::geometry::Va32;
#[cfg(target_pointer_width = "64")]
use tlbkit_pagetable::geometry::Va48;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Error, Frames, Held, Holes, Mark, Pinned, Shared, Table as _, Writer, destroy};

/// A list of base frames with room for those that were announced.
#[derive(Default)]
struct List {
    reserved: usize,
    frames: Vec<Pfn>,
    calls: usize,
    /// The call of `reserve` that panics.
    bad: Option<usize>,
}

impl Frames for List {
    fn reserve(&mut self, leaves: usize) -> Result<(), Error> {
        self.calls += 1;
        assert_ne!(Some(self.calls), self.bad, "the planned panic");
        self.reserved += leaves;
        Ok(())
    }

    fn push(&mut self, frame: Pfn, size: PageSize, base: PageSize, _: Attr) {
        assert_eq!(size, base);
        self.frames.push(frame);
        assert!(self.frames.len() <= self.reserved);
    }
}

/// Two pages of 4 MiB.
fn two() -> Pages {
    Pages::count(Vpn::new(0), 2048).unwrap()
}

#[test]
fn a_list_that_takes_no_runs_gets_as_many_pages_as_it_has_room_for() {
    let mut memory = vec![Chunk::ZERO; 32];
    let slab = Slab::<u32, Shared>::new(&mut memory, 0).unwrap();
    let table = Mpt::<Va32, EntryLoCow, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    writer.map(two(), Pfn::new(1024), PageSize::M4, Attr::READ).unwrap();
    let mut list = List::default();
    drop(writer.detach(two(), usize::MAX, &mut list).unwrap());
    assert!(list.frames.iter().copied().eq((1024..3072).map(Pfn::new)));
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
    let detached = writer.detach(all, 200, &mut List::default()).unwrap();
    assert_eq!(detached.stop(), Some(Vpn::new(2 * gib)));
    drop(detached);
    // SAFETY: no walker is on another CPU, and no TLB.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
}

/// The first page is out of the table when the second finds no room, in its own way: the obligation asks for a flush.
#[test]
fn a_list_that_unwinds_leaves_a_flush_and_a_table_that_works() {
    let mut memory = vec![Chunk::ZERO; 32];
    let slab = Slab::<u32, Shared>::new(&mut memory, 0).unwrap();
    let table = Mpt::<Va32, EntryLoCow, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    writer.map(two(), Pfn::new(1024), PageSize::M4, Attr::READ).unwrap();
    // SAFETY: as above.
    unsafe { writer.complete() };
    let mut list = List { bad: Some(2), ..List::default() };
    let caught = catch_unwind(AssertUnwindSafe(|| drop(writer.detach(two(), usize::MAX, &mut list))));
    assert!(caught.is_err());
    assert_eq!(list.frames.len(), 1024);
    assert!(writer.pending().is_some_and(|batch| batch.flush().is_all()));
    // SAFETY: this thread is in no walk of another table.
    let pinned = unsafe { Pinned::by(&slab) };
    let mapped = |at: usize| table.lookup(pinned, VirtAddr::new(at)).is_some();
    assert_eq!([mapped(0), mapped(0x40_0000)], [false, true]);
    assert_eq!(writer.unmap(two(), Holes::Skip, None), Ok(1024));
    // SAFETY: as above.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
    assert_eq!(slab.usage().nodes, 0);
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
    let mut parts =
        [large(1), goes].map(|pages| (pages, writer.detach(pages, 9, &mut List::default()).unwrap()));
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
    let mut part = others.detach(goes, 9, &mut List::default()).unwrap();
    assert_eq!(writer.copy_on_write(&mut others, |_| (), |_| ()), Err(waits(goes)));
    // SAFETY: no walker is on another CPU, and no TLB.
    unsafe { others.clear_detached(goes, &mut part, &mut |_| ()) };
    assert_eq!(table.footprint(), before);
    for (pages, detached) in &mut parts {
        let mut frames = 0;
        // SAFETY: no walker is on another CPU, and no TLB.
        unsafe {
            writer.clear_detached(*pages, detached, &mut |held| {
                if let Held::Frames(run) = held {
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
