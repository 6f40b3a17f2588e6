//! The layout [`Kseg0`], for MIPS32 refill handlers.

use core::marker::PhantomData;

use super::guard::pair_covers;
use super::layout::{Edge, Holds, Layout, PtePosition, SLOT};
use super::node_size::{Adaptive, Fixed, NodeSize};
use crate::fields::Fields as _;
use crate::nodes::{LinkRange, NodeAddr, Nodes};
use crate::word::Word;

/// The layout of a guarded table that a MIPS32 refill handler walks in few instructions. Nodes are in kseg0, and a leaf is a TLB
/// entry. As in [`OneWord`](super::OneWord), CPUs may walk the table while the writer changes it.
///
/// Addresses have 32 bits. Pages have the sizes of PageMask: 4 KiB, 16 KiB and so on to 64 MiB, each four times the one before. `P`
/// is the choice of node sizes: [`Fixed<1>`](Fixed) to `Fixed<8>`, or [`Adaptive`].
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
/// An inner link leads to an indexing node. Node addresses are physical, below 512 MiB; bit 31 makes an inner link an address in
/// kseg0. A lookup follows links while they are negative, and then compares the leaf's tag with the Context register. It needs no
/// mask and no addition:
///
/// - *Fixed*: the shift is in the lowest bits, which are free because of the node's alignment. A shift instruction reads it there, and
///   the instruction that inserts the index overwrites it. A node costs three instructions: shift, insert, load. Every node has the
///   memory of `2^W` slots. The digit of the topmost node may be narrower: the bits above the address are zero.
/// - *Adaptive*: the link holds two shift counts. A shift to the left drops the bits above the digit, and a shift to the right the
///   bits below. The address has 21 bits, so nodes are in the first 8 MiB. Nodes of two and four slots have these links in tables of
///   a fixed size, too, because their alignment leaves no room for a shift.
///
/// The comparison of the tag is the check of all guards. An address may lead to the leaf of another address; it is equal to the tag
/// only if the leaf maps it.
///
/// # Larger pages
///
/// A pair of larger pages is a leaf as well. `size` is the logarithm of the page size minus 12 (the logarithm of 4 KiB), and the
/// pair's number is the number of its first 8 KiB. The tag of a pair of 4 KiB pages is equal to Context, and no other tag is. So a
/// handler that serves only 4 KiB pages has no cost for larger pages. A handler that serves both shifts `size` bits out of tag and
/// Context and compares again.
///
/// A larger page does not change the position of an index field, because a handler that inserts `W` bits can use no node of fewer
/// slots, and if `W` is a multiple of four every shift must be the same modulo four. So all slots that a page covers hold the same
/// link. This costs a handler nothing, and one store in the leaf still maps, protects or unmaps the page.
///
/// ```text
///   G8 node, slots of 8 KiB    | link | link | link | link |  0  | link |  0  |  0  |
///                                  |     |      |      |            `--> | tag 4K  | PTE | 0 |
///                                  `-----+---.  `------+-> | tag 16K | 0   | PTE |
///                                            `-----------> | tag 16K | PTE | 0   |     (never two: one leaf, both PTEs)
/// ```
///
/// If the PTE of one half of a pair is valid in the pair's leaf, all slots of that half lead to the leaf. If it is not, they may
/// lead to smaller pages. A change of one half does not change the slots of the other. A node whose digit has the bit in which the
/// halves differ has slots for each half. If no node has that bit, one slot covers both halves, and its leaf maps only one of them.
///
/// A map or resize that changes more than one slot of a node builds the node anew and links it with one store, after the break if
/// pages change their size. An unmap clears the PTE first, and then the slots.
#[derive(Debug)]
pub struct Kseg0<P>(PhantomData<fn() -> P>);

/// The sign bit of a link, which is set if the link leads to an indexing node.
const INNER: u32 = 1 << 31;
/// The bit that is set in a link to a leaf.
const LEAF: u32 = 1;
/// The position of the number of a 4 KiB page in an address.
const PAGE: u32 = 12;
/// The position of the number of an 8 KiB pair in an address.
const PAIR: u32 = PAGE + 1;
/// The position of that number in a tag.
const NUMBER: u32 = 4;
/// The bits of a tag that hold the size.
const SIZE: u32 = (1 << NUMBER) - 1;
/// The least width of a node in whose address enough low bits are zero to hold a shift.
const ALIGNED: u32 = 3;

