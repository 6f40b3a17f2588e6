//! The types and constants of a guarded table, which follow from its geometry, format and layout; its keys, PTEs and node sizes.

use tlbkit_addr::{PageSize, Pages, VirtAddr, Vpn};

use super::guard::{digit, low};
use super::layout::{Edge, Layout};
use super::node_size::NodeSize;
use super::path::DEPTH;
use super::visit::Span;
use super::{Gpt, MAX_WIDTH};
use crate::footprint::Tally;
use crate::format::{Format, entry_of};
use crate::geometry::Checked as _;
use crate::nodes::Nodes;
use crate::{Entry, Geometry, Half, Leaf, Space, Word};

/// The kinds of nodes: indexing ones by width (from 1), then leaves by width (from 0).
pub(super) const KINDS: usize = MAX_WIDTH + LEAF_WIDTHS;

/// Leaves have up to 16 PTEs.
pub(super) const LEAF_WIDTHS: usize = 5;

/// The kind of an indexing node.
#[inline(always)]
pub(super) const fn inner_kind(width: u32) -> usize {
    width as usize - 1
}

/// The kind of a leaf.
#[inline(always)]
pub(super) const fn leaf_kind(width: u32) -> usize {
    MAX_WIDTH + width as usize
}

/// Returns the kind of the node at an edge.
#[inline(always)]
pub(super) const fn kind(edge: Edge) -> usize {
    if edge.is_leaf() { leaf_kind(edge.width) } else { inner_kind(edge.width) }
}

/// Returns the position of the highest bit in which two keys differ, 0 if there is none.
#[inline(always)]
pub(super) fn top_bit(differ: usize) -> u32 {
    differ.checked_ilog2().unwrap_or(0)
}

/// What a slot of a table holds of the first key of a region.
pub(super) type BaseOf<T> = <<T as Shape>::L as Layout<<T as Shape>::N>>::Base;

/// A guarded table: its types, its constants, and its fields. The table and all handles of its nodes use them.
pub(super) trait Shape: Sized {
    /// The word.
    type W: Word;
    /// The geometry.
    type G: Geometry;
    /// The format.
    type F: Format<Word = Self::W>;
    /// The storage of the nodes.
    type N: Nodes<Word = Self::W>;
    /// The layout of a slot.
    type L: Layout<Self::N>;
    /// The sizes of nodes.
    type P: NodeSize;

    /// Returns the storage of the nodes.
    fn nodes(&self) -> &Self::N;

    /// Returns the root slot.
    fn root(&self) -> &<Self::L as Layout<Self::N>>::Root;

    /// Returns the counts of nodes and PTEs.
    fn tally(&self) -> &Tally;

    /// The zero word.
    const ZERO: Self::W = <Self::W as Word>::ZERO;

    /// The pages of the table.
    const SPACE: Space = Self::G::SPACE;

    /// The size of a base page.
    const PAGE: PageSize = Self::G::BASE;

    /// The position above the highest bit of an address.
    const BITS: u32 = Self::G::VA_BITS;

    /// Whether a leaf is a pair of pages of any size.
    const PAIRS: bool = Self::L::PAIRS;

    /// The position of the lowest bit of a page number.
    const BASE: u32 = {
        // A leaf is copied when it grows or shrinks, and hardware might set status bits in the old copy.
        assert!(!Self::F::STATUS, "no hardware walks a guarded page table");
        assert!(Self::P::WIDTH <= Self::L::MAX_WIDTH, "a slot cannot express nodes of this size");
        assert!(
            (Self::BITS - Self::PAGE.shift()) as usize <= DEPTH,
            "pages are smaller than a path has room for"
        );
        assert!(
            !Self::PAIRS
                || Self::F::PAIRED
                    && Self::F::BREAK
                    && Self::F::EXTRA == 0
                    && Self::BITS == 32
                    && Self::PAGE.shift() == 12,
            "a TLB entry's layout is for 32-bit addresses of 4 KiB pages, in entries of pairs"
        );
        let mut at = 0;
        while Self::PAIRS && at < Self::G::SIZES.len() {
            let shift = Self::G::SIZES[at].shift();
            assert!(
                shift % 2 == 0 && shift <= 26,
                "PageMask has powers of four, and a tag those up to 64 MiB"
            );
            at += 1;
        }
        assert!(
            Self::TAG > 0 || Self::ROOM_WIDTH == 1,
            "a leaf without a tag is a pair, of a format whose leaves have room for one"
        );
        assert!(usize::BITS <= 64 && Self::F::LINK_ALIGN <= 8);
        Self::PAGE.shift()
    };

