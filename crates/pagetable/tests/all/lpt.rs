//! The linear table: one load where the TLB helps, cascades where it does not, and its own pages flushed.
#![cfg(target_pointer_width = "64")]

use crate::common::Pair;
use proptest::prelude::*;
use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_conformance::Instrumented;
use tlbkit_pagetable::format::{Compact, Compact32, EntryLo, Format};
use tlbkit_pagetable::geometry::Va48;
use tlbkit_pagetable::lpt::{Lpt, MipsLpt, PaperLpt};
use tlbkit_pagetable::mpt::Mpt4;
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes, Slab};
use tlbkit_pagetable::{
    Change, Error, FlushAll, Holes, Leaf, Local, NestedMissObserver, Pinned, Retired, Solo, Table, Writer,
    destroy,
};

const K4: PageSize = PageSize::K4;
const RW: Attr = Attr::READ.union(Attr::WRITE);

/// A TLB without limits, which notes what it is asked.
#[derive(Default)]
struct Tlb {
    pages: Vec<VirtAddr>,
    asked: Vec<(usize, usize)>,
}

impl NestedMissObserver for Tlb {
    fn translates(&mut self, level: usize, page: VirtAddr) -> bool {
        self.asked.push((level, page.get()));
        let known = self.pages.contains(&page);
        if !known {
            self.pages.push(page);
        }
        known
    }
}

fn pages(first: usize, count: usize) -> Pages {
    Pages::count(Vpn::new(first), count).unwrap()
}

fn pin(nodes: &impl Nodes) -> Pinned<'_> {
    // SAFETY: these tests reclaim between walks, not during them.
    unsafe { Pinned::by(nodes) }
}

fn reclaim(batch: Retired<'_>) {
    // SAFETY: no CPU walks the table now.
    unsafe { batch.reclaim() };
}

fn flush_of(batch: Retired<'_>) -> Flush {
    let flush = batch.flush().clone();
    reclaim(batch);
    flush
}

#[test]
fn a_table_in_physical_memory_asks_nothing() {
    let mut memory = vec![Chunk::ZERO; 8];
    let nodes = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    let table = Mpt4::new(&nodes).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    writer.map(pages(7, 1), Pfn::new(5), K4, RW).unwrap();
    reclaim(writer.finish());
    let mut tlb = Tlb::default();
    let mut walk = |at: usize| table.walk(pin(&nodes), VirtAddr::new(at), &mut tlb).map(|leaf| leaf.frame);
    assert_eq!((walk(0x7abc), walk(0x8000)), (Some(Pfn::new(5)), None));
    assert_eq!(tlb.asked, []);
    reclaim(destroy(table));
}

