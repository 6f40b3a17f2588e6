//! The properties, each of one sequence of operations.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::mem::ManuallyDrop;

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, FlushScope};
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::nodes::{Chunk, Nodes, Reclaim, Slab};
use tlbkit_pagetable::{Change, Footprint, Holes, Leaf, Mark, Space, Table, destroy};

use crate::hang;
use crate::moments::Moments;
use crate::subject::{OPS, Property, Storage, Subject};
use crate::{Effect, Failing, Mismatch, Model, Op, Outcome, Profile, Runner, Tripping, Watching, whole};

/// What a property has done so often that it should be told.
pub(crate) type Count = Cell<u64>;

type Checked = Result<(), Mismatch>;

/// Checks a property of one sequence of operations, in memory that an earlier one may have used.
pub(crate) fn check<S: Subject>(
    property: Property,
    memory: &mut [Chunk],
    ops: &[Op],
    count: &Count,
) -> Checked {
    if property == Property::SurvivesUnwinding {
        return survives_unwinding::<S>(memory, ops, count);
    }
    if property == Property::Agrees && whole::is_one(ops) {
        let mut memory = vec![Chunk::ZERO; whole::CHUNKS];
        return check_in::<S>(property, &mut memory, 1, ops, count);
    }
    if matches!(property, Property::PublishesInOrder | Property::WalksBeside | Property::CountsLost) {
        return check_in::<S>(property, memory, 1, ops, count);
    }
    // Where something is wrong, the second run says after which operation.
    check_in::<S>(property, memory, EVERY, ops, count)
        .map_err(|late| check_in::<S>(property, memory, 1, ops, count).err().unwrap_or(late))
}

/// Operations from one comparison of the whole table to the next. In between, the pages around each are compared.
const EVERY: usize = 4;

fn check_in<S: Subject>(
    property: Property,
    memory: &mut [Chunk],
    every: usize,
    ops: &[Op],
    count: &Count,
) -> Checked {
    let watched = matches!(
        property,
        Property::HoldsBack | Property::PublishesInOrder | Property::WalksBeside | Property::StaysApart
    );
    let nodes = &storage::<S>(memory, watched);
    let checked = match property {
        Property::Agrees => agrees::<S>(nodes, every, ops, count),
        Property::Waits => waits::<S>(nodes, every, ops),
        Property::HoldsBack => holds_back::<S>(nodes, every, ops),
        Property::FailsCleanly => fails_cleanly::<S>(nodes, every, ops, count),
        Property::SurvivesExhaustion => survives_exhaustion::<S>(nodes, every, ops),
        Property::SurvivesUnwinding => Ok(()),
        Property::PublishesInOrder => publishes_in_order::<S>(nodes, ops, count),
        Property::WalksBeside => walks_beside::<S>(nodes, ops, count),
        Property::StaysApart => stays_apart::<S>(nodes, every, ops),
        Property::CountsLost => counts_lost::<S>(nodes, ops),
    };
    // Whatever else is wrong comes of what was wrong first.
    match (nodes.fault(), checked) {
        (None, checked) => checked,
        (Some(what), Ok(())) => Err(Mismatch::of(what)),
        (Some(what), Err(mismatch)) => Err(Mismatch { what, ..mismatch }),
    }
}

fn storage<S: Subject>(memory: &mut [Chunk], watched: bool) -> Storage<'_, S> {
    let nodes = Failing::new(Tripping::new(Slab::new(memory, 0).expect("memory for a slab")));
    if watched { Watching::watched(nodes) } else { Watching::new(nodes) }
}

/// Makes a table, checks something of it, and takes it apart.
fn with_table<S: Subject>(
    nodes: &Storage<'_, S>,
    body: impl for<'n> FnOnce(&dyn Table<'n>, Runner<'n>) -> Checked,
) -> Checked {
    let table = S::build(nodes).map_err(Mismatch::no_table)?;
    let runner = Runner::new(&table, Profile::of::<S::Format>(), 0);
    body(&table, runner)?;
    take_apart::<S>(nodes, table)?;
    let slab = nodes.inner().inner().inner();
    let (out, used, held) = (nodes.inner().out(), slab.usage().nodes, nodes.held());
    if (out, used, held.pending(), held.lost()) != (0, 0, 0, 0) {
        return Err(Mismatch::of(format!(
            "the table is gone, and of its nodes {out} were not freed ({used} by the storage's own count), {} are \
             pending, and {} are counted as lost: nodes that the table's footprint still counted when it was dropped, or that \
             `Held::lose` was told of",
            held.pending(),
            held.lost()
        )));
    }
    Ok(())
}

