//! The obligation that a change leaves behind: the pages to flush, and the nodes to free after the flush.
//!
//! ```text
//!   writer                        every CPU that may have the translation
//!     |  unlink node N, one store
//!     |  N -> Retired                 |  a walk may still be inside N
//!     |  shootdown(retired.flush()) ->|  (the walk ends, for its CPU is pinned until then)
//!     |                               |  flush, acknowledge
//!     |<------------------------------|
//!     |  retired.reclaim(): N is free
//! ```
//!
//! The type owns the nodes, so that no code frees a node too early or after a flush of only a part of the range. A batch that
//! is dropped is counted in [`Held`](crate::nodes::Held), and its flush and its nodes become a debt of the table, which the
//! batch of the next writer takes up. Where no writer can do so, the nodes are leaked and counted: a kernel survives a leak.
//!
//! # Unwinding
//!
//! A change calls the caller's code: flush functions, frame sources, the storage. Any of these may
//! unwind in the middle of a change. A table whose changes push each node after the store that unlinks it uses
//! [`Retired::change`]. A table whose changes first build nodes, then push the replaced nodes and link the new ones last uses
//! [`Retired::change_late`]: the pushed nodes belong to the batch only when the change returns. After a change that unwinds,
//! the batch asks for a flush of everything, and the table is repaired: it counts its entries again from its words, and a node
//! to which no word leads and which no batch owns is counted as lost. Each page of the change is then as before the change, as
//! after it, or unmapped.

use core::ops::Deref;
use core::{fmt, mem};

use tlbkit_addr::{Flush, FlushScope, Pages};

use crate::nodes::{Debt, GONE, ListLink, NodeAddr, Nodes, Reclaim, Record};
use crate::word::atomics::Ordering;
use crate::{Mode, Part, WriterFlag};

/// The nodes that changes took out of a table, and the flush after which they may be freed.
#[must_use = "its flush and its nodes are pending: pass it to a shootdown, then reclaim it"]
pub struct Retired<'n> {
    nodes: &'n dyn Reclaim,
    /// The number of the table; 0 if it has none, and [`GONE`] if no writer can take up the batch's debt.
    table: u32,
    /// The node that was retired last. The records of the nodes link the list.
    head: Option<NodeAddr>,
    count: usize,
    /// Whether places within nodes, such as buckets, are held back until the batch is complete.
    quarantine: bool,
    flush: Flush,
    /// What the changes may change: see [`Right`](crate::Right). `None`: the whole table.
    part: Option<Part>,
}

impl<'n> Retired<'n> {
    /// Returns an empty batch for tables whose nodes come from `nodes`. If the batch is dropped, the nodes that it owns by then
    /// are lost.
    pub fn new(nodes: &'n dyn Reclaim) -> Self {
        Self::numbered(nodes, 0)
    }

    /// Returns an empty batch of a table with nodes from `nodes` and the writer flag `flag`: what
    /// [`Table::batch`](crate::Table::batch) returns. If the batch is dropped, its flush and its nodes become a debt of the table.
    #[inline(always)]
    pub fn of(nodes: &'n dyn Reclaim, flag: &WriterFlag) -> Self {
        Self::numbered(nodes, flag.number())
    }

    #[inline(always)]
    fn numbered(nodes: &'n dyn Reclaim, table: u32) -> Self {
        Self { nodes, table, head: None, count: 0, quarantine: false, flush: Flush::none(), part: None }
    }

    /// Returns the part of the table that changes with this batch may change; `None` for the whole table. Only a table with
    /// [locks](crate::Table::node_locks) gets a part.
    #[inline(always)]
    pub const fn part(&self) -> Option<&Part> {
        self.part.as_ref()
    }

    /// States what changes with this batch may change.
    #[inline(always)]
    pub(crate) const fn set_part(&mut self, part: Option<Part>) {
        self.part = part;
    }

    /// Takes up the debt that dropped batches of the table have left: if there is one, this batch then owns their nodes and asks
    /// for a flush of everything. It asks for that flush, too, if the storage had no space for the debt of some table.
    ///
    /// Costs a load if no table of the storage has had a debt.
    ///
    /// # Safety
    ///
    /// The caller is the table's only writer, or that of a part, the batch came from the table, and `flag` is the table's flag.
    #[inline(always)]
    pub unsafe fn take_up(&mut self, flag: &WriterFlag) {
        if self.nodes.held().has_debt(flag) {
            self.add_debt(flag);
        }
    }

