//! Helpers for the unit tests of several modules: page sizes, memory, misses.

use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use tlbkit_addr::{PageSize, Vpn};

use crate::{Miss, PageSizes, PolicyMemory, SegmentMemory, Slot, Superpage, Tlb};

/// Page sizes over 4 KB pages, by their shifts.
pub(crate) fn page_sizes(shifts: impl IntoIterator<Item = u32>) -> PageSizes {
    let sizes: Vec<_> = shifts.into_iter().filter_map(PageSize::from_shift).collect();
    PageSizes::new(PageSize::K4, &sizes).unwrap()
}

/// Returns memory for `segments` segments. It is never freed.
pub(crate) fn memory(each: SegmentMemory, segments: usize) -> PolicyMemory<'static> {
    PolicyMemory {
        directory: Box::leak(vec![Slot::default(); segments * SegmentMemory::SLOTS].into()),
        bits: Box::leak(vec![0; segments * each.bits].into()),
        counters: Box::leak(vec![0; segments * each.counters].into()),
    }
}

/// A miss in the data TLB that evicts nothing.
pub(crate) fn miss(page: usize) -> Miss {
    Miss { tlb: Tlb::Data, page: Vpn::new(page), evicted: None, now: 0 }
}

/// The superpage of `1 << shift` bytes that begins at a page.
pub(crate) fn superpage(first: usize, shift: u32) -> Superpage {
    Superpage { first: Vpn::new(first), size: PageSize::from_shift(shift).unwrap() }
}
