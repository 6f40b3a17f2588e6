//! Dry runs: the checks and counts of a range before a change of it begins.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use tlbkit_addr::{Pages, VirtAddr, Vpn};

use super::node::{Slots, Writing};
use super::shape::Shape as _;
use super::tag::Tags as _;
use super::visit::Visitor;
use super::{Hashed, MOVE, Sizes};
use crate::dry_run::Census;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Entry, Error, Geometry, Holes};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Tells whether only the finest grain is in use, so that no larger page can occupy a range.
    #[inline(always)]
    pub(super) fn is_finest(&self) -> bool {
        Self::GRAINS == 1 || self.grains.load(Ordering::Relaxed).is_multiple_of(MOVE)
    }

    /// Refuses a range that has more blocks than the table can have buckets, without a search of the range. Each block needs
    /// its own bucket: one in use, a first bucket, or a new one that the storage can provide.
    pub(super) fn check_room(&self, grain: usize, pages: Pages) -> Result<(), Error> {
        let (first, last) = Self::blocks_of(grain, pages);
        let there = self.used() + self.buckets();
        // One less than the number of blocks, which may exceed a `usize` by one.
        let wanted = (last - first).saturating_sub(there);
        if wanted > 0 && wanted > self.nodes.room(Self::NODE) {
            return Err(Error::no_memory(wanted, self.nodes.held()));
        }
        Ok(())
    }

    /// Tells whether a change of a range may go from block to block, with one probe for each: only base pages are mapped, each
    /// in one slot, and the table has more buckets than the range has blocks.
    #[inline(always)]
    pub(super) fn is_by_block(&self, pages: Pages) -> bool {
        let (first, last) = Self::blocks_of(0, pages);
        !Self::REPLICATED && self.is_finest() && last - first < self.buckets()
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Returns an error if an entry occupies a page of a new mapping: that of the first such page.
    pub(super) fn check_empty(&mut self, pages: Pages) -> Result<(), Error> {
        let mut first: Option<(VirtAddr, Entry)> = None;
        // The parts come in the order of their grains, or of their hashes.
        let _ = self.parts(pages, Visitor::Writer, |slots| {
            let _ = slots.each_taken(|_, at, occupant| {
                if first.is_none_or(|(before, _)| at < before) {
                    first = Some((at, occupant));
                }
                ControlFlow::Break(())
            });
            ControlFlow::Continue(())
        });
        first.map_or(Ok(()), |(at, occupant)| Err(Error::taken(at, occupant)))
    }

    /// Makes the dry run of an unmap or protect: counts the entries of a range, and refuses holes and pages that are only
    /// partly in the range.
    pub(super) fn census(mut self, pages: Pages, holes: Holes) -> Result<Census, Error> {
        let mut census = Census::default();
        for end in [pages.first(), pages.last()] {
            if let Some(leaf) = self.walk().find(end.address(G::BASE)) {
                G::SPACE.check_whole(leaf, pages)?;
            } else if holes == Holes::Refuse && end == pages.first() {
                return Err(Error::NotMapped { at: end.address(G::BASE) });
            }
        }
        if self.is_by_block(pages) {
            self.by_block(pages, |slots| slots.count(&mut census));
        } else {
            let _ = self.parts(pages, Visitor::Writer, |slots| {
                if slots.span().grain == 0 && !Self::REPLICATED {
                    slots.count(&mut census);
                    return ControlFlow::Continue(());
                }
                slots.each_taken(|_, _, entry| {
                    census.add::<G>(entry);
                    ControlFlow::Continue(())
                })
            });
        }
        if holes == Holes::Refuse && census.pages < pages.len() {
            return Err(self.first_hole(pages));
        }
        Ok(census)
    }

    /// Calls `visit` with the slots of each block's bucket that a range covers, which [`is_by_block`](Hashed::is_by_block).
    #[inline(always)]
    pub(super) fn by_block(&mut self, pages: Pages, mut visit: impl FnMut(Slots<'_, 'n, G, F, N, S>)) {
        let (first, last) = Self::blocks_of(0, pages);
        // No block's number is the largest `usize`, and this range compiles to a simpler loop than `first..=last`.
        for block in first..last + 1 {
            let mut chain = self.chain(block);
            if chain.seek(Self::tag_of(0, block)) {
                let inner = block > first && block < last;
                #[expect(
                    clippy::redundant_closure,
                    reason = "a reference to the closure is called out of line"
                )]
                chain.here().covered(0, block, (pages, inner), |slots| visit(slots));
            }
        }
    }

    /// Returns the error for the first page of a range that is not mapped. There must be such a page.
    #[cold]
    fn first_hole(&self, pages: Pages) -> Error {
        let mut page = pages.first();
        while let Some(leaf) = self.walk().find(page.address(G::BASE))
            && G::SPACE.pages_of(&leaf).last() < pages.last()
        {
            page = Vpn::new(G::SPACE.pages_of(&leaf).last().get() + 1);
        }
        Error::NotMapped { at: page.address(G::BASE) }
    }

    /// Returns the pages whose translations become stale by a change of the leaves in `pages`, all of which are whole.
    pub(super) fn stale(&self, pages: Pages) -> Pages {
        stale::<G, F>(pages, |page| self.walk().find(page.address(G::BASE)).map(|leaf| leaf.size))
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Slots<'_, 'n, G, F, N, S> {
    /// Counts the entries of slots of base pages.
    #[inline(always)]
    fn count(self, census: &mut Census) {
        let leaves = self.leaves();
        census.leaves += leaves;
        census.pages += leaves;
        if leaves < self.span().count {
            census.marks += self.taken() - leaves;
        }
    }
}
