//! Splitting a page into smaller ones, and promoting small ones to a larger.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, Vpn};

use super::Hashed;
use super::chain::Spare;
use super::visit::Visitor;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::mode::Mode;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Error, Geometry, Leaf, Retired};

/// What the kernel notes in a leaf, which does not keep pages from being one.
const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

impl<'n, G, F, N, const CLUSTER: u32, const BUCKETS: u32, const LOAD: usize>
    Hashed<'n, G, F, N, CLUSTER, BUCKETS, LOAD>
where
    G: Geometry,
    F: Format,
    N: Nodes<Word = F::Word>,
{
    /// See [`Table::resize`](crate::Table::resize).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table; so for all that follow.
    pub(super) unsafe fn resize_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        to: PageSize,
        broken: &mut dyn FnMut(&Flush),
    ) -> Result<(), Error> {
        G::SPACE.check_sized(pages, to)?;
        let grain = Self::grain_of(to);
        let before = self.blocks();
        // SAFETY: the caller is the writer.
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
            // Where a block of the new size has no bucket, nothing of that size is mapped, so all of it changes.
            let mut spare = self.reserve(grain, pages, |_| Ok(()))?;
            let (first, last) = Self::blocks_of(grain, pages);
            self.make_room(batch, last - first);
            N::Mode::release();
            self.each_piece(pages, to, |piece, leaf| {
                if leaf.size != to {
                    self.remake(batch, &mut spare, piece, leaf, to, broken);
                }
                Ok(())
            })?;
            self.adapt(batch, self.blocks().abs_diff(before));
        }
        Ok(())
    }

    /// Cuts a range into pieces: a leaf larger than `to` is one, else whatever fills a page of `to`. Passes the leaf
    /// that begins each.
    unsafe fn each_piece(
        &self,
        pages: Pages,
        to: PageSize,
        mut visit: impl FnMut(Pages, Leaf) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut first = pages.first();
        loop {
            let at = first.address(G::BASE);
            // SAFETY: the caller is the writer.
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

    /// Checks that the leaves of a piece continue each other and agree in their rights.
    unsafe fn check_uniform(&self, piece: Pages, first: Leaf, to: PageSize) -> Result<(), Error> {
        if !first.frame.is_aligned(to, G::BASE) {
            return Err(Error::NotUniform { at: first.at });
        }
        F::leaf(first.frame, to, first.attr, true)?;
        let mut page = piece.first();
        loop {
            let at = page.address(G::BASE);
            // SAFETY: the caller is the writer.
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

    /// Replaces what maps a piece by leaves of size `to`.
    ///
    /// The new leaves are there before the old ones go, unless the format wants a break between. A walker looks for
    /// small leaves first: while pages are promoted it finds those, or else the large leaf, which came before they
    /// went. While one is split it may look for the small ones too early and for the large one too late, and a visitor
    /// that goes bucket by bucket may so miss either: the count of moves tells it to look again.
    unsafe fn remake(
        &self,
        batch: &mut Retired<'n>,
        spare: &mut Spare<'n, N>,
        piece: Pages,
        leaf: Leaf,
        to: PageSize,
        broken: &mut dyn FnMut(&Flush),
    ) {
        let grain = Self::grain_of(to);
        let mut attr = leaf.attr;
        let stale = stale::<G, F>(piece, |_| Some(leaf.size.max(to)));
        // SAFETY: the caller is the writer, and the dry run has seen that leaves fill the piece.
        unsafe {
            let _ = self.each_leaf(piece, |leaf| {
                attr |= leaf.attr & STATUS;
                ControlFlow::Continue(())
            });
            if F::BREAK {
                let _ = self.parts(piece, Visitor::Writer, |part| {
                    self.empty(part);
                    ControlFlow::Continue(())
                });
                let mut flush = Flush::none();
                flush.add(FlushScope::Everywhere, stale);
                broken(&flush);
            }
            self.write(spare, piece, leaf.frame, to, attr);
            if Self::grain_of(leaf.size) != grain {
                self.count_move();
            }
            // What is left of other grains. Buckets that the break has emptied go too.
            let _ = self.parts(piece, Visitor::Pruner(batch), |part| {
                if part.grain != grain {
                    self.empty(part);
                }
                ControlFlow::Continue(())
            });
        }
        batch.touch(FlushScope::Everywhere, stale);
    }
}
