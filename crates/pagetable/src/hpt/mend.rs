//! The repair of a table after a change that has unwound.

use core::sync::atomic::Ordering;

use super::chain::bump;
use super::node::Writing;
use super::shape::Shape as _;
use super::tag::Tags as _;
use super::{MOVE, Sizes};
use crate::Geometry;
use crate::format::Format;
use crate::nodes::Nodes;

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Repairs the table after a change that has unwound: counts the entries again, undoes the change's claims, and removes
    /// buckets that are empty now. Nodes that the change had taken and not linked are lost. A split or merge takes its
    /// memory before its first store, so it is complete or has not begun.
    ///
    /// The time is a walk over the whole table.
    #[cold]
    pub(super) fn mend(mut self) {
        let owned = self.tally.footprint().nodes + self.retired();
        self.tally.clear();
        for used in &self.used {
            used.store(0, Ordering::Relaxed);
        }
        self.vacant.store(0, Ordering::Relaxed);
        self.count_arrays();
        for number in 0..self.buckets() {
            self.mend_chain(number);
        }
        let moves = self.grains.load(Ordering::Relaxed) & !(MOVE - 1);
        let in_use = |grain: &usize| *grain > 0 && self.used[*grain].load(Ordering::Relaxed) > 0;
        let grains = (0..Self::GRAINS).filter(in_use).map(|grain| 1 << grain).sum::<usize>();
        self.grains.store(moves | grains, Ordering::Release);
        for number in 0..self.buckets() {
            self.numbered_chain(number).tidy();
        }
        let found = self.tally.footprint().nodes + self.retired();
        self.nodes.held().count_lost(owned.saturating_sub(found));
    }

    /// Counts the buckets that belong to the chain of the first bucket with this number, and undoes a claim.
    fn mend_chain(&self, number: usize) {
        let head = self.numbered(number);
        if head.tag() & Self::CLAIMED != 0 {
            // The bucket may have been dead before the claim.
            head.reflag(Self::DEAD);
        }
        for bucket in head.chain() {
            let tag = bucket.tag();
            if *bucket != *head && !self.walk().leads_to(*head, tag) {
                continue;
            }
            if tag & Self::LIVE != 0 {
                let (grain, block) = Self::untag(tag);
                bump(&self.used[grain], 1);
                let taken = bucket.slots(Self::whole(grain, block)).taken();
                self.tally.ptes(taken as isize);
                if taken == 0 {
                    self.count_vacant(grain);
                }
            }
            if *bucket != *head {
                self.count_node(1);
            }
        }
    }
}
