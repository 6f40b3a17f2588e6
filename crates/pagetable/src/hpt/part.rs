//! Parts of a range: the slots of each bucket that it covers.

use tlbkit_addr::{Pages, Vpn};

use super::shape::Spot;
use super::{Hashed, Sizes};
use crate::Geometry;
use crate::format::Format;
use crate::nodes::Nodes;

/// The slots of one bucket that a range covers.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) spot: Spot,
    pub(super) grain: usize,
    pub(super) block: usize,
    /// The first slot. `slots` is the number of slots.
    pub(super) slot: usize,
    pub(super) slots: usize,
    /// The first page of the first slot.
    pub(super) first: Vpn,
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'_, G, F, N, S> {
    /// Returns the first and the last block of `grain` that a range overlaps.
    #[inline(always)]
    pub(super) fn blocks_of(grain: usize, pages: Pages) -> (usize, usize) {
        let shift = Self::slot_shift(grain);
        (pages.first().get() >> shift >> S::CLUSTER_LOG, pages.last().get() >> shift >> S::CLUSTER_LOG)
    }

    /// Returns the slots of a block's bucket that a range covers, or `None` if it covers none.
    #[inline(always)]
    pub(super) fn part(spot: Spot, grain: usize, block: usize, pages: Pages) -> Option<Part> {
        let (first, last) = Self::bounds(grain, block);
        let (from, to) = (first.max(pages.first()), last.min(pages.last()));
        if from > to {
            return None;
        }
        let shift = Self::slot_shift(grain);
        let slot = from.get() >> shift & (Self::SLOTS - 1);
        let slots = (to.get() >> shift & (Self::SLOTS - 1)) - slot + 1;
        Some(Part { spot, grain, block, slot, slots, first: Vpn::new(from.get() >> shift << shift) })
    }

    /// Returns the same part, such that the compiler knows that a bucket of one slot has only slot 0.
    #[inline(always)]
    pub(super) fn known(part: Part) -> Part {
        if Self::SLOTS == 1 { Part { slot: 0, slots: 1, ..part } } else { part }
    }

    /// Returns all slots of a block's bucket.
    #[inline(always)]
    pub(super) fn whole(spot: Spot, grain: usize, block: usize) -> Part {
        let first = Self::bounds(grain, block).0;
        Part { spot, grain, block, slot: 0, slots: Self::SLOTS, first }
    }
}
