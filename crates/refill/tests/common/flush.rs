//! What a kernel does about flushes.

use tlbkit_addr::{Flush, PageSize, Pages, Vpn};

use super::TLB;

/// Rounds the ranges of a flush out to pairs of pages of `size`.
pub(super) fn widen(flush: &Flush, size: PageSize) -> Flush {
    let pair = 2 * size.pages(PageSize::K4).unwrap_or(1) - 1;
    let mut wide = Flush::none();
    if flush.is_all() {
        wide.add_all(flush.reach());
    }
    for pages in flush.ranges() {
        let (first, last) = (Vpn::new(pages.first().get() & !pair), Vpn::new(pages.last().get() | pair));
        wide.add(flush.reach(), Pages::new(first, last).unwrap_or(*pages));
    }
    wide
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
