//! Vacant buckets: those whose entries an unmap has all cleared, and which stay in their chains.
//!
//! A page that is unmapped is often mapped again: a heap shrinks and grows, a file is mapped at the address of the last one. In a
//! table that grows, a bucket of base pages that an unmap empties keeps its tag and its place in the chain. So the unmap is a
//! probe and a store, and so is the map of the page when it returns: no node is retired and none is taken, and in a shared table
//! no bucket waits for a flush.
//!
//! A walker that finds a vacant bucket finds an empty entry, as in any bucket with unmapped pages.
//!
//! # How many there may be
//!
//! A table has at most as many vacant buckets as blocks with an entry. If a change leaves more, it sweeps: it takes the vacant
//! buckets out of the chain of its page, and of the next [`STEPS`](super::grow) chains in turn, or of fewer if that suffices. A
//! table that has been able to [merge](super::grow) has at most `400 / LOAD` chains for each block, so with a hash that spreads
//! the blocks a few chains suffice for each bucket that a change empties. If a program chooses blocks of few chains, or the table
//! could not merge, the sweep is late by one turn through all chains. An empty table that could merge has no vacant bucket, if
//! [`LOAD`](super::Sizes::LOAD) is at least 50.
//!
//! A change that finds no memory is refused, and leaves the table and its batch as they were, with the vacant buckets. But from
//! then on the table keeps none: a bucket that an unmap empties is taken out at once, and each change that empties a bucket or
//! takes one sweeps. A kernel that will not wait for that, or whose other tables need the memory, calls [`Writer::trim`].
//!
//! A vacant bucket counts in the load for which the table grows, so chains are as long as without vacant buckets. It does not
//! count among the blocks whose number decides whether the table shrinks.
//!
//! # Where there are none
//!
//! - A bucket of larger pages is taken out at once, so that lookups probe for these sizes only while such pages are mapped.
//! - A block that a larger page covers has no bucket of a finer grain, not even a vacant one: the map of a page in a block that
//!   has a bucket need not search for a larger page.
//! - A bucket with words of the kernel's own ([`Format::EXTRA`]) is taken out at once, so that another life of its block does not
//!   begin with these words.
//! - In a table of a fixed size an empty bucket is taken out at once. Such a table may have many more chains than buckets in use,
//!   and a sweep would be long.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use tlbkit_addr::Pages;

