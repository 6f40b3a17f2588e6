//! Contiguous runs: pages between the sizes of two levels, in tables in which hardware notes status.
//!
//! ```text
//!            +----+----+----+- - -+----+
//!   a node   | 64 KiB page in 16 slots |      each a leaf to the MMU, which may keep one TLB entry for all
//!            +----+----+----+- - -+----+
//!               A          A D               what it notes, it notes in the slot of the access, or in another
//! ```
//!
//! So the status of a page is what hardware has noted in any of its slots. The MMU sets D in a slot only if its TLB entry lacks D.
//! A TLB entry that covers the run may have got D from any slot, and then a store to another slot's part sets no bit there. So the
//! status of the whole run passes to each small page that the run is split into, and to the larger page that it becomes a part of.
//!
//! A change of a run is one store or exchange for each slot, not one for the page. Until the flush a walker finds the old page or
//! the new one, whichever slot it loads, as in a change of a single slot. Formats that [break](Format::BREAK) empty all slots
//! first.

use core::mem;

use tlbkit_addr::{Attr, VirtAddr};

use super::Mpt;
use super::leaf::Spot;
use super::resize::{Remade, STATUS, Unwound};
use super::shape::{MAX, Shape};
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::{NodeAddr, Nodes, Stock};
use crate::{Change, Entry, Leaf, Radix, Retired, Word};

