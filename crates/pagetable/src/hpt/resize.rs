//! The split of a page into smaller pages, and the promotion of small pages to a larger one.

use core::ops::ControlFlow;

use tlbkit_addr::{Flush, FlushScope, PageSize, Pages, VirtAddr};

use super::Sizes;
use super::map::Leaves;
use super::node::{Supply, Walk, Writing};
use super::shape::Shape as _;
use super::visit::Visitor;
use crate::dry_run::{Leaves as LeavesOf, Piece, after, check_resize};
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::mode::Mode;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::{Error, Geometry, Leaf};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> LeavesOf for Walk<'_, 'n, G, F, N, S> {
    type G = G;
    type F = F;

    fn leaf_at(self, at: VirtAddr) -> Option<Leaf> {
        self.find(at)
    }

    fn each_leaf_of(self, pages: Pages, visit: &mut dyn FnMut(Leaf) -> ControlFlow<()>) {
        // A visit of buckets would be in another order.
        let mut rest = Some(pages);
        while let Some(pages) = rest
            && let Some(leaf) = self.find(pages.first().address(G::BASE))
            && visit(leaf).is_continue()
        {
            rest = after(pages, G::SPACE.pages_of(&leaf).last());
        }
    }
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
        let before = self.known_blocks();
        check_resize(self.walk(), pages, to, |_| ())?;
        // If a block of the new size has no bucket, no page of that size is mapped in it, so all of its pages change.
        let mut supply = self.again().reserve(Self::grain_of(to), pages)?;
        self.make_room(supply.blocks);
        N::Mode::release();
        let mut rest = Some(pages);
        while let Some(pages) = rest {
            let piece = Piece::first(self.walk(), pages, to)?;
            if piece.leaf.size != to {
                self.remake(&mut supply, &piece, to, flush_all_cpus);
            }
            rest = piece.rest(pages);
        }
        let changed = self.known_blocks().abs_diff(before);
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
        whole: &Piece,
        to: PageSize,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) {
        let grain = Self::grain_of(to);
        let Piece { pages: piece, leaf } = *whole;
        let stale = stale::<G, F>(piece, |_| Some(leaf.size.max(to)));
        let attr = leaf.attr.union(whole.status(self.walk()));
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
