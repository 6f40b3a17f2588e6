//! Node records: the number of slots in use and, above the last level, roughly which slots.
//!
//! ```text
//!   above the last level   | parts | live |      parts   which sixteenths of the node may have an entry, a bit each
//!   last level             |     live     |      live    how many slots are in use, and one for a loan
//! ```
//!
//! The bit of a part stays set until the node is freed. So a visit of a node with few entries skips the parts that have had none.

use super::{NodeRef, Place};
use crate::format::Format;
use crate::mpt::Mpt;
use crate::mpt::leaf::Decode as _;
use crate::mpt::shape::{MAX, Shape};
use crate::node_locks::{Count, NodeLock};
use crate::nodes::{NodeAddr, Nodes, Record};
use crate::word::atomics::Ordering;
use crate::{Mode as _, Radix, Word as _};

/// The bits of a record that hold the count, above the last level.
const LIVE: u32 = 0xffff;
/// The binary logarithm of the number of parts, in a node of at least that many slots.
const PARTS_LOG: u32 = 4;

impl<'a, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeRef<'a, 'n, G, F, N> {
    /// Checks that the count of each node above the last level, a loan included, fits its bits of the record.
    const FITS: () = {
        let mut level = 0;
        while level + 1 < Self::LEVELS {
            assert!(Self::WIDTHS[level % MAX] < 16, "a node above the last level has fewer than 2^16 slots");
            level += 1;
        }
    };

    /// Returns the node's record. Only handles with the right to write the node store there.
    #[inline(always)]
    fn record(self) -> &'a Record {
        // SAFETY: the node is live during `'a`, and so is its record; a node of this level has so many words.
        unsafe { self.table.nodes.record(self.addr, Self::words(self.level)) }
    }

    /// Does what [`record`](Self::record) does, for a change of more than one page.
    #[inline(always)]
    fn record_again(self) -> &'a Record {
        // SAFETY: the node is live during `'a`, and one of the table's of this level.
        unsafe { Self::record_of(self.table, self.addr, self.level) }
    }

    /// Returns the record of a node of `level`.
    ///
    /// # Safety
    ///
    /// For `'a` the node is one of the table's storage that was taken for this level, and live.
    #[inline(never)]
    unsafe fn record_of(table: &'a Mpt<'n, G, F, N>, node: NodeAddr, level: usize) -> &'a Record {
        // SAFETY: the contract of this function.
        unsafe { table.nodes.record(node, Self::words(level)) }
    }

    /// Returns how many slots of the node are in use.
    #[inline(always)]
    pub(crate) fn live(self) -> u32 {
        self.live_of(self.record_again().load(Ordering::Relaxed))
    }

    /// Returns the count in a record.
    #[inline(always)]
    fn live_of(self, record: u32) -> u32 {
        if Self::is_last(self.level) { record } else { record & LIVE }
    }

    /// Returns the parts of the node that may have an entry, a bit each.
    #[inline(always)]
    pub(crate) fn parts(self) -> u32 {
        if Self::is_last(self.level) {
            return self.all_parts();
        }
        self.record_again().load(Ordering::Relaxed) >> LIVE.count_ones()
    }

    /// Returns the binary logarithm of a part's slots.
    #[inline(always)]
    pub(crate) fn part_shift(self) -> u32 {
        Self::width(self.level).saturating_sub(PARTS_LOG)
    }

    #[inline(always)]
    fn all_parts(self) -> u32 {
        (1 << (Self::slots(self.level) >> self.part_shift())) - 1
    }

    /// Adds slots, which are in use from now on, to the count.
    #[inline(always)]
    pub(super) fn count_in(self, index: usize, slots: usize) {
        self.count_in_at(self.record_again(), index, slots);
    }

    /// Adds slots to the count in the node's record.
    #[inline(always)]
    fn count_in_at(self, record: &Record, index: usize, slots: usize) {
        const { Self::FITS };
        let mut noted = record.load(Ordering::Relaxed);
        if !Self::is_last(self.level) && slots > 0 {
            let part = |slot: usize| 1u32 << (slot >> self.part_shift());
            let (first, last) = (part(index), part(index + slots - 1));
            noted |= (last | (last - first)) << LIVE.count_ones();
        }
        record.store(noted.wrapping_add(slots as u32), Ordering::Relaxed);
    }

    /// Subtracts slots, which are no longer in use, from the count, and returns the count.
    #[inline(always)]
    pub(super) fn count_out(self, slots: usize) -> u32 {
        let record = self.record_again();
        let rest = record.load(Ordering::Relaxed).wrapping_sub(slots as u32);
        record.store(rest, Ordering::Relaxed);
        self.live_of(rest)
    }

    /// Stores a count, and sets the bits of all parts.
    pub(super) fn recount(self, live: u32) {
        let parts = if Self::is_last(self.level) { 0 } else { self.all_parts() };
        self.record_again().store(live | parts << LIVE.count_ones(), Ordering::Relaxed);
    }

    /// Adds a loan of the node to the count.
    pub(super) fn count_loan(self) {
        let record = self.record_again();
        record.store(record.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Place<'_, '_, G, F, N> {
    /// Counts the slot, which is in use from now on, in its node's record.
    #[inline(always)]
    pub(crate) fn count_in(self) {
        self.node.count_in_at(self.node.record(), self.index, 1);
    }

    /// Counts the slot out, unless that would leave no slot of a node below the root in use. Tells whether it did.
    #[inline(always)]
    pub(crate) fn count_out_but_last(self) -> bool {
        let record = self.node.record();
        let rest = record.load(Ordering::Relaxed).wrapping_sub(1);
        if self.node.level > 0 && self.node.live_of(rest) == 0 {
            return false;
        }
        record.store(rest, Ordering::Relaxed);
        true
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Adds a node of `level` to the table's tally (`sign` 1), or subtracts it (-1).
    #[inline(always)]
    pub(crate) fn tally_node(&self, sign: isize, level: usize) {
        let bytes = Self::words(level) * F::Word::BYTES;
        match self.locks.filter(|_| N::Mode::SHARED) {
            None => self.tally.node(sign, bytes),
            Some(_) => self.tally.node_beside(sign, bytes),
        }
    }

    /// Adds to the number of PTEs in the table's tally.
    #[inline(always)]
    pub(crate) fn count_ptes(&self, by: isize) {
        match self.locks.filter(|_| N::Mode::SHARED) {
            None => self.tally.ptes(by),
            Some(_) => self.tally.ptes_beside(by),
        }
    }

    /// Adds to the number of PTEs, for the writer of a page with this lock; without one no other code writes the table.
    #[inline(always)]
    pub(crate) fn count_ptes_by(&self, lock: Option<&NodeLock>, by: isize) {
        match lock {
            None => self.tally.ptes(by),
            Some(lock) => lock.count(Count::Ptes, by),
        }
    }
}
