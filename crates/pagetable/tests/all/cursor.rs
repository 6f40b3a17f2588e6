//! The cursor against a model, and against the operations on ranges: the same table, the same errors, the same flushes.
#![cfg(target_pointer_width = "64")]

use std::collections::BTreeMap;

use crate::common::Odd;
use proptest::prelude::*;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::{Compact, Format, Sv39, X86};
use tlbkit_pagetable::geometry::{Va39, Va48};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::{Chunk, Reclaim, Slab};
use tlbkit_pagetable::{
    Change, Error, FlushAll, PageCursor as _, Radix, Shared, Table as _, Writer, destroy,
};

const K4: PageSize = PageSize::K4;
const RW: Attr = Attr::READ.union(Attr::WRITE);

#[derive(Clone, Debug)]
enum Op {
    Seek(usize),
    Step,
    Next(usize),
    Map(usize),
    Unmap,
    Protect(bool),
    Replace(usize),
    Complete,
}

/// Pages around the boundaries of nodes, of every level.
fn page() -> impl Strategy<Value = usize> {
    (0..2_usize, 0..3_usize, 0..6_usize).prop_map(|(high, middle, low)| high << 11 | middle << 8 | low)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => page().prop_map(Op::Seek),
        3 => Just(Op::Step),
        2 => page().prop_map(Op::Next),
        6 => (1..64_usize).prop_map(Op::Map),
        4 => Just(Op::Unmap),
        3 => any::<bool>().prop_map(Op::Protect),
        3 => (1..64_usize).prop_map(Op::Replace),
        1 => Just(Op::Complete),
    ]
}

