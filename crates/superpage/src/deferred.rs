//! The charges of superpages larger than a block: deferred, and exact whenever it matters.
//!
//! The larger superpages of a segment are the inner nodes of a binary tree over its blocks, in heap order: the children
//! of node n are 2n and 2n + 1, its parent is n / 2, and the blocks stand where the nodes would go on.
//!
//! ```text
//!   8M              1                    each node: a count, and what it owes
//!   4M       2             3
//!   ...
//!   128K   64 65 ...          ... 127    node (blocks + b) / 2 is above block b
//!   64K    the blocks                    each: what it owes
//! ```
//!
//! A miss charges all superpages from the smallest that also holds a resident entry up. Where that is within the block,
//! the block *owes* one charge to every node above it; where it is a node, the node owes one to itself and every node
//! above. A debt is paid when it has grown to the *quota*, a few dozen charges: one walk up, once in so many misses.
//!
//! Promotions must fall exactly where eager counting puts them. Appendix A waits until 1600 misses have happened, the
//! threshold at 128 KB; but counts do not all start at zero when the wait does. Here a node is *near* when its count and
//! all that can be owed to it, a quota less one from each node and block within, could reach its threshold. Whatever
//! lies at or below a near node pays at once ([`AT_ONCE`]). So a count is exact whenever it could matter. When a node
//! becomes near, and when one is promoted, the whole segment is settled: one pass over it, 254 debts for 8 MB. That is
//! the worst that a miss can cost.
//!
//! Counts stop at their threshold: beyond it there is nothing to learn.

use crate::Ladder;
use crate::block::{self, Block, OWED};
use crate::ladder::MAX_SPAN;

/// What is owed is paid at every miss: in place of a debt.
const AT_ONCE: u16 = 1 << 15;
/// Debts are paid while what they can hide is this part of a threshold.
const SHARE: u32 = 16;
/// Shifts that a superpage can have.
const SHIFTS: usize = MAX_SPAN as usize + 1;

/// A superpage larger than a block: what it owes, its count's lower and upper half.
pub(crate) type Node = [u16; 3];

fn count(node: &Node) -> u32 {
    u32::from(node[1]) | u32::from(node[2]) << 16
}

fn set(node: &mut Node, count: u32) {
    (node[1], node[2]) = (count as u16, (count >> 16) as u16);
}

/// Thresholds and quotas, by the shift of a superpage from units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    thresholds: [u32; SHIFTS],
    /// A node whose count is at least this is near its threshold.
    near: [u32; SHIFTS],
    quota: u16,
    /// log2 of the units of a segment, or of a block if that is more.
    top: u32,
}

impl Rules {
    /// `threshold` gives that of the superpages of so many units, as a power of two, or nothing for what is no rung.
    pub(crate) fn new(ladder: &Ladder, eager: bool, threshold: impl Fn(u32) -> Option<u32>) -> Self {
        let top = ladder.shift(ladder.top()).max(block::SHIFT);
        // Blocks and nodes that can owe to a superpage.
        let debtors = |shift: u32| 2 * (1 << (shift - block::SHIFT)) - 1;
        let mut thresholds = [u32::MAX; SHIFTS];
        // What a whole segment owes must be a debt itself when it is settled.
        let mut quota = (u32::from(AT_ONCE) - 1) / (debtors(top) + 1);
        for shift in block::SHIFT + 1..=top {
            if let Some(threshold) = threshold(shift) {
                thresholds[shift as usize] = threshold;
                quota = quota.min(threshold / (SHARE * debtors(shift)));
            }
        }
        let quota = if eager { 1 } else { quota.max(1) };
        let mut near = thresholds;
        for shift in block::SHIFT + 1..=top {
            near[shift as usize] = near[shift as usize].saturating_sub(debtors(shift) * (quota - 1));
        }
        Self { thresholds, near, quota: quota as u16, top }
    }

    /// Adds a charge to a debt. Returns what is to be paid now, if anything is.
    #[inline]
    pub(crate) fn owe(&self, debt: &mut u16) -> Option<Payment> {
        let more = *debt + 1;
        if more < self.quota {
            *debt = more;
            return None;
        }
        if *debt == AT_ONCE {
            return Some(Payment { charges: 1, near: true });
        }
        *debt = 0;
        Some(Payment { charges: more, near: false })
    }

    /// Returns the number of the node of `1 << shift` units around a block.
    #[inline]
    pub(crate) const fn node(&self, block: usize, shift: u32) -> usize {
        (1 << (self.top - shift)) | (block >> (shift - block::SHIFT))
    }
}

/// Charges that a block or node pays to those above it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payment {
    charges: u16,
    /// It pays at every miss.
    near: bool,
}

/// The accounts of one segment.
#[derive(Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) blocks: &'a mut [Block],
    /// One more than there are: the first is number one.
    pub(crate) nodes: &'a mut [Node],
}