#[test]
fn sixty_four_bits_cascade_up_to_five_times() {
    let mut memory = vec![Chunk::ZERO; 16];
    let nodes = Instrumented::new(Slab::<_, Solo>::new(&mut memory, 0).unwrap());
    let table = PaperLpt::new(&nodes).unwrap();
    let at = 0x0123_4567_89ab_c123_usize;
    let mut writer = Writer::new(&table).unwrap();
    writer.map(pages(at >> 12, 1), Pfn::new(5), K4, RW).unwrap();
    reclaim(writer.finish());
    let footprint = table.footprint();
    assert_eq!((footprint.nodes, footprint.bytes), (6, 8 * 4 + 5 * 4096));

    // Where each level's array begins: 2^43 pages of PTEs with their mapping words, then 2^33, 2^23, 2^13 and 2^3.
    let mut base = 0xff00_0000_0000_0000_usize;
    let mut asked = Vec::new();
    for (level, bits) in [43, 33, 23, 13, 3].into_iter().enumerate() {
        asked.push((level, base + ((at >> (64 - bits)) << 12)));
        base += 1 << (bits + 12);
    }
    let walk = |tlb: &mut Tlb, at: usize| {
        tlb.asked.clear();
        let (leaf, loads) = nodes.loads_of(|| table.walk(pin(&nodes), VirtAddr::new(at), tlb));
        (leaf.map(|leaf| leaf.frame.get()), loads)
    };
    let mut tlb = Tlb::default();
    assert_eq!(walk(&mut tlb, at), (Some(5), 6), "cold: a load a level, the root's included");
    assert_eq!(tlb.asked, asked);
    assert_eq!(walk(&mut tlb, at), (Some(5), 1), "warm: one load");
    assert_eq!(tlb.asked, asked[..1]);

    // Two pages of the table evicted: two nested misses.
    tlb.pages.retain(|page| ![asked[0].1, asked[1].1].contains(&page.get()));
    assert_eq!(walk(&mut tlb, at), (Some(5), 3));
    assert_eq!(tlb.asked, asked[..3]);
    // The neighbour in the pair; then a page of the table that does not exist: its PTE is empty one level up, also
    // if the model thinks it has seen the page.
    assert_eq!(walk(&mut tlb, at ^ 0x1000), (None, 1));
    for _ in 0..2 {
        assert_eq!(walk(&mut tlb, at ^ 0x4000_0000), (None, 1));
        assert_eq!(tlb.asked.len(), 2);
    }

    let before = nodes.loads();
    assert_eq!(table.lookup(pin(&nodes), VirtAddr::new(at)).unwrap().frame, Pfn::new(5));
    assert_eq!(nodes.loads() - before, 1, "a lookup takes everything as translated");
    reclaim(destroy(table));
    assert_eq!(nodes.slab().usage().nodes, 0);
}

#[test]
fn ptes_stand_side_by_side_up_to_the_top() {
    let mut memory = vec![Chunk::ZERO; 4];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let table = PaperLpt::new(&slab).unwrap();
    let pte = |at: usize| table.pte(VirtAddr::new(at)).get();
    let base = 0xff00_0000_0000_0000;
    // A pair of PTEs, then the pair's mapping words.
    assert_eq!([pte(0), pte(0x1000), pte(0x2000), pte(0x3000)], [base, base + 4, base + 16, base + 20]);
    assert_eq!(pte(usize::MAX), base + (1 << 55) - 16 + 4);
    let region = table.region();
    assert_eq!(region.first().get(), base >> 12);
    assert_eq!(region.len(), (1 << 43) + (1 << 33) + (1 << 23) + (1 << 13) + (1 << 3));
    reclaim(destroy(table));
}

#[test]
fn a_freed_page_of_the_table_is_flushed_with_what_it_mapped() {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
    type Wide<'n, 'm> = Lpt<'n, Va48, Compact, Slab<'m, u64, Solo>, 0x1_0000_0000_0000>;
    let table = Wide::new(&slab).unwrap();
    let top = usize::MAX >> 12;
    let mut writer = Writer::new(&table).unwrap();
    writer.map(pages(top - 1, 2), Pfn::new(1), K4, RW).unwrap();
    let flush = flush_of(writer.finish());
    assert_eq!(flush, Flush::none(), "no TLB has cached what was not there");
    let unmap = |page| {
        let mut writer = Writer::new(&table).unwrap();
        assert_eq!(writer.unmap(page, Holes::Refuse), Ok(1));
        flush_of(writer.finish())
    };
    let first = unmap(pages(top - 1, 1));
    assert_eq!(first.ranges(), [pages(top - 1, 1)], "the page of the table is still in use");

    // The last pages of the three arrays, which are 2^27, 2^18 and 2^9 pages long.
    let ends = [1 << 27, (1 << 27) + (1 << 18), (1 << 27) + (1 << 18) + (1 << 9)];
    let second = unmap(pages(top, 1));
    assert_eq!(second.scope(), FlushScope::Everywhere);
    assert!(second.covers(pages(top, 1)) && !second.is_all());
    for end in ends {
        assert!(second.covers(pages((0x1_0000_0000_0000 >> 12) + end - 1, 1)));
    }
    assert_eq!(second.ranges().len(), 4);

    let batch = destroy(table);
    assert!(batch.flush().covers(pages(0x1_0000_0000_0000 >> 12, ends[2])));
    reclaim(batch);
    assert_eq!(slab.usage().nodes, 0);
}

