//! The pages to flush after a change, where a TLB entry maps a pair of pages.
//!
//! A TLB entry maps two neighbouring pages of the same size. A change of one page makes the whole entry stale, and a software TLB
//! may have copied the entry to the slot of any address in the pair. Also, when a page gets a neighbour of its own size, the next
//! TLB entry maps both pages. If a TLB still held entries of smaller pages for the neighbour, the new entry would overlap them,
//! which is a machine check. So a flush names whole pairs.
//!
//! ```text
//!   pages          | 16K            | 16K            |
//!   changed          ^^^^^^^^^^^^^^
//!   entry          | 16K                         16K |   a TLB drops it by any address in it;
//!   cached as      |  2  |  2  |  2  |  2  |  ...        these are units of the cache, of 8K each
//!   flushed          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
//! ```
//!
//! Only the first and the last page of a change can have a neighbour outside the change. Pages of the base size need no larger
//! flush, because a software TLB also caches them in pairs.

use tlbkit_addr::{PageSize, Pages, Vpn};

use crate::Geometry;
use crate::format::Format;

/// Returns the pages to flush when the leaves of `pages` change. No leaf extends beyond `pages`. `size_at` returns the size of
/// the leaf at the first and at the last page, before or after the change, whichever is larger; `None` if there is no leaf.
///
/// Costs two calls of `size_at`, or nothing if the format's entries are not paired.
#[inline(always)]
pub(crate) fn stale<G: Geometry, F: Format>(
    pages: Pages,
    size_at: impl Fn(Vpn) -> Option<PageSize>,
) -> Pages {
    // A range of one page has a leaf of the base size.
    if !F::PAIRED || pages.first() == pages.last() {
        return pages;
    }
    // The bits of a page's number that differ within its pair.
    let within = |page| {
        let size = size_at(page).filter(|&size| size > G::BASE);
        size.and_then(|size| size.pages(G::BASE)).map_or(0, |count| (count << 1) - 1)
    };
    let (first, last) = (pages.first(), pages.last());
    let (first, last) = (first.get() & !within(first), last.get() | within(last));
    Pages::new(Vpn::new(first), Vpn::new(last)).unwrap_or(pages)
}