    #[cold]
    #[inline(never)]
    fn add_debt(&mut self, flag: &WriterFlag) {
        let forgotten = self.nodes.held().forgotten();
        if flag.settled() != forgotten {
            // The forgotten debt may be this table's. If this batch is dropped, the flush is a debt again.
            self.flush.add_all(FlushScope::Everywhere);
            flag.settle(forgotten);
        }
        let Some(debt) = self.nodes.held().take_up(self.table) else { return };
        self.flush.add_all(FlushScope::Everywhere);
        if debt.head != 0 {
            if let Some(head) = self.head {
                self.join(debt.head, debt.nodes, Some(head));
            }
            self.head = Some(self.nodes.node_of(debt.head));
            self.count += debt.nodes;
        }
        if debt.quarantine && self.quarantine {
            self.nodes.held().release();
        }
        self.quarantine |= debt.quarantine;
    }

    /// Appends the list `rest` to the list of `count` nodes that begins with `first`. The count ends the first list, because a
    /// list that has a node twice is circular.
    fn join(&self, first: u32, count: usize, rest: Option<NodeAddr>) {
        let last = self.list_from(Some(self.nodes.node_of(first)), count).last();
        let Some(last) = last else { return };
        let record = self.record(last);
        let (_, clean) = ListLink::read(record.load(Ordering::Relaxed));
        let rest = rest.map_or(0, |node| self.nodes.index_of(node));
        record.store(ListLink::word(rest, clean), Ordering::Relaxed);
    }

    /// Returns the record of a node that the batch owns, or takes over.
    #[inline(always)]
    fn record(&self, node: NodeAddr) -> &Record {
        // SAFETY: the node is taken, and is not freed before the batch is.
        unsafe { &*self.nodes.link(node) }
    }

    /// Returns up to `count` nodes of a list.
    fn list_from(&self, first: Option<NodeAddr>, count: usize) -> impl Iterator<Item = NodeAddr> {
        let mut next = first;
        (0..count).map_while(move |_| {
            let node = next?;
            let (index, _) = ListLink::read(self.record(node).load(Ordering::Relaxed));
            next = (index != 0).then(|| self.nodes.node_of(index));
            Some(node)
        })
    }

    /// Returns the nodes that the batch holds, the most recent first. Tests use it to find a table that pushes a node twice.
    ///
    /// Costs one access of a record for each node.
    pub fn list(&self) -> impl Iterator<Item = NodeAddr> {
        self.list_from(self.head, self.count)
    }

    /// Makes this the batch of a destroyed table: no writer takes up its debt, and it holds back no places.
    pub(crate) fn outlive(&mut self) {
        self.table = GONE;
        if self.quarantine {
            self.quarantine = false;
            self.nodes.held().release();
        }
    }

    /// Returns the flush that must be complete before the nodes may be freed.
    #[inline]
    pub const fn flush(&self) -> &Flush {
        &self.flush
    }

    /// Returns the number of nodes that the batch holds.
    #[inline]
    pub const fn nodes(&self) -> usize {
        self.count
    }

    /// Returns the obligation, which remains this batch's.
    #[inline]
    pub fn pending(&mut self) -> Pending<'_, 'n> {
        Pending::of(self)
    }

