//! Table 4: TLB misses under each policy.

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell};
use crate::lab::TRACES;
use crate::rows::rank_correlation;

use super::{Data, PAPER, POLICIES, STAND_INS};

/// Table 4.
pub(super) fn misses(data: &Data) -> anyhow::Result<Figure> {
    let mut rows = Vec::new();
    let mut ours = vec![0.0; POLICIES.len()];
    for (at, (name, _)) in TRACES.iter().enumerate() {
        let mut row = vec![(*name).to_owned()];
        let base = data.row(at, "FIXED-4K")?.tlb_misses.max(1) as f64;
        for (policy, sum) in POLICIES.iter().zip(&mut ours) {
            let misses = data.row(at, policy)?.tlb_misses as f64;
            *sum += misses / base / TRACES.len() as f64;
            row.push(cell(misses / 100.0));
        }
        rows.push(row);
    }
    let mut theirs = vec![0.0; POLICIES.len()];
    let mut paper = Vec::new();
    let names = data.printed.names(&["Table 4 (100s)"]);
    for name in &names {
        let base = data.printed.at(&["Table 4 (100s)", name, "FIXED-4K"])?;
        let mut row = vec![(*name).to_owned()];
        for (policy, sum) in POLICIES.iter().zip(&mut theirs) {
            let misses = data.printed.at(&["Table 4 (100s)", name, policy])?;
            *sum += misses / base / names.len() as f64;
            row.push(cell(misses));
        }
        paper.push(row);
    }
    let mut head = vec!["program"];
    head.extend(POLICIES);
    let marked: Vec<_> = POLICIES.iter().map(|policy| format!("*{policy}")).collect();
    let mut paper_head = vec!["program"];
    paper_head.extend(marked.iter().map(String::as_str));
    let points = |values: &[f64]| {
        values.iter().enumerate().map(|(at, value)| (at as f64, 100.0 * value)).collect::<Vec<_>>()
    };
    let bars = vec![Series::ours("ours", 0, points(&ours)), Series::printed("paper", 0, points(&theirs))];
    let order = rank_correlation(&ours, &theirs);
    let figure = Figure::new(PAPER, "Table 4", "TLB misses under each policy", STAND_INS)
        .chart(Chart::bars("Misses left, mean over programs", "% of those with 4 KB pages", POLICIES.map(String::from).to_vec(), bars))
        .table(Table::new("Ours, hundreds", &head, rows))
        .table(Table::new("The paper's, hundreds", &paper_head, paper))
        .says(
            Verdict::order(order),
            format!("the policies' order by misses left has a rank correlation of {} with the paper's; APPROX-ONLINE leaves {} % of the misses here and {} % there, OFFLINE {} and {} %.",
                cell(order),
                cell(100.0 * ours[7]),
                cell(100.0 * theirs[7]),
                cell(100.0 * ours[3]),
                cell(100.0 * theirs[3])),
        );
    Ok(data.by(figure))
}
