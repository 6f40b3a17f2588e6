//! Removal of a page or a range: PTEs are cleared, and empty buckets become [vacant](super::vacant) or are removed.

use core::ops::ControlFlow;

use tlbkit_addr::{FlushScope, Pages};

use super::part::Part;
use super::visit::Visitor;
use super::{Hashed, Sizes};
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Entry, Error, Frames, Geometry, Holes, Retired, Word};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Implements [`Table::unmap`](crate::Table::unmap).
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    #[inline]
    pub(super) unsafe fn unmap_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        let page = pages.first();
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            if page == pages.last() && frames.is_none() && G::SPACE.has(page) && self.unmap_one(batch, page) {
                batch.touch(FlushScope::Everywhere, pages);
                return Ok(1);
            }
            self.unmap_range(batch, pages, holes, frames)
        }
    }

    /// Unmaps a range, whatever is in it.
    ///
    /// # Safety
    ///
    /// As for [`unmap_pages`](Self::unmap_pages).
    #[inline(never)]
    unsafe fn unmap_range(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        mut frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        G::SPACE.check_pages(pages)?;
        // SAFETY: by this function's contract the caller is the only writer. After the census every leaf of the range is
        // whole.
        unsafe {
            let census = self.census(pages, holes, true)?;
            if let Some(frames) = &mut frames {
                frames.reserve(census.leaves)?;
            }
            if census.pages > 0 {
                batch.touch(FlushScope::Everywhere, self.stale(pages));
            }
            if census.pages + census.marks > 0 {
                let before = self.blocks();
                // Of base pages without a hole every entry is taken.
                let full = census.leaves == pages.len();
                if full && frames.is_none() && self.is_by_block(pages) {
                    self.clear_blocks(batch, pages);
                } else {
                    self.clear(batch, pages, frames, full);
                }
                self.adapt(batch, before - self.blocks());
            }
            Ok(census.pages)
        }
    }

    /// Removes every leaf and mark of a range, which is `full` if each page of it has a leaf of its own.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - every leaf of `pages` is whole.
    unsafe fn clear(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        mut frames: Option<&mut dyn Frames>,
        full: bool,
    ) {
        // SAFETY: by this function's contract the caller is the only writer.
        let _ = unsafe {
            self.parts(pages, Visitor::Clearer(batch), |part| {
                let Some(frames) = &mut frames else {
                    // A bucket of larger pages may be live for others.
                    self.empty(part, full && part.grain == 0);
                    return ControlFlow::Continue(());
                };
                self.each_taken(part, |slot, at, entry| {
                    // The leaf is cleared before the frame is passed on, so no word leads to it even if the call unwinds.
                    let size = entry.leaf().map_or(G::BASE, |leaf| leaf.size);
                    let slots = 1 << (size.shift() - Self::GRAIN[part.grain].shift());
                    self.empty(Part { slot, slots, ..part }, true);
                    match entry {
                        Entry::Leaf(leaf) => frames.push(leaf.frame, leaf.size, G::BASE, leaf.attr),
                        Entry::Mark(mark) => frames.marked(at, mark),
                        Entry::Empty => {}
                    }
                    ControlFlow::Continue(())
                })
            })
        };
    }

    /// Removes every leaf of a range that [`is_by_block`](Self::is_by_block) and has a leaf for each page.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - each page of the range is mapped as a base page, and no larger page is mapped in the table.
    unsafe fn clear_blocks(&self, batch: &mut Retired<'n>, pages: Pages) {
        let (first, last) = Self::blocks_of(0, pages);
        let mut may_keep = self.may_keep();
        for block in first..last + 1 {
            // SAFETY: by this function's contract the caller is the only writer; the slots of a part are in its bucket.
            unsafe {
                let found = self.seek_past(self.head(block), Self::tag_of(0, block));
                let Some((before, spot)) = found else { continue };
                if Self::SLOTS == 1 || block > first && block < last {
                    self.empty_slots(Self::whole(spot, 0, block));
                } else {
                    let Some(part) = Self::part(spot, 0, block, pages) else { continue };
                    self.empty_slots(part);
                    self.settle_pairs(spot, 0, block);
                    if !self.is_vacant(spot) {
                        continue;
                    }
                }
                self.count_vacant(0);
                if may_keep > 0 {
                    may_keep -= 1;
                } else {
                    self.take_out(batch, before, spot);
                }
            }
        }
        self.tally.ptes(-(pages.len() as isize));
    }

    /// Stores zero in the slots of a part.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `part` is a part of a bucket of the table.
    #[inline(always)]
    unsafe fn empty_slots(&self, part: Part) {
        for slot in part.slot..part.slot + part.slots {
            // A releasing store: it becomes visible after the leaf that may have replaced this one.
            // SAFETY: by this function's contract the caller is the only writer; the slots of a part are in its bucket.
            unsafe {
                self.nodes.publish(part.spot.node, Self::place(part.spot, part.block, slot), F::Word::ZERO);
            }
        }
    }

    /// Clears the slots of a part, which is `full` if none of them is empty.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `part` is a part of a bucket of the table.
    pub(super) unsafe fn empty(&self, part: Part, full: bool) {
        let part = Self::known(part);
        let Part { spot, block, slot, slots, .. } = part;
        // SAFETY: by this function's contract the caller is the only writer; the slots of a part are in its bucket.
        unsafe {
            let taken = if full { slots } else { self.count_taken(spot, block, slot, slots) };
            self.empty_slots(part);
            self.settle_pairs(spot, part.grain, block);
            self.tally.ptes(-(taken as isize));
            if Self::keeps(part.grain) && taken > 0 && self.is_vacant(spot) {
                self.count_vacant(part.grain);
            }
        }
    }

    /// Retires all nodes of the table.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - no code uses the table any more.
    pub(super) unsafe fn take_apart(&mut self, batch: &mut Retired<'n>) {
        // SAFETY: by this function's contract no other code uses the table any more, and the batch came from this table.
        unsafe { self.retire_all(batch) };
        self.tally.ptes(-(self.tally.footprint().ptes as isize));
    }
}
