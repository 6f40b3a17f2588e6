//! Links and leaves that a MIPS32 refill handler walks in few instructions: nodes in kseg0, leaves that are TLB entries.
//!
//! ```text
//!  inner link, Fixed<W>      31                            W+2             4        0
//!                           +---+----------------------------+--------------+----------+
//!                           | 1 |  node address, aligned to its 2^(W+2) bytes   shift  |
//!                           +---+----------------------------+--------------+----------+
//!  inner link, Adaptive      31  30                          10  9         5  4        0
//!                           +---+------------------------------+------------+----------+
//!                           | 1 |  node address / 4            | 32 - width | 32 - top |
//!                           +---+------------------------------+------------+----------+
//!  link to a leaf            31                                             1  0
//!                           +---+----------------------------------------------+---+
//!                           | 0 |  leaf address                                | 1 |
//!                           +---+----------------------------------------------+---+
//!  leaf                     | tag: the pair's address | EntryLo0 | EntryLo1 |
//! ```
//!
//! Node addresses are physical, below 512 MiB; bit 31 makes an inner link an address in kseg0. So the sign tells a walker
//! whether to go on, and nothing has to be masked or added:
//!
//! - *Fixed*: the shift lies where the node's alignment leaves bits free, lowest, where a shift instruction reads it, and
//!   inserting the digit overwrites it: shift, insert, load. All nodes have the memory of `2^W` slots, the topmost
//!   too, whose digit may be narrower: what lies above the address shifts in as zeroes.
//! - *Adaptive*: two counts cut the digit out, from above by a shift to the left, from below by one to the right. The
//!   address has 21 bits: nodes lie in the first 8 MiB.
//!
//! A leaf is one TLB entry: a pair of pages and its address, which is compared in full. That comparison is the guard,
//! checked once: every address takes some way through the nodes, never out of one, and matches the leaf at its end only
//! if that is its own.

use core::marker::PhantomData;

use super::layout::{Edge, Found, Layout, SLOT};
use super::policy::{Adaptive, Fixed, Policy};
use crate::nodes::{NodeAddr, Nodes};
use crate::word::Word;

/// The layout of a guarded table that a MIPS32 handler walks: 32-bit addresses, pages of 4 KiB alone, nodes by their
/// physical addresses. `P` is the table's policy: [`Fixed<3>`](Fixed) to `Fixed<8>`, or [`Adaptive`].
#[derive(Debug)]
pub struct Kseg0<P>(PhantomData<fn() -> P>);

/// What the sign of a link says.
const INNER: u32 = 1 << 31;
/// What makes a leaf's address odd.
const LEAF: u32 = 1;
/// The position of a page's number in an address.
const PAGE: u32 = 12;

/// How a link says where a node is and what its digit is.
pub trait Digits: Policy {
    /// The largest logarithm of a node's slots.
    #[doc(hidden)]
    const MOST: u32;
    /// The logarithm of the slots that every node has memory for.
    #[doc(hidden)]
    const FULL: u32;
    /// The largest logarithm to which nodes grow.
    #[doc(hidden)]
    const GROWN: u32;
    /// The highest node address.
    #[doc(hidden)]
    const REACH: usize;

    /// Encodes an inner link.
    #[doc(hidden)]
    fn link(node: NodeAddr, shift: u32, width: u32) -> u32;

    /// Decodes an inner link.
    #[doc(hidden)]
    fn edge(link: u32) -> Edge;
}

impl<const W: u32> Digits for Fixed<W> {
    const MOST: u32 = W;
    const FULL: u32 = {
        assert!(W >= 3 && W <= 8, "the shift has five bits, and a node at least as many below its address");
        W
    };
    const GROWN: u32 = W;
    const REACH: usize = (1 << 29) - 1;

    #[inline(always)]
    fn link(node: NodeAddr, shift: u32, _width: u32) -> u32 {
        INNER | node.get() as u32 | shift
    }

    #[inline(always)]
    fn edge(link: u32) -> Edge {
        let shift = link & 31;
        let node = link & !INNER & !((4 << W) - 1);
        let width = if shift + W > 32 { 32 - shift } else { W };
        Edge { node: NodeAddr::new(node as usize), shift, width, leaf: false, base: 0 }
    }
}

impl Digits for Adaptive {
    const MOST: u32 = 8;
    const FULL: u32 = 0;
    const GROWN: u32 = 4;
    const REACH: usize = (1 << 23) - 1;

    #[inline(always)]
    fn link(node: NodeAddr, shift: u32, width: u32) -> u32 {
        INNER | (node.get() as u32 / 4) << 10 | (32 - width) << 5 | (32 - shift - width)
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
    const REACH: usize = P::REACH;
    const BESIDE: usize = size_of::<crate::nodes::Record>();

    type Root = <u32 as Word>::Cell;

    fn root() -> Self::Root {
        u32::ZERO.cell()
    }

    #[inline(always)]
    fn cells(root: &Self::Root) -> *const <u32 as Word>::Cell {
        root
    }

    #[inline(always)]
    fn edge(word: impl Fn(usize) -> u32, _ceiling: u32, _at: usize) -> Edge {
        match word(0) {
            0 => Edge::EMPTY,
            link if link & INNER != 0 => P::edge(link),
            link => {
                let node = NodeAddr::new((link & !LEAF) as usize);
                Edge { node, shift: PAGE, width: 1, leaf: true, base: 0 }
            }
        }
    }

    #[inline(always)]
    fn words(edge: Edge, _ceiling: u32) -> [u32; SLOT] {
        let mut words = [0; SLOT];
        if edge.leaf {
            words[0] = edge.node.get() as u32 | LEAF;
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
            let tag = nodes.follow(leaf, 0) as usize;
            let index = at >> PAGE & 1;
            ((at ^ tag) >> (PAGE + 1) == 0).then_some(Found { leaf, shift: PAGE, width: 1, index })
        }
    }
}
