//! Removal of a page or a range: PTEs are cleared, and empty buckets are removed.

use core::ops::ControlFlow;

use tlbkit_addr::{FlushScope, Pages, Vpn};

use super::Hashed;
use super::part::Part;
use super::visit::Visitor;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Entry, Error, Frames, Geometry, Holes, Retired, Word};

impl<'n, G, F, N, const CLUSTER: u32, const BUCKETS: u32, const LOAD: usize>
    Hashed<'n, G, F, N, CLUSTER, BUCKETS, LOAD>
where
    G: Geometry,
    F: Format,
    N: Nodes<Word = F::Word>,
{
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
        G::SPACE.check_pages(pages)?;
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            if pages.len() == 1 && frames.is_none() && self.unmap_one(batch, pages.first()) {
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
                self.clear(batch, pages, frames, full);
                self.adapt(batch, before - self.blocks());
            }
            Ok(census.pages)
        }
    }

    /// Unmaps one page if it is mapped as a base page. Returns whether it was.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    #[inline(always)]
    unsafe fn unmap_one(&self, batch: &mut Retired<'n>, page: Vpn) -> bool {
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe { self.empty_one(batch, page, |old| F::is_leaf(old, true) && Self::size(old, 0) == G::BASE) }
    }

    /// Clears the slot of one page in its bucket of base pages, if `wanted` returns true for its word. Returns whether it
    /// did.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    #[inline(always)]
    pub(super) unsafe fn empty_one(
        &self,
        batch: &mut Retired<'n>,
        page: Vpn,
        wanted: impl Fn(F::Word) -> bool,
    ) -> bool {
        let at = page.address(G::BASE);
        let block = Self::block(0, at);
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            let head = self.head(block);
            let Some((before, spot)) = self.seek_past(head, Self::tag_of(0, block)) else { return false };
            let place = Self::place(spot, block, Self::slot(0, at));
            if !wanted(self.nodes.read(spot.node, place)) {
                return false;
            }
            self.nodes.publish(spot.node, place, F::Word::ZERO);
            self.settle_pairs(spot, 0, block);
            self.tally.ptes(-1);
            if self.is_vacant(spot) {
                self.take_out(batch, before, spot);
                self.adapt(batch, 1);
            }
        }
        true
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

    /// Clears the slots of a part, which is `full` if none of them is empty.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `part` is a part of a bucket of the table.
    pub(super) unsafe fn empty(&self, part: Part, full: bool) {
        let Part { spot, block, slot: first, slots, .. } = Self::known(part);
        // SAFETY: by this function's contract the caller is the only writer; the slots of a part are in its bucket.
        unsafe {
            let taken = if full { slots } else { self.count_taken(spot, block, first, slots) };
            for slot in first..first + slots {
                // A releasing store: it becomes visible after the leaf that may have replaced this one.
                self.nodes.publish(spot.node, Self::place(spot, block, slot), F::Word::ZERO);
            }
            self.settle_pairs(spot, part.grain, block);
            self.tally.ptes(-(taken as isize));
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
