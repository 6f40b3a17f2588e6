//! Translations that a CPU may still hold although its tables have changed.
//!
//! A CPU may hold a current entry at any moment, so current entries need no record. When a word changes, each CPU that may have read
//! the old word gets an item with the old entry.

use std::vec::Vec;

use super::arch::{Entry, Links, Scope};
use super::hash::Map;
use super::memory::Line;

/// The number of global entries, which every address space uses.
pub(super) const GLOBAL: u32 = u32::MAX;

/// An entry that a CPU may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// A leaf, a link, or an absence.
    pub(super) entry: Entry,
    /// For an absence: whether the word has become a link.
    pub(super) linked: bool,
    /// The line in which the word that the entry was read from was stored.
    pub(super) since: Line,
    /// The CPU that changed this word, or the link above it, and the line of the change.
    pub(super) writer: usize,
    pub(super) stale: Line,
    /// If the entry was read through a link that had been changed before: the CPU that changed the word, and the line.
    pub(super) again: Option<(usize, Line)>,
    /// The root of the table from which the entry was read, or 0 if it was read through a link that no table had.
    pub(super) root: u64,
    /// The invalidations that have begun and cover the item: the bits of their slots.
    pub(super) going: u64,
    /// MIPS32: the logarithm of the page size with which each of two kinds of handler loads the entry.
    pub(super) sizes: [u32; 2],
}

/// A place in a CPU's TLB: the number, the level of the word (the logarithm of the bytes that it covers), and the address shifted right
/// by the level.
pub(super) type Place = (u32, u32, u64);

/// Returns the first and last address of a place.
pub(super) fn span((_, level, key): Place) -> (u64, u64) {
    (key << level, (key << level) + ((1 << level) - 1))
}

/// The items of a place.
#[derive(Debug, Default)]
struct Items {
    all: Vec<Item>,
    /// The index of each item by its [`Said`]; empty if there are few items, or after items were removed.
    index: Map<Said, usize>,
}

/// The fields by which the items of a place differ.
type Said = (Entry, bool, [u32; 2]);

/// Up to this number of items, a search reads all of them.
const FEW: usize = 16;

impl Items {
    /// Finds the item with the same [`Said`] as `item`. The time does not depend on the number of items.
    fn find(&mut self, item: &Item) -> Option<&mut Item> {
        let at = if self.all.len() <= FEW {
            self.all.iter().position(|old| old.said() == item.said())
        } else {
            if self.index.is_empty() {
                self.index = self.all.iter().enumerate().map(|(at, item)| (item.said(), at)).collect();
            }
            self.index.get(&item.said()).copied()
        };
        self.all.get_mut(at?)
    }

    fn push(&mut self, item: Item) {
        if !self.index.is_empty() {
            self.index.insert(item.said(), self.all.len());
        }
        self.all.push(item);
    }

