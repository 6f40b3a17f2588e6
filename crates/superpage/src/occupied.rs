//! Which blocks of each segment hold a resident entry: what finds the nearest one beyond a block.
//!
//! One bit a block for each TLB, under summaries in which a bit stands for a word below that is not zero:
//!
//! ```text
//!   summary  ......................x..........   bit w: word w below is not zero
//!   blocks   ..|..............x..b......x....|   b and the nearest bits on either side: the smallest aligned range
//!                                                with b and another ends at the highest bit in which their numbers
//!                                                differ
//! ```

use crate::units::WORD;

/// Enough for 2^18 units in blocks of 16 on a 32-bit machine.
const TIERS: usize = 3;
/// Bit number within a word.
const MASK: usize = (1 << WORD) - 1;

/// The maps of every segment.
#[derive(Debug)]
pub(crate) struct Occupied<'m> {
    bits: &'m mut [usize],
    layout: Layout,
}

/// Where the maps of a segment lie among its words, TLB by TLB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// First word of each tier of one map.
    tiers: [usize; TIERS],
    tier_count: usize,
    /// Words of one map with its summaries.
    map: usize,
    tlbs: usize,
}

impl Layout {
    /// Lays maps of `blocks` out for so many TLBs.
    pub(crate) fn new(blocks: usize, tlbs: usize) -> Self {
        let (mut tiers, mut tier_count, mut map, mut bits) = ([0; TIERS], 0, 0, blocks);
        for tier in &mut tiers {
            *tier = map;
            tier_count += 1;
            bits = bits.div_ceil(1 << WORD);
            map += bits;
            if bits == 1 {
                break;
            }
        }
        Self { tiers, tier_count, map, tlbs }
    }

    /// Words in a segment.
    pub(crate) const fn words(&self) -> usize {
        self.map * self.tlbs
    }
}

impl<'m> Occupied<'m> {
    pub(crate) const fn new(bits: &'m mut [usize], layout: Layout) -> Self {
        Self { bits, layout }
    }

    /// Empties the maps of a chunk.
    pub(crate) fn clear(&mut self, chunk: usize) {
        let words = self.layout.words();
        if let Some(bits) = self.bits.get_mut(chunk * words..(chunk + 1) * words) {
            bits.fill(0);
        }
    }

    /// Returns the logarithm of the smallest aligned number of blocks around `block` that has an occupied one.
    #[inline]
    pub(crate) fn span(&self, chunk: usize, tlb: usize, block: usize) -> Option<u32> {
        let base = (chunk * self.layout.tlbs + tlb) * self.layout.map;
        let word = *self.bits.get(base + (block >> WORD))?;
        if word != 0 { Some(span(word, block & MASK)) } else { self.span_above(base, block) }
    }

    /// The same where the block's own word is empty.
    fn span_above(&self, base: usize, block: usize) -> Option<u32> {
        let mut at = block;
        for tier in 1..self.layout.tier_count {
            at >>= WORD;
            let word = *self.bits.get(base + self.layout.tiers[tier] + (at >> WORD))?;
            if word != 0 {
                return Some(span(word, at & MASK) + tier as u32 * WORD);
            }
        }
        None
    }

    /// Records that a block, empty until now, holds a resident entry, or that it no longer does.
    #[inline]
    pub(crate) fn set(&mut self, chunk: usize, tlb: usize, block: usize, some: bool) {
        let base = (chunk * self.layout.tlbs + tlb) * self.layout.map;
        let Some(word) = self.bits.get_mut(base + (block >> WORD)) else { return };
        let (was, bit) = (*word, 1 << (block & MASK));
        *word = if some { was | bit } else { was & !bit };
        if (if some { was } else { *word }) == 0 {
            self.summarize(base, block, some);
        }
    }

    /// Carries into the summaries that a word of the map has become non-empty, or empty.
    fn summarize(&mut self, base: usize, block: usize, some: bool) {
        let mut at = block;
        for tier in 1..self.layout.tier_count {
            at >>= WORD;
            let Some(word) = self.bits.get_mut(base + self.layout.tiers[tier] + (at >> WORD)) else { return };
            let (was, bit) = (*word, 1 << (at & MASK));
            *word = if some { was | bit } else { was & !bit };
            if (if some { was } else { *word }) != 0 {
                return;
            }
        }
    }
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
