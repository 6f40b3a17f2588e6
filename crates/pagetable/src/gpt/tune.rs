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
//! change returns, no further step pays at the nodes that it touched, with three exceptions: a step found no memory, or changed nodes
//! further below than [`DEEP`], or the change of one page is one of too few to read the node's slots
//! ([`is_due`](super::node::Node::is_due)).
//!
//! So no node of `2^w` slots, `w > 1`, that has just been tuned uses less than three eighths of its slots, give or take a pair. In
//! the paper's layout `cost(w)` is `16 * 2^w`, and each pair with two entries needs a node of `cost(1) = 32` bytes after halving.
//! Halving does not pay if `8 * 2^w - 32 * pairs <= 2 * 2^w`, which is the case if `3/16 * 2^w` pairs or more have two entries. The
//! two-slot nodes in the place of this node would take half of its bytes or more. So the indexing nodes take at most twice the
//! bytes of the same tree with two-slot nodes only: below 64 bytes a leaf in the paper's layout. (In the layout `OneWord` a node of
//! 16 slots stays above two leaves of 16 pages, which take more than twice its bytes, and a run of pages that are mapped one by one
//! gets such nodes at once.) On the loads of Elphinstone et al. 3.3 they take at most 3 % more than with the best choice of sizes:
//! `cargo xtask demo --workload uniform`, `file`, `dense` or `conventional`, row `GA`, prints both sums a page.
//!
//! # What a step saves
//!
//! `cost(w)` ([`cost`](Shape::cost)) is the bytes of an indexing node of `2^w` slots, with the record that the storage keeps of the
//! node. For a node of width `w`:
//!
//! | term | meaning | effect |
//! |-|-|-|
//! | `below[v]` | nodes of width `v` right below the digit: no guard is between | growing by `b` bits replaces each by `2^b` nodes of width `v - b`, or by none if `v = b`: it saves `cost(v) - 2^b cost(v - b)` |
//! | `lone` | empty slots of the nodes of width 2 right below | growing by one bit halves such a node; a half with one entry needs no node, so each empty slot saves one `cost(1)` more |
//! | `guarded` | the highest position that a node or leaf behind a guard reaches | the node's new slots must not be smaller than that |
//! | `blocked` | a leaf is right below the digit | a leaf has no bits to give, so the node does not grow |
//! | `largest` | [largest leaves](super::leaf_size) right below the digit | with two of them a node of up to 16 slots is not made smaller |
//! | `pairs` | pairs of slots, `2k` and `2k + 1`, with an entry | halving makes one slot of each pair; if one pair is left, the node goes, and that pair's entry takes its place |
//! | `merged` | the bytes saved below by halving, at the pairs with two entries | two nodes of width `v` right below become one of width `v + 1`, which saves `2 cost(v) - cost(v + 1)`; any other two entries need a node of two slots, which takes `cost(1)`. Two slots that lead to one leaf are one entry |
//! | `halves` | the entries in the lower and in the upper half of the slots | an empty half is dropped; splitting gives each half with more than one entry a node of width `w - 1` |
//!
//! | step | bytes saved | taken if they are |
//! |-|-|-|
//! | grow by `b`: 1, or the least `v` with a node in `below[v]` | the sum over `below` up to the width [`WIDEST`](Shape::WIDEST), and `lone` times `cost(1)` if `b = 1`, less `cost(w + b) - cost(w)` | more than 0, if `w + b` is at most `WIDEST` and no new slot is smaller than the region of the largest leaf |
//! | trim | `cost(w) - cost(w - 1)` | always more than 0 |
//! | halve | `cost(w) + merged - cost(w - 1)`, without the last term if one pair is left | more than `cost(w) / 8` |
//! | split | `cost(w) - cost(1)`, less `cost(w - 1)` for each half that needs a node | more than `cost(w) / 8` |
//!
//! Growing may save more than its row says: it may also leave halves with one entry, or none, of nodes wider than those that `lone`
//! counts. It saves less than its row says for two kinds of nodes right below:
//!
//! - a node wider than `WIDEST`, which the sum leaves out. A range has made it ([`RANGE_WIDTH`](Shape::RANGE_WIDTH)), and no step
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
//! After a change of a range, tuning follows the paths to the two ends of the range ([`tune_path`](Writing::tune_path)). If the change
//! has mapped or unmapped only some of a node's region, the region contains one of the ends.
//!
//! Tuning only saves memory, and nothing depends on it: a step that finds no memory for its new nodes is not taken, and the next
//! change tries again.

