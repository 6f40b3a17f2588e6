//! What a change makes stale where a TLB entry is a pair of pages.
//!
//! Two neighbouring pages of one size may have been loaded as one entry. What happens to either of them is stale in it, and a
//! cache in software may have copied the entry to the slot of any address within the pair. The other way round, a page that
//! becomes the neighbour of one of its own size gets an entry that covers both, and whatever a TLB holds of the neighbour
//! in smaller pieces would overlap it: a machine check. So a flush names whole pairs.
//!
//! ```text
//!   pages          | 16K            | 16K            |
//!   changed          ^^^^^^^^^^^^^^
//!   entry          | 16K                         16K |   a TLB drops it by any address in it;
//!   cached as      |  2  |  2  |  2  |  2  |  ...        these are units of the cache, of 8K each
//!   flushed          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
//! ```
//!
//! Only the pages at the ends of a change can have a neighbour that the change does not name. Pages of the base size need
//! nothing: a unit of a cache is a pair of them.

use tlbkit_addr::{PageSize, Pages, Vpn};

use crate::Geometry;
use crate::format::Format;

/// Returns what to flush when the leaves of `pages` change, none of which reaches out of it. `size_at` tells how large
/// the leaf at the first and at the last page was, or is now, whichever is more; nothing if there is none.
///
/// Costs nothing if the format's entries are no pairs, else what `size_at` costs twice.
#[inline(always)]
pub(crate) fn stale<G: Geometry, F: Format>(
    pages: Pages,
    size_at: impl Fn(Vpn) -> Option<PageSize>,
) -> Pages {
    // The leaf of one page is of the base size.
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
