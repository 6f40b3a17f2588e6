//! Node records: the number of slots in use and, above the last level, roughly which slots.
//!
//! ```text
//!   above the last level   | parts | live |      parts   which sixteenths of the node may have an entry, a bit each
//!   last level             |     live     |      live    how many slots are in use, and one for a loan
//! ```
//!
//! The bit of a part stays set until the node is freed. So a visit of a node with few entries skips the parts that have had none.

use super::Mpt;
use super::shape::{MAX, Shape};
use crate::Radix;
use crate::format::Format;
use crate::nodes::{NodeAddr, Nodes};
use crate::word::atomics::Ordering;

/// The bits of a record that hold the count, above the last level.
const LIVE: u32 = 0xffff;
/// The binary logarithm of the number of parts, in a node of at least that many slots.
const PARTS_LOG: u32 = 4;

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'_, G, F, N> {
    /// Checks that the count of each node above the last level, a loan included, fits its bits of the record.
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
    /// The node is in the table or new, and the caller is its only writer.
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

    /// Adds slots, which are in use from now on, to the count.
    ///
    /// # Safety
    ///
    /// The node is in the table or new, and the caller is its only writer.
    #[inline(always)]
    pub(super) unsafe fn add_live(&self, node: NodeAddr, level: usize, index: usize, slots: usize) {
        const { Self::FITS };
        // SAFETY: by this function's contract the node is in the table or new, so its record is live.
        let record = unsafe { &*self.nodes.record(node, Self::words(level)) };
        let mut noted = record.load(Ordering::Relaxed);
        if level + 1 < Self::LEVELS && slots > 0 {
            let part = |slot: usize| 1u32 << (slot >> Self::part_shift(level));
            let (first, last) = (part(index), part(index + slots - 1));
            noted |= (last | (last - first)) << LIVE.count_ones();
        }
        record.store(noted.wrapping_add(slots as u32), Ordering::Relaxed);
    }

    /// Subtracts slots, which are no longer in use, from the count, and returns the count.
    ///
    /// # Safety
    ///
    /// The node is in the table or new, and the caller is its only writer.
    #[inline(always)]
    pub(super) unsafe fn sub_live(&self, node: NodeAddr, level: usize, slots: usize) -> u32 {
        // SAFETY: by this function's contract the node is in the table or new, so its record is live.
        let record = unsafe { &*self.nodes.record(node, Self::words(level)) };
        let rest = record.load(Ordering::Relaxed).wrapping_sub(slots as u32);
        record.store(rest, Ordering::Relaxed);
        Self::live_of(rest, level)
    }

    /// Adds a loan of the node to the count.
    ///
    /// # Safety
    ///
    /// The node is in the table or new, and the caller is its only writer.
    pub(super) unsafe fn add_loan(&self, node: NodeAddr, level: usize) {
        // SAFETY: by this function's contract the node is in the table or new, so its record is live.
        let record = unsafe { &*self.nodes.record(node, Self::words(level)) };
        record.store(record.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Stores a count, and sets the bits of all parts.
    ///
    /// # Safety
    ///
    /// The node is in the table or new, and the caller is its only writer.
    pub(super) unsafe fn recount(&self, node: NodeAddr, level: usize, live: u32) {
        let parts = if level + 1 == Self::LEVELS { 0 } else { Self::all_parts(level) };
        // SAFETY: by this function's contract the node is in the table or new, so its record is live.
        let record = unsafe { &*self.nodes.record(node, Self::words(level)) };
        record.store(live | parts << LIVE.count_ones(), Ordering::Relaxed);
    }

    /// Returns the parts of a node that may have an entry, a bit each.
    ///
    /// # Safety
    ///
    /// The node is in the table or new, and the caller is its only writer.
    #[inline(always)]
    pub(super) unsafe fn parts(&self, node: NodeAddr, level: usize) -> u32 {
        if level + 1 == Self::LEVELS {
            return Self::all_parts(level);
        }
        // SAFETY: by this function's contract the node is in the table or new, so its record is live.
        unsafe { (*self.nodes.record(node, Self::words(level))).load(Ordering::Relaxed) >> LIVE.count_ones() }
    }

    /// Returns the binary logarithm of a part's slots.
    #[inline(always)]
    pub(super) fn part_shift(level: usize) -> u32 {
        Self::width(level).saturating_sub(PARTS_LOG)
    }

    #[inline(always)]
    fn all_parts(level: usize) -> u32 {
        (1 << (Self::slots(level) >> Self::part_shift(level))) - 1
    }
}
