//! Splitting a page into smaller ones, and promoting small ones to a larger.
//!
//! Both are a graft over what is there: the leaf or subtree that maps a piece gives its slot to one that maps the
//! same frames in pages of the other size.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Reach, Vpn};

use super::Gpt;
use super::bits::low;
use super::layout::Layout;
use super::policy::Policy;
use super::sweep::Span;
use crate::format::Format;
use crate::nodes::Nodes;
use crate::{Error, Geometry, Leaf, Retired, Word};

/// What is noted in a leaf and does not keep pages from being one.
const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: Policy> Gpt<'n, G, F, N, L, P> {
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
    ) -> Result<(), Error> {
        G::SPACE.check_sized(pages, to)?;
        // SAFETY: the caller is the writer.
        unsafe {
            let mut changes = false;
            self.each_piece(pages, to, |piece, leaf| {
                changes |= leaf.size != to;
                if leaf.size > to {
                    return Self::check_whole(leaf, pages);
                }
                if leaf.size < to { self.check_uniform(piece, leaf, to) } else { Ok(()) }
            })?;
            if !changes {
                return Ok(());
            }
            // The old leaves can be found until the new ones are linked.
            self.grow(batch, Self::span(pages), to.shift(), true, |at| self.renewed(at, to))?;
            batch.touch(Reach::Everywhere, pages);
            Ok(())
        }
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
            let leaf = unsafe { self.find(at.get()) }.ok_or(Error::NotMapped { at })?;
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
        let mut seen = 0;
        let mut outcome = Ok(());
        // SAFETY: the caller is the writer.
        let _ = unsafe {
            self.visit(Self::span(piece), &mut |leaf| {
                let offset = leaf.at.vpn(G::BASE).get() - piece.first().get();
                if offset != seen {
                    return ControlFlow::Break(());
                }
                if leaf.frame.get() != first.frame.get() + offset
                    || leaf.attr.difference(STATUS) != first.attr.difference(STATUS)
                {
                    outcome = Err(Error::NotUniform { at: leaf.at });
                    return ControlFlow::Break(());
                }
                seen += G::SPACE.pages_of(&leaf).len();
                ControlFlow::Continue(())
            })
        };
        outcome?;
        if seen == piece.len() {
            Ok(())
        } else {
            Err(Error::NotMapped { at: Vpn::new(piece.first().get() + seen).address(G::BASE) })
        }
    }

    /// Returns the PTE of size `to` for the page at `key`, from what maps it now.
    unsafe fn renewed(&self, key: usize, to: PageSize) -> F::Word {
        // SAFETY: the caller is the writer.
        let Some(leaf) = (unsafe { self.find(Self::address(key)) }) else { return F::Word::ZERO };
        let offset = Self::address(key) - leaf.at.get();
        let frame = Pfn::new(leaf.frame.get() + (offset >> Self::BASE));
        let mut attr = leaf.attr;
        if leaf.size < to {
            let span = Span { first: key, last: key | low(to.shift()) & !low(Self::BASE) };
            // SAFETY: as above.
            let _ = unsafe {
                self.visit(span, &mut |leaf| {
                    attr |= leaf.attr & STATUS;
                    ControlFlow::Continue(())
                })
            };
        }
        // The dry run, or the leaf that is being split, had these attributes and frames.
        F::leaf(frame, to, attr, true).unwrap_or(F::Word::ZERO)
    }
}
