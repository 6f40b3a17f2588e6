//! Removal of a page or a range: PTEs are cleared, and empty buckets become [vacant](super::vacant) or are removed.

use core::ops::ControlFlow;

use tlbkit_addr::{FlushScope, Pages};

use super::Sizes;
use super::node::{Span, Writing};
use super::shape::Shape as _;
use super::tag::Tags as _;
use super::visit::Visitor;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Entry, Error, Frames, Geometry, Holes};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Implements [`Table::unmap`](crate::Table::unmap).
    #[inline]
    pub(super) fn unmap_pages(
        mut self,
        pages: Pages,
        holes: Holes,
        frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        let page = pages.first();
        let wanted = |old| F::is_leaf(old, true) && Self::size(old, 0) == G::BASE;
        let is_one = page == pages.last() && frames.is_none() && G::SPACE.has(page);
        if is_one && self.empty_one(page, wanted) {
            self.touch(FlushScope::Everywhere, pages);
            return Ok(1);
        }
        self.unmap_range(pages, holes, frames)
    }

    /// Unmaps a range, whatever is in it.
    #[inline(never)]
    fn unmap_range(
        mut self,
        pages: Pages,
        holes: Holes,
        mut frames: Option<&mut dyn Frames>,
    ) -> Result<usize, Error> {
        G::SPACE.check_pages(pages)?;
        // After the census every leaf of the range is whole.
        let census = self.again().census(pages, holes)?;
        if let Some(frames) = &mut frames {
            frames.reserve(census.leaves)?;
        }
        if census.pages > 0 {
            let stale = self.stale(pages);
            self.touch(FlushScope::Everywhere, stale);
        }
        if census.pages + census.marks > 0 {
            let before = self.blocks();
            // Of base pages without a hole every entry is taken.
            let full = census.leaves == pages.len();
            if full && frames.is_none() && self.is_by_block(pages) {
                self.again().clear_blocks(pages);
            } else {
                self.clear(pages, frames, full);
            }
            let emptied = before - self.blocks();
            self.adapt(emptied);
        }
        Ok(census.pages)
    }

    /// Removes every leaf and mark of a range, all of whose leaves are whole. The range is `full` if each page of it has a leaf of its
    /// own.
    fn clear(&mut self, pages: Pages, mut frames: Option<&mut dyn Frames>, full: bool) {
        let _ = self.parts(pages, Visitor::Clearer, |slots| {
            let span = slots.span();
            let Some(frames) = &mut frames else {
                // A bucket of larger pages may be live for others.
                slots.empty(full && span.grain == 0);
                return ControlFlow::Continue(());
            };
            slots.each_taken(|slot, at, entry| {
                // The leaf is cleared before the frame is passed on, so no word leads to it even if the call unwinds.
                let size = entry.leaf().map_or(G::BASE, |leaf| leaf.size);
                let count = 1 << (size.shift() - Self::GRAIN[span.grain].shift());
                slots.bucket().slots(Span { slot, count, ..span }).empty(true);
                match entry {
                    Entry::Leaf(leaf) => frames.push(leaf.frame, leaf.size, G::BASE, leaf.attr),
                    Entry::Mark(mark) => frames.marked(at, mark),
                    Entry::Empty => {}
                }
                ControlFlow::Continue(())
            })
        });
    }

    /// Removes every leaf of a range that [`is_by_block`](crate::hpt::Hashed::is_by_block) and has a leaf for each page.
    fn clear_blocks(mut self, pages: Pages) {
        let (first, last) = Self::blocks_of(0, pages);
        let mut may_keep = self.may_keep();
        for block in first..last + 1 {
            let mut chain = self.chain(block);
            if !chain.seek(Self::tag_of(0, block)) {
                continue;
            }
            let inner = block > first && block < last;
            let is_vacant = chain.here().covered(0, block, (pages, inner), |slots| {
                slots.clear();
                if Self::SLOTS == 1 || inner {
                    return true;
                }
                slots.settle_pairs();
                slots.bucket().is_vacant()
            });
            if is_vacant != Some(true) {
                continue;
            }
            chain.count_vacant(0);
            if may_keep > 0 {
                may_keep -= 1;
            } else {
                chain.take_out();
            }
        }
        self.tally.ptes(-(pages.len() as isize));
    }
}
