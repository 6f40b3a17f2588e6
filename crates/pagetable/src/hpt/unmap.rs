//! Removal of a page or a range: PTEs are emptied, and buckets that have none left are taken out.

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
    /// See [`Table::unmap`](crate::Table::unmap).
    #[inline]
    pub(super) unsafe fn unmap_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        mut frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        G::SPACE.check_pages(pages)?;
        // SAFETY: the caller is the writer; every leaf of the range is whole.
        unsafe {
            if pages.len() == 1 && frames.is_none() && self.unmap_one(batch, pages.first()) {
                batch.touch(FlushScope::Everywhere, pages);
                return Ok(1);
            }
            let census = self.census(pages, holes, true)?;
            if let Some(frames) = &mut frames {
                frames.reserve(census.leaves)?;
            }
            if census.pages > 0 {
                batch.touch(FlushScope::Everywhere, self.stale(pages));
            }
            if census.pages + census.marks > 0 {
                let before = self.blocks();
                self.clear(batch, pages, frames);
                self.adapt(batch, before - self.blocks());
            }
            Ok(census.pages)
        }
    }

    /// Unmaps one page that is mapped as a base page, and tells whether it is.
    #[inline(always)]
    unsafe fn unmap_one(&self, batch: &mut Retired<'n>, page: Vpn) -> bool {
        // SAFETY: the caller is the writer.
        unsafe { self.empty_one(batch, page, |old| F::is_leaf(old, true) && Self::size(old, 0) == G::BASE) }
    }

    /// Empties the slot of one page in its bucket of base pages, and tells whether it held what is `wanted`.
    #[inline(always)]
    pub(super) unsafe fn empty_one(
        &self,
        batch: &mut Retired<'n>,
        page: Vpn,
        wanted: impl Fn(F::Word) -> bool,
    ) -> bool {
        let at = page.address(G::BASE);
        let block = Self::block(0, at);
        // SAFETY: the caller is the writer.
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

    /// Takes every leaf and mark out of a range.
    unsafe fn clear(&self, batch: &mut Retired<'n>, pages: Pages, mut frames: Option<&mut dyn Frames>) {
        // SAFETY: the caller is the writer.
        let _ = unsafe {
            self.parts(pages, Visitor::Pruner(batch), |part| {
                let Some(frames) = &mut frames else {
                    self.empty(part);
                    return ControlFlow::Continue(());
                };
                self.each_taken(part, |slot, at, entry| {
                    // Nothing leads to the frame when it is handed over, whatever that call does.
                    let size = entry.leaf().map_or(G::BASE, |leaf| leaf.size);
                    let slots = 1 << (size.shift() - Self::GRAIN[part.grain].shift());
                    self.empty(Part { slot, slots, ..part });
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

    /// Clears the slots of a part.
    pub(super) unsafe fn empty(&self, part: Part) {
        let Part { spot, block, slot: first, slots, .. } = Self::known(part);
        // SAFETY: the caller is the writer; the slots of a part are in its bucket.
        unsafe {
            let taken = self.count_taken(spot, block, first, slots);
            for slot in first..first + slots {
                // Not before what may have replaced the leaf.
                self.nodes.publish(spot.node, Self::place(spot, block, slot), F::Word::ZERO);
            }
            self.settle_pairs(spot, part.grain, block);
            self.tally.ptes(-(taken as isize));
        }
    }

    /// Takes the whole table apart.
    pub(super) unsafe fn take_apart(&mut self, batch: &mut Retired<'n>) {
        // SAFETY: no code but the caller uses the table any more.
        unsafe { self.retire_all(batch) };
        self.tally.ptes(-(self.tally.footprint().ptes as isize));
    }
}
