//! The constants of a radix table, from its geometry and its format.

use tlbkit_addr::{PageSize, VirtAddr, Vpn};

use super::Mpt;
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Half, Radix, Word};

/// The most levels a table can have.
pub(super) const MAX: usize = 8;

/// Shifts, widths and node sizes by level, the root first; levels beyond the last are zero.
pub(super) trait Shape {
    /// The number of levels.
    const LEVELS: usize;
    /// The size that a slot of each level covers.
    const SLOTS: [PageSize; MAX];
    /// The number of words in a node of each level.
    const WORDS: [usize; MAX];
    /// Whether a page can have a size between those of two levels' slots, so that it occupies several slots.
    const REPLICATED: bool;
    /// Whether pages can occupy several slots and hardware sets status bits in any of them.
    const RUNS: bool;

    /// The number of index bits of each level.
    const WIDTHS: [u32; MAX];

    /// Returns the size that a slot of the level covers.
    fn slot_size(level: usize) -> PageSize;

    /// Returns the number of words in a node of the level.
    fn words(level: usize) -> usize;

    /// Returns the number of index bits of the level.
    fn width(level: usize) -> u32;

    /// Returns the slot that `at` falls into.
    fn index(level: usize, at: VirtAddr) -> usize;

    /// Returns the top-level slot that a page falls into; `None` if the page is not in the space.
    fn top(page: Vpn) -> Option<usize>;

    /// Returns the offset of a slot's word in its node, in words.
    fn place(level: usize, index: usize) -> usize;

    /// Returns the number of slots of a node.
    fn slots(level: usize) -> usize;

    /// Returns how many base pages a slot covers.
    fn slot_pages(level: usize) -> usize;

    /// Returns the level of the leaves for pages of `size`: the first level whose slots are no larger than `size`, or the last
    /// level in a linear table.
    fn level_of(size: PageSize) -> usize;
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Shape for Mpt<'_, G, F, N> {
    const LEVELS: usize = {
        assert!(!G::WIDTHS.is_empty() && G::WIDTHS.len() <= MAX, "one to eight levels");
        G::WIDTHS.len()
    };

    const SLOTS: [PageSize; MAX] = {
        let mut slots = [G::BASE; MAX];
        let mut shift = G::VA_BITS;
        let mut level = 0;
        while level < G::WIDTHS.len() {
            assert!(G::WIDTHS[level] > 0, "a level without an index");
            shift -= G::WIDTHS[level];
            slots[level] = match PageSize::from_shift(shift) {
                Some(size) => size,
                None => panic!("a slot is smaller than the address space"),
            };
            level += 1;
        }
        assert!(shift == G::BASE.shift(), "the widths and the page offset make up the address");
        slots
    };

    const WORDS: [usize; MAX] = {
        let mut words = [0; MAX];
        let mut level = 0;
        while level < G::WIDTHS.len() {
            let extra = if level + 1 == G::WIDTHS.len() { F::EXTRA } else { 0 };
            words[level] = (1 << G::WIDTHS[level]) * (1 + extra);
            assert!(
                level == 0 || (words[level] * F::Word::BYTES).is_multiple_of(F::LINK_ALIGN),
                "a link cannot hold the address of so small a node"
            );
            level += 1;
        }
        words
    };

    const REPLICATED: bool = {
        let mut replicated = false;
        let mut at = 0;
        while at < G::SIZES.len() {
            let mut level = 0;
            let mut found = false;
            while level < G::WIDTHS.len() {
                let leaves = G::LINEAR.is_none() || level + 1 == G::WIDTHS.len();
                found |= leaves && Self::SLOTS[level].shift() == G::SIZES[at].shift();
                level += 1;
            }
            replicated |= !found;
            at += 1;
        }
        assert!(
            !(replicated && F::STATUS && G::LINEAR.is_some()),
            "hardware notes status in any word of a page, which may be in several nodes of a linear table"
        );
        replicated
    };

    const RUNS: bool = Self::REPLICATED && F::STATUS;

    const WIDTHS: [u32; MAX] = {
        let mut widths = [0; MAX];
        let mut level = 0;
        while level < G::WIDTHS.len() {
            widths[level] = G::WIDTHS[level];
            level += 1;
        }
        widths
    };

    // Where the compiler does not know the level, a remainder costs less than a bounds check, and cannot panic.
    #[inline(always)]
    fn slot_size(level: usize) -> PageSize {
        Self::SLOTS[level % MAX]
    }

    #[inline(always)]
    fn words(level: usize) -> usize {
        Self::WORDS[level % MAX]
    }

    #[inline(always)]
    fn width(level: usize) -> u32 {
        Self::WIDTHS[level % MAX]
    }

    #[inline(always)]
    fn index(level: usize, at: VirtAddr) -> usize {
        at.get() >> Self::slot_size(level).shift() & ((1 << Self::width(level)) - 1)
    }

    #[inline(always)]
    fn top(page: Vpn) -> Option<usize> {
        let top = page.get() >> (Self::slot_size(0).shift() - G::BASE.shift());
        // The lower half, which user space has, costs one comparison and no mask.
        let lower = match G::HALF {
            Half::Lower => Self::slots(0),
            Half::Both => Self::slots(0) >> 1,
            Half::Upper => 0,
        };
        if top < lower {
            return Some(top);
        }
        G::SPACE.has(page).then_some(top & (Self::slots(0) - 1))
    }

    #[inline(always)]
    fn place(level: usize, index: usize) -> usize {
        // The words of the lower slots come first, and after each pair of them the pair's extra words.
        if level + 1 == Self::LEVELS { index + (index & !1) * F::EXTRA } else { index }
    }

    #[inline(always)]
    fn slots(level: usize) -> usize {
        1 << Self::width(level)
    }

    #[inline(always)]
    fn slot_pages(level: usize) -> usize {
        1 << (Self::slot_size(level).shift() - G::BASE.shift())
    }

    #[inline(always)]
    fn level_of(size: PageSize) -> usize {
        // The base size needs no search.
        if size.shift() == G::BASE.shift() || G::LINEAR.is_some() {
            return Self::LEVELS - 1;
        }
        // The level's number is the number of levels whose slots are larger than the page.
        (1..Self::LEVELS).filter(|level| Self::slot_size(level - 1) > size).count()
    }
}
