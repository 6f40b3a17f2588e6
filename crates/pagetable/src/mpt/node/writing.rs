//! The right to write a table.

use core::ops::Deref;

use tlbkit_addr::{Flush, FlushScope, Pages, VirtAddr, Vpn};

use super::{NodeRef, Place};
use crate::format::{Format, walked};
use crate::mpt::Mpt;
use crate::mpt::shape::Shape;
use crate::nodes::{NodeAddr, Nodes};
use crate::{Error, Mode as _, PageTurn, Part, Pending, Radix, Retired, Right, Writer};

/// The right to write a table or a part of it for `'w`, and the batch that takes over what the changes unlink.
///
/// Every change of the table is a method of this type. The holder is the only writer of the node of its part ([`top`](Self::top)) and of
/// those below it; the nodes above are only read, and their slots on the way to that node do not change.
pub(crate) struct Writing<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    table: &'w Mpt<'n, G, F, N>,
    batch: &'w mut Retired<'n>,
}

/// A node of the table, and the right to write it and all nodes below it for `'w`.
///
/// The node is linked: only the node above can unlink it, and that one is borrowed.
pub(crate) struct NodeMut<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    pub(super) node: NodeRef<'w, 'n, G, F, N>,
    pub(super) batch: &'w mut Retired<'n>,
}

/// The right to write a table, and the node in which the walk for a page ended.
pub(crate) struct Position<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> {
    writing: Writing<'w, 'n, G, F, N>,
    /// A linked node of `level`, which is not in the borrowed part.
    addr: NodeAddr,
    level: usize,
}

impl<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writing<'w, 'n, G, F, N> {
    /// Takes the right to write `table`.
    ///
    /// # Safety
    ///
    /// During `'w` the caller is the only writer of the table, or of the batch's part. The batch came from the table.
    #[inline(always)]
    pub(crate) unsafe fn new(table: &'w Mpt<'n, G, F, N>, batch: &'w mut Retired<'n>) -> Self {
        Self { table, batch }
    }

    /// Takes the right to write `table` or a part of it, if `right` is that.
    ///
    /// # Errors
    ///
    /// [`Error::OtherTable`].
    #[inline(always)]
    pub(crate) fn of(table: &'w Mpt<'n, G, F, N>, right: Right<'w, 'n>) -> Result<Self, Error> {
        Ok(Self { table, batch: right.batch(&table.flag)? })
    }

    /// Tells whether this is the right to write the whole table.
    pub(crate) const fn is_whole(&self) -> bool {
        self.batch.part().is_none()
    }

    /// Tells whether other tables may borrow the node of the part.
    #[cold]
    pub(crate) fn is_lent(&self) -> bool {
        let lent = |part: &Part| {
            let top = Mpt::<'n, G, F, N>::index(0, part.pages.first().address(G::BASE));
            part.above + 2 == Mpt::<'n, G, F, N>::LEVELS && self.table.is_lent(top)
        };
        self.batch.part().is_some_and(lent)
    }

    /// Checks that all of the pages are in the space, that none is borrowed, and that this is the right to write them, as every change of
    /// a range does.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::Borrowed`] or [`Error::OutsideRight`].
    #[inline(always)]
    pub(crate) fn check(&self, pages: Pages) -> Result<(), Error> {
        self.table.check(pages)?;
        self.check_part(pages)
    }

    /// Checks that this is the right to write `pages`.
    ///
    /// # Errors
    ///
    /// [`Error::OutsideRight`].
    #[inline(always)]
    pub(crate) fn check_part(&self, pages: Pages) -> Result<(), Error> {
        // With one CPU there is one writer.
        if !N::Mode::SHARED || self.batch.part().is_none_or(|part| part.covers(pages)) {
            return Ok(());
        }
        Err(Error::OutsideRight { at: pages.first().address(G::BASE) })
    }

    /// Checks that this is the right to write the whole table.
    ///
    /// # Errors
    ///
    /// [`Error::OutsideRight`].
    pub(crate) fn check_whole(&self) -> Result<(), Error> {
        if self.is_whole() { Ok(()) } else { Err(Error::OutsideRight { at: VirtAddr::new(0) }) }
    }

    /// Returns the table.
    #[inline(always)]
    pub(crate) fn table(&self) -> &'w Mpt<'n, G, F, N> {
        self.table
    }

    /// Returns the root, to be read.
    #[inline(always)]
    pub(crate) fn view(&self) -> NodeRef<'_, 'n, G, F, N> {
        // SAFETY: by the contract of `new` the holder is the only writer; the batch is borrowed, and not completed here.
        unsafe { NodeRef::sole_root(self.table) }
    }

