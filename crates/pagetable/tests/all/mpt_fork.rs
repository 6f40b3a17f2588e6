//! A fork passes supervisor pages over: they keep their rights, and the child has what it had of them.
#![cfg(target_pointer_width = "64")]

use crate::common::numbers::Numbers;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Aarch64, Format, RiscvOf, Sv39, X86};
use tlbkit_pagetable::geometry::{Napot, Va39, Va48};
use tlbkit_pagetable::mpt::{Copying, Mpt};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{
    Error, FlushAll, Geometry as _, Holes, Leaf, Mark, Pinned, Radix, Shared, Table, Writer, destroy,
};

const K4: PageSize = PageSize::K4;
const KERNEL: Attr = Attr::READ.union(Attr::WRITE);
const USER: Attr = KERNEL.union(Attr::USER);
type Storage<'m> = Slab<'m, u64, Shared>;

/// Returns all leaves, by page.
fn leaves<'n>(table: &impl Table<'n>) -> BTreeMap<usize, Leaf> {
    let mut found = BTreeMap::new();
    for half in table.space().halves().into_iter().flatten() {
        // SAFETY: nothing is reclaimed meanwhile.
        let _ = table.for_each(unsafe { Pinned::by(table) }, half, &mut |leaf| {
            found.insert(leaf.at.get() >> 12, leaf);
            ControlFlow::Continue(())
        });
    }
    found
}

/// Forks tables of random leaves, of users and the kernel's, into a child that has copies of some of the kernel's.
fn forks<G: Radix, F: Format<Word = u64>>(seed: u64) {
    let mut memory = vec![Chunk::ZERO; 512];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let parent = Mpt::<G, F, _>::new(&slab).unwrap();
    let child = Mpt::<G, F, _>::new(&slab).unwrap();
    let (mut writer, mut born) = (Writer::new(&parent).unwrap(), Writer::new(&child).unwrap());
    // Nodes of users alone, of the kernel alone, and of both.
    for _ in 0..40 {
        let block = numbers.below(6);
        let size = G::SIZES[numbers.below(G::SIZES.len().min(3))];
        let count = size.pages(G::BASE).unwrap();
        let first = (block << 18 | numbers.below(4) << 9 | numbers.below(24)) & !(count - 1);
        let attr = match block % 3 {
            0 => USER,
            1 => KERNEL,
            _ => [USER, KERNEL][numbers.below(2)],
        };
        let frame = (1 << 20 | numbers.below(1 << 12)) & !(count - 1);
        let pages = Pages::count(Vpn::new(first), count).unwrap();
        // Some are in the way of others.
        let _ = writer.map(pages, Pfn::new(frame), size, attr);
    }
    let marked = VirtAddr::new((7 << 18 | 3) << 12);
    writer.mark(marked, Some(Mark::Payload(5, Attr::READ))).unwrap();
    let before = leaves(&parent);
    let supervisor = |leaf: &&Leaf| !leaf.attr.contains(Attr::USER);
    let copied: Vec<Leaf> =
        before.values().filter(supervisor).filter(|_| numbers.below(2) == 0).copied().collect();
    for leaf in &copied {
        let pages = parent.space().pages_of(leaf);
        let frame = Pfn::new(leaf.frame.get() + (1 << 21));
        born.map(pages, frame, leaf.size, leaf.attr).unwrap();
    }
    let copies = leaves(&child);
    let (mut shared, mut payloads) = (0, Vec::new());
    writer.copy_on_write(&mut born, |run| shared += run.len, |payload| payloads.push(payload)).unwrap();
    let (now, new) = (leaves(&parent), leaves(&child));
    let cow = Attr::READ | Attr::USER | Attr::COPY_ON_WRITE;
    let rights = |leaf: &Leaf| leaf.attr & (cow | Attr::WRITE);
    let mut users = 0;
    for (page, leaf) in &before {
        if leaf.attr.contains(Attr::USER) {
            users += leaf.size.pages(K4).unwrap();
            assert_eq!((rights(&now[page]), rights(&new[page])), (cow, cow));
            assert_eq!((now[page].frame, new[page].frame), (leaf.frame, leaf.frame));
            assert_eq!((now[page].size, new[page].size), (leaf.size, leaf.size));
        } else {
            assert_eq!((now[page], new.get(page)), (*leaf, copies.get(page)), "{seed}");
        }
    }
    assert_eq!(
        (now.len(), new.len()),
        (before.len(), before.len() - before.values().filter(supervisor).count() + copied.len())
    );
    assert_eq!((shared, payloads), (users, vec![5]));
    // SAFETY: no CPU walks the child.
    unsafe { born.finish().reclaim() };
    // Each node of the child has an entry: those that are left when its pages are mapped one by one.
    let fresh = Mpt::<G, F, _>::new(&slab).unwrap();
    let mut again = Writer::new(&fresh).unwrap();
    for leaf in new.values() {
        again.map(parent.space().pages_of(leaf), leaf.frame, leaf.size, KERNEL).unwrap();
    }
    again.mark(marked, Some(Mark::Guard)).unwrap();
    assert_eq!(child.footprint(), fresh.footprint(), "{seed}");
    for batch in [again.finish(), writer.finish(), destroy(fresh), destroy(child), destroy(parent)] {
        // SAFETY: no CPU walks the tables now.
        unsafe { batch.reclaim() };
    }
    assert_eq!(slab.usage().nodes, 0);
}

