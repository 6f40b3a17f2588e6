//! Unmapping a range: a dry run that can fail, then a commit that cannot, which retires the nodes that become empty.

use tlbkit_addr::{Attr, FlushScope, Pages, VirtAddr, Vpn};

use super::resize::STATUS;
use super::shape::Shape;
use super::sweep::Part;
use super::{Mpt, own_pages};
use crate::format::{Format, mark_of, walked};
use crate::geometry::Checked as _;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Error, Frames, Holes, Radix, Retired, Word};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// See [`Table::unmap`](crate::Table::unmap).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    pub(super) unsafe fn unmap_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        mut frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        G::SPACE.check_pages(pages)?;
        self.check_own(pages)?;
        // SAFETY: the caller is the writer.
        let census = unsafe { self.census(pages, holes, true) }?;
        if let Some(frames) = &mut frames {
            // SAFETY: the caller is the writer, and the range is in the space.
            frames.reserve(if Self::REPLICATED { unsafe { self.distinct(pages) } } else { census.leaves })?;
        }
        if census.pages > 0 {
            // SAFETY: the caller is the writer.
            batch.touch(FlushScope::Everywhere, unsafe { self.stale(pages) });
        } else if census.marks == 0 {
            return Ok(0);
        }
        // Status bits of the page's other slots (above the last level each slot is a part of its own).
        let mut noted = Attr::empty();
        let by_runs = !Self::REPLICATED && frames.as_ref().is_some_and(|frames| frames.by_runs());
        // SAFETY: the caller is the writer, and by the census every leaf of the range is whole.
        unsafe {
            self.sweep(pages, |part| {
                // If holes are refused, the dry run has found none.
                let leaves = if holes == Holes::Refuse { part.slots } else { self.leaves(&part) };
                let marks = if census.marks == 0 { 0 } else { self.marks_beside(&part, leaves) };
                if leaves + marks == 0 {
                    return Ok(());
                }
                match &mut frames {
                    Some(frames) if by_runs && part.path.level + 1 == Self::LEVELS => {
                        self.uncover_runs(&part, *frames);
                    }
                    None if !Self::STATUS_RACES => self.clear(&part),
                    frames => {
                        for slot in 0..part.slots {
                            self.uncover(&part, slot, frames, &mut noted);
                        }
                    }
                }
                self.count_empty(batch, &part, leaves + marks);
                Ok(())
            })?;
        }
        Ok(census.pages)
    }

    /// Empties a slot, and passes its leaf's frame or its mark to `frames`. `noted` collects the status bits of the page's slots
    /// until the last of them is empty.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the part is one of this table, and `slot` is below its number of slots.
    unsafe fn uncover(
        &self,
        part: &Part,
        slot: usize,
        frames: &mut Option<&mut dyn Frames>,
        noted: &mut Attr,
    ) {
        let level = part.path.level;
        let place = Self::place(level, part.index + slot);
        let node = part.path.node(level);
        // The slot is emptied before `frames` is called, so no word leads to the frame even if that call unwinds.
        // SAFETY: the slot is in the node, and the caller is the writer.
        let word = unsafe { self.take(node, place, self.slot(part, slot)) };
        let Some(frames) = frames else { return };
        let at = Vpn::new(part.first.get() + slot * Self::slot_pages(level)).address(G::BASE);
        if F::is_leaf(word, level + 1 == Self::LEVELS) {
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
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the part is one of this table, of the last level.
    unsafe fn uncover_runs(&self, part: &Part, frames: &mut dyn Frames) {
        let level = Self::LEVELS - 1;
        let node = part.path.node(level);
        // The first entry of the current run, the number of its entries, and the word that would continue it.
        let (mut first, mut count, mut next) = (F::Word::ZERO, 0, F::Word::ZERO);
        for slot in 0..part.slots {
            // SAFETY: the slot is in the node, and the caller is the writer.
            let seen = unsafe { self.slot(part, slot) };
            if seen == F::Word::ZERO {
                continue;
            }
            // The slot is emptied before `frames` is called, so no word leads to the frame even if that call unwinds.
            // SAFETY: the slot is in the node, and the caller is the writer.
            let word = unsafe { self.take(node, Self::place(level, part.index + slot), seen) };
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
                    let page = Vpn::new(part.first.get() + slot);
                    frames.marked(page.address(G::BASE), mark);
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

    /// Stores zero in the slots of a part.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the part is one of this table, and no slot of the part holds a link.
    #[inline(always)]
    unsafe fn clear(&self, part: &Part) {
        let level = part.path.level;
        // SAFETY: the slots are in the node, and the caller is the writer.
        unsafe {
            self.fill(part.path.node(level), level, part.index, part.slots, F::Word::ZERO, F::Word::ZERO);
        }
    }

    /// Updates the counts after the slots of a part have been emptied, of which `taken` held leaves or marks, and retires the
    /// nodes that have become empty.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, the part is one of this table, and its slots are empty.
    #[inline(always)]
    unsafe fn count_empty(&self, batch: &mut Retired<'n>, part: &Part, taken: usize) {
        let level = part.path.level;
        let node = part.path.node(level);
        // SAFETY: the slots are in the node, and the caller is the writer.
        unsafe {
            self.settle_pair(node, level, part.index);
            self.settle_pair(node, level, part.index + part.slots - 1);
            self.tally.ptes(-(taken as isize));
            if self.sub_live(node, level, taken) == 0 && level > 0 {
                self.prune(batch, level, part.first.address(G::BASE));
            }
        }
    }

    /// Unlinks and retires the empty node of `level` on the way to `at`, and each node above it that becomes empty.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and the node of `level` on the way to `at` has no slot in
    /// use.
    #[inline(never)]
    pub(super) unsafe fn prune(&self, batch: &mut Retired<'n>, level: usize, at: VirtAddr) {
        // SAFETY: the caller is the writer.
        let mut path = unsafe { self.path(at, level) };
        loop {
            let node = path.node(path.level);
            path.level -= 1;
            let (parent, index) = (path.node(path.level), Self::index(path.level, at));
            let page = Pages::one(at.vpn(G::BASE));
            if walked::<F>() {
                batch.relink(FlushScope::Everywhere, page);
            }
            if let Some(own) = own_pages::<G>(path.level + 1, page) {
                batch.touch(FlushScope::Everywhere, own);
            }
            // SAFETY: the caller is the writer. The node has no entries, and after the store no word leads to it.
            let live = unsafe {
                self.store_relaxed(parent, Self::place(path.level, index), F::Word::ZERO);
                self.settle_pair(parent, path.level, index);
                self.retire(batch, node, path.level + 1, true);
                self.sub_live(parent, path.level, 1)
            };
            if live > 0 || path.level == 0 {
                return;
            }
        }
    }

    /// Adds an unlinked node to the batch. `clean` means that all its slots are empty.
    ///
    /// # Safety
    ///
    /// The node is one of `level` from this table's storage, the batch came from this table, and no word of the table leads to
    /// the node.
    pub(super) unsafe fn retire(&self, batch: &mut Retired<'n>, node: NodeAddr, level: usize, clean: bool) {
        // The kernel may have written to the extra words beside the leaves.
        let clean = clean && (F::EXTRA == 0 || level + 1 < Self::LEVELS);
        // SAFETY: by this function's contract no word leads to the node, which came from the table's storage.
        unsafe { batch.push(node, clean) };
        self.tally.node(-1, Self::words(level) * F::Word::BYTES);
    }
}
