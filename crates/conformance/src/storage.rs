//! Storage with instruments: it refuses nodes, counts loads, unwinds, corrupts a store, and checks every access to a node.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use tlbkit_pagetable::nodes::{Held, NodeAddr, Nodes, Reclaim, Record, Slab, Store, WordMut};
use tlbkit_pagetable::{Mode, Shared, Solo, Word};

mod book;
mod trip;

pub use trip::Trip;

use self::book::{Book, By, Taken};
use self::trip::{DONE, NEVER, count_down};

/// The number of words of the dummy node that replaces a free node: more than any table takes.
const SINK: usize = 1 << 12;

/// A [`Slab`] with [`Instruments`], which it [derefs](Deref) to.
///
/// The instruments are those of the thread that has made the storage. Calls of other threads go to the slab, unobserved, so that
/// walkers on other threads run as they do without instruments.
///
/// ```
/// use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr};
/// use tlbkit_conformance::Instrumented;
/// use tlbkit_pagetable::nodes::{Chunk, Slab};
/// use tlbkit_pagetable::{Error, Local, Solo, mpt};
///
/// let mut memory = vec![Chunk::ZERO; 16];
/// let nodes = Instrumented::new(Slab::<u64, Solo>::new(&mut memory, 0)?);
/// let mut table = Local::new(mpt::Mpt4::new(&nodes)?, |_flush| ());
/// let (at, frame) = (VirtAddr::new(0x40_0000), Pfn::new(3));
/// let page = Pages::one(at.vpn(PageSize::K4));
///
/// // The second of the three nodes that the map takes is refused.
/// nodes.fail_at(1);
/// assert!(matches!(table.map(page, frame, PageSize::K4, Attr::READ), Err(Error::NoMemory { .. })));
/// assert!(nodes.failed() && nodes.out() == 1);
///
/// table.map(page, frame, PageSize::K4, Attr::READ)?;
/// assert_eq!(nodes.loads_of(|| table.lookup(at)).1, 4);
/// table.destroy();
/// assert_eq!((nodes.out(), nodes.fault()), (0, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Instrumented<'m, W: Word, M: Mode> {
    slab: Slab<'m, W, M>,
    own: Own<Instruments>,
    /// The cells of the dummy node, if accesses are watched.
    sink: Vec<W::Cell>,
}

impl<'m, W: Word, M: Mode> Instrumented<'m, W, M> {
    /// Wraps a slab of which no node is taken.
    pub fn new(slab: Slab<'m, W, M>) -> Self {
        Self { slab, own: Own::new(Instruments::new(false)), sink: Vec::new() }
    }

    /// Wraps a slab of which no node is taken, and watches accesses.
    pub fn watched(slab: Slab<'m, W, M>) -> Self {
        let sink = (0..SINK).map(|_| W::ZERO.cell()).collect();
        Self { slab, own: Own::new(Instruments::new(true)), sink }
    }

    /// Returns the slab.
    pub const fn slab(&self) -> &Slab<'m, W, M> {
        &self.slab
    }
}

impl<W: Word, M: Mode> Deref for Instrumented<'_, W, M> {
    type Target = Instruments;

    /// # Panics
    ///
    /// On another thread than the one that has made the storage.
    fn deref(&self) -> &Instruments {
        self.own.get().expect("the instruments are those of the thread that has made the storage")
    }
}

impl<W: Word, M: Mode> fmt::Debug for Instrumented<'_, W, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instrumented").field("slab", &self.slab).finish_non_exhaustive()
    }
}

/// A value that only the thread that has made it can use.
struct Own<T> {
    thread: usize,
    value: T,
}

// SAFETY: `get` returns a reference to the value only on the thread that has made it.
unsafe impl<T: Send> Sync for Own<T> {}

impl<T> Own<T> {
    fn new(value: T) -> Self {
        Self { thread: thread(), value }
    }

    fn get(&self) -> Option<&T> {
        (thread() == self.thread).then_some(&self.value)
    }
}