use super::chain::bump;
use super::grow::STEPS;
use super::shape::Spot;
use super::visit::Visitor;
use super::{Hashed, Sizes};
use crate::format::Format;
use crate::nodes::Nodes;
use crate::{Error, Geometry, Invalidate, Local, Retired, Writer};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Tells whether an empty bucket of `grain` stays in its chain.
    #[inline(always)]
    pub(super) const fn keeps(grain: usize) -> bool {
        S::LOAD > 0 && grain == 0 && F::EXTRA == 0
    }

    /// Counts a bucket that a change has emptied, if it [stays](Self::keeps) in its chain.
    #[inline(always)]
    pub(super) fn count_vacant(&self, grain: usize) {
        if Self::keeps(grain) {
            bump(&self.vacant, 1);
        }
    }

    /// Counts a bucket of base pages that the unmap of a page has emptied, and sweeps or shrinks the table if it is time to.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - `head` is the first bucket of a chain of the table, with one empty bucket that has not been counted.
    #[inline(always)]
    pub(super) unsafe fn vacate(&self, batch: &mut Retired<'n>, head: Spot) {
        let vacant = bump(&self.vacant, 1);
        let blocks = self.used() - vacant;
        // An unmap takes no bucket into use, so it is not the change that makes the table grow.
        if vacant > blocks || !self.growth.is_within_limits(blocks, 0) {
            // SAFETY: this function's contract; the bucket has been counted.
            unsafe { self.vacate_slowly(batch, head) };
        }
    }

    /// Continues to grow, sweep or shrink the table after a bucket in the chain of `head` has become vacant. If the table is
    /// [to be swept](Self::must_sweep) and the chain is not joined to another one, its vacant buckets are taken out.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - `head` is the first bucket of a chain of the table.
    #[inline(never)]
    unsafe fn vacate_slowly(&self, batch: &mut Retired<'n>, head: Spot) {
        // SAFETY: by this function's contract the caller is the only writer, and the batch came from this table.
        unsafe {
            // In chains that have not been parted each removal walks both, and there may be many.
            if self.must_sweep() && !self.has_joined() {
                self.tidy(batch, head);
            }
            self.adapt_slowly(batch, 1, 0);
        }
    }

    /// Counts a bucket as no longer vacant, if it is, before an entry is stored in it.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - `spot` is a bucket of `grain` of the table.
    #[inline(always)]
    pub(super) unsafe fn occupy(&self, grain: usize, spot: Spot) {
        // SAFETY: by this function's contract the caller is the only writer, and the bucket is in the table.
        if Self::keeps(grain) && self.vacant.load(Ordering::Relaxed) > 0 && unsafe { self.is_vacant(spot) } {
            bump(&self.vacant, -1);
        }
    }

    /// Removes the empty buckets of the chain that begins at `head`.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - `head` is the first bucket of a chain, whose empty buckets have been counted where [`take_out`](Self::take_out) says so.
    #[inline(never)]
    pub(super) unsafe fn tidy(&self, batch: &mut Retired<'n>, head: Spot) {
        // SAFETY: by this function's contract the caller is the only writer.
        unsafe {
            let mut before = head;
            while let Some(spot) = self.behind(before) {
                if self.is_vacant(spot) {
                    self.take_out(batch, Some(before), spot);
                } else {
                    before = spot;
                }
            }
            if self.read_tag(head) & Self::LIVE != 0 && self.is_vacant(head) {
                self.take_out(batch, None, head);
            }
        }
    }

    /// Takes the vacant buckets of a range out, which larger pages are about to cover.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table.
    #[inline(never)]
    pub(super) unsafe fn clear_way(&self, batch: &mut Retired<'n>, pages: Pages) {
        if Self::keeps(0) && self.vacant.load(Ordering::Relaxed) > 0 {
            // SAFETY: by this function's contract the caller is the only writer, and the batch came from this table.
            let _ = unsafe { self.parts(pages, Visitor::Pruner(batch), |_| ControlFlow::Continue(())) };
        }
    }

    /// Tells whether the table has more vacant buckets than it may have: more than blocks, or any after a lack of memory.
    #[inline(always)]
    pub(super) fn must_sweep(&self) -> bool {
        if S::LOAD == 0 {
            return false;
        }
        let may_have = if self.has_lacked_memory() { 0 } else { self.blocks() };
        self.vacant.load(Ordering::Relaxed) > may_have
    }

    /// Tells whether a change has ever found no memory.
    pub(super) fn has_lacked_memory(&self) -> bool {
        self.lacked_memory.load(Ordering::Relaxed) != 0
    }

    /// Returns how many blocks may lose their last entry before the table is [to be swept](Self::must_sweep).
    pub(super) fn may_keep(&self) -> usize {
        if !Self::keeps(0) || self.has_lacked_memory() {
            return 0;
        }
        self.blocks().saturating_sub(self.vacant.load(Ordering::Relaxed)) / 2
    }

    /// Takes the vacant buckets out of the next chains in turn, until the table is no longer [to be swept](Self::must_sweep) or
    /// [`STEPS`] chains have been swept.
    ///
    /// # Safety
    ///
    /// The caller ensures:
    ///
    /// - the caller is the only writer;
    /// - the batch came from this table;
    /// - no code relies on a vacant bucket that it has found.
    #[inline(never)]
    pub(super) unsafe fn sweep(&self, batch: &mut Retired<'n>) {
        for _ in 0..STEPS {
            if !self.must_sweep() {
                break;
            }
            let next = self.swept.load(Ordering::Relaxed);
            let number = if next < self.buckets() { next } else { 0 };
            self.swept.store(number + 1, Ordering::Relaxed);
            // SAFETY: by this function's contract the caller is the only writer, and the batch came from this table; `number` is that
            // of a first bucket.
            unsafe { self.tidy(batch, self.numbered(number)) };
        }
    }

    /// Returns the error of a change for which the storage had fewer than `wanted` nodes. From now on the table keeps no vacant
    /// buckets: each change that empties a bucket or takes one sweeps.
    #[cold]
    pub(super) fn no_memory(&self, wanted: usize) -> Error {
        self.lacked_memory.store(1, Ordering::Relaxed);
        self.growth.set_limits(Self::NEVER_WITHIN);
        Error::no_memory(wanted, self.nodes.held())
    }

    /// Takes out every vacant bucket.
    ///
    /// # Safety
    ///
    /// As for [`sweep`](Self::sweep).
    #[cold]
    unsafe fn trim(&self, batch: &mut Retired<'n>) {
        if self.vacant.load(Ordering::Relaxed) == 0 {
            return;
        }
        let sweep_all = |batch: &mut Retired<'n>| {
            // SAFETY: by this function's contract the caller is the only writer, and the batch came from this table; `number` is
            // that of a first bucket.
            unsafe {
                self.part_all(batch);
                for number in 0..self.buckets() {
                    self.tidy(batch, self.numbered(number));
                }
            }
        };
        // SAFETY: by this function's contract the caller is the only writer, and the batch came from this table.
        batch.change(sweep_all, |batch| unsafe { self.mend(batch) });
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writer<'_, 'n, Hashed<'n, G, F, N, S>> {
    /// Retires every [vacant bucket](crate::hpt#vacant-buckets): a kernel that is short of memory calls it for each of its tables. The
    /// nodes are free when the batch has completed. The time is that of a visit of the whole table.
    pub fn trim(&mut self) {
        let (table, batch) = self.parts();
        // SAFETY: this is the only writer, the batch came from this table, and no change is under way.
        unsafe { table.trim(batch) };
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes, I: Invalidate>
    Local<'n, Hashed<'n, G, F, N, S>, I>
{
    /// Frees every [vacant bucket](crate::hpt#vacant-buckets); see [`Writer::trim`].
    pub fn trim(&mut self) {
        self.change(|table, right, _| {
            if let Ok(batch) = right.batch(&table.flag) {
                // SAFETY: the right is that of the table's only writer, and no change is under way.
                unsafe { table.trim(batch) };
            }
        });
    }
}
