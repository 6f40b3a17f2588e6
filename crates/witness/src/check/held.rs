//! Translations that a CPU may still hold although its tables have changed.
//!
//! A CPU may hold a current entry at any moment, so current entries need no record. When a word changes, each CPU that may have read
//! the old word gets an item with the old entry.

use std::vec::Vec;

use super::arch::{Entry, Links, Scope};
use super::hash::Map;
use super::memory::Line;

/// The number that entries have which every address space uses.
pub(super) const GLOBAL: u32 = u32::MAX;

/// An entry that a CPU may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// A leaf, a link, or an absence.
    pub(super) entry: Entry,
    /// For an absence: a link has taken its place.
    pub(super) linked: bool,
    /// When the word was stored that it was read from.
    pub(super) since: Line,
    /// The CPU that changed that word, and when.
    pub(super) writer: usize,
    pub(super) stale: Line,
    /// The CPU that changed it once more, and when, if it was read by way of a link that had been changed before.
    pub(super) again: Option<(usize, Line)>,
    /// The root of the table that it was read from, or 0 if it was read by way of a link that no table had.
    pub(super) root: u64,
    /// The invalidations that have begun and cover it, one bit each: their slots.
    pub(super) going: u64,
    /// MIPS32: the bits of a page that its entry was loaded with, by one kind of handler and the other.
    pub(super) sizes: [u32; 2],
}

/// A place in a CPU's TLB: the number, the level of the word, and the address without as many bits as the level says.
pub(super) type Place = (u32, u32, u64);

/// Returns the first and last address of a place.
pub(super) fn span((_, level, key): Place) -> (u64, u64) {
    (key << level, (key << level) + ((1 << level) - 1))
}

/// The items of a place.
#[derive(Debug, Default)]
struct Items {
    all: Vec<Item>,
    /// Where each is, by what it says, once they are many; empty if that is not known.
    index: Map<Said, usize>,
}

/// What tells the items of a place apart.
type Said = (Entry, bool, [u32; 2]);

/// As many items are looked through.
const FEW: usize = 16;

impl Items {
    /// Finds the item that says the same as another one, in a few steps however many there are.
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
pub(super) struct Held {
    items: Map<u32, Map<(u32, u64), Items>>,
    /// How many of a number's items are no absences.
    present: Map<u32, u32>,
    /// Where links are, by number, and how many.
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
    /// Tells whether an invalidation covers what is held at a place.
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

impl Held {
    /// Adds an item. Makes the one that says the same as young, unless no table says that any more: then the CPU reads it again
    /// only by way of a link that is older, and goes with it.
    pub(super) fn add(&mut self, place: Place, item: Item, said: bool) -> bool {
        let items = self.items.entry(place.0).or_default().entry((place.1, place.2)).or_default();
        match items.find(&item) {
            Some(old) => {
                if said {
                    // A global entry that two tables have is of neither alone.
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

    /// Tells whether there are items of a number that are no absences.
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

    /// Returns the items of a number on the way to, at, or below the pages from `first` to `last`.
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
    /// Costs a few look-ups for a few pages, and for each link if it covers all, otherwise a pass over the numbers that are named.
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

/// Notes that a link at a place has gone.
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
