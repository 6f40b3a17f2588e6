//! Storage that checks every access to a node, and calls hooks after each store of a change or before a load of a walk.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::mem;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use tlbkit_pagetable::Word;
use tlbkit_pagetable::nodes::{Held, NodeAddr, Nodes, Reclaim, Record, Store};

/// The number of words of the dummy node that replaces a free node: more than any table takes.
const SINK: usize = 1 << 12;

/// Storage that watches its users.
///
/// It records which nodes are taken. A node that is freed twice, or as [clean](Reclaim::free) although it is not, is a
/// [fault](Self::fault). If it [watches](Self::watched) accesses, it also records the table that has taken each node. An access
/// to any other node is a fault, reads zeroes and changes nothing. [`at_stores`](Self::at_stores) calls back after every store of
/// a change, [`at_load`](Self::at_load) before one load of a walk.
///
/// A store through a pointer from [`Nodes::at`] that the table does not [tell](Nodes::stored) is detected at the next call of the
/// storage.
pub struct Watching<N: Nodes> {
    inner: N,
    on: bool,
    /// Whether a hook is running. Its own accesses call no hook.
    busy: Cell<bool>,
    store: Cell<Option<NonNull<dyn Fn()>>>,
    load: Cell<Option<NonNull<dyn Fn()>>>,
    /// The number of loads before the one with the hook.
    left: Cell<usize>,
    book: RefCell<Book>,
    sink: Vec<<N::Word as Word>::Cell>,
    record: Record,
}

#[derive(Default)]
struct Book {
    nodes: HashMap<NodeAddr, Taken, BuildHasherDefault<Spread>>,
    /// The table that uses the storage now.
    table: usize,
    /// Operations so far.
    operation: usize,
    returned: usize,
    fault: Option<String>,
}

/// A node that is taken.
struct Taken {
    words: usize,
    table: usize,
    operation: usize,
    walked: bool,
}

/// The accessor of a node: a walker or the writer.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Walker,
    Writer,
}

impl<N: Nodes> Watching<N> {
    /// Wraps a storage of which no node is taken, and does not watch accesses.
    pub fn new(inner: N) -> Self {
        Self::of(inner, false)
    }

    /// Wraps a storage of which no node is taken, and watches accesses.
    pub fn watched(inner: N) -> Self {
        Self::of(inner, true)
    }

    fn of(inner: N, on: bool) -> Self {
        let sink = if on { (0..SINK).map(|_| N::Word::ZERO.cell()).collect() } else { Vec::new() };
        Self {
            inner,
            on,
            busy: Cell::new(false),
            store: Cell::new(None),
            load: Cell::new(None),
            left: Cell::new(0),
            book: RefCell::default(),
            sink,
            record: Record::new(0),
        }
    }

    /// Returns the inner storage.
    pub const fn inner(&self) -> &N {
        &self.inner
    }

    /// Begins an operation on one of several tables, which have numbers.
    pub fn begin(&self, table: usize) {
        let mut book = self.book.borrow_mut();
        book.table = table;
        book.operation += 1;
    }

    /// Returns the number of nodes that have come back although an earlier operation had taken them or a walker had met them.
    pub fn returned(&self) -> usize {
        self.book.borrow().returned
    }

    /// Returns the first fault, in words, and forgets it.
    pub fn fault(&self) -> Option<String> {
        self.book.borrow_mut().fault.take()
    }

    /// Calls `look` after every store that `change` makes, and at its end.
    pub fn at_stores<T>(&self, look: &dyn Fn(), change: impl FnOnce() -> T) -> T {
        let _guard = Hooked::new(&self.store, look);
        let result = change();
        self.look();
        result
    }

    /// Calls `change` once, before load number `loads` of `walk`. Tells whether there was such a load.
    pub fn at_load<T>(&self, loads: usize, change: &dyn Fn(), walk: impl FnOnce() -> T) -> (T, bool) {
        self.left.set(loads);
        let _guard = Hooked::new(&self.load, change);
        let result = walk();
        (result, self.load.get().is_none())
    }

    /// Returns the number of loads of a walk.
    pub fn loads<T>(&self, walk: impl FnOnce() -> T) -> usize {
        self.at_load(usize::MAX, &|| (), walk);
        usize::MAX - self.left.get()
    }