#[test]
fn supervisor_pages_keep_their_rights_and_are_not_copied() {
    for seed in 0..if cfg!(miri) { 3 } else { 200 } {
        forks::<Va39, Sv39>(seed);
        forks::<Napot<Va39>, RiscvOf<true, true, false>>(seed);
        forks::<Va48, X86>(seed);
        forks::<Va48, Aarch64>(seed);
    }
}

/// The child may have nothing where the parent has a user's page, or nothing, or a page of another size.
#[test]
fn a_child_has_room_for_the_users_pages() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let parent = Mpt::<Va39, Sv39, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&parent).unwrap();
    let large = Pages::count(Vpn::new(512), 512).unwrap();
    writer.map(Pages::one(Vpn::new(1)), Pfn::new(7), K4, USER).unwrap();
    writer.map(Pages::one(Vpn::new(2)), Pfn::new(8), K4, KERNEL).unwrap();
    writer.map(large, Pfn::new(512), PageSize::M2, KERNEL).unwrap();
    let before = leaves(&parent);
    for page in [1, 3, 700, 1 << 18] {
        let child = Mpt::<Va39, Sv39, _>::new(&slab).unwrap();
        let mut born = Writer::new(&child).unwrap();
        born.map(Pages::one(Vpn::new(2)), Pfn::new(9), K4, KERNEL).unwrap();
        let at = VirtAddr::new(page << 12);
        let taken = if page == 3 {
            born.mark(at, Some(Mark::Guard)).unwrap();
            Error::Marked { at }
        } else {
            born.map(Pages::one(Vpn::new(page)), Pfn::new(9), K4, KERNEL).unwrap();
            Error::Occupied { at, size: K4 }
        };
        let nodes = slab.usage().nodes;
        let done = writer.copy_on_write(&mut born, |_| panic!("it is shared"), |_| ());
        assert_eq!((done, leaves(&parent), slab.usage().nodes), (Err(taken), before.clone(), nodes));
        for batch in [born.finish(), destroy(child)] {
            // SAFETY: no CPU walks the table now.
            unsafe { batch.reclaim() };
        }
    }
    // SAFETY: no CPU walks the table now.
    unsafe { writer.finish().reclaim() };
    // SAFETY: no CPU walks the table now.
    unsafe { destroy(parent).reclaim() };
    assert_eq!(slab.usage().nodes, 0);
}

/// Copies all that is left.
fn finish<'n, G: Radix, F: Format<Word = u64>>(
    writer: &mut Writer<'_, 'n, Mpt<'n, G, F, Storage<'n>>>,
    born: &mut Writer<'_, 'n, Mpt<'n, G, F, Storage<'n>>>,
    copying: &mut Copying<'n, G, F, Storage<'n>>,
) {
    while writer.copy_part(born, copying, 1, |_| (), |_| ()).unwrap().is_some() {}
}

