//! A kernel half that every address space shares.
#![cfg(target_pointer_width = "64")]

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{Aarch64, Compact, Compact32, Format, RiscvOf, Sv39, X86};
use tlbkit_pagetable::geometry::{Va32, Va39, Va48, Va57};
use tlbkit_pagetable::mpt::{Mpt, Mpt4};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{
    Change, Entry, Error, FlushAll, Holes, Leaf, PageCursor as _, PageRanges, Pinned, Radix, Shared, Solo,
    Table, Writer, destroy,
};

const K4: PageSize = PageSize::K4;
const RW: Attr = Attr::READ.union(Attr::WRITE);

type Storage<'m> = Slab<'m, u64, Shared>;
type Tree<'n, 'm> = Mpt4<'n, Storage<'m>>;

/// The last two slots of the root: one tebibyte at the top.
fn kernel_half() -> Pages {
    let top = usize::MAX >> 12;
    Pages::new(Vpn::new(top - ((1 << 28) - 1)), Vpn::new(top)).unwrap()
}

fn look<'n>(table: &impl Table<'n>, at: usize) -> Option<Leaf> {
    // SAFETY: no CPU reclaims during these lookups.
    table.lookup(unsafe { Pinned::by(&at) }, VirtAddr::new(at))
}

fn map(table: &Tree<'_, '_>, at: usize, frame: usize) -> Result<(), Error> {
    let mut writer = Writer::new(table)?;
    let done = writer.map(Pages::one(VirtAddr::new(at).vpn(K4)), Pfn::new(frame), K4, RW);
    // SAFETY: no CPU walks the table now.
    unsafe { writer.finish().reclaim() };
    done
}

fn unmap(table: &Tree<'_, '_>, at: usize) {
    let mut writer = Writer::new(table).unwrap();
    writer.unmap(Pages::one(VirtAddr::new(at).vpn(K4)), Holes::Refuse).unwrap();
    // SAFETY: no CPU walks the table now.
    unsafe { writer.finish().reclaim() };
}

fn take_apart(table: Tree<'_, '_>) {
    // SAFETY: no CPU walks the table now.
    unsafe { destroy(table).reclaim() };
}

const HIGH: usize = 0xffff_ff80_0000_0000;
const HIGHER: usize = 0xffff_ffff_ffff_f000;

#[test]
fn borrowers_see_what_the_lender_maps_later() {
    let mut memory = vec![Chunk::ZERO; 32];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let mut kernel = Tree::new(&slab).unwrap();
    map(&kernel, HIGH, 1).unwrap();
    kernel.lend([kernel_half()]).unwrap();
    let with_kernel = slab.usage().nodes;

    let user = Tree::sharing(&kernel).unwrap();
    let other = Tree::sharing(&kernel).unwrap();
    assert_eq!(slab.usage().nodes, with_kernel + 2, "a borrower is its root");
    assert_eq!(look(&user, HIGH).unwrap().frame, Pfn::new(1));

    // Later, and in a slot that was empty when it was lent.
    map(&kernel, HIGHER, 2).unwrap();
    map(&user, 0x1000, 3).unwrap();
    for table in [&user, &other] {
        assert_eq!(look(table, HIGHER).unwrap().frame, Pfn::new(2));
    }
    assert_eq!(look(&other, 0x1000), None);

    // Emptied slots stay lent.
    let mut writer = Writer::new(&kernel).unwrap();
    writer.unmap(kernel_half(), Holes::Skip).unwrap();
    // SAFETY: no CPU walks the table now.
    unsafe { writer.finish().reclaim() };
    assert_eq!(look(&user, HIGH), None);
    map(&kernel, HIGH, 4).unwrap();
    assert_eq!(look(&user, HIGH).unwrap().frame, Pfn::new(4));

    take_apart(user);
    assert_eq!(look(&other, HIGH).unwrap().frame, Pfn::new(4), "taking a borrower apart leaves what is lent");
    take_apart(other);
    assert_eq!(look(&kernel, HIGH).unwrap().frame, Pfn::new(4));
    take_apart(kernel);
    assert_eq!((slab.usage().nodes, slab_lost(&slab)), (0, 0));
}

