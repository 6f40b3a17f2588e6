//! How the writer reads and stores the words of a node.
//!
//! Where software walks the table, the storage's mode decides: in solo mode the accesses are plain loads and stores, which the
//! compiler may widen. Hardware that walks the table ([`Format::WALK_CACHE`]) does so beside the writer in every mode, on the
//! same CPU too, by speculation. There each access is one atomic access of the whole word, and a word that leads to something is
//! stored with release ordering, so that a walker that finds a node finds the node's contents. (Hardware loads the words of a
//! walk in the order in which each address depends on the word before.) The kernel executes the barrier after the last store of
//! a change, which makes the walker see the change: see [`FlushScope::Barrier`](tlbkit_addr::FlushScope::Barrier).

use super::Mpt;
use super::shape::Shape;
use crate::format::{Format, walked};
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes, Store};
use crate::word::atomics;
use crate::{Radix, Word};

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'_, G, F, N> {
    /// Whether hardware may note something in a leaf between the writer's load of it and its store: then one instruction does
    /// both.
    ///
    /// In solo mode it is this CPU's own MMU. That sets a dirty bit when this CPU stores to the page, which it does not do in
    /// between, and an accessed bit ahead of time at the most: of an access that did not happen.
    pub(super) const NOTED_BESIDE: bool = F::STATUS && N::Mode::SHARED;

    /// Returns the cell at a place in a node.
    ///
    /// # Safety
    ///
    /// The node is in the table, or retired and not reclaimed, or new, and the place within it; so for all that follow,
    /// and the caller is its only writer but hardware.
    #[inline(always)]
    pub(super) unsafe fn cell(&self, node: NodeAddr, place: usize) -> *const <F::Word as Word>::Cell {
        // SAFETY: by this function's contract the node is in the table, or retired and not reclaimed, or new, and the
        // place within it, and the caller is its only writer but hardware.
        unsafe { self.nodes.at(node).add(place) }
    }

    /// Reads a word.
    #[inline(always)]
    pub(super) unsafe fn read(&self, node: NodeAddr, place: usize) -> F::Word {
        // SAFETY: by the contract of `cell`, which is this function's too, the node is in the table, or retired and not
        // reclaimed, or new, and the place within it, and the caller is its only writer but hardware.
        unsafe {
            if walked::<F>() { F::Word::follow(self.cell(node, place)) } else { self.nodes.read(node, place) }
        }
    }

    /// Stores a word that leads nowhere, or into a node that no walker can reach yet.
    #[inline(always)]
    pub(super) unsafe fn store_relaxed(&self, node: NodeAddr, place: usize, word: F::Word) {
        // SAFETY: by the contract of `cell`, which is this function's too, the node is in the table, or retired and not
        // reclaimed, or new, and the place within it, and the caller is its only writer but hardware.
        unsafe {
            if walked::<F>() {
                F::Word::store_relaxed(self.cell(node, place), word);
                self.nodes.stored(Store::word(node, place, word));
            } else {
                self.nodes.store_relaxed(node, place, word);
            }
        }
    }

    /// Stores a word that leads to something complete.
    #[inline(always)]
    pub(super) unsafe fn publish(&self, node: NodeAddr, place: usize, word: F::Word) {
        // SAFETY: by the contract of `cell`, which is this function's too, the node is in the table, or retired and not
        // reclaimed, or new, and the place within it, and the caller is its only writer but hardware.
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

    /// Stores a word that hardware may write meanwhile, and returns what it replaced.
    #[inline(always)]
    pub(super) unsafe fn swap(&self, node: NodeAddr, place: usize, word: F::Word) -> F::Word {
        // SAFETY: by the contract of `cell`, which is this function's too, the node is in the table, or retired and not
        // reclaimed, or new, and the place within it, and the caller is its only writer but hardware.
        let old = unsafe { F::Word::swap(self.cell(node, place), word) };
        self.exchanged(node, place, old, word);
        old
    }

    /// Tells the storage of an exchange of a word that hardware may write meanwhile.
    #[inline(always)]
    pub(super) fn exchanged(&self, node: NodeAddr, place: usize, old: F::Word, word: F::Word) {
        self.nodes.stored(Store::Release);
        self.nodes.stored(Store::exchange(node, place, old, word));
    }

    /// Empties a slot in which the writer has read the leaf `seen`, and returns that with what hardware has noted up to the
    /// store.
    #[inline(always)]
    pub(super) unsafe fn take(&self, node: NodeAddr, place: usize, seen: F::Word) -> F::Word {
        // SAFETY: by the contract of `cell`, which is this function's too, the node is in the table, or retired and not
        // reclaimed, or new, and the place within it, and the caller is its only writer but hardware.
        unsafe {
            if Self::NOTED_BESIDE {
                return self.swap(node, place, F::Word::ZERO);
            }
            self.store_relaxed(node, place, F::Word::ZERO);
        }
        seen
    }

    /// Stores the leaf `new` over one that the writer has read as `seen`, and returns that with what hardware has noted up to
    /// the store.
    #[inline(always)]
    pub(super) unsafe fn exchange_leaf(
        &self,
        node: NodeAddr,
        place: usize,
        seen: F::Word,
        new: F::Word,
    ) -> F::Word {
        // SAFETY: by the contract of `cell`, which is this function's too, the node is in the table, or retired and not
        // reclaimed, or new, and the place within it, and the caller is its only writer but hardware.
        unsafe {
            if Self::NOTED_BESIDE {
                return self.swap(node, place, new);
            }
            self.publish(node, place, new);
        }
        seen
    }

    /// Stores what `change` makes of a leaf that the writer has read as `seen`, with what hardware notes up to the store, and
    /// returns what that was.
    #[inline(always)]
    pub(super) unsafe fn amend(
        &self,
        node: NodeAddr,
        place: usize,
        mut seen: F::Word,
        change: impl Fn(F::Word) -> F::Word,
    ) -> F::Word {
        // SAFETY: by the contract of `cell`, which is this function's too, the node is in the table, or retired and not
        // reclaimed, or new, and the place within it, and the caller is its only writer but hardware.
        unsafe {
            if Self::NOTED_BESIDE {
                // Hardware sets bits alone, each once: it remains a leaf.
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

    /// Makes everything stored so far visible before anything stored by [`store_relaxed`](Self::store_relaxed) or
    /// [`fill`](Self::fill) after it.
    #[inline(always)]
    pub(super) fn release(&self) {
        self.nodes.stored(Store::Release);
        if walked::<F>() {
            atomics::fence(atomics::Ordering::Release);
        } else {
            N::Mode::release();
        }
    }

    /// Stores a run of slots that lead nowhere new: `word`, `word + step`, ...
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
        // SAFETY: this function's contract: the slots are in the node.
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

    /// Folds a run of slots.
    #[inline(always)]
    pub(super) unsafe fn fold(
        &self,
        node: NodeAddr,
        level: usize,
        index: usize,
        slots: usize,
        start: F::Word,
        with: impl Fn(F::Word, F::Word) -> F::Word,
    ) -> F::Word {
        // SAFETY: this function's contract: the slots are in the node.
        unsafe {
            if F::EXTRA == 0 && !walked::<F>() {
                self.nodes.fold(node, index, slots, start, with)
            } else {
                (0..slots)
                    .fold(start, |all, slot| with(all, self.read(node, Self::place(level, index + slot))))
            }
        }
    }

    /// Replaces each word of a run of slots, which hardware does not write, by what `change` makes of it.
    #[inline(always)]
    pub(super) unsafe fn edit(
        &self,
        node: NodeAddr,
        level: usize,
        index: usize,
        slots: usize,
        change: impl Fn(F::Word) -> F::Word,
    ) {
        // SAFETY: this function's contract: the slots are in the node.
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
