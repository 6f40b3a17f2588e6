//! The writer's loads and stores of the words of a node.
//!
//! Where software walks the table, the storage's mode decides: in solo mode the accesses are plain loads and stores, which the
//! compiler may widen. Hardware ([`Format::WALK_CACHE`]) walks the table at any moment in every mode, by speculation also on the
//! writer's own CPU. For such formats each access is one atomic access of the whole word, and a word that links a node is stored
//! with release ordering, so that a walker that finds a node finds the node's contents. (Hardware loads the words
//! of a walk in the order in which each address depends on the word before.) The kernel executes the barrier after the last store
//! of a change, which makes the walker see the change: see [`FlushScope::Barrier`](tlbkit_addr::FlushScope::Barrier).

use super::{NodeMut, NodeRef, Writing};
use tlbkit_addr::Vpn;

use crate::format::{Format, absent_beside, walked};
use crate::mode::Mode;
use crate::mpt::Mpt;
use crate::mpt::leaf::Decode as _;
use crate::mpt::shape::Shape;
use crate::nodes::{Nodes, Store, WordMut, WordsMut};
use crate::word::atomics;
use crate::{Radix, Word};

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'_, G, F, N> {
    /// Whether hardware may set A or D in a leaf between the writer's load and store. If so, the writer uses one atomic exchange,
    /// except for leaves that [have all status bits](Format::has_all_status).
    ///
    /// In solo mode only this CPU's MMU walks. It cannot set D between the load and the store, only A of a speculative access,
    /// which may be lost.
    pub(crate) const STATUS_RACES: bool = F::STATUS && N::Mode::SHARED;

    /// Makes all earlier stores visible before any later store by [`Place::store_relaxed`] or [`NodeMut::fill`].
    #[inline(always)]
    pub(crate) fn release(&self) {
        self.nodes.stored(Store::Release);
        if walked::<F>() {
            atomics::fence(atomics::Ordering::Release);
        } else {
            N::Mode::release();
        }
    }
}

/// A node of the last level, whose slots the only writer may write.
///
/// It is what loops over slots use: the level is a constant in what they do with a slot.
pub(crate) struct LastNode<'a, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>>(NodeRef<'a, 'n, G, F, N>);

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Clone for LastNode<'_, '_, G, F, N> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Copy for LastNode<'_, '_, G, F, N> {}

impl<'a, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> LastNode<'a, 'n, G, F, N> {
    /// The number of slots.
    pub(crate) const SLOTS: usize = 1 << Self::WIDTHS[Self::LEVELS - 1];

    /// Returns a slot.
    #[inline(always)]
    pub(crate) fn at(self, index: usize) -> Place<'a, 'n, G, F, N> {
        let node = NodeRef { level: Self::LEVELS - 1, sole: true, ..self.0 };
        Place { node, index: index & (Self::SLOTS - 1) }
    }

    /// Returns a run of slots, which ends with the node at the latest.
    #[inline(always)]
    pub(crate) fn slots(
        self,
        first: usize,
        slots: usize,
    ) -> impl Iterator<Item = Place<'a, 'n, G, F, N>> + use<'a, 'n, G, F, N> {
        let node = NodeRef { level: Self::LEVELS - 1, sole: true, ..self.0 };
        let first = first & (Self::SLOTS - 1);
        let slots = slots.min(Self::SLOTS - first);
        (0..slots).map(move |slot| Place { node, index: first + slot })
    }
}

/// A slot of a node, which the only writer may write.
///
/// The holder has the right to write the node for `'a`, and the node's record is its count. All stores refuse a link: a link is
/// stored only with the [`Subtree`](super::Subtree) that it leads to.
pub(crate) struct Place<'a, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    pub(super) node: NodeRef<'a, 'n, G, F, N>,
    /// Less than the number of the node's slots.
    pub(super) index: usize,
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Clone for Place<'_, '_, G, F, N> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Copy for Place<'_, '_, G, F, N> {}