#[test]
fn the_pages_of_a_mips_table_are_pages_to_the_tlb() {
    let mut memory = vec![Chunk::ZERO; 8];
    let base = 0x10_0000;
    let slab = Slab::<u32, Solo>::new(&mut memory, base).unwrap();
    let mut flushes = Vec::new();
    let mut table = Local::new(MipsLpt::new(&slab).unwrap(), |flush: &Flush| flushes.push(flush.clone()));
    table.map(pages(0x800, 1), Pfn::new(9), K4, RW | Attr::DIRTY).unwrap();

    // SAFETY: the root and a node that it maps.
    let word = unsafe { slab.word(table.table().root(), 2).follow() };
    assert!(EntryLo::is_leaf(word, true));
    assert_eq!(EntryLo::attr(word, true), EntryLo::IMPLIED | RW | Attr::DIRTY);
    let node = NodeAddr::new(EntryLo::frame(word, K4).get() << 12);
    assert!((base..base + (8 << 12)).contains(&node.get()), "a physical address");
    // SAFETY: the root leads to the node.
    assert_eq!(unsafe { slab.word(node, 0).follow() }, 9 << 6 | 0x1e);

    // Four megabytes are one page of the table; sixteen would be four.
    table.map(pages(0x400, 0x400), Pfn::new(0x400), PageSize::M4, RW).unwrap();
    let leaf = table.lookup(VirtAddr::new(0x7f_f123)).unwrap();
    assert_eq!((leaf.size, leaf.at.get(), leaf.frame), (PageSize::M4, 0x40_0000, Pfn::new(0x400)));
    let size = PageSize::from_shift(24).unwrap();
    let wide = table.map(pages(0x1000, 0x1000), Pfn::new(0x1000), size, RW);
    assert_eq!(wide, Err(Error::WrongSize { size }));
    // SAFETY: nothing runs on these pages.
    table.resize(pages(0x400, 0x400), K4, |flush| unsafe { FlushAll::breaking(flush) }).unwrap();
    assert_eq!(table.lookup(VirtAddr::new(0x7f_f123)).unwrap().frame, Pfn::new(0x7ff));
    table.protect(pages(0x500, 1), Holes::Refuse, Change::clear(Attr::WRITE)).unwrap();
    // SAFETY: nothing runs on these pages.
    let mixed = table.resize(pages(0x400, 0x400), PageSize::M4, |flush| unsafe { FlushAll::breaking(flush) });
    assert_eq!(mixed, Err(Error::NotUniform { at: VirtAddr::new(0x50_0000) }));
    table.destroy();
    assert_eq!(slab.usage().nodes, 0);

    // The page of the table that the first map made may be the absent half of a pair that some TLB holds.
    assert!(flushes[0].scope() == FlushScope::Local && flushes[0].covers(pages((0xc000_0000 >> 12) + 2, 1)));
}

/// An edit of a few pages, in which 2 MiB are 512.
#[derive(Clone, Debug)]
enum Edit {
    Map { first: usize, count: usize, frame: usize, large: bool },
    Unmap { first: usize, count: usize },
    Protect { first: usize, count: usize, write: bool },
    Resize { first: usize, count: usize, large: bool },
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let range = || {
        let large = (0usize..6, 1usize..3).prop_map(|(first, count)| (first * 512, count * 512));
        // From some pages below the second large page to some above.
        let small = (500usize..530, 1usize..20);
        prop_oneof![large, small]
    };
    let edit = prop_oneof![
        (range(), 0usize..4, any::<bool>()).prop_map(|((first, count), frame, large)| Edit::Map {
            first,
            count,
            frame: frame * 512 + first % 512,
            large
        }),
        range().prop_map(|(first, count)| Edit::Unmap { first, count }),
        (range(), any::<bool>()).prop_map(|((first, count), write)| Edit::Protect { first, count, write }),
        (range(), any::<bool>()).prop_map(|((first, count), large)| Edit::Resize { first, count, large }),
    ];
    prop::collection::vec(edit, 1..if cfg!(miri) { 4 } else { 24 })
}

