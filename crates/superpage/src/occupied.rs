//! The set of blocks in each segment that have resident entries: one bit a block, for each TLB.
//!
//! A miss in a block without a resident entry charges the smallest superpage that contains a resident entry of another
//! block. Among all numbers of a set, the one that has the most leading bits in common with a number is its predecessor or
//! its successor in the set. So the search inspects only the next bit below and the next bit above the block's own. Appendix
//! A climbs a tree of counters at such a miss, and again when a block's last entry is evicted.
//!
//! An [`Index`] over the words of all segments records the words that are not empty, so that a flush visits no others.

use crate::prefetch_charge;

/// log2 of the bits of a word.
const WORD: u32 = usize::BITS.trailing_zeros();

/// The most levels of an index.
const LEVELS: usize = usize::BITS.div_ceil(WORD) as usize;

/// One set of numbers for each TLB, as a tree of bits: a bit says whether a word of the level below is not empty.
///
/// An insertion or removal writes one word, and one word of the next level if the word becomes empty or ceases to be empty,
/// and so on for each level.
#[derive(Debug)]
struct Index<'m> {
    words: &'m mut [[usize; 2]],
    /// The index of each level's first word, the lowest level first. The highest level is one word.
    levels: [usize; LEVELS],
    depth: usize,
}

impl<'m> Index<'m> {
    /// Makes an empty set for each TLB, of numbers less than `many`.
    fn new(words: &'m mut [[usize; 2]], many: usize) -> Self {
        words.fill([0; 2]);
        let (mut levels, mut depth, mut begin, mut many) = ([0; LEVELS], 0, 0, many);
        while let Some(level) = levels.get_mut(depth) {
            many = many.div_ceil(1 << WORD);
            (*level, begin, depth) = (begin, begin + many, depth + 1);
            if many <= 1 {
                break;
            }
        }
        Self { words, levels, depth }
    }

    /// Adds a number.
    fn insert(&mut self, tlb: usize, mut number: usize) {
        for &begin in self.levels.iter().take(self.depth) {
            let Some(words) = self.words.get_mut(begin + (number >> WORD)) else { return };
            let was = words[tlb & 1];
            words[tlb & 1] = was | 1 << (number % (1 << WORD));
            if was != 0 {
                return;
            }
            number >>= WORD;
        }
    }

    /// Removes a number.
    #[cold]
    #[inline(never)]
    fn remove(&mut self, tlb: usize, mut number: usize) {
        for &begin in self.levels.iter().take(self.depth) {
            let Some(words) = self.words.get_mut(begin + (number >> WORD)) else { return };
            words[tlb & 1] &= !(1 << (number % (1 << WORD)));
            if words[tlb & 1] != 0 {
                return;
            }
            number >>= WORD;
        }
    }

    /// Returns the lowest number, or `None` if the set is empty.
    fn first(&self, tlb: usize) -> Option<usize> {
        self.levels.iter().take(self.depth).rev().try_fold(0, |number, &begin| {
            let word = self.words.get(begin + number)?[tlb & 1];
            (word != 0).then(|| number << WORD | word.trailing_zeros() as usize)
        })
    }
}

/// The bitmaps of all segments, with a word for each TLB.
#[derive(Debug)]
pub(crate) struct Occupied<'m> {
    words: &'m mut [[usize; 2]],
    /// The pairs of words of which at least one is not empty. Pair `n` is the words `2 * n` and `2 * n + 1`.
    index: Index<'m>,
    /// log2 of the blocks of a segment that share a word: all blocks of the segment, or as many as a word has bits.
    wide: u32,
    /// log2 of the words of a segment.
    words_shift: u32,
}

impl<'m> Occupied<'m> {
    /// Returns how many words a segment of `1 << spread` blocks takes.
    pub(crate) const fn words(spread: u32) -> usize {
        let words = 1 << spread.saturating_sub(WORD);
        // One more for the index, and one more for every 64 words of a segment, for the index's higher levels.
        2 * (words + 1 + (words >> WORD))
    }

    /// Makes empty sets, with memory for at least `segments` segments.
    pub(crate) fn new(bits: &'m mut [usize], spread: u32, segments: usize) -> Self {
        let wide = if spread < WORD { spread } else { WORD };
        let all = bits.as_chunks_mut().0;
        let (words, index) = all.split_at_mut(all.len().min(segments << (spread - wide)));
        words.fill([0; 2]);
        let index = Index::new(index, words.len().div_ceil(2));
        Self { words, index, wide, words_shift: spread - wide }
    }

