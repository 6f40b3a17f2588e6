//! What a change leaves to be done: its flush, and what it has uncovered.

use tlbkit_addr::{Attr, FlushScope, PageSize, Pages};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::{Leaf, Retired, Run, Table, Writer};

use crate::block::Handle;
use crate::here::{Here, Uncovering};
use crate::{Access, Kernel, Machine};

/// What owes a flush: a writer, or a cursor that has borrowed one.
pub trait Owes {
    /// Returns the obligation in its place.
    fn pending(&self) -> Option<&Retired<'static>>;

    /// Frees its nodes in its place.
    ///
    /// # Safety
    ///
    /// As for [`Retired::reclaim`].
    unsafe fn complete(&mut self);

    /// Returns the obligation.
    fn take(&mut self) -> Retired<'static>;
}

impl<T: Table<'static>> Owes for Writer<'_, 'static, T> {
    #[inline(always)]
    fn pending(&self) -> Option<&Retired<'static>> {
        self.pending()
    }

    #[inline(always)]
    unsafe fn complete(&mut self) {
        // SAFETY: the contract of `Owes::complete` is that of `Retired::reclaim`, as is that of `Writer::complete`.
        unsafe { self.complete() };
    }

    fn take(&mut self) -> Retired<'static> {
        self.take()
    }
}

/// Flushes what `owes` owes on every CPU that may hold it, and hands back what the changes have uncovered. Costs a few loads
/// if nothing has changed.
#[inline(always)]
pub(crate) fn settle<K: Kernel, const CPUS: usize>(
    space: &Handle<K, CPUS>,
    here: &mut Here<K, CPUS>,
    owes: &mut impl Owes,
    runs: &mut Uncovering,
) {
    let Some(pending) = owes.pending() else { return };
    let nothing = runs.is_empty() && pending.nodes() == 0;
    if nothing && pending.flush().is_none() {
        return;
    }
    if (nothing && pending.flush().scope() < FlushScope::Everywhere) || here.is_alone(space) {
        here.flush(space, pending.flush());
        // SAFETY: nothing is to be freed; or no other CPU may hold a translation of the address space or walk its
        // table, and this one has flushed, outside of any walk.
        unsafe { owes.complete() };
        while let Some(run) = runs.pop() {
            here.release(run);
        }
    } else {
        here.complete(space, owes.take(), core::mem::take(runs));
    }
}

/// Makes known what has been taken away, if this machine wants that before anything else is mapped in the place.
#[inline(always)]
pub(crate) fn settle_break<K: Kernel, const CPUS: usize>(
    space: &Handle<K, CPUS>,
    here: &mut Here<K, CPUS>,
    owes: &mut impl Owes,
    runs: &mut Uncovering,
    pages: Pages,
) {
    if !<<K::Machine as Machine>::Format as Format>::BREAK_FRAME
        && !<<K::Machine as Machine>::Format as Format>::BREAK
    {
        return;
    }
    let broken = owes.pending().is_some_and(|pending| {
        let flush = pending.flush();
        let concerns = |range: &Pages| range.intersect(pages).is_some();
        flush.scope() == FlushScope::Everywhere && (flush.is_all() || flush.ranges().iter().any(concerns))
    });
    if broken {
        settle(space, here, owes, runs);
    }
}

/// Adds a leaf's frames to the runs that wait for a shootdown, and tells whether there was room.
#[inline(always)]
pub(crate) fn uncover(runs: &mut Uncovering, leaf: &Leaf, base: PageSize) -> bool {
    let (len, dirty) = (leaf.size.pages(base).unwrap_or(1), leaf.attr.contains(Attr::DIRTY));
    if let Some(last) = runs.last_mut()
        && last.first.checked_add(last.len) == Some(leaf.frame)
    {
        last.len += len;
        last.dirty |= dirty;
        return true;
    }
    runs.push(Run { first: leaf.frame, len, dirty }).is_ok()
}

/// Returns the status bits that the machine's entries have and the access needs.
pub(crate) fn status<K: Kernel>(access: Access) -> Attr {
    access.status().intersection(<<K::Machine as Machine>::Format as Format>::OPTIONAL)
}