    /// Returns the topmost node that the holder may write: the root, or the node of its part.
    #[inline(always)]
    pub(crate) fn root(&mut self) -> NodeMut<'_, 'n, G, F, N> {
        // SAFETY: by the contract of `new` the holder is the only writer; the batch is borrowed, and not completed here.
        let root = unsafe { NodeRef::sole_root(self.table) };
        let node = match self.batch.part() {
            None => root,
            // The table has the part, so the walk ends at its node.
            Some(&Part { pages, above }) => {
                root.down_to(Mpt::<'n, G, F, N>::LEVELS - 1 - above, pages.first().address(G::BASE))
            }
        };
        NodeMut { node, batch: self.batch }
    }

    /// Walks to the node of `level` for `at`, or to the last node above it that exists. For a borrowed page the walk ends at the
    /// root, because the lender may free the nodes below while this CPU is not pinned.
    #[inline(always)]
    pub(crate) fn node_for(&mut self, at: VirtAddr, level: usize) -> NodeMut<'_, 'n, G, F, N> {
        // The walk reads only links, each of which leads to a node that the table owns. It does not end above the part's node.
        // SAFETY: as for `root`.
        NodeMut { node: unsafe { NodeRef::sole_root(self.table) }.down_to(level, at), batch: self.batch }
    }

    /// Returns the slot of a page in its last-level node, if there is such a node and the page is not borrowed.
    #[inline(always)]
    pub(crate) fn place(&mut self, page: Vpn) -> Option<Place<'_, 'n, G, F, N>> {
        let (node, index) = self.view().last_slot(page)?;
        Some(Place::of(node, index))
    }

    /// Retires the root.
    ///
    /// # Safety
    ///
    /// No code uses the table any more. If `clean` is set, all words of the root are zero.
    pub(crate) unsafe fn retire_root(self, clean: bool) {
        // SAFETY: by this function's contract nothing leads to the root, which is one of the table's storage.
        unsafe {
            self.batch.push(self.table.root, clean && (F::EXTRA == 0 || Mpt::<'n, G, F, N>::LEVELS > 1));
        };
        self.table.tally_node(-1, 0);
    }

    /// Makes a change. If the change unwinds, the table is repaired.
    #[inline(always)]
    pub(crate) fn or_mend<T>(self, change: impl FnOnce(Writing<'_, 'n, G, F, N>) -> T) -> T {
        let table = self.table;
        // Each closure has the right that `self` has, one after the other.
        self.batch.change(|batch| change(Writing { table, batch }), |batch| Writing { table, batch }.mend())
    }

    /// Returns the batch's flush.
    #[inline(always)]
    pub(crate) fn flush(&mut self) -> &mut Flush {
        self.batch.flush_mut()
    }

    /// Adds pages whose leaves have changed to the flush; if `links` is set and hardware may cache links, also the links to them.
    #[inline(always)]
    pub(crate) fn touch(&mut self, scope: FlushScope, pages: Pages, links: bool) {
        self.batch.stale(scope, pages, links && walked::<F>());
    }

    /// Returns how many nodes the batch has.
    pub(crate) fn retired(&self) -> usize {
        self.batch.nodes()
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Writer<'_, 'n, Mpt<'n, G, F, N>> {
    /// Returns the writer's right to write the table.
    #[inline(always)]
    pub(crate) fn writing(&mut self) -> Writing<'_, 'n, G, F, N> {
        let (table, batch) = self.parts();
        // SAFETY: this is the only writer of the batch's part, and its batch came from the table.
        unsafe { Writing::new(table, batch) }
    }
}

impl<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Deref for NodeMut<'w, 'n, G, F, N> {
    type Target = NodeRef<'w, 'n, G, F, N>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.node
    }
}

impl<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> NodeMut<'w, 'n, G, F, N> {
    /// Returns a slot of the node.
    #[inline(always)]
    pub(crate) fn at(&self, index: usize) -> Place<'_, 'n, G, F, N> {
        Place { node: self.node, index: self.node.within(index).0 }
    }

    /// Returns the node that a slot links; `None` if there is none, or if the slot is borrowed.
    #[inline(always)]
    pub(crate) fn child(&mut self, index: usize) -> Option<NodeMut<'_, 'n, G, F, N>> {
        let node = self.node.link_in(index)?;
        Some(NodeMut { node, batch: self.batch })
    }

    /// Returns the node that a slot links, or this node if there is none.
    ///
    /// # Errors
    ///
    /// This node.
    #[inline(always)]
    pub(crate) fn into_child(self, index: usize) -> Result<Self, Self> {
        match self.node.link_in(index) {
            Some(node) => Ok(Self { node, batch: self.batch }),
            None => Err(self),
        }
    }

    /// Counts slots in, which are in use from now on.
    #[inline(always)]
    pub(crate) fn add_live(&mut self, index: usize, slots: usize) {
        let (index, slots) = self.clamped(index, slots);
        self.node.count_in(index, slots);
    }

    /// Counts slots out, which are no longer in use, and returns how many are.
    #[inline(always)]
    pub(crate) fn sub_live(&mut self, slots: usize) -> u32 {
        self.node.count_out(slots)
    }

    /// Stores how many slots are in use.
    pub(crate) fn recount(&mut self, live: u32) {
        self.node.recount(live);
    }

    /// Counts the loan of the node as a slot in use, so that the node is never empty.
    pub(crate) fn add_loan(&mut self) {
        self.node.count_loan();
    }

    /// Adds pages whose leaves have changed to the flush; if `links` is set and hardware may cache links, also the links to them.
    #[inline(always)]
    pub(crate) fn touch(&mut self, scope: FlushScope, pages: Pages, links: bool) {
        self.batch.stale(scope, pages, links && walked::<F>());
    }

    /// Returns the batch's flush.
    #[inline(always)]
    pub(crate) fn flush(&mut self) -> &mut Flush {
        self.batch.flush_mut()
    }
}

impl<'w, 'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> Position<'w, 'n, G, F, N> {
    /// Returns the root, as the position of a writer.
    #[inline(always)]
    pub(crate) fn new(writing: Writing<'w, 'n, G, F, N>) -> Self {
        let addr = writing.table.root;
        Self { writing, addr, level: 0 }
    }

    /// Returns the table.
    #[inline(always)]
    pub(crate) fn table(&self) -> &'w Mpt<'n, G, F, N> {
        self.writing.table
    }

    /// Checks that this is the right to write a page.
    ///
    /// # Errors
    ///
    /// [`Error::OutsideRight`].
    #[inline(always)]
    pub(crate) fn check_part(&self, page: Vpn) -> Result<(), Error> {
        self.writing.check_part(Pages::one(page))
    }

    /// Returns the level of the node.
    #[inline(always)]
    pub(crate) fn level(&self) -> usize {
        self.level
    }

    /// Returns the node, to be read.
    #[inline(always)]
    pub(crate) fn view(&self) -> NodeRef<'_, 'n, G, F, N> {
        NodeRef { addr: self.addr, level: self.level, ..self.writing.view() }
    }

    /// Returns the node.
    #[inline(always)]
    pub(crate) fn node(&mut self) -> NodeMut<'_, 'n, G, F, N> {
        let (addr, level) = (self.addr, self.level);
        // SAFETY: by the contract of `Writing` the holder is the only writer of this node; the batch is borrowed, and not completed here.
        let root = unsafe { NodeRef::sole_root(self.writing.table) };
        NodeMut { node: NodeRef { addr, level, ..root }, batch: self.writing.batch }
    }

    /// Returns the slot of the node that `at` falls into.
    #[inline(always)]
    pub(crate) fn place(&self, at: VirtAddr) -> Place<'_, 'n, G, F, N> {
        let node = self.view();
        Place::of(node, node.index_of(at))
    }

    /// Returns the slot of the node that `at` falls into, if the node is of the last level.
    #[inline(always)]
    pub(crate) fn last_place(&self, at: VirtAddr) -> Option<Place<'_, 'n, G, F, N>> {
        let level = Self::LEVELS - 1;
        if self.level != level {
            return None;
        }
        let node = NodeRef { level, ..self.view() };
        Some(Place::of(node, node.index_of(at)))
    }

    /// Walks to the slot for `at`. For a borrowed page the walk ends at the root.
    #[inline(always)]
    pub(crate) fn walk(&mut self, at: VirtAddr) {
        let root = self.writing.view();
        let end = root.walk(root.index_of(at), at, Self::LEVELS - 1, NodeRef::read, |node, _, _| node);
        (self.addr, self.level) = (end.addr, end.level);
    }

    /// Goes to the root, and returns the right to make a change that may link or unlink nodes.
    #[inline(always)]
    pub(crate) fn writing(&mut self) -> Writing<'_, 'n, G, F, N> {
        let table = self.writing.table;
        (self.addr, self.level) = (table.root, 0);
        Writing { table, batch: self.writing.batch }
    }

    /// Returns the obligation for the changes so far.
    #[inline(always)]
    pub(crate) fn pending(&mut self) -> Pending<'_, 'n> {
        Pending::of(self.writing.batch)
    }

    /// Returns the batch's flush.
    #[inline(always)]
    pub(crate) fn flush(&mut self) -> &mut Flush {
        self.writing.flush()
    }
}

impl<'n, G: Radix, F: Format, N: Nodes<Word = F::Word>> PageTurn<'_, 'n, Mpt<'n, G, F, N>> {
    /// Returns the slot of the page in its last-level node, if there is such a node and the page is not borrowed.
    #[inline(always)]
    pub(crate) fn place(&mut self) -> Option<Place<'_, 'n, G, F, N>> {
        // SAFETY: the handles borrow the right to write the pages of the page's last-level node. Without the right to write one of them
        // nobody unlinks a node on the way there, or changes the words that lead to it.
        let (node, index) = unsafe { NodeRef::sole_root(self.table()) }.last_slot(self.page())?;
        Some(Place::of(node, index))
    }
}