/// Does the operations by one cursor after the other, each for a part of them, and compares with a map of pages.
fn agrees<G: Radix, F: Format<Word = u64>>(parts: &[Vec<Op>], chunks: usize) {
    let mut memory = vec![Chunk::ZERO; chunks];
    let slab = Slab::<u64, Shared>::new(&mut memory, 0x8000_0000).unwrap();
    let table: Mpt<'_, G, F, _> = Mpt::new(&slab).unwrap();
    let mut model = BTreeMap::<usize, (usize, bool)>::new();
    let empty = table.footprint();
    let mut writer = Writer::new(&table).unwrap();
    for part in parts {
        let mut at = 0;
        let mut cursor = writer.cursor(Vpn::new(at)).unwrap();
        for op in part {
            let mapped = model.get(&at).copied();
            let not_mapped = Error::NotMapped { at: Vpn::new(at).address(K4) };
            match *op {
                Op::Seek(to) => {
                    cursor.seek(Vpn::new(to)).unwrap();
                    at = to;
                }
                Op::Step => {
                    assert!(cursor.step());
                    at += 1;
                }
                Op::Next(last) => {
                    let next =
                        model.range(at + 1..).next().map(|(&page, _)| page).filter(|&page| page <= last);
                    let found = cursor.next_mapped(Vpn::new(last));
                    assert_eq!(found.map(|leaf| leaf.at.vpn(K4).get()), next);
                    at = next.unwrap_or(at);
                }
                Op::Map(frame) => match (cursor.map(Pfn::new(frame), RW), mapped) {
                    (Ok(()), None) => assert_eq!(model.insert(at, (frame, true)), None),
                    (Err(Error::Occupied { at: page, .. }), Some(_)) => assert_eq!(page.vpn(K4).get(), at),
                    (done, _) => panic!("{done:?} where {mapped:?} is"),
                },
                Op::Unmap => {
                    let done = cursor.unmap();
                    assert_eq!(
                        done.map(|leaf| leaf.frame.get()),
                        mapped.map(|(frame, _)| frame).ok_or(not_mapped)
                    );
                    assert!(mapped.is_none() || cursor.pending().flush().covers(Pages::one(Vpn::new(at))));
                    model.remove(&at);
                }
                Op::Protect(write) => {
                    let change = if write { Change::set(Attr::WRITE) } else { Change::clear(Attr::WRITE) };
                    let done = cursor.protect(change).map(|leaf| leaf.attr.contains(Attr::WRITE));
                    assert_eq!(done, mapped.map(|(_, write)| write).ok_or(not_mapped));
                    model.entry(at).and_modify(|page| page.1 = write);
                }
                Op::Replace(frame) => {
                    let done = cursor
                        .replace(Pfn::new(frame), RW, FlushAll::in_place(&mut |_| ()))
                        .map(|leaf| leaf.frame.get());
                    assert_eq!(done, mapped.map(|(frame, _)| frame).ok_or(not_mapped));
                    model.entry(at).and_modify(|page| *page = (frame, true));
                }
                // SAFETY: no CPU walks the table.
                Op::Complete => unsafe { cursor.pending().complete() },
            }
            assert_eq!(cursor.page(), Vpn::new(at));
            let look = cursor.look().map(|leaf| (leaf.frame.get(), leaf.attr.contains(Attr::WRITE)));
            assert_eq!(look, model.get(&at).copied());
        }
    }
    // By the operations on ranges it is the same table, and it is empty when all of that is gone.
    for (&page, &(frame, write)) in &model {
        let leaf = writer.cursor(Vpn::new(page)).unwrap().look().unwrap();
        assert_eq!((leaf.frame.get(), leaf.attr.contains(Attr::WRITE)), (frame, write));
        assert_eq!(writer.unmap(Pages::one(Vpn::new(page)), tlbkit_pagetable::Holes::Refuse), Ok(1));
    }
    assert_eq!(table.footprint(), empty);
    // SAFETY: no CPU walks the table.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
    assert_eq!((slab.usage().nodes, slab.held().lost(), slab.held().pending()), (0, 0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_cursor_is_a_map_of_pages(parts in prop::collection::vec(prop::collection::vec(op(), 0..40), 1..4)) {
        agrees::<Va48, Compact>(&parts, 64);
        agrees::<Va39, Sv39>(&parts, 64);
        agrees::<Va48, X86>(&parts, 64);
        agrees::<Odd, Compact>(&parts, 64);
    }
}

/// A change acts on the leaf that is there, all of it, whatever its size, and in however many slots it stands.
#[test]
fn a_cursor_acts_on_whole_leaves() {
    fn acts<G: Radix, F: Format<Word = u64>>(size: PageSize) {
        let mut memory = vec![Chunk::ZERO; 32];
        let slab = Slab::<u64, Shared>::new(&mut memory, 0x8000_0000).unwrap();
        let table: Mpt<'_, G, F, _> = Mpt::new(&slab).unwrap();
        let mut writer = Writer::new(&table).unwrap();
        let count = size.pages(K4).unwrap();
        let pages = Pages::count(Vpn::new(2 * count), 2 * count).unwrap();
        writer.map(pages, Pfn::new(4 * count), size, RW).unwrap();
        let mut cursor = writer.cursor(Vpn::new(2 * count + 1)).unwrap();
        assert_eq!(
            cursor.map(Pfn::new(1), RW),
            Err(Error::Occupied { at: Vpn::new(2 * count).address(K4), size })
        );
        assert_eq!(cursor.protect(Change::clear(Attr::WRITE)).unwrap().size, size);
        assert_eq!(
            cursor.replace(Pfn::new(8 * count), Attr::READ, FlushAll::in_place(&mut |_| ())).unwrap().attr,
            Attr::READ
        );
        assert_eq!(cursor.next_mapped(Vpn::new(9 * count)).unwrap().frame, Pfn::new(5 * count));
        assert_eq!(cursor.page(), Vpn::new(3 * count));
        assert_eq!(cursor.next_mapped(Vpn::new(9 * count)), None);
        assert_eq!(cursor.page(), Vpn::new(3 * count));
        cursor.seek(Vpn::new(3 * count - 1)).unwrap();
        assert_eq!(cursor.unmap().unwrap().frame, Pfn::new(8 * count));
        assert_eq!(cursor.look(), None);
        assert!(cursor.step());
        assert_eq!(cursor.unmap().unwrap().frame, Pfn::new(5 * count));
        assert!(cursor.pending().flush().covers(pages));
        // SAFETY: no CPU walks the table.
        unsafe {
            writer.finish().reclaim();
            assert_eq!(table.footprint().ptes, 0);
            destroy(table).reclaim();
        }
        assert_eq!(slab.usage().nodes, 0);
    }
    acts::<Va39, Sv39>(PageSize::M2);
    acts::<Va48, X86>(PageSize::M2);
    acts::<Odd, Compact>(PageSize::from_shift(13).unwrap());
    acts::<Odd, Compact>(PageSize::K64);
}

#[test]
fn a_cursor_stops_at_the_ends_of_the_space() {
    let mut memory = vec![Chunk::ZERO; 16];
    let slab = Slab::<u64, Shared>::new(&mut memory, 0x8000_0000).unwrap();
    let table: Mpt<'_, Va39, Sv39, _> = Mpt::new(&slab).unwrap();
    let mut writer = Writer::new(&table).unwrap();
    let (low, top) = ((1 << 26) - 1, usize::MAX >> 12);
    assert_eq!(
        writer.cursor(Vpn::new(low + 1)).unwrap_err(),
        Error::OutOfRange { at: Vpn::new(low + 1).address(K4) }
    );
    let mut cursor = writer.cursor(Vpn::new(low)).unwrap();
    assert!(!cursor.step());
    assert_eq!(cursor.page(), Vpn::new(low));
    assert!(cursor.seek(Vpn::new(low + 1)).is_err());
    cursor.seek(Vpn::new(top)).unwrap();
    assert!(!cursor.step());
    assert_eq!(cursor.next_mapped(Vpn::new(usize::MAX)), None);
    assert_eq!(cursor.page(), Vpn::new(top));
    // SAFETY: no CPU walks the table.
    unsafe {
        writer.finish().reclaim();
        destroy(table).reclaim();
    }
}
