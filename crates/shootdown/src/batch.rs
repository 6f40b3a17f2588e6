//! Batches: many changes of entries for one operation.

use tlbkit_addr::{Asid, Flush, FlushScope, Pages};

/// A set of changes to one address space that one operation makes known to all CPUs.
///
/// A kernel that pages out adds its victims to a batch and starts one operation for all of them, which replaces one
/// interrupt for each victim. Beyond `limit` pages the batch asks for a flush of the whole address space, because a flush of
/// so many single pages costs more than the TLB misses that it avoids.
#[derive(Clone, Debug)]
pub struct Batch {
    space: Asid,
    flush: Flush,
    pages: usize,
    limit: usize,
    changes: usize,
}

impl Batch {
    /// Returns an empty batch of changes to `space`. Beyond `limit` pages the batch asks for a flush of the whole address
    /// space.
    pub const fn new(space: Asid, limit: usize) -> Self {
        Self { space, flush: Flush::none(), pages: 0, limit, changes: 0 }
    }

    /// Adds a change of `pages` that needs a flush on the CPUs that `scope` says.
    pub fn add(&mut self, scope: FlushScope, pages: Pages) {
        if scope == FlushScope::Nowhere {
            return;
        }
        self.changes += 1;
        self.pages = self.pages.saturating_add(pages.len());
        if self.pages > self.limit {
            self.flush.add_all(scope);
        } else {
            self.flush.add(scope, pages);
        }
    }

    /// Adds all that `flush` asks for.
    pub fn merge(&mut self, flush: &Flush) {
        if flush.is_all() {
            self.changes += 1;
            self.flush.add_all(flush.scope());
        }
        for &pages in flush.ranges() {
            self.add(flush.scope(), pages);
        }
        // The ranges have been added; this adds the flags of `flush` about links and barriers.
        self.flush.merge(flush);
    }

    /// Returns the flush that the batch needs.
    pub const fn flush(&self) -> &Flush {
        &self.flush
    }

    /// Returns the number of changes in the batch.
    pub const fn changes(&self) -> usize {
        self.changes
    }

    /// Returns the flush that the batch needs, and empties the batch. Returns `None` if nothing has to be flushed. A flush of
    /// [`FlushScope::Everywhere`] is for one operation; any other concerns this CPU only. If the batch has at most
    /// [`Flush::RANGES`] separate ranges and no more pages than the limit, every CPU flushes these ranges only.
    pub fn take(&mut self) -> Option<Flush> {
        let taken = core::mem::replace(self, Self::new(self.space, self.limit));
        (!taken.flush.is_none()).then_some(taken.flush)
    }

    /// Returns the address space.
    pub const fn space(&self) -> Asid {
        self.space
    }
}
