//! The fast path: a change of one leaf in an existing node, with one check and one store. A map, an unmap, a protect
//! and a replace of a single page try it first, also a cursor's.
//!
//! ```text
//!   Slot    walk -> check -> store -> what to flush     the fast path
//!             \-> None: nothing has changed             the slow path makes the change, or returns the error
//! ```
//!
//! So these functions return no error, and take or retire no node. Only [`Slot::replace`] calls code that may unwind, its
//! `flush_all`, and only in formats that require break-before-make.

use tlbkit_addr::{Attr, Flush, FlushScope, Pages, Pfn, VirtAddr, Vpn};

use super::Mpt;
use super::leaf::Decode as _;
use super::node::{Place, Writing};
use super::shape::Shape;
use crate::format::{Format, check_attr, check_change, entry_word, fill_word, walked};
use crate::geometry::Checked as _;
use crate::node_locks::NodeLock;
use crate::nodes::Nodes;
use crate::pairs::stale;
use crate::replace::Filled;
use crate::{Change, Entry, FlushAll, Leaf, Mark, PageTurn, Radix, Word};

/// The slot of a page in a node of this table, from [`PageTurn::slot`].
///
/// Each change consumes the slot, and is all or nothing. `None` means that nothing has changed: make the change with a
/// [`Writer`](crate::Writer), which can store more than one word, or returns the error.
pub struct Slot<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    place: Place<'w, 'n, G, F, N>,
    page: Vpn,
    counting: Counting<'w>,
    /// See [`in_order`](Slot::in_order).
    in_order: bool,
}

/// Where the slot's PTE is counted.
#[derive(Clone, Copy)]
enum Counting<'w> {
    /// In the table's tally, beside other writers of the table if it has locks.
    Tally,
    /// Beside the lock that gives the right to change the slot; without one no other code writes the table.
    Lock(Option<&'w NodeLock>),
}

