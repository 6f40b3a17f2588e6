//! The check of each property on one sequence of operations.

pub(crate) mod agrees;
mod beside;
mod fails_cleanly;
mod survives_unwinding;

use std::cell::Cell;
use std::collections::HashSet;

use tlbkit_addr::{FlushScope, PageSize, Pages, Pfn};
use tlbkit_pagetable::nodes::Chunk;
use tlbkit_pagetable::{Footprint, Space, Table};

use crate::subject::{Kind, Made, Property, Stage};
use crate::{Mismatch, Model, Op, Runner, hang, whole};

/// The number of times that a property has done what [`Property::counts`](crate::subject::Property) names.
pub(crate) type Count = Cell<u64>;

type Checked = Result<(), Mismatch>;

/// Checks a property of one sequence of operations, in memory that an earlier one may have used.
pub(crate) fn check(
    kind: &Kind,
    property: Property,
    memory: &mut [Chunk],
    ops: &[Op],
    count: &Count,
) -> Checked {
    let watched = matches!(
        property,
        Property::HoldsBack | Property::PublishesInOrder | Property::WalksBeside | Property::StaysApart
    );
    let on = |memory: &mut [Chunk], every: usize| {
        let stage = &*kind.open(memory, watched);
        let checked = match property {
            Property::Agrees => agrees::agrees(kind, stage, every, ops, count),
            Property::Waits => waits(kind, stage, every, ops),
            Property::HoldsBack => holds_back(kind, stage, every, ops),
            Property::FailsCleanly => fails_cleanly::fails_cleanly(kind, stage, every, ops, count),
            Property::SurvivesExhaustion => survives_exhaustion(kind, stage, every, ops),
            Property::SurvivesUnwinding => Ok(()),
            Property::PublishesInOrder => beside::publishes_in_order(kind, stage, ops, count),
            Property::WalksBeside => beside::walks_beside(kind, stage, ops, count),
            Property::StaysApart => stays_apart(kind, stage, every, ops),
            Property::CountsLost => counts_lost(kind, stage, ops),
        };
        // A fault of a node comes first, because it causes the other mismatches.
        match (stage.tools().fault(), checked) {
            (None, checked) => checked,
            (Some(what), Ok(())) => Err(Mismatch::of(what)),
            (Some(what), Err(mismatch)) => Err(Mismatch { what, ..mismatch }),
        }
    };
    match property {
        Property::SurvivesUnwinding => survives_unwinding::survives_unwinding(kind, memory, ops, count),
        Property::Agrees if whole::is_one(ops) => on(&mut vec![Chunk::ZERO; whole::CHUNKS], 1),
        Property::PublishesInOrder | Property::WalksBeside | Property::CountsLost => on(memory, 1),
        // After a failure, the second run compares after every operation to find the one that failed.
        _ => on(memory, EVERY).map_err(|late| on(memory, 1).err().unwrap_or(late)),
    }
}

/// The number of operations from one comparison of the whole table to the next. After the other operations only the pages around
/// the operation are compared.
const EVERY: usize = 4;

/// Makes a table, runs a check on it, and destroys it.
fn with_table(
    kind: &Kind,
    stage: &dyn Stage,
    body: impl for<'n> FnOnce(&dyn Table<'n>, Runner<'n>) -> Checked,
) -> Checked {
    let table = stage.table()?;
    let runner = Runner::new(&*table, kind.profile, 0);
    body(&*table, runner)?;
    take_apart(stage, table)?;
    let (out, used, held) = (stage.tools().out(), stage.used(), stage.held());
    if (out, used, held.pending(), held.lost()) != (0, 0, 0, 0) {
        return Err(Mismatch::of(format!(
            "the table is gone, and of its nodes {out} were not freed ({used} by the storage's own count), {} are \
             pending, and {} are counted as lost: nodes that the table's footprint still counted when it was dropped, or that \
             `Held::count_lost` was told of",
            held.pending(),
            held.lost()
        )));
    }
    Ok(())
}

/// Destroys a table that is the last one of its storage.
fn take_apart<'n>(stage: &dyn Stage, mut table: Box<dyn Made<'n> + 'n>) -> Checked {
    hang::say("it is taken apart");
    let mut batch = table.batch();
    // These are the steps of `destroy`, which would not return the footprint. SAFETY: this function owns the table, so no other
    // code uses it.
    unsafe {
        batch.take_up(table.writer_flag());
        table.dismantle(&mut batch);
    }
    let left = table.footprint();
    drop(table);
    stage.check()?;
    let mut known = HashSet::new();
    if let Some(node) = batch.list().find(|node| !known.insert(*node)) {
        return Err(Mismatch::of(format!(
            "node {:#x} was retired twice: `dismantle` has left it in the batch twice",
            node.get()
        )));
    }
    stage.check()?;
    let (retired, out) = (batch.nodes(), stage.tools().out());
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
    // SAFETY: the table is dropped, and no walker is left.
    unsafe { batch.reclaim() };
    stage.check()
}

/// Checks that the storage counts as many waiting nodes as the runner.
fn check_pending(stage: &dyn Stage, runner: &Runner<'_>) -> Checked {
    let (pending, held) = (stage.held().pending(), runner.pending());
    if pending == held {
        return Ok(());
    }
    Err(Mismatch::of(format!(
        "the storage says that {pending} nodes are pending, and the batches hold {held}"
    )))
}