impl Segment<'_> {
    /// The shifts of the nodes above a block, from one on.
    fn above(&self, shift: u32) -> core::ops::RangeInclusive<u32> {
        shift.max(block::SHIFT + 1)..=self.rules.top
    }

    /// Pays to the nodes around `block` from those of `1 << from` units up. Returns the shifts of those whose counts
    /// stand at their thresholds, as a set.
    pub(crate) fn pay(&mut self, block: usize, from: u32, payment: Payment) -> u32 {
        let mut near = false;
        for shift in self.above(from) {
            let (threshold, near_from) = (self.threshold(shift), self.near(shift));
            let Some(node) = self.nodes.get_mut(self.rules.node(block, shift)) else { continue };
            let more = count(node).saturating_add(payment.charges.into()).min(threshold);
            set(node, more);
            near |= more >= near_from;
        }
        if near && !payment.near {
            self.settle();
            self.mark();
        } else if !near {
            // Far from every threshold, nothing can be at one.
            return 0;
        }
        let reached = |shift: &u32| self.exact(block, *shift) == self.threshold(*shift);
        self.above(from).filter(reached).fold(0, |reached, shift| reached | 1 << shift)
    }

    fn threshold(&self, shift: u32) -> u32 {
        self.rules.thresholds.get(shift as usize).copied().unwrap_or(u32::MAX)
    }

    fn near(&self, shift: u32) -> u32 {
        self.rules.near.get(shift as usize).copied().unwrap_or(u32::MAX)
    }

    /// Returns a count that is exact, because the segment is settled or the node near.
    pub(crate) fn exact(&self, block: usize, shift: u32) -> u32 {
        self.nodes.get(self.rules.node(block, shift)).map_or(0, count)
    }

    /// Pays every debt.
    pub(crate) fn settle(&mut self) {
        let blocks = self.blocks.len();
        for (number, block) in self.blocks.iter_mut().enumerate() {
            let owed = core::mem::take(&mut block[OWED]);
            // A node that pays at once has only such below it: what is owed and what it is paid do not mix.
            if let (1..AT_ONCE, Some(node)) = (owed, self.nodes.get_mut((blocks + number) >> 1)) {
                node[0] += owed;
            }
        }
        for number in (1..blocks).rev() {
            let threshold = self.threshold(self.rules.top - number.ilog2());
            let Some(node) = self.nodes.get_mut(number) else { continue };
            let owed = core::mem::take(&mut node[0]);
            if let 1..AT_ONCE = owed {
                set(node, count(node).saturating_add(owed.into()).min(threshold));
                if let (2.., Some(parent)) = (number, self.nodes.get_mut(number >> 1)) {
                    parent[0] += owed;
                }
            }
        }
    }

    /// Finds what is near, in a settled segment.
    pub(crate) fn mark(&mut self) {
        let blocks = self.blocks.len();
        for number in 1..blocks {
            let near_from = self.near(self.rules.top - number.ilog2());
            let below_near = number > 1 && self.nodes.get(number >> 1).is_some_and(|node| node[0] == AT_ONCE);
            if let Some(node) = self.nodes.get_mut(number)
                && (below_near || count(node) >= near_from)
            {
                node[0] = AT_ONCE;
            }
        }
        for (number, block) in self.blocks.iter_mut().enumerate() {
            if self.nodes.get((blocks + number) >> 1).is_some_and(|node| node[0] == AT_ONCE) {
                block[OWED] = AT_ONCE;
            }
        }
    }

    /// Starts the superpage of `1 << shift` units around `unit` and its parts anew, and takes `less` off every larger
    /// one around it, in a settled segment.
    pub(crate) fn restart(&mut self, unit: usize, shift: u32, less: u32) {
        let number = unit >> block::SHIFT;
        if shift <= block::SHIFT {
            let Some(block) = self.blocks.get_mut(number) else { return };
            for part in 1..=shift {
                let first = block::count(part, unit >> shift << shift);
                for count in block.iter_mut().skip(first).take(1 << (shift - part)) {
                    *count = 0;
                }
            }
            for larger in shift + 1..=block::SHIFT {
                let count = &mut block[block::count(larger, unit)];
                *count = u32::from(*count).saturating_sub(less) as u16;
            }
        } else {
            let blocks = 1 << (shift - block::SHIFT);
            let first = number & !(blocks - 1);
            for block in self.blocks.iter_mut().skip(first).take(blocks) {
                for count in block.iter_mut().skip(OWED + 1) {
                    *count = 0;
                }
            }
            for part in block::SHIFT + 1..=shift {
                let first = self.rules.node(first, part);
                for node in self.nodes.iter_mut().skip(first).take(1 << (shift - part)) {
                    set(node, 0);
                }
            }
        }
        for larger in self.above(shift + 1) {
            if let Some(node) = self.nodes.get_mut(self.rules.node(number, larger)) {
                set(node, count(node).saturating_sub(less));
            }
        }
    }
}
