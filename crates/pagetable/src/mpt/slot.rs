//! A change of one leaf in a node that exists: one check, one store. Every change of a single page tries this first, that of a
//! cursor too.
//!
//! ```text
//!   Slot    walk -> check -> store -> what to flush     the fast path
//!             \-> None: nothing has changed             the change of a range does it, or returns the error
//! ```
//!
//! So these functions return no error, and take and retire no node. Only one calls code that may unwind: the `known` of
//! [`Slot::replace_breaking`].

use tlbkit_addr::{Attr, Flush, FlushScope, Pages, Pfn, VirtAddr, Vpn};

use super::Mpt;
use super::leaf::Spot;
use super::shape::Shape;
use crate::format::{Format, check_attr, check_change};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::replace::Filled;
use crate::word::atomics::Ordering;
use crate::{Change, Entry, Leaf, Radix, Retired, Turn, Word};

/// The slot of a page in a node of this table, from [`Turn::slot`].
///
/// Each change consumes the slot, and is all or nothing. `None` means that nothing has changed: the same change by a
/// [`Writer`](crate::Writer) does more than one store, or returns the error.
pub struct Slot<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    table: &'w Mpt<'n, G, F, N>,
    spot: Spot,
    page: Vpn,
}

/// What a change of one leaf makes stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "TLBs may hold what it names"]
pub struct Stale {
    /// How far the change must be made known.
    pub scope: FlushScope,
    /// The pages.
    pub pages: Pages,
}

/// Attributes of base pages, encoded: one encoding for as many pages as have them, and none at run time where the attributes are
/// a constant.
#[derive(Debug)]
pub struct Encoded<F: Format>(
    /// The entry that leads to frame 0.
    F::Word,
);

impl<F: Format> Clone for Encoded<F> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Format> Copy for Encoded<F> {}

impl<F: Format> Encoded<F> {
    /// Encodes attributes; `None` if the format cannot express them.
    #[inline(always)]
    pub fn new(attr: Attr) -> Option<Self> {
        check_attr::<F>(attr).ok()?;
        F::leaf(Pfn::new(0), F::BASE, attr, true).ok().map(Self)
    }

    /// Returns the attributes: those that were encoded, and what the format gives to every entry that has them.
    #[inline]
    pub fn attr(self) -> Attr {
        F::attr(self.0, true)
    }

    /// Returns the entry that leads to `frame`.
    #[inline(always)]
    fn to(self, frame: Pfn) -> Option<F::Word> {
        // Whether there is such a frame has nothing to do with its attributes.
        F::leaf(frame, F::BASE, Attr::READ, true).ok()?;
        Some(F::leading_to(self.0, frame))
    }
}

