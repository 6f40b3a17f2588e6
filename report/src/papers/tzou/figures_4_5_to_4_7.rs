//! Figures 4.5 to 4.7: what the algorithms cost.

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict};
use crate::lab::Lab;
use crate::printed;
use crate::rows::{Row, Rows};

use super::{ALGORITHMS, PAPER};

/// Returns the value that the thesis plots: 2-phase's lower bound for latency, else the middle of the bounds.
fn plotted(low: Row<'_>, high: Row<'_>, field: &str) -> Option<f64> {
    let (lower, upper) = (low.maybe(field)?, high.maybe(field));
    let lower_alone = field == "latency_ms" && low.text("algorithm") == "2-phase";
    Some(if lower_alone { lower } else { 0.5 * (lower + upper.unwrap_or(lower)) })
}

/// Returns the verdict of so many statements of which some hold and some more hold in part.
fn statements(passed: usize, partly: usize, all: usize) -> Verdict {
    if all == 0 { Verdict::Open } else { Verdict::of(passed == all, passed + partly == all) }
}

/// Figures 4.5 to 4.7.
pub(super) fn performance(
    lab: &Lab,
    claims: &Rows,
    figure: &str,
    title: &str,
    x: &str,
    section: &str,
) -> anyhow::Result<Figure> {
    let rows = lab.rows(&format!("shootdown sweep {figure}"))?;
    let mut out = Figure::new(
        PAPER,
        &format!("Figure {figure}"),
        title,
        "The equations of 4.2, as the thesis plots them.",
    );
    for (field, name, unit, by) in [
        ("cpu_overhead", "CPU overhead", "%", 100.0),
        ("throughput", "Throughput", "operations a CPU and second", 1.0),
        ("latency_ms", "Latency", "ms", 1.0),
        ("space", "Space overhead", "pages", 1.0),
    ] {
        let mut series = Vec::new();
        for (colour, algorithm) in ALGORITHMS.into_iter().enumerate() {
            let mut points = Vec::new();
            for low in rows.of("algorithm", algorithm).filter(|row| row.text("source") == "lower") {
                let same = |row: &Row<'_>| row.text("x") == low.text("x") && row.text("source") == "upper";
                let high = rows.of("algorithm", algorithm).find(same).unwrap_or(low);
                if let Some(value) = plotted(low, high, field) {
                    points.push((low.number("x")?, by * value));
                }
            }
            series.push(Series::ours(algorithm, colour, points));
        }
        if field == "cpu_overhead" && figure == "4.5" {
            let printed = printed::tzou()?;
            let m = printed.at(&["4.4.2", "2-phase is above 10 % from M"])?;
            let asynch = printed.at(&["4.4.2", "op-asynch % at M = 50"])?;
            series.push(Series::printed("thesis, 2-phase", 0, vec![(m, 10.0)]));
            series.push(Series::printed("thesis, op-asynch", 2, vec![(50.0, asynch)]));
        }
        out = out.chart(Chart::curves(name, x, unit, (false, false), series));
    }
    let (mut table, mut passed, mut partly, mut all) = (Vec::new(), 0, 0, 0);
    for row in claims.of("section", section) {
        let verdict = row.text("verdict");
        all += 1;
        passed += usize::from(verdict == "pass");
        partly += usize::from(verdict == "partly");
        table.push(vec![row.text("claim"), row.text("ours"), verdict]);
    }
    Ok(out
        .table(Table::new("", &["*the text says", "ours", "verdict"], table))
        .says(
            statements(passed, partly, all),
            format!("of {all} statements of the text {passed} hold, {partly} more in part."),
        )
        .by(rows.command)
        .by(claims.command.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_that_fails_differs() {
        let verdicts = [(7, 0, 7), (5, 2, 7), (6, 0, 7), (0, 6, 7), (0, 0, 0)];
        let verdicts = verdicts.map(|(passed, partly, all)| statements(passed, partly, all));
        use Verdict::{Agrees, Differs, Open, Partly};
        assert_eq!(verdicts, [Agrees, Partly, Differs, Differs, Open]);
    }
}
