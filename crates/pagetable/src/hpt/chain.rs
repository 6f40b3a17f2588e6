//! The writer's operations on chains: search of a block's bucket, assignment of a bucket to a block, and removal of an empty
//! bucket.

use core::sync::atomic::Ordering;

use tlbkit_addr::Pages;

use super::part::Part;
use super::shape::Spot;
use super::{Hashed, MOVE, MOVES, Sizes};
use crate::fields::Fields as _;
use crate::format::{Format, absent_beside, is_taken};
use crate::mode::Mode;
use crate::nodes::{NodeAddr, Nodes, Stock};
use crate::word::atomics::AtomicUsize;
use crate::{Error, Geometry, Retired, Word};

/// Overflow buckets that are reserved for a change.
pub(super) type Spare<'n, N> = Stock<'n, N, 1>;

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Returns the bucket at which the chain of a block begins.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(always)]
    pub(super) unsafe fn head(&self, block: usize) -> Spot {
        // SAFETY: by this function's contract the caller is the only writer. In the array, a block's bucket begins with its
        // first unit.
        Self::bucket(unsafe { self.first(self.root(), Self::lead(block)) })
    }

    /// Returns the overflow bucket that follows `spot` in its chain.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `spot` is a bucket of the table, or one that no walker can reach.
    #[inline(always)]
    pub(super) unsafe fn behind(&self, spot: Spot) -> Option<Spot> {
        // SAFETY: by this function's contract the caller is the only writer.
        let link = unsafe { self.nodes.read(spot.node, spot.at + Self::LINK) };
        (link != F::Word::ZERO).then(|| Spot::node(NodeAddr::new(link.to_usize())))
    }

    /// Links a bucket to the overflow bucket `behind`, or ends the chain if that is `None`. Each unit links to the unit of
    /// the same number.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `spot` is a bucket of the table or one that no walker can reach, and `behind` is a complete overflow bucket.
    #[inline(always)]
    pub(super) unsafe fn publish_link(&self, spot: Spot, behind: Option<Spot>) {
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            N::Mode::release();
            for unit in (0..Self::UNITS).map(|unit| unit * Self::UNIT) {
                let link = behind.map_or(0, |behind| behind.node.get() + unit * F::Word::BYTES);
                self.nodes.store_relaxed(spot.node, spot.at + unit + Self::LINK, F::Word::from_usize(link));
            }
        }
    }

    /// Returns the bucket with the tag `tag` in the chain that begins at `head`. There are three such searches:
    ///
    /// | search | called by |
    /// |-|-|
    /// | [`probe`](Self::probe) | changes of one page |
    /// | [`seek_past`](Self::seek_past) | an unmap of one page that may remove the bucket instead of leaving it [vacant](super::vacant) |
    /// | this one, with branches | changes of a range, and an unmap of one page in a bucket of several pages |
    ///
    /// [`empty_one`](Self::empty_one) is the unmap of one page.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `head` is the first bucket of a chain of the table.
    #[inline(always)]
    pub(super) unsafe fn seek(&self, head: Spot, tag: usize) -> Option<Spot> {
        let mut spot = head;
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            while self.read_tag(spot) != tag {
                spot = self.behind(spot)?;
            }
        }
        Some(spot)
    }

    /// Returns the bucket with the tag `tag` in the chain that begins at `head`, and the bucket before it if it is not the
    /// first.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `head` is the first bucket of a chain of the table.
    #[inline(always)]
    pub(super) unsafe fn seek_past(&self, head: Spot, tag: usize) -> Option<(Option<Spot>, Spot)> {
        let (mut before, mut spot) = (None, head);
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            while self.read_tag(spot) != tag {
                (before, spot) = (Some(spot), self.behind(spot)?);
            }
        }
        Some((before, spot))
    }

    /// Tells whether the first bucket of a chain may be assigned to the block of a live `tag` now.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `head` is the first bucket of the chain for `tag`.
    #[inline(always)]
    pub(super) unsafe fn is_free(&self, head: Spot, tag: usize) -> bool {
        // SAFETY: by this function's contract the caller is the only writer.
        let old = unsafe { self.read_tag(head) };
        old == 0 || old & Self::DEAD != 0 && self.may_revive(old, tag)
    }

    /// Tells whether a first bucket with the dead tag `old` may be assigned to the block of a live `tag` now.
    #[inline(never)]
    fn may_revive(&self, old: usize, tag: usize) -> bool {
        old == Self::flagged(tag, Self::DEAD) || self.nodes.held().is_quiet(&self.flag)
    }

    /// Reserves a bucket for every block of base pages in a range that has none, and refuses the range if one of its pages has an
    /// entry. No larger page may be mapped.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`], [`Error::Occupied`] or [`Error::Marked`]. Then nothing is reserved.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(never)]
    pub(super) unsafe fn reserve_empty(&self, pages: Pages) -> Result<(Spare<'n, N>, usize), Error> {
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe { self.reserve_with(0, pages, |part| self.check_part(part)) }
    }

    /// Reserves a bucket for every block of `grain` in a range that has none.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]. Then nothing is reserved.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(never)]
    pub(super) unsafe fn reserve(&self, grain: usize, pages: Pages) -> Result<(Spare<'n, N>, usize), Error> {
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe { self.reserve_with(grain, pages, |_| Ok(())) }
    }

    /// Reserves a bucket for every block of `grain` in a range that has none, at the end of a dry run, and returns also how many
    /// blocks these are. `check` is called for the blocks that have a bucket, and may refuse the change.
    ///
    /// A block whose chain has a free first bucket claims this bucket: a claimed tag matches no address, and no other block
    /// can claim the bucket. The other blocks need overflow buckets, which are taken from the storage.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`], or the error of `check`. Then the function has undone all its claims.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(always)]
    unsafe fn reserve_with(
        &self,
        grain: usize,
        pages: Pages,
        check: impl Fn(Part) -> Result<(), Error>,
    ) -> Result<(Spare<'n, N>, usize), Error> {
        let (first, last) = Self::blocks_of(grain, pages);
        let (mut claims, mut want) = (0, 0);
        // SAFETY: this function's contract.
        let claimed = unsafe { self.claim(grain, pages, check, &mut claims, &mut want) };
        let mut spare = claimed.and_then(|()| Stock::take(self.nodes, &[Self::NODE], [want]));
        if spare.is_err() {
            for block in first..=last {
                // SAFETY: by this function's contract the caller is the only writer.
                unsafe {
                    let head = self.head(block);
                    if self.read_tag(head) == Self::flagged(Self::tag_of(grain, block), Self::CLAIMED) {
                        // The bucket may have been dead before the claim.
                        self.reflag(head, Self::DEAD);
                    }
                }
            }
        }
        if let Err(Error::NoMemory { wanted, .. }) = spare {
            spare = Err(self.no_memory(wanted as usize));
        }
        spare.map(|spare| (spare, claims + want))
    }

    /// Claims a first bucket for every block of a range that has no bucket, if it is free. Adds their number to `claims`, and the
    /// number of the other blocks without a bucket to `want`.
    ///
    /// # Errors
    ///
    /// That of `check`. Then some blocks have claimed a bucket.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    #[inline(always)]
    unsafe fn claim(
        &self,
        grain: usize,
        pages: Pages,
        check: impl Fn(Part) -> Result<(), Error>,
        claims: &mut usize,
        want: &mut usize,
    ) -> Result<(), Error> {
        let (first, last) = Self::blocks_of(grain, pages);
        // No block's number is the largest `usize`, and this range compiles to a simpler loop than `first..=last`.
        for block in first..last + 1 {
            let tag = Self::tag_of(grain, block);
            // SAFETY: by this function's contract the caller is the only writer.
            unsafe {
                let head = self.head(block);
                if let Some(spot) = self.seek(head, tag) {
                    if Self::SLOTS == 1 || block > first && block < last {
                        check(Self::whole(spot, grain, block))?;
                    } else if let Some(part) = Self::part(spot, grain, block, pages) {
                        check(part)?;
                    }
                } else if self.is_free(head, tag) {
                    self.publish_tag(head, Self::flagged(tag, Self::CLAIMED));
                    *claims += 1;
                } else {
                    *want += 1;
                }
            }
        }
        Ok(())
    }

    /// Stores `count` PTEs from `slot` on in the bucket of a block. A block without a bucket gets the claimed first bucket
    /// or a spare one. The function subtracts the replaced PTEs from the tally; the caller adds the new ones.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - [`reserve`](Self::reserve) returned `spare` for a range with this block;
    /// - slots `slot` to `slot + count - 1` are within a bucket.
    #[inline(always)]
    pub(super) unsafe fn install(
        &self,
        spare: &mut Spare<'n, N>,
        grain: usize,
        block: usize,
        slot: usize,
        count: usize,
        word: impl Fn(usize) -> F::Word,
    ) {
        let tag = Self::tag_of(grain, block);
        // SAFETY: by this function's contract the caller is the only writer, and the slots are within the bucket.
        unsafe {
            let head = self.head(block);
            if self.read_tag(head) == Self::flagged(tag, Self::CLAIMED) {
                // The dry run has searched the chain, so the block has no other bucket.
                self.fit_out(head, grain, block, slot, count, word);
            } else if let Some(spot) = self.seek(head, tag) {
                self.occupy(grain, spot);
                let old = self.count_taken(spot, block, slot, count);
                self.tally.ptes(-(old as isize));
                self.fill(spot, block, slot, count, word);
                self.settle_pairs(spot, grain, block);
            } else if self.read_tag(head) == 0 {
                // The table has grown since the dry run, and the chain of the block now has an unused first bucket.
                self.fit_out(head, grain, block, slot, count, word);
            } else if let Some(node) = spare.next_sized(0, Self::NODE) {
                self.count_node(1);
                self.append(head, node, grain, block, slot, count, word);
            }
        }
    }

    /// Assigns the overflow bucket `node`, which the tally has, to a block, with `count` PTEs from `slot` on, and links it.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `head` is the first bucket of the chain of `block`;
    /// - `node` was taken with [`NODE`](Self::NODE) words, no other code knows it, and its PTEs are zero;
    /// - slots `slot` to `slot + count - 1` are within a bucket.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "a place and its content")]
    pub(super) unsafe fn append(
        &self,
        head: Spot,
        node: NodeAddr,
        grain: usize,
        block: usize,
        slot: usize,
        count: usize,
        word: impl Fn(usize) -> F::Word,
    ) {
        let spot = Spot::node(node);
        // SAFETY: by this function's contract the caller is the only writer, the slots are within a bucket, and no other
        // code knows the node.
        unsafe {
            self.fill(spot, block, slot, count, word);
            self.settle_pairs(spot, grain, block);
            self.enter(grain);
            self.publish_tag(spot, Self::tag_of(grain, block));
            self.link(head, Self::lead(block), spot);
        }
    }

    /// Assigns a bucket that no walker can match to a block, with `count` PTEs from `slot` on.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - no walker can match `spot`, which is in the table or which no walker can reach;
    /// - slots `slot` to `slot + count - 1` are within a bucket.
    #[inline(always)]
    pub(super) unsafe fn fit_out(
        &self,
        spot: Spot,
        grain: usize,
        block: usize,
        slot: usize,
        count: usize,
        word: impl Fn(usize) -> F::Word,
    ) {
        // SAFETY: by this function's contract the caller is the only writer, and the slots are within the bucket.
        unsafe {
            // PTEs that fill all slots overwrite the former content, so only other cases need it cleared.
            if count < Self::SLOTS || F::EXTRA > 0 {
                self.wipe(spot);
            }
            self.fill(spot, block, slot, count, word);
            self.settle_pairs(spot, grain, block);
            self.enter(grain);
            self.publish_tag(spot, Self::tag_of(grain, block));
        }
    }

    /// Counts the leaves in `count` slots of a block from `slot` on.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `spot` is a bucket of the table, or one that no walker can reach;
    /// - slots `slot` to `slot + count - 1` are within a bucket.
    #[inline(always)]
    pub(super) unsafe fn count_leaves(&self, spot: Spot, block: usize, slot: usize, count: usize) -> usize {
        let is_leaf = |&slot: &usize| {
            // SAFETY: by this function's contract the caller is the only writer, and the slots are within the bucket.
            F::is_leaf(unsafe { self.nodes.read(spot.node, Self::place(spot, block, slot)) }, true)
        };
        (slot..slot + count).filter(is_leaf).count()
    }

    /// Counts the leaves and marks in `count` slots of a block from `slot` on.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `spot` is a bucket of the table, or one that no walker can reach;
    /// - slots `slot` to `slot + count - 1` are within a bucket.
    #[inline(always)]
    pub(super) unsafe fn count_taken(&self, spot: Spot, block: usize, slot: usize, count: usize) -> usize {
        let taken = |&slot: &usize| {
            // SAFETY: by this function's contract the caller is the only writer, and the slots are within the bucket.
            is_taken::<F>(unsafe { self.nodes.read(spot.node, Self::place(spot, block, slot)) })
        };
        (slot..slot + count).filter(taken).count()
    }

    /// Stores `word(0)`, `word(1)`, ... in `count` slots of a block from `slot` on.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `spot` is a bucket of the table, or one that no walker can reach;
    /// - slots `slot` to `slot + count - 1` are within a bucket.
    #[inline(always)]
    unsafe fn fill(
        &self,
        spot: Spot,
        block: usize,
        slot: usize,
        count: usize,
        word: impl Fn(usize) -> F::Word,
    ) {
        for at in 0..count {
            // SAFETY: by this function's contract the caller is the only writer, and the slots are within the bucket.
            unsafe { self.nodes.store_relaxed(spot.node, Self::place(spot, block, slot + at), word(at)) };
        }
    }

    /// Copies a bucket, except its links, to one that no walker can reach.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `to` is a bucket that no walker can reach, and `from` is a bucket of the table or one that no walker can reach.
    pub(super) unsafe fn copy_contents(&self, to: Spot, from: Spot) {
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe { self.copy_words(to, from, 0) };
    }

    /// Copies a bucket, except its tags and links, to one that no walker can match.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - no walker can match `to`, and both buckets are in the table or no walker can reach them.
    pub(super) unsafe fn copy_entries(&self, to: Spot, from: Spot) {
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe { self.copy_words(to, from, Self::PTE) };
    }

    /// Copies the words of each unit from index `first` up to the link.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - both buckets are in the table or no walker can reach them, and walkers that can reach `to` match none of its tags.
    #[inline(always)]
    unsafe fn copy_words(&self, to: Spot, from: Spot, first: usize) {
        for (to_unit, from_unit) in Self::units(to).zip(Self::units(from)) {
            for word in first..Self::LINK {
                // SAFETY: by this function's contract the caller is the only writer.
                unsafe {
                    self.nodes.store_relaxed(
                        to.node,
                        to_unit + word,
                        self.nodes.read(from.node, from_unit + word),
                    );
                }
            }
        }
    }

    /// Counts a bucket of `grain` that comes into use, and announces the grain to walkers if it is the first.
    fn enter(&self, grain: usize) {
        if bump(&self.used[grain], 1) == 1 && grain > 0 {
            let others = self.grains.load(Ordering::Relaxed);
            self.grains.store(others.with(1 << grain), Ordering::Release);
        }
    }

    /// Counts a bucket of `grain` that goes out of use, and withdraws the grain if it was the last.
    #[inline(always)]
    fn leave(&self, grain: usize) {
        if bump(&self.used[grain], -1) == 0 && grain > 0 {
            self.grains.store(self.grains.load(Ordering::Relaxed) & !(1 << grain), Ordering::Release);
        }
    }

    /// Increments the count of moves, which tells walkers that a page that they did not find may have moved to another
    /// grain.
    pub(super) fn count_move(&self) {
        let now = self.grains.load(Ordering::Relaxed).wrapping_add(MOVES) | MOVE;
        self.grains.store(now, Ordering::Release);
    }

    /// Adds an overflow bucket to the tally, or subtracts one: `sign` is 1 or -1.
    #[inline(always)]
    pub(super) fn count_node(&self, sign: isize) {
        self.tally.node(sign, Self::NODE * F::Word::BYTES);
        if sign > 0 {
            self.growth.note_bytes(self.tally.bytes());
        }
    }

    /// Clears a bucket that no walker can match, except its links.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - no walker can match `spot`, which is in the table or which no walker can reach.
    pub(super) unsafe fn wipe(&self, spot: Spot) {
        for unit in Self::units(spot) {
            for word in 0..Self::LINK {
                // SAFETY: by this function's contract the caller is the only writer.
                unsafe { self.nodes.store_relaxed(spot.node, unit + word, F::Word::ZERO) };
            }
        }
    }

    /// Tells whether a bucket holds no leaf and no mark.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `spot` is a bucket of the table, or one that no walker can reach.
    #[inline(always)]
    pub(super) unsafe fn is_vacant(&self, spot: Spot) -> bool {
        // Any order will do. Word by word, because a wider load would wait for the store that has just emptied a
        // slot; the last first, because most runs of pages are unmapped in ascending order.
        (0..Self::SLOTS).rev().all(|slot| {
            // SAFETY: by this function's contract the caller is the only writer; the slot is in the bucket.
            !is_taken::<F>(unsafe { self.nodes.read(spot.node, Self::place(spot, 0, slot)) })
        })
    }

    /// Removes an empty bucket from its chain: the first one, or the one behind `before`.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - `spot` is an empty bucket of the table: the first of its chain, or the one behind `before`; and it has been
    ///   [counted](Self::count_vacant).
    #[inline(always)]
    pub(super) unsafe fn take_out(&self, batch: &mut Retired<'n>, before: Option<Spot>, spot: Spot) {
        // SAFETY: by this function's contract the caller is the only writer, and the bucket is as described.
        unsafe {
            let (grain, _) = Self::untag(self.read_tag(spot));
            if Self::keeps(grain) {
                bump(&self.vacant, -1);
            }
            self.leave(grain);
            if let Some(before) = before {
                return self.unlink(batch, before, spot);
            }
            let head = spot;
            if N::Mode::SHARED {
                batch.quarantine();
                self.reflag(head, Self::DEAD);
            } else if let Some(spot) = self.behind(head) {
                self.move_up(batch, head, spot);
            } else {
                self.wipe(head);
            }
        }
    }

    /// Moves the bucket `spot` into the empty first bucket before it, where a lookup finds it with one probe; or clears the first
    /// bucket, if `spot` is of another chain.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer, and the only walker;
    /// - the batch came from this table;
    /// - `head` is an empty first bucket of the table, and `spot` is behind it.
    #[inline(never)]
    unsafe fn move_up(&self, batch: &mut Retired<'n>, head: Spot, spot: Spot) {
        // SAFETY: by this function's contract no other CPU walks, and both buckets are in the table.
        unsafe {
            if self.leads_to(head, self.read_tag(spot)) {
                self.copy_contents(head, spot);
                self.unlink(batch, head, spot);
            } else {
                self.wipe(head);
            }
        }
    }

    /// Unlinks the overflow bucket behind `before`, and retires it. Its own links stay, so walkers that are in it can
    /// continue.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - `spot` is the overflow bucket behind `before`, in a chain of the table.
    #[inline(always)]
    unsafe fn unlink(&self, batch: &mut Retired<'n>, before: Spot, spot: Spot) {
        // SAFETY: by this function's contract the caller is the only writer; after the store no word leads to the node.
        unsafe {
            self.lead_past(before, spot);
            self.retire(batch, spot.node);
        }
    }

    /// Retires an overflow bucket to which no word leads any more.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - `node` is an overflow bucket to which no word leads any more.
    #[inline(never)]
    pub(super) unsafe fn retire(&self, batch: &mut Retired<'n>, node: NodeAddr) {
        // SAFETY: by this function's contract the caller is the only writer. The node has a
        // tag, so it is not clean.
        unsafe { batch.push_sized(self.nodes, node, Self::NODE, false) };
        self.count_node(-1);
    }

    /// Updates the words beside the leaves of a bucket, in a format in which two words are one TLB entry.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `spot` is the bucket of `block`, in the table or one that no walker can reach.
    #[inline(always)]
    pub(super) unsafe fn settle_pairs(&self, spot: Spot, grain: usize, block: usize) {
        if !F::PAIRED {
            return;
        }
        for slot in 0..Self::SLOTS {
            // SAFETY: by this function's contract the caller is the only writer; the slots are in the bucket.
            unsafe {
                let old = self.nodes.read(spot.node, Self::place(spot, block, slot));
                if F::is_leaf(old, true) {
                    continue;
                }
                // The partner in a TLB entry is as many slots away as its page fills. A mark keeps its bits.
                let mut wanted = F::absent(F::absent_bits(old));
                let mut away = 1;
                while away < Self::SLOTS {
                    let word = self.nodes.read(spot.node, Self::place(spot, block, slot ^ away));
                    // `F::size` is defined for leaves only.
                    if F::is_leaf(word, true)
                        && F::size(word, Self::GRAIN[grain]).pages(Self::GRAIN[grain]) == Some(away)
                    {
                        wanted = absent_beside::<F>(word, wanted);
                    }
                    away *= 2;
                }
                if wanted != old {
                    self.nodes.publish(spot.node, Self::place(spot, block, slot), wanted);
                }
            }
        }
    }
}

/// Adds to a counter and returns the sum. It needs no atomic read-modify-write, because only the writer changes the counter.
#[inline(always)]
pub(super) fn bump(counter: &AtomicUsize, by: isize) -> usize {
    let sum = counter.load(Ordering::Relaxed).wrapping_add_signed(by);
    counter.store(sum, Ordering::Relaxed);
    sum
}
