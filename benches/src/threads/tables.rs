//! Tables alone, with locks of their nodes, and with the flag of their only writer.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, PhysAddr, VirtAddr, Vpn};
use tlbkit_pagetable::geometry::Va48;
use tlbkit_pagetable::mpt::{self, Encoded};
use tlbkit_pagetable::nodes::{Direct, FrameSource, Record};
use tlbkit_pagetable::{Entry, Error, Holes, PageTurn, Pinned, Shared, Table, Writer, destroy};
use tlbkit_pagetable::{cpt, format, hpt};

use super::{Concurrent, Spin, Wait};
use crate::frames::Frames;
use crate::ours::{Storage, storage};

/// The frames, under a lock.
#[derive(Clone, Copy, Debug)]
pub struct LockedFrames;

static LOCK: Spin = Spin::new();

// SAFETY: `Frames` promises it of one thread at a time.
unsafe impl FrameSource for LockedFrames {
    fn take(&self) -> Option<PhysAddr> {
        LOCK.with(|| Frames.take())
    }

    fn give(&self, frame: PhysAddr) {
        LOCK.with(|| Frames.give(frame));
    }

    fn take_zeroed(&self) -> Option<PhysAddr> {
        LOCK.with(|| Frames.take_zeroed())
    }

    fn give_zeroed(&self, frame: PhysAddr) {
        LOCK.with(|| Frames.give_zeroed(frame));
    }

    #[inline(always)]
    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        Frames.pointer(frame.get())
    }

    #[inline(always)]
    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        Frames.record(frame)
    }
}

/// A table with several writers. With `LOCKS` it has the locks of its nodes; without, its flag, so that all writers exclude each other.
pub struct Alone<T, const LOCKS: bool>(T);

/// Attributes of a page that the handler of a store's page fault maps: it is accessed and dirty.
const RIGHTS: Attr = Attr::READ.union(Attr::WRITE).union(Attr::ACCESSED).union(Attr::DIRTY);

#[inline(always)]
fn range(vpn: usize, pages: usize) -> Pages {
    Pages::count(Vpn::new(vpn), pages).expect("a range")
}

/// Repeats what another writer is in the way of.
#[inline(always)]
fn in_turn<R>(mut attempt: impl FnMut(&mut Wait) -> Result<R, Error>) -> Result<R, Error> {
    let mut wait = Wait::default();
    loop {
        match attempt(&mut wait) {
            Err(Error::Busy) => wait.pause(),
            done => return done,
        }
    }
}

/// Makes a change of a range as its writer. What it has made stale is reclaimed at once: no CPU walks the table, and the flush costs the
/// same whatever the table.
#[inline(always)]
fn change<T: Table<'static>, R>(
    table: &T,
    pages: Pages,
    change: impl Fn(&mut Writer<'_, 'static, T>) -> Result<R, Error>,
) -> Result<R, Error> {
    in_turn(|wait| {
        let mut writer = Writer::over(table, pages, &mut || {
            wait.pause();
            true
        })?;
        let result = change(&mut writer);
        let batch = writer.finish();
        std::hint::black_box(batch.flush());
        // SAFETY: no CPU walks the table.
        unsafe { batch.reclaim() };
        result
    })
}

/// Names the tables, and lists their types: one with the locks, one with the flag. A table needs `new`, `with_locks` and the slots of
/// [`PageTurn::slot`].
macro_rules! tables {
    ($($name:literal: $locks:ident, $whole:ident, $format:ty, $nodes:expr, $table:ty;)*) => { $(
        pub type $locks = Alone<$table, true>;
        pub type $whole = Alone<$table, false>;

        impl<const LOCKS: bool> Concurrent for Alone<$table, LOCKS> {
            const BITS: u32 = 48;

            fn name() -> String {
                format!("{}, {}", $name, if LOCKS { "node locks" } else { "one writer" })
            }

            fn new() -> Self {
                let table = <$table>::new($nodes).expect("memory for a root");
                Self(if LOCKS { table.with_locks(Box::leak(Box::default())) } else { table })
            }

            #[inline(always)]
            fn fault(&self, vpn: usize, pfn: usize) {
                let (page, frame) = (Vpn::new(vpn), Pfn::new(pfn));
                let rights = Encoded::<$format>::new(RIGHTS).expect("rights of the format");
                let once = || {
                    let mut turn = in_turn(|_| PageTurn::new(&self.0, page)).ok()?;
                    let slot = turn.slot()?;
                    if slot.entry()? == Entry::Empty { slot.map(frame, rights).map(drop) } else { Some(()) }
                };
                if once().is_none() {
                    let pages = Pages::one(page);
                    match change(&self.0, pages, |writer| writer.map(pages, frame, PageSize::K4, RIGHTS)) {
                        Ok(()) | Err(Error::Occupied { .. }) => {}
                        Err(why) => panic!("{why}"),
                    }
                }
            }

            #[inline(always)]
            fn map(&self, vpn: usize, pfn: usize, pages: usize) {
                let pages = range(vpn, pages);
                let map = |writer: &mut Writer<'_, 'static, _>| {
                    writer.map(pages, Pfn::new(pfn), PageSize::K4, RIGHTS)
                };
                change(&self.0, pages, map).expect("free pages");
            }

            #[inline(always)]
            fn unmap(&self, vpn: usize, pages: usize) {
                let pages = range(vpn, pages);
                let unmapped = change(&self.0, pages, |writer| writer.unmap(pages, Holes::Refuse));
                assert_eq!(unmapped, Ok(pages.len()));
            }

            fn translate(&self, va: usize) -> Option<usize> {
                // SAFETY: no thread changes the table meanwhile.
                self.0.translate(unsafe { Pinned::by(self) }, VirtAddr::new(va)).map(|pa| pa.get())
            }

            fn destroy(self) {
                // SAFETY: no CPU walks the table.
                unsafe { destroy(self.0).reclaim() };
            }
        }
    )* };
}

type Nodes = Direct<u64, Shared, LockedFrames>;

/// Returns storage whose nodes are frames.
fn frames() -> &'static Nodes {
    Box::leak(Box::new(Direct::new(LockedFrames)))
}

tables! {
    "X86 shared": X86TableThreads, X86TableWhole, format::X86, frames(), mpt::Mpt<'static, Va48, format::X86, Nodes>;
    "MPT shared": MptThreads, MptWhole, format::Compact, storage::<Shared>(), mpt::Mpt4<'static, Storage<Shared>>;
    "HR shared": HrThreads, HrWhole, format::Compact, storage::<Shared>(), hpt::Hr<'static, Storage<Shared>>;
    "CPT8 shared": Cpt8Threads, Cpt8Whole, format::Compact, storage::<Shared>(), cpt::Cpt8<'static, Storage<Shared>>;
}
