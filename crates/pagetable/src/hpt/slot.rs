//! The fast path of several writers: a change of one base page in its chain, by the holder of the right to write that page.
//!
//! ```text
//!   PageTurn   the lock of the page's 2 MiB
//!     slot()   the lock of its chain -> search -> store -> what to flush
//!                \-> None: nothing has changed             the writer of the whole table makes the change, or returns the error
//! ```
//!
//! A change touches the words of the chain, takes a node from the storage if the page's block needs one, and counts beside the lock. It
//! returns `None` where more is necessary: if the table is to grow or shrink, if a bucket would have to be taken out, or if a larger page may
//! be in the way.

use core::fmt;

use tlbkit_addr::{FlushScope, Pages, Pfn, VirtAddr, Vpn};

use super::node::{Bucket, ChainLock, Span};
use super::shape::Shape as _;
use super::tag::Tags as _;
use super::{Hashed, Sizes};
use crate::format::{Format, check_change, entry_word, fill_word, is_taken};
use crate::geometry::Checked as _;
use crate::mode::Mode;
use crate::mpt::{Encoded, Stale};
use crate::node_locks::{Count, NodeLock};
use crate::nodes::Nodes;
use crate::replace::{exchange, replacement};
use crate::word::atomics::Ordering;
use crate::{Change, Entry, FlushAll, Geometry, Leaf, Mark, PageTurn, Word};

/// The slot of a page in the chain of its block, from [`PageTurn::slot`].
///
/// Each change consumes the slot, and is all or nothing. `None` means that nothing has changed: make the change with a
/// [`Writer`](crate::Writer) of the whole table, or get the error from it.
pub struct Slot<'w, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> {
    /// The first bucket of the chain.
    head: Bucket<'w, 'n, G, F, N, S>,
    page: Vpn,
    /// The lock of the page's 2 MiB, beside which the change is counted.
    lock: &'w NodeLock,
    /// Is given back after the change.
    _chain: ChainLock<'w, 'n, G, F, N, S>,
}

/// A bucket, and the word in it of the page's leaf.
type Held<'w, 'n, G, F, N, S> = (Bucket<'w, 'n, G, F, N, S>, <F as Format>::Word);

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes>
    PageTurn<'_, 'n, Hashed<'n, G, F, N, S>>
{
    /// Returns the slot of the page. Returns `None` if the table has no [locks](Hashed::with_locks), if the page is not in the address
    /// space, if another slot of the page's chain exists, or if a dropped batch has left a debt, which only a batch can take up.
    ///
    /// Costs an exchange, and the way to the chain.
    #[inline(always)]
    pub fn slot(&mut self) -> Option<Slot<'_, 'n, G, F, N, S>> {
        let (table, page, lock) = (self.table(), self.page(), self.lock()?);
        if !G::SPACE.has(page) || table.nodes.held().has_debt(&table.flag) {
            return None;
        }
        let (head, chain) = self.chain()?;
        Some(Slot { head, page, lock, _chain: chain })
    }
}

