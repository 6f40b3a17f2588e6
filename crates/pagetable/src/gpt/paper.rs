//! The paper's slots: a 64-bit guard and a 64-bit pointer.

use super::bits::{agree, low};
use super::layout::{Edge, Found, Layout, SLOT};
use crate::nodes::{NodeAddr, Nodes};
use crate::word::Word;
use crate::{Mode, Solo};

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

/// The bits of a guard's word that say where it ends.
const END: usize = 63;
const LEAF: u32 = 1 << 16;

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
