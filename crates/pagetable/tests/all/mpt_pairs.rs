//! EntryLo pairs in a two-level table: what a refill handler loads is always a pair that agrees.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{EntryLo, Format};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes, Slab};
use tlbkit_pagetable::{Change, Error, FlushAll, Holes, Local, Solo, Table};

const KSEG0: usize = 0x8000_0000;
const GLOBAL: Attr = Attr::READ.union(Attr::WRITE).union(Attr::DIRTY).union(Attr::GLOBAL);
const LOCAL: Attr = GLOBAL.difference(Attr::GLOBAL);
const K4: PageSize = PageSize::K4;

type Storage<'m> = Slab<'m, u32, Solo>;
type Mips<'n, 'm> = Mpt<'n, Va32, EntryLo, Storage<'m>>;

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

/// Reads what a refill handler reads: the root's word for `at`, and through it the pair of words around `at`.
fn handler<'m>(slab: &Storage<'m>, table: &Mips<'_, 'm>, at: usize) -> (u32, [u32; 2]) {
    let load = |node: usize, index: usize| {
        // SAFETY: the node is in the table, and the index within it.
        unsafe { slab.word(NodeAddr::new(node), index).follow() }
    };
    let top = load(table.root().get(), at >> 22);
    // As the handler does: the sign bit of a link is set, and a link is an address.
    if (top as i32) >= 0 {
        return (top, [0; 2]);
    }
    let even = at >> 12 & 0x3fe;
    (top, [load(top as usize, even), load(top as usize, even + 1)])
}

#[test]
fn an_absent_half_follows_its_neighbour() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Storage::new(&mut memory, KSEG0).unwrap();
    let mut table = Local::new(Mips::new(&slab).unwrap(), |_| ());
    let at = 0xc000_4000;
    let page = at >> 12;
    let pair = |table: &Local<'_, Mips<'_, '_>, _>| handler(&slab, table.table(), at).1;

    table.map(pages(page, 1), Pfn::new(7), K4, GLOBAL).unwrap();
    assert_eq!(pair(&table), [7 << 6 | 0x1f, 1]);
    assert_eq!(table.lookup(VirtAddr::new(at + 0x1000)), None);
    // A local neighbour takes the place of the bare G; the pair is local then.
    table.map(pages(page + 1, 1), Pfn::new(8), K4, LOCAL).unwrap();
    assert_eq!(pair(&table), [7 << 6 | 0x1f, 8 << 6 | 0x1e]);
    table.unmap(pages(page, 1), Holes::Refuse).unwrap();
    assert_eq!(pair(&table), [0, 8 << 6 | 0x1e]);
    table.unmap(pages(page + 1, 1), Holes::Refuse).unwrap();
    assert_eq!(table.footprint().nodes, 1);
    table.destroy();
    assert_eq!(slab.usage().nodes, 0);
}

#[test]
fn protect_settles_pairs_inside_its_range() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Storage::new(&mut memory, KSEG0).unwrap();
    let mut table = Local::new(Mips::new(&slab).unwrap(), |_| ());
    for page in [0, 2, 4] {
        table.map(pages(page, 1), Pfn::new(page), K4, LOCAL).unwrap();
    }
    table.protect(pages(0, 6), Holes::Skip, Change::set(Attr::GLOBAL)).unwrap();
    for page in [0, 2, 4] {
        assert_eq!(handler(&slab, table.table(), page << 12).1, [(page as u32) << 6 | 0x1f, 1]);
    }
    table.protect(pages(0, 6), Holes::Skip, Change::clear(Attr::GLOBAL)).unwrap();
    for page in [0, 2, 4] {
        assert_eq!(handler(&slab, table.table(), page << 12).1[1], 0);
    }
    table.destroy();
}

#[test]
fn nodes_come_back_zero_although_absent_halves_are_not() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Storage::new(&mut memory, KSEG0).unwrap();
    let mut table = Local::new(Mips::new(&slab).unwrap(), |_| ());
    // The even half is the last live entry; the odd one behind it says G.
    table.map(pages(0x400, 1), Pfn::new(1), K4, GLOBAL).unwrap();
    table.map(pages(0x800, 1024), Pfn::new(0x400), PageSize::M4, GLOBAL).unwrap();
    table.destroy();
    for _ in 0..2 {
        let node = slab.take(1024).unwrap();
        for index in 0..1024 {
            // SAFETY: the node was just taken, and has so many words.
            assert_eq!(unsafe { slab.word(node, index).follow() }, 0, "word {index}");
        }
    }
}