/// Returns a number below four that depends on a map's first frame.
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

fn waits(kind: &Kind, stage: &dyn Stage, every: usize, ops: &[Op]) -> Checked {
    with_table(kind, stage, |table, runner| {
        let mut runner = runner.with_patience(3).comparing(every);
        // Most maps that can be joined to one page are joined. If the join counts wrongly, the final unmap of everything shows
        // it.
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
            stage.check().map_err(|mismatch| mismatch.after(op, None))?;
            check_pending(stage, &runner).map_err(|mismatch| mismatch.after(op, None))?;
        }
        runner.clear(table, kind.shrinks)?;
        check_pending(stage, &runner)
    })
}

/// Checks that no node comes back while no batch completes.
fn holds_back(kind: &Kind, stage: &dyn Stage, every: usize, ops: &[Op]) -> Checked {
    with_table(kind, stage, |table, runner| {
        let mut runner = runner.with_patience(usize::MAX).comparing(every);
        for op in ops {
            stage.tools().begin(0);
            let outcome = runner.step(table, op);
            came_back(stage).map_err(|mismatch| mismatch.after(op, outcome.as_ref().ok()))?;
            outcome?;
        }
        runner.compare(table, None)?;
        runner.settle();
        Ok(())
    })
}

fn came_back(stage: &dyn Stage) -> Checked {
    stage.check()?;
    match stage.tools().returned() {
        0 => Ok(()),
        1 => Err(Mismatch::of("1 node was freed that no shootdown has let go: a walker may still be in it")),
        freed => Err(Mismatch::of(format!(
            "{freed} nodes were freed that no shootdown has let go: walkers may still be in them"
        ))),
    }
}

fn survives_exhaustion(kind: &Kind, stage: &dyn Stage, every: usize, ops: &[Op]) -> Checked {
    with_table(kind, stage, |table, runner| {
        let mut runner = runner.with_patience(2).comparing(every);
        stage.tools().limit(stage.tools().out() + 7);
        for op in ops {
            runner.step(table, op)?;
            check_pending(stage, &runner).map_err(|mismatch| mismatch.after(op, None))?;
        }
        runner.compare(table, None)?;
        runner.settle();
        Ok(())
    })
}

/// Returns the model of a new table, which is dropped. Whether a table can be destroyed is checked by the properties.
fn model(kind: &Kind, memory: &mut [Chunk]) -> Result<Model, Mismatch> {
    let stage = kind.open(memory, false);
    let table = stage.table()?;
    Ok(Model::new(table.space(), kind.profile).with_marks(table.payload_bits()))
}

/// Returns the space of a new table.
pub(crate) fn new_space(kind: &Kind, memory: &mut [Chunk]) -> Result<Space, Mismatch> {
    hang::say("it is made");
    model(kind, memory).map(|model| *model.space())
}

/// Checks that two tables on one storage do not affect each other.
fn stays_apart(kind: &Kind, stage: &dyn Stage, every: usize, ops: &[Op]) -> Checked {
    stage.tools().begin(1);
    let one = stage.table()?;
    stage.tools().begin(2);
    let two = stage.table()?;
    {
        let profile = kind.profile;
        let mut runners = [
            Runner::new(&*one, profile, 0).comparing(every),
            Runner::new(&*two, profile, 0).comparing(every),
        ];
        let tables: [&dyn Table<'_>; 2] = [&*one, &*two];
        for (number, op) in ops.iter().enumerate() {
            let (which, other) = (number % 2, (number + 1) % 2);
            stage.tools().begin(which + 1);
            let outcome = runners[which].step(tables[which], op);
            stage.check().map_err(|mismatch| mismatch.after(op, outcome.as_ref().ok()))?;
            let outcome = outcome?;
            stage.tools().begin(other + 1);
            let is_whole = number.is_multiple_of(every) || number + 1 == ops.len();
            let apart = if is_whole {
                runners[other].compare(tables[other], op.pages())
            } else {
                runners[other].compare_near(tables[other], op.pages())
            };
            apart.and_then(|()| stage.check()).map_err(|mismatch| {
                let what = format!("table {}, which was not changed: {}", other + 1, mismatch.what);
                Mismatch { what, ..mismatch }.after(op, Some(&outcome))
            })?;
        }
    }
    stage.tools().begin(1);
    let batch = one.destroy();
    stage.check()?;
    let flush = batch.flush();
    if !(flush.is_all() && flush.links() && flush.scope() == FlushScope::Everywhere) {
        return Err(Mismatch::of(format!("a table was taken apart, and its batch asks for {flush:?}")));
    }
    // SAFETY: no walker is in the table.
    unsafe { batch.reclaim() };
    stage.check()?;
    stage.tools().begin(2);
    take_apart(stage, two)
}

/// Checks that a dropped table counts its nodes as lost.
fn counts_lost(kind: &Kind, stage: &dyn Stage, ops: &[Op]) -> Checked {
    let table = stage.table()?;
    let mut runner = Runner::new(&*table, kind.profile, usize::MAX);
    for op in ops {
        runner.perform_only(&*table, op)?;
    }
    let owed = runner.drop_some();
    let waiting = runner.pending();
    let had = stage.tools().out() - owed - waiting;
    drop(table);
    let tell = |when: &str, waiting: usize| {
        let (out, lost, pending) = (stage.tools().out(), stage.held().lost(), stage.held().pending());
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
