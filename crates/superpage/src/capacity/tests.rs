//! The LRU stack against lists, the counts against maps.

use std::collections::BTreeMap;
use std::vec::Vec;
use std::{format, vec};

use proptest::prelude::*;
use tlbkit_addr::PageSize;

use super::*;
use crate::Slot;

/// The model of a stack: the resident entries in no order, and the other entries, most recent first.
#[derive(Debug, Default)]
struct Lists {
    resident: Vec<StackEntry>,
    rest: Vec<StackEntry>,
}

impl Lists {
    fn refill(&mut self, entry: StackEntry, len: usize) {
        if self.resident.contains(&entry) {
            return;
        }
        self.rest.retain(|&other| other != entry);
        if self.resident.len() + self.rest.len() == len && self.rest.pop().is_none() {
            return;
        }
        self.resident.push(entry);
    }

    fn evict(&mut self, entry: StackEntry) {
        if self.resident.contains(&entry) {
            self.resident.retain(|&other| other != entry);
            self.rest.insert(0, entry);
        }
    }

    fn remove(&mut self, drop: impl Fn(&StackEntry) -> bool) -> (usize, bool) {
        let (resident, rest) = (self.resident.len(), self.rest.len());
        self.resident.retain(|entry| !drop(entry));
        self.rest.retain(|entry| !drop(entry));
        let fewer = resident - self.resident.len();
        (fewer + rest - self.rest.len(), fewer > 0)
    }
}