    /// Tells whether the batch has nothing to flush, no node to free, and no place to hold back.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.flush.is_none() && !self.quarantine
    }

    /// Frees the nodes.
    ///
    /// Costs one access of a record for each node.
    ///
    /// # Safety
    ///
    /// Since the last change of this batch, every CPU that may hold a translation of the table, or of a table whose batch was
    /// [appended](Self::append) (and every one that walks it in memory, whatever the [`scope`](Flush::scope)) has left the walks it
    /// was in and flushed what
    /// [`flush`](Self::flush) names. A shootdown guarantees this if its update returned the batch and the shootdown has
    /// returned it as complete. An algorithm that requests flushes before the update (TLB-first) keeps the batch until a later
    /// operation has waited for the same CPUs.
    ///
    /// If a [move](crate::Table::move_pages) of pages has asked for a flush of the table, that flush has been executed, too: hardware
    /// may have cached the link by which it came to a node of this batch before the node moved.
    pub unsafe fn reclaim(mut self) {
        // SAFETY: `complete` has this function's contract: every CPU has left its walks and flushed what `flush` names.
        unsafe { self.complete() };
    }

    /// Frees the nodes and clears the flush, so that the batch can take more changes.
    ///
    /// # Safety
    ///
    /// As for [`reclaim`](Self::reclaim).
    #[inline(always)]
    pub unsafe fn complete(&mut self) {
        if self.head.is_some() {
            // SAFETY: this function's contract; the list holds taken nodes only, and they are out of the table.
            unsafe { self.nodes.free_list(&mut self.head, &mut self.count) };
        }
        if self.quarantine {
            self.quarantine = false;
            self.nodes.held().release();
        }
        self.flush.clear();
    }

    /// Takes over the nodes of `other`. The flush of this batch becomes one of the whole address space, and must then cover the address
    /// space of every table whose batch was appended. So one batch, of [no table](Self::new), owns what changes of many tables have
    /// retired.
    ///
    /// Costs one access of a record for each node of `other`.
    ///
    /// # Errors
    ///
    /// `other` itself, if its nodes are of another storage.
    #[expect(clippy::result_large_err, reason = "the error is the batch itself, which must not be lost")]
    pub fn append(&mut self, mut other: Self) -> Result<(), Self> {
        if self.take_over(&mut other) { Ok(()) } else { Err(other) }
    }

    /// Does what [`append`](Self::append) does, and leaves `other` empty; or returns false, if its nodes are of another storage.
    fn take_over(&mut self, other: &mut Self) -> bool {
        // By the contract of `Reclaim` one address means one numbering of nodes.
        if !core::ptr::addr_eq(self.nodes, other.nodes) {
            return false;
        }
        if let Some(head) = other.head.take() {
            self.join(self.nodes.index_of(head), other.count, self.head);
            self.head = Some(head);
            self.count += mem::take(&mut other.count);
        }
        if mem::take(&mut other.quarantine) && mem::replace(&mut self.quarantine, true) {
            self.nodes.held().release();
        }
        self.flush.add_all(FlushScope::Everywhere);
        other.flush.clear();
        true
    }

    /// Runs a change of a table that pushes each node after the store that unlinks it.
    ///
    /// If `change` unwinds, the batch keeps the nodes that were pushed, asks for a flush of everything, and calls `repair`, which
    /// repairs the table.
    #[inline(always)]
    pub fn change<T>(&mut self, change: impl FnOnce(&mut Self) -> T, repair: impl FnOnce(&mut Self)) -> T {
        let guard = Unwound { batch: self, repair: Some(repair) };
        let result = change(guard.batch);
        mem::forget(guard);
        result
    }

    /// Runs a change of a table that pushes nodes before it unlinks them. The batch owns those nodes only when `change` returns.
    ///
    /// If `change` unwinds, the batch forgets how many nodes were pushed, asks for a flush of everything, and calls `repair`
    /// with that number. These nodes' records hold links of the batch's list. Some of them are still linked in the table:
    /// `repair` restores their records, and counts the others as [lost](crate::nodes::Held::count_lost).
    ///
    /// # Safety
    ///
    /// `change` neither replaces the batch that it is given nor takes nodes out of it. If it did so and then unwound, two batches
    /// would own the same nodes.
    ///
    /// ```compile_fail,E0133
    /// # use tlbkit_pagetable::Retired;
    /// fn steal<'n>(batch: &mut Retired<'n>, mut other: Retired<'n>) {
    ///     batch.change_late(|batch| core::mem::swap(batch, &mut other), |_, _| ());
    /// }
    /// ```
    #[inline(always)]
    pub unsafe fn change_late<T>(
        &mut self,
        change: impl FnOnce(&mut Self) -> T,
        repair: impl FnOnce(&mut Self, usize),
    ) -> T {
        let (head, count) = (self.head, self.count);
        self.change(change, |batch| {
            let forgotten = batch.count - count;
            batch.nodes.held().reclaim(forgotten, true);
            (batch.head, batch.count) = (head, count);
            repair(batch, forgotten);
        })
    }

    /// Makes a batch that can be sent to another CPU, as the payload of an asynchronous shootdown is.
    ///
    /// # Errors
    ///
    /// The batch itself, if its table is in solo mode and so must stay on this CPU.
    #[expect(clippy::result_large_err, reason = "the error is the batch itself, which must not be lost")]
    pub fn across_cpus(self) -> Result<Carried<'n>, Self> {
        if self.nodes.shared() { Ok(Carried(self)) } else { Err(self) }
    }

    /// Takes over a node that a change unlinks. `clean` tells that all words of the node are zero.
    ///
    /// # Safety
    ///
    /// The node was taken from the storage of this batch, and its record is no longer used as a count. No word leads to the node
    /// now or, within [`change_late`](Self::change_late), when that returns.
    #[inline]
    pub unsafe fn push(&mut self, node: NodeAddr, clean: bool) {
        let nodes = self.nodes;
        let next = self.head.map_or(0, |head| nodes.index_of(head));
        self.record(node).store(ListLink::word(next, clean), Ordering::Relaxed);
        // The code below calls nothing that could unwind.
        nodes.held().retire(1, nodes.shared());
        self.head = Some(node);
        self.count += 1;
    }

    /// Takes over a node as [`push`](Self::push) does, without a call through `dyn`, for a table that knows the type of its
    /// storage.
    ///
    /// # Safety
    ///
    /// The contract of [`push`](Self::push); and `nodes` is the storage of this batch, and the node was taken with `words` words.
    #[inline(always)]
    pub(crate) unsafe fn push_sized<N: Nodes>(
        &mut self,
        nodes: &N,
        node: NodeAddr,
        words: usize,
        clean: bool,
    ) {
        let next = self.head.map_or(0, |head| nodes.index_of(head));
        // SAFETY: the node is taken, so its record is live.
        unsafe { nodes.record(node, words) }.store(ListLink::word(next, clean), Ordering::Relaxed);
        nodes.held().retire(1, N::Mode::SHARED);
        self.head = Some(node);
        self.count += 1;
    }

    /// Holds back places within nodes, such as the buckets of an array, until the batch is complete. While any batch of the
    /// storage does so, no such place may be reused for another tag: a table checks
    /// [`Held::is_quiet`](crate::nodes::Held::is_quiet) first.
    #[inline]
    pub fn quarantine(&mut self) {
        if !self.quarantine {
            self.quarantine = true;
            self.nodes.held().quarantine();
        }
    }

    /// Adds pages whose translations have changed, or whose TLB entries contain a changed translation.
    #[inline]
    pub fn touch(&mut self, scope: FlushScope, pages: Pages) {
        self.flush.add(scope, pages);
    }

    /// Adds pages whose links to nodes have changed, in a table whose links hardware may cache
    /// ([`Format::WALK_CACHE`](crate::format::Format::WALK_CACHE)).
    #[inline]
    pub fn relink(&mut self, scope: FlushScope, pages: Pages) {
        self.flush.add_links(scope, pages);
    }

    /// Adds pages as [`touch`](Self::touch) does, or as [`relink`](Self::relink) does if `links` is set, in code that is compiled once.
    #[inline(never)]
    pub(crate) fn stale(&mut self, scope: FlushScope, pages: Pages, links: bool) {
        if links {
            self.flush.add_links(scope, pages);
        } else {
            self.flush.add(scope, pages);
        }
    }

    /// Returns the flush, to which a change adds what it makes stale.
    #[inline(always)]
    pub(crate) fn flush_mut(&mut self) -> &mut Flush {
        &mut self.flush
    }

    /// Adds the pages and links that `flush` names.
    pub fn merge(&mut self, flush: &Flush) {
        self.flush.merge(flush);
    }

    /// Adds the whole address space.
    pub fn touch_all(&mut self, scope: FlushScope) {
        self.flush.add_all(scope);
    }
}

