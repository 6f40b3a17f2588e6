//! Unmaps of a range, and what becomes of its frames: they wait for the flush in the edit's list, or in the table's own nodes.

use core::ops::ControlFlow;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr};
use tlbkit_pagetable::{Error, Frames, Holes, Mark, Pinned, Run, Table as _};

use super::Edit;
use crate::counted::counted;
use crate::cpu_call::UncoveredRuns;
use crate::detached::Detachment;
use crate::settle::uncover;
use crate::storage::Table;
use crate::table::{PART, SpaceTable as _};
use crate::{Kernel, PagesOf};

/// The most pages of a range that is unmapped with the list of runs alone.
const SHORT: usize = 1 << 9;

/// The sink for frames that go to the list of runs.
struct ToRuns<'r, K> {
    runs: &'r mut UncoveredRuns,
    kernel: &'r K,
    /// Whether the frames count as dirty whatever their entries say.
    dirty: bool,
    /// How many base pages have been uncovered.
    pages: usize,
}

impl<K: Kernel> Frames for ToRuns<'_, K> {
    fn reserve(&mut self, leaves: usize) -> Result<(), Error> {
        if self.runs.capacity() - self.runs.len() >= leaves { Ok(()) } else { Err(Error::NoRoom) }
    }

    fn push(&mut self, frame: Pfn, size: PageSize, base: PageSize, attr: Attr) {
        self.push_run(frame, size.pages(base).unwrap_or(1), base, attr);
    }

    fn push_run(&mut self, first: Pfn, pages: usize, _base: PageSize, attr: Attr) {
        self.pages += pages;
        // `uncover` returns `false` only without room, which was reserved. Without room the frame would be lost.
        let dirty = self.dirty || attr.contains(Attr::DIRTY);
        let _ = uncover(self.runs, Run { first, len: pages, dirty });
    }

    fn by_runs(&self) -> bool {
        true
    }

    fn marked(&mut self, _at: VirtAddr, mark: Mark) {
        if let Mark::Payload(payload, _) = mark {
            self.kernel.release_payload(payload);
        }
    }
}

/// The sink for the frames of an unmap whose runs have been counted, so that there is room for all of them.
struct Counted<'r, K>(ToRuns<'r, K>);

impl<K: Kernel> Frames for Counted<'_, K> {
    fn reserve(&mut self, _leaves: usize) -> Result<(), Error> {
        Ok(())
    }

    fn push(&mut self, frame: Pfn, size: PageSize, base: PageSize, attr: Attr) {
        self.0.push(frame, size, base, attr);
    }

    fn push_run(&mut self, first: Pfn, pages: usize, base: PageSize, attr: Attr) {
        self.0.push_run(first, pages, base, attr);
    }

    fn by_runs(&self) -> bool {
        true
    }

    fn marked(&mut self, at: VirtAddr, mark: Mark) {
        self.0.marked(at, mark);
    }
}

/// The part of a range that [`Edit::unmap_part`] has unmapped.
pub(crate) struct Unmapped<K: Kernel, const CPUS: usize> {
    /// How many of its base pages are not in `detached`.
    pages: usize,
    detached: Option<Detachment<K, CPUS>>,
    /// The pages after the part.
    pub(crate) rest: Option<Pages>,
}

impl<K: Kernel, const CPUS: usize> Unmapped<K, CPUS> {
    /// Releases the frames that have not gone to the edit's list, and returns how many base pages the part has had. Outside of an
    /// edit, interrupts are unmasked now and then.
    pub(crate) fn release(self) -> usize {
        self.pages + self.detached.map_or(0, Detachment::release)
    }
}

