//! A change of one page: lock, walk, check, store, flush, unlock. No batch is made for it.

use tlbkit_addr::{Attr, Flush, FlushScope, Pages, Pfn, Vpn};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::{Change, Error, Leaf, Run, Table as _, mpt};

use crate::block::Shape;
use crate::here::Here;
use crate::storage::{Storage, Table, turn};
use crate::table::SpaceTable as _;
use crate::{AddressSpace, Kernel, Machine};

/// The slot of a page in an address space's page table.
type Slot<'w, K> = mpt::Slot<'w, 'static, Shape<K>, <<K as Kernel>::Machine as Machine>::Format, Storage<K>>;

/// Attributes, as the entries of base pages hold them.
type Encoded<K> = mpt::Encoded<<<K as Kernel>::Machine as Machine>::Format>;

/// Encodes attributes that a page of any address space may have: not every one may have global pages.
#[inline(always)]
pub(crate) fn encoded<K: Kernel>(attr: Attr) -> Option<Encoded<K>> {
    if attr.contains(Attr::GLOBAL) { None } else { mpt::Encoded::new(attr) }
}

/// What a change of one leaf leaves behind: the leaf whose frame is uncovered, and what TLBs may hold.
type Outcome = Option<(Option<Leaf>, mpt::Stale)>;

/// The change is made, and not known everywhere. It has no size, so that a result is a byte.
pub(crate) struct Unflushed;

impl Unflushed {
    #[cold]
    pub(crate) const fn error(self) -> Error {
        Error::Unflushed
    }
}

/// Changes of a page that are one store. Each tells whether it was that. If not, nothing has changed, and an
/// [`Edit`](crate::Edit) makes the change or says what is wrong.
///
/// They are functions of their own: a kernel has each of them once, and nothing in them calls what may fail or unwind but
/// [`Kernel::release`] at the end, so that everything is in registers.
impl<K: Kernel, const CPUS: usize> AddressSpace<K, CPUS> {
    #[inline(never)]
    pub(crate) fn map_once(&self, page: Vpn, frame: Pfn, attr: Encoded<K>, wrong: &mut Option<Error>) {
        match self.at_once(page, |_, slot| Some((None, slot.map(frame, attr)?))) {
            Ok(true) => {}
            Ok(false) => self.map_again(page, frame, attr, wrong),
            Err(Unflushed) => *wrong = Some(Unflushed.error()),
        }
    }

    #[cold]
    #[inline(never)]
    fn map_again(&self, page: Vpn, frame: Pfn, attr: Encoded<K>, wrong: &mut Option<Error>) {
        *wrong = self.edit(|edit| edit.map(Pages::one(page), frame, attr.attr())).err();
    }

    #[inline(never)]
    pub(crate) fn unmap_once(&self, page: Vpn) -> Result<bool, Unflushed> {
        self.at_once(page, |_, slot| {
            let (leaf, stale) = slot.unmap()?;
            Some((Some(leaf), stale))
        })
    }

    #[inline(never)]
    pub(crate) fn protect_once(&self, page: Vpn, change: Change) -> Result<bool, Unflushed> {
        if change.set.contains(Attr::GLOBAL) {
            return Ok(false);
        }
        self.at_once(page, |_, slot| Some((None, slot.protect(change)?.1)))
    }

    #[inline(never)]
    pub(crate) fn replace_once(&self, page: Vpn, frame: Pfn, attr: Encoded<K>, wrong: &mut Option<Error>) {
        let done = self.at_once(page, |here, slot| {
            let (leaf, stale) = if !<<K::Machine as Machine>::Format as Format>::BREAK_FRAME {
                slot.replace(frame, attr)?
            } else if slot.look()?.attr.contains(Attr::USER) {
                // SAFETY: the page is a user's: the kernel does not stand on it.
                unsafe { slot.replace_breaking(frame, attr, |flush| here.make_known(&self.0, flush)) }?
            } else {
                return None;
            };
            Some((Some(leaf), stale))
        });
        match done {
            Ok(true) => {}
            Ok(false) => self.replace_again(page, frame, attr, wrong),
            Err(Unflushed) => *wrong = Some(Unflushed.error()),
        }
    }

    #[cold]
    #[inline(never)]
    fn replace_again(&self, page: Vpn, frame: Pfn, attr: Encoded<K>, wrong: &mut Option<Error>) {
        let at = page.address(self.0.base());
        *wrong = self.edit(|edit| edit.replace(at, frame, attr.attr())).err();
    }

    /// Makes a change of a page.
    #[inline(always)]
    fn at_once(
        &self,
        page: Vpn,
        change: impl FnOnce(&mut Here<K, CPUS>, Slot<'_, K>) -> Outcome,
    ) -> Result<bool, Unflushed> {
        let space = &self.0;
        space.mmu.kernel().masked(|| {
            let Some(mut here) = Here::if_online(space.mmu) else { return Ok(false) };
            let Some(mut turn) = turn::<K, CPUS>(&space.table) else { return Ok(false) };
            let changed = Table::<K>::slot(&mut turn, page).and_then(|slot| change(&mut here, slot));
            let Some((old, stale)) = changed else { return Ok(false) };
            if stale.scope == FlushScope::Nowhere {
                return Ok(true);
            }
            let frame = old.map(|leaf| leaf.frame);
            let dirty = old.is_some_and(|leaf| leaf.attr.contains(Attr::DIRTY));
            if here.is_refused() || stale.scope == FlushScope::Everywhere && !here.is_alone(space) {
                return self.shoot_once(here, page, frame, dirty);
            }
            here.flush(space, &flush_of(stale.scope, page));
            if let Some(first) = frame {
                here.release(Run { first, len: 1, dirty });
            }
            Ok(true)
        })
    }

    /// Makes a change known to other CPUs, which has uncovered `frame`. What it takes, it takes by value: so nothing of a change of
    /// one CPU's is in memory.
    #[cold]
    #[inline(never)]
    fn shoot_once(
        &self,
        mut here: Here<K, CPUS>,
        page: Vpn,
        frame: Option<Pfn>,
        dirty: bool,
    ) -> Result<bool, Unflushed> {
        // A batch, so that the table owes the flush if the shootdown is refused.
        let mut batch = self.0.table.batch();
        batch.merge(&flush_of(FlushScope::Everywhere, page));
        let run = frame.map(|first| Run { first, len: 1, dirty });
        here.complete(&self.0, batch, run.into_iter().collect());
        here.checked(Ok(true)).map_err(|_| Unflushed)
    }
}

/// Returns the flush of what a change of a page makes stale.
#[inline(always)]
fn flush_of(scope: FlushScope, page: Vpn) -> Flush {
    let mut flush = Flush::none();
    flush.add(scope, Pages::one(page));
    flush
}
