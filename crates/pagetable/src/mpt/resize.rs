//! Splitting a page into smaller ones, and promoting small ones to a larger.

use core::mem;
use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Flush, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};

use super::Mpt;
use super::shape::{MAX, Shape};
use crate::format::{Format, walked};
use crate::geometry::Checked as _;
use crate::nodes::{NodeAddr, Nodes, Stock};
use crate::pairs::stale;
use crate::{Change, Error, Leaf, Radix, Retired, Word};

/// The bits that hardware sets in a leaf. Pages that differ only in these bits can become one page.
pub(super) const STATUS: Attr = Attr::ACCESSED.union(Attr::DIRTY);

/// The slots of one piece, which begins at `at` and is to become leaves of size `to`.
pub(super) struct Remade {
    pub(super) node: NodeAddr,
    pub(super) level: usize,
    pub(super) index: usize,
    pub(super) slots: usize,
    pub(super) at: VirtAddr,
    pub(super) to: PageSize,
}

/// A guard that calls its function if the caller's code unwinds.
pub(super) struct Unwound<F: Fn()>(pub(super) F);

impl<F: Fn()> Drop for Unwound<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// See [`Table::resize`](crate::Table::resize).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table. If the format breaks, nothing that runs until the call
    /// returns needs the pages.
    pub(super) unsafe fn resize_pages(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        to: PageSize,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) -> Result<(), Error> {
        G::SPACE.check_sized(pages, to)?;
        self.check_own(pages)?;
        self.check_lent(pages, to)?;
        // SAFETY: the caller is the writer.
        unsafe {
            let want = self.plan(pages, to)?;
            let mut stock = Stock::take_within(self.nodes, &Self::WORDS, want, F::REACH)?;
            self.each_piece(pages, to, |piece, leaf| {
                if leaf.size != to {
                    self.remake(batch, &mut stock, piece, leaf, to, flush_all_cpus);
                }
                Ok(())
            })
        }
    }

    /// Checks every piece, as the dry run, and returns the number of nodes that splits need at each level.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the pages are in the space and not borrowed.
    unsafe fn plan(&self, pages: Pages, to: PageSize) -> Result<[usize; MAX], Error> {
        let mut want = [0; MAX];
        // SAFETY: the caller is the writer.
        unsafe {
            self.each_piece(pages, to, |piece, leaf| {
                if leaf.size > to {
                    G::SPACE.check_whole(leaf, pages)?;
                    let (level, bottom) = (Self::level_of(leaf.size), Self::level_of(to));
                    for below in level + 1..=bottom {
                        want[below] += piece.len() / Self::slot_pages(below - 1);
                    }
                } else if leaf.size < to {
                    self.check_uniform(piece, leaf, to)?;
                }
                Ok(())
            })?;
        }
        Ok(want)
    }

    /// Divides a range into pieces, and calls `visit` with each piece and the leaf at its start. A piece is one leaf of at least
    /// the size `to`, or the smaller leaves that fill a page of the size `to`.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the pages are in the space and not borrowed.
    unsafe fn each_piece(
        &self,
        pages: Pages,
        to: PageSize,
        mut visit: impl FnMut(Pages, Leaf) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut first = pages.first();
        loop {
            let at = first.address(G::BASE);
            // SAFETY: the caller is the writer.
            let (word, level) = unsafe { self.descend(at, |word, level, _| (word, level)) };
            if !F::is_leaf(word, level + 1 == Self::LEVELS) {
                return Err(Error::NotMapped { at });
            }
            let leaf = Self::leaf(word, level, at);
            let piece = G::SPACE.pages_of(&Leaf {
                at: at.align_down(leaf.size.max(to)),
                size: leaf.size.max(to),
                ..leaf
            });
            visit(piece, leaf)?;
            if piece.last() >= pages.last() {
                return Ok(());
            }
            first = Vpn::new(piece.last().get() + 1);
        }
    }

    /// Checks that the leaves of a piece continue each other and agree in their rights.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the piece is in the space and not borrowed.
    unsafe fn check_uniform(&self, piece: Pages, first: Leaf, to: PageSize) -> Result<(), Error> {
        if !first.frame.is_aligned(to, G::BASE) {
            return Err(Error::NotUniform { at: first.at });
        }
        F::leaf(first.frame, to, first.attr, Self::level_of(to) + 1 == Self::LEVELS)?;
        let mut next = piece.first();
        let mut outcome = Ok(());
        // SAFETY: the caller is the writer.
        let _ = unsafe {
            self.visit(self.root, 0, piece, &mut |leaf| {
                let at = leaf.at.vpn(G::BASE);
                let frame = Pfn::new(first.frame.get() + (at.get() - piece.first().get()));
                if at != next {
                    outcome = Err(Error::NotMapped { at: next.address(G::BASE) });
                } else if leaf.frame != frame || leaf.attr.difference(STATUS) != first.attr.difference(STATUS)
                {
                    outcome = Err(Error::NotUniform { at: leaf.at });
                }
                next = Vpn::new(G::SPACE.pages_of(&leaf).last().get().wrapping_add(1));
                if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
        };
        outcome?;
        if next.get() == piece.last().get().wrapping_add(1) {
            Ok(())
        } else {
            Err(Error::NotMapped { at: next.address(G::BASE) })
        }
    }

    /// Replaces the leaves of a piece by leaves of size `to`.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, the dry run has accepted the piece, and the stock has the
    /// nodes that it counted.
    unsafe fn remake(
        &self,
        batch: &mut Retired<'n>,
        stock: &mut Stock<'n, N, MAX>,
        piece: Pages,
        leaf: Leaf,
        to: PageSize,
        flush_all_cpus: &mut dyn FnMut(&Flush),
    ) {
        let at = piece.first().address(G::BASE);
        // The slots that change: those of the larger of the two sizes.
        let level = Self::level_of(leaf.size.max(to));
        let slots = piece.len() / Self::slot_pages(level).min(piece.len());
        let stale = stale::<G, F>(piece, |_| Some(leaf.size.max(to)));
        // SAFETY: the caller is the writer, and the dry run has checked that these slots map the piece.
        unsafe {
            let node = self.path(at, level).node(level);
            let mut flush = Flush::none();
            // The slots of a run may be leaves and links, whatever its first one is.
            let was_link =
                |slot| F::is_link(self.read(node, Self::place(level, Self::index(level, at) + slot)));
            let last = level + 1 == Self::LEVELS;
            if walked::<F>() && (level != Self::level_of(to) || !last && (0..slots).any(was_link)) {
                flush.add_links(FlushScope::Everywhere, stale);
            } else {
                flush.add(FlushScope::Everywhere, stale);
            }
            batch.merge(&flush);
            // Hardware may set A and D until the exchange; the exchange returns them.
            let noted = if F::STATUS { Attr::empty() } else { self.gather(piece) };
            let attr = leaf.attr.union(noted);
            let part = Remade { node, level, index: Self::index(level, at), slots, at, to };
            if Self::RUNS && slots > 1 {
                self.remake_run(batch, stock, &part, Leaf { attr, ..leaf }, &mut || flush_all_cpus(&flush));
            } else if F::BREAK {
                self.break_and_make(batch, stock, &part, Leaf { attr, ..leaf }, &mut || {
                    flush_all_cpus(&flush);
                });
            } else if F::STATUS {
                self.exchange(batch, stock, &part, Leaf { attr, ..leaf }, &mut || flush_all_cpus(&flush));
            } else {
                for slot in 0..slots {
                    let place = Self::place(level, part.index + slot);
                    let old = self.read(node, place);
                    let word = self.build(stock, level, self.frame_of(leaf, level, slot), to, attr);
                    self.publish(node, place, word);
                    self.discard(batch, old, level);
                }
                self.settle_pair(node, level, part.index);
                self.settle_pair(node, level, part.index + slots - 1);
            }
        }
        let entries = piece.len() / Self::slot_pages(Self::level_of(to)).min(piece.len());
        self.tally.ptes(entries as isize);
    }

    /// Returns the first frame of a slot of the leaf that begins a piece.
    pub(super) fn frame_of(&self, leaf: Leaf, level: usize, slot: usize) -> Pfn {
        Pfn::new(leaf.frame.get() + slot * Self::slot_pages(level))
    }

    /// Replaces a slot in place while hardware may set status bits in it. Until the flush, CPUs use the old or the new
    /// translation.
    ///
    /// *No status bit is lost.* If hardware sets a bit in the slot before the exchange, the exchange fails and is repeated with
    /// that bit. (Hardware sets each of two bits once, so there are three attempts at most.) After the exchange hardware sets
    /// bits in the new word, also for a TLB entry that it loaded from the old leaf without D: it sets D with another walk or with
    /// a compare-and-exchange of its own, as the manuals say that the format's module quotes. One case remains. When small pages
    /// become a larger one, a CPU that has cached the old link may set bits in the old node until that CPU has flushed. So unless
    /// the new leaf has all status bits, `flush_all_cpus` is called, and then the old node is read again.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table. The part has one slot, and the stock has the nodes for
    /// it.
    unsafe fn exchange(
        &self,
        batch: &mut Retired<'n>,
        stock: &mut Stock<'n, N, MAX>,
        part: &Remade,
        leaf: Leaf,
        flush_all_cpus: &mut dyn FnMut(),
    ) {
        let &Remade { node, level, index, at, to, .. } = part;
        let place = Self::place(level, index);
        // SAFETY: by this function's contract the caller is the only writer, and the batch came from this table. The node has the
        // slot `index`.
        unsafe {
            let cell = self.cell(node, place);
            let mut old = F::Word::follow(cell);
            let attr = leaf.attr.union(self.status(old, level, at));
            let mut word = self.build(stock, level, leaf.frame, to, attr);
            while let Err(now) = F::Word::exchange(cell, old, word) {
                old = now;
                word = self.noted(word, level, self.status(old, level, at));
            }
            self.exchanged(node, place, old, word);
            self.discard(batch, old, level);
            let last = level + 1 == Self::LEVELS;
            let all = F::OPTIONAL.intersection(STATUS);
            if !last && F::is_link(old) && !F::attr(word, last).contains(all) {
                flush_all_cpus();
                let noted = Change::set(self.status(old, level, at));
                self.change_live(node, place, last, |word| F::change(word, noted, last));
            }
        }
    }

    /// Empties the slots of a piece, calls `flush_all_cpus`, and then fills the slots.
    ///
    /// If `flush_all_cpus` unwinds, a TLB may still hold the old leaves, so new leaves must not be stored: the old leaves are put
    /// back. Small pages in several slots, which were to become a larger page, stay unmapped.
    ///
    /// The new leaves get the status bits that hardware sets until `flush_all_cpus` returns. Below an old link hardware sets bits
    /// until every CPU has flushed the link.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and the stock has the nodes for the part. In a format whose
    /// hardware sets status bits the part has one slot.
    unsafe fn break_and_make(
        &self,
        batch: &mut Retired<'n>,
        stock: &mut Stock<'n, N, MAX>,
        part: &Remade,
        leaf: Leaf,
        flush_all_cpus: &mut dyn FnMut(),
    ) {
        let &Remade { node, level, index, slots, at, to } = part;
        // The slots of a larger page that is split all hold the same word.
        let alike = slots == 1 || leaf.size > to;
        let mut broke = F::Word::ZERO;
        // SAFETY: by this function's contract the caller is the only writer; the first and the last slot are in the node.
        let settle = || unsafe {
            self.settle_pair(node, level, index);
            self.settle_pair(node, level, index + slots - 1);
        };
        // SAFETY: the caller is the only writer, the batch came from this table, and the slots are in the node. A discarded node
        // is not freed before the batch completes.
        unsafe {
            for slot in 0..slots {
                broke = self.swap(node, Self::place(level, index + slot), F::Word::ZERO);
                if !alike {
                    self.discard(batch, broke, level);
                }
            }
        }
        settle();
        // SAFETY: the caller is the only writer; the node that the word leads to has not been discarded yet.
        let put_back = |slot| unsafe { self.publish(node, Self::place(level, index + slot), broke) };
        let unwound = Unwound(|| {
            if alike {
                (0..slots).for_each(put_back);
                settle();
            }
        });
        flush_all_cpus();
        mem::forget(unwound);
        // SAFETY: the caller is the only writer, and the batch came from this table: a discarded node is not freed before the
        // batch completes. (Where hardware writes status bits there is one slot only; `remake_run` handles several.)
        unsafe {
            let noted = if F::STATUS { self.status(broke, level, at) } else { Attr::empty() };
            for slot in 0..slots {
                if alike {
                    self.discard(batch, broke, level);
                }
                let word =
                    self.build(stock, level, self.frame_of(leaf, level, slot), to, leaf.attr.union(noted));
                self.publish(node, Self::place(level, index + slot), word);
            }
        }
        settle();
    }

    /// Adds status bits to a word that no walker can reach yet, or to every leaf below it, and returns the word.
    ///
    /// # Safety
    ///
    /// No walker can reach the word. If the word is a link, it leads to a node of the next level.
    pub(super) unsafe fn noted(&self, word: F::Word, level: usize, status: Attr) -> F::Word {
        let last = level + 1 == Self::LEVELS;
        if status.is_empty() {
            return word;
        }
        if F::is_leaf(word, last) {
            return F::change(word, Change::set(status), last);
        }
        if !last && F::is_link(word) {
            for index in 0..Self::slots(level + 1) {
                let (node, place) = (F::node(word), Self::place(level + 1, index));
                // SAFETY: the node is new, and no other code knows it.
                unsafe {
                    self.store_relaxed(node, place, self.noted(self.read(node, place), level + 1, status));
                }
            }
        }
        word
    }

    /// Returns the union of the status bits of a piece's leaves.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the piece is in the space and not borrowed.
    unsafe fn gather(&self, piece: Pages) -> Attr {
        let mut status = Attr::empty();
        // SAFETY: the caller is the writer.
        let _ = unsafe {
            self.visit(self.root, 0, piece, &mut |leaf| {
                status |= leaf.attr & STATUS;
                ControlFlow::Continue(())
            })
        };
        status
    }

    /// Returns the status bits of a word, or the union of those of all leaves below it. The word may have been taken out of the
    /// table.
    ///
    /// # Safety
    ///
    /// The word was in a slot of `level` of this table. A node that it leads to has not been freed.
    pub(super) unsafe fn status(&self, word: F::Word, level: usize, at: VirtAddr) -> Attr {
        let last = level + 1 == Self::LEVELS;
        if F::is_leaf(word, last) {
            return Self::leaf(word, level, at).attr & STATUS;
        }
        let mut status = Attr::empty();
        if !last && F::is_link(word) {
            for index in 0..Self::slots(level + 1) {
                // SAFETY: by this function's contract the node that the word leads to has not been freed.
                let below = unsafe { self.nodes.follow(F::node(word), Self::place(level + 1, index)) };
                // SAFETY: the word is in that node, and a node below it is not freed earlier.
                status |= unsafe { self.status(below, level + 1, at) };
            }
        }
        status
    }

    /// Discards a word that was taken out of the table: retires the nodes below it, whose words do not change, and subtracts its
    /// PTEs from the table's count.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, the batch came from this table, and no word of the table leads to what `word` leads to.
    pub(super) unsafe fn discard(&self, batch: &mut Retired<'n>, word: F::Word, level: usize) {
        let last = level + 1 == Self::LEVELS;
        if F::is_leaf(word, last) {
            self.tally.ptes(-1);
        } else if !last && F::is_link(word) {
            let node = F::node(word);
            // SAFETY: by this function's contract no word of the table leads to the node.
            unsafe {
                for index in 0..Self::slots(level + 1) {
                    self.discard(batch, self.read(node, Self::place(level + 1, index)), level + 1);
                }
                self.retire(batch, node, level + 1, false);
            }
        }
    }

    /// Returns the word for a slot of `level` that maps the frames from `frame` on with pages of size `to`: a leaf, or a link to
    /// a complete subtree.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the stock has the nodes of the subtree.
    pub(super) unsafe fn build(
        &self,
        stock: &mut Stock<'n, N, MAX>,
        level: usize,
        frame: Pfn,
        to: PageSize,
        attr: Attr,
    ) -> F::Word {
        let bottom = Self::level_of(to);
        if level == bottom {
            let first = Pfn::new(frame.get() & !(to.pages(G::BASE).unwrap_or(1) - 1));
            // The encoding cannot fail: the dry run has tried it, or the leaf that is split has these attributes and frames.
            let word = F::leaf(first, to, attr, level + 1 == Self::LEVELS).unwrap_or(F::Word::ZERO);
            return if F::SPREAD { word.advance(F::STEP, frame.get() - first.get()) } else { word };
        }
        let Some(node) = stock.next(level + 1) else { return F::Word::ZERO };
        self.tally.node(1, Self::words(level + 1) * F::Word::BYTES);
        // SAFETY: the node is new and no other code knows it.
        unsafe {
            for index in 0..Self::slots(level + 1) {
                let frame = Pfn::new(frame.get() + index * Self::slot_pages(level + 1));
                let word = self.build(stock, level + 1, frame, to, attr);
                self.store_relaxed(node, Self::place(level + 1, index), word);
            }
            self.add_live(node, level + 1, 0, Self::slots(level + 1));
        }
        F::link(node)
    }
}
