//! Ranges of virtual pages.

use core::fmt;
use core::iter::FusedIterator;

use crate::{PageSize, VirtAddr, Vpn};

/// A range of virtual pages, both ends included, never empty.
///
/// Both ends are included, so that a range which ends at the top of the address space needs no special case.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pages {
    first: Vpn,
    last: Vpn,
}

impl Pages {
    /// Returns the pages `first..=last`, or `None` if `last` is below `first`.
    #[inline]
    pub const fn new(first: Vpn, last: Vpn) -> Option<Self> {
        if first.get() <= last.get() { Some(Self { first, last }) } else { None }
    }

    /// Returns the one page `page`.
    #[inline]
    pub const fn one(page: Vpn) -> Self {
        Self { first: page, last: page }
    }

    /// Returns `pages` pages from `first` on, or `None` if there are none or the last one overflows.
    #[inline]
    pub const fn count(first: Vpn, pages: usize) -> Option<Self> {
        match pages.checked_sub(1) {
            Some(more) => match first.checked_add(more) {
                Some(last) => Some(Self { first, last }),
                None => None,
            },
            None => None,
        }
    }

    /// Returns the fewest pages of a size that hold the `len` bytes from `at` on, which may begin and end anywhere: what `munmap` and
    /// `mprotect` get. Returns `None` if there are none, or if they extend beyond the last address.
    ///
    /// ```
    /// use tlbkit_addr::{PageSize, Pages, VirtAddr};
    ///
    /// let pages = |at, len| Pages::covering(VirtAddr::new(at), len, PageSize::K4).map(Pages::len);
    /// assert_eq!([pages(0x1fff, 1), pages(0x1fff, 2), pages(0x1000, 0x1001)], [Some(1), Some(2), Some(2)]);
    /// assert_eq!([pages(usize::MAX, 1), pages(usize::MAX, 2), pages(0x1000, 0)], [Some(1), None, None]);
    /// ```
    #[inline]
    pub const fn covering(at: VirtAddr, len: usize, size: PageSize) -> Option<Self> {
        match len.checked_sub(1) {
            Some(more) => match at.checked_add(more) {
                Some(last) => Self::new(at.vpn(size), last.vpn(size)),
                None => None,
            },
            None => None,
        }
    }

    /// Returns the first page.
    #[inline]
    pub const fn first(self) -> Vpn {
        self.first
    }

    /// Returns the last page.
    #[inline]
    pub const fn last(self) -> Vpn {
        self.last
    }

    /// Returns the number of pages, at least one.
    ///
    /// It saturates only for `0..=usize::MAX`, which is no range of pages on any machine, because a page has more than one byte.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a range of pages is never empty")]
    pub const fn len(self) -> usize {
        (self.last.get() - self.first.get()).saturating_add(1)
    }

    /// Tells whether `page` is in the range.
    #[inline]
    pub const fn contains(self, page: Vpn) -> bool {
        self.first.get() <= page.get() && page.get() <= self.last.get()
    }

    /// Returns the pages that are in both ranges, or `None` if the ranges are disjoint.
    #[inline]
    pub fn intersect(self, other: Self) -> Option<Self> {
        Self::new(self.first.max(other.first), self.last.min(other.last))
    }

    /// Returns the one range that holds exactly the pages of both, or `None` if there is a gap between them.
    #[inline]
    pub fn merge(self, other: Self) -> Option<Self> {
        let (low, high) = if self.first <= other.first { (self, other) } else { (other, self) };
        let touching = match low.last.checked_add(1) {
            Some(next) => high.first <= next,
            None => true,
        };
        touching.then(|| Self { first: low.first, last: low.last.max(high.last) })
    }

    /// Returns the pages of the range in ascending order.
    #[inline]
    pub const fn iter(self) -> PagesIter {
        PagesIter(Some(self))
    }
}

impl IntoIterator for Pages {
    type Item = Vpn;
    type IntoIter = PagesIter;

    fn into_iter(self) -> PagesIter {
        self.iter()
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({:#x}..={:#x})", self.first.get(), self.last.get())
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..={:#x}", self.first.get(), self.last.get())
    }
}

/// The pages of a [`Pages`] range, from [`Pages::iter`].
#[derive(Clone, Debug)]
pub struct PagesIter(Option<Pages>);

impl Iterator for PagesIter {
    type Item = Vpn;

    fn next(&mut self) -> Option<Vpn> {
        let rest = self.0?;
        self.0 = match rest.first.checked_add(1) {
            Some(next) => Pages::new(next, rest.last),
            None => None,
        };
        Some(rest.first)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.0.map_or(0, Pages::len);
        (len, Some(len))
    }
}

impl DoubleEndedIterator for PagesIter {
    fn next_back(&mut self) -> Option<Vpn> {
        let rest = self.0?;
        self.0 = match rest.last.checked_sub(1) {
            Some(previous) => Pages::new(rest.first, previous),
            None => None,
        };
        Some(rest.last)
    }
}

impl FusedIterator for PagesIter {}
