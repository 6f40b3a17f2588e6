//! The fast path: a change of one page, which takes the right to write, walks, checks, stores and flushes. It makes a batch only
//! if other CPUs have to flush.

use tlbkit_addr::{Attr, Flush, FlushScope, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::{Change, Entry, Error, FlushAll, Leaf, Mark, Run, Table as _, mpt};

use crate::block::{Block, Shape};
use crate::counted::{pfn, to_pages, typed};
use crate::cpu_call::CpuCall;
use crate::settle::{is_supervisors, keeps_absence, status};
use crate::storage::{Storage, Table, page_turn};
use crate::table::SpaceTable as _;
use crate::{Access, AddressSpace, Deferred, Fault, FrameOf, Kernel, Machine};

/// The slot of a page in an address space's page table.
type Slot<'w, K> = mpt::Slot<'w, 'static, Shape<K>, <<K as Kernel>::Machine as Machine>::Format, Storage<K>>;

/// Attributes, encoded for the entries of base pages.
type Encoded<K> = mpt::Encoded<<<K as Kernel>::Machine as Machine>::Format>;

/// Encodes attributes; `None` leaves the change to an edit: for attributes that the format lacks, for [`Attr::GLOBAL`] where the
/// page may not have it, and for a page of the kernel which other CPUs can use only after a flush.
#[inline(always)]
pub(crate) fn encoded<K: Kernel, const CPUS: usize>(
    space: &Block<K, CPUS>,
    page: Vpn,
    attr: Attr,
) -> Option<Encoded<K>> {
    let is_refused = attr.contains(Attr::GLOBAL) && !space.may_be_global(page);
    let is_slow = is_refused || keeps_absence::<K, CPUS>() && is_supervisors::<K>(attr);
    if is_slow { None } else { mpt::Encoded::new(attr) }
}

/// A change of one entry.
struct Changed {
    /// The leaf whose frame is uncovered.
    old: Option<Leaf>,
    /// The flush that the change needs.
    stale: mpt::Stale,
    /// Whether the page is not a user's.
    is_supervisors: bool,
}

impl Changed {
    /// Returns a change that adds no right to a page which is not a user's.
    #[inline(always)]
    const fn new(old: Option<Leaf>, stale: mpt::Stale) -> Self {
        Self { old, stale, is_supervisors: false }
    }
}

/// The change is made, but some CPU may still use the old translation. The type has no size, so that a result is a byte.
pub(crate) struct Unflushed;

impl Unflushed {
    #[cold]
    pub(crate) const fn error(self) -> Error {
        Error::Unflushed
    }
}

/// Changes of a page with one store. If one store is not enough, nothing has changed, and an [`Edit`](crate::Edit) makes the change
/// or returns the error. The caller calls it if a function returns `false`. `map_once` and `replace_once` call it themselves and store
/// the error in `wrong`: so their caller keeps no argument for it, and a success is no value that is moved.
///
/// These functions are not inlined, so that a kernel contains each of them once. They keep their values in registers: the only
/// call that may unwind is [`Kernel::release`], at the end.
impl<K: Kernel, const CPUS: usize> AddressSpace<K, CPUS> {
    #[inline(never)]
    pub(crate) fn map_once(&self, page: Vpn, frame: Pfn, attr: Encoded<K>, wrong: &mut Option<Error>) {
        let map = |call: &mut CpuCall<K, CPUS>, slot: Slot<'_, K>| {
            let is_free = !call.waits(&self.0) || self.may_map(call, page, attr);
            is_free.then(|| slot.map(frame, attr)).flatten().map(|stale| Changed::new(None, stale))
        };
        match self.at_once::<false>(page, map) {
            Ok(true) => {}
            Ok(false) => self.map_again(page, frame, attr, wrong),
            Err(Unflushed) => *wrong = Some(Unflushed.error()),
        }
    }

    /// Makes the change of [`map_once`](Self::map_once) in an edit. It takes the same arguments, so that `map_once` passes them on
    /// where they are: with those of a range in their place, a map of one page costs three to six instructions more.
    #[cold]
    #[inline(never)]
    fn map_again(&self, page: Vpn, frame: Pfn, attr: Encoded<K>, wrong: &mut Option<Error>) {
        let pages = Pages::one(page);
        let (page, frame) = (to_pages::<K>(pages), typed::<K, _>(frame));
        *wrong = self.change(Some(pages), &mut |edit| edit.map(page, frame, attr.attr()).map(|()| 1)).err();
    }

    #[inline(never)]
    pub(crate) fn unmap_once<const LATER: bool>(&self, page: Vpn) -> Result<bool, Unflushed> {
        let has_room = |deferred: &Deferred| deferred.has_room(self.0.mmu.address(), 1);
        self.at_once::<LATER>(page, |_, slot| {
            // If nothing more can wait, an edit flushes first what does.
            if LATER && !self.0.mmu.kernel().deferred().is_some_and(has_room) {
                return None;
            }
            let (leaf, stale) = slot.unmap()?;
            Some(Changed::new(Some(leaf), stale))
        })
    }

    #[inline(never)]
    pub(crate) fn protect_once(&self, page: Vpn, change: Change) -> Result<bool, Unflushed> {
        // A user's page that becomes the kernel's has to be in force on every CPU.
        if change.set.contains(Attr::GLOBAL)
            || keeps_absence::<K, CPUS>() && change.clear.contains(Attr::USER)
        {
            return Ok(false);
        }
        self.at_once::<false>(page, |call, slot| {
            if change.clear.contains(Attr::USER) && call.waits(&self.0) {
                return None;
            }
            let (leaf, stale) = slot.protect(change)?;
            Some(Changed { is_supervisors: is_supervisors::<K>(leaf.attr), ..Changed::new(None, stale) })
        })
    }

    #[inline(never)]
    pub(crate) fn replace_once(&self, page: Vpn, frame: Pfn, attr: Encoded<K>, wrong: &mut Option<Error>) {
        let done = self.at_once::<false>(page, |call, slot| {
            if call.waits(&self.0) && is_supervisors::<K>(attr.attr()) {
                return None;
            }
            let flush = &mut |flush: &Flush| call.flush_everywhere(&self.0, flush);
            // The kernel may be using a page that is not a user's: break-before-make would unmap it for a while.
            let may_break = <<K::Machine as Machine>::Format as Format>::BREAK_FRAME
                && slot.look()?.attr.contains(Attr::USER);
            let flush = if may_break {
                // SAFETY: the page is a user's.
                unsafe { FlushAll::breaking(flush) }
            } else {
                FlushAll::in_place(flush)
            };
            let (leaf, stale) = slot.replace(frame, attr, flush)?;
            Some(Changed::new(Some(leaf), stale))
        });
        match done {
            Ok(true) => {}
            Ok(false) => {
                self.replace_more(page.address(self.0.base()), typed::<K, _>(frame), attr.attr(), wrong);
            }
            Err(Unflushed) => *wrong = Some(Unflushed.error()),
        }
    }

    /// Stores what the entry held before in `before`.
    #[inline(never)]
    pub(crate) fn mark_once(&self, page: Vpn, mark: Mark, before: &mut Entry) -> Result<bool, Unflushed> {
        self.at_once::<false>(page, |call, slot| {
            // A payload takes the place of no page.
            if matches!(mark, Mark::Payload(..)) && slot.look().is_some()
                || call.is_deferred(&self.0, Pages::one(page))
            {
                return None;
            }
            let stale;
            (*before, stale) = slot.mark(mark)?;
            Some(Changed::new(before.leaf(), stale))
        })
    }

    /// Maps the page to the frame that `take` returns for its address, if it is unused. If one store is not enough, the frame is left
    /// in `taken`.
    ///
    /// # Errors
    ///
    /// That of `take`, and [`Error::Unflushed`].
    #[inline(never)]
    pub(crate) fn map_with_once(
        &self,
        page: Vpn,
        attr: Encoded<K>,
        take: &mut dyn FnMut(VirtAddr) -> Result<FrameOf<K>, Error>,
        taken: &mut Option<FrameOf<K>>,
    ) -> Result<bool, Error> {
        let mut refused = None;
        let done = self.at_once::<false>(page, |call, slot| {
            if slot.entry()? != Entry::Empty || call.waits(&self.0) && !self.may_map(call, page, attr) {
                return None;
            }
            let frame = take(page.address(self.0.base())).map_err(|why| refused = Some(why)).ok()?;
            *taken = Some(frame);
            let stale = slot.map(pfn::<K>(frame), attr)?;
            *taken = None;
            Some(Changed::new(None, stale))
        });
        refused.map_or_else(|| done.map_err(Unflushed::error), Err)
    }

    /// Maps the page to `frame` in place of a payload.
    #[inline(never)]
    pub(crate) fn fill_once(&self, page: Vpn, payload: u64, frame: Pfn) -> Result<bool, Unflushed> {
        self.at_once::<false>(page, |call, slot| {
            if (keeps_absence::<K, CPUS>() || call.waits(&self.0))
                && !matches!(slot.entry()?, Entry::Mark(Mark::Payload(_, attr)) if !is_supervisors::<K>(attr))
            {
                return None;
            }
            Some(Changed::new(None, slot.fill(payload, frame)?))
        })
    }

    /// Tells whether a page can be mapped without a flush, although frames of this address space wait.
    #[cold]
    #[inline(never)]
    fn may_map(&self, call: &CpuCall<K, CPUS>, page: Vpn, attr: Encoded<K>) -> bool {
        !is_supervisors::<K>(attr.attr()) && !call.is_deferred(&self.0, Pages::one(page))
    }

    /// Tells why an access to a page faulted, and resolves the fault if one store is enough. Returns `None` if the answer needs
    /// an [`Edit`](crate::Edit).
    #[inline(always)]
    pub(crate) fn fault_once(&self, page: Vpn, access: Access) -> Option<Fault> {
        if !Table::<K>::SLOTS {
            return None;
        }
        let space = &self.0;
        space.mmu.kernel().masked(|| {
            let mut call = CpuCall::if_online(space.mmu)?;
            let mut turn = page_turn::<K, CPUS>(&space.table, page)?;
            let fault = Table::<K>::slot(&mut turn).and_then(|slot| {
                let leaf = match slot.entry()? {
                    Entry::Leaf(leaf) => leaf,
                    entry => return Some(Fault::absent(entry.mark())),
                };
                if let Some(fault) = access.refused(&leaf) {
                    return Some(fault);
                }
                let missing = status::<K>(access).difference(leaf.attr);
                if !missing.is_empty() {
                    // The change adds only status bits, so only this CPU flushes, which it does below.
                    let _ = slot.protect(Change::set(missing))?;
                }
                let refused = call.retry(space, page, access, leaf.attr);
                Some(refused.map_or(Fault::Retry, Fault::Refused))
            });
            if fault.is_none() {
                // The edit that answers the fault takes the place of this call.
                call.pass_on_fault();
            }
            fault
        })
    }

    /// Makes a change of a page with one store, and flushes it: with `LATER`, on other CPUs by a later flush, if there is room.
    #[inline(always)]
    fn at_once<const LATER: bool>(
        &self,
        page: Vpn,
        change: impl FnOnce(&mut CpuCall<K, CPUS>, Slot<'_, K>) -> Option<Changed>,
    ) -> Result<bool, Unflushed> {
        if !Table::<K>::SLOTS {
            return Ok(false);
        }
        let (space, mmu) = (&self.0, self.0.mmu);
        mmu.kernel().masked(|| {
            let Some(mut call) = CpuCall::if_online(mmu) else { return Ok(false) };
            call.answers_no_fault();
            let Some(mut turn) = page_turn::<K, CPUS>(&space.table, page) else { return Ok(false) };
            let changed = Table::<K>::slot(&mut turn).and_then(|slot| {
                // Where other CPUs walk, the change of the entry is also the fence before they are looked for.
                change(&mut call, if CPUS == 1 { slot } else { slot.in_order() })
            });
            let Some(Changed { old, stale, is_supervisors }) = changed else { return Ok(false) };
            if stale.scope == FlushScope::Nowhere {
                return Ok(true);
            }
            // The kernel has no handler for a fault on a page that it has mapped: a right that is added is in force everywhere.
            let is_forced =
                CPUS > 1 && stale.scope == FlushScope::Local && (is_supervisors || space.is_kernels());
            let is_everywhere = is_forced || stale.scope == FlushScope::Everywhere;
            let scope = if is_forced { FlushScope::Everywhere } else { stale.scope };
            let frame = old.map(|leaf| leaf.frame);
            let dirty = old.is_some_and(|leaf| leaf.attr.contains(Attr::DIRTY));
            if call.is_refused() || is_everywhere && !call.is_alone_after(space, stale.in_order) {
                let shoot = if LATER { Self::defer_once } else { Self::shoot_once };
                return shoot(self, call, page, frame, dirty);
            }
            call.flush(space, &flush_of(scope, page));
            if let Some(first) = frame {
                call.release_one(Run { first, len: 1, dirty });
            }
            Ok(true)
        })
    }

    /// Runs the shootdown of a change that uncovered `frame`. The arguments are passed by value, so that the caller keeps its
    /// values in registers.
    #[cold]
    #[inline(never)]
    fn shoot_once(
        &self,
        mut call: CpuCall<K, CPUS>,
        page: Vpn,
        frame: Option<Pfn>,
        dirty: bool,
    ) -> Result<bool, Unflushed> {
        // The flush is in a batch, so that it becomes a debt of the table if the shootdown is refused.
        let mut batch = self.0.table.batch();
        batch.merge(&flush_of(FlushScope::Everywhere, page));
        if let Some(first) = frame {
            // The list is empty.
            let _ = call.uncovered().add(Run { first, len: 1, dirty });
        }
        call.complete(&self.0, batch.pending());
        call.checked(Ok(true)).map_err(|_| Unflushed)
    }

    /// Flushes here, and leaves `frame` to a later flush of all CPUs if there is room; otherwise runs the shootdown.
    #[cold]
    #[inline(never)]
    fn defer_once(
        &self,
        mut call: CpuCall<K, CPUS>,
        page: Vpn,
        frame: Option<Pfn>,
        dirty: bool,
    ) -> Result<bool, Unflushed> {
        let mut batch = self.0.table.batch();
        batch.merge(&flush_of(FlushScope::Everywhere, page));
        if let Some(first) = frame {
            // The list is empty.
            let _ = call.uncovered().add(Run { first, len: 1, dirty });
        }
        let deferred = self.0.mmu.kernel().deferred().filter(|_| !call.is_refused());
        let mut leave = |deferred| call.leave(&self.0, deferred, Pages::one(page), batch.pending());
        if !deferred.is_some_and(&mut leave) {
            call.complete(&self.0, batch.pending());
        }
        call.checked(Ok(true)).map_err(|_| Unflushed)
    }
}

/// Returns the flush of one page with a scope.
#[inline(always)]
fn flush_of(scope: FlushScope, page: Vpn) -> Flush {
    let mut flush = Flush::none();
    flush.add(scope, Pages::one(page));
    flush
}
