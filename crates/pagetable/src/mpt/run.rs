//! Contiguous runs: pages between the sizes of two levels, in tables in which hardware sets status bits.
//!
//! ```text
//!            +----+----+----+- - -+----+
//!   a node   | 64 KiB page in 16 slots |      each a leaf to the MMU, which may keep one TLB entry for all
//!            +----+----+----+- - -+----+
//!               A          A D               the MMU sets A and D in the slot of the access, or in another
//! ```
//!
//! So the status bits of a page are the union of those in its slots. The MMU sets D in a slot only if its TLB entry lacks D. A
//! TLB entry that covers the run may have got D from any slot, and then a store to another slot's part sets no bit there. So each
//! small page that the run is split into gets the status bits of the whole run, and so does the larger page that the run becomes
//! a part of.
//!
//! A change of a run takes one store or exchange for each slot. Until the flush a walker finds the old or the new page, whichever
//! slot it loads, as in a change of a single slot. In formats that [break](Format::BREAK), all slots are emptied first.

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

/// The largest number of slots of a run: 128, in AArch64 with a granule of 16 KiB.
const MOST: usize = 128;

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Decodes the leaf in a slot of `node` that maps `at`, with the status bits of all slots of its page.
    ///
    /// # Safety
    ///
    /// The caller is pinned or the writer. The walk for `at` ends in `node`, a node of `level`, and has loaded `word` there.
    #[inline(always)]
    pub(super) unsafe fn leaf_in(&self, node: NodeAddr, word: F::Word, level: usize, at: VirtAddr) -> Leaf {
        let leaf = Self::leaf(word, level, at);
        if Self::RUNS && leaf.size > Self::slot_size(level) {
            // SAFETY: by this function's contract the caller is pinned or the writer, and the walk for `at` has loaded the word
            // in this node, which is of `level`.
            return unsafe { self.whole(node, level, leaf) };
        }
        leaf
    }

    /// Decodes a word that is no link, as [`entry`](Self::entry) does, with the status bits of all slots of its page.
    ///
    /// # Safety
    ///
    /// The caller is pinned or the writer. The walk for `at` ends in `node`, a node of `level`, and has loaded `word` there.
    #[inline(always)]
    pub(super) unsafe fn entry_in(&self, node: NodeAddr, word: F::Word, level: usize, at: VirtAddr) -> Entry {
        match Self::entry(word, level, at) {
            // SAFETY: by this function's contract the caller is pinned or the writer, and the walk for the leaf ends in this
            // node.
            Entry::Leaf(leaf) if Self::RUNS && leaf.size > Self::slot_size(level) => unsafe {
                Entry::Leaf(self.whole(node, level, leaf))
            },
            entry => entry,
        }
    }

    /// Returns the number of slots that a leaf occupies.
    fn slots_of(level: usize, leaf: Leaf) -> usize {
        1 << (leaf.size.shift() - Self::slot_size(level).shift())
    }

    /// Adds to a leaf the status bits of all its slots.
    ///
    /// # Safety
    ///
    /// The caller is pinned or the writer. The walk for the leaf ends in `node`, a node of `level`.
    #[inline(never)]
    unsafe fn whole(&self, node: NodeAddr, level: usize, mut leaf: Leaf) -> Leaf {
        let (last, first) = (level + 1 == Self::LEVELS, Self::index(level, leaf.at));
        for index in first..first + Self::slots_of(level, leaf) {
            // SAFETY: by this function's contract the leaf is in this node, and a page between the sizes of two levels does not
            // extend beyond one node.
            let word = unsafe { self.nodes.follow(node, Self::place(level, index)) };
            if !F::is_leaf(word, last) || F::size(word, Self::slot_size(level)) != leaf.size {
                continue;
            }
            // During a writer's change a slot may hold the leaf of another page, from before or after the change.
            let attr = F::attr(word, last);
            if F::frame(word, leaf.size) == leaf.frame
                && attr.difference(STATUS) == leaf.attr.difference(STATUS)
            {
                leaf.attr |= attr & STATUS;
            }
        }
        leaf
    }

    /// Changes the attributes of a leaf in all its slots, and returns the leaf as it was before.
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
            // SAFETY: by this function's contract the caller is the only writer, and the walk for the leaf ends in `spot`, so the
            // place is in the node.
            let old = unsafe {
                self.amend(node, place, self.read(node, place), |word| F::change(word, change, last))
            };
            leaf.attr |= F::attr(old, last) & STATUS;
        }
        leaf
    }

    /// Replaces the words in the slots of a run, or in the slots that become a run.
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
        flush_all_cpus: &mut dyn FnMut(),
    ) {
        let mut olds = [F::Word::ZERO; MOST];
        let olds = &mut olds[..part.slots];
        // SAFETY: by this function's contract the caller is the only writer, the batch came from this table, and the
        // stock has the nodes that are missing.
        unsafe {
            if F::BREAK {
                self.break_run(batch, stock, part, leaf, olds, flush_all_cpus);
            } else {
                self.exchange_run(batch, stock, part, leaf, olds, flush_all_cpus);
            }
        }
    }

    /// Empties all slots, calls `flush_all_cpus`, and fills the slots. If `flush_all_cpus` unwinds, the old words are put back.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, the stock has the nodes that are missing, and `olds` has
    /// one word for each slot of the part.
    unsafe fn break_run(
        &self,
        batch: &mut Retired<'n>,
        stock: &mut Stock<'n, N, MAX>,
        part: &Remade,
        leaf: Leaf,
        olds: &mut [F::Word],
        flush_all_cpus: &mut dyn FnMut(),
    ) {
        let &Remade { node, level, index, at, to, .. } = part;
        // SAFETY: by this function's contract the caller is the only writer; the slots are in the node.
        unsafe {
            for (slot, old) in olds.iter_mut().enumerate() {
                *old = self.swap(node, Self::place(level, index + slot), F::Word::ZERO);
            }
        }
        let unwound = Unwound(|| {
            for (slot, &old) in olds.iter().enumerate() {
                // SAFETY: the caller is the only writer, and the slots are in the node. The nodes that the old words lead to have
                // not been retired.
                unsafe { self.publish(node, Self::place(level, index + slot), old) };
            }
        });
        flush_all_cpus();
        mem::forget(unwound);
        // SAFETY: the caller is the only writer, the batch came from this table, and the stock has the nodes that are missing.
        // The nodes that the old words lead to are not freed before the batch completes.
        unsafe {
            // Below an old link hardware could set status bits until the flush.
            let noted = olds.iter().fold(leaf.attr & STATUS, |all, &old| all | self.status(old, level, at));
            for (slot, &old) in olds.iter().enumerate() {
                self.discard(batch, old, level);
                let frame = self.frame_of(leaf, level, slot);
                let word = self.build(stock, level, frame, to, leaf.attr | noted);
                self.publish(node, Self::place(level, index + slot), word);
            }
        }
    }

    /// Exchanges the slots one after the other. Until the flush, CPUs use the old or the new translation. Status bits are kept as
    /// [`exchange`](Self::exchange) keeps them.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, the stock has the nodes that are missing, and `olds` has
    /// one word for each slot of the part.
    unsafe fn exchange_run(
        &self,
        batch: &mut Retired<'n>,
        stock: &mut Stock<'n, N, MAX>,
        part: &Remade,
        leaf: Leaf,
        olds: &mut [F::Word],
        flush_all_cpus: &mut dyn FnMut(),
    ) {
        let &Remade { node, level, index, at, to, .. } = part;
        let last = level + 1 == Self::LEVELS;
        let mut noted = leaf.attr & STATUS;
        let mut stored = noted;
        // SAFETY: by this function's contract the caller is the only writer, the batch came from this table, and the stock has
        // the nodes. The nodes that the old words lead to are not freed before the batch completes.
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
                // The first slot was stored with the fewest status bits.
                if slot == 0 {
                    stored = noted;
                }
            }
            let all = F::OPTIONAL.intersection(STATUS);
            if !last && !noted.contains(all) && olds.iter().any(|&old| F::is_link(old)) {
                flush_all_cpus();
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
        // SAFETY: by this function's contract the caller is the only writer, and the slot is in the node. A link leads to a node
        // of the next level.
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
