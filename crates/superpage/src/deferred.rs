//! The charges of superpages larger than a block: they are deferred, and yet a count is exact when it reaches its threshold.
//!
//! The larger superpages of a segment are the inner nodes of a binary tree over its blocks, in heap order: the children
//! of node n are 2n and 2n + 1, its parent is n / 2, and the blocks are the leaves of the tree.
//!
//! ```text
//!   8M              1                    each node: a count, and the charges it owes
//!   4M       2             3
//!   ...
//!   128K   64 65 ...          ... 127    node (blocks + b) / 2 is above block b
//!   64K    the blocks                    each: the charges it owes
//! ```
//!
//! A miss charges the smallest superpage that also contains a resident entry, and all larger superpages around it. If the
//! smallest is within a block, the block *owes* one charge to the node above it. If the smallest is a node, the node counts
//! the charge and owes one to its parent. A node or block pays the charges that it owes before their number exceeds its
//! *quota*: its parent adds them to its count, and owes them to its own parent.
//!
//! A promotion must happen at the same miss as if every miss updated all counts. Appendix A defers charges until 1600 misses
//! have happened, the threshold at 128 KB, but some counts are above zero when such a period begins, and reach their
//! threshold within it. Here the charges that the blocks and nodes below a node can owe, at most a quota less one each, are
//! always fewer than the charges that the node lacks to its threshold:
//!
//! ```text
//!   count + owed below  <  threshold     as long as     count + (quota - 1) * blocks and nodes below  <  threshold
//! ```
//!
//! Before this condition fails, the policy settles the node: every block and node below it pays what it owes, and gets a new
//! quota, such that together they can owe half of the charges that the node lacks. So quotas shrink as the count grows. At a
//! quota of one nothing is owed and the count is exact. A node with more blocks costs more to settle, and is settled after
//! more charges. No quota is larger than that of the node above. One miss settles at most a whole segment: 254 blocks and
//! nodes for 8 MB.
//!
//! A count stops at its threshold, or at its *price* for the policy [`Thrift`](crate::Thrift): a superpage with pages that
//! were never touched takes memory that nothing uses, and THRIFT promotes it only at a count above the threshold. When a
//! node's count has reached its threshold, nothing below the node is owed.

use crate::PageSizes;
use crate::block::{self, Block, Each};
use crate::page_sizes::MAX_SPAN;

/// The length of a table by shift: a power of two that exceeds every superpage's shift, so an index needs only a mask.
const SHIFTS: usize = (MAX_SPAN as usize + 1).next_power_of_two();

/// A superpage larger than a block, in four counters of 16 bits:
///
/// - `[0]`: the number of charges that the node can still take before [`Segment::pay`] has to check its count;
/// - `[1]`: in the lower byte the number with which `[0]` started, in the upper byte the node's quota. The charges that the
///   node owes are the lower byte less `[0]`;
/// - `[2]` and `[3]`: the lower and the upper half of the node's count, without the charges that it owes.
///
/// Node number zero is the parent of the root. It only holds the largest quota.
pub(crate) type Node = [u16; 4];

fn count(node: &Node) -> u32 {
    u32::from(node[2]) | u32::from(node[3]) << 16
}

fn set(node: &mut Node, count: u32) {
    (node[2], node[3]) = (count as u16, (count >> 16) as u16);
}

fn quota(node: &Node) -> u32 {
    (node[1] >> 8).into()
}

fn owed(node: &Node) -> u32 {
    u32::from(node[1] & 0xff) - u32::from(node[0])
}

/// Lets a node that owes nothing take `left` charges before its count has to be checked. `left` must be at most 255.
fn set_left(node: &mut Node, left: u32, quota: u32) {
    (node[0], node[1]) = (left as u16, (quota << 8 | left) as u16);
}

