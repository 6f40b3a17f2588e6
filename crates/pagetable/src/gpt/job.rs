//! Types that the files of an insertion share: the job, the supply of nodes, and what takes the place of a slot's old contents.

use tlbkit_addr::{Flush, PageSize};

use super::layout::Edge;
use super::slots::KINDS;
use crate::Retired;
use crate::nodes::{NodeAddr, Nodes, Stock};

/// The source of the nodes that an insertion or a step of tuning takes.
pub(super) trait Supply {
    /// Whether the nodes are real. If not, this is a dry run, which writes nothing.
    const REAL: bool;

    /// Takes a node of a kind.
    fn take(&mut self, kind: usize) -> NodeAddr;
}

/// The supply of a dry run: counts the nodes in the stock that will provide them.
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
        // The dry run, which runs the same code, has counted this node.
        let node = self.next(kind);
        debug_assert!(node.is_some(), "the dry run has counted no node of kind {kind} for this");
        node.unwrap_or(NodeAddr::new(0))
    }
}

/// An insertion: the pages' size and PTEs, and the supply of nodes.
pub(super) struct Job<'j, 'n, S, W> {
    pub(super) supply: &'j mut S,
    pub(super) batch: &'j mut Retired<'n>,
    /// The logarithm of the page size.
    pub(super) page: u32,
    /// Whether pages of another size are mapped there, which these pages replace. Otherwise nothing is mapped there.
    pub(super) replaces: bool,
    pub(super) ptes: Ptes<W>,
    /// The closure that flushes every CPU after the old PTEs are emptied and before the new pages are linked.
    pub(super) flush_all_cpus: &'j mut dyn FnMut(&Flush),
}

/// The PTEs of the pages that are inserted.
#[derive(Clone, Copy)]
pub(super) enum Ptes<W> {
    /// The first page's key, and its PTE. Each later PTE is computed from it: the page's frames follow those of the page before.
    Frames(usize, W),
    /// Those of the pages that the new ones, of this size, replace.
    Resized(PageSize),
}

/// The new contents of a slot.
pub(super) enum New {
    /// A subtree, which is to be built in the slot, of this many bits.
    Below(u32),
    /// A new node, in whose slots the part is to be built.
    Open(Edge),
    /// A new node of slots smaller than the pages, which is to be filled with the part and the entries around it.
    Filled(Fresh),
    /// A leaf, which is complete.
    Whole(Edge),
}

/// What happens to the old contents of a slot after the new ones are published.
pub(super) enum Gone {
    /// Nothing: the slot was empty, or the old node or leaf is below the new node.
    Nothing,
    /// A leaf, whose PTEs have been copied, is retired.
    Copied,
    /// A leaf of two pages loses one of them: smaller pages replace it, or a new leaf has it together with the other half.
    Page,
    /// The node or leaf is retired, with everything below it.
    Subtree,
    /// A node that was divided is retired, with the entries that the part replaces.
    Divided,
    /// A node that was built anew is retired, with everything below it to which the new one does not lead.
    Node,
}

/// The entries of a new node beside the pages of a span.
#[derive(Clone, Copy)]
pub(super) enum Around {
    /// Nothing.
    Nothing,
    /// The entries of the node that it replaces.
    Node,
    /// One entry: the node or leaf whose region contains this key. If that is a leaf of a pair, only the page that the span does
    /// not replace.
    Entry(usize),
}

/// A new node to be filled.
#[derive(Clone, Copy)]
pub(super) struct Fresh {
    /// The node. It has no address if it would have one entry only; then the entry takes its place.
    pub(super) node: Edge,
    /// The first key that it covers.
    pub(super) base: usize,
    pub(super) around: Around,
}
