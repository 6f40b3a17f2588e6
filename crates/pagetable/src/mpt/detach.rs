//! Taking a range out of a table before its frames are known: the frames wait for the shootdown in the nodes.
//!
//! ```text
//!   detach    | gone | gone | leaf |        a node of which a part stays: its words hold the frames, as no walker reads them
//!             | link | 0 <-- | link |       a node of which nothing stays: one store unlinks it, and it keeps its entries
//!                    \
//!                     --> | leaf | leaf |   a list of such nodes, by level, through their records
//!   shootdown
//!   clear     | 0    | 0    | leaf |        the frames of the words
//!   release   the frames of the listed nodes, then the nodes: the table is not needed for that
//! ```
//!
//! So a range of any length needs one shootdown and no memory, and hardware may set status bits in the listed nodes until the
//! flush: they are read after it. Where a format has no bits for the frame of a page (the larger pages of [`EntryLo`](crate::format::EntryLo)), a short
//! list beside the nodes holds them.

use tlbkit_addr::{FlushScope, Pages, VirtAddr, Vpn};

use super::Mpt;
use super::leaf::Decode as _;
use super::node::{Detached, NodeMut, NodeRef, Writing};
use super::pieces::{InPieces as _, after};
use super::shape::Shape;
use crate::format::{Format, gone_of, gone_word};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Error, Pinned, Radix, Retired, Run, Table as _, Uncovered, Word, Writer};