    fn retain(&mut self, stays: impl FnMut(&mut Item) -> bool) {
        let before = self.all.len();
        self.all.retain_mut(stays);
        if self.all.len() != before {
            self.index.clear();
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct StaleEntries {
    items: Map<u32, Map<(u32, u64), Items>>,
    /// For each number, how many of its items are leaves or links.
    present: Map<u32, u32>,
    /// For each number, the places that have links, and how many.
    links: Map<u32, Map<(u32, u64), u32>>,
}

impl Item {
    fn said(&self) -> Said {
        (self.entry, self.linked, self.sizes)
    }

    fn is_leaf(&self) -> bool {
        match self.entry {
            Entry::Leaf { .. } => true,
            Entry::Link { .. } => false,
            Entry::Absent => !self.linked,
        }
    }
}

impl Scope {
    /// Tells whether an invalidation covers an item at a place.
    pub(super) fn covers(&self, place: Place, item: &Item) -> bool {
        let tagged = match place.0 {
            GLOBAL => self.globals,
            asid => self.asid.is_none_or(|named| u32::from(named) == asid),
        };
        let (first, last) = span(place);
        let near = self.pages.is_none_or(|(from, to)| first <= to && from <= last);
        tagged
            && if item.is_leaf() {
                near
            } else {
                match self.links {
                    Links::None => false,
                    Links::OnTheWay => near,
                    Links::All => true,
                }
            }
    }
}

impl StaleEntries {
    /// Adds an item, and returns whether it is new. If there is an item with the same [`Said`], renews it if `said` is true, that is,
    /// if a table had the entry until now. Otherwise the CPU can read the entry again only through an older link, and the item is
    /// removed together with this link.
    pub(super) fn add(&mut self, place: Place, item: Item, said: bool) -> bool {
        let items = self.items.entry(place.0).or_default().entry((place.1, place.2)).or_default();
        match items.find(&item) {
            Some(old) => {
                if said {
                    // A global entry of two tables belongs to neither alone.
                    let root = if place.0 == GLOBAL && old.root != item.root { 0 } else { item.root };
                    *old = Item { since: old.since, root, ..item };
                } else {
                    old.again = item.again.or(old.again);
                    // An invalidation that had begun before the CPU read this again does not cover it.
                    old.going &= item.going;
                }
                false
            }
            None => {
                items.push(item);
                if let Entry::Link { .. } = item.entry {
                    *self.links.entry(place.0).or_default().entry((place.1, place.2)).or_default() += 1;
                }
                if item.entry != Entry::Absent {
                    *self.present.entry(place.0).or_default() += 1;
                }
                true
            }
        }
    }

    /// Tells whether a number has items that are leaves or links.
    pub(super) fn has_present(&self, tag: u32) -> bool {
        self.present.contains_key(&tag)
    }

    /// Tells whether there are links among the items.
    pub(super) fn has_links(&self) -> bool {
        !self.links.is_empty()
    }

    /// Returns the links of a number.
    pub(super) fn links(&self, tag: u32) -> impl Iterator<Item = (Place, Item)> {
        let places = self.links.get(&tag).into_iter().flatten();
        let all = places.flat_map(move |(&(level, key), _)| {
            let place = (tag, level, key);
            self.at(place).iter().map(move |&item| (place, item))
        });
        all.filter(|(_, item)| matches!(item.entry, Entry::Link { .. }))
    }

    /// Returns the numbers under which there are items.
    pub(super) fn tags(&self) -> impl Iterator<Item = u32> {
        self.items.keys().copied()
    }

    /// Returns the items at a place.
    pub(super) fn at(&self, place: Place) -> &[Item] {
        self.items
            .get(&place.0)
            .and_then(|items| items.get(&(place.1, place.2)))
            .map_or(&[], |items| items.all.as_slice())
    }

    /// Returns the items of a number that cover a page from `first` to `last`, or are links above such a page.
    pub(super) fn near(&self, tag: u32, levels: &[u32], first: u64, last: u64) -> Vec<(Place, Item)> {
        let Some(items) = self.items.get(&tag) else { return Vec::new() };
        let mut found = Vec::new();
        let mut take = |key: (u32, u64), at: &Items| {
            found.extend(at.all.iter().map(|&item| ((tag, key.0, key.1), item)));
        };
        if (last - first) >> 12 < 64 {
            for &level in levels {
                for key in first >> level..=last >> level {
                    items.get(&(level, key)).into_iter().for_each(|at| take((level, key), at));
                }
            }
        } else {
            for (&key, at) in items {
                let (from, to) = span((tag, key.0, key.1));
                if from <= last && first <= to {
                    take(key, at);
                }
            }
        }
        found
    }

    /// Returns all items.
    pub(super) fn all(&self) -> impl Iterator<Item = (Place, &Item)> {
        self.items.iter().flat_map(|(&tag, places)| {
            places.iter().flat_map(move |(&(level, key), items)| {
                items.all.iter().map(move |item| ((tag, level, key), item))
            })
        })
    }

    /// Looks at each item that an invalidation covers, and removes those for which `go` returns true.
    ///
    /// For a few pages, costs a few look-ups, and one for each link if the invalidation covers all links. Otherwise costs a pass over
    /// the items of the numbers that the invalidation names.
    pub(super) fn sweep(
        &mut self,
        scope: &Scope,
        levels: &[u32],
        mut go: impl FnMut(Place, &mut Item) -> bool,
    ) {
        let few = scope.pages.filter(|(first, last)| (last - first) >> 12 < 64);
        let (present, links) = (&mut self.present, &mut self.links);
        let mut each = |tag: u32, items: &mut Map<(u32, u64), Items>| {
            let linked: Vec<(u32, u64)> = match links.get(&tag) {
                Some(places) if few.is_some() && scope.links == Links::All => {
                    places.keys().copied().collect()
                }
                _ => Vec::new(),
            };
            let mut one = |key: (u32, u64), at: &mut Items| {
                let place = (tag, key.0, key.1);
                at.retain(|item| {
                    let goes = scope.covers(place, item) && go(place, item);
                    if goes && let Entry::Link { .. } = item.entry {
                        unlink(links, place);
                    }
                    if goes
                        && item.entry != Entry::Absent
                        && let Some(count) = present.get_mut(&tag)
                    {
                        *count -= 1;
                        if *count == 0 {
                            present.remove(&tag);
                        }
                    }
                    !goes
                });
                !at.all.is_empty()
            };
            match few {
                Some((first, last)) => {
                    for &level in levels {
                        for key in first >> level..=last >> level {
                            if items.get_mut(&(level, key)).is_some_and(|at| !one((level, key), at)) {
                                items.remove(&(level, key));
                            }
                        }
                    }
                    for key in linked {
                        if items.get_mut(&key).is_some_and(|at| !one(key, at)) {
                            items.remove(&key);
                        }
                    }
                }
                None => items.retain(|&key, at| one(key, at)),
            }
        };
        match scope.asid {
            Some(asid) => {
                self.items.get_mut(&asid.into()).into_iter().for_each(|items| each(asid.into(), items));
                if scope.globals {
                    self.items.get_mut(&GLOBAL).into_iter().for_each(|items| each(GLOBAL, items));
                }
            }
            None => self.items.iter_mut().for_each(|(&tag, items)| each(tag, items)),
        }
        self.items.retain(|_, items| !items.is_empty());
    }
}

/// Subtracts a link that was removed from a place.
fn unlink(links: &mut Map<u32, Map<(u32, u64), u32>>, (tag, level, key): Place) {
    let Some(places) = links.get_mut(&tag) else { return };
    if let Some(count) = places.get_mut(&(level, key)) {
        *count -= 1;
        if *count == 0 {
            places.remove(&(level, key));
        }
    }
    if places.is_empty() {
        links.remove(&tag);
    }
}
