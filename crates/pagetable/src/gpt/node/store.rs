//! The writer's stores and counts.

use core::ops::Range;

use super::{Node, Pte, Slot};
use crate::format::{Format, absent_beside, is_taken};
use crate::gpt::layout::{Layout, SLOT};
use crate::gpt::shape::Shape;
use crate::gpt::visit::Span;
use crate::mode::CellMut;
use crate::nodes::{Nodes, Record, WordMut, WordsMut};
use crate::word::atomics::Ordering;

/// One change in the record of an indexing node.
const CHANGE: u32 = 1 << 16;
/// The bits of a record that count the slots in use: no node has more than `2^MAX_WIDTH`.
const LIVE: u32 = CHANGE - 1;

impl<'w, T: Shape> Slot<'w, T> {
    /// Returns a word of the slot, one of [`WORDS`](Layout::WORDS); `None` for the root slot, which is in no node.
    #[inline(always)]
    pub(super) fn word(self, word: usize) -> Option<WordMut<'w, T::N>> {
        debug_assert!(word < T::L::WORDS, "a word of the slot");
        let (node, index) = (self.node?.edge.node, self.index * T::L::WORDS + word % T::L::WORDS);
        // SAFETY: the node is live during `'w` and has the slot, and the holder is the only writer.
        Some(unsafe { self.table.nodes().word_mut(node, index) })
    }

    /// Stores a link, or nothing: a walker that loads the link finds the subtree below it complete. Every change of the tree ends
    /// with this store.
    #[inline(always)]
    pub(in crate::gpt) fn publish(self, entry: Option<Node<'w, T>>) {
        let words = entry.map_or([T::ZERO; SLOT], |node| T::L::words(node.edge, node.base));
        for (word, &value) in words.iter().enumerate().take(T::L::WORDS) {
            match self.word(word) {
                Some(word) => word.publish(value),
                None => {
                    if let Some(cell) = self.root_cell(word) {
                        // SAFETY: the cell is a field of the table, and the holder is the only writer.
                        let cell = unsafe { CellMut::<T::W, <T::N as Nodes>::Mode>::new(cell) };
                        cell.publish(value);
                    }
                }
            }
        }
    }
}

