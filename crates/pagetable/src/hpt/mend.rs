//! Mending a table after a change that has unwound.

use core::sync::atomic::Ordering;

use super::chain::bump;
use super::shape::{LOG, Spot};
use super::{Hashed, MOVE};
use crate::format::Format;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Geometry, Retired};

impl<'n, G, F, N, const CLUSTER: u32, const BUCKETS: u32, const LOAD: usize>
    Hashed<'n, G, F, N, CLUSTER, BUCKETS, LOAD>
where
    G: Geometry,
    F: Format,
    N: Nodes<Word = F::Word>,
{
    /// Counts the table's entries anew, from the words that are there, after a change that has unwound. Takes back its
    /// claims and the bucket that it was moving, and takes out buckets that are empty now. Nodes that
    /// the change had taken for itself are lost.
    ///
    /// Costs a walk over the whole table.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[cold]
    pub(super) unsafe fn mend(&self, batch: &mut Retired<'n>) {
        // SAFETY: the caller is the writer.
        unsafe { self.mend_move() };
        let owned = self.tally.footprint().nodes + batch.nodes();
        self.tally.clear();
        for used in &self.used {
            used.store(0, Ordering::Relaxed);
        }
        let roots = [self.root(), self.next()];
        for root in roots.into_iter().filter(|&root| root != 0) {
            self.count_array(1, root & LOG);
            for head in Self::heads(root) {
                // SAFETY: the caller is the writer; the bucket is in the array.
                unsafe { self.mend_chain(head) };
            }
        }
        let moves = self.grains.load(Ordering::Relaxed) & !(MOVE - 1);
        let in_use = |grain: &usize| *grain > 0 && self.used[*grain].load(Ordering::Relaxed) > 0;
        let grains = (0..Self::GRAINS).filter(in_use).map(|grain| 1 << grain).sum::<usize>();
        self.grains.store(moves | grains, Ordering::Release);
        for head in roots.into_iter().filter(|&root| root != 0).flat_map(Self::heads) {
            // SAFETY: as above.
            unsafe {
                if self.read_tag(head) & Self::MOVED == 0 {
                    self.tidy(batch, head);
                }
            }
        }
        let found = self.tally.footprint().nodes + batch.nodes();
        self.nodes.held().lose(owned.saturating_sub(found));
    }

    /// Returns the first buckets of the chains of an array.
    fn heads(root: usize) -> impl Iterator<Item = Spot> {
        let node = NodeAddr::new(root & !LOG);
        (0..1 << (root & LOG)).map(move |index| Spot { node, at: index * Self::STRIDE })
    }

    /// Takes back the copies of a bucket that was being moved to the next array, and is not marked as moved.
    unsafe fn mend_move(&self) {
        let index = self.growth.moved.load(Ordering::Relaxed);
        if self.next() != 0 && index >> (self.root() & LOG) == 0 {
            // SAFETY: the caller is the writer; buckets are moved in order.
            unsafe { self.undo_copies(index) };
        }
    }

    /// Counts the buckets of a chain, and takes a claim back.
    unsafe fn mend_chain(&self, head: Spot) {
        // SAFETY: the caller is the writer; the chain is in the table.
        unsafe {
            let tag = self.read_tag(head);
            if tag & Self::MOVED != 0 {
                return;
            }
            if tag & Self::CLAIMED != 0 {
                // It may have been dead before.
                self.reflag(head, Self::DEAD);
            }
            let mut next = Some(head);
            while let Some(spot) = next {
                next = self.behind(spot);
                let tag = self.read_tag(spot);
                if tag & Self::LIVE != 0 {
                    let (grain, block) = Self::untag(tag);
                    bump(&self.used[grain], 1);
                    self.tally.ptes(self.count_leaves(spot, block, 0, Self::SLOTS) as isize);
                }
                if spot.node != head.node {
                    self.count_node(1);
                }
            }
        }
    }
}
