//! Tuning: the sizes of nodes follow the number of their entries. This file chooses the steps, [`tune_steps`](super::tune_steps)
//! takes them. Leaves have other rules ([`leaf_size`](super::leaf_size)).
//!
//! ```text
//!   +-----+-----+                                     +-----+-----+-----+-----+
//!   |  *  |  *  |       grow: takes the next bit      |  a0 |  a1 |  B  |     |
//!   +--|--+--|--+     ----------------------------->  +-----+-----+-----+-----+
//!      |     `-> guard, B                               node A is gone: its two halves a0 and a1 have slots of
//!      |                                                their own. (A half with one entry is that entry, not a
//!   +-----+-----+       halve: gives the bit back       node.) The guard above B contains this bit, so one
//!   |  a0 |  a1 |     <-----------------------------    slot leads to B, and the other one is empty.
//!   +-----+-----+  A
//! ```
//!
//! Two more steps avoid a local optimum. Growing by several bits at once removes whole nodes, where growing by one bit would only
//! split them. Splitting off the highest bit separates a crowded half of a node from a sparse one.
//!
//! A step **pays** if it saves the bytes that the tables below ask for. A step that makes smaller nodes must save more than an
//! eighth of the node, so that a page that is mapped and unmapped again and again does not change the node's size each time. When a
//! change returns, no further step pays at the nodes that it touched, unless a step found no memory or changed nodes further below
//! than [`DEEP`].
//!
//! So no node of `2^w` slots, `w > 1`, uses less than three eighths of its slots, give or take a pair. In the paper's layout
//! `cost(w)` is `16 * 2^w`, and each pair with two entries needs a node of `cost(1) = 32` bytes after halving. Halving does not pay
//! if `8 * 2^w - 32 * pairs <= 2 * 2^w`, which is the case if `3/16 * 2^w` pairs or more have two entries. The two-slot nodes in the
//! place of this node would take half of its bytes or more. So the indexing nodes take at most twice the bytes of the same tree with
//! two-slot nodes only: below 64 bytes a leaf in the paper's layout. On the loads of Elphinstone et al. 3.3 they take at most 3 % more
//! than with the best choice of sizes: `cargo xtask demo --workload uniform`, `file`, `dense` or `conventional`, row `GA`, prints both
//! sums a page.
//!
//! # What a step saves
//!
//! `cost(w)` ([`cost`](Gpt::cost)) is the bytes of an indexing node of `2^w` slots, with the record that the storage keeps of the
//! node. For a node of width `w`:
//!
//! | term | meaning | effect |
//! |-|-|-|
//! | `below[v]` | nodes of width `v` right below the digit: no guard is between | growing by `b` bits replaces each by `2^b` nodes of width `v - b`, or by none if `v = b`: it saves `cost(v) - 2^b cost(v - b)` |
//! | `lone` | empty slots of the nodes of width 2 right below | growing by one bit halves such a node; a half with one entry needs no node, so each empty slot saves one `cost(1)` more |
//! | `guarded` | the highest position that a node or leaf behind a guard reaches | the node's new slots must not be smaller than that |
//! | `blocked` | a leaf is right below the digit | a leaf has no bits to give, so the node does not grow |
//! | `pairs` | pairs of slots, `2k` and `2k + 1`, with an entry | halving makes one slot of each pair; if one pair is left, the node goes, and that pair's entry takes its place |
//! | `merged` | the bytes saved below by halving, at the pairs with two entries | two nodes of width `v` right below become one of width `v + 1`, which saves `2 cost(v) - cost(v + 1)`; any other two entries need a node of two slots, which takes `cost(1)`. Two slots that lead to one leaf are one entry |
//! | `halves` | the entries in the lower and in the upper half of the slots | an empty half is dropped; splitting gives each half with more than one entry a node of width `w - 1` |
//!
//! | step | bytes saved | taken if they are |
//! |-|-|-|
//! | grow by `b`: 1, or the least `v` with a node in `below[v]` | the sum over `below` up to the width [`WIDEST`](Gpt::WIDEST), and `lone` times `cost(1)` if `b = 1`, less `cost(w + b) - cost(w)` | more than 0, if `w + b` is at most `WIDEST` and no new slot is smaller than the region of the largest leaf |
//! | trim | `cost(w) - cost(w - 1)` | always more than 0 |
//! | halve | `cost(w) + merged - cost(w - 1)`, without the last term if one pair is left | more than `cost(w) / 8` |
//! | split | `cost(w) - cost(1)`, less `cost(w - 1)` for each half that needs a node | more than `cost(w) / 8` |
//!
//! Growing may save more than its row says: it may also leave halves with one entry, or none, of nodes wider than those that `lone`
//! counts. It saves less than its row says for two kinds of nodes right below:
//!
//! - a node wider than `WIDEST`, which the sum leaves out. A range has made it ([`RANGE_WIDTH`](Gpt::RANGE_WIDTH)), and no step
//!   makes one. Each of its `2^b` parts has a record, so growing takes the bytes of `2^b - 1` records more;
//! - a node of width 2 with an empty half. `lone` counts both empty slots, but only one `cost(1)` is saved. Such a node has not been
//!   trimmed: a step found no memory, or another step made the node further below than [`DEEP`].
//!
//! # Why the loop ends
//!
//! A step that saves what its row says reduces the bytes of the subtree by at least one, nothing else in the loop increases them, and
//! they are never negative. The other steps are finitely many, because each takes something away that no step gives back: a bit of a
//! node wider than `WIDEST`, or the empty half of a node.
//!
//! The new nodes of a step are tuned, too, down to [`DEEP`] levels below the node, so the recursion and its stack are bounded.
//!
//! After a change of a range, tuning follows the paths to the two ends of the range ([`tune_path`](Gpt::tune_path)). If the change
//! has mapped or unmapped only some of a node's region, the region contains one of the ends.
//!
//! Tuning only saves memory, and nothing depends on it: a step that finds no memory for its new nodes is not taken, and the next
//! change tries again.

