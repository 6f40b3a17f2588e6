//! The end of a change: its flush, and the release of the nodes and frames that it uncovered.

use tlbkit_addr::{Attr, Flush, FlushScope, Pages, Vpn};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::{Change, Retired, Run};

use crate::block::Handle;
use crate::cpu_call::{CpuCall, UncoveredRuns};
use crate::has_retired::HasRetired;
use crate::{Access, Kernel, Machine};

/// Flushes the translations that the changes of `changed` made stale, on every CPU that may hold them, then gives the uncovered nodes
/// and frames back. Costs a few loads if nothing has changed.
#[inline(always)]
pub(crate) fn settle<K: Kernel, const CPUS: usize>(
    space: &Handle<K, CPUS>,
    call: &mut CpuCall<K, CPUS>,
    changed: &mut impl HasRetired,
    runs: &mut UncoveredRuns,
) {
    let Some(pending) = changed.pending() else {
        // The batch is complete, so these frames are flushed. They are left over because an earlier call of `Kernel::release` has
        // unwound.
        while let Some(run) = runs.pop() {
            call.release(run);
        }
        return;
    };
    let nothing = runs.is_empty() && pending.nodes() == 0;
    if nothing && pending.flush().is_none() {
        return;
    }
    if (nothing && pending.flush().scope() < FlushScope::Everywhere) || call.is_alone(space) {
        call.flush(space, pending.flush());
        // SAFETY: there is no node to free; or no other CPU may hold a translation of the address space or walk its table, and
        // this CPU has flushed and is in no walk.
        unsafe { changed.complete() };
        while let Some(run) = runs.pop() {
            call.release(run);
        }
    } else {
        call.complete(space, changed.take(), core::mem::take(runs));
    }
}

/// Tells whether a CPU may keep the absence of a page that another CPU maps, until it flushes. Only then does it matter on which
/// CPUs a new page is in force.
pub(crate) const fn keeps_absence<K: Kernel, const CPUS: usize>() -> bool {
    CPUS > 1 && matches!(<<K::Machine as Machine>::Format as Format>::APPEARS, FlushScope::Local)
}

/// Tells whether a page with these attributes is the kernel's, which has no handler for a fault on a page that is mapped: a page
/// of the kernel's own address space, or one that is not the user's.
#[inline(always)]
fn is_of_kernel<K: Kernel, const CPUS: usize>(space: &Handle<K, CPUS>, attr: Attr) -> bool {
    space.is_kernels() || is_supervisors::<K>(attr)
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

/// Adds to the flush of a change which gave `pages` these attributes, or added rights to them. If the pages are the kernel's, each
/// CPU flushes what it may keep of the time before: a right that was lacking, the absence of the page, or of a node on the way.
#[inline(always)]
pub(crate) fn put_in_force<K: Kernel, const CPUS: usize>(
    space: &Handle<K, CPUS>,
    changed: &mut impl HasRetired,
    pages: Pages,
    attr: Attr,
) {
    if CPUS > 1 && is_of_kernel(space, attr) {
        reach_all(changed, pages);
    }
}

/// Makes a flush, also one that concerns this CPU alone, one of all CPUs and of the links to `pages`: another CPU may keep the absence
/// of a node that an earlier change has linked.
#[cold]
#[inline(never)]
fn reach_all(changed: &mut impl HasRetired, pages: Pages) {
    let is_stale = |pending: &Retired<'_>| pending.flush().scope() >= FlushScope::Local;
    if changed.pending().is_some_and(is_stale) {
        let mut flush = Flush::none();
        flush.add_links(FlushScope::Everywhere, pages);
        changed.merge(&flush);
    }
}

/// Flushes earlier changes of `pages`, if this machine requires break-before-make.
#[inline(always)]
pub(crate) fn settle_break<K: Kernel, const CPUS: usize>(
    space: &Handle<K, CPUS>,
    call: &mut CpuCall<K, CPUS>,
    changed: &mut impl HasRetired,
    runs: &mut UncoveredRuns,
    pages: Pages,
) {
    if !<<K::Machine as Machine>::Format as Format>::BREAK_FRAME
        && !<<K::Machine as Machine>::Format as Format>::BREAK
    {
        return;
    }
    let broken = changed.pending().is_some_and(|pending| {
        let flush = pending.flush();
        let concerns = |range: &Pages| range.intersect(pages).is_some();
        flush.scope() == FlushScope::Everywhere && (flush.is_all() || flush.ranges().iter().any(concerns))
    });
    if broken {
        settle(space, call, changed, runs);
    }
}

/// Adds a leaf's frames to the runs that wait for a shootdown. Returns whether there was room.
#[inline(always)]
pub(crate) fn uncover(runs: &mut UncoveredRuns, run: Run) -> bool {
    if let Some(last) = runs.last_mut()
        && last.first.checked_add(last.len) == Some(run.first)
    {
        last.len += run.len;
        last.dirty |= run.dirty;
        return true;
    }
    runs.push(run).is_ok()
}

/// Returns the status bits that the access needs, of those that the machine's entries have.
pub(crate) fn status<K: Kernel>(access: Access) -> Attr {
    access.status().intersection(<<K::Machine as Machine>::Format as Format>::OPTIONAL)
}

/// Returns the flush that a CPU executes before it repeats an access that the page allows: the page's entry and the links to it.
/// Not every architecture promises that the fault has evicted them.
#[inline(always)]
pub(crate) fn flush_of_fault(page: Vpn) -> Flush {
    let mut flush = Flush::none();
    flush.add_links(FlushScope::Local, Pages::one(page));
    flush
}
