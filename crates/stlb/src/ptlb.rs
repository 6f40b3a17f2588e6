//! The prefetch TLB, as a table of its own and integrated with the software TLB cache.

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use tlbkit_addr::VirtAddr;

use crate::cache::forward;
use crate::entry::Bits;
use crate::{AsidTag, BadMemory, Cache, Count, Direct, EntryLayout, Hit, Invalidate};

/// A read access to the hardware TLB (`tlbp` and `tlbr` on MIPS).
pub trait Probe<L: EntryLayout> {
    /// Returns the entry that the TLB holds for `at`, or `None`. Does not change the TLB.
    fn probe(&mut self, at: VirtAddr, space: AsidTag<L>) -> Option<L::Data>;
}

/// The result of recording an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The entry was copied from the TLB.
    Now,
    /// The table already had the entry.
    Before,
    /// The TLB does not hold the entry now; the kernel records the address again at the next IPC. It is also the result for
    /// an address that does not fit the tag, without an access to the TLB.
    NotInTlb,
}

/// The prefetch TLB (thesis 3.1): entries that the kernel loads into the TLB when a process receives a message, because the
/// process is about to use them.
///
/// The kernel's IPC path calls it twice, for each address at which it expects a miss: the process's program counter, stack
/// pointer and message buffers, and the kernel's own IPC data (thesis 3.1.4).
///
/// | when | call | what happens |
/// |-|-|-|
/// | a process sends | [`record`](Self::record) | copies an unknown entry from the TLB, if the TLB has it |
/// | a process receives | [`prefetch`](Self::prefetch) | returns a known entry that the TLB lacks, which the kernel loads |
///
/// The caller decides whether a "first" IPC is that of a process (the thesis) or of a pair of processes (the OSDI paper);
/// the records are the same. The kernel must load the entry that `prefetch` returns before it calls `prefetch` for the next
/// address. `prefetch` probes the TLB, so it returns no entry that the TLB holds, even if two addresses share a page.
///
/// The table is direct-mapped, and so bounded: a new entry evicts the entry in its slot.
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

    /// Copies the entry for `at` from the TLB, unless the table already has it.
    pub fn record(&mut self, at: VirtAddr, space: AsidTag<L>, tlb: &mut impl Probe<L>) -> Recorded {
        record(&mut self.0, at, space, tlb)
    }

    /// Returns the entry that the kernel must load for `at`, or `None` if the table has none or the TLB holds one.
    pub fn prefetch(&mut self, at: VirtAddr, space: AsidTag<L>, tlb: &mut impl Probe<L>) -> Option<L::Data> {
        prefetch(&self.0, at, space, tlb)
    }

    /// Returns the counters. The caller reports [`Count::prefetch_used`].
    pub fn count(&self) -> &L::Count {
        self.0.count()
    }
}

impl<L: EntryLayout, const SLOTS: usize> Invalidate<L> for Ptlb<'_, L, SLOTS> {
    forward!(this => this.0);
}

/// The level of an entry in a page table that is itself mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// The entry maps the root of the page table's own mapping (L3 in Mach). Only a nested miss of a nested miss needs it.
    Top,
    /// Any other entry.
    Lower,
}

/// One table that serves both as software TLB cache and as prefetch TLB (thesis 3.3).
///
/// The refill handler finds its entries in this table and rarely walks the page table, so misses on top-level entries are
/// rare. A prefetch of them would only evict useful entries from the TLB, so they are not prefetched ([`Rank::Top`]).
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

    /// As [`Ptlb::record`]; for [`Rank::Top`] always [`Recorded::NotInTlb`].
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

    /// As [`Ptlb::prefetch`]; for [`Rank::Top`] always `None`.
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
