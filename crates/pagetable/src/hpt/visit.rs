//! Visiting what a range holds: block by block, or bucket by bucket where that is less.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use tlbkit_addr::{Pages, Vpn};

use super::Hashed;
use super::chain::bump;
use super::shape::{LOG, Spot};
use crate::format::Format;
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes};
use crate::word::atomics::{AtomicUsize, fence};
use crate::{Geometry, Leaf, Retired};

/// A visit, which may unwind: no lookup reorders a chain during it.
struct Still<'t>(&'t AtomicUsize);

impl<'t> Still<'t> {
    fn new(visits: &'t AtomicUsize) -> Self {
        bump(visits, 1);
        Self(visits)
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        bump(self.0, -1);
    }
}

/// The slots of one bucket that a range covers.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) spot: Spot,
    pub(super) grain: usize,
    pub(super) block: usize,
    /// The first slot and how many.
    pub(super) slot: usize,
    pub(super) slots: usize,
    /// The first page of the first slot.
    pub(super) first: Vpn,
}

impl<'n, G, F, N, const CLUSTER: u32, const BUCKETS: u32, const LOAD: usize>
    Hashed<'n, G, F, N, CLUSTER, BUCKETS, LOAD>
where
    G: Geometry,
    F: Format,
    N: Nodes<Word = F::Word>,
{
    /// Returns the first and the last block of `grain` that a range is in.
    #[inline(always)]
    pub(super) fn blocks_of(grain: usize, pages: Pages) -> (usize, usize) {
        let shift = Self::slot_shift(grain);
        (pages.first().get() >> shift >> CLUSTER, pages.last().get() >> shift >> CLUSTER)
    }

    /// Returns the slots of a block's bucket that are in a range, if any are.
    #[inline(always)]
    fn part(spot: Spot, grain: usize, block: usize, pages: Pages) -> Option<Part> {
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

    /// Visits the live buckets of a range, each once. With a batch it takes out those that the visitor has emptied.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer; with a batch it is the writer.
    pub(super) unsafe fn parts(
        &self,
        pages: Pages,
        empties: Option<&mut Retired<'n>>,
        mut visit: impl FnMut(Part) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (first, last) = Self::blocks_of(0, pages);
        let root = self.root();
        let _still = (!N::Mode::SHARED).then(|| Still::new(&self.visits));
        // SAFETY: the caller's promise. Looking a block up costs about as much as reading a bucket.
        unsafe {
            if last - first < 1 << (root & LOG) {
                self.visit_blocks(pages, empties, &mut visit)
            } else {
                self.visit_buckets(root, pages, empties, &mut visit)
            }
        }
    }

    /// Looks up every block of a range.
    #[inline(always)]
    unsafe fn visit_blocks(
        &self,
        pages: Pages,
        mut empties: Option<&mut Retired<'n>>,
        visit: &mut impl FnMut(Part) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let grains = self.grains.load(Ordering::Acquire) | 1;
        for grain in (0..Self::GRAINS).filter(|grain| grains >> grain & 1 != 0) {
            let (first, last) = Self::blocks_of(grain, pages);
            for block in first..=last {
                // SAFETY: the caller's promise.
                unsafe {
                    if let Some(spot) = self.follow(grain, Self::lead(block))
                        && let Some(part) = Self::part(spot, grain, block, pages)
                    {
                        visit(part)?;
                        if let Some(batch) = &mut empties
                            && self.is_vacant(spot)
                        {
                            self.tidy(batch, self.head(block));
                        }
                    }
                }
            }
            if N::Mode::SHARED {
                // As in a lookup: small leaves first, then the larger ones that may have replaced them.
                fence(Ordering::Acquire);
            }
        }
        ControlFlow::Continue(())
    }

    /// Reads every bucket of the table.
    unsafe fn visit_buckets(
        &self,
        root: usize,
        pages: Pages,
        mut empties: Option<&mut Retired<'n>>,
        visit: &mut impl FnMut(Part) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for index in 0..1 << (root & LOG) {
            // SAFETY: the caller's promise.
            unsafe { self.visit_chain(root, index, pages, &mut empties, visit) }?;
        }
        ControlFlow::Continue(())
    }

    /// Visits the chain of one bucket of an array, or what it was moved to.
    unsafe fn visit_chain(
        &self,
        root: usize,
        index: usize,
        pages: Pages,
        empties: &mut Option<&mut Retired<'n>>,
        visit: &mut impl FnMut(Part) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let head = Spot { node: NodeAddr::new(root & !LOG), at: index * Self::STRIDE };
        let mut spot = Some(head);
        while let Some(here) = spot {
            // SAFETY: the caller's promise; the index is below the buckets of the array.
            unsafe {
                let tag = self.follow_tag(here);
                if LOAD > 0 && tag & Self::MOVED != 0 {
                    let next = self.successor(root);
                    let (first, step) = Self::heirs(index, root & LOG, next & LOG);
                    for heir in 0..1 << ((next & LOG) - (root & LOG)) {
                        self.visit_chain(next, first + heir * step, pages, empties, visit)?;
                    }
                    return ControlFlow::Continue(());
                }
                if tag & Self::LIVE != 0 {
                    let (grain, block) = Self::untag(tag);
                    if let Some(part) = Self::part(here, grain, block, pages) {
                        visit(part)?;
                    }
                }
                spot = self.follow_link(here);
            }
        }
        if let Some(batch) = empties {
            // SAFETY: with a batch the caller is the writer.
            unsafe { self.tidy(batch, head) };
        }
        ControlFlow::Continue(())
    }

    /// Calls `visit` with every leaf of a part, once each, and the slot at which the part meets it.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer.
    #[inline(always)]
    pub(super) unsafe fn leaves(
        &self,
        part: Part,
        mut visit: impl FnMut(usize, Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let shift = Self::slot_shift(part.grain);
        let mut slot = part.slot;
        while slot < part.slot + part.slots {
            // SAFETY: the slots of a part are in its bucket.
            let word = unsafe { self.nodes.follow(part.spot.node, Self::place(part.spot, part.block, slot)) };
            if !F::is_leaf(word, true) {
                slot += 1;
                continue;
            }
            let page = Vpn::new(part.first.get() + ((slot - part.slot) << shift));
            let leaf = Self::leaf(word, part.grain, page.address(G::BASE));
            visit(slot, leaf)?;
            let slots = 1 << (leaf.size.shift() - Self::GRAIN[part.grain].shift());
            slot = (slot | (slots - 1)) + 1;
        }
        ControlFlow::Continue(())
    }

    /// Visits every leaf of a range.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer.
    pub(super) unsafe fn each_leaf(
        &self,
        pages: Pages,
        mut visit: impl FnMut(Leaf) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // SAFETY: the caller's promise.
        unsafe { self.parts(pages, None, |part| self.leaves(part, |_, leaf| visit(leaf))) }
    }
}