fn slab_lost(slab: &Storage<'_>) -> usize {
    use tlbkit_pagetable::nodes::Reclaim;
    slab.held().lost()
}

#[test]
fn a_borrower_cannot_change_what_it_borrows() {
    let mut memory = vec![Chunk::ZERO; 32];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let mut kernel = Tree::new(&slab).unwrap();
    kernel.lend([kernel_half()]).unwrap();
    map(&kernel, HIGH, 1).unwrap();
    let user = Tree::sharing(&kernel).unwrap();

    let borrowed = Error::Borrowed { at: VirtAddr::new(HIGH) };
    assert_eq!(map(&user, HIGH, 9), Err(borrowed));
    let mut writer = Writer::new(&user).unwrap();
    let page = Pages::one(VirtAddr::new(HIGH).vpn(K4));
    assert_eq!(writer.unmap(page, Holes::Refuse), Err(borrowed));
    assert_eq!(writer.protect(page, Holes::Refuse, Change::clear(Attr::WRITE)), Err(borrowed));
    let large = Pages::count(page.first(), 512).unwrap();
    assert_eq!(writer.resize(large, PageSize::M2, FlushAll::in_place(&mut |_| ())), Err(borrowed));
    // A range that only reaches into the borrowed part names where that begins.
    let mixed = Pages::new(Vpn::new(kernel_half().first().get() - 1), page.last()).unwrap();
    let at = kernel_half().first().address(K4);
    assert_eq!(writer.unmap(mixed, Holes::Skip), Err(Error::Borrowed { at }));
    let batch = writer.finish();
    assert!(batch.is_empty());
    drop(batch);

    assert_eq!(look(&user, HIGH).unwrap().attr, RW);
    take_apart(user);
    take_apart(kernel);
    assert_eq!(slab.usage().nodes, 0);
}

/// The lender frees nodes when no CPU is in a walk, and a cursor of a borrower is in none.
#[test]
fn a_borrowers_cursor_keeps_no_way_into_the_lenders_nodes() {
    let mut memory = vec![Chunk::ZERO; 32];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let mut kernel = Tree::new(&slab).unwrap();
    kernel.lend([kernel_half()]).unwrap();
    map(&kernel, HIGHER, 2).unwrap();
    let (user, other) = (Tree::sharing(&kernel).unwrap(), Tree::sharing(&kernel).unwrap());
    map(&user, 0x1000, 3).unwrap();
    let (page, own) = (VirtAddr::new(HIGH).vpn(K4), VirtAddr::new(0x1000));
    let borrowed = Error::Borrowed { at: VirtAddr::new(HIGH) };
    let mut writer = Writer::new(&user).unwrap();
    macro_rules! check {
        ($cursor:ident) => {
            map(&kernel, HIGH, 1).unwrap();
            let mut cursor = writer.$cursor(page).unwrap();
            assert_eq!((cursor.look(), cursor.entry()), (None, Entry::Empty));
            // The nodes that mapped the page become another table's.
            unmap(&kernel, HIGH);
            map(&other, 0, 9).unwrap();
            assert_eq!((cursor.look(), cursor.entry()), (None, Entry::Empty));
            assert_eq!(cursor.map(Pfn::new(4), RW), Err(borrowed));
            assert_eq!(cursor.fill(0, Pfn::new(4)), Err(borrowed));
            assert_eq!(cursor.mark(None), Err(borrowed));
            assert_eq!(cursor.protect(Change::clear(Attr::WRITE)), Err(borrowed));
            assert_eq!(cursor.unmap(), Err(borrowed));
            assert_eq!(cursor.next_mapped(VirtAddr::new(HIGHER).vpn(K4)), None);
            unmap(&other, 0);
            // The lender's pages are passed over.
            cursor.seek(Vpn::new(0)).unwrap();
            let next = cursor.next_mapped(VirtAddr::new(HIGHER).vpn(K4));
            assert_eq!(next.map(|leaf| leaf.at), Some(own));
            assert_eq!(cursor.next_mapped(VirtAddr::new(HIGHER).vpn(K4)), None);
        };
    }
    check!(cursor);
    check!(any_cursor);
    assert_eq!(writer.fill(VirtAddr::new(HIGH), 0, Pfn::new(4)), Err(borrowed));
    drop(writer);
    take_apart(user);
    take_apart(other);
    take_apart(kernel);
    assert_eq!(slab.usage().nodes, 0);
}