impl<'w, T: Shape> Node<'w, T> {
    /// Returns the PTEs of a part of a leaf, where they are [neighbours](Shape::IN_A_ROW).
    #[inline(always)]
    fn row(self, part: Span) -> WordsMut<'w, T::N> {
        let (pages, first) = self.within(part);
        // SAFETY: the leaf is live during `'w` and has the PTEs, and the holder is the only writer.
        unsafe { self.table.nodes().words_mut(self.edge.node, first, pages) }
    }

    /// Returns the record of the node until the node is retired: in its low half the number of the slots in use, and in the high half
    /// of an indexing node the number of changes since the node was tuned ([`is_due`](Self::is_due)). A leaf has none.
    #[inline(always)]
    pub(in crate::gpt) fn record(self) -> &'w Record {
        // SAFETY: the node is live during `'w`, and so is its record; it was taken with so many words.
        unsafe { self.table.nodes().record(self.edge.node, T::words(self.edge)) }
    }

    /// Returns how many slots are in use.
    #[inline(always)]
    pub(in crate::gpt) fn live(self) -> usize {
        (self.record().load(Ordering::Relaxed) & LIVE) as usize
    }

    /// Counts a change of one slot of an indexing node, and tells whether it is the last of as many changes as one eighth of the slots.
    #[inline(always)]
    pub(in crate::gpt) fn is_due(self) -> bool {
        let record = self.record();
        let now = record.load(Ordering::Relaxed) + CHANGE;
        let due = (now / CHANGE) << 3 >= 1 << self.width;
        record.store(if due { now & LIVE } else { now }, Ordering::Relaxed);
        due
    }

    /// Returns how many changes of single slots an indexing node has had since it was tuned.
    #[cfg(test)]
    pub(in crate::gpt) fn changes(self) -> u32 {
        self.record().load(Ordering::Relaxed) / CHANGE
    }

    /// Sets how many slots are in use. An indexing node then has no changes.
    #[inline(always)]
    pub(in crate::gpt) fn set_live(self, live: usize) {
        self.record().store(live as u32, Ordering::Relaxed);
    }

    /// Adds to the number of slots in use.
    #[inline(always)]
    pub(in crate::gpt) fn add_live(self, more: usize) {
        let record = self.record();
        record.store(record.load(Ordering::Relaxed) + more as u32, Ordering::Relaxed);
    }

    /// Subtracts from the number of slots in use, and returns the rest.
    #[inline(always)]
    pub(in crate::gpt) fn sub_live(self, fewer: usize) -> usize {
        let record = self.record();
        let rest = record.load(Ordering::Relaxed) - fewer as u32;
        record.store(rest, Ordering::Relaxed);
        (rest & LIVE) as usize
    }

    /// Returns what a range of slots leads to, without what is empty. Neighbouring slots that one page occupies are one entry.
    #[inline(always)]
    pub(in crate::gpt) fn distinct(self, slots: Range<usize>) -> impl Iterator<Item = Self> {
        let mut last = None;
        slots.filter_map(move |slot| {
            let child = self.child(slot);
            (child != core::mem::replace(&mut last, child)).then_some(child).flatten()
        })
    }

    /// Counts the entries of a node. Neighbouring slots that one page occupies are one entry.
    pub(in crate::gpt) fn entries(self) -> usize {
        self.distinct(0..self.slots()).count()
    }

    /// Counts the words of a part of a leaf for which the predicate `is_so` returns true.
    #[inline(always)]
    pub(in crate::gpt) fn count(self, part: Span, is_so: impl Fn(T::W) -> bool) -> usize {
        self.ptes(part).filter(|pte| is_so(pte.read())).count()
    }

    /// Empties the PTEs of a part of a leaf.
    #[inline(always)]
    pub(in crate::gpt) fn clear(self, part: Span) {
        if T::IN_A_ROW {
            self.row(part).fill(T::ZERO, T::ZERO);
        } else {
            self.ptes(part).for_each(|pte| pte.store(T::ZERO));
        }
    }

    /// Applies `change` to each word of a part of a leaf.
    #[inline(always)]
    pub(in crate::gpt) fn edit(self, part: Span, change: impl Fn(T::W) -> T::W) {
        if T::IN_A_ROW {
            self.row(part).edit(change);
        } else {
            self.ptes(part).for_each(|pte| pte.store(change(pte.read())));
        }
    }

    /// Copies the PTEs and marks of a leaf that begins at `base` to a new leaf that covers its pages.
    pub(in crate::gpt) fn copy_to(self, base: usize, new: Self) {
        let mut live = 0;
        for pte in self.all_ptes(base) {
            let word = pte.read();
            if is_taken::<T::F>(word) {
                new.pte(pte.at).store(word);
                live += 1;
            }
        }
        new.add_live(live);
    }
}

impl<'w, T: Shape> Pte<'w, T> {
    #[inline(always)]
    fn word(self) -> WordMut<'w, T::N> {
        // SAFETY: the leaf is live during `'w` and has the place, and the holder is the only writer.
        unsafe { self.leaf.table.nodes().word_mut(self.leaf.edge.node, self.place) }
    }

    /// Stores a word that leads to a frame.
    #[inline(always)]
    pub(in crate::gpt) fn publish(self, word: T::W) {
        self.put(word);
        self.settle_pair();
    }

    #[inline(always)]
    fn put(self, word: T::W) {
        self.word().publish(word);
    }

    /// Stores a word that leads nowhere, or to a frame to which the word before led, or any word in a leaf that no walker can reach
    /// yet.
    #[inline(always)]
    pub(in crate::gpt) fn store(self, word: T::W) {
        self.word().store_relaxed(word);
        self.settle_pair();
    }

    /// Adapts the other PTE of a pair after this one has changed: the hardware requires some bits to be equal in both.
    #[inline(always)]
    fn settle_pair(self) {
        if T::F::PAIRED {
            let other = self.leaf.pte(self.at ^ 1 << self.leaf.shift);
            for (a, b) in [(self, other), (other, self)] {
                let (changed, now) = (a.read(), b.read());
                let wanted = if T::F::is_leaf(now, true) {
                    T::F::beside(changed, now)
                } else {
                    absent_beside::<T::F>(changed, now)
                };
                if wanted != now {
                    b.put(wanted);
                }
            }
        }
    }
}
