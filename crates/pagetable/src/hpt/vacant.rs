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
use super::node::{Bucket, Writing};
use super::shape::Shape as _;
use super::visit::Visitor;
use super::{Hashed, Sizes};
use crate::format::Format;
use crate::nodes::Nodes;
use crate::{Error, Geometry, Invalidate, Local, Writer};

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Hashed<'n, G, F, N, S> {
    /// Counts a bucket that a change has emptied, if it [stays](super::shape::Shape::keeps) in its chain.
    #[inline(always)]
    pub(super) fn count_vacant(&self, grain: usize) {
        if Self::keeps(grain) {
            bump(&self.vacant, 1);
        }
    }

    /// Tells whether the table has more vacant buckets than it may have: more than blocks, or any after a lack of memory.
    #[inline(always)]
    pub(super) fn must_sweep(&self) -> bool {
        if S::LOAD == 0 {
            return false;
        }
        let may_have = if self.has_lacked_memory() { 0 } else { self.known_blocks() };
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
        self.known_blocks().saturating_sub(self.vacant.load(Ordering::Relaxed)) / 2
    }

    /// Returns the error of a change for which the storage had fewer than `wanted` nodes. From now on the table keeps no vacant
    /// buckets: each change that empties a bucket or takes one sweeps.
    #[cold]
    pub(super) fn no_memory(&self, wanted: usize) -> Error {
        self.lacked_memory.store(1, Ordering::Relaxed);
        self.growth.set_limits(Self::NEVER_WITHIN);
        Error::no_memory(wanted, self.nodes.held())
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Bucket<'_, 'n, G, F, N, S> {
    /// Counts the bucket, one of `grain`, as no longer vacant, if it is, before an entry is stored in it.
    #[inline(always)]
    pub(super) fn occupy(self, grain: usize) {
        let vacant = &self.table().vacant;
        if Self::keeps(grain) && vacant.load(Ordering::Relaxed) > 0 && self.is_vacant() {
            bump(vacant, -1);
        }
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'_, 'n, G, F, N, S> {
    /// Counts the bucket of a block of base pages, which the unmap of a page has emptied, and sweeps or shrinks the table if it is
    /// time to.
    #[inline(always)]
    pub(super) fn vacate(&mut self, block: usize) {
        let vacant = bump(&self.vacant, 1);
        let blocks = self.used() - vacant;
        // An unmap takes no bucket into use, so it is not the change that makes the table grow.
        if vacant > blocks || !self.growth.is_within_limits(blocks, 0) {
            self.again().vacate_slowly(block);
        }
    }

    /// Continues to grow, sweep or shrink the table after the bucket of a block has become vacant. If the table is
    /// [to be swept](Hashed::must_sweep) and the block's chain is not joined to another one, its vacant buckets are taken out.
    #[inline(never)]
    fn vacate_slowly(mut self, block: usize) {
        // In chains that have not been parted each removal walks both, and there may be many.
        if self.must_sweep() && !self.has_joined() {
            self.chain(block).tidy();
        }
        self.adapt_slowly(1, 0);
    }

    /// Takes the vacant buckets of a range out, which larger pages are about to cover.
    #[inline(never)]
    pub(super) fn clear_way(mut self, pages: Pages) {
        if Self::keeps(0) && self.vacant.load(Ordering::Relaxed) > 0 {
            let _ = self.parts(pages, Visitor::Pruner, |_| ControlFlow::Continue(()));
        }
    }

    /// Takes the vacant buckets out of the next chains in turn, until the table is no longer [to be swept](Hashed::must_sweep) or
    /// [`STEPS`] chains have been swept. The change must not rely on a vacant bucket that it has found.
    #[inline(never)]
    pub(super) fn sweep(mut self) {
        for _ in 0..STEPS {
            if !self.must_sweep() {
                break;
            }
            let next = self.swept.load(Ordering::Relaxed);
            let number = if next < self.buckets() { next } else { 0 };
            self.swept.store(number + 1, Ordering::Relaxed);
            self.numbered_chain(number).tidy();
        }
    }

    /// Takes out every vacant bucket.
    #[cold]
    fn trim(self) {
        if self.vacant.load(Ordering::Relaxed) > 0 {
            self.or_mend(|mut writing| {
                writing.part_all();
                for number in 0..writing.buckets() {
                    writing.numbered_chain(number).tidy();
                }
            });
        }
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writer<'_, 'n, Hashed<'n, G, F, N, S>> {
    /// Retires every [vacant bucket](crate::hpt#vacant-buckets): a kernel that is short of memory calls it for each of its tables. The
    /// nodes are free when the batch has completed. The time is that of a visit of the whole table.
    pub fn trim(&mut self) {
        self.writing().trim();
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes, I: Invalidate>
    Local<'n, Hashed<'n, G, F, N, S>, I>
{
    /// Frees every [vacant bucket](crate::hpt#vacant-buckets); see [`Writer::trim`].
    pub fn trim(&mut self) {
        self.change(|table, right, _| {
            if let Ok(writing) = table.writing(right) {
                writing.trim();
            }
        });
    }
}