#[test]
fn only_whole_slots_without_large_pages_can_be_lent_and_once() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let mut kernel = Tree::new(&slab).unwrap();
    let page = Pages::one(VirtAddr::new(HIGH).vpn(K4));
    assert!(matches!(kernel.lend([page]), Err(Error::Misaligned { .. })));
    assert_eq!(slab.usage().nodes, 1);
    kernel.lend([kernel_half()]).unwrap();
    assert_eq!(kernel.lend([kernel_half()]), Err(Error::Busy));
    take_apart(kernel);
    assert_eq!(slab.usage().nodes, 0);
}

#[test]
fn lending_without_memory_changes_nothing() {
    // One chunk of descriptors, the root, and one node of the two that are needed.
    let mut memory = vec![Chunk::ZERO; 3];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let mut kernel = Tree::new(&slab).unwrap();
    assert_eq!(kernel.lend([kernel_half()]), Err(Error::NoMemory { wanted: 2, pending: 0 }));
    assert_eq!((slab.usage().nodes, kernel.footprint().nodes), (1, 1));
    take_apart(kernel);
}

/// A page as large as a slot of the root would take the place of a link that borrowers have copied.
#[test]
fn no_page_takes_a_lent_links_place() {
    fn check<G: Radix, F: Format>(first: usize, small: u32, larger: &[u32]) {
        let size = |shift| PageSize::from_shift(shift).unwrap();
        let mut memory = vec![Chunk::ZERO; 32];
        let slab = Slab::<F::Word, Solo>::new(&mut memory, 0).unwrap();
        let mut kernel = Mpt::<G, F, _>::new(&slab).unwrap();
        let at = VirtAddr::new(first);
        let largest = size(*larger.last().unwrap());
        let pages = Pages::count(at.vpn(K4), largest.bytes() >> 12).unwrap();
        kernel.lend([pages]).unwrap();
        let user = Mpt::sharing(&kernel).unwrap();
        let lent = slab.usage().nodes;
        let frame = Pfn::new(1 << 18);
        let mut writer = Writer::new(&kernel).unwrap();
        // While there is nothing, and while there is what could be promoted.
        for mapped in [false, true] {
            if mapped {
                writer.map(pages, frame, size(small), RW).unwrap();
            }
            for &shift in larger {
                let to = size(shift);
                let pages = Pages::count(pages.first(), to.bytes() >> 12).unwrap();
                let refused = Err(Error::WrongSize { size: to });
                assert_eq!(writer.resize(pages, to, FlushAll::in_place(&mut |_| ())), refused);
                if !mapped {
                    assert_eq!(writer.map(pages, frame, to, RW), refused);
                }
            }
        }
        let batch = writer.finish();
        assert_eq!((batch.nodes(), slab.usage().nodes), (0, lent));
        drop(batch);
        assert_eq!(look(&user, first).unwrap().frame, frame);
    }
    check::<Va39, Compact>(0xffff_ffc0_0000_0000, 21, &[30]);
    check::<Va32, Compact32>(0xc000_0000, 14, &[22, 24]);
}