/// The encoding of a link to an indexing node: the node's address and its digit.
pub trait Digits: NodeSize {
    /// The largest logarithm of a node's slots.
    #[doc(hidden)]
    const MOST: u32;
    /// The logarithm of the number of slots for which every node has memory.
    #[doc(hidden)]
    const FULL_WIDTH: u32;
    /// The largest logarithm to which nodes grow.
    #[doc(hidden)]
    const GROWN_WIDTH: u32;
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
    const FULL_WIDTH: u32 = if W < ALIGNED { Adaptive::FULL_WIDTH } else { W };
    const GROWN_WIDTH: u32 = W;
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
        Edge { node: NodeAddr::new(node as usize), shift, width: W.min(32 - shift), holds: Holds::Links }
    }
}

impl Digits for Adaptive {
    const MOST: u32 = 8;
    const FULL_WIDTH: u32 = 0;
    const GROWN_WIDTH: u32 = 4;
    const REACH: LinkRange = LinkRange::unsigned(23);

    #[inline(always)]
    fn link(node: NodeAddr, shift: u32, width: u32) -> u32 {
        INNER.with((node.get() as u32 / 4) << 10).with((32 - width) << 5).with(32 - shift - width)
    }

    #[inline(always)]
    fn edge(link: u32) -> Edge {
        let (top, width) = (32 - (link & 31), 32 - (link >> 5 & 31));
        let node = (link & !INNER) >> 10 << 2;
        Edge { node: NodeAddr::new(node as usize), shift: top - width, width, holds: Holds::Links }
    }
}

/// Returns the edge that leads to a leaf with this tag.
#[inline(always)]
fn leaf(node: NodeAddr, tag: u32) -> Edge {
    Edge { node, shift: PAGE + (tag & SIZE), width: 1, holds: Holds::Ptes }
}

impl<N: Nodes<Word = u32>, P: Digits> Layout<N> for Kseg0<P> {
    const WORDS: usize = 1;
    const PAIRS: bool = true;
    const FULL_WIDTH: u32 = P::FULL_WIDTH;
    const MAX_WIDTH: u32 = P::MOST;
    const GROWN_WIDTH: u32 = P::GROWN_WIDTH;
    const REACH: LinkRange = P::REACH;
    const BESIDE: usize = size_of::<crate::nodes::Record>();

    type Root = <u32 as Word>::Cell;
    type Base = ();

    #[inline(always)]
    fn cells(root: &Self::Root) -> &[<u32 as Word>::Cell] {
        core::slice::from_ref(root)
    }

    #[inline(always)]
    fn edge(word: impl Fn(usize) -> u32) -> Option<(Edge, ())> {
        match word(0) {
            0 => None,
            link if link & INNER != 0 => Some((P::edge(link), ())),
            link => Some((leaf(NodeAddr::new((link & !LEAF) as usize), 0), ())),
        }
    }

    #[inline(always)]
    fn sized(edge: Edge, tag: impl Fn() -> u32) -> Edge {
        if edge.is_leaf() { leaf(edge.node, tag()) } else { edge }
    }

    #[inline(always)]
    fn base(_key: usize) {}

    #[inline(always)]
    fn tag(base: usize, leaf: Edge) -> usize {
        (base >> PAIR << NUMBER).with((leaf.shift - PAGE) as usize)
    }

    #[inline(always)]
    fn tagged(tag: usize) -> usize {
        tag >> NUMBER << PAIR
    }

    #[inline(always)]
    fn words(edge: Edge, (): ()) -> [u32; SLOT] {
        let mut words = [0; SLOT];
        words[0] = if edge.is_leaf() {
            (edge.node.get() as u32).with(LEAF)
        } else {
            P::link(edge.node, edge.shift, edge.width)
        };
        words
    }

    #[inline(always)]
    unsafe fn seek(nodes: &N, root: &Self::Root, _tag: usize, at: usize) -> Option<PtePosition> {
        // SAFETY: the root is a field of a live table. By this function's contract the caller is pinned, or the writer, so a node
        // to which a loaded link leads is not freed during the walk. The index is below the node's slots, and a leaf has its tag.
        unsafe {
            let mut link = u32::follow(root);
            while link & INNER != 0 {
                let edge = P::edge(link);
                link = nodes.word(edge.node, edge.index(at)).follow();
            }
            if link == 0 {
                return None;
            }
            let node = NodeAddr::new((link & !LEAF) as usize);
            let tag = nodes.word(node, 0).follow();
            let covers = pair_covers(at >> PAIR, (tag >> NUMBER) as usize, tag & SIZE);
            let leaf = leaf(node, tag);
            covers.then_some(PtePosition { leaf, index: at >> leaf.shift & 1 })
        }
    }
}
