//! The software TLB cache that several CPUs share.

use core::mem::MaybeUninit;

use tlbkit_addr::{Pages, VirtAddr};

use crate::atomic::{AtomicUsize, Ordering, fence};
use crate::entry::Bits;
use crate::memory::carve;
use crate::{AsidTag, Atomic, BadMemory, Count, EntryLayout};

/// A software TLB cache that several CPUs read, fill and invalidate at the same time, without a lock.
///
/// With two plain loads, a reader could combine the tag of one entry with the datum of another, in either order of the
/// writes. A second read of the tag is not sufficient, because the same tag may have been written again in between (A-B-A).
/// So each set has a version, which a reader reads before and after:
///
/// ```text
///   set      version | way 0: tag, datum | way 1: tag, datum | ...     all of it atomic words
///
///   version  even: no CPU writes       a reader has a hit only if it saw the same even version twice
///            odd:  one CPU, the owner, is writing ways; readers miss
///
///   lookup   v = version; read tag, datum; version still v and even? hit : miss, with (set, v) as ticket
///   fill     compare-and-swap version from the ticket's v to v + 1, or give up; write; release
///   forget   even: compare-and-swap to v + 1, empty the matching ways, release
///            odd:  compare-and-swap to v + 2: the owner will notice
///   release  compare-and-swap v + 1 to v + 2; if another CPU has changed it, empty the whole set and try again
/// ```
///
/// (`forget` is the common part of the `invalidate` methods.)
///
/// * **No torn entry**: a reader that saw any word of a later write also sees that write's version, and misses.
/// * **No stale entry**: `forget` changes the version even if no way matches. A CPU that called `lookup` before, and has
///   walked the page table since, has an old ticket, and its fill does nothing. After `forget` has returned, no CPU hits the
///   old entry: either the set does not have it, or the version is odd until the owner has emptied the set.
/// * **Lock-free**: `lookup` and `fill` never wait. `forget` and `release` repeat only if another CPU has made a change. A
///   CPU that is delayed during a write costs the other CPUs misses in one set, and no waiting.
///
/// Compared with the per-CPU caches, a hit costs two loads of the version, a barrier on CPUs that reorder loads, a second
/// branch, and the memory of the version; `benches/src/others/stlb.rs` measures both.
///
/// The rule and the order of [`Invalidate`](crate::Invalidate) apply here, too. A ticket would be accepted wrongly if the
/// version took all its values during one walk of the page table: with 32 bits, after 2^31 changes of one set.
///
/// The cache needs [`BYTES`](Self::BYTES) bytes, aligned to [`LINE`](crate::LINE).
#[derive(Debug)]
pub struct Shared<'a, L: EntryLayout, const SETS: usize, const WAYS: usize>
where
    L::Tag: Atomic,
    L::Data: Atomic,
{
    sets: &'a [Set<L, WAYS>; SETS],
    count: L::Count,
}

/// A set: the version, then the ways. The alignment keeps a small set within one cache line.
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

/// A slot, whose words are atomic.
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

/// The right to fill a set after a miss. Any change of the set after the miss revokes it.
#[derive(Clone, Copy, Debug)]
#[must_use = "fill in the entry that the page table has"]
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

    /// Returns the datum for `at`, or a ticket to fill it in. Never waits.
    ///
    /// # Errors
    ///
    /// A [`Ticket`] if the cache has no entry for `at`, or another CPU is writing the set or has changed it during the call. The
    /// caller walks the page table *after* this call, and passes the ticket to [`fill`](Self::fill).
    #[inline]
    pub fn lookup(&self, at: VirtAddr, space: AsidTag<L>) -> Result<L::Data, Ticket> {
        let index = Self::index(at, space);
        let set = &self.sets[index];
        let tag = Bits::<L>::tag(at, space);
        // Acquire: the walk that follows a miss sees the page table at least as it was at every invalidation that this
        // version counts.
        let version = set.version.load(Ordering::Acquire);
        for way in &set.ways {
            if Some(Atomic::load(&way.tag)) == tag {
                let data = Atomic::load(&way.data);
                // The CPU that wrote a word which was just read had made the version odd before. The fence orders the second
                // load of the version after the loads of the words.
                fence(Ordering::Acquire);
                // If `version` is odd, clearing its lowest bit gives an earlier version, which cannot be the current one.
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

    /// Stores the translation of the unit around `at`, unless its set has changed since the ticket was issued, because the
    /// translation may be stale then. Returns whether it stored the translation. Never waits.
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

    /// Invalidates the entries of these pages in one address space. The time is that of [`Invalidate`](crate::Invalidate),
    /// and one compare-and-swap for each set.
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

    /// Invalidates the entries of these pages in every address space.
    pub fn invalidate_global(&self, pages: Pages) {
        if let Some(units) = Bits::<L>::units(pages) {
            self.forget_all(|tag| Bits::<L>::within(tag, units));
        }
    }

    /// Invalidates all entries of an address space.
    pub fn invalidate_space(&self, space: AsidTag<L>) {
        self.forget_all(|tag| Bits::<L>::is_in(tag, space));
    }

    /// Invalidates all entries.
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
    /// Changes the version from `from`, which is even, to `from + 1`. Returns whether it did; if so, this CPU is the owner.
    fn own(&self, from: usize) -> bool {
        // Acquire: this CPU sees the previous owner's writes. Release: a CPU that sees this version sees this CPU's change
        // of the page table.
        let owned =
            self.version.compare_exchange(from, from.wrapping_add(1), Ordering::AcqRel, Ordering::Relaxed);
        // No word of the ways may become visible before the odd version.
        fence(Ordering::Release);
        owned.is_ok()
    }

    /// Makes the version even again: `from + 2` if no other CPU has changed it. If another CPU has, that CPU invalidates an
    /// entry that the owner does not know, so the owner empties the whole set. Returns whether no other CPU has changed the
    /// version.
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

    /// Invalidates the ways for whose tags `is_stale` returns true, or makes the owner empty the set.
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

    /// Empties the ways for whose tags `is_stale` returns true. Only the owner may call it.
    fn empty(&self, is_stale: impl Fn(L::Tag) -> bool) {
        for way in self.ways.iter().filter(|way| is_stale(Atomic::load(&way.tag))) {
            empty::<L>().store(&way.tag);
        }
    }

    /// Stores an entry in way 0, and moves the entries before the replaced way back by one. The replaced way is that with
    /// the same tag, else an empty one, else the last. Returns whether it evicted another entry. Only the owner may call it.
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