/// A detachment under way.
struct Detaching<'d, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    detached: &'d mut Detached<'n, G, F, N>,
    /// How many more entries and nodes may be visited.
    left: usize,
    /// Whether an entry has changed.
    changed: bool,
    /// Whether a node has been unlinked.
    unlinked: bool,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writer<'_, 'n, Mpt<'n, G, F, N>> {
    /// Takes the leaves and marks of `pages` out of the table, from the first page on, until it has visited about `most` entries
    /// and nodes. Adds the nodes that hold them to `detached`. Returns the page at which it stopped, if it did.
    ///
    /// The frames belong to the caller after the flush that the writer's obligation asks for: those of entries in nodes that stay
    /// are handed over by [`clear_detached`](Self::clear_detached), all others by [`Detached::release`]. Of the larger pages of a
    /// format without bits for a frame in an entry that is not mapped, one call takes at most [`Detached::LOOSE`] runs. Between this
    /// call and `clear_detached` the entries that hold frames refuse other contents ([`Error::Marked`]); an unmap leaves them, and
    /// another `detach` leaves them or hands their frames over. If the table is destroyed before, they are lost.
    ///
    /// Costs a store for each node of the last two levels of which nothing stays, and otherwise one for each leaf.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::Borrowed`], or [`Error::Partial`] if a leaf extends beyond the range; [`Error::OtherTable`] if
    /// `detached` is not a list for the nodes of the table's storage. Nothing has changed then.
    pub fn detach(
        &mut self,
        pages: Pages,
        most: usize,
        detached: &mut Detached<'n, G, F, N>,
    ) -> Result<Option<Vpn>, Error> {
        const { assert!(F::EXTRA == 0 && G::LINEAR.is_none(), "a node is its entries") };
        let writing = self.writing();
        let table = writing.table();
        if !detached.is_for(table.nodes) {
            return Err(Error::OtherTable);
        }
        writing.check(pages)?;
        for end in [pages.first(), pages.last()] {
            if let Some(leaf) = writing.view().leaf_for(end) {
                G::SPACE.check_whole(leaf, pages)?;
            }
        }
        let stale = writing.view().stale(pages);
        Ok(writing.or_mend(|mut writing| {
            let mut work = Detaching { detached, left: most.max(1), changed: false, unlinked: false };
            let stop = writing.root().detach(&mut work, pages);
            if work.changed {
                writing.touch(FlushScope::Everywhere, stale, work.unlinked);
            }
            stop
        }))
    }

    /// Empties the entries of `pages` that [`detach`](Self::detach) has left in nodes that stay, removes the marks there, and hands
    /// both over. A call that `hand_over` has unwound can be repeated.
    ///
    /// # Safety
    ///
    /// As for [`Detached::release`]. The pages are those of that call, up to the page where it stopped.
    pub unsafe fn clear_detached(
        &mut self,
        pages: Pages,
        detached: &mut Detached<'n, G, F, N>,
        hand_over: &mut dyn FnMut(Uncovered),
    ) {
        if G::SPACE.check_pages(pages).is_ok() {
            let mut writing = self.writing();
            if writing.check_part(pages).is_ok() {
                writing.root().clear_detached(pages, detached, hand_over);
            }
            detached.pending.end(hand_over);
        }
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Destroys a table whose nodes hold frames, as [`destroy`](crate::destroy) does for one whose pages the caller knows. Adds its nodes
    /// to `detached`, and returns the obligation of earlier changes whose flush was dropped. Both need a flush of the whole address
    /// space on every CPU that may hold a translation of it. If `detached` is not a list for the nodes of the table's storage, the nodes
    /// are lost.
    ///
    /// Costs a load for each top-level slot.
    pub fn detach_all(self, detached: &mut Detached<'n, G, F, N>) -> Retired<'n> {
        const { assert!(F::EXTRA == 0 && G::LINEAR.is_none(), "a node is its entries") };
        let mut debt = self.batch();
        // SAFETY: this function owns the table, so it is the only writer, and the batch came from the table.
        unsafe { debt.take_up(&self.flag) };
        // SAFETY: this function owns the table, so it is the only writer, and the batch came from the table.
        let mut writing = unsafe { Writing::new(&self, &mut debt) };
        let root = writing.root();
        for index in self.borrowed_slots() {
            root.at(index).store_relaxed(F::Word::ZERO);
        }
        debt.outlive();
        if detached.is_for(self.nodes) {
            let nodes = self.tally.footprint().nodes;
            self.tally.clear();
            // SAFETY: no code uses the table after this function, and the tally counts all of its nodes.
            unsafe { detached.add(self.root, 0, nodes) };
        }
        debt
    }

    /// Returns the first part of `pages` that has about `most` entries and empty slots, for a caller that handles a range in bounded parts. The
    /// part ends with the end of a node or of a leaf. Costs a load for each entry above the last level.
    pub fn part(&self, pinned: Pinned<'_>, pages: Pages, most: usize) -> Pages {
        let mut left = most;
        if G::SPACE.check_pages(pages).is_err() {
            return pages;
        }
        let end = NodeRef::root(self, pinned).part(pages, &mut left);
        end.and_then(|end| Pages::new(pages.first(), end.min(pages.last()))).unwrap_or(pages)
    }
}

/// What has been counted of a node and those below it.
struct Counted {
    nodes: usize,
    /// Leaves and marks.
    ptes: usize,
    /// The loads that this has taken.
    loads: usize,
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeRef<'_, 'n, G, F, N> {
    /// Returns the page after which `left` entries of a range that the node covers have been counted, unless there are fewer.
    fn part(self, pages: Pages, left: &mut usize) -> Option<Vpn> {
        let level = self.level();
        let mut rest = Some(pages);
        while let Some(pages) = rest {
            let at = pages.first();
            let mut end = Self::slot_end(level, at);
            let seen = self.seen(self.index_of(at.address(G::BASE)));
            if Self::is_leaf(seen.word(), level) {
                *left = left.saturating_sub(1);
                let leaf = Self::leaf(seen.word(), level, at.address(G::BASE));
                end = end.max(G::SPACE.pages_of(&leaf).last());
            } else if let Some(below) = seen.link() {
                let span = Pages::new(at, end.min(pages.last()))?;
                if Self::is_last(below.level()) {
                    *left = left.saturating_sub(span.len());
                } else if let Some(stop) = below.part(span, left) {
                    return Some(stop);
                }
            } else {
                *left = left.saturating_sub(1);
            }
            if *left == 0 {
                return Some(end);
            }
            rest = after(pages, end);
        }
        None
    }

    /// Tells whether the node and those below it have no entry outside of `span`, which it covers, and there are few enough of them to
    /// be taken at once: those of the last two levels.
    fn is_within(self, span: Pages) -> bool {
        let level = self.level();
        if level + 2 < Self::LEVELS {
            return false;
        }
        if span.len() == Self::slot_pages(level) << Self::width(level) {
            return true;
        }
        let taken = Self::by_slot(level, span).filter(|&(index, span)| {
            let seen = self.read(index);
            match seen.link() {
                Some(below) => below.is_within(span),
                None => Self::is_leaf(seen.word(), level) || Self::is_mark(seen.word(), level),
            }
        });
        taken.count() as u32 == self.live()
    }

    /// Counts the node and those below it out of the tally.
    fn count(self) -> Counted {
        let level = self.level();
        self.table().tally_node(-1, level);
        let mut live = self.live();
        let mut counted = Counted { nodes: 1, ptes: live as usize, loads: 0 };
        if Self::is_last(level) {
            return counted;
        }
        for index in 0..Self::slots(level) {
            if live == 0 {
                break;
            }
            counted.loads += 1;
            let seen = self.read(index);
            if let Some(below) = seen.link() {
                let below = below.count();
                counted.nodes += below.nodes;
                counted.ptes += below.ptes - 1;
                counted.loads += below.loads;
                live -= 1;
            } else if F::is_leaf(seen.word(), false) {
                live -= 1;
            }
        }
        counted
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeMut<'_, 'n, G, F, N> {
    /// Takes the entries of a range that the node covers out of the table. No leaf extends beyond the range. Returns the page at which
    /// it stopped, if it did.
    fn detach(&mut self, work: &mut Detaching<'_, 'n, G, F, N>, pages: Pages) -> Option<Vpn> {
        let level = self.level();
        for (index, span) in Self::by_slot(level, pages) {
            let word = self.read(index).word();
            let is_leaf = Self::is_leaf(word, level);
            // A page in several slots is taken as a whole.
            if work.left == 0 && (!is_leaf || Self::part_of(word, level, index).1 == 0) {
                return Some(span.first());
            }
            if is_leaf {
                if !self.detach_leaf(work, index, word) {
                    return Some(span.first());
                }
                continue;
            }
            let lent = level == 0 && self.table().is_lent(index);
            let Some(mut below) = self.child(index) else { continue };
            if !lent && below.is_within(span) {
                let Counted { nodes, ptes, loads } = below.count();
                if let Some(gone) = self.unlink(index) {
                    self.table().count_ptes(-(ptes as isize));
                    // A node without neighbours is found behind up to a node's slots.
                    work.left = work.left.saturating_sub(nodes + loads / 4);
                    (work.changed, work.unlinked) = (true, true);
                    work.detached.push(gone, nodes);
                }
                continue;
            }
            let stop = below.detach(work, span);
            // SAFETY: no slot of the node is in use.
            work.unlinked |= below.live() == 0 && unsafe { self.retire_child(index, true) };
            if stop.is_some() {
                return stop;
            }
        }
        None
    }

    /// Replaces the leaf `word` in a slot by a word that holds its frame, or takes it out and puts its frame on the short list. Returns
    /// `false` if there is no room on that list: nothing has changed then.
    fn detach_leaf(&mut self, work: &mut Detaching<'_, 'n, G, F, N>, index: usize, word: F::Word) -> bool {
        let level = self.level();
        let gone = |leaf| {
            let Run { first, dirty, .. } = Self::run_of(leaf, level, index);
            gone_word::<F>(first, dirty, Self::is_last(level))
        };
        if gone(word).is_some() {
            // Whether there is such a word depends on the frame, which hardware does not change.
            self.at(index).amend(word, |leaf| gone(leaf).unwrap_or(F::Word::ZERO));
        } else {
            // The later parts of a page in several slots continue the run of the first, so there is room for them.
            if !work.detached.has_room(Self::run_of(word, level, index)) {
                return false;
            }
            let old = self.at(index).take(word);
            work.detached.keep(Self::run_of(old, level, index));
            self.sub_live(1);
            self.table().count_ptes(-1);
        }
        self.at(index).settle_pair();
        work.left = work.left.saturating_sub(1);
        work.changed = true;
        true
    }

    /// Empties the entries of a range that the node covers which hold frames or marks, and hands them over; see
    /// [`Writer::clear_detached`].
    fn clear_detached(
        &mut self,
        pages: Pages,
        detached: &mut Detached<'n, G, F, N>,
        hand_over: &mut dyn FnMut(Uncovered),
    ) {
        let level = self.level();
        for (index, span) in Self::by_slot(level, pages) {
            let word = self.read(index).word();
            if word == F::Word::ZERO || Self::is_leaf(word, level) {
                continue;
            }
            if Self::is_link(word, level) {
                let Some(mut below) = self.child(index) else { continue };
                below.clear_detached(span, detached, hand_over);
                // SAFETY: no slot of the node is in use.
                if below.live() == 0 && unsafe { self.retire_child(index, true) } {
                    self.touch(FlushScope::Everywhere, Pages::one(span.first()), true);
                }
                continue;
            }
            let (gone, mark) = (gone_of::<F>(word), Self::entry(word, level, VirtAddr::new(0)).mark());
            if gone.is_some() || mark.is_some() {
                let place = self.at(index);
                place.store_relaxed(F::Word::ZERO);
                place.settle_pair();
                self.sub_live(1);
                self.table().count_ptes(-1);
            }
            if let Some((first, dirty)) = gone {
                detached.pending.add(Run { first, len: Self::slot_pages(level), dirty }, hand_over);
            } else if let Some(mark) = mark {
                hand_over(Uncovered::Mark(mark));
            }
        }
    }
}
