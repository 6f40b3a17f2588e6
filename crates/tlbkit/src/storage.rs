//! The page tables of a kernel and their node storage: their types' names, and the frames that they take.

use tlbkit_addr::{PageSize, Pages, PhysAddr, Vpn};
use tlbkit_pagetable::nodes::{FrameSource, Record, Store};
use tlbkit_pagetable::{PageTurn, Turn};

use crate::table::{self, SpaceTable, TableKind};
use crate::{Kernel, Machine};

/// The geometry, format and kind of the tables of a kernel's machine.
type Geometry<K> = <<K as Kernel>::Machine as Machine>::Geometry;
pub(crate) type Format<K> = <<K as Kernel>::Machine as Machine>::Format;
type Kind<K> = <<K as Kernel>::Machine as Machine>::Table;

/// The frames from which tables take their nodes.
pub(crate) type Frames<K> = table::Frames<Format<K>, K>;
/// The node storage of a kernel's tables.
pub(crate) type Storage<K> = <Kind<K> as TableKind<Geometry<K>, Format<K>>>::Storage<K>;
/// The page table of a kernel's address spaces.
pub(crate) type Table<K> = <Kind<K> as TableKind<Geometry<K>, Format<K>>>::Table<K>;
/// The cursor of an address space's page table.
pub(crate) type TableCursor<'c, K> = <Table<K> as SpaceTable<Geometry<K>, Format<K>, Storage<K>>>::Cursor<'c>;

/// What waits for its release outside of an address space's page table.
pub(crate) type Parts<K> = <Table<K> as SpaceTable<Geometry<K>, Format<K>, Storage<K>>>::Detached;

/// The state of a copy of an address space's page table.
pub(crate) type Copying<K> = <Table<K> as SpaceTable<Geometry<K>, Format<K>, Storage<K>>>::Copying;

/// Returns the node storage of a kernel's tables.
pub(crate) fn storage<K: Kernel>(frames: &'static Frames<K>) -> &'static Storage<K> {
    <Kind<K> as TableKind<Geometry<K>, Format<K>>>::storage(frames)
}

/// Takes the right to write `pages` of a table, or with `None` all of it, inside a call, unless another CPU has it. Waits for writers of
/// one page: see [`Turn::over`].
#[inline(always)]
pub(crate) fn turn<'t, K: Kernel, const CPUS: usize>(
    table: &'t Table<K>,
    pages: Option<Pages>,
    wait: &mut dyn FnMut() -> bool,
) -> Option<Turn<'t, 'static, Table<K>>> {
    if CPUS == 1 {
        // SAFETY: every change is made inside a call. With one CPU there is one call at a time; a call that changes two tables
        // takes the right of each.
        return Some(unsafe { Turn::sole(table) });
    }
    Turn::over(table, pages, wait).ok()
}

/// Takes the right to write one page of a table, inside a call, unless another CPU has it.
#[inline(always)]
pub(crate) fn page_turn<K: Kernel, const CPUS: usize>(
    table: &Table<K>,
    page: Vpn,
) -> Option<PageTurn<'_, 'static, Table<K>>> {
    if CPUS == 1 {
        // SAFETY: as for `turn`.
        return Some(unsafe { PageTurn::sole(table, page) });
    }
    PageTurn::new(table, page).ok()
}

/// A kernel, as a frame source for node storage.
#[derive(Debug)]
pub struct Source<K>(pub(crate) K);

// SAFETY: the frames and records are the kernel's, and `Kernel` promises the same of them as `FrameSource`.
unsafe impl<K: Kernel> FrameSource for Source<K> {
    const SIZE: PageSize = <<K::Machine as Machine>::Geometry as tlbkit_pagetable::Geometry>::BASE;

    #[inline]
    fn take(&self) -> Option<PhysAddr> {
        self.0.take_frame()
    }

    #[inline]
    fn give(&self, frame: PhysAddr) {
        self.0.give_frame(frame);
    }

    #[inline]
    fn take_zeroed(&self) -> Option<PhysAddr> {
        self.0.take_zeroed_frame()
    }

    #[inline]
    fn give_zeroed(&self, frame: PhysAddr) {
        self.0.give_zeroed_frame(frame);
    }

    #[inline(always)]
    fn stored(&self, store: Store) {
        self.0.stored(store);
    }

    #[inline(always)]
    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        self.0.memory(frame)
    }

    #[inline(always)]
    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.0.record(frame)
    }
}
