//! Removal of a page or a range: PTEs are cleared, and empty buckets become [vacant](super::vacant) or are removed.

use core::ops::ControlFlow;

use tlbkit_addr::{FlushScope, Pages, VirtAddr, Vpn};

use super::Sizes;
use super::node::Writing;
use super::shape::Shape as _;
use super::tag::Tags as _;
use super::visit::Visitor;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Entry, Error, Geometry, Holes, Rest, Uncovered};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Implements [`Table::unmap`](crate::Table::unmap).
    #[inline]
    pub(super) fn unmap_pages(mut self, pages: Pages, holes: Holes) -> Result<usize, Error> {
        let page = pages.first();
        let wanted = |old| F::is_leaf(old, true) && Self::size(old, 0) == G::BASE;
        if page == pages.last() && G::SPACE.has(page) && self.empty_one(page, wanted) {
            self.touch(FlushScope::Everywhere, pages);
            return Ok(1);
        }
        self.unmap_range(pages, holes)
    }

    /// Unmaps a range, whatever is in it.
    #[inline(never)]
    fn unmap_range(mut self, pages: Pages, holes: Holes) -> Result<usize, Error> {
        G::SPACE.check_pages(pages)?;
        // After the census every leaf of the range is whole.
        let census = self.again().census(pages, holes)?;
        if census.pages > 0 {
            let stale = self.stale(pages);
            self.touch(FlushScope::Everywhere, stale);
        }
        if census.pages + census.marks > 0 {
            let before = self.known_blocks();
            // Of base pages without a hole every entry is taken.
            let full = census.leaves == pages.len();
            if full && self.is_by_block(pages) {
                self.again().clear_blocks(pages);
            } else {
                self.clear(pages, full);
            }
            let emptied = before - self.known_blocks();
            self.adapt(emptied);
        }
        Ok(census.pages)
    }

    /// Implements [`Table::take_next`](crate::Table::take_next). While entries are taken out in the order of the buckets, the table
    /// does not shrink, so that the buckets keep their numbers.
    #[inline(never)]
    pub(super) fn take_next(mut self, rest: &mut Rest) -> Result<Option<(Vpn, Uncovered)>, Error> {
        let Some(pages) = rest.pages() else { return Ok(None) };
        G::SPACE.check_pages(pages)?;
        let (first, last) = Self::blocks_of(0, pages);
        let by_block = last - first < self.buckets();
        let found = if by_block { self.first_entry(pages) } else { self.entry_behind(rest, pages) };
        let (taken, uncovered) = match found {
            Some((_, Entry::Leaf(leaf))) => {
                G::SPACE.check_whole(leaf, pages)?;
                let taken = G::SPACE.pages_of(&leaf);
                let stale = self.stale(taken);
                self.touch(FlushScope::Everywhere, stale);
                (taken, Uncovered::Frames(leaf.run(G::BASE)))
            }
            Some((at, Entry::Mark(mark))) => (Pages::one(at.vpn(G::BASE)), Uncovered::Mark(mark)),
            Some((_, Entry::Empty)) | None => {
                rest.end();
                if !by_block {
                    let buckets = self.buckets();
                    self.adapt(buckets);
                }
                return Ok(None);
            }
        };
        let before = self.known_blocks();
        self.clear(taken, false);
        if by_block {
            rest.go_past(taken.last());
            let emptied = before - self.known_blocks();
            self.adapt(emptied);
        }
        Ok(Some((taken.first(), uncovered)))
    }

    /// Returns the first leaf or mark of a range, which has fewer blocks than the table has buckets.
    fn first_entry(&self, pages: Pages) -> Option<(VirtAddr, Entry)> {
        let mut rest = Rest::of(pages);
        while let Some(pages) = rest.pages() {
            let at = pages.first().address(G::BASE);
            if !self.is_finest() {
                match self.walk().find_entry(at) {
                    Entry::Empty => rest.go_past(pages.first()),
                    entry => return Some((at, entry)),
                }
                continue;
            }
            let block = Self::block(0, at);
            let mut probe = self.head(block).probe();
            if probe.seek(Self::tag_of(0, block))
                && let Some(span) = Self::span_of(0, block, pages)
                && let Some(found) = probe.unit().first_taken(span)
            {
                return Some(found);
            }
            rest.go_past(Self::bounds(0, block).1);
        }
        None
    }

    /// Returns a leaf or mark of a range, of the first bucket that has one from the noted one on, and notes that bucket. The buckets
    /// before the noted one come last: if other pages have been unmapped since, the table has shrunk, and entries have moved there.
    fn entry_behind(&self, rest: &mut Rest, pages: Pages) -> Option<(VirtAddr, Entry)> {
        let (place, buckets) = (rest.place(), self.buckets());
        for number in (place..buckets).chain(0..place.min(buckets)) {
            rest.set_place(number);
            let mut parts = self.walk().numbered(number).parts(pages);
            if let Some(found) = parts.find_map(|(unit, span)| unit.first_taken(span)) {
                return Some(found);
            }
        }
        None
    }

    /// Removes every leaf and mark of a range, all of whose leaves are whole. The range is `full` if each page of it has a leaf of its
    /// own.
    fn clear(&mut self, pages: Pages, full: bool) {
        let _ = self.parts(pages, Visitor::Clearer, |slots| {
            // A bucket of larger pages may be live for others.
            slots.empty(full && slots.span().grain == 0);
            ControlFlow::Continue(())
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
