//! The ways of a page size, and the places of lines in them.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use tlbkit_pagetable::nodes::NodeAddr;

pub(super) const WAYS: usize = 3;
/// The binary logarithm of the pages of a line, and their number.
pub(super) const LINE_LOG: usize = 3;
pub(super) const LINE: usize = 1 << LINE_LOG;
/// The factors of the hash functions: one of each way, and that of all of them.
const FACTORS: [u64; WAYS + 1] =
    [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0xff51_afd7_ed55_8ccd];

/// Returns the hash of a line for a way, of 32 bits. Arrays use its upper bits.
pub(super) fn hash(way: usize, line: usize) -> u64 {
    let mixed = (line as u64).wrapping_mul(FACTORS[WAYS]);
    (mixed ^ mixed >> 32).wrapping_mul(FACTORS[way]) >> 32
}

/// The ways of a page size.
#[derive(Debug, Default)]
pub(super) struct Set {
    pub(super) ways: [Way; WAYS],
    /// Lines in use: the writer's.
    pub(super) lines: AtomicUsize,
}

/// A way. A walker loads its words one by one; the epoch tells whether they belong together.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// The words of its arrays, or zero.
    pub(super) arrays: [AtomicUsize; 2],
    /// The number of lines of the small array that are in the big one, and in the lowest bit which of the two is the small one. It is
    /// zero if there is one array.
    pub(super) split: AtomicUsize,
    /// Whether the split rises: the writer's.
    pub(super) grows: AtomicBool,
}

/// An array of a way: `7 << log` lines of nine words, and one word to spare for each seven.
#[derive(Clone, Copy, Debug)]
pub(super) struct Array {
    pub(super) at: NodeAddr,
    pub(super) log: usize,
}

/// The bits of an array's word that hold the binary logarithm: a node of 64 words or more is aligned to 512 bytes.
const LOG: usize = 0x1f;

impl Array {
    pub(super) fn of(word: usize) -> Option<Self> {
        (word != 0).then_some(Self { at: NodeAddr::new(word & !LOG), log: word & LOG })
    }

    pub(super) fn word(self) -> usize {
        self.at.get() | self.log
    }

    pub(super) fn lines(self) -> usize {
        7 << self.log
    }

    /// Returns the index of a line with this hash, which is less than `lines`.
    pub(super) fn index(self, hash: u64) -> usize {
        (((hash * 7) << self.log) >> 32) as usize
    }

    pub(super) fn slot(self, way: usize, index: usize) -> Slot {
        Slot { way, array: self, word: index * (LINE + 1) }
    }
}

/// The place of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) way: usize,
    pub(super) array: Array,
    /// The word of its tag. Its PTEs follow.
    pub(super) word: usize,
}

impl Slot {
    pub(super) fn is(self, other: Self) -> bool {
        (self.array.at, self.word) == (other.array.at, other.word)
    }
}

/// The arrays of a way, which are one or two.
pub(super) struct State {
    pub(super) side: usize,
    pub(super) split: usize,
    pub(super) small: Array,
    pub(super) big: Option<Array>,
}

impl Way {
    pub(super) fn state(&self) -> Option<State> {
        let split = self.split.load(Acquire);
        let array = |side: usize| Array::of(self.arrays[side].load(Acquire));
        let side = split & 1;
        Some(State { side, split: split >> 1, small: array(side)?, big: array(side ^ 1) })
    }

    /// Returns the place of a line in this way, which has the number `way`.
    pub(super) fn slot(&self, way: usize, line: usize) -> Option<Slot> {
        let State { split, small, big, .. } = self.state()?;
        let hash = hash(way, line);
        let array = if small.index(hash) < split { big? } else { small };
        Some(array.slot(way, array.index(hash)))
    }

    /// Returns the logarithm of the size that the way will have, and of its largest array.
    pub(super) fn logs(&self) -> Option<(usize, usize)> {
        let State { small, big, .. } = self.state()?;
        let large = big.map_or(small.log, |big| big.log);
        Some((if self.grows.load(Relaxed) { large } else { small.log }, large))
    }

    pub(super) fn moves(&self) -> bool {
        self.arrays.iter().all(|array| array.load(Relaxed) != 0)
    }
}

impl Set {
    pub(super) fn is_used(&self) -> bool {
        self.ways[0].state().is_some()
    }

    /// Tells whether so many lines are more than so many tenths of what arrays of these sizes hold.
    pub(super) fn exceeds(lines: usize, tenths: usize, logs: [usize; WAYS]) -> bool {
        lines * 10 > tenths * logs.iter().map(|log| 7 << log).sum::<usize>()
    }
}