/// Takes a table apart that is the last one of its storage.
fn take_apart<'n, S: Subject>(nodes: &Storage<'_, S>, mut table: impl Table<'n>) -> Checked {
    hang::say("it is taken apart");
    let mut batch = table.batch();
    // What `destroy` does, which shows no footprint. SAFETY: the table is ours alone, and dropped.
    unsafe {
        batch.take_up();
        table.dismantle(&mut batch);
    }
    let left = table.footprint();
    drop(table);
    fault::<S>(nodes)?;
    let mut known = HashSet::new();
    if let Some(node) = batch.list().find(|node| !known.insert(*node)) {
        return Err(Mismatch::of(format!("node {:#x} was retired twice: `dismantle` has left it in the batch twice", node.get())));
    }
    fault::<S>(nodes)?;
    let (retired, out) = (batch.nodes(), nodes.inner().out());
    if retired != out {
        return Err(Mismatch::of(format!(
            "`dismantle` has left {retired} nodes in the batch, and the table had {out}"
        )));
    }
    if left != Footprint::default() {
        return Err(Mismatch::of(format!(
            "the table was taken apart, and its footprint, which should be all zeroes, counts {left:?}"
        )));
    }
    // SAFETY: the table is gone, and no walker is left.
    unsafe { batch.reclaim() };
    fault::<S>(nodes)
}

fn fault<S: Subject>(nodes: &Storage<'_, S>) -> Checked {
    nodes.fault().map_or(Ok(()), |fault| Err(Mismatch::of(fault)))
}

/// Checks that the storage agrees about the nodes that wait.
fn check_pending(nodes: &impl Nodes, runner: &Runner<'_>) -> Checked {
    let (pending, held) = (nodes.held().pending(), runner.pending());
    if pending == held {
        return Ok(());
    }
    Err(Mismatch::of(format!(
        "the storage says that {pending} nodes are pending, and the batches hold {held}"
    )))
}

fn agrees<S: Subject>(nodes: &Storage<'_, S>, every: usize, ops: &[Op], odd: &Count) -> Checked {
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
                    let largest = table.payload_bits().map_or(0, |bits| u64::MAX.checked_shr(64 - bits).unwrap_or(0));
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

/// Returns a number below four that a map's first frame draws.
fn draw<'n>(table: &dyn Table<'n>, frame: Pfn, size: PageSize) -> usize {
    frame.get() / size.pages(table.space().base()).unwrap_or(1) % 4
}

/// Returns the size that the pages of a map can be joined to.
fn larger<'n>(table: &dyn Table<'n>, op: &Op) -> Option<PageSize> {
    let Op::Map { pages, size, .. } = *op else { return None };
    let space = table.space();
    let fits = |to: &&PageSize| **to > size && space.check_sized(pages, **to).is_ok();
    space.sizes().iter().copied().find(|to| fits(&to))
}

