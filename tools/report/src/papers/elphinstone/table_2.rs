//! Table 2: what the structure costs a program.

use tlblab::Cycles;

use crate::figure::{Figure, Table, Verdict, cell};
use crate::lab::TRACES;
use crate::printed::Printed;
use crate::rows::{geometric, rank_correlation};

use super::handlers::{HANDLERS, MEASURED, ON_CACHES, on};
use super::{PAPER, Traces};

/// Returns Table 2.
///
/// # Errors
///
/// If a row lacks a number.
pub(super) fn elapsed(traces: &Traces, printed: &Printed) -> anyhow::Result<Figure> {
    let names = &HANDLERS;
    let handlers = &traces.cycles[0].1;
    let mut tables = Vec::new();
    let mut ratios = vec![Vec::new(); names.len()];
    let times: [fn(&Cycles) -> f64; 2] = [|cycles| cycles.elapsed_cycles as f64, |cycles| cycles.cycles_mean];
    for (which, time) in times.into_iter().enumerate() {
        let of_name = names.iter().map(|name| handlers.all(name, |row| on(row, time)));
        let of_name = of_name.collect::<anyhow::Result<Vec<_>>>()?;
        let mut rows = Vec::new();
        for (at, (program, _)) in TRACES.iter().enumerate() {
            let row: Vec<f64> = of_name.iter().map(|times| times[at] / of_name[0][at]).collect();
            if which == 0 {
                ratios.iter_mut().zip(&row).for_each(|(ratios, ratio)| ratios.push(*ratio));
            }
            rows.push(row_of(program, &row));
        }
        tables.push(rows);
    }
    let [mut rows, alone] = <[_; 2]>::try_from(tables).unwrap_or_default();
    let ours: Vec<f64> = ratios.iter().map(|ratios| geometric(ratios)).collect();
    rows.push(row_of("geom. mean", &ours));
    let measured = &names[..MEASURED];
    let theirs = measured
        .iter()
        .map(|name| printed.at(&["Table 2", "geom. mean", name]))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut paper = Vec::new();
    for program in printed.names(&["Table 2"]) {
        let row = measured.iter().map(|name| printed.at(&["Table 2", program, name]));
        let row = row.map(|said| Ok(format!("{:.2}", said?))).collect::<anyhow::Result<Vec<_>>>()?;
        paper.push([program.to_owned()].into_iter().chain(row).collect());
    }
    let head: Vec<&str> = [""].into_iter().chain(names.iter().copied()).collect();
    let marked: Vec<_> = measured.iter().map(|name| format!("*{name}")).collect();
    let paper_head: Vec<&str> = [""].into_iter().chain(marked.iter().map(String::as_str)).collect();
    let ours = &ours[..MEASURED];
    let order = rank_correlation(ours, &theirs);
    let first = |values: &[f64]| {
        let best = values.iter().enumerate().min_by(|one, other| one.1.total_cmp(other.1));
        best.map_or("", |(at, _)| names[at])
    };
    let (best, their_best) = (first(ours), first(&theirs));
    let about = format!(
        "The paper's elapsed times of 1999 are not ours to measure: in their place the cycles of a program, its traps and its \
         refills on a model of its machine, over the same with MPT; then the refills' alone. {ON_CACHES}"
    );
    let off: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| (ours - theirs).abs()).collect();
    let most = off.iter().copied().fold(0.0, f64::max);
    let figure = Figure::new(PAPER, "Table 2", "What the structure costs a program", &about)
        .table(Table::new("Cycles of a program and its refills, over those with MPT", &head, rows))
        .table(Table::new("Cycles of the refills alone, over MPT's", &head, alone))
        .table(Table::new("The paper: elapsed time over that with MPT", &paper_head, paper))
        .says(
            Verdict::order(order),
            format!(
                "the order of the structures has a rank correlation of {} with the paper's; {best} comes first here, \
                 {their_best} there; the mean of a structure is {} from the printed one at most.",
                cell(order),
                cell(most)
            ),
        );
    Ok(handlers.cite(figure))
}

/// Returns a row of a table: a name and numbers, of which three places count.
fn row_of(name: &str, values: &[f64]) -> Vec<String> {
    [name.to_owned()].into_iter().chain(values.iter().map(|value| format!("{value:.3}"))).collect()
}
