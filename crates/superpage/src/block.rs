//! The accounts of one block: sixteen units, 64 KB of 4 KB pages, in 21 counters of sixteen bits.
//!
//! ```text
//!   0 1       2       3          4     5     6       7 8     9 .. 12    13 .. 20
//!   resident  joined  populated  start due   the 16  the 8s  the 4s     the pairs
//!   a bit a unit                             charges of the superpages within, in heap order: that of
//!   for each  a bit a unit                   1 << shift units around unit u is number (16 + u) >> shift,
//!   TLB                                      at 5 + its number
//! ```
//!
//! - `resident` has the bit of the first unit of every mapping that the TLB holds. Appendix A's `tlbcount(P) > 0` is
//!   "some bit in P", and the whole counter follows from the set: [`Ledger::tlbcount`](crate::ledger::Ledger).
//! - `joined` has the bit of every unit that shares its mapping with the unit before it.
//! - `populated` has the units that were touched, for policies that reserve memory at first touches. For others all count
//!   as populated: nothing is to be done at their first touch.
//! - A miss writes *one* charge ([`crate::prefetch_charge`]): the prefetch count of a superpage is the sum of the charges
//!   within it. Sums wrap; counts do not.
//! - `due` counts down the misses until the sums have to be taken. It is small enough that no count can reach its threshold
//!   before, and none can be kept from the superpages above for long ([`crate::deferred`]). It began at `start`, and the
//!   difference is what the superpages above are owed: Appendix A's `deferred`.
//!
//! The array has a fixed size, and offsets are constants and a few masked bits of the unit.

use core::array::from_fn;

/// log2 of the units of a block.
pub(crate) const SHIFT: u32 = 4;
/// Units of a block.
pub(crate) const UNITS: usize = 1 << SHIFT;
/// Counters of a block.
pub(crate) const WORDS: usize = DUE + UNITS;
/// Where `joined` is.
pub(crate) const JOINED: usize = 2;
/// Where `populated` is.
pub(crate) const POPULATED: usize = 3;
/// Where `start` is.
const START: usize = 4;
/// Where `due` is. The superpages' numbers begin with one.
pub(crate) const DUE: usize = 5;

/// No threshold may be as large: as many charges as are ever outstanding do not make a sum of counts wrap.
pub(crate) const MOST: u16 = NEVER - u8::MAX as u16;
/// The threshold of a superpage of a size that the TLB lacks. Its count may wrap: nothing reads it.
pub(crate) const NEVER: u16 = u16::MAX;

/// A block. Index 0 and 1 are the resident units of the two TLBs.
pub(crate) type Block = [u16; WORDS];
/// A number for each superpage in a block: its count, or its threshold.
pub(crate) type Each = [u16; UNITS];

/// An untouched block whose sums are due after `after` misses.
pub(crate) const fn untouched(after: u16, populated: u16) -> Block {
    let mut block = [0; WORDS];
    block[POPULATED] = populated;
    set_due(&mut block, after);
    block
}

/// The number of the superpage of `1 << shift` units around `unit`; `shift` must be 1 to 4.
#[inline]
pub(crate) const fn number(shift: u32, unit: usize) -> usize {
    (UNITS | (unit % UNITS)) >> shift
}

/// The bits of the superpage of `1 << shift` units around `unit`; of those of this block, if it is larger.
#[inline]
pub(crate) const fn within(shift: u32, unit: usize) -> u16 {
    if shift >= SHIFT {
        return u16::MAX;
    }
    let first = (unit % UNITS) >> shift << shift;
    (((1 << (1 << shift)) - 1) << first) as u16
}

/// Returns what the superpages above are owed.
pub(crate) const fn owed(block: &Block) -> u16 {
    block[START].wrapping_sub(block[DUE])
}

/// Returns after how many misses the sums are due.
pub(crate) const fn left(block: &Block) -> u16 {
    block[DUE]
}

/// Says after how many misses the sums are due, and that nothing is owed any longer.
pub(crate) const fn set_due(block: &mut Block, after: u16) {
    (block[START], block[DUE]) = (after, after);
}

