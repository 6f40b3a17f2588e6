//! Nodes that are not in the table yet: those that a change takes, and those that its dry run counts.

use core::marker::PhantomData;
use core::ops::Deref;

use super::{Node, View};
use crate::Error;
use crate::Word as _;
use crate::gpt::guard::low;
use crate::gpt::layout::{Edge, Holds, Layout};
use crate::gpt::shape::{KINDS, Shape, kind};
use crate::nodes::{NodeAddr, Nodes, Spare, Stock, take_within};

/// A node that was taken and that no walker can reach yet.
pub(in crate::gpt) struct Fresh<'w, T: Shape>(Node<'w, T>);

/// A node or leaf that an insertion or a step of tuning takes. In a dry run (`REAL` is false) it is only counted.
pub(in crate::gpt) struct Made<'w, T: Shape, const REAL: bool>(Node<'w, T>);

/// What a slot of a new node is to hold: a node or leaf that is in the table, or one that is made.
pub(in crate::gpt) struct Item<'w, T: Shape, const REAL: bool>(Node<'w, T>);

/// The nodes that a change needs: first the dry run counts them, then they are taken all at once.
pub(in crate::gpt) struct Reserve<'w, T: Shape> {
    view: View<'w, T>,
    stock: Stock<'w, T::N, KINDS>,
}

/// The source of the nodes that an insertion or a step of tuning takes.
pub(in crate::gpt) struct Supply<'s, 'w, T: Shape, const REAL: bool> {
    view: View<'w, T>,
    stock: &'s mut Stock<'w, T::N, KINDS>,
}

impl<T: Shape> Clone for Fresh<'_, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Shape> Copy for Fresh<'_, T> {}

impl<'w, T: Shape> Deref for Fresh<'w, T> {
    type Target = Node<'w, T>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

macro_rules! planned {
    ($($handle:ident)*) => { $(
        impl<T: Shape, const REAL: bool> Clone for $handle<'_, T, REAL> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T: Shape, const REAL: bool> Copy for $handle<'_, T, REAL> {}

        /// The shape of the node is known in a dry run, too.
        impl<T: Shape, const REAL: bool> Deref for $handle<'_, T, REAL> {
            type Target = Edge;

            #[inline(always)]
            fn deref(&self) -> &Edge {
                &self.0.edge
            }
        }
    )* };
}

planned!(Made Item);

impl<T: Shape, const REAL: bool> PartialEq for Item<'_, T, REAL> {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<'w, T: Shape> View<'w, T> {
    /// Returns the handle of a node that was just taken, and counts the node in the table's footprint. A leaf gets its tag.
    #[inline(always)]
    fn fresh(self, edge: Edge, base: usize) -> Fresh<'w, T> {
        let (table, nodes) = (self.table, self.table.nodes());
        let bytes = T::words(edge) * T::W::BYTES;
        if edge.is_leaf() {
            table.tally().leaf(1, bytes);
            let tag = T::L::tag(T::address(base), edge);
            for word in 0..T::TAG {
                let part = T::W::from_usize(tag >> (usize::BITS / 2 * word as u32));
                // SAFETY: the leaf is live and has its tag words, and no walker can reach it.
                unsafe { nodes.word_mut(edge.node, word) }.store_relaxed(part);
            }
        } else {
            table.tally().node(1, bytes);
        }
        Fresh(self.planned(edge, base))
    }

    #[inline(always)]
    fn planned(self, edge: Edge, base: usize) -> Node<'w, T> {
        Node { table: self.table, edge, base: T::L::base(base), right: PhantomData }
    }

    /// Takes a leaf of `2^width` base pages for the page with a key, and, if `split` is the digit of one, an indexing node. Takes
    /// both or none.
    #[inline(always)]
    pub(in crate::gpt) fn take(
        self,
        key: usize,
        width: u32,
        split: Option<(u32, u32)>,
    ) -> Option<(Fresh<'w, T>, Option<Fresh<'w, T>>)> {
        let nodes = self.table.nodes();
        let take = |shift, width, holds| {
            let edge = Edge { node: NodeAddr::new(0), shift, width, holds };
            Some(Edge { node: take_within(nodes, T::words(edge), T::L::REACH)?, ..edge })
        };
        let leaf = take(T::BASE, width, Holds::Ptes)?;
        let upper = match split {
            Some((shift, width)) => {
                // SAFETY: the leaf was just taken, so it is zero.
                let spare = unsafe { Spare::new(nodes, leaf.node) };
                let upper = take(shift, width, Holds::Links)?;
                spare.keep();
                Some(upper)
            }
            None => None,
        };
        let base = |edge: Edge| key & !low(edge.top());
        Some((self.fresh(leaf, base(leaf)), upper.map(|upper| self.fresh(upper, base(upper)))))
    }
}

