//! Two bitmaps over the units of a segment: a set of units, and the units that share a mapping.
//!
//! ```text
//!   members  .x.x xxxx ....    the units that are in the set
//!   joined   .... .xxx ....    the units that share their mapping with the unit before: 4..7 are one superpage
//! ```

use core::ops::RangeInclusive;

use crate::PageSizes;

/// log2 of the bits of a word.
const WORD: u32 = usize::BITS.trailing_zeros();
/// The mask of a bit's number within a word.
const MASK: usize = (1 << WORD) - 1;

/// The layout of the two bitmaps in a segment's words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    page_sizes: PageSizes,
    /// The index of the first word of `joined`.
    joined: usize,
}

impl Units {
    pub(crate) const fn new(page_sizes: PageSizes) -> Self {
        Self { page_sizes, joined: page_sizes.units_per_segment().div_ceil(1 << WORD) }
    }

    /// Returns the number of bitmap words in a segment.
    pub(crate) const fn words(&self) -> usize {
        2 * self.joined
    }

    /// Returns the level at which `unit` is mapped.
    ///
    /// Mappings are aligned, so a superpage is within one mapping exactly if its middle unit shares its mapping with the
    /// unit before it.
    pub(crate) fn mapped(&self, bits: &[usize], unit: usize) -> usize {
        let within = |&level: &usize| {
            let shift = self.page_sizes.shift(level);
            let middle = (unit >> shift << shift) | (1 << (shift - 1));
            bits.get(self.joined + (middle >> WORD)).is_some_and(|word| word >> (middle & MASK) & 1 == 1)
        };
        (1..self.page_sizes.levels()).take_while(within).last().unwrap_or(0)
    }

    /// Marks the superpage of `level` around `unit` as one mapping if `one`, and otherwise as separate units.
    pub(crate) fn join(&self, bits: &mut [usize], unit: usize, level: usize, one: bool) {
        let first = unit >> self.page_sizes.shift(level) << self.page_sizes.shift(level);
        let Some(joined) = bits.get_mut(self.joined..) else { return };
        set(joined, first + 1, first + (1 << self.page_sizes.shift(level)), one);
    }

    /// Adds a unit. Returns whether the unit was not in the set before.
    #[inline]
    pub(crate) fn insert(&self, bits: &mut [usize], unit: usize) -> bool {
        let Some(word) = bits.get_mut(unit >> WORD) else { return false };
        let was = *word;
        *word |= 1 << (unit & MASK);
        *word != was
    }

    /// Adds all units of the superpage of `level` around `unit` if `member`, and otherwise removes them.
    pub(crate) fn fill(&self, bits: &mut [usize], unit: usize, level: usize, member: bool) {
        let first = unit >> self.page_sizes.shift(level) << self.page_sizes.shift(level);
        set(bits, first, first + (1 << self.page_sizes.shift(level)), member);
    }

    /// Removes `units` from the set, and splits the superpages among them.
    pub(crate) fn clear(&self, bits: &mut [usize], units: RangeInclusive<usize>) {
        let (first, end) = (*units.start(), *units.end() + 1);
        set(bits, first, end, false);
        if let Some(joined) = bits.get_mut(self.joined..) {
            set(joined, first, end, false);
        }
    }
}

/// Sets the bits from `at` to `end`, without `end`, if `one`, and otherwise clears them.
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