/// Lets the sums be due with the next charge.
pub(crate) const fn hasten(block: &mut Block) {
    if block[DUE] > 1 {
        (block[START], block[DUE]) = (block[START] - (block[DUE] - 1), 1);
    }
}

/// Returns the counts of the superpages within.
#[inline]
pub(crate) fn counts(block: &Block) -> Each {
    let own = |number| block[DUE + number];
    // One size after the other: no count waits for one of its own size.
    let pairs: [u16; 8] = from_fn(|n| own(8 + n));
    let fours: [u16; 4] = from_fn(|n| own(4 + n).wrapping_add(pairs[2 * n]).wrapping_add(pairs[2 * n + 1]));
    let eights: [u16; 2] = from_fn(|n| own(2 + n).wrapping_add(fours[2 * n]).wrapping_add(fours[2 * n + 1]));
    let all = own(1).wrapping_add(eights[0]).wrapping_add(eights[1]);
    let [a, b, c, d] = fours;
    let [e, f, g, h, i, j, k, l] = pairs;
    [0, all, eights[0], eights[1], a, b, c, d, e, f, g, h, i, j, k, l]
}

/// Returns after how many misses one of these counts can reach its threshold, zero if one has.
#[inline]
pub(crate) fn least(counts: &Each, thresholds: &Each) -> u16 {
    let mut least = u16::MAX;
    // Number zero is no superpage; its count is zero and does not matter.
    for (threshold, count) in thresholds.iter().zip(counts) {
        least = least.min(threshold.saturating_sub(*count));
    }
    least
}

/// Writes counts, which stop at these prices.
pub(crate) fn set_counts(block: &mut Block, counts: &mut Each, prices: &Each) {
    for number in (1..UNITS).rev() {
        counts[number] = counts[number].min(prices[number]);
        let parts =
            if number < UNITS / 2 { counts[2 * number].wrapping_add(counts[2 * number + 1]) } else { 0 };
        block[DUE + number] = counts[number].wrapping_sub(parts);
    }
}

/// Tells whether `unit` is part of a superpage.
#[inline(always)]
pub(crate) const fn is_joined(block: &Block, unit: usize) -> bool {
    block[JOINED] >> ((unit % UNITS) | 1) & 1 != 0
}

/// Returns the shift of the mapping of `unit`, 4 for one that is that large or larger.
///
/// Mappings are aligned, so a superpage lies within one mapping exactly if its middle unit is joined to the one before.
#[inline(always)]
pub(crate) const fn mapped(block: &Block, unit: usize) -> u32 {
    let joined = block[JOINED] as u32;
    if joined >> ((unit % UNITS) | 1) & 1 == 0 {
        0
    } else if joined >> ((unit & 12) | 2) & 1 == 0 {
        1
    } else if joined >> ((unit & 8) | 4) & 1 == 0 {
        2
    } else if joined >> 8 & 1 == 0 {
        3
    } else {
        4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thresholds 100, 101, ... by number; one that is no page size, and has the count zero, is no nearer than the others.
    #[test]
    fn the_nearest_threshold() {
        let mut thresholds: Each = from_fn(|number| 100 + number as u16);
        thresholds[0] = NEVER;
        let mut counts = [0; UNITS];
        assert_eq!(least(&counts, &thresholds), 101);
        counts[9] = 40;
        assert_eq!(least(&counts, &thresholds), 69);
        counts[15] = 115;
        assert_eq!(least(&counts, &thresholds), 0);
        counts[15] = 116;
        assert_eq!(least(&counts, &thresholds), 0);
    }

    /// Whatever is joined elsewhere, a unit is in a superpage if its pair is.
    #[test]
    fn joined_units() {
        let mut block = untouched(1, 0);
        for (shift, first) in [(1, 6), (2, 12), (3, 0), (4, 0)] {
            let all = within(shift, first);
            block[JOINED] = all & (all - 1);
            for unit in 0..UNITS {
                let inside = all >> unit & 1 == 1;
                assert_eq!(is_joined(&block, unit), inside, "{unit} with {shift} around {first}");
                assert_eq!(mapped(&block, unit), if inside { shift } else { 0 });
            }
        }
    }
}
