//! The schemes: which software caches stand behind the TLB. They are those of `tlbkit-stlb`, as a kernel embeds them.

use std::marker::PhantomData;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tlbkit_addr::{Asid, PageSize, Pages, VirtAddr};
use tlbkit_stlb::{
    AsidTag, Assoc, Cache, CacheMemory, Counters, Direct, EntryLayout, Integrated, Invalidate, Ptlb, Rank,
    Victim, folded,
};

use super::costs::Costs;
use super::tlb::Tlb;

/// One way to serve kernel TLB misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Unmodified Mach.
    Mach,
    /// The prefetch TLB.
    Ptlb,
    /// A direct-mapped STLB of 1024 entries.
    #[value(name = "stlb-1k")]
    #[serde(rename = "stlb-1k")]
    Stlb1k,
    /// 1024 entries in two ways.
    #[value(name = "stlb-1k-2way")]
    #[serde(rename = "stlb-1k-2way")]
    Stlb1k2Way,
    /// 1024 entries in four ways.
    #[value(name = "stlb-1k-4way")]
    #[serde(rename = "stlb-1k-4way")]
    Stlb1k4Way,
    /// A direct-mapped STLB of 4096 entries.
    #[value(name = "stlb-4k")]
    #[serde(rename = "stlb-4k")]
    Stlb4k,
    /// 4096 entries in two ways.
    #[value(name = "stlb-4k-2way")]
    #[serde(rename = "stlb-4k-2way")]
    Stlb4k2Way,
    /// 4096 entries in four ways.
    #[value(name = "stlb-4k-4way")]
    #[serde(rename = "stlb-4k-4way")]
    Stlb4k4Way,
    /// A direct-mapped STLB of 4096 entries with a victim cache.
    #[value(name = "stlb-4k-victim")]
    #[serde(rename = "stlb-4k-victim")]
    Stlb4kVictim,
    /// A direct-mapped STLB of 4096 entries, upper bits and address space folded into the index.
    #[value(name = "stlb-4k-folded")]
    #[serde(rename = "stlb-4k-folded")]
    Stlb4kFolded,
    /// Prefetch TLB and STLB in one table of 4096 entries.
    #[value(name = "ptlb+stlb")]
    #[serde(rename = "ptlb+stlb")]
    Both,
    /// The same with a victim cache.
    #[value(name = "ptlb+stlb-victim")]
    #[serde(rename = "ptlb+stlb-victim")]
    BothVictim,
    /// The same with a folded index.
    #[value(name = "ptlb+stlb-folded")]
    #[serde(rename = "ptlb+stlb-folded")]
    BothFolded,
}

/// How many victims the victim cache has.
const VICTIMS: usize = 8;

/// The thesis's index: low bits of the page number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plain;

/// The better index: upper bits and address space folded in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Folded;

macro_rules! layout {
    ($name:ident, |$unit:ident, $asid:ident| $index:expr) => {
        impl EntryLayout for $name {
            type Tag = u64;
            type Data = u64;
            type Count = Counters;
            const BASE: PageSize = PageSize::K4;
            const UNIT: PageSize = PageSize::K4;
            const ASID_BITS: u32 = 6;
            fn index($unit: usize, $asid: usize) -> usize {
                $index
            }
        }
    };
}
layout!(Plain, |unit, _asid| unit);
layout!(Folded, |unit, asid| folded(unit, asid));

/// The kernel's address space: what the schemes cache is all of the kernel's, the user page tables too.
fn kernel<L: EntryLayout>() -> AsidTag<L> {
    match Asid::new(0, L::ASID_BITS).map(AsidTag::new) {
        Some(Ok(space)) => space,
        _ => unreachable!("0 fits into any tag"),
    }
}