/// The flush that a change of one leaf needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "TLBs may hold translations of these pages"]
pub struct Stale {
    /// The flush scope.
    pub scope: FlushScope,
    /// The pages to flush.
    pub pages: Pages,
    /// Whether a sequentially consistent exchange has made the change, and no other word changed that a walker reads. Then no fence
    /// is needed between the change and a sequentially consistent load by which the writer finds out who walks: a CPU that announces
    /// itself by a sequentially consistent exchange which the load does not see, and executes a sequentially consistent fence before
    /// it walks, finds the change.
    pub in_order: bool,
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
    pub(crate) fn to(self, frame: Pfn) -> Option<F::Word> {
        // Checks the frame number. The check does not depend on the attributes.
        F::leaf(frame, F::BASE, Attr::READ, true).ok()?;
        Some(F::leading_to(self.0, frame))
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> PageTurn<'_, 'n, Mpt<'n, G, F, N>> {
    /// Returns the slot of the page in its last-level node. Returns `None` if there is no such node, if the page is borrowed, or if
    /// a dropped batch has left a debt, which only a batch can take up.
    ///
    /// Costs a walk.
    #[inline(always)]
    pub fn slot(&mut self) -> Option<Slot<'_, 'n, G, F, N>> {
        let (table, page, lock) = (self.table(), self.page(), self.lock());
        if table.nodes.held().has_debt(&table.flag) {
            return None;
        }
        Some(Slot { counting: Counting::Lock(lock), ..Slot::new(self.place()?, page) })
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'_, 'n, G, F, N> {
    /// Returns the slot of `page` in its last-level node, if there is such a node and the page is not borrowed.
    #[inline(always)]
    pub(super) fn slot(&mut self, page: Vpn) -> Option<Slot<'_, 'n, G, F, N>> {
        self.check_part(Pages::one(page)).ok()?;
        self.place(page).map(|place| Slot::new(place, page))
    }

    /// Returns the slot of a page in its last-level node, if `pages` is that page.
    #[inline(always)]
    pub(super) fn slot_of(&mut self, pages: Pages) -> Option<Slot<'_, 'n, G, F, N>> {
        if pages.first() == pages.last() { self.slot(pages.first()) } else { None }
    }
}

impl<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Slot<'w, 'n, G, F, N> {
    /// Returns the slot of a page in which a walk for the page ends. If the slot holds no leaf, it must be of the last level.
    #[inline(always)]
    pub(super) fn new(place: Place<'w, 'n, G, F, N>, page: Vpn) -> Self {
        Self { place, page, counting: Counting::Tally, in_order: false }
    }

    /// Adds to the number of PTEs.
    #[inline(always)]
    fn count(&self, by: isize) {
        match self.counting {
            Counting::Tally => self.table().count_ptes(by),
            Counting::Lock(lock) => self.table().count_ptes_by(lock, by),
        }
    }

    /// Makes an exchange of the entry of each change whose scope is [`FlushScope::Everywhere`], where hardware walks the table: the
    /// change takes the place of a fence ([`Stale::in_order`]). (In a format that requires break-before-make, [`replace`](Self::replace)
    /// stores in any case.)
    #[inline(always)]
    #[must_use]
    pub fn in_order(self) -> Self {
        Self { in_order: walked::<F>() && !F::PAIRED, ..self }
    }

    /// Stores a word in place of the leaf `seen`, and returns the old leaf with the status bits that hardware set before the store.
    #[inline(always)]
    fn exchange_leaf(&self, seen: F::Word, word: F::Word) -> F::Word {
        if self.in_order { self.place.swap_in_order(word) } else { self.place.exchange_leaf(seen, word) }
    }

    #[inline(always)]
    fn at(&self) -> VirtAddr {
        self.page.address(G::BASE)
    }

    #[inline(always)]
    fn level(&self) -> usize {
        self.place.node().level()
    }

    #[inline(always)]
    fn in_last(&self) -> bool {
        Self::is_last(self.level())
    }

    #[inline(always)]
    fn table(&self) -> &'w Mpt<'n, G, F, N> {
        self.place.node().table()
    }

    /// Returns the word in the slot, if it is a leaf that occupies no other slot.
    #[inline(always)]
    fn leaf_word(&self) -> Option<F::Word> {
        let word = self.place.read();
        (F::is_leaf(word, self.in_last()) && self.is_single(word)).then_some(word)
    }

    /// Tells whether a leaf in the slot occupies no other slot.
    #[inline(always)]
    fn is_single(&self, leaf: F::Word) -> bool {
        !Self::REPLICATED || F::size(leaf, Self::slot_size(self.level())) == G::BASE
    }

    #[inline(always)]
    fn decoded(&self, word: F::Word) -> Leaf {
        Self::leaf(word, self.level(), self.at())
    }

    /// Returns the flush that a change of the leaf needs.
    #[inline(always)]
    fn stale(&self, scope: FlushScope) -> Stale {
        let in_order = self.in_order && scope == FlushScope::Everywhere;
        if self.in_last() {
            return Stale { scope, pages: Pages::one(self.page), in_order };
        }
        let size = Self::slot_size(self.level());
        let count = Self::slot_pages(self.level());
        let first = Vpn::new(self.page.get() & !(count - 1));
        let pages = Pages::count(first, count).unwrap_or(Pages::one(self.page));
        Stale { scope, pages: stale::<G, F>(pages, |_| Some(size)), in_order }
    }

    /// Returns the leaf that maps the page, if the leaf occupies no other slot.
    #[inline(always)]
    pub fn look(&self) -> Option<Leaf> {
        self.leaf_word().map(|word| self.decoded(word))
    }

    /// Returns what the slot holds: a leaf, a mark or nothing; `None` if the leaf occupies other slots too.
    #[inline(always)]
    pub fn entry(&self) -> Option<Entry> {
        let word = self.place.read();
        match Mpt::<'n, G, F, N>::entry(word, self.level(), self.at()) {
            Entry::Leaf(leaf) => self.is_single(word).then_some(Entry::Leaf(leaf)),
            entry => Some(entry),
        }
    }

    /// Maps the page to `frame`, if its slot is empty.
    #[inline(always)]
    pub fn map(self, frame: Pfn, attr: Encoded<F>) -> Option<Stale> {
        let word = attr.to(frame)?;
        G::SPACE.check_frames(frame, 1, G::BASE).ok()?;
        if self.place.read() != F::Word::ZERO || !self.in_last() {
            return None;
        }
        self.place.publish(word);
        self.place.settle_pair();
        self.place.count_in();
        self.count(1);
        Some(self.stale(F::APPEARS))
    }

    /// Unmaps the leaf, unless it is the last one in its node, and returns it with the status bits that hardware set before the
    /// store.
    #[inline(always)]
    pub fn unmap(self) -> Option<(Leaf, Stale)> {
        let word = self.leaf_word()?;
        if !self.place.count_out_but_last() {
            return None;
        }
        let word =
            if self.in_order { self.place.swap_in_order(F::Word::ZERO) } else { self.place.take(word) };
        self.place.settle_pair();
        self.count(-1);
        Some((self.decoded(word), self.stale(FlushScope::Everywhere)))
    }

    /// Changes the attributes of the leaf, and returns the leaf as it was before.
    #[inline(always)]
    pub fn protect(self, change: Change) -> Option<(Leaf, Stale)> {
        check_change::<F>(change).ok()?;
        let word = self.leaf_word()?;
        let last = self.in_last();
        let exchanges = self.in_order && change.scope() == FlushScope::Everywhere;
        let old = match F::masks(change, last) {
            Some(masks) => self.place.amend_by(exchanges, word, |leaf| masks.apply(leaf)),
            // The few changes of a format with masks that have none are left to the slow path: this one then calls nothing.
            None if F::masks(Change::set(Attr::empty()), last).is_some() => return None,
            None => self.place.amend_by(exchanges, word, |leaf| F::change(leaf, change, last)),
        };
        if F::PAIRED && change.set.union(change.clear).contains(Attr::GLOBAL) {
            self.place.settle_pair();
        }
        Some((self.decoded(old), self.stale(change.scope())))
    }

    /// Stores a mark in the slot, which is a base page's, and returns what the slot held before, with the status bits that hardware set
    /// before the store.
    #[inline(always)]
    pub fn mark(self, mark: Mark) -> Option<(Entry, Stale)> {
        let word = entry_word::<F>(Some(mark)).ok()?;
        if !self.in_last() {
            return None;
        }
        let seen = self.place.read();
        let (was, scope) = match Mpt::<'n, G, F, N>::entry(seen, self.level(), self.at()) {
            Entry::Leaf(_) if self.is_single(seen) => {
                let was = self.exchange_leaf(seen, word);
                (Entry::Leaf(self.decoded(was)), FlushScope::Everywhere)
            }
            Entry::Leaf(_) => return None,
            // A frame waits for its flush there.
            Entry::Empty if seen != F::Word::ZERO => return None,
            was => {
                self.place.store_relaxed(word);
                if was == Entry::Empty {
                    self.place.count_in();
                    self.count(1);
                }
                (was, FlushScope::Nowhere)
            }
        };
        self.place.settle_pair();
        Some((was, self.stale(scope)))
    }

    /// Maps the page to `frame` in place of a mark with this payload, whose attributes the leaf gets.
    #[inline(always)]
    pub fn fill(self, payload: u64, frame: Pfn) -> Option<Stale> {
        G::SPACE.check_frames(frame, 1, G::BASE).ok()?;
        let held = Mpt::<'n, G, F, N>::entry(self.place.read(), self.level(), self.at());
        let word = fill_word::<F>(self.at(), held, payload, frame).ok()?;
        self.place.publish(word);
        self.place.settle_pair();
        Some(self.stale(F::APPEARS))
    }

    /// Replaces the leaf of a base page with one store, and returns the old leaf with the status bits that hardware set before
    /// that store.
    ///
    /// In formats that require break-before-make, empties the entry, calls `flush_all`, then stores the new leaf. If `flush_all`
    /// unwinds, the old leaf is stored again. Returns `None` there if `flush_all` allows no [break](FlushAll::breaking).
    #[inline(always)]
    pub fn replace(self, frame: Pfn, attr: Encoded<F>, flush_all: FlushAll<'_>) -> Option<(Leaf, Stale)> {
        let flush_all = flush_all.of(F::BREAK_FRAME).ok()?;
        if !self.in_last() {
            return None;
        }
        let new = attr.to(frame)?;
        G::SPACE.check_frames(frame, 1, G::BASE).ok()?;
        let old = self.leaf_word()?;
        let stale = self.stale(FlushScope::Everywhere);
        if F::BREAK_FRAME {
            let mut flush = Flush::none();
            flush.add(stale.scope, stale.pages);
            let old = self.place.take(old);
            self.place.settle_pair();
            // Hardware writes no status into an empty entry.
            let store = |word| {
                self.place.publish(word);
                self.place.settle_pair();
            };
            let mut filled = Filled { store, word: old };
            flush_all(&flush);
            filled.word = new;
            drop(filled);
            return Some((self.decoded(old), self.stale(F::APPEARS)));
        }
        let fixed = |word| F::attr(word, true).intersection(F::FIXED);
        if !F::FIXED.is_empty() && fixed(old) != fixed(new) {
            return None;
        }
        let old = self.exchange_leaf(old, new);
        self.place.settle_pair();
        Some((self.decoded(old), stale))
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> core::fmt::Debug for Slot<'_, '_, G, F, N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Slot").field("page", &self.page).field("leaf", &self.look()).finish_non_exhaustive()
    }
}
