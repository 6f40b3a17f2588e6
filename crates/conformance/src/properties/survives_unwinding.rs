//! The property that a table survives an unwinding of the caller's code.

use std::mem::ManuallyDrop;

use tlbkit_addr::{PageSize, Pages};
use tlbkit_pagetable::nodes::Chunk;
use tlbkit_pagetable::{Mark, Table};

use super::{Checked, Count, check_pending, model};
use crate::subject::{Kind, OPS, Stage};
use crate::{Effect, Mismatch, Op, Runner};

/// Runs the last operation of a sequence that changes anything, and makes each of its calls to the caller's code unwind in turn.
pub(super) fn survives_unwinding(kind: &Kind, memory: &mut [Chunk], ops: &[Op], unwound: &Count) -> Checked {
    let mut model = model(kind, memory)?;
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
    unwinds(kind, memory, first, last, unwound)?;
    // A map of a few pages is followed by a drain.
    match *last {
        Op::Map { pages, size, .. } if pages.len() <= 8 * size.pages(PageSize::K4).unwrap_or(1) => {
            let drain = Op::Drain { pages, most: usize::MAX };
            unwinds(kind, memory, ops, &drain, unwound)?;
            // Repeats the drain in a table with no other pages, so that the number of its remaining nodes is known. If the table
            // holds marks, it has one mark as well.
            let marked = Pages::count(pages.first(), pages.len() + 1)
                .filter(|marked| model.has_marks() && model.space().check_pages(*marked).is_ok());
            match marked {
                Some(pages) => {
                    let mark = Op::Mark { page: pages.last(), mark: Some(Mark::Guard) };
                    let drain = Op::Drain { pages, most: usize::MAX };
                    unwinds(kind, memory, &[*last, mark], &drain, unwound)
                }
                None => unwinds(kind, memory, &[*last], &drain, unwound),
            }
        }
        _ => Ok(()),
    }
}

/// A number larger than that of any call: no call unwinds, and all are counted.
const NONE: usize = usize::MAX / 2;

/// Describes the call that unwound.
fn call_unwound(call: usize) -> String {
    match call {
        NONE => "no call to the caller's code unwound".to_owned(),
        call => format!("call {call} to the caller's code unwound"),
    }
}

/// The number of calls at the start and at the end that unwind in turn. About as many of the calls in between unwind.
const CALLS: usize = 4;

fn unwinds(kind: &Kind, memory: &mut [Chunk], first: &[Op], last: &Op, unwound: &Count) -> Checked {
    let calls = unwinds_at(kind, memory, first, last, NONE)?;
    let chosen = |call: &usize| *call < CALLS || *call + CALLS >= calls || call.is_multiple_of(calls / CALLS);
    for call in (0..calls).filter(chosen) {
        unwinds_at(kind, memory, first, last, call)?;
        unwound.set(unwound.get() + 1);
    }
    Ok(())
}

/// Makes call number `call` unwind. Returns the number of calls up to that one, or 0 if the operation is too large.
fn unwinds_at(
    kind: &Kind,
    memory: &mut [Chunk],
    first: &[Op],
    last: &Op,
    call: usize,
) -> Result<usize, Mismatch> {
    let stage = &*kind.open(memory, false);
    let table = stage.table()?;
    let calls = unwind_at(kind, stage, &*table, first, last, call);
    let calls = stage.check().and(calls)?;
    // SAFETY: no walker is in the table.
    unsafe { table.destroy().reclaim() };
    let (out, lost, pending) = (stage.tools().out(), stage.held().lost(), stage.held().pending());
    if out != lost || pending != 0 {
        return Err(Mismatch::of(format!(
            "{}, and when the table was gone {lost} nodes were lost, {out} were out, and {pending} pending",
            call_unwound(call)
        ))
        .after(last, None));
    }
    Ok(calls)
}

/// Makes call number `call` of an operation on a table unwind. Returns the result of `unwinds_at`.
fn unwind_at<'n>(
    kind: &Kind,
    stage: &dyn Stage,
    table: &dyn Table<'n>,
    first: &[Op],
    last: &Op,
    call: usize,
) -> Result<usize, Mismatch> {
    let fresh = table.footprint();
    // The batches of a failing table may hold a node twice, which makes the list circular, so they are not dropped.
    let mut runner = ManuallyDrop::new(Runner::new(table, kind.profile, 0));
    runner.replay(table, first)?;
    if runner.model().weight(last) > Runner::MOST {
        runner.settle();
        return Ok(0);
    }
    let trip = stage.tools().trip();
    trip.set(call);
    let whole = || {
        let (out, lost, pending) = (stage.tools().out(), stage.held().lost(), stage.held().pending());
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
    check_pending(stage, &runner).map_err(|mismatch| mismatch.after(last, None))?;
    // Continues with the table as with any other.
    runner.settle();
    runner.compare(table, last.pages())?;
    let left = table.footprint();
    if kind.shrinks && runner.model().is_empty() && runner.model().marked() == 0 && left != fresh {
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
