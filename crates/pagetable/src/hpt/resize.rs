//! The split of a page into smaller pages, and the promotion of small pages to a larger one.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, Vpn};

use super::chain::Spare;
use super::visit::Visitor;
use super::{Hashed, Sizes};
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::mode::Mode;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Error, Geometry, Leaf, Retired};

/// The status attributes of a leaf. Pages that differ only in these can be promoted to one page.
const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Implements [`Table::resize`](crate::Table::resize).
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    pub(super) unsafe fn resize_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        to: PageSize,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<(), Error> {
        G::SPACE.check_sized(pages, to)?;
        let grain = Self::grain_of(to);
        let before = self.blocks();
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            self.each_piece(pages, to, |piece, leaf| {
                if leaf.size > to {
                    G::SPACE.check_whole(leaf, pages)
                } else if leaf.size < to {
                    self.check_uniform(piece, leaf, to)
                } else {
                    Ok(())
                }
            })?;
            // If a block of the new size has no bucket, no page of that size is mapped in it, so all of its pages change.
            let (mut spare, new) = self.reserve(grain, pages)?;
            self.make_room(batch, new);
            N::Mode::release();
            self.each_piece(pages, to, |piece, leaf| {
                if leaf.size != to {
                    self.remake(batch, &mut spare, piece, leaf, to, flush_all_cpus);
                }
                Ok(())
            })?;
            self.adapt(batch, self.blocks().abs_diff(before));
        }
        Ok(())
    }

    /// Calls `visit` for each piece of a range, with the piece's first leaf. A piece is a leaf larger than `to`, or the
    /// pages that fill a page of size `to`.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    unsafe fn each_piece(
        &self,
        pages: Pages,
        to: PageSize,
        mut visit: impl FnMut(Pages, Leaf) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut first = pages.first();
        loop {
            let at = first.address(G::BASE);
            // SAFETY: by this function's contract the caller is the only writer.
            let Some(leaf) = (unsafe { self.find(at) }) else { return Err(Error::NotMapped { at }) };
            let size = leaf.size.max(to);
            let piece = G::SPACE.pages_of(&Leaf { at: at.align_down(size), size, ..leaf });
            visit(piece, leaf)?;
            if piece.last() >= pages.last() {
                return Ok(());
            }
            first = Vpn::new(piece.last().get() + 1);
        }
    }

    /// Checks that the leaves of a piece map consecutive frames with the same attributes, except status.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    unsafe fn check_uniform(&self, piece: Pages, first: Leaf, to: PageSize) -> Result<(), Error> {
        if !first.frame.is_aligned(to, G::BASE) {
            return Err(Error::NotUniform { at: first.at });
        }
        F::leaf(first.frame, to, first.attr, true)?;
        let mut page = piece.first();
        loop {
            let at = page.address(G::BASE);
            // SAFETY: by this function's contract the caller is the only writer.
            let Some(leaf) = (unsafe { self.find(at) }) else { return Err(Error::NotMapped { at }) };
            let frame = Pfn::new(first.frame.get() + (page.get() - piece.first().get()));
            if leaf.frame != frame || leaf.attr.difference(STATUS) != first.attr.difference(STATUS) {
                return Err(Error::NotUniform { at });
            }
            let last = G::SPACE.pages_of(&leaf).last();
            if last >= piece.last() {
                return Ok(());
            }
            page = Vpn::new(last.get() + 1);
        }
    }

    /// Replaces the leaves of a piece by leaves of size `to`.
    ///
    /// The new leaves are stored before the old ones are cleared, unless the format needs a break in between. A walker
    /// searches small leaves first. During a promotion it finds a small leaf, or else the large leaf, which was stored
    /// before the small ones were cleared. During a split it may search for the small leaves too early and for the large
    /// leaf too late; a visitor that reads bucket by bucket may miss either in the same way. The count of moves tells both
    /// to search again.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - the dry run has checked `piece`, and reserved `spare` for it.
    unsafe fn remake(
        &self,
        batch: &mut Retired<'n>,
        spare: &mut Spare<'n, N>,
        piece: Pages,
        leaf: Leaf,
        to: PageSize,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) {
        let grain = Self::grain_of(to);
        let mut attr = leaf.attr;
        let stale = stale::<G, F>(piece, |_| Some(leaf.size.max(to)));
        // SAFETY: by this function's contract the caller is the only writer, and the dry run has seen that leaves fill the
        // piece.
        unsafe {
            let _ = self.each_leaf(piece, |leaf| {
                attr |= leaf.attr & STATUS;
                ControlFlow::Continue(())
            });
            if F::BREAK {
                let _ = self.parts(piece, Visitor::Writer, |part| {
                    self.empty(part, false);
                    ControlFlow::Continue(())
                });
                let mut flush = Flush::none();
                flush.add(FlushScope::Everywhere, stale);
                flush_all_cpus(&flush);
            }
            self.write(spare, piece, leaf.frame, to, attr);
            if Self::grain_of(leaf.size) != grain {
                self.count_move();
            }
            // Clears the old leaves of other grains, and removes the buckets that are empty now.
            let _ = self.parts(piece, Visitor::Pruner(batch), |part| {
                if part.grain != grain {
                    self.empty(part, false);
                }
                ControlFlow::Continue(())
            });
        }
        batch.touch(FlushScope::Everywhere, stale);
    }
}
