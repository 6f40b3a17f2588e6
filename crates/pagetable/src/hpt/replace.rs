//! Replacement of a leaf.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, FlushScope, Pages, Pfn, VirtAddr};

use super::visit::{Still, Visitor};
use super::{Hashed, Sizes};
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::replace::{exchange, replacement};
use crate::{Error, Geometry, Leaf, Retired, Word};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Implements [`Table::replace`](crate::Table::replace).
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
        // SAFETY: by this function's contract the caller is the only writer.
        if let Some((spot, place)) = unsafe { self.find_one(at.vpn(G::BASE)) } {
            // SAFETY: the writer's search has just found the place in that bucket.
            let old = Self::leaf(unsafe { self.nodes.read(spot.node, place) }, 0, at);
            let new = replacement::<G, F>(&old, frame, attr, true)?;
            let pages = Pages::one(at.vpn(G::BASE));
            batch.touch(if F::BREAK_FRAME { F::APPEARS } else { FlushScope::Everywhere }, pages);
            // SAFETY: the caller is the only writer, so the bucket stays in the table.
            let store = |word| unsafe {
                let was = self.nodes.read(spot.node, place);
                self.nodes.publish(spot.node, place, word);
                self.settle_pairs(spot, 0, Self::block(0, at));
                was
            };
            // The caller's flush may look other pages up, and such a lookup must not move the bucket.
            let _still = F::BREAK_FRAME.then(|| Still::new(&self.visits));
            exchange::<F>(store, new, pages, flush_all_cpus);
            return Ok(old);
        }
        // SAFETY: by this function's contract the caller is the only writer.
        let old = unsafe { self.find(at) }.ok_or(Error::NotMapped { at })?;
        let new = replacement::<G, F>(&old, frame, attr, true)?;
        let pages = G::SPACE.pages_of(&old);
        let stale = stale::<G, F>(pages, |_| Some(old.size));
        batch.touch(if F::BREAK_FRAME { F::APPEARS } else { FlushScope::Everywhere }, stale);
        let grain = Self::grain_of(old.size);
        // SAFETY: by this function's contract the caller is the only writer. The parts of the leaf's pages in buckets of the
        // leaf's grain are the slots that the leaf fills. A bucket of a coarser grain, for a larger page beside the leaf, may
        // also have a slot that covers these pages; that slot is empty, and is skipped.
        let store = |word| unsafe {
            let mut was = F::Word::ZERO;
            let _ = self.parts(pages, Visitor::Writer, |part| {
                if part.grain != grain {
                    return ControlFlow::Continue(());
                }
                for slot in part.slot..part.slot + part.slots {
                    let place = Self::place(part.spot, part.block, slot);
                    was = self.nodes.read(part.spot.node, place);
                    self.nodes.publish(part.spot.node, place, word);
                }
                self.settle_pairs(part.spot, part.grain, part.block);
                ControlFlow::Continue(())
            });
            was
        };
        exchange::<F>(store, new, stale, flush_all_cpus);
        Ok(old)
    }
}