/// Forks a table into a child that borrows the upper half from `kernel`. The parent maps a page at the bottom, and one at the
/// top if it does `clash`.
fn forks<'n>(
    slab: &'n Storage<'_>,
    parent: Mpt<'n, Va39, Sv39, Storage<'_>>,
    kernel: &'n Mpt<'n, Va39, Sv39, Storage<'_>>,
    clash: bool,
) {
    let child = Mpt::sharing(kernel).unwrap();
    let mut writer = Writer::new(&parent).unwrap();
    let page = |at: usize| Pages::one(VirtAddr::new(at).vpn(K4));
    writer.map(page(0x1000), Pfn::new(7), K4, RW | Attr::USER).unwrap();
    if clash {
        writer.map(page(HIGHER), Pfn::new(8), K4, RW).unwrap();
    }
    let mut born = Writer::new(&child).unwrap();
    let (nodes, before) = (slab.usage().nodes, (parent.footprint(), child.footprint()));
    let forked = writer.copy_on_write(&mut born, |_| (), |_| ());
    if clash {
        assert!(matches!(forked, Err(Error::Borrowed { .. })), "{forked:?}");
        assert_eq!((slab.usage().nodes, (parent.footprint(), child.footprint())), (nodes, before));
        assert_eq!(look(&parent, 0x1000).unwrap().attr, RW | Attr::USER);
    } else {
        forked.unwrap();
        let copied = Attr::READ | Attr::USER | Attr::COPY_ON_WRITE;
        assert_eq!(look(&child, 0x1000).unwrap().attr, copied);
    }
    // The kernel's page is there as it was.
    let seen = look(&child, HIGHER).unwrap();
    assert_eq!((seen.frame, seen.attr), (Pfn::new(1), RW));
    for batch in [writer.finish(), born.finish(), destroy(child), destroy(parent)] {
        // SAFETY: no CPU walks the table now.
        unsafe { batch.reclaim() };
    }
}

#[test]
fn a_fork_leaves_alone_what_the_child_borrows() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let mut kernel = Mpt::<Va39, Sv39, _>::new(&slab).unwrap();
    let top = usize::MAX >> 12;
    let half = Pages::new(Vpn::new(top - ((1 << 18) - 1)), Vpn::new(top)).unwrap();
    let mut writer = Writer::new(&kernel).unwrap();
    writer.map(Pages::one(VirtAddr::new(HIGHER).vpn(K4)), Pfn::new(1), K4, RW).unwrap();
    // SAFETY: no CPU walks the table now.
    unsafe { writer.finish().reclaim() };
    kernel.lend([half]).unwrap();
    let out = slab.usage().nodes;
    // A parent that borrows the same, one that borrows nothing, and one that has pages of its own there.
    forks(&slab, Mpt::sharing(&kernel).unwrap(), &kernel, false);
    forks(&slab, Mpt::new(&slab).unwrap(), &kernel, false);
    forks(&slab, Mpt::new(&slab).unwrap(), &kernel, true);
    assert_eq!(slab.usage().nodes, out);

    // The lender itself: what it lends is the child's already.
    let child = Mpt::sharing(&kernel).unwrap();
    let (mut writer, mut born) = (Writer::new(&kernel).unwrap(), Writer::new(&child).unwrap());
    writer.copy_on_write(&mut born, |_| (), |_| ()).unwrap();
    for table in [&kernel, &child] {
        assert_eq!(look(table, HIGHER).unwrap().attr, RW);
    }
    for batch in [writer.finish(), born.finish(), destroy(child)] {
        // SAFETY: no CPU walks the table now.
        unsafe { batch.reclaim() };
    }
    assert_eq!(slab.usage().nodes, out);
}

