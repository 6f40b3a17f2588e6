//! A table answers as the model does, whatever it is asked.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn};
use tlbkit_pagetable::{Change, Holes, Leaf, Mark, Table};

use super::{Checked, Count, check_pending, draw, fault, larger, smaller, with_table};
use crate::subject::{Storage, Subject};
use crate::{Mismatch, Op, Runner, whole};

/// Every operation has the outcome that the model says, and the table holds what the model holds.
pub(super) fn agrees<S: Subject>(nodes: &Storage<'_, S>, every: usize, ops: &[Op], odd: &Count) -> Checked {
    with_table::<S>(nodes, |table, runner| {
        let mut runner = runner.comparing(every);
        if whole::is_one(ops) && runner.model().weight(&ops[0]) == 1 {
            return whole::splits(table, &mut runner, ops, odd);
        }
        for op in ops {
            // What hardware has noted of one page is kept for the whole that it is joined to, and for all that it is split into.
            let noted = |runner: &Runner<'_>, pages: Pages| {
                let last = runner.model().overlap(pages).last();
                let pages = last.map_or(Pages::one(pages.last()), |last| table.space().pages_of(&last));
                Op::Protect { pages, holes: Holes::Skip, change: Change::set(Attr::DIRTY) }
            };
            match *op {
                Op::Resize { pages, .. } => {
                    let noted = noted(&runner, pages);
                    runner.run(table, &[noted, *op])?;
                }
                // What can be one page becomes one, mostly; and the first two of what cannot become many, or stay as they are. It
                // is the frame that says what happens, so that a case without the operations before fails as it did.
                Op::Map { pages, frame, size, .. } => {
                    askew(table, &mut runner, op)?;
                    runner.run(table, &[*op])?;
                    let draw = draw(table, frame, size);
                    rights(table, &mut runner, pages, size)?;
                    handed(table, &mut runner, pages, size)?;
                    if let Some(to) = larger(table, op).filter(|_| draw != 3) {
                        odd.set(odd.get() + odd_one_out(table, &mut runner, pages, to)?);
                        let noted = noted(&runner, pages);
                        runner.run(table, &[noted, Op::Resize { pages, to }])?;
                    } else if let Some((pages, to)) = smaller(table, op) {
                        let noted = noted(&runner, pages);
                        let split = Op::Resize { pages, to };
                        let steps = [noted, split];
                        runner.run(table, if draw.is_multiple_of(2) { &steps } else { &steps[..1] })?;
                    }
                }
                // The smallest payload, the largest that the table says it holds, and the next one.
                Op::Mark { page, mark: Some(Mark::Payload(_)) } => {
                    let largest =
                        table.payload_bits().map_or(0, |bits| u64::MAX.checked_shr(64 - bits).unwrap_or(0));
                    let payloads = [Some(0), Some(largest), largest.checked_add(1)].into_iter().flatten();
                    let marks = payloads.map(|payload| Op::Mark { page, mark: Some(Mark::Payload(payload)) });
                    runner.run(table, &marks.chain([*op]).collect::<Vec<_>>())?;
                }
                _ => runner.run(table, &[*op])?,
            }
            fault::<S>(nodes).map_err(|mismatch| mismatch.after(op, None))?;
        }
        runner.compare(table, None)?;
        check_pending(nodes, &runner)
    })
}

/// Asks for the map of a large page to frames that do not begin where its frame may: by one frame, and by half of it.
fn askew<'n>(table: &dyn Table<'n>, runner: &mut Runner<'n>, op: &Op) -> Checked {
    let Op::Map { pages, frame, size, attr } = *op else { return Ok(()) };
    let Some(units) = size.pages(table.space().base()).filter(|units| *units > 1) else { return Ok(()) };
    for by in [1, units / 2] {
        let frame = Pfn::new(frame.get() & !(units - 1) | by);
        runner.perform_only(table, &Op::Map { pages, frame, size, attr })?;
    }
    Ok(())
}

/// Takes each attribute that a page can lack from the first page of a map, alone and with the ones before it, and gives it back.
fn rights<'n>(table: &dyn Table<'n>, runner: &mut Runner<'n>, pages: Pages, size: PageSize) -> Checked {
    let base = table.space().base();
    let Some(leaf) = runner.model().overlap(pages).next().filter(|leaf| leaf.size == size) else {
        return Ok(());
    };
    // Some will do: every fourth page is one.
    if !(pages.first().get() / size.pages(base).unwrap_or(1)).is_multiple_of(4) {
        return Ok(());
    }
    let page = table.space().pages_of(&leaf);
    let profile = *runner.model().profile();
    let all = profile.optional.difference(profile.fixed);
    let taken = all.iter().map(Change::clear);
    let alone = all.iter().flat_map(|bit| [Change::clear(bit), Change::set(bit)]);
    let changes = [Change::set(all)].into_iter().chain(alone).chain(taken);
    let back = Change { clear: all, set: leaf.attr & all };
    for change in changes.take(if cfg!(miri) { 2 } else { usize::MAX }).chain([back]) {
        runner.perform_at(table, &Op::Protect { pages: page, holes: Holes::Refuse, change }, leaf.at)?;
    }
    Ok(())
}

