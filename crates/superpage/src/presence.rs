//! Which units of a segment the TLBs hold, and what is mapped by one entry: `tlbcount`, in one bit a unit.
//!
//! Appendix A gives each superpage a counter `tlbcount` of its resident components, and its invariants make that
//! counter a function of the set of resident entries. So this module stores the set: one bit a unit for each TLB (a
//! resident superpage sets the bit of its first unit), under summaries in which a bit stands for a whole word below.
//! `tlbcount(P) > 0` is "some bit in `P`", and the smallest superpage of `p` with a positive count is one or two
//! count-zero instructions away, whatever the ladder's radix:
//!
//! ```text
//!   summary      .......................x........   bit w: word w below is not zero
//!   units  ...|..............x..p......x..........|...
//!                            q  p       the nearest bits on either side; the smallest aligned block with p and
//!                                       another resident page ends at the highest bit in which p and it differ
//! ```
//!
//! A refill sets one bit and an eviction clears one; Appendix A's walks over counts happen only when a word of the
//! map becomes non-empty or empty. The counter itself, -1 included, is [`Presence::tlbcount`], and the tests hold it
//! against Appendix A's increments and decrements done literally.
//!
//! A second map, `joined`, has the bit of every unit that shares its mapping with the unit before it.

use crate::Ladder;

/// log2 of the bits of a word.
const WORD: u32 = usize::BITS.trailing_zeros();
const TIERS: usize = 4;
/// One more than the widest span of a segment, and a power of two.
const SPANS: usize = 32;

/// Where the maps of a segment lie among its words. Maps of TLBs come first, `joined` last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Presence {
    ladder: Ladder,
    tlbs: usize,
    /// First word of each tier of one TLB's map.
    tiers: [usize; TIERS],
    tier_count: usize,
    /// Words of one TLB's map with its summaries.
    map: usize,
    /// First word of `joined`.
    joined: usize,
    words: usize,
    /// The lowest level that spans at least 2^n units, by n.
    level_spanning: [u8; SPANS],
}

impl Presence {
    pub(crate) fn new(ladder: Ladder, tlbs: usize) -> Self {
        let units = ladder.units_per_segment();
        let (mut tiers, mut tier_count, mut map, mut bits) = ([0; TIERS], 0, 0, units);
        for tier in &mut tiers {
            *tier = map;
            tier_count += 1;
            bits = bits.div_ceil(1 << WORD);
            map += bits;
            if bits == 1 {
                break;
            }
        }
        let mut level_spanning = [ladder.levels() as u8; SPANS];
        for (span, level) in level_spanning.iter_mut().enumerate() {
            if let Some(lowest) = (0..ladder.levels()).find(|&l| ladder.shift(l) as usize >= span) {
                *level = lowest as u8;
            }
        }
        let joined = map * tlbs;
        Self {
            ladder,
            tlbs,
            tiers,
            tier_count,
            map,
            joined,
            words: joined + units.div_ceil(1 << WORD),
            level_spanning,
        }
    }

    /// Words of bit maps in a segment.
    pub(crate) const fn words(&self) -> usize {
        self.words
    }

    pub(crate) const fn tlbs(&self) -> usize {
        self.tlbs
    }

    /// Returns the level at which `unit` is mapped.
    ///
    /// Mappings are aligned, so a superpage of level `l` lies within one mapping exactly if its middle unit is joined
    /// to the one before.
    #[inline]
    pub(crate) fn mapped(&self, bits: &[usize], unit: usize) -> usize {
        let shift = self.ladder.shift(1);
        let middle = (unit >> shift << shift) | (1 << (shift - 1));
        if self.is_joined(bits, middle) { self.mapped_above(bits, unit) } else { 0 }
    }

    #[cold]
    fn mapped_above(&self, bits: &[usize], unit: usize) -> usize {
        let mut level = 1;
        while level < self.ladder.top() {
            let shift = self.ladder.shift(level + 1);
            let middle = (unit >> shift << shift) | (1 << (shift - 1));
            if !self.is_joined(bits, middle) {
                break;
            }
            level += 1;
        }
        level
    }

    #[inline]
    fn is_joined(&self, bits: &[usize], unit: usize) -> bool {
        bits.get(self.joined + (unit >> WORD)).is_some_and(|word| word >> (unit & MASK) & 1 == 1)
    }

    /// Marks the superpage of `level` around `unit` as one mapping, or as units.
    pub(crate) fn join(&self, bits: &mut [usize], unit: usize, level: usize, one: bool) {
        let first = unit >> self.ladder.shift(level) << self.ladder.shift(level);
        let mut at = first + 1;
        let end = first + (1 << self.ladder.shift(level));
        while at < end {
            let upto = end.min((at | MASK) + 1);
            let run = ones(upto - at) << (at & MASK);
            if let Some(word) = bits.get_mut(self.joined + (at >> WORD)) {
                *word = if one { *word | run } else { *word & !run };
            }
            at = upto;
        }
    }

    /// Returns the lowest level at which the superpage around `unit` holds a resident entry, or the number of levels
    /// if none does: where `tlbcount` turns positive on the way up.
    #[inline]
    pub(crate) fn lowest_positive(&self, bits: &[usize], tlb: usize, unit: usize) -> usize {
        let word = bits.get(tlb * self.map + (unit >> WORD)).copied().unwrap_or(0);
        if word == 0 {
            return self.lowest_above(bits, tlb, unit);
        }
        usize::from(self.level_spanning[span(word, unit & MASK) as usize % SPANS])
    }