/// Returns the number of the current thread, which no other thread has. It costs less than a [`ThreadId`](std::thread::ThreadId).
fn thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// What an [`Instrumented`] storage does and records.
///
/// - It refuses one chosen node, or all beyond a limit: [`fail_at`](Self::fail_at), [`limit`](Self::limit).
/// - It counts nodes and the words that walkers load: [`out`](Self::out), [`loads`](Self::loads).
/// - Its [`trip`](Self::trip) unwinds a call of `take` or `free`.
/// - It corrupts a store: [`plant`](Self::plant).
/// - A node that is freed twice, or as [clean](Reclaim::free) although it is not, is a [fault](Self::fault). If it
///   [watches](Instrumented::watched) accesses, it also records the table that has taken each node. An access to any other node
///   is a fault, reads zeroes and changes nothing.
/// - [`at_stores`](Self::at_stores) calls back after every store of a change, [`at_accesses`](Self::at_accesses) before
///   every access of the writer, [`at_loads`](Self::at_loads) before some loads of a walk.
///   A store through a pointer from [`Nodes::at`] that the table does not [tell](Nodes::stored) is detected after the next store.
// This type is not generic, so that it is compiled once, and optimized.
pub struct Instruments {
    /// The number of takes that succeed before the one that fails.
    takes: Cell<usize>,
    out: Cell<usize>,
    limit: Cell<usize>,
    /// The words of the largest node that can be taken.
    most: Cell<usize>,
    trip: Trip,
    loads: Cell<usize>,
    touched: Cell<usize>,
    last: Cell<(NodeAddr, usize)>,
    watched: bool,
    /// Whether the writer's last access was one of a node that its table has taken.
    is_known: Cell<bool>,
    /// Whether a hook is running. Its own accesses call no hook.
    busy: Cell<bool>,
    store: Cell<Option<Hook<()>>>,
    access: Cell<Option<Hook<()>>>,
    load: Cell<Option<Hook<usize>>>,
    /// The number of loads before the one with the hook.
    left: Cell<usize>,
    book: RefCell<Book>,
    /// Whether a fault is planted.
    plants: Cell<bool>,
    plan: RefCell<Option<Plan>>,
    record: Record,
}

/// A fault in the store of a PTE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An unmap loses its store: the old translation remains, and a second clear of the entry does not remove it.
    Stale,
    /// A map loses its store: the translation never appears.
    Lost,
    /// A map stores the wrong frame: one bit of its number is flipped.
    Wrong,
}

/// A fault that is planted.
struct Plan {
    fault: Fault,
    /// The number of correct stores before the corrupted one.
    left: Cell<usize>,
    /// The entry whose clearing store was lost. A table may clear an entry twice, and the second store must not repair the fault.
    stale: Option<(NodeAddr, usize)>,
    bit: u64,
    pte: fn(u64) -> bool,
}

/// A closure that is borrowed while it is in a cell.
type Hook<T> = NonNull<dyn Fn() -> T>;

// SAFETY: the hooks are pointers to closures only during a call on the thread that owns the instruments, which therefore does not
// send them. Every other field is `Send`.
unsafe impl Send for Instruments {}

impl fmt::Debug for Instruments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instruments").field("out", &self.out).finish_non_exhaustive()
    }
}

impl Instruments {
    fn new(watched: bool) -> Self {
        Self {
            takes: Cell::new(NEVER),
            out: Cell::new(0),
            limit: Cell::new(usize::MAX),
            most: Cell::new(usize::MAX),
            trip: Trip::new(),
            loads: Cell::new(0),
            touched: Cell::new(0),
            last: Cell::new((NodeAddr::new(0), 0)),
            watched,
            is_known: Cell::new(true),
            busy: Cell::new(false),
            store: Cell::new(None),
            access: Cell::new(None),
            load: Cell::new(None),
            left: Cell::new(0),
            book: RefCell::default(),
            plants: Cell::new(false),
            plan: RefCell::new(None),
            record: Record::new(0),
        }
    }

    /// Lets `takes` nodes be taken from now on, and refuses the next one. Those after it succeed again.
    pub fn fail_at(&self, takes: usize) {
        self.takes.set(takes);
    }

    /// Cancels the planned failure, and tells whether it has happened.
    pub fn failed(&self) -> bool {
        self.takes.replace(NEVER) == DONE
    }

    /// Refuses a take while `nodes` nodes are taken, as memory of a fixed size does.
    pub fn limit(&self, nodes: usize) {
        self.limit.set(nodes);
    }

    /// Refuses nodes of more than `words` words.
    pub fn limit_words(&self, words: usize) {
        self.most.set(words);
    }

    /// Returns the number of nodes that are taken and not freed.
    pub fn out(&self) -> usize {
        self.out.get()
    }

    /// Returns the count-down that `take` and `free` are calls of. A call that unwinds changes nothing.
    pub const fn trip(&self) -> &Trip {
        &self.trip
    }

    /// Returns the number of words that walks have loaded so far. The writer's own loads are not counted.
    pub fn loads(&self) -> usize {
        self.loads.get()
    }

