//! The constants of a radix table, from its geometry and its format.

use tlbkit_addr::{PageSize, VirtAddr, Vpn};

use super::node::{LastNode, NodeMut, NodeRef, Place, Position, Seen, Subtree, Writing};
use super::sweep::NodePart;
use super::{Cursor, Detached, Mpt, Slot};
use crate::format::Format;
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Geometry as _, Half, Radix, Word as _};

/// The most slots that a [run](super::run) can have, as a power of two: 128, in AArch64 with a granule of 16 KiB.
pub(super) const MOST_LOG: u32 = 7;

/// The most levels a table can have.
pub(super) const MAX: usize = 8;

/// Shifts, widths and node sizes by level, the root first; levels beyond the last are zero.
///
/// The table and all handles of its nodes have the same constants.
pub(super) trait Shape {
    /// The geometry.
    type G: Radix;
    /// The format.
    type F: Format;

    /// The number of levels.
    const LEVELS: usize = {
        assert!(!Self::G::WIDTHS.is_empty() && Self::G::WIDTHS.len() <= MAX, "one to eight levels");
        Self::G::WIDTHS.len()
    };

    /// The size that a slot of each level covers.
    const SLOTS: [PageSize; MAX] = {
        let mut slots = [Self::G::BASE; MAX];
        let mut shift = Self::G::VA_BITS;
        let mut level = 0;
        while level < Self::G::WIDTHS.len() {
            assert!(Self::G::WIDTHS[level] > 0, "a level without an index");
            shift -= Self::G::WIDTHS[level];
            slots[level] = match PageSize::from_shift(shift) {
                Some(size) => size,
                None => panic!("a slot is smaller than the address space"),
            };
            level += 1;
        }
        assert!(shift == Self::G::BASE.shift(), "the widths and the page offset make up the address");
        slots
    };

    /// The number of words in a node of each level.
    const WORDS: [usize; MAX] = {
        let mut words = [0; MAX];
        let mut level = 0;
        while level < Self::G::WIDTHS.len() {
            let extra = if level + 1 == Self::G::WIDTHS.len() { Self::F::EXTRA } else { 0 };
            words[level] = (1 << Self::G::WIDTHS[level]) * (1 + extra);
            assert!(
                level == 0
                    || (words[level] * <Self::F as Format>::Word::BYTES).is_multiple_of(Self::F::LINK_ALIGN),
                "a link cannot hold the address of so small a node"
            );
            level += 1;
        }
        words
    };

    /// Whether a slot of each level can hold a leaf.
    const LEAVES: [bool; MAX] = {
        let mut leaves = [false; MAX];
        let mut at = 0;
        while at < Self::G::SIZES.len() {
            let mut level = if Self::G::LINEAR.is_some() { Self::G::WIDTHS.len() - 1 } else { 0 };
            while Self::SLOTS[level].shift() > Self::G::SIZES[at].shift() {
                level += 1;
            }
            leaves[level] = true;
            at += 1;
        }
        leaves
    };

    /// Whether a page can have a size between those of two levels' slots, so that it occupies several slots.
    const REPLICATED: bool = {
        let mut replicated = false;
        let mut at = 0;
        while at < Self::G::SIZES.len() {
            let mut level = 0;
            let mut found = false;
            while level < Self::G::WIDTHS.len() {
                let leaves = Self::G::LINEAR.is_none() || level + 1 == Self::G::WIDTHS.len();
                found |= leaves && Self::SLOTS[level].shift() == Self::G::SIZES[at].shift();
                level += 1;
            }
            replicated |= !found;
            at += 1;
        }
        assert!(
            !(replicated && Self::F::STATUS && Self::G::LINEAR.is_some()),
            "hardware notes status in any word of a page, which may be in several nodes of a linear table"
        );
        replicated
    };

    /// Whether pages can occupy several slots and hardware sets status bits in any of them.
    const RUNS: bool = {
        let runs = Self::REPLICATED && Self::F::STATUS;
        let mut at = 0;
        while runs && at < Self::G::SIZES.len() {
            let size = Self::G::SIZES[at].shift();
            // The slots that the page occupies are the largest that are no larger than the page.
            let mut level = 0;
            while level + 1 < Self::G::WIDTHS.len() && Self::SLOTS[level].shift() > size {
                level += 1;
            }
            let slots = size - Self::SLOTS[level].shift();
            assert!(
                slots <= MOST_LOG,
                "hardware notes status in the slots of a page, of which there are 128 at most"
            );
            at += 1;
        }
        runs
    };

    /// The number of the root's slots that are in the lower half, which user space has.
    const LOWER: usize = match Self::G::HALF {
        Half::Lower => 1 << Self::G::WIDTHS[0],
        Half::Both => (1 << Self::G::WIDTHS[0]) >> 1,
        Half::Upper => 0,
    };

