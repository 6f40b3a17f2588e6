//! Visits of the entries of a range: block by block, or bucket by bucket if the table has fewer buckets than the range has
//! blocks.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use tlbkit_addr::{Pages, VirtAddr, Vpn};

use super::chain::bump;
use super::part::Part;
use super::shape::{LOG, Spot};
use super::{Hashed, MOVE, Sizes};
use crate::format::{Format, is_taken};
use crate::geometry::Checked as _;
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes};
use crate::word::atomics::{AtomicUsize, fence};
use crate::{Entry, Geometry, Leaf, Retired};

/// Counts a visit until it is dropped, also if the visit unwinds. No lookup reorders a chain during a visit.
pub(super) struct Still<'t>(&'t AtomicUsize);

impl<'t> Still<'t> {
    pub(super) fn new(visits: &'t AtomicUsize) -> Self {
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
    /// A walker, while a writer may change the table.
    Walker,
    /// The writer.
    Writer,
    /// The writer, which removes the buckets that are empty after its visit.
    Pruner(&'b mut Retired<'n>),
    /// The writer, which removes the buckets that its visit has emptied where they cannot stay [vacant](super::vacant), and whose
    /// visit empties every part.
    Clearer(&'b mut Retired<'n>),
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Calls `visit` with the part of each live bucket that a range covers.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - a visitor other than [`Visitor::Walker`] is the only writer, and its batch, if it has one, came from this table;
    /// - the `visit` of a [`Visitor::Clearer`] empties every part with which it is called.
    pub(super) unsafe fn parts(
        &self,
        pages: Pages,
        visitor: Visitor<'_, 'n>,
        mut visit: impl FnMut(Part) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (first, last) = Self::blocks_of(0, pages);
        let _still = (!N::Mode::SHARED).then(|| Still::new(&self.visits));
        // A search for a block costs about as much as a read of a bucket.
        // SAFETY: by this function's contract the caller is pinned, or is the only writer, as `visitor` says.
        unsafe {
            if last - first < self.buckets() {
                self.visit_blocks(pages, visitor, &mut visit)
            } else {
                self.visit_buckets(pages, visitor, &mut visit)
            }
        }
    }

    /// Searches the bucket of every block of a range.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - a visitor other than [`Visitor::Walker`] is the only writer, and its batch, if it has one, came from this table;
    /// - the `visit` of a [`Visitor::Clearer`] empties every part with which it is called.
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
                // SAFETY: by this function's contract the caller is pinned, or the writer,
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
                        let (batch, clears) = match &mut visitor {
                            Visitor::Walker | Visitor::Writer => continue,
                            Visitor::Clearer(_) if Self::keeps(grain) && !self.must_sweep() => continue,
                            Visitor::Pruner(batch) => (batch, false),
                            Visitor::Clearer(batch) => (batch, true),
                        };
                        if clears && part.slots == Self::SLOTS || self.is_vacant(spot) {
                            self.take_out(batch, before, spot);
                        }
                    }
                }
            }
            if N::Mode::SHARED {
                // As in a lookup, small leaves are read before the larger leaves that may have replaced them.
                fence(Ordering::Acquire);
            }
        }
        ControlFlow::Continue(())
    }

    /// Reads every bucket of the table, segment by segment.
    ///
    /// The table may grow and shrink during the visit. The order is that of the directory's indices with their bits
    /// reversed. In this order a segment has all hashes from one place to another, and the segments into which it is split
    /// have the same hashes together. So all hashes before the current place have been visited, and none after it, however
    /// many segments there are now (Redis scans its tables in the same way). If a segment changes during its visit, it is
    /// visited again.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - a visitor other than [`Visitor::Walker`] is the only writer, and its batch, if it has one, came from this table;
    /// - the `visit` of a [`Visitor::Clearer`] empties every part with which it is called.
    unsafe fn visit_buckets(
        &self,
        pages: Pages,
        mut visitor: Visitor<'_, 'n>,
        visit: &mut impl FnMut(Part) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if S::LOAD == 0 {
            let array = NodeAddr::new(self.root() & !LOG);
            for at in 0..1 << S::BUCKETS_LOG {
                let head = Spot { node: array, at: at * Self::STRIDE };
                // SAFETY: by this function's contract the caller is pinned, or is the only writer; the bucket is in the
                // array.
                unsafe { self.visit_chain(head, pages, &mut visitor, visit) }?;
            }
            return ControlFlow::Continue(());
        }
        let mut place = 0u64;
        while place < 1 << 32 {
            // SAFETY: by this function's contract the caller is pinned, or is the only writer. The entry was loaded from the
            // directory, and a segment has a bucket for each number below `segment_of`.
            unsafe {
                let (root, entry) = self.entry_at(place as u32);
                let segment = Self::segment(entry);
                let before = self.version(segment);
                // `bits_of` is called before the visit. A merge stores one entry of the directory after the other. Buckets
                // that the visit does not read, because their entry still leads to another segment, must not count as
                // visited if that entry leads to this segment after the visit.
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

    /// Returns the root, and the entry of its directory whose index consists of the first bits of `place` in reversed order.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or is the only writer.
    unsafe fn entry_at(&self, place: u32) -> (usize, usize) {
        let root = self.root();
        // SAFETY: by this function's contract the caller is pinned, or the writer, as it
        // says.
        unsafe {
            let index = place.reverse_bits() as usize & ((1 << self.entries(root)) - 1);
            (root, self.entry(root, index))
        }
    }

    /// Returns the smallest number of low index bits such that all entries with these bits lead to the same segment as
    /// `entry`.
    ///
    /// The writer stores the entries with the same low bits in ascending order. So if the entry with the highest index leads
    /// to the segment, all of them do.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `root` was loaded while the caller was pinned, or by the writer;
    /// - `entry` was loaded from the directory of `root` at `place`.
    unsafe fn bits_of(&self, root: usize, place: u32, entry: usize) -> u32 {
        // SAFETY: by this function's contract the caller is pinned, or is the only writer; the index is below the entries.
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

    /// Visits the buckets that belong to the chain of `head`.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `head` is a first bucket of the table, or was when the caller was already pinned;
    /// - a visitor other than [`Visitor::Walker`] is the only writer, and its batch, if it has one, came from this table;
    /// - the `visit` of a [`Visitor::Clearer`] empties every part with which it is called.
    unsafe fn visit_chain(
        &self,
        head: Spot,
        pages: Pages,
        visitor: &mut Visitor<'_, 'n>,
        visit: &mut impl FnMut(Part) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut spot = Some(head);
        while let Some(here) = spot {
            // SAFETY: by this function's contract the caller is pinned, or the writer, as
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
        if let Visitor::Pruner(batch) | Visitor::Clearer(batch) = visitor {
            // SAFETY: by this function's contract the caller is the only writer.
            unsafe { self.tidy(batch, head) };
        }
        ControlFlow::Continue(())
    }

    /// Calls `visit` with every leaf and mark of a part, once each: the first slot of the part that holds it, its first
    /// address, and the entry.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `part` is a part of a bucket of the table, or was when the caller was already pinned.
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
            // SAFETY: by this function's contract the part is one of a bucket of the table, so its slots are in that bucket.
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

    /// Calls `visit` with the part of a range in each half of the address space, and again if pages have moved between
    /// grains during the call.
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
                // The writer stores a moved leaf in its new place, increments the count, and clears the old place. A visitor
                // that has read the new place too early and the old place too late sees the new count.
                fence(Ordering::Acquire);
                if self.grains.load(Ordering::Relaxed) / MOVE == before {
                    break;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Visits every leaf of a range within one half of the address space.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `pages` are in one half of the address space.
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

    /// Visits every leaf and mark of a range within one half of the address space.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is pinned, or is the only writer;
    /// - `pages` are in one half of the address space.
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
