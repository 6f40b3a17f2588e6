//! What only lines with chosen places show.

use tlbkit_conformance::Instrumented;
use tlbkit_pagetable::geometry::Va48;
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Slab};
use tlbkit_pagetable::{Solo, Writer, destroy};

use super::ways::hash;
use super::*;

/// Returns lines that have the same three places in the smallest arrays, one more than there are places.
fn colliding() -> Vec<usize> {
    let array = Array { at: NodeAddr::new(0), log: 0 };
    let places = |line: usize| [0, 1, 2].map(|way| array.index(hash(way, line)));
    (0..).filter(|&line| places(line) == places(0)).take(WAYS + 1).collect()
}

#[test]
fn a_line_that_moves_to_a_way_already_probed_is_found() {
    let mut memory = vec![Chunk::ZERO; 64];
    let nodes = Instrumented::<u64, Solo>::new(Slab::new(&mut memory, 0).unwrap());
    let table = Cuckoo::<Va48, _>::new(&nodes);
    let mut writer = Writer::new(&table).unwrap();
    let [first, second, third, fourth] = colliding()[..] else { panic!("four lines") };
    let pages = |line: usize| Pages::one(Vpn::new(line * LINE));
    for line in [first, second, third] {
        writer.map(pages(line), Pfn::new(line), PageSize::K4, Attr::READ).unwrap();
    }
    let ways = |lines: [usize; 3]| lines.map(|line| table.find(0, line).map(|slot| slot.way));
    assert_eq!(ways([first, second, third]), [Some(0), Some(1), Some(2)]);
    writer.unmap(pages(first), Holes::Refuse).unwrap();
    // The walk to `third` has looked at ways 0 and 1, when `third` moves to way 0 and `fourth` takes its place.
    let slot = table.find(0, third).unwrap();
    let moves = || {
        let free = table.find(0, first).is_none().then(|| table.sets[0].ways[0].slot(0, third)).flatten();
        table.copy(slot, free.unwrap());
        table.clear(slot);
        table.fill(slot, fourth as u64 + 1, |_| 0);
        usize::MAX
    };
    let found = nodes.at_loads(2, &moves, || table.walk_to(Vpn::new(third * LINE)));
    assert!(found.is_ok_and(|found| found.leaf.frame.get() == third && found.slot.way == 0));
    // So does that to `second`, whose line was matched: the place has another line's PTEs before they are loaded.
    let slot = table.find(0, second).unwrap();
    let gone = || {
        table.put_pte(slot, 0, 0);
        table.clear(slot);
        table.fill(slot, first as u64 + 1, |_| {
            Compact::leaf(Pfn::new(7), PageSize::K4, Attr::READ, true).unwrap()
        });
        usize::MAX
    };
    let found = nodes.at_loads(2, &gone, || table.walk_to(Vpn::new(second * LINE)));
    assert!(found.is_err());
    // SAFETY: no walker is in the table.
    unsafe { writer.finish().reclaim() };
    // SAFETY: no walker is in the table.
    unsafe { destroy(table).reclaim() };
    assert_eq!(nodes.out(), 0);
}

#[test]
fn lines_without_a_place_make_the_ways_grow_and_without_memory_change_nothing() {
    let mut memory = vec![Chunk::ZERO; 64];
    let nodes = Instrumented::<u64, Solo>::new(Slab::new(&mut memory, 0).unwrap());
    let table = Cuckoo::<Va48, _>::new(&nodes);
    let mut writer = Writer::new(&table).unwrap();
    let mut pages = colliding().into_iter().map(|line| Pages::one(Vpn::new(line * LINE)));
    let last = pages.next_back().unwrap();
    let mut map = |pages: Pages| {
        writer.map(pages, Pfn::new(pages.first().get()), PageSize::K4, Attr::READ).map(|()| pages)
    };
    let mut mapped: Vec<_> = pages.map(|pages| map(pages).unwrap()).collect();
    let check = |mapped: &[Pages]| {
        let leaves: Vec<_> = table.leaves(Pages::new(Vpn::new(0), Vpn::new(1 << 30)).unwrap()).collect();
        assert_eq!(leaves.len(), mapped.len());
        for page in mapped.iter().map(|pages| pages.first()) {
            assert!(table.walk_to(page).is_ok_and(|found| found.leaf.frame.get() == page.get()));
        }
    };
    let before = (nodes.out(), table.footprint());
    nodes.fail_at(0);
    assert!(matches!(map(last), Err(Error::NoMemory { wanted: 1, .. })));
    assert!(nodes.failed() && before == (nodes.out(), table.footprint()));
    check(&mapped);
    // At a load of four lines in 21.
    mapped.push(map(last).unwrap());
    assert!(table.footprint().bytes > before.1.bytes);
    check(&mapped);
    // SAFETY: no walker is in the table.
    unsafe { writer.finish().reclaim() };
    // SAFETY: no walker is in the table.
    unsafe { destroy(table).reclaim() };
    assert_eq!(nodes.out(), 0);
}
