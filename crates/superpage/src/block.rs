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
//! - `populated` has the bit of every unit that was touched, for policies that reserve memory at first touches. For other
//!   policies all units count as populated, because such a policy does nothing at a first touch.
//! - A miss writes *one* charge ([`crate::prefetch_charge`]): the prefetch count of a superpage is the sum of the charges
//!   within it. The sums are computed modulo 2^16; every count that is read is smaller than that.
//! - `due` counts down the misses until the policy has to compute the sums. `due` is small enough that no count of the block
//!   reaches its threshold before that, and that the superpages larger than the block do not wait long for their charges
//!   ([`crate::deferred`]). `due` starts at `start`; `start - due` is the number of charges that the block owes to the
//!   superpages larger than it: Appendix A's `deferred`.
//!
//! The array has a fixed size, and every index into it is a constant plus a few masked bits of the unit's number.

use core::array::from_fn;

/// log2 of the units of a block.
pub(crate) const SHIFT: u32 = 4;
/// Units of a block.
pub(crate) const UNITS: usize = 1 << SHIFT;
/// Counters of a block.
pub(crate) const WORDS: usize = DUE + UNITS;
/// The index of `joined`.
pub(crate) const JOINED: usize = 2;
/// The index of `populated`.
pub(crate) const POPULATED: usize = 3;
/// The index of `start`.
const START: usize = 4;
/// The index of `due`. The charges of superpage number `n`, which is at least 1, are at index `DUE + n`.
pub(crate) const DUE: usize = 5;

/// The bound on thresholds and prices. A count is at most its price when the sums are computed, and grows by at most 255
/// charges until they are computed again, so it fits 16 bits.
pub(crate) const MOST: u16 = NEVER - u8::MAX as u16;
/// The threshold of a superpage of a size that the TLB lacks. The count of such a superpage may wrap: nothing reads it.
pub(crate) const NEVER: u16 = u16::MAX;

/// A block. Index 0 and 1 are the resident units of the two TLBs.
pub(crate) type Block = [u16; WORDS];
/// One value for each superpage in a block, its count or its threshold, at the superpage's number.
pub(crate) type Each = [u16; UNITS];

/// Returns an untouched block whose sums are due after `after` misses.
pub(crate) const fn untouched(after: u16, populated: u16) -> Block {
    let mut block = [0; WORDS];
    block[POPULATED] = populated;
    set_due(&mut block, after);
    block
}

/// Returns the number of the superpage of `1 << shift` units around `unit`; `shift` must be 1 to 4.
#[inline]
pub(crate) const fn number(shift: u32, unit: usize) -> usize {
    (UNITS | (unit % UNITS)) >> shift
}

/// Returns the bits of the units in the superpage of `1 << shift` units around `unit`: all bits of the block if the
/// superpage is larger than the block.
#[inline]
pub(crate) const fn within(shift: u32, unit: usize) -> u16 {
    if shift >= SHIFT {
        return u16::MAX;
    }
    let first = (unit % UNITS) >> shift << shift;
    (((1 << (1 << shift)) - 1) << first) as u16
}

/// Returns how many charges the block owes to the superpages larger than it.
pub(crate) const fn owed(block: &Block) -> u16 {
    block[START].wrapping_sub(block[DUE])
}

/// Returns after how many misses the sums are due.
pub(crate) const fn left(block: &Block) -> u16 {
    block[DUE]
}

/// Sets after how many misses the sums are due, and the number of owed charges to zero.
pub(crate) const fn set_due(block: &mut Block, after: u16) {
    (block[START], block[DUE]) = (after, after);
}

/// Makes the sums due at the next charge.
pub(crate) const fn hasten(block: &mut Block) {
    if block[DUE] > 1 {
        (block[START], block[DUE]) = (block[START] - (block[DUE] - 1), 1);
    }
}

/// Returns the counts of the superpages in the block.
#[inline]
pub(crate) fn counts(block: &Block) -> Each {
    let own = |number| block[DUE + number];
    // The counts are computed size by size: counts of one size do not depend on each other, so a CPU computes them in
    // parallel.
    let pairs: [u16; 8] = from_fn(|n| own(8 + n));
    let fours: [u16; 4] = from_fn(|n| own(4 + n).wrapping_add(pairs[2 * n]).wrapping_add(pairs[2 * n + 1]));
    let eights: [u16; 2] = from_fn(|n| own(2 + n).wrapping_add(fours[2 * n]).wrapping_add(fours[2 * n + 1]));
    let all = own(1).wrapping_add(eights[0]).wrapping_add(eights[1]);
    let [a, b, c, d] = fours;
    let [e, f, g, h, i, j, k, l] = pairs;
    [0, all, eights[0], eights[1], a, b, c, d, e, f, g, h, i, j, k, l]
}

/// Returns the smallest number of misses after which one of `counts` can reach its threshold: zero if one has reached it.
#[inline]
pub(crate) fn least(counts: &Each, thresholds: &Each) -> u16 {
    let mut least = u16::MAX;
    // Number zero is no superpage: its count is zero, and its threshold is that of the whole block, which number one has
    // too.
    for (threshold, count) in thresholds.iter().zip(counts) {
        least = least.min(threshold.saturating_sub(*count));
    }
    least
}

/// Stores `counts` in the block, each limited to its price. A price is the count at which its superpage is promoted: the
/// threshold, or more.
pub(crate) fn set_counts(block: &mut Block, counts: &mut Each, prices: &Each) {
    for number in (1..UNITS).rev() {
        counts[number] = counts[number].min(prices[number]);
        let parts =
            if number < UNITS / 2 { counts[2 * number].wrapping_add(counts[2 * number + 1]) } else { 0 };
        block[DUE + number] = counts[number].wrapping_sub(parts);
    }
}

/// Returns log2 of the units that the mapping of `unit` has: 4 for a mapping of 16 units or more.
///
/// Mappings are aligned, so a superpage is within one mapping exactly if its middle unit shares its mapping with the unit
/// before it.
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

    /// The thresholds are 100, 101, ... by number. A number that is no page size never determines the result.
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

    /// A unit is in a superpage exactly if its pair is, whatever other units are joined.
    #[test]
    fn joined_units() {
        let mut block = untouched(1, 0);
        for (shift, first) in [(1, 6), (2, 12), (3, 0), (4, 0)] {
            let all = within(shift, first);
            block[JOINED] = all & (all - 1);
            for unit in 0..UNITS {
                let inside = all >> unit & 1 == 1;
                let expected = if inside { shift } else { 0 };
                assert_eq!(mapped(&block, unit), expected, "{unit} with {shift} around {first}");
            }
        }
    }
}
