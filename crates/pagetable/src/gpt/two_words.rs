//! The paper's slots: a 64-bit guard and a 64-bit pointer.

use super::guard::{agree, low};
use super::layout::{Edge, Holds, Layout, PtePosition, SLOT};
use crate::Solo;
use crate::fields::Fields as _;
use crate::nodes::{LinkRange, NodeAddr, Nodes};
use crate::word::Word;

/// The 16-byte slots of Elphinstone et al. 3.2 in 32-bit words: a 64-bit guard and a 64-bit pointer. A slot takes several stores,
/// so the layout is for one CPU: the storage must be in [`Solo`] mode.
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
/// A guard is the address at which the node's region begins, so it includes the bits that the nodes above have resolved. A walk
/// does not strip those bits before it compares, and may compare only the last guard, which implies the others. The low six bits,
/// which are zero in the address of a page, hold the position at which the guard ends. A pointer's digit is below the node's
/// address; an arithmetic shift extracts the address. The sign is set in a pointer to a node, and clear in a pointer to a leaf. So
/// a node in kseg0, in the upper half of 32 bits, has a 64-bit address that is sign-extended.
#[derive(Clone, Copy, Debug)]
pub struct TwoWords;

/// The bits of a guard's word that hold the position at which the guard ends.
const END: usize = 63;
/// The position of the node's address in a pointer to a node.
const NODE: u32 = 12;
/// The position of the digit's width in a pointer to a node.
const WIDTH: u32 = 8;
/// The bits of a pointer to a node that are above the node's address, all set.
const INNER: usize = usize::MAX << 44;
/// The position of the digit's shift in a pointer to a leaf.
const LEAF_SHIFT: u32 = 32;
/// The position of the digit's width in a pointer to a leaf.
const LEAF_WIDTH: u32 = 40;

impl<N: Nodes<Word = u32, Mode = Solo>> Layout<N> for TwoWords {
    const WORDS: usize = 4;
    const MAX_TAG: usize = 0;
    const MAX_WIDTH: u32 = super::MAX_WIDTH as u32;
    const GROWN_WIDTH: u32 = 8;
    const REACH: LinkRange = LinkRange::unsigned(32);
    const BESIDE: usize = 0;

    type Root = [<u32 as Word>::Cell; 4];
    type Base = usize;

    #[inline(always)]
    fn cells(root: &Self::Root) -> &[<u32 as Word>::Cell] {
        root
    }

    #[inline(always)]
    fn edge(word: impl Fn(usize) -> u32) -> Option<(Edge, usize)> {
        let pointer = double(&word, 2);
        if pointer == 0 {
            return None;
        }
        let edge = follow(pointer);
        Some((edge, double(&word, 0) & !low(edge.top())))
    }

    #[inline(always)]
    fn words(edge: Edge, base: usize) -> [u32; SLOT] {
        let guard = (base & !low(edge.top())).with(edge.top() as usize & END);
        let (shift, width, node) = (edge.shift as usize, edge.width as usize, edge.node.get());
        let pointer = if edge.is_leaf() {
            (width << LEAF_WIDTH).with(shift << LEAF_SHIFT).with(node)
        } else {
            INNER.with(node << NODE).with(width << WIDTH).with(shift)
        };
        [guard as u32, (guard >> 32) as u32, pointer as u32, (pointer >> 32) as u32]
    }

    #[inline(always)]
    fn base(key: usize) -> usize {
        key
    }

    #[inline(always)]
    fn known(base: usize) -> Option<usize> {
        Some(base)
    }

    #[inline(always)]
    unsafe fn seek(nodes: &N, root: &Self::Root, _tag: usize, at: usize) -> Option<PtePosition> {
        // SAFETY: the root is a field of a live table, and has four cells. By this function's contract the caller is pinned, or the
        // writer, so a node is not freed during the walk; the slot is within it.
        let edge = unsafe {
            let mut edge = step(|word| u32::follow(&root[word & (SLOT - 1)]), at)?;
            while !edge.is_leaf() {
                let slot = edge.index(at) * SLOT;
                edge = step(|word| nodes.word(edge.node, slot + word).follow(), at)?;
            }
            edge
        };
        Some(PtePosition { leaf: edge, index: edge.index(at) })
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
    Edge { node, shift: shift as u32 & 63, width: width as u32 & 15, holds: Holds::new(leaf) }
}

/// Returns the node or leaf to which a slot leads, if the slot's guard agrees with `at`: the check of one guard.
#[inline(always)]
fn step(word: impl Fn(usize) -> u32, at: usize) -> Option<Edge> {
    let pointer = double(&word, 2);
    if pointer == 0 {
        return None;
    }
    let guard = double(&word, 0);
    // Six bits cannot hold 64. A guard without any bits ends at position 64, which is stored as 0.
    let end = if guard & END == 0 { usize::BITS } else { (guard & END) as u32 };
    agree(at, guard, end).then(|| follow(pointer))
}
