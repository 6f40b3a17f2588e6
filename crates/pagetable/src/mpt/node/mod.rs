//! Handles of a table's nodes: the modules here are the only ones of the multi-level table that rely on a node to be live.
//!
//! ```text
//!   Pinned  --- root --->  NodeRef --- link ---> NodeRef         a walk: reads
//!   Writing --- root --->  NodeMut --- child --> NodeMut         the writer: also writes
//!   Turn ------ place -------------------------> Place           the fast path: one slot of the last level
//!                             |
//!                             +- at ------> Place                one slot: stores leaves and marks
//!                             +- unlink --> Subtree              what is in no slot
//!                             +- link <---- Subtree
//!                             +- retire <-- Subtree              a batch owns its nodes until the shootdown is complete
//! ```
//!
//! A handle is made only from the root, from a link that was read through a handle, or from a node that was taken from the
//! storage. A handle carries its table and its level, and each index is reduced to the node's slots, so a place that a handle
//! names is in its node.
//!
//! *Every node that a handle names is live.* A pinned walker's CPU acknowledges no shootdown during the walk, so no node that the
//! walk has reached is freed. The writer's nodes are freed by the batch of the writing alone. The writing borrows that batch
//! mutably, and no code of this module completes it.
//!
//! *No node is in two places.* Only a [`Subtree`] can be linked, retired or detached. Each of these consumes it, and only taking
//! a link out of its slot, or a node from the storage, makes one. [`Place`] stores no links.
//!
//! *The record of a retired node is not a count any more.* A [`NodeMut`] borrows the node above it mutably, and that is what it
//! takes to unlink a node. So no count is written through a handle after its node was retired.

mod detached;
mod live;
mod store;
mod subtree;
mod writing;

use core::marker::PhantomData;

use tlbkit_addr::{VirtAddr, Vpn};

use super::Mpt;
use super::leaf::Decode as _;
use super::shape::Shape;
use crate::format::{Format, walked};
use crate::nodes::{NodeAddr, Nodes, WordRef};
use crate::{Pinned, Radix};

pub use detached::Detached;
pub(super) use store::{LastNode, Place};
pub(super) use subtree::{SeenRun, Subtree, Supply};
pub(super) use writing::{NodeMut, Position, Writing};

/// A node that a walk has reached, and may read for `'a`.
///
/// The node is one of `level` of the table's storage, and it is not freed during `'a`. If `sole` is set, the holder is the
/// table's only writer, and the node is one of the table's own: the lender of a borrowed part may free nodes of that part while
/// the writer's CPU is not pinned. Otherwise this CPU is pinned.
pub(crate) struct NodeRef<'a, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    table: &'a Mpt<'n, G, F, N>,
    addr: NodeAddr,
    level: usize,
    sole: bool,
    /// The handle stays on this CPU.
    here: PhantomData<*const ()>,
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Clone for NodeRef<'_, '_, G, F, N> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Copy for NodeRef<'_, '_, G, F, N> {}

/// A word that was read in a slot.
pub(crate) struct Seen<'a, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    node: NodeRef<'a, 'n, G, F, N>,
    index: usize,
    word: F::Word,
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Clone for Seen<'_, '_, G, F, N> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<G: Radix, F: Format, N: Nodes<Word = F::Word>> Copy for Seen<'_, '_, G, F, N> {}