/// Nodes of two storages may have the same address, and parent and child may borrow the same pages from two tables: then the
/// child would have other pages than the parent.
#[test]
fn a_fork_knows_whose_pages_the_child_borrows() {
    let mut memory = [vec![Chunk::ZERO; 32], vec![Chunk::ZERO; 32]];
    let [one, other] = memory.each_mut().map(|memory| Storage::new(memory, 0).unwrap());
    let slot = Pages::count(Vpn::new(0), 1 << 18).unwrap();
    let lending = |slab| {
        let mut table = Mpt::<Va39, Sv39, _>::new(slab).unwrap();
        table.lend([slot]).unwrap();
        table
    };
    let (lender, stranger) = (lending(&one), lending(&one));
    let parent = Mpt::<Va39, Sv39, _>::new(&other).unwrap();
    let mut writer = Writer::new(&parent).unwrap();
    writer.map(Pages::one(Vpn::new(5)), Pfn::new(7), K4, RW).unwrap();
    let child = Mpt::sharing(&lender).unwrap();
    let mut born = Writer::new(&child).unwrap();
    let refused = Err(Error::Borrowed { at: VirtAddr::new(0) });
    assert_eq!(writer.copy_on_write(&mut born, |_| (), |_| ()), refused, "the node of another storage");
    let borrows = Mpt::sharing(&stranger).unwrap();
    let mut second = Writer::new(&borrows).unwrap();
    assert_eq!(second.copy_on_write(&mut born, |_| (), |_| ()), refused, "another lender");
    for batch in [writer.finish(), born.finish(), second.finish()] {
        // SAFETY: no CPU walks the tables now.
        unsafe { batch.reclaim() };
    }
    for batch in [destroy(parent), destroy(child), destroy(borrows)] {
        // SAFETY: no CPU walks the tables now.
        unsafe { batch.reclaim() };
    }
    for batch in [destroy(lender), destroy(stranger)] {
        // SAFETY: no CPU walks the tables now, and no table borrows from them.
        unsafe { batch.reclaim() };
    }
    assert_eq!([one.usage().nodes, other.usage().nodes], [0, 0]);
}

/// What a child that is not empty has of its own, at its address, and not what it borrows below that.
#[test]
fn a_fork_names_what_the_child_has_of_its_own() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let mut kernel = Mpt::<Va39, Sv39, _>::new(&slab).unwrap();
    // A top-level slot of the upper half, below the last one.
    let slot = Pages::count(Vpn::new(kernel_half().last().get() - ((4 << 18) - 1)), 1 << 18).unwrap();
    let mut writer = Writer::new(&kernel).unwrap();
    writer.map(Pages::one(slot.first()), Pfn::new(1), K4, RW).unwrap();
    // SAFETY: no CPU walks the table now.
    unsafe { writer.finish().reclaim() };
    kernel.lend([slot]).unwrap();
    let parent = Mpt::<Va39, Sv39, _>::new(&slab).unwrap();
    let child = Mpt::sharing(&kernel).unwrap();
    let mut born = Writer::new(&child).unwrap();
    born.map(Pages::one(VirtAddr::new(HIGHER).vpn(K4)), Pfn::new(2), K4, RW).unwrap();
    let mut writer = Writer::new(&parent).unwrap();
    let done = writer.copy_on_write(&mut born, |_| (), |_| ());
    assert_eq!(done, Err(Error::Occupied { at: VirtAddr::new(HIGHER), size: K4 }));
    for batch in [writer.finish(), born.finish(), destroy(parent), destroy(child)] {
        // SAFETY: no CPU walks the tables now.
        unsafe { batch.reclaim() };
    }
    // SAFETY: no CPU walks the table now.
    unsafe { destroy(kernel).reclaim() };
    assert_eq!(slab.usage().nodes, 0);
}

/// The word that leads to the last frame, plus a step, is that of frame 0 with another attribute.
#[test]
fn a_run_of_shared_frames_ends_with_the_last_frame() {
    for (size, rights) in [(K4, RW), (K4, Attr::READ), (PageSize::M2, RW)] {
        let rights = rights | Attr::USER;
        let mut memory = vec![Chunk::ZERO; 16];
        let slab = Storage::new(&mut memory, 0).unwrap();
        let parent = Mpt::<Va48, X86, _>::new(&slab).unwrap();
        let child = Mpt::<Va48, X86, _>::new(&slab).unwrap();
        let mut writer = Writer::new(&parent).unwrap();
        let count = size.bytes() >> 12;
        let last = (1 << 40) - count;
        let carried = rights | Attr::SOFT_2;
        for (at, (frame, attr)) in
            [(last - count, rights), (last, rights), (0, carried), (count, carried)].into_iter().enumerate()
        {
            let pages = Pages::count(Vpn::new((at + 4) * count), count).unwrap();
            writer.map(pages, Pfn::new(frame), size, attr).unwrap();
        }
        let mut born = Writer::new(&child).unwrap();
        let mut shared = Vec::new();
        writer.copy_on_write(&mut born, |run| shared.push((run.first.get(), run.len)), |_| ()).unwrap();
        assert_eq!(shared, [(last - count, 2 * count), (0, 2 * count)], "{size:?} {rights:?}");
        for at in 4..8 {
            let at = at * size.bytes();
            assert_eq!(look(&child, at).unwrap().frame, look(&parent, at).unwrap().frame);
        }
        for batch in [writer.finish(), born.finish(), destroy(child), destroy(parent)] {
            // SAFETY: no CPU walks the table now.
            unsafe { batch.reclaim() };
        }
    }
}

