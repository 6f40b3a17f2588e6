//! The property that an operation without memory changes nothing.

use tlbkit_pagetable::Table;

use super::{Checked, Count, smaller, with_table};
use crate::subject::{Kind, Stage};
use crate::{Instruments, Mismatch, Op, Outcome, Runner};

/// Tries each operation with no node, with one node, and so on, until it succeeds.
pub(super) fn fails_cleanly(
    kind: &Kind,
    stage: &dyn Stage,
    every: usize,
    ops: &[Op],
    failures: &Count,
) -> Checked {
    let storage = stage.tools();
    with_table(kind, stage, |table, runner| {
        let mut runner = runner.comparing(every);
        // Two splits of a case are enough.
        let mut splits = 2;
        for op in ops {
            // A move that was undone may have left the table other nodes, of which it then needs fewer.
            let (mut said, mut is_other) = (None, false);
            for takes in 0.. {
                let before = (storage.out(), table.footprint());
                storage.fail_at(takes);
                let outcome = runner.step(table, op);
                let failed = storage.failed();
                failures.set(failures.get() + u64::from(failed));
                let outcome = outcome?;
                let Outcome::NoMemory { wanted, .. } = outcome else {
                    // The batch has been reclaimed, so its nodes are not counted.
                    let used = (storage.out() + runner.retired()).saturating_sub(before.0);
                    // A resize may put the last of its pages where it frees the first, and cannot count on that before it begins.
                    if outcome != Outcome::Done || is_other || matches!(op, Op::Resize { .. }) {
                        break;
                    }
                    if used < takes {
                        let what = format!(
                            "with {} nodes it is refused, and with {takes} it uses {used}: it takes more than it needs",
                            takes - 1
                        );
                        return Err(Mismatch::of(what).after(op, Some(&outcome)));
                    }
                    if let Some(wanted) = said
                        && wanted > used
                    {
                        let what = format!("it wanted {wanted} nodes when it was refused, and uses {used}");
                        return Err(Mismatch::of(what).after(op, Some(&outcome)));
                    }
                    break;
                };
                said = Some(wanted);
                let after = (storage.out(), table.footprint());
                is_other |= before != after;
                let what = if !failed {
                    format!(
                        "no allocation failed, and the operation says that there is no memory for {wanted} nodes"
                    )
                } else if before != after && !runner.is_undone() {
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
            if splits > 0 && splits_cleanly(storage, table, &mut runner, op, failures)? {
                splits -= 1;
            }
        }
        runner.compare(table, None)
    })
}

/// Splits the first two pages of a map of large pages with memory for only some of the nodes: the split must change nothing.
/// Tells whether the split takes more than one node.
fn splits_cleanly<'n>(
    storage: &Instruments,
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
    let before = (storage.out(), table.footprint());
    let (mut takes, mut tries) = (0, [0; 3]);
    loop {
        storage.limit(before.0 + takes);
        let outcome = runner.perform_only(table, &split);
        storage.limit(usize::MAX);
        let outcome = outcome?;
        let Outcome::NoMemory { wanted, .. } = outcome else {
            runner
                .compare_near(table, Some(pages))
                .map_err(|mismatch| mismatch.after(&split, Some(&outcome)))?;
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
            // With hundreds of nodes only three failures are tried: at the second node, in the middle, and at the last.
            tries = [1, wanted / 2, wanted.saturating_sub(1)];
        }
        let Some(next) = tries.iter().copied().find(|next| *next > takes && *next < wanted) else {
            return Ok(wanted > 1);
        };
        takes = next;
    }
}