/// The nodes that a copy has taken belong to one storage, and no other gets them.
#[test]
fn a_part_for_a_child_of_another_storage_is_refused() {
    let (mut memory, mut foreign) = (vec![Chunk::ZERO; 64], vec![Chunk::ZERO; 64]);
    let (slab, other) =
        (Storage::new(&mut memory, 0).unwrap(), Storage::new(&mut foreign, 64 * 4096).unwrap());
    let tables = [&slab, &slab, &other].map(|slab| Mpt::<Va39, Sv39, _>::new(slab).unwrap());
    let [parent, child, strange] = &tables;
    let [mut writer, mut born, mut stranger] =
        [parent, child, strange].map(|table| Writer::new(table).unwrap());
    for page in [1, 3, 600, 1 << 18] {
        writer.map(Pages::one(Vpn::new(page)), Pfn::new(page), K4, USER).unwrap();
    }
    writer.mark(VirtAddr::new(9 << 12), Some(Mark::Payload(5, Attr::READ))).unwrap();
    let mut copying = writer.begin_copy(&mut born).unwrap();
    assert_eq!(copying.reserve(usize::MAX), Ok(true));
    // Before the first part, and before a later one.
    for part in 0..2 {
        let state = || (tables.each_ref().map(leaves), slab.usage().nodes, other.usage().nodes);
        let before = state();
        let done = writer.copy_part(
            &mut stranger,
            &mut copying,
            1,
            |_| panic!("it is shared"),
            |_| panic!("it is shared"),
        );
        assert_eq!(done, Err(Error::NoMemory { wanted: 1, pending: 0 }));
        assert_eq!(state(), before);
        // The pages of a last-level node are copied at once.
        assert_eq!(before.0[1].len(), 2 * part);
        let next = writer.copy_part(&mut born, &mut copying, 1, |_| (), |_| ()).unwrap();
        assert!(next.is_some());
    }
    finish(&mut writer, &mut born, &mut copying);
    assert_eq!((leaves(child), leaves(strange).len()), (leaves(parent), 0));
    drop(copying);
    for batch in [writer.finish(), born.finish(), stranger.finish()].into_iter().chain(tables.map(destroy)) {
        // SAFETY: no CPU walks the tables now.
        unsafe { batch.reclaim() };
    }
    assert_eq!((slab.usage().nodes, other.usage().nodes), (0, 0));
}

/// A part is bounded also where a node has one page, behind its empty slots: four of these count as an entry.
#[test]
fn empty_slots_count_in_a_part() {
    let mut memory = vec![Chunk::ZERO; 128];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let tables = [(); 2].map(|()| Mpt::<Va39, Sv39, _>::new(&slab).unwrap());
    let [parent, child] = &tables;
    let [mut writer, mut born] = [parent, child].map(|table| Writer::new(table).unwrap());
    for node in 1..=24 {
        writer.map(Pages::one(Vpn::new(node * 512 - 1)), Pfn::new(node), K4, USER).unwrap();
    }
    let mut copying = writer.begin_copy(&mut born).unwrap();
    assert_eq!(copying.reserve(usize::MAX), Ok(true));
    let mut parts = 1;
    while writer.copy_part(&mut born, &mut copying, 256, |_| (), |_| ()).unwrap().is_some() {
        parts += 1;
    }
    assert_eq!(parts, 12, "of two nodes each");
    assert_eq!(leaves(child), leaves(parent));
    drop(copying);
    for batch in [writer.finish(), born.finish()].into_iter().chain(tables.map(destroy)) {
        // SAFETY: no CPU walks the tables now.
        unsafe { batch.reclaim() };
    }
}

