//! Replacement of a leaf.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, FlushScope, Pages, Pfn, VirtAddr};

use super::Sizes;
use super::node::Writing;
use super::shape::Shape as _;
use super::visit::{Still, Visitor};
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::replace::{exchange, replacement};
use crate::{Error, Geometry, Leaf, Word};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Implements [`Table::replace`](crate::Table::replace).
    pub(super) fn replace_leaf(
        mut self,
        at: VirtAddr,
        frame: Pfn,
        attr: Attr,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<Leaf, Error> {
        let (page, table) = (Pages::one(at.vpn(G::BASE)), self.table());
        let scope = if F::BREAK_FRAME { F::APPEARS } else { FlushScope::Everywhere };
        G::SPACE.check_pages(page)?;
        if let Some(bucket) = self.find_one(at) {
            let old = Self::leaf(bucket.read(at), 0, at);
            let new = replacement::<G, F>(&old, frame, attr, true)?;
            // The caller's flush may look other pages up, and such a lookup must not move the bucket.
            let _still = F::BREAK_FRAME.then(|| Still::new(&table.visits));
            exchange::<F>(|word| bucket.publish(at, word), new, page, flush_all_cpus);
            self.touch(scope, page);
            return Ok(old);
        }
        let old = self.walk().find(at).ok_or(Error::NotMapped { at })?;
        let new = replacement::<G, F>(&old, frame, attr, true)?;
        let pages = G::SPACE.pages_of(&old);
        let stale = stale::<G, F>(pages, |_| Some(old.size));
        self.touch(scope, stale);
        let grain = Self::grain_of(old.size);
        // The parts of the leaf's pages in buckets of the leaf's grain are the slots that the leaf fills. A bucket of a coarser
        // grain, for a larger page beside the leaf, may also have a slot that covers these pages; that slot is empty, and is skipped.
        let store = |word| {
            let mut was = F::Word::ZERO;
            let _ = self.parts(pages, Visitor::Writer, |slots| {
                if slots.span().grain == grain {
                    was = slots.replace(word);
                }
                ControlFlow::Continue(())
            });
            was
        };
        exchange::<F>(store, new, stale, flush_all_cpus);
        Ok(old)
    }
}