use super::guard::low;
use super::job::Count;
use super::layout::{Edge, Layout};
use super::node_size::NodeSize;
use super::slots::Place;
use super::{Gpt, MAX_WIDTH};
use crate::format::Format;
use crate::nodes::{Nodes, Stock};
use crate::{Geometry, Retired};

/// The number of levels below a tuned node on which the new nodes of its steps are tuned, too.
const DEEP: u32 = 1;

/// A change of a node's size.
#[derive(Clone, Copy)]
pub(super) enum Step {
    /// Takes this number of bits from the nodes below.
    Grow(u32),
    /// Gives the lowest bit back.
    Halve,
    /// Gives all bits but the highest to a node for each half.
    Split,
    /// Drops the highest bit, in which all entries agree. Holds the half that is in use.
    Trim(usize),
}

/// Which of the nodes that cover a page are tuned.
#[derive(Clone, Copy)]
pub(super) enum Which {
    /// The lowest so many, which the change of one page may have touched.
    Lowest(usize),
    All,
    /// Those that do not cover this other page, too: all nodes that cover that page have been tuned.
    NotOf(usize),
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Returns the result of the steps that pay at a node that has changed: the node itself, another node or leaf, or the node's only
    /// entry.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `old` is a node of this table that begins at `base`. The
    /// caller publishes the result in its place.
    pub(super) unsafe fn tune(&self, batch: &mut Retired<'n>, old: Edge, base: usize) -> Edge {
        // SAFETY: by this function's contract the caller is the only writer, and puts the result in the node's place.
        unsafe { self.tune_to(batch, old, base, DEEP) }
    }

