//! Figures 4.5 to 4.7: what the algorithms cost.

use tlblab::shootdown::{Claim, Kind, Row, Source, Sweep};

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Judged, Table, Verdict};
use crate::lab::Lab;
use crate::printed;
use crate::rows::Rows;

use super::PAPER;

/// What is plotted of a result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Measure {
    Overhead,
    Throughput,
    Latency,
    Space,
}

impl Measure {
    fn of(self, row: &Row) -> Option<f64> {
        match self {
            Self::Overhead => row.cpu_overhead_share,
            Self::Throughput => row.ops_per_cpu_s,
            Self::Latency => row.latency_ms,
            Self::Space => row.frozen_pages_per_cpu,
        }
    }

    /// Returns the value that the thesis plots: 2-phase's lower bound for latency, else the middle of the bounds.
    fn plotted(self, low: &Row, high: &Row) -> Option<f64> {
        let (lower, upper) = (self.of(low)?, self.of(high));
        let lower_alone = self == Self::Latency && low.algorithm == Kind::TwoPhase;
        Some(if lower_alone { lower } else { 0.5 * (lower + upper.unwrap_or(lower)) })
    }
}

/// Returns the verdict of so many statements of which some hold and some more hold in part.
fn statements(passed: usize, partly: usize, all: usize) -> Judged {
    if all == 0 {
        return Verdict::Open.into();
    }
    Verdict::of(passed == all, passed + partly == all).allows(
        "all statements hold (`tlblab shootdown claims` says within what); in part the others do in part",
    )
}

/// Figures 4.5 to 4.7.
pub(super) fn performance(
    lab: &Lab,
    claims: &Rows<Claim>,
    figure: &str,
    title: &str,
    x: &str,
    section: &str,
) -> anyhow::Result<Figure> {
    let rows = lab.rows::<Sweep>(&format!("shootdown sweep {figure}"))?;
    let mut out = Figure::new(
        PAPER,
        &format!("Figure {figure}"),
        title,
        "The equations of 4.2, as the thesis plots them.",
    );
    for (measure, name, unit, by) in [
        (Measure::Overhead, "CPU overhead", "%", 100.0),
        (Measure::Throughput, "Throughput", "operations a CPU and second", 1.0),
        (Measure::Latency, "Latency", "ms", 1.0),
        (Measure::Space, "Space overhead", "pages", 1.0),
    ] {
        let mut series = Vec::new();
        for (colour, algorithm) in Kind::ALL.into_iter().enumerate() {
            let bound = |source| {
                rows.iter()
                    .filter(move |point| point.row.algorithm == algorithm && point.row.source == source)
            };
            let mut points = Vec::new();
            for low in bound(Source::Lower) {
                let high = bound(Source::Upper).find(|point| point.x == low.x).unwrap_or(low);
                if let Some(value) = measure.plotted(&low.row, &high.row) {
                    points.push((low.x, by * value));
                }
            }
            series.push(Series::ours(algorithm.name(), colour, points));
        }
        if measure == Measure::Overhead && figure == "4.5" {
            let printed = printed::tzou()?;
            let m = printed.at(&["4.4.2", "2-phase is above 10 % from M"])?;
            let asynch = printed.at(&["4.4.2", "op-asynch % at M = 50"])?;
            series.push(Series::printed("thesis, 2-phase", 0, vec![(m, 10.0)]));
            series.push(Series::printed("thesis, op-asynch", 2, vec![(50.0, asynch)]));
        }
        out = out.chart(Chart::curves(name, x, unit, (false, false), series));
    }
    let (mut table, mut passed, mut partly, mut all) = (Vec::new(), 0, 0, 0);
    for claim in claims.iter().filter(|claim| claim.section == section) {
        all += 1;
        passed += usize::from(claim.verdict == "pass");
        partly += usize::from(claim.verdict == "partly");
        table.push(vec![claim.claim.to_string(), claim.ours.clone(), claim.verdict.to_string()]);
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