/// Adds charges to a node and to what the node owes, unless the node's count has to be checked then. Returns whether they were added.
#[inline(always)]
pub(crate) fn defer(node: &mut Node, charges: u32) -> bool {
    let is_deferred = charges < node[0].into();
    if is_deferred {
        node[0] -= charges as u16;
    }
    is_deferred
}

/// Thresholds and quotas, by the shift of a superpage from units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The thresholds of the superpages within a block, by number.
    small: Each,
    /// The thresholds of larger superpages, by shift.
    thresholds: [u32; SHIFTS],
    /// The counts at which superpages within a block stop, by number: the threshold or more.
    small_prices: Each,
    /// The counts at which larger superpages stop, by shift.
    prices: [u32; SHIFTS],
    /// The largest quota.
    most: u32,
    /// Nodes without any charge, by shift.
    fresh: [Node; SHIFTS],
    /// A block without any charge.
    untouched: Block,
    /// log2 of the units of a segment, or of a block if that is more.
    top: u32,
}

impl Rules {
    /// Makes the rules. `threshold` maps log2 of a superpage's units to its threshold, or to `None` if that is no page size.
    pub(crate) fn new(
        page_sizes: &PageSizes,
        populated: u16,
        threshold: impl Fn(u32) -> Option<u32>,
    ) -> Self {
        let top = page_sizes.shift(page_sizes.top()).max(block::SHIFT);
        let (small, thresholds) = counts(top, threshold);
        // The charges that all blocks and nodes of a segment owe together must fit 16 bits: `settle` adds them up in one
        // counter.
        let fits = 1 + (u32::from(u16::MAX) >> hidden(1, top).ilog2());
        let most = fits.min(u8::MAX.into());
        let (mut fresh, mut above) = ([Node::default(); SHIFTS], most);
        for shift in (block::SHIFT + 1..=top).rev() {
            let node = &mut fresh[shift as usize % SHIFTS];
            choose(node, thresholds[shift as usize % SHIFTS], shift, above);
            above = quota(node);
        }
        let least = block::least(&[0; block::UNITS], &small).clamp(1, above as u16);
        let untouched = block::untouched(least, populated);
        let (small_prices, prices) = (small, thresholds);
        Self { small, thresholds, small_prices, prices, most, fresh, untouched, top }
    }

    /// Lets counts go beyond their thresholds up to their prices. `price` maps log2 of a superpage's units to its price,
    /// which must be at least the threshold.
    pub(crate) fn go_on(&mut self, price: impl Fn(u32) -> Option<u32>) {
        (self.small_prices, self.prices) = counts(self.top, price);
    }

    /// Returns the number of the node of `1 << shift` units around a block.
    #[inline]
    pub(crate) const fn node(&self, block: usize, shift: u32) -> usize {
        (1 << (self.top - shift)) | (block >> (shift - block::SHIFT))
    }

    fn threshold(&self, shift: u32) -> u32 {
        self.thresholds[shift as usize % SHIFTS]
    }

    fn price(&self, shift: u32) -> u32 {
        self.prices[shift as usize % SHIFTS]
    }
}

/// Tabulates a function of shifts: by superpage number for the superpages within a block, by shift for larger ones.
fn counts(top: u32, of: impl Fn(u32) -> Option<u32>) -> (Each, [u32; SHIFTS]) {
    let small = core::array::from_fn(|number| {
        let shift = block::SHIFT.saturating_sub(number.max(1).ilog2());
        of(shift).map_or(block::NEVER, |count| count.min(block::MOST.into()) as u16)
    });
    let mut large = [u32::MAX; SHIFTS];
    for shift in block::SHIFT + 1..=top {
        large[shift as usize % SHIFTS] = of(shift).unwrap_or(u32::MAX);
    }
    (small, large)
}

/// Returns an upper bound on the charges that the blocks and nodes below a node owe if each owes `more`: there are fewer of
/// them than twice the node's blocks.
fn hidden(more: u32, shift: u32) -> u32 {
    more << (shift - block::SHIFT + 1)
}

