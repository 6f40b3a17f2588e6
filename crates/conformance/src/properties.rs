//! The check of each property on one sequence of operations.

mod agrees;
mod beside;
mod fails_cleanly;
mod survives_unwinding;

use std::cell::Cell;
use std::collections::HashSet;

use tlbkit_addr::{FlushScope, PageSize, Pages, Pfn};
use tlbkit_pagetable::nodes::{Chunk, Nodes, Reclaim, Slab};
use tlbkit_pagetable::{Footprint, Space, Table, destroy};

use crate::hang;
use crate::subject::{Property, Storage, Subject};
use crate::{Failing, Mismatch, Model, Op, Profile, Runner, Tripping, Watching, whole};

/// The number of times that a property has done what [`Property::counts`](crate::subject::Property) names.
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
        return survives_unwinding::survives_unwinding::<S>(memory, ops, count);
    }
    if property == Property::Agrees && whole::is_one(ops) {
        let mut memory = vec![Chunk::ZERO; whole::CHUNKS];
        return check_in::<S>(property, &mut memory, 1, ops, count);
    }
    if matches!(property, Property::PublishesInOrder | Property::WalksBeside | Property::CountsLost) {
        return check_in::<S>(property, memory, 1, ops, count);
    }
    // After a failure, the second run compares after every operation to find the one that failed.
    check_in::<S>(property, memory, EVERY, ops, count)
        .map_err(|late| check_in::<S>(property, memory, 1, ops, count).err().unwrap_or(late))
}

/// The number of operations from one comparison of the whole table to the next. After the other operations only the pages around
/// the operation are compared.
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
        Property::Agrees => agrees::agrees::<S>(nodes, every, ops, count),
        Property::Waits => waits::<S>(nodes, every, ops),
        Property::HoldsBack => holds_back::<S>(nodes, every, ops),
        Property::FailsCleanly => fails_cleanly::fails_cleanly::<S>(nodes, every, ops, count),
        Property::SurvivesExhaustion => survives_exhaustion::<S>(nodes, every, ops),
        Property::SurvivesUnwinding => Ok(()),
        Property::PublishesInOrder => beside::publishes_in_order::<S>(nodes, ops, count),
        Property::WalksBeside => beside::walks_beside::<S>(nodes, ops, count),
        Property::StaysApart => stays_apart::<S>(nodes, every, ops),
        Property::CountsLost => counts_lost::<S>(nodes, ops),
    };
    // A fault of a node comes first, because it causes the other mismatches.
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

/// Makes a table, runs a check on it, and destroys it.
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

/// Destroys a table that is the last one of its storage.
fn take_apart<'n, S: Subject>(nodes: &Storage<'_, S>, mut table: impl Table<'n>) -> Checked {
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
    fault::<S>(nodes)?;
    let mut known = HashSet::new();
    if let Some(node) = batch.list().find(|node| !known.insert(*node)) {
        return Err(Mismatch::of(format!(
            "node {:#x} was retired twice: `dismantle` has left it in the batch twice",
            node.get()
        )));
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
    // SAFETY: the table is dropped, and no walker is left.
    unsafe { batch.reclaim() };
    fault::<S>(nodes)
}

fn fault<S: Subject>(nodes: &Storage<'_, S>) -> Checked {
    nodes.fault().map_or(Ok(()), |fault| Err(Mismatch::of(fault)))
}

/// Checks that the storage counts as many waiting nodes as the runner.
fn check_pending(nodes: &impl Nodes, runner: &Runner<'_>) -> Checked {
    let (pending, held) = (nodes.held().pending(), runner.pending());
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

fn waits<S: Subject>(nodes: &Storage<'_, S>, every: usize, ops: &[Op]) -> Checked {
    with_table::<S>(nodes, |table, runner| {
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
            fault::<S>(nodes).map_err(|mismatch| mismatch.after(op, None))?;
            check_pending(nodes, &runner).map_err(|mismatch| mismatch.after(op, None))?;
        }
        runner.clear(table, S::SHRINKS)?;
        check_pending(nodes, &runner)
    })
}

/// Checks that no node comes back while no batch completes.
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

/// Returns the model of a new table, which is dropped. Whether a table can be destroyed is checked by the properties.
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

/// Checks that two tables on one storage do not affect each other.
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
    // SAFETY: no walker is in the table.
    unsafe { batch.reclaim() };
    fault::<S>(nodes)?;
    nodes.begin(2);
    take_apart::<S>(nodes, two)
}

/// Checks that a dropped table counts its nodes as lost.
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
