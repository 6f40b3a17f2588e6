//! Unmaps of a range, and what becomes of its frames: they wait for the flush in the edit's list, or in the table's own nodes.

use tlbkit_addr::Pages;
use tlbkit_pagetable::{Error, Mark, Pending, Rest, Run, Uncovered};

use super::Edit;
use crate::counted::{counted, to_pages};
use crate::detached::Detachment;
use crate::storage::Table;
use crate::table::{PART, SpaceTable as _};
use crate::{Deferred, Kernel, PagesOf};

/// The number of pages after which a range is no longer unmapped with the list of runs alone.
pub(crate) const SHORT: usize = 1 << 9;

impl<K: Kernel, const CPUS: usize> Edit<'_, K, CPUS> {
    /// Unmaps every page of `pages` that is mapped, and returns how many base pages were mapped. Larger pages that extend beyond
    /// the range are split first. [`Kernel::release`] gets the frames when no TLB has a translation to them any more. Only then
    /// is it certain whether they were written ([`Run::dirty`](tlbkit_pagetable::Run::dirty)), because until the flush a CPU may
    /// still write them. If this edit has cleared [`Attr::DIRTY`](crate::Attr::DIRTY) in any page and not flushed since, all frames count as written.
    /// Marks are removed, and [`Kernel::release_payload`] gets their payloads.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] or [`Error::Borrowed`]; [`Error::NoMemory`] if there is no node to split a page, or
    /// [`Error::Breaks`] on AArch64 if a page to split is not a user's. The translations have not changed then.
    #[inline(never)]
    pub fn unmap(&mut self, pages: PagesOf<K>) -> Result<usize, Error> {
        let (mut total, mut rest) = (0, Some(counted::<K>(pages)));
        let mut detached = Detachment::new(self.space.mmu);
        while rest.is_some() {
            total += self.unmap_part(&mut rest, &mut detached)?;
            detached.release_in(self.call);
        }
        Ok(total + detached.pages())
    }

    /// Does what [`unmap`](Self::unmap) does, if no page of `pages` is a hole: each one is mapped or marked. (To the
    /// [`Holes::Refuse`](tlbkit_pagetable::Holes::Refuse) of a page table a mark is a hole.)
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`] with the first hole; otherwise as [`unmap`](Self::unmap). Nothing has changed then.
    pub fn unmap_whole(&mut self, pages: PagesOf<K>) -> Result<usize, Error> {
        self.check_whole(counted::<K>(pages))?;
        self.unmap(pages)
    }

    /// Does what [`AddressSpace::unmap_deferred`](crate::AddressSpace::unmap_deferred) does, in an edit that has changed nothing before.
    pub(crate) fn unmap_deferred(&mut self, deferred: &Deferred, pages: Pages) -> Result<usize, Error> {
        self.space.check_own(pages)?;
        self.split_ends(pages)?;
        // What was split has been flushed when frames of it wait.
        self.flush();
        let (mmu, mut pulled, mut rest) = (self.space.mmu, 0, Rest::of(pages));
        while let Some(left) = rest.pages() {
            if !deferred.has_room(mmu.address(), left.len()) {
                if pulled > 0 {
                    // More places than there are would cost a flush of everything each time that they are full.
                    return Ok(pulled + self.unmap(to_pages::<K>(left))?);
                }
                let _ = self.call.flush_deferred();
            }
            pulled += self.pull(&mut rest)?;
            self.defer(deferred, pages);
        }
        Ok(pulled)
    }

    /// Leaves the flush of what this edit has unmapped of `pages` to a later one, if there is room; otherwise flushes.
    fn defer(&mut self, deferred: &Deferred, pages: Pages) {
        let space = self.space;
        // If the edit has taken up the debt of an earlier one, its flush is one of everything, and does not wait.
        let may_wait = |pending: &Pending<'_, '_>| !pending.flush().is_none() && !pending.flush().is_all();
        // A place is of frames. Without one no change would find that links to the nodes may be in use.
        if !self.call.uncovered().is_empty()
            && let Some(pending) = self.writer.pending().filter(may_wait)
            && !self.call.is_alone(space)
            && self.call.leave(space, deferred, pages, pending)
        {
            return;
        }
        self.flush();
    }

    /// Unmaps the first part of `rest`, which has a bounded number of entries and nodes. Returns how many base pages it has had, except
    /// those in `detached`; `rest` becomes the pages after it. If the list has no room for the frames of the part, its flush has been
    /// executed when this returns, and `detached` is to be [released](Detachment::release).
    #[inline(never)]
    pub(crate) fn unmap_part(
        &mut self,
        rest: &mut Option<Pages>,
        detached: &mut Detachment<K, CPUS>,
    ) -> Result<usize, Error> {
        let Some(pages) = rest.take() else { return Ok(0) };
        self.space.check_own(pages)?;
        self.split_ends(pages)?;
        // The leaves at both ends are whole by now, so nothing below fails.
        let (mut left, is_long) = (Rest::of(pages), pages.len() > PART);
        let pulled = if is_long { 0 } else { self.pull(&mut left)? };
        let Some(pages) = left.pages().filter(|&pages| is_long || self.first_entry(pages).is_some()) else {
            return Ok(pulled);
        };
        *rest = self.detach_part(pages, detached)?;
        Ok(pulled)
    }

    /// Takes the first part of `pages` out of the table and flushes. Returns the pages after it.
    fn detach_part(
        &mut self,
        pages: Pages,
        detached: &mut Detachment<K, CPUS>,
    ) -> Result<Option<Pages>, Error> {
        let stop = Table::<K>::detach(&mut self.writer, pages, detached.add(self.cleared))?;
        let done = stop.map_or(Some(pages), |stop| Pages::new(pages.first(), stop.checked_sub(1)?));
        Flushing { edit: self, done, detached }.clear();
        Ok(stop.and_then(|stop| Pages::new(stop, pages.last())))
    }

    /// Takes entries of a range out of the table, as long as the list has room for their frames, and until they are many. Returns how
    /// many base pages they have mapped.
    fn pull(&mut self, rest: &mut Rest) -> Result<usize, Error> {
        let (mut pulled, mut marks) = (0, 0);
        while pulled + marks < SHORT
            && !self.call.uncovered().is_full()
            && let Some((_, uncovered)) = self.writer.take_next(rest)?
        {
            match uncovered {
                Uncovered::Frames(run) => {
                    pulled += run.len;
                    // There is room, so this does not return `false`.
                    let _ = self.call.uncovered().add(Run { dirty: run.dirty || self.cleared, ..run });
                }
                Uncovered::Mark(mark) => {
                    marks += 1;
                    if let Mark::Payload(payload, _) = mark {
                        self.space.mmu.kernel().release_payload(payload);
                    }
                }
            }
        }
        Ok(pulled)
    }
}

/// A range that has been taken out of the table, and waits for its flush. If the flush unwinds, the drop of this value continues.
struct Flushing<'e, 's, K: Kernel, const CPUS: usize> {
    edit: &'e mut Edit<'s, K, CPUS>,
    done: Option<Pages>,
    detached: &'e mut Detachment<K, CPUS>,
}

impl<K: Kernel, const CPUS: usize> Flushing<'_, '_, K, CPUS> {
    /// Flushes, then empties the entries in which frames wait.
    fn clear(mut self) {
        self.clear_all();
        core::mem::forget(self);
    }

    fn clear_all(&mut self) {
        self.edit.flush();
        self.edit.call.end_walks(self.edit.space);
        if !self.edit.call.is_refused() {
            // SAFETY: every CPU has flushed, and left its walks.
            unsafe { self.detached.flushed() };
        }
        let (writer, done) = (&mut self.edit.writer, self.done);
        let _ = self.detached.release_by(self.edit.call.uncovered(), &mut |parts, hand_over| {
            if let Some(done) = done {
                // SAFETY: the flush has been executed, or was refused: then `hand_over` releases nothing.
                unsafe { Table::<K>::clear_detached(writer, done, parts, hand_over) };
            }
            false
        });
    }
}

impl<K: Kernel, const CPUS: usize> Drop for Flushing<'_, '_, K, CPUS> {
    #[cold]
    #[inline(never)]
    fn drop(&mut self) {
        self.clear_all();
    }
}