    /// Returns the index of a block's word, and the number of its bit there.
    #[inline(always)]
    const fn at(&self, block: usize) -> (usize, u32) {
        (block >> self.wide, (block & ((1 << self.wide) - 1)) as u32)
    }

    /// Adds a block. `tlb` is 0 or 1.
    pub(crate) fn insert(&mut self, tlb: usize, block: usize) {
        let (word, bit) = self.at(block);
        if let Some(words) = self.words.get_mut(word) {
            if words[tlb & 1] == 0 {
                self.index.insert(tlb, word / 2);
            }
            words[tlb & 1] |= 1 << bit;
        }
    }

    /// Removes a block.
    #[inline(always)]
    pub(crate) fn remove(&mut self, tlb: usize, block: usize) {
        let (word, bit) = self.at(block);
        if let Some(words) = self.words.get_mut(word) {
            words[tlb & 1] &= !(1 << bit);
            if words[tlb & 1] == 0 && self.words.get(word ^ 1).is_none_or(|words| words[tlb & 1] == 0) {
                self.index.remove(tlb, word / 2);
            }
        }
    }

    /// Removes every block of a TLB, and calls `take` with it. The time is proportional to the number of blocks, and for
    /// each pair of words to the number of the index's levels.
    pub(crate) fn drain(&mut self, tlb: usize, mut take: impl FnMut(usize)) {
        while let Some(pair) = self.index.first(tlb) {
            for word in [2 * pair, 2 * pair + 1] {
                let mut left =
                    self.words.get_mut(word).map_or(0, |words| core::mem::take(&mut words[tlb & 1]));
                while left != 0 {
                    take(word << self.wide | left.trailing_zeros() as usize);
                    left &= left - 1;
                }
            }
            self.index.remove(tlb, pair);
        }
    }

    /// Adds a block that is not in the set. Returns log2 of the blocks in the smallest aligned group around it that had a
    /// block before, or `None` if the segment had none.
    pub(crate) fn occupy(&mut self, tlb: usize, block: usize) -> Option<u32> {
        let group = self.around(tlb, block);
        self.insert(tlb, block);
        group
    }

    /// Returns log2 of the blocks in the smallest aligned group around a block that contains another block of the set, or
    /// `None` if the segment has no other.
    pub(crate) fn around(&self, tlb: usize, block: usize) -> Option<u32> {
        let (word, bit) = self.at(block);
        let others = self.words.get(word)?[tlb & 1] & !(1 << bit);
        if others == 0 { self.in_words(tlb, word) } else { Some(nearest(others, bit)) }
    }

    /// As [`around`](Self::around), for a block that is alone in its word: searches the other words of the segment.
    fn in_words(&self, tlb: usize, word: usize) -> Option<u32> {
        (0..self.words_shift)
            .find(|&shift| {
                let first = (word >> shift ^ 1) << shift;
                let words = self.words.get(first..first + (1 << shift)).unwrap_or_default();
                words.iter().any(|words| words[tlb & 1] != 0)
            })
            .map(|shift| self.wide + shift + 1)
    }

    /// Removes all blocks of the segment that has this chunk.
    pub(crate) fn clear(&mut self, tlb: usize, chunk: usize) {
        let first = chunk << self.words_shift;
        for word in first..first + (1 << self.words_shift) {
            if let Some(words) = self.words.get_mut(word) {
                words[tlb & 1] = 0;
            }
            if self.words.get(word ^ 1).is_none_or(|words| words[tlb & 1] == 0) {
                self.index.remove(tlb, word / 2);
            }
        }
    }
}

