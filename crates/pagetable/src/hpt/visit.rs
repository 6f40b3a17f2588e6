//! Visiting what a range holds: block by block, or bucket by bucket where that is less.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use tlbkit_addr::{Pages, VirtAddr, Vpn};

use super::chain::bump;
use super::part::Part;
use super::shape::{LOG, Spot};
use super::{Hashed, MOVE};
use crate::format::{Format, is_taken};
use crate::geometry::Checked as _;
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes};
use crate::word::atomics::{AtomicUsize, fence};
use crate::{Entry, Geometry, Leaf, Retired};

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

/// The kind of visitor.
pub(super) enum Visitor<'b, 'n> {
    /// A walker, beside a writer.
    Walker,
    /// The writer.
    Writer,
    /// The writer, which takes out the buckets that its visit has emptied.
    Pruner(&'b mut Retired<'n>),
}

impl<'n, G, F, N, const CLUSTER: u32, const BUCKETS: u32, const LOAD: usize>
    Hashed<'n, G, F, N, CLUSTER, BUCKETS, LOAD>
where
    G: Geometry,
    F: Format,
    N: Nodes<Word = F::Word>,
{
    /// Visits the live buckets of a range, each once.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer, as it says.
    pub(super) unsafe fn parts(
        &self,
        pages: Pages,
        visitor: Visitor<'_, 'n>,
        mut visit: impl FnMut(Part) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (first, last) = Self::blocks_of(0, pages);
        let _still = (!N::Mode::SHARED).then(|| Still::new(&self.visits));
        // SAFETY: by this function's contract the caller is pinned, or the writer, as it says. Looking a block up costs
        // about as much as reading a bucket.
        unsafe {
            if last - first < self.buckets() {
                self.visit_blocks(pages, visitor, &mut visit)
            } else {
                self.visit_buckets(pages, visitor, &mut visit)
            }
        }
    }

    /// Looks up every block of a range.
    #[inline(always)]
    unsafe fn visit_blocks(
        &self,
        pages: Pages,
        mut visitor: Visitor<'_, 'n>,
        visit: &mut impl FnMut(Part) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let grains = self.grains.load(Ordering::Acquire) | 1;
        for grain in (0..Self::GRAINS).filter(|grain| grains >> grain & 1 != 0) {
            let (first, last) = Self::blocks_of(grain, pages);
            for block in first..=last {
                // SAFETY: by the contract of `parts`, which is this function's too, the caller is pinned, or the writer,
                // as it says.
                unsafe {
                    let found = if let Visitor::Walker = visitor {
                        self.follow(grain, Self::lead(block)).map(|spot| (None, spot))
                    } else {
                        self.seek_past(self.head(block), Self::tag_of(grain, block))
                    };
                    let Some((before, spot)) = found else { continue };
                    // Only the blocks at the ends have slots that are not in the range.
                    let part = if Self::SLOTS == 1 || block > first && block < last {
                        Some(Self::whole(spot, grain, block))
                    } else {
                        Self::part(spot, grain, block, pages)
                    };
                    if let Some(part) = part {
                        visit(part)?;
                        if let Visitor::Pruner(batch) = &mut visitor
                            && self.is_vacant(spot)
                        {
                            self.take_out(batch, before, spot);
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

    /// Reads every bucket of the table, segment by segment.
    ///
    /// A table may grow and shrink meanwhile. The order is that of the directory's indices with their bits reversed: a segment
    /// has then all hashes from one place to another, and the segments that it is split into have the same. So what is
    /// behind the place has been visited, and what is ahead has not, however many segments there are by now (this is how
    /// Redis scans). If a segment is changed during its visit, it is visited again.
    unsafe fn visit_buckets(
        &self,
        pages: Pages,
        mut visitor: Visitor<'_, 'n>,
        visit: &mut impl FnMut(Part) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if LOAD == 0 {
            let array = NodeAddr::new(self.root() & !LOG);
            for at in 0..1 << BUCKETS {
                let head = Spot { node: array, at: at * Self::STRIDE };
                // SAFETY: this function's contract; the index is below the buckets of the array.
                unsafe { self.visit_chain(head, pages, &mut visitor, visit) }?;
            }
            return ControlFlow::Continue(());
        }
        let mut place = 0u64;
        while place < 1 << 32 {
            // SAFETY: this function's contract; a directory has an entry for each index, and a segment a bucket for each number in
            // it.
            unsafe {
                let (root, entry) = self.entry_at(place as u32);
                let segment = Self::segment(entry);
                let before = self.version(segment);
                // Before the visit. A merge stores one entry of the directory after the other: buckets that the visit passes over,
                // as their entry still leads elsewhere, must not count as visited because it leads here by then.
                let bits = self.bits_of(root, place as u32, entry);
                let is_same = || {
                    fence(Ordering::Acquire);
                    !N::Mode::SHARED
                        || self.entry_at(place as u32).1 == entry && self.version(segment) == before
                };
                let mut is_whole = true;
                for at in 0..self.segment_of(root, entry) {
                    let head = Spot { node: segment, at: at * Self::STRIDE };
                    self.visit_chain(head, pages, &mut visitor, visit)?;
                    is_whole = is_same();
                    if !is_whole {
                        break;
                    }
                }
                if is_whole {
                    place = ((place >> (32 - bits)) + 1) << (32 - bits);
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns the root, and the entry of its directory whose index is the first bits of `place`, the first of them lowest.
    unsafe fn entry_at(&self, place: u32) -> (usize, usize) {
        let root = self.root();
        // SAFETY: by the contract of `parts`, which is this function's too, the caller is pinned, or the writer, as it
        // says.
        unsafe {
            let index = place.reverse_bits() as usize & ((1 << self.entries(root)) - 1);
            (root, self.entry(root, index))
        }
    }

    /// Returns how many bits of an index lead to the segment of an entry.
    ///
    /// The entries that have these bits in common are stored one after the other, and the one with the highest index is the
    /// last: where that leads to the segment, all do.
    unsafe fn bits_of(&self, root: usize, place: u32, entry: usize) -> u32 {
        // SAFETY: this function's contract; the index is below the entries.
        unsafe {
            let entries = self.entries(root);
            let mut bits = entries;
            while bits > 0 {
                let fewer = (1 << (bits - 1)) - 1;
                let last = ((1 << entries) - 1) & !fewer | place.reverse_bits() as usize & fewer;
                if self.entry(root, last) != entry {
                    break;
                }
                bits -= 1;
            }
            bits
        }
    }

    /// Visits the chain of a first bucket: what is there for its own sake.
    unsafe fn visit_chain(
        &self,
        head: Spot,
        pages: Pages,
        visitor: &mut Visitor<'_, 'n>,
        visit: &mut impl FnMut(Part) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut spot = Some(head);
        while let Some(here) = spot {
            // SAFETY: by the contract of `parts`, which is this function's too, the caller is pinned, or the writer, as
            // it says.
            unsafe {
                let tag = self.follow_tag(here);
                if tag & Self::LIVE != 0 && (here == head || self.leads_to(head, tag)) {
                    let (grain, block) = Self::untag(tag);
                    if let Some(part) = Self::part(here, grain, block, pages) {
                        visit(part)?;
                    }
                }
                spot = self.follow_link(here);
            }
        }
        if let Visitor::Pruner(batch) = visitor {
            // SAFETY: the caller is the writer.
            unsafe { self.tidy(batch, head) };
        }
        ControlFlow::Continue(())
    }

    /// Calls `visit` with every leaf and mark of a part, once each: the slot at which the part meets it, its first address, and
    /// what it is.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer.
    #[inline(always)]
    pub(super) unsafe fn each_taken(
        &self,
        part: Part,
        mut visit: impl FnMut(usize, VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let part = Self::known(part);
        let shift = Self::slot_shift(part.grain);
        let mut slot = part.slot;
        while slot < part.slot + part.slots {
            // SAFETY: the slots of a part are in its bucket.
            let word = unsafe { self.nodes.follow(part.spot.node, Self::place(part.spot, part.block, slot)) };
            if !is_taken::<F>(word) {
                slot += 1;
                continue;
            }
            let page = Vpn::new(part.first.get() + ((slot - part.slot) << shift)).address(G::BASE);
            let entry = Self::decode(word, part.grain, page);
            let Entry::Leaf(leaf) = entry else {
                visit(slot, page, entry)?;
                slot += 1;
                continue;
            };
            visit(slot, leaf.at, entry)?;
            let slots = 1 << (leaf.size.shift() - Self::GRAIN[part.grain].shift());
            slot = (slot | (slots - 1)) + 1;
        }
        ControlFlow::Continue(())
    }

    /// Makes visits of the part of a range in each half of the space, again where pages have moved between grains meanwhile.
    pub(super) fn each_half(
        &self,
        pages: Pages,
        mut visit: impl FnMut(Pages) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for half in G::SPACE.halves().into_iter().flatten() {
            let Some(pages) = half.intersect(pages) else { continue };
            loop {
                let before = self.grains.load(Ordering::Acquire) / MOVE;
                visit(pages)?;
                if !N::Mode::SHARED {
                    break;
                }
                // What moved was put in its new place, counted, and taken from the old: a visitor that has missed it in
                // both places sees the count, if it read both before.
                fence(Ordering::Acquire);
                if self.grains.load(Ordering::Relaxed) / MOVE == before {
                    break;
                }
            }
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
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe {
            self.each_entry(pages, |_, entry| match entry {
                Entry::Leaf(leaf) => visit(leaf),
                Entry::Mark(_) | Entry::Empty => ControlFlow::Continue(()),
            })
        }
    }

    /// Visits every leaf and mark of a range.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer.
    #[inline(always)]
    pub(super) unsafe fn each_entry(
        &self,
        pages: Pages,
        mut visit: impl FnMut(VirtAddr, Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // SAFETY: by this function's contract the caller is pinned, or the writer.
        unsafe {
            self.parts(pages, Visitor::Walker, |part| self.each_taken(part, |_, at, entry| visit(at, entry)))
        }
    }
}
