//! The form that several CPUs share.

use core::mem::MaybeUninit;

use tlbkit_addr::{Pages, VirtAddr};

use crate::atomic::{AtomicUsize, Ordering, fence};
use crate::entry::Bits;
use crate::memory::carve;
use crate::{AsidTag, Atomic, BadMemory, Count, EntryLayout};

/// A software TLB cache that several CPUs read, fill and invalidate at the same time, without a lock.
///
/// With two plain loads a reader could pair the tag of one entry with the datum of another, whichever is written
/// first, and reading the tag again does not help: the same tag may have come back meanwhile. So each set has a
/// version, and the reader revalidates:
///
/// ```text
///   set      version | way 0: tag, datum | way 1: tag, datum | ...     all of it atomic words
///
///   version  even: at rest             a reader believes what it read if it saw the same even version twice
///            odd:  one CPU, the owner, is writing ways; readers miss
///
///   look up  v = version; read tag, datum; version still v and even? hit : miss, with (set, v) as ticket
///   fill     compare-and-swap version from the ticket's v to v + 1, or give up; write; release
///   forget   even: compare-and-swap to v + 1, empty what matches, release
///            odd:  compare-and-swap to v + 2: the owner will notice
///   release  compare-and-swap v + 1 to v + 2; if another CPU has moved it, empty the whole set and try again
/// ```
///
/// * **No torn entry**: a reader that saw any word of a later write also sees that write's version.
/// * **No stale entry**: `forget` changes the version even if nothing matches. A CPU that looked up before, and has
///   walked the page table since, comes back with an old ticket, and its fill does nothing. After `forget` has
///   returned no CPU hits the old entry: the set is either rid of it or odd until its owner has emptied it.
/// * **Lock-free**: `lookup` and `fill` never wait. `forget` and `release` try again only because another CPU has
///   made a change. A CPU that is held up in the middle of a write costs the others misses in one set, not progress.
///
/// Against the per-CPU form a hit costs two more loads of the version, a barrier where loads are reordered, a second
/// branch, and the space of the version; `benches/benches/stlb.rs` measures both.
///
/// The rules of [`Invalidate`](crate::Invalidate) hold here too, so does the order: page table first. A version that
/// goes once through all its values while one CPU walks a page table would deceive it: with 32 bits that is 2^31
/// changes of one set during one walk.
///
/// Needs [`BYTES`](Self::BYTES) bytes aligned to [`LINE`](crate::LINE).
#[derive(Debug)]
pub struct Shared<'a, L: EntryLayout, const SETS: usize, const WAYS: usize>
where
    L::Tag: Atomic,
    L::Data: Atomic,
{
    sets: &'a [Set<L, WAYS>; SETS],
    count: L::Count,
}

/// The version, then the ways; kept within as few lines as its size allows.
#[derive(Debug)]
#[repr(C, align(32))]
struct Set<L: EntryLayout, const WAYS: usize>
where
    L::Tag: Atomic,
    L::Data: Atomic,
{
    version: AtomicUsize,
    ways: [Way<L>; WAYS],
}

#[derive(Debug)]
#[repr(C)]
struct Way<L: EntryLayout>
where
    L::Tag: Atomic,
    L::Data: Atomic,
{
    tag: <L::Tag as Atomic>::Cell,
    data: <L::Data as Atomic>::Cell,
}

/// What a miss leaves behind: the right to fill, which any invalidation of the set in between revokes.
#[derive(Clone, Copy, Debug)]
#[must_use = "the entry that the page table gives wants to be filled in"]
pub struct Ticket {
    set: usize,
    version: usize,
}

