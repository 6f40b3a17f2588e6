//! Which blocks of each segment hold resident entries: a bit a block, for each TLB.
//!
//! What a miss far from everything resident asks for, the smallest superpage that reaches something, is one look at the
//! bits before and behind its own: of all in a set, what has most leading bits in common with a number is the next
//! smaller or the next larger one. Appendix A climbs a tree of counters for it, and again when the last entry goes.
//!
//! Above the words of all segments stands an [`Index`] of those that are not empty, so that a flush visits no others.

/// log2 of the bits of a word.
const WORD: u32 = usize::BITS.trailing_zeros();

/// The most levels of an index.
const LEVELS: usize = usize::BITS.div_ceil(WORD) as usize;

/// Numbers in sets, one for each TLB: a tree of bits, each of which says whether a word of the level below has any.
///
/// A change costs one word unless a word becomes empty or stops being so, and then one more on each level where that is
/// the same.
#[derive(Debug)]
struct Index<'m> {
    words: &'m mut [[usize; 2]],
    /// Where each level begins, the lowest first; the highest is one word.
    levels: [usize; LEVELS],
    depth: usize,
}

impl<'m> Index<'m> {
    /// Makes empty sets of numbers below `many`.
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

    /// Returns the lowest number.
    fn first(&self, tlb: usize) -> Option<usize> {
        self.levels.iter().take(self.depth).rev().try_fold(0, |number, &begin| {
            let word = self.words.get(begin + number)?[tlb & 1];
            (word != 0).then(|| number << WORD | word.trailing_zeros() as usize)
        })
    }
}

/// The bit maps of all segments: a word for each TLB.
#[derive(Debug)]
pub(crate) struct Occupied<'m> {
    words: &'m mut [[usize; 2]],
    /// Of each two words, whether one is not empty: by the number of the first over two.
    index: Index<'m>,
    /// log2 of the blocks of a segment that share a word: all of them, or as many as it has bits.
    wide: u32,
    /// log2 of the words of a segment.
    words_shift: u32,
}

impl<'m> Occupied<'m> {
    /// Returns how many words a segment of `1 << spread` blocks takes.
    pub(crate) const fn words(spread: u32) -> usize {
        let words = 1 << spread.saturating_sub(WORD);
        // One more for the index, and where a segment has more words than one index word tells apart, one for each 64.
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
            if words[tlb & 1] == 0 {
                self.index.insert(tlb, word / 2);
            }
            words[tlb & 1] |= 1 << bit;
        }
    }

    /// Removes a block.
    #[inline(always)]
    pub(crate) fn remove<const PLAIN: bool>(&mut self, tlb: usize, block: usize) {
        let (word, bit) = self.at::<PLAIN>(block);
        if let Some(words) = self.words.get_mut(word) {
            words[tlb & 1] &= !(1 << bit);
            if words[tlb & 1] == 0 && self.words.get(word ^ 1).is_none_or(|words| words[tlb & 1] == 0) {
                self.index.remove(tlb, word / 2);
            }
        }
    }

    /// Removes every block of a TLB and hands it over. Costs one step for each, and one for each of the index's levels.
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
    use std::vec::Vec;

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
        fn a_set_of_blocks(spread in 0u32..=9, events in prop::collection::vec((0..8, any::<u16>(), 0usize..2), 1..200)) {
            let mut words = vec![usize::MAX; 3 * Occupied::words(spread)];
            let mut occupied = Occupied::new(&mut words, spread, 3);
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
                    6 => prop_assert_eq!(occupied.around(tlb, block), smallest_group(set, block, spread)),
                    _ => {
                        let mut gone = BTreeSet::new();
                        occupied.drain(tlb, |block| assert!(gone.insert(block)));
                        prop_assert_eq!(&gone, &*set);
                        set.clear();
                    }
                }
                // A flush would look where something is, and nowhere else.
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

    /// Many segments, in numbers for which the index has one level and more; what is left in the end is what a flush takes.
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
                occupied.remove::<false>(1, block);
            }
            let pairs: BTreeSet<_> = left.iter().map(|block| block >> spread.min(WORD) >> 1).collect();
            let mut indexed = BTreeSet::new();
            for pair in 0..(segments << spread >> spread.min(WORD)).div_ceil(2) {
                if occupied.index.words[pair >> WORD][1] >> (pair % (1 << WORD)) & 1 == 1 {
                    indexed.insert(pair);
                }
            }
            assert_eq!(indexed, pairs, "{segments} segments of 2^{spread}");
            // What the index does not say is not looked at, however much there is.
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
