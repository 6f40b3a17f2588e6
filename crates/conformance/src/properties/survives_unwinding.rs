//! The caller's code unwinds in the middle of an operation.

use std::mem::ManuallyDrop;

use tlbkit_addr::{PageSize, Pages};
use tlbkit_pagetable::nodes::{Chunk, Reclaim};
use tlbkit_pagetable::{Holes, Mark, Table, destroy};

use super::{Checked, Count, check_pending, fault, model, storage};
use crate::subject::{OPS, Storage, Subject};
use crate::{Effect, Mismatch, Op, Profile, Runner};

/// The last operation of a sequence that does anything unwinds, in one call to the caller's code after the other.
pub(super) fn survives_unwinding<S: Subject>(memory: &mut [Chunk], ops: &[Op], unwound: &Count) -> Checked {
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
            let marked = Pages::count(pages.first(), pages.len() + 1)
                .filter(|marked| model.has_marks() && model.space().check_pages(*marked).is_ok());
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
    let chosen = |call: &usize| *call < CALLS || *call + CALLS >= calls || call.is_multiple_of(calls / CALLS);
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
