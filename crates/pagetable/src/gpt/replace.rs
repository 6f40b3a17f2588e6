//! Replacing a leaf.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, Pages, Pfn, Reach, VirtAddr};

use super::Gpt;
use super::layout::Layout;
use super::policy::Policy;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::replace::{exchange, replacement};
use crate::{Error, Geometry, Leaf, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: Policy> Gpt<'n, G, F, N, L, P> {
    /// See [`Table::replace`](crate::Table::replace).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    pub(super) unsafe fn replace_leaf(
        &self,
        batch: &mut Retired<'n>,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        known: &mut dyn FnMut(&Flush),
    ) -> Result<Leaf, Error> {
        G::SPACE.check_pages(Pages::one(at.vpn(G::BASE)))?;
        // SAFETY: the caller is the writer.
        let old = unsafe { self.find(at.get()) }.ok_or(Error::NotMapped { at })?;
        let new = replacement::<G, F>(&old, frame, attr, true)?;
        let pages = G::SPACE.pages_of(&old);
        let stale = stale::<G, F>(pages, |_| Some(old.size));
        batch.touch(if F::BREAK_FRAME { F::APPEARS } else { Reach::Everywhere }, stale);
        let first = Pages::one(pages.first());
        // SAFETY: the caller is the writer. A page has one PTE, whichever slots lead to it; an empty one is found again by
        // its leaf.
        let place = unsafe {
            let mut found = None;
            let _ = self.sweep(Self::span(first), &mut |leaf, at, _| {
                found = Some((leaf, at));
                ControlFlow::Break(())
            });
            found
        };
        let Some((leaf, key)) = place else { return Err(Error::NotMapped { at }) };
        // SAFETY: as above.
        let store = |word| unsafe {
            let was = self.nodes.read(leaf.node, Self::pte_of(leaf, key));
            self.nodes.publish(leaf.node, Self::pte_of(leaf, key), word);
            self.settle_pair(leaf, key);
            was
        };
        exchange::<F>(store, new, stale, known);
        Ok(old)
    }
}
