//! Mapping a range: a dry run that can fail, then a commit that cannot.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};

use super::shape::{MAX, Shape};
use super::{Mpt, own_pages};
use crate::format::{Format, appears, check_attr, first_leaf, walked};
use crate::geometry::Checked as _;
use crate::nodes::{Nodes, Stock};
use crate::pairs::stale;
use crate::{Entry, Error, Radix, Retired, Word};

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// See [`Table::map`](crate::Table::map).
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the batch came from this table.
    #[inline(never)]
    pub(super) unsafe fn map_range(
        &self,
        batch: &mut Retired<'n>,
        pages: Pages,
        frame: Pfn,
        size: PageSize,
        attr: Attr,
    ) -> Result<(), Error> {
        G::SPACE.check_sized(pages, size)?;
        G::SPACE.check_frames(frame, pages.len(), size)?;
        self.check_own(pages)?;
        check_attr::<F>(attr)?;
        let level = Self::level_of(size);
        let last = level + 1 == Self::LEVELS;
        let span = pages.len();
        let size_pages = size.pages(G::BASE).unwrap_or(1);
        first_leaf::<F>(frame, span, size, attr, last)?;
        // SAFETY: the caller is the writer.
        let want = unsafe { self.survey(pages, size) }?;
        let mut stock = Stock::take_within(self.nodes, &Self::WORDS, want, F::REACH)?;
        for level in 1..Self::LEVELS {
            if want[level] > 0
                && let Some(own) = own_pages::<G>(level, pages)
            {
                batch.touch(F::APPEARS, own);
            }
        }
        let stale = stale::<G, F>(pages, |_| Some(size));
        if walked::<F>() && want.iter().any(|&nodes| nodes > 0) {
            batch.relink(appears::<F>(size), stale);
        } else {
            batch.touch(appears::<F>(size), stale);
        }

        // The contents of the frames are visible before the entries that lead to them.
        self.release();
        let repeat = size_pages / Self::slot_pages(level).min(size_pages);
        let mut at = pages.first();
        loop {
            let end = self.node_end(level, at).min(pages.last());
            let slots = (end.get() - at.get()) / Self::slot_pages(level) + 1;
            let va = at.address(G::BASE);
            let first = Pfn::new(frame.get() + (at.get() - pages.first().get()));
            // A page that occupies several slots may begin in the node before this one.
            let aligned = Pfn::new(first.get() & !(size_pages - 1));
            let word = F::leaf(aligned, size, attr, last)?;
            // SAFETY: the caller is the writer. The survey has found the slots vacant, and the stock has every node that is
            // missing.
            unsafe {
                let node = self.reach(&mut stock, va, level);
                let index = Self::index(level, va);
                if repeat == 1 {
                    let step = F::Word::ZERO.advance(F::STEP, Self::slot_pages(level));
                    self.fill(node, level, index, slots, word, step);
                } else {
                    // Whole pages of `repeat` slots each, or the part in this node of a page that is larger than the node.
                    let each = if F::SPREAD { Self::slot_pages(level) } else { 0 };
                    let step = F::Word::ZERO.advance(F::STEP, each);
                    for (page, slot) in (0..slots).step_by(repeat).enumerate() {
                        let word = word.advance(F::STEP, page * size_pages);
                        self.fill(node, level, index + slot, repeat.min(slots), word, step);
                    }
                }
                self.settle_pair(node, level, index);
                self.settle_pair(node, level, index + slots - 1);
                self.add_live(node, level, index, slots);
            }
            self.tally.ptes(slots as isize);
            if end == pages.last() {
                break;
            }
            at = Vpn::new(end.get() + 1);
        }
        Ok(())
    }

    /// Counts the missing nodes by level, as the dry run of a map. Returns an error if a page of the range has a leaf or a mark.
    ///
    /// Costs a walk for each node that exists and each empty slot above the last level that the range has: so a range of any length
    /// is refused soon.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the pages are in the space and not borrowed.
    unsafe fn survey(&self, pages: Pages, size: PageSize) -> Result<[usize; MAX], Error> {
        let level = Self::level_of(size);
        let mut want = [0; MAX];
        let mut at = pages.first();
        loop {
            let mut end = self.node_end(level, at).min(pages.last());
            let va = at.address(G::BASE);
            // SAFETY: the caller is the writer.
            let path = unsafe { self.path(va, level) };
            let node = path.node(path.level);
            if path.level < level {
                let place = Self::place(path.level, Self::index(path.level, va));
                // SAFETY: the path's last node, within its slots.
                let word = unsafe { self.read(node, place) };
                if F::is_leaf(word, false) {
                    return Err(Error::occupied(&Self::leaf(word, path.level, va)));
                }
                // No node below the slot exists.
                end = Vpn::new(at.get() | (Self::slot_pages(path.level) - 1)).min(pages.last());
                for missing in path.level + 1..=level {
                    let cover = Self::slot_pages(missing - 1).ilog2();
                    want[missing] += (end.get() >> cover) - (at.get() >> cover) + 1;
                }
            } else {
                let index = Self::index(level, va);
                let slots = (end.get() - at.get()) / Self::slot_pages(level) + 1;
                // SAFETY: the path's last node, within its slots.
                if unsafe { self.any_taken(node, level, index, slots) } {
                    // SAFETY: the caller is the writer.
                    return Err(unsafe { self.occupied(at, end, size) });
                }
            }
            if end == pages.last() {
                return Ok(want);
            }
            at = Vpn::new(end.get() + 1);
        }
    }

    /// Returns the error that names the first leaf or mark between two pages, where pages of `size` were to be mapped.
    ///
    /// # Safety
    ///
    /// The caller is the only writer, and the pages are in the space and not borrowed.
    #[cold]
    pub(super) unsafe fn occupied(&self, first: Vpn, last: Vpn, size: PageSize) -> Error {
        let mut found = None;
        if let Some(pages) = Pages::new(first, last) {
            // SAFETY: the caller is the writer.
            let _ = unsafe {
                self.visit_entries(self.root, 0, pages, &mut |at, entry| {
                    found = Some((at, entry));
                    ControlFlow::Break(())
                })
            };
        }
        match found {
            Some((_, Entry::Leaf(occupant))) => Error::occupied(&occupant),
            Some((at, Entry::Mark(_))) => Error::Marked { at },
            // Nothing was found: the slot links an empty lent node, which a page of the slot's size cannot replace.
            Some((_, Entry::Empty)) | None => Error::WrongSize { size },
        }
    }
}
