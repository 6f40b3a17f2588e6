//! The properties of walks during a change.

use std::cell::{Cell, RefCell};

use tlbkit_addr::Pfn;
use tlbkit_pagetable::{Holes, Mark, Table};

use super::{Checked, Count, came_back, larger, with_table};
use crate::moments::Moments;
use crate::subject::{Kind, Stage};
use crate::{Mismatch, Op, Runner};

/// Returns an operation and the ones that follow it: for a map, a join of its pages to one page and a split, if they can be
/// joined, and a replace of the first; for a mark, a map of the marked page and the mark again.
fn with_joins<'n>(table: &dyn Table<'n>, op: &Op) -> Vec<Op> {
    let mut ops = vec![*op];
    if let Op::Mark { page, mark: Some(mark) } = *op {
        let frame = Pfn::new(page.get() & 0xffff);
        let next = match mark {
            Mark::Payload(payload, _) => Op::Fill { page, payload, frame },
            Mark::Guard => Op::Mark { page, mark: None },
        };
        ops.extend([next, *op]);
    }
    if let (Op::Map { pages, size, .. }, Some(to)) = (*op, larger(table, op)) {
        ops.extend([to, size].map(|to| Op::Resize { pages, to }));
    }
    let base = table.space().base();
    if let Op::Map { pages, frame, size, attr } = *op
        && let Some(at) = pages.first().checked_address(base)
    {
        let frame = Pfn::new(frame.get() ^ size.pages(base).unwrap_or(1));
        ops.push(Op::Replace { at, frame, attr });
    }
    ops
}

/// Checks that after every store of an operation a walk returns the result from before or from after the operation.
pub(super) fn publishes_in_order(kind: &Kind, stage: &dyn Stage, ops: &[Op], looks: &Count) -> Checked {
    if !kind.is_walked() {
        return Ok(());
    }
    with_table(kind, stage, |table, runner| {
        let mut runner = runner.with_patience(usize::MAX);
        // A join and a split take many stores, so only some are run.
        let joined = |(number, op): (usize, &Op)| {
            if number.is_multiple_of(4) { with_joins(table, op) } else { vec![*op] }
        };
        for op in &ops.iter().enumerate().flat_map(joined).collect::<Vec<_>>() {
            stage.tools().begin(0);
            if runner.model().weight(op) > Runner::MOST {
                continue;
            }
            let moments = Moments::of(runner.model(), op);
            let look = || {
                looks.set(looks.get() + 1);
                // SAFETY: `perform_only` reclaims nothing; `settle` does, when the operation has ended.
                unsafe { moments.look(table) };
            };
            let outcome = stage.tools().at_stores(&look, || runner.perform_only(table, op))?;
            let wrong = moments.wrong().map_or(Ok(()), |wrong| Err(Mismatch::of(wrong)));
            wrong.and_then(|()| came_back(stage)).map_err(|mismatch| mismatch.after(op, Some(&outcome)))?;
        }
        runner.compare(table, None)?;
        runner.settle();
        Ok(())
    })
}

/// Checks that a walk, between two loads of which an operation runs, returns the result from before or from after the operation.
pub(super) fn walks_beside(kind: &Kind, stage: &dyn Stage, ops: &[Op], between: &Count) -> Checked {
    if !kind.is_shared {
        return Ok(());
    }
    with_table(kind, stage, |table, runner| {
        let runner = RefCell::new(runner.with_patience(usize::MAX));
        // Mapped pages are also joined, split, unmapped and mapped again during a walk.
        let ops = ops.iter().flat_map(|op| {
            let mut ops = with_joins(table, op);
            if let Op::Map { pages, frame, attr, .. } = *op {
                let unmap = Op::Unmap { pages, holes: Holes::Skip };
                ops.push(unmap);
                // One page gets a mark, and is filled, twice, if its number is that of an address.
                let has_address = pages.first().checked_address(table.space().base()).is_some();
                if pages.len() == 1 && has_address && table.payload_bits().is_some() {
                    let (page, payload) = (pages.first(), 1);
                    let mark = Op::Mark { page, mark: Some(Mark::Payload(payload, attr & Mark::KEPT)) };
                    let fill = Op::Fill { page, payload, frame };
                    ops.extend([mark, fill, mark, fill, unmap]);
                }
                ops.push(*op);
            }
            ops
        });
        for (number, op) in ops.enumerate() {
            let op = &op;
            stage.tools().begin(0);
            if runner.borrow().model().weight(op) > Runner::MOST {
                continue;
            }
            let moments = Moments::of(runner.borrow().model(), op);
            // The seed only has to differ from operation to operation.
            let seed = op.pages().map_or(0, |pages| pages.last().get()).wrapping_add(number * 31);
            let random = seed.wrapping_mul(0x9e37_79b1) >> 7;
            let Some(at) = moments.pick(random) else { continue };
            // Beside a fill, entries are asked for in turn by one function and the other.
            let ask = moments.ask(if matches!(op, Op::Fill { .. }) { 1 + number / 2 % 2 } else { number });
            // SAFETY: `perform_only` reclaims nothing; `settle` does, when the walk has ended.
            let walk = || unsafe { ask.of(table, at) };
            let loads = random / 64 % stage.tools().loads_of(walk).1.max(1);
            let outcome = Cell::new(None);
            let change = || {
                outcome.set(Some(runner.borrow_mut().perform_only(table, op)));
                usize::MAX
            };
            let found = stage.tools().at_loads(loads, &change, walk);
            let outcome = match outcome.take() {
                Some(outcome) => {
                    between.set(between.get() + 1);
                    outcome?
                }
                None => runner.borrow_mut().perform_only(table, op)?,
            };
            let after = |what: String| {
                Mismatch::of(format!("the operation ran before load {} of a walk: {what}", loads + 1))
                    .after(op, Some(&outcome))
            };
            moments.judge(at, ask, found).map_err(after)?;
            came_back(stage).map_err(|mismatch| mismatch.after(op, Some(&outcome)))?;
        }
        let mut runner = runner.into_inner();
        runner.compare(table, None)?;
        runner.settle();
        Ok(())
    })
}
