//! A kernel half that all address spaces share: one table lends top-level slots, and other tables borrow them.

use tlbkit_addr::{Flush, PageSize, Pages, Vpn};

use super::Mpt;
use super::leaf::Decode as _;
use super::node::{Supply, Writing};
use super::shape::Shape;
use crate::format::{Format, is_gone, walked};
use crate::geometry::Checked as _;
use crate::hint::seldom;
use crate::nodes::Nodes;
use crate::{Error, PageRanges, Radix, Table as _};

/// The pages that a table lends to others.
pub(super) struct Loan {
    hull: Hull,
    pages: PageRanges,
}

/// The pages that a table borrows from another one, the lender, which keeps their ranges.
#[derive(Clone, Copy)]
pub(super) struct Borrowed<'n> {
    hull: Hull,
    pub(super) pages: &'n PageRanges,
}

impl Borrowed<'_> {
    /// Tells whether both are borrowed of one lender.
    pub(super) fn is(self, other: Self) -> bool {
        core::ptr::eq(self.pages, other.pages)
    }
}

/// The part of the space from the first range that is lent to the last one. Most pages that a program uses are not in it, which costs
/// two comparisons.
#[derive(Clone, Copy)]
struct Hull {
    pages: Pages,
    /// The slots of the root.
    first: usize,
    last: usize,
}

impl Hull {
    #[inline(always)]
    fn has(self, slot: usize) -> bool {
        self.first <= slot && slot <= self.last
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Prepares the top-level slots of `ranges` for lending, one to [eight](PageRanges::MOST) in any order: each slot gets a node, which
    /// is not retired when it becomes empty. Slots between two ranges are not lent.
    ///
    /// A borrower copies the links, so every borrower sees what this table maps there later. From now on this table refuses pages
    /// of the size of a top-level slot there ([`Error::WrongSize`]), because such a page would replace a lent link. Costs one
    /// node for each slot.
    ///
    /// Returns the flush that the new links need. A later change in the lent part changes every space that borrows it: flush it,
    /// the links above all, for all their ASIDs.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`]; [`Error::Misaligned`] if a range does not begin and end with a top-level slot;
    /// [`Error::Occupied`] if a slot holds a leaf; [`Error::Marked`] if it holds a detached frame; [`Error::Borrowed`]; [`Error::Busy`] if the table lends already;
    /// [`Error::WrongSize`] if it has but one level; [`Error::NoMemory`].
    pub fn lend<const RANGES: usize>(&mut self, ranges: [Pages; RANGES]) -> Result<Flush, Error> {
        self.lend_all(PageRanges::new(ranges))
    }

    fn lend_all(&mut self, ranges: PageRanges) -> Result<Flush, Error> {
        ranges.iter().try_for_each(|pages| self.check_slots(pages))?;
        if self.lent.is_some() {
            return Err(Error::Busy);
        }
        let mut batch = self.batch();
        // SAFETY: `&mut self` excludes any other writer, and the batch came from this table. (It stays empty.)
        let mut writing = unsafe { Writing::new(self, &mut batch) };
        let hull = ranges.hull();
        let index = |page: Vpn| Self::index(0, page.address(G::BASE));
        let hull = Hull { pages: hull, first: index(hull.first()), last: index(hull.last()) };
        // Each slot once, though ranges may overlap.
        let slots = || {
            let lent = (hull.first..=hull.last).filter(|&slot| Self::have_slot(&ranges, slot));
            lent.map(|slot| Self::slot_page(slot).address(G::BASE))
        };
        let mut want = [0; super::shape::MAX];
        for at in slots() {
            let word = writing.view().read(Self::index(0, at)).word();
            if F::is_leaf(word, false) {
                return Err(Error::occupied(&Self::leaf(word, 0, at)));
            }
            if !F::is_link(word) && is_gone::<F>(word) {
                return Err(Error::Marked { at });
            }
            want[1] += usize::from(!F::is_link(word));
        }
        let mut supply = Supply::empty(writing.table());
        supply.take(&want)?;
        for at in slots() {
            writing.reach(&mut supply, at, 1).add_loan();
        }
        self.lent = Some(Loan { hull, pages: ranges });
        let mut flush = Flush::none();
        if walked::<F>() && want[1] > 0 {
            ranges.iter().for_each(|pages| flush.add_links(F::APPEARS, pages));
        }
        Ok(flush)
    }

    /// Checks that pages are top-level slots with nodes below, and not borrowed.
    fn check_slots(&self, pages: Pages) -> Result<(), Error> {
        G::SPACE.check_pages(pages)?;
        let below = Self::slot_pages(0) - 1;
        for (end, low) in [(pages.first(), 0), (pages.last(), below)] {
            if end.get() & below != low {
                return Err(Error::Misaligned { at: end.address(G::BASE), size: Self::slot_size(0) });
            }
        }
        if Self::LEVELS == 1 {
            return Err(Error::WrongSize { size: Self::slot_size(0) });
        }
        self.check_own(pages)
    }

    /// Returns an empty table that borrows the part which `kernel` lends. Its nodes come from the storage of `kernel`, to which
    /// the links lead. The table cannot change the borrowed part, and does not retire its nodes when it is destroyed.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    pub fn sharing(kernel: &'n Self) -> Result<Self, Error> {
        let mut table = Self::new(kernel.nodes)?;
        if let Some(Loan { hull, pages }) = &kernel.lent {
            let borrowed = Borrowed { hull: *hull, pages };
            table.borrowed = Some(borrowed);
            table.plain = table.plain.min(hull.first);
            let mut batch = table.batch();
            // SAFETY: no other code uses the new table yet, and the batch came from it. (It stays empty.)
            let mut writing = unsafe { Writing::new(&table, &mut batch) };
            table.borrowed_slots().for_each(|slot| writing.root().borrow(kernel, slot));
        }
        Ok(table)
    }

