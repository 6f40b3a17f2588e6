//! The page sizes that a TLB can map: powers of two, ascending.

use core::ops::RangeInclusive;
use core::{fmt, iter};

use tlbkit_addr::{PageSize, Pages, Vpn};

use crate::Superpage;

/// The most sizes a [`PageSizes`] can have.
pub const MAX_LEVELS: usize = 16;

/// log2 of the most units that the largest size may have: enough for 4 KB and 1 GB.
pub(crate) const MAX_SPAN: u32 = 18;

/// The sizes that a TLB entry can map, ascending. Level 0 is the size that an ordinary entry maps, the *unit* of all
/// bookkeeping. The largest size is the *segment*: a miss charges only superpages of its own segment.
///
/// On a paired TLB (MIPS: one entry maps an even page and its odd neighbour) the unit is the pair, so the sizes may
/// start at twice the page size.
///
/// ```
/// use tlbkit_addr::PageSize;
/// use tlbkit_superpage::{PageSizes, PageSizesError};
///
/// let sizes = [PageSize::K4, PageSize::K16, PageSize::K64];
/// let page_sizes = PageSizes::new(PageSize::K4, &sizes).unwrap();
/// assert_eq!((page_sizes.levels(), page_sizes.units_per_segment()), (3, 16));
/// assert_eq!(PageSizes::new(PageSize::K4, &[PageSize::K16, PageSize::K4]), Err(PageSizesError::NotAscending));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PageSizes {
    page: PageSize,
    unit: u8,
    /// log2 of the units of each level's size; `shifts[0]` is 0.
    shifts: [u8; MAX_LEVELS],
    levels: u8,
    /// log2 of the units of the largest size.
    segment: u8,
    /// The mask of a unit's number within its segment.
    mask: u32,
}

/// Why a list of sizes is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSizesError {
    /// Fewer than two sizes: nothing to promote to.
    TooFew,
    /// More than [`MAX_LEVELS`] sizes.
    TooMany,
    /// A size is not larger than the one before it.
    NotAscending,
    /// The first size is neither the page nor, on a paired TLB, two pages.
    NotThePage,
    /// The largest size spans more than 2^18 units.
    TooWide,
}

impl fmt::Display for PageSizesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooFew => "a TLB needs at least two page sizes",
            Self::TooMany => "a TLB has at most 16 page sizes",
            Self::NotAscending => "each page size must be larger than the one before",
            Self::NotThePage => "the first page size must be that of a page, or of two on a paired TLB",
            Self::TooWide => "the largest page size spans at most 2^18 of the smallest",
        })
    }
}

impl core::error::Error for PageSizesError {}