/// What the kernel's miss path and IPC path see of a scheme. Unmodified Mach has none of it.
pub(crate) trait Software {
    /// Looks up the STLB; the cycles are those of a search beyond the first entry.
    fn find(&mut self, _: VirtAddr, _: &Costs) -> Option<Hit> {
        None
    }
    /// Returns how many cycles a miss spends beyond the generic handler's.
    fn miss(&self, _: &Costs) -> u64 {
        0
    }
    fn fill(&mut self, _: VirtAddr, _: u64) {}
    fn record(&mut self, _: VirtAddr, _: Rank, _: &mut Tlb) {}
    fn prefetch(&mut self, _: VirtAddr, _: Rank, _: &mut Tlb) -> Option<u64> {
        None
    }
    fn invalidate_pages(&mut self, _: Pages) {}
    fn invalidate_all(&mut self) {}
    fn count(&self) -> Counters {
        Counters::default()
    }
    fn prefetch_used(&self) {}
    fn has_stlb(&self) -> bool {
        false
    }
    fn has_ptlb(&self) -> bool {
        false
    }
}

/// An entry from the STLB.
pub(crate) struct Hit {
    pub(crate) data: u64,
    pub(crate) search: u64,
}

impl Scheme {
    /// Runs `work` with the caches of this scheme.
    pub(crate) fn with<R>(self, work: impl FnOnce(&mut dyn Software) -> R) -> R {
        let mut memory = Box::new(CacheMemory::<{ 4096 * 16 }>::new());
        let memory = memory.bytes();
        let fits = "64 KiB hold 4096 entries";
        match self {
            Self::Mach => work(&mut Nothing),
            // "A hashed lookup is done into the PTLB" (OSDI paper, 3.1); the integrated table is an STLB.
            Self::Ptlb => work(&mut Prefetching(Ptlb::<Folded, 4096>::new(memory).expect(fits))),
            Self::Stlb1k => {
                work(&mut Stlb::<Plain, _>::new(Direct::<Plain, 1024>::new(memory).expect(fits), 1, 0))
            }
            Self::Stlb1k2Way => {
                work(&mut Stlb::<Plain, _>::new(Assoc::<Plain, 512, 2>::new(memory).expect(fits), 2, 0))
            }
            Self::Stlb1k4Way => {
                work(&mut Stlb::<Plain, _>::new(Assoc::<Plain, 256, 4>::new(memory).expect(fits), 4, 0))
            }
            Self::Stlb4k => {
                work(&mut Stlb::<Plain, _>::new(Direct::<Plain, 4096>::new(memory).expect(fits), 1, 0))
            }
            Self::Stlb4k2Way => {
                work(&mut Stlb::<Plain, _>::new(Assoc::<Plain, 2048, 2>::new(memory).expect(fits), 2, 0))
            }
            Self::Stlb4k4Way => {
                work(&mut Stlb::<Plain, _>::new(Assoc::<Plain, 1024, 4>::new(memory).expect(fits), 4, 0))
            }
            Self::Stlb4kVictim => {
                let cache = Victim::<Plain, 4096, VICTIMS>::new(memory).expect(fits);
                work(&mut Stlb::<Plain, _>::new(cache, 1, VICTIMS))
            }
            Self::Stlb4kFolded => {
                work(&mut Stlb::<Folded, _>::new(Direct::<Folded, 4096>::new(memory).expect(fits), 1, 0))
            }
            Self::Both => work(&mut both(Stlb::new(Direct::<Plain, 4096>::new(memory).expect(fits), 1, 0))),
            Self::BothVictim => {
                let cache = Victim::<Plain, 4096, VICTIMS>::new(memory).expect(fits);
                work(&mut both(Stlb::new(cache, 1, VICTIMS)))
            }
            Self::BothFolded => {
                work(&mut both(Stlb::new(Direct::<Folded, 4096>::new(memory).expect(fits), 1, 0)))
            }
        }
    }
}

/// Unmodified Mach.
struct Nothing;

impl Software for Nothing {}

/// The PTLB alone.
struct Prefetching<'a, L: EntryLayout, const SLOTS: usize>(Ptlb<'a, L, SLOTS>);