    /// Returns the result of a walk, and the number of words that it has loaded.
    pub fn loads_of<T>(&self, walk: impl FnOnce() -> T) -> (T, usize) {
        let before = self.loads();
        let result = walk();
        (result, self.loads().wrapping_sub(before))
    }

    /// Returns the number of words that were touched so far: loaded, stored, or cleared when a node was taken. Words that are
    /// accessed through one pointer from [`Nodes::at`] count as one.
    pub fn touched(&self) -> usize {
        self.touched.get()
    }

    /// Returns the node and the word that a walk has loaded last.
    pub fn last(&self) -> (NodeAddr, usize) {
        self.last.get()
    }

    /// Corrupts the store of a PTE that follows `stores` stores of its kind. `bit` is the bit that [`Fault::Wrong`] flips: a
    /// format's [`STEP`](tlbkit_pagetable::format::Format::STEP) is the lowest bit of a frame number. `pte` tells whether a word
    /// is a PTE.
    ///
    /// Only stores of PTEs are corrupted, never those of links: a wrong link is a wild pointer, which no check survives. So the
    /// caller decides which words are PTEs. In a table whose frame numbers differ from the addresses of its nodes, for example, a
    /// PTE is a word whose [`Format::frame`](tlbkit_pagetable::format::Format::frame) is one of the table's frames.
    pub fn plant(&self, fault: Fault, stores: usize, bit: u64, pte: fn(u64) -> bool) {
        self.plants.set(true);
        *self.plan.borrow_mut() = Some(Plan { fault, left: Cell::new(stores), stale: None, bit, pte });
    }

