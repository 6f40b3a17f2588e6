//! The steps of [tuning](super::tune): each builds the nodes that replace a node, from its entries and those of the nodes below.
//!
//! A step runs twice: first with a supply that counts the nodes that it needs, then with the nodes. The second run retires the
//! nodes that the new ones replace.

use super::Gpt;
use super::guard::digit;
use super::job::Supply;
use super::layout::{Edge, Holds, Layout};
use super::node_size::NodeSize;
use super::slots::{Place, inner_kind};
use super::tune::Step;
use crate::format::Format;
use crate::nodes::Nodes;
use crate::{Geometry, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// Takes a step; with a supply that counts, counts the nodes that the step needs.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `old` is a node of this table that begins at `base`. If
    /// the supply is real, the caller publishes the result in its place.
    pub(super) unsafe fn take_step<S: Supply>(
        &self,
        supply: &mut S,
        batch: &mut Retired<'n>,
        old: Edge,
        base: usize,
        step: Step,
    ) -> Edge {
        // SAFETY: the caller is the writer.
        unsafe {
            let new = match step {
                Step::Grow(bits) => self.wider(supply, batch, old, base, bits),
                Step::Split => self.split(supply, old, base),
                Step::Halve => self.narrower(supply, batch, old, base),
                Step::Trim(half) => {
                    let slots = old.slots() / 2;
                    let start = base | half << (old.top() - 1);
                    self.entry_of_slots(supply, old, half * slots..(half + 1) * slots, old.width - 1, start)
                }
            };
            if S::REAL {
                self.retire(batch, old);
            }
            new
        }
    }

    /// Returns a node with `bits` more bits. A node or leaf behind a guard does not change, because its region is within one of the
    /// new slots.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `old` is a node of this table that begins at `base`. If
    /// the supply is real, the caller publishes the result in its place.
    #[inline(never)]
    unsafe fn wider<S: Supply>(
        &self,
        supply: &mut S,
        batch: &mut Retired<'n>,
        old: Edge,
        base: usize,
        bits: u32,
    ) -> Edge {
        let shift = old.shift - bits;
        // SAFETY: the caller is the writer; the new node is private, and slots are within their nodes.
        unsafe {
            let new = self.new_node(supply, shift, old.width + bits, base);
            for slot in 0..old.slots() {
                let start = base | slot << old.shift;
                let child = self.edge(Place::In(old.node, slot), old.shift, start);
                if child.is_empty() {
                    continue;
                }
                let direct = child.top() == old.shift;
                let side =
                    if direct { 0 } else { digit(self.nearest(child, start).unwrap_or(start), shift, bits) };
                for part in 0..1 << bits {
                    let entry = if direct {
                        let slots = child.slots() >> bits;
                        let group = part * slots..(part + 1) * slots;
                        self.entry_of_slots(supply, child, group, child.width - bits, start | part << shift)
                    } else if part == side {
                        child
                    } else {
                        continue;
                    };
                    if S::REAL {
                        self.store_edge(new.node, slot << bits | part, shift, entry);
                    }
                }
                if S::REAL && direct {
                    self.retire(batch, child);
                }
            }
            if S::REAL {
                self.set_live(new, self.entries(new));
            }
            new
        }
    }

    /// Returns a node of two slots, and below it a node for each half that has more than one entry.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `old` is a node of this table that begins at `base`. If the supply is real, the caller
    /// publishes the result in its place, and retires `old`.
    #[inline(never)]
    unsafe fn split<S: Supply>(&self, supply: &mut S, old: Edge, base: usize) -> Edge {
        let (shift, slots) = (old.top() - 1, old.slots() / 2);
        // SAFETY: the caller is the writer; the new nodes are private, and slots within the node.
        unsafe {
            let new = self.new_node(supply, shift, 1, base);
            for half in 0..2 {
                let start = base | half << shift;
                let group = half * slots..(half + 1) * slots;
                let entry = self.entry_of_slots(supply, old, group, old.width - 1, start);
                if S::REAL {
                    self.store_edge(new.node, half, shift, entry);
                }
            }
            if S::REAL {
                self.set_live(new, 2);
            }
            new
        }
    }

    /// Returns a node of half the slots, or, if that would have only one entry, the entry itself.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `old` is a node of this table that begins at `base`. If
    /// the supply is real, the caller publishes the result in its place.
    #[inline(never)]
    unsafe fn narrower<S: Supply>(
        &self,
        supply: &mut S,
        batch: &mut Retired<'n>,
        old: Edge,
        base: usize,
    ) -> Edge {
        let shift = old.shift + 1;
        // SAFETY: the caller is the writer; new nodes are private, and slots are within their nodes.
        unsafe {
            let child =
                |slot: usize| self.edge(Place::In(old.node, slot), old.shift, base | slot << old.shift);
            let used = |pair: usize| !child(2 * pair).is_empty() || !child(2 * pair + 1).is_empty();
            let live = (0..old.slots() / 2).filter(|&pair| used(pair)).count();
            let upper =
                if live == 1 { Edge::EMPTY } else { self.new_node(supply, shift, old.width - 1, base) };
            let mut last = Edge::EMPTY;
            for pair in (0..old.slots() / 2).filter(|&pair| used(pair)) {
                let (left, right) = (child(2 * pair), child(2 * pair + 1));
                let start = base | pair << shift;
                last = if left.is_empty() {
                    right
                } else if right.is_empty() || left == right {
                    left
                } else if Self::mergeable(left, right, old.shift) {
                    let new = self.new_node(supply, left.shift, left.width + 1, start);
                    if S::REAL {
                        for (half, from) in [left, right].into_iter().enumerate() {
                            let from_base = start | half << old.shift;
                            for slot in 0..from.slots() {
                                let at = from_base | slot << from.shift;
                                let entry = self.edge(Place::In(from.node, slot), from.shift, at);
                                self.store_edge(new.node, half << left.width | slot, new.shift, entry);
                            }
                        }
                        self.set_live(new, self.live(left) + self.live(right));
                        self.retire(batch, left);
                        self.retire(batch, right);
                    }
                    new
                } else {
                    let new = self.new_node(supply, old.shift, 1, start);
                    if S::REAL {
                        self.store_edge(new.node, 0, old.shift, left);
                        self.store_edge(new.node, 1, old.shift, right);
                        self.set_live(new, 2);
                    }
                    new
                };
                if S::REAL && live > 1 {
                    self.store_edge(upper.node, pair, shift, last);
                }
            }
            if live == 1 {
                return last;
            }
            if S::REAL {
                self.set_live(upper, self.entries(upper));
            }
            upper
        }
    }

    /// Takes a new indexing node.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    pub(super) unsafe fn new_node<S: Supply>(
        &self,
        supply: &mut S,
        shift: u32,
        width: u32,
        base: usize,
    ) -> Edge {
        let node = supply.take(inner_kind(width));
        let new = Edge { node, shift, width, holds: Holds::Links, base: Self::base(base) };
        if S::REAL {
            self.count_in(new);
        }
        new
    }
}