fn entry(unit: usize) -> StackEntry {
    StackEntry { unit, level: (unit % 3) as u8 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A stack of any length agrees with the model, whether or not the TLB's evictions are reported.
    #[test]
    fn a_stack_is_two_lists(len in 0usize..9, events in prop::collection::vec((0..7, 0usize..12), 1..150)) {
        let mut entries = vec![StackEntry::default(); len];
        let mut stack = Stack { entries: &mut entries, resident: 0, used: 0, size: 3 };
        let mut lists = Lists::default();
        for (event, unit) in events {
            let entry = entry(unit);
            match event {
                0..=2 => {
                    stack.refill(entry);
                    lists.refill(entry, len);
                }
                3 | 4 => {
                    stack.evict(entry);
                    lists.evict(entry);
                }
                5 => {
                    let drop = |entry: &StackEntry| entry.unit == unit;
                    prop_assert_eq!(stack.remove(drop), lists.remove(drop));
                }
                // The steps of a promotion.
                _ => {
                    let drop = |entry: &StackEntry| entry.unit / 4 == unit / 4;
                    let (gone, resident) = stack.remove(drop);
                    prop_assert_eq!((gone, resident), lists.remove(drop));
                    if gone > 0 {
                        stack.put(entry, resident);
                        let list = if resident { &mut lists.resident } else { &mut lists.rest };
                        list.insert(0, entry);
                    }
                }
            }
            let (resident, rest) = stack.live().split_at(stack.resident);
            prop_assert_eq!(rest, lists.rest.as_slice());
            let sorted = |list: &[StackEntry]| {
                let mut units: Vec<_> = list.iter().map(|entry| entry.unit).collect();
                units.sort_unstable();
                units
            };
            prop_assert_eq!(sorted(resident), sorted(&lists.resident));
        }
    }
}

/// Sixteen units and four superpage sizes: the thresholds of two fit 16 bits, one of them exactly, and those of two do not.
fn levels() -> (PageSizes, [u32; MAX_LEVELS]) {
    let sizes: Vec<_> = (12..=16).filter_map(PageSize::from_shift).collect();
    let mut thresholds = [0; MAX_LEVELS];
    thresholds[..5].copy_from_slice(&[1, 3, 65_535, 65_536, 200_000]);
    (PageSizes::new(PageSize::K4, &sizes).unwrap(), thresholds)
}

/// Each superpage has a count, of two counters if its threshold exceeds 16 bits, and a scratch counter.
#[test]
fn space() {
    let (page_sizes, thresholds) = levels();
    assert_eq!(
        Capacity::segment_memory(&page_sizes, thresholds),
        SegmentMemory { bits: 0, counters: 2 * 8 + 2 * 4 + 3 * 2 + 3 }
    );
    assert_eq!([0, 1, 64].map(|size| Capacity::stack_len(&page_sizes, size)), [0, 17, 80]);
}

/// A walk over the stack charges a superpage once, at the `needed`-th entry within it. Charges stop at the threshold.
#[test]
fn charges_of_every_size() {
    let (page_sizes, thresholds) = levels();
    let (levels, words) = layout(&page_sizes, thresholds);
    let mut counters = vec![0; words];
    let mut counts: BTreeMap<(usize, usize), u32> = BTreeMap::new();
    let mut cover = |level: usize, node: usize, needed: u16, entries: u16| {
        let count = counts.entry((level, node)).or_default();
        for at in 1..=entries {
            let charged = at == needed;
            *count = thresholds[level].min(*count + u32::from(charged));
            let ready = levels[level].cover(&mut counters, node, Pass::Count(needed));
            assert_eq!(ready, charged && *count == thresholds[level], "{level} {node} {count}");
        }
        assert!(!levels[level].cover(&mut counters, node, Pass::Clear));
    };
    for walk in 0..70_000 {
        cover(2, 1, 2, 3);
        cover(3, 1, 2, 2);
        cover(4, 0, 2, 4);
        if walk % 1000 == 0 {
            cover(3, 0, 2, 2);
            cover(2, 0, 2, 1);
            cover(2, 3, 3, 3);
        }
        if walk % 10_000 == 0 {
            cover(1, 0, 2, 2);
            cover(1, 7, 5, 5);
            cover(1, 5, 5, 4);
        }
    }
    for level in 1..=4 {
        for node in 0..page_sizes.nodes(level) {
            let expected = counts.get(&(level, node)).copied().unwrap_or(0);
            assert_eq!(levels[level].read(&counters, node), expected, "{level} {node}");
        }
    }
    assert_eq!((counts[&(4, 0)], counts[&(3, 1)], counts[&(2, 1)]), (70_000, 65_536, 65_535));
}

/// A superpage is charged if it needs as many entries as a counter can count, and not if it needs one more.
#[test]
fn the_most_entries() {
    let sizes = [12, 30].map(|shift| PageSize::from_shift(shift).unwrap());
    let page_sizes = PageSizes::new(PageSize::K4, &sizes).unwrap();
    let thresholds = [1000; MAX_LEVELS];
    for (needed, charges) in [(65_535, 1), (65_536, 0)] {
        // A TLB of two entries. Behind `needed` entries of the first segment the stack has a page of the second.
        let mut entries = vec![StackEntry::default(); Capacity::stack_len(&page_sizes, 2)];
        for (unit, entry) in entries.iter_mut().enumerate().take(needed) {
            entry.unit = unit;
        }
        entries[needed].unit = page_sizes.units_per_segment();
        let counters = Capacity::segment_memory(&page_sizes, thresholds).counters;
        let mut memory = (vec![Slot::default(); SegmentMemory::SLOTS], Vec::new(), vec![0; counters]);
        let memory = PolicyMemory { directory: &mut memory.0, bits: &mut memory.1, counters: &mut memory.2 };
        let mut capacity = Capacity::new(page_sizes, thresholds, [2, 0], memory, [&mut entries, &mut []]);
        (capacity.stacks[0].resident, capacity.stacks[0].used) = (2, needed + 1);
        assert_eq!(capacity.charge(0, Place { segment: 1, unit: 0 }, 0, |_| true), None);
        assert_eq!(capacity.charged(Place { segment: 0, unit: 0 }, 1), charges, "{needed}");
    }
}

/// A TLB that has more entries than the policy was told does not make the stack overflow.
#[test]
fn evictions_that_are_not_reported() {
    let (page_sizes, thresholds) = levels();
    let mut entries = [vec![StackEntry::default(); 17], Vec::new()];
    let [data, instruction] = &mut entries;
    let mut none = (Vec::new(), Vec::new(), Vec::new());
    let memory = PolicyMemory { directory: &mut none.0, bits: &mut none.1, counters: &mut none.2 };
    let mut capacity = Capacity::new(page_sizes, thresholds, [1, 0], memory, [data, instruction]);
    for segment in 0..40 {
        capacity.refill(0, Place { segment, unit: segment % 16 }, 0);
    }
    assert_eq!(capacity.stacks[0].resident, 17);
    assert!(format!("{capacity:?}").starts_with("Capacity"));
}