impl<'w, T: Shape> Fresh<'w, T> {
    /// Stores what a slot leads to.
    #[inline(always)]
    pub(in crate::gpt) fn store(self, index: usize, entry: Option<Node<'w, T>>) {
        let Some(entry) = entry else { return };
        let (slot, words) = (self.slot(index), T::L::words(entry.edge, entry.base));
        for (word, &value) in words.iter().enumerate().take(T::L::WORDS) {
            if let Some(word) = slot.word(word) {
                word.store_relaxed(value);
            }
        }
    }

    /// Returns the node, which is complete.
    #[inline(always)]
    pub(in crate::gpt) fn node(self) -> Node<'w, T> {
        self.0
    }
}

impl<'w, T: Shape> Reserve<'w, T> {
    /// Returns a reserve of no nodes.
    #[inline(always)]
    pub(in crate::gpt) fn new(view: View<'w, T>) -> Self {
        Self { view, stock: Stock::empty(view.table.nodes(), &T::WORDS) }
    }

    /// Returns the supply of a dry run, which counts nodes.
    #[inline(always)]
    pub(in crate::gpt) fn dry(&mut self) -> Supply<'_, 'w, T, false> {
        Supply { view: self.view, stock: &mut self.stock }
    }

    /// Takes the nodes that the dry run has counted.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`]. Then no node is taken.
    #[inline(always)]
    pub(in crate::gpt) fn take(&mut self) -> Result<Supply<'_, 'w, T, true>, Error> {
        self.stock.take_wanted(T::L::REACH)?;
        Ok(Supply { view: self.view, stock: &mut self.stock })
    }
}

impl<'w, T: Shape, const REAL: bool> Supply<'_, 'w, T, REAL> {
    /// Takes a new indexing node.
    #[inline(always)]
    pub(in crate::gpt) fn node(&mut self, shift: u32, width: u32, base: usize) -> Made<'w, T, REAL> {
        self.make(Edge { node: NodeAddr::new(0), shift, width, holds: Holds::Links }, base)
    }

    /// Takes a new leaf of `2^width` pages of `2^page` bytes.
    #[inline(always)]
    pub(in crate::gpt) fn leaf(&mut self, page: u32, width: u32, base: usize) -> Made<'w, T, REAL> {
        self.make(Edge { node: NodeAddr::new(0), shift: page, width, holds: Holds::Ptes }, base)
    }

    /// Returns the digit of an indexing node that is not taken.
    #[inline(always)]
    pub(in crate::gpt) fn no_node(&self, shift: u32, width: u32) -> Made<'w, T, REAL> {
        let edge = Edge { node: NodeAddr::new(0), shift, width, holds: Holds::Links };
        Made(self.view.planned(edge, 0))
    }

    #[inline(always)]
    fn make(&mut self, edge: Edge, base: usize) -> Made<'w, T, REAL> {
        if !REAL {
            self.stock.want(kind(edge));
            return Made(self.view.planned(edge, base));
        }
        // The dry run, which runs the same code, has counted this node.
        let node = self.stock.next(kind(edge));
        debug_assert!(node.is_some(), "the dry run has counted no node for this: {edge:?}");
        match node {
            Some(node) => Made(self.view.fresh(Edge { node, ..edge }, base).0),
            None => Made(self.view.planned(edge, base)),
        }
    }
}

impl<'w, T: Shape, const REAL: bool> Made<'w, T, REAL> {
    /// Returns the node, to be filled; `None` in a dry run.
    #[inline(always)]
    pub(in crate::gpt) fn fresh(self) -> Option<Fresh<'w, T>> {
        (REAL && self.0.addr().get() != 0).then_some(Fresh(self.0))
    }

    /// Returns the node as an entry of a slot.
    #[inline(always)]
    pub(in crate::gpt) fn item(self) -> Item<'w, T, REAL> {
        Item(self.0)
    }

    /// Returns the node to which this node's slot for a key leads, if the change has made that node, too; in a dry run, a node of this
    /// digit.
    #[inline(always)]
    pub(in crate::gpt) fn below(
        self,
        supply: &Supply<'_, 'w, T, REAL>,
        key: usize,
        digit: impl FnOnce() -> (u32, u32),
    ) -> Self {
        match self.fresh().and_then(|node| node.slot_at(key).read()) {
            Some(child) => Self(child),
            None => {
                let (shift, width) = digit();
                supply.no_node(shift, width)
            }
        }
    }
}

impl<'w, T: Shape, const REAL: bool> Item<'w, T, REAL> {
    /// Returns a node or leaf of the table as an entry.
    #[inline(always)]
    pub(in crate::gpt) fn of(node: Node<'w, T>) -> Self {
        Self(node)
    }

    /// Returns the node or leaf; `None` in a dry run.
    #[inline(always)]
    pub(in crate::gpt) fn node(self) -> Option<Node<'w, T>> {
        (REAL && self.0.addr().get() != 0).then_some(self.0)
    }
}
