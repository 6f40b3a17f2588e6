//! Growing to the byte: what more buckets take, what is moved at once, and memory that ends in the middle.
#![cfg(target_pointer_width = "64")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_conformance::Instrumented;
use tlbkit_pagetable::format::Compact;
use tlbkit_pagetable::geometry::Va48;
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Error, Holes, Local, Pinned, Solo, Table};

/// Single pages in two buckets at first, of four words each; it grows beyond `LOAD` percent.
type Two<'n, const LOAD: usize> = Hashed<'n, Va48, Compact, Instrumented<'n, u64, Solo>, Buckets<0, 1, LOAD>>;

fn page(vpn: usize) -> Pages {
    Pages::one(Vpn::new(vpn))
}

/// A table of one segment is two buckets and a directory of 64 bytes; then it has four, and for a moment both.
#[test]
fn a_growth_has_both_arrays_and_then_the_larger() {
    let mut memory = vec![Chunk::ZERO; 8];
    let nodes = Instrumented::new(Slab::new(&mut memory, 0).unwrap());
    let mut table = Local::new(Two::<50>::new(&nodes).unwrap(), |_| ());
    table.map(page(1), Pfn::new(1), PageSize::K4, Attr::READ).unwrap();
    let of = |table: &Local<'_, Two<'_, 50>, _>| {
        let (footprint, usage) = (table.footprint(), nodes.slab().usage());
        assert_eq!((footprint.nodes, footprint.bytes), (usage.nodes, usage.bytes));
        (footprint.bytes, table.table().peak_bytes(), table.table().most_moved())
    };
    assert_eq!(of(&table), (2 * 32 + 64, 2 * 32 + 64, 0));
    // More than one block in two buckets: both are moved at once, and the old segment goes with its directory.
    table.map(page(2), Pfn::new(2), PageSize::K4, Attr::READ).unwrap();
    let peak = 2 * 32 + 4 * 32 + 2 * 64;
    assert_eq!(of(&table), (4 * 32 + 64, peak, 2));
    // The most stays what it was; without any page the table is what it was, too.
    table.unmap(page(1), Holes::Refuse).unwrap();
    table.unmap(page(2), Holes::Refuse).unwrap();
    assert_eq!(of(&table), (2 * 32 + 64, peak, 4));
    table.destroy();
    assert_eq!(nodes.slab().usage().nodes, 0);
}

/// Checks that a table has these pages and no others, each once, and counts what it takes.
fn check<'n>(
    table: &Local<'n, Two<'n, 200>, impl FnMut(&Flush)>,
    nodes: &Instrumented<'_, u64, Solo>,
    pages: &[usize],
) {
    let expected: BTreeMap<_, _> = pages.iter().map(|&vpn| (vpn << 12, Pfn::new(vpn))).collect();
    for (&at, &frame) in &expected {
        assert_eq!(table.lookup(VirtAddr::new(at)).map(|leaf| leaf.frame), Some(frame));
    }
    let mut seen = BTreeMap::new();
    // SAFETY: nothing is reclaimed meanwhile.
    let pinned = unsafe { Pinned::by(table) };
    for half in table.table().space().halves().into_iter().flatten() {
        let _ = table.table().for_each(pinned, half, &mut |leaf| {
            assert_eq!(seen.insert(leaf.at.get(), leaf.frame), None, "a leaf is seen twice");
            ControlFlow::Continue(())
        });
    }
    assert_eq!(seen, expected);
    assert_eq!(table.table().blocks(), pages.len());
    let (footprint, usage) = (table.footprint(), nodes.slab().usage());
    assert_eq!((footprint.nodes, footprint.bytes), (usage.nodes, usage.bytes));
}