/// Hands over the frame of the first page of a map of large pages, and maps it again. Before that, asks to exchange it for frames
/// that do not begin where it may.
fn handed<'n>(table: &dyn Table<'n>, runner: &mut Runner<'n>, pages: Pages, size: PageSize) -> Checked {
    let Some(leaf) = runner.model().overlap(pages).next() else { return Ok(()) };
    if size == table.space().base() || leaf.size != size {
        return Ok(());
    }
    let (pages, Leaf { at, frame, attr, .. }) = (table.space().pages_of(&leaf), leaf);
    for by in [1, pages.len() / 2] {
        let frame = Pfn::new(frame.get() | by);
        runner.perform_only(table, &Op::Replace { at, frame, attr })?;
    }
    runner.perform_only(table, &Op::Unmap { pages, holes: Holes::Refuse, room: Some(usize::MAX) })?;
    runner.perform_only(table, &Op::Map { pages, frame, size, attr })?;
    Ok(())
}

/// Joins pages one of which, any but the first, is missing, or differs from the others in one attribute, or in its frame: each
/// that there is, one after the other. None may be joined but by what hardware notes. Returns how many joins were tried, and
/// leaves the pages as they were.
fn odd_one_out<'n>(
    table: &dyn Table<'n>,
    runner: &mut Runner<'n>,
    pages: Pages,
    to: PageSize,
) -> Result<u64, Mismatch> {
    let space = table.space();
    // Addresses and frames draw which one it is, so that a case without the operations before fails as it did.
    let leaves = runner.model().overlap(pages).count();
    let Some(first) = runner.model().overlap(pages).next() else { return Ok(0) };
    let random =
        (pages.first().get() ^ first.frame.get()).wrapping_add(leaves).wrapping_mul(0x9e37_79b1) >> 12;
    let which = leaves - 1 - random % leaves.saturating_sub(1).max(1);
    let odd = runner.model().overlap(pages).nth(which);
    // What was refused is no block of small pages.
    let Some(leaf) = odd.filter(|odd| odd.size < to) else { return Ok(0) };
    let Leaf { at, size, frame, attr } = leaf;
    let page = Pages::count(at.vpn(space.base()), size.pages(space.base()).unwrap_or(1));
    let Some(page) = page.filter(|page| pages.contains(page.last())) else { return Ok(0) };
    let unmap = Op::Unmap { pages: page, holes: Holes::Refuse, room: None };
    let map = |frame, attr| Op::Map { pages: page, frame, size, attr };
    let (profile, is_base) = (*runner.model().profile(), size == space.base());
    let bits = profile.optional.difference(Attr::ACCESSED | Attr::DIRTY).iter();
    let odd = bits.map(|bit| (frame, attr ^ bit)).chain([(Pfn::new(frame.get() ^ page.len()), attr)]);
    let differs = |&(other, stored): &(Pfn, Attr)| {
        other != frame || profile.stored(frame, size, stored, is_base).is_ok_and(|stored| stored != attr)
    };
    let mut tried = 0;
    runner.perform_only(table, &unmap)?;
    let joined = runner.perform_only(table, &Op::Resize { pages, to });
    joined.map_err(|mismatch| {
        let what = format!("{}: the {leaf} was unmapped, and nothing maps its page", mismatch.what);
        Mismatch { what, ..mismatch }
    })?;
    runner.perform_only(table, &map(leaf.frame, leaf.attr))?;
    for (frame, attr) in odd.filter(differs).take(if cfg!(miri) { 1 } else { usize::MAX }) {
        runner.perform_only(table, &unmap)?;
        if runner.model().refusals(&map(frame, attr)).is_empty() {
            runner.perform_only(table, &map(frame, attr))?;
            let joined = runner.perform_only(table, &Op::Resize { pages, to });
            let odd = Leaf { frame, attr, ..leaf };
            joined.map_err(|mismatch| {
                let what = format!("{}: {odd} was mapped where {leaf} would follow", mismatch.what);
                Mismatch { what, ..mismatch }
            })?;
            runner.perform_only(table, &unmap)?;
            tried += 1;
        }
        runner.perform_only(table, &map(leaf.frame, leaf.attr))?;
    }
    Ok(tried)
}