/// Returns the first two pages of a map, or the only one, and the size that they can be split to: the next smaller one.
fn smaller<'n>(table: &dyn Table<'n>, op: &Op) -> Option<(Pages, PageSize)> {
    let Op::Map { pages, size, .. } = *op else { return None };
    let space = table.space();
    let to = space.sizes().iter().copied().rfind(|&to| to < size)?;
    let unit = size.pages(space.base())?;
    Some((Pages::count(pages.first(), pages.len().min(2 * unit))?, to))
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
    let Some(leaf) = runner.model().overlap(pages).next().filter(|leaf| leaf.size == size) else { return Ok(()) };
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
    let random = (pages.first().get() ^ first.frame.get()).wrapping_add(leaves).wrapping_mul(0x9e37_79b1) >> 12;
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

fn waits<S: Subject>(nodes: &Storage<'_, S>, every: usize, ops: &[Op]) -> Checked {
    with_table::<S>(nodes, |table, runner| {
        let mut runner = runner.with_patience(3).comparing(every);
        // What can be one page becomes one, mostly: what the join has counted shows when everything is unmapped.
        let joined = ops.iter().flat_map(|op| {
            let join = match *op {
                Op::Map { pages, frame, size, .. } if draw(table, frame, size) != 3 => {
                    larger(table, op).map(|to| Op::Resize { pages, to })
                }
                _ => None,
            };
            [Some(*op), join].into_iter().flatten()
        });
        for op in &joined.collect::<Vec<_>>() {
            runner.run(table, &[*op])?;
            fault::<S>(nodes).map_err(|mismatch| mismatch.after(op, None))?;
            check_pending(nodes, &runner).map_err(|mismatch| mismatch.after(op, None))?;
        }
        runner.clear(table, S::SHRINKS)?;
        check_pending(nodes, &runner)
    })
}

/// No batch completes, so no node comes back.
fn holds_back<S: Subject>(nodes: &Storage<'_, S>, every: usize, ops: &[Op]) -> Checked {
    with_table::<S>(nodes, |table, runner| {
        let mut runner = runner.with_patience(usize::MAX).comparing(every);
        for op in ops {
            nodes.begin(0);
            let outcome = runner.step(table, op);
            came_back::<S>(nodes).map_err(|mismatch| mismatch.after(op, outcome.as_ref().ok()))?;
            outcome?;
        }
        runner.compare(table, None)?;
        runner.settle();
        Ok(())
    })
}

fn came_back<S: Subject>(nodes: &Storage<'_, S>) -> Checked {
    fault::<S>(nodes)?;
    match nodes.returned() {
        0 => Ok(()),
        1 => Err(Mismatch::of("1 node was freed that no shootdown has let go: a walker may still be in it")),
        freed => Err(Mismatch::of(format!(
            "{freed} nodes were freed that no shootdown has let go: walkers may still be in them"
        ))),
    }
}

fn fails_cleanly<S: Subject>(nodes: &Storage<'_, S>, every: usize, ops: &[Op], failures: &Count) -> Checked {
    let storage = nodes.inner();
    with_table::<S>(nodes, |table, runner| {
        let mut runner = runner.comparing(every);
        // Two of a case will do.
        let mut splits = 2;
        for op in ops {
            let mut said = None;
            for takes in 0.. {
                let before = (storage.out(), table.footprint());
                storage.fail_at(takes);
                let outcome = runner.step(table, op);
                let failed = storage.failed();
                failures.set(failures.get() + u64::from(failed));
                let outcome = outcome?;
                let Outcome::NoMemory { wanted, .. } = outcome else {
                    // The batch is reclaimed already.
                    let used = (storage.out() + runner.retired()).saturating_sub(before.0);
                    if outcome == Outcome::Done && used < takes {
                        let what = format!(
                            "with {} nodes it is refused, and with {takes} it uses {used}: it takes more than it needs",
                            takes - 1
                        );
                        return Err(Mismatch::of(what).after(op, Some(&outcome)));
                    }
                    if let Some(wanted) = said
                        && outcome == Outcome::Done
                        && wanted > used
                    {
                        let what = format!("it wanted {wanted} nodes when it was refused, and uses {used}");
                        return Err(Mismatch::of(what).after(op, Some(&outcome)));
                    }
                    break;
                };
                said = Some(wanted);
                let after = (storage.out(), table.footprint());
                let what = if !failed {
                    format!(
                        "no allocation failed, and the operation says that there is no memory for {wanted} nodes"
                    )
                } else if before != after {
                    format!(
                        "allocation {takes} failed, and the table is not as it was: {} nodes out and {:?} before, {} \
                         and {:?} after",
                        before.0, before.1, after.0, after.1
                    )
                } else if wanted <= takes {
                    format!("the operation wants {wanted} nodes, and has had {takes} before one was refused")
                } else {
                    continue;
                };
                return Err(Mismatch::of(what).after(op, Some(&outcome)));
            }
            if splits > 0 && splits_cleanly::<S>(nodes, table, &mut runner, op, failures)? {
                splits -= 1;
            }
        }
        runner.compare(table, None)
    })
}

/// Splits the first two pages of a map of large ones, with memory for some of the nodes that this takes: it must change nothing.
/// Tells whether that was more than one.
fn splits_cleanly<'n, S: Subject>(
    nodes: &Storage<'_, S>,
    table: &dyn Table<'n>,
    runner: &mut Runner<'n>,
    op: &Op,
    failures: &Count,
) -> Result<bool, Mismatch> {
    let Some((pages, to)) = smaller(table, op) else { return Ok(false) };
    let split = Op::Resize { pages, to };
    if !runner.model().refusals(&split).is_empty() {
        return Ok(false);
    }
    let storage = nodes.inner();
    let before = (storage.out(), table.footprint());
    let (mut takes, mut tries) = (0, [0; 3]);
    loop {
        storage.limit(before.0 + takes);
        let outcome = runner.perform_only(table, &split);
        storage.limit(usize::MAX);
        let outcome = outcome?;
        let Outcome::NoMemory { wanted, .. } = outcome else {
            runner.compare_near(table, Some(pages)).map_err(|mismatch| mismatch.after(&split, Some(&outcome)))?;
            return Ok(outcome == Outcome::Done);
        };
        failures.set(failures.get() + 1);
        let after = (storage.out(), table.footprint());
        if before != after {
            let what = format!(
                "there was memory for {takes} nodes and no more, and the table is not as it was: {} nodes out and {:?} before, \
                 {} and {:?} after",
                before.0, before.1, after.0, after.1
            );
            return Err(Mismatch::of(what).after(&split, Some(&outcome)));
        }
        runner.compare_near(table, Some(pages)).map_err(|mismatch| mismatch.after(&split, Some(&outcome)))?;
        if takes == 0 {
            // Of hundreds of nodes some: the second, one in the middle, and the last.
            tries = [1, wanted / 2, wanted - 1];
        }
        let Some(next) = tries.iter().copied().find(|next| *next > takes && *next < wanted) else {
            return Ok(wanted > 1);
        };
        takes = next;
    }
}