/// Pages of devices and uncached ones keep their rights in both tables, other pages do not.
fn forks_devices<G: Radix, F: Format<Word = u64>>(attr: Attr) {
    let mut memory = vec![Chunk::ZERO; 32];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let parent = Mpt::<G, F, _>::new(&slab).unwrap();
    let child = Mpt::<G, F, _>::new(&slab).unwrap();
    let mut writer = Writer::new(&parent).unwrap();
    for (at, size, attr) in [
        (0x1000, K4, RW | attr),
        (0x2000, K4, RW),
        (1 << 21, PageSize::M2, RW | attr),
        (2 << 21, PageSize::M2, RW),
    ] {
        let count = size.bytes() >> 12;
        let pages = Pages::count(VirtAddr::new(at).vpn(K4), count).unwrap();
        writer.map(pages, Pfn::new(at >> 12), size, attr | Attr::USER).unwrap();
    }
    let mut born = Writer::new(&child).unwrap();
    writer.copy_on_write(&mut born, |_| (), |_| ()).unwrap();
    let rights = RW | Attr::COPY_ON_WRITE;
    for table in [&parent, &child] {
        for (at, kept) in [(0x1000, true), (0x2000, false), (1 << 21, true), (2 << 21, false)] {
            let seen = look(table, at).unwrap().attr;
            let wanted = if kept { RW } else { Attr::READ | Attr::COPY_ON_WRITE };
            assert_eq!(seen & rights, wanted, "{at:#x}, {attr:?}: {seen:?}");
            assert_eq!(seen.contains(attr), kept);
        }
    }
    for batch in [writer.finish(), born.finish(), destroy(child), destroy(parent)] {
        // SAFETY: no CPU walks the table now.
        unsafe { batch.reclaim() };
    }
}

#[test]
fn a_fork_leaves_devices_their_rights() {
    for attr in [Attr::UNCACHED, Attr::MEMORY] {
        forks_devices::<Va39, RiscvOf<true, false, true>>(attr);
        forks_devices::<Va48, X86>(attr);
        forks_devices::<Va48, Aarch64>(attr);
    }
}

/// Slots 256, 258 and 511 of 512, named out of order and one of them twice.
/// Of the last slot of the lower half and the first of the upper one, between which no page is, and the outermost ones.
#[test]
fn ranges_of_both_halves_cost_the_slots_that_they_have() {
    fn lend<G: Radix>() {
        let mut memory = vec![Chunk::ZERO; 64];
        let slab = Slab::<u64, Shared>::new(&mut memory, 0).unwrap();
        let mut kernel = Mpt::<G, Sv39, _>::new(&slab).unwrap();
        let (slot, half) = (1 << (G::VA_BITS - 21), 1 << (G::VA_BITS - 13));
        let pages = |first: usize| Pages::count(Vpn::new(first), slot).unwrap();
        let top = (1 << 52) - half;
        kernel.lend([pages(0), pages((1 << 52) - slot), pages(half - slot), pages(top)]).unwrap();
        assert_eq!(slab.usage().nodes, 1 + 4, "a node for each slot that is lent");
        // SAFETY: nobody walks.
        unsafe { destroy(kernel).reclaim() };
    }
    lend::<Va39>();
    lend::<Va48>();
    lend::<Va57>();
}

