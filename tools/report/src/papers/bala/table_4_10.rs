//! Table 4.10: the speedup of the applications.

use tlblab::mach::Scheme;

use crate::figure::{Figure, Table, Verdict, cell, percent};
use crate::rows::rank_correlation;

use super::applications::app;
use super::{APPS, Data, PAPER};

/// Returns Table 4.10.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn speedups(data: &Data) -> anyhow::Result<Figure> {
    let schemes = [
        (Scheme::Ptlb, "ptlb"),
        (Scheme::Stlb1k, "stlb-1k"),
        (Scheme::Stlb4k, "stlb-4k"),
        (Scheme::Both, "ptlb+stlb"),
    ];
    let (mut rows, mut order) = (Vec::new(), (Vec::new(), Vec::new()));
    for name in APPS {
        let mut row = vec![name.to_owned()];
        for (scheme, column) in schemes {
            let saved = app(data, name, scheme)?.penalty_saved_pct;
            let said = data.thesis.at(&["Table 4.10 (%)", name, column])?;
            row.push(percent(saved));
            row.push(percent(said));
            order.0.push(saved);
            order.1.push(said);
        }
        rows.push(row);
    }
    let head = ["", "PTLB", "*PTLB", "DM 1K", "*DM 1K", "DM 4K", "*DM 4K", "both", "*both"];
    let correlation = rank_correlation(&order.0, &order.1);
    Ok(Figure::new(PAPER, "Table 4.10", "Speedup of the applications", "Ours: penalty of kernel misses saved. Printed: run time saved, of which such misses are 1 to 5 %.")
        .table(Table::new("", &head, rows))
        .says(
            Verdict::Open,
            format!("the model has no run time of an application's own work, so that only what is saved of the penalty can stand here; rank correlation {}.", cell(correlation)),
        )
        .by(data.apps.command.clone()))
}
