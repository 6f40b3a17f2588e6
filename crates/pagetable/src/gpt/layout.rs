//! What a slot is: the one place where the two layouts differ.

use core::fmt::Debug;

use super::bits::{agree, digit, low};
use super::link::Link;
use crate::nodes::{NodeAddr, Nodes};
use crate::word::Word;
use crate::{Mode, Solo};

/// The most words of a slot.
pub(super) const SLOT: usize = 4;

/// What a slot says: nothing, or the way to an indexing node or a leaf.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The node, zero if the slot is empty.
    pub(super) node: NodeAddr,
    /// The position of the lowest bit of the node's digit.
    pub(super) shift: u32,
    /// The bits of the digit: the node has `2^width` slots.
    pub(super) width: u32,
    /// Whether the slots are PTEs.
    pub(super) leaf: bool,
    /// The first address that the node covers, where the layout keeps guards in the slots.
    pub(super) base: usize,
}

impl Edge {
    pub(super) const EMPTY: Self = Self { node: NodeAddr::new(0), shift: 0, width: 0, leaf: false, base: 0 };

    #[inline(always)]
    pub(super) const fn is_empty(self) -> bool {
        self.node.get() == 0
    }

    /// Returns the position above the digit: the node covers `2^top` bytes.
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
}

/// Where a walk found the PTE of an address.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub(super) leaf: NodeAddr,
    pub(super) shift: u32,
    pub(super) width: u32,
    pub(super) index: usize,
}

impl Found {
    /// Returns the way to the leaf.
    pub(super) const fn edge(self) -> Edge {
        Edge { node: self.leaf, shift: self.shift, width: self.width, leaf: true, base: 0 }
    }
}

/// The layout of a slot: [`Compact`] or [`Paper`].
pub trait Layout<N: Nodes>: Debug + 'static + sealed::Sealed {
    /// Words of a slot.
    #[doc(hidden)]
    const WORDS: usize;
    /// Whether leaves begin with a tag, and hold as many neighbours as is worth it. Otherwise guards stand in the
    /// slots, and a leaf is a pair of pages.
    #[doc(hidden)]
    const TAGGED: bool;
    /// The largest logarithm of a node's slots.
    #[doc(hidden)]
    const MAX_WIDTH: u32;
    /// The largest logarithm of a node's slots to which nodes grow by themselves.
    #[doc(hidden)]
    const GROWN: u32;
    /// The highest node address that a slot can hold.
    const REACH: usize;
    /// Bytes that storage takes for a node beside its words.
    #[doc(hidden)]
    const BESIDE: usize;

    /// The root slot, as the handle holds it.
    #[doc(hidden)]
    type Root: Debug + Send + Sync;

    /// Returns an empty root slot.
    #[doc(hidden)]
    fn root() -> Self::Root;

    /// Returns the root slot's cells.
    #[doc(hidden)]
    fn cells(root: &Self::Root) -> *const <N::Word as Word>::Cell;

    /// Decodes a slot: `word(k)` loads its word `k`. The slot covers `2^ceiling` bytes, of which `at` is one.
    #[doc(hidden)]
    fn edge(word: impl Fn(usize) -> N::Word, ceiling: u32, at: usize) -> Edge;

    /// Encodes an edge for a slot that covers `2^ceiling` bytes.
    #[doc(hidden)]
    fn words(edge: Edge, ceiling: u32) -> [N::Word; SLOT];

    /// Walks to the PTE of `at`. The one walk of readers. `bits` is the width of an address, `tag` the words of a
    /// leaf's tag.
    ///
    /// # Safety
    ///
    /// The caller is pinned, or the writer.
    #[doc(hidden)]
    unsafe fn seek(nodes: &N, root: &Self::Root, bits: u32, tag: usize, at: usize) -> Option<Found>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Compact {}
    impl Sealed for super::Paper {}
}

/// One word a slot; the guards are checked together, against the tag of the leaf. For any number of CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Compact;

/// The 16-byte slots of Elphinstone et al. 3.2 in 32-bit words: a 64-bit guard and a 64-bit pointer. A slot is not
/// written with one store, so it is for one CPU: the storage must be in [`Solo`] mode.
///
/// ```text
///   word 0                     word 1           word 2           word 3
///  +----------------+-------+----------------+----------------+----------------------+
///  | guard, low 26  | log2  | guard, high    | node address   | leaf | width | shift |
///  +----------------+-------+----------------+----------------+----------------------+
/// ```
///
/// The guard's bits stand where they stand in the address; those above it, which the nodes before have resolved, are
/// zero. The low six bits (addresses of pages have no use for them) say where the guard ends; its length is what
/// the walk has left before, less that. The last bits of the pointer tell the digit that follows.
#[derive(Clone, Copy, Debug)]
pub struct Paper;

impl<N: Nodes<Word: Link>> Layout<N> for Compact {
    const WORDS: usize = 1;
    const TAGGED: bool = true;
    const MAX_WIDTH: u32 = <N::Word as Link>::MAX_WIDTH;
    const GROWN: u32 = <N::Word as Link>::GROWN;
    const REACH: usize = <N::Word as Link>::REACH;
    const BESIDE: usize = size_of::<crate::nodes::Record>();

