//! Figures 4.2 to 4.4: the simulator against the analysis.

use tlblab::shootdown::{Point, Row, Source, Sweep};

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Verdict, cell};
use crate::lab::Lab;

use super::PAPER;

/// Figures 4.2 to 4.4.
pub(super) fn verified(lab: &Lab, figure: &str, algorithm: &str) -> anyhow::Result<Figure> {
    let seconds = if lab.quick { " --seconds 4" } else { "" };
    let rows = lab.rows::<Sweep>(&format!("shootdown sweep {figure}{seconds}"))?;
    let mut charts = Vec::new();
    type Measure = (fn(&Row) -> Option<f64>, &'static str, &'static str, f64);
    let measures: [Measure; 2] = [
        (|row| row.cpu_overhead_share, "CPU overhead", "%", 100.0),
        (|row| row.latency_ms, "Latency", "ms", 1.0),
    ];
    for (measure, title, unit, by) in measures {
        let of = |source: Source, times: Option<usize>| {
            let of_source = rows.iter().filter(|point| point.row.source == source);
            let chosen =
                of_source.filter(|point| times.is_none_or(|times| point.row.n == times * point.row.m));
            chosen.filter_map(|point| Some((point.x, by * measure(&point.row)?))).collect()
        };
        charts.push(Chart::curves(
            title,
            "CPUs of an operation",
            unit,
            (false, false),
            vec![
                Series::ours("lower bound", 0, of(Source::Lower, None)),
                Series::ours("upper bound", 2, of(Source::Upper, None)),
                Series::ours("simulated, N = M", 1, of(Source::Simulation, Some(1))).scattered(),
                Series::ours("simulated, N = 4M", 3, of(Source::Simulation, Some(4))).scattered(),
            ],
        ));
    }
    let far = |deviation: fn(&Point) -> Option<f64>| {
        rows.iter().filter(|point| point.x <= 20.0).filter_map(deviation).collect::<Vec<_>>()
    };
    let (overheads, latencies) =
        (far(|point| point.overhead_deviation_pct), far(|point| point.latency_deviation_pct));
    let most = |values: &[f64]| values.iter().copied().map(f64::abs).fold(0.0, f64::max);
    let (overhead, latency) = (most(&overheads), most(&latencies));
    let about = "The simulator runs the crate's state machines under the model of 4.1; the bounds are the equations of 4.2.";
    let title = format!("Simulation against analysis, {algorithm}");
    let start = Figure::new(PAPER, &format!("Figure {figure}"), &title, about);
    Ok(charts.into_iter().fold(start, Figure::chart)
        .says(
            Verdict::most(&[overheads, latencies].concat(), 10.0, 30.0),
            format!("for M up to 20, where the thesis finds them to agree well, simulated overheads lie within {} % and latencies within {} % of the middle of the bounds.", cell(overhead), cell(latency)),
        )
        .by(rows.command))
}
