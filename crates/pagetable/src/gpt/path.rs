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

use super::node::{Node, Right, Slot, View};
use super::shape::Shape;

/// The most nodes on a path: one for each bit of an address above the smallest pages, of 1 KiB.
pub(super) const DEPTH: usize = usize::BITS as usize - 10;

/// A node on a path, and the number of its slot that is read next.
#[derive(Clone, Copy)]
struct Level {
    /// The node's number in its storage.
    node: u32,
    /// The slot to read next; `slots()` if all have been read.
    slot: u16,
    shift: u8,
    width: u8,
}

impl Level {
    /// Returns the position above the node's digit.
    #[inline(always)]
    const fn top(self) -> u32 {
        self.shift as u32 + self.width as u32
    }
}

/// The indexing nodes from the root of a subtree to the one whose slots are being read.
pub(super) struct Path<'a, T: Shape, R> {
    view: View<'a, T, R>,
    levels: [MaybeUninit<Level>; DEPTH],
    len: usize,
}

impl<'a, T: Shape, R: Right> Path<'a, T, R> {
    #[inline(always)]
    pub(super) const fn new(view: View<'a, T, R>) -> Self {
        Self { view, levels: [const { MaybeUninit::uninit() }; DEPTH], len: 0 }
    }

    /// Adds an indexing node below the last one, and the slot to read next. The path has room for it, because a node's digit is below
    /// the digit of the node before, and above the offset in a page.
    #[inline(always)]
    pub(super) fn push(&mut self, node: Node<'a, T, R>, slot: usize) {
        let number = node.number();
        if let Some(level) = self.levels.get_mut(self.len) {
            // A node has at most 2^12 slots and a digit within 64 bits.
            let (slot, shift, width) = (slot as u16, node.shift as u8, node.width as u8);
            *level = MaybeUninit::new(Level { node: number, slot, shift, width });
            self.len += 1;
        }
    }

    /// Returns the next slot of the last node. If all its slots have been read, removes the node and returns it as the error.
    #[inline(always)]
    pub(super) fn step(&mut self) -> Option<Result<Slot<'a, T, R>, Node<'a, T, R>>> {
        let view = self.view;
        let level = self.levels().last_mut()?;
        // SAFETY: `push` was given a handle of the node, with the right of the path.
        let node = unsafe { view.node(level.node, level.shift.into(), level.width.into()) };
        let slot = level.slot as usize;
        if slot >= node.slots() {
            self.len -= 1;
            return Some(Err(node));
        }
        level.slot += 1;
        Some(Ok(node.slot(slot)))
    }

    /// Returns the next slot, in the order of the keys.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<Slot<'a, T, R>> {
        loop {
            if let Ok(slot) = self.step()? {
                return Some(slot);
            }
        }
    }

    /// Makes `slot` the next slot of the last node.
    #[inline(always)]
    pub(super) fn go_to(&mut self, slot: usize) {
        if let Some(level) = self.levels().last_mut() {
            level.slot = slot as u16;
        }
    }

    /// Goes back to the last slot that was read.
    #[inline(always)]
    pub(super) fn go_back(&mut self) {
        if let Some(level) = self.levels().last_mut() {
            level.slot = level.slot.saturating_sub(1);
        }
    }

    /// Removes all but the first `len` nodes.
    #[inline(always)]
    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns the index of the first node for the position above whose digit the predicate returns true.
    pub(super) fn position(&mut self, is_so: impl Fn(u32) -> bool) -> Option<usize> {
        self.levels().iter().position(|level| is_so(level.top()))
    }

    /// Returns the nodes, the root of the subtree first.
    #[inline(always)]
    fn levels(&mut self) -> &mut [Level] {
        // SAFETY: `push` has written the first `len` levels.
        unsafe { core::slice::from_raw_parts_mut(self.levels.as_mut_ptr().cast(), self.len) }
    }
}
