//! Table 4.1: the applications under Mach.

use tlblab::mach::Scheme;

use crate::figure::{Figure, Table, Verdict, cell};
use crate::rows::rank_correlation;

use super::applications::app;
use super::{APPS, Data, PAPER, STAND_INS};

/// Returns Table 4.1.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn baseline(data: &Data) -> anyhow::Result<Figure> {
    let (mut ours, mut theirs, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for name in APPS {
        let kinds = ["L1K", "L2", "L3"].map(|kind| data.thesis.at(&["Table 4.1 (thousands)", name, kind]));
        let kinds = kinds.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let misses = app(data, name, Scheme::Mach)?.kernel_misses_per_ipc;
        ours.push(misses);
        theirs.push(kinds.iter().sum());
        let mut row = vec![name.to_owned(), cell(misses)];
        row.extend(kinds.into_iter().map(cell));
        rows.push(row);
    }
    let order = rank_correlation(&ours, &theirs);
    Ok(Figure::new(PAPER, "Table 4.1", "The applications under Mach", STAND_INS)
        .table(Table::new("", &["application", "kernel misses a message, ours", "*L1K (1000s)", "*L2 (1000s)", "*L3 (1000s)"], rows))
        .says(
            Verdict::Open,
            format!("cannot be tested without the thesis's six applications: totals depend on how many messages a run sends, which is not printed; the order's rank correlation is {}.", cell(order)),
        )
        .by(data.apps.command.clone()))
}
