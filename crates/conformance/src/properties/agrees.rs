//! The property that a table agrees with the model.

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::{Change, Holes, Leaf, Mark, Table};

use super::{Checked, Count, check_pending, draw, larger, smaller, with_table};
use crate::ops::block;
use crate::subject::{Kind, Stage};
use crate::{Mismatch, Op, Runner, whole};

/// Checks that every operation has the outcome that the model predicts, and that the table has the leaves and marks of the model.
pub(super) fn agrees(kind: &Kind, stage: &dyn Stage, every: usize, ops: &[Op], odd: &Count) -> Checked {
    with_table(kind, stage, |table, runner| {
        let mut runner = runner.comparing(every);
        if whole::is_one(ops) && runner.model().weight(&ops[0]) == 1 {
            return whole::splits(table, &mut runner, ops, odd);
        }
        for op in ops {
            // A status bit of one page is kept in the page that it is joined to, and in all pages that it is split into.
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
                // Most maps that can be joined to one page are joined. Of the others the first two pages are split, or left as
                // they are. The frame number decides, so that the choice does not depend on the operations before.
                Op::Map { pages, frame, size, attr } => {
                    askew(table, &mut runner, op)?;
                    runner.run(table, &[*op])?;
                    let draw = draw(table, frame, size);
                    rights(table, &mut runner, pages, size)?;
                    handed(table, &mut runner, pages, size)?;
                    if (frame.get() / block(&table.space())).is_multiple_of(4) {
                        shifted(table, &mut runner, op)?;
                    }
                    if draw == 2 {
                        at_the_ends(table, &mut runner, frame, attr)?;
                    }
                    if draw == 1 {
                        stretched(table, &mut runner, pages, size)?;
                    }
                    if draw == 3 {
                        to_and_fro(table, &mut runner, pages)?;
                    }
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
                // The smallest payload, the largest one that the table accepts, and the next larger one.
                Op::Mark { page, mark: Some(Mark::Payload(_, attr)) } => {
                    let largest =
                        table.payload_bits().map_or(0, |bits| u64::MAX.checked_shr(64 - bits).unwrap_or(0));
                    let payloads = [Some(0), Some(largest), largest.checked_add(1)].into_iter().flatten();
                    let marks =
                        payloads.map(|payload| Op::Mark { page, mark: Some(Mark::Payload(payload, attr)) });
                    runner.run(table, &marks.chain([*op]).collect::<Vec<_>>())?;
                }
                _ => runner.run(table, &[*op])?,
            }
            stage.check().map_err(|mismatch| mismatch.after(op, None))?;
        }
        runner.compare(table, None)?;
        check_pending(stage, &runner)
    })
}

/// Tries to map a large page to misaligned frames: off by one frame, and by half of the page.
fn askew<'n>(table: &dyn Table<'n>, runner: &mut Runner<'n>, op: &Op) -> Checked {
    let Op::Map { pages, frame, size, attr } = *op else { return Ok(()) };
    let Some(units) = size.pages(table.space().base()).filter(|units| *units > 1) else { return Ok(()) };
    for by in [1, units / 2] {
        let frame = Pfn::new(frame.get() & !(units - 1) | by);
        runner.perform_only(table, &Op::Map { pages, frame, size, attr })?;
    }
    Ok(())
}

/// Clears each optional attribute of the first page of a map, alone and together with the ones before it, and sets it again.
fn rights<'n>(table: &dyn Table<'n>, runner: &mut Runner<'n>, pages: Pages, size: PageSize) -> Checked {
    let base = table.space().base();
    let Some(leaf) = runner.model().overlap(pages).next().filter(|leaf| leaf.size == size) else {
        return Ok(());
    };
    // Every fourth base page is enough.
    if size == base && !pages.first().get().is_multiple_of(4) {
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

/// Unmaps the first page of a map of large pages by a drain, and maps it again. Before that, tries to replace
/// its frame by misaligned ones.
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
    runner.perform_only(table, &Op::Drain { pages, most: usize::MAX })?;
    runner.perform_only(table, &Op::Map { pages, frame, size, attr })?;
    Ok(())
}

/// Tries to join the pages of a map that can be joined, when their frames are those that follow, which do not begin where those of a
/// larger page may. Maps the pages to their frames again.
fn shifted<'n>(table: &dyn Table<'n>, runner: &mut Runner<'n>, op: &Op) -> Checked {
    let (&Op::Map { pages, frame, size, attr }, Some(to)) = (op, larger(table, op)) else { return Ok(()) };
    let units = size.pages(table.space().base()).unwrap_or(1);
    let unmap = Op::Unmap { pages, holes: Holes::Refuse };
    let next = Op::Map { pages, frame: Pfn::new(frame.get().saturating_add(units)), size, attr };
    if !runner.model().refusals(&unmap).is_empty() || pages.len() / units > Runner::MOST {
        return Ok(());
    }
    runner.perform_only(table, &unmap)?;
    for map in [next, *op] {
        if runner.model().refusals(&map).is_empty() {
            runner.perform_only(table, &map)?;
        }
        if map == next {
            runner.perform_only(table, &Op::Resize { pages, to })?;
            runner.perform_only(table, &Op::Unmap { pages, holes: Holes::Skip })?;
        }
    }
    Ok(())
}

