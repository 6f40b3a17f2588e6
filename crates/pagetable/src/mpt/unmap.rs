//! Unmapping a range: a dry run that can fail, then a commit that cannot, which retires the nodes that become empty.

use tlbkit_addr::{Attr, FlushScope, Pages, VirtAddr};

use super::leaf::Decode as _;
use super::node::{NodeMut, Place, Writing};
use super::resize::STATUS;
use super::shape::Shape;
use super::sweep::NodePart;
use super::{Mpt, own_pages};
use crate::format::{Format, mark_of, walked};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Error, Frames, Holes, Radix, Word};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'_, 'n, G, F, N> {
    /// See [`Table::unmap`](crate::Table::unmap).
    #[inline(always)]
    pub(super) fn unmap(
        mut self,
        pages: Pages,
        holes: Holes,
        frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        if frames.is_none()
            && let Some(slot) = self.slot_of(pages)
            && let Some((_, stale)) = slot.unmap()
        {
            self.flush().add(stale.scope, stale.pages);
            return Ok(1);
        }
        self.unmap_range(pages, holes, frames)
    }

    /// Unmaps a range of any length.
    #[inline(never)]
    pub(super) fn unmap_range(
        self,
        pages: Pages,
        holes: Holes,
        frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        self.or_mend(|writing| writing.unmap_slots(pages, holes, frames))
    }

    fn unmap_slots(
        mut self,
        pages: Pages,
        holes: Holes,
        mut frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        G::SPACE.check_pages(pages)?;
        self.table().check_own(pages)?;
        let census = self.census(pages, holes)?;
        if let Some(frames) = &mut frames {
            frames.reserve(if Self::REPLICATED { self.view().distinct(pages) } else { census.leaves })?;
        }
        if census.pages > 0 {
            let stale = self.view().stale(pages);
            self.flush().add(FlushScope::Everywhere, stale);
        } else if census.marks == 0 {
            return Ok(0);
        }
        // Status bits of the page's other slots (above the last level each slot is a part of its own).
        let mut noted = Attr::empty();
        let by_runs = !Self::REPLICATED && frames.as_ref().is_some_and(|frames| frames.by_runs());
        // By the census every leaf of the range is whole.
        self.sweep(pages, |part| {
            // If holes are refused, the dry run has found none.
            let leaves = if holes == Holes::Refuse { part.slots } else { part.leaves() };
            let marks = if census.marks == 0 { 0 } else { part.marks_beside(leaves) };
            if leaves + marks == 0 {
                return Ok(());
            }
            match &mut frames {
                Some(frames) if by_runs && Self::is_last(part.node.level()) => part.uncover_runs(*frames),
                None if !Mpt::<'n, G, F, N>::STATUS_RACES => {
                    part.node.fill(part.index, part.slots, F::Word::ZERO, F::Word::ZERO);
                }
                frames => match part.last() {
                    Some(places) => {
                        for (slot, place) in places.enumerate() {
                            part.uncover(slot, place, frames, &mut noted);
                        }
                    }
                    None => {
                        for slot in 0..part.slots {
                            part.uncover(slot, part.at(slot), frames, &mut noted);
                        }
                    }
                },
            }
            part.count_empty(leaves + marks);
            Ok(())
        })?;
        Ok(census.pages)
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodePart<'_, 'n, G, F, N> {
    /// Empties a slot, and passes its leaf's frame or its mark to `frames`. `noted` collects the status bits of the page's slots
    /// until the last of them is empty.
    #[inline(always)]
    fn uncover(
        &self,
        slot: usize,
        place: Place<'_, 'n, G, F, N>,
        frames: &mut Option<&mut dyn Frames>,
        noted: &mut Attr,
    ) {
        let level = place.node().level();
        // The slot is emptied before `frames` is called, so no word leads to the frame even if that call unwinds.
        let word = place.take(place.read());
        let Some(frames) = frames else { return };
        let at = self.address(slot);
        if Self::is_leaf(word, level) {
            let mut leaf = Self::leaf(word, level, at);
            if Self::RUNS {
                *noted |= leaf.attr & STATUS;
                leaf.attr |= *noted;
            }
            // The frames of a page in several slots are handed over once, after its last slot has been emptied.
            if at.get() + Self::slot_size(level).mask() == leaf.at.get() + leaf.size.mask() {
                frames.push(leaf.frame, leaf.size, G::BASE, leaf.attr);
                *noted = Attr::empty();
            }
        } else if Self::is_mark(word, level)
            && let Some(mark) = Self::entry(word, level, at).mark()
        {
            frames.marked(at, mark);
        }
    }

    /// Empties the slots of a last-level part, and passes the frames and marks to `frames`. Entries that differ only in the
    /// frame, which is the next one, are handed over as one run.
    fn uncover_runs(&self, frames: &mut dyn Frames) {
        // The first entry of the current run, the number of its entries, and the word that would continue it.
        let (mut first, mut count, mut next) = (F::Word::ZERO, 0, F::Word::ZERO);
        let Some(places) = self.last() else { return };
        for (slot, place) in places.enumerate() {
            let seen = place.read();
            if seen == F::Word::ZERO {
                continue;
            }
            // The slot is emptied before `frames` is called, so no word leads to the frame even if that call unwinds.
            let word = place.take(seen);
            // A zero word is in no run.
            if word == next && count > 0 {
                (count, next) = (count + 1, next.advance(F::STEP, 1));
                continue;
            }
            Self::hand_over(frames, first, count);
            (first, count, next) = (word, 1, word.advance(F::STEP, 1));
            if !F::is_leaf(word, true) {
                count = 0;
                if let Some(mark) = mark_of::<F>(word) {
                    frames.marked(self.address(slot), mark);
                }
            }
        }
        Self::hand_over(frames, first, count);
    }

    /// Passes the frames of `count` entries to `frames`. Each entry is the one before it plus one step.
    fn hand_over(frames: &mut dyn Frames, first: F::Word, count: usize) {
        if count > 0 && Self::counts_on(first, count) {
            return frames.push_run(F::frame(first, G::BASE), count, G::BASE, F::attr(first, true));
        }
        for word in (0..count).map(|at| first.advance(F::STEP, at)) {
            frames.push(F::frame(word, G::BASE), G::BASE, G::BASE, F::attr(word, true));
        }
    }

    /// Updates the counts after the slots of the part have been emptied, of which `taken` held leaves or marks.
    #[inline(always)]
    fn count_empty(&mut self, taken: usize) {
        self.node.settle_ends(self.index, self.slots);
        self.node.table().tally.ptes(-(taken as isize));
        self.emptied = self.node.sub_live(taken) == 0 && self.node.level() > 0;
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeMut<'_, 'n, G, F, N> {
    /// Unlinks and retires the empty node of `level` on the way to `at`, and each node between it and this one that becomes empty.
    #[inline(never)]
    pub(super) fn prune(&mut self, level: usize, at: VirtAddr) {
        let index = self.index_of(at);
        let Some(mut below) = self.child(index) else { return };
        let below_level = below.level();
        if below_level < level {
            below.prune(level, at);
        }
        if below.live() > 0 {
            return;
        }
        let page = Pages::one(at.vpn(G::BASE));
        if walked::<F>() {
            self.flush().add_links(FlushScope::Everywhere, page);
        }
        if let Some(own) = own_pages::<G>(below_level, page) {
            self.flush().add(FlushScope::Everywhere, own);
        }
        if let Some(gone) = self.unlink(index) {
            // SAFETY: no slot of the node is in use.
            unsafe { self.retire_as(gone, true) };
        }
    }
}
