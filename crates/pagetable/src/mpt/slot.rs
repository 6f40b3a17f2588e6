//! The fast path: a change of one leaf in an existing node, with one check and one store. Every change of a single page tries it
//! first, also a cursor's.
//!
//! ```text
//!   Slot    walk -> check -> store -> what to flush     the fast path
//!             \-> None: nothing has changed             the slow path makes the change, or returns the error
//! ```
//!
//! So these functions return no error, and take or retire no node. Only [`Slot::replace_breaking`] calls code that may unwind,
//! its `flush_all_cpus`.

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
/// Each change consumes the slot, and is all or nothing. `None` means that nothing has changed: make the change with a
/// [`Writer`](crate::Writer), which can store more than one word, or returns the error.
pub struct Slot<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    table: &'w Mpt<'n, G, F, N>,
    spot: Spot,
    page: Vpn,
}

/// The flush that a change of one leaf needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "TLBs may hold translations of these pages"]
pub struct Stale {
    /// The flush scope.
    pub scope: FlushScope,
    /// The pages to flush.
    pub pages: Pages,
}

/// Attributes of base pages, encoded once for any number of pages. The compiler evaluates the encoding if the attributes are a
/// constant.
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

    /// Returns the attributes that were encoded, and those that the format adds to every entry with them.
    #[inline]
    pub fn attr(self) -> Attr {
        F::attr(self.0, true)
    }

    /// Returns the entry that leads to `frame`.
    #[inline(always)]
    fn to(self, frame: Pfn) -> Option<F::Word> {
        // Checks the frame number. The check does not depend on the attributes.
        F::leaf(frame, F::BASE, Attr::READ, true).ok()?;
        Some(F::leading_to(self.0, frame))
    }
}

impl Stale {
    /// Adds this flush to a batch.
    #[inline(always)]
    pub(super) fn add_to(self, batch: &mut Retired<'_>) {
        batch.touch(self.scope, self.pages);
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Turn<'_, 'n, Mpt<'n, G, F, N>> {
    /// Returns the slot of `page` in its last-level node. Returns `None` if there is no such node, if the page is borrowed, or if
    /// a dropped batch has left a debt, which only a batch can take up.
    ///
    /// Costs a walk.
    #[inline(always)]
    pub fn slot(&mut self, page: Vpn) -> Option<Slot<'_, 'n, G, F, N>> {
        let table = self.table();
        // SAFETY: the slot borrows the right to write.
        if table.nodes.held().is_owed(&table.flag) { None } else { unsafe { table.small_slot(page) } }
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Returns the slot of a page in its last-level node.
    ///
    /// # Safety
    ///
    /// The caller is the only writer as long as the slot exists.
    #[inline(always)]
    pub(super) unsafe fn small_slot(&self, page: Vpn) -> Option<Slot<'_, 'n, G, F, N>> {
        let top = Self::top(page)?;
        if self.borrows(page) {
            return None;
        }
        let (at, last) = (page.address(G::BASE), Self::LEVELS - 1);
        let mut node = self.root;
        // Walks to the node without loading the word in it.
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

    /// Returns the slot of a page whose walk ends in `spot`. If the slot holds no leaf, it must be of the last level.
    ///
    /// # Safety
    ///
    /// The caller is the only writer as long as the slot exists. The page is in the space, and the walk for it ends in `spot`.
    #[inline(always)]
    pub(super) unsafe fn slot_at(&self, spot: Spot, page: Vpn) -> Option<Slot<'_, 'n, G, F, N>> {
        if self.borrows(page) { None } else { Some(Slot { table: self, spot, page }) }
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

    /// Returns the word in the slot, if it is a leaf that occupies no other slot.
    #[inline(always)]
    fn leaf_word(&self) -> Option<F::Word> {
        // SAFETY: the place is in the node, and the slot borrows the writer.
        let word = unsafe { self.table.read(self.spot.node, self.place()) };
        (F::is_leaf(word, self.is_last()) && self.is_single(word)).then_some(word)
    }

    /// Tells whether a leaf in the slot occupies no other slot.
    #[inline(always)]
    fn is_single(&self, leaf: F::Word) -> bool {
        !Mpt::<'n, G, F, N>::REPLICATED
            || F::size(leaf, Mpt::<'n, G, F, N>::slot_size(self.spot.level)) == G::BASE
    }

    #[inline(always)]
    fn leaf(&self, word: F::Word) -> Leaf {
        Mpt::<'n, G, F, N>::leaf(word, self.spot.level, self.at())
    }

    /// Returns the flush that a change of the leaf needs.
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

    /// Makes the two words of a TLB entry agree after the word in this slot has changed.
    #[inline(always)]
    fn settle_pair(&self) {
        // SAFETY: the slot is in the node, and borrows the writer.
        unsafe { self.table.settle_pair(self.spot.node, self.spot.level, self.index()) };
    }

    /// Returns the leaf that maps the page, if the leaf occupies no other slot.
    #[inline(always)]
    pub fn look(&self) -> Option<Leaf> {
        self.leaf_word().map(|word| self.leaf(word))
    }

    /// Returns what the slot holds: a leaf, a mark or nothing; `None` if the leaf occupies other slots too.
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
        // SAFETY: the place is in the node, and the slot borrows the writer.
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

    /// Unmaps the leaf, unless it is the last one in its node, and returns it with the status bits that hardware set before the
    /// store.
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

    /// Changes the attributes of the leaf, and returns the leaf as it was before.
    #[inline(always)]
    pub fn protect(self, change: Change) -> Option<(Leaf, Stale)> {
        check_change::<F>(change).ok()?;
        let word = self.leaf_word()?;
        let (node, last) = (self.spot.node, self.is_last());
        // SAFETY: the place is in the node, and the slot borrows the only writer but hardware.
        let old = unsafe {
            match F::masks(change, last) {
                Some(masks) => self.table.amend(node, self.place(), word, |leaf| masks.apply(leaf)),
                None => self.table.amend(node, self.place(), word, |leaf| F::change(leaf, change, last)),
            }
        };
        if F::PAIRED && change.set.union(change.clear).contains(Attr::GLOBAL) {
            self.settle_pair();
        }
        Some((self.leaf(old), self.stale(change.scope())))
    }

    /// Replaces the leaf of a base page with one store, and returns the old leaf with the status bits that hardware set before
    /// that store. Returns `None` in formats that require break-before-make.
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

    /// Empties the entry of a base page, calls `flush_all_cpus`, then stores the new leaf. Returns the old leaf with the status
    /// bits that hardware set before the first store. If `flush_all_cpus` unwinds, the old leaf is stored again.
    ///
    /// # Safety
    ///
    /// As for [`Writer::replace_breaking`](crate::Writer::replace_breaking).
    #[inline(always)]
    pub unsafe fn replace_breaking(
        self,
        frame: Pfn,
        attr: Encoded<F>,
        flush_all_cpus: impl FnOnce(&Flush),
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
        flush_all_cpus(&flush);
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
