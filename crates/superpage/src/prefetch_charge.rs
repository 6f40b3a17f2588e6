//! The prefetch charge of a miss (Romer et al. 1995, section 6.1): which superpages a miss charges, and the one charge that it
//! adds to.
//!
//! A miss to a page charges each superpage that contains the page, is larger than the page's mapping (the caller raises
//! [`smallest`]'s result to the size above it), and contains another page whose entry is in the TLB that missed: if that superpage
//! had been one mapping, its entry would have been in the TLB, and the miss would not have happened. If a superpage is charged,
//! every larger superpage around it is charged, too. So within a [block](crate::block) a miss finds the smallest charged superpage
//! and adds one to that superpage's own counter. The count of a superpage is the sum of the counters within it. Superpages larger
//! than the block get their charges later ([`crate::deferred`]).
//!
//! ```text
//!   unit       0 1 2 3 4 5 6 7      resident: unit 4       a miss to unit 6
//!              . . . . x . m .      pair 6-7: no entry     not charged
//!                                   4 to 7: unit 4         charged: +1 is written here
//!                                   0 to 7, 0 to 15        charged: their sums contain it
//! ```

use crate::block::{Block, DUE, SHIFT, UNITS, number, within};

/// For each unit, the results of [`within`] for the shifts 1 to 4: one in each quarter of a word, that of shift 1 in the lowest.
const AROUND: [u64; UNITS] = {
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

/// Finds the smallest superpage around `unit` that contains a unit of `resident`. Returns the logarithm of its size in pairs, or
/// `None` if there is no such superpage in the block.
#[inline(always)]
pub(crate) const fn smallest(resident: u16, unit: usize) -> Option<u32> {
    // Four copies of the set are compared with the four superpages at once: the lowest quarter with a common bit is the smallest.
    let common = (resident as u64).wrapping_mul(0x0001_0001_0001_0001) & AROUND[unit % UNITS];
    if common == 0 { None } else { Some(common.trailing_zeros() / u16::BITS) }
}

/// Charges a miss to the superpage of `2 << beyond_pair` units around `unit`, and so to all larger ones. Returns whether the sums
/// are due.
#[inline(always)]
pub(crate) fn charge(block: &mut Block, beyond_pair: u32, unit: usize) -> bool {
    if let Some(charges) = block.get_mut(DUE + (number(1, unit) >> beyond_pair)) {
        *charges = charges.wrapping_add(1);
    }
    block[DUE] = block[DUE].wrapping_sub(1);
    block[DUE] == 0
}
