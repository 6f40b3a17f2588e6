//! Nodes that are in no table and not free: nodes that wait for a shootdown, and nodes of dropped batches.
//!
//! If a batch is dropped without a shootdown, its flush has not been done, and walkers may still be in its nodes. A later
//! batch of the same table can free these nodes after its own flush, if that flush covers the whole table on every CPU that
//! may walk it. So the storage keeps the nodes as the **debt** of the table, and the table's next writer takes the debt
//! over. The storage has space for the debts of [`DEBTORS`] tables at a time. Without space the nodes are lost, and buckets
//! that the batch has quarantined in a hashed table of shared mode stay unused, in every table of the storage. The flush is not
//! lost: the storage counts the debts whose table it has forgotten, and the next batch of *each* table flushes everything. A batch
//! that outlives its table must be reclaimed: if it is dropped, its debt occupies the space for ever.
//!
//! ```text
//!   batch dropped --> debt of table t --> t's next writer: its batch owns the nodes, and flushes everything
//!                        |
//!                        +--------------> t is dismantled: the same; t is dropped: the nodes are lost
//! ```

use crate::WriterFlag;
use crate::mode::{Lock as _, SpinLock};
use crate::word::atomics::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// The number of tables that can have a debt at a time.
const DEBTORS: usize = 4;
/// The bit of [`Held::debtors`] that some debt's table has been forgotten.
const FORGOTTEN: usize = 1 << (usize::BITS - 1);
/// The number of a table that exists no more: no writer of it will need a flush.
pub(crate) const GONE: u32 = u32::MAX;

/// The tally of a storage's nodes that are in no table and not free, and of dropped batches.
#[derive(Debug, Default)]
pub struct Held {
    /// Nodes that wait for a shootdown.
    pending: AtomicUsize,
    /// Nodes that will never be freed.
    lost: AtomicUsize,
    /// Batches that have quarantined buckets.
    quarantined: AtomicUsize,
    /// Batches that were dropped.
    dropped: AtomicUsize,
    /// The number of the table that was made last.
    tables: AtomicU32,
    /// The number of tables with a debt, and [`FORGOTTEN`].
    debtors: AtomicUsize,
    /// The number of debts whose table was forgotten, because there was no space or the table has no number.
    forgotten: AtomicUsize,
    /// Guards `debts`.
    lock: SpinLock,
    debts: [TableDebt; DEBTORS],
}

/// The debt of a table.
#[derive(Debug, Default)]
struct TableDebt {
    /// The table's number, or 0.
    table: AtomicU32,
    head: AtomicU32,
    nodes: AtomicUsize,
    quarantine: AtomicBool,
}

/// The debt that a dropped batch leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Debt {
    /// The number of the first node of its list, or 0.
    pub(crate) head: u32,
    /// How many nodes are in the list.
    pub(crate) nodes: usize,
    /// Whether the batch has quarantined buckets.
    pub(crate) quarantine: bool,
}

impl Held {
    /// Returns an empty tally.
    #[cfg(not(tlbkit_loom))]
    pub const fn new() -> Self {
        Self {
            pending: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            quarantined: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
            tables: AtomicU32::new(0),
            debtors: AtomicUsize::new(0),
            forgotten: AtomicUsize::new(0),
            lock: SpinLock::new(),
            debts: [const {
                TableDebt {
                    table: AtomicU32::new(0),
                    head: AtomicU32::new(0),
                    nodes: AtomicUsize::new(0),
                    quarantine: AtomicBool::new(false),
                }
            }; DEBTORS],
        }
    }

    /// Returns how many nodes wait for a shootdown to complete, including those of debts.
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Returns how many nodes were leaked because the table or batch that owned them was dropped and no writer can take them
    /// over.
    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns how many batches were dropped, including those whose debts a writer has taken over.
    pub fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns a number for a new table, or 0 if all numbers are in use. The nodes of the dropped batches of a table with number 0
    /// are lost.
    pub(crate) fn number(&self) -> u32 {
        let next = |last: u32| last.checked_add(1).filter(|&number| number != GONE);
        self.tables.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_or(0, |last| last + 1)
    }

    /// Tells whether no batch has quarantined parts of nodes ([`Retired::quarantine`](crate::Retired::quarantine)), such as
    /// buckets, so that parts out of use may be used again. Only the table's writer calls it, because only the writer takes
    /// over the table's debt.
    pub fn is_quiet(&self, flag: &WriterFlag) -> bool {
        let table = flag.number();
        // A dropped batch becomes a debt before it stops being counted, so one of the two loads sees it.
        self.quarantined.load(Ordering::Acquire) == 0
            && (self.debtors.load(Ordering::Relaxed) == 0
                || !self.with(table, |owed| owed.quarantine.load(Ordering::Relaxed)).unwrap_or(false))
    }