fn survives_exhaustion<S: Subject>(nodes: &Storage<'_, S>, every: usize, ops: &[Op]) -> Checked {
    with_table::<S>(nodes, |table, runner| {
        let mut runner = runner.with_patience(2).comparing(every);
        nodes.inner().limit(nodes.inner().out() + 7);
        for op in ops {
            runner.step(table, op)?;
            check_pending(nodes, &runner).map_err(|mismatch| mismatch.after(op, None))?;
        }
        runner.compare(table, None)?;
        runner.settle();
        Ok(())
    })
}

/// The last operation of a sequence that does anything unwinds, in one call to the caller's code after the other.
fn survives_unwinding<S: Subject>(memory: &mut [Chunk], ops: &[Op], unwound: &Count) -> Checked {
    let mut model = model::<S>(memory)?;
    let mut does = |op: &Op| {
        if model.weight(op) > Runner::MOST || !model.refusals(op).is_empty() {
            return false;
        }
        let effect = model.effect(op);
        model.commit(&effect);
        effect != Effect::default()
    };
    let ops = &ops[..ops.len().min(OPS.min(16))];
    let doing = ops.iter().enumerate().filter(|(_, op)| does(op)).map(|(number, _)| number + 1).last();
    let ops = &ops[..doing.unwrap_or(ops.len())];
    let Some((last, first)) = ops.split_last() else { return Ok(()) };
    unwinds::<S>(memory, first, last, unwound)?;
    // What a few pages were mapped for is to be unmapped, and their frames handed over.
    match *last {
        Op::Map { pages, size, .. } if pages.len() <= 8 * size.pages(PageSize::K4).unwrap_or(1) => {
            let unmap = Op::Unmap { pages, holes: Holes::Skip, room: Some(usize::MAX) };
            unwinds::<S>(memory, ops, &unmap, unwound)?;
            // Of a table that has nothing else: what is left of its nodes is known. Of one that holds marks, with one.
            let marked = Pages::count(pages.first(), pages.len() + 1).filter(|marked| {
                model.has_marks() && model.space().check_pages(*marked).is_ok()
            });
            match marked {
                Some(pages) => {
                    let mark = Op::Mark { page: pages.last(), mark: Some(Mark::Guard) };
                    let unmap = Op::Unmap { pages, holes: Holes::Skip, room: Some(usize::MAX) };
                    unwinds::<S>(memory, &[*last, mark], &unmap, unwound)
                }
                None => unwinds::<S>(memory, &[*last], &unmap, unwound),
            }
        }
        _ => Ok(()),
    }
}

