//! Mapping of a page or a range: a dry run that can fail, then stores that cannot.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn};

use super::Sizes;
use super::node::{Span, Supply, Writing};
use super::shape::Shape as _;
use crate::format::{Format, appears, check_attr, first_leaf};
use crate::geometry::Checked as _;
use crate::mode::Mode;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Error, Geometry, Word};

/// The leaves of a range: pages of `size` with these attributes, the first of which maps `frame`.
#[derive(Clone, Copy)]
pub(super) struct Leaves {
    pub(super) pages: Pages,
    pub(super) frame: Pfn,
    pub(super) size: PageSize,
    pub(super) attr: Attr,
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Implements [`Table::map`](crate::Table::map).
    #[inline]
    pub(super) fn map_pages(
        mut self,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        let page = pages.first();
        if page == pages.last() && size == G::BASE && G::SPACE.has(page) {
            G::SPACE.check_frames(frame, 1, size)?;
            check_attr::<F>(attr)?;
            if self.map_one(page, F::leaf(frame, size, attr, true)?)? {
                self.touch(F::APPEARS, pages);
                return Ok(());
            }
        }
        self.map_range(pages, frame, size, attr)
    }

    /// Maps a range: makes the dry run, reserves buckets, and stores the leaves.
    #[inline(never)]
    fn map_range(mut self, pages: Pages, frame: Pfn, size: PageSize, attr: Attr) -> Result<(), Error> {
        G::SPACE.check_sized(pages, size)?;
        G::SPACE.check_frames(frame, pages.len(), size)?;
        check_attr::<F>(attr)?;
        // The highest frame must also fit the format.
        first_leaf::<F>(frame, pages.len(), size, attr, true)?;
        let grain = Self::grain_of(size);
        self.check_room(grain, pages)?;
        let mut supply = if grain == 0 && self.is_finest() {
            // Only base pages are mapped, so an entry in the way is in one of the buckets that `reserve` finds.
            self.again().reserve_empty(pages)?
        } else {
            self.check_empty(pages)?;
            self.again().reserve(grain, pages)?
        };
        if grain > 0 {
            self.again().clear_way(pages);
        }
        self.make_room(supply.blocks);
        // The caller's stores to the frames become visible before the table leads to them.
        N::Mode::release();
        self.again().write(&mut supply, Leaves { pages, frame, size, attr });
        self.adapt(supply.blocks);
        self.touch(appears::<F>(size), stale::<G, F>(pages, |_| Some(size)));
        Ok(())
    }

    /// Stores the leaves of a range, each of whose blocks has a bucket or a reserved one. [`Format::leaf`] can encode every leaf.
    #[inline(never)]
    pub(super) fn write(mut self, supply: &mut Supply<'n, G, F, N, S>, leaves: Leaves) {
        let Leaves { pages, frame, size, attr } = leaves;
        let grain = Self::grain_of(size);
        let shift = Self::slot_shift(grain);
        let (first, slots) = (pages.first().get() >> shift, pages.len() >> shift);
        // The slots that a leaf fills all hold the word of its first one.
        let leaf = !((size.pages(G::BASE).unwrap_or(1) >> shift).max(1) - 1);
        // The dry run has checked that the format can encode all leaves.
        let mut word = F::leaf(frame, size, attr, true).unwrap_or(F::Word::ZERO);
        let mut done = 0;
        while done < slots {
            let number = first + done;
            let slot = number & (Self::SLOTS - 1);
            let count = (Self::SLOTS - slot).min(slots - done);
            let span = Span { grain, block: number >> S::CLUSTER_LOG, slot, count };
            self.install(supply, span, |at| word.advance(F::STEP, (at & leaf) << shift));
            word = word.advance(F::STEP, count << shift);
            done += count;
        }
        self.tally.ptes(slots as isize);
    }
}