    type Root = <N::Word as Word>::Cell;

    fn root() -> Self::Root {
        N::Word::ZERO.cell()
    }

    #[inline(always)]
    fn cells(root: &Self::Root) -> *const <N::Word as Word>::Cell {
        root
    }

    #[inline(always)]
    fn edge(word: impl Fn(usize) -> N::Word, _ceiling: u32, _at: usize) -> Edge {
        let link = word(0);
        if link == N::Word::ZERO {
            return Edge::EMPTY;
        }
        Edge { node: link.node(), shift: link.shift(), width: link.width(), leaf: !link.is_inner(), base: 0 }
    }

    #[inline(always)]
    fn words(edge: Edge, _ceiling: u32) -> [N::Word; SLOT] {
        let mut words = [N::Word::ZERO; SLOT];
        if !edge.is_empty() {
            words[0] = N::Word::new(edge.node, edge.shift, edge.width, edge.leaf);
        }
        words
    }

    #[inline(always)]
    unsafe fn seek(nodes: &N, root: &Self::Root, _bits: u32, tag: usize, at: usize) -> Option<Found> {
        // SAFETY: the root is live. A node that a link leads to is live or retired, and pinned walkers are waited
        // for; the index is below the node's slots, and a leaf has its tag words.
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

/// The bits of a guard's word that say where it ends.
const END: usize = 63;
const LEAF: u32 = 1 << 16;

#[cfg(target_pointer_width = "64")]
impl<N: Nodes<Word = u32, Mode = Solo>> Layout<N> for Paper {
    const WORDS: usize = 4;
    const TAGGED: bool = false;
    const MAX_WIDTH: u32 = super::MAX_WIDTH as u32;
    const GROWN: u32 = 8;
    const REACH: usize = u32::MAX as usize;
    const BESIDE: usize = 0;

    type Root = [<u32 as Word>::Cell; 4];

    fn root() -> Self::Root {
        [0u32; 4].map(Word::cell)
    }

    #[inline(always)]
    fn cells(root: &Self::Root) -> *const <u32 as Word>::Cell {
        root.as_ptr()
    }

    #[inline(always)]
    fn edge(word: impl Fn(usize) -> u32, ceiling: u32, at: usize) -> Edge {
        let node = word(2);
        if node == 0 {
            return Edge::EMPTY;
        }
        let digit = word(3);
        let (shift, width) = (digit & 0xff, digit >> 8 & 0xff);
        let guard = (word(1) as usize) << 32 | word(0) as usize;
        Edge {
            node: NodeAddr::new(node as usize),
            shift,
            width,
            leaf: digit & LEAF != 0,
            base: (at & !low(ceiling) | guard & low(ceiling)) & !low(shift + width),
        }
    }

    #[inline(always)]
    fn words(edge: Edge, ceiling: u32) -> [u32; SLOT] {
        if edge.is_empty() {
            return [0; SLOT];
        }
        let guard = edge.base & low(ceiling) & !low(edge.top()) | edge.top() as usize & END;
        let leaf = if edge.leaf { LEAF } else { 0 };
        [guard as u32, (guard >> 32) as u32, edge.node.get() as u32, edge.shift | edge.width << 8 | leaf]
    }

    #[inline(always)]
    unsafe fn seek(nodes: &N, root: &Self::Root, bits: u32, _tag: usize, at: usize) -> Option<Found> {
        let cells = <Self as Layout<N>>::cells(root);
        // SAFETY: the root is live and has four cells; the slots below are within their nodes.
        let mut edge = Self::step(|word| unsafe { Solo::read(cells.add(word)) }, bits, at)?;
        while !edge.leaf {
            let slot = edge.index(at) * SLOT;
            // SAFETY: a linked node is live, and the slot within it.
            edge = Self::step(|word| unsafe { nodes.follow(edge.node, slot + word) }, edge.shift, at)?;
        }
        Some(Found { leaf: edge.node, shift: edge.shift, width: edge.width, index: edge.index(at) })
    }
}

#[cfg(target_pointer_width = "64")]
impl Paper {
    /// Takes a slot's way for `at`, of which `left` bits are not resolved yet, if its guard is a prefix of these.
    #[inline(always)]
    fn step(word: impl Fn(usize) -> u32, left: u32, at: usize) -> Option<Edge> {
        let node = word(2);
        if node == 0 {
            return None;
        }
        let low_guard = word(0) as usize;
        let guard = (word(1) as usize) << 32 | low_guard;
        let digit = word(3);
        let (shift, width) = (digit & 0xff, digit >> 8 & 0xff);
        // Six bits cannot say 64, where a guard ends that has no bits at all before the whole address.
        let end = if low_guard & END == 0 { usize::BITS } else { (low_guard & END) as u32 };
        agree(at & low(left), guard, end).then_some(Edge {
            node: NodeAddr::new(node as usize),
            shift,
            width,
            leaf: digit & LEAF != 0,
            base: 0,
        })
    }
}
