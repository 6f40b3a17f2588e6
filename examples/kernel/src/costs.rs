//! What changes of an address space cost in instructions, on one CPU that nothing else runs on.

use core::hint::black_box;
use core::sync::atomic::Ordering;

use tlbkit::{Attr, Error, PageSize, Pages, Pfn, VirtAddr};

use crate::memory::{MMU, Space, sharing};
use crate::report::REPORT;
use crate::{arch, frames};

/// Pages that are mapped in one node, and that a fork copies.
const PAGES: usize = 100;
const AT: usize = 0x40_0000;
const USER: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

/// Returns how many instructions each call of `f` takes on average, but for the first, which begins a node.
fn each(mut f: impl FnMut(VirtAddr) -> Result<(), Error>) -> Result<usize, Error> {
    let address = |page: usize| VirtAddr::new(AT + page * PageSize::K4.bytes());
    f(address(0))?;
    let count = |begin: usize| arch::instructions() - begin;
    let nothing = count(arch::instructions());
    let mut sum = 0;
    for page in 1..PAGES {
        let at = black_box(address(page));
        let begin = arch::instructions();
        f(at)?;
        sum += count(begin) - nothing;
    }
    Ok(sum / (PAGES - 1))
}

/// Measures everything, for the row. The machine's counter of instructions goes up by `unit` for each.
pub(crate) fn measure(kernel: &Space, unit: usize) -> Result<(), Error> {
    let space = sharing(kernel)?;
    space.activate()?;
    let frame = || frames::take().ok_or(Error::NoMemory { wanted: 1, pending: 0 });
    let [one, other] = [frame()?, frame()?];
    // Held for each mapping to come, and once more: no page is filled as it is unmapped.
    for frame in [one, one, other].into_iter().cycle().take(3 * PAGES) {
        frames::share(frame);
    }
    let page = |at: VirtAddr| Pages::one(at.vpn(PageSize::K4));
    let map = |frame: Pfn| each(|at| space.map(page(at), frame, USER));
    let numbers = [
        each(|_| space.edit(|_| Ok(())))?,
        map(one)?,
        each(|at| black_box(space.translate(at)).map(drop).ok_or(Error::NotMapped { at }))?,
        each(|at| space.replace(at, other, USER))?,
        each(|at| space.unmap(page(at)).map(drop))?,
        {
            map(one)?;
            let begin = arch::instructions();
            let child = space.fork()?;
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
