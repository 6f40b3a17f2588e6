//! A path of bounded length, by which readers and the writer visit a subtree in a loop, without recursion.
//!
//! ```text
//!   levels[0]  | node | slot ------.         each level says which slot of its node is read next
//!                                  v
//!   levels[1]            | node | slot --.   a child is pushed; a node whose slots are all read is popped
//!                                        v
//!   levels[2]                    | node | slot
//! ```
//!
//! Every indexing node resolves at least one bit of a page number, so a path has no more nodes than a page number has bits.
//! [`DEPTH`] is that bound; it also bounds the stack that a visit takes.

use core::mem::MaybeUninit;

use super::layout::{Edge, Holds};
use crate::nodes::Nodes;

/// The most nodes on a path: one for each bit of an address above the smallest pages, of 1 KiB.
pub(super) const DEPTH: usize = usize::BITS as usize - 10;

/// A node on a path, and the number of its slot that is read next.
#[derive(Clone, Copy)]
pub(super) struct Level {
    /// The node's number in its storage.
    node: u32,
    /// The slot to read next; `slots()` if all have been read.
    pub(super) slot: u16,
    shift: u8,
    width: u8,
}

impl Level {
    /// Returns the edge that leads to the node, without its guard.
    #[inline(always)]
    pub(super) fn edge(self, nodes: &impl Nodes) -> Edge {
        Edge {
            node: nodes.node_of(self.node),
            shift: self.shift.into(),
            width: self.width.into(),
            holds: Holds::Links,
            base: 0,
        }
    }

    /// Returns the position above the node's digit.
    #[inline(always)]
    pub(super) const fn top(self) -> u32 {
        self.shift as u32 + self.width as u32
    }
}

/// The indexing nodes from the root of a subtree to the one whose slots are being read.
pub(super) struct Path {
    levels: [MaybeUninit<Level>; DEPTH],
    len: usize,
}

impl Path {
    #[inline(always)]
    pub(super) const fn new() -> Self {
        Self { levels: [const { MaybeUninit::uninit() }; DEPTH], len: 0 }
    }

    /// Adds an indexing node below the last one. The path has room for it, because a node's digit is below the digit of the node
    /// before, and above the offset in a page.
    #[inline(always)]
    pub(super) fn push(&mut self, nodes: &impl Nodes, edge: Edge, slot: usize) {
        let node = nodes.index_of(edge.node);
        if let Some(level) = self.levels.get_mut(self.len) {
            // A node has at most 2^12 slots and a digit within 64 bits.
            let (slot, shift, width) = (slot as u16, edge.shift as u8, edge.width as u8);
            *level = MaybeUninit::new(Level { node, slot, shift, width });
            self.len += 1;
        }
    }

    /// Removes the last node.
    #[inline(always)]
    pub(super) fn pop(&mut self) {
        self.len = self.len.saturating_sub(1);
    }

    /// Removes all but the first `len` nodes.
    #[inline(always)]
    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns the nodes, the root of the subtree first.
    #[inline(always)]
    pub(super) fn levels(&mut self) -> &mut [Level] {
        // SAFETY: `push` has written the first `len` levels.
        unsafe { core::slice::from_raw_parts_mut(self.levels.as_mut_ptr().cast(), self.len) }
    }
}
