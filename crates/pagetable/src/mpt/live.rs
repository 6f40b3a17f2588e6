//! What a node's record says: how many of its slots are in use, and roughly which.
//!
//! ```text
//!   above the last level   | parts | live |      parts   which sixteenths of the node may have an entry, a bit each
//!   last level             |     live     |      live    how many slots are in use, and one for a loan
//! ```
//!
//! A part stays noted until the node is freed. So a visit of a node with few entries passes over the parts that have had none.

use super::Mpt;
use super::shape::{MAX, Shape};
use crate::Radix;
use crate::format::Format;
use crate::nodes::{NodeAddr, Nodes};
use crate::word::atomics::Ordering;

/// The bits of a record that count, above the last level.
const LIVE: u32 = 0xffff;
/// The binary logarithm of how many parts there are, in a node of as many slots or more.
const PARTS: u32 = 4;

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'_, G, F, N> {
    /// Whether the count of each node above the last level fits its bits of the record, and one more.
    const FITS: () = {
        let mut level = 0;
        while level + 1 < Self::LEVELS {
            assert!(Self::WIDTHS[level % MAX] < 16, "a node above the last level has fewer than 2^16 slots");
            level += 1;
        }
    };

    /// Returns how many slots of a node are in use.
    ///
    /// # Safety
    ///
    /// The node is in the table or new, and the caller is its writer; so for the functions beside it.
    #[inline(always)]
    pub(super) unsafe fn live(&self, node: NodeAddr, level: usize) -> u32 {
        // SAFETY: this function's contract: only the writer changes the record.
        let record = unsafe { (*self.nodes.record(node, Self::words(level))).load(Ordering::Relaxed) };
        Self::live_of(record, level)
    }

    /// Returns the count in a record.
    #[inline(always)]
    pub(super) fn live_of(record: u32, level: usize) -> u32 {
        if level + 1 == Self::LEVELS { record } else { record & LIVE }
    }

    /// Counts slots that are in use from now on.
    #[inline(always)]
    pub(super) unsafe fn add_live(&self, node: NodeAddr, level: usize, index: usize, slots: usize) {
        const { Self::FITS };
        // SAFETY: by the contract of `live`, which is this function's too, the node is in the table or new: so its
        // record is live.
        let record = unsafe { &*self.nodes.record(node, Self::words(level)) };
        let mut noted = record.load(Ordering::Relaxed);
        if level + 1 < Self::LEVELS && slots > 0 {
            let part = |slot: usize| 1u32 << (slot >> Self::part_shift(level));
            let (first, last) = (part(index), part(index + slots - 1));
            noted |= (last | (last - first)) << LIVE.count_ones();
        }
        record.store(noted.wrapping_add(slots as u32), Ordering::Relaxed);
    }

    /// Counts slots as no longer in use, and returns how many still are.
    #[inline(always)]
    pub(super) unsafe fn sub_live(&self, node: NodeAddr, level: usize, slots: usize) -> u32 {
        // SAFETY: by the contract of `live`, which is this function's too, the node is in the table or new: so its
        // record is live.
        let record = unsafe { &*self.nodes.record(node, Self::words(level)) };
        let rest = record.load(Ordering::Relaxed).wrapping_sub(slots as u32);
        record.store(rest, Ordering::Relaxed);
        Self::live_of(rest, level)
    }

    /// Counts the loan of a node.
    pub(super) unsafe fn add_loan(&self, node: NodeAddr, level: usize) {
        // SAFETY: by the contract of `live`, which is this function's too, the node is in the table or new: so its
        // record is live.
        let record = unsafe { &*self.nodes.record(node, Self::words(level)) };
        record.store(record.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Stores a count, and that any part may have an entry.
    pub(super) unsafe fn recount(&self, node: NodeAddr, level: usize, live: u32) {
        let parts = if level + 1 == Self::LEVELS { 0 } else { Self::all_parts(level) };
        // SAFETY: by the contract of `live`, which is this function's too, the node is in the table or new: so its
        // record is live.
        let record = unsafe { &*self.nodes.record(node, Self::words(level)) };
        record.store(live | parts << LIVE.count_ones(), Ordering::Relaxed);
    }

    /// Returns the parts of a node that may have an entry, a bit each.
    #[inline(always)]
    pub(super) unsafe fn parts(&self, node: NodeAddr, level: usize) -> u32 {
        if level + 1 == Self::LEVELS {
            return Self::all_parts(level);
        }
        // SAFETY: by the contract of `live`, which is this function's too, the node is in the table or new: so its
        // record is live.
        unsafe { (*self.nodes.record(node, Self::words(level))).load(Ordering::Relaxed) >> LIVE.count_ones() }
    }

    /// Returns the binary logarithm of a part's slots.
    #[inline(always)]
    pub(super) fn part_shift(level: usize) -> u32 {
        Self::width(level).saturating_sub(PARTS)
    }

    #[inline(always)]
    fn all_parts(level: usize) -> u32 {
        (1 << (Self::slots(level) >> Self::part_shift(level))) - 1
    }
}