    fn look(&self) {
        if let Some(look) = self.store.get() {
            self.call(look);
        }
    }

    fn call(&self, hook: NonNull<dyn Fn()>) {
        if !self.busy.replace(true) {
            let _idle = Idle(&self.busy);
            // SAFETY: the hook is borrowed as long as it is in its cell: see `Hooked`.
            unsafe { hook.as_ref()() };
        }
    }

    /// Tells whether a node is taken by this table. Records a fault if it is not.
    fn knows(&self, node: NodeAddr, by: By) -> bool {
        if !self.on {
            return true;
        }
        self.book.borrow_mut().knows(node, by)
    }
}

// This type is not generic, so that it is compiled once, and optimized.
impl Book {
    fn knows(&mut self, node: NodeAddr, by: By) -> bool {
        let table = self.table;
        let visitor = || if by == By::Walker { "a walker" } else { "the writer" };
        let (known, fault) = match self.nodes.get_mut(&node) {
            None => {
                (false, format!("{} came to {:#x}, which is no node, or a free one", visitor(), node.get()))
            }
            Some(taken) => {
                taken.walked |= by == By::Walker;
                if taken.table == table {
                    return true;
                }
                let what = format!(
                    "{} of table {table} came to node {:#x}, which belongs to table {}",
                    visitor(),
                    node.get(),
                    taken.table
                );
                (true, what)
            }
        };
        self.fault.get_or_insert(fault);
        known
    }

    fn take(&mut self, node: NodeAddr, words: usize) {
        let taken = Taken { words, table: self.table, operation: self.operation, walked: false };
        self.nodes.insert(node, taken);
    }

    /// Tells whether a node that is added to a batch is taken. Records a fault if it is not.
    fn holds(&mut self, node: NodeAddr) -> bool {
        let is_taken = self.nodes.contains_key(&node);
        if !is_taken {
            self.fault.get_or_insert_with(|| {
                format!(
                    "a batch has node {:#x}, which is no node, or was freed before: it is not the table's",
                    node.get()
                )
            });
        }
        is_taken
    }

    /// Returns the number of words of a node that may be freed. Records a fault if it may not.
    fn free(&mut self, node: NodeAddr) -> Option<usize> {
        let taken = self.nodes.remove(&node);
        if let Some(taken) = &taken {
            self.returned += usize::from(taken.operation < self.operation || taken.walked);
        } else {
            self.fault.get_or_insert_with(|| format!("node {:#x} was freed twice", node.get()));
        }
        taken.map(|taken| taken.words)
    }
}

/// Hashes the address of a node.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn write_usize(&mut self, number: usize) {
        let product = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A guard that removes a hook from its cell when it is dropped.
struct Hooked<'c>(&'c Cell<Option<NonNull<dyn Fn()>>>);

impl<'c> Hooked<'c> {
    fn new(cell: &'c Cell<Option<NonNull<dyn Fn()>>>, hook: &'c dyn Fn()) -> Self {
        // SAFETY: only the lifetime differs, and the pointer is removed from the cell before the lifetime ends.
        let hook =
            unsafe { mem::transmute::<NonNull<dyn Fn() + 'c>, NonNull<dyn Fn()>>(NonNull::from(hook)) };
        cell.set(Some(hook));
        Self(cell)
    }
}

impl Drop for Hooked<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// A guard that records that a hook runs until it is dropped.
struct Idle<'c>(&'c Cell<bool>);

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

// SAFETY: it returns the nodes of the inner storage unchanged. A table that wrongly accesses a free node gets cells that no other
// code uses.
unsafe impl<N: Nodes> Nodes for Watching<N> {
    type Word = N::Word;
    type Mode = N::Mode;

