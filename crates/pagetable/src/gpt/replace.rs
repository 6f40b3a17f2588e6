//! Replacing a leaf.

use tlbkit_addr::{Attr, Flush, FlushScope, Pages, Pfn, VirtAddr};

use super::Gpt;
use super::layout::Layout;
use super::node_size::NodeSize;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::replace::{exchange, replacement};
use crate::{Error, Geometry, Leaf, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'n, G, F, N, L, P> {
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
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<Leaf, Error> {
        G::SPACE.check_pages(Pages::one(at.vpn(G::BASE)))?;
        // SAFETY: the caller is the writer; the index is below the leaf's slots.
        let found = unsafe { L::seek(self.nodes, &self.root, G::VA_BITS, Self::TAG, at.get()) };
        let found = found.ok_or(Error::NotMapped { at })?;
        let place = Self::pte_at(found.shift, found.index, at.get());
        // SAFETY: the caller is the writer, and the leaf that the search has found has the place.
        let was = unsafe { self.nodes.read(found.leaf, place) };
        if !F::is_leaf(was, true) {
            return Err(Error::NotMapped { at });
        }
        let old = Self::leaf(was, found.shift, at.get());
        let new = replacement::<G, F>(&old, frame, attr, true)?;
        let pages = G::SPACE.pages_of(&old);
        let stale = stale::<G, F>(pages, |_| Some(old.size));
        batch.touch(if F::BREAK_FRAME { F::APPEARS } else { FlushScope::Everywhere }, stale);
        // SAFETY: the caller is the writer; the leaf is live, and has the place. A page has one PTE, whichever slots lead to it.
        let store = |word| unsafe {
            let was = self.nodes.read(found.leaf, place);
            self.nodes.publish(found.leaf, place, word);
            self.settle_pair(found.edge(), at.get());
            was
        };
        exchange::<F>(store, new, stale, flush_all_cpus);
        Ok(old)
    }
}
