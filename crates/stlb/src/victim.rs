//! Direct-mapped with a victim cache.

use core::mem::MaybeUninit;

use tlbkit_addr::{Pages, VirtAddr};

use crate::cache::forward;
use crate::entry::{Bits, Entry, Units};
use crate::{BadMemory, Cache, Count, Direct, Found, Invalidate, Layout, Space};

/// A direct-mapped cache with a small fully associative one behind it that takes what conflicts push out (thesis 3.2,
/// after Jouppi).
///
/// An entry that is found among the victims changes places with the one that had taken its slot, so two addresses
/// that share a slot cost a longer search when they alternate, but never a walk. Beyond the memory of
/// [`Direct`], the victims live in this value.
#[derive(Debug)]
pub struct Victim<'a, L: Layout, const SETS: usize, const VICTIMS: usize> {
    main: Direct<'a, L, SETS>,
    victims: Victims<L, VICTIMS>,
}

impl<'a, L: Layout, const SETS: usize, const VICTIMS: usize> Victim<'a, L, SETS, VICTIMS> {
    /// How much memory the cache needs.
    pub const BYTES: usize = Direct::<'a, L, SETS>::BYTES;

    /// Returns an empty cache that lives in `memory`.
    ///
    /// # Errors
    ///
    /// As for [`Direct`](crate::Assoc::new).
    pub fn new(memory: &'a mut [MaybeUninit<u8>]) -> Result<Self, BadMemory> {
        Ok(Self {
            main: Direct::new(memory)?,
            victims: Victims { entries: [Entry::empty(); VICTIMS], next: 0 },
        })
    }

    /// Returns what is known of `at`. Costs one probe, or up to `1 + VICTIMS`.
    #[inline]
    pub fn lookup(&mut self, at: VirtAddr, space: Space<L>) -> Option<L::Data> {
        self.find(at, space).map(|found| found.data)
    }
}

impl<L: Layout, const SETS: usize, const VICTIMS: usize> Cache<L> for Victim<'_, L, SETS, VICTIMS> {
    #[inline]
    fn find(&mut self, at: VirtAddr, space: Space<L>) -> Option<Found<L::Data>> {
        let count = self.main.count();
        if let Some(found) = self.main.locate(at, space) {
            count.hit();
            return Some(found);
        }
        let Some(slot) = self.victims.slot(at, space) else {
            count.miss();
            return None;
        };
        count.hit();
        let data = slot.entry.data;
        *slot.entry = self.main.replace(at, space, data).unwrap_or_else(Entry::empty);
        Some(Found { data, probes: 2 + slot.at })
    }

    fn peek(&self, at: VirtAddr, space: Space<L>) -> Option<L::Data> {
        let victim =
            || self.victims.entries.iter().find(|entry| Some(entry.tag) == Bits::<L>::tag(at, space));
        self.main.peek(at, space).or_else(|| victim().map(|entry| entry.data))
    }

    fn fill(&mut self, at: VirtAddr, space: Space<L>, data: L::Data) {
        // What is known of `at` may be among the victims; there must not be two answers.
        if let Some(slot) = self.victims.slot(at, space) {
            *slot.entry = Entry::empty();
        }
        if let Some(old) = self.main.replace(at, space, data) {
            self.main.count().conflict();
            self.victims.push(old);
        }
    }

    fn count(&self) -> &L::Count {
        self.main.count()
    }
}

impl<L: Layout, const SETS: usize, const VICTIMS: usize> Invalidate<L> for Victim<'_, L, SETS, VICTIMS> {
    forward!(this => this.main, this.victims);
}

/// The victims, replaced first in, first out.
#[derive(Debug)]
struct Victims<L: Layout, const VICTIMS: usize> {
    entries: [Entry<L>; VICTIMS],
    next: usize,
}

/// A victim that matched, and its place.
struct Slot<'a, L: Layout> {
    entry: &'a mut Entry<L>,
    at: usize,
}

impl<L: Layout, const VICTIMS: usize> Victims<L, VICTIMS> {
    #[inline]
    fn slot(&mut self, at: VirtAddr, space: Space<L>) -> Option<Slot<'_, L>> {
        let tag = Bits::<L>::tag(at, space)?;
        let found = self.entries.iter_mut().enumerate().find(|(_, entry)| entry.tag == tag);
        found.map(|(at, entry)| Slot { entry, at })
    }

    fn push(&mut self, entry: Entry<L>) {
        // An empty slot, or the one that was filled longest ago.
        let slot = self.entries.iter().position(|entry| Bits::<L>::is_empty(entry.tag)).unwrap_or(self.next);
        if let Some(victim) = self.entries.get_mut(slot) {
            *victim = entry;
            self.next = (slot + 1) % VICTIMS;
        }
    }

    fn sweep(&mut self, is_stale: impl Fn(L::Tag) -> bool) {
        for entry in self.entries.iter_mut().filter(|entry| is_stale(entry.tag)) {
            *entry = Entry::empty();
        }
    }

    fn sweep_units(&mut self, pages: Pages, is_stale: impl Fn(L::Tag, Units) -> bool) {
        if let Some(units) = Bits::<L>::units(pages) {
            self.sweep(|tag| is_stale(tag, units));
        }
    }
}

impl<L: Layout, const VICTIMS: usize> Invalidate<L> for Victims<L, VICTIMS> {
    fn invalidate_pages(&mut self, space: Space<L>, pages: Pages) {
        self.sweep_units(pages, |tag, units| Bits::<L>::is_in(tag, space) && Bits::<L>::within(tag, units));
    }

    fn invalidate_global(&mut self, pages: Pages) {
        self.sweep_units(pages, Bits::<L>::within);
    }

    fn invalidate_space(&mut self, space: Space<L>) {
        self.sweep(|tag| Bits::<L>::is_in(tag, space));
    }

    fn invalidate_all(&mut self) {
        self.sweep(|_| true);
    }
}
