//! Table 2: the baseline, pages of 4 KB.

use crate::figure::{Figure, Table, Verdict, cell, percent};
use crate::lab::TRACES;

use super::{Data, PAPER};

pub(super) fn baseline(data: &Data) -> anyhow::Result<Figure> {
    let mut rows = Vec::new();
    for (at, (name, _)) in TRACES.iter().enumerate() {
        let row = data.row(at, "FIXED-4K")?;
        rows.push(vec![
            (*name).into(),
            cell(row.instructions as f64 / 1e6),
            cell(row.tlb_misses as f64 / 100.0),
            percent(100.0 * row.tlbmcpi / (1.0 + row.tlbmcpi)),
        ]);
    }
    let mut paper = Vec::new();
    let mut range = (f64::MAX, f64::MIN);
    for name in data.printed.names(&["Table 2"]) {
        let of = |column| data.printed.at(&["Table 2", name, column]);
        let share = of("TLB time %")?;
        range = (range.0.min(share), range.1.max(share));
        paper.push(vec![name.into(), cell(of("seconds")?), cell(of("misses (100s)")?), percent(share)]);
    }
    let figure = Figure::new(PAPER, "Table 2", "Baseline: 4 KB pages", "The paper measured an Alpha with 8 KB pages; ours are simulated at one cycle an instruction and 30 a miss.")
        .table(Table::new("Ours", &["program", "instructions (10^6)", "misses (100s)", "TLB time"], rows))
        .table(Table::new("The paper's", &["program", "*seconds", "*misses (100s)", "*TLB time"], paper))
        .says(Verdict::Input, format!("the paper's choice of programs, for which ours stand: it chose those that spend {} to {} % of their time on TLB misses.", cell(range.0), cell(range.1)));
    Ok(data.by(figure))
}