/// Returns log2 of the smallest aligned group of bits that contains `bit` and a bit of `others`. `others` must not be zero
/// and must not contain `bit`.
#[inline(always)]
const fn nearest(others: usize, bit: u32) -> u32 {
    // The sixteen bits around `bit` are searched as the units of a block are.
    let sixteen = (others >> (bit & !15)) as u16;
    match prefetch_charge::smallest(sixteen, bit as usize) {
        Some(beyond_pair) => beyond_pair + 1,
        None if (others >> (bit & !31)) as u32 != 0 => 5,
        None => 6,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// Returns log2 of the smallest aligned group around a block, within its segment, that has another block of the set.
    fn smallest_group(set: &BTreeSet<usize>, block: usize, spread: u32) -> Option<u32> {
        (1..=spread).find(|&group| {
            let first = block >> group << group;
            set.range(first..first + (1 << group)).any(|&other| other != block)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// A set agrees with a `BTreeSet`, for segments of one block to several words, two TLBs and three segments.
        #[test]
        fn a_set_of_blocks(spread in 0u32..=9, events in prop::collection::vec((0..8, any::<u16>(), 0usize..2), 1..200)) {
            let mut words = vec![usize::MAX; 3 * Occupied::words(spread)];
            let mut occupied = Occupied::new(&mut words, spread, 3);
            let mut sets = [BTreeSet::new(), BTreeSet::new()];
            for (event, at, tlb) in events {
                let block = usize::from(at) % (3 << spread);
                let set = &mut sets[tlb];
                match event {
                    0..2 if set.contains(&block) => {
                        occupied.insert(tlb, block);
                    }
                    0 | 1 => {
                        prop_assert_eq!(occupied.occupy(tlb, block), smallest_group(set, block, spread));
                        set.insert(block);
                    }
                    2 | 3 => {
                        occupied.insert(tlb, block);
                        set.insert(block);
                    }
                    4 => {
                        occupied.remove(tlb, block);
                        set.remove(&block);
                    }
                    5 => {
                        if at % 8 == 0 {
                            let chunk = block >> spread;
                            occupied.clear(tlb, chunk);
                            set.retain(|&other| other >> spread != chunk);
                        }
                    }
                    6 => prop_assert_eq!(occupied.around(tlb, block), smallest_group(set, block, spread)),
                    _ => {
                        let mut gone = BTreeSet::new();
                        occupied.drain(tlb, |block| assert!(gone.insert(block)));
                        prop_assert_eq!(&gone, &*set);
                        set.clear();
                    }
                }
                // The index's first pair, which a flush would visit first, is that of the lowest block.
                for (tlb, set) in sets.iter().enumerate() {
                    let words = |blocks: usize| blocks >> spread.min(WORD) >> 1;
                    prop_assert_eq!(occupied.index.first(tlb), set.first().map(|&block| words(block)));
                }
                for set in [0, 1] {
                    prop_assert_eq!(occupied.around(set, block), smallest_group(&sets[set], block, spread));
                }
            }
        }
    }

    /// A flush removes exactly the remaining blocks, for numbers of segments at which the index has one level or more.
    #[test]
    fn a_flush_visits_what_is_left() {
        for (spread, segments) in [(7, 1), (7, 64), (7, 65), (7, 5000), (0, 129), (14, 1), (14, 40)] {
            let mut words = vec![usize::MAX; segments * Occupied::words(spread)];
            let mut occupied = Occupied::new(&mut words, spread, segments);
            let blocks: Vec<_> = (0..segments << spread).step_by(31).collect();
            for &block in &blocks {
                occupied.insert(1, block);
            }
            let left: Vec<_> = blocks.iter().copied().filter(|block| block % 7 == 3).collect();
            for &block in blocks.iter().filter(|block| *block % 7 != 3) {
                occupied.remove(1, block);
            }
            let pairs: BTreeSet<_> = left.iter().map(|block| block >> spread.min(WORD) >> 1).collect();
            let mut indexed = BTreeSet::new();
            for pair in 0..(segments << spread >> spread.min(WORD)).div_ceil(2) {
                if occupied.index.words[pair >> WORD][1] >> (pair % (1 << WORD)) & 1 == 1 {
                    indexed.insert(pair);
                }
            }
            assert_eq!(indexed, pairs, "{segments} segments of 2^{spread}");
            // A flush does not visit a word that the index does not name, even if the word is not empty.
            let pairs_of = occupied.words.len().div_ceil(2);
            let unsaid: Vec<_> =
                (0..pairs_of).filter(|pair| !pairs.contains(pair)).map(|pair| 2 * pair).collect();
            for &word in &unsaid {
                occupied.words[word][1] = 1;
            }
            let mut taken = Vec::new();
            occupied.drain(1, |block| taken.push(block));
            assert_eq!(taken, left);
            assert!(
                unsaid.iter().all(|&word| occupied.words[word][1] == 1),
                "{segments} segments of 2^{spread}"
            );
            assert_eq!((occupied.index.first(0), occupied.index.first(1)), (None, None));
        }
    }
}
