//! A large page that is split into base pages at once, through all levels between, and joined again. This runs once in a run of
//! the suite.
//!
//! Random operations split a large page only into pages of the next smaller size, and split no page into many thousands of
//! leaves, because one such case would have as many leaves as all others together. This case compares during its visits, which is
//! cheaper.

use std::cell::Cell;
use std::mem;
use std::ops::ControlFlow;

use tlbkit_addr::{Attr, FlushScope, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::{Error, FlushAll, Leaf, Pinned, Space, Table, Writer};

use crate::hang::{self, Step};
use crate::words::show;
use crate::{Mismatch, Op, Outcome, Profile, Runner};

/// The largest number of pages that the large page is split into: the 4 KiB pages of 1 GiB.
const MOST: usize = 1 << 18;

/// The memory for a table with that number of leaves, of two words each, in nodes that are half full.
pub(crate) const CHUNKS: usize = 4096;

/// Returns the case of a space: the map of a page, and its split. Returns `None` if the random cases already split every page
/// into base pages.
pub(crate) fn case(space: &Space, profile: &Profile) -> Option<[Op; 2]> {
    let base = space.base();
    let units = |size: &PageSize| size.pages(base).filter(|units| *units <= MOST);
    let size = space.sizes().iter().copied().rfind(|size| units(size).is_some())?;
    let units = units(&size).filter(|units| *units > Runner::MOST_RESIZED && !cfg!(miri))?;
    // The second page of the size if there is one, else the first.
    let pages = [units, 0].into_iter().filter_map(|first| Pages::count(Vpn::new(first), units));
    let pages = pages.into_iter().find(|pages| space.check_pages(*pages).is_ok())?;
    let attr = profile.implied | Attr::READ | Attr::EXEC;
    let frame = Pfn::new(units);
    Some([Op::Map { pages, frame, size, attr }, Op::Resize { pages, to: base }])
}

/// Tells whether these operations have the form of such a case.
pub(crate) fn is_one(ops: &[Op]) -> bool {
    match ops {
        [Op::Map { pages, .. }, Op::Resize { pages: split, .. }] => {
            pages == split && (Runner::MOST_RESIZED + 1..=MOST).contains(&pages.len()) && !cfg!(miri)
        }
        _ => false,
    }
}

/// Checks a case for which [`is_one`] returns `true`. Sets `done` if the page was split: the memory may be too small for that.
pub(crate) fn splits<'n>(
    table: &dyn Table<'n>,
    runner: &mut Runner<'n>,
    ops: &[Op],
    done: &Cell<u64>,
) -> Result<(), Mismatch> {
    let &[map, split @ Op::Resize { pages, to }] = ops else { return Ok(()) };
    if runner.step(table, &map)? != Outcome::Done || !runner.model().refusals(&split).is_empty() {
        return Ok(());
    }
    let Some(large) = runner.model().leaves().next() else { return Ok(()) };
    let before = table.footprint();
    if !resize(table, &split)? {
        return runner.compare(table, Some(pages)).map_err(|mismatch| mismatch.after(&split, None));
    }
    let judged = compare(table, large, pages, to);
    judged.map_err(|mismatch| mismatch.after(&split, Some(&Outcome::Done)))?;
    done.set(1);
    let join = Op::Resize { pages, to: large.size };
    if resize(table, &join)? {
        // After the join the table is as before the split, which the model was not told of.
        let joined = runner.compare(table, Some(pages)).and_then(|()| {
            let after = table.footprint();
            if after.ptes == before.ptes {
                return Ok(());
            }
            Err(Mismatch::of(format!(
                "a page was split and joined again, and the footprint counts {} PTEs; before it counted {}",
                after.ptes, before.ptes
            )))
        });
        joined.map_err(|mismatch| mismatch.after(&join, Some(&Outcome::Done)))?;
    }
    Ok(())
}