    /// Checks that all of the pages are in the space, and none is borrowed, as every change of a range does.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] or [`Error::Borrowed`].
    #[inline(never)]
    pub(super) fn check(&self, pages: Pages) -> Result<(), Error> {
        G::SPACE.check_pages(pages)?;
        self.check_own(pages)
    }

    /// Checks that none of the pages is borrowed. Only the lender changes borrowed pages.
    #[inline(always)]
    pub(super) fn check_own(&self, pages: Pages) -> Result<(), Error> {
        match self.borrowed {
            Some(borrowed) if borrowed.hull.pages.intersect(pages).is_some() => {
                Self::check_apart(borrowed, pages)
            }
            _ => Ok(()),
        }
    }

    /// Refuses pages that would replace a lent link, because borrowers keep a copy of that link.
    #[inline(never)]
    pub(super) fn check_lent(&self, pages: Pages, size: PageSize) -> Result<(), Error> {
        match &self.lent {
            Some(lent) if Self::level_of(size) == 0 && lent.pages.first_in(pages).is_some() => {
                Err(Error::WrongSize { size })
            }
            _ => Ok(()),
        }
    }

    /// Checks that none of the pages is one of those that are borrowed.
    #[cold]
    #[inline(never)]
    fn check_apart(borrowed: Borrowed<'n>, pages: Pages) -> Result<(), Error> {
        match borrowed.pages.first_in(pages) {
            Some(page) => Err(Error::Borrowed { at: page.address(G::BASE) }),
            None => Ok(()),
        }
    }

    /// Tells whether ranges have a slot of the root.
    #[cold]
    #[inline(never)]
    fn have_slot(ranges: &PageRanges, slot: usize) -> bool {
        ranges.contains(Self::slot_page(slot))
    }

    /// Returns the first page of a slot of the root.
    fn slot_page(slot: usize) -> Vpn {
        Self::canonical(Pages::one(Vpn::new(slot * Self::slot_pages(0)))).first()
    }

    /// Returns the slots of the root that this table borrows, in ascending order.
    pub(super) fn borrowed_slots(&self) -> impl Iterator<Item = usize> + use<'_, 'n, G, F, N> {
        let slots = self.borrowed.map(|borrowed| borrowed.hull.first..=borrowed.hull.last);
        slots.into_iter().flatten().filter(|&slot| self.is_borrowed(slot))
    }

    /// Returns the slot of the root that a page falls into; `None` if the page is not in the space, or borrowed. A page in front of all
    /// borrowed ones costs a comparison, which tells both.
    #[inline(always)]
    pub(super) fn own_top(&self, page: Vpn) -> Option<usize> {
        let top = Self::top_below(self.plain, page)?;
        let is_own = top < self.plain || self.borrowed.is_none() || !self.is_borrowed(top);
        is_own.then_some(top)
    }

    /// Does what [`own_top`](Self::own_top) does without a call, and returns `None` also for a page between two borrowed ranges.
    #[inline(always)]
    pub(super) fn own_top_apart(&self, page: Vpn) -> Option<usize> {
        let top = page.get() >> Self::cover(0);
        if top < self.plain {
            return Some(top);
        }
        seldom();
        let top = Self::top(page)?;
        self.borrowed.is_none_or(|borrowed| !borrowed.hull.has(top)).then_some(top)
    }

    /// Tells whether a slot of the root is borrowed.
    #[inline(never)]
    pub(super) fn is_borrowed(&self, slot: usize) -> bool {
        self.borrowed.is_some_and(|borrowed| borrowed.hull.has(slot) && Self::have_slot(borrowed.pages, slot))
    }

    /// Tells whether a slot of the root is lent.
    #[inline(never)]
    pub(super) fn is_lent(&self, slot: usize) -> bool {
        self.lent.as_ref().is_some_and(|lent| lent.hull.has(slot) && Self::have_slot(&lent.pages, slot))
    }
}
