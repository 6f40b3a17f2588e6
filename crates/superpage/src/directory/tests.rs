//! Tests of the directory against a map. Tables are small, so that probe sequences collide and wrap around the end.

use std::collections::{BTreeMap, BTreeSet};
use std::vec;

use proptest::prelude::*;
use tlbkit_addr::Vpn;

use super::*;
use crate::testing::page_sizes;

#[derive(Clone, Debug)]
enum Event {
    Insert(usize),
    Find(usize),
    Remove(usize),
    /// The pages from one to another are unmapped.
    Unmapped(usize, usize),
}

fn segments() -> impl Strategy<Value = usize> {
    // The last segment that exists: its number plus one must not look like the key of a free slot.
    prop_oneof![20 => 0usize..30, 1 => Just(usize::MAX >> 1)]
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => segments().prop_map(Event::Insert),
        4 => segments().prop_map(Event::Find),
        4 => segments().prop_map(Event::Remove),
        1 => (0usize..60, 0usize..12).prop_map(|(first, more)| Event::Unmapped(first, first + more)),
        1 => (0usize..60).prop_map(|first| Event::Unmapped(first, usize::MAX)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_directory_is_a_map(chunks in 1usize..9, spare in 0usize..2, events in prop::collection::vec(events(), 1..120)) {
        let mut slots = vec![Slot { key: 3, chunk: 5, free: 7 }; SLOTS * chunks + spare];
        let mut directory = Directory::new(&mut slots, chunks);
        let mut map: BTreeMap<usize, usize> = BTreeMap::new();
        for event in events {
            match event {
                Event::Insert(segment) if map.contains_key(&segment) => {
                    prop_assert_eq!(directory.find(segment), map.get(&segment).copied());
                }
                Event::Insert(segment) if map.len() == chunks => {
                    prop_assert_eq!(directory.insert(segment), Err(Exhausted));
                }
                Event::Insert(segment) => {
                    let chunk = directory.insert(segment);
                    prop_assert!(chunk.is_ok_and(|chunk| chunk < chunks && map.values().all(|&taken| taken != chunk)));
                    prop_assert_eq!(directory.near(segment), chunk.ok());
                    map.insert(segment, chunk.unwrap());
                }
                Event::Find(segment) => {
                    prop_assert_eq!(directory.find(segment), map.get(&segment).copied());
                    prop_assert_eq!(directory.near(segment), map.get(&segment).copied());
                }
                Event::Remove(segment) => {
                    directory.remove(segment);
                    map.remove(&segment);
                }
                Event::Unmapped(first, last) => {
                    directory.unmapped(&page_sizes([12, 13]), Pages::new(Vpn::new(first), Vpn::new(last)).unwrap());
                    map.retain(|segment, _| !(first <= 2 * segment && 2 * segment < last));
                }
            }
            prop_assert_eq!((directory.used(), directory.capacity()), (map.len(), chunks));
            prop_assert_eq!(directory.iter().collect::<BTreeMap<_, _>>(), map.clone());
            for segment in 0..30 {
                prop_assert!(directory.near(segment).is_none_or(|chunk| map.get(&segment) == Some(&chunk)));
                prop_assert_eq!(directory.find(segment), map.get(&segment).copied());
            }
        }
    }
}

/// The hash spreads adjacent segments over the table: otherwise a lookup would probe many slots.
#[test]
fn neighbours_start_apart() {
    for len in [2, 16, 100, 1000] {
        let mut slots = vec![Slot::default(); len];
        let directory = Directory::new(&mut slots, len / SLOTS);
        let homes: BTreeSet<_> = (1..=len / 2).map(|key| directory.home(key)).collect();
        assert!(homes.iter().all(|&home| home < len));
        assert!(homes.len() * 5 >= len * 2, "{} places for {} segments", homes.len(), len / 2);
    }
}
