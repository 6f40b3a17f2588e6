//! How many instructions a long call executes with interrupts masked, on one CPU that nothing else runs on. (`examples/cost` counts the
//! instructions of calls.)

use core::hint::black_box;
use core::iter::repeat_n;
use core::sync::atomic::{AtomicUsize, Ordering};

use tlbkit::{Attr, Error, PageSize, Pages, Pfn, SupervisorPages, VirtAddr};

use crate::memory::{MMU, Space, sharing};
use crate::report::REPORT;
use crate::{arch, frames};

const USER: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

/// Measures everything, for the row. The machine's counter of instructions goes up by `unit` for each.
pub(crate) fn measure(kernel: &Space, unit: usize) -> Result<(), Error> {
    let space = sharing(kernel)?;
    space.activate()?;
    let frame = frames::take().ok_or(Error::NoMemory { wanted: 1, pending: 0 })?;
    for (cost, number) in REPORT.longest.iter().zip(longest(&space, frame)?) {
        cost.store(number / unit, Ordering::Relaxed);
    }
    MMU.idle()?;
    drop(space);
    frames::release(frame, false);
    Ok(())
}

/// Whether the longest time with interrupts masked is measured, of calls for 4 GiB: under stress, on one CPU.
pub(crate) const LONGEST: bool = cfg!(feature = "longest");
const LONG: usize = 1 << 20;
const LONG_AT: usize = 4 << 30;

/// How many calls of [`masked`] are under way, where the first of them began, and the most instructions of any so far.
static DEPTH: AtomicUsize = AtomicUsize::new(0);
static BEGIN: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Calls `f`, which masks interrupts. If that is measured, counts the instructions.
#[inline(always)]
pub(crate) fn masked<R>(f: impl FnOnce() -> R) -> R {
    if !LONGEST {
        return f();
    }
    if DEPTH.fetch_add(1, Ordering::Relaxed) == 0 {
        BEGIN.store(arch::instructions(), Ordering::Relaxed);
    }
    let result = f();
    if DEPTH.fetch_sub(1, Ordering::Relaxed) == 1 {
        MOST.fetch_max(arch::instructions() - BEGIN.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    result
}

/// Returns how many instructions `f` executes with interrupts masked at most, without a break.
fn most(f: impl FnOnce() -> Result<(), Error>) -> Result<usize, Error> {
    MOST.store(0, Ordering::Relaxed);
    f()?;
    Ok(MOST.load(Ordering::Relaxed))
}

/// Measures the longest time with interrupts masked of an unmap, a drop and a fork, of 4 GiB, whose pages are mapped so that no frame is
/// the neighbour of the one before; and of a copy from the first of these pages.
fn longest(space: &Space, frame: Pfn) -> Result<[usize; 4], Error> {
    let first = VirtAddr::new(LONG_AT);
    let pages = |from: usize, count| {
        let at = VirtAddr::new(LONG_AT + (from << PageSize::K4.shift()));
        Pages::count(at.vpn(PageSize::K4), count).ok_or(Error::OutOfRange { at })
    };
    (0..LONG).for_each(|_| frames::share(frame));
    for from in (0..LONG).step_by(512) {
        space.map_each(pages(from, 512)?, repeat_n(frame, 512), USER | Attr::ACCESSED | Attr::DIRTY)?;
    }
    let copy = most(|| {
        let mut bytes = [0; 2 << PageSize::K4.shift()];
        let copied = space.copy_from_user(first, &mut bytes, |_, _, _| Ok(false));
        black_box(bytes);
        copied.map_err(|stopped| stopped.error.unwrap_or(Error::NotMapped { at: first }))
    })?;
    let mut child = None;
    let fork = most(|| {
        child = Some(space.fork(SupervisorPages::LeftOut)?);
        Ok(())
    })?;
    let drop = most(|| {
        drop(child.take());
        Ok(())
    })?;
    let unmap = most(|| {
        assert_eq!(space.unmap(pages(0, LONG)?), Ok(LONG));
        Ok(())
    })?;
    Ok([unmap, drop, fork, copy])
}
