//! Address spaces that no machine has, for the properties.
#![allow(dead_code, reason = "each test uses some of them")]

#[macro_use]
pub(crate) mod kinds;
pub(crate) mod numbers;
#[cfg(target_pointer_width = "64")]
pub(crate) mod rebased;
#[cfg(test)]
pub(crate) mod writers;

use tlbkit_addr::PageSize;
use tlbkit_pagetable::{Geometry, Half, Radix};

const fn size(shift: u32) -> PageSize {
    match PageSize::from_shift(shift) {
        Some(size) => size,
        None => panic!("a page size beyond the address"),
    }
}

/// 24 bits in levels of 3, 5 and 4, with page sizes at every level and between two.
#[derive(Debug)]
pub(crate) struct Odd;

impl Geometry for Odd {
    const VA_BITS: u32 = 24;
    const BASE: PageSize = PageSize::K4;
    const SIZES: &'static [PageSize] = &[size(12), size(13), size(16), size(19), size(21)];
}

impl Radix for Odd {
    const WIDTHS: &'static [u32] = &[3, 5, 4];
}

/// Two pages, one bit.
#[derive(Debug)]
pub(crate) struct Pair;

impl Geometry for Pair {
    const VA_BITS: u32 = 13;
    const BASE: PageSize = PageSize::K4;
    const SIZES: &'static [PageSize] = &[size(12)];
}

impl Radix for Pair {
    const WIDTHS: &'static [u32] = &[1];
}

/// Eight pages of 16 KiB, four at each end of all addresses.
#[derive(Debug)]
pub(crate) struct Ends;

impl Geometry for Ends {
    const VA_BITS: u32 = 17;
    const BASE: PageSize = PageSize::K16;
    const HALF: Half = Half::Both;
    const SIZES: &'static [PageSize] = &[size(14), size(15), size(16)];
}

impl Radix for Ends {
    const WIDTHS: &'static [u32] = &[1, 1, 1];
}

/// All 64 bits in two signed halves, eight levels of widths that have nothing in common.
#[cfg(target_pointer_width = "64")]
#[derive(Debug)]
pub(crate) struct Full;

#[cfg(target_pointer_width = "64")]
impl Geometry for Full {
    const VA_BITS: u32 = 64;
    const BASE: PageSize = PageSize::K4;
    const HALF: Half = Half::Both;
    const SIZES: &'static [PageSize] = &[size(12), size(14), size(19), size(28), size(39)];
}

#[cfg(target_pointer_width = "64")]
impl Radix for Full {
    const WIDTHS: &'static [u32] = &[1, 8, 7, 9, 3, 8, 9, 7];
}
