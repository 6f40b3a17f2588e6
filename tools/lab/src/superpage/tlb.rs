//! The simulated machine: LRU TLBs whose entries have any size, and what is mapped with which.

use std::collections::{BTreeMap, HashMap};

/// A TLB entry: it maps the pages that agree with `first` under `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) first: usize,
    pub(super) mask: usize,
}

impl Entry {
    pub(super) fn around(page: usize, shift: u32) -> Self {
        let mask = usize::MAX << shift;
        Self { first: page & mask, mask }
    }
}

/// A fully associative TLB under true LRU: its entries, most recently used first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lru {
    entries: Vec<Entry>,
    size: usize,
}

impl Lru {
    pub(super) fn new(size: usize) -> Self {
        Self { entries: Vec::with_capacity(size + 1), size }
    }

    /// Looks a page up, and tells whether it was there.
    #[inline]
    pub(super) fn hit(&mut self, page: usize) -> bool {
        let Some(at) = self.entries.iter().position(|entry| page & entry.mask == entry.first) else {
            return false;
        };
        if at > 0 {
            let entry = self.entries[at];
            self.entries.copy_within(..at, 1);
            self.entries[0] = entry;
        }
        true
    }

    /// Takes an entry in, and returns what had to go for it.
    pub(super) fn refill(&mut self, entry: Entry) -> Option<Entry> {
        let evicted = if self.entries.len() >= self.size { self.entries.pop() } else { None };
        self.entries.insert(0, entry);
        evicted
    }

    /// Drops the entries within `whole`, and one that is larger.
    pub(super) fn remove(&mut self, whole: Entry) {
        let apart = |entry: &Entry| (entry.first ^ whole.first) & entry.mask & whole.mask != 0;
        self.entries.retain(apart);
    }

    /// Makes the entries within `whole` one, most recently used.
    pub(super) fn collapse(&mut self, whole: Entry) {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.first & whole.mask != whole.first);
        if self.entries.len() < before {
            self.entries.insert(0, whole);
        }
    }
}

/// The same TLB for pages of one size and nothing else: FIXED, and what the simulations' times are measured against.
#[derive(Debug)]
pub(super) struct Bare {
    pages: Vec<usize>,
    size: usize,
    pub(super) misses: u64,
}

impl Bare {
    pub(super) fn new(size: usize) -> Self {
        Self { pages: Vec::with_capacity(size), size, misses: 0 }
    }

    #[inline]
    pub(super) fn touch(&mut self, page: usize) {
        let at = match self.pages.iter().position(|&p| p == page) {
            Some(0) => return,
            Some(at) => at,
            None => {
                self.misses += 1;
                if self.pages.len() < self.size {
                    self.pages.push(page);
                }
                self.pages.len() - 1
            }
        };
        self.pages.copy_within(..at, 1);
        self.pages[0] = page;
    }
}

/// Base pages of a chunk of the map, as a power of two.
const CHUNK: u32 = 11;
/// Chunks whose place is remembered.
const NEAR: usize = 64;

/// The superpages of an address space.
#[derive(Debug)]
pub(super) struct Map {
    superpages: BTreeMap<usize, u32>,
    chunks: HashMap<usize, usize>,
    /// For each page of a chunk, the shift of what maps it.
    shifts: Vec<[u8; 1 << CHUNK]>,
    near: [(usize, usize); NEAR],
}

impl Default for Map {
    fn default() -> Self {
        Self {
            superpages: BTreeMap::new(),
            chunks: HashMap::new(),
            shifts: Vec::new(),
            near: [(usize::MAX, 0); NEAR],
        }
    }
}

impl Map {
    /// Returns the shift, in base pages, of what maps `page`.
    #[inline]
    pub(super) fn shift(&mut self, page: usize) -> u32 {
        let chunk = page >> CHUNK;
        let near = &mut self.near[chunk % NEAR];
        if near.0 != chunk {
            let Some(&at) = self.chunks.get(&chunk) else { return 0 };
            *near = (chunk, at);
        }
        self.shifts[near.1][page & ((1 << CHUNK) - 1)].into()
    }

    /// Maps `whole` as one superpage.
    pub(super) fn promote(&mut self, whole: Entry) {
        let shift = whole.mask.trailing_zeros();
        let last = whole.first | !whole.mask;
        let inside: Vec<usize> = self.superpages.range(whole.first..=last).map(|(&first, _)| first).collect();
        for first in inside {
            self.superpages.remove(&first);
        }
        self.superpages.insert(whole.first, shift);
        for chunk in whole.first >> CHUNK..=last >> CHUNK {
            let at = *self.chunks.entry(chunk).or_insert_with(|| {
                self.shifts.push([0; 1 << CHUNK]);
                self.shifts.len() - 1
            });
            let start = chunk << CHUNK;
            let (from, to) = (whole.first.max(start) - start, last.min(start | ((1 << CHUNK) - 1)) - start);
            self.shifts[at][from..=to].fill(shift as u8);
        }
    }

    /// Maps the superpage `whole` as base pages.
    pub(super) fn demote(&mut self, whole: Entry) {
        self.superpages.remove(&whole.first);
        let last = whole.first | !whole.mask;
        for chunk in whole.first >> CHUNK..=last >> CHUNK {
            let Some(&at) = self.chunks.get(&chunk) else { continue };
            let start = chunk << CHUNK;
            let (from, to) = (whole.first.max(start) - start, last.min(start | ((1 << CHUNK) - 1)) - start);
            self.shifts[at][from..=to].fill(0);
        }
    }

    /// Returns the superpages: first page and shift.
    pub(super) fn superpages(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.superpages.iter().map(|(&first, &shift)| (first, shift))
    }

    /// Returns how many pages superpages map here and there.
    pub(super) fn in_common(&self, other: &Self) -> u64 {
        // Of two superpages that overlap, one holds the other.
        let within = |map: &Self, first: usize, shift: u32| -> u64 {
            let last = first | ((1 << shift) - 1);
            map.superpages.range(first..=last).map(|(_, &inside)| 1u64 << inside.min(shift)).sum()
        };
        self.superpages()
            .map(|(first, shift)| match other.superpages.range(..=first).next_back() {
                Some((&start, &around)) if around >= shift && first >> around == start >> around => {
                    1 << shift
                }
                _ => within(other, first, shift),
            })
            .sum()
    }
}
