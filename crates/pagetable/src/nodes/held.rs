//! Nodes that are in no table and not free: those that wait for a shootdown, and those of the tables' debts.
//!
//! A batch that is dropped without a shootdown leaves its flush undone, so walkers may still be in its nodes. A later batch of
//! the same table can pay this debt with its own flush, if that flush covers everything: every CPU that may walk the table takes
//! part in it. So the storage keeps the debt of a table, and the table's next writer takes it up. The storage has room for the
//! debts of a few tables at a time. Without room the nodes are lost, and places that the batch held back in a hashed table of
//! shared mode stay unused, in every table of the storage. A batch that is left when its table is gone must be reclaimed: if it is
//! dropped, its debt takes up room for good.
//!
//! ```text
//!   batch dropped --> debt of table t --> t's next writer: its batch owns the nodes, and flushes everything
//!                        |
//!                        +--------------> t is taken apart: so does that batch; or t is dropped: the nodes are lost
//! ```

use crate::WriterFlag;
use crate::mode::{Lock as _, SpinLock};
use crate::word::atomics::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// How many tables can owe something at a time.
const DEBTORS: usize = 4;

/// Nodes that are in no table and not free either, and dropped obligations.
#[derive(Debug, Default)]
pub struct Held {
    pending: AtomicUsize,
    lost: AtomicUsize,
    quarantined: AtomicUsize,
    dropped: AtomicUsize,
    /// The number of the table that was made last.
    tables: AtomicU32,
    /// How many tables owe something.
    debtors: AtomicUsize,
    /// Guards `owed`.
    lock: SpinLock,
    owed: [Owed; DEBTORS],
}

/// What a table owes.
#[derive(Debug, Default)]
struct Owed {
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
    /// Whether the batch held places back.
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
            lock: SpinLock::new(),
            owed: [const {
                Owed {
                    table: AtomicU32::new(0),
                    head: AtomicU32::new(0),
                    nodes: AtomicUsize::new(0),
                    quarantine: AtomicBool::new(false),
                }
            }; DEBTORS],
        }
    }

    /// Returns how many nodes wait for a shootdown to complete, those that are owed included.
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Returns how many nodes were leaked because the table or the obligation that owned them was dropped, and no
    /// writer can take them up.
    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns how many obligations were dropped, those included that were taken up again.
    pub fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns a number for a new table, or 0 if there are no more: such a table's dropped obligations are lost.
    pub(crate) fn number(&self) -> u32 {
        let next = |last: u32| last.checked_add(1);
        self.tables.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_or(0, |last| last + 1)
    }

    /// Tells whether no batch holds places back ([`Retired::quarantine`](crate::Retired::quarantine)), which are parts of
    /// larger nodes: then places that were taken out of use may be used again. Only the table's writer asks: it alone takes up the
    /// table's debt.
    pub fn is_quiet(&self, flag: &WriterFlag) -> bool {
        let table = flag.number();
        // A batch is owed before it stops being counted.
        self.quarantined.load(Ordering::Acquire) == 0
            && (self.debtors.load(Ordering::Relaxed) == 0
                || !self.with(table, |owed| owed.quarantine.load(Ordering::Relaxed)).unwrap_or(false))
    }

    pub(crate) fn quarantine(&self) {
        self.quarantined.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn release(&self) {
        self.quarantined.fetch_sub(1, Ordering::Release);
    }

    /// Counts nodes that wait for a shootdown. If no other CPU uses the storage, that takes no locked instruction.
    #[inline(always)]
    pub(crate) fn retire(&self, nodes: usize, shared: bool) {
        if shared {
            self.pending.fetch_add(nodes, Ordering::Relaxed);
        } else {
            self.pending.store(self.pending.load(Ordering::Relaxed).wrapping_add(nodes), Ordering::Relaxed);
        }
    }

    /// Counts nodes that have waited for a shootdown.
    #[inline(always)]
    pub(crate) fn reclaim(&self, nodes: usize, shared: bool) {
        self.retire(nodes.wrapping_neg(), shared);
    }

    /// Counts nodes as lost: no word leads to them, and no batch owns them.
    pub fn lose(&self, nodes: usize) {
        self.lost.fetch_add(nodes, Ordering::Relaxed);
    }

    /// Counts a dropped obligation.
    pub(crate) fn note_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds to the debt of a table, and tells whether there was room. `join` links the last node of the added list to the node of
    /// the number that it is given, or ends the list if that is 0.
    pub(crate) fn owe(&self, table: u32, debt: Debt, join: impl FnOnce(u32)) -> bool {
        if table == 0 {
            return false;
        }
        self.lock.lock();
        let has = |number: u32| self.owed.iter().find(|owed| owed.table.load(Ordering::Relaxed) == number);
        let owed = has(table).or_else(|| {
            let free = has(0)?;
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
        }
        self.lock.unlock();
        owed.is_some()
    }

    /// Tells whether any table owes something.
    #[inline(always)]
    pub(crate) fn is_owed(&self) -> bool {
        self.debtors.load(Ordering::Relaxed) != 0
    }

    /// Takes up what a table owes. What it holds back is counted as a batch's again.
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

    /// Counts what a table leaves behind that is dropped: `nodes` of its own, and what it owes. Every table's `drop` calls it
    /// with the nodes that it has; after [`destroy`](crate::destroy) these are none.
    ///
    /// # Safety
    ///
    /// The table with this flag is being dropped. The flush that it owes is forgotten here, and with it the places that wait for
    /// that flush ([`Retired::quarantine`](crate::Retired::quarantine)): a live table would use them again too early.
    ///
    /// ```compile_fail,E0133
    /// # use tlbkit_pagetable::Table;
    /// # use tlbkit_pagetable::nodes::Held;
    /// fn forget<'n>(held: &Held, table: &impl Table<'n>) {
    ///     held.bury(table.writer_flag(), 0);
    /// }
    /// ```
    pub unsafe fn bury(&self, flag: &WriterFlag, nodes: usize) {
        self.lose(nodes);
        if let Some(debt) = self.take_up(flag.number()) {
            self.lose(debt.nodes);
            self.reclaim(debt.nodes, true);
            if debt.quarantine {
                // The places were the table's.
                self.release();
            }
        }
    }

    /// Calls `f` with what a table owes, if it does, under the lock.
    fn with<T>(&self, table: u32, f: impl FnOnce(&Owed) -> T) -> Option<T> {
        if table == 0 {
            return None;
        }
        self.lock.lock();
        let found = self.owed.iter().find(|owed| owed.table.load(Ordering::Relaxed) == table).map(f);
        self.lock.unlock();
        found
    }
}

/// A node that is being freed. If the storage unwinds, the node is lost, and the `after` nodes that were to be freed next count as
/// waiting again.
pub(crate) struct Freed<'h> {
    held: &'h Held,
    after: usize,
}

impl<'h> Freed<'h> {
    pub(crate) fn new(held: &'h Held, after: usize) -> Self {
        Self { held, after }
    }

    pub(crate) fn done(self) {
        core::mem::forget(self);
    }
}

impl Drop for Freed<'_> {
    #[cold]
    fn drop(&mut self) {
        self.held.lose(1);
        self.held.retire(self.after, true);
    }
}
