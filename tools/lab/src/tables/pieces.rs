//! What is mapped by one call: a page, or as many as one superpage can have.

use std::collections::BTreeSet;
use std::ops::Bound;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::geometry::{Geometry, Va64};

/// Pages that are mapped together, to neighbouring frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) pages: Pages,
    pub(crate) size: PageSize,
    pub(crate) frame: Pfn,
    pub(crate) attr: Attr,
}

impl Piece {
    /// Returns piece `number`. No two frames that are neighbours belong to two pieces, so that a wrong one shows.
    fn new(number: usize, pages: Pages, size: PageSize) -> Self {
        let shift = size.shift() - PageSize::K4.shift();
        // An odd factor permutes the numbers of 20 bits, which every format holds.
        let frame = Pfn::new((number.wrapping_mul(0x9_e377) << shift) & 0xf_ffff);
        let writable = if number % 5 < 3 { Attr::WRITE } else { Attr::empty() };
        Self { pages, size, frame, attr: Attr::READ | Attr::USER | writable }
    }

    /// Returns its pages, each with the frame that it is mapped to.
    pub(super) fn each(self) -> impl Iterator<Item = (Vpn, Pfn)> {
        let first = self.frame.get();
        self.pages.iter().enumerate().map(move |(at, page)| (page, Pfn::new(first + at)))
    }
}

/// Returns a piece for each page.
pub(super) fn singles(pages: &[Vpn]) -> Vec<Piece> {
    let single = |(number, &page)| Piece::new(number, Pages::one(page), PageSize::K4);
    pages.iter().enumerate().map(single).collect()
}

/// Returns the fewest pieces: wherever an aligned run of pages is all there, one.
pub(crate) fn superpages(pages: &[Vpn]) -> Vec<Piece> {
    let all: BTreeSet<_> = pages.iter().copied().collect();
    let mut pieces = Vec::new();
    let mut next = all.first().copied();
    while let Some(page) = next {
        let whole = |size: &PageSize| {
            let run = Pages::count(page, size.pages(PageSize::K4)?)?;
            let there =
                page.is_aligned(*size, PageSize::K4) && all.range(page..=run.last()).count() == run.len();
            there.then_some((run, *size))
        };
        // The last is the base page itself.
        let (run, size) =
            Va64::SIZES.iter().rev().find_map(whole).unwrap_or((Pages::one(page), PageSize::K4));
        pieces.push(Piece::new(pieces.len(), run, size));
        next = all.range((Bound::Excluded(run.last()), Bound::Unbounded)).next().copied();
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_runs_are_superpages() {
        let pages: Vec<_> = (3..25).chain([usize::MAX >> 12]).map(Vpn::new).collect();
        let pieces = superpages(&pages);
        let runs: Vec<_> =
            pieces.iter().map(|piece| (piece.pages.first().get(), piece.pages.len())).collect();
        assert_eq!(runs, [(3, 1), (4, 4), (8, 4), (12, 4), (16, 4), (20, 4), (24, 1), (usize::MAX >> 12, 1)]);
        for piece in pieces {
            assert!(piece.frame.is_aligned(piece.size, PageSize::K4), "{piece:?}");
        }
        let sixteen = superpages(&(16..32).map(Vpn::new).collect::<Vec<_>>());
        assert_eq!((sixteen.len(), sixteen[0].size), (1, PageSize::K64));
    }

    #[test]
    fn singles_keep_their_order() {
        let pages = [7, 3].map(Vpn::new);
        let firsts: Vec<_> = singles(&pages).iter().map(|piece| piece.pages.first()).collect();
        assert_eq!(firsts, pages);
    }
}
