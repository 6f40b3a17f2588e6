//! Which blocks of each segment hold resident entries: a bit a block, for each TLB.
//!
//! What a miss far from everything resident asks for, the smallest superpage that reaches something, is one look at the
//! bits before and behind its own: of all in a set, what has most leading bits in common with a number is the next
//! smaller or the next larger one. Appendix A climbs a tree of counters for it, and again when the last entry goes.

/// log2 of the bits of a word.
const WORD: u32 = usize::BITS.trailing_zeros();

/// The bit maps of all segments: a word for each TLB.
#[derive(Debug)]
pub(crate) struct Occupied<'m> {
    words: &'m mut [[usize; 2]],
    /// log2 of the blocks of a segment that share a word: all of them, or as many as it has bits.
    wide: u32,
    /// log2 of the words of a segment.
    words_shift: u32,
}

impl<'m> Occupied<'m> {
    /// Returns how many words a segment of `1 << spread` blocks takes.
    pub(crate) const fn words(spread: u32) -> usize {
        2 << spread.saturating_sub(WORD)
    }

    pub(crate) fn new(bits: &'m mut [usize], spread: u32) -> Self {
        bits.fill(0);
        let wide = if spread < WORD { spread } else { WORD };
        Self { words: bits.as_chunks_mut().0, wide, words_shift: spread - wide }
    }

    /// Tells whether a segment fills words, two at the least.
    pub(crate) const fn is_plain(&self) -> bool {
        self.words_shift > 0
    }

    /// Returns a block's word, and its bit there. `PLAIN` says that [`is_plain`](Self::is_plain).
    #[inline(always)]
    const fn at<const PLAIN: bool>(&self, block: usize) -> (usize, u32) {
        if PLAIN {
            return (block >> WORD, (block % (1 << WORD)) as u32);
        }
        (block >> self.wide, (block & ((1 << self.wide) - 1)) as u32)
    }

    /// Adds a block. `tlb` is 0 or 1.
    pub(crate) fn insert(&mut self, tlb: usize, block: usize) {
        let (word, bit) = self.at::<false>(block);
        if let Some(words) = self.words.get_mut(word) {
            words[tlb & 1] |= 1 << bit;
        }
    }

    /// Removes a block.
    #[inline(always)]
    pub(crate) fn remove<const PLAIN: bool>(&mut self, tlb: usize, block: usize) {
        let (word, bit) = self.at::<PLAIN>(block);
        if let Some(words) = self.words.get_mut(word) {
            words[tlb & 1] &= !(1 << bit);
        }
    }

    /// Adds a block that was not there, if there is another in its word or, if `PLAIN`, in the next. Returns log2 of the
    /// blocks in the smallest aligned group around it that had one before.
    #[inline(always)]
    pub(crate) fn near<const PLAIN: bool>(&mut self, tlb: usize, block: usize) -> Option<u32> {
        let (word, bit) = self.at::<PLAIN>(block);
        let others = self.words.get(word)?[tlb & 1];
        if others == 0 && (!PLAIN || self.words.get(word ^ 1)?[tlb & 1] == 0) {
            return None;
        }
        self.words.get_mut(word)?[tlb & 1] = others | 1 << bit;
        Some(if others == 0 { WORD + 1 } else { nearest(others, bit) })
    }

    /// Adds a block that was not there. Returns log2 of the blocks in the smallest aligned group around it that had one
    /// before, or `None` if the segment had none.
    pub(crate) fn occupy(&mut self, tlb: usize, block: usize) -> Option<u32> {
        let group = self.around(tlb, block);
        self.insert(tlb, block);
        group
    }

    /// Returns log2 of the blocks in the smallest aligned group around one that has another in it, or `None` if the
    /// segment has none.
    pub(crate) fn around(&self, tlb: usize, block: usize) -> Option<u32> {
        let (word, bit) = self.at::<false>(block);
        let others = self.words.get(word)?[tlb & 1] & !(1 << bit);
        if others == 0 { self.in_words(tlb, word) } else { Some(nearest(others, bit)) }
    }