/// Maps pages of `size`, copies one, and puts a page of `larger` in their place: the next part would begin inside it.
fn begins_inside<G: Radix, F: Format<Word = u64>>(size: PageSize, larger: PageSize) {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let tables = [(); 2].map(|()| Mpt::<G, F, _>::new(&slab).unwrap());
    let [parent, child] = &tables;
    let [mut writer, mut born] = [parent, child].map(|table| Writer::new(table).unwrap());
    let (each, all) =
        (size.pages(K4).unwrap(), Pages::count(Vpn::new(0), larger.pages(K4).unwrap()).unwrap());
    // Neighbouring pages with neighbouring frames would be copied as one.
    for page in (0..all.len()).step_by(each) {
        let pages = Pages::count(Vpn::new(page), each).unwrap();
        writer.map(pages, Pfn::new(2 * page), size, USER).unwrap();
    }
    let mut copying = writer.begin_copy(&mut born).unwrap();
    assert_eq!(copying.reserve(usize::MAX), Ok(true));
    let next = writer.copy_part(&mut born, &mut copying, 1, |_| (), |_| ());
    assert_eq!(next, Ok(Some(Vpn::new(each))));
    assert_eq!(writer.unmap(all, Holes::Refuse), Ok(all.len()));
    let frame = Pfn::new(4 * all.len());
    writer.map(all, frame, larger, USER).unwrap();

    let state =
        || (tables.each_ref().map(leaves), tables.each_ref().map(Table::footprint), slab.usage().nodes);
    let before = state();
    let refused = writer.copy_part(&mut born, &mut copying, 1, |_| panic!("it is shared"), |_| ());
    assert_eq!(refused, Err(Error::Partial { at: VirtAddr::new(0), size: larger }));
    assert_eq!(state(), before);

    // After a split the copy goes on where it was.
    writer.resize(all, size, FlushAll::in_place(&mut |_| ())).unwrap();
    finish(&mut writer, &mut born, &mut copying);
    let (old, new) = (leaves(parent), leaves(child));
    assert!(old.keys().eq(new.keys()));
    for (&page, leaf) in &new {
        let first = if page == 0 { 0 } else { frame.get() };
        assert_eq!(leaf.frame.get(), first + page);
        // The page before the part has been mapped since, and is not the copy's.
        assert_eq!(old[&page].attr.contains(Attr::COPY_ON_WRITE), page != 0);
    }
    drop(copying);
    for batch in [writer.finish(), born.finish()].into_iter().chain(tables.map(destroy)) {
        // SAFETY: no CPU walks the tables now.
        unsafe { batch.reclaim() };
    }
    assert_eq!(slab.usage().nodes, 0);
}

#[test]
fn a_part_that_begins_inside_a_leaf_is_refused() {
    begins_inside::<Va39, Sv39>(PageSize::M2, Va39::SIZES[2]);
    begins_inside::<Napot<Va39>, RiscvOf<true, true, false>>(K4, PageSize::K64);
}

/// The child borrows pages, and the table maps one there while the copy is under way: the child cannot have it.
#[test]
fn a_part_where_the_child_borrows_is_refused() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let mut kernel = Mpt::<Va39, Sv39, _>::new(&slab).unwrap();
    let at = VirtAddr::new(0xffff_ffc0_0000_5000);
    // A top-level slot.
    kernel.lend([Pages::count(VirtAddr::new(0xffff_ffc0_0000_0000).vpn(K4), 1 << 18).unwrap()]).unwrap();
    let child = Mpt::sharing(&kernel).unwrap();
    let parent = Mpt::<Va39, Sv39, _>::new(&slab).unwrap();
    let (mut writer, mut born) = (Writer::new(&parent).unwrap(), Writer::new(&child).unwrap());
    let mut copying = writer.begin_copy(&mut born).unwrap();
    assert_eq!(copying.reserve(usize::MAX), Ok(true));
    writer.map(Pages::one(at.vpn(K4)), Pfn::new(7), K4, USER).unwrap();
    let refused = writer.copy_part(&mut born, &mut copying, usize::MAX, |_| panic!("it is shared"), |_| ());
    assert!(matches!(refused, Err(Error::Borrowed { .. })), "{refused:?}");
    drop(copying);
    for batch in [writer.finish(), born.finish(), destroy(parent), destroy(child)] {
        // SAFETY: no CPU walks the tables now.
        unsafe { batch.reclaim() };
    }
    // SAFETY: no CPU walks the table now.
    unsafe { destroy(kernel).reclaim() };
}
