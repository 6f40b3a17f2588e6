//! The layout of a slot, by which the three guarded tables differ: the trait [`Layout`], and the layout [`OneWord`].

use core::fmt::Debug;
use core::ops::Range;

use super::guard::digit;
use super::link::Link;
use crate::nodes::{LinkRange, NodeAddr, Nodes};
use crate::word::Word;

/// The most words of a slot.
pub(super) const SLOT: usize = 4;

/// What the slots of a node are.
///
/// It is as wide as an address, so that an [`Edge`] has no padding. The compiler copies seven bytes of padding in two pieces that
/// overlap, and a CPU that loads pieces it has just stored may wait until the stores have reached its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Holds {
    Links,
    Ptes,
}

impl Holds {
    #[inline(always)]
    pub(super) const fn new(is_leaf: bool) -> Self {
        if is_leaf { Self::Ptes } else { Self::Links }
    }
}

/// The decoded contents of a slot: a link to an indexing node or a leaf, or nothing.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The node, zero if the slot is empty.
    pub(super) node: NodeAddr,
    /// The position of the lowest bit of the node's digit.
    pub(super) shift: u32,
    /// The number of bits of the digit: the node has `2^width` slots.
    pub(super) width: u32,
    pub(super) holds: Holds,
    /// The first address that the node covers, if the layout stores guards in the slots; otherwise zero.
    pub(super) base: usize,
}

/// An edge has no padding; see [`Holds`].
const _: () = assert!(size_of::<Edge>() == 3 * size_of::<usize>() + 2 * size_of::<u32>());

impl Edge {
    pub(super) const EMPTY: Self =
        Self { node: NodeAddr::new(0), shift: 0, width: 0, holds: Holds::Links, base: 0 };

    /// Tells whether the node is a leaf: its slots are PTEs.
    #[inline(always)]
    pub(super) const fn is_leaf(self) -> bool {
        matches!(self.holds, Holds::Ptes)
    }

    #[inline(always)]
    pub(super) const fn is_empty(self) -> bool {
        self.node.get() == 0
    }

    /// Returns the position above the highest bit of the digit: the node covers `2^top` bytes.
    #[inline(always)]
    pub(super) const fn top(self) -> u32 {
        self.shift + self.width
    }

    /// Returns the slot of an address.
    #[inline(always)]
    pub(super) const fn index(self, at: usize) -> usize {
        digit(at, self.shift, self.width)
    }

    #[inline(always)]
    pub(super) const fn slots(self) -> usize {
        1 << self.width
    }

    /// Tells whether a child of this node is a leaf of pages larger than a slot. All slots that such a page covers hold its
    /// link.
    #[inline(always)]
    pub(super) const fn shares(self, child: Self) -> bool {
        child.is_leaf() && child.top() > self.shift
    }

    /// Returns the slots that the page in `slot` occupies: only `slot`, unless `child` is a leaf of pages larger than a slot.
    #[inline(always)]
    pub(super) const fn run(self, slot: usize, child: Self) -> Range<usize> {
        let bits = if self.shares(child) { child.shift.saturating_sub(self.shift) } else { 0 };
        let first = slot >> bits << bits;
        first..first + (1 << bits)
    }
}

/// The position of the PTE of an address, which a walk has found.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub(super) leaf: NodeAddr,
    pub(super) shift: u32,
    pub(super) width: u32,
    pub(super) index: usize,
}

impl Found {
    /// Returns the edge that leads to the leaf.
    pub(super) const fn edge(self) -> Edge {
        Edge { node: self.leaf, shift: self.shift, width: self.width, holds: Holds::Ptes, base: 0 }
    }
}

