//! Mapping, unmapping and protecting ranges: a dry run that can fail, then a commit that cannot.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Reach, Vpn};

use super::chain::Spare;
use super::shape::Spot;
use super::visit::{Part, Visitor};
use super::{Hashed, MOVE};
use crate::format::{Format, check_attr, check_change};
use crate::geometry::Checked as _;
use crate::mode::Mode;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Change, Error, Frames, Geometry, Holes, Leaf, Retired, Word};

/// What a range holds.
struct Census {
    /// Base pages that are mapped.
    pages: usize,
    leaves: usize,
}

impl<'n, G, F, N, const CLUSTER: u32, const BUCKETS: u32, const LOAD: usize>
    Hashed<'n, G, F, N, CLUSTER, BUCKETS, LOAD>
where
    G: Geometry,
    F: Format,
    N: Nodes<Word = F::Word>,
{
    /// See [`Table::map`](crate::Table::map).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table; so for all that follow.
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
        // SAFETY: the caller is the writer.
        if pages.len() == 1 && unsafe { self.map_one(batch, pages.first(), word) }? {
            batch.touch(F::APPEARS, pages);
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { self.map_range(batch, pages, frame, size, attr) }
    }

    /// Tells whether nothing is mapped but in the finest grain, so that no larger page can be in the way.
    #[inline(always)]
    fn is_finest(&self) -> bool {
        Self::GRAINS == 1 || self.grains.load(Ordering::Relaxed).is_multiple_of(MOVE)
    }

    /// Maps one base page, and tells whether it could: where larger pages are mapped, the range must look for them.
    #[inline(always)]
    unsafe fn map_one(&self, batch: &mut Retired<'n>, page: Vpn, word: F::Word) -> Result<bool, Error> {
        let at = page.address(G::BASE);
        let block = Self::block(0, at);
        // SAFETY: the caller is the writer. A block with a bucket is in no larger page.
        unsafe {
            let (head, tag) = (self.head(block), Self::tag_of(0, block));
            let Some(spot) = self.seek(head, tag) else {
                if !self.is_finest() {
                    return Ok(false);
                }
                if self.is_free(head, tag) {
                    N::Mode::release();
                    self.fit_out(head, 0, block, Self::slot(0, at), 1, |_| word);
                } else {
                    let node = self.nodes.take(Self::NODE);
                    let node = node.ok_or_else(|| Error::no_memory(1, self.nodes.held()))?;
                    self.append(head, node, 0, block, Self::slot(0, at), 1, |_| word);
                }
                self.tally.ptes(1);
                self.adapt(batch, 1);
                return Ok(true);
            };
            let place = Self::place(spot, block, Self::slot(0, at));
            let old = self.nodes.read(spot.node, place);
            if F::is_leaf(old, true) {
                return Err(Error::occupied(&Self::leaf(old, 0, at)));
            }
            self.nodes.publish(spot.node, place, word);
            self.settle_pairs(spot, 0, block);
        }
        self.tally.ptes(1);
        Ok(true)
    }

    /// Maps a range, with whatever buckets that needs.
    unsafe fn map_range(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        let size_pages = size.pages(G::BASE).unwrap_or(1);
        // The highest frame must fit too; `check_frames` has seen that it exists.
        F::leaf(Pfn::new(frame.get() + (pages.len() - size_pages)), size, attr, true)?;
        let grain = Self::grain_of(size);
        let before = self.blocks();
        self.check_room(grain, pages)?;
        // SAFETY: the caller is the writer.
        unsafe {
            let mut spare = if grain == 0 && self.is_finest() {
                // Whatever is in the way is in the buckets that are looked for.
                self.reserve(grain, pages, |part| self.check_part(part))?
            } else {
                self.check_vacant(pages)?;
                self.reserve(grain, pages, |_| Ok(()))?
            };
            let (first, last) = Self::blocks_of(grain, pages);
            self.make_room(batch, last - first);
            // Frames are whole before the table leads to them.
            N::Mode::release();
            self.write(&mut spare, pages, frame, size, attr);
            self.adapt(batch, self.blocks() - before);
        }
        batch.touch(F::APPEARS, stale::<G, F>(pages, |_| Some(size)));
        Ok(())
    }

    /// Refuses a range that cannot fit, without looking at what it holds: every block of it needs a bucket of its own, and
    /// those are the buckets in use, the first ones, and what the storage still has.
    fn check_room(&self, grain: usize, pages: Pages) -> Result<(), Error> {
        let (first, last) = Self::blocks_of(grain, pages);
        let there = self.blocks() + self.buckets();
        // One less than the blocks, which are as many as a `usize` can count.
        let wanted = (last - first).saturating_sub(there);
        if wanted > 0 && wanted > self.nodes.room(Self::NODE) {
            return Err(Error::no_memory(wanted, self.nodes.held()));
        }
        Ok(())
    }

    /// Finds what is in the way of a new mapping.
    unsafe fn check_vacant(&self, pages: Pages) -> Result<(), Error> {
        let mut result = Ok(());
        // SAFETY: the caller is the writer.
        let _ = unsafe {
            self.parts(pages, Visitor::Writer, |part| {
                result = self.check_part(part);
                if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
        };
        result
    }

    /// Finds what is in the way of a new mapping in the slots of a part.
    #[inline(always)]
    unsafe fn check_part(&self, part: Part) -> Result<(), Error> {
        let mut result = Ok(());
        // SAFETY: the caller is the writer.
        let _ = unsafe {
            self.leaves(part, |_, occupant| {
                result = Err(Error::occupied(&occupant));
                ControlFlow::Break(())
            })
        };
        result
    }

    /// Stores the leaves of a range whose buckets are there or reserved.
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
        // How many slots a leaf fills.
        let repeat = (size_pages >> shift).max(1);
        let (first, last) = Self::blocks_of(grain, pages);
        for block in first..=last {
            let (from, to) = Self::bounds(grain, block);
            let (from, to) = (from.max(pages.first()), to.min(pages.last()));
            let slot = Self::slot(grain, from.address(G::BASE));
            let count = ((to.get() - from.get()) >> shift) + 1;
            let start = Pfn::new(frame.get() + (from.get() - pages.first().get()));
            // The dry run has seen that all of these can be encoded.
            let word = F::leaf(start, size, attr, true).unwrap_or(F::Word::ZERO);
            // SAFETY: the caller is the writer, and the slots are within a bucket.
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
    }

    /// The dry run of an unmap or protect: counts what is mapped, and finds holes and pages cut by the ends.
    unsafe fn census(&self, pages: Pages, holes: Holes) -> Result<Census, Error> {
        let mut census = Census { pages: 0, leaves: 0 };
        // SAFETY: the caller is the writer.
        unsafe {
            for end in [pages.first(), pages.last()] {
                if let Some(leaf) = self.find(end.address(G::BASE)) {
                    Self::check_whole(leaf, pages)?;
                } else if holes == Holes::Refuse && end == pages.first() {
                    return Err(Error::NotMapped { at: end.address(G::BASE) });
                }
            }
            let _ = self.parts(pages, Visitor::Writer, |part| {
                if part.grain == 0 && !Self::REPLICATED {
                    let leaves = self.count_leaves(part.spot, part.block, part.slot, part.slots);
                    census.leaves += leaves;
                    census.pages += leaves;
                    return ControlFlow::Continue(());
                }
                self.leaves(part, |_, leaf| {
                    census.leaves += 1;
                    census.pages += leaf.size.pages(G::BASE).unwrap_or(1);
                    ControlFlow::Continue(())
                })
            });
            if holes == Holes::Refuse && census.pages < pages.len() {
                return Err(self.first_hole(pages));
            }
        }
        Ok(census)
    }

    /// Names the first page of a range that is not mapped.
    #[cold]
    unsafe fn first_hole(&self, pages: Pages) -> Error {
        let mut page = pages.first();
        // SAFETY: the caller is the writer.
        while let Some(leaf) = unsafe { self.find(page.address(G::BASE)) }
            && G::SPACE.pages_of(&leaf).last() < pages.last()
        {
            page = Vpn::new(G::SPACE.pages_of(&leaf).last().get() + 1);
        }
        Error::NotMapped { at: page.address(G::BASE) }
    }

    /// Checks that a leaf does not reach out of a range.
    pub(super) fn check_whole(leaf: Leaf, pages: Pages) -> Result<(), Error> {
        let whole = G::SPACE.pages_of(&leaf);
        if whole.intersect(pages) == Some(whole) { Ok(()) } else { Err(Error::partial(&leaf)) }
    }

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
                batch.touch(Reach::Everywhere, pages);
                return Ok(1);
            }
            let census = self.census(pages, holes)?;
            if let Some(frames) = &mut frames {
                frames.reserve(census.leaves)?;
            }
            if census.pages > 0 {
                batch.touch(Reach::Everywhere, self.stale(pages));
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
        let at = page.address(G::BASE);
        let block = Self::block(0, at);
        // SAFETY: the caller is the writer.
        unsafe {
            let head = self.head(block);
            let Some((before, spot)) = self.seek_past(head, Self::tag_of(0, block)) else { return false };
            let place = Self::place(spot, block, Self::slot(0, at));
            let old = self.nodes.read(spot.node, place);
            if !F::is_leaf(old, true) || Self::size(old, 0) != G::BASE {
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

    /// Finds the word of one page that is mapped as a base page: its bucket, and the place in the bucket's node.
    #[inline(always)]
    pub(super) unsafe fn find_one(&self, page: Vpn) -> Option<(Spot, usize)> {
        let at = page.address(G::BASE);
        let block = Self::block(0, at);
        // SAFETY: the caller is the writer.
        unsafe {
            let spot = self.seek(self.head(block), Self::tag_of(0, block))?;
            let place = Self::place(spot, block, Self::slot(0, at));
            let word = self.nodes.read(spot.node, place);
            (F::is_leaf(word, true) && Self::size(word, 0) == G::BASE).then_some((spot, place))
        }
    }

    /// Returns what a change of the leaves in `pages`, all of them whole, makes stale.
    unsafe fn stale(&self, pages: Pages) -> Pages {
        // SAFETY: the caller is the writer.
        stale::<G, F>(pages, |page| unsafe { self.find(page.address(G::BASE)) }.map(|leaf| leaf.size))
    }

    /// Takes every leaf out of a range.
    unsafe fn clear(&self, batch: &mut Retired<'n>, pages: Pages, mut frames: Option<&mut dyn Frames>) {
        // SAFETY: the caller is the writer.
        let _ = unsafe {
            self.parts(pages, Visitor::Pruner(batch), |part| {
                let Some(frames) = &mut frames else {
                    self.empty(part);
                    return ControlFlow::Continue(());
                };
                self.leaves(part, |slot, leaf| {
                    // Nothing leads to the frame when it is handed over, whatever that call does.
                    let slots = 1 << (leaf.size.shift() - Self::GRAIN[part.grain].shift());
                    self.empty(Part { slot, slots, ..part });
                    frames.push(leaf.frame, leaf.size, G::BASE, leaf.attr);
                    ControlFlow::Continue(())
                })
            })
        };
    }

    /// Clears the slots of a part.
    pub(super) unsafe fn empty(&self, part: Part) {
        let Part { spot, block, slot: first, slots, .. } = part;
        // SAFETY: the caller is the writer; the slots of a part are in its bucket.
        unsafe {
            let leaves = self.count_leaves(spot, block, first, slots);
            for slot in first..first + slots {
                // Not before what may have replaced the leaf.
                self.nodes.publish(spot.node, Self::place(spot, block, slot), F::Word::ZERO);
            }
            self.settle_pairs(spot, part.grain, block);
            self.tally.ptes(-(leaves as isize));
        }
    }

    /// See [`Table::protect`](crate::Table::protect).
    #[inline]
    pub(super) unsafe fn protect_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        holes: Holes,
        change: Change,
    ) -> Result<usize, Error> {
        G::SPACE.check_pages(pages)?;
        check_change::<F>(change)?;
        // SAFETY: the caller is the writer.
        unsafe {
            if pages.len() == 1
                && let Some((spot, place)) = self.find_one(pages.first())
            {
                self.nodes.edit(spot.node, place, 1, |word| F::change(word, change, true));
                self.settle_pairs(spot, 0, Self::block(0, pages.first().address(G::BASE)));
                batch.touch(change.reach(), pages);
                return Ok(1);
            }
            let census = self.census(pages, holes)?;
            if census.pages == 0 {
                return Ok(0);
            }
            let _ = self.parts(pages, Visitor::Writer, |part| {
                let change = |word| if F::is_leaf(word, true) { F::change(word, change, true) } else { word };
                if Self::UNITS == 1 {
                    let first = Self::place(part.spot, part.block, part.slot);
                    self.nodes.edit(part.spot.node, first, part.slots, change);
                } else {
                    for slot in part.slot..part.slot + part.slots {
                        self.nodes.edit(part.spot.node, Self::place(part.spot, part.block, slot), 1, change);
                    }
                }
                self.settle_pairs(part.spot, part.grain, part.block);
                ControlFlow::Continue(())
            });
            batch.touch(change.reach(), self.stale(pages));
            Ok(census.pages)
        }
    }

    /// Takes the whole table apart.
    pub(super) unsafe fn take_apart(&mut self, batch: &mut Retired<'n>) {
        // SAFETY: the caller is the only one left who uses the table.
        unsafe { self.retire_all(batch) };
        self.tally.ptes(-(self.tally.footprint().ptes as isize));
    }
}