impl<K: Kernel, const CPUS: usize> Edit<'_, K, CPUS> {
    /// Unmaps every page of `pages` that is mapped, and returns how many base pages were mapped. Larger pages that extend beyond
    /// the range are split first. [`Kernel::release`] gets the frames when no TLB has a translation to them any more. Only then
    /// is it certain whether they were written ([`Run::dirty`](tlbkit_pagetable::Run::dirty)), because until the flush a CPU may
    /// still write them. If this edit has cleared [`Attr::DIRTY`] in any page and not flushed since, all frames count as written.
    /// Marks are removed, and [`Kernel::release_payload`] gets their payloads.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] or [`Error::Borrowed`]; [`Error::NoMemory`] if there is no node to split a page, or
    /// [`Error::Breaks`] on AArch64 if a page to split is not a user's. The translations have not changed then.
    #[inline(always)]
    pub fn unmap(&mut self, pages: PagesOf<K>) -> Result<usize, Error> {
        let pages = counted::<K>(pages);
        if let Some(mut cursor) = self.small(pages) {
            return cursor.unmap().map(|_| 1);
        }
        self.unmap_range(pages)
    }

    #[inline(never)]
    fn unmap_range(&mut self, pages: Pages) -> Result<usize, Error> {
        let (mut total, mut rest) = (0, Some(pages));
        while let Some(pages) = rest {
            let part = self.unmap_part(pages)?;
            rest = part.rest;
            total += part.release();
        }
        Ok(total)
    }

    /// Unmaps the first part of `pages`, which has a bounded number of entries and nodes. If the list has no room for the frames of
    /// the part, its flush has been executed when this returns.
    pub(crate) fn unmap_part(&mut self, pages: Pages) -> Result<Unmapped<K, CPUS>, Error> {
        self.space.check_own(pages)?;
        self.split_ends(pages)?;
        let (kernel, dirty) = (self.space.mmu.kernel(), self.cleared);
        let is_short = self.has_room(pages);
        let mut frames = ToRuns { runs: &mut self.runs, kernel, dirty, pages: 0 };
        if is_short {
            let pages = self.writer.unmap(pages, Holes::Skip, Some(&mut Counted(frames)))?;
            return Ok(Unmapped { pages, detached: None, rest: None });
        }
        let (parts, stop) = Table::<K>::detach(&mut self.writer, pages, &mut frames)?;
        let mapped = frames.pages;
        let done = stop.map_or(Some(pages), |stop| Pages::new(pages.first(), stop.checked_sub(1)?));
        // SAFETY: `Taken` flushes before it uses the parts, or gives them up.
        let detached = unsafe { Detachment::new(self.space.mmu, parts, dirty) };
        let detached = Taken { edit: self, done, detached: Some(detached) }.clear();
        let rest = stop.and_then(|stop| Pages::new(stop, pages.last()));
        Ok(Unmapped { pages: mapped, detached, rest })
    }

    /// Tells whether the range is short, few of its pages are mapped, and there is room for their frames.
    fn has_room(&self, pages: Pages) -> bool {
        if pages.len() > PART {
            return false;
        }
        let (mut runs, mut mapped) = (self.runs.len(), 0);
        let mut next = self.runs.last().and_then(|last| last.first.checked_add(last.len));
        let mut count = |_, run: Run| {
            runs += usize::from(next != Some(run.first));
            mapped += run.len;
            next = run.first.checked_add(run.len);
            if runs > self.runs.capacity() || mapped > SHORT {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        // SAFETY: this is the one writer of its own pages, and `count` changes nothing and serves no shootdown: so no node is
        // freed during the visit, neither its own nor one of the pages that it shares.
        self.space.table.for_each_run(unsafe { Pinned::by(self) }, pages, &mut count).is_continue()
    }
}

/// A range that has been taken out of the table, and waits for its flush. If the flush unwinds, the drop of this value continues.
struct Taken<'e, 's, K: Kernel, const CPUS: usize> {
    edit: &'e mut Edit<'s, K, CPUS>,
    done: Option<Pages>,
    /// `None` after the flush.
    detached: Option<Detachment<K, CPUS>>,
}

impl<K: Kernel, const CPUS: usize> Taken<'_, '_, K, CPUS> {
    /// Flushes, then empties the entries in which frames wait. Returns the rest of what has been taken out.
    fn clear(mut self) -> Option<Detachment<K, CPUS>> {
        self.clear_all();
        self.detached.take()
    }

    fn clear_all(&mut self) {
        let Some(detached) = &mut self.detached else { return };
        self.edit.flush();
        if self.edit.call.is_refused() {
            detached.lose();
        }
        let (writer, done) = (&mut self.edit.writer, self.done);
        detached.release_by(|parts, held| {
            if let Some(done) = done {
                // SAFETY: the flush has been executed, or was refused: then `held` releases nothing.
                unsafe { Table::<K>::clear_detached(writer, done, parts, held) };
            }
        });
    }
}

impl<K: Kernel, const CPUS: usize> Drop for Taken<'_, '_, K, CPUS> {
    fn drop(&mut self) {
        self.clear_all();
    }
}
