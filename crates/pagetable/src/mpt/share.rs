//! A kernel half that all address spaces share: one table lends top-level slots, and other tables borrow them.

use tlbkit_addr::{Flush, PageSize, Pages, Vpn};

use super::Mpt;
use super::leaf::Decode as _;
use super::node::{Supply, Writing};
use super::shape::Shape;
use crate::format::{Format, is_gone, walked};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Error, Radix, Table as _};

/// The pages that a table lends to others, and their slots of the root.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Loan {
    pub(super) pages: Pages,
    first: usize,
    last: usize,
}

impl Loan {
    /// Tells whether the slot `slot` of the root is lent.
    #[inline(always)]
    fn has(self, slot: usize) -> bool {
        self.first <= slot && slot <= self.last
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Mpt<'n, G, F, N> {
    /// Prepares the top-level slots of `pages` for lending: each slot gets a node, which is not retired when it becomes empty.
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
    /// [`Error::OutOfRange`]; [`Error::Misaligned`] if the range does not begin and end with a top-level slot;
    /// [`Error::Occupied`] if a slot holds a leaf; [`Error::Marked`] if it holds a detached frame; [`Error::Borrowed`]; [`Error::Busy`] if the table lends already;
    /// [`Error::WrongSize`] if it has but one level; [`Error::NoMemory`].
    pub fn lend(&mut self, pages: Pages) -> Result<Flush, Error> {
        G::SPACE.check_pages(pages)?;
        let cover = Self::slot_pages(0);
        let (first, last) = (pages.first(), pages.last());
        for (end, low) in [(first, 0), (last, cover - 1)] {
            if end.get() & (cover - 1) != low {
                return Err(Error::Misaligned { at: end.address(G::BASE), size: Self::slot_size(0) });
            }
        }
        if Self::LEVELS == 1 {
            return Err(Error::WrongSize { size: Self::slot_size(0) });
        }
        self.check_own(pages)?;
        if self.lent.is_some() {
            return Err(Error::Busy);
        }
        let mut batch = self.batch();
        // SAFETY: `&mut self` excludes any other writer, and the batch came from this table. (It stays empty.)
        let mut writing = unsafe { Writing::new(self, &mut batch) };
        let slots = || (first.get()..=last.get()).step_by(cover).map(|page| Vpn::new(page).address(G::BASE));
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
        let mut supply = Supply::take(writing.table(), want)?;
        for at in slots() {
            writing.reach(&mut supply, at, 1).add_loan();
        }
        let index = |page: Vpn| Self::index(0, page.address(G::BASE));
        self.lent = Some(Loan { pages, first: index(first), last: index(last) });
        let mut flush = Flush::none();
        if walked::<F>() && want[1] > 0 {
            flush.add_links(F::APPEARS, pages);
        }
        Ok(flush)
    }

    /// Returns an empty table that borrows the part which `kernel` lends. Its nodes come from the storage of `kernel`, to which
    /// the links lead. The table cannot change the borrowed part, and does not retire its nodes when it is destroyed.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    pub fn sharing(kernel: &'n Self) -> Result<Self, Error> {
        let mut table = Self::new(kernel.nodes)?;
        if let Some(loan) = kernel.lent {
            table.borrowed = Some(loan);
            let mut batch = table.batch();
            // SAFETY: no other code uses the new table yet, and the batch came from it. (It stays empty.)
            let mut writing = unsafe { Writing::new(&table, &mut batch) };
            (loan.first..=loan.last).for_each(|slot| writing.root().borrow(kernel, slot));
        }
        Ok(table)
    }

    /// Checks that none of the pages is borrowed. Only the lender changes borrowed pages.
    #[inline(always)]
    pub(super) fn check_own(&self, pages: Pages) -> Result<(), Error> {
        match self.borrowed.and_then(|loan| loan.pages.intersect(pages)) {
            Some(shared) => Err(Error::Borrowed { at: shared.first().address(G::BASE) }),
            None => Ok(()),
        }
    }

    /// Refuses pages that would replace a lent link, because borrowers keep a copy of that link.
    #[inline(always)]
    pub(super) fn check_lent(&self, pages: Pages, size: PageSize) -> Result<(), Error> {
        match self.lent {
            Some(lent) if Self::level_of(size) == 0 && lent.pages.intersect(pages).is_some() => {
                Err(Error::WrongSize { size })
            }
            _ => Ok(()),
        }
    }

    /// Tells whether a slot of the root is borrowed.
    #[inline(always)]
    pub(super) fn is_borrowed(&self, slot: usize) -> bool {
        self.borrowed.is_some_and(|loan| loan.has(slot))
    }

    /// Tells whether a slot of the root is lent.
    pub(super) fn is_lent(&self, slot: usize) -> bool {
        self.lent.is_some_and(|loan| loan.has(slot))
    }
}