/// Returns the model of a new table, which is dropped: whether it can be taken apart is for the properties to say.
fn model<S: Subject>(memory: &mut [Chunk]) -> Result<Model, Mismatch> {
    let nodes = storage::<S>(memory, false);
    let table = S::build(&nodes).map_err(Mismatch::no_table)?;
    Ok(Model::new(table.space(), Profile::of::<S::Format>()).with_marks(table.payload_bits()))
}

/// Returns the space of a new table.
pub(crate) fn new_space<S: Subject>(memory: &mut [Chunk]) -> Result<Space, Mismatch> {
    hang::say("it is made");
    model::<S>(memory).map(|model| *model.space())
}

/// The number of a call that there is not: none unwinds, and all are counted.
const NONE: usize = usize::MAX / 2;

/// Says which call unwound.
fn call_unwound(call: usize) -> String {
    match call {
        NONE => "no call to the caller's code unwound".to_owned(),
        call => format!("call {call} to the caller's code unwound"),
    }
}

/// Calls at the beginning, and at the end, that unwind one after the other; of those in between about as many.
const CALLS: usize = 4;

fn unwinds<S: Subject>(memory: &mut [Chunk], first: &[Op], last: &Op, unwound: &Count) -> Checked {
    let calls = unwinds_at::<S>(memory, first, last, NONE)?;
    let chosen = |call: &usize| {
        *call < CALLS || *call + CALLS >= calls || call.is_multiple_of(calls / CALLS)
    };
    for call in (0..calls).filter(chosen) {
        unwinds_at::<S>(memory, first, last, call)?;
        unwound.set(unwound.get() + 1);
    }
    Ok(())
}

/// Lets call number `call` unwind. Returns how many calls there were up to that, none if the operation is too large.
fn unwinds_at<S: Subject>(
    memory: &mut [Chunk],
    first: &[Op],
    last: &Op,
    call: usize,
) -> Result<usize, Mismatch> {
    let nodes = storage::<S>(memory, false);
    let mut table = S::build(&nodes).map_err(Mismatch::no_table)?;
    let calls = unwind_at::<S>(&nodes, &mut table, first, last, call);
    let calls = fault::<S>(&nodes).and(calls)?;
    // SAFETY: no walker is in the table any more.
    unsafe { destroy(table).reclaim() };
    let (out, lost, pending) = (nodes.inner().out(), nodes.held().lost(), nodes.held().pending());
    if out != lost || pending != 0 {
        return Err(Mismatch::of(format!(
            "{}, and when the table was gone {lost} nodes were lost, {out} were out, and {pending} pending",
            call_unwound(call)
        ))
        .after(last, None));
    }
    Ok(calls)
}

/// Lets call number `call` unwind of a table's. Returns as `unwinds_at`.
fn unwind_at<'n, S: Subject>(
    nodes: &Storage<'_, S>,
    table: &mut dyn Table<'n>,
    first: &[Op],
    last: &Op,
    call: usize,
) -> Result<usize, Mismatch> {
    let table = &*table;
    let fresh = table.footprint();
    // The batches of a table that fails may hold a node twice, and a list that ends nowhere: they are not dropped.
    let mut runner = ManuallyDrop::new(Runner::new(table, Profile::of::<S::Format>(), 0));
    runner.replay(table, first)?;
    if runner.model().weight(last) > Runner::MOST {
        runner.settle();
        return Ok(0);
    }
    let trip = nodes.inner().inner().trip();
    trip.set(call);
    let whole = || {
        let (out, lost, pending) = (nodes.inner().out(), nodes.held().lost(), nodes.held().pending());
        let own = table.footprint().nodes + table.footprint().leaves;
        if out == own + pending + lost {
            return Ok(());
        }
        Err(Mismatch::of(format!(
            "{}, and {out} nodes are out: the table counts {own}, {pending} are pending, {lost} lost",
            call_unwound(call)
        )))
    };
    let unwound = runner.unwind(table, last, trip, call.is_multiple_of(2), &whole);
    let calls = trip.calls();
    unwound.and_then(|_| whole()).map_err(|mismatch| mismatch.after(last, None))?;
    check_pending(nodes, &runner).map_err(|mismatch| mismatch.after(last, None))?;
    // Goes on with it as with any other table.
    runner.settle();
    runner.compare(table, last.pages())?;
    let left = table.footprint();
    if S::SHRINKS && runner.model().is_empty() && runner.model().marked() == 0 && left != fresh {
        let what = format!(
            "{} and left nothing mapped, and the table takes {left:?}; a new one takes {fresh:?}",
            call_unwound(call)
        );
        return Err(Mismatch::of(what).after(last, None));
    }
    runner.run(table, first)?;
    runner.run(table, &[*last])?;
    runner.clear(table, false)?;
    Ok(calls)
}

