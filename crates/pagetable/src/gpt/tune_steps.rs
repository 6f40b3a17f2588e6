//! The steps of [tuning](super::tune): each builds the nodes that replace a node, from its entries and those of the nodes below.
//!
//! A step runs twice: first with a supply that counts the nodes that it needs, then with the nodes. The second run retires the
//! nodes that the new ones replace.

use super::divide::Group;
use super::guard::digit;
use super::node::{Item, Made, Node, Supply};
use super::shape::Shape;
use super::tune::Step;

impl<'w, T: Shape> Node<'w, T> {
    /// Takes a step at a node that begins at `base`, and returns what takes the node's place; with a supply that counts, counts the
    /// nodes that the step needs.
    pub(super) fn take_step<const REAL: bool>(
        self,
        supply: &mut Supply<'_, 'w, T, REAL>,
        base: usize,
        step: Step,
    ) -> Option<Item<'w, T, REAL>> {
        match step {
            Step::Grow(bits) => Some(self.wider(supply, base, bits).item()),
            Step::Split => Some(self.split(supply, base).item()),
            Step::Halve => self.narrower(supply, base),
            Step::Trim(half) => {
                let start = base | half << (self.top() - 1);
                Group::new(self, half, self.width - 1, start).entry(supply)
            }
        }
    }

    /// Tells whether new nodes have the entries of a node below this one, in a slot, after a step: the node gives bits to this one, or
    /// becomes one node with its neighbour.
    pub(super) fn dissolves(self, slot: usize, child: Self, step: Step) -> bool {
        match step {
            Step::Grow(_) => child.top() == self.shift,
            Step::Halve => self.child(slot ^ 1).is_some_and(|beside| child.merges_with(beside, self.shift)),
            Step::Split | Step::Trim(_) => false,
        }
    }

    /// Returns a node with `bits` more bits. A node or leaf behind a guard does not change, because its region is within one of the
    /// new slots.
    #[inline(never)]
    fn wider<const REAL: bool>(
        self,
        supply: &mut Supply<'_, 'w, T, REAL>,
        base: usize,
        bits: u32,
    ) -> Made<'w, T, REAL> {
        let shift = self.shift - bits;
        let new = supply.node(shift, self.width + bits, base);
        for (slot, child) in self.children().enumerate() {
            let Some(child) = child else { continue };
            let start = base | slot << self.shift;
            if child.top() == self.shift {
                for part in 0..1 << bits {
                    let entry =
                        Group::new(child, part, child.width - bits, start | part << shift).entry(supply);
                    if let Some(fresh) = new.fresh() {
                        fresh.store(slot << bits | part, entry.and_then(Item::node));
                    }
                }
            } else if let Some(fresh) = new.fresh() {
                let side = digit(child.nearest(start).unwrap_or(start), shift, bits);
                fresh.store(slot << bits | side, Some(child));
            }
        }
        if let Some(fresh) = new.fresh() {
            fresh.set_live(fresh.entries());
        }
        new
    }

    /// Returns a node of two slots, and below it a node for each half that has more than one entry.
    #[inline(never)]
    fn split<const REAL: bool>(self, supply: &mut Supply<'_, 'w, T, REAL>, base: usize) -> Made<'w, T, REAL> {
        let shift = self.top() - 1;
        let new = supply.node(shift, 1, base);
        for half in 0..2 {
            let entry = Group::new(self, half, self.width - 1, base | half << shift).entry(supply);
            if let Some(fresh) = new.fresh() {
                fresh.store(half, entry.and_then(Item::node));
            }
        }
        if let Some(fresh) = new.fresh() {
            fresh.set_live(2);
        }
        new
    }

    /// Returns a node of half the slots, or, if that would have only one entry, the entry itself.
    #[inline(never)]
    fn narrower<const REAL: bool>(
        self,
        supply: &mut Supply<'_, 'w, T, REAL>,
        base: usize,
    ) -> Option<Item<'w, T, REAL>> {
        let shift = self.shift + 1;
        let pair_at = |pair: usize| (self.child(2 * pair), self.child(2 * pair + 1));
        let live = (0..self.slots() / 2).filter(|&pair| pair_at(pair) != (None, None)).count();
        let upper = (live != 1).then(|| supply.node(shift, self.width - 1, base));
        let mut last = None;
        for pair in 0..self.slots() / 2 {
            last = match pair_at(pair) {
                (None, None) => continue,
                (Some(only), None) | (None, Some(only)) => Some(Item::of(only)),
                (Some(left), Some(right)) if left == right => Some(Item::of(left)),
                (Some(left), Some(right)) => {
                    Some(self.merged(supply, [left, right], base | pair << shift).item())
                }
            };
            if let Some(fresh) = upper.and_then(Made::fresh) {
                fresh.store(pair, last.and_then(Item::node));
            }
        }
        let Some(upper) = upper else { return last };
        if let Some(fresh) = upper.fresh() {
            fresh.set_live(fresh.entries());
        }
        Some(upper.item())
    }

    /// Returns one node for two neighbours below this node, which begin at `start`: a node with the entries of both if they can be
    /// one, and otherwise a node above both.
    fn merged<const REAL: bool>(
        self,
        supply: &mut Supply<'_, 'w, T, REAL>,
        both: [Self; 2],
        start: usize,
    ) -> Made<'w, T, REAL> {
        let [left, right] = both;
        if !left.merges_with(right, self.shift) {
            let new = supply.node(self.shift, 1, start);
            if let Some(fresh) = new.fresh() {
                fresh.store(0, Some(left));
                fresh.store(1, Some(right));
                fresh.set_live(2);
            }
            return new;
        }
        let new = supply.node(left.shift, left.width + 1, start);
        if let Some(fresh) = new.fresh() {
            for (slot, entry) in left.children().chain(right.children()).enumerate() {
                fresh.store(slot, entry);
            }
            fresh.set_live(left.live() + right.live());
        }
        new
    }
}