#[test]
fn several_ranges_are_lent_and_what_is_between_them_is_not() {
    let mut memory = vec![Chunk::ZERO; 64];
    let slab = Storage::new(&mut memory, 0).unwrap();
    let mut kernel = Tree::new(&slab).unwrap();
    let slot = |slot: usize| {
        let first = slot << 27 | if slot < 256 { 0 } else { !0 << 36 & (usize::MAX >> 12) };
        Pages::count(Vpn::new(first), 1 << 27).unwrap()
    };
    let at = |pages: Pages| pages.first().address(K4).get();
    kernel.lend([slot(511), slot(256), slot(258), slot(256)]).unwrap();
    assert_eq!(slab.usage().nodes, 1 + 3, "a node for each slot that is lent");
    assert_eq!(kernel.lend([slot(300)]), Err(Error::Busy));

    let (user, other) = (Tree::sharing(&kernel).unwrap(), Tree::sharing(&kernel).unwrap());
    for (lent, frame) in [256, 258, 511].map(slot).into_iter().zip(1..) {
        map(&kernel, at(lent), frame).unwrap();
        assert_eq!(look(&user, at(lent)).unwrap().frame, Pfn::new(frame));
        assert_eq!(map(&user, at(lent), 9), Err(Error::Borrowed { at: lent.first().address(K4) }));
    }
    for own in [255, 257, 259, 510].map(slot) {
        map(&user, at(own), 7).unwrap();
        map(&kernel, at(own), 8).unwrap();
        assert_eq!(look(&other, at(own)), None);
        assert_eq!(look(&user, at(own)).unwrap().frame, Pfn::new(7));
    }
    // A range over several slots names the first page of a lent one, and a cursor passes over those.
    let mut writer = Writer::new(&user).unwrap();
    let both = Pages::new(slot(257).first(), slot(258).first()).unwrap();
    assert_eq!(writer.unmap(both, Holes::Skip), Err(Error::Borrowed { at: slot(258).first().address(K4) }));
    macro_rules! check {
        ($cursor:ident) => {
            let mut cursor = writer.$cursor(Vpn::new(0)).unwrap();
            for own in [255, 257, 259, 510].map(slot) {
                let next = cursor.next_mapped(slot(511).last());
                assert_eq!(next.map(|leaf| leaf.at), Some(own.first().address(K4)));
            }
            assert_eq!(cursor.next_mapped(slot(511).last()), None);
        };
    }
    check!(cursor);
    check!(any_cursor);
    drop(writer);

    take_apart(user);
    assert_eq!(look(&other, at(slot(258))).unwrap().frame, Pfn::new(2), "what is lent is the lender's");
    take_apart(other);
    take_apart(kernel);
    assert_eq!((slab.usage().nodes, slab_lost(&slab)), (0, 0));
}

#[test]
fn ranges_know_their_pages_and_the_gaps_between_them() {
    let pages = |first, last| Pages::new(Vpn::new(first), Vpn::new(last)).unwrap();
    let ranges = PageRanges::new([pages(20, 29), pages(3, 5), pages(25, 40), pages(41, 41)]);
    assert_eq!(ranges.hull(), pages(3, 41));
    let has = |page: usize| (3..=5).contains(&page) || (20..=41).contains(&page);
    for first in 0..50 {
        assert_eq!(ranges.contains(Vpn::new(first)), has(first));
        for last in first..50 {
            let range = pages(first, last);
            let own: Vec<usize> = ranges.gaps(range).flatten().map(Vpn::get).collect();
            assert_eq!(own, (first..=last).filter(|&page| !has(page)).collect::<Vec<_>>());
            assert_eq!(ranges.cover(range), (first..=last).all(has));
            assert_eq!(ranges.first_in(range), (first..=last).find(|&page| has(page)).map(Vpn::new));
            assert!(ranges.gaps(range).count() <= 3, "each gap is one range");
        }
    }
    // The end of all page numbers.
    let top = PageRanges::new([pages(7, usize::MAX)]);
    assert_eq!(top.gaps(pages(0, usize::MAX)).collect::<Vec<_>>(), [pages(0, 6)]);
}