impl Stale {
    /// Adds this to what a batch asks for.
    #[inline(always)]
    pub(super) fn add_to(self, batch: &mut Retired<'_>) {
        batch.touch(self.scope, self.pages);
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Turn<'_, 'n, Mpt<'n, G, F, N>> {
    /// Returns the slot of `page` in its last-level node. `None` if there is no such node, if the page is borrowed, or if the table
    /// owes a flush, which only a batch takes up.
    ///
    /// Costs a walk.
    #[inline(always)]
    pub fn slot(&mut self, page: Vpn) -> Option<Slot<'_, 'n, G, F, N>> {
        let table = self.table();
        // SAFETY: the slot borrows the right to write.
        if table.nodes.held().is_owed() { None } else { unsafe { table.small_slot(page) } }
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Returns the slot of a page in its last-level node.
    ///
    /// # Safety
    ///
    /// The caller is the only writer as long as there is the slot.
    #[inline(always)]
    pub(super) unsafe fn small_slot(&self, page: Vpn) -> Option<Slot<'_, 'n, G, F, N>> {
        let top = Self::top(page)?;
        self.check_own(Pages::one(page)).ok()?;
        let (at, last) = (page.address(G::BASE), Self::LEVELS - 1);
        let mut node = self.root;
        // The walk to the node, not to the word in it.
        for level in 0..last {
            let index = if level == 0 { top } else { Self::index(level, at) };
            // SAFETY: the node is linked, and the caller is the writer.
            let word = unsafe { self.read(node, Self::place(level, index)) };
            if !F::is_link(word) {
                return None;
            }
            node = F::node(word);
        }
        Some(Slot { table: self, spot: Spot { node, level: last }, page })
    }

    /// Returns the slot of a page, whose walk ends in `spot`. Unless a leaf is there, it is of the last level.
    ///
    /// # Safety
    ///
    /// As for [`small_slot`](Self::small_slot); the page is in the space, and the walk for it ends there now.
    #[inline(always)]
    pub(super) unsafe fn slot_at(&self, spot: Spot, page: Vpn) -> Option<Slot<'_, 'n, G, F, N>> {
        self.check_own(Pages::one(page)).ok()?;
        Some(Slot { table: self, spot, page })
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Slot<'_, 'n, G, F, N> {
    #[inline(always)]
    fn at(&self) -> VirtAddr {
        self.page.address(G::BASE)
    }

    #[inline(always)]
    fn is_last(&self) -> bool {
        self.spot.level + 1 == Mpt::<'n, G, F, N>::LEVELS
    }

    #[inline(always)]
    fn index(&self) -> usize {
        Mpt::<'n, G, F, N>::index(self.spot.level, self.at())
    }

    #[inline(always)]
    fn place(&self) -> usize {
        Mpt::<'n, G, F, N>::place(self.spot.level, self.index())
    }

    /// Returns the word in the slot, if that is a leaf and the leaf is in no other slot.
    #[inline(always)]
    fn leaf_word(&self) -> Option<F::Word> {
        // SAFETY: the place is in the node, and the slot borrows the writer.
        let word = unsafe { self.table.read(self.spot.node, self.place()) };
        (F::is_leaf(word, self.is_last()) && self.is_single(word)).then_some(word)
    }

    /// Tells whether a leaf in the slot is in no other slot.
    #[inline(always)]
    fn is_single(&self, leaf: F::Word) -> bool {
        !Mpt::<'n, G, F, N>::REPLICATED
            || F::size(leaf, Mpt::<'n, G, F, N>::slot_size(self.spot.level)) == G::BASE
    }

    #[inline(always)]
    fn leaf(&self, word: F::Word) -> Leaf {
        Mpt::<'n, G, F, N>::leaf(word, self.spot.level, self.at())
    }

    /// Returns what a change of the leaf makes stale.
    #[inline(always)]
    fn stale(&self, scope: FlushScope) -> Stale {
        if self.is_last() {
            return Stale { scope, pages: Pages::one(self.page) };
        }
        let size = Mpt::<'n, G, F, N>::slot_size(self.spot.level);
        let count = Mpt::<'n, G, F, N>::slot_pages(self.spot.level);
        let first = Vpn::new(self.page.get() & !(count - 1));
        let pages = Pages::count(first, count).unwrap_or(Pages::one(self.page));
        Stale { scope, pages: stale::<G, F>(pages, |_| Some(size)) }
    }

    /// Makes the two words of a TLB entry agree after this one has changed.
    #[inline(always)]
    fn settle_pair(&self) {
        // SAFETY: the slot is in the node, and borrows the writer.
        unsafe { self.table.settle_pair(self.spot.node, self.spot.level, self.index()) };
    }

    /// Returns the leaf that maps the page, if the leaf is in no other slot.
    #[inline(always)]
    pub fn look(&self) -> Option<Leaf> {
        self.leaf_word().map(|word| self.leaf(word))
    }

    /// Returns what the slot holds: a leaf, a mark or nothing; `None` if the leaf is in other slots too.
    #[inline(always)]
    pub fn entry(&self) -> Option<Entry> {
        // SAFETY: the place is in the node, and the slot borrows the writer.
        let word = unsafe { self.table.read(self.spot.node, self.place()) };
        match Mpt::<'n, G, F, N>::entry(word, self.spot.level, self.at()) {
            Entry::Leaf(leaf) => self.is_single(word).then_some(Entry::Leaf(leaf)),
            entry => Some(entry),
        }
    }

    /// Maps the page to `frame`, if its slot is empty.
    #[inline(always)]
    pub fn map(self, frame: Pfn, attr: Encoded<F>) -> Option<Stale> {
        let word = attr.to(frame)?;
        G::SPACE.check_frames(frame, 1, G::BASE).ok()?;
        let Spot { node, level } = self.spot;
        // SAFETY: the place is in the node, which is ours to write.
        unsafe {
            if self.table.read(node, self.place()) != F::Word::ZERO || !self.is_last() {
                return None;
            }
            self.table.publish(node, self.place(), word);
            self.settle_pair();
            self.table.add_live(node, level, self.index(), 1);
        }
        self.table.tally.ptes(1);
        Some(self.stale(F::APPEARS))
    }

    /// Unmaps the leaf, unless it is the last one in its node, and returns it with what hardware has noted up to the store.
    #[inline(always)]
    pub fn unmap(self) -> Option<(Leaf, Stale)> {
        let word = self.leaf_word()?;
        let Spot { node, level } = self.spot;
        // SAFETY: the node is in the table, and only its writer changes its record and its words.
        let word = unsafe {
            let record = &*self.table.nodes.record(node, Mpt::<'n, G, F, N>::words(level));
            let rest = record.load(Ordering::Relaxed).wrapping_sub(1);
            if level > 0 && Mpt::<'n, G, F, N>::live_of(rest, level) == 0 {
                return None;
            }
            record.store(rest, Ordering::Relaxed);
            self.table.take(node, self.place(), word)
        };
        self.settle_pair();
        self.table.tally.ptes(-1);
        Some((self.leaf(word), self.stale(FlushScope::Everywhere)))
    }

    /// Changes the attributes of the leaf, and returns it as it was.
    #[inline(always)]
    pub fn protect(self, change: Change) -> Option<(Leaf, Stale)> {
        check_change::<F>(change).ok()?;
        let word = self.leaf_word()?;
        let changed = |leaf| F::change(leaf, change, self.is_last());
        // SAFETY: the place is in the node, and the slot borrows the only writer but hardware.
        let old = unsafe { self.table.amend(self.spot.node, self.place(), word, changed) };
        if F::PAIRED && change.set.union(change.clear).contains(Attr::GLOBAL) {
            self.settle_pair();
        }
        Some((self.leaf(old), self.stale(change.scope())))
    }

    /// Replaces the leaf, a base page, by another one, in one store, and returns the old one with what hardware has noted up to
    /// that store. Never where the hardware wants break before make.
    #[inline(always)]
    pub fn replace(self, frame: Pfn, attr: Encoded<F>) -> Option<(Leaf, Stale)> {
        if F::BREAK_FRAME || !self.is_last() {
            return None;
        }
        let new = attr.to(frame)?;
        G::SPACE.check_frames(frame, 1, G::BASE).ok()?;
        let old = self.leaf_word()?;
        let fixed = |word| F::attr(word, true).intersection(F::FIXED);
        if !F::FIXED.is_empty() && fixed(old) != fixed(new) {
            return None;
        }
        // SAFETY: the place is in the node, and the slot borrows the only writer but hardware.
        let old = unsafe { self.table.exchange_leaf(self.spot.node, self.place(), old, new) };
        self.settle_pair();
        Some((self.leaf(old), self.stale(FlushScope::Everywhere)))
    }

    /// Replaces the leaf, a base page, by way of an empty entry, and returns the old one with what hardware has noted up to the
    /// first store. `known` makes known in between that the page is gone; if that unwinds, the old leaf is back.
    ///
    /// # Safety
    ///
    /// As for [`Writer::replace_breaking`](crate::Writer::replace_breaking).
    #[inline(always)]
    pub unsafe fn replace_breaking(
        self,
        frame: Pfn,
        attr: Encoded<F>,
        known: impl FnOnce(&Flush),
    ) -> Option<(Leaf, Stale)> {
        if !self.is_last() {
            return None;
        }
        let new = attr.to(frame)?;
        G::SPACE.check_frames(frame, 1, G::BASE).ok()?;
        let seen = self.leaf_word()?;
        let stale = self.stale(FlushScope::Everywhere);
        let mut flush = Flush::none();
        flush.add(stale.scope, stale.pages);
        // SAFETY: the place is in the node, and the slot borrows the only writer but hardware.
        let old = unsafe { self.table.take(self.spot.node, self.place(), seen) };
        self.settle_pair();
        let store = |word| {
            // SAFETY: the place is in the node, and the slot borrows the only writer. Hardware writes no status
            // into an empty entry.
            unsafe { self.table.publish(self.spot.node, self.place(), word) };
            self.settle_pair();
        };
        let mut filled = Filled { store, word: old };
        known(&flush);
        filled.word = new;
        drop(filled);
        Some((self.leaf(old), self.stale(F::APPEARS)))
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> core::fmt::Debug for Slot<'_, '_, G, F, N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Slot").field("page", &self.page).field("leaf", &self.look()).finish_non_exhaustive()
    }
}