/// Changes the size of pages. The only error allowed is a lack of memory. Tells whether the size was changed.
fn resize<'n>(table: &dyn Table<'n>, op: &Op) -> Result<bool, Mismatch> {
    let &Op::Resize { pages, to } = op else { return Ok(false) };
    hang::step(|| Step::Op(*op));
    let Ok(mut writer) = Writer::new(table) else { return Err(Mismatch::of("a writer was left behind")) };
    // SAFETY: no machine uses the table, so no code needs the pages.
    let result = unsafe { writer.resize(pages, to, FlushAll::breaking(&mut |_| ())) };
    let batch = writer.finish();
    let flush = batch.flush().clone();
    // SAFETY: no TLB holds translations of the table, and there is no walker.
    unsafe { batch.reclaim() };
    let what = match result {
        Err(Error::NoMemory { .. }) => return Ok(false),
        Err(error) => format!("it failed for no reason: {error:?}"),
        Ok(()) if flush.scope() >= FlushScope::Everywhere && flush.covers(pages) => return Ok(true),
        Ok(()) => {
            format!("pages {pages} must be flushed with scope Everywhere, and the batch asks for {flush:?}")
        }
    };
    Err(Mismatch::of(what).after(op, None))
}

/// Checks that exactly the pages of `size` that replace a large page are mapped.
fn compare<'n>(table: &dyn Table<'n>, large: Leaf, pages: Pages, size: PageSize) -> Result<(), Mismatch> {
    let base = table.space().base();
    let (first, units) = (pages.first().get(), size.pages(base).unwrap_or(1));
    let count = pages.len() / units;
    let leaf = |number: usize| Leaf {
        at: Vpn::new(first + number * units).address(base),
        size,
        frame: Pfn::new(large.frame.get() + number * units),
        ..large
    };
    let mut met = vec![false; count];
    let (mut visits, mut wrong) = (0, None);
    // SAFETY: no node is reclaimed during the call.
    let _ = table.for_each(unsafe { Pinned::by(&()) }, pages, &mut |found| {
        visits += 1;
        let number = found.at.vpn(base).get().wrapping_sub(first) / units;
        let is_new = met.get_mut(number).is_some_and(|met| !mem::replace(met, true));
        if is_new && found == leaf(number) {
            return ControlFlow::Continue(());
        }
        wrong = Some(match (is_new, number < count) {
            (true, _) => format!("a visit of {pages} met the {found}, not the {}", leaf(number)),
            (false, true) => format!("a visit of {pages} met the {found} twice"),
            (false, false) => format!("a visit of {pages} met the {found}, which is not there"),
        });
        ControlFlow::Break(())
    });
    if let Some(wrong) = wrong {
        return Err(Mismatch::of(wrong));
    }
    if visits != count {
        return Err(Mismatch::of(format!("a visit of {pages} met {visits} leaves, and {count} are mapped")));
    }
    // Both ends, the middle, and the places where a node may begin or end.
    let ends = (0..usize::BITS).map(|bit| 1_usize.wrapping_shl(bit)).take_while(|end| *end < count);
    let numbers = [0, count - 1].into_iter().chain(ends.flat_map(|end| [end - 1, end, count - end]));
    for number in numbers {
        let leaf = leaf(number);
        let last = leaf.at.get() + size.mask();
        for at in [leaf.at.get(), last] {
            let at = VirtAddr::new(at);
            // SAFETY: no node is reclaimed during the call.
            let found = table.lookup(unsafe { Pinned::by(&()) }, at);
            if found != Some(leaf) {
                let what = format!("{at} is {}; it should be {}", show(found), show(Some(leaf)));
                return Err(Mismatch::of(what));
            }
        }
    }
    let before = Vpn::new(first.wrapping_sub(1)).checked_address(base);
    let after = pages.last().checked_add(1).and_then(|page| page.checked_address(base));
    for at in [before, after].into_iter().flatten() {
        // SAFETY: no node is reclaimed during the call.
        if let Some(found) = table.lookup(unsafe { Pinned::by(&()) }, at) {
            return Err(Mismatch::of(format!("{at} is {}; it should be unmapped", show(Some(found)))));
        }
    }
    let ptes = table.footprint().ptes;
    if ptes < count || ptes > pages.len() {
        return Err(Mismatch::of(format!("the footprint counts {ptes} PTEs for {count} leaves")));
    }
    Ok(())
}