use super::MAX_WIDTH;
use super::guard::{agree, low};
use super::node::{Item, Node, Reserve, Slot, Writing};
use super::shape::Shape;

/// The number of levels below a tuned node on which the new nodes of its steps are tuned, too.
const DEEP: u32 = 1;

/// The logarithm of the slots of a node that is not made smaller while it is right above two of the largest leaves, which take
/// twice its bytes or more. So a run of pages gets such a node at once, and not one node of two slots after the other.
pub(super) const CROWD: u32 = 4;

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

/// What the steps at a node depend on: the terms of the table above.
#[derive(Default)]
struct Survey {
    /// The nodes right below the digit, by width, can give their highest bits to it. A leaf there cannot.
    below: [isize; MAX_WIDTH + 1],
    blocked: bool,
    /// The largest leaves of base pages right below the digit.
    largest: usize,
    /// A half of a node of width 2 with one entry needs no node.
    lone: isize,
    /// The highest position that a node or leaf behind a guard reaches: a slot must not become smaller than such a region.
    guarded: u32,
    /// Halving: the pairs of slots with an entry, and the bytes that merging the pairs with two entries saves.
    pairs: usize,
    merged: isize,
    halves: [usize; 2],
}

impl<'w, T: Shape> Writing<'w, '_, T> {
    /// Takes the steps that pay at a node that has changed: puts another node, a leaf, or the node's only entry in its place. The node
    /// begins at `base`, and only `slot` leads to it. Tunes the new nodes of a step down to `deep` levels below the node, which bounds
    /// the recursion. The new nodes of a step on the lowest of these levels are not tuned before the next change there.
    #[inline(never)]
    fn tune(&mut self, slot: Slot<'w, T>, mut now: Node<'w, T>, mut base: usize, deep: u32) {
        while T::ADAPTIVE
            && !now.is_leaf()
            && let Some(step) = now.step()
            && let Some(new) = self.try_step(slot, now, base, step)
        {
            now = new;
            if deep > 0 && !matches!(step, Step::Trim(_)) {
                self.tune_children(now, base, deep - 1);
            }
            if let Some(near) = now.nearest(base) {
                base = near & !low(now.top());
            }
        }
    }

    /// Takes a step, if there is memory for the nodes that it needs: counts them, reserves them, and takes the step. The node begins
    /// at `base`, and only `slot` leads to it. Returns what takes its place.
    #[inline(never)]
    fn try_step(
        &mut self,
        slot: Slot<'w, T>,
        node: Node<'w, T>,
        base: usize,
        step: Step,
    ) -> Option<Node<'w, T>> {
        let mut reserve = Reserve::new(**self);
        node.take_step(&mut reserve.dry(), base, step);
        let new = node.take_step(&mut reserve.take().ok()?, base, step).and_then(Item::node);
        slot.publish(new);
        // SAFETY: only the slot led to the node, and now it leads to what takes its place. Only a slot of the node led to each child,
        // and nodes of the step have the child's entries.
        unsafe {
            for (slot, child) in node.children().enumerate() {
                if let Some(child) = child.filter(|&child| node.dissolves(slot, child, step)) {
                    self.retire(child);
                }
            }
            self.retire(node);
        }
        new
    }

    /// Tunes the nodes right below the digit of a node that begins at `base`. The step or division that made the node made them,
    /// too.
    #[inline(never)]
    fn tune_children(&mut self, node: Node<'w, T>, base: usize, deep: u32) {
        if node.is_leaf() {
            return;
        }
        for index in 0..node.slots() {
            let slot = node.slot(index);
            if let Some(child) = slot.read().filter(|child| !child.is_leaf() && child.top() == node.shift) {
                self.tune(slot, child, base | index << node.shift, deep);
            }
        }
    }

    /// Tunes the nodes that cover `at`, the lowest first: those that `which` selects, and the node above each node that has
    /// changed. If a node was `divided`, also tunes the nodes right below each. Returns the position above the digit of the lowest.
    ///
    /// Finds each node by a walk from the root: a path of all of them would be on the stack while the nodes are tuned.
    #[inline(never)]
    pub(super) fn tune_path(&mut self, at: usize, which: Which, divided: bool) -> u32 {
        let (depth, lowest) = self.covering(at, |_, _| true);
        let mut touched = match which {
            Which::Lowest(nodes) => nodes,
            Which::All => depth,
            Which::NotOf(other) => depth - self.covering(at, |near, top| agree(near, other, top)).0,
        };
        for level in (0..depth).rev() {
            if touched == 0 {
                break;
            }
            touched -= 1;
            if self.tune_level(at, level, divided) {
                touched = touched.max(1);
            }
        }
        lowest
    }

    /// Tunes the node that a walk for `at` meets after `level` other nodes, and tells whether the node has changed. More than `level`
    /// nodes cover `at`.
    fn tune_level(&mut self, at: usize, level: usize, divided: bool) -> bool {
        let mut slot = self.root();
        for _ in 0..level {
            match slot.read() {
                Some(node) if !node.is_leaf() => slot = node.slot_at(at),
                _ => return false,
            }
        }
        let Some(node) = slot.read().filter(|node| !node.is_leaf()) else { return false };
        let base = at & !low(node.top());
        if T::ADAPTIVE && divided {
            self.tune_children(node, base, DEEP - 1);
        }
        self.tune(slot, node, base, DEEP);
        slot.read() != Some(node)
    }
}

