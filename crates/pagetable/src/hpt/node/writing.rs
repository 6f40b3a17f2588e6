//! The right to write a table.

use core::marker::PhantomData;
use core::ops::Deref;

use tlbkit_addr::{FlushScope, Pages};

use super::{Bucket, Chain, ChainLock, Walk};
use crate::format::Format;
use crate::hpt::shape::{Shape as _, Spot};
use crate::hpt::{Hashed, Sizes};
use crate::nodes::{NodeAddr, Nodes};
use crate::{Geometry, PageTurn, Retired, Writer};

/// The right to write a table for `'w`, and the batch that takes over what the changes take out.
///
/// Every change of the table is a method of this type, or of a handle that is made from it.
pub(crate) struct Writing<'w, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> {
    pub(super) table: &'w Hashed<'n, G, F, N, S>,
    pub(super) batch: &'w mut Retired<'n>,
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Deref for Writing<'_, 'n, G, F, N, S> {
    type Target = Hashed<'n, G, F, N, S>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        self.table
    }
}

impl<'w, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writing<'w, 'n, G, F, N, S> {
    /// Takes the right to write `table`.
    ///
    /// # Safety
    ///
    /// During `'w` the caller is the table's only writer. The batch came from the table.
    #[inline(always)]
    pub(crate) unsafe fn new(table: &'w Hashed<'n, G, F, N, S>, batch: &'w mut Retired<'n>) -> Self {
        Self { table, batch }
    }

    /// Lends the right. Functions that are not inlined take it by value, in two registers.
    #[inline(always)]
    pub(crate) fn again(&mut self) -> Writing<'_, 'n, G, F, N, S> {
        Writing { table: self.table, batch: self.batch }
    }

    /// Makes a change. If the change unwinds, the table is repaired.
    #[inline(always)]
    pub(crate) fn or_mend<T>(self, change: impl FnOnce(Writing<'_, 'n, G, F, N, S>) -> T) -> T {
        let table = self.table;
        // Each closure has the right that `self` has, one after the other.
        self.batch.change(|batch| change(Writing { table, batch }), |batch| Writing { table, batch }.mend())
    }

    /// Returns the table.
    #[inline(always)]
    pub(crate) fn table(&self) -> &'w Hashed<'n, G, F, N, S> {
        self.table
    }

    /// Returns the right to walk the table.
    #[inline(always)]
    pub(crate) fn walk(&self) -> Walk<'_, 'n, G, F, N, S> {
        // The holder is the only writer, and no batch is completed while this right is borrowed.
        Walk { table: self.table, here: PhantomData }
    }

    /// Returns the right to walk the table while the writing changes it. Its units may be taken out; they are not freed.
    #[inline(always)]
    pub(super) fn on(&self) -> Walk<'w, 'n, G, F, N, S> {
        Walk { table: self.table, here: PhantomData }
    }

    /// Returns the bucket at which the chain of a block begins.
    #[inline(always)]
    pub(crate) fn head(&self, block: usize) -> Bucket<'_, 'n, G, F, N, S> {
        // In the array, a block's bucket begins with its first unit.
        Bucket(self.walk().first(Self::lead(block)).bucket())
    }

    /// Returns the chain of a block.
    #[inline(always)]
    pub(crate) fn chain(&mut self, block: usize) -> Chain<'_, 'n, G, F, N, S> {
        let head = self.head(block).spot();
        Chain::new(self.again(), head)
    }

    /// Returns the chain whose first bucket has a number.
    pub(crate) fn numbered_chain(&mut self, number: usize) -> Chain<'_, 'n, G, F, N, S> {
        let head = self.numbered(number).spot();
        Chain::new(self.again(), head)
    }

    /// Returns a bucket of the table.
    ///
    /// # Safety
    ///
    /// The place is that of a bucket that is in the table now.
    pub(crate) unsafe fn bucket(&self, spot: Spot) -> Bucket<'_, 'n, G, F, N, S> {
        // SAFETY: by this function's contract the bucket is in the table, of which the holder is the only writer.
        unsafe { Bucket::new(self.table, spot) }
    }

    /// Retires an overflow bucket.
    ///
    /// # Safety
    ///
    /// The node is an overflow bucket of the table, to which no word leads any more.
    #[inline(never)]
    pub(crate) unsafe fn retire(self, node: NodeAddr) {
        // SAFETY: by this function's contract no word leads to the node, which is one of the batch's storage. The node has a tag, so
        // it is not clean.
        unsafe { self.batch.push_sized(self.table.nodes, node, Self::NODE, false) };
        self.count_node(-1);
    }

    /// Adds pages to the batch's flush.
    #[inline(always)]
    pub(crate) fn touch(&mut self, scope: FlushScope, pages: Pages) {
        self.batch.touch(scope, pages);
    }

    /// Returns how many nodes the batch has.
    pub(crate) fn retired(&self) -> usize {
        self.batch.nodes()
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Writer<'_, 'n, Hashed<'n, G, F, N, S>> {
    /// Returns the writer's right to write the table.
    #[inline(always)]
    pub(crate) fn writing(&mut self) -> Writing<'_, 'n, G, F, N, S> {
        let (table, batch) = self.parts();
        // SAFETY: this is the table's only writer, and its batch came from the table.
        unsafe { Writing::new(table, batch) }
    }
}

impl<'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes>
    PageTurn<'_, 'n, Hashed<'n, G, F, N, S>>
{
    /// Returns the first bucket of the page's chain, and the lock that gives the right to write the chain. Returns `None` if another
    /// writer has that lock, or if the table has no locks.
    #[inline(always)]
    pub(crate) fn chain(&mut self) -> Option<Locked<'_, 'n, G, F, N, S>> {
        let (table, page) = (self.table(), self.page());
        table.locks()?;
        // Only a writer of the whole table changes the directory, the size, or which chains are joined. No batch of the table frees a bucket
        // of the chain meanwhile, because such a bucket would have to be taken out before, by a writer of the whole table.
        let walk: Walk<'_, 'n, G, F, N, S> = Walk { table, here: PhantomData };
        let key = Hashed::<'n, G, F, N, S>::lead(Hashed::<'n, G, F, N, S>::block(0, page.address(G::BASE)));
        let head = walk.first(key).bucket();
        let pair = if walk.has_joined() { walk.pair(key) } else { None };
        let lock = pair.map_or(head, |[low, _]| walk.numbered(low)).try_lock()?;
        Some((Bucket(head), lock))
    }
}

/// The first bucket of a chain, and the lock that gives the right to write the chain.
type Locked<'a, 'n, G, F, N, S> = (Bucket<'a, 'n, G, F, N, S>, ChainLock<'a, 'n, G, F, N, S>);
