//! The kernel's side: its page table, the processes' as it sees them, and every miss that the refill handler leaves to it.

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr};
use tlbkit_malta::stress::PLAIN;
use tlbkit_malta::trap::{self, Frame};
use tlbkit_malta::{KSEG0, cp0, tlb};
use tlbkit_pagetable::format::{EntryLo, Format};
use tlbkit_pagetable::geometry::Va32;
use tlbkit_pagetable::lpt::Lpt;
use tlbkit_pagetable::nodes::Offset;
use tlbkit_pagetable::{Error, Local};
use tlbkit_stlb::{AsidTag, Pair, Rank};

use super::handler;
use super::scheme::{self, Counting, Scheme};
use crate::machine;
use crate::tables::{LINEAR, Nodes};

/// Where the kernel's data is, and its page table.
const DATA: u32 = 0xe000_0000;
const TABLE: usize = 0xff80_0000;

/// Entries at the bottom of the TLB that L2 entries have to themselves, replaced first in, first out (thesis 4.1).
const LOWER: u32 = 8;

/// The page table of a process, and the kernel's. No CPU runs while they change, so there is nothing to flush.
type ProcessTable = Local<'static, Lpt<'static, Va32, EntryLo, Nodes<Offset>, LINEAR>, fn(&Flush)>;
type KernelTable = Local<'static, Lpt<'static, Va32, EntryLo, Nodes<Offset>, TABLE>, fn(&Flush)>;

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub l1u: u32,
    pub l2: u32,
    pub l1k: u32,
    pub l3: u32,
    /// L3 misses within L2 and L1K misses.
    pub cascaded: u32,
    /// Kernel misses that the software TLB cache served.
    pub cached: u32,
    pub prefetched: u32,
    /// Prefetched entries that served at least one miss, or one access, before they left the TLB.
    pub used: u32,
}

/// A process.
pub struct Process {
    pub frame: Frame,
    /// Its program counter, stack pointer and message buffer, by which the path of messages knows what it will need.
    pub places: [u32; 3],
    number: u32,
    /// Its page table, which the hardware is shown in kernel memory.
    _table: ProcessTable,
}

/// The kernel.
pub struct Kernel {
    pub tally: Tally,
    pub scheme: Scheme,
    nodes: &'static Nodes<Offset>,
    table: KernelTable,
    /// The lower entry that is replaced next.
    next: u32,
    /// The pairs of pages whose entries were prefetched and not used yet.
    pending: heapless::Vec<u32, 64>,
}

/// The kernel's own entries are the same in all address spaces.
fn everywhere() -> AsidTag<Counting> {
    match AsidTag::new(tlbkit_addr::Asid::default()) {
        Ok(space) => space,
        Err(error) => panic!("{error}"),
    }
}

/// Returns the first address of a pair of pages.
const fn pair_of(at: u32) -> u32 {
    at & tlb::VPN2
}

impl Kernel {
    /// Returns a kernel with `data` pages of data.
    ///
    /// # Errors
    ///
    /// [`Error`], if there is not enough memory.
    pub fn new(nodes: &'static Nodes<Offset>, data: u32) -> Result<Self, Error> {
        let table = Local::new(Lpt::new(nodes)?, (|_| ()) as fn(&Flush));
        let (tally, pending) = (Tally::default(), heapless::Vec::new());
        let mut kernel = Self { tally, scheme: Scheme::Plain, nodes, table, next: 0, pending };
        for page in 0..data {
            kernel.map(data_page(page), None)?;
        }
        // SAFETY: no entry is wired yet, and the TLB holds nothing.
        unsafe { cp0::wired::write(LOWER) };
        Ok(kernel)
    }

    /// Maps a page of the kernel's memory to a frame, or to a new one.
    fn map(&mut self, at: u32, frame: Option<Pfn>) -> Result<(), Error> {
        let frame = frame.unwrap_or_else(machine::take);
        let attr = PLAIN | Attr::WRITE | Attr::DIRTY | Attr::GLOBAL;
        self.table.map(one(at), frame, PageSize::K4, attr)
    }

