//! Protection of a range: PTEs are changed where they are, leaf by leaf.

use core::ops::ControlFlow;

use tlbkit_addr::Pages;

use super::Gpt;
use super::layout::{Edge, Layout};
use super::node_size::NodeSize;
use super::visit::Span;
use crate::format::{Format, change_mark, check_change};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Change, Error, Geometry, Holes, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
    /// See [`Table::protect`](crate::Table::protect).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
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
        if pages.len() == 1 && unsafe { self.protect_one(batch, pages, change) } {
            return Ok(1);
        }
        // SAFETY: the caller is the writer.
        unsafe {
            let census = self.census(pages, holes)?;
            if census.marks > 0 {
                self.protect_span(Self::span(pages), |word| word, |word| change_mark::<F>(word, change));
            }
            if census.pages == 0 {
                return Ok(0);
            }
            match F::masks(change, true) {
                Some(masks) => self.protect_span(Self::span(pages), |word| masks.apply(word), |word| word),
                None => {
                    self.protect_span(Self::span(pages), |word| F::change(word, change, true), |word| word);
                }
            }
            batch.touch(change.scope(), self.stale(pages));
            Ok(census.pages)
        }
    }

    /// Applies `leaf` to each leaf entry of a span, and `other` to each other entry. A function of its own, to keep its path off
    /// the caller's stack.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(never)]
    unsafe fn protect_span(
        &self,
        span: Span,
        leaf: impl Fn(F::Word) -> F::Word,
        other: impl Fn(F::Word) -> F::Word,
    ) {
        let edit = |word| if F::is_leaf(word, true) { leaf(word) } else { other(word) };
        // SAFETY: the caller is the writer; what is swept is in the table.
        let _ = unsafe {
            self.sweep_leaves(self.follow_root(), span, &mut |leaf, base, part| {
                self.protect_part(leaf, base, part, edit);
                ControlFlow::Continue(())
            })
        };
    }

    /// Applies `edit` to each entry in a part of one leaf.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and `leaf` is a leaf of this table that begins at `base` and covers the part.
    #[inline(always)]
    unsafe fn protect_part(&self, leaf: Edge, base: usize, part: Span, edit: impl Fn(F::Word) -> F::Word) {
        // SAFETY: the caller is the writer; the leaf covers the part.
        unsafe {
            if Self::IN_A_ROW {
                let pages = ((part.last - part.first) >> leaf.shift) + 1;
                return self.nodes.edit(leaf.node, Self::pte_of(leaf, part.first), pages, edit);
            }
            for slot in leaf.index(part.first)..=leaf.index(part.last) {
                let at = base | slot << leaf.shift;
                self.nodes.edit(leaf.node, Self::pte_of(leaf, at), 1, &edit);
                self.settle_pair(leaf, at);
            }
        }
    }
}