    fn lowest(&self) -> NodeAddr {
        self.inner.lowest()
    }

    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
        let node = self.inner.take_within(words, last)?;
        self.book.borrow_mut().take(node, words);
        Some(node)
    }

    fn room(&self, words: usize) -> usize {
        self.inner.room(words)
    }

    unsafe fn at(&self, node: NodeAddr) -> *const <N::Word as Word>::Cell {
        self.look();
        if !self.knows(node, By::Writer) {
            return self.sink.as_ptr();
        }
        // SAFETY: this function's contract holds for the inner storage.
        unsafe { self.inner.at(node) }
    }

    unsafe fn record(&self, node: NodeAddr, words: usize) -> *const Record {
        if !self.knows(node, By::Writer) {
            return &raw const self.record;
        }
        // SAFETY: this function's contract holds for the inner storage.
        unsafe { self.inner.record(node, words) }
    }

    unsafe fn follow(&self, node: NodeAddr, index: usize) -> N::Word {
        if let Some(change) = self.load.get()
            && !self.busy.get()
        {
            match self.left.get().checked_sub(1) {
                Some(left) => self.left.set(left),
                None => {
                    self.load.set(None);
                    self.call(change);
                }
            }
        }
        if !self.knows(node, By::Walker) {
            return N::Word::ZERO;
        }
        // SAFETY: this function's contract holds for the inner storage.
        unsafe { self.inner.follow(node, index) }
    }

    unsafe fn read(&self, node: NodeAddr, index: usize) -> N::Word {
        if !self.knows(node, By::Writer) {
            return N::Word::ZERO;
        }
        // SAFETY: this function's contract holds for the inner storage.
        unsafe { self.inner.read(node, index) }
    }

    unsafe fn publish(&self, node: NodeAddr, index: usize, word: N::Word) {
        if self.knows(node, By::Writer) {
            // SAFETY: this function's contract holds for the inner storage.
            unsafe { self.inner.publish(node, index, word) };
        }
        self.look();
    }

    unsafe fn store_relaxed(&self, node: NodeAddr, index: usize, word: N::Word) {
        if self.knows(node, By::Writer) {
            // SAFETY: this function's contract holds for the inner storage.
            unsafe { self.inner.store_relaxed(node, index, word) };
        }
        self.look();
    }

    fn stored(&self, store: Store) {
        self.inner.stored(store);
        self.look();
    }

    unsafe fn fill(&self, node: NodeAddr, first: usize, count: usize, mut word: N::Word, step: N::Word) {
        for at in first..first + count {
            // SAFETY: this function's contract is that of `store_relaxed`, for every word.
            unsafe { self.store_relaxed(node, at, word) };
            word = word.advance(step, 1);
        }
    }

    unsafe fn edit(&self, node: NodeAddr, first: usize, count: usize, change: impl Fn(N::Word) -> N::Word) {
        for at in first..first + count {
            // SAFETY: this function's contract is that of `store_relaxed`, for every word.
            unsafe { self.store_relaxed(node, at, change(self.read(node, at))) };
        }
    }
}

// SAFETY: every result is that of the inner storage, except that this wrapper is never `Sync`.
unsafe impl<N: Nodes> Reclaim for Watching<N> {
    unsafe fn free(&self, node: NodeAddr, clean: bool) {
        let words = self.book.borrow_mut().free(node);
        let Some(words) = words else { return };
        // SAFETY: this function's contract holds for the inner storage: no other code is in the node.
        let word = |index: &usize| unsafe { self.inner.read(node, *index) } != N::Word::ZERO;
        let dirty = if clean { (0..words).find(word) } else { None };
        if let Some(index) = dirty {
            self.book.borrow_mut().fault.get_or_insert_with(|| {
                format!(
                    "node {:#x} was given back as clean, which says that all its words are zero, and word {index} of its \
                     {words} is not",
                    node.get()
                )
            });
        }
        // SAFETY: this function's contract holds for the inner storage: no other code is in the node.
        unsafe { self.inner.free(node, clean && dirty.is_none()) };
    }

    unsafe fn link(&self, node: NodeAddr) -> *const Record {
        if !self.book.borrow_mut().holds(node) {
            self.record.store(0, Ordering::Relaxed);
            return &raw const self.record;
        }
        // SAFETY: this function's contract holds for the inner storage.
        unsafe { self.inner.link(node) }
    }

    fn index_of(&self, node: NodeAddr) -> u32 {
        self.inner.index_of(node)
    }

    fn node_of(&self, index: u32) -> NodeAddr {
        self.inner.node_of(index)
    }

    fn shared(&self) -> bool {
        false
    }

    fn held(&self) -> &Held {
        self.inner.held()
    }
}

impl<N: Nodes> fmt::Debug for Watching<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watching").field("inner", &self.inner).field("on", &self.on).finish_non_exhaustive()
    }
}