    /// Returns a process with these pages.
    ///
    /// # Errors
    ///
    /// [`Error`], if there is not enough memory.
    pub fn process(
        &mut self,
        number: u32,
        frame: Frame,
        places: [u32; 3],
        code: Pfn,
        pages: impl Iterator<Item = u32>,
    ) -> Result<Process, Error> {
        let mut table: ProcessTable = Local::new(Lpt::new(self.nodes)?, |_| ());
        table.map(one(places[0]), code, PageSize::K4, PLAIN)?;
        self.show(number, &table, places[0])?;
        for at in pages {
            table.map(one(at), machine::take(), PageSize::K4, PLAIN | Attr::WRITE | Attr::DIRTY)?;
            self.show(number, &table, at)?;
        }
        Ok(Process { frame, places, number, _table: table })
    }

    /// Maps the page of a process's table that holds the PTE of `at` into the kernel's memory, if it is not there yet.
    fn show(&mut self, number: u32, table: &ProcessTable, at: u32) -> Result<(), Error> {
        let page = table_page(number, at);
        if self.table.lookup(VirtAddr::new(page as usize)).is_some() {
            return Ok(());
        }
        let link = word_of(table.table().root().get(), at >> 22);
        self.map(page, Some(EntryLo::frame(link, PageSize::K4)))
    }

    /// Makes a process the one that runs.
    pub fn switch(&mut self, process: &Process) {
        // SAFETY: the handler finds the process's table where Context says.
        unsafe {
            cp0::context::write(((LINEAR as u32) << 1) + (process.number << 23));
            tlb::switch(process.number + 1);
        }
    }

    /// Serves a miss on an address of the kernel's.
    pub fn miss(&mut self, at: u32) {
        let is_l3 = at >= TABLE as u32;
        let is_l2 = at < DATA;
        // An L2 miss happens within an L1U miss, which is the last in the log, and will come again.
        self.look_back(is_l2);
        *(if is_l3 {
            &mut self.tally.l3
        } else if is_l2 {
            &mut self.tally.l2
        } else {
            &mut self.tally.l1k
        }) += 1;
        self.pending.retain(|&pending| pending != pair_of(at));
        let pair = match self.scheme.find(at, everywhere()) {
            Some(pair) => {
                self.tally.cached += 1;
                pair
            }
            None => {
                let pair = if is_l3 { self.by_root(at) } else { self.by_table(at) };
                self.scheme.fill(at, everywhere(), pair);
                pair
            }
        };
        self.load(at, pair);
    }

    /// Looks the pair of an address up in the kernel's page table, through its mapping: this may miss.
    fn by_table(&mut self, at: u32) -> Pair {
        let pte = pte(pair_of(at));
        if self.touch(pte) {
            self.tally.cascaded += 1;
        }
        let word = |at| trap::load(at).map_or(0, |touched| touched.value);
        Pair { page_mask: 0, lo0: word(pte), lo1: word(pte + 4) }
    }

    /// Looks the pair of a page of the kernel's page table up in physical memory.
    fn by_root(&self, at: u32) -> Pair {
        let index = (pair_of(at) - TABLE as u32) >> 12;
        let word = |index| word_of(self.table.table().root().get(), index) | tlb::GLOBAL;
        Pair { page_mask: 0, lo0: word(index), lo1: word(index + 1) }
    }

    /// Writes an entry: those that map pages of processes' tables to the lower part of the TLB.
    fn load(&mut self, at: u32, pair: Pair) {
        let index = if at < DATA {
            self.next = (self.next + 1) % LOWER;
            self.next
        } else {
            cp0::random::read()
        };
        // SAFETY: the kernel's table, or the cache that follows it, says so, and the TLB has nothing there.
        unsafe { tlb::write_at(index as usize, scheme::entry(at, pair)) };
    }