/// The layout of a slot: [`OneWord`], [`Kseg0`](super::Kseg0) or [`TwoWords`](super::TwoWords).
pub trait Layout<N: Nodes>: Debug + 'static + sealed::Sealed {
    /// Words of a slot.
    #[doc(hidden)]
    const WORDS: usize;
    /// Whether a leaf begins with a tag; then its size follows the number of neighbours that are mapped, unless
    /// [`PAIRS`](Self::PAIRS) says that it is a pair of pages. Otherwise each slot holds a guard, and a leaf is a pair of pages.
    #[doc(hidden)]
    const TAGGED: bool;
    /// Whether a leaf is one TLB entry: a pair of pages of any size. Then a page larger than a slot occupies several slots.
    /// Otherwise a larger page has a leaf of its own and a slot of its size.
    #[doc(hidden)]
    const PAIRS: bool = false;
    /// The logarithm of the number of slots for which every indexing node has memory, even if its digit is narrower.
    #[doc(hidden)]
    const FULL_WIDTH: u32 = 0;
    /// The largest logarithm of a node's slots.
    #[doc(hidden)]
    const MAX_WIDTH: u32;
    /// The largest logarithm of a node's slots to which an adaptive node grows.
    #[doc(hidden)]
    const GROWN_WIDTH: u32;
    /// The node addresses that a slot can hold.
    const REACH: LinkRange;
    /// The bytes that storage takes for a node in addition to its words.
    #[doc(hidden)]
    const BESIDE: usize;

    /// The root slot, as the handle holds it: empty by default.
    #[doc(hidden)]
    type Root: Debug + Default + Send + Sync;

    /// Returns the root slot's cells.
    #[doc(hidden)]
    fn cells(root: &Self::Root) -> *const <N::Word as Word>::Cell;

    /// Decodes a slot that covers `2^ceiling` bytes, among them the byte at `at`. `word(k)` loads word `k` of the slot.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer, and the slot is one of the table.
    #[doc(hidden)]
    unsafe fn edge(nodes: &N, word: impl Fn(usize) -> N::Word, ceiling: u32, at: usize) -> Edge;

    /// Encodes an edge for a slot that covers `2^ceiling` bytes.
    #[doc(hidden)]
    fn words(edge: Edge, ceiling: u32) -> [N::Word; SLOT];

    /// Encodes the tag of a leaf that begins at `base`. Only a layout whose leaves have tags uses the result.
    #[doc(hidden)]
    #[inline(always)]
    fn tag(base: usize, _leaf: Edge) -> usize {
        base
    }

    /// Returns the address at which a leaf begins, from its tag.
    #[doc(hidden)]
    #[inline(always)]
    fn tagged(tag: usize) -> usize {
        tag
    }

    /// Walks to the PTE of `at` and checks the guards on the path; returns `None` if one of them differs from `at`. All lookups use
    /// this walk. `bits` is the width of an address, `tag` the number of words of a leaf's tag.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer.
    #[doc(hidden)]
    unsafe fn seek(nodes: &N, root: &Self::Root, bits: u32, tag: usize, at: usize) -> Option<Found>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::OneWord {}
    impl<P> Sealed for crate::gpt::Kseg0<P> {}
    #[cfg(target_pointer_width = "64")]
    impl Sealed for crate::gpt::TwoWords {}
}

/// One word a slot: a link. A walk checks all guards at once, by the tag of the leaf. For any number of CPUs.
#[derive(Clone, Copy, Debug)]
pub struct OneWord;

impl<N: Nodes<Word: Link>> Layout<N> for OneWord {
    const WORDS: usize = 1;
    const TAGGED: bool = true;
    const MAX_WIDTH: u32 = <N::Word as Link>::MAX_WIDTH;
    const GROWN_WIDTH: u32 = <N::Word as Link>::GROWN_WIDTH;
    const REACH: LinkRange = <N::Word as Link>::REACH;
    const BESIDE: usize = size_of::<crate::nodes::Record>();

    type Root = <N::Word as Word>::Cell;

    #[inline(always)]
    fn cells(root: &Self::Root) -> *const <N::Word as Word>::Cell {
        root
    }

    #[inline(always)]
    unsafe fn edge(_nodes: &N, word: impl Fn(usize) -> N::Word, _ceiling: u32, _at: usize) -> Edge {
        let link = word(0);
        if link == N::Word::ZERO {
            return Edge::EMPTY;
        }
        Edge {
            node: link.node(),
            shift: link.shift(),
            width: link.width(),
            holds: Holds::new(!link.is_inner()),
            base: 0,
        }
    }

    #[inline(always)]
    fn words(edge: Edge, _ceiling: u32) -> [N::Word; SLOT] {
        let mut words = [N::Word::ZERO; SLOT];
        if !edge.is_empty() {
            words[0] = N::Word::new(edge.node, edge.shift, edge.width, edge.is_leaf());
        }
        words
    }

    #[inline(always)]
    unsafe fn seek(nodes: &N, root: &Self::Root, _bits: u32, tag: usize, at: usize) -> Option<Found> {
        // SAFETY: the root is a field of a live table. By this function's contract the caller is pinned, or the writer, so a node
        // to which a loaded link leads is not freed during the walk. The index is below the node's slots, and a leaf has its tag
        // words.
        unsafe {
            let mut link = N::Word::follow(root);
            while link.is_inner() {
                link = nodes.follow(link.node(), link.index(at));
            }
            if link == N::Word::ZERO {
                return None;
            }
            let leaf = link.node();
            let mut base = nodes.follow(leaf, 0).to_usize();
            if tag == 2 {
                base |= nodes.follow(leaf, 1).to_usize() << (usize::BITS / 2);
            }
            link.covers(base, at).then(|| Found {
                leaf,
                shift: link.shift(),
                width: link.width(),
                index: link.index(at),
            })
        }
    }
}
