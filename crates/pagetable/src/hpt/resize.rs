//! The split of a page into smaller pages, and the promotion of small pages to a larger one.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, Vpn};

use super::Sizes;
use super::map::Leaves;
use super::node::{Supply, Walk, Writing};
use super::shape::Shape as _;
use super::visit::Visitor;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::mode::Mode;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Error, Geometry, Leaf};

/// The status attributes of a leaf. Pages that differ only in these can be promoted to one page.
const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

/// The pages that fill a page of the new size, or a larger leaf that is to be split; and its first leaf.
type Piece = (Pages, Leaf);

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Walk<'_, 'n, G, F, N, S> {
    /// Returns the piece that begins with the page `first`, for pages of size `to`.
    fn piece(self, first: Vpn, to: PageSize) -> Result<Piece, Error> {
        let at = first.address(G::BASE);
        let leaf = self.find(at).ok_or(Error::NotMapped { at })?;
        let size = leaf.size.max(to);
        Ok((G::SPACE.pages_of(&Leaf { at: at.align_down(size), size, ..leaf }), leaf))
    }

    /// Checks that the leaves of a piece map consecutive frames with the same attributes, except status.
    fn check_uniform(self, (piece, first): Piece, to: PageSize) -> Result<(), Error> {
        if !first.frame.is_aligned(to, G::BASE) {
            return Err(Error::NotUniform { at: first.at });
        }
        F::leaf(first.frame, to, first.attr, true)?;
        let mut next = Some(piece.first());
        while let Some(page) = next {
            let at = page.address(G::BASE);
            let leaf = self.find(at).ok_or(Error::NotMapped { at })?;
            let frame = Pfn::new(first.frame.get() + (page.get() - piece.first().get()));
            if leaf.frame != frame || leaf.attr.difference(STATUS) != first.attr.difference(STATUS) {
                return Err(Error::NotUniform { at });
            }
            next = behind(G::SPACE.pages_of(&leaf), piece);
        }
        Ok(())
    }
}

/// Returns the page behind a part of a range, unless the part ends the range.
fn behind(part: Pages, range: Pages) -> Option<Vpn> {
    (part.last() < range.last()).then(|| Vpn::new(part.last().get() + 1))
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Implements [`Table::resize`](crate::Table::resize).
    pub(super) fn resize_pages(
        mut self,
        pages: Pages,
        to: PageSize,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<(), Error> {
        G::SPACE.check_sized(pages, to)?;
        let before = self.blocks();
        let mut next = Some(pages.first());
        while let Some(first) = next {
            let (piece, leaf) = self.walk().piece(first, to)?;
            if leaf.size > to {
                G::SPACE.check_whole(leaf, pages)?;
            } else if leaf.size < to {
                self.walk().check_uniform((piece, leaf), to)?;
            }
            next = behind(piece, pages);
        }
        // If a block of the new size has no bucket, no page of that size is mapped in it, so all of its pages change.
        let mut supply = self.again().reserve(Self::grain_of(to), pages)?;
        self.make_room(supply.blocks);
        N::Mode::release();
        let mut next = Some(pages.first());
        while let Some(first) = next {
            let (piece, leaf) = self.walk().piece(first, to)?;
            if leaf.size != to {
                self.remake(&mut supply, (piece, leaf), to, flush_all_cpus);
            }
            next = behind(piece, pages);
        }
        let changed = self.blocks().abs_diff(before);
        self.adapt(changed);
        Ok(())
    }

    /// Replaces the leaves of a piece, which the dry run has checked and for which it has reserved the supply, by leaves of size `to`.
    ///
    /// The new leaves are stored before the old ones are cleared, unless the format needs a break in between. A walker
    /// searches small leaves first. During a promotion it finds a small leaf, or else the large leaf, which was stored
    /// before the small ones were cleared. During a split it may search for the small leaves too early and for the large
    /// leaf too late; a visitor that reads bucket by bucket may miss either in the same way. The count of moves tells both
    /// to search again.
    fn remake(
        &mut self,
        supply: &mut Supply<'n, G, F, N, S>,
        (piece, leaf): Piece,
        to: PageSize,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) {
        let grain = Self::grain_of(to);
        let mut attr = leaf.attr;
        let stale = stale::<G, F>(piece, |_| Some(leaf.size.max(to)));
        let _ = self.walk().each_leaf(piece, |leaf| {
            attr |= leaf.attr & STATUS;
            ControlFlow::Continue(())
        });
        if F::BREAK {
            let _ = self.parts(piece, Visitor::Writer, |slots| {
                slots.empty(false);
                ControlFlow::Continue(())
            });
            let mut flush = Flush::none();
            flush.add(FlushScope::Everywhere, stale);
            flush_all_cpus(&flush);
        }
        self.again().write(supply, Leaves { pages: piece, frame: leaf.frame, size: to, attr });
        if Self::grain_of(leaf.size) != grain {
            self.count_move();
        }
        // Clears the old leaves of other grains, and removes the buckets that are empty now.
        let _ = self.parts(piece, Visitor::Pruner, |slots| {
            if slots.span().grain != grain {
                slots.empty(false);
            }
            ControlFlow::Continue(())
        });
        self.touch(FlushScope::Everywhere, stale);
    }
}
