//! The accounts of one block: sixteen units, 64 KB of 4 KB pages, in nineteen counters of sixteen bits.
//!
//! ```text
//!   0 1       2       3      4        5 6     7 .. 10    11 .. 18
//!   resident  joined  owed   the 16   the 8s  the 4s     the pairs
//!   a bit a unit      to     prefetch counts of the superpages within, each level in order:
//!   for each  a bit   the    that of 1 << shift units around unit u is at 3 + (16 >> shift) + (u >> shift)
//!   TLB       a unit  larger
//!                     ones
//! ```
//!
//! - `resident` has the bit of the first unit of every mapping that the TLB holds. Appendix A's `tlbcount(P) > 0` is
//!   "some bit in P", and the whole counter follows from the set: [`Ledger::tlbcount`](crate::ledger::Ledger).
//! - `joined` has the bit of every unit that shares its mapping with the unit before it.
//! - `owed` is `deferred` of Appendix A: see [`crate::deferred`].
//!
//! The array has a fixed size and all offsets are sums of constants and a few masked bits of the unit: the compiler
//! sees that no index can be out of range.

/// log2 of the units of a block.
pub(crate) const SHIFT: u32 = 4;
/// Units of a block.
pub(crate) const UNITS: usize = 1 << SHIFT;
/// Counters of a block.
pub(crate) const WORDS: usize = 19;
/// Where `joined` is.
pub(crate) const JOINED: usize = 2;
/// Where `owed` is, and the counts begin in heap order, whose first number is one.
pub(crate) const OWED: usize = 3;

/// A block. Index 0 and 1 are the resident units of the two TLBs.
pub(crate) type Block = [u16; WORDS];

/// Where the count of the superpage of `1 << shift` units around `unit` is; `shift` must be 1 to 4.
#[inline]
pub(crate) const fn count(shift: u32, unit: usize) -> usize {
    OWED + (UNITS >> shift) + ((unit % UNITS) >> shift)
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

/// Charges a miss to the superpages around `unit` that are larger than `1 << mapped` units and hold a unit of
/// `resident`. Returns the shifts of those whose counts stand at their thresholds, as a set.
#[inline(always)]
pub(crate) fn charge(
    block: &mut Block,
    resident: u16,
    unit: usize,
    mapped: u32,
    thresholds: &[u16; SHIFT as usize + 1],
) -> u32 {
    let mut reached = 0;
    let mut at = |shift: u32| {
        if mapped < shift && resident & within(shift, unit) != 0 {
            let count = &mut block[count(shift, unit)];
            let threshold = thresholds[shift as usize];
            if *count < threshold {
                *count += 1;
            }
            reached |= u32::from(*count == threshold) << shift;
        }
    };
    // Without a loop every shift is a constant.
    at(1);
    at(2);
    at(3);
    at(4);
    reached
}

/// Returns the shift of the mapping of `unit`, 4 for one that is that large or larger.
///
/// Mappings are aligned, so a superpage lies within one mapping exactly if its middle unit is joined to the one before.
pub(crate) fn mapped(block: &Block, unit: usize) -> u32 {
    let mut shift = 0;
    while shift < SHIFT && block[JOINED] >> (((unit % UNITS) >> (shift + 1) << (shift + 1)) | 1 << shift) & 1 == 1 {
        shift += 1;
    }
    shift
}
