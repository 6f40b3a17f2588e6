//! Node storage for the model checker: nodes of loom's atomics, which are never reused, so that an access to a freed node is
//! detected.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tlbkit_pagetable::nodes::{Held, NodeAddr, Nodes, Reclaim, Record};
use tlbkit_pagetable::{Shared, Word};

/// A node that was taken.
#[derive(Debug)]
struct Node<W: Word> {
    cells: Box<[W::Cell]>,
    record: Box<Record>,
    freed: AtomicBool,
}

/// Storage that checks accesses to its nodes. Its lock and flags are not loom's, so that they add no interleavings.
#[derive(Debug)]
pub struct Watched<W: Word = u64> {
    nodes: Mutex<Vec<Node<W>>>,
    out: AtomicUsize,
    held: Held,
}

impl<W: Word> Default for Watched<W> {
    fn default() -> Self {
        Self { nodes: Mutex::default(), out: AtomicUsize::default(), held: Held::default() }
    }
}

/// The binary logarithm of the distance between nodes: a page, the largest alignment that a table needs.
const SHIFT: u32 = 12;

impl<W: Word> Watched<W> {
    /// Returns the number of nodes that are taken and not freed.
    pub fn out(&self) -> usize {
        self.out.load(Ordering::Relaxed)
    }

    fn with<T>(&self, node: NodeAddr, f: impl FnOnce(&Node<W>) -> T) -> T {
        let nodes = self.nodes.lock().unwrap();
        let node = &nodes[(node.get() >> SHIFT) - 1];
        assert!(!node.freed.load(Ordering::Relaxed), "a walker is in a freed node");
        f(node)
    }
}

// SAFETY: every node is new, with cells and a record of its own, and its memory is freed only when the storage is dropped.
unsafe impl<W: Word> Nodes for Watched<W> {
    type Word = W;
    type Mode = Shared;

    fn lowest(&self) -> NodeAddr {
        NodeAddr::new(1 << SHIFT)
    }

    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
        let cells = (0..words).map(|_| W::ZERO.cell()).collect();
        let node = Node { cells, record: Box::new(Record::new(0)), freed: AtomicBool::new(false) };
        let mut nodes = self.nodes.lock().unwrap();
        let at = (nodes.len() + 1) << SHIFT;
        if at + (1 << SHIFT) - 1 > last {
            return None;
        }
        nodes.push(node);
        self.out.fetch_add(1, Ordering::Relaxed);
        Some(NodeAddr::new(at))
    }

    fn at(&self, node: NodeAddr) -> *const W::Cell {
        self.with(node, |node| node.cells.as_ptr())
    }

    fn record_at(&self, node: NodeAddr, words: usize) -> *const Record {
        self.with(node, |node| {
            let has = node.cells.len();
            assert!(words == has, "the table says that a node of {has} words has {words}");
            &raw const *node.record
        })
    }
}

// SAFETY: the record is the one that `record` returns; the numbers count nodes from one; all fields are `Sync`.
unsafe impl<W: Word> Reclaim for Watched<W> {
    unsafe fn free(&self, node: NodeAddr, clean: bool) {
        // SAFETY: by this function's contract the node is taken, and no other code is in it. The model checker reports a store that
        // is not ordered with these loads.
        let word = |index: &usize| unsafe { self.word_mut(node, *index) }.read() != W::ZERO;
        let dirty = (0..self.with(node, |node| node.cells.len())).find(word);
        if let Some(index) = dirty.filter(|_| clean) {
            panic!(
                "a node was given back as clean, which says that all its words are zero, and word {index} is not"
            );
        }
        self.with(node, |node| node.freed.store(true, Ordering::Relaxed));
        self.out.fetch_sub(1, Ordering::Relaxed);
    }

    unsafe fn link(&self, node: NodeAddr) -> *const Record {
        self.with(node, |node| &raw const *node.record)
    }

    fn index_of(&self, node: NodeAddr) -> u32 {
        (node.get() >> SHIFT) as u32
    }

    fn node_of(&self, index: u32) -> NodeAddr {
        NodeAddr::new((index as usize) << SHIFT)
    }

    fn shared(&self) -> bool {
        true
    }

    fn held(&self) -> &Held {
        &self.held
    }
}
