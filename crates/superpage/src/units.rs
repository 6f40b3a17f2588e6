//! A set of a segment's units, and which of them share a mapping: one bit a unit for each.
//!
//! ```text
//!   members  .x.x xxxx ....    the units that are in the set
//!   joined   .... .xxx ....    the units that share their mapping with the unit before: 4..7 are one superpage
//! ```

use core::ops::RangeInclusive;

use crate::PageSizes;

/// log2 of the bits of a word.
const WORD: u32 = usize::BITS.trailing_zeros();
/// Bit number within a word.
const MASK: usize = (1 << WORD) - 1;

/// Where the two maps lie among a segment's words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    page_sizes: PageSizes,
    /// First word of `joined`.
    joined: usize,
}

impl Units {
    pub(crate) const fn new(page_sizes: PageSizes) -> Self {
        Self { page_sizes, joined: page_sizes.units_per_segment().div_ceil(1 << WORD) }
    }

    /// Words of bit maps in a segment.
    pub(crate) const fn words(&self) -> usize {
        2 * self.joined
    }

    /// Returns the level at which `unit` is mapped.
    ///
    /// Mappings are aligned, so a superpage lies within one mapping exactly if its middle unit is joined to the one
    /// before.
    pub(crate) fn mapped(&self, bits: &[usize], unit: usize) -> usize {
        let within = |&level: &usize| {
            let shift = self.page_sizes.shift(level);
            let middle = (unit >> shift << shift) | (1 << (shift - 1));
            bits.get(self.joined + (middle >> WORD)).is_some_and(|word| word >> (middle & MASK) & 1 == 1)
        };
        (1..self.page_sizes.levels()).take_while(within).last().unwrap_or(0)
    }

    /// Marks the superpage of `level` around `unit` as one mapping, or as units.
    pub(crate) fn join(&self, bits: &mut [usize], unit: usize, level: usize, one: bool) {
        let first = unit >> self.page_sizes.shift(level) << self.page_sizes.shift(level);
        let Some(joined) = bits.get_mut(self.joined..) else { return };
        set(joined, first + 1, first + (1 << self.page_sizes.shift(level)), one);
    }

    /// Adds a unit. Returns whether it is new.
    #[inline]
    pub(crate) fn insert(&self, bits: &mut [usize], unit: usize) -> bool {
        let Some(word) = bits.get_mut(unit >> WORD) else { return false };
        let was = *word;
        *word |= 1 << (unit & MASK);
        *word != was
    }

    /// Removes the units of the superpage of `level` around `unit`.
    pub(crate) fn remove(&self, bits: &mut [usize], unit: usize, level: usize) {
        let first = unit >> self.page_sizes.shift(level) << self.page_sizes.shift(level);
        set(bits, first, first + (1 << self.page_sizes.shift(level)), false);
    }

    /// Removes these units, and splits the superpages that they are.
    pub(crate) fn clear(&self, bits: &mut [usize], units: RangeInclusive<usize>) {
        let (first, end) = (*units.start(), *units.end() + 1);
        set(bits, first, end, false);
        if let Some(joined) = bits.get_mut(self.joined..) {
            set(joined, first, end, false);
        }
    }
}

/// Sets or clears the bits from `at` up to `end`.
fn set(bits: &mut [usize], mut at: usize, end: usize, one: bool) {
    while at < end {
        let upto = end.min((at | MASK) + 1);
        let run = if upto - at > MASK { usize::MAX } else { ((1 << (upto - at)) - 1) << (at & MASK) };
        if let Some(word) = bits.get_mut(at >> WORD) {
            *word = if one { *word | run } else { *word & !run };
        }
        at = upto;
    }
}
