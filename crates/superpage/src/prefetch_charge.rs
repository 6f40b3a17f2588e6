//! The prefetch charge of a miss (section 6.1): which superpages a miss charges, and the one counter that it writes.
//!
//! A miss to a page charges every superpage around the page of which the TLB that missed holds an entry: had that superpage been
//! one mapping, its entry would have been in the TLB and the miss would not have happened. If a superpage is charged, so
//! is every larger one around it. So within a [block](crate::block) a miss finds the smallest superpage that is charged and
//! adds one to that superpage's own counter; a superpage's count is the sum of the counters within it. What the superpages
//! beyond the block are owed is paid later ([`crate::deferred`]).
//!
//! ```text
//!   unit       0 1 2 3 4 5 6 7      resident: unit 4       a miss to unit 6
//!              . . . . x . m .      pair 6-7: no entry     not charged
//!                                   4 to 7: unit 4         charged: +1 is written here
//!                                   0 to 7, 0 to 15        charged: their sums contain it
//! ```

use crate::block::{Block, DUE, SHIFT, UNITS, number, within};

/// For each unit, what [`within`] gives for the shifts 1 to 4, one in each quarter of a word, the smallest lowest.
pub(crate) const AROUND: [u64; UNITS] = {
    let mut around = [0; UNITS];
    let mut unit = 0;
    while unit < UNITS {
        let mut shift = SHIFT;
        while shift > 0 {
            around[unit] = around[unit] << u16::BITS | within(shift, unit) as u64;
            shift -= 1;
        }
        unit += 1;
    }
    around
};

/// Returns how much larger than a pair, as a power of two, the smallest superpage around `unit` is that holds a unit of
/// `resident`, or `None` if nothing is. `around` is [`AROUND`].
#[inline(always)]
pub(crate) const fn smallest(resident: u16, unit: usize, around: &[u64; UNITS]) -> Option<u32> {
    // Four times the set, against the four superpages at once: the lowest quarter that has a bit in common.
    let common = (resident as u64).wrapping_mul(0x0001_0001_0001_0001) & around[unit % UNITS];
    if common == 0 { None } else { Some(common.trailing_zeros() / u16::BITS) }
}

/// Charges a miss to a superpage of `2 << beyond_pair` units and all around it. Returns whether the sums are due.
#[inline(always)]
pub(crate) fn charge(block: &mut Block, beyond_pair: u32, unit: usize) -> bool {
    if let Some(charges) = block.get_mut(DUE + (number(1, unit) >> beyond_pair)) {
        *charges = charges.wrapping_add(1);
    }
    block[DUE] = block[DUE].wrapping_sub(1);
    block[DUE] == 0
}