#[test]
fn larger_pages_stand_in_all_their_slots_and_split_and_join() {
    let mut memory = vec![Chunk::ZERO; 12];
    let slab = Storage::new(&mut memory, KSEG0).unwrap();
    let mut broke = 0;
    let mut table = Local::new(Mips::new(&slab).unwrap(), |_| broke += 1);
    let k16 = PageSize::K16;
    table.map(pages(4, 4), Pfn::new(8), k16, LOCAL).unwrap();
    for at in (0x4000..0x8000).step_by(0x1000) {
        assert_eq!(table.lookup(VirtAddr::new(at)).unwrap().size, k16);
    }
    // Its partner is four slots away.
    table.map(pages(0, 4), Pfn::new(4), k16, LOCAL).unwrap();
    // SAFETY: a linked node.
    let word = |index| unsafe {
        slab.word(NodeAddr::new(handler(&slab, table.table(), 0).0 as usize), index).follow()
    };
    assert_eq!([word(0), word(4)], [0x4000_005e | 4 << 6, 0x4000_005e | 8 << 6]);

    // A page that was written and then protected stays dirty through a split and a promotion.
    table.protect(pages(4, 4), Holes::Refuse, Change::clear(Attr::WRITE)).unwrap();
    // SAFETY: nothing runs on these pages.
    table.resize(pages(4, 4), K4, |flush| unsafe { FlushAll::breaking(flush) }).unwrap();
    let leaf = table.lookup(VirtAddr::new(0x6123)).unwrap();
    assert_eq!((leaf.size, leaf.frame), (K4, Pfn::new(10)));
    assert_eq!(leaf.attr, EntryLo::IMPLIED | Attr::DIRTY);
    table.protect(pages(5, 3), Holes::Refuse, Change::clear(Attr::DIRTY)).unwrap();
    // SAFETY: nothing runs on these pages.
    table.resize(pages(4, 4), k16, |flush| unsafe { FlushAll::breaking(flush) }).unwrap();
    let leaf = table.lookup(VirtAddr::new(0x6123)).unwrap();
    assert_eq!((leaf.size, leaf.frame), (k16, Pfn::new(8)));
    assert_eq!(leaf.attr, EntryLo::IMPLIED | Attr::DIRTY);

    // 16 MiB in four slots of the root, and back.
    let whole = pages(0x1000, 0x1000);
    table.map(whole, Pfn::new(0x3000), PageSize::from_shift(24).unwrap(), GLOBAL).unwrap();
    assert!((handler(&slab, table.table(), 0x0140_0000).0 as i32) > 0, "a leaf's sign bit is clear");
    let cut = table.unmap(pages(0x1400, 1), Holes::Refuse);
    assert!(matches!(cut, Err(Error::Partial { size, .. }) if size.shift() == 24));
    // SAFETY: nothing runs on these pages.
    table.resize(pages(0x1000, 0x1000), PageSize::M4, |flush| unsafe { FlushAll::breaking(flush) }).unwrap();
    // SAFETY: nothing runs on these pages.
    table.resize(pages(0x1400, 0x400), K4, |flush| unsafe { FlushAll::breaking(flush) }).unwrap();
    assert_eq!(table.lookup(VirtAddr::new(0x0140_5000)).unwrap().frame, Pfn::new(0x3405));
    // SAFETY: nothing runs on these pages.
    table
        .resize(whole, PageSize::from_shift(24).unwrap(), |flush| unsafe { FlushAll::breaking(flush) })
        .unwrap();
    assert_eq!(table.lookup(VirtAddr::new(0x0140_5000)).unwrap().frame, Pfn::new(0x3000));
    table.destroy();
    assert_eq!(slab.usage().nodes, 0);
    assert!(broke >= 8, "every change of size breaks first");
}

#[test]
fn attributes_without_an_encoding_are_refused() {
    let mut memory = vec![Chunk::ZERO; 4];
    let slab = Storage::new(&mut memory, KSEG0).unwrap();
    let mut table = Local::new(Mips::new(&slab).unwrap(), |_| ());
    for attr in [Attr::READ | Attr::ACCESSED, Attr::READ | Attr::DEVICE, Attr::ACCESSED] {
        assert_eq!(table.map(pages(0, 1), Pfn::new(0), K4, attr), Err(Error::WrongAttr { attr }));
    }
    // A right is enough: what the format implies is added.
    for attr in [Attr::WRITE, Attr::EXEC] {
        table.map(pages(0, 1), Pfn::new(0), K4, attr).unwrap();
        let leaf = table.lookup(VirtAddr::new(0)).unwrap();
        assert_eq!(leaf.attr, EntryLo::IMPLIED | attr);
        table.unmap(pages(0, 1), Holes::Refuse).unwrap();
    }
    table.map(pages(0, 1), Pfn::new(0), K4, LOCAL).unwrap();
    // V stands for both: the one does not go without the other, and without stores.
    let read = Attr::READ | Attr::EXEC;
    for attr in [Attr::READ, Attr::EXEC, read] {
        let refused = table.protect(pages(0, 1), Holes::Refuse, Change::clear(attr));
        assert_eq!(refused, Err(Error::WrongAttr { attr }));
    }
    let user = table.protect(pages(0, 1), Holes::Refuse, Change::clear(read | Attr::WRITE | Attr::USER));
    assert_eq!(user, Err(Error::WrongAttr { attr: Attr::USER }));
    assert_eq!(table.table().space().sizes().len(), 7);
    table.destroy();
}