/// Memory may end at any node of a growth from two buckets to four. What was taken for a split that
/// cannot be made goes back, and the next change tries again.
#[test]
fn a_growth_may_stop_at_any_node() {
    let (mut refused, mut stopped) = (0, 0);
    for seed in 1..if cfg!(miri) { 4 } else { 40 } {
        // Five blocks are too many for two buckets at 200 %.
        let pages: Vec<_> = (0..8).map(|at| seed * 0x1357 + at * seed * seed).collect();
        for left in 0..7 {
            let mut memory = vec![Chunk::ZERO; 8];
            let nodes = Instrumented::new(Slab::new(&mut memory, 0).unwrap());
            let mut table = Local::new(Two::<200>::new(&nodes).unwrap(), |_| ());
            let mut mapped = Vec::new();
            for (at, &vpn) in pages.iter().enumerate() {
                nodes.limit(if at == 4 { nodes.out() + left } else { usize::MAX });
                if table.map(page(vpn), Pfn::new(vpn), PageSize::K4, Attr::READ).is_ok() {
                    mapped.push(vpn);
                } else {
                    refused += 1;
                }
                stopped += usize::from(at == 4 && table.table().buckets() < 4);
                check(&table, &nodes, &mapped);
            }
            assert!(table.table().buckets() >= 4, "it never grew");
            while let Some(vpn) = mapped.pop() {
                table.unmap(page(vpn), Holes::Refuse).unwrap();
                check(&table, &nodes, &mapped);
            }
            table.destroy();
            assert_eq!(nodes.slab().usage().nodes, 0);
        }
    }
    assert!(refused > 0 && stopped > refused, "nothing was refused");
}

/// A range that cannot fit is refused before its pages are looked at, however long it is.
#[test]
fn a_huge_range_is_refused_at_once() {
    fn refuses<const CLUSTER_LOG: u32, const LOAD: usize>(nodes: &Instrumented<'_, u64, Solo>) {
        let table = Hashed::<Va48, Compact, _, Buckets<CLUSTER_LOG, 1, LOAD>>::new(nodes).unwrap();
        let mut table = Local::new(table, |_| ());
        table.map(page(7), Pfn::new(7), PageSize::K4, Attr::READ).unwrap();
        let before = (table.footprint(), nodes.slab().usage());
        for count in [1 << 20, 1 << 26, 1 << 34] {
            let huge = Pages::count(Vpn::new(1 << 34), count).unwrap();
            let (result, loads) = nodes.loads_of(|| table.map(huge, Pfn::new(0), PageSize::K4, Attr::READ));
            assert!(matches!(result, Err(Error::NoMemory { .. })), "{result:?}");
            assert!(loads <= 16, "{loads} loads for {count} pages");
            assert_eq!((table.footprint(), nodes.slab().usage()), before);
        }
        table.destroy();
    }
    let mut memory = vec![Chunk::ZERO; 64];
    let nodes = Instrumented::new(Slab::new(&mut memory, 0).unwrap());
    refuses::<0, 75>(&nodes);
    refuses::<0, 0>(&nodes);
    refuses::<3, 50>(&nodes);
}

/// A table that could not shrink while memory was short has buckets for all that is mapped next, and keeps them until that is
/// there.
#[test]
fn a_range_is_mapped_into_a_table_that_could_not_shrink() {
    for count in 2..80 {
        let mut memory = vec![Chunk::ZERO; 64];
        let nodes = Instrumented::new(Slab::<u64, Solo>::new(&mut memory, 0).unwrap());
        let mut table =
            Local::new(Hashed::<Va48, Compact, _, Buckets<0, 1, 150>>::new(&nodes).unwrap(), |_| ());
        for vpn in 0..300 {
            table.map(page(vpn), Pfn::new(vpn), PageSize::K4, Attr::READ).unwrap();
        }
        nodes.limit(0);
        for vpn in 0..300 {
            table.unmap(page(vpn), Holes::Refuse).unwrap();
        }
        nodes.limit(usize::MAX);
        let range = Pages::count(Vpn::new(0x1000), count).unwrap();
        table.map(range, Pfn::new(0x1000), PageSize::K4, Attr::READ).unwrap();
        for at in range {
            let found = table.lookup(at.address(PageSize::K4)).map(|leaf| leaf.frame.get());
            assert_eq!(found, Some(at.get()), "of {count} pages");
        }
        assert_eq!(table.unmap(range, Holes::Refuse), Ok(count));
        table.destroy();
        assert_eq!(nodes.out(), 0);
    }
}