    /// As [`tune`](Self::tune), and tunes the new nodes of a step down to `deep` levels below the node, which bounds the recursion.
    /// The new nodes of a step on the lowest of these levels are not tuned before the next change there.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `old` is a node of this table that begins at `base`. The
    /// caller publishes the result in its place.
    #[inline(never)]
    unsafe fn tune_to(&self, batch: &mut Retired<'n>, old: Edge, base: usize, deep: u32) -> Edge {
        // SAFETY: by this function's contract the caller is the only writer, and puts the
        // result in the node's place.
        unsafe {
            if L::TAGGED
                && old.top() <= Self::LEAF_TOP
                && let Some(leaf) = self.join(batch, old, base)
            {
                return leaf;
            }
            let (mut now, mut base) = (old, base);
            while P::ADAPTIVE
                && !now.is_leaf()
                && now.top() > Self::LEAF_TOP
                && let Some(step) = self.step(now)
            {
                let Some(new) = self.try_step(batch, now, base, step) else { break };
                now = new;
                if deep > 0 && !matches!(step, Step::Trim(_)) {
                    self.tune_children(batch, now, base, deep - 1);
                }
                if let Some(near) = self.nearest(now, base) {
                    base = near & !low(now.top());
                }
            }
            now
        }
    }

    /// Takes a step, if there is memory for the nodes that it needs: counts them, reserves them, and takes the step.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `node` is a node of this table that begins at `base`. The
    /// caller publishes the result in its place.
    #[inline(never)]
    unsafe fn try_step(&self, batch: &mut Retired<'n>, node: Edge, base: usize, step: Step) -> Option<Edge> {
        let mut stock = Stock::empty(self.nodes, &Self::WORDS);
        // SAFETY: the caller is the writer.
        unsafe { self.take_step(&mut Count(&mut stock), batch, node, base, step) };
        stock.take_wanted(L::REACH).ok()?;
        // SAFETY: the caller is the writer and replaces the node by the result; the stock has what the first run has counted.
        Some(unsafe { self.take_step(&mut stock, batch, node, base, step) })
    }

    /// Chooses a step that saves enough, if there is one.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `node` is a node of this table, or one that will take the place of a node of this table.
    #[inline(never)]
    pub(super) unsafe fn step(&self, node: Edge) -> Option<Step> {
        let cost = Self::cost;
        // The nodes right below the digit, by width, can give their highest bits to it. A leaf there cannot.
        let (mut below, mut blocked, mut lone) = ([0isize; MAX_WIDTH + 1], false, 0);
        // The highest position that a node or leaf behind a guard reaches: a slot must not become smaller than such a region.
        let mut guarded = 0;
        // Halving: the pairs of slots with an entry, and the bytes that merging the pairs with two entries saves.
        let (mut pairs, mut merged) = (0, 0);
        let mut halves = [0; 2];
        let (mut left, mut last) = (Edge::EMPTY, Edge::EMPTY);
        for slot in 0..node.slots() {
            // SAFETY: the caller is the writer; the slot is within the node.
            let child = unsafe { self.edge(Place::In(node.node, slot), node.shift, 0) };
            if !child.is_empty() {
                halves[usize::from(slot >> (node.width - 1) != 0)] += usize::from(child != last);
                if child.top() >= node.shift {
                    blocked |= child.is_leaf();
                    // No width is larger than the largest.
                    if let Some(below) = below.get_mut(child.width as usize) {
                        *below += 1;
                    }
                    if !child.is_leaf() && child.width == 2 {
                        // A half of this child with one entry needs no node.
                        // SAFETY: the child is in the table.
                        lone += 4 - unsafe { self.live(child) } as isize;
                    }
                } else {
                    guarded = guarded.max(child.top());
                }
            }
            last = child;
            if slot & 1 == 0 {
                left = child;
                continue;
            }
            pairs += usize::from(!left.is_empty() || !child.is_empty());
            if !left.is_empty() && !child.is_empty() && left != child {
                merged += if Self::mergeable(left, child, node.shift) {
                    2 * cost(child.width) - cost(child.width + 1)
                } else {
                    -cost(1)
                };
            }
        }
        // Growing by the width of the narrowest child removes all nodes of that width. A child whose region is no larger than that of
        // a leaf can be keeps its bits, so that it can be joined to a leaf.
        let below = |width: u32| below.get(width as usize).copied().unwrap_or(0);
        if !blocked && let Some(most) = (1..=MAX_WIDTH as u32).find(|&width| below(width) > 0) {
            for bits in [1, most] {
                let saved: isize = (most..=Self::WIDEST)
                    .map(|width| {
                        let rest = if width > bits { cost(width - bits) << bits } else { 0 };
                        below(width) * (cost(width) - rest)
                    })
                    .sum();
                let lone = if bits == 1 { lone * cost(1) } else { 0 };
                let width = node.width + bits;
                let room = width <= Self::WIDEST && node.shift >= bits + Self::LEAF_TOP.max(guarded);
                if room && saved + lone > cost(width) - cost(node.width) {
                    return Some(Step::Grow(bits));
                }
            }
        }
        if node.width == 1 {
            return None;
        }
        if let Some(empty) = halves.iter().position(|&entries| entries == 0) {
            return Some(Step::Trim(1 - empty));
        }
        let margin = cost(node.width) / 8;
        let upper = if pairs == 1 { 0 } else { cost(node.width - 1) };
        if cost(node.width) + merged - upper > margin {
            return Some(Step::Halve);
        }
        let apart: isize =
            halves.iter().map(|&entries| if entries > 1 { cost(node.width - 1) } else { 0 }).sum();
        (cost(node.width) - apart - cost(1) > margin).then_some(Step::Split)
    }

