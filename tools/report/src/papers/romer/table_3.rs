//! Table 3: cycles that a policy takes at a miss.

use crate::figure::{Figure, Table, Verdict, cell};

use super::{Data, PAPER, POLICIES};

/// Table 3.
pub(super) fn costs(data: &Data) -> anyhow::Result<Figure> {
    let mut rows = Vec::new();
    for policy in POLICIES {
        // The busiest trace has the most misses to divide by.
        let row = data.row(4, policy)?;
        let ours = (row.handler_cycles + row.book_cycles) as f64 / row.tlb_misses.max(1) as f64;
        let said = data.printed.at(&["Table 3 (cycles)", policy])?;
        rows.push(vec![policy.into(), cell(ours), cell(said)]);
    }
    let figure = Figure::new(PAPER, "Table 3", "Cycles charged for a miss", "Handler and bookkeeping cycles over misses, on the database's trace: what the simulation was told to charge, as the paper's was.")
        .table(Table::new("", &["policy", "ours", "*paper"], rows))
        .says(Verdict::Open, "the simulation is told to charge what the paper charges, so there is nothing to compare; what our bookkeeping takes of instructions, `cargo xtask bookkeeping` counts.");
    Ok(data.by(figure))
}
