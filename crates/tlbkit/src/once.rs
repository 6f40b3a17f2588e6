//! A change of one page: lock, walk, check, store, flush, unlock. No batch is made for it.

use tlbkit_addr::{Attr, Flush, Pfn, Reach, Vpn};
use tlbkit_pagetable::{Change, Error, Leaf, Run, Table as _, Turn, mpt};

use crate::block::{Handle, Shape};
use crate::here::Here;
use crate::mmu::{Storage, Table};
use crate::{Kernel, Machine};

/// The slot of a page in an address space's page table.
type Slot<'w, K> = mpt::Slot<'w, 'static, Shape<K>, <<K as Kernel>::Machine as Machine>::Format, Storage<K>>;

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
impl<K: Kernel, const CPUS: usize> Handle<K, CPUS> {
    #[inline(never)]
    pub(crate) fn map_once(&self, page: Vpn, frame: Pfn, attr: Attr) -> Result<bool, Unflushed> {
        self.at_once(page, attr, |slot| Some((None, slot.map(frame, attr)?)))
    }

    #[inline(never)]
    pub(crate) fn unmap_once(&self, page: Vpn) -> Result<bool, Unflushed> {
        self.at_once(page, Attr::empty(), |slot| {
            let (leaf, stale) = slot.unmap()?;
            Some((Some(leaf), stale))
        })
    }

    #[inline(never)]
    pub(crate) fn protect_once(&self, page: Vpn, change: Change) -> Result<bool, Unflushed> {
        self.at_once(page, change.set, |slot| Some((None, slot.protect(change)?.1)))
    }

    #[inline(never)]
    pub(crate) fn replace_once(&self, page: Vpn, frame: Pfn, attr: Attr) -> Result<bool, Unflushed> {
        self.at_once(page, attr, |slot| {
            let (leaf, stale) = slot.replace(frame, attr)?;
            Some((Some(leaf), stale))
        })
    }

    /// Makes a change that gives a page the attributes `given`.
    #[inline(always)]
    fn at_once(
        &self,
        page: Vpn,
        given: Attr,
        change: impl FnOnce(Slot<'_, K>) -> Outcome,
    ) -> Result<bool, Unflushed> {
        self.mmu.kernel().masked(|| {
            let Some(here) = Here::if_online(self.mmu) else { return Ok(false) };
            let Some(mut turn) = turn::<K, CPUS>(&self.table) else { return Ok(false) };
            // Not every address space may have global pages.
            let slot = turn.slot(page).filter(|_| !given.contains(Attr::GLOBAL));
            let Some((old, stale)) = slot.and_then(change) else { return Ok(false) };
            if stale.reach == Reach::Nowhere {
                return Ok(true);
            }
            let run =
                old.map(|leaf| Run { first: leaf.frame, len: 1, dirty: leaf.attr.contains(Attr::DIRTY) });
            if stale.reach == Reach::Everywhere && !here.is_alone(self) {
                return self.shoot_once(here, stale, run);
            }
            here.flush(self, &flush_of(stale));
            if let Some(run) = run {
                here.release(run);
            }
            Ok(true)
        })
    }

    /// Makes a change known to other CPUs. What it takes, it takes by value: so nothing of a change of one CPU's is in memory.
    #[cold]
    #[inline(never)]
    fn shoot_once(
        &self,
        mut here: Here<K, CPUS>,
        stale: mpt::Stale,
        run: Option<Run>,
    ) -> Result<bool, Unflushed> {
        // A batch, so that the table owes the flush if the shootdown is refused.
        let mut batch = self.table.batch();
        batch.merge(&flush_of(stale));
        here.complete(self, batch, run.into_iter().collect());
        here.checked(Ok(true)).map_err(|_| Unflushed)
    }
}

/// Returns the flush of what a change of one leaf makes stale.
#[inline(always)]
fn flush_of(stale: mpt::Stale) -> Flush {
    let mut flush = Flush::none();
    flush.add(stale.reach, stale.pages);
    flush
}

/// Takes the right to write a table in the midst of a call, unless another CPU has it.
#[inline(always)]
pub(crate) fn turn<K: Kernel, const CPUS: usize>(table: &Table<K>) -> Option<Turn<'_, 'static, Table<K>>> {
    if CPUS == 1 {
        // SAFETY: every change is made in the midst of a call. There is one at a time on a CPU, and no other CPU; a call that
        // changes two tables takes the right of each.
        return Some(unsafe { Turn::sole(table) });
    }
    Turn::new(table).ok()
}