/// Tells whether a walk may begin while the writer is in a change: beside another CPU's, or the MMU's.
fn walked_beside<S: Subject>() -> bool {
    use tlbkit_addr::WalkCache;
    use tlbkit_pagetable::Mode;
    S::Mode::SHARED || S::Format::WALK_CACHE != WalkCache::Nothing
}

/// Returns an operation, and what makes one page of what was mapped and small pages of that again, if that can be; or what
/// maps the page that was marked, and marks it again.
fn with_joins<'n>(table: &dyn Table<'n>, op: &Op) -> Vec<Op> {
    let mut ops = vec![*op];
    if let Op::Mark { page, mark: Some(_) } = *op {
        let frame = Pfn::new(page.get() & 0xffff);
        ops.extend([Op::Fill { page, frame, attr: Attr::READ | Attr::EXEC }, *op]);
    }
    if let (Op::Map { pages, size, .. }, Some(to)) = (*op, larger(table, op)) {
        ops.extend([to, size].map(|to| Op::Resize { pages, to }));
    }
    ops
}

/// After every store of an operation a walk gives the answer before it or the one after it.
fn publishes_in_order<S: Subject>(nodes: &Storage<'_, S>, ops: &[Op], looks: &Count) -> Checked {
    if !walked_beside::<S>() {
        return Ok(());
    }
    with_table::<S>(nodes, |table, runner| {
        let mut runner = runner.with_patience(usize::MAX);
        // A join and a split are many stores: some will do.
        let joined = |(number, op): (usize, &Op)| {
            if number.is_multiple_of(4) { with_joins(table, op) } else { vec![*op] }
        };
        for op in &ops.iter().enumerate().flat_map(joined).collect::<Vec<_>>() {
            nodes.begin(0);
            if runner.model().weight(op) > Runner::MOST {
                continue;
            }
            let moments = Moments::of(runner.model(), op);
            let look = || {
                looks.set(looks.get() + 1);
                // SAFETY: `perform_only` reclaims nothing; `settle` does, when the operation has ended.
                unsafe { moments.look(table) };
            };
            let outcome = nodes.at_stores(&look, || runner.perform_only(table, op))?;
            let wrong = moments.wrong().map_or(Ok(()), |wrong| Err(Mismatch::of(wrong)));
            wrong
                .and_then(|()| came_back::<S>(nodes))
                .map_err(|mismatch| mismatch.after(op, Some(&outcome)))?;
        }
        runner.compare(table, None)?;
        runner.settle();
        Ok(())
    })
}

/// An operation runs between two loads of a walk, which finds what was there before or what is there after.
fn walks_beside<S: Subject>(nodes: &Storage<'_, S>, ops: &[Op], between: &Count) -> Checked {
    use tlbkit_pagetable::Mode;
    if !S::Mode::SHARED {
        return Ok(());
    }
    with_table::<S>(nodes, |table, runner| {
        let runner = RefCell::new(runner.with_patience(usize::MAX));
        // What is mapped is joined, split and unmapped under a walk, too, and comes back.
        let ops = ops.iter().flat_map(|op| {
            let mut ops = with_joins(table, op);
            if let Op::Map { pages, .. } = *op {
                ops.extend([Op::Unmap { pages, holes: Holes::Skip, room: None }, *op]);
            }
            ops
        });
        for (number, op) in ops.enumerate() {
            let op = &op;
            nodes.begin(0);
            if runner.borrow().model().weight(op) > Runner::MOST {
                continue;
            }
            let moments = Moments::of(runner.borrow().model(), op);
            // Any numbers will do that differ from operation to operation.
            let seed = op.pages().map_or(0, |pages| pages.last().get()).wrapping_add(number * 31);
            let random = seed.wrapping_mul(0x9e37_79b1) >> 7;
            let Some(at) = moments.pick(random) else { continue };
            let ask = moments.ask(number);
            // SAFETY: `perform_only` reclaims nothing; `settle` does, when the walk has ended.
            let walk = || unsafe { ask.of(table, at) };
            let loads = random / 64 % nodes.loads(walk).max(1);
            let outcome = Cell::new(None);
            let change = || outcome.set(Some(runner.borrow_mut().perform_only(table, op)));
            let (found, done) = nodes.at_load(loads, &change, walk);
            if done {
                between.set(between.get() + 1);
            } else {
                change();
            }
            let Some(outcome) = outcome.take() else { continue };
            let outcome = outcome?;
            let after = |what: String| {
                Mismatch::of(format!("the operation ran before load {} of a walk: {what}", loads + 1))
                    .after(op, Some(&outcome))
            };
            moments.judge(at, ask, found).map_err(after)?;
            came_back::<S>(nodes).map_err(|mismatch| mismatch.after(op, Some(&outcome)))?;
        }
        let mut runner = runner.into_inner();
        runner.compare(table, None)?;
        runner.settle();
        Ok(())
    })
}

