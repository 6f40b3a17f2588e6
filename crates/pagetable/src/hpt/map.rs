//! Mapping of a page or a range: a dry run that can fail, then stores that cannot.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};

use super::Hashed;
use super::chain::Spare;
use super::shape::Spot;
use crate::format::{Format, check_attr, is_taken};
use crate::geometry::Checked as _;
use crate::mode::Mode;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Error, Geometry, Retired, Word};

impl<'n, G, F, N, const CLUSTER: u32, const BUCKETS: u32, const LOAD: usize>
    Hashed<'n, G, F, N, CLUSTER, BUCKETS, LOAD>
where
    G: Geometry,
    F: Format,
    N: Nodes<Word = F::Word>,
{
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
        G::SPACE.check_sized(pages, size)?;
        G::SPACE.check_frames(frame, pages.len(), size)?;
        check_attr::<F>(attr)?;
        let word = F::leaf(frame, size, attr, true)?;
        // SAFETY: by this function's contract the caller is the only writer.
        if pages.len() == 1 && unsafe { self.map_one(batch, pages.first(), word) }? {
            batch.touch(F::APPEARS, pages);
            return Ok(());
        }
        // SAFETY: by this function's contract the caller is the only writer, and the batch came from this table.
        unsafe { self.map_range(batch, pages, frame, size, attr) }
    }

    /// Maps one base page. Returns false if larger pages are mapped and the block has no bucket: then the caller must use
    /// [`map_range`](Self::map_range), which searches for a larger page in the way.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    #[inline(always)]
    unsafe fn map_one(&self, batch: &mut Retired<'n>, page: Vpn, word: F::Word) -> Result<bool, Error> {
        let at = page.address(G::BASE);
        let block = Self::block(0, at);
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            let (head, tag) = (self.head(block), Self::tag_of(0, block));
            let Some(spot) = self.seek(head, tag) else {
                if !self.is_finest() {
                    return Ok(false);
                }
                return self.begin_block(batch, head, at, word).map(|()| true);
            };
            let place = Self::place(spot, block, Self::slot(0, at));
            let old = self.nodes.read(spot.node, place);
            if is_taken::<F>(old) {
                return Err(Error::taken(at, Self::decode(old, 0, at)));
            }
            self.nodes.publish(spot.node, place, word);
            self.settle_pairs(spot, 0, block);
        }
        self.tally.ptes(1);
        Ok(true)
    }

    /// Assigns a bucket, with the entry `word` for the page at `at`, to a block of base pages that has none. `head` is the
    /// first bucket of its chain.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - `head` is the first bucket of the chain for the page at `at`, whose block has no bucket.
    #[inline(always)]
    pub(super) unsafe fn begin_block(
        &self,
        batch: &mut Retired<'n>,
        head: Spot,
        at: VirtAddr,
        word: F::Word,
    ) -> Result<(), Error> {
        let (block, slot) = (Self::block(0, at), Self::slot(0, at));
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            if self.is_free(head, Self::tag_of(0, block)) {
                N::Mode::release();
                self.fit_out(head, 0, block, slot, 1, |_| word);
            } else {
                let node = self.nodes.take(Self::NODE);
                let node = node.ok_or_else(|| Error::no_memory(1, self.nodes.held()))?;
                self.append(head, node, 0, block, slot, 1, |_| word);
            }
            self.tally.ptes(1);
            self.adapt(batch, 1);
        }
        Ok(())
    }

    /// Maps a range: makes the dry run, reserves buckets, and stores the leaves.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    unsafe fn map_range(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        let size_pages = size.pages(G::BASE).unwrap_or(1);
        // The highest frame must also fit the format; `check_frames` has checked that its number does not overflow.
        F::leaf(Pfn::new(frame.get() + (pages.len() - size_pages)), size, attr, true)?;
        let grain = Self::grain_of(size);
        let before = self.blocks();
        self.check_room(grain, pages)?;
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            let mut spare = if grain == 0 && self.is_finest() {
                // Only base pages are mapped, so an entry in the way is in one of the buckets that `reserve` finds.
                self.reserve(grain, pages, |part| self.check_part(part))?
            } else {
                self.check_vacant(pages)?;
                self.reserve(grain, pages, |_| Ok(()))?
            };
            let (first, last) = Self::blocks_of(grain, pages);
            self.make_room(batch, last - first);
            // The caller's stores to the frames become visible before the table leads to them.
            N::Mode::release();
            self.write(&mut spare, pages, frame, size, attr);
            self.adapt(batch, self.blocks() - before);
        }
        batch.touch(F::APPEARS, stale::<G, F>(pages, |_| Some(size)));
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
            let (from, to) = (from.max(pages.first()), to.min(pages.last()));
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
