//! The writer's loads and stores of the words of a node.
//!
//! Where software walks the table, the storage's mode decides: in solo mode the accesses are plain loads and stores, which the
//! compiler may widen. Hardware ([`Format::WALK_CACHE`]) walks the table at any moment in every mode, by speculation also on the
//! writer's own CPU. For such formats each access is one atomic access of the whole word, and a word that leads to a node or
//! frame is stored with release ordering, so that a walker that finds a node finds the node's contents. (Hardware loads the words
//! of a walk in the order in which each address depends on the word before.) The kernel executes the barrier after the last store
//! of a change, which makes the walker see the change: see [`FlushScope::Barrier`](tlbkit_addr::FlushScope::Barrier).

use super::Mpt;
use super::shape::Shape;
use crate::format::{Format, walked};
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes, Store};
use crate::word::atomics;
use crate::{Radix, Word};

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'_, G, F, N> {
    /// Whether hardware may set A or D in a leaf between the writer's load and store. If so, the writer uses one atomic exchange,
    /// except for leaves that [have all status bits](Format::has_all_status).
    ///
    /// In solo mode only this CPU's MMU walks. It cannot set D between the load and the store, only A of a speculative access,
    /// which may be lost.
    pub(super) const STATUS_RACES: bool = F::STATUS && N::Mode::SHARED;

    /// Returns the cell at a place in a node.
    ///
    /// # Safety
    ///
    /// The node is in the table, or retired and not reclaimed, or new; the place is in the node; the caller is the node's only
    /// writer but hardware.
    #[inline(always)]
    pub(super) unsafe fn cell(&self, node: NodeAddr, place: usize) -> *const <F::Word as Word>::Cell {
        // SAFETY: by this function's contract the node is in the table, or retired and not reclaimed, or new, and the place is in
        // the node.
        unsafe { self.nodes.at(node).add(place) }
    }

    /// Reads a word.
    ///
    /// # Safety
    ///
    /// The node is in the table, or retired and not reclaimed, or new; the place is in the node; the caller is the node's only
    /// writer but hardware.
    #[inline(always)]
    pub(super) unsafe fn read(&self, node: NodeAddr, place: usize) -> F::Word {
        // SAFETY: by this function's contract the node is in the table, or retired and not reclaimed, or new; the place is in the
        // node; and the caller is the node's only writer but hardware.
        unsafe {
            if walked::<F>() { F::Word::follow(self.cell(node, place)) } else { self.nodes.read(node, place) }
        }
    }

    /// Stores a word that leads nowhere, or stores any word in a node that no walker can reach yet.
    ///
    /// # Safety
    ///
    /// The node is in the table, or retired and not reclaimed, or new; the place is in the node; the caller is the node's only
    /// writer but hardware.
    #[inline(always)]
    pub(super) unsafe fn store_relaxed(&self, node: NodeAddr, place: usize, word: F::Word) {
        // SAFETY: by this function's contract the node is in the table, or retired and not reclaimed, or new; the place is in the
        // node; and the caller is the node's only writer but hardware.
        unsafe {
            if walked::<F>() {
                F::Word::store_relaxed(self.cell(node, place), word);
                self.nodes.stored(Store::word(node, place, word));
            } else {
                self.nodes.store_relaxed(node, place, word);
            }
        }
    }

    /// Stores a word that leads to a complete node or a frame.
    ///
    /// # Safety
    ///
    /// The node is in the table, or retired and not reclaimed, or new; the place is in the node; the caller is the node's only
    /// writer but hardware.
    #[inline(always)]
    pub(super) unsafe fn publish(&self, node: NodeAddr, place: usize, word: F::Word) {
        // SAFETY: by this function's contract the node is in the table, or retired and not reclaimed, or new; the place is in the
        // node; and the caller is the node's only writer but hardware.
        unsafe {
            if walked::<F>() {
                F::Word::publish(self.cell(node, place), word);
                self.nodes.stored(Store::Release);
                self.nodes.stored(Store::word(node, place, word));
            } else {
                self.nodes.publish(node, place, word);
            }
        }
    }

    /// Stores a word with an atomic swap, because hardware may set bits at the same time, and returns the old word.
    ///
    /// # Safety
    ///
    /// The node is in the table, or retired and not reclaimed, or new; the place is in the node; the caller is the node's only
    /// writer but hardware.
    #[inline(always)]
    pub(super) unsafe fn swap(&self, node: NodeAddr, place: usize, word: F::Word) -> F::Word {
        // SAFETY: by this function's contract the node is in the table, or retired and not reclaimed, or new; the place is in the
        // node; and the caller is the node's only writer but hardware.
        let old = unsafe { F::Word::swap(self.cell(node, place), word) };
        self.exchanged(node, place, old, word);
        old
    }

    /// Replaces the leaf that the writer has read as `seen`, and returns the old leaf with the status bits that hardware set before
    /// the store. If hardware can set no more of them, a plain store does what an exchange would.
    ///
    /// # Safety
    ///
    /// The node is in the table, or retired and not reclaimed, or new; the place is in the node; the caller is the node's only
    /// writer but hardware.
    #[inline(always)]
    pub(super) unsafe fn swap_leaf(
        &self,
        node: NodeAddr,
        place: usize,
        seen: F::Word,
        word: F::Word,
    ) -> F::Word {
        // SAFETY: by this function's contract the node is in the table, or retired and not reclaimed, or new; the place is in the
        // node; and the caller is the node's only writer but hardware.
        unsafe {
            if !F::has_all_status(seen) {
                return self.swap(node, place, word);
            }
            F::Word::publish(self.cell(node, place), word);
        }
        self.exchanged(node, place, seen, word);
        seen
    }

    /// Tells the storage that an atomic exchange has replaced `old` by `word`, or a store that has the same effect.
    #[inline(always)]
    pub(super) fn exchanged(&self, node: NodeAddr, place: usize, old: F::Word, word: F::Word) {
        self.nodes.stored(Store::Release);
        self.nodes.stored(Store::exchange(node, place, old, word));
    }

    /// Empties a slot from which the writer has read the leaf `seen`, and returns the leaf with the status bits that hardware set
    /// before the store.
    ///
    /// # Safety
    ///
    /// The node is in the table, or retired and not reclaimed, or new; the place is in the node; the caller is the node's only
    /// writer but hardware.
    #[inline(always)]
    pub(super) unsafe fn take(&self, node: NodeAddr, place: usize, seen: F::Word) -> F::Word {
        // SAFETY: by this function's contract the node is in the table, or retired and not reclaimed, or new; the place is in the
        // node; and the caller is the node's only writer but hardware.
        unsafe {
            if Self::STATUS_RACES {
                return self.swap_leaf(node, place, seen, F::Word::ZERO);
            }
            self.store_relaxed(node, place, F::Word::ZERO);
        }
        seen
    }

    /// Stores the leaf `new` over the leaf that the writer has read as `seen`, and returns the old leaf with the status bits that
    /// hardware set before the store.
    ///
    /// # Safety
    ///
    /// The node is in the table, or retired and not reclaimed, or new; the place is in the node; the caller is the node's only
    /// writer but hardware.
    #[inline(always)]
    pub(super) unsafe fn exchange_leaf(
        &self,
        node: NodeAddr,
        place: usize,
        seen: F::Word,
        new: F::Word,
    ) -> F::Word {
        // SAFETY: by this function's contract the node is in the table, or retired and not reclaimed, or new; the place is in the
        // node; and the caller is the node's only writer but hardware.
        unsafe {
            if Self::STATUS_RACES {
                return self.swap_leaf(node, place, seen, new);
            }
            self.publish(node, place, new);
        }
        seen
    }

    /// Applies `change` to a leaf that the writer has read as `seen`, keeps the status bits that hardware sets before the store,
    /// and returns the old leaf with those bits.
    ///
    /// # Safety
    ///
    /// The node is in the table, or retired and not reclaimed, or new; the place is in the node; the caller is the node's only
    /// writer but hardware.
    #[inline(always)]
    pub(super) unsafe fn amend(
        &self,
        node: NodeAddr,
        place: usize,
        mut seen: F::Word,
        change: impl Fn(F::Word) -> F::Word,
    ) -> F::Word {
        // SAFETY: by this function's contract the node is in the table, or retired and not reclaimed, or new; the place is in the
        // node; and the caller is the node's only writer but hardware.
        unsafe {
            if Self::STATUS_RACES {
                if F::has_all_status(seen) {
                    return self.swap_leaf(node, place, seen, change(seen));
                }
                // Hardware only sets A and D, each once, so the loop ends and the word stays a leaf.
                while let Err(now) = F::Word::exchange(self.cell(node, place), seen, change(seen)) {
                    seen = now;
                }
                self.exchanged(node, place, seen, change(seen));
            } else {
                self.store_relaxed(node, place, change(seen));
            }
        }
        seen
    }

    /// Makes all earlier stores visible before any later store by [`store_relaxed`](Self::store_relaxed) or [`fill`](Self::fill).
    #[inline(always)]
    pub(super) fn release(&self) {
        self.nodes.stored(Store::Release);
        if walked::<F>() {
            atomics::fence(atomics::Ordering::Release);
        } else {
            N::Mode::release();
        }
    }

    /// Stores `word`, `word + step`, ... in a run of slots. None of the words links a node.
    ///
    /// # Safety
    ///
    /// The node is one of `level`, in the table or new; the slots are in the node; the caller is the node's only writer but
    /// hardware.
    #[inline(always)]
    pub(super) unsafe fn fill(
        &self,
        node: NodeAddr,
        level: usize,
        index: usize,
        slots: usize,
        word: F::Word,
        step: F::Word,
    ) {
        // SAFETY: by this function's contract the slots are in the node, which is live.
        unsafe {
            if F::EXTRA == 0 && !walked::<F>() {
                self.nodes.fill(node, index, slots, word, step);
            } else {
                for slot in 0..slots {
                    self.store_relaxed(node, Self::place(level, index + slot), word.advance(step, slot));
                }
            }
        }
    }

    /// Folds the words of a run of slots.
    ///
    /// # Safety
    ///
    /// The node is one of `level`, in the table or new; the slots are in the node; the caller is the node's only writer but
    /// hardware.
    #[inline(always)]
    pub(super) unsafe fn fold<T>(
        &self,
        node: NodeAddr,
        level: usize,
        index: usize,
        slots: usize,
        start: T,
        with: impl Fn(T, F::Word) -> T,
    ) -> T {
        // SAFETY: by this function's contract the slots are in the node, which is live.
        unsafe {
            if F::EXTRA == 0 && !walked::<F>() {
                self.nodes.fold(node, index, slots, start, with)
            } else {
                (0..slots)
                    .fold(start, |all, slot| with(all, self.read(node, Self::place(level, index + slot))))
            }
        }
    }

    /// Applies `change` to each word of a run of slots. A status bit that hardware sets between the load and the store is lost:
    /// see [`STATUS_RACES`](Self::STATUS_RACES).
    ///
    /// # Safety
    ///
    /// The node is one of `level`, in the table or new; the slots are in the node; the caller is the node's only writer but
    /// hardware.
    #[inline(always)]
    pub(super) unsafe fn edit(
        &self,
        node: NodeAddr,
        level: usize,
        index: usize,
        slots: usize,
        change: impl Fn(F::Word) -> F::Word,
    ) {
        // SAFETY: by this function's contract the slots are in the node, which is live.
        unsafe {
            if F::EXTRA == 0 && !walked::<F>() {
                self.nodes.edit(node, index, slots, change);
            } else if walked::<F>() {
                for slot in index..index + slots {
                    let place = Self::place(level, slot);
                    self.store_relaxed(node, place, change(self.read(node, place)));
                }
            } else {
                for slot in index..index + slots {
                    self.nodes.edit(node, Self::place(level, slot), 1, &change);
                }
            }
        }
    }
}
