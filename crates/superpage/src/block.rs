//! The accounts of one block: sixteen units, 64 KB of 4 KB pages, in nineteen counters of sixteen bits.
//!
//! ```text
//!   0 1       2       3     4        5 6     7 .. 10    11 .. 18
//!   resident  joined  due   the 16   the 8s  the 4s     the pairs
//!   a bit a unit            charges of the superpages within, in heap order: that of 1 << shift units around
//!   for each  a bit         unit u is number (16 + u) >> shift, at 3 + its number
//!   TLB       a unit
//! ```
//!
//! - `resident` has the bit of the first unit of every mapping that the TLB holds. Appendix A's `tlbcount(P) > 0` is
//!   "some bit in P", and the whole counter follows from the set: [`Ledger::tlbcount`](crate::ledger::Ledger).
//! - `joined` has the bit of every unit that shares its mapping with the unit before it.
//! - A miss writes *one* charge, to the smallest superpage that also holds a resident entry: the prefetch count of a
//!   superpage is the sum of the charges within it. Sums wrap; counts do not.
//! - `due` says after how many misses the sums have to be taken: so many that no count can reach its threshold before,
//!   and none can be kept from the superpages above for long ([`crate::deferred`]). Its low byte counts down; its high
//!   byte is where it started, so the difference is what the superpages above are owed: Appendix A's `deferred`.
//!
//! The array has a fixed size, and offsets are constants and a few masked bits of the unit.

/// log2 of the units of a block.
pub(crate) const SHIFT: u32 = 4;
/// Units of a block.
pub(crate) const UNITS: usize = 1 << SHIFT;
/// Counters of a block.
pub(crate) const WORDS: usize = DUE + UNITS;
/// Where `joined` is.
pub(crate) const JOINED: usize = 2;
/// Where `due` is. The superpages' numbers begin with one.
const DUE: usize = 3;

/// A count stops here if the superpage is no rung of the ladder; no threshold may be as large. As many charges as are
/// ever outstanding do not make a sum wrap.
pub(crate) const MOST: u16 = u16::MAX - u8::MAX as u16;

/// A block. Index 0 and 1 are the resident units of the two TLBs.
pub(crate) type Block = [u16; WORDS];
/// A number for each superpage in a block: its count, or its threshold, which is [`MOST`] if it is no rung.
pub(crate) type Each = [u16; UNITS];

/// An untouched block whose sums are due after so many misses.
pub(crate) const fn untouched(after: u8) -> Block {
    let mut block = [0; WORDS];
    block[DUE] = due(after);
    block
}

const fn due(after: u8) -> u16 {
    u16::from_le_bytes([after, after])
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

/// Returns the shift of the smallest superpage around `unit`, larger than its mapping of `1 << mapped` units, that
/// holds a unit of `resident`, which must not be empty.
#[inline(always)]
pub(crate) const fn smallest(resident: u16, unit: usize, mapped: u32) -> u32 {
    // Without a loop every mask is a constant.
    let shift = if resident & within(1, unit) != 0 {
        1
    } else if resident & within(2, unit) != 0 {
        2
    } else if resident & within(3, unit) != 0 {
        3
    } else {
        4
    };
    if shift > mapped { shift } else { mapped + 1 }
}

/// Tells whether the sums are due with the next charge.
#[inline(always)]
pub(crate) const fn is_due(block: &Block) -> bool {
    block[DUE].to_le_bytes()[0] == 1
}

/// Charges a miss to a superpage and all around it. Returns whether the sums are due.
#[inline(always)]
pub(crate) fn charge(block: &mut Block, shift: u32, unit: usize) -> bool {
    if let Some(charges) = block.get_mut(DUE + number(shift, unit)) {
        *charges = charges.wrapping_add(1);
    }
    block[DUE] -= 1;
    block[DUE].to_le_bytes()[0] == 0
}

/// Returns what the superpages above are owed.
pub(crate) const fn owed(block: &Block) -> u16 {
    let [left, start] = block[DUE].to_le_bytes();
    (start - left) as u16
}

/// Records that the superpages above are owed nothing any longer.
pub(crate) const fn paid(block: &mut Block) {
    block[DUE] = due(block[DUE].to_le_bytes()[0]);
}

/// Says after how many misses the sums are due, of a block that owes nothing.
pub(crate) const fn set_due(block: &mut Block, after: u8) {
    block[DUE] = due(after);
}

/// Returns the counts of the superpages within.
#[inline]
pub(crate) fn counts(block: &Block) -> Each {
    let mut counts: Each = core::array::from_fn(|number| block[DUE + number]);
    counts[0] = 0;
    for number in (1..UNITS / 2).rev() {
        counts[number] = counts[number].wrapping_add(counts[2 * number]).wrapping_add(counts[2 * number + 1]);
    }
    counts
}

/// Returns after how many misses one of these counts can reach its threshold, zero if one has.
#[inline]
pub(crate) fn least(counts: &Each, thresholds: &Each) -> u8 {
    let mut least = u16::from(u8::MAX);
    // Number zero is no superpage; its count is zero and does not matter.
    for (threshold, count) in thresholds.iter().zip(counts) {
        least = least.min(threshold.saturating_sub(*count));
    }
    least as u8
}

/// Writes counts, which stop at their thresholds.
pub(crate) fn set_counts(block: &mut Block, counts: &mut Each, thresholds: &Each) {
    for number in (1..UNITS).rev() {
        counts[number] = counts[number].min(thresholds[number]);
        let parts =
            if number < UNITS / 2 { counts[2 * number].wrapping_add(counts[2 * number + 1]) } else { 0 };
        block[DUE + number] = counts[number].wrapping_sub(parts);
    }
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