    /// Whether the size of a leaf of base pages follows the number of its pages, and one slot leads to it. Otherwise a leaf is a
    /// pair of pages.
    const PLAIN: bool = Self::TAG > 0 && !Self::PAIRS;

    /// The logarithm of the number of PTEs for which the smallest leaf has room: both PTEs of a pair, even if one page is mapped.
    const ROOM_WIDTH: u32 = if Self::F::PAIRED || Self::F::EXTRA > 0 { 1 } else { 0 };

    /// The logarithm of the number of PTEs of the smallest leaf of base pages.
    const MIN_LEAF_WIDTH: u32 = Self::ROOM_WIDTH;

    /// The logarithm of the number of PTEs of the largest leaf of base pages. A leaf is no larger than the next page size, so a
    /// larger page never shares a leaf's region with base pages.
    const MAX_LEAF_WIDTH: u32 = if Self::PLAIN {
        let gap = if Self::G::SIZES.len() > 1 {
            Self::G::SIZES[1].shift() - Self::PAGE.shift()
        } else {
            Self::BITS - Self::PAGE.shift()
        };
        if gap < LEAF_WIDTHS as u32 - 1 { gap } else { LEAF_WIDTHS as u32 - 1 }
    } else {
        1
    };

    /// The position above the digit of the largest leaf of base pages. No digit of a node above base pages begins below it.
    const LEAF_TOP: u32 = Self::BASE + Self::MAX_LEAF_WIDTH;

    /// Whether nodes grow and shrink with the number of their entries.
    const ADAPTIVE: bool = Self::P::ADAPTIVE;

    /// The largest logarithm of a node's slots.
    const WIDEST: u32 = if Self::ADAPTIVE && Self::L::GROWN_WIDTH < Self::P::WIDTH {
        Self::L::GROWN_WIDTH
    } else {
        Self::P::WIDTH
    };

    /// The largest logarithm of the slots of a node that a range of neighbours fills at once. Such a node may be wider than
    /// [`WIDEST`](Self::WIDEST), because several nodes of that size share a page of the storage.
    const RANGE_WIDTH: u32 =
        if Self::WIDEST + 2 < Self::P::WIDTH { Self::WIDEST + 2 } else { Self::P::WIDTH };

    /// The words of a leaf's tag.
    const TAG: usize = if Self::L::MAX_TAG < 2 {
        Self::L::MAX_TAG
    } else if Self::BITS <= <Self::W as Word>::BITS && matches!(Self::G::HALF, Half::Lower)
        || <Self::W as Word>::BITS >= usize::BITS
    {
        1
    } else {
        2
    };

    /// Whether a tag holds all bits of an address.
    const TAG_IS_WHOLE: bool = Self::TAG * <Self::W as Word>::BITS as usize >= usize::BITS as usize;

    /// The words of a node by kind.
    const WORDS: [usize; KINDS] = {
        let mut words = [0; KINDS];
        let mut width = 1;
        while width <= MAX_WIDTH {
            let least = Self::L::FULL_WIDTH as usize;
            words[inner_kind(width as u32)] = Self::L::WORDS << if width < least { least } else { width };
            width += 1;
        }
        let mut width = 0;
        while width < LEAF_WIDTHS as u32 {
            let room = if width < Self::ROOM_WIDTH { Self::ROOM_WIDTH } else { width };
            words[leaf_kind(width)] = Self::TAG + ((1 + Self::F::EXTRA) << room);
            width += 1;
        }
        words
    };