impl PageSizes {
    /// The paper's sizes: 4, 8, 16, ... KB up to 8 MB (section 6).
    pub const PAPER: Self = Self {
        page: PageSize::K4,
        unit: 0,
        shifts: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 0, 0, 0],
        levels: 12,
        segment: 11,
        mask: (1 << 11) - 1,
    };

    /// Returns the list of `sizes`. A [`Vpn`] counts pages of size `page`.
    ///
    /// # Errors
    ///
    /// See [`PageSizesError`].
    pub fn new(page: PageSize, sizes: &[PageSize]) -> Result<Self, PageSizesError> {
        let [unit, _, ..] = sizes else { return Err(PageSizesError::TooFew) };
        if sizes.len() > MAX_LEVELS {
            return Err(PageSizesError::TooMany);
        }
        if sizes.iter().zip(sizes.iter().skip(1)).any(|(small, large)| large <= small) {
            return Err(PageSizesError::NotAscending);
        }
        if !matches!(unit.pages(page), Some(1 | 2)) {
            return Err(PageSizesError::NotThePage);
        }
        let mut shifts = [0; MAX_LEVELS];
        for (shift, size) in shifts.iter_mut().zip(sizes) {
            let above = size.shift() - unit.shift();
            if above > MAX_SPAN {
                return Err(PageSizesError::TooWide);
            }
            *shift = above as u8;
        }
        let segment = shifts[sizes.len() - 1];
        Ok(Self {
            page,
            unit: (unit.shift() - page.shift()) as u8,
            shifts,
            levels: sizes.len() as u8,
            segment,
            mask: (1 << segment) - 1,
        })
    }

    /// Returns the size in which page numbers are counted.
    pub const fn page(&self) -> PageSize {
        self.page
    }

    /// Returns the number of sizes, at least two.
    #[inline]
    pub const fn levels(&self) -> usize {
        self.levels as usize
    }

    /// Returns the highest level, that of the segment.
    #[inline]
    pub const fn top(&self) -> usize {
        self.levels as usize - 1
    }

    /// Returns the base-two logarithm of the units in a superpage of `level`, which must exist.
    #[inline]
    pub const fn shift(&self, level: usize) -> u32 {
        self.shifts[level % MAX_LEVELS] as u32
    }

    /// Returns the size of `level`, or `None` beyond the highest.
    pub fn size(&self, level: usize) -> Option<PageSize> {
        let above = *self.shifts.get(level).filter(|_| level < self.levels())?;
        PageSize::from_shift(self.page.shift() + u32::from(self.unit) + u32::from(above))
    }

    /// Returns the level of `size`, or `None` if it is none of these sizes.
    pub fn level(&self, size: PageSize) -> Option<usize> {
        (0..self.levels()).find(|&level| self.size(level) == Some(size))
    }

    /// Returns the lowest level whose size is at least `size`, or the highest level if none is.
    pub fn level_reaching(&self, size: PageSize) -> usize {
        (0..self.levels()).find(|&level| self.size(level) >= Some(size)).unwrap_or(self.top())
    }

    /// Returns the number of units of a segment, the largest superpage.
    #[inline]
    pub const fn units_per_segment(&self) -> usize {
        1 << self.segment
    }

    /// Returns the number of potential superpages of `level` in one segment.
    pub const fn nodes(&self, level: usize) -> usize {
        1 << (self.shift(self.top()) - self.shift(level))
    }

    /// Returns the segment of `page`, and its unit within the segment.
    #[inline]
    pub(crate) const fn locate(&self, page: Vpn) -> Place {
        let unit = page.get() >> self.unit;
        let segment = unit >> self.segment;
        Place { segment, unit: unit & self.mask as usize }
    }

    /// Returns the first and the last segment that `pages` overlap, each with the units that `pages` cover there; one item
    /// if they are the same segment.
    pub(crate) fn edges(&self, pages: Pages) -> impl Iterator<Item = (usize, RangeInclusive<usize>)> + use<> {
        let (first, last) = (self.locate(pages.first()), self.locate(pages.last()));
        let one = first.segment == last.segment;
        let end = if one { last.unit } else { self.units_per_segment() - 1 };
        let other = (!one).then_some((last.segment, 0..=last.unit));
        iter::once((first.segment, first.unit..=end)).chain(other)
    }

    /// Returns the first page and the last page of `pages`, each only if it is in a superpage that extends beyond `pages`.
    /// `mapping` returns the superpage that maps a page.
    pub(crate) fn cut(
        &self,
        pages: Pages,
        mut mapping: impl FnMut(Vpn) -> Option<Superpage>,
    ) -> [Option<Vpn>; 2] {
        [pages.first(), pages.last()].map(|end| {
            let whole = mapping(end)?.pages(self.page);
            (whole.first() < pages.first() || whole.last() > pages.last()).then_some(end)
        })
    }

    /// Returns the superpage of `level` around `place`.
    pub(crate) fn superpage(&self, place: Place, level: usize) -> Option<Superpage> {
        let unit = (place.segment << self.shift(self.top()))
            | (place.unit >> self.shift(level) << self.shift(level));
        Some(Superpage { first: Vpn::new(unit << self.unit), size: self.size(level)? })
    }

    /// Returns the first unit of `superpage` and its level, or `None` if the TLB has no such page size or the superpage is
    /// not aligned.
    pub(crate) fn find(&self, superpage: Superpage) -> Option<(Place, usize)> {
        let level = self.level(superpage.size)?;
        superpage.first.is_aligned(superpage.size, self.page).then(|| (self.locate(superpage.first), level))
    }
}

impl fmt::Debug for PageSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((0..self.levels()).filter_map(|level| self.size(level))).finish()
    }
}

/// A unit, by its segment and its number within the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: usize,
    pub(crate) unit: usize,
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// A range of pages covers its first segment up to the end and its last segment from the beginning. If they are the same
    /// segment, it covers the units from its first page to its last.
    #[test]
    fn edges() {
        let edges = |page_sizes: PageSizes, first, last| {
            let pages = Pages::new(Vpn::new(first), Vpn::new(last)).unwrap();
            page_sizes.edges(pages).collect::<Vec<_>>()
        };
        let paper = |first, last| edges(PageSizes::PAPER, first, last);
        assert_eq!(paper(2048 + 5, 2048 + 5), vec![(1, 5..=5)]);
        assert_eq!(paper(2048, 2 * 2048 - 1), vec![(1, 0..=2047)]);
        assert_eq!(paper(2048 + 7, 2 * 2048), vec![(1, 7..=2047), (2, 0..=0)]);
        assert_eq!(paper(3, 9 * 2048 - 1), vec![(0, 3..=2047), (8, 0..=2047)]);
        let top = usize::MAX >> 11;
        assert_eq!(paper(usize::MAX - 1, usize::MAX), vec![(top, 2046..=2047)]);
        // With units of two pages, a range that has one page of a unit covers the unit.
        let sizes = [13, 15].map(|shift| PageSize::from_shift(shift).unwrap());
        let pairs = PageSizes::new(PageSize::K4, &sizes).unwrap();
        assert_eq!(edges(pairs, 7, 9), vec![(0, 3..=3), (1, 0..=0)]);
    }
}