    /// The same where the unit's own word of the map is empty: by the summaries.
    fn lowest_above(&self, bits: &[usize], tlb: usize, unit: usize) -> usize {
        let mut at = unit;
        for tier in 1..self.tier_count {
            at >>= WORD;
            let word = bits.get(tlb * self.map + self.tiers[tier] + (at >> WORD)).copied().unwrap_or(0);
            if word != 0 {
                return usize::from(
                    self.level_spanning[(span(word, at & MASK) + tier as u32 * WORD) as usize % SPANS],
                );
            }
        }
        self.ladder.levels()
    }

    /// Records that the TLB holds the entry that starts at `unit`.
    #[inline]
    pub(crate) fn enter(&self, bits: &mut [usize], tlb: usize, unit: usize) {
        let Some(word) = bits.get_mut(tlb * self.map + (unit >> WORD)) else { return };
        let was = *word;
        *word = was | 1 << (unit & MASK);
        if was == 0 {
            self.summarize(bits, tlb, unit, true);
        }
    }

    /// Records that the TLB no longer holds the entry that starts at `unit`. Nothing happens if it did not.
    #[inline]
    pub(crate) fn leave(&self, bits: &mut [usize], tlb: usize, unit: usize) {
        let Some(word) = bits.get_mut(tlb * self.map + (unit >> WORD)) else { return };
        *word &= !(1 << (unit & MASK));
        if *word == 0 {
            self.summarize(bits, tlb, unit, false);
        }
    }

    /// Carries into the summaries that the unit's word of the map has become non-empty, or empty.
    fn summarize(&self, bits: &mut [usize], tlb: usize, unit: usize, some: bool) {
        let mut at = unit;
        for tier in 1..self.tier_count {
            at >>= WORD;
            let Some(word) = bits.get_mut(tlb * self.map + self.tiers[tier] + (at >> WORD)) else { return };
            let (was, bit) = (*word, 1 << (at & MASK));
            *word = if some { was | bit } else { was & !bit };
            if (if some { was } else { *word }) != 0 {
                return;
            }
        }
    }

    /// Takes every entry within the superpage of `level` around `unit` out. Returns whether there was one.
    pub(crate) fn leave_all(&self, bits: &mut [usize], tlb: usize, unit: usize, level: usize) -> bool {
        let first = unit >> self.ladder.shift(level) << self.ladder.shift(level);
        let mut any = false;
        let mut at = first;
        while at < first + (1 << self.ladder.shift(level)) {
            let word = bits.get(tlb * self.map + (at >> WORD)).copied().unwrap_or(0) >> (at & MASK);
            if word == 0 {
                at = (at | MASK) + 1;
                continue;
            }
            at += word.trailing_zeros() as usize;
            if at < first + (1 << self.ladder.shift(level)) {
                self.leave(bits, tlb, at);
                any = true;
            }
        }
        any
    }

    /// Forgets every entry of a TLB.
    pub(crate) fn leave_tlb(&self, bits: &mut [usize], tlb: usize) {
        if let Some(map) = bits.get_mut(tlb * self.map..(tlb + 1) * self.map) {
            map.fill(0);
        }
    }

    /// Tells whether the TLB holds an entry that starts in the superpage of `level` around `unit`.
    pub(crate) fn holds(&self, bits: &[usize], tlb: usize, unit: usize, level: usize) -> bool {
        let first = unit >> self.ladder.shift(level) << self.ladder.shift(level);
        (first..first + (1 << self.ladder.shift(level))).any(|at| {
            bits.get(tlb * self.map + (at >> WORD)).is_some_and(|word| word >> (at & MASK) & 1 == 1)
        })
    }

    /// Returns Appendix A's `tlbcount` of the superpage of `level` around `unit`: -1 inside a larger mapping, 0 if
    /// nothing of it is resident, 1 if it is itself resident, or else the number of its components with a positive
    /// count.
    pub(crate) fn tlbcount(&self, bits: &[usize], tlb: usize, unit: usize, level: usize) -> i32 {
        let mapped = self.mapped(bits, unit);
        if mapped > level {
            return -1;
        }
        if mapped == level {
            return i32::from(self.holds(bits, tlb, unit, level));
        }
        let first = unit >> self.ladder.shift(level) << self.ladder.shift(level);
        (first..first + (1 << self.ladder.shift(level)))
            .step_by(1 << self.ladder.shift(level - 1))
            .filter(|&component| self.holds(bits, tlb, component, level - 1))
            .count() as i32
    }
}

/// Bit number within a word.
const MASK: usize = (1 << WORD) - 1;

/// The `n` lowest bits.
const fn ones(n: usize) -> usize {
    if n > MASK { usize::MAX } else { (1 << n) - 1 }
}

/// The number of low bits in which bit number `own` differs from the nearest set bit of `word`, on whichever side that
/// number is smaller. `word` must not be zero.
#[inline]
const fn span(word: usize, own: usize) -> u32 {
    let above = word >> own << own;
    let below = word ^ above;
    let up = own ^ above.trailing_zeros() as usize;
    let down = own ^ (MASK - below.leading_zeros() as usize % (MASK + 1));
    let nearest = if above == 0 || below != 0 && down < up { down } else { up };
    usize::BITS - nearest.leading_zeros()
}
