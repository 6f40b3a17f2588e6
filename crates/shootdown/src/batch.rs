//! Many changes, one operation.

use tlbkit_addr::{Asid, Flush, FlushScope, Pages};

/// The changes to one address space that are to become known together.
///
/// A kernel that pages out gathers its victims here and starts one operation for all of them; nothing else removes
/// as many interrupts. Beyond `limit` pages the batch asks for the whole address space: flushing page by page costs
/// more than the misses that it saves.
#[derive(Clone, Debug)]
pub struct Batch {
    space: Asid,
    flush: Flush,
    pages: usize,
    limit: usize,
    changes: usize,
}

impl Batch {
    /// Returns an empty batch of changes to `space`, which degrades to the whole space beyond `limit` pages.
    pub const fn new(space: Asid, limit: usize) -> Self {
        Self { space, flush: Flush::none(), pages: 0, limit, changes: 0 }
    }

    /// Adds a change of `pages` that must be known as far as `scope`.
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
        // What the flush says besides: of links, and of barriers.
        self.flush.merge(flush);
    }

    /// Returns what the batch asks of the TLBs.
    pub const fn flush(&self) -> &Flush {
        &self.flush
    }

    /// Returns the number of changes in it.
    pub const fn changes(&self) -> usize {
        self.changes
    }

    /// Takes what the batch asks of the TLBs, for one operation, or returns `None` if no other CPU needs to know. The
    /// batch is empty afterwards. With up to [`Flush::RANGES`] separate ranges, and no more pages than the limit, every CPU
    /// flushes those and nothing else.
    pub fn take(&mut self) -> Option<Flush> {
        let taken = core::mem::replace(self, Self::new(self.space, self.limit));
        (taken.flush.scope() == FlushScope::Everywhere).then_some(taken.flush)
    }

    /// Returns the address space.
    pub const fn space(&self) -> Asid {
        self.space
    }
}