    /// The same in the other words of a segment.
    fn in_words(&self, tlb: usize, word: usize) -> Option<u32> {
        (0..self.words_shift)
            .find(|&shift| {
                let first = (word >> shift ^ 1) << shift;
                let words = self.words.get(first..first + (1 << shift)).unwrap_or_default();
                words.iter().any(|words| words[tlb & 1] != 0)
            })
            .map(|shift| self.wide + shift + 1)
    }

    /// Empties a segment's words, `chunk` being its place among the segments.
    pub(crate) fn clear(&mut self, tlb: usize, chunk: usize) {
        let first = chunk << self.words_shift;
        for words in self.words.iter_mut().skip(first).take(1 << self.words_shift) {
            words[tlb & 1] = 0;
        }
    }
}

/// Returns the number of trailing bits in which `bit` differs from what in `others`, not empty and without it, is
/// nearest to it in that sense.
#[inline(always)]
const fn nearest(others: usize, bit: u32) -> u32 {
    let (above, below) = (others & (usize::MAX << bit), others & !(usize::MAX << bit));
    // One at the least, as they differ.
    let (above_by, below_by) = (above.trailing_zeros() ^ bit | 1, (below | 1).ilog2() ^ bit | 1);
    let least = if below == 0 || above != 0 && above_by < below_by { above_by } else { below_by };
    1 + least.ilog2()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    /// log2 of the smallest aligned group around a block, within its segment, that has another of the set.
    fn smallest_group(set: &BTreeSet<usize>, block: usize, spread: u32) -> Option<u32> {
        (1..=spread).find(|&group| {
            let first = block >> group << group;
            set.range(first..first + (1 << group)).any(|&other| other != block)
        })
    }

    /// The same among the blocks that share a word, or two if it is plain.
    fn near(set: &BTreeSet<usize>, block: usize, spread: u32, plain: bool) -> Option<u32> {
        smallest_group(set, block, spread.min(WORD + u32::from(plain)))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// In segments of one block to those of several words, beside a set of the other TLB and other segments.
        #[test]
        fn a_set_of_blocks(spread in 0u32..=9, events in prop::collection::vec((0..7, any::<u16>(), 0usize..2), 1..200)) {
            let mut words = vec![usize::MAX; 3 * Occupied::words(spread)];
            let mut occupied = Occupied::new(&mut words, spread);
            prop_assert_eq!(occupied.is_plain(), spread > WORD);
            let plain = occupied.is_plain();
            let mut sets = [BTreeSet::new(), BTreeSet::new()];
            for (event, at, tlb) in events {
                let block = usize::from(at) % (3 << spread);
                let set = &mut sets[tlb];
                match event {
                    0..2 if set.contains(&block) => {
                        occupied.insert(tlb, block);
                    }
                    0 => {
                        let group = near(set, block, spread, plain);
                        let found = if plain { occupied.near::<true>(tlb, block) } else { occupied.near::<false>(tlb, block) };
                        prop_assert_eq!(found, group);
                        if group.is_some() {
                            set.insert(block);
                        }
                    }
                    1 => {
                        prop_assert_eq!(occupied.occupy(tlb, block), smallest_group(set, block, spread));
                        set.insert(block);
                    }
                    2 | 3 => {
                        occupied.insert(tlb, block);
                        set.insert(block);
                    }
                    4 => {
                        if plain { occupied.remove::<true>(tlb, block) } else { occupied.remove::<false>(tlb, block) }
                        set.remove(&block);
                    }
                    5 => {
                        if at % 8 == 0 {
                            let chunk = block >> spread;
                            occupied.clear(tlb, chunk);
                            set.retain(|&other| other >> spread != chunk);
                        }
                    }
                    _ => prop_assert_eq!(occupied.around(tlb, block), smallest_group(set, block, spread)),
                }
                for set in [0, 1] {
                    prop_assert_eq!(occupied.around(set, block), smallest_group(&sets[set], block, spread));
                }
            }
        }
    }
}
