//! Handles of a table's nodes: the modules here are the only ones of the guarded table that rely on a node to be live.
//!
//! ```text
//!   Pinned  --> View<Walking> --- root --> Slot --- read --> Node --> Slot, Pte       a walk: reads
//!   Writing --> View<Sole>    --- root --> Slot --- read --> Node --> Slot, Pte       the writer: also writes
//!      |                                    ^
//!      |                                    +- publish --- Node <--- Item             a complete subtree
//!      +--- reserve --> Supply --> Made --> Fresh                                     a node that no walker can reach yet
//!      +--- retire <-- Node                                   a batch owns its nodes until the shootdown is complete
//! ```
//!
//! A handle is made only from the root slot, from a link that was read through a handle, or from a node that was taken from the
//! storage. A handle carries its table and the shape of its node, and each index is that of a slot of the node.
//!
//! *Every node that a handle names is live.* A pinned walker's CPU acknowledges no shootdown during the walk, so no node that the
//! walk has reached is freed. The writer's nodes are freed by the batch of the writing alone. [`Writing`] borrows that batch mutably
//! for the life of its handles, and no code of this module completes it. So what a change reads and stores through its handles is
//! in nodes, also if the change has retired some of them.
//!
//! *What is retired is not in the table when the change is over.* Only [`Writing::retire`] and [`Writing::discard`] give nodes to
//! the batch. They are unsafe: each call says why no slot leads to the node then, and why the node is not retired again.

mod store;
mod supply;
mod writing;

use core::marker::PhantomData;
use core::ops::Deref;

use super::guard::low;
use super::layout::{Edge, Holds, Layout};
use super::shape::{BaseOf, Shape};
use super::visit::Span;
use crate::nodes::{NodeAddr, Nodes, Reclaim as _};
use crate::{Pinned, Word};

pub(super) use supply::{Fresh, Item, Made, Reserve, Supply};
pub(super) use writing::Writing;

/// What the holder of a handle may do.
pub(super) trait Right {
    /// Whether the holder is the table's only writer.
    const SOLE: bool;
}

/// The holder's CPU is pinned: it may read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Walking {}

/// The holder is the table's only writer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sole {}

impl Right for Walking {
    const SOLE: bool = false;
}

impl Right for Sole {
    const SOLE: bool = true;
}

/// The right to read a table for `'a`. The handles stay on this CPU.
pub(super) struct View<'a, T: Shape, R = Sole> {
    table: &'a T,
    right: PhantomData<*const R>,
}

/// A node or leaf, and the right to read it for `'a`. If `R` is [`Sole`], the holder may also write it.
///
/// The node is one of the table's storage, has the shape of `edge`, and is not freed during `'a`.
pub(super) struct Node<'a, T: Shape, R = Sole> {
    table: &'a T,
    edge: Edge,
    /// What a slot holds of the first key of the region, where the node was read from a slot.
    base: BaseOf<T>,
    right: PhantomData<*const R>,
}

/// A slot of a table, which holds a link or nothing.
pub(super) struct Slot<'a, T: Shape, R = Sole> {
    table: &'a T,
    /// The indexing node that has the slot; `None` for the root slot.
    node: Option<Node<'a, T, R>>,
    /// Less than the number of the node's slots.
    index: usize,
}

/// The position of a PTE or mark.
pub(super) struct Pte<'a, T: Shape, R = Sole> {
    leaf: Node<'a, T, R>,
    /// The position of the word in the leaf.
    place: usize,
    /// An address of the page.
    at: usize,
}

macro_rules! copies {
    ($($handle:ident)*) => { $(
        impl<T: Shape, R> Clone for $handle<'_, T, R> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T: Shape, R> Copy for $handle<'_, T, R> {}
    )* };
}

copies!(View Node Slot Pte);

impl<T: Shape, R> PartialEq for Node<'_, T, R> {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        self.edge == other.edge && self.base == other.base
    }
}

impl<T: Shape, R> Deref for Node<'_, T, R> {
    type Target = Edge;

    #[inline(always)]
    fn deref(&self) -> &Edge {
        &self.edge
    }
}

impl<'a, T: Shape> View<'a, T, Walking> {
    /// Returns the right of a pinned CPU.
    #[inline(always)]
    pub(super) fn pinned(table: &'a T, _pinned: Pinned<'a>) -> Self {
        Self { table, right: PhantomData }
    }
}

