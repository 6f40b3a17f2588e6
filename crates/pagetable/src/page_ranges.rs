//! Several ranges of pages, as one value.

use core::iter;

use tlbkit_addr::{Pages, Vpn};

/// One to eight ranges of pages, in any order; they may touch and overlap.
///
/// A page between the lowest and the highest range costs a comparison with each range, any other page two comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRanges {
    /// From the first page of all ranges to the last.
    hull: Pages,
    /// The ranges. Places that are not needed repeat the first range.
    ranges: [Pages; Self::MOST],
}

impl PageRanges {
    /// The largest number of ranges.
    pub const MOST: usize = 8;

    /// Returns the ranges as one value. No range, or more than [`MOST`](Self::MOST), does not compile:
    ///
    /// ```compile_fail,E0080
    /// # use tlbkit_pagetable::PageRanges;
    /// let _ = PageRanges::new([]);
    /// ```
    pub fn new<const RANGES: usize>(ranges: [Pages; RANGES]) -> Self {
        const { assert!(RANGES > 0 && RANGES <= Self::MOST, "one to eight ranges") };
        let first = ranges.first().copied().unwrap_or(Pages::one(Vpn::new(0)));
        let mut hull = first;
        for range in ranges {
            let (low, high) = (hull.first().min(range.first()), hull.last().max(range.last()));
            hull = Pages::new(low, high).unwrap_or(hull);
        }
        Self { hull, ranges: core::array::from_fn(|at| ranges.get(at).copied().unwrap_or(first)) }
    }

    /// Returns the pages from the first one of all ranges to the last one.
    #[inline(always)]
    pub const fn hull(&self) -> Pages {
        self.hull
    }

    /// Returns the ranges. One of them may be returned several times.
    pub fn iter(&self) -> impl Iterator<Item = Pages> + '_ {
        self.ranges.iter().copied()
    }

    /// Tells whether a page is in one of the ranges.
    #[inline(always)]
    pub fn contains(&self, page: Vpn) -> bool {
        self.hull.contains(page) && self.iter().any(|range| range.contains(page))
    }

    /// Returns the first page of `pages` that is in one of the ranges.
    #[inline(never)]
    pub fn first_in(&self, pages: Pages) -> Option<Vpn> {
        self.hull.intersect(pages)?;
        self.first_of(pages)
    }

    #[inline(never)]
    fn first_of(&self, pages: Pages) -> Option<Vpn> {
        self.iter().filter_map(|range| range.intersect(pages)).map(Pages::first).min()
    }

    /// Returns the parts of `pages` that are in none of the ranges, in ascending order.
    pub fn gaps(&self, pages: Pages) -> impl Iterator<Item = Pages> + use<> {
        let (ranges, mut next) = (self.ranges, Some(pages.first()));
        iter::from_fn(move || {
            let mut first = next.take()?;
            // Each range is passed at most once, because `first` is beyond it then.
            while let Some(range) = ranges.iter().find(|range| range.contains(first)) {
                first = range.last().checked_add(1)?;
            }
            let after = ranges.iter().map(|range| range.first()).filter(|&begin| begin > first).min();
            let last = after
                .and_then(|begin| begin.checked_sub(1))
                .map_or(pages.last(), |last| last.min(pages.last()));
            next = last.checked_add(1).filter(|&next| next <= pages.last());
            Pages::new(first, last)
        })
    }

    /// Tells whether all of `pages` are in the ranges.
    pub fn cover(&self, pages: Pages) -> bool {
        self.gaps(pages).next().is_none()
    }
}
