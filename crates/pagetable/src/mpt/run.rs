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

use tlbkit_addr::{Attr, VirtAddr};

use super::leaf::Decode as _;
use super::node::{NodeMut, NodeRef, Seen, SeenRun, Subtree, Supply};
use super::resize::Remade;
use super::shape::Shape;
use crate::dry_run::STATUS;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Change, Leaf, Radix};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Seen<'_, 'n, G, F, N> {
    /// Decodes the leaf in the slot, which `at` falls into, with the status bits of all slots of its page.
    #[inline(always)]
    pub(super) fn whole_leaf(self, at: VirtAddr) -> Leaf {
        self.node().leaf_in(self.word(), self.node().level(), at)
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeRef<'_, 'n, G, F, N> {
    /// Decodes the leaf `word` of this node, which is of `level` and maps `at`, with the status bits of all slots of its page.
    #[inline(always)]
    pub(super) fn leaf_in(self, word: F::Word, level: usize, at: VirtAddr) -> Leaf {
        let leaf = Self::leaf(word, level, at);
        if Self::RUNS && leaf.size > Self::slot_size(level) { self.whole(leaf) } else { leaf }
    }

    /// Returns the number of slots that a leaf occupies.
    fn slots_of(self, leaf: Leaf) -> usize {
        1 << (leaf.size.shift() - Self::slot_size(self.level()).shift())
    }

    /// Adds to a leaf of this node the status bits of all its slots. A page between the sizes of two levels does not extend beyond
    /// one node.
    #[inline(never)]
    fn whole(self, mut leaf: Leaf) -> Leaf {
        let first = self.index_of(leaf.at);
        for index in first..first + self.slots_of(leaf) {
            let word = self.seen(index).word();
            if !Self::is_leaf(word, self.level()) || F::size(word, Self::slot_size(self.level())) != leaf.size
            {
                continue;
            }
            // During a writer's change a slot may hold the leaf of another page, from before or after the change.
            let attr = F::attr(word, Self::is_last(self.level()));
            if F::frame(word, leaf.size) == leaf.frame
                && attr.difference(STATUS) == leaf.attr.difference(STATUS)
            {
                leaf.attr |= attr & STATUS;
            }
        }
        leaf
    }
}

impl<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeMut<'w, 'n, G, F, N> {
    /// Changes the attributes of a leaf of this node in all its slots, and returns the leaf as it was before.
    pub(super) fn protect_run(&mut self, mut leaf: Leaf, change: Change) -> Leaf {
        let (last, first) = (Self::is_last(self.level()), self.index_of(leaf.at));
        self.touch(change.scope(), G::SPACE.pages_of(&leaf), false);
        for index in first..first + self.slots_of(leaf) {
            let slot = self.at(index);
            let old = slot.amend(slot.read(), |word| F::change(word, change, last));
            leaf.attr |= F::attr(old, last) & STATUS;
        }
        leaf
    }

    /// Replaces the words in the slots of a run, or in the slots that become a run. The supply has the nodes that are missing.
    #[inline(never)]
    pub(super) fn remake_run(
        &mut self,
        supply: &mut Supply<'n, G, F, N>,
        part: &Remade,
        leaf: Leaf,
        flush_all_cpus: &mut dyn FnMut(),
    ) {
        if F::BREAK {
            self.break_run(supply, part, leaf, flush_all_cpus);
        } else {
            self.exchange_run(supply, part, leaf, flush_all_cpus);
        }
    }

    /// Empties all slots, calls `flush_all_cpus`, and fills the slots. If `flush_all_cpus` unwinds, the old words are put back.
    fn break_run(
        &mut self,
        supply: &mut Supply<'n, G, F, N>,
        part: &Remade,
        leaf: Leaf,
        flush_all_cpus: &mut dyn FnMut(),
    ) {
        let mut olds = self.take_out_run(part.index, part.slots);
        flush_all_cpus();
        // Below an old link hardware could set status bits until the flush.
        let noted = olds.seen().fold(leaf.attr & STATUS, |all, old| all | old.status());
        let leaf = Leaf { attr: leaf.attr | noted, ..leaf };
        while let Some(old) = olds.pop() {
            let index = old.seen().slot();
            self.discard(old);
            self.put(
                index,
                Subtree::build(**self, index, supply, part.frame_of(**self, leaf, index), part.to, leaf.attr),
            );
        }
    }

    /// Exchanges the slots one after the other. Until the flush, CPUs use the old or the new translation. Status bits are kept as
    /// [`exchange`](Self::exchange) keeps them.
    fn exchange_run(
        &mut self,
        supply: &mut Supply<'n, G, F, N>,
        part: &Remade,
        leaf: Leaf,
        flush_all_cpus: &mut dyn FnMut(),
    ) {
        let &Remade { index: first, slots, to, .. } = part;
        let mut olds = SeenRun::new(**self, first);
        let mut noted = leaf.attr & STATUS;
        let mut stored = noted;
        for index in first..first + slots {
            let mut seen = self.peek(index);
            noted |= seen.status();
            let frame = part.frame_of(**self, leaf, index);
            let mut new = Subtree::build(**self, index, supply, frame, to, leaf.attr | noted);
            while !self.swap_seen(&mut seen, &mut new) {
                noted |= seen.status();
                new.note(noted);
            }
            olds.push(self.discard(new));
            // The first slot was stored with the fewest status bits.
            if index == first {
                stored = noted;
            }
        }
        let all = F::OPTIONAL.intersection(STATUS);
        if !noted.contains(all) && olds.iter().any(|old| old.link().is_some()) {
            flush_all_cpus();
            noted = olds.iter().fold(noted, |noted, old| noted | old.status());
        }
        if noted != stored {
            for index in first..first + slots {
                self.note(index, noted);
            }
        }
    }

    /// Adds status bits to the leaf in a slot, or to all leaves below it.
    fn note(&mut self, index: usize, status: Attr) {
        let last = Self::is_last(self.level());
        if let Some(mut below) = self.child(index) {
            for index in 0..Self::slots(below.level()) {
                below.note(index, status);
            }
        } else {
            self.at(index).change_live(|word| F::change(word, Change::set(status), last));
        }
    }
}
