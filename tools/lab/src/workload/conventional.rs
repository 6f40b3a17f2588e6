//! The compact address space of a UNIX program.

use tlbkit_addr::{PageSize, Pages, VirtAddr, Vpn};

/// Table 1's programs and their sizes in MB: what the paper calls conventional benchmarks.
pub(crate) const TABLE_1: [(&str, f64); 11] = [
    ("go", 0.8),
    ("swim", 14.2),
    ("gcc", 9.3),
    ("compress", 34.9),
    ("apsi", 2.2),
    ("wave5", 40.4),
    ("c4", 5.1),
    ("nsieve", 4.9),
    ("heapsort", 4.0),
    ("mm", 7.7),
    ("tfftdp", 4.0),
];

/// The pages of a program of `mb` MB.
pub(crate) const fn pages(mb: f64, base: PageSize) -> usize {
    (mb * (1 << 20) as f64) as usize / base.bytes() + 1
}

/// Table 1's gcc, in MB.
pub(super) const GCC: f64 = TABLE_1[2].1;

const TEXT: VirtAddr = VirtAddr::new(0x40_0000);
const DATA: VirtAddr = VirtAddr::new(0x1000_0000);
const STACK_END: VirtAddr = VirtAddr::new(0x7fff_f000);

/// Returns a program of `pages` pages of size `base` at MIPS's places: text at 4 MB, data and right above it the heap at 256 MB, the
/// stack below 2 GB.
///
/// Table 1 gives no more than the sum. A fifth is text but never more than 2 MB, a tenth data, one page of 64 stack,
/// the rest heap.
pub(super) fn segments(pages: usize, base: PageSize) -> Vec<Pages> {
    let stack = (pages / 64).max(1).min(pages);
    let text = (pages / 5).min((2 << 20) / base.bytes());
    let data_and_heap = pages - stack - text;
    let stack_first = Vpn::new(STACK_END.vpn(base).get() - stack);
    [(TEXT.vpn(base), text), (DATA.vpn(base), data_and_heap), (stack_first, stack)]
        .into_iter()
        .filter_map(|(first, pages)| Pages::count(first, pages))
        .collect()
}
