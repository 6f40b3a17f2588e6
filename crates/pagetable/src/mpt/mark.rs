//! Entries that hold a mark instead of a leaf.
//!
//! ```text
//!             mark                     fill
//!   leaf ------------> mark --------------------> leaf       one store each
//!     one store; TLBs are flushed      no TLB has it, as if it were mapped where nothing was
//! ```

use tlbkit_addr::{FlushScope, Pages, Pfn, VirtAddr};

use super::leaf::Spot;
use super::shape::{MAX, Shape};
use super::{Mpt, own_pages};
use crate::format::{Format, entry_word, fill_word, mark_of, walked};
use crate::geometry::Checked as _;
use crate::nodes::{NodeAddr, Nodes, Stock};
use crate::{Entry, Error, Leaf, Mark, Radix, Retired, Word};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Decodes a word in a slot of `level` that is no link.
    #[inline(always)]
    pub(super) fn entry(word: F::Word, level: usize, at: VirtAddr) -> Entry {
        let last = level + 1 == Self::LEVELS;
        if F::is_leaf(word, last) {
            Entry::Leaf(Self::leaf(word, level, at))
        } else if last {
            mark_of::<F>(word).into()
        } else {
            Entry::Empty
        }
    }

    /// Tells whether a word in a slot of `level` is a mark.
    #[inline(always)]
    pub(super) fn is_mark(word: F::Word, level: usize) -> bool {
        // An empty word is the common case.
        word != F::Word::ZERO && Self::entry(word, level, VirtAddr::new(0)).mark().is_some()
    }

    /// Returns what the walk for `at` finds in its last slot.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the walk for `at` ends in `spot`.
    #[inline(always)]
    pub(super) unsafe fn entry_at(&self, spot: Spot, at: VirtAddr) -> Entry {
        // SAFETY: by this function's contract the caller is the only writer, and the walk for `at` ends in the spot.
        unsafe {
            let (word, _) = self.word_at(spot, at);
            self.entry_in(spot.node, word, spot.level, at)
        }
    }

    /// See [`Table::mark`](crate::Table::mark).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and `at` is in the space.
    pub(super) unsafe fn mark_page(
        &self,
        batch: &mut Retired<'n>,
        at: VirtAddr,
        mark: Option<Mark>,
    ) -> Result<Entry, Error> {
        let word = entry_word::<F>(mark)?;
        self.check_own(Pages::one(at.vpn(G::BASE)))?;
        // SAFETY: the caller is the writer.
        unsafe {
            let spot = self.spot(at);
            match self.entry_at(spot, at) {
                Entry::Leaf(occupant) if occupant.size != G::BASE => Err(Error::partial(&occupant)),
                Entry::Leaf(_) => {
                    let old = self.mark_leaf(batch, spot, at, word);
                    if mark.is_none() {
                        self.count_out(batch, spot, at);
                    }
                    Ok(Entry::Leaf(old))
                }
                Entry::Empty if mark.is_none() => Ok(Entry::Empty),
                Entry::Empty => self.mark_empty(batch, spot, at, word).map(|()| Entry::Empty),
                Entry::Mark(old) => {
                    self.store_mark(spot, at, word);
                    if mark.is_none() {
                        self.count_out(batch, spot, at);
                    }
                    Ok(Entry::Mark(old))
                }
            }
        }
    }

    /// Subtracts a removed entry from the counts, and retires the nodes that become empty.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and the walk for `at` ends in `spot`.
    unsafe fn count_out(&self, batch: &mut Retired<'n>, spot: Spot, at: VirtAddr) {
        self.tally.ptes(-1);
        // SAFETY: the caller is the writer.
        unsafe {
            if self.sub_live(spot.node, spot.level, 1) == 0 && spot.level > 0 {
                self.prune(batch, spot.level, at);
            }
        }
    }

    /// Stores a mark, or nothing, in a slot that holds no leaf.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the walk for `at` ends in `spot`, and the slot holds no leaf and no link.
    unsafe fn store_mark(&self, spot: Spot, at: VirtAddr, word: F::Word) {
        let index = Self::index(spot.level, at);
        // SAFETY: the slot is in the node, and the caller is the writer.
        unsafe {
            self.store_relaxed(spot.node, Self::place(spot.level, index), word);
            self.settle_pair(spot.node, spot.level, index);
        }
    }

    /// Stores a mark over a leaf of the base size, and returns the leaf with the status bits that hardware set before the store.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the walk for `at` ends in `spot`, at a leaf of the base size.
    unsafe fn mark_leaf(&self, batch: &mut Retired<'n>, spot: Spot, at: VirtAddr, word: F::Word) -> Leaf {
        let Spot { node, level } = spot;
        let index = Self::index(level, at);
        let place = Self::place(level, index);
        // SAFETY: the slot is in the node, and the caller is the writer.
        let old = unsafe {
            let old = self.exchange_leaf(node, place, self.read(node, place), word);
            self.settle_pair(node, level, index);
            old
        };
        batch.touch(FlushScope::Everywhere, Pages::one(at.vpn(G::BASE)));
        Self::leaf(old, level, at)
    }

    /// Stores a mark in an empty slot, and links the nodes that are missing on the way to it.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and the walk for `at` ends in `spot`, at an empty slot.
    unsafe fn mark_empty(
        &self,
        batch: &mut Retired<'n>,
        spot: Spot,
        at: VirtAddr,
        word: F::Word,
    ) -> Result<(), Error> {
        let (last, page) = (Self::LEVELS - 1, Pages::one(at.vpn(G::BASE)));
        let mut want = [0; MAX];
        want.iter_mut().take(Self::LEVELS).skip(spot.level + 1).for_each(|want| *want = 1);
        let mut stock = Stock::take_within(self.nodes, &Self::WORDS, want, F::REACH)?;
        for level in spot.level + 1..Self::LEVELS {
            if let Some(own) = own_pages::<G>(level, page) {
                batch.touch(F::APPEARS, own);
            }
        }
        if walked::<F>() && spot.level < last {
            batch.relink(F::APPEARS, page);
        }
        // SAFETY: the caller is the writer, and the stock has what is missing on the way.
        unsafe {
            let node = self.reach(&mut stock, at, last);
            self.store_mark(Spot { node, level: last }, at, word);
            self.add_live(node, last, Self::index(last, at), 1);
        }
        self.tally.ptes(1);
        Ok(())
    }

    /// See [`Table::fill`](crate::Table::fill).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and the walk for `at` ends in `spot`.
    #[inline(always)]
    pub(super) unsafe fn fill_at(
        &self,
        batch: &mut Retired<'n>,
        spot: Spot,
        at: VirtAddr,
        payload: u64,
        frame: Pfn,
    ) -> Result<(), Error> {
        let page = Pages::one(at.vpn(G::BASE));
        G::SPACE.check_frames(frame, 1, G::BASE)?;
        self.check_own(page)?;
        // SAFETY: the slot is in the node, and the caller is the writer.
        unsafe {
            let word = fill_word::<F>(at, self.entry_at(spot, at), payload, frame)?;
            let index = Self::index(spot.level, at);
            self.publish(spot.node, Self::place(spot.level, index), word);
            self.settle_pair(spot.node, spot.level, index);
            batch.touch(F::APPEARS, page);
        }
        Ok(())
    }

    /// Counts the marks of a run of slots of the last level.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the slots are in the node.
    pub(super) unsafe fn marks(&self, node: NodeAddr, level: usize, index: usize, slots: usize) -> usize {
        if level + 1 < Self::LEVELS {
            return 0;
        }
        // SAFETY: by this function's contract the caller is the only writer, and the slots are in the node.
        let is_mark =
            |slot: &usize| Self::is_mark(unsafe { self.read(node, Self::place(level, index + slot)) }, level);
        (0..slots).filter(is_mark).count()
    }
}
