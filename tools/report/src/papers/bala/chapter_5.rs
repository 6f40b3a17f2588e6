//! Chapter 5, and section 6.2 of the OSDI paper: models of future machines.

use tlblab::model::Model;

use crate::figure::{Figure, Table, Verdict, cell};
use crate::lab::Lab;

use super::{OSDI, PAPER};

/// Chapter 5 and section 6.2 of the OSDI paper.
pub(super) fn models(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    let rows = lab.rows::<Model>("model")?;
    let mut figures = Vec::new();
    for (paper, at, source, title) in [
        (PAPER, "Chapter 5", "thesis", "Analytical model of future machines"),
        (OSDI, "Section 6.2", "OSDI paper", "Trap times on future machines"),
    ] {
        let (mut table, mut agreeing, mut all) = (Vec::new(), 0, 0);
        let mut remarks = Vec::new();
        for row in rows.iter().filter(|row| row.source == source) {
            let Some(said) = row.printed else { continue };
            all += 1;
            agreeing += usize::from(row.agrees == Some(true));
            let remark = &*row.remark;
            if !remark.is_empty() && !remarks.contains(&remark) {
                remarks.push(remark);
            }
            table.push(vec![row.equation.to_string(), row.quantity.clone(), cell(row.value), cell(said)]);
        }
        let why =
            if remarks.is_empty() { String::new() } else { format!(" The rest: {}.", remarks.join("; ")) };
        figures.push(
            Figure::new(
                paper,
                at,
                title,
                "The equations with the paper's parameters, beside what it prints.",
            )
            .table(Table::new("", &["equation", "quantity", "ours", "*paper"], table))
            .says(Verdict::count(agreeing, all), format!("{agreeing} of {all} printed values are met.{why}"))
            .by(rows.command.clone()),
        );
    }
    Ok(figures)
}
