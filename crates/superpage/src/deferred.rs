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
//! the block *owes* one charge to the node above it; where it is a node, that counts it and owes one to its parent. A
//! debt is paid when it has grown to the *quota*, a few dozen charges: the parent counts them, and owes them in turn.
//!
//! Promotions must fall exactly where eager counting puts them. Appendix A waits until 1600 misses have happened, the
//! threshold at 128 KB; but counts do not all start at zero when the wait does. Here a node is *near* when its count and
//! all that can be owed within, a quota less one by each node and block, could reach its threshold. Whatever
//! lies at or below a near node pays at once: nodes are marked so, blocks are due after one miss. So a count is exact
//! whenever it could matter. When a node becomes near, and when a superpage is promoted, the whole segment is settled:
//! one pass over its 255 debts for 8 MB. That is the worst that a miss can cost.
//!
//! Counts stop at their threshold: beyond it there is nothing to learn.

use crate::Ladder;
use crate::block::{self, Block, Each};
use crate::ladder::MAX_SPAN;

/// In place of a node's debt: what is owed is paid at every miss.
const AT_ONCE: u16 = 1 << 15;
/// Debts are paid while what they can hide is this part of a threshold.
const SHARE: u32 = 8;
/// More shifts than a superpage can have, and a power of two.
const SHIFTS: usize = (MAX_SPAN as usize + 1).next_power_of_two();

/// A superpage larger than a block: what it owes, the lower and upper half of its count, and for each TLB, in a byte,
/// how many of its two parts hold resident entries: Appendix A's `tlbcount`.
pub(crate) type Node = [u16; 4];

fn count(node: &Node) -> u32 {
    u32::from(node[1]) | u32::from(node[2]) << 16
}

fn set(node: &mut Node, count: u32) {
    (node[1], node[2]) = (count as u16, (count >> 16) as u16);
}

/// Counts charges that a node is paid, and owes them in turn.
fn credit(node: &mut Node, charges: u16, threshold: u32) {
    set(node, count(node).saturating_add(charges.into()).min(threshold));
    node[0] += charges;
}

/// Thresholds and quotas, by the shift of a superpage from units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Of the superpages within a block, by number.
    small: Each,
    /// Of larger ones.
    thresholds: [u32; SHIFTS],
    /// A node whose count is at least this is near its threshold.
    near: [u32; SHIFTS],
    quota: u8,
    /// Thresholds are so low that something is near from the start.
    near_at_once: bool,
    /// log2 of the units of a segment, or of a block if that is more.
    top: u32,
}

impl Rules {
    /// `threshold` gives that of the superpages of so many units, as a power of two, or nothing for what is no rung.
    pub(crate) fn new(ladder: &Ladder, eager: bool, threshold: impl Fn(u32) -> Option<u32>) -> Self {
        let top = ladder.shift(ladder.top()).max(block::SHIFT);
        let small = core::array::from_fn(|number| {
            let shift = block::SHIFT.saturating_sub(number.max(1).ilog2());
            threshold(shift).map_or(block::MOST, |threshold| threshold.min(block::MOST.into()) as u16)
        });
        // Blocks and nodes that can owe to a superpage.
        let debtors = |shift: u32| 2 * (1 << (shift - block::SHIFT)) - 1;
        let mut thresholds = [u32::MAX; SHIFTS];
        // What a whole segment owes must be a debt itself when it is settled.
        let mut quota = (u32::from(AT_ONCE) / (debtors(top) + 1)).min(u8::MAX.into());
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
        Self { small, thresholds, near, quota: quota as u8, near_at_once: near.contains(&0), top }
    }

    /// Returns the number of the node of `1 << shift` units around a block.
    #[inline]
    pub(crate) const fn node(&self, block: usize, shift: u32) -> usize {
        (1 << (self.top - shift)) | (block >> (shift - block::SHIFT))
    }

    /// Counts one charge to a node, and owes it to the parent, if nothing more comes of it. Returns whether it did.
    #[inline(always)]
    pub(crate) fn charge_swiftly(&self, node: &mut Node, shift: u32) -> bool {
        let more = count(node) + 1;
        // A node that pays at once has a debt larger than any quota.
        if more >= self.near[shift as usize % SHIFTS] || node[0] + 1 >= u16::from(self.quota) {
            return false;
        }
        set(node, more);
        node[0] += 1;
        true
    }

