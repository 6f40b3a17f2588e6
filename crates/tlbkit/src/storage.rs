//! The kernel's frames as node storage, and the page tables that it has room for.

use tlbkit_addr::PhysAddr;
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::mpt::{self, Mpt};
use tlbkit_pagetable::nodes::{Direct, FrameSource, Record, Store};
use tlbkit_pagetable::{Shared, Turn};

use crate::{Kernel, Machine};

/// The frames of a kernel, as node storage takes them.
pub(crate) struct Source<K>(pub(crate) K);

// SAFETY: the promises of `Kernel` on frames and records.
unsafe impl<K: Kernel> FrameSource for Source<K> {
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

type Word<K> = <<<K as Kernel>::Machine as Machine>::Format as Format>::Word;
pub(crate) type Storage<K> = Direct<Word<K>, Shared, Source<K>>;
/// The page table of a kernel's address spaces.
pub(crate) type Table<K> = Mpt<
    'static,
    <<K as Kernel>::Machine as Machine>::Geometry,
    <<K as Kernel>::Machine as Machine>::Format,
    Storage<K>,
>;

/// The cursor of an address space's page table.
pub(crate) type Walk<'c, K> = mpt::Cursor<
    'c,
    'static,
    <<K as Kernel>::Machine as Machine>::Geometry,
    <<K as Kernel>::Machine as Machine>::Format,
    Storage<K>,
>;

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