/// The obligation for a writer's changes so far, which remains the writer's: from [`Writer::pending`](crate::Writer::pending) or
/// [`PageCursor::pending`](crate::PageCursor::pending).
///
/// A reference to the batch itself would let its holder exchange it for that of another table.
#[derive(Debug)]
pub struct Pending<'b, 'n>(&'b mut Retired<'n>);

impl<'b, 'n> Pending<'b, 'n> {
    #[inline(always)]
    pub(crate) fn of(batch: &'b mut Retired<'n>) -> Self {
        Self(batch)
    }

    /// Adds a flush: one that the caller needs, and the table does not.
    pub fn merge(&mut self, flush: &Flush) {
        self.0.merge(flush);
    }

    /// Frees the nodes, and clears the flush.
    ///
    /// # Safety
    ///
    /// As for [`Retired::reclaim`].
    #[inline(always)]
    pub unsafe fn complete(self) {
        // SAFETY: the contract of `Retired::reclaim`, which is that of `complete`, is this function's.
        unsafe { self.0.complete() };
    }

    /// Returns the obligation as a value. Later changes go into another batch, for the same part of the table.
    pub fn take(self) -> Retired<'n> {
        let mut empty = Retired::numbered(self.0.nodes, self.0.table);
        empty.set_part(self.0.part);
        mem::replace(self.0, empty)
    }
}