/// Two tables on one storage know nothing of each other.
fn stays_apart<S: Subject>(nodes: &Storage<'_, S>, every: usize, ops: &[Op]) -> Checked {
    nodes.begin(1);
    let one = S::build(nodes).map_err(Mismatch::no_table)?;
    nodes.begin(2);
    let two = S::build(nodes).map_err(Mismatch::no_table)?;
    {
        let profile = Profile::of::<S::Format>();
        let mut runners =
            [Runner::new(&one, profile, 0).comparing(every), Runner::new(&two, profile, 0).comparing(every)];
        let tables: [&dyn Table<'_>; 2] = [&one, &two];
        for (number, op) in ops.iter().enumerate() {
            let (which, other) = (number % 2, (number + 1) % 2);
            nodes.begin(which + 1);
            let outcome = runners[which].step(tables[which], op);
            fault::<S>(nodes).map_err(|mismatch| mismatch.after(op, outcome.as_ref().ok()))?;
            let outcome = outcome?;
            nodes.begin(other + 1);
            let is_whole = number.is_multiple_of(every) || number + 1 == ops.len();
            let apart = if is_whole {
                runners[other].compare(tables[other], op.pages())
            } else {
                runners[other].compare_near(tables[other], op.pages())
            };
            apart.and_then(|()| fault::<S>(nodes)).map_err(|mismatch| {
                let what = format!("table {}, which was not changed: {}", other + 1, mismatch.what);
                Mismatch { what, ..mismatch }.after(op, Some(&outcome))
            })?;
        }
    }
    nodes.begin(1);
    let batch = destroy(one);
    fault::<S>(nodes)?;
    let flush = batch.flush();
    if !(flush.is_all() && flush.links() && flush.scope() == FlushScope::Everywhere) {
        return Err(Mismatch::of(format!("a table was taken apart, and its batch asks for {flush:?}")));
    }
    // SAFETY: no walker is in the table any more.
    unsafe { batch.reclaim() };
    fault::<S>(nodes)?;
    nodes.begin(2);
    take_apart::<S>(nodes, two)
}

/// A table that is dropped counts what is lost by that.
fn counts_lost<S: Subject>(nodes: &Storage<'_, S>, ops: &[Op]) -> Checked {
    let table = S::build(nodes).map_err(Mismatch::no_table)?;
    let mut runner = Runner::new(&table, Profile::of::<S::Format>(), usize::MAX);
    for op in ops {
        runner.perform_only(&table, op)?;
    }
    let owed = runner.drop_some();
    let waiting = runner.pending();
    let had = nodes.inner().out() - owed - waiting;
    drop(table);
    let tell = |when: &str, waiting: usize| {
        let (out, lost, pending) = (nodes.inner().out(), nodes.held().lost(), nodes.held().pending());
        if (out, lost, pending) == (had + owed + waiting, had + owed, waiting) {
            return Ok(());
        }
        Err(Mismatch::of(format!(
            "a table of {had} nodes was dropped that was not taken apart, and owed {owed} of batches that were dropped; \
             {waiting} more {when}: {lost} are counted as lost (it should be {}), {pending} as pending ({waiting}), and {out} \
             are not free ({})",
            had + owed,
            had + owed + waiting
        )))
    };
    tell("wait in batches", waiting)?;
    runner.settle();
    tell("should wait, the batches being reclaimed", 0)
}
