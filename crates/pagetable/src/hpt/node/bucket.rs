//! Buckets that the writer may write, and those that no walker can reach yet.

use core::marker::PhantomData;
use core::ops::Deref;

use tlbkit_addr::VirtAddr;

use super::{Unit, Walk};
use crate::format::{Format, absent_beside, is_taken};
use crate::hpt::shape::{Shape as _, Spot};
use crate::hpt::tag::Tags as _;
use crate::hpt::{Hashed, Sizes};
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes, Stock, WordMut};
use crate::word::atomics::Ordering;
use crate::{Error, Geometry, Word};

/// A bucket that the only writer may write.
///
/// The unit is the first of its bucket. The holder has the right to write the bucket for `'a`.
pub(crate) struct Bucket<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes>(
    pub(super) Unit<'a, 'n, G, F, N, S>,
);

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Deref
    for Bucket<'a, 'n, G, F, N, S>
{
    type Target = Unit<'a, 'n, G, F, N, S>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// A word of a bucket.
pub(super) struct Place<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> {
    pub(super) table: &'a Hashed<'n, G, F, N, S>,
    pub(super) node: NodeAddr,
    /// The index of a word of the node, which is one of the bucket or a [`ChainLock`].
    pub(super) index: usize,
}

impl<'a, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Place<'a, '_, G, F, N, S> {
    #[inline(always)]
    fn word(&self) -> WordMut<'a, N> {
        // SAFETY: the node is live, and the word is in it. The holder is its only writer, or accesses it atomically: see `ChainLock`.
        unsafe { self.table.nodes.word_mut(self.node, self.index) }
    }

    /// Reads the word as the writer.
    #[inline(always)]
    pub(crate) fn read(&self) -> F::Word {
        self.word().read()
    }

    /// Stores the word without release.
    #[inline(always)]
    pub(crate) fn store_relaxed(&self, word: F::Word) {
        self.word().store_relaxed(word);
    }

    /// Stores the word after all stores before it.
    #[inline(always)]
    pub(crate) fn publish(&self, word: F::Word) {
        self.word().publish(word);
    }

    /// Replaces the word by the result of `change`, without release.
    #[inline(always)]
    pub(crate) fn edit(&self, change: impl Fn(F::Word) -> F::Word) {
        self.store_relaxed(change(self.read()));
    }
}

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Bucket<'a, 'n, G, F, N, S> {
    /// Returns the bucket whose first unit has a place.
    ///
    /// # Safety
    ///
    /// The place is the first unit of a bucket, in a node of the table that is not freed during `'a`. During `'a` the caller is the
    /// bucket's only writer.
    #[inline(always)]
    pub(crate) unsafe fn new(table: &'a Hashed<'n, G, F, N, S>, spot: Spot) -> Self {
        Self(Unit { walk: Walk { table, here: PhantomData }, spot })
    }

    /// Returns a word of the bucket.
    #[inline(always)]
    fn at(self, index: usize) -> Place<'a, 'n, G, F, N, S> {
        // The compiler knows that the numbers that come here are small enough.
        let index = self.0.spot.at + index.min(Self::NODE - 1);
        Place { table: self.0.walk.table, node: self.0.spot.node, index }
    }

    /// Returns the PTE in a slot of `block`, of which this is the bucket.
    #[inline(always)]
    pub(super) fn place(self, block: usize, slot: usize) -> Place<'a, 'n, G, F, N, S> {
        self.at(Self::pte(block, slot & (Self::SLOTS - 1)))
    }

    /// Returns the PTE for `at` in a bucket of base pages.
    #[inline(always)]
    fn page(self, at: VirtAddr) -> Place<'a, 'n, G, F, N, S> {
        self.place(Self::block(0, at), Self::slot(0, at))
    }

    /// Reads the tag of the first unit as the writer, unlike [`Unit::tag`]: it is no load of a walk, also where a lookup moves buckets.
    #[inline(always)]
    pub(crate) fn tag(self) -> usize {
        let low = self.at(0).read().to_usize();
        if Self::TAG == 1 { low } else { low | self.at(1).read().to_usize() << 16 << 16 }
    }

    /// Reads the PTE for `at` in a bucket of base pages.
    #[inline(always)]
    pub(crate) fn read(self, at: VirtAddr) -> F::Word {
        self.page(at).read()
    }

    /// Publishes the PTE for `at` in a bucket of base pages, and returns the one before.
    #[inline(always)]
    pub(crate) fn publish(self, at: VirtAddr, word: F::Word) -> F::Word {
        let old = self.page(at).read();
        self.page(at).publish(word);
        self.settle_pairs(0, Self::block(0, at));
        old
    }

    /// Replaces the PTE for `at` in a bucket of base pages by the result of `change`, which leads to the same frame.
    #[inline(always)]
    pub(crate) fn edit(self, at: VirtAddr, change: impl Fn(F::Word) -> F::Word) {
        self.page(at).edit(change);
        self.settle_pairs(0, Self::block(0, at));
    }

    /// Publishes the tags, of which the first is `tag`, after all stores to the bucket. Of a tag of two words it stores the half
    /// with the flags last.
    #[inline(always)]
    pub(crate) fn publish_tag(self, tag: usize) {
        if Self::TAG > 1 {
            self.at(0).store_relaxed(F::Word::from_usize(tag));
            return self.at(1).publish(F::Word::from_usize(tag >> 16 >> 16));
        }
        N::Mode::release();
        for unit in 0..Self::UNITS {
            let tag = F::Word::from_usize(tag ^ unit << Self::KEY_SHIFT);
            self.at(unit * Self::UNIT).store_relaxed(tag);
        }
    }

    /// Replaces the flags of the tags by `flag`.
    pub(crate) fn reflag(self, flag: usize) {
        self.publish_tag(Self::flagged(self.tag(), flag));
    }

    /// Returns the overflow bucket that follows in the chain.
    #[inline(always)]
    pub(crate) fn behind(self) -> Option<Self> {
        self.0.next().map(Self)
    }

    /// Returns this bucket and those behind it, as [`Unit::chain`] does.
    #[inline(always)]
    pub(crate) fn chain(self) -> impl Iterator<Item = Self> {
        self.0.chain().map(Self)
    }

    /// Links the bucket to the overflow bucket `behind`, or ends the chain if that is `None`. Each unit links to the unit of the
    /// same number.
    ///
    /// # Safety
    ///
    /// `behind` is a complete overflow bucket of the same table. After the change of which this store is a part, each overflow bucket
    /// is in one chain, or in the two chains of a pair that is joined; and no bucket is in a chain that has been retired.
    #[inline(always)]
    pub(crate) unsafe fn publish_link(self, behind: Option<Self>) {
        N::Mode::release();
        for unit in (0..Self::UNITS).map(|unit| unit * Self::UNIT) {
            let link = behind.map_or(0, |behind| behind.0.spot.node.get() + unit * F::Word::BYTES);
            self.at(unit + Self::LINK).store_relaxed(F::Word::from_usize(link));
        }
    }

    /// Returns the bucket with the tag `tag`: the search for one page, in the chain that begins with this bucket.
    #[inline(always)]
    pub(crate) fn find(self, tag: usize) -> Option<Self> {
        // In a chain of first units, each is the first of its bucket.
        self.0.probe().find(tag).map(Self)
    }

    /// Tells whether this first bucket of a chain may be assigned to the block of a live `tag` now.
    #[inline(always)]
    pub(crate) fn is_free(self, tag: usize) -> bool {
        let old = self.tag();
        old == 0 || old & Self::DEAD != 0 && self.0.walk.table.may_revive(old, tag)
    }

    /// Increments the [count](Unit::version) of the segment of this first bucket, before a change of the segment's chains.
    #[inline(always)]
    pub(crate) fn count_version(self) {
        // SAFETY: the segment is in the table, so its record exists and counts.
        let record = unsafe { &*self.0.walk.nodes.link(self.0.spot.node) };
        record.store(record.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Calls `visit` with the index of each unit's words from `first` up to the link.
    #[inline(always)]
    fn each_word(first: usize, visit: impl Fn(usize)) {
        for unit in 0..Self::UNITS {
            (first..Self::LINK).for_each(|word| visit(unit * Self::UNIT + word));
        }
    }

    /// Copies `from`, except its links, to this bucket, which no walker can reach.
    pub(crate) fn copy_contents(self, from: Self) {
        Self::each_word(0, |word| self.at(word).store_relaxed(from.at(word).read()));
    }

    /// Copies `from` into this free bucket, which no walker can match, and publishes the tag.
    pub(crate) fn move_contents(self, from: Self) {
        Self::each_word(Self::PTE, |word| self.at(word).store_relaxed(from.at(word).read()));
        self.publish_tag(from.tag());
    }

    /// Swaps the contents of two buckets, except the links, while no code but this one walks the table.
    pub(crate) fn swap_contents(self, other: Self) {
        Self::each_word(0, |word| {
            let old = self.at(word).read();
            self.at(word).store_relaxed(other.at(word).read());
            other.at(word).store_relaxed(old);
        });
    }

    /// Clears the bucket, which no walker can match, except its links.
    pub(crate) fn wipe(self) {
        Self::each_word(0, |word| self.at(word).store_relaxed(F::Word::ZERO));
    }

    /// Tells whether the bucket holds no leaf and no mark.
    #[inline(always)]
    pub(crate) fn is_vacant(self) -> bool {
        // Any order will do. Word by word, because a wider load would wait for the store that has just emptied a
        // slot; the last first, because most runs of pages are unmapped in ascending order.
        (0..Self::SLOTS).rev().all(|slot| !is_taken::<F>(self.place(0, slot).read()))
    }

    /// Tells whether the bucket of base pages holds no leaf and no mark but that of the page at `at`.
    #[inline(always)]
    pub(crate) fn has_only(self, at: VirtAddr) -> bool {
        let (block, own) = (Self::block(0, at), Self::slot(0, at));
        (0..Self::SLOTS).rev().all(|slot| slot == own || !is_taken::<F>(self.place(block, slot).read()))
    }

    /// Updates the words beside the leaves of the bucket of `block`, in a format in which two words are one TLB entry.
    #[inline(always)]
    pub(crate) fn settle_pairs(self, grain: usize, block: usize) {
        if !F::PAIRED {
            return;
        }
        for slot in 0..Self::SLOTS {
            let old = self.place(block, slot).read();
            if F::is_leaf(old, true) {
                continue;
            }
            // The partner in a TLB entry is as many slots away as its page fills. A mark keeps its bits.
            let mut wanted = F::absent(F::absent_bits(old));
            let mut away = 1;
            while away < Self::SLOTS {
                let word = self.place(block, slot ^ away).read();
                // `F::size` is defined for leaves only.
                if F::is_leaf(word, true)
                    && F::size(word, Self::GRAIN[grain]).pages(Self::GRAIN[grain]) == Some(away)
                {
                    wanted = absent_beside::<F>(word, wanted);
                }
                away *= 2;
            }
            if wanted != old {
                self.place(block, slot).publish(wanted);
            }
        }
    }
}

/// The lock of a chain, and of the one that is joined to it, in a table with several writers: a word in the padding of the first bucket.
///
/// A writer of one page has it during its change. A writer of the whole table does not take it, because there is no other writer then.
pub(crate) struct ChainLock<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes>(
    Place<'a, 'n, G, F, N, S>,
);

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Unit<'a, 'n, G, F, N, S> {
    /// Takes the lock of the chain that begins with this first unit of a first bucket, if it is free within a moment.
    ///
    /// A holder waits for nobody, so the lock is soon free, unless the caller has it.
    #[inline(always)]
    pub(crate) fn try_lock(self) -> Option<ChainLock<'a, 'n, G, F, N, S>> {
        let index = self.spot.at + Self::NODE.min(Self::STRIDE - 1);
        // The word is in the padding, which nothing else accesses. All accesses are atomic: those here and in `drop`.
        let place = Place { table: self.walk.table, node: self.spot.node, index };
        let try_once = || place.word().atomic().exchange(F::Word::ZERO, F::Word::from_usize(1)).is_ok();
        let is_taken = try_once() || !cfg!(tlbkit_loom) && (0..ATTEMPTS).any(|_| try_again(try_once));
        // A value for a lock that is not taken would give it back.
        if is_taken { Some(ChainLock(place)) } else { None }
    }
}

/// How often a writer tries to take the lock of a chain.
const ATTEMPTS: usize = 100;

#[cold]
fn try_again(attempt: impl Fn() -> bool) -> bool {
    core::hint::spin_loop();
    attempt()
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Drop for ChainLock<'_, '_, G, F, N, S> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.word().atomic().publish(F::Word::ZERO);
    }
}

/// An overflow bucket that no walker can reach yet.
///
/// If it is dropped, its node is leaked.
#[must_use = "its node is in no table: append it to a chain"]
pub(crate) struct Fresh<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes>(
    Bucket<'a, 'n, G, F, N, S>,
);

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Fresh<'a, 'n, G, F, N, S> {
    /// Takes an overflow bucket from the supply, or from the storage of the table if there is no supply. Returns `None` if there is
    /// none, or if the supply is of another storage. The caller counts it.
    #[inline(always)]
    pub(crate) fn take(
        table: &'a Hashed<'n, G, F, N, S>,
        supply: Option<&mut Supply<'n, G, F, N, S>>,
    ) -> Option<Self> {
        let node = match supply {
            None => table.nodes.take(Self::NODE)?,
            Some(supply) if core::ptr::eq(supply.stock.nodes(), table.nodes) => {
                supply.stock.next_sized(0, Self::NODE)?
            }
            Some(_) => return None,
        };
        // SAFETY: the node was taken with the words of an overflow bucket, and no other code knows it.
        Some(Self(unsafe { Bucket::new(table, Spot::node(node)) }))
    }

    /// Returns the bucket, to which a link will lead.
    #[inline(always)]
    pub(crate) fn into_bucket(self) -> Bucket<'a, 'n, G, F, N, S> {
        self.0
    }
}

/// Overflow buckets that are reserved for a change.
pub(crate) struct Supply<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> {
    stock: Stock<'n, N, 1>,
    /// How many blocks have no bucket yet, those that have claimed a first bucket included.
    pub(crate) blocks: usize,
    shape: PhantomData<(G, F, S)>,
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Supply<'n, G, F, N, S> {
    /// Takes `want` overflow buckets from the storage of a table, for a change of so many `blocks` without a bucket.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]. Then no bucket is taken.
    pub(crate) fn take(table: &Hashed<'n, G, F, N, S>, want: usize, blocks: usize) -> Result<Self, Error> {
        let stock = Stock::take(table.nodes, &[Hashed::<'n, G, F, N, S>::NODE], [want])?;
        Ok(Self { stock, blocks, shape: PhantomData })
    }
}
