//! Node storage that sees what a table really does: every load of a walk, every live node.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use tlbkit_conformance::Instrumented;
use tlbkit_pagetable::nodes::{Held, NodeAddr, Nodes, Reclaim, Record, Slab, Usage};
use tlbkit_pagetable::{Solo, Word};

/// A slab whose loads are counted and whose live nodes are weighed. What it reports is what the table asked for and
/// did, not what the table says about itself.
#[derive(Debug)]
pub struct Storage<'m, W: Word> {
    slab: Instrumented<'m, W, Solo>,
    /// The bytes of every live node.
    live: RefCell<HashMap<NodeAddr, usize>>,
    bytes: Cell<usize>,
    peak: Cell<usize>,
    refused: Cell<bool>,
    /// The addresses that walks have loaded, while somebody asks for them.
    loaded: RefCell<Option<Vec<u64>>>,
}

impl<'m, W: Word> Storage<'m, W> {
    /// Wraps a slab that nothing has been taken from.
    pub fn new(slab: Slab<'m, W, Solo>) -> Self {
        let slab = Instrumented::new(slab);
        let (live, loaded) = (RefCell::default(), RefCell::default());
        Self { slab, live, bytes: Cell::new(0), peak: Cell::new(0), refused: Cell::new(false), loaded }
    }

    /// Returns the addresses that walks have loaded since the last call; none at the first, which begins to keep them.
    pub fn loaded(&self) -> Vec<u64> {
        self.loaded.replace(Some(Vec::new())).unwrap_or_default()
    }

    /// Returns how many words walks have loaded so far.
    pub fn loads(&self) -> u64 {
        self.slab.loads() as u64
    }

    /// Returns the bytes of all live nodes, as large as they were asked for.
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Returns the most that [`bytes`](Self::bytes) has been.
    pub fn peak(&self) -> usize {
        self.peak.get()
    }

    /// Tells whether there was no memory for a node.
    pub fn refused(&self) -> bool {
        self.refused.get()
    }

    /// Returns how many live nodes there are of each size in bytes.
    pub fn sizes(&self) -> BTreeMap<usize, usize> {
        let mut sizes = BTreeMap::new();
        for &bytes in self.live.borrow().values() {
            *sizes.entry(bytes).or_default() += 1;
        }
        sizes
    }

    /// Returns what the nodes take of the slab's memory, its own overhead included.
    pub fn usage(&self) -> Usage {
        self.slab.slab().usage()
    }
}

// SAFETY: every call goes to the slab, which keeps the promises; weighing touches no node.
unsafe impl<W: Word> Nodes for Storage<'_, W> {
    type Word = W;
    type Mode = Solo;

    fn lowest(&self) -> NodeAddr {
        self.slab.lowest()
    }

    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
        let node = self.slab.take_within(words, last);
        self.refused.set(self.refused.get() || node.is_none());
        let node = node?;
        let bytes = words * W::BYTES;
        self.live.borrow_mut().insert(node, bytes);
        self.bytes.set(self.bytes.get() + bytes);
        self.peak.set(self.peak.get().max(self.bytes.get()));
        Some(node)
    }

    fn at(&self, node: NodeAddr) -> *const W::Cell {
        self.slab.at(node)
    }

    fn record_at(&self, node: NodeAddr, words: usize) -> *const Record {
        self.slab.record_at(node, words)
    }

    fn walked_at(&self, node: NodeAddr, index: usize) -> *const W::Cell {
        if let Some(loaded) = &mut *self.loaded.borrow_mut() {
            loaded.push((node.get() + index * W::BYTES) as u64);
        }
        self.slab.walked_at(node, index)
    }
}

// SAFETY: every call goes to the slab, which keeps the promises; weighing touches no node.
unsafe impl<W: Word> Reclaim for Storage<'_, W> {
    unsafe fn free(&self, node: NodeAddr, clean: bool) {
        let bytes = self.live.borrow_mut().remove(&node).unwrap_or(0);
        self.bytes.set(self.bytes.get() - bytes);
        // SAFETY: the caller's promise.
        unsafe { self.slab.free(node, clean) };
    }

    unsafe fn link(&self, node: NodeAddr) -> *const Record {
        // SAFETY: the caller's promise.
        unsafe { self.slab.link(node) }
    }

    fn index_of(&self, node: NodeAddr) -> u32 {
        self.slab.index_of(node)
    }

    fn node_of(&self, index: u32) -> NodeAddr {
        self.slab.node_of(index)
    }

    fn shared(&self) -> bool {
        false
    }

    fn held(&self) -> &Held {
        self.slab.held()
    }
}