fn apply<'n>(table: &impl Table<'n>, edit: &Edit, top: usize) -> Result<usize, Error> {
    // The highest page of the range's frame is the top of the space, so both halves meet their end.
    let range = |first: usize, count: usize| pages(top - 0x1000 + 1 + first, count);
    let size = |large: bool| if large { PageSize::M2 } else { K4 };
    let mut writer = Writer::new(table).unwrap();
    let done = match *edit {
        Edit::Map { first, count, frame, large } => {
            writer.map(range(first, count), Pfn::new(frame), size(large), RW).map(|()| 0)
        }
        Edit::Unmap { first, count } => writer.unmap(range(first, count), Holes::Skip),
        Edit::Protect { first, count, write } => {
            let change = if write { Change::set(Attr::WRITE) } else { Change::clear(Attr::WRITE) };
            writer.protect(range(first, count), Holes::Refuse, change)
        }
        Edit::Resize { first, count, large } => {
            // SAFETY: nothing runs on these pages.
            unsafe { writer.resize(range(first, count), size(large), FlushAll::breaking(&mut |_| ())) }
                .map(|()| 0)
        }
    };
    reclaim(writer.finish());
    done
}

fn leaves<'n>(table: &impl Table<'n>, nodes: &impl Nodes, top: usize) -> Vec<Leaf> {
    let mut found = Vec::new();
    let _ = table.for_each(pin(nodes), pages(top - 0xfff, 0x1000), &mut |leaf| {
        found.push(leaf);
        std::ops::ControlFlow::Continue(())
    });
    found
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// What the tree says, the linear table says, and what one refuses, so does the other.
    #[test]
    fn a_linear_table_is_a_tree_read_in_another_way(edits in edits(), high in any::<bool>()) {
        let top = if high { usize::MAX >> 12 } else { 0x7_ffff_ffff };
        let (mut memory, mut other) = (vec![Chunk::ZERO; 24], vec![Chunk::ZERO; 24]);
        let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
        let plain = Slab::<u64, Solo>::new(&mut other, 0).unwrap();
        let linear = Lpt::<'_, Va48, Compact, _, 0x1_0000_0000_0000>::new(&slab).unwrap();
        let tree = Mpt4::new(&plain).unwrap();
        for edit in &edits {
            // Where a range is wrong in two ways, each names the one that it meets first.
            prop_assert_eq!(apply(&linear, edit, top).ok(), apply(&tree, edit, top).ok(), "{:?}", edit);
            let found = leaves(&linear, &slab, top);
            prop_assert_eq!(&found, &leaves(&tree, &plain, top));
            for page in (0..0x1000).step_by(if cfg!(miri) { 97 } else { 7 }) {
                let at = VirtAddr::new((top - page) << 12 | 0x123);
                prop_assert_eq!(linear.lookup(pin(&slab), at), tree.lookup(pin(&plain), at));
            }
        }
        reclaim(destroy(linear));
        reclaim(destroy(tree));
        prop_assert_eq!((slab.usage().nodes, plain.usage().nodes), (0, 0));
    }
}

/// The pages of the table's last level, and of those above where they are not the root: no page more, none less.
#[test]
fn the_region_is_all_that_the_table_can_take() {
    let mut memory = vec![Chunk::ZERO; 8];
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    // A million PTEs of four bytes.
    let mips = MipsLpt::new(&slab).unwrap();
    assert_eq!(mips.region(), pages(0xc_0000, 1024));
    assert_eq!(mips.pte(VirtAddr::new(0xffff_ffff)), VirtAddr::new(0xc03f_fffc));
    // A table of one level is its root.
    let root = Lpt::<Pair, Compact32, _, 0xc000_0000>::new(&slab).unwrap();
    assert_eq!(root.region(), pages(0xc_0000, 1));
    assert_eq!(root.pte(VirtAddr::new(0x1fff)), VirtAddr::new(0xc000_0004));
    reclaim(destroy(mips));
    reclaim(destroy(root));
    assert_eq!(slab.usage().nodes, 0);
}
