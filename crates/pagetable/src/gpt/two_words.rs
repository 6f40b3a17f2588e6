//! The paper's slots: a 64-bit guard and a 64-bit pointer.

use super::guard::{agree, low};
use super::layout::{Edge, Found, Layout, SLOT};
use crate::fields::Fields as _;
use crate::nodes::{LinkRange, NodeAddr, Nodes};
use crate::word::Word;
use crate::{Mode, Solo};

/// The 16-byte slots of Elphinstone et al. 3.2 in 32-bit words: a 64-bit guard and a 64-bit pointer. A slot is not
/// written with one store, so it is for one CPU: the storage must be in [`Solo`] mode.
///
/// ```text
///            63                                   6 5     0
///           +--------------------------------------+-------+
///  guard    | address, all bits above the guard's end | log2 |     words 0 (low) and 1
///           +--------------------------------------+-------+
///            63       44 43          12 11    8     5     0
///           +-----------+--------------+-------+---+-------+
///  pointer  | 1 .. .. 1 | node address | width |   | shift |      words 2 (low) and 3
///           +-----------+--------------+-------+---+-------+
///            63   47    40 39    32 31                    0
///           +---+--------+--------+------------------------+
///  to leaf  | 0 | width  | shift  | leaf address           |
///           +---+--------+--------+------------------------+
/// ```
///
/// A guard is the address that the node's region begins at, so it repeats what the nodes before have resolved: nothing
/// has to be stripped before it is compared, and a walk may compare the last one alone, which implies the others. The low
/// six bits (addresses of pages have no use for them) say where it ends. A pointer's digit stands below its address, which
/// an arithmetic shift uncovers; the sign tells nodes from leaves. Nodes in kseg0, the upper half of 32 bits, are then
/// addresses of 64.
#[derive(Clone, Copy, Debug)]
pub struct TwoWords;

/// The bits of a guard's word that say where it ends.
const END: usize = 63;
/// Where a pointer has the node's address.
const NODE: u32 = 12;
/// Where it has the digit's width.
const WIDTH: u32 = 8;
/// What is above the node's address.
const INNER: usize = usize::MAX << 44;
/// Where the pointer to a leaf has its digit.
const LEAF_SHIFT: u32 = 32;
const LEAF_WIDTH: u32 = 40;

impl<N: Nodes<Word = u32, Mode = Solo>> Layout<N> for TwoWords {
    const WORDS: usize = 4;
    const TAGGED: bool = false;
    const MAX_WIDTH: u32 = super::MAX_WIDTH as u32;
    const GROWN: u32 = 8;
    const REACH: LinkRange = LinkRange::unsigned(32);
    const BESIDE: usize = 0;

    type Root = [<u32 as Word>::Cell; 4];

    #[inline(always)]
    fn cells(root: &Self::Root) -> *const <u32 as Word>::Cell {
        root.as_ptr()
    }

    #[inline(always)]
    unsafe fn edge(_nodes: &N, word: impl Fn(usize) -> u32, _ceiling: u32, _at: usize) -> Edge {
        let pointer = double(&word, 2);
        if pointer == 0 {
            return Edge::EMPTY;
        }
        let edge = follow(pointer);
        Edge { base: double(&word, 0) & !low(edge.top()), ..edge }
    }

    #[inline(always)]
    fn words(edge: Edge, _ceiling: u32) -> [u32; SLOT] {
        if edge.is_empty() {
            return [0; SLOT];
        }
        let guard = (edge.base & !low(edge.top())).with(edge.top() as usize & END);
        let (shift, width, node) = (edge.shift as usize, edge.width as usize, edge.node.get());
        let pointer = if edge.leaf {
            (width << LEAF_WIDTH).with(shift << LEAF_SHIFT).with(node)
        } else {
            INNER.with(node << NODE).with(width << WIDTH).with(shift)
        };
        [guard as u32, (guard >> 32) as u32, pointer as u32, (pointer >> 32) as u32]
    }

    #[inline(always)]
    unsafe fn seek(nodes: &N, root: &Self::Root, bits: u32, _tag: usize, at: usize) -> Option<Found> {
        let cells = <Self as Layout<N>>::cells(root);
        let at = at & low(bits);
        // SAFETY: the root is live and has four cells; the slots below are within their nodes.
        let mut edge = step(|word| unsafe { Solo::read(cells.add(word)) }, at)?;
        while !edge.leaf {
            let slot = edge.index(at) * SLOT;
            // SAFETY: a linked node is live, and the slot within it.
            edge = step(|word| unsafe { nodes.follow(edge.node, slot + word) }, at)?;
        }
        Some(Found { leaf: edge.node, shift: edge.shift, width: edge.width, index: edge.index(at) })
    }
}

/// Reads a double word, the low word first.
#[inline(always)]
fn double(word: &impl Fn(usize) -> u32, first: usize) -> usize {
    (word(first) as usize).with((word(first + 1) as usize) << 32)
}

/// Decodes a pointer.
#[inline(always)]
fn follow(pointer: usize) -> Edge {
    let leaf = (pointer as isize) >= 0;
    let (node, width, shift) = if leaf {
        (pointer, pointer >> LEAF_WIDTH, pointer >> LEAF_SHIFT)
    } else {
        (pointer >> NODE, pointer >> WIDTH & 15, pointer)
    };
    let node = NodeAddr::new(node as u32 as usize);
    Edge { node, shift: shift as u32 & 63, width: width as u32 & 15, leaf, base: 0 }
}

/// Takes a slot's way for `at`, if its guard is a prefix of that.
#[inline(always)]
fn step(word: impl Fn(usize) -> u32, at: usize) -> Option<Edge> {
    let pointer = double(&word, 2);
    if pointer == 0 {
        return None;
    }
    let guard = double(&word, 0);
    // Six bits cannot say 64, where a guard ends that has no bits at all before the whole address.
    let end = if guard & END == 0 { usize::BITS } else { (guard & END) as u32 };
    agree(at, guard, end).then(|| follow(pointer))
}
