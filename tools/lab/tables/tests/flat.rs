//! The flattened table passes the property suite, and walks and weighs what its definition says.

use std::collections::BTreeSet;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_conformance::{Instrumented, conformance, threads};
use tlbkit_pagetable::format::Compact;
use tlbkit_pagetable::geometry::{Geometry, Half, Va48};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Error, Footprint, Pinned, Radix, Shared, Solo, Table, Writer, destroy};
use tlblab_tables::Flat;

/// Levels of three bits below the root, and pages of one, of eight (a slot of the last level but one) and of 64.
#[derive(Debug)]
struct Narrow<const LEVELS: usize>;

impl<const LEVELS: usize> Geometry for Narrow<LEVELS> {
    const VA_BITS: u32 = 12 + 3 * LEVELS as u32 - 1;
    const BASE: PageSize = PageSize::K4;
    const HALF: Half = Half::Both;
    const SIZES: &'static [PageSize] =
        &[PageSize::K4, PageSize::from_shift(15).unwrap(), PageSize::from_shift(18).unwrap()];
}

impl<const LEVELS: usize> Radix for Narrow<LEVELS> {
    const WIDTHS: &'static [u32] = {
        let widths: &'static [u32] = &[2, 3, 3, 3, 3];
        widths.split_at(LEVELS).0
    };
}

// A mixed tree of two pairs; and one of wide nodes, below a root that stands alone, where the storage refuses none.
conformance!(mixed, Compact, Shared, |nodes| Flat::<Narrow<4>, 50, _>::new(nodes));
conformance!(@cases 8, wide, Compact, Solo, |nodes| Flat::<Narrow<5>, 100, _>::new(nodes));
threads!(beside_a_writer, Compact, |nodes| Flat::<Narrow<4>, 50, _>::new(nodes));

/// Nodes of one CPU.
type Nodes<'m> = Instrumented<'m, u64, Solo>;

/// Two pages of one 2 MiB, one of the next, one of another GiB, and one of the upper half.
const PAGES: [usize; 5] = [0x400, 0x5ff, 0x600, 0x4_0000, 0xf_ffff_ffff_ffff];

/// Maps [`PAGES`] in a table, and returns its footprint and the loads of a walk to each.
fn weigh<'n, T: Table<'n>>(nodes: &'n Nodes<'n>, table: Result<T, Error>) -> (Footprint, [usize; 5]) {
    let table = table.unwrap();
    let mut writer = Writer::new(&table).unwrap();
    for page in PAGES.map(Vpn::new) {
        writer.map(Pages::one(page), Pfn::new(page.get() & 0xfff), PageSize::K4, Attr::READ).unwrap();
    }
    // SAFETY: no walker is in the table.
    unsafe { writer.finish().reclaim() };
    let loads = PAGES.map(Vpn::new).map(|page| {
        // SAFETY: nothing is reclaimed during the walk.
        let pinned = unsafe { Pinned::by(&table) };
        let (leaf, loads) = nodes.loads_of(|| table.lookup(pinned, page.address(PageSize::K4)));
        assert_eq!(leaf.unwrap().frame.get(), page.get() & 0xfff);
        loads
    });
    let footprint = table.footprint();
    // SAFETY: no walker is in the table.
    unsafe { destroy(table).reclaim() };
    assert_eq!(nodes.out(), 0);
    (footprint, loads)
}

#[test]
fn the_papers_four_levels_are_two_loads_or_four() {
    let mut memory = vec![Chunk::ZERO; 1 << 12];
    let nodes = Nodes::new(Slab::new(&mut memory, 0).unwrap());
    // Each GiB with a page is a wide node, below a wide root; a page on a level is a node in the ordinary tree.
    let gigabytes = PAGES.map(|page| page >> 18).into_iter().collect::<BTreeSet<_>>().len();
    let (flat, loads) = weigh(&nodes, Flat::<Va48, 100, _>::new(&nodes));
    assert_eq!((flat.nodes, flat.bytes, flat.ptes), (1 + gigabytes, (1 + gigabytes) << 21, PAGES.len()));
    assert_eq!(loads, [2; 5]);
    // Without wide nodes it is the multi-level table, to the byte and the load.
    let narrow = weigh(&nodes, Flat::<Va48, 0, _>::new(&nodes));
    assert_eq!((narrow.0.nodes, narrow.1), (10, [4; 5]));
    assert_eq!(narrow, weigh(&nodes, Mpt::<Va48, Compact, _>::new(&nodes)));
}

#[test]
fn a_storage_without_large_pieces_is_a_tree_of_narrow_nodes() {
    let mut memory = vec![Chunk::ZERO; 1 << 12];
    let nodes = Nodes::new(Slab::new(&mut memory, 0).unwrap());
    let narrow = weigh(&nodes, Flat::<Va48, 0, _>::new(&nodes));
    nodes.limit_words(512);
    assert_eq!(weigh(&nodes, Flat::<Va48, 100, _>::new(&nodes)), narrow);
}