impl<L: EntryLayout<Data = u64, Count = Counters>, const SLOTS: usize> Software
    for Prefetching<'_, L, SLOTS>
{
    fn record(&mut self, at: VirtAddr, _: Rank, tlb: &mut Tlb) {
        self.0.record(at, kernel(), tlb);
    }
    fn prefetch(&mut self, at: VirtAddr, _: Rank, tlb: &mut Tlb) -> Option<u64> {
        self.0.prefetch(at, kernel(), tlb)
    }
    fn invalidate_pages(&mut self, pages: Pages) {
        self.0.invalidate_pages(kernel(), pages);
    }
    fn invalidate_all(&mut self) {
        self.0.invalidate_all();
    }
    fn count(&self) -> Counters {
        self.0.count().clone()
    }
    fn prefetch_used(&self) {
        tlbkit_stlb::Count::prefetch_used(self.0.count());
    }
    fn has_ptlb(&self) -> bool {
        true
    }
}

/// An STLB of any organization, and what its searches cost.
struct Stlb<L, C> {
    cache: C,
    ways: usize,
    victims: usize,
    layout: PhantomData<L>,
}

impl<L, C> Stlb<L, C> {
    fn new(cache: C, ways: usize, victims: usize) -> Self {
        Self { cache, ways, victims, layout: PhantomData }
    }

    /// Returns the cycles of looking at `probes` entries, beyond the first.
    fn search(&self, probes: usize, costs: &Costs) -> u64 {
        let ways = probes.min(self.ways) as u64 - 1;
        let victims = probes.saturating_sub(self.ways) as u64;
        let turning = if victims > 0 { costs.way } else { 0 };
        ways * costs.way + turning + victims * costs.victim
    }
}

impl<L: EntryLayout<Data = u64, Count = Counters>, C: Cache<L>> Software for Stlb<L, C> {
    fn find(&mut self, at: VirtAddr, costs: &Costs) -> Option<Hit> {
        let found = self.cache.find(at, kernel())?;
        Some(Hit { data: found.data, search: self.search(found.probes, costs) })
    }
    fn miss(&self, costs: &Costs) -> u64 {
        costs.stlb_miss + self.search(self.ways + self.victims, costs)
    }
    fn fill(&mut self, at: VirtAddr, data: u64) {
        self.cache.fill(at, kernel(), data);
    }
    fn invalidate_pages(&mut self, pages: Pages) {
        self.cache.invalidate_pages(kernel(), pages);
    }
    fn invalidate_all(&mut self) {
        self.cache.invalidate_all();
    }
    fn count(&self) -> Counters {
        self.cache.count().clone()
    }
    fn prefetch_used(&self) {
        tlbkit_stlb::Count::prefetch_used(self.cache.count());
    }
    fn has_stlb(&self) -> bool {
        true
    }
}

/// An STLB that serves as PTLB too.
struct Both<L, C>(Stlb<L, Integrated<L, C>>);

fn both<L: EntryLayout, C: Cache<L>>(stlb: Stlb<L, C>) -> Both<L, C> {
    Both(Stlb::new(Integrated::new(stlb.cache), stlb.ways, stlb.victims))
}

impl<L: EntryLayout<Data = u64, Count = Counters>, C: Cache<L>> Software for Both<L, C> {
    fn find(&mut self, at: VirtAddr, costs: &Costs) -> Option<Hit> {
        self.0.find(at, costs)
    }
    fn miss(&self, costs: &Costs) -> u64 {
        self.0.miss(costs)
    }
    fn fill(&mut self, at: VirtAddr, data: u64) {
        self.0.fill(at, data);
    }
    fn record(&mut self, at: VirtAddr, rank: Rank, tlb: &mut Tlb) {
        self.0.cache.record(at, kernel(), rank, tlb);
    }
    fn prefetch(&mut self, at: VirtAddr, rank: Rank, tlb: &mut Tlb) -> Option<u64> {
        self.0.cache.prefetch(at, kernel(), rank, tlb)
    }
    fn invalidate_pages(&mut self, pages: Pages) {
        self.0.invalidate_pages(pages);
    }
    fn invalidate_all(&mut self) {
        self.0.invalidate_all();
    }
    fn count(&self) -> Counters {
        self.0.count()
    }
    fn prefetch_used(&self) {
        self.0.prefetch_used();
    }
    fn has_stlb(&self) -> bool {
        true
    }
    fn has_ptlb(&self) -> bool {
        true
    }
}
