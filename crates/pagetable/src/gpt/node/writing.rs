//! The right to write a table.

use core::ops::Deref;

use tlbkit_addr::{FlushScope, Pages};

use super::{Node, View};
use crate::Retired;
use crate::Word as _;
use crate::gpt::path::Path;
use crate::gpt::shape::Shape;

/// The right to write a table for `'w`, and the batch that takes over what the changes unlink.
///
/// Every change of the table is a method of this type.
pub(in crate::gpt) struct Writing<'w, 'n, T: Shape> {
    view: View<'w, T>,
    batch: &'w mut Retired<'n>,
}

impl<'w, T: Shape> Deref for Writing<'w, '_, T> {
    type Target = View<'w, T>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.view
    }
}

impl<'w, 'n, T: Shape> Writing<'w, 'n, T> {
    /// Takes the right to write `table`.
    ///
    /// # Safety
    ///
    /// During `'w` the caller is the table's only writer. The batch came from the table.
    #[inline(always)]
    pub(in crate::gpt) unsafe fn new(table: &'w T, batch: &'w mut Retired<'n>) -> Self {
        // SAFETY: by this function's contract the caller is the only writer. The batch is borrowed, and not completed here.
        Self { view: unsafe { View::sole(table) }, batch }
    }

    /// Makes a change. If the change unwinds, the table is mended.
    #[inline(always)]
    pub(in crate::gpt) fn or_mend<R>(self, change: impl FnOnce(Writing<'_, 'n, T>) -> R) -> R {
        let Self { view, batch } = self;
        // SAFETY: the change has the batch only through this type, which neither replaces it nor takes nodes out of it.
        unsafe {
            batch.change_late(
                |batch| change(Writing { view, batch }),
                |batch, forgotten| Writing { view, batch }.mend(forgotten),
            )
        }
    }

    /// Adds pages whose translations have changed to the batch's flush.
    #[inline(always)]
    pub(in crate::gpt) fn touch(&mut self, scope: FlushScope, pages: Pages) {
        self.batch.touch(scope, pages);
    }

    /// Returns how many nodes the batch has.
    pub(in crate::gpt) fn retired(&self) -> usize {
        self.batch.nodes()
    }

    /// Passes a node or leaf to the batch.
    ///
    /// # Safety
    ///
    /// When the change is over, no slot of the table leads to the node. It is retired once, and its count is not changed any more.
    pub(in crate::gpt) unsafe fn retire(&mut self, node: Node<'w, T>) {
        let table = self.view.table;
        let words = T::words(node.edge);
        // SAFETY: the batch and the node are of this table. By this function's contract no slot leads to the node when the change is
        // over.
        unsafe { self.batch.push_sized(table.nodes(), node.edge.node, words, false) };
        let bytes = words * T::W::BYTES;
        if node.is_leaf() { table.tally().leaf(-1, bytes) } else { table.tally().node(-1, bytes) }
    }

    /// Retires a node or leaf with everything below it, in a loop, and subtracts the PTEs from the table's count.
    ///
    /// # Safety
    ///
    /// The contract of [`retire`](Self::retire), for the node and for everything below it.
    #[inline(never)]
    pub(in crate::gpt) unsafe fn discard(&mut self, gone: Node<'w, T>) {
        let table = self.view.table;
        if gone.is_leaf() {
            table.tally().ptes(-(gone.live() as isize));
            // SAFETY: the contract of this function.
            return unsafe { self.retire(gone) };
        }
        let mut path = Path::new(self.view);
        path.push(gone, 0);
        let mut last = None;
        while let Some(step) = path.step() {
            let done = match step {
                Err(node) => node,
                Ok(slot) => {
                    let Some(child) = slot.read().filter(|&child| Some(child) != last) else { continue };
                    // Neighbouring slots may lead to one leaf.
                    last = Some(child);
                    if !child.is_leaf() {
                        path.push(child, 0);
                        continue;
                    }
                    table.tally().ptes(-(child.live() as isize));
                    child
                }
            };
            // SAFETY: the contract of this function. Each leaf is met once, and each node once when all its slots have been read.
            unsafe { self.retire(done) };
        }
    }
}
