//! Moves of a range: what `mremap` does with the pages.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, Pages, VirtAddr};
use tlbkit_pagetable::{Error, FlushAll};

use super::Edit;
use crate::counted::counted;
use crate::settle::keeps_absence;
use crate::storage::Table;
use crate::table::SpaceTable as _;
use crate::{Kernel, PagesOf};

impl<K: Kernel, const CPUS: usize> Edit<'_, K, CPUS> {
    /// Moves every page of `from` that is mapped, and every mark, to the same number of pages from `to` on, and returns how many base
    /// pages are mapped there: what `mremap` does. The pages keep their frames, their attributes with
    /// [`Attr::ACCESSED`] and [`Attr::DIRTY`], and their payloads, and holes stay holes. No frame and no payload gets a user more or
    /// less, so neither [`Kernel::share`] nor [`Kernel::release`] is called.
    ///
    /// At each moment a page is mapped at its old place, at its new place or at neither, and a status bit that hardware sets
    /// meanwhile is not lost. (Where software loads the TLB, a [guarded](crate::Guarded) table has it at both for a moment.) A fault
    /// at either place meanwhile waits, as during any change.
    ///
    /// Larger pages that extend beyond `from` are split first. A larger page keeps its size if its new place is aligned to that
    /// size. Otherwise it becomes pages of the largest size for which its new place is aligned, which takes nodes there and no flush.
    ///
    /// The old and the new place may not overlap, because a page in the way of another one could not come back if the move failed. A kernel
    /// that moves pages by less than their number moves them in two steps, the pages next to the new place first.
    ///
    /// Costs two stores for each page; or for a node of pages, if the distance is a multiple of what the node covers, and it has no other
    /// pages: a load of each of its entries, and two stores. Then this call flushes before it returns, together with all earlier
    /// changes of the edit: no later change of the edit may be found by way of the node's old place. Otherwise the edit's flush is
    /// enough. In both cases that is one shootdown for the range, whatever its length. Interrupts stay masked for the whole range.
    ///
    /// # Errors
    ///
    /// [`Error::Occupied`] or [`Error::Marked`] with a page in the way at the new place; [`Error::Overlap`];
    /// [`Error::Misaligned`] if no page begins at `to`; [`Error::OutOfRange`]; [`Error::Borrowed`] if a page at either place is
    /// [shared](crate::AddressSpace::sharing); [`Error::WrongAttr`] if a page is global and may not be at its new place;
    /// [`Error::WrongSize`] if a page of the size of a top-level slot would have to take a [lent](crate::AddressSpace::lending) slot;
    /// [`Error::NoMemory`]; [`Error::Breaks`] on AArch64 if a page to split is not a user's. The translations have not changed then.
    #[inline(never)]
    pub fn move_pages(&mut self, from: PagesOf<K>, to: VirtAddr) -> Result<usize, Error> {
        let (from, base) = (counted::<K>(from), self.space.base());
        if !to.is_aligned(base) {
            return Err(Error::Misaligned { at: to, size: base });
        }
        let new = Pages::count(to.vpn(base), from.len());
        let new = new.filter(|new| new.last().get() <= usize::MAX >> base.shift());
        let new = new.ok_or(Error::OutOfRange { at: to })?;
        // These checks come before a page is split.
        self.space.check_own(from)?;
        self.space.check_own(new)?;
        if let Some(both) = from.intersect(new) {
            return Err(Error::Overlap { at: both.first().address(base) });
        }
        self.check_global_pages(from, new)?;
        let split = self.split_ends(from)?;
        let (mut changes, writer) = self.parts();
        changes.make_way(writer.pending(), new);
        // The flush that a move of nodes asks for is the one below: no other change of the table comes before it.
        let mut has_moved_nodes = false;
        let moved = writer.move_pages(from, new.first(), FlushAll::in_place(&mut |_| has_moved_nodes = true));
        if moved.is_err() {
            self.join(split);
            return moved;
        }
        if keeps_absence::<K, CPUS>()
            || changes.call.waits(changes.space) && !Table::<K>::are_users(writer, new)
        {
            // Supervisor pages may be among them. The other CPUs are asked to flush the old place anyway.
            changes.put_in_force(writer.pending(), new, Attr::empty());
        }
        if has_moved_nodes {
            // A walk by software that is in a node by its old place must not find what a later change maps there. The flush may unwind.
            self.call.end_walks(self.space);
            self.flush();
        }
        moved
    }

    /// Checks that no page of `from` is global, if no page of `new` may be.
    fn check_global_pages(&self, from: Pages, new: Pages) -> Result<(), Error> {
        let Err(why) = self.space.check_global(Attr::GLOBAL, new) else { return Ok(()) };
        // No other address space has global pages of its own.
        let has_global = self.space.is_kernels()
            && self
                .visit(from, &mut |leaf| {
                    if leaf.attr.contains(Attr::GLOBAL) {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                })
                .is_break();
        if has_global { Err(why) } else { Ok(()) }
    }
}