    /// Returns a block that nothing has been charged to.
    pub(crate) fn untouched(&self) -> Block {
        block::untouched(block::least(&[0; block::UNITS], &self.small).clamp(1, self.quota))
    }
}

/// Node number zero, beyond the root, ends every walk up: it always has an occupied part.
const BEYOND: Node = [0, 0, 0, 0x0101];

/// Records that a block, one of `1 << spread` of a segment with these nodes, holds resident entries. Returns the shift
/// of the smallest node around it that has some in its other part; that of a segment and one if there is none.
#[inline(always)]
pub(crate) fn occupy(nodes: &mut [Node], spread: u32, tlb: usize, block: usize) -> u32 {
    let (mut number, mut shift) = (1 << spread | block, block::SHIFT);
    loop {
        (number, shift) = (number >> 1, shift + 1);
        let Some(node) = nodes.get_mut(number) else { return shift };
        let parts = node[3] >> (8 * tlb) & 3;
        node[3] += 1 << (8 * tlb);
        if parts > 0 {
            return shift;
        }
    }
}

/// Records that a block no longer holds resident entries.
#[inline(always)]
pub(crate) fn vacate(nodes: &mut [Node], spread: u32, tlb: usize, block: usize) {
    let mut number = 1 << spread | block;
    loop {
        number >>= 1;
        let Some(node) = nodes.get_mut(number) else { return };
        node[3] -= 1 << (8 * tlb);
        if node[3] >> (8 * tlb) & 3 > 0 {
            return;
        }
    }
}

/// Returns the shift of the smallest node around a block that holds a resident entry; that of a segment and one if
/// there is none.
pub(crate) fn occupied(nodes: &[Node], spread: u32, tlb: usize, block: usize) -> u32 {
    let empty = |&shift: &u32| {
        let number = (1 << spread | block) >> (shift - block::SHIFT);
        nodes.get(number).is_some_and(|node| node[3] >> (8 * tlb) & 3 == 0)
    };
    (block::SHIFT + 1..).find(|shift| !empty(shift)).unwrap_or(u32::MAX)
}

