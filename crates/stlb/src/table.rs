//! The direct-mapped and set-associative caches of one CPU, which have the shortest hit path.

use core::mem::MaybeUninit;

use tlbkit_addr::{Pages, VirtAddr};

use crate::entry::{Bits, Entry};
use crate::memory::carve;
use crate::{AsidTag, BadMemory, Cache, Count, EntryLayout, Hit, Invalidate};

/// A direct-mapped software TLB cache.
pub type Direct<'a, L, const SETS: usize> = Assoc<'a, L, SETS, 1>;

/// A software TLB cache of `SETS` sets of `WAYS` entries each (thesis 3.2.2; direct-mapped with one way).
///
/// ```text
///   memory   +-- set 0 ---------------+-- set 1 ---------------+-- ... SETS-1
///            | way 0 | ... | way W-1  |                        |
///            +-------+-----+----------+------------------------+--
///   way      tag (a word), datum;  16 bytes if the datum has 8 (64-bit tag) or 12 (32-bit tag)
///   set      L::index(unit, asid) & (SETS - 1)
/// ```
///
/// A lookup compares the ways one after the other, and ends at the first match. The newest entry of a set is in way 0, and a
/// fill evicts the oldest.
///
/// The cache needs [`BYTES`](Self::BYTES) bytes, aligned to [`LINE`](crate::LINE).
#[derive(Debug)]
pub struct Assoc<'a, L: EntryLayout, const SETS: usize, const WAYS: usize> {
    sets: &'a mut [[Entry<L>; WAYS]; SETS],
    count: L::Count,
}

impl<'a, L: EntryLayout, const SETS: usize, const WAYS: usize> Assoc<'a, L, SETS, WAYS> {
    /// How much memory the cache needs.
    pub const BYTES: usize = size_of::<[[Entry<L>; WAYS]; SETS]>();

    /// Returns an empty cache that lives in `memory`.
    ///
    /// # Errors
    ///
    /// [`BadMemory`] if `SETS` or `WAYS` is no power of two, or the memory is too small or misaligned.
    pub fn new(memory: &'a mut [MaybeUninit<u8>]) -> Result<Self, BadMemory> {
        let sets = carve(memory, WAYS, || [Entry::empty(); WAYS])?;
        Ok(Self { sets, count: L::Count::default() })
    }

    /// Returns the datum for `at`. With one way, a hit is two loads and one branch.
    #[inline]
    pub fn lookup(&self, at: VirtAddr, space: AsidTag<L>) -> Option<L::Data> {
        match self.locate(at, space) {
            Some(found) => {
                self.count.hit();
                Some(found.data)
            }
            None => {
                self.count.miss();
                None
            }
        }
    }

    /// Returns the address of the first slot, for a refill handler.
    pub fn base(&self) -> *const u8 {
        self.sets.as_ptr().cast()
    }

    #[inline]
    fn set(&self, at: VirtAddr, space: AsidTag<L>) -> &[Entry<L>; WAYS] {
        // The index is in range because `new` has checked that SETS is a power of two.
        &self.sets[Bits::<L>::index(at, space) & SETS.wrapping_sub(1)]
    }

    #[inline]
    fn set_mut(&mut self, at: VirtAddr, space: AsidTag<L>) -> &mut [Entry<L>; WAYS] {
        &mut self.sets[Bits::<L>::index(at, space) & SETS.wrapping_sub(1)]
    }

    #[inline]
    pub(crate) fn locate(&self, at: VirtAddr, space: AsidTag<L>) -> Option<Hit<L::Data>> {
        let tag = Bits::<L>::tag(at, space)?;
        for (way, entry) in self.set(at, space).iter().enumerate() {
            if entry.tag == tag {
                return Some(Hit { data: entry.data, probes: way + 1 });
            }
        }
        None
    }

    /// Stores an entry in way 0 of its set, and returns the entry that it evicted, if any.
    #[inline]
    pub(crate) fn replace(&mut self, at: VirtAddr, space: AsidTag<L>, data: L::Data) -> Option<Entry<L>> {
        let tag = Bits::<L>::tag(at, space)?;
        let set = self.set_mut(at, space);
        // The slot to replace: the one with the same tag, so that no tag is in a set twice; else an empty slot; else the
        // oldest entry's.
        let same = set.iter().position(|entry| entry.tag == tag);
        let slot = same
            .or_else(|| set.iter().position(|entry| Bits::<L>::is_empty(entry.tag)))
            .unwrap_or(WAYS.wrapping_sub(1));
        let old = *set.get(slot)?;
        set.copy_within(..slot, 1);
        *set.first_mut()? = Entry { tag, data };
        (old.tag != tag && !Bits::<L>::is_empty(old.tag)).then_some(old)
    }

    /// Empties every slot for whose tag `is_stale` returns true.
    pub(crate) fn sweep(&mut self, is_stale: impl Fn(L::Tag) -> bool) {
        for entry in self.sets.as_flattened_mut() {
            if is_stale(entry.tag) {
                *entry = Entry::empty();
            }
        }
    }
}

impl<L: EntryLayout, const SETS: usize, const WAYS: usize> Cache<L> for Assoc<'_, L, SETS, WAYS> {
    #[inline]
    fn find(&mut self, at: VirtAddr, space: AsidTag<L>) -> Option<Hit<L::Data>> {
        let found = self.locate(at, space);
        match found {
            Some(_) => self.count.hit(),
            None => self.count.miss(),
        }
        found
    }

    fn peek(&self, at: VirtAddr, space: AsidTag<L>) -> Option<L::Data> {
        self.locate(at, space).map(|found| found.data)
    }

    #[inline]
    fn fill(&mut self, at: VirtAddr, space: AsidTag<L>, data: L::Data) {
        if self.replace(at, space, data).is_some() {
            self.count.conflict();
        }
    }

    fn count(&self) -> &L::Count {
        &self.count
    }
}

impl<L: EntryLayout, const SETS: usize, const WAYS: usize> Invalidate<L> for Assoc<'_, L, SETS, WAYS> {
    #[inline]
    fn invalidate_pages(&mut self, space: AsidTag<L>, pages: Pages) {
        let Some(units) = Bits::<L>::units(pages) else { return };
        if units.len() > SETS {
            return self.sweep(|tag| Bits::<L>::is_in(tag, space) && Bits::<L>::within(tag, units));
        }
        for at in units.addresses() {
            let tag = Bits::<L>::tag(at, space);
            for entry in self.set_mut(at, space) {
                if Some(entry.tag) == tag {
                    *entry = Entry::empty();
                }
            }
        }
    }

    fn invalidate_global(&mut self, pages: Pages) {
        if let Some(units) = Bits::<L>::units(pages) {
            self.sweep(|tag| Bits::<L>::within(tag, units));
        }
    }

    fn invalidate_space(&mut self, space: AsidTag<L>) {
        self.sweep(|tag| Bits::<L>::is_in(tag, space));
    }

    fn invalidate_all(&mut self) {
        self.sets.fill([Entry::empty(); WAYS]);
    }
}