    /// Counts a batch that has quarantined parts of nodes.
    pub(crate) fn quarantine(&self) {
        self.quarantined.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the count of a batch that has quarantined parts of nodes.
    pub(crate) fn release(&self) {
        self.quarantined.fetch_sub(1, Ordering::Release);
    }

    /// Counts nodes that wait for a shootdown. If no other CPU uses the storage, the call needs no atomic read-modify-write.
    #[inline(always)]
    pub(crate) fn retire(&self, nodes: usize, shared: bool) {
        if shared {
            self.pending.fetch_add(nodes, Ordering::Relaxed);
        } else {
            self.pending.store(self.pending.load(Ordering::Relaxed).wrapping_add(nodes), Ordering::Relaxed);
        }
    }

    /// Ends the count of nodes that have waited for a shootdown.
    #[inline(always)]
    pub(crate) fn reclaim(&self, nodes: usize, shared: bool) {
        self.retire(nodes.wrapping_neg(), shared);
    }

    /// Counts nodes as lost: no word leads to them, no batch owns them, and they are not free.
    pub fn count_lost(&self, nodes: usize) {
        self.lost.fetch_add(nodes, Ordering::Relaxed);
    }

    /// Counts a dropped batch.
    pub(crate) fn count_dropped_batch(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many debts' tables have been forgotten. A table whose [`WriterFlag`] notes another number may have one of these
    /// debts.
    pub(crate) fn forgotten(&self) -> usize {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// Adds to the debt of a table. Returns whether there was space; if not, every table flushes everything with its next batch,
    /// unless this table is [`GONE`]. `join` must link the last node of the added list to the
    /// node with the given number, or end the list if that is 0.
    pub(crate) fn add_debt(&self, table: u32, debt: Debt, join: impl FnOnce(u32)) -> bool {
        if table == GONE {
            return false;
        }
        self.lock.lock();
        let has = |number: u32| self.debts.iter().find(|owed| owed.table.load(Ordering::Relaxed) == number);
        let known = if table == 0 { None } else { has(table) };
        let owed = known.or_else(|| {
            let free = if table == 0 { None } else { has(0) }?;
            free.table.store(table, Ordering::Relaxed);
            self.debtors.fetch_add(1, Ordering::Relaxed);
            Some(free)
        });
        if let Some(owed) = owed {
            if debt.head != 0 {
                join(owed.head.load(Ordering::Relaxed));
                owed.head.store(debt.head, Ordering::Relaxed);
            }
            owed.nodes.store(owed.nodes.load(Ordering::Relaxed) + debt.nodes, Ordering::Relaxed);
            let quarantine = debt.quarantine || owed.quarantine.load(Ordering::Relaxed);
            owed.quarantine.store(quarantine, Ordering::Relaxed);
        } else {
            self.forgotten.fetch_add(1, Ordering::Relaxed);
            self.debtors.fetch_or(FORGOTTEN, Ordering::Relaxed);
        }
        self.lock.unlock();
        owed.is_some()
    }

    /// Tells whether any table has a debt, or the table of a flag may have one that was forgotten. Costs a load if there has been no
    /// debt.
    #[inline(always)]
    pub(crate) fn has_debt(&self, flag: &WriterFlag) -> bool {
        let debtors = self.debtors.load(Ordering::Relaxed);
        debtors != 0 && (debtors != FORGOTTEN || flag.settled() != self.forgotten())
    }

    /// Takes over the debt of a table. If it has quarantined parts, they count as those of a batch again.
    #[inline]
    pub(crate) fn take_up(&self, table: u32) -> Option<Debt> {
        if self.debtors.load(Ordering::Relaxed) == 0 { None } else { self.take_debt(table) }
    }

    #[cold]
    fn take_debt(&self, table: u32) -> Option<Debt> {
        self.with(table, |owed| {
            let debt = Debt {
                head: owed.head.swap(0, Ordering::Relaxed),
                nodes: owed.nodes.swap(0, Ordering::Relaxed),
                quarantine: owed.quarantine.swap(false, Ordering::Relaxed),
            };
            if debt.quarantine {
                self.quarantine();
            }
            owed.table.store(0, Ordering::Relaxed);
            self.debtors.fetch_sub(1, Ordering::Relaxed);
            debt
        })
    }

    /// Counts the nodes of a dropped table as lost: `nodes` of its own, and those of its debt. The `drop` of every table
    /// calls it with the nodes that the table has; after [`destroy`](crate::destroy) it has none.
    ///
    /// # Safety
    ///
    /// The caller is the `drop` of the table with this flag. The call forgets the flush of the table's debt, and the
    /// quarantine of parts that wait for that flush ([`Retired::quarantine`](crate::Retired::quarantine)): a live table
    /// would use these parts too early.
    ///
    /// ```compile_fail,E0133
    /// # use tlbkit_pagetable::Table;
    /// # use tlbkit_pagetable::nodes::Held;
    /// fn forget<'n>(held: &Held, table: &impl Table<'n>) {
    ///     held.count_dropped_table(table.writer_flag(), 0);
    /// }
    /// ```
    pub unsafe fn count_dropped_table(&self, flag: &WriterFlag, nodes: usize) {
        self.count_lost(nodes);
        if let Some(debt) = self.take_up(flag.number()) {
            self.count_lost(debt.nodes);
            self.reclaim(debt.nodes, true);
            if debt.quarantine {
                // The quarantined parts were in nodes of the table, which is dropped.
                self.release();
            }
        }
    }

    /// Calls `f` with the debt of a table, if it has one, under the lock.
    fn with<T>(&self, table: u32, f: impl FnOnce(&TableDebt) -> T) -> Option<T> {
        if table == 0 {
            return None;
        }
        self.lock.lock();
        let found = self.debts.iter().find(|owed| owed.table.load(Ordering::Relaxed) == table).map(f);
        self.lock.unlock();
        found
    }
}

/// A guard for a node that is being freed. If the storage unwinds, the guard counts the node as lost, and the `after` nodes
/// that would have been freed next as waiting again.
pub(crate) struct Freed<'h> {
    held: &'h Held,
    after: usize,
}

impl<'h> Freed<'h> {
    pub(crate) fn new(held: &'h Held, after: usize) -> Self {
        Self { held, after }
    }

    /// Ends the guard: the node has been freed.
    pub(crate) fn done(self) {
        core::mem::forget(self);
    }
}

impl Drop for Freed<'_> {
    #[cold]
    fn drop(&mut self) {
        self.held.count_lost(1);
        self.held.retire(self.after, true);
    }
}
