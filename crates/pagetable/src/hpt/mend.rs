//! The repair of a table after a change that has unwound.

use core::sync::atomic::Ordering;

use super::chain::bump;
use super::shape::{LOG, Spot};
use super::{Hashed, MOVE, Sizes};
use crate::format::Format;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Geometry, Retired};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Repairs the table after a change that has unwound: counts the entries again, undoes the change's claims, and removes
    /// buckets that are empty now. Nodes that the change had taken and not linked are lost. A split or merge takes its
    /// memory before its first store, so it is complete or has not begun.
    ///
    /// The time is a walk over the whole table.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[cold]
    pub(super) unsafe fn mend(&self, batch: &mut Retired<'n>) {
        let owned = self.tally.footprint().nodes + batch.nodes();
        self.tally.clear();
        for used in &self.used {
            used.store(0, Ordering::Relaxed);
        }
        self.vacant.store(0, Ordering::Relaxed);
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe { self.count_arrays() };
        for number in 0..self.buckets() {
            // SAFETY: by this function's contract the caller is the only writer; `number` is below the number of first
            // buckets.
            unsafe { self.mend_chain(self.first_bucket(number)) };
        }
        let moves = self.grains.load(Ordering::Relaxed) & !(MOVE - 1);
        let in_use = |grain: &usize| *grain > 0 && self.used[*grain].load(Ordering::Relaxed) > 0;
        let grains = (0..Self::GRAINS).filter(in_use).map(|grain| 1 << grain).sum::<usize>();
        self.grains.store(moves | grains, Ordering::Release);
        for number in 0..self.buckets() {
            // SAFETY: by this function's contract the caller is the only writer, the batch came from this table, and
            // `number` is below the number of first buckets.
            unsafe { self.tidy(batch, self.first_bucket(number)) };
        }
        let found = self.tally.footprint().nodes + batch.nodes();
        self.nodes.held().lose(owned.saturating_sub(found));
    }

    /// Returns the first bucket with this number, in a table that grows or one of a fixed size.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `number` is less than [`buckets`](Self::buckets).
    unsafe fn first_bucket(&self, number: usize) -> Spot {
        if S::LOAD == 0 {
            return Spot { node: NodeAddr::new(self.root() & !LOG), at: number * Self::STRIDE };
        }
        // SAFETY: by this function's contract `number` is less than the number of first buckets.
        unsafe { self.numbered(number) }
    }

    /// Counts the buckets that belong to the chain of `head`, and undoes a claim.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `head` is the first bucket of a chain of the table.
    unsafe fn mend_chain(&self, head: Spot) {
        // SAFETY: by this function's contract the caller is the only writer; the chain is in the table.
        unsafe {
            let tag = self.read_tag(head);
            if tag & Self::CLAIMED != 0 {
                // The bucket may have been dead before the claim.
                self.reflag(head, Self::DEAD);
            }
            let mut next = Some(head);
            while let Some(spot) = next {
                next = self.behind(spot);
                let tag = self.read_tag(spot);
                if spot != head && !self.leads_to(head, tag) {
                    continue;
                }
                if tag & Self::LIVE != 0 {
                    let (grain, block) = Self::untag(tag);
                    bump(&self.used[grain], 1);
                    let taken = self.count_taken(spot, block, 0, Self::SLOTS);
                    self.tally.ptes(taken as isize);
                    if taken == 0 {
                        self.count_vacant(grain);
                    }
                }
                if spot != head {
                    self.count_node(1);
                }
            }
        }
    }
}