impl<'a, L: EntryLayout, const SETS: usize, const WAYS: usize> Shared<'a, L, SETS, WAYS>
where
    L::Tag: Atomic,
    L::Data: Atomic,
{
    /// How much memory the cache needs.
    pub const BYTES: usize = size_of::<[Set<L, WAYS>; SETS]>();

    /// Returns an empty cache that lives in `memory`.
    ///
    /// # Errors
    ///
    /// [`BadMemory`] if `SETS` or `WAYS` is no power of two, or the memory is too small or misaligned.
    pub fn new(memory: &'a mut [MaybeUninit<u8>]) -> Result<Self, BadMemory> {
        let way = || Way { tag: empty::<L>().cell(), data: L::Data::default().cell() };
        let set = || Set { version: AtomicUsize::new(0), ways: core::array::from_fn(|_| way()) };
        Ok(Self { sets: carve(memory, WAYS, set)?, count: L::Count::default() })
    }

    /// Returns what is known of `at`, or the ticket to fill it in with. Never waits.
    ///
    /// # Errors
    ///
    /// A [`Ticket`] if nothing is known or the set is being written. Walk the page table *after* this call and give the
    /// ticket to [`fill`](Self::fill).
    #[inline]
    pub fn lookup(&self, at: VirtAddr, space: AsidTag<L>) -> Result<L::Data, Ticket> {
        let index = Self::index(at, space);
        let set = &self.sets[index];
        let tag = Bits::<L>::tag(at, space);
        // Acquire: the walk that follows a miss sees the page table as of any invalidation that this version counts.
        let version = set.version.load(Ordering::Acquire);
        for way in &set.ways {
            if Some(Atomic::load(&way.tag)) == tag {
                let data = Atomic::load(&way.data);
                // The CPU that wrote a word that was just read had made the version odd before.
                fence(Ordering::Acquire);
                // Cleared of its lowest bit, an odd version lies in the past: it equals no version any more.
                if set.version.load(Ordering::Relaxed) == version & !1 {
                    self.count.hit();
                    return Ok(data);
                }
                break;
            }
        }
        self.count.miss();
        Err(Ticket { set: index, version })
    }

    /// Remembers the translation of the unit around `at`, unless its set was written since the ticket was given: then
    /// the translation may be stale. Tells whether it did. Never waits.
    pub fn fill(&self, ticket: Ticket, at: VirtAddr, space: AsidTag<L>, data: L::Data) -> bool {
        let Some(tag) = Bits::<L>::tag(at, space) else { return false };
        let set = &self.sets[Self::index(at, space)];
        if ticket.set != Self::index(at, space)
            || !ticket.version.is_multiple_of(2)
            || !set.own(ticket.version)
        {
            return false;
        }
        if set.insert(tag, data) {
            self.count.conflict();
        }
        set.release(ticket.version)
    }

    /// Forgets these pages of one address space. Costs as [`Invalidate`](crate::Invalidate) says, and one
    /// compare-and-swap for each set.
    pub fn invalidate_pages(&self, space: AsidTag<L>, pages: Pages) {
        let Some(units) = Bits::<L>::units(pages) else { return };
        if units.len() > SETS {
            return self.forget_all(|tag| Bits::<L>::is_in(tag, space) && Bits::<L>::within(tag, units));
        }
        for at in units.addresses() {
            let stale = Bits::<L>::tag(at, space);
            self.sets[Self::index(at, space)].forget(|tag| Some(tag) == stale);
        }
    }

    /// Forgets these pages in every address space.
    pub fn invalidate_global(&self, pages: Pages) {
        if let Some(units) = Bits::<L>::units(pages) {
            self.forget_all(|tag| Bits::<L>::within(tag, units));
        }
    }

    /// Forgets an address space.
    pub fn invalidate_space(&self, space: AsidTag<L>) {
        self.forget_all(|tag| Bits::<L>::is_in(tag, space));
    }

    /// Forgets everything.
    pub fn invalidate_all(&self) {
        self.forget_all(|_| true);
    }

    /// Returns the counters.
    pub fn count(&self) -> &L::Count {
        &self.count
    }

    #[inline]
    fn index(at: VirtAddr, space: AsidTag<L>) -> usize {
        Bits::<L>::index(at, space) & SETS.wrapping_sub(1)
    }

    fn forget_all(&self, is_stale: impl Fn(L::Tag) -> bool) {
        for set in self.sets {
            set.forget(&is_stale);
        }
    }
}

fn empty<L: EntryLayout>() -> L::Tag {
    L::Tag::from(Bits::<L>::EMPTY as u32)
}

impl<L: EntryLayout, const WAYS: usize> Set<L, WAYS>
where
    L::Tag: Atomic,
    L::Data: Atomic,
{
    /// Moves the version from `from` (even) to odd, and tells whether it did: this CPU is then the owner.
    fn own(&self, from: usize) -> bool {
        // Success acquires what the previous owner wrote, and releases this CPU's change of the page table.
        let owned =
            self.version.compare_exchange(from, from.wrapping_add(1), Ordering::AcqRel, Ordering::Relaxed);
        // No word of the ways may become visible before the odd version.
        fence(Ordering::Release);
        owned.is_ok()
    }

    /// Makes the version even again, `from + 2` if nothing happened. Tells whether nothing did: if another CPU has
    /// moved the version, it wanted something forgotten that the owner does not know, so all is.
    fn release(&self, from: usize) -> bool {
        let mut owned = from.wrapping_add(1);
        let mut alone = true;
        while let Err(moved) =
            self.version.compare_exchange(owned, owned.wrapping_add(1), Ordering::AcqRel, Ordering::Relaxed)
        {
            self.empty(|_| true);
            owned = moved;
            alone = false;
        }
        alone
    }

    fn forget(&self, is_stale: impl Fn(L::Tag) -> bool) {
        let mut version = self.version.load(Ordering::Relaxed);
        loop {
            if version.is_multiple_of(2) {
                if self.own(version) {
                    self.empty(&is_stale);
                    self.release(version);
                    return;
                }
                version = self.version.load(Ordering::Relaxed);
            } else {
                let next = version.wrapping_add(2);
                match self.version.compare_exchange(version, next, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => return,
                    Err(moved) => version = moved,
                }
            }
        }
    }

    /// Empties what `is_stale`. For the owner.
    fn empty(&self, is_stale: impl Fn(L::Tag) -> bool) {
        for way in self.ways.iter().filter(|way| is_stale(Atomic::load(&way.tag))) {
            empty::<L>().store(&way.tag);
        }
    }

    /// Puts an entry into way 0 and moves the others back, over one of the same tag, an empty one or the oldest. Tells
    /// whether another entry had to leave. For the owner.
    fn insert(&self, tag: L::Tag, data: L::Data) -> bool {
        let tags = || self.ways.iter().map(|way| <L::Tag as Atomic>::load(&way.tag));
        let same = tags().position(|old| old == tag);
        let slot = same.or_else(|| tags().position(Bits::<L>::is_empty));
        let (mut tag, mut data) = (tag, data);
        for way in self.ways.iter().take(slot.map_or(WAYS, |slot| slot + 1)) {
            let old = (Atomic::load(&way.tag), Atomic::load(&way.data));
            tag.store(&way.tag);
            data.store(&way.data);
            (tag, data) = old;
        }
        slot.is_none()
    }
}
