//! What stands between a kernel miss and the page table.

use core::mem::MaybeUninit;

use tlbkit_addr::{PageSize, VirtAddr};
use tlbkit_stlb::{AsidTag, Cache, Counters, Direct, EntryLayout, Integrated, Pair, Probe, Ptlb, Rank};

use tlbkit_malta::tlb::{self, Entry};

/// Entries of pairs of 4 KiB pages, as the handlers have them, counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counting;

impl EntryLayout for Counting {
    type Tag = u32;
    type Data = Pair;
    type Count = Counters;
    const BASE: PageSize = PageSize::K4;
    const UNIT: PageSize = match PageSize::from_shift(13) {
        Some(size) => size,
        None => PageSize::K4,
    };
    const ASID_BITS: u32 = 8;
}

/// Entries of either table: the thesis's software TLB cache. The processes' tables are 4 MiB apart, so eight of them
/// fill its index, and a smaller prefetch TLB would remember one of two.
pub const SLOTS: usize = 4096;

/// A scheme's name and what it keeps.
pub enum Scheme {
    /// Nothing: the page table is walked.
    Plain,
    /// Entries to load when a message is received (3.1).
    Prefetch(Ptlb<'static, Counting, SLOTS>),
    /// Entries to load when they are missed (3.2).
    Cache(Direct<'static, Counting, SLOTS>),
    /// One table for both (3.3).
    Both(Integrated<Counting, Direct<'static, Counting, SLOTS>>),
}

/// The names, in the order of the thesis's figures.
pub const NAMES: [&str; 4] = ["plain", "PTLB", "STLB", "PTLB+STLB"];

/// The hardware TLB, as the prefetch TLB asks it.
pub struct Hardware;

impl Probe<Counting> for Hardware {
    fn probe(&mut self, at: VirtAddr, space: AsidTag<Counting>) -> Option<Pair> {
        let entry = tlb::read(tlb::probe(at.get() as u32, space.asid() as u32)?);
        Some(Pair { page_mask: entry.mask, lo0: entry.lo[0], lo1: entry.lo[1] })
    }
}

/// Returns the TLB entry of an address of the kernel's with this datum.
pub fn entry(at: u32, pair: Pair) -> Entry {
    Entry { hi: at & tlb::VPN2, mask: pair.page_mask, lo: [pair.lo0, pair.lo1] }
}

impl Scheme {
    /// Returns an empty one by name, in this memory.
    pub fn new(name: &str, memory: &'static mut [MaybeUninit<u8>]) -> Self {
        let made = match name {
            "PTLB" => Ptlb::new(memory).map(Self::Prefetch),
            "STLB" => Direct::new(memory).map(Self::Cache),
            "PTLB+STLB" => Direct::new(memory).map(Integrated::new).map(Self::Both),
            _ => Ok(Self::Plain),
        };
        match made {
            Ok(scheme) => scheme,
            Err(error) => panic!("no memory for the scheme: {error}"),
        }
    }

    /// Returns what the software TLB cache knows of a kernel address, if there is one.
    pub fn find(&mut self, at: u32, space: AsidTag<Counting>) -> Option<Pair> {
        let at = VirtAddr::new(at as usize);
        let found = match self {
            Self::Plain | Self::Prefetch(_) => None,
            Self::Cache(cache) => cache.find(at, space),
            Self::Both(both) => both.find(at, space),
        };
        found.map(|found| found.data)
    }

    /// Tells the software TLB cache of an entry that goes into the TLB.
    pub fn fill(&mut self, at: u32, space: AsidTag<Counting>, pair: Pair) {
        let at = VirtAddr::new(at as usize);
        match self {
            Self::Plain | Self::Prefetch(_) => {}
            Self::Cache(cache) => cache.fill(at, space, pair),
            Self::Both(both) => both.fill(at, space, pair),
        }
    }

    /// Has the prefetch TLB record the entry of an address, if the TLB has it: its process is sending.
    pub fn record(&mut self, at: u32, space: AsidTag<Counting>, rank: Rank) {
        let at = VirtAddr::new(at as usize);
        match self {
            Self::Plain | Self::Cache(_) => {}
            Self::Prefetch(ptlb) => drop(ptlb.record(at, space, &mut Hardware)),
            Self::Both(both) => drop(both.record(at, space, rank, &mut Hardware)),
        }
    }

    /// Returns the entry to load for an address, if one is known that the TLB lacks: its process is receiving.
    pub fn prefetch(&mut self, at: u32, space: AsidTag<Counting>, rank: Rank) -> Option<Pair> {
        let at = VirtAddr::new(at as usize);
        match self {
            Self::Plain | Self::Cache(_) => None,
            Self::Prefetch(ptlb) => ptlb.prefetch(at, space, &mut Hardware),
            Self::Both(both) => both.prefetch(at, space, rank, &mut Hardware),
        }
    }
}
