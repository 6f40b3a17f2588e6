//! Chapter 5, and section 6.2 of the OSDI paper: models of future machines.

use tlblab::model::Model;

use crate::figure::{Figure, Table, Verdict, cell};
use crate::lab::{Lab, TRACES};
use crate::printed;
use crate::rows::mean;

use super::{Data, OSDI, PAPER, rates};

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
        let remarks: String = remarks.iter().map(|remark| format!("; {remark}")).collect();
        figures.push(
            Figure::new(
                paper,
                at,
                title,
                "The equations with the paper's parameters, beside what it prints.",
            )
            .table(Table::new("", &["equation", "quantity", "ours", "*paper"], table))
            .says(
                Verdict::of(agreeing == all, 2 * agreeing >= all).allows(
                    "all as printed, to the last digit, or within 15 % of a measurement, which varied by more; in part half of them",
                ),
                format!("{agreeing} of {all} printed values are met{remarks}."),
            )
            .by(rows.command.clone()),
        );
    }
    Ok(figures)
}

/// Section 5.4: cache misses for each instruction of the handlers and of the rest.
pub(super) fn miss_rates(data: &Data) -> anyhow::Result<Figure> {
    let rates = rates(&data.programs)?;
    let row = |(name, _): &(&str, &str), (m_t, m_a): (f64, f64)| {
        let number = |value: f64| format!("{value:.4}");
        vec![(*name).to_owned(), number(m_t), number(m_a), number(m_t - m_a)]
    };
    let rows = TRACES.iter().zip(&rates).map(|(program, rates)| row(program, *rates)).collect();
    let differences: Vec<f64> = rates.iter().map(|(m_t, m_a)| m_t - m_a).collect();
    let (difference, _) = mean(&differences);
    let higher = differences.iter().filter(|difference| **difference > 0.0).count();
    let said = data.thesis.at(&["5.4", "M_T - M_A"])?;
    let osdi = printed::osdi()?;
    let trap = |what| osdi.at(&["6.2", "L1K trap", what]);
    let of_trap = trap("cache misses")? / trap("instructions")?;
    let (own, _) = mean(&rates.iter().map(|(_, m_a)| *m_a).collect::<Vec<_>>());
    let figure = Figure::new(
        PAPER,
        "Section 5.4",
        "Cache misses for each instruction",
        "On a model of the R3000's caches of the DECstation 5000/240 (64 KB each, direct-mapped), which a program's first 10 \
         million instructions share with the refill handler of a six-level table: user misses alone, where the thesis's handlers \
         are those of all misses. The thesis prints the difference, an estimate.",
    )
    .table(Table::new("", &["program", "M_T", "M_A", "M_T - M_A"], rows))
    .says(
        Verdict::factor(difference / said, 1.5, 3.0),
        format!(
            "a refill handler misses more often than the program in {higher} of {} programs, and the difference is {} in the \
             mean, where the thesis estimates {} (a factor of 1.5 agrees, of 3 in part): the handler and what it loads stay in caches of 64 KB. A trap of the OSDI \
             paper misses {} times an instruction, which over our programs' {} is {}: what the thesis says holds of \
             kernel misses.",
            rates.len(),
            format_args!("{difference:.3}"),
            cell(said),
            format_args!("{of_trap:.3}"),
            format_args!("{own:.3}"),
            format_args!("{:.3}", of_trap - own)
        ),
    );
    Ok(data.programs.iter().fold(figure, |figure, rows| figure.by(rows.command.clone())))
}
