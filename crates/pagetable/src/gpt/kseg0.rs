//! The layout [`Kseg0`], for MIPS32 refill handlers.

use core::marker::PhantomData;

use super::layout::{Edge, Found, Layout, SLOT};
use super::node_size::{Adaptive, Fixed, NodeSize};
use crate::fields::Fields as _;
use crate::nodes::{LinkRange, NodeAddr, Nodes};
use crate::word::Word;

/// The layout of a guarded table that a MIPS32 refill handler walks in few instructions: nodes in kseg0, leaves that are TLB entries.
///
/// Addresses have 32 bits, and pages 4 KiB to 64 MiB in steps of four, as PageMask has them. `P` is the table's policy: [`Fixed<1>`](Fixed)
/// to `Fixed<8>`, or [`Adaptive`].
///
/// ```text
///  inner link, Fixed<W>      31                            W+2             4        0
///                           +---+----------------------------+--------------+----------+
///                           | 1 |  node address, aligned to its 2^(W+2) bytes   shift  |
///                           +---+----------------------------+--------------+----------+
///  inner link, Adaptive      31  30                          10  9         5  4        0
///   and Fixed<1>, Fixed<2>  +---+------------------------------+------------+----------+
///                           | 1 |  node address / 4            | 32 - width | 32 - top |
///                           +---+------------------------------+------------+----------+
///  link to a leaf            31                                             1  0
///                           +---+----------------------------------------------+---+
///                           | 0 |  leaf address                                | 1 |
///                           +---+----------------------------------------------+---+
///  leaf                     | tag | EntryLo0 | EntryLo1 |
///
///  tag                       31        23  22                       4  3        0
///                           +------------+----------------------------+----------+
///                           |     0      |  number of the 8 KiB pair  |   size   |
///                           +------------+----------------------------+----------+
/// ```
///
/// Node addresses are physical, below 512 MiB; bit 31 makes an inner link an address in kseg0. A lookup goes on while the link is
/// negative, and then compares the leaf's tag with the Context register. Nothing has to be masked or added:
///
/// - *Fixed*: the shift is in the lowest bits, which the node's alignment leaves free, where a shift instruction reads it; inserting the
///   index overwrites it. A node costs three instructions: shift, insert, load. Every node has the memory of `2^W` slots. The digit of
///   the topmost node may be narrower: zeros are shifted in from above the address.
/// - *Adaptive*: two counts cut the digit out: one shift to the left drops the bits above it, one to the right the bits below. The
///   address has 21 bits: nodes lie in the first 8 MiB. Nodes of two and four slots have these links in tables of a fixed size, too,
///   because their alignment leaves no room for a shift.
///
/// The comparison of the tag is the check of all guards: every address leads to some leaf, and matches its tag only if the leaf is its
/// own.
///
/// # Larger pages
///
/// A pair of larger pages is a leaf as well. `size` is the logarithm of its pages minus 12 (that of 4 KiB), and the pair's number is the
/// number of its first 8 KiB. The tag of a pair of 4 KiB pages is equal to Context, and no other tag ever is. So a handler that serves
/// 4 KiB pages alone pays nothing for larger pages. A handler that serves both shifts `size` bits out of tag and Context and compares
/// again.
///
/// The position of an index field does not change: a handler that inserts `W` bits can use no node of fewer slots, and where `W` is a
/// multiple of four every shift must be the same modulo four. So all slots that a page covers hold the same link. This costs a handler
/// nothing, and the leaf stays the one place where the page is mapped, protected and unmapped, by one store.
///
/// ```text
///   G8 node, slots of 8 KiB    | link | link | link | link |  0  | link |  0  |  0  |
///                                  |     |      |      |            `--> | tag 4K  | PTE | 0 |
///                                  `-----+---.  `------+-> | tag 16K | 0   | PTE |
///                                            `-----------> | tag 16K | PTE | 0   |     (never two: one leaf, both PTEs)
/// ```
///
/// If the PTE of one half of a pair is valid in the pair's leaf, all slots of that half lead to the leaf. If it is not, they may lead to
/// smaller pages. A change of one half does not move the other. A node at the bit that tells the halves apart is above them; where
/// there is none, the link of the leaf is in the slots of both halves, one of which is empty.
///
/// Maps and resizes that change more than one slot of a node build the node anew and link it with one store, after the break if pages
/// change their size. An unmap clears the PTE first, and then the slots.
#[derive(Debug)]
pub struct Kseg0<P>(PhantomData<fn() -> P>);

/// What the sign of a link says.
const INNER: u32 = 1 << 31;
/// What makes a leaf's address odd.
const LEAF: u32 = 1;
/// The position of a page's number in an address.
const PAGE: u32 = 12;
/// The position of a pair's number in an address, and in a tag.
const PAIR: u32 = PAGE + 1;
const NUMBER: u32 = 4;
/// What a tag has below the number.
const SIZE: u32 = (1 << NUMBER) - 1;
/// The least width of nodes whose alignment leaves room for a shift below their addresses.
const ALIGNED: u32 = 3;