/// Takes a right from, and then unmaps, ranges of a block of pages and a few more, of which little but one end is mapped: the last
/// page of a map, and after that its first. Maps these pages again.
///
/// ```text
///        |-------------|-------------|-------------|
///               ###################                   to the last page
///                               ###################   from the first page
/// ```
fn stretched<'n>(table: &dyn Table<'n>, runner: &mut Runner<'n>, pages: Pages, size: PageSize) -> Checked {
    let space = table.space();
    let more = block(&space) + 1 + pages.first().get() % 3;
    let (first, last) = (pages.first().get(), pages.last().get());
    let profile = *runner.model().profile();
    let rights = profile.optional.difference(profile.fixed) & (Attr::WRITE | Attr::EXEC | Attr::READ);
    // The last right, which is that to write where there is one.
    let right = rights.iter().last().unwrap_or(Attr::empty());
    let back = first.checked_sub(more).map(|begin| (last, begin, last));
    for (page, begin, end) in back.into_iter().chain([(first, first, last.saturating_add(more))]) {
        let Some(leaf) = runner.model().overlap(Pages::one(Vpn::new(page))).next() else { return Ok(()) };
        let (one, Leaf { frame, attr, .. }) = (space.pages_of(&leaf), leaf);
        let range = Pages::new(Vpn::new(begin), Vpn::new(end));
        let Some(range) = range.filter(|_| leaf.size == size && end <= usize::MAX >> space.base().shift())
        else {
            return Ok(());
        };
        let protect = |pages, change| Op::Protect { pages, holes: Holes::Skip, change };
        runner.perform_only(table, &protect(one, Change::set(right)))?;
        runner.perform_only(table, &protect(range, Change::clear(right)))?;
        runner.perform_only(table, &Op::Unmap { pages: range, holes: Holes::Skip })?;
        if runner.model().overlap(one).next().is_none() {
            runner.perform_only(table, &Op::Map { pages: one, frame, size, attr })?;
        }
    }
    Ok(())
}

/// Maps the first page of each half of the space, and the last one, where nothing is mapped, and unmaps it.
fn at_the_ends<'n>(table: &dyn Table<'n>, runner: &mut Runner<'n>, frame: Pfn, attr: Attr) -> Checked {
    let space = table.space();
    for end in space.halves().into_iter().flatten().flat_map(|half| [half.first(), half.last()]) {
        let pages = Pages::one(end);
        let map = Op::Map { pages, frame, size: space.base(), attr };
        if runner.model().refusals(&map).is_empty() {
            runner.run(table, &[map, Op::Unmap { pages, holes: Holes::Refuse }])?;
        }
    }
    Ok(())
}

/// Moves the blocks of the second page size that a map is in by a few blocks, by a few blocks and a page, up or down, and back: where
/// nothing is in the way. What is at the ends of a block is at the ends of a node in many tables.
fn to_and_fro<'n>(table: &dyn Table<'n>, runner: &mut Runner<'n>, pages: Pages) -> Checked {
    let space = table.space();
    let unit = space.sizes().get(1).and_then(|size| size.pages(space.base())).unwrap_or(1);
    let (first, last) = (pages.first().get() & !(unit - 1), pages.last().get() | (unit - 1));
    let Some(blocks) = Pages::new(Vpn::new(first), Vpn::new(last)) else { return Ok(()) };
    let Some(by) = blocks.len().checked_add(3 * unit + 1) else { return Ok(()) };
    for to in [
        first.wrapping_add(by - 1),
        first.wrapping_add(by),
        first.wrapping_sub(by - 1),
        first.wrapping_sub(by),
    ] {
        let there = Op::Move { pages: blocks, to: Vpn::new(to) };
        if to >= 1 << (usize::BITS - space.base().shift()) || !runner.model().refusals(&there).is_empty() {
            continue;
        }
        runner.step(table, &there)?;
        if let Some(pages) = Pages::count(Vpn::new(to), blocks.len()) {
            runner.step(table, &Op::Move { pages, to: blocks.first() })?;
        }
    }
    Ok(())
}

/// Tries to join pages of which one (not the first) is missing, has another frame, or differs in one attribute, for each
/// attribute in turn. A join may succeed only if the difference is a status bit. Returns the number of joins that were tried, and
/// leaves the pages as they were.
pub(crate) fn odd_one_out<'n>(
    table: &dyn Table<'n>,
    runner: &mut Runner<'n>,
    pages: Pages,
    to: PageSize,
) -> Result<u64, Mismatch> {
    let space = table.space();
    // Addresses and frames choose the page, so that the choice does not depend on the operations before.
    let leaves = runner.model().overlap(pages).count();
    let Some(first) = runner.model().overlap(pages).next() else { return Ok(0) };
    let random =
        (pages.first().get() ^ first.frame.get()).wrapping_add(leaves).wrapping_mul(0x9e37_79b1) >> 12;
    let which = leaves - 1 - random % leaves.saturating_sub(1).max(1);
    let odd = runner.model().overlap(pages).nth(which);
    // If the map was refused, there is no block of small pages.
    let Some(leaf) = odd.filter(|odd| odd.size < to) else { return Ok(0) };
    let Leaf { at, size, frame, attr } = leaf;
    let page = Pages::count(at.vpn(space.base()), size.pages(space.base()).unwrap_or(1));
    let Some(page) = page.filter(|page| pages.contains(page.last())) else { return Ok(0) };
    let unmap = Op::Unmap { pages: page, holes: Holes::Refuse };
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
