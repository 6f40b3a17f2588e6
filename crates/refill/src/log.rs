//! What a handler that reports has seen: the log, and its records.

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
    /// What was replaced.
    pub evicted: Evicted,
}

/// A TLB entry that was replaced.
///
/// An entry that the kernel has emptied is one whose pages are both invalid, or one in kseg0, or, with EHINV, bit 10 of
/// EntryHi: [`is_empty`](Self::is_empty).
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
    /// Tells whether the entry translated nothing.
    pub const fn is_empty(&self) -> bool {
        let unmapped = self.entry_hi >> 30 == 0b10;
        let marked = self.entry_hi >> 10 & 1 != 0;
        unmapped || marked || (self.lo0 | self.lo1) & 2 == 0
    }
}

/// Room for `N` records, in kseg0.
///
/// The handler appends; when the log is full it passes every miss on to the general vector, where the kernel drains the
/// log and returns, and the miss is taken again. With room for one record the kernel hears of each miss before the next.
/// A miss that the handler passes on is not in the log.
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

    /// Gives the log to a CPU's handler. `address` is where the handler finds it: its own address, in kseg0.
    pub fn attach(&self, block: &Block, address: u32) {
        block.next.store(address, Ordering::Relaxed);
        block.end.store(address + size_of::<Self>() as u32, Ordering::Relaxed);
    }

    /// Hands every record to `each`, the oldest first, and empties the log. To be called on the CPU that it belongs to,
    /// with no miss in between. A CPU that no log was given to has seen none.
    pub fn drain(&self, block: &Block, mut each: impl FnMut(Miss)) {
        let end = block.end.load(Ordering::Relaxed);
        if end == 0 {
            // To its handler the log is full, and must stay so.
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
