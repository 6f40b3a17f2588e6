//! Visits of the entries of a range: block by block, or bucket by bucket if the table has fewer buckets than the range has
//! blocks.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use tlbkit_addr::{Pages, VirtAddr};

use super::chain::bump;
use super::node::{Slots, Span, Unit, Walk, Writing};
use super::shape::Shape as _;
use super::tag::Tags as _;
use super::{MOVE, Sizes};
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::mode::Mode;
use crate::nodes::Nodes;
use crate::word::atomics::{AtomicUsize, fence};
use crate::{Entry, Geometry, Leaf};

/// Counts a visit until it is dropped, also if the visit unwinds. No lookup reorders a chain during a visit.
pub(super) struct Still<'t>(&'t AtomicUsize);

impl<'t> Still<'t> {
    pub(super) fn new(visits: &'t AtomicUsize) -> Self {
        bump(visits, 1);
        Self(visits)
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        bump(self.0, -1);
    }
}

/// The kind of a writer's visit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Visitor {
    /// It removes no bucket.
    Writer,
    /// It removes the buckets that are empty after the visit.
    Pruner,
    /// It empties every part, and removes the buckets that it has emptied where they cannot stay [vacant](super::vacant).
    Clearer,
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Calls `visit` with the part of each live bucket that a range covers.
    pub(super) fn parts(
        &mut self,
        pages: Pages,
        visitor: Visitor,
        mut visit: impl FnMut(Slots<'_, 'n, G, F, N, S>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (first, last) = Self::blocks_of(0, pages);
        let table = self.table();
        let _still = (!N::Mode::SHARED).then(|| Still::new(&table.visits));
        // A search for a block costs about as much as a read of a bucket.
        if last - first < self.buckets() {
            return self.visit_blocks(pages, visitor, &mut visit);
        }
        for number in 0..self.buckets() {
            self.numbered(number).parts(pages).try_for_each(&mut visit)?;
            if visitor != Visitor::Writer {
                self.numbered_chain(number).tidy();
            }
        }
        ControlFlow::Continue(())
    }

    /// Searches the bucket of every block of a range.
    #[inline(always)]
    fn visit_blocks(
        &mut self,
        pages: Pages,
        visitor: Visitor,
        visit: &mut impl FnMut(Slots<'_, 'n, G, F, N, S>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let grains = self.grains.load(Ordering::Relaxed) | 1;
        for grain in (0..Self::GRAINS).filter(|grain| grains >> grain & 1 != 0) {
            let (first, last) = Self::blocks_of(grain, pages);
            for block in first..=last {
                let mut chain = self.chain(block);
                if !chain.seek(Self::tag_of(grain, block)) {
                    continue;
                }
                // Only the blocks at the ends have slots that are not in the range.
                let inner = block > first && block < last;
                let visited = chain.here().covered(grain, block, (pages, inner), |slots| {
                    visit(slots).map_continue(|()| slots.span().count == Self::SLOTS)
                });
                let Some(visited) = visited else { continue };
                let is_whole = visited?;
                let is_emptied = match visitor {
                    Visitor::Writer => false,
                    Visitor::Clearer if Self::keeps(grain) && !chain.must_sweep() => false,
                    Visitor::Clearer => is_whole || chain.here().is_vacant(),
                    Visitor::Pruner => chain.here().is_vacant(),
                };
                if is_emptied {
                    chain.take_out();
                }
            }
        }
        ControlFlow::Continue(())
    }
}

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Walk<'a, 'n, G, F, N, S> {
    /// Calls `visit` with the part of each live bucket that a range covers, while a writer may change the table.
    fn parts(
        self,
        pages: Pages,
        mut visit: impl FnMut(Unit<'a, 'n, G, F, N, S>, Span) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (first, last) = Self::blocks_of(0, pages);
        let table = self.table();
        let _still = (!N::Mode::SHARED).then(|| Still::new(&table.visits));
        // A search for a block costs about as much as a read of a bucket.
        if last - first >= self.buckets() {
            return self.visit_buckets(pages, &mut visit);
        }
        let grains = self.grains.load(Ordering::Acquire) | 1;
        for grain in (0..Self::GRAINS).filter(|grain| grains >> grain & 1 != 0) {
            let (first, last) = Self::blocks_of(grain, pages);
            for block in first..=last {
                let Some(unit) = self.search(grain, Self::lead(block)) else { continue };
                // Only the blocks at the ends have slots that are not in the range.
                let span = if Self::SLOTS == 1 || block > first && block < last {
                    Some(Self::whole(grain, block))
                } else {
                    Self::span_of(grain, block, pages)
                };
                if let Some(span) = span {
                    visit(unit, span)?;
                }
            }
            if N::Mode::SHARED {
                // As in a lookup, small leaves are read before the larger leaves that may have replaced them.
                fence(Ordering::Acquire);
            }
        }
        ControlFlow::Continue(())
    }

    /// Reads every bucket of the table, segment by segment.
    ///
    /// The table may grow and shrink during the visit. The order is that of the directory's indices with their bits
    /// reversed. In this order a segment has all hashes from one place to another, and the segments into which it is split
    /// have the same hashes together. So all hashes before the current place have been visited, and none after it, however
    /// many segments there are now (Redis scans its tables in the same way). If a segment changes during its visit, it is
    /// visited again. A table of a fixed size has one segment.
    fn visit_buckets(
        self,
        pages: Pages,
        visit: &mut impl FnMut(Unit<'a, 'n, G, F, N, S>, Span) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut place = 0u64;
        while place < 1 << 32 {
            let directory = self.directory();
            let segment = directory.at(place as u32);
            let before = segment.version();
            // `bits_of` is called before the visit. A merge stores one entry of the directory after the other. Buckets
            // that the visit does not read, because their entry still leads to another segment, must not count as
            // visited if that entry leads to this segment after the visit.
            let bits = directory.bits_of(place as u32, &segment);
            let is_same = || {
                fence(Ordering::Acquire);
                !N::Mode::SHARED
                    || self.directory().at(place as u32) == segment && segment.version() == before
            };
            let mut is_whole = true;
            for head in segment.each_head() {
                head.parts(pages).try_for_each(|(unit, span)| visit(unit, span))?;
                is_whole = is_same();
                if !is_whole {
                    break;
                }
            }
            if is_whole {
                place = ((place >> (32 - bits)) + 1) << (32 - bits);
            }
        }
        ControlFlow::Continue(())
    }

    /// Tells whether a bucket with this tag belongs to the chain that begins at `head`, and not to a chain that has not been
    /// parted from it.
    pub(super) fn leads_to(self, head: Unit<'_, 'n, G, F, N, S>, tag: usize) -> bool {
        S::LOAD == 0 || self.first(Self::key_of(tag)).bucket() == head
    }

    /// Calls `visit` with the part of a range in each half of the address space, and again if pages have moved between
    /// grains during the call.
    pub(super) fn each_half(
        self,
        pages: Pages,
        mut visit: impl FnMut(Pages) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for half in G::SPACE.halves().into_iter().flatten() {
            let Some(pages) = half.intersect(pages) else { continue };
            loop {
                let before = self.grains.load(Ordering::Acquire) / MOVE;
                visit(pages)?;
                if !N::Mode::SHARED {
                    break;
                }
                // The writer stores a moved leaf in its new place, increments the count, and clears the old place. A visitor
                // that has read the new place too early and the old place too late sees the new count.
                fence(Ordering::Acquire);
                if self.grains.load(Ordering::Relaxed) / MOVE == before {
                    break;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Visits every leaf of a range within one half of the address space.
    pub(super) fn each_leaf(
        self,
        pages: Pages,
        mut visit: impl FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.each_entry(pages, |_, entry| match entry {
            Entry::Leaf(leaf) => visit(leaf),
            Entry::Mark(_) | Entry::Empty => ControlFlow::Continue(()),
        })
    }

    /// Visits every leaf and mark of a range within one half of the address space.
    #[inline(always)]
    pub(super) fn each_entry(
        self,
        pages: Pages,
        mut visit: impl FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.parts(pages, |unit, span| unit.each_taken(span, |_, at, entry| visit(at, entry)))
    }
}
