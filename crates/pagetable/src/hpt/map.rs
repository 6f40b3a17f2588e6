//! Mapping of a page or a range: a dry run that can fail, then stores that cannot.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn};

use super::chain::Spare;
use super::{Hashed, Sizes};
use crate::format::{Format, appears, check_attr, first_leaf};
use crate::geometry::Checked as _;
use crate::mode::Mode;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Error, Geometry, Retired, Word};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Implements [`Table::map`](crate::Table::map).
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    #[inline]
    pub(super) unsafe fn map_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        let page = pages.first();
        if page == pages.last() && size == G::BASE && G::SPACE.has(page) {
            G::SPACE.check_frames(frame, 1, size)?;
            check_attr::<F>(attr)?;
            let word = F::leaf(frame, size, attr, true)?;
            // SAFETY: by this function's contract the caller is the only writer.
            if unsafe { self.map_one(batch, page, word) }? {
                batch.touch(F::APPEARS, pages);
                return Ok(());
            }
        }
        // SAFETY: by this function's contract the caller is the only writer, and the batch came from this table.
        unsafe { self.map_range(batch, pages, frame, size, attr) }
    }

    /// Maps a range: makes the dry run, reserves buckets, and stores the leaves.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    #[inline(never)]
    unsafe fn map_range(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        G::SPACE.check_sized(pages, size)?;
        G::SPACE.check_frames(frame, pages.len(), size)?;
        check_attr::<F>(attr)?;
        // The highest frame must also fit the format.
        first_leaf::<F>(frame, pages.len(), size, attr, true)?;
        let grain = Self::grain_of(size);
        self.check_room(grain, pages)?;
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            let (mut spare, new) = if grain == 0 && self.is_finest() {
                // Only base pages are mapped, so an entry in the way is in one of the buckets that `reserve` finds.
                self.reserve_empty(pages)?
            } else {
                self.check_empty(pages)?;
                self.reserve(grain, pages)?
            };
            if grain > 0 {
                self.clear_way(batch, pages);
            }
            self.make_room(batch, new);
            // The caller's stores to the frames become visible before the table leads to them.
            N::Mode::release();
            self.write(&mut spare, pages, frame, size, attr);
            self.adapt(batch, new);
        }
        batch.touch(appears::<F>(size), stale::<G, F>(pages, |_| Some(size)));
        Ok(())
    }

    /// Stores the leaves of a range, each of whose blocks has a bucket or a reserved one.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - [`reserve`](Self::reserve) returned `spare` for a range that contains `pages`;
    /// - [`Format::leaf`] can encode every leaf of the range.
    pub(super) unsafe fn write(
        &self,
        spare: &mut Spare<'n, N>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) {
        // SAFETY: this function's contract. The base size is a constant in a copy of the loop.
        unsafe {
            if size == G::BASE {
                self.write_sized(spare, pages, frame, G::BASE, attr);
            } else {
                self.write_sized(spare, pages, frame, size, attr);
            }
        }
    }

    /// Does what [`write`](Self::write) does.
    ///
    /// # Safety
    ///
    /// As for [`write`](Self::write).
    #[inline(always)]
    unsafe fn write_sized(
        &self,
        spare: &mut Spare<'n, N>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) {
        let grain = Self::grain_of(size);
        let shift = Self::slot_shift(grain);
        let size_pages = size.pages(G::BASE).unwrap_or(1);
        // The number of slots that a leaf fills.
        let repeat = (size_pages >> shift).max(1);
        let (first, last) = Self::blocks_of(grain, pages);
        // The dry run has checked that the format can encode all leaves.
        let all = F::leaf(frame, size, attr, true).unwrap_or(F::Word::ZERO);
        let mut filled = 0;
        for block in first..=last {
            let (from, to) = Self::bounds(grain, block);
            // A block of one slot is wholly in the range.
            let (from, to) =
                if Self::SLOTS == 1 { (from, to) } else { (from.max(pages.first()), to.min(pages.last())) };
            let slot = Self::slot(grain, from.address(G::BASE));
            let count = ((to.get() - from.get()) >> shift) + 1;
            let word = all.advance(F::STEP, from.get() - pages.first().get());
            filled += count;
            // SAFETY: by this function's contract the caller is the only writer, and the slots are within a bucket.
            unsafe {
                if repeat == 1 {
                    self.install(spare, grain, block, slot, count, |at| word.advance(F::STEP, at << shift));
                } else {
                    self.install(spare, grain, block, slot, count, |at| {
                        word.advance(F::STEP, at / repeat * size_pages)
                    });
                }
            }
        }
        self.tally.ptes(filled as isize);
    }
}