impl<'a, T: Shape> View<'a, T> {
    /// Returns the right of the only writer.
    ///
    /// # Safety
    ///
    /// During `'a` the caller is the table's only writer, and completes no batch of the table.
    #[inline(always)]
    pub(super) unsafe fn sole(table: &'a T) -> Self {
        Self { table, right: PhantomData }
    }
}

impl<'a, T: Shape, R: Right> View<'a, T, R> {
    /// Returns the table.
    #[inline(always)]
    pub(super) fn table(self) -> &'a T {
        self.table
    }

    /// Returns the root slot.
    #[inline(always)]
    pub(super) fn root(self) -> Slot<'a, T, R> {
        Slot { table: self.table, node: None, index: 0 }
    }

    /// Walks to the PTE of the address `at`. Returns `None` if no leaf covers it.
    #[inline(always)]
    pub(super) fn seek(self, at: usize) -> Option<Pte<'a, T, R>> {
        let table = self.table;
        // SAFETY: the caller is pinned, or the only writer, for as long as it has this right.
        let found = unsafe { T::L::seek(table.nodes(), table.root(), T::TAG, T::sought(at)) }?;
        let leaf = Node { table, edge: found.leaf, base: BaseOf::<T>::default(), right: PhantomData };
        // A lone half of a pair has the position that it would have beside the other half.
        let half = if T::ROOM_WIDTH > 0 { at >> leaf.shift & 1 } else { 0 };
        Some(Pte { leaf, place: T::pte(found.index | half), at })
    }

    /// Returns the indexing node with a number in the storage.
    ///
    /// # Safety
    ///
    /// A handle with this right named the node, and the node has this digit.
    #[inline(always)]
    pub(super) unsafe fn node(self, number: u32, shift: u32, width: u32) -> Node<'a, T, R> {
        let edge = Edge { node: self.table.nodes().node_of(number), shift, width, holds: Holds::Links };
        Node { table: self.table, edge, base: BaseOf::<T>::default(), right: PhantomData }
    }
}

impl<'a, T: Shape, R: Right> Slot<'a, T, R> {
    /// Returns the node that has the slot; `None` for the root slot.
    #[inline(always)]
    pub(super) fn node(self) -> Option<Node<'a, T, R>> {
        self.node
    }

    /// Returns the index of the slot in its node; 0 for the root slot.
    #[inline(always)]
    pub(super) fn index(self) -> usize {
        self.index
    }

    /// Returns the number of the address bits that the slot leaves open: it covers `2^ceiling` bytes.
    #[inline(always)]
    pub(super) fn ceiling(self) -> u32 {
        self.node.map_or(T::BITS, |node| node.shift)
    }

    /// Returns a cell of the root slot.
    #[inline(always)]
    fn root_cell(self, word: usize) -> Option<&'a <T::W as Word>::Cell> {
        T::L::cells(self.table.root()).get(word)
    }

    /// Loads the slot, and returns the node or leaf to which it leads.
    #[inline(always)]
    pub(super) fn read(self) -> Option<Node<'a, T, R>> {
        let (edge, base) = T::L::edge(|word| match self.node {
            // SAFETY: a layout loads only words of the slot. The index is that of a slot of the node.
            Some(node) => unsafe { node.load(self.index * T::L::WORDS + word) },
            None => self.root_cell(word).map_or(T::ZERO, T::W::follow),
        })?;
        let node = Node { table: self.table, edge, base, right: PhantomData };
        Some(Node { edge: T::L::sized(edge, || node.tag_word(0)), ..node })
    }
}

impl<'a, T: Shape, R: Right> Node<'a, T, R> {
    /// Loads a word of the node.
    ///
    /// # Safety
    ///
    /// The index is within the node.
    #[inline(always)]
    unsafe fn load(self, index: usize) -> T::W {
        let (nodes, node) = (self.table.nodes(), self.edge.node);
        // SAFETY: the node is live, and by this function's contract the index is within it. A sole holder is the only writer.
        unsafe { if R::SOLE { nodes.word_mut(node, index).read() } else { nodes.word(node, index).follow() } }
    }

    /// Returns the address of the node in the storage.
    #[inline(always)]
    pub(super) fn addr(self) -> NodeAddr {
        self.edge.node
    }

