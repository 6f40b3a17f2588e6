//! The end of a change: its flush, and the release of the nodes and frames that it uncovered.

use tlbkit_addr::{Attr, Flush, FlushScope, Pages, Vpn};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::{Change, Leaf, Pending, Run};

use crate::block::Handle;
use crate::cpu_call::CpuCall;
use crate::{Access, Kernel, Machine};

/// What an [`Edit`](crate::Edit) and its cursor settle changes with. Its methods get the obligation for the changes, if there is
/// one: the edit's writer has it, or the cursor, which has borrowed the writer.
pub(crate) struct Changes<'c, K: Kernel, const CPUS: usize> {
    pub(crate) space: &'c Handle<K, CPUS>,
    pub(crate) call: &'c mut CpuCall<K, CPUS>,
    /// See [`Edit`](crate::Edit).
    pub(crate) cleared: &'c mut bool,
}

impl<K: Kernel, const CPUS: usize> Changes<'_, K, CPUS> {
    /// Flushes the translations that the changes made stale, on every CPU that may hold them, then gives the uncovered nodes and
    /// frames back. Costs a few loads if nothing has changed.
    #[inline(always)]
    pub(crate) fn settle(&mut self, pending: Option<Pending<'_, 'static>>) {
        *self.cleared = false;
        let is_stale = |pending: &Pending<'_, '_>| pending.nodes() > 0 || !pending.flush().is_none();
        if pending.as_ref().is_some_and(is_stale) || !self.call.uncovered().is_empty() {
            self.flush(pending);
        }
    }

    #[inline(never)]
    fn flush(&mut self, pending: Option<Pending<'_, 'static>>) {
        // Without an obligation the frames are left over because an earlier call of `Kernel::release` has unwound. No CPU can reach them.
        let Some(pending) = pending else { return self.call.release() };
        let has_none = self.call.uncovered().is_empty() && pending.nodes() == 0;
        if !has_none || pending.flush().scope() >= FlushScope::Everywhere {
            return self.call.complete(self.space, pending);
        }
        self.call.flush(self.space, pending.flush());
        // SAFETY: there is no node to free.
        unsafe { pending.complete() };
    }

    /// Prepares `pages` for new entries. If a [deferred](crate::Deferred) unmap of one of them waits, every CPU flushes everything.
    /// Otherwise the earlier changes of this edit to `pages` are flushed, if this machine requires break-before-make.
    #[inline(always)]
    pub(crate) fn make_way(&mut self, pending: Option<Pending<'_, 'static>>, pages: Pages) {
        // That flush covers the changes of this edit, too. False: none waits, or another CPU has released the frames since, and its
        // flush may have begun before these changes.
        if !self.flush_deferred(pages) {
            self.settle_break(pending, pages);
        }
    }

    /// Flushes everything on every CPU, if a [deferred](crate::Deferred) unmap of one of `pages` waits. Returns whether this CPU has
    /// flushed.
    #[inline(always)]
    pub(crate) fn flush_deferred(&mut self, pages: Pages) -> bool {
        self.call.is_deferred(self.space, pages) && self.call.flush_deferred().is_some()
    }

    #[inline(always)]
    fn settle_break(&mut self, pending: Option<Pending<'_, 'static>>, pages: Pages) {
        if !<<K::Machine as Machine>::Format as Format>::BREAK_FRAME
            && !<<K::Machine as Machine>::Format as Format>::BREAK
        {
            return;
        }
        let broken = pending.as_ref().is_some_and(|pending| {
            let flush = pending.flush();
            let concerns = |range: &Pages| range.intersect(pages).is_some();
            flush.scope() == FlushScope::Everywhere && (flush.is_all() || flush.ranges().iter().any(concerns))
        });
        if broken {
            self.settle(pending);
        }
    }

    /// Adds to the flush of a change which gave `pages` these attributes, or added rights to them. If the pages are the kernel's,
    /// each CPU flushes what it may keep of the time before: a right that was lacking, the absence of the page, or of a node on the
    /// way, or the link to a node that a [deferred](crate::Deferred) unmap has taken out, where the page is absent.
    #[inline(always)]
    pub(crate) fn put_in_force(&mut self, pending: Option<Pending<'_, 'static>>, pages: Pages, attr: Attr) {
        // The kernel has no handler for a fault on a page that it has mapped.
        if CPUS > 1 && (self.space.is_kernels() || is_supervisors::<K>(attr)) {
            reach_all(pending, pages);
            if !keeps_absence::<K, CPUS>() && self.call.waits(self.space) {
                let _ = self.call.flush_deferred();
            }
        }
    }

    /// Adds the frames of a leaf that is no longer mapped to the list, in which [`make_room`](Self::make_room) has made room.
    #[inline(always)]
    pub(crate) fn uncover(&mut self, leaf: &Leaf) {
        let run = leaf.run(self.space.base());
        let _ = self.call.uncovered().add(Run { dirty: run.dirty || *self.cleared, ..run });
    }

    /// Flushes if there is no room for another run of frames.
    #[inline(always)]
    pub(crate) fn make_room(&mut self, pending: Option<Pending<'_, 'static>>) {
        if self.call.uncovered().is_full() {
            self.settle(pending);
        }
    }
}

/// Tells whether a CPU may keep the absence of a page that another CPU maps, until it flushes. Only then does it matter on which
/// CPUs a new page is in force.
pub(crate) const fn keeps_absence<K: Kernel, const CPUS: usize>() -> bool {
    CPUS > 1 && matches!(<<K::Machine as Machine>::Format as Format>::APPEARS, FlushScope::Local)
}

/// Tells whether user mode may not use a page with these attributes.
#[inline(always)]
pub(crate) const fn is_supervisors<K: Kernel>(attr: Attr) -> bool {
    !attr.union(<<K::Machine as Machine>::Format as Format>::IMPLIED).contains(Attr::USER)
}

/// Tells whether a change may leave a page of the kernel out of force on another CPU: it only adds rights, so that it needs no flush
/// there, or it makes a user's page, of whose nodes another CPU may keep the absence, one of the kernel.
pub(crate) fn needs_force(change: Change) -> bool {
    let cleared = change.clear.difference(change.set);
    change.scope() == FlushScope::Local || cleared.contains(Attr::USER)
}

/// Makes a flush, also one that concerns this CPU alone, one of all CPUs and of the links to `pages`: another CPU may keep the absence
/// of a node that an earlier change has linked.
#[cold]
#[inline(never)]
fn reach_all(pending: Option<Pending<'_, 'static>>, pages: Pages) {
    let is_stale = |pending: &Pending<'_, '_>| pending.flush().scope() >= FlushScope::Local;
    if let Some(mut pending) = pending.filter(is_stale) {
        let mut flush = Flush::none();
        flush.add_links(FlushScope::Everywhere, pages);
        pending.merge(&flush);
    }
}

/// Returns the status bits that the access needs, of those that the machine's entries have.
pub(crate) fn status<K: Kernel>(access: Access) -> Attr {
    access.status().intersection(<<K::Machine as Machine>::Format as Format>::OPTIONAL)
}

/// Returns the flush that a CPU executes before it repeats an access that the page allows: the page's entry and the links to it.
/// Not every architecture promises that the fault has evicted them.
#[inline(always)]
pub(crate) fn flush_of_fault(page: Vpn) -> Flush {
    Flush::of_links(FlushScope::Local, Pages::one(page))
}