/// Forgets what a TLB held.
pub(crate) fn vacate_all(nodes: &mut [Node], tlb: usize) {
    for (number, node) in nodes.iter_mut().enumerate() {
        node[3] = node[3] & !(0xff << (8 * tlb)) | u16::from(number == 0) << (8 * tlb);
    }
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
    /// Prepares a segment that nothing has been charged to.
    pub(crate) fn open(&mut self) {
        self.blocks.fill(self.rules.untouched());
        self.nodes.fill(Node::default());
        if let Some(node) = self.nodes.first_mut() {
            *node = BEYOND;
        }
        if self.rules.near_at_once {
            self.mark();
        }
    }

    /// Takes the sums of a block, which are due, and pays what it owes. The last charge was to the superpage of
    /// `1 << from` units around `unit`. Returns the shifts of the superpages that it was for whose counts stand at
    /// their thresholds, as a set.
    pub(crate) fn account(&mut self, unit: usize, from: u32) -> u32 {
        let (rules, number) = (self.rules, unit >> block::SHIFT);
        let Some(block) = self.blocks.get_mut(number) else { return 0 };
        let mut counts = block::counts(block);
        let least = block::least(&counts, &rules.small);
        let mut reached = 0;
        if least == 0 {
            block::set_counts(block, &mut counts, &rules.small);
            for shift in from..=block::SHIFT {
                let number = block::number(shift, unit);
                reached |= u32::from(counts.get(number) == rules.small.get(number)) << shift;
            }
        }
        let owed = block::owed(block);
        block::set_due(block, least.clamp(1, rules.quota));
        if rules.top == block::SHIFT {
            return reached;
        }
        // If a node that is near stands above, it says that the next sums are due with the next miss.
        reached | self.pay(number, block::SHIFT + 1, owed)
    }

    /// The shifts of nodes, from one on.
    fn above(&self, shift: u32) -> core::ops::RangeInclusive<u32> {
        shift.max(block::SHIFT + 1)..=self.rules.top
    }

    /// Pays to the node of `1 << from` units around a block. Returns the shifts of the nodes from that one up whose
    /// counts stand at their thresholds, as a set.
    pub(crate) fn pay(&mut self, block: usize, from: u32, mut charges: u16) -> u32 {
        let (mut number, mut shift) = (self.rules.node(block, from), from);
        let (mut near, mut newly) = (false, false);
        while let (1.., Some(node)) = (number, self.nodes.get_mut(number)) {
            let more = count(node) + u32::from(charges);
            if more >= self.rules.near[shift as usize % SHIFTS] {
                near = true;
                newly |= node[0] != AT_ONCE;
                set(node, more.min(self.rules.thresholds[shift as usize % SHIFTS]));
            } else {
                set(node, more);
            }
            if node[0] != AT_ONCE {
                node[0] += charges;
                if node[0] < u16::from(self.rules.quota) {
                    break;
                }
                charges = core::mem::take(&mut node[0]);
            }
            (number, shift) = (number >> 1, shift + 1);
        }
        if newly {
            self.settle();
            self.mark();
        } else if near && let Some(block) = self.blocks.get_mut(block) {
            block::set_due(block, 1);
        }
        if !near {
            // Far from every threshold, nothing can be at one.
            return 0;
        }
        let standing = |shift: &u32| self.exact(block, *shift) == self.threshold(*shift);
        self.above(from).filter(standing).fold(0, |reached, shift| reached | 1 << shift)
    }

    fn threshold(&self, shift: u32) -> u32 {
        self.rules.thresholds.get(shift as usize).copied().unwrap_or(u32::MAX)
    }

    fn near(&self, shift: u32) -> u32 {
        self.rules.near.get(shift as usize).copied().unwrap_or(u32::MAX)
    }

    /// Returns the count of a node, exact if the segment is settled or the node near.
    pub(crate) fn exact(&self, block: usize, shift: u32) -> u32 {
        self.nodes.get(self.rules.node(block, shift)).map_or(0, count)
    }

    /// Pays every debt.
    pub(crate) fn settle(&mut self) {
        let blocks = self.blocks.len();
        let threshold = self.threshold(block::SHIFT + 1);
        for (number, block) in self.blocks.iter_mut().enumerate() {
            let owed = block::owed(block);
            block::paid(block);
            // What pays at once owes nothing, and has only such below it: marks and debts do not mix.
            if let (1.., Some(node)) = (owed, self.nodes.get_mut((blocks + number) >> 1)) {
                credit(node, owed, threshold);
            }
        }
        for number in (2..blocks).rev() {
            let threshold = self.threshold(self.rules.top - number.ilog2() + 1);
            let Some(node) = self.nodes.get_mut(number) else { continue };
            let owed = core::mem::take(&mut node[0]);
            if let (1..AT_ONCE, Some(parent)) = (owed, self.nodes.get_mut(number >> 1)) {
                credit(parent, owed, threshold);
            }
        }
        if let Some(root) = self.nodes.get_mut(1) {
            root[0] = 0;
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
            if blocks > 1 && self.nodes.get((blocks + number) >> 1).is_some_and(|node| node[0] == AT_ONCE) {
                block::set_due(block, 1);
            }
        }
    }

    /// Starts the superpage of `1 << shift` units around `unit` and its parts anew, and takes `less` off every larger
    /// one around it, in a settled segment; what is near has to be found again.
    pub(crate) fn restart(&mut self, unit: usize, shift: u32, less: u32) {
        let rules = self.rules;
        let blocks = 1 << shift.saturating_sub(block::SHIFT);
        let first = unit >> block::SHIFT & !(blocks - 1);
        for block in self.blocks.iter_mut().skip(first).take(blocks) {
            let mut counts = block::counts(block);
            for part in 1..=shift.min(block::SHIFT) {
                let wide = (block::UNITS >> part, 1 << (shift.min(block::SHIFT) - part));
                let first = wide.0 + (((unit >> shift << shift) % block::UNITS) >> part);
                for count in counts.iter_mut().skip(first).take(wide.1) {
                    *count = 0;
                }
            }
            for larger in shift + 1..=block::SHIFT {
                if let Some(count) = counts.get_mut(block::number(larger, unit)) {
                    *count = u32::from(*count).saturating_sub(less) as u16;
                }
            }
            block::set_counts(block, &mut counts, &rules.small);
            block::set_due(block, block::least(&counts, &rules.small).clamp(1, rules.quota));
        }
        for part in block::SHIFT + 1..=shift {
            for node in self.nodes.iter_mut().skip(rules.node(first, part)).take(1 << (shift - part)) {
                set(node, 0);
            }
        }
        for larger in self.above(shift + 1) {
            if let Some(node) = self.nodes.get_mut(rules.node(first, larger)) {
                set(node, count(node).saturating_sub(less));
            }
        }
    }
}