    /// Tells whether the planted fault has happened.
    pub fn planted(&self) -> bool {
        self.plan.borrow().as_ref().is_some_and(|plan| plan.left.get() == DONE)
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

    /// Calls `look` before every access of the writer to a word while `change` runs, as an MMU beside the writer may act.
    pub fn at_accesses<T>(&self, look: &dyn Fn(), change: impl FnOnce() -> T) -> T {
        let _guard = Hooked::new(&self.access, look);
        change()
    }

    /// Calls `change` before load number `loads` of `walk`. `change` returns the number of loads until its next call, or
    /// `usize::MAX` if that is all. Its own loads are not counted down.
    pub fn at_loads<T>(&self, loads: usize, change: &dyn Fn() -> usize, walk: impl FnOnce() -> T) -> T {
        self.left.set(loads);
        let _guard = Hooked::new(&self.load, change);
        walk()
    }

    /// Tells whether the next node may be taken.
    fn lets_take(&self, words: usize) -> bool {
        if count_down(&self.takes) || self.out() >= self.limit.get() || words > self.most.get() {
            return false;
        }
        self.trip.call();
        true
    }

    fn taken(&self, node: NodeAddr, words: usize) {
        self.touch(words);
        self.out.set(self.out() + 1);
        let mut book = self.book.borrow_mut();
        let taken = Taken { words, table: book.table, operation: book.operation, walked: false };
        book.nodes.insert(node, taken);
    }

    /// Returns the number of words of a node that may be freed. Records a fault if it may not.
    fn frees(&self, node: NodeAddr) -> Option<usize> {
        let mut book = self.book.borrow_mut();
        let taken = book.nodes.remove(&node);
        if let Some(taken) = &taken {
            book.returned += usize::from(taken.operation < book.operation || taken.walked);
        } else {
            book.fault.get_or_insert_with(|| format!("node {:#x} was freed twice", node.get()));
        }
        taken.map(|taken| taken.words)
    }

    fn is_dirty(&self, node: NodeAddr, index: usize, words: usize) {
        // A planted fault may have left a node dirty that its table has cleared.
        if self.plants.get() {
            return;
        }
        self.book.borrow_mut().fault.get_or_insert_with(|| {
            format!(
                "node {:#x} was given back as clean, which says that all its words are zero, and word {index} of its {words} is \
                 not",
                node.get()
            )
        });
    }

    /// Tells whether a node that is added to a batch is taken. Records a fault if it is not.
    fn holds(&self, node: NodeAddr) -> bool {
        let mut book = self.book.borrow_mut();
        let is_taken = book.nodes.contains_key(&node);
        if !is_taken {
            book.fault.get_or_insert_with(|| {
                format!(
                    "a batch has node {:#x}, which is no node, or was freed before: it is not the table's",
                    node.get()
                )
            });
        }
        is_taken
    }

    /// Tells whether a node is taken by this table. Records a fault if it is not.
    fn knows(&self, node: NodeAddr, by: By) -> bool {
        !self.watched || self.book.borrow_mut().knows(node, by)
    }

    fn touch(&self, words: usize) {
        self.touched.set(self.touched.get().wrapping_add(words));
    }

    /// Begins an access of the writer to words. Tells whether the node is taken by the writer's table.
    fn writes(&self, node: NodeAddr) -> bool {
        self.touch(1);
        self.run(&self.access);
        self.is_known.set(self.knows(node, By::Writer));
        self.is_known.get()
    }

    fn look(&self) {
        self.run(&self.store);
    }

    fn run(&self, hook: &Cell<Option<Hook<()>>>) {
        if let Some(hook) = hook.get()
            && !self.busy.get()
        {
            // SAFETY: the hook is borrowed as long as it is in its cell: see `Hooked`.
            self.alone(|| unsafe { hook.as_ref()() });
        }
    }

    /// Calls a hook, whose own accesses call no hook.
    fn alone<T>(&self, hook: impl FnOnce() -> T) -> T {
        self.busy.set(true);
        let _idle = Idle(&self.busy);
        hook()
    }

    /// Begins a load of a walk. Tells whether the node is taken by the walker's table.
    fn walks(&self, node: NodeAddr, index: usize) -> bool {
        self.touch(1);
        self.loads.set(self.loads.get().wrapping_add(1));
        self.last.set((node, index));
        if let Some(change) = self.load.get()
            && !self.busy.get()
        {
            match self.left.get() {
                usize::MAX => {}
                // SAFETY: the hook is borrowed as long as it is in its cell: see `Hooked`.
                0 => self.left.set(self.alone(|| unsafe { change.as_ref()() })),
                left => self.left.set(left - 1),
            }
        }
        self.knows(node, By::Walker)
    }

    /// Returns the word to store instead of `word`, or `None` if the store is lost.
    fn corrupt(&self, entry: (NodeAddr, usize), old: u64, word: u64) -> Option<u64> {
        let mut plan = self.plan.borrow_mut();
        let Some(plan) = &mut *plan else { return Some(word) };
        let hit = match plan.fault {
            Fault::Stale => !(plan.pte)(word) && (plan.pte)(old),
            Fault::Lost | Fault::Wrong => (plan.pte)(word),
        };
        if hit && plan.stale == Some(entry) {
            return None;
        }
        if !hit || !count_down(&plan.left) {
            return Some(word);
        }
        if plan.fault == Fault::Stale {
            plan.stale = Some(entry);
        }
        (plan.fault == Fault::Wrong).then_some(word ^ plan.bit)
    }
}

/// A guard that removes a hook from its cell when it is dropped.
struct Hooked<'c, T: 'static>(&'c Cell<Option<Hook<T>>>);

impl<'c, T> Hooked<'c, T> {
    fn new(cell: &'c Cell<Option<Hook<T>>>, hook: &'c dyn Fn() -> T) -> Self {
        // SAFETY: only the lifetime differs, and the pointer is removed from the cell before the lifetime ends.
        let hook = unsafe { mem::transmute::<NonNull<dyn Fn() -> T + 'c>, Hook<T>>(NonNull::from(hook)) };
        cell.set(Some(hook));
        Self(cell)
    }
}

impl<T> Drop for Hooked<'_, T> {
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

// SAFETY: the nodes are those of the slab. A table that wrongly accesses a free node gets cells that no other code uses. A planted
// fault changes a PTE and no link.
unsafe impl<W: Word, M: Mode> Nodes for Instrumented<'_, W, M> {
    type Word = W;
    type Mode = M;

    fn lowest(&self) -> NodeAddr {
        self.slab.lowest()
    }

    fn take_within(&self, words: usize, last: usize) -> Option<NodeAddr> {
        let Some(tools) = self.own.get() else { return self.slab.take_within(words, last) };
        let node = tools.lets_take(words).then(|| self.slab.take_within(words, last))??;
        tools.taken(node, words);
        Some(node)
    }

    fn room(&self, words: usize) -> usize {
        self.slab.room(words)
    }

    // Each access of the writer is observed, and each of its stores may be the corrupted one.
    const WORD_BY_WORD: bool = true;

    fn at(&self, node: NodeAddr) -> *const W::Cell {
        match self.own.get() {
            Some(tools) if !tools.writes(node) => self.sink.as_ptr(),
            _ => self.slab.at(node),
        }
    }

    fn walked_at(&self, node: NodeAddr, index: usize) -> *const W::Cell {
        match self.own.get() {
            Some(tools) if !tools.walks(node, index) => {
                // A store of the writer may have come to the dummy node.
                self.sink.get(index).inspect(|cell| W::store_relaxed(cell, W::ZERO));
                self.sink.as_ptr()
            }
            _ => self.slab.at(node),
        }
    }

    fn record_at(&self, node: NodeAddr, words: usize) -> *const Record {
        match self.own.get() {
            Some(tools) if !tools.knows(node, By::Writer) => &raw const tools.record,
            _ => self.slab.record_at(node, words),
        }
    }

    fn storing(&self, at: WordMut<'_, Self>, word: W) -> Option<W> {
        let Some(tools) = self.own.get() else { return Some(word) };
        if !tools.is_known.get() {
            return None;
        }
        if !tools.plants.get() {
            return Some(word);
        }
        let entry = (at.node(), at.index());
        // SAFETY: the word is one of a node of the slab, and the holder of the handle is its only writer.
        let old = unsafe { self.slab.word_mut(entry.0, entry.1) }.read();
        tools.corrupt(entry, old.to_u64(), word.to_u64()).map(W::from_u64)
    }

    fn stored(&self, store: Store) {
        self.slab.stored(store);
        if let Some(tools) = self.own.get()
            && matches!(store, Store::Word { .. } | Store::Exchange { .. })
        {
            tools.look();
        }
    }
}

// SAFETY: the records, numbers and the tally are the slab's. If the slab is `Sync`, so is this storage: the instruments are their
// thread's alone, and the cells of the dummy node are atomic.
unsafe impl<W: Word, M: Mode> Reclaim for Instrumented<'_, W, M> {
    unsafe fn free(&self, node: NodeAddr, clean: bool) {
        let Some(tools) = self.own.get() else {
            // SAFETY: this function's contract holds for the slab.
            return unsafe { self.slab.free(node, clean) };
        };
        let Some(words) = tools.frees(node) else { return };
        // SAFETY: this function's contract holds for the slab: no other code is in the node.
        let word = |index: &usize| unsafe { self.slab.word_mut(node, *index) }.read() != W::ZERO;
        let dirty = if clean { (0..words).find(word) } else { None };
        if let Some(index) = dirty {
            tools.is_dirty(node, index, words);
        }
        tools.trip.call();
        // SAFETY: this function's contract holds for the slab: no other code is in the node.
        unsafe { self.slab.free(node, clean && dirty.is_none()) };
        // The count comes last, because the call above may unwind.
        tools.out.set(tools.out() - 1);
    }

    unsafe fn link(&self, node: NodeAddr) -> *const Record {
        match self.own.get() {
            Some(tools) if !tools.holds(node) => {
                tools.record.store(0, Ordering::Relaxed);
                &raw const tools.record
            }
            // SAFETY: this function's contract holds for the slab.
            _ => unsafe { self.slab.link(node) },
        }
    }

    fn index_of(&self, node: NodeAddr) -> u32 {
        self.slab.index_of(node)
    }

    fn node_of(&self, index: u32) -> NodeAddr {
        self.slab.node_of(index)
    }

    fn shared(&self) -> bool {
        self.slab.shared()
    }

    fn held(&self) -> &Held {
        self.slab.held()
    }
}

/// Returns the functions of every storage, so that they are compiled in this crate, optimized, and not in each that uses them.
#[doc(hidden)]
pub fn compiled() -> Vec<[*const (); 8]> {
    fn of<W: Word, M: Mode>() -> [*const (); 8] {
        type N<W, M> = Instrumented<'static, W, M>;
        [
            N::<W, M>::take_within as fn(&N<W, M>, usize, usize) -> Option<NodeAddr> as *const (),
            N::<W, M>::at as fn(&N<W, M>, NodeAddr) -> *const W::Cell as *const (),
            N::<W, M>::walked_at as fn(&N<W, M>, NodeAddr, usize) -> *const W::Cell as *const (),
            N::<W, M>::record_at as fn(&N<W, M>, NodeAddr, usize) -> *const Record as *const (),
            N::<W, M>::storing as fn(&N<W, M>, WordMut<'_, N<W, M>>, W) -> Option<W> as *const (),
            N::<W, M>::free as unsafe fn(&N<W, M>, NodeAddr, bool) as *const (),
            N::<W, M>::link as unsafe fn(&N<W, M>, NodeAddr) -> *const Record as *const (),
            N::<W, M>::stored as fn(&N<W, M>, Store) as *const (),
        ]
    }
    vec![
        of::<u32, Solo>(),
        of::<u32, Shared>(),
        #[cfg(target_has_atomic = "64")]
        of::<u64, Solo>(),
        #[cfg(target_has_atomic = "64")]
        of::<u64, Shared>(),
    ]
}
