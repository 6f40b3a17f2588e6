//! What changes of an address space cost in instructions, on one CPU that nothing else runs on.

use core::hint::black_box;
use core::sync::atomic::Ordering;

use tlbkit::{
    Asid, Attr, Error, Flush, FlushScope, Kernel as _, PageSize, Pages, Pfn, Run, SupervisorPages, VirtAddr,
    addr,
};

use crate::memory::{MMU, Space, sharing};
use crate::report::REPORT;
use crate::{arch, frames};

/// Pages that are mapped in one node, and that a fork copies.
const PAGES: usize = 100;
const AT: usize = 0x40_0000;
const USER: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

/// Returns what is counted for nothing. A function of its own, so that the compiler puts nothing in between.
#[inline(never)]
fn nothing() -> usize {
    let begin = arch::instructions();
    arch::instructions() - begin
}

/// Returns how many instructions each call of `f` takes on average, but for the first, which begins a node.
#[inline(never)]
fn each(mut f: impl FnMut(VirtAddr) -> Result<(), Error>) -> Result<usize, Error> {
    let address = |page: usize| VirtAddr::new(AT + page * PageSize::K4.bytes());
    f(address(0))?;
    let nothing = nothing();
    let mut sum = 0;
    for page in 1..PAGES {
        let at = black_box(address(page));
        let begin = arch::instructions();
        f(at)?;
        sum += arch::instructions() - begin - nothing;
    }
    Ok(sum / (PAGES - 1))
}

/// Measures everything, for the row. The machine's counter of instructions goes up by `unit` for each.
pub(crate) fn measure(kernel: &Space, unit: usize) -> Result<(), Error> {
    let space = sharing(kernel)?;
    space.activate()?;
    let frame = || frames::take().ok_or(Error::NoMemory { wanted: 1, pending: 0 });
    let [one, other] = [frame()?, frame()?];
    // Held for each mapping to come, for each release, and once more: no page is filled as it is unmapped.
    for frame in [one, one, other, other].into_iter().cycle().take(4 * PAGES) {
        frames::share(frame);
    }
    let page = |at: VirtAddr| Pages::one(at.vpn(PageSize::K4));
    let to = one.address(PageSize::K4);
    let map = |frame: Pfn| each(|at| space.map(page(at), frame, USER));
    let numbers = [
        each(|_| space.edit(|_| Ok(())))?,
        map(one)?,
        each(|at| if space.translate(at) == Some(to) { Ok(()) } else { Err(Error::NotMapped { at }) })?,
        each(|at| space.replace(at, other, USER))?,
        each(|at| space.unmap(page(at)).map(drop))?,
        each(|at| {
            let mut flush = addr::Flush::none();
            flush.add(FlushScope::Everywhere, page(at));
            MMU.kernel().flush(&Flush::of::<arch::Machine>(&flush), Asid::new(1, u16::BITS));
            Ok(())
        })?,
        each(|_| {
            MMU.kernel().release(Run { first: black_box(other), len: 1, dirty: false });
            Ok(())
        })?,
        {
            map(one)?;
            let begin = arch::instructions();
            let child = space.fork(SupervisorPages::LeftOut)?;
            let forked = arch::instructions() - begin;
            drop(child);
            forked / PAGES
        },
    ];
    for (cost, number) in REPORT.costs.iter().zip(numbers) {
        cost.store(number / unit, Ordering::Relaxed);
    }
    MMU.idle()?;
    drop(space);
    [one, other].into_iter().for_each(|frame| frames::release(frame, false));
    Ok(())
}