impl<'a, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeRef<'a, 'n, G, F, N> {
    /// Returns the root, for a walk of a pinned CPU.
    #[inline(always)]
    pub(crate) fn root(table: &'a Mpt<'n, G, F, N>, _pinned: Pinned<'a>) -> Self {
        Self { table, addr: table.root, level: 0, sole: false, here: PhantomData }
    }

    /// Returns the root, for the only writer.
    ///
    /// # Safety
    ///
    /// During `'a` the caller is the table's only writer, and completes no batch of the table.
    #[inline(always)]
    pub(crate) unsafe fn sole_root(table: &'a Mpt<'n, G, F, N>) -> Self {
        Self { table, addr: table.root, level: 0, sole: true, here: PhantomData }
    }

    /// Returns the root.
    #[inline(always)]
    pub(crate) fn to_root(self) -> Self {
        Self { addr: self.table.root, level: 0, ..self }
    }

    /// Walks from the root to the last-level node of a page, without loading the word in it. Returns the node and the slot; `None` also
    /// for a page between two borrowed ranges, whose changes are those of a range.
    ///
    /// Calls nothing, so a change that takes this path saves no registers: it would wait for their stores.
    #[inline(always)]
    pub(crate) fn last_slot(self, page: Vpn) -> Option<(Self, usize)> {
        self.last_slot_below(self.table.own_top_apart(page)?, page)
    }

    /// Walks from the root's slot `top`, which is that of `page` and not borrowed, to the last-level node of the page.
    #[inline(always)]
    pub(crate) fn last_slot_below(self, top: usize, page: Vpn) -> Option<(Self, usize)> {
        let (at, root) = (page.address(G::BASE), self.to_root());
        if Self::LEVELS == 1 {
            return Some((root, top));
        }
        let Seen { word, .. } = root.read(top);
        if !Self::is_link(word, 0) {
            return None;
        }
        // The slot is not borrowed.
        let node = Self { addr: F::node(word), level: 1, ..root };
        node.walk(node.index_of(at), at, Self::LEVELS - 1, Self::read, |node, index, end| {
            if end.is_some() { None } else { Some((node, index)) }
        })
    }

    /// Walks from the root to the node of level `bottom` for `at`, or to the last node above that exists, as
    /// [`walk`](Self::walk) does: in code that is compiled once, for a writer's change of more than one page. (Who then reads the slot
    /// loads it again. Beside another writer a link may be there by now, so a pinned walker uses `walk`.)
    #[inline(always)]
    pub(crate) fn down_to(self, bottom: usize, at: VirtAddr) -> Self {
        debug_assert!(self.sole, "a walker loads each word once");
        let (addr, level) = Self::end_of_walk(self.table, bottom, at);
        Self { addr, level, ..self }
    }

    /// The writer's walk is one of a walker that stops at a borrowed slot: so the steps are unrolled, and their levels are constants.
    #[inline(never)]
    fn end_of_walk(table: &'a Mpt<'n, G, F, N>, bottom: usize, at: VirtAddr) -> (NodeAddr, usize) {
        let root = Self { table, addr: table.root, level: 0, sole: false, here: PhantomData };
        let Some(top) = table.own_top(at.vpn(G::BASE)) else { return (root.addr, 0) };
        root.walk(top, at, bottom, Self::peek, |node, _, _| (node.addr, node.level))
    }

    /// Returns the table.
    #[inline(always)]
    pub(crate) fn table(self) -> &'a Mpt<'n, G, F, N> {
        self.table
    }

    /// Returns the node's level.
    #[inline(always)]
    pub(crate) fn level(self) -> usize {
        self.level
    }

    /// Returns the slot of the node that `at` falls into.
    #[inline(always)]
    pub(crate) fn index_of(self, at: VirtAddr) -> usize {
        Self::index(self.level, at)
    }

    /// Returns an index of this node's slots, and the offset of its word.
    #[inline(always)]
    fn within(self, index: usize) -> (usize, usize) {
        let index = index & (Self::slots(self.level) - 1);
        (index, Self::place(self.level, index))
    }

    /// Returns an index of this node's slots, and its word.
    #[inline(always)]
    fn slot(self, index: usize) -> (usize, WordRef<'a, N>) {
        let (index, place) = self.within(index);
        // SAFETY: the node is live during `'a`, and the place is in it.
        (index, unsafe { self.table.nodes.word(self.addr, place) })
    }

    /// Loads a word as a walker does.
    #[inline(always)]
    pub(crate) fn seen(self, index: usize) -> Seen<'a, 'n, G, F, N> {
        let (index, slot) = self.slot(index);
        Seen { node: self, index, word: slot.follow() }
    }

    /// Loads a word as a walker does, and the storage does not count the load.
    #[inline(always)]
    pub(crate) fn peek(self, index: usize) -> Seen<'a, 'n, G, F, N> {
        let (index, slot) = self.slot(index);
        Seen { node: self, index, word: slot.peek() }
    }

    /// Reads a word: as the only writer, if the holder is.
    #[inline(always)]
    pub(crate) fn read(self, index: usize) -> Seen<'a, 'n, G, F, N> {
        if !self.sole {
            return self.seen(index);
        }
        if walked::<F>() {
            return self.peek(index);
        }
        let (index, place) = self.within(index);
        // SAFETY: the node is live during `'a`, the place is in it, and the holder is the only writer.
        let word = unsafe { self.table.nodes.word_mut(self.addr, place) };
        Seen { node: self, index, word: word.read() }
    }

    /// Returns the node that a slot links, as [`Seen::link`] of what [`read`](Self::read) returns, in code that is compiled once.
    #[inline(always)]
    fn link_in(self, index: usize) -> Option<Self> {
        // SAFETY: the node is live during `'a`, one of the table's of this level, and of its only writer if `sole` is set.
        let addr =
            unsafe { Self::linked(self.table, self.addr, self.level << 1 | usize::from(self.sole), index) }?;
        Some(Self { addr, level: self.level + 1, ..self })
    }

    /// The parts of the handle are arguments, because each of them is in a register. `level` is twice the level, and one more for the
    /// only writer.
    ///
    /// # Safety
    ///
    /// The arguments are the parts of a handle.
    #[inline(never)]
    unsafe fn linked(
        table: &'a Mpt<'n, G, F, N>,
        addr: NodeAddr,
        level: usize,
        index: usize,
    ) -> Option<NodeAddr> {
        let node = Self { table, addr, level: level >> 1, sole: level & 1 == 1, here: PhantomData };
        node.read(index).link().map(|below| below.addr)
    }

    /// Returns the node that `word`, which was read in this node's slot `index`, leads to.
    #[inline(always)]
    fn below(self, index: usize, word: F::Word) -> Option<Self> {
        if !Self::is_link(word, self.level) || self.sole && self.level == 0 && self.table.is_borrowed(index) {
            return None;
        }
        Some(Self { addr: F::node(word), level: self.level + 1, ..self })
    }
}

impl<'a, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Seen<'a, 'n, G, F, N> {
    /// Returns the node of the slot.
    #[inline(always)]
    pub(crate) fn node(self) -> NodeRef<'a, 'n, G, F, N> {
        self.node
    }

    /// Returns the slot.
    #[inline(always)]
    pub(crate) fn slot(self) -> usize {
        self.index
    }

    /// Returns the word.
    #[inline(always)]
    pub(crate) fn word(self) -> F::Word {
        self.word
    }

    /// Returns the node that the word leads to. Returns `None` if the word is no link, and for the writer also if the slot is
    /// borrowed.
    #[inline(always)]
    pub(crate) fn link(self) -> Option<NodeRef<'a, 'n, G, F, N>> {
        self.node.below(self.index, self.word)
    }
}