impl<'n> Deref for Pending<'_, 'n> {
    type Target = Retired<'n>;

    #[inline(always)]
    fn deref(&self) -> &Retired<'n> {
        self.0
    }
}

/// A guard that handles the unwinding of a change: its drop runs only if the change unwinds.
struct Unwound<'b, 'n, M: FnOnce(&mut Retired<'n>)> {
    batch: &'b mut Retired<'n>,
    repair: Option<M>,
}

impl<'n, M: FnOnce(&mut Retired<'n>)> Drop for Unwound<'_, 'n, M> {
    #[cold]
    fn drop(&mut self) {
        self.batch.flush.add_all(FlushScope::Everywhere);
        if let Some(repair) = self.repair.take() {
            repair(self.batch);
        }
    }
}

/// A [`Retired`] batch of a shared table, which any CPU may reclaim.
#[derive(Debug)]
#[must_use = "its flush and its nodes are pending: pass it to a shootdown, then reclaim it"]
pub struct Carried<'n>(Retired<'n>);

// SAFETY: `across_cpus` makes this type only if the storage is in shared mode, and so is `Sync`; the rest of the batch is plain
// data.
unsafe impl Send for Carried<'_> {}

impl<'n> Carried<'n> {
    /// Returns the number of nodes that the batch holds.
    #[inline]
    pub const fn nodes(&self) -> usize {
        self.0.nodes()
    }

    /// Does what [`Retired::append`] does with the obligation of a writer, which copies neither batch.
    ///
    /// # Errors
    ///
    /// `other` itself, if its nodes are of another storage.
    pub fn append<'b>(&mut self, other: Pending<'b, 'n>) -> Result<(), Pending<'b, 'n>> {
        if self.0.take_over(other.0) { Ok(()) } else { Err(other) }
    }

    /// Returns the batch on the CPU that it was carried to.
    pub fn into_retired(self) -> Retired<'n> {
        self.0
    }
}

impl Drop for Retired<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.is_empty() {
            self.default_on();
        }
    }
}

impl Retired<'_> {
    /// Makes the obligation a debt of the table. If no writer can take it up, its nodes are leaked and counted as lost.
    #[cold]
    fn default_on(&mut self) {
        let held = self.nodes.held();
        held.count_dropped_batch();
        let head = self.head.map_or(0, |head| self.nodes.index_of(head));
        let debt = Debt { head, nodes: self.count, quarantine: self.quarantine };
        let join = |rest: u32| self.join(head, self.count, (rest != 0).then(|| self.nodes.node_of(rest)));
        if held.add_debt(self.table, debt, join) {
            // The debt now holds the places back for its table, so the storage's count is released.
            if self.quarantine {
                held.release();
            }
        } else {
            held.count_lost(self.count);
            held.reclaim(self.count, true);
        }
    }
}

impl fmt::Debug for Retired<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retired")
            .field("nodes", &self.count)
            .field("flush", &self.flush)
            .finish_non_exhaustive()
    }
}
