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

/// The decoded contents of a slot that is not empty: a link to an indexing node or a leaf.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The node.
    pub(super) node: NodeAddr,
    /// The position of the lowest bit of the node's digit.
    pub(super) shift: u32,
    /// The number of bits of the digit: the node has `2^width` slots.
    pub(super) width: u32,
    pub(super) holds: Holds,
}

/// An edge has no padding; see [`Holds`].
const _: () = assert!(size_of::<Edge>() == 2 * size_of::<usize>() + 2 * size_of::<u32>());

impl Edge {
    /// Tells whether the node is a leaf: its slots are PTEs.
    #[inline(always)]
    pub(super) const fn is_leaf(self) -> bool {
        matches!(self.holds, Holds::Ptes)
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
    pub(super) const fn shares(self, child: &Self) -> bool {
        child.is_leaf() && child.top() > self.shift
    }

    /// Returns the slots that the page in `slot` occupies: only `slot`, unless `child` is a leaf of pages larger than a slot.
    #[inline(always)]
    pub(super) const fn run(self, slot: usize, child: &Self) -> Range<usize> {
        let bits = if self.shares(child) { child.shift.saturating_sub(self.shift) } else { 0 };
        let first = slot >> bits << bits;
        first..first + (1 << bits)
    }
}

/// The position of the PTE of an address, which a walk has found.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct PtePosition {
    /// The link to the leaf.
    pub(super) leaf: Edge,
    pub(super) index: usize,
}

/// The layout of a slot: [`OneWord`], [`Kseg0`](super::Kseg0) or [`TwoWords`](super::TwoWords).
pub trait Layout<N: Nodes>: Debug + 'static + sealed::Sealed {
    /// Words of a slot.
    #[doc(hidden)]
    const WORDS: usize;
    /// The most words of a leaf's tag. Without a tag a slot holds a [`Base`](Self::Base), and a leaf is a pair of pages.
    #[doc(hidden)]
    const MAX_TAG: usize = 2;
    /// Whether a leaf is one TLB entry: a pair of pages of any size. Then a page larger than a slot occupies several slots.
    /// Otherwise a larger page has a leaf of its own and a slot of its size, and the size of a leaf of base pages with a tag follows
    /// the number of neighbours that are mapped.
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
    fn cells(root: &Self::Root) -> &[<N::Word as Word>::Cell];

    /// What a slot holds of the first key of its node's region: nothing, if leaves have tags.
    #[doc(hidden)]
    type Base: Copy + Debug + Default + PartialEq;

    /// Decodes a slot; `None` if it is empty. `word(k)` loads word `k` of the slot.
    #[doc(hidden)]
    fn edge(word: impl Fn(usize) -> N::Word) -> Option<(Edge, Self::Base)>;

    /// Returns an edge whose link does not say how large the leaf's pages are, with what the first word of the leaf's tag says.
    #[doc(hidden)]
    #[inline(always)]
    fn sized(edge: Edge, _tag: impl Fn() -> N::Word) -> Edge {
        edge
    }

    /// Encodes an edge.
    #[doc(hidden)]
    fn words(edge: Edge, base: Self::Base) -> [N::Word; SLOT];

    /// Returns what a slot holds of a region's first key.
    #[doc(hidden)]
    fn base(key: usize) -> Self::Base;

    /// Returns the first key of a region, if a slot holds it.
    #[doc(hidden)]
    #[inline(always)]
    fn known(_base: Self::Base) -> Option<usize> {
        None
    }

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
    /// this walk. `tag` is the number of words of a leaf's tag; without a tag, `at` is a key.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the only writer, and the root slot is one of a table whose nodes are in `nodes`.
    #[doc(hidden)]
    unsafe fn seek(nodes: &N, root: &Self::Root, tag: usize, at: usize) -> Option<PtePosition>;
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
    const MAX_WIDTH: u32 = <N::Word as Link>::MAX_WIDTH;
    const GROWN_WIDTH: u32 = <N::Word as Link>::GROWN_WIDTH;
    const REACH: LinkRange = <N::Word as Link>::REACH;
    const BESIDE: usize = size_of::<crate::nodes::Record>();

    type Root = <N::Word as Word>::Cell;
    type Base = ();

    #[inline(always)]
    fn cells(root: &Self::Root) -> &[<N::Word as Word>::Cell] {
        core::slice::from_ref(root)
    }

    #[inline(always)]
    fn edge(word: impl Fn(usize) -> N::Word) -> Option<(Edge, ())> {
        let link = word(0);
        if link == N::Word::ZERO {
            return None;
        }
        Some((edge(link), ()))
    }

    #[inline(always)]
    fn words(edge: Edge, (): ()) -> [N::Word; SLOT] {
        let mut words = [N::Word::ZERO; SLOT];
        words[0] = N::Word::new(edge.node, edge.shift, edge.width, edge.is_leaf());
        words
    }

    #[inline(always)]
    fn base(_key: usize) {}

    #[inline(always)]
    unsafe fn seek(nodes: &N, root: &Self::Root, tag: usize, at: usize) -> Option<PtePosition> {
        // SAFETY: the root is a field of a live table. By this function's contract the caller is pinned, or the writer, so a node
        // to which a loaded link leads is not freed during the walk. The index is below the node's slots, and a leaf has its tag
        // words.
        unsafe {
            let mut link = N::Word::follow(root);
            while link.is_inner() {
                link = nodes.word(link.node(), link.index(at)).follow();
            }
            if link == N::Word::ZERO {
                return None;
            }
            let leaf = link.node();
            let mut base = nodes.word(leaf, 0).follow().to_usize();
            if tag == 2 {
                base |= nodes.word(leaf, 1).follow().to_usize() << (usize::BITS / 2);
            }
            link.covers(base, at).then(|| PtePosition { leaf: edge(link), index: link.index(at) })
        }
    }
}

/// Decodes a link that is not zero.
#[inline(always)]
fn edge<W: Link>(link: W) -> Edge {
    Edge { node: link.node(), shift: link.shift(), width: link.width(), holds: Holds::new(!link.is_inner()) }
}
