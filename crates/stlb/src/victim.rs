//! A direct-mapped cache with a victim cache.

use core::mem::{MaybeUninit, swap};

use tlbkit_addr::{Pages, VirtAddr};

use crate::cache::forward;
use crate::entry::{Bits, Entry, Units};
use crate::{AsidTag, BadMemory, Cache, Count, Direct, EntryLayout, Hit, Invalidate};

/// A direct-mapped cache with a small fully associative victim cache, which takes the entries that conflicts evict (thesis
/// 3.2, after Jouppi).
///
/// An entry that is found among the victims changes places with the entry in its slot. So two addresses that share a slot
/// and alternate cost a longer search, but no walk. The search starts at the newest victim; a new victim replaces the
/// oldest. The victims are in this value, not in the memory of [`Direct`].
#[derive(Debug)]
pub struct Victim<'a, L: EntryLayout, const SETS: usize, const VICTIMS: usize> {
    main: Direct<'a, L, SETS>,
    victims: Victims<L, VICTIMS>,
}

impl<'a, L: EntryLayout, const SETS: usize, const VICTIMS: usize> Victim<'a, L, SETS, VICTIMS> {
    /// How much memory the cache needs.
    pub const BYTES: usize = Direct::<'a, L, SETS>::BYTES;

    /// Returns an empty cache that lives in `memory`.
    ///
    /// # Errors
    ///
    /// As for [`Direct`](crate::Assoc::new).
    pub fn new(memory: &'a mut [MaybeUninit<u8>]) -> Result<Self, BadMemory> {
        Ok(Self { main: Direct::new(memory)?, victims: Victims([Entry::empty(); VICTIMS]) })
    }

    /// Returns the datum for `at`. The time is one probe, or up to `1 + VICTIMS` probes.
    #[inline]
    pub fn lookup(&mut self, at: VirtAddr, space: AsidTag<L>) -> Option<L::Data> {
        self.find(at, space).map(|found| found.data)
    }
}

impl<L: EntryLayout, const SETS: usize, const VICTIMS: usize> Cache<L> for Victim<'_, L, SETS, VICTIMS> {
    #[inline]
    fn find(&mut self, at: VirtAddr, space: AsidTag<L>) -> Option<Hit<L::Data>> {
        let count = self.main.count();
        if let Some(found) = self.main.locate(at, space) {
            count.hit();
            return Some(found);
        }
        let Some(place) = self.victims.position(at, space) else {
            count.miss();
            return None;
        };
        count.hit();
        let entry = self.victims.take(place);
        if let Some(old) = self.main.replace(at, space, entry.data) {
            self.victims.push(old);
        }
        Some(Hit { data: entry.data, probes: 2 + place })
    }

    fn peek(&self, at: VirtAddr, space: AsidTag<L>) -> Option<L::Data> {
        let victim = || self.victims.0.get(self.victims.position(at, space)?).map(|entry| entry.data);
        self.main.peek(at, space).or_else(victim)
    }

    fn fill(&mut self, at: VirtAddr, space: AsidTag<L>, data: L::Data) {
        // If a victim is an entry for `at`, it must go: otherwise there would be two entries for `at`.
        if let Some(place) = self.victims.position(at, space) {
            self.victims.take(place);
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

impl<L: EntryLayout, const SETS: usize, const VICTIMS: usize> Invalidate<L> for Victim<'_, L, SETS, VICTIMS> {
    forward!(this => this.main, this.victims);
}

/// The victims, replaced first in, first out.
///
/// The victims are in the order of their arrival, the newest first, followed by the empty slots. So a new victim drops the
/// last slot: an empty slot if there is one, or else the oldest victim.
#[derive(Debug)]
struct Victims<L: EntryLayout, const VICTIMS: usize>([Entry<L>; VICTIMS]);

impl<L: EntryLayout, const VICTIMS: usize> Victims<L, VICTIMS> {
    /// Returns the index of the victim for `at`.
    #[inline]
    fn position(&self, at: VirtAddr, space: AsidTag<L>) -> Option<usize> {
        let tag = Bits::<L>::tag(at, space)?;
        self.0.iter().position(|entry| entry.tag == tag)
    }

    /// Adds a victim as the newest, and drops the last slot.
    fn push(&mut self, mut entry: Entry<L>) {
        for slot in &mut self.0 {
            swap(slot, &mut entry);
        }
    }

    /// Removes and returns the victim at `place`. The older victims move up by one.
    fn take(&mut self, place: usize) -> Entry<L> {
        let mut entry = Entry::empty();
        for slot in self.0.iter_mut().skip(place).rev() {
            swap(slot, &mut entry);
        }
        entry
    }

    fn sweep(&mut self, is_stale: impl Fn(L::Tag) -> bool) {
        let mut kept = 0;
        for place in 0..VICTIMS {
            if !is_stale(self.0[place].tag) {
                self.0.swap(kept, place);
                kept += 1;
            }
        }
        self.0[kept..].fill(Entry::empty());
    }

    fn sweep_units(&mut self, pages: Pages, is_stale: impl Fn(L::Tag, Units) -> bool) {
        if let Some(units) = Bits::<L>::units(pages) {
            self.sweep(|tag| is_stale(tag, units));
        }
    }
}

impl<L: EntryLayout, const VICTIMS: usize> Invalidate<L> for Victims<L, VICTIMS> {
    fn invalidate_pages(&mut self, space: AsidTag<L>, pages: Pages) {
        self.sweep_units(pages, |tag, units| Bits::<L>::is_in(tag, space) && Bits::<L>::within(tag, units));
    }

    fn invalidate_global(&mut self, pages: Pages) {
        self.sweep_units(pages, Bits::<L>::within);
    }

    fn invalidate_space(&mut self, space: AsidTag<L>) {
        self.sweep(|tag| Bits::<L>::is_in(tag, space));
    }

    fn invalidate_all(&mut self) {
        self.sweep(|_| true);
    }
}