impl<'a, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Place<'a, 'n, G, F, N> {
    /// Returns a slot of a node that is in the table, and of which the caller is the only writer during `'a`.
    #[inline(always)]
    pub(super) fn of(node: NodeRef<'a, 'n, G, F, N>, index: usize) -> Self {
        Self { node, index: index & (Self::slots(node.level) - 1) }
    }

    /// Returns the node.
    #[inline(always)]
    pub(crate) fn node(self) -> NodeRef<'a, 'n, G, F, N> {
        self.node
    }

    /// Returns the word of the slot.
    #[inline(always)]
    fn slot(self) -> WordMut<'a, N> {
        // SAFETY: the node is live during `'a`, the slot is in it, and the holder is its only writer.
        unsafe { self.node.table.nodes.word_mut(self.node.addr, Self::place(self.node.level, self.index)) }
    }

    /// Returns the word of a store: nothing in place of a link.
    #[inline(always)]
    fn no_link(self, word: F::Word) -> F::Word {
        let is_link = Self::is_link(word, self.node.level);
        debug_assert!(!is_link, "a link is stored with its subtree");
        if is_link { F::Word::ZERO } else { word }
    }

    /// Reads the word.
    #[inline(always)]
    pub(crate) fn read(self) -> F::Word {
        if walked::<F>() { self.slot().atomic().load() } else { self.slot().read() }
    }

    /// Stores a word that links no node, or stores any word in a node that no walker can reach yet.
    #[inline(always)]
    pub(crate) fn store_relaxed(self, word: F::Word) {
        self.put_relaxed(self.no_link(word));
    }

    #[inline(always)]
    pub(super) fn put_relaxed(self, word: F::Word) {
        if walked::<F>() {
            self.slot().atomic().store_relaxed(word);
        } else {
            self.slot().store_relaxed(word);
        }
    }

    /// Stores a word that leads to a frame.
    #[inline(always)]
    pub(crate) fn publish(self, word: F::Word) {
        self.put(self.no_link(word));
    }

    /// Stores a word that leads to a complete node or a frame.
    #[inline(always)]
    pub(super) fn put(self, word: F::Word) {
        if walked::<F>() {
            self.slot().atomic().publish(word);
        } else {
            self.slot().publish(word);
        }
    }

    /// Stores a word with an atomic swap, because hardware may set bits at the same time, and returns the old word.
    #[inline(always)]
    pub(super) fn swap(self, word: F::Word) -> F::Word {
        self.slot().atomic().swap(word)
    }

    /// Stores `word` if the slot still holds `old`, in one atomic step.
    #[inline(always)]
    pub(super) fn exchange(self, old: F::Word, word: F::Word) -> Result<(), F::Word> {
        self.slot().atomic().exchange(old, word)
    }

    /// Replaces the leaf that the writer has read as `seen`, and returns the old leaf with the status bits that hardware set before
    /// the store. If hardware can set no more of them, a plain store does what an exchange would.
    #[inline(always)]
    fn swap_leaf(self, seen: F::Word, word: F::Word) -> F::Word {
        if !F::has_all_status(seen) {
            return self.swap(word);
        }
        self.slot().atomic().publish_over(seen, word);
        seen
    }

    /// Empties the slot, from which the writer has read the leaf or mark `seen`, and returns the word with the status bits that
    /// hardware set before the store.
    #[inline(always)]
    pub(crate) fn take(self, seen: F::Word) -> F::Word {
        if Mpt::<'n, G, F, N>::STATUS_RACES {
            return self.swap_leaf(seen, F::Word::ZERO);
        }
        self.put_relaxed(F::Word::ZERO);
        seen
    }

    /// Stores the leaf `new` over the leaf that the writer has read as `seen`, and returns the old leaf with the status bits that
    /// hardware set before the store.
    #[inline(always)]
    pub(crate) fn exchange_leaf(self, seen: F::Word, new: F::Word) -> F::Word {
        let new = self.no_link(new);
        if Mpt::<'n, G, F, N>::STATUS_RACES {
            return self.swap_leaf(seen, new);
        }
        self.put(new);
        seen
    }

    /// Applies `change` to a leaf that the writer has read as `seen`, keeps the status bits that hardware sets before the store,
    /// and returns the old leaf with those bits.
    #[inline(always)]
    pub(crate) fn amend(self, seen: F::Word, change: impl Fn(F::Word) -> F::Word) -> F::Word {
        self.amend_by(false, seen, change)
    }

    /// Does what [`amend`](Self::amend) does; if `exchanges` is set, by a sequentially consistent exchange in any case.
    #[inline(always)]
    pub(crate) fn amend_by(
        self,
        exchanges: bool,
        mut seen: F::Word,
        change: impl Fn(F::Word) -> F::Word,
    ) -> F::Word {
        let change = |word| self.no_link(change(word));
        if !exchanges && !Mpt::<'n, G, F, N>::STATUS_RACES {
            self.put_relaxed(change(seen));
            return seen;
        }
        if !exchanges && F::has_all_status(seen) {
            return self.swap_leaf(seen, change(seen));
        }
        // Hardware only sets A and D, each once, so the loop ends and the word stays a leaf.
        while let Err(now) = self.exchange(seen, change(seen)) {
            seen = now;
        }
        seen
    }

    /// Stores a word that links no node by a sequentially consistent exchange, and returns the old word.
    #[inline(always)]
    pub(crate) fn swap_in_order(self, word: F::Word) -> F::Word {
        self.swap(self.no_link(word))
    }

    /// Applies `change` to the word if it is a leaf, and keeps the status bits that hardware sets at the same time.
    #[inline(always)]
    pub(crate) fn change_live(self, change: impl Fn(F::Word) -> F::Word) {
        let mut old = self.read();
        while Self::is_leaf(old, self.node.level) {
            let word = self.no_link(change(old));
            if F::has_all_status(old) {
                self.swap_leaf(old, word);
                return;
            }
            match self.exchange(old, word) {
                Ok(()) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Applies `change` to the leaf that the writer has read as `seen`, where hardware may set status bits in any mode. Returns
    /// the old leaf with the bits that hardware set before the store.
    #[inline(always)]
    pub(crate) fn flip(self, mut seen: F::Word, change: impl Fn(F::Word) -> F::Word) -> F::Word {
        let change = |word| self.no_link(change(word));
        if F::FLIPS {
            seen = self.slot().atomic().flip(seen ^ change(seen));
        } else {
            // Hardware only sets A and D, each once, so the loop ends and the leaf stays a leaf.
            while let Err(now) = self.exchange(seen, change(seen)) {
                seen = now;
            }
        }
        seen
    }

    /// Makes the two words of a TLB entry agree after one of them has changed.
    #[inline(always)]
    pub(crate) fn settle_pair(self) {
        if F::PAIRED {
            let beside = Self { index: self.index ^ 1, ..self };
            for (a, b) in [(self, beside), (beside, self)] {
                let (changed, other) = (a.read(), b.read());
                let wanted = if Self::is_last(self.node.level) && !F::is_leaf(other, true) {
                    absent_beside::<F>(changed, other)
                } else {
                    F::beside(changed, other)
                };
                if wanted != other {
                    b.put(wanted);
                }
            }
        }
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'_, 'n, G, F, N> {
    /// Returns the last-level nodes of two pages, which may be the same, if both exist and neither is borrowed.
    pub(crate) fn last_nodes(&mut self, pages: [Vpn; 2]) -> Option<[LastNode<'_, 'n, G, F, N>; 2]> {
        let root = self.root().node;
        let [a, b] = pages.map(|page| {
            let top = root.table.own_top(page)?;
            root.last_slot_below(top, page).map(|(node, _)| LastNode(node))
        });
        Some([a?, b?])
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeMut<'_, 'n, G, F, N> {
    /// Reduces a run of slots to those of the node.
    #[inline(always)]
    pub(super) fn clamped(&self, index: usize, slots: usize) -> (usize, usize) {
        let all = Self::slots(self.level());
        let index = index & (all - 1);
        (index, slots.min(all - index))
    }

    /// Returns the node as one whose level is known, if it is of the last level.
    #[inline(always)]
    pub(crate) fn last(&self) -> Option<LastNode<'_, 'n, G, F, N>> {
        Self::is_last(self.level()).then_some(LastNode(self.node))
    }

    /// Returns the words of a run of slots, in a format without [extra words](Format::EXTRA).
    #[inline(always)]
    fn row(&self, index: usize, slots: usize) -> WordsMut<'_, N> {
        debug_assert!(F::EXTRA == 0, "neighbouring slots are neighbouring words");
        let (index, slots) = self.clamped(index, slots);
        // SAFETY: the node is live, the slots are in it, and the holder is its only writer.
        unsafe { self.table().nodes.words_mut(self.addr, index, slots) }
    }

    /// Stores `word`, `word + step`, ... in a run of slots. None of the words links a node.
    #[inline(always)]
    pub(crate) fn fill(&self, index: usize, slots: usize, word: F::Word, step: F::Word) {
        if F::EXTRA == 0 && !walked::<F>() && Self::is_last(self.level()) {
            return self.row(index, slots).fill(word, step);
        }
        let (index, slots) = self.clamped(index, slots);
        if let Some(last) = self.last() {
            for (slot, place) in last.slots(index, slots).enumerate() {
                place.put_relaxed(word.advance(step, slot));
            }
        } else {
            self.fill_upper(index, slots, word, step);
        }
    }

    #[inline(never)]
    fn fill_upper(&self, index: usize, slots: usize, word: F::Word, step: F::Word) {
        for slot in 0..slots {
            self.at(index + slot).store_relaxed(word.advance(step, slot));
        }
    }

    /// Folds the words of a run of slots, or the word of the first one above the last level.
    #[inline(always)]
    pub(crate) fn fold<T>(&self, index: usize, slots: usize, start: T, with: impl Fn(T, F::Word) -> T) -> T {
        let (index, slots) = self.clamped(index, slots);
        match self.last() {
            Some(_) if F::EXTRA == 0 && !walked::<F>() => self.row(index, slots).fold(start, with),
            Some(last) => last.slots(index, slots).fold(start, |all, place| with(all, place.read())),
            None => with(start, self.read(index).word()),
        }
    }

    /// Applies `change` to each word of a run of slots, but stores no link. A status bit that hardware sets between the load and the
    /// store is lost: see [`STATUS_RACES`](Mpt::STATUS_RACES).
    #[inline(always)]
    pub(crate) fn edit(&self, index: usize, slots: usize, change: impl Fn(F::Word) -> F::Word) {
        let no_link = |word| {
            let new = change(word);
            if Self::is_link(new, self.level()) { word } else { new }
        };
        if F::EXTRA == 0 && !walked::<F>() {
            let row = self.row(index, slots);
            // No word of the last level is a link.
            return if Self::is_last(self.level()) { row.edit(&change) } else { row.edit(no_link) };
        }
        let (index, slots) = self.clamped(index, slots);
        if let Some(last) = self.last() {
            // No word of the last level is a link.
            return last.slots(index, slots).for_each(|place| place.put_relaxed(change(place.read())));
        }
        for slot in index..index + slots {
            let place = self.at(slot);
            place.put_relaxed(no_link(place.read()));
        }
    }
}