/// Chooses the quota of a node that owes nothing: at most `above`, the quota of the node's parent.
fn choose(node: &mut Node, threshold: u32, shift: u32, above: u32) {
    let lacking = threshold.saturating_sub(count(node));
    let more = (lacking.saturating_sub(1) >> hidden(2, shift).ilog2()).min(above - 1);
    set_left(node, lacking.saturating_sub(hidden(more, shift)).clamp(1, more + 1), more + 1);
}

/// The accounts of one segment.
#[derive(Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) blocks: &'a mut [Block],
    /// The nodes by number. Number zero is not a node of the tree, so the length is the number of nodes plus one.
    pub(crate) nodes: &'a mut [Node],
}

impl Segment<'_> {
    /// Initializes the nodes of a segment without any charge. [`prepare`](Self::prepare) initializes each block at its first
    /// use.
    pub(crate) fn open(&mut self) {
        self.blocks.fill([0; block::WORDS]);
        // Nodes of one level are equal and adjacent, so one `fill` for each level is the fastest way to write them.
        for (depth, shift) in (block::SHIFT + 1..=self.rules.top).rev().enumerate() {
            if let Some(level) = self.nodes.get_mut(1 << depth..2 << depth) {
                level.fill(self.rules.fresh[shift as usize % SHIFTS]);
            }
        }
        if let Some(beyond) = self.nodes.first_mut() {
            set_left(beyond, 0, self.rules.most);
        }
    }

    /// Initializes a block, if it has not been initialized yet.
    pub(crate) fn prepare(&mut self, number: usize) {
        let most = self.quota_above(number);
        if let Some(block) = self.blocks.get_mut(number)
            && block::left(block) == 0
        {
            *block = self.rules.untouched;
            block::set_due(block, block::left(block).min(most));
        }
    }

    /// Computes the sums of a block, which are due, and pays what the block owes. The last charge went to the superpage of
    /// `1 << from` units around `unit` and to all larger ones around it. Returns the shifts of those among them whose counts
    /// have reached their thresholds, as a set of bits.
    pub(crate) fn account(&mut self, unit: usize, from: u32) -> u32 {
        let (rules, number) = (self.rules, unit >> block::SHIFT);
        let Some(block) = self.blocks.get_mut(number) else { return 0 };
        let mut counts = block::counts(block);
        let least = block::least(&counts, &rules.small);
        let mut reached = 0;
        if least == 0 {
            block::set_counts(block, &mut counts, &rules.small_prices);
            for shift in from..=block::SHIFT {
                let number = block::number(shift, unit);
                reached |= u32::from(counts.get(number) >= rules.small.get(number)) << shift;
            }
        }
        let owed = block::owed(block);
        block::set_due(block, 1);
        if rules.top > block::SHIFT {
            reached |= self.pay(number, block::SHIFT + 1, owed.into());
        }
        let most = self.quota_above(number);
        if let Some(block) = self.blocks.get_mut(number) {
            block::set_due(block, least.clamp(1, most));
        }
        reached
    }

    /// Returns the quota of the node above a block.
    fn quota_above(&self, block: usize) -> u16 {
        self.nodes.get((self.blocks.len() + block) >> 1).map_or(1, quota) as u16
    }

    /// Adds `charges` to the node of `1 << from` units around a block. Returns the shifts of the nodes, from that node up to
    /// the root, whose counts have reached their thresholds, as a set of bits.
    #[inline(never)]
    pub(crate) fn pay(&mut self, block: usize, from: u32, mut charges: u32) -> u32 {
        let (mut number, mut shift, mut reached) = (self.rules.node(block, from), from, 0);
        while let (1.., Some(node)) = (number, self.nodes.get_mut(number)) {
            if defer(node, charges) {
                break;
            }
            let (threshold, more) = (self.rules.threshold(shift), quota(node) - 1);
            let sum = count(node).saturating_add(owed(node) + charges);
            let lacking = threshold.saturating_sub(sum);
            if more > 0 && lacking <= hidden(more, shift) {
                // `settle` adds what the node itself owes to its count, so the sum must not contain it.
                let sum = sum - owed(node);
                set(node, sum);
                charges += self.settle(number, shift);
                self.mark(number, shift);
            } else {
                charges += owed(node);
                set(node, sum.min(self.rules.price(shift)));
                set_left(node, lacking.saturating_sub(hidden(more, shift)).clamp(1, more + 1), more + 1);
            }
            if self.nodes.get(number).is_some_and(|node| count(node) >= threshold) {
                reached |= 1 << shift;
            }
            (number, shift) = (number >> 1, shift + 1);
        }
        reached
    }

    /// Returns the exact count of the superpage of `1 << shift` units around a block. The superpage must be larger than a
    /// block.
    pub(crate) fn exact(&self, block: usize, shift: u32) -> u32 {
        let (number, below) = (self.rules.node(block, shift), shift - block::SHIFT);
        let first = (number << below) - self.blocks.len();
        let in_blocks = self.blocks.iter().skip(first).take(1 << below);
        let mut sum: u32 = in_blocks.map(|block| u32::from(block::owed(block))).sum();
        for depth in 0..below {
            sum += self.nodes.iter().skip(number << depth).take(1 << depth).map(owed).sum::<u32>();
        }
        let counted = self.nodes.get(number).map_or(0, count);
        counted.saturating_add(sum).min(self.rules.price(shift))
    }

    /// Makes the counts of a node and of all nodes below it exact. Returns the number of charges that the node owes to its
    /// parent, which the caller must pay. Then the caller must choose new quotas with [`mark`](Self::mark).
    fn settle(&mut self, number: usize, shift: u32) -> u32 {
        let all = self.blocks.len();
        for level in block::SHIFT + 1..=shift {
            let price = self.rules.price(level);
            let depth = shift - level;
            for number in number << depth..(number + 1) << depth {
                let below: u32 = if level == block::SHIFT + 1 {
                    let pair = self.blocks.iter_mut().skip(2 * number - all).take(2);
                    pair.map(|block| {
                        let owed = block::owed(block);
                        block::set_due(block, block::left(block));
                        u32::from(owed)
                    })
                    .sum()
                } else {
                    self.nodes.iter().skip(2 * number).take(2).map(|node| u32::from(node[0])).sum()
                };
                let Some(node) = self.nodes.get_mut(number) else { continue };
                let owed = owed(node) + below;
                set(node, count(node).saturating_add(owed).min(price));
                // The loop's next round reads it here for the parent; `mark` overwrites it.
                node[0] = owed as u16;
            }
        }
        self.nodes.get(number).map_or(0, |node| node[0].into())
    }

    /// Chooses quotas for a node and for all blocks and nodes below it, none of which owes anything.
    fn mark(&mut self, number: usize, shift: u32) {
        self.mark_until(number, shift, self.rules.threshold(shift));
    }

    /// As [`mark`](Self::mark), for a node whose count need not be checked until it reaches `count`.
    fn mark_until(&mut self, number: usize, shift: u32, count: u32) {
        for level in (block::SHIFT + 1..=shift).rev() {
            let threshold = if level == shift { count } else { self.rules.threshold(level) };
            let depth = shift - level;
            for number in number << depth..(number + 1) << depth {
                let above = self.nodes.get(number >> 1).map_or(1, quota);
                let Some(node) = self.nodes.get_mut(number) else { continue };
                choose(node, threshold, level, above);
            }
        }
        let (all, below) = (self.blocks.len(), shift - block::SHIFT);
        let first = (number << below) - all;
        for number in first..first + (1 << below) {
            let most = self.quota_above(number);
            if let Some(block) = self.blocks.get_mut(number) {
                block::set_due(block, block::left(block).min(most));
            }
        }
    }

    /// Puts off the next check of the node of `1 << shift` units around a block until the node's count reaches `price`. The
    /// count has reached the threshold, so nothing below the node is owed.
    pub(crate) fn put_off(&mut self, block: usize, shift: u32, price: u32) {
        self.mark_until(self.rules.node(block, shift), shift, price);
    }

    /// Makes the next charge to a block, or to a node above it whose count has reached its threshold, check the count.
    pub(crate) fn hasten(&mut self, number: usize) {
        if let Some(block) = self.blocks.get_mut(number) {
            block::hasten(block);
        }
        for shift in block::SHIFT + 1..=self.rules.top {
            let node = self.rules.node(number, shift);
            if self.nodes.get(node).is_some_and(|node| count(node) >= self.rules.threshold(shift)) {
                self.settle_with(number, shift, |_| ());
            }
        }
    }

    /// Settles the node of `1 << shift` units around a block, applies `change` to the node, and pays its parent.
    fn settle_with(&mut self, block: usize, shift: u32, change: impl FnOnce(&mut Node)) {
        let number = self.rules.node(block, shift);
        let owed = self.settle(number, shift);
        if let Some(node) = self.nodes.get_mut(number) {
            change(node);
        }
        self.mark(number, shift);
        if shift < self.rules.top {
            self.pay(block, shift + 1, owed);
        }
    }

    /// Sets the count of the superpage of `1 << shift` units around `unit` to zero, and no other count.
    pub(crate) fn start_over(&mut self, unit: usize, shift: u32) {
        let number = unit >> block::SHIFT;
        if shift > block::SHIFT {
            self.settle_with(number, shift, |node| set(node, 0));
        } else if let Some(block) = self.blocks.get_mut(number) {
            // A smaller count cannot reach its threshold earlier, so `due` stays valid.
            let mut counts = block::counts(block);
            if let Some(count) = counts.get_mut(block::number(shift, unit)) {
                *count = 0;
            }
            block::set_counts(block, &mut counts, &self.rules.small_prices);
        }
    }

    /// Makes the sums of a block, which must owe nothing, due after at most `misses` misses.
    pub(crate) fn rest(&mut self, number: usize, misses: u16) {
        let most = self.quota_above(number);
        if let Some(block) = self.blocks.get_mut(number) {
            block::set_due(block, misses.clamp(1, most));
        }
    }

    /// Sets the counts of the superpage of `1 << shift` units around `unit` and of its parts to zero, and subtracts `less`
    /// from the count of every larger superpage around it. The caller has [prepared](Self::prepare) the superpage's blocks.
    pub(crate) fn restart(&mut self, unit: usize, shift: u32, less: u32) {
        let rules = self.rules;
        let beyond = less > 0 || shift > block::SHIFT;
        if beyond {
            self.settle(1, rules.top);
        }
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
            let mut larger = block::number(shift, unit) >> 1;
            while let (1.., Some(count)) = (larger, counts.get_mut(larger)) {
                *count = u32::from(*count).saturating_sub(less) as u16;
                larger >>= 1;
            }
            block::set_counts(block, &mut counts, &rules.small_prices);
            if beyond {
                block::set_due(block, block::least(&counts, &rules.small).max(1));
            }
        }
        if !beyond {
            return;
        }
        // The blocks have the heap numbers that follow those of the nodes.
        let own = rules.node(first, shift.max(block::SHIFT));
        for depth in 0..shift.saturating_sub(block::SHIFT) {
            for node in self.nodes.iter_mut().skip(own << depth).take(1 << depth) {
                set(node, 0);
            }
        }
        let mut larger = own >> 1;
        while let (1.., Some(node)) = (larger, self.nodes.get_mut(larger)) {
            set(node, count(node).saturating_sub(less));
            larger >>= 1;
        }
        self.mark(1, rules.top);
    }
}

#[cfg(test)]
mod tests;