impl<'w, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Slot<'w, 'n, G, F, N, S> {
    #[inline(always)]
    fn at(&self) -> VirtAddr {
        self.page.address(G::BASE)
    }

    /// Returns the bucket of the page's block.
    #[inline(always)]
    fn bucket(&self) -> Option<Bucket<'w, 'n, G, F, N, S>> {
        self.head.find(Self::tag_of(0, Self::block(0, self.at())))
    }

    /// Returns the bucket with the leaf that maps the page and no other one, and the leaf.
    #[inline(always)]
    fn leaf(&self) -> Option<Held<'w, 'n, G, F, N, S>> {
        let bucket = self.bucket()?;
        let word = bucket.read(self.at());
        (F::is_leaf(word, true) && Self::size(word, 0) == G::BASE).then_some((bucket, word))
    }

    #[inline(always)]
    fn decoded(&self, word: F::Word) -> Leaf {
        Self::leaf_of(word, G::BASE, self.at())
    }

    #[inline(always)]
    fn stale(&self, scope: FlushScope) -> Stale {
        Stale { scope, pages: Pages::one(self.page), in_order: false }
    }

    /// Returns the leaf that maps the page and no other one.
    #[inline(always)]
    pub fn look(&self) -> Option<Leaf> {
        self.leaf().map(|(_, word)| self.decoded(word))
    }

    /// Returns what the page's entry holds: a leaf, a mark or nothing; `None` if a larger page may map it.
    #[inline(always)]
    pub fn entry(&self) -> Option<Entry> {
        let word = self.bucket().map_or(F::Word::ZERO, |bucket| bucket.read(self.at()));
        match Self::decode(word, 0, self.at()) {
            Entry::Leaf(leaf) => (leaf.size == G::BASE).then_some(Entry::Leaf(leaf)),
            Entry::Empty => self.head.table().is_finest().then_some(Entry::Empty),
            mark => Some(mark),
        }
    }

    /// Maps the page to `frame`, if nothing is there.
    #[inline(always)]
    pub fn map(self, frame: Pfn, attr: Encoded<F>) -> Option<Stale> {
        let word = attr.to(frame)?;
        G::SPACE.check_frames(frame, 1, G::BASE).ok()?;
        self.store_new(word)?;
        Some(self.stale(F::APPEARS))
    }

    /// Stores an entry where nothing is.
    #[inline(always)]
    fn store_new(&self, word: F::Word) -> Option<()> {
        let (table, at) = (self.head.table(), self.at());
        if let Some(bucket) = self.bucket() {
            if is_taken::<F>(bucket.read(at)) {
                return None;
            }
            self.occupy(bucket);
            bucket.publish(at, word);
        } else {
            // Only in buckets of base pages there is nothing in the way.
            if !table.is_finest() || !self.may_take() {
                return None;
            }
            let block = Self::block(0, at);
            let span = Span { grain: 0, block, slot: Self::slot(0, at), count: 1 };
            let is_free = self.head.is_free(Self::tag_of(0, block));
            N::Mode::release();
            if !self.head.begin(is_free, None, Some(self.lock), span, |_| word) {
                return None;
            }
        }
        self.lock.count(Count::Ptes, 1);
        Some(())
    }

    /// Tells whether the change may take a bucket into use.
    #[inline(always)]
    fn may_take(&self) -> bool {
        S::LOAD == 0 || self.head.table().may_put_off(self.lock.counted(Count::Buckets), false)
    }

    /// Counts a bucket as no longer vacant, if it is, before an entry is stored in it.
    #[inline(always)]
    fn occupy(&self, bucket: Bucket<'w, 'n, G, F, N, S>) {
        // Both are 0 only if no bucket of the pages with this lock is vacant: at least 0 of those that the table counts are theirs.
        let may_be =
            || bucket.table().vacant.load(Ordering::Relaxed) != 0 || self.lock.counted(Count::Vacant) != 0;
        if Self::keeps(0) && may_be() && bucket.is_vacant() {
            self.lock.count(Count::Vacant, -1);
        }
    }

    /// Unmaps the leaf, and returns it. Returns `None` if a bucket would have to be taken out.
    #[inline(always)]
    pub fn unmap(self) -> Option<(Leaf, Stale)> {
        let (bucket, word) = self.leaf()?;
        let empties = bucket.has_only(self.at());
        if empties && !self.may_empty() {
            return None;
        }
        bucket.publish(self.at(), F::Word::ZERO);
        if empties {
            self.lock.count(Count::Vacant, 1);
        }
        self.lock.count(Count::Ptes, -1);
        Some((self.decoded(word), self.stale(FlushScope::Everywhere)))
    }

    /// Tells whether the change may leave a bucket vacant.
    #[inline(always)]
    fn may_empty(&self) -> bool {
        Self::keeps(0) && self.head.table().may_put_off(self.lock.counted(Count::Vacant), true)
    }

    /// Changes the attributes of the leaf, and returns the leaf as it was before.
    #[inline(always)]
    pub fn protect(self, change: Change) -> Option<(Leaf, Stale)> {
        check_change::<F>(change).ok()?;
        let (bucket, word) = self.leaf()?;
        bucket.edit(self.at(), |word| F::change(word, change, true));
        Some((self.decoded(word), self.stale(change.scope())))
    }

    /// Stores a mark in the page's entry, and returns what it held before.
    #[inline(always)]
    pub fn mark(self, mark: Mark) -> Option<(Entry, Stale)> {
        let word = entry_word::<F>(Some(mark)).ok()?;
        let old = self.entry()?;
        if old == Entry::Empty {
            self.store_new(word)?;
        } else {
            self.bucket()?.publish(self.at(), word);
        }
        let scope = if let Entry::Leaf(_) = old { FlushScope::Everywhere } else { FlushScope::Nowhere };
        Some((old, self.stale(scope)))
    }

    /// Maps the page to `frame` in place of a mark with this payload, whose attributes the leaf gets.
    #[inline(always)]
    pub fn fill(self, payload: u64, frame: Pfn) -> Option<Stale> {
        G::SPACE.check_frames(frame, 1, G::BASE).ok()?;
        let bucket = self.bucket()?;
        let held = Self::decode(bucket.read(self.at()), 0, self.at());
        let word = fill_word::<F>(self.at(), held, payload, frame).ok()?;
        bucket.publish(self.at(), word);
        Some(self.stale(F::APPEARS))
    }

    /// Replaces the leaf, and returns the old one: see [`mpt::Slot::replace`](crate::mpt::Slot::replace).
    #[inline(always)]
    pub fn replace(self, frame: Pfn, attr: Encoded<F>, flush_all: FlushAll<'_>) -> Option<(Leaf, Stale)> {
        let flush_all = flush_all.of(F::BREAK_FRAME).ok()?;
        let (bucket, word) = self.leaf()?;
        let old = self.decoded(word);
        let new = replacement::<G, F>(&old, frame, attr.attr(), true).ok()?;
        exchange::<F>(|word| bucket.publish(self.at(), word), new, Pages::one(self.page), flush_all);
        let scope = if F::BREAK_FRAME { F::APPEARS } else { FlushScope::Everywhere };
        Some((old, self.stale(scope)))
    }
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> fmt::Debug for Slot<'_, '_, G, F, N, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("page", &self.page).field("leaf", &self.look()).finish_non_exhaustive()
    }
}
