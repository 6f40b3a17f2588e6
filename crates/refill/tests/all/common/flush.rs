//! What a kernel does about flushes.

use tlbkit_addr::{Flush, Pages, Vpn};

use super::TLB;

/// Cuts what an edit of `pages` makes stale down to those pages.
pub(super) fn narrow(flush: &Flush, pages: Pages) -> Flush {
    let mut narrow = Flush::none();
    for &range in flush.ranges() {
        // Others are of the table's own.
        narrow.add(flush.scope(), range.intersect(pages).unwrap_or(range));
    }
    narrow
}

pub(super) fn forget(tlb: &mut tlbkit_refill::interp::Tlb<TLB>, flush: &Flush, asid: u64) {
    tlb.retain(|entry| {
        let first = entry.hi as u32 as usize >> 12;
        let span = (entry.page_mask as usize | 0x1fff) >> 12;
        let pages = Pages::new(Vpn::new(first), Vpn::new(first | span)).unwrap();
        let hit = flush.is_all() || flush.ranges().iter().any(|range| range.intersect(pages).is_some());
        !(hit && (entry.hi & 0xff == asid || entry.is_global()))
    });
}
