//! What the files of an insertion share: the job, the supply of nodes, and what a step puts in the place of what.

use tlbkit_addr::Flush;

use super::layout::Edge;
use super::slots::KINDS;
use crate::Retired;
use crate::nodes::{NodeAddr, Nodes, Stock};

/// Where nodes come from.
pub(super) trait Supply {
    /// Whether the nodes are real; if not nothing is written.
    const REAL: bool;

    /// Takes a node of a kind.
    fn take(&mut self, kind: usize) -> NodeAddr;
}

/// A supply that counts, in the stock that will have the nodes.
pub(super) struct Count<'s, 'n, N: Nodes>(pub(super) &'s mut Stock<'n, N, KINDS>);

impl<N: Nodes> Supply for Count<'_, '_, N> {
    const REAL: bool = false;

    fn take(&mut self, kind: usize) -> NodeAddr {
        self.0.want(kind);
        // Any address that is not zero: a dry run follows none.
        NodeAddr::new(1)
    }
}

impl<N: Nodes> Supply for Stock<'_, N, KINDS> {
    const REAL: bool = true;

    fn take(&mut self, kind: usize) -> NodeAddr {
        // The dry run, which is the same code, has counted it.
        let node = self.next(kind);
        debug_assert!(node.is_some(), "the dry run has counted no node of kind {kind} for this");
        node.unwrap_or(NodeAddr::new(0))
    }
}

/// What to map.
pub(super) struct Job<'j, 'n, S, W> {
    pub(super) supply: &'j mut S,
    pub(super) batch: &'j mut Retired<'n>,
    /// The logarithm of the page size.
    pub(super) page: u32,
    /// Whether what is mapped there with another size is replaced. Otherwise nothing is mapped there.
    pub(super) replaces: bool,
    /// The PTE of the page at an address.
    pub(super) word: W,
    /// The closure that makes a break known before the new pages are linked.
    pub(super) broken: &'j mut dyn FnMut(&Flush),
}

/// What takes the place of what a slot leads to.
pub(super) enum New {
    /// What is to be built in the slot, of this many bits.
    Below(u32),
    /// A new node, in which the part is to be built.
    Open(Edge),
    /// A new node of slots smaller than the pages, which is to be filled with the part and what is around it.
    Filled(Fresh),
    /// A leaf or node that is complete.
    Whole(Edge),
}

/// What becomes of what a slot led to, once the slot leads to something else.
pub(super) enum Gone {
    /// It stays below the new node, or is taken care of.
    Nothing,
    /// A leaf whose PTEs have been copied.
    Copied,
    /// A leaf of two pages loses one: smaller pages replace it, or a new leaf has it together with the other half.
    Page,
    /// Everything below goes.
    Subtree,
    /// A node that was divided goes, with what the part replaces.
    Divided,
    /// A node goes, with everything below it that the new one does not lead to.
    Node,
}

/// What a new node leads to beside the pages of a span.
#[derive(Clone, Copy)]
pub(super) enum Around {
    /// Nothing.
    Nothing,
    /// What the node led to that stood in its place.
    Node,
    /// A node or leaf, in which this key is. Of a pair, the page that the span leaves alone.
    Entry(usize),
}

/// A new node to be filled.
#[derive(Clone, Copy)]
pub(super) struct Fresh {
    /// The node; without an address if it will have one entry, which takes its place.
    pub(super) node: Edge,
    /// The first key that it covers.
    pub(super) base: usize,
    pub(super) around: Around,
}
