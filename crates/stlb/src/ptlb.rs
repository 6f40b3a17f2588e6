//! The prefetch TLB, alone and integrated with the software TLB cache.

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use tlbkit_addr::VirtAddr;

use crate::cache::forward;
use crate::entry::Bits;
use crate::{AsidTag, BadMemory, Cache, Count, Direct, EntryLayout, Hit, Invalidate};

/// The hardware TLB, as a kernel can ask it (`tlbp` and `tlbr` on MIPS).
pub trait Probe<L: EntryLayout> {
    /// Returns the entry that the TLB holds for `at`, or `None`. Loads nothing.
    fn probe(&mut self, at: VirtAddr, space: AsidTag<L>) -> Option<L::Data>;
}

/// What became of an address that was to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Its entry was taken from the TLB.
    Now,
    /// Its entry was there already.
    Before,
    /// The TLB does not hold it at present; it is asked again at the next IPC. So it is with an address for which the tag
    /// has no room, and the TLB is not asked.
    NotInTlb,
}

/// The prefetch TLB (thesis 3.1): entries that are loaded into the TLB when a message is received, because the
/// receiver is about to need them.
///
/// The kernel's IPC path calls it twice, for each address that predicts a miss: those that map the process's program
/// counter, stack pointer and message buffers, and the kernel's own IPC data (thesis 3.1.4).
///
/// | when | call | what happens |
/// |-|-|-|
/// | a process sends | [`record`](Self::record) | an unknown entry is copied from the TLB; if the TLB lacks it, next time |
/// | a process receives | [`prefetch`](Self::prefetch) | a known entry that the TLB lacks is returned, to be loaded |
///
/// Whether a "first" IPC is that of a process (the thesis) or of a pair of processes (the OSDI paper) depends on when
/// the caller asks; what is recorded is the same. Load what `prefetch` returns before asking for the next address: it
/// asks the TLB, so nothing is ever loaded that the TLB holds, even if two addresses share a page.
///
/// Direct-mapped, and so bounded: a new entry pushes out the one whose slot it takes.
#[derive(Debug)]
pub struct Ptlb<'a, L: EntryLayout, const SLOTS: usize>(Direct<'a, L, SLOTS>);

impl<'a, L: EntryLayout, const SLOTS: usize> Ptlb<'a, L, SLOTS> {
    /// How much memory the table needs.
    pub const BYTES: usize = Direct::<'a, L, SLOTS>::BYTES;

    /// Returns an empty table that lives in `memory`.
    ///
    /// # Errors
    ///
    /// As for [`Direct`](crate::Assoc::new).
    pub fn new(memory: &'a mut [MaybeUninit<u8>]) -> Result<Self, BadMemory> {
        Ok(Self(Direct::new(memory)?))
    }

    /// Copies the entry for `at` from the TLB, unless it is there already.
    pub fn record(&mut self, at: VirtAddr, space: AsidTag<L>, tlb: &mut impl Probe<L>) -> Recorded {
        record(&mut self.0, at, space, tlb)
    }

    /// Returns the entry to load for `at`, or `None` if none is known or the TLB holds one.
    pub fn prefetch(&mut self, at: VirtAddr, space: AsidTag<L>, tlb: &mut impl Probe<L>) -> Option<L::Data> {
        prefetch(&self.0, at, space, tlb)
    }

    /// Returns the counters; [`Count::prefetch_used`] is the caller's to report.
    pub fn count(&self) -> &L::Count {
        self.0.count()
    }
}

impl<L: EntryLayout, const SLOTS: usize> Invalidate<L> for Ptlb<'_, L, SLOTS> {
    forward!(this => this.0);
}

/// How an address's entry ranks in a page table that is itself mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Maps the root of the page table's own mapping (L3 in Mach): needed only by a cascade of misses.
    Top,
    /// Anything else.
    Lower,
}

/// One table that serves both as software TLB cache and as prefetch TLB (thesis 3.3).
///
/// Since the refill handler finds its entries here and no longer walks the page table, top-level entries are missed
/// hardly ever, and prefetching them would only push useful entries out of the TLB: they are not
/// ([`Rank::Top`]).
#[derive(Debug)]
pub struct Integrated<L, C> {
    cache: C,
    layout: PhantomData<L>,
}

impl<L: EntryLayout, C: Cache<L>> Integrated<L, C> {
    /// Returns the table that keeps its entries in `cache`.
    pub fn new(cache: C) -> Self {
        Self { cache, layout: PhantomData }
    }

    /// As [`Ptlb::record`]; an address of rank [`Rank::Top`] counts as not in the TLB.
    pub fn record(
        &mut self,
        at: VirtAddr,
        space: AsidTag<L>,
        rank: Rank,
        tlb: &mut impl Probe<L>,
    ) -> Recorded {
        match rank {
            Rank::Top => Recorded::NotInTlb,
            Rank::Lower => record(&mut self.cache, at, space, tlb),
        }
    }

    /// As [`Ptlb::prefetch`]; always `None` for an address of rank [`Rank::Top`].
    pub fn prefetch(
        &mut self,
        at: VirtAddr,
        space: AsidTag<L>,
        rank: Rank,
        tlb: &mut impl Probe<L>,
    ) -> Option<L::Data> {
        match rank {
            Rank::Top => None,
            Rank::Lower => prefetch(&self.cache, at, space, tlb),
        }
    }
}

impl<L: EntryLayout, C: Cache<L>> Cache<L> for Integrated<L, C> {
    #[inline]
    fn find(&mut self, at: VirtAddr, space: AsidTag<L>) -> Option<Hit<L::Data>> {
        self.cache.find(at, space)
    }
    fn peek(&self, at: VirtAddr, space: AsidTag<L>) -> Option<L::Data> {
        self.cache.peek(at, space)
    }
    fn fill(&mut self, at: VirtAddr, space: AsidTag<L>, data: L::Data) {
        self.cache.fill(at, space, data);
    }
    fn count(&self) -> &L::Count {
        self.cache.count()
    }
}

impl<L: EntryLayout, C: Cache<L>> Invalidate<L> for Integrated<L, C> {
    forward!(this => this.cache);
}

fn record<L: EntryLayout>(
    table: &mut impl Cache<L>,
    at: VirtAddr,
    space: AsidTag<L>,
    tlb: &mut impl Probe<L>,
) -> Recorded {
    if Bits::<L>::tag(at, space).is_none() {
        return Recorded::NotInTlb;
    }
    if table.peek(at, space).is_some() {
        return Recorded::Before;
    }
    let Some(data) = tlb.probe(at, space) else { return Recorded::NotInTlb };
    table.fill(at, space, data);
    Recorded::Now
}

fn prefetch<L: EntryLayout>(
    table: &impl Cache<L>,
    at: VirtAddr,
    space: AsidTag<L>,
    tlb: &mut impl Probe<L>,
) -> Option<L::Data> {
    let data = table.peek(at, space)?;
    if tlb.probe(at, space).is_some() {
        return None;
    }
    table.count().prefetched();
    Some(data)
}