/// The most slots of a run: AArch64 with a granule of 16 KiB has 128.
const MOST: usize = 128;

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Decodes the leaf in a slot of `node` that maps `at`, with what hardware has noted in any slot of its page.
    ///
    /// # Safety
    ///
    /// The caller is pinned or the writer; the walk for `at` ends with the word in the node, which is of `level`.
    #[inline(always)]
    pub(super) unsafe fn leaf_in(&self, node: NodeAddr, word: F::Word, level: usize, at: VirtAddr) -> Leaf {
        let leaf = Self::leaf(word, level, at);
        if Self::RUNS && leaf.size > Self::slot_size(level) {
            // SAFETY: by this function's contract the caller is pinned or the writer; the walk for `at` ends with the
            // word in the node, which is of `level`.
            return unsafe { self.whole(node, level, leaf) };
        }
        leaf
    }

    /// As [`entry`](Self::entry), with what hardware has noted in any slot of the page.
    ///
    /// # Safety
    ///
    /// As for [`leaf_in`](Self::leaf_in).
    #[inline(always)]
    pub(super) unsafe fn entry_in(&self, node: NodeAddr, word: F::Word, level: usize, at: VirtAddr) -> Entry {
        match Self::entry(word, level, at) {
            // SAFETY: the contract of `leaf_in` is this function's.
            Entry::Leaf(leaf) if Self::RUNS && leaf.size > Self::slot_size(level) => unsafe {
                Entry::Leaf(self.whole(node, level, leaf))
            },
            entry => entry,
        }
    }

    /// Returns the number of slots that a leaf stands in.
    fn slots_of(level: usize, leaf: Leaf) -> usize {
        1 << (leaf.size.shift() - Self::slot_size(level).shift())
    }

    /// Adds to a leaf what hardware has noted in all its slots.
    ///
    /// # Safety
    ///
    /// As for [`leaf_in`](Self::leaf_in).
    #[inline(never)]
    unsafe fn whole(&self, node: NodeAddr, level: usize, mut leaf: Leaf) -> Leaf {
        let (last, first) = (level + 1 == Self::LEVELS, Self::index(level, leaf.at));
        for index in first..first + Self::slots_of(level, leaf) {
            // SAFETY: this function's contract: a page between two levels begins and ends in one node.
            let word = unsafe { self.nodes.follow(node, Self::place(level, index)) };
            if !F::is_leaf(word, last) || F::size(word, Self::slot_size(level)) != leaf.size {
                continue;
            }
            // Beside a writer a slot may be of another page, as it was before a change or is after it.
            let attr = F::attr(word, last);
            if F::frame(word, leaf.size) == leaf.frame
                && attr.difference(STATUS) == leaf.attr.difference(STATUS)
            {
                leaf.attr |= attr & STATUS;
            }
        }
        leaf
    }

    /// Changes the attributes of a leaf, in however many slots it stands, and returns it as it was.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and the walk for the leaf ends in `spot`.
    pub(super) unsafe fn protect_run(
        &self,
        batch: &mut Retired<'n>,
        spot: Spot,
        mut leaf: Leaf,
        change: Change,
    ) -> Leaf {
        let Spot { node, level } = spot;
        let (last, first) = (level + 1 == Self::LEVELS, Self::index(level, leaf.at));
        batch.touch(change.scope(), G::SPACE.pages_of(&leaf));
        for index in first..first + Self::slots_of(level, leaf) {
            let place = Self::place(level, index);
            // SAFETY: by this function's contract the caller is the only writer, the batch came from this table, and the
            // walk for the leaf ends in `spot`.
            let old = unsafe {
                self.amend(node, place, self.read(node, place), |word| F::change(word, change, last))
            };
            leaf.attr |= F::attr(old, last) & STATUS;
        }
        leaf
    }

    /// Replaces what stands in the slots of a run, or of what becomes one.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and the stock has the nodes that are missing.
    #[inline(never)]
    pub(super) unsafe fn remake_run(
        &self,
        batch: &mut Retired<'n>,
        stock: &mut Stock<'n, N, MAX>,
        part: &Remade,
        leaf: Leaf,
        known: &mut dyn FnMut(),
    ) {
        let mut olds = [F::Word::ZERO; MOST];
        let olds = &mut olds[..part.slots];
        // SAFETY: by this function's contract the caller is the only writer, the batch came from this table, and the
        // stock has the nodes that are missing.
        unsafe {
            if F::BREAK {
                self.break_run(batch, stock, part, leaf, olds, known);
            } else {
                self.exchange_run(batch, stock, part, leaf, olds, known);
            }
        }
    }

    /// Empties all slots, makes that known, and fills them. If `known` unwinds, what was there is put back.
    unsafe fn break_run(
        &self,
        batch: &mut Retired<'n>,
        stock: &mut Stock<'n, N, MAX>,
        part: &Remade,
        leaf: Leaf,
        olds: &mut [F::Word],
        known: &mut dyn FnMut(),
    ) {
        let &Remade { node, level, index, at, to, .. } = part;
        // SAFETY: by the contract of `remake_run`, which is this function's too, the caller is the only writer; the slots are in
        // the node.
        unsafe {
            for (slot, old) in olds.iter_mut().enumerate() {
                *old = self.swap(node, Self::place(level, index + slot), F::Word::ZERO);
            }
        }
        let unwound = Unwound(|| {
            for (slot, &old) in olds.iter().enumerate() {
                // SAFETY: the caller is the only writer, and the slots are in the node. What the old words lead to has not been
                // retired.
                unsafe { self.publish(node, Self::place(level, index + slot), old) };
            }
        });
        known();
        mem::forget(unwound);
        // SAFETY: the caller is the only writer, the batch came from this table, and the stock has the nodes that are missing.
        // What the old words lead to is not freed before the batch completes.
        unsafe {
            // Below a link hardware has noted until now.
            let noted = olds.iter().fold(leaf.attr & STATUS, |all, &old| all | self.status(old, level, at));
            for (slot, &old) in olds.iter().enumerate() {
                self.discard(batch, old, level);
                let frame = self.frame_of(leaf, level, slot);
                let word = self.build(stock, level, frame, to, leaf.attr | noted);
                self.publish(node, Self::place(level, index + slot), word);
            }
        }
    }

    /// Exchanges the slots one after the other: either translation is in use until the flush. Status bits are kept as in a
    /// change of a single slot.
    unsafe fn exchange_run(
        &self,
        batch: &mut Retired<'n>,
        stock: &mut Stock<'n, N, MAX>,
        part: &Remade,
        leaf: Leaf,
        olds: &mut [F::Word],
        known: &mut dyn FnMut(),
    ) {
        let &Remade { node, level, index, at, to, .. } = part;
        let last = level + 1 == Self::LEVELS;
        let mut noted = leaf.attr & STATUS;
        let mut stored = noted;
        // SAFETY: this function's contract; what the old words lead to is not freed before the batch completes.
        unsafe {
            for (slot, seen) in olds.iter_mut().enumerate() {
                let place = Self::place(level, index + slot);
                let cell = self.cell(node, place);
                let mut old = F::Word::follow(cell);
                noted |= self.status(old, level, at);
                let frame = self.frame_of(leaf, level, slot);
                let mut word = self.build(stock, level, frame, to, leaf.attr | noted);
                while let Err(now) = F::Word::exchange(cell, old, word) {
                    old = now;
                    noted |= self.status(old, level, at);
                    word = self.noted(word, level, noted);
                }
                self.exchanged(node, place, old, word);
                self.discard(batch, old, level);
                *seen = old;
                // The first slot got the least.
                if slot == 0 {
                    stored = noted;
                }
            }
            let all = F::OPTIONAL.intersection(STATUS);
            if !last && !noted.contains(all) && olds.iter().any(|&old| F::is_link(old)) {
                known();
                noted = olds.iter().fold(noted, |noted, &old| noted | self.status(old, level, at));
            }
            if noted != stored {
                for slot in 0..olds.len() {
                    self.note(node, level, index + slot, noted);
                }
            }
        }
    }

    /// Adds status bits to the leaf in a slot, or to all leaves below it.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the slot is in a node of the table.
    unsafe fn note(&self, node: NodeAddr, level: usize, index: usize, status: Attr) {
        let (last, place) = (level + 1 == Self::LEVELS, Self::place(level, index));
        // SAFETY: this function's contract; a link leads to a node of the next level.
        unsafe {
            let word = self.read(node, place);
            if F::is_leaf(word, last) {
                self.change_live(node, place, last, |word| F::change(word, Change::set(status), last));
            } else if !last && F::is_link(word) {
                for below in 0..Self::slots(level + 1) {
                    self.note(F::node(word), level + 1, below, status);
                }
            }
        }
    }
}