    /// Returns the node's number in the storage.
    #[inline(always)]
    pub(super) fn number(self) -> u32 {
        self.table.nodes().index_of(self.edge.node)
    }

    /// Returns the slot with an index, of an indexing node.
    #[inline(always)]
    pub(super) fn slot(self, index: usize) -> Slot<'a, T, R> {
        debug_assert!(!self.is_leaf(), "a leaf has PTEs");
        Slot { table: self.table, node: Some(self), index: index & (self.slots() - 1) }
    }

    /// Returns the slot of a key, of an indexing node.
    #[inline(always)]
    pub(super) fn slot_at(self, key: usize) -> Slot<'a, T, R> {
        debug_assert!(!self.is_leaf(), "a leaf has PTEs");
        Slot { table: self.table, node: Some(self), index: self.index(key) }
    }

    /// Returns the node or leaf to which the slot with an index leads.
    #[inline(always)]
    pub(super) fn child(self, index: usize) -> Option<Self> {
        self.slot(index).read()
    }

    /// Returns what the slots lead to, in order.
    #[inline(always)]
    pub(super) fn children(self) -> impl DoubleEndedIterator<Item = Option<Self>> {
        debug_assert!(!self.is_leaf(), "a leaf has PTEs");
        (0..self.slots()).map(move |index| Slot { table: self.table, node: Some(self), index }.read())
    }

    /// Returns the first key of the region of a leaf, which its tag holds, or the slot that led to it.
    #[inline(always)]
    pub(super) fn start(self) -> usize {
        T::L::known(self.base).unwrap_or_else(|| {
            let upper = if T::TAG == 2 { self.tag_word(1).to_usize() << (usize::BITS / 2) } else { 0 };
            T::key(T::L::tagged(self.tag_word(0).to_usize() | upper))
        })
    }

    /// Loads a word of a leaf's tag.
    #[inline(always)]
    fn tag_word(self, word: usize) -> T::W {
        // SAFETY: no node or leaf has fewer than two words.
        unsafe { self.load(word & 1) }
    }

    /// Returns the first key of the node's region, if the slot that led to it holds the key.
    #[inline(always)]
    pub(super) fn known_base(self) -> Option<usize> {
        T::L::known(self.base)
    }

    /// Returns the position of the PTE of a page that the leaf covers.
    #[inline(always)]
    pub(super) fn pte(self, at: usize) -> Pte<'a, T, R> {
        debug_assert!(self.is_leaf(), "a node has slots");
        Pte { leaf: self, place: T::pte_of(self.edge, at), at }
    }

    /// Returns how many pages of a part the leaf has, and the position of the first PTE.
    #[inline(always)]
    fn within(self, part: Span) -> (usize, usize) {
        debug_assert!(self.is_leaf(), "a node has slots");
        let pages = (self.index(part.last) + 1).saturating_sub(self.index(part.first));
        (pages, T::pte_of(self.edge, part.first))
    }

    /// Returns the positions of the PTEs of a part that the leaf covers.
    #[inline(always)]
    pub(super) fn ptes(self, part: Span) -> impl Iterator<Item = Pte<'a, T, R>> {
        let (pages, first) = self.within(part);
        let start = part.first & !low(self.shift);
        (0..pages).map(move |page| {
            let at = start + (page << self.shift);
            let place = if T::IN_A_ROW { first + page } else { T::pte_of(self.edge, at) };
            Pte { leaf: self, place, at }
        })
    }

    /// Returns the positions of all PTEs of a leaf that begins at `base`.
    #[inline(always)]
    pub(super) fn all_ptes(self, base: usize) -> impl Iterator<Item = Pte<'a, T, R>> {
        (0..self.slots()).map(move |index| self.pte(base | index << self.shift))
    }
}

impl<'a, T: Shape, R: Right> Pte<'a, T, R> {
    /// Returns the leaf.
    #[inline(always)]
    pub(super) fn leaf(self) -> Node<'a, T, R> {
        self.leaf
    }

    /// Returns the page's address or key: what the position was made for.
    #[inline(always)]
    pub(super) fn at(self) -> usize {
        self.at
    }

    /// Loads the word.
    #[inline(always)]
    pub(super) fn read(self) -> T::W {
        // SAFETY: the place is that of a PTE of the leaf.
        unsafe { self.leaf.load(self.place) }
    }
}