    /// Whether the PTEs of a leaf are consecutive words, and no PTE depends on its neighbour.
    const IN_A_ROW: bool = !Self::F::PAIRED && Self::F::EXTRA == 0;

    /// Returns the number of words of the node at an edge. Every kind has an element in [`WORDS`](Self::WORDS).
    #[inline(always)]
    fn words(edge: Edge) -> usize {
        Self::WORDS.get(kind(edge)).map_or(0, |&words| words)
    }

    /// Returns the bytes of memory that an indexing node of `2^width` slots takes. The choice of node sizes minimises their sum.
    #[inline(always)]
    fn cost(width: u32) -> isize {
        ((Self::L::WORDS << width) * <Self::W as Word>::BYTES + Self::L::BESIDE) as isize
    }

    /// Returns the logarithm of the number of bytes that a leaf of pages of `2^page` bytes covers: a page, or a pair.
    #[inline(always)]
    fn unit(page: u32) -> u32 {
        if Self::PAIRS { page + 1 } else { page }
    }

    /// Returns the position in its leaf of the PTE with this index. Before it are the tag, the PTEs with lower indexes, and the
    /// other words of the pairs before its own.
    #[inline(always)]
    fn pte(index: usize) -> usize {
        Self::TAG + index + (index & !1) * Self::F::EXTRA
    }

    /// Returns the position in its leaf of the PTE of the page at `at`. If only one half of a pair is mapped, its PTE has the
    /// position that it has beside the other.
    #[inline(always)]
    fn pte_of(leaf: Edge, at: usize) -> usize {
        Self::pte(digit(at, leaf.shift, leaf.width.max(Self::ROOM_WIDTH)))
    }

    /// Returns the key of an address: its significant bits. In keys, a space of two halves has no hole, and one of the upper half begins at 0.
    #[inline(always)]
    fn key(at: usize) -> usize {
        if matches!(Self::G::HALF, Half::Lower) { at } else { at & low(Self::BITS) }
    }

    /// Returns what a walk for an address compares: the address if leaves have tags, which are addresses, and otherwise its key.
    #[inline(always)]
    fn sought(at: usize) -> usize {
        if Self::TAG == 0 { Self::key(at) } else { at }
    }

    /// Returns the address of a key.
    #[inline(always)]
    fn address(key: usize) -> usize {
        match Self::G::HALF {
            Half::Lower => key,
            Half::Upper => key | !low(Self::BITS),
            Half::Both => {
                let spare = usize::BITS - Self::BITS;
                (((key << spare) as isize) >> spare) as usize
            }
        }
    }

    /// Returns the keys of a range of pages.
    #[inline(always)]
    fn span(pages: Pages) -> Span {
        let key = |page: Vpn| Self::key(page.address(Self::PAGE).get());
        Span { first: key(pages.first()), last: key(pages.last()) }
    }

    /// Decodes a PTE.
    #[inline(always)]
    fn leaf(word: Self::W, shift: u32, at: usize) -> Leaf {
        let size = PageSize::from_shift(shift).unwrap_or(Self::PAGE);
        Leaf {
            at: VirtAddr::new(Self::address(at) & !size.mask()),
            size,
            frame: Self::F::frame(word, size),
            attr: Self::F::attr(word, true),
        }
    }

    /// Decodes a word of a leaf: a PTE, a mark, or nothing.
    #[inline(always)]
    fn entry(word: Self::W, shift: u32, at: usize) -> Entry {
        entry_of::<Self::F>(word, |word| Self::leaf(word, shift, at))
    }
}

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Shape
    for Gpt<'_, G, F, N, L, P>
{
    type W = F::Word;
    type G = G;
    type F = F;
    type N = N;
    type L = L;
    type P = P;

    #[inline(always)]
    fn nodes(&self) -> &N {
        self.nodes
    }

    #[inline(always)]
    fn root(&self) -> &L::Root {
        &self.root
    }

    #[inline(always)]
    fn tally(&self) -> &Tally {
        &self.tally
    }
}
