//! The log of a reporting handler, and its records.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::Block;

/// The words of a record, in the order in which the handler stores them.
const WORDS: usize = 6;

/// A miss, and the TLB entry that was replaced to serve it.
///
/// ```text
///    0  BadVAddr   of the miss
///    4  EntryHi    of the miss: its pair of pages and its ASID
///    8  EntryHi    \
///   12  PageMask    |  of the entry that was replaced, as `tlbr` read them
///   16  EntryLo0    |
///   20  EntryLo1   /
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The address that missed.
    pub at: u32,
    /// Its pair of pages and the ASID.
    pub entry_hi: u32,
    /// The TLB entry that was replaced.
    pub evicted: Evicted,
}

/// A TLB entry that was replaced.
///
/// The entry may be one that the kernel has emptied: both pages are invalid, or its address is in kseg0 or kseg1, or EHINV,
/// bit 10 of EntryHi, is set ([`is_empty`](Self::is_empty)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The pair of pages and the ASID.
    pub entry_hi: u32,
    /// The size of the pages.
    pub page_mask: u32,
    /// The even page.
    pub lo0: u32,
    /// The odd page.
    pub lo1: u32,
}

impl Evicted {
    /// Tells whether the entry translated no address.
    pub const fn is_empty(&self) -> bool {
        let unmapped = self.entry_hi >> 30 == 0b10;
        let marked = self.entry_hi >> 10 & 1 != 0;
        unmapped || marked || (self.lo0 | self.lo1) & 2 == 0
    }
}

/// The memory for `N` records, in kseg0.
///
/// The handler appends records. When the log is full, the handler passes every miss on to the general vector; the kernel
/// drains the log and returns, and the CPU takes the miss again. With `N` of 1 the kernel receives each miss before the next
/// one. A miss that the handler passes on is not in the log.
#[derive(Debug)]
#[repr(C)]
pub struct Log<const N: usize> {
    records: [[AtomicU32; WORDS]; N],
}

impl<const N: usize> Log<N> {
    /// Returns an empty log.
    pub const fn new() -> Self {
        Self { records: [const { [const { AtomicU32::new(0) }; WORDS] }; N] }
    }

    /// Makes a CPU's handler use this log. `address` is the log's own address, in kseg0.
    pub fn attach(&self, block: &Block, address: u32) {
        block.next.store(address, Ordering::Relaxed);
        block.end.store(address + size_of::<Self>() as u32, Ordering::Relaxed);
    }

    /// Calls `each` with every record, the oldest first, and empties the log. The kernel calls it on the CPU that the log
    /// belongs to, and that CPU takes no miss during the call. Without a log, the call does nothing.
    pub fn drain(&self, block: &Block, mut each: impl FnMut(Miss)) {
        let end = block.end.load(Ordering::Relaxed);
        if end == 0 {
            // There is no log: `next` equals `end`, so the handler treats the log as full, and must go on doing so.
            return;
        }
        let start = end.wrapping_sub(size_of::<Self>() as u32);
        let used =
            block.next.load(Ordering::Relaxed).wrapping_sub(start) as usize / size_of::<[u32; WORDS]>();
        for record in self.records.iter().take(used) {
            let [at, entry_hi, evicted_hi, page_mask, lo0, lo1] =
                core::array::from_fn(|word| record[word].load(Ordering::Relaxed));
            each(Miss { at, entry_hi, evicted: Evicted { entry_hi: evicted_hi, page_mask, lo0, lo1 } });
        }
        block.next.store(start, Ordering::Relaxed);
    }
}

impl<const N: usize> Default for Log<N> {
    fn default() -> Self {
        Self::new()
    }
}
