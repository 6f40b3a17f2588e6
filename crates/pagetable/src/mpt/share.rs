//! A kernel half that all address spaces share: one table lends top-level slots, and other tables borrow them.

use tlbkit_addr::{Flush, PageSize, Pages, Vpn};

use super::Mpt;
use super::shape::Shape;
use crate::format::{Format, walked};
use crate::geometry::Checked as _;
use crate::nodes::{Nodes, Stock};
use crate::{Error, Radix};

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
    /// [`Error::Occupied`] if a slot holds a leaf; [`Error::Borrowed`]; [`Error::Busy`] if the table lends already;
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
        let slots = || (first.get()..=last.get()).step_by(cover).map(|page| Vpn::new(page).address(G::BASE));
        let mut want = [0; super::shape::MAX];
        for at in slots() {
            // SAFETY: `&mut self`: no other CPU writes.
            let word = unsafe { self.read(self.root, Self::place(0, Self::index(0, at))) };
            if F::is_leaf(word, false) {
                return Err(Error::occupied(&Self::leaf(word, 0, at)));
            }
            want[1] += usize::from(!F::is_link(word));
        }
        let mut stock = Stock::take_within(self.nodes, &Self::WORDS, want, F::REACH)?;
        for at in slots() {
            // SAFETY: `&mut self`: no other CPU writes. The loan counts as an entry, so that the count of the node never becomes
            // 0.
            unsafe {
                let node = self.reach(&mut stock, at, 1);
                self.add_loan(node, 1);
            }
        }
        self.lent = Some(pages);
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
        if let Some(pages) = kernel.lent {
            let (first, last) = (pages.first().address(G::BASE), pages.last().address(G::BASE));
            let slots = Self::index(0, first)..=Self::index(0, last);
            let borrowed = slots.clone().count();
            for place in slots {
                // SAFETY: lent links never change, and no other code uses the new root yet.
                unsafe { table.publish(table.root, place, kernel.nodes.follow(kernel.root, place)) };
            }
            // SAFETY: no other code uses the new root yet.
            unsafe { table.add_live(table.root, 0, Self::index(0, first), borrowed) };
            table.borrowed = Some(pages);
        }
        Ok(table)
    }

    /// Checks that none of the pages is borrowed. Only the lender changes borrowed pages.
    #[inline(always)]
    pub(super) fn check_own(&self, pages: Pages) -> Result<(), Error> {
        match self.borrowed {
            Some(borrowed) => match borrowed.intersect(pages) {
                Some(shared) => Err(Error::Borrowed { at: shared.first().address(G::BASE) }),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Tells whether a page is borrowed.
    #[inline(always)]
    pub(super) fn borrows(&self, page: Vpn) -> bool {
        self.borrowed.is_some_and(|borrowed| borrowed.contains(page))
    }

    /// Refuses pages that would replace a lent link, because borrowers keep a copy of that link.
    #[inline(always)]
    pub(super) fn check_lent(&self, pages: Pages, size: PageSize) -> Result<(), Error> {
        match self.lent {
            Some(lent) if Self::level_of(size) == 0 && lent.intersect(pages).is_some() => {
                Err(Error::WrongSize { size })
            }
            _ => Ok(()),
        }
    }

    /// Tells whether a top-level slot is borrowed.
    pub(super) fn is_borrowed(&self, slot: usize) -> bool {
        self.borrowed.is_some_and(|pages| Self::is_slot_of(slot, pages))
    }

    /// Tells whether a top-level slot is lent.
    pub(super) fn is_lent(&self, slot: usize) -> bool {
        self.lent.is_some_and(|pages| Self::is_slot_of(slot, pages))
    }

    fn is_slot_of(slot: usize, pages: Pages) -> bool {
        let (first, last) = (pages.first().address(G::BASE), pages.last().address(G::BASE));
        (Self::index(0, first)..=Self::index(0, last)).contains(&slot)
    }
}