impl<T: Shape> Node<'_, T> {
    /// Counts what the steps at a node depend on.
    #[inline(always)]
    fn survey(self) -> Survey {
        let cost = T::cost;
        let mut all = Survey::default();
        let (mut left, mut last) = (None, None);
        for (slot, child) in self.children().enumerate() {
            if let Some(child) = child {
                all.halves[usize::from(slot >> (self.width - 1) != 0)] += usize::from(last != Some(child));
                if child.top() >= self.shift {
                    all.blocked |= child.is_leaf();
                    all.largest += usize::from(child.is_largest());
                    // No width is larger than the largest.
                    if let Some(below) = all.below.get_mut(child.width as usize) {
                        *below += 1;
                    }
                    if !child.is_leaf() && child.width == 2 {
                        all.lone += 4 - child.live() as isize;
                    }
                } else {
                    all.guarded = all.guarded.max(child.top());
                }
            }
            last = child;
            if slot & 1 == 0 {
                left = child;
                continue;
            }
            all.pairs += usize::from(left.is_some() || child.is_some());
            if let (Some(left), Some(right)) = (left, child)
                && left != right
            {
                all.merged += if left.merges_with(right, self.shift) {
                    2 * cost(right.width) - cost(right.width + 1)
                } else {
                    -cost(1)
                };
            }
        }
        all
    }

    /// Chooses a step that saves enough, if there is one.
    #[inline(never)]
    pub(super) fn step(self) -> Option<Step> {
        let cost = T::cost;
        let Survey { below, blocked, largest, lone, guarded, pairs, merged, halves } = self.survey();
        // Growing by the width of the narrowest child removes all nodes of that width.
        let below = |width: u32| below.get(width as usize).copied().unwrap_or(0);
        if !blocked && let Some(most) = (1..=MAX_WIDTH as u32).find(|&width| below(width) > 0) {
            for bits in [1, most] {
                let saved: isize = (most..=T::WIDEST)
                    .map(|width| {
                        let rest = if width > bits { cost(width - bits) << bits } else { 0 };
                        below(width) * (cost(width) - rest)
                    })
                    .sum();
                let lone = if bits == 1 { lone * cost(1) } else { 0 };
                let width = self.width + bits;
                let room = width <= T::WIDEST && self.shift >= bits + T::LEAF_TOP.max(guarded);
                if room && saved + lone > cost(width) - cost(self.width) {
                    return Some(Step::Grow(bits));
                }
            }
        }
        if self.width == 1 || self.width <= CROWD && largest > 1 {
            return None;
        }
        if let Some(empty) = halves.iter().position(|&entries| entries == 0) {
            return Some(Step::Trim(1 - empty));
        }
        let margin = cost(self.width) / 8;
        let upper = if pairs == 1 { 0 } else { cost(self.width - 1) };
        if cost(self.width) + merged - upper > margin {
            return Some(Step::Halve);
        }
        let apart: isize =
            halves.iter().map(|&entries| if entries > 1 { cost(self.width - 1) } else { 0 }).sum();
        (cost(self.width) - apart - cost(1) > margin).then_some(Step::Split)
    }

    /// Tells whether two neighbours, in slots that begin at bit `shift`, can become one node of one bit more.
    pub(super) fn merges_with(self, right: Self, shift: u32) -> bool {
        !self.is_leaf()
            && !right.is_leaf()
            && self.top() == shift
            && right.top() == shift
            && self.width == right.width
            && self.width < T::WIDEST
    }
}