/// How a link says where a node is and what its digit is.
pub trait Digits: NodeSize {
    /// The largest logarithm of a node's slots.
    #[doc(hidden)]
    const MOST: u32;
    /// The logarithm of the slots that every node has memory for.
    #[doc(hidden)]
    const FULL: u32;
    /// The largest logarithm to which nodes grow.
    #[doc(hidden)]
    const GROWN: u32;
    /// The node addresses that a link can hold.
    #[doc(hidden)]
    const REACH: LinkRange;

    /// Encodes an inner link.
    #[doc(hidden)]
    fn link(node: NodeAddr, shift: u32, width: u32) -> u32;

    /// Decodes an inner link.
    #[doc(hidden)]
    fn edge(link: u32) -> Edge;
}

impl<const W: u32> Digits for Fixed<W> {
    const MOST: u32 = {
        assert!(W <= Adaptive::MOST, "nodes have at most 256 slots");
        W
    };
    const FULL: u32 = if W < ALIGNED { Adaptive::FULL } else { W };
    const GROWN: u32 = W;
    const REACH: LinkRange = if W < ALIGNED { Adaptive::REACH } else { LinkRange::unsigned(29) };

    #[inline(always)]
    fn link(node: NodeAddr, shift: u32, width: u32) -> u32 {
        if W < ALIGNED {
            return Adaptive::link(node, shift, width);
        }
        INNER.with(node.get() as u32).with(shift)
    }

    #[inline(always)]
    fn edge(link: u32) -> Edge {
        if W < ALIGNED {
            return Adaptive::edge(link);
        }
        let shift = link & 31;
        let node = link & !INNER & !((4 << W) - 1);
        Edge { node: NodeAddr::new(node as usize), shift, width: W.min(32 - shift), leaf: false, base: 0 }
    }
}

impl Digits for Adaptive {
    const MOST: u32 = 8;
    const FULL: u32 = 0;
    const GROWN: u32 = 4;
    const REACH: LinkRange = LinkRange::unsigned(23);

    #[inline(always)]
    fn link(node: NodeAddr, shift: u32, width: u32) -> u32 {
        INNER.with((node.get() as u32 / 4) << 10).with((32 - width) << 5).with(32 - shift - width)
    }

    #[inline(always)]
    fn edge(link: u32) -> Edge {
        let (top, width) = (32 - (link & 31), 32 - (link >> 5 & 31));
        let node = (link & !INNER) >> 10 << 2;
        Edge { node: NodeAddr::new(node as usize), shift: top - width, width, leaf: false, base: 0 }
    }
}

impl<N: Nodes<Word = u32>, P: Digits> Layout<N> for Kseg0<P> {
    const WORDS: usize = 1;
    const TAGGED: bool = true;
    const PAIRS: bool = true;
    const FULL: u32 = P::FULL;
    const MAX_WIDTH: u32 = P::MOST;
    const GROWN: u32 = P::GROWN;
    const REACH: LinkRange = P::REACH;
    const BESIDE: usize = size_of::<crate::nodes::Record>();

    type Root = <u32 as Word>::Cell;

    #[inline(always)]
    fn cells(root: &Self::Root) -> *const <u32 as Word>::Cell {
        root
    }

    #[inline(always)]
    unsafe fn edge(nodes: &N, word: impl Fn(usize) -> u32, _ceiling: u32, _at: usize) -> Edge {
        match word(0) {
            0 => Edge::EMPTY,
            link if link & INNER != 0 => P::edge(link),
            link => {
                let node = NodeAddr::new((link & !LEAF) as usize);
                // SAFETY: this function's contract: a linked leaf is live, or held for pinned walkers, and has its tag.
                let tag = unsafe { nodes.follow(node, 0) };
                Edge { node, shift: PAGE + (tag & SIZE), width: 1, leaf: true, base: 0 }
            }
        }
    }

    #[inline(always)]
    fn tag(base: usize, leaf: Edge) -> usize {
        (base >> PAIR << NUMBER).with((leaf.shift - PAGE) as usize)
    }

    #[inline(always)]
    fn tagged(tag: usize) -> usize {
        tag >> NUMBER << PAIR
    }

    #[inline(always)]
    fn words(edge: Edge, _ceiling: u32) -> [u32; SLOT] {
        let mut words = [0; SLOT];
        if edge.leaf {
            words[0] = (edge.node.get() as u32).with(LEAF);
        } else if !edge.is_empty() {
            words[0] = P::link(edge.node, edge.shift, edge.width);
        }
        words
    }

    #[inline(always)]
    unsafe fn seek(nodes: &N, root: &Self::Root, _bits: u32, _tag: usize, at: usize) -> Option<Found> {
        // SAFETY: the root is live. A node that a link leads to is live or retired, and pinned walkers are waited
        // for; the index is below the node's slots, and a leaf has its tag.
        unsafe {
            let mut link = u32::follow(root);
            while link & INNER != 0 {
                let edge = P::edge(link);
                link = nodes.follow(edge.node, edge.index(at));
            }
            if link == 0 {
                return None;
            }
            let leaf = NodeAddr::new((link & !LEAF) as usize);
            let tag = nodes.follow(leaf, 0);
            let (size, number) = (tag & SIZE, (tag >> NUMBER) as usize);
            let (shift, own) = (PAGE + size, (at >> PAIR ^ number) >> size == 0);
            own.then_some(Found { leaf, shift, width: 1, index: at >> shift & 1 })
        }
    }
}