    /// Tells whether two neighbours, in slots that begin at bit `shift`, can become one node of one bit more.
    pub(super) fn mergeable(left: Edge, right: Edge, shift: u32) -> bool {
        !left.is_leaf()
            && !right.is_leaf()
            && left.top() == shift
            && right.top() == shift
            && left.width == right.width
            && left.width < Self::WIDEST
    }

    /// Tunes the nodes right below the digit of a node that begins at `base`. The step or division that made the node made them,
    /// too.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `node` is a node of this table that begins at `base`, or
    /// one that will take the place of such a node.
    #[inline(never)]
    pub(super) unsafe fn tune_children(&self, batch: &mut Retired<'n>, node: Edge, base: usize, deep: u32) {
        // SAFETY: the caller is the writer; the slots are within the node.
        unsafe {
            for slot in 0..node.slots() {
                let start = base | slot << node.shift;
                let child = self.edge(Place::In(node.node, slot), node.shift, start);
                if !child.is_empty() && !child.is_leaf() && child.top() == node.shift {
                    let new = self.tune_to(batch, child, start, deep);
                    if new != child {
                        self.publish(Place::In(node.node, slot), node.shift, new);
                    }
                }
            }
        }
    }

    /// Tunes the nodes that cover `at`, the lowest first: those that `which` selects, and the node above each node that has
    /// changed. If a node was `divided`, also tunes the nodes right below each. Returns the position above the digit of the lowest.
    ///
    /// Finds each node by a walk from the root: a path of all of them would be on the stack while the nodes are tuned.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[inline(never)]
    pub(super) unsafe fn tune_path(
        &self,
        batch: &mut Retired<'n>,
        at: usize,
        which: Which,
        divided: bool,
    ) -> u32 {
        // SAFETY: the caller is the writer.
        unsafe {
            let (depth, lowest) = self.covering(at);
            let mut touched = match which {
                Which::Lowest(nodes) => nodes,
                Which::All => depth,
                Which::NotOf(other) => depth - self.covering_both(at, other),
            };
            for level in (0..depth).rev() {
                if touched == 0 {
                    break;
                }
                touched -= 1;
                if self.tune_level(batch, at, level, divided) {
                    touched = touched.max(1);
                }
            }
            lowest
        }
    }

    /// Tunes the node that a walk for `at` meets after `level` other nodes, and tells whether the node has changed.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and more than `level` nodes cover `at`.
    unsafe fn tune_level(&self, batch: &mut Retired<'n>, at: usize, level: usize, divided: bool) -> bool {
        // SAFETY: the caller is the writer; slots are within their nodes.
        unsafe {
            let mut place = Place::Root;
            let mut node = self.edge(place, G::VA_BITS, at);
            for _ in 0..level {
                place = Place::In(node.node, node.index(at));
                node = self.edge(place, G::VA_BITS, at);
            }
            let base = at & !low(node.top());
            if P::ADAPTIVE && divided {
                self.tune_children(batch, node, base, DEEP - 1);
            }
            let new = self.tune(batch, node, base);
            if new != node {
                self.publish(place, G::VA_BITS, new);
            }
            new != node
        }
    }
}
