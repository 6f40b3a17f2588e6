//! Types that the files of an insertion share: the job, and what takes the place of a slot's old contents.

use tlbkit_addr::{Flush, PageSize};

use super::node::{Made, Node, Supply};
use super::shape::Shape;
use super::visit::Span;

/// What is to be inserted: the pages' size and PTEs.
pub(super) struct Order<'j, W> {
    size: PageSize,
    /// Whether pages of another size are mapped there, which these pages replace. Otherwise nothing is mapped there.
    replaces: bool,
    ptes: Ptes<W>,
    /// The closure that flushes every CPU after the old PTEs are emptied and before the new pages are linked.
    flush_all_cpus: &'j mut dyn FnMut(&Flush),
}

impl<'j, W> Order<'j, W> {
    /// Returns an order for pages where nothing is mapped, or, if their PTEs are [`Resized`](Ptes::Resized), for pages that replace
    /// others.
    pub(super) fn new(size: PageSize, ptes: Ptes<W>, flush_all_cpus: &'j mut dyn FnMut(&Flush)) -> Self {
        Self { size, replaces: matches!(ptes, Ptes::Resized(_)), ptes, flush_all_cpus }
    }

    /// Returns the logarithm of the page size.
    pub(super) const fn page(&self) -> u32 {
        self.size.shift()
    }

    /// Tells whether the pages replace others.
    pub(super) const fn replaces(&self) -> bool {
        self.replaces
    }
}

/// An insertion: the order, and the supply of nodes.
pub(super) struct Job<'j, 'w, T: Shape, const REAL: bool> {
    pub(super) supply: Supply<'j, 'w, T, REAL>,
    /// The logarithm of the page size.
    pub(super) page: u32,
    pub(super) replaces: bool,
    pub(super) ptes: Ptes<T::W>,
    pub(super) flush_all_cpus: &'j mut dyn FnMut(&Flush),
}

impl<'j, 'w, T: Shape, const REAL: bool> Job<'j, 'w, T, REAL> {
    /// Returns the job of an order.
    pub(super) fn new(supply: Supply<'j, 'w, T, REAL>, order: &'j mut Order<'_, T::W>) -> Self {
        let Order { replaces, ptes, .. } = *order;
        Self { supply, page: order.page(), replaces, ptes, flush_all_cpus: &mut *order.flush_all_cpus }
    }
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
pub(super) enum New<'w, T: Shape, const REAL: bool> {
    /// A subtree, which is to be built in the slot, of this many bits.
    Below(u32),
    /// A new node, in whose slots the part is to be built.
    Open(Made<'w, T, REAL>),
    /// A new node of slots smaller than the pages, which is to be filled with the part and the entries around it.
    Filled(Filling<'w, T, REAL>),
    /// A leaf, which is complete.
    Whole(Made<'w, T, REAL>),
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
pub(super) enum Around<'w, T: Shape> {
    /// Nothing.
    Nothing,
    /// The entries of the node that it replaces.
    Node(Node<'w, T>),
    /// One entry: the node or leaf whose region contains this key. If that is a leaf of a pair, only the page that the span does
    /// not replace.
    Entry(Node<'w, T>, usize),
}

/// A new node to be filled with the pages of a span.
pub(super) struct Filling<'w, T: Shape, const REAL: bool> {
    pub(super) node: Made<'w, T, REAL>,
    /// Whether the node would have one entry. Then no node is taken, and the entry itself takes the node's place.
    pub(super) lone: bool,
    /// The first key that the node covers.
    pub(super) base: usize,
    pub(super) around: Around<'w, T>,
    pub(super) span: Span,
}