    /// Uses an address, the kernel's or the running process's, and tells whether that missed on one of the kernel's.
    pub fn touch(&mut self, at: u32) -> bool {
        let mut missed = false;
        while let Err(fault) = trap::load(at) {
            assert!(fault.at >= LINEAR as u32, "{:#x} is not mapped", fault.at);
            self.miss(fault.at);
            missed = true;
        }
        if !missed && at >= LINEAR as u32 {
            self.used(at);
        }
        missed
    }

    /// Notes that the TLB's entry for an address was of use.
    fn used(&mut self, at: u32) {
        let before = self.pending.len();
        self.pending.retain(|&pending| pending != pair_of(at));
        self.tally.used += (before - self.pending.len()) as u32;
    }

    /// Goes through the L1U misses since the last time. The last of them is `unserved`, or all found their L2 entry.
    pub fn look_back(&mut self, unserved: bool) {
        let mut last = None;
        handler::drain(|hi| {
            if let Some(hi) = last.replace(hi) {
                self.served(hi);
            }
        });
        if let Some(hi) = last
            && !unserved
        {
            self.served(hi);
        }
    }

    fn served(&mut self, hi: u32) {
        self.tally.l1u += 1;
        self.used(table_page((hi & tlb::ASID) - 1, hi & tlb::VPN2));
    }

    /// A process sends: what it needed is recorded.
    pub fn record(&mut self, process: &Process) {
        for (at, rank) in needed(process) {
            self.scheme.record(at, everywhere(), rank);
        }
    }

    /// A process receives: what it will need is loaded.
    pub fn prefetch(&mut self, process: &Process) {
        for (at, rank) in needed(process) {
            self.prefetch_one(at, rank);
        }
    }

    /// Uses a page of the kernel's data, which the prefetch TLB knows from its first use on.
    pub fn use_data(&mut self, page: u32) {
        let at = data_page(page);
        self.prefetch_one(at, Rank::Lower);
        self.touch(at);
        self.scheme.record(at, everywhere(), Rank::Lower);
    }

    fn prefetch_one(&mut self, at: u32, rank: Rank) {
        if let Some(pair) = self.scheme.prefetch(at, everywhere(), rank) {
            self.load(at, pair);
            self.tally.prefetched += 1;
            // If it was loaded ahead before, that entry has gone unused. So have the oldest, where there is no room.
            self.pending.retain(|&pending| pending != pair_of(at));
            if self.pending.is_full() {
                self.pending.remove(0);
            }
            let _ = self.pending.push(pair_of(at));
        }
    }
}

/// What predicts the misses of a process (thesis 3.1.4): the pages of its table for its program counter, stack and
/// message, and the page of the kernel's table for the last of these.
fn needed(process: &Process) -> [(u32, Rank); 4] {
    let [pc, sp, message] = process.places.map(|at| table_page(process.number, at));
    [(pte(message), Rank::Top), (pc, Rank::Lower), (sp, Rank::Lower), (message, Rank::Lower)]
}

/// Returns the page of a process's table that holds the PTE of `at`.
const fn table_page(number: u32, at: u32) -> u32 {
    LINEAR as u32 + (number << 22) + (at >> 22 << 12)
}

/// Returns where the kernel's page table has the PTE of one of its own addresses.
const fn pte(at: u32) -> u32 {
    TABLE as u32 + (at >> 12) * 4
}

/// Returns the address of a page of the kernel's data. Each is in 4 MiB of its own, which takes an L3 entry of its own.
const fn data_page(page: u32) -> u32 {
    DATA + (page << 23) + (page << 13)
}

/// Reads a word of a root node.
fn word_of(root: usize, index: u32) -> u32 {
    // SAFETY: a root has 1024 words, at its physical address, and indices are page numbers of ten bits.
    unsafe { core::ptr::with_exposed_provenance::<u32>(KSEG0 + root).add(index as usize).read_volatile() }
}

fn one(at: u32) -> Pages {
    Pages::one(machine::page(at))
}