    /// The number of index bits of each level.
    const WIDTHS: [u32; MAX] = {
        let mut widths = [0; MAX];
        let mut level = 0;
        while level < Self::G::WIDTHS.len() {
            widths[level] = Self::G::WIDTHS[level];
            level += 1;
        }
        widths
    };

    /// The number of index bits of the levels below the root, if they all have as many: then the shift of a level takes a
    /// multiplication, and no load.
    const BELOW: Option<u32> = {
        let mut level = 2;
        let mut alike = Self::G::WIDTHS.len() > 1;
        while level < Self::G::WIDTHS.len() {
            alike &= Self::G::WIDTHS[level] == Self::G::WIDTHS[1];
            level += 1;
        }
        if alike { Some(Self::G::WIDTHS[1]) } else { None }
    };

    // Where the compiler does not know the level, a remainder costs less than a bounds check, and cannot panic.
    /// Returns the binary logarithm of the base pages that a slot of the level covers.
    #[inline(always)]
    fn cover(level: usize) -> u32 {
        match Self::BELOW {
            Some(width) => (Self::LEVELS - 1).wrapping_sub(level) as u32 * width,
            None => Self::slot_size(level).shift() - Self::G::BASE.shift(),
        }
    }

    /// Returns the size that a slot of the level covers.
    #[inline(always)]
    fn slot_size(level: usize) -> PageSize {
        Self::SLOTS[level % MAX]
    }

    /// Tells whether a slot of the level can hold a leaf: a lookup needs no code for one that cannot.
    #[inline(always)]
    fn has_leaves(level: usize) -> bool {
        Self::LEAVES[level % MAX]
    }

    /// Returns the number of words in a node of the level.
    #[inline(always)]
    fn words(level: usize) -> usize {
        Self::WORDS[level % MAX]
    }

    /// Returns the number of index bits of the level.
    #[inline(always)]
    fn width(level: usize) -> u32 {
        match Self::BELOW {
            Some(width) if width == Self::G::WIDTHS[0] => width,
            _ => Self::WIDTHS[level % MAX],
        }
    }

    /// Returns the slot that `at` falls into.
    #[inline(always)]
    fn index(level: usize, at: VirtAddr) -> usize {
        at.get() >> (Self::cover(level) + Self::G::BASE.shift()) & ((1 << Self::width(level)) - 1)
    }

    /// Returns the top-level slot that a page falls into; `None` if the page is not in the space.
    #[inline(always)]
    fn top(page: Vpn) -> Option<usize> {
        Self::top_below(Self::LOWER, page)
    }

    /// Does what [`top`](Self::top) does, with one comparison and no mask for a slot below `plain`, which is at most
    /// [`LOWER`](Self::LOWER).
    #[inline(always)]
    fn top_below(plain: usize, page: Vpn) -> Option<usize> {
        let top = page.get() >> Self::cover(0);
        if top < plain {
            return Some(top);
        }
        Self::G::SPACE.has(page).then_some(top & (Self::slots(0) - 1))
    }

    /// Returns the offset of a slot's word in its node, in words.
    #[inline(always)]
    fn place(level: usize, index: usize) -> usize {
        // The words of the lower slots come first, and after each pair of them the pair's extra words.
        if level + 1 == Self::LEVELS { index + (index & !1) * Self::F::EXTRA } else { index }
    }

    /// Returns the number of slots of a node.
    #[inline(always)]
    fn slots(level: usize) -> usize {
        1 << Self::width(level)
    }

    /// Returns how many base pages a slot covers.
    #[inline(always)]
    fn slot_pages(level: usize) -> usize {
        1 << Self::cover(level)
    }

    /// Returns the level of the leaves for pages of `size`: the first level whose slots are no larger than `size`, or the last
    /// level in a linear table.
    #[inline(always)]
    fn level_of(size: PageSize) -> usize {
        // The base size needs no search.
        if size.shift() == Self::G::BASE.shift() || Self::G::LINEAR.is_some() {
            return Self::LEVELS - 1;
        }
        // The level's number is the number of levels whose slots are larger than the page.
        (1..Self::LEVELS).filter(|level| Self::slot_size(level - 1) > size).count()
    }
}

/// Gives a table and the handles of its nodes the table's shape.
macro_rules! shaped {
    ($($type:ident<$($life:lifetime),*>)*) => { $(
        impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Shape for $type<$($life,)* G, F, N> {
            type G = G;
            type F = F;
        }
    )* };
}

shaped! {
    Mpt<'_> Writing<'_, '_> Position<'_, '_> NodeRef<'_, '_> NodeMut<'_, '_> Place<'_, '_> Seen<'_, '_> Subtree<'_, '_>
    LastNode<'_, '_> NodePart<'_, '_> Slot<'_, '_> Cursor<'_, '_> Detached<'_>
}
